"""``bfia-gateway model …`` against nodes: what a training left is deployed, carried to another node, deleted."""

import hashlib
import json
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
from tests.builders import OK, a_local_job, a_run, a_spec, at
from tests.cli import asking
from tests.inprocess import ME, PEER, running

FLOW = Dag((DagNode("trees", ComponentRef("vendor", "1.0.0", "Thing"), (), (DagOutput("model", "model0"),)),))
DONE = Reporting(TaskStatus.SUCCESS)
PLACE = Address("job-1-guest-0", "task_trees-model0")


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path / "one") as gateway:
        left(gateway)
        yield gateway


def left(gateway: Gateway) -> None:
    """Leave what a training does: files in the storage, and the job's last write."""
    folder = gateway.storage.path(PLACE)
    folder.mkdir(parents=True)
    (folder / "data_0").write_text('{"trees": []}\n')
    (folder / "metadata").write_text("{}")
    spec = a_spec(FLOW, {"guest": (ME,), "host": (PEER,)}, flow_id="credit model")
    run = a_run(
        "trees", RunStatus.SUCCESS, spec.parties[0], to_seal=("model",), seal=OK, collect=OK, reporting=DONE
    )
    run = replace(run, output_keys={"model0": "model"}, outputs={"model": PLACE})
    run = replace(run, files=tuple(replace(f, output="model") for f in gateway.storage.sums(PLACE)))
    gateway.store.local_jobs.add(replace(a_local_job(run), spec=spec, node=ME), spec.flow_id)
    stop = StopRequested(at(5), None, Ending(Outcome.SUCCEEDED, at(5)), ME)
    gateway.store.local_jobs.update("job-1", lambda local: machine.apply(local, stop))


cli = partial(asking, "model")


def test_a_model_is_seen_deployed_carried_to_another_node_and_deleted(node: Gateway, tmp_path: Path):
    assert "credit model" in cli(node, "list").stdout and "guest.0" in cli(node, "list").stdout
    shown = cli(node, "show", "credit model", "job-1", "--verify")
    assert shown.exit_code == 0, shown.output
    assert (
        hashlib.sha256(b'{"trees": []}\n').hexdigest() in shown.stdout
        and "every file is as it was" in shown.stdout
    )
    deployed = cli(node, "deploy", "credit model", "job-1", "--node", "N9", "--node", "N8")
    assert deployed.stdout == "version job-1 of model credit model (guest.0): deployed, also for N8, N9\n"
    archive = tmp_path / "model.zip"
    assert cli(node, "export", "credit model", "job-1", "-o", str(archive)).exit_code == 0
    with running(tmp_path / "two", PEER) as other:
        assert cli(other, "import", str(archive)).exit_code == 0
        there, here = (
            json.loads(cli(n, "show", "credit model", "job-1", "--json").stdout)["models"][0]["parts"][0]
            for n in (other, node)
        )
        assert there["files"] == here["files"] and there["namespace"] != here["namespace"]
        (archive.parent / "half.zip").write_bytes(archive.read_bytes()[:100])
        broken = cli(other, "import", str(archive.parent / "half.zip"))
        assert broken.exit_code == 2 and "ARCHIVE_INVALID" in broken.stderr
        assert cli(other, "import", str(tmp_path / "none.zip")).exit_code == 2
        assert cli(other, "delete", "credit model", "job-1").exit_code == 0
        assert not list(other.storage.root.glob("model-*"))
    refused = cli(node, "delete", "credit model", "job-1")
    assert refused.exit_code == 1 and "undeploy it first" in refused.stderr
    assert cli(node, "undeploy", "credit model", "job-1").exit_code == 0
    assert cli(node, "delete", "credit model", "job-1").exit_code == 0
    assert not node.storage.exists(PLACE)
    gone = cli(node, "show", "credit model", "job-1")
    assert gone.exit_code == 1 and "MODEL_UNKNOWN" in gone.stderr


def test_a_file_that_was_changed_is_found_and_not_exported(node: Gateway, tmp_path: Path):
    (node.storage.path(PLACE) / "data_0").write_text("{}")
    shown = cli(node, "show", "credit model", "job-1", "--verify")
    assert shown.exit_code == 1 and "data_0 has changed" in shown.stderr
    refused = cli(node, "export", "credit model", "job-1", "-o", str(tmp_path / "x.zip"))
    assert refused.exit_code == 1 and "MODEL_DAMAGED" in refused.stderr
    assert list(tmp_path.glob("x.zip*")) == []
