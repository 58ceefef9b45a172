"""Where a run's places lie, and who may write there."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from engines.base import EngineError, NoSpace
from gateway.data.workspace import Apart, DiskWatch, Workspace, make_folder
from gateway.domain.run import Address
from gateway.errors import Invalid
from tests.builders import a_run, raising


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_containers_writes_stay_in_its_mount_while_it_runs(tmp_path: Path):
    storage, runs = tmp_path / "storage", tmp_path / "runs"
    storage.mkdir(mode=0o755)  # made by somebody else, and readable for all
    workspace = Workspace(storage, runs, contained=True)
    run = a_run(
        outputs={
            "out": Address("job-1-guest-0", "task-out"),
            "none": Address("job-1-guest-0", "task-none"),
        }
    )
    workspace.prepare(run)
    leaf = storage / "job-1-guest-0" / "task-out"
    assert mode(leaf) == mode(runs / run.name / "log") == 0o777
    assert mode(leaf.parent) == mode(runs / run.name) == 0o700
    (leaf / "data_0").write_text("id\n1\n")
    workspace.prepare(run)  # a launch may be repeated
    workspace.clear(run)
    assert mode(leaf) == 0o755 and (leaf / "data_0").exists()
    assert not (leaf.parent / "task-none").exists()
    assert mode(storage) == 0o755


def test_files_are_counted_up_to_the_most_that_a_run_may_make(tmp_path: Path):
    workspace = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True)
    run = a_run(outputs={key: Address("job-1-guest-0", key) for key in ("one", "two")})
    workspace.prepare(run)
    for key in ("one", "two"):
        for number in range(4):
            (tmp_path / "storage" / "job-1-guest-0" / key / f"data_{number}").write_text("x")
    assert workspace.used(run, 100).files == 8 and 3 < workspace.used(run, 3).files < 8
    unknown = raising(EngineError("no daemon answers"))
    watch = DiskWatch(
        workspace,
        every=0.0,
        files=5,
        written=unknown,
    )
    failure = watch.over(run)  # by what lies in the folders here alone
    assert failure is not None and "made more than 5 files" in failure.message


@pytest.mark.parametrize(
    ("reserve", "granted", "words"),
    [
        (0, 0, ""),
        (
            0,
            2**60,
            "was granted 1073741824.000 GiB of it (resources.disk): delete data, ask for less",
        ),
        (
            2**60,
            0,
            "are kept back (limits.storage_reserve_bytes): delete data, or lower the reserve",
        ),
    ],
)
def test_no_run_starts_where_it_could_not_write_what_it_was_granted(
    tmp_path: Path,
    reserve: int,
    granted: int,
    words: str,
):
    workspace = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True)
    watch = DiskWatch(workspace, reserve)
    run = a_run(limits={"disk": granted})
    if not words:
        watch.check_room(run)
        return
    with pytest.raises(NoSpace) as caught:
        watch.check_room(run)
    assert str(caught.value).endswith(words)


def test_a_folder_that_cannot_be_made_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    with pytest.raises(
        Invalid, match=f"cannot be a folder: {tmp_path}/file is a file; choose another state_dir"
    ):
        make_folder(tmp_path / "file" / "state", "state_dir")
    monkeypatch.setattr(Path, "mkdir", raising(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(
        Invalid, match=f"cannot make it in {tmp_path}: Permission denied; grant that"
    ) as caught:
        make_folder(tmp_path / "state", "state_dir")
    assert caught.value.reason == "FOLDER_UNUSABLE" and caught.value.problems[0].path == "state_dir"


def test_an_input_that_was_never_written_is_not_mounted(tmp_path: Path):
    workspace = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True)
    there, never = Address("job-1-guest-0", "task-out"), Address("job-1-guest-0", "task-none")
    (tmp_path / "storage" / there.namespace / there.name).mkdir(parents=True)
    mounts = workspace.prepare(a_run(inputs={"out": there, "none": never}, outputs={})).mounts
    assert [mount.source.name for mount in mounts] == ["log", "task-out"]


def test_a_table_registered_in_place_is_mounted_at_its_own_path(tmp_path: Path):
    workspace = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True)
    (tmp_path / "storage" / "warehouse" / "2026").mkdir(parents=True)
    (tmp_path / "storage" / "warehouse" / "2026" / "c.csv").write_text("id\n1\n")
    placed = Address("warehouse/2026", "c.csv", in_place="file")
    *_, mount = workspace.prepare(a_run(inputs={"in": placed}, outputs={})).mounts
    assert (mount.target, mount.read_only) == ("/bfia/storage/warehouse/2026/c.csv", True)
    with pytest.raises(Invalid, match="must not begin with a dot"):
        workspace.prepare(
            a_run(inputs={"in": Address("warehouse/..", "c.csv", in_place="file")}, outputs={})
        )


def test_an_engine_without_shared_folder_gets_a_temporary_log_folder(
    tmp_path: Path,
):
    copied: list[tuple[Address, Address]] = []
    workspace = Workspace(
        tmp_path / "storage",
        tmp_path / "runs",
        contained=True,
        apart=Apart(frozenset({"swarm"}), frozenset({"swarm"})),
        copy=lambda *given: copied.append(given),
    )
    places = {"outputs": {"out": Address("job-1-guest-0", "task-out", "lake")}, "inputs": {}}
    checkpoint = Address("checkpoints", "one")
    there, old = replace(checkpoint, storage="lake"), Address("checkpoints", "old", "lake")
    far = workspace.prepare(
        a_run(
            engine="swarm",
            checkpoint=there,
            checkpoint_from=old,
            **places,
        )
    )
    assert (far.mounts, far.private_folders, far.checkpoint, far.log_path) == (
        (),
        ("/bfia/log",),
        "",
        "/bfia/log",
    )
    assert far.checkpoint_at == there and copied == [(old, there)]
    near = workspace.prepare(
        a_run(
            engine="",
            checkpoint=checkpoint,
            **places,
        )
    )
    assert [mount.target for mount in near.mounts] == [
        "/bfia/log",
        "/bfia/checkpoint",
    ] and near.private_folders == ()
