"""The folders of a run: their places, their permissions, and the room in them."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from engines.base import EngineError, NoSpace
from gateway.data.workspace import DiskWatch, Workspace, make_folder
from gateway.domain.run import Address, RunData
from gateway.errors import Invalid
from tests.builders import a_run, raising

OUTPUT = Address("job-1-guest-0", "task-out")
NOT_WRITTEN = Address("job-1-guest-0", "task-none")
EXABYTE = 2**60


@pytest.fixture
def storage(tmp_path):
    """The folder of the storage; the workspace makes it."""
    return tmp_path / "storage"


@pytest.fixture
def runs(tmp_path):
    """The folder of the runs; the workspace makes it."""
    return tmp_path / "runs"


@pytest.fixture
def workspace(storage, runs):
    return Workspace(storage, runs, contained=True)


def permissions(path):
    return path.stat().st_mode & 0o777


def test_a_containers_writes_stay_in_its_mount_while_it_runs(storage, runs):
    storage.mkdir(mode=0o755)  # as another program does, readable for all
    workspace = Workspace(storage, runs, contained=True)
    run = a_run(data=RunData(outputs={"out": OUTPUT, "none": NOT_WRITTEN}))
    output = storage / OUTPUT.namespace / OUTPUT.name

    workspace.prepare(run)
    assert permissions(output) == 0o777
    assert permissions(runs / run.name / "log") == 0o777
    assert permissions(output.parent) == 0o700
    assert permissions(runs / run.name) == 0o700

    (output / "data_0").write_text("id\n1\n")
    workspace.prepare(run)  # a launch may be repeated
    workspace.clear(run)
    assert permissions(output) == 0o755
    assert (output / "data_0").exists()
    assert not (output.parent / NOT_WRITTEN.name).exists()
    assert permissions(storage) == 0o755


def test_an_input_that_was_never_written_is_not_mounted(storage, workspace):
    (storage / OUTPUT.namespace / OUTPUT.name).mkdir(parents=True)
    run = a_run(data=RunData(inputs={"out": OUTPUT, "none": NOT_WRITTEN}))

    mounts = workspace.prepare(run).mounts

    assert [mount.source.name for mount in mounts] == ["log", "task-out"]


def test_a_table_registered_in_place_is_mounted_at_its_own_path(storage, workspace):
    file = storage / "warehouse" / "2026" / "c.csv"
    file.parent.mkdir(parents=True)
    file.write_text("id\n1\n")
    registered = Address("warehouse/2026", "c.csv", in_place="file")

    *_, mount = workspace.prepare(a_run(data=RunData(inputs={"in": registered}))).mounts

    assert mount.target == "/bfia/storage/warehouse/2026/c.csv"
    assert mount.read_only is True


def test_a_registered_path_out_of_the_storage_is_refused(workspace):
    hostile = Address("warehouse/..", "c.csv", in_place="file")

    with pytest.raises(Invalid, match="must not begin with a dot"):
        workspace.prepare(a_run(data=RunData(inputs={"in": hostile})))


# ------------------------------------------------------------ engines without the node's folders

CHECKPOINT = Address("checkpoints", "one")
CHECKPOINT_IN_LAKE = Address("checkpoints", "one", "lake")
OLD_CHECKPOINT = Address("checkpoints", "old", "lake")
OUTPUTS_IN_LAKE = {"out": Address("job-1-guest-0", "task-out", "lake")}


@pytest.fixture
def copies():
    """The copies of checkpoints made so far: (from, to)."""
    return []


@pytest.fixture
def workspace_with_swarm(storage, runs, copies):
    """A workspace whose engine swarm shares no folder with the node."""

    def copy(source, target):
        copies.append((source, target))

    return Workspace(
        storage,
        runs,
        contained=True,
        without_runs_folder={"swarm"},
        copy=copy,
    )


def test_an_engine_without_shared_folder_gets_a_temporary_log_folder(workspace_with_swarm, copies):
    data = RunData(
        outputs=OUTPUTS_IN_LAKE,
        checkpoint=CHECKPOINT_IN_LAKE,
        checkpoint_from=OLD_CHECKPOINT,
    )
    run = a_run(engine="swarm", data=data)

    folders = workspace_with_swarm.prepare(run)

    assert folders.mounts == ()
    assert folders.private_folders == ("/bfia/log",)
    assert folders.log_path == "/bfia/log"
    assert folders.checkpoint == ""
    assert folders.checkpoint_at == CHECKPOINT_IN_LAKE
    assert copies == [(OLD_CHECKPOINT, CHECKPOINT_IN_LAKE)]


def test_an_engine_with_shared_folder_mounts_log_and_checkpoint(workspace_with_swarm):
    data = RunData(outputs=OUTPUTS_IN_LAKE, checkpoint=CHECKPOINT)
    run = a_run(engine="", data=data)

    folders = workspace_with_swarm.prepare(run)

    assert [mount.target for mount in folders.mounts] == ["/bfia/log", "/bfia/checkpoint"]
    assert folders.private_folders == ()


# ------------------------------------------------------------ disk


@pytest.fixture
def run_with_eight_files(storage, workspace):
    """A run with four files in each of two outputs."""
    outputs = {key: Address("job-1-guest-0", key) for key in ("one", "two")}
    run = a_run(data=RunData(outputs=outputs))
    workspace.prepare(run)
    for key in ("one", "two"):
        for number in range(4):
            (storage / "job-1-guest-0" / key / f"data_{number}").write_text("x")
    return run


def test_files_are_counted_up_to_the_limit_of_a_run(workspace, run_with_eight_files):
    assert workspace.used(run_with_eight_files, 100).files == 8
    assert 3 < workspace.used(run_with_eight_files, 3).files < 8


def test_a_run_with_too_many_files_fails_without_its_engine(workspace, run_with_eight_files):
    no_daemon = raising(EngineError("no daemon answers"))
    watch = DiskWatch(
        workspace,
        every=0.0,
        files=5,
        written=no_daemon,
    )

    failure = watch.excess(run_with_eight_files)

    assert failure is not None
    assert "made more than 5 files" in failure.message


def test_a_run_starts_where_there_is_room(workspace):
    DiskWatch(workspace, 0).check_room(a_run(limits={"disk": 0}))


@pytest.mark.parametrize(
    ("reserve", "granted", "words"),
    [
        (
            0,
            EXABYTE,
            "was granted 1073741824.000 GiB of it (resources.disk): delete data, ask for less",
        ),
        (
            EXABYTE,
            0,
            "are kept back (limits.storage_reserve_bytes): delete data, or lower the reserve",
        ),
    ],
    ids=["grant", "reserve"],
)
def test_no_run_starts_without_room_for_its_grant(workspace, reserve, granted, words):
    with pytest.raises(NoSpace) as refusal:
        DiskWatch(workspace, reserve).check_room(a_run(limits={"disk": granted}))
    assert str(refusal.value).endswith(words)


def test_a_default_of_the_node_is_not_told_as_a_request_of_the_job(storage, workspace):
    origins = {"disk": "site default for guest"}
    data = RunData(outputs={"out": OUTPUT})
    run = a_run(data=data, limits={"disk": 1}, limit_origins=origins)
    nodes_limit = "(the node's limit, as the job sets no resources.disk)"
    workspace.prepare(run)
    (storage / OUTPUT.namespace / OUTPUT.name / "data_0").write_text("two")

    failure = DiskWatch(workspace, every=0.0).excess(run)
    with pytest.raises(NoSpace) as refusal:
        DiskWatch(workspace).check_room(replace(run, limits={"disk": EXABYTE}))

    assert failure is not None
    assert failure.message.endswith(nodes_limit)
    assert f"of it {nodes_limit}: delete data" in str(refusal.value)


# ------------------------------------------------------------ folders that cannot be made


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()

    message = f"cannot be a folder: {tmp_path}/file is a file; choose another state_dir"
    with pytest.raises(Invalid, match=message):
        make_folder(tmp_path / "file" / "state", "state_dir")


def test_a_folder_that_cannot_be_made_is_named_with_its_setting(tmp_path, monkeypatch):
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(Path, "mkdir", raising(denied))

    message = f"cannot make it in {tmp_path}: Permission denied; grant that"
    with pytest.raises(Invalid, match=message) as refusal:
        make_folder(tmp_path / "state", "state_dir")
    assert refusal.value.reason == "FOLDER_UNUSABLE"
    assert refusal.value.problems[0].path == "state_dir"
