"""``bfia-gateway model …``: a trained model is deployed, carried to another node and deleted."""

import hashlib
import json
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.run import Address, Reporting, RunData, Sealing
from gateway.domain.spec import Ending
from gateway.domain.states import Outcome, RunStatus, TaskStatus
from tests import storages as real
from tests.builders import OK, a_local_job, a_run, a_spec, at
from tests.cli import call_node
from tests.e2e.test_storages import names, settings_of
from tests.inprocess import ME, PEER, Node, running
from tests.world import NodeSetup

MODEL = "credit model"
VERSION = "job-1"
CONTENT = b'{"trees": []}\n'
PLACE = Address("job-1-guest-0", "task_trees-model0")
FLOW = Dag(
    (
        DagNode(
            "trees",
            ComponentRef("vendor", "1.0.0", "Thing"),
            (),
            (DagOutput("model", "model0"),),
        ),
    )
)

cli = partial(call_node, "model")


@pytest.fixture
def node(world) -> Node:
    """A node with the model of a finished training."""
    node = world.node()
    store_training(node)
    return node


def store_training(
    gateway: Gateway,
    storage: str = "",
    host: str = PEER,
) -> None:
    """Store a training: its files, in a storage ("" is the default), and the finished job.

    ``host`` is the node of the second party.
    """
    place = replace(PLACE, storage=storage)
    with gateway.storage.staging() as staging:
        (staging.table / "data_0").write_bytes(CONTENT)
        (staging.table / "metadata").write_text("{}")
        with gateway.storage.published(staging, place, overwrite=False):
            pass
    spec = a_spec(
        FLOW,
        {
            "guest": (ME,),
            "host": (host,),
        },
        flow_id=MODEL,
    )
    files = tuple(replace(file, output="model") for file in gateway.storage.sums(place))
    data = RunData(
        outputs={"model": place},
        output_keys={"model0": "model"},
    )
    run = a_run(
        "trees",
        RunStatus.SUCCESS,
        spec.parties[0],
        data=data,
        collect=OK,
        reporting=Reporting(TaskStatus.SUCCESS),
        sealing=Sealing(("model",), OK, files),
    )
    gateway.store.local_jobs.add(
        replace(
            a_local_job(run),
            spec=spec,
            node=ME,
        ),
        spec.flow_id,
    )
    stop = StopRequested(
        at(5),
        None,
        Ending(Outcome.SUCCEEDED, at(5)),
        ME,
    )
    gateway.store.local_jobs.update("job-1", lambda local: machine.apply(local, stop))


def export(node: Gateway, archive: Path) -> None:
    """Export the model to an archive."""
    exported = cli(
        node,
        "export",
        MODEL,
        VERSION,
        "-o",
        str(archive),
    )
    assert exported.exit_code == 0, exported.output


def part_of(node: Gateway) -> Any:
    """Return the only part of the model at a node."""
    (version,) = json.loads(cli(node, "show", MODEL, VERSION, "--json").stdout)["models"]
    (part,) = version["parts"]
    return part


def test_a_model_is_listed_and_verified(node):
    listed = cli(node, "list").stdout
    assert MODEL in listed
    assert "guest.0" in listed

    details = cli(node, "show", MODEL, VERSION, "--verify")
    assert details.exit_code == 0, details.output
    assert hashlib.sha256(CONTENT).hexdigest() in details.stdout
    assert "every file is as it was" in details.stdout


def test_a_deployed_model_is_deleted_only_after_undeployment(node):
    deployed = cli(node, "deploy", MODEL, VERSION, "--node", "N9", "--node", "N8").stdout
    assert deployed == "version job-1 of model credit model (guest.0): deployed, also for N8, N9\n"

    refused = cli(node, "delete", MODEL, VERSION)
    assert refused.exit_code == 1
    assert "undeploy it first" in refused.stderr

    assert cli(node, "undeploy", MODEL, VERSION).exit_code == 0
    assert cli(node, "delete", MODEL, VERSION).exit_code == 0
    assert not node.storage.exists(PLACE)
    unknown = cli(node, "show", MODEL, VERSION)
    assert unknown.exit_code == 1
    assert "MODEL_UNKNOWN" in unknown.stderr


def test_a_model_is_carried_to_another_node(node, world, tmp_path):
    archive = tmp_path / "model.zip"
    export(node, archive)
    target = world.node(NodeSetup(PEER))

    assert cli(target, "import", str(archive)).exit_code == 0

    assert part_of(target)["files"] == part_of(node)["files"]
    assert part_of(target)["namespace"] != part_of(node)["namespace"]
    assert cli(target, "delete", MODEL, VERSION).exit_code == 0
    assert not list(target.storage.root.glob("model-*"))


def test_a_broken_or_missing_archive_is_refused(node, tmp_path):
    archive = tmp_path / "model.zip"
    export(node, archive)
    half = tmp_path / "half.zip"
    half.write_bytes(archive.read_bytes()[:100])

    broken = cli(node, "import", str(half))
    assert broken.exit_code == 2
    assert "ARCHIVE_INVALID" in broken.stderr
    assert cli(node, "import", str(tmp_path / "none.zip")).exit_code == 2


def test_a_changed_file_is_detected_and_not_exported(node, tmp_path):
    (node.storage.path(PLACE) / "data_0").write_text("{}")

    details = cli(node, "show", MODEL, VERSION, "--verify")
    assert details.exit_code == 1
    assert "data_0 has changed" in details.stderr

    refused = cli(
        node,
        "export",
        MODEL,
        VERSION,
        "-o",
        str(tmp_path / "x.zip"),
    )
    assert refused.exit_code == 1
    assert "MODEL_DAMAGED" in refused.stderr
    assert list(tmp_path.glob("x.zip*")) == []


@pytest.mark.s3
@pytest.mark.hdfs
def test_a_model_is_carried_between_s3_and_hdfs(tmp_path):
    with (
        real.bucket() as bucket,
        real.folder() as folder,
        running(tmp_path / "one", ME, storages=settings_of(bucket)) as source,
        running(tmp_path / "two", PEER, storages=settings_of(folder)) as target,
    ):
        store_training(source, "lake")
        archive = tmp_path / "model.zip"
        export(source, archive)
        assert cli(target, "import", str(archive)).exit_code == 0
        details = cli(target, "show", MODEL, VERSION, "--verify")
        assert details.exit_code == 0, details.output
        assert "every file is as it was" in details.stdout
        files = sorted(name.rpartition("/")[2] for name in names(folder))
        assert files == ["data_0", "metadata"]

        second_archive = tmp_path / "again.zip"
        export(target, second_archive)
        # the first of the sorted contents differs: it names the node
        assert contents_of(second_archive)[1:] == contents_of(archive)[1:]

        assert cli(target, "delete", MODEL, VERSION).exit_code == 0
        assert names(folder) == []
        assert names(bucket)
        (data_file,) = [name for name in names(bucket) if name.endswith("data_0")]
        bucket.operator.write(data_file, b"{}")
        damaged = cli(source, "show", MODEL, VERSION, "--verify")
        assert damaged.exit_code == 1, damaged.output
        assert "data_0" in damaged.stdout


def contents_of(archive: Path) -> list[bytes]:
    """Return the files in an archive, sorted by their bytes."""
    with zipfile.ZipFile(archive) as file:
        return sorted(file.read(name) for name in file.namelist())
