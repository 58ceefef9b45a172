"""``bfia-gateway model …`` against nodes: what a training left is deployed, carried to another node, deleted."""

import hashlib
import json
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.run import Address, Reporting
from gateway.domain.spec import Ending
from gateway.domain.states import Outcome, RunStatus, TaskStatus
from tests import storages as real
from tests.builders import OK, a_local_job, a_run, a_spec, at
from tests.cli import call_node
from tests.e2e.test_storages import names, settings_of
from tests.inprocess import ME, PEER, running

FLOW = Dag(
    (
        DagNode(
            "trees", ComponentRef("vendor", "1.0.0", "Thing"), (), (DagOutput("model", "model0"),)
        ),
    )
)
DONE = Reporting(TaskStatus.SUCCESS)
PLACE = Address("job-1-guest-0", "task_trees-model0")


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path / "one") as gateway:
        left(gateway)
        yield gateway


def left(gateway: Gateway, storage: str = "") -> None:
    """Leave what a training does: files in the storage, and the job's last write."""
    place = replace(PLACE, storage=storage)
    with gateway.storage.staging() as staging:
        (staging.table / "data_0").write_text('{"trees": []}\n')
        (staging.table / "metadata").write_text("{}")
        with gateway.storage.published(staging, place, overwrite=False):
            pass
    spec = a_spec(FLOW, {"guest": (ME,), "host": (PEER,)}, flow_id="credit model")
    run = a_run(
        "trees",
        RunStatus.SUCCESS,
        spec.parties[0],
        to_seal=("model",),
        seal=OK,
        collect=OK,
        reporting=DONE,
    )
    run = replace(run, output_keys={"model0": "model"}, outputs={"model": place})
    run = replace(run, files=tuple(replace(f, output="model") for f in gateway.storage.sums(place)))
    gateway.store.local_jobs.add(replace(a_local_job(run), spec=spec, node=ME), spec.flow_id)
    stop = StopRequested(at(5), None, Ending(Outcome.SUCCEEDED, at(5)), ME)
    gateway.store.local_jobs.update("job-1", lambda local: machine.apply(local, stop))


cli = partial(call_node, "model")


def test_a_model_is_seen_deployed_carried_to_another_node_and_deleted(node, tmp_path):
    assert "credit model" in cli(node, "list").stdout
    assert "guest.0" in cli(node, "list").stdout
    shown = cli(node, "show", "credit model", "job-1", "--verify")
    assert shown.exit_code == 0, shown.output
    assert hashlib.sha256(b'{"trees": []}\n').hexdigest() in shown.stdout
    assert "every file is as it was" in shown.stdout
    deployed = cli(node, "deploy", "credit model", "job-1", "--node", "N9", "--node", "N8")
    assert (
        deployed.stdout
        == "version job-1 of model credit model (guest.0): deployed, also for N8, N9\n"
    )
    archive = tmp_path / "model.zip"
    assert cli(node, "export", "credit model", "job-1", "-o", str(archive)).exit_code == 0
    with running(tmp_path / "two", PEER) as other:
        assert cli(other, "import", str(archive)).exit_code == 0
        there, here = (
            json.loads(cli(n, "show", "credit model", "job-1", "--json").stdout)["models"][0][
                "parts"
            ][0]
            for n in (other, node)
        )
        assert there["files"] == here["files"]
        assert there["namespace"] != here["namespace"]
        (archive.parent / "half.zip").write_bytes(archive.read_bytes()[:100])
        broken = cli(other, "import", str(archive.parent / "half.zip"))
        assert broken.exit_code == 2
        assert "ARCHIVE_INVALID" in broken.stderr
        assert cli(other, "import", str(tmp_path / "none.zip")).exit_code == 2
        assert cli(other, "delete", "credit model", "job-1").exit_code == 0
        assert not list(other.storage.root.glob("model-*"))
    refused = cli(node, "delete", "credit model", "job-1")
    assert refused.exit_code == 1
    assert "undeploy it first" in refused.stderr
    assert cli(node, "undeploy", "credit model", "job-1").exit_code == 0
    assert cli(node, "delete", "credit model", "job-1").exit_code == 0
    assert not node.storage.exists(PLACE)
    gone = cli(node, "show", "credit model", "job-1")
    assert gone.exit_code == 1
    assert "MODEL_UNKNOWN" in gone.stderr


def test_a_file_that_was_changed_is_found_and_not_exported(node, tmp_path):
    (node.storage.path(PLACE) / "data_0").write_text("{}")
    shown = cli(node, "show", "credit model", "job-1", "--verify")
    assert shown.exit_code == 1
    assert "data_0 has changed" in shown.stderr
    refused = cli(node, "export", "credit model", "job-1", "-o", str(tmp_path / "x.zip"))
    assert refused.exit_code == 1
    assert "MODEL_DAMAGED" in refused.stderr
    assert list(tmp_path.glob("x.zip*")) == []


@pytest.mark.s3
@pytest.mark.hdfs
def test_a_model_is_carried_between_s3_and_hdfs(tmp_path):
    with real.bucket() as bucket, real.folder() as folder:
        nodes = {ME: settings_of(bucket), PEER: settings_of(folder)}
        with (
            running(tmp_path / "one", ME, storages=nodes[ME]) as one,
            running(tmp_path / "two", PEER, storages=nodes[PEER]) as two,
        ):
            left(one, "lake")
            archive, again = tmp_path / "model.zip", tmp_path / "again.zip"
            assert cli(one, "export", "credit model", "job-1", "-o", str(archive)).exit_code == 0
            assert cli(two, "import", str(archive)).exit_code == 0
            shown = cli(two, "show", "credit model", "job-1", "--verify")
            assert shown.exit_code == 0 and "every file is as it was" in shown.stdout, shown.output
            assert sorted(name.rpartition("/")[2] for name in names(folder)) == [
                "data_0",
                "metadata",
            ]
            assert cli(two, "export", "credit model", "job-1", "-o", str(again)).exit_code == 0
            with zipfile.ZipFile(archive) as first, zipfile.ZipFile(again) as second:
                assert (
                    sorted(map(first.read, first.namelist()))[1:]
                    == sorted(map(second.read, second.namelist()))[1:]
                )
            assert cli(two, "delete", "credit model", "job-1").exit_code == 0
            assert names(folder) == []
            assert names(bucket)
            bucket.operator.write(
                next(name for name in names(bucket) if name.endswith("data_0")), b"{}"
            )
            damaged = cli(one, "show", "credit model", "job-1", "--verify")
            assert damaged.exit_code == 1 and "data_0" in damaged.stdout, damaged.output
