"""What a job is told when its engine or its container fails it: reasons, images that are fetched, last words."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.base import (
    CreateFailed,
    EngineDown,
    EngineError,
    Exited,
    ImageNotFound,
    LaunchSpec,
    PullDenied,
    PullTimeout,
)
from engines.watch import Follower
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace
from gateway.data import storage
from gateway.domain.execution.messages import (
    Broken,
    Done,
    EngineSilent,
    Inspected,
    LaunchFailed,
    Prepare,
    Probe,
    Seal,
    Sealed,
    StopRun,
)
from gateway.domain.run import Address, Preparation
from gateway.domain.spec import Call, Failure
from gateway.domain.states import TaskStatus
from gateway.errors import StorageAway, StorageFailed
from tests.builders import T0, raising
from tests.cli.test_jobs import cli
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ask, running
from tests.memory_engine import Inside, MemoryEngine, Script

IMAGE = "example:1.0.0"
Fetch = Callable[[Callable[[str], None]], Script]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(
        tmp_path_factory.mktemp("node"), make_engine=MemoryEngine.making({IMAGE: Script(0)})
    ) as node:
        yield node


def having(
    node: Gateway,
    script: Script | None = None,
    fetch: Fetch | None = None,
) -> MemoryEngine:
    """Have the image be there with a script, or be fetched in a way of the test's."""
    engine = cast(MemoryEngine, node.engine)
    engine._images = {IMAGE: script} if script else {}
    engine.fetchable = {IMAGE: fetch} if fetch else {}
    engine.launches.clear()
    return engine


def ended(node: Gateway, job_id: str) -> Any:
    wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 30)
    return node.store.jobs.get(job_id)


def played(node: Gateway, **more: float) -> Any:
    """Submit a job, and return it as it is at its end."""
    return ended(node, submit(node, **more).json()["data"]["job_id"])


@pytest.mark.parametrize("error", [None, PullDenied("not allowed")])
def test_an_image_is_fetched_first_and_its_failure_is_the_jobs_reason(
    node: Gateway, error: EngineError | None
) -> None:
    def fetch(told: Callable[[str], None]) -> Script:
        told("1 of 3 layers")
        if error:
            raise error
        return Script(0)

    having(node, fetch=fetch)
    job = played(node)
    if error:
        assert (job.ending.failure.reason, job.ending.failure.message) == (error.reason, str(error))
        return
    assert job.outcome == "SUCCEEDED" or job.ending.failure.reason == "NO_CALLBACK"
    assert {r.image_digest for r in node.store.local_jobs.get(job.id).runs} == {f"memory:{IMAGE}"}


def test_an_engines_messages_about_local_folders_are_not_sent_to_others(node: Gateway) -> None:
    words = "error while creating mount source path '/srv/bfia/storage/job-1': mkdir /srv/bfia: read-only file system"
    having(node, Script(refused=CreateFailed(words)))
    job = played(node)
    assert job.ending.failure.reason == "CREATE_FAILED"
    assert job.ending.failure.message == (
        "error while creating mount source path '…/job-1': mkdir …/bfia: read-only file system"
    )
    notes = [e for e in node.store.timeline(job.id) if e.event == "engine message"]
    assert {n.detail["message"] for n in notes} == {words} and {
        n.detail["task"] for n in notes
    } == {"echo_1"}


def test_an_engine_that_is_away_is_one_sentence_in_the_log(caplog: pytest.LogCaptureFixture):
    looks: list[int] = []

    class Away(Follower):
        def _look(self) -> None:
            looks.append(1)
            raise EngineDown("the container engine does not answer: No such file or directory")

    follower = Away(0.01, lambda _: None, None)
    wait_for(lambda: len(looks) > 2)
    follower.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "engines.watch"]
    assert line.endswith(
        "answers again: the container engine does not answer: No such file or directory"
    )


def test_fetching_ends_when_the_job_is_stopped(node: Gateway) -> None:
    fetching_now, gone_on = threading.Event(), threading.Event()
    asked: list[None] = []

    def fetch(told: Callable[[str], None]) -> Script:
        asked.append(None)
        if len(asked) == 1:
            raise ImageNotFound("not when it is registered")
        for _ in range(3000):
            fetching_now.set()
            told("nothing has come yet")
            gone_on.wait(0.02)
        raise PullTimeout("nobody ended it")

    engine = having(node, fetch=fetch)
    job_id = submit(node).json()["data"]["job_id"]
    assert fetching_now.wait(30)
    path = "/v1/platform/schedule/job/stop_all"
    assert ask(node, "operator", "POST", path, json={"job_id": job_id}).json()["code"] == 0
    ended(node, job_id)
    wait_for(lambda: all(r.over for r in node.store.local_jobs.get(job_id).runs), 30)
    assert {r.failure.reason for r in node.store.local_jobs.get(job_id).runs} == {"STOPPED"}
    assert engine.launches == []


def test_what_an_admin_grants_a_provider_is_shown_with_its_runs(tmp_path: Path) -> None:
    allow = {
        "example": {
            "mounts": [{"source": str(tmp_path), "target": "/opt/models"}],
            "capabilities": ["NET_BIND_SERVICE"],
        }
    }
    engine = {"kind": "process", "docker": {"allow": allow}}
    with running(
        tmp_path, make_engine=MemoryEngine.making({IMAGE: Script(0)}), engine=engine
    ) as node:
        runs = ask(node, "operator", "GET", f"/api/v1/jobs/{played(node).id}").json()["runs"]
        granted = [f"{tmp_path} at /opt/models, read-only", "capability NET_BIND_SERVICE"]
        assert runs and all(run["granted"] == granted for run in runs)
        assert isinstance(node.engine, MemoryEngine)
        assert all(spec.capabilities == ("NET_BIND_SERVICE",) for spec in node.engine.launches)
        assert all(spec.mounts[-1].source == tmp_path for spec in node.engine.launches)


def test_a_full_storage_refuses_to_start_anything(tmp_path: Path) -> None:
    make = MemoryEngine.making({IMAGE: Script(refused=EngineError("is not reached"))})
    with running(tmp_path, make_engine=make, limits={"storage_reserve_bytes": 2**60}) as node:
        refused = submit(node).json()
        assert refused["code"] != 0 and refused["data"]["reason"] == "NO_SPACE", refused
        ready = ask(node, "operator", "GET", "/health/ready")
        assert ready.status_code == 503 and "NO_SPACE" in ready.json()["checks"]["storage"]["cause"]
        node.readiness.failures = dict  # type: ignore[method-assign]  # the disk fills up between the hand-in and the start
        failure = played(node).ending.failure
        assert failure.reason == "NO_SPACE"
        assert "GiB free" in failure.message and str(tmp_path) not in failure.message


def test_a_container_that_takes_too_much_disk_is_ended(tmp_path: Path) -> None:
    """End to end, over the process engine, which leaves its outputs at the same place."""
    written = threading.Event()

    def fill(spec: LaunchSpec, inside: Inside) -> int:
        log = Path(spec.environment["config.log.path"])
        (log / "big").write_bytes(b"x" * 4 * 1024**2)
        written.set()
        inside.asked_to_end.wait(60)
        return 0

    make = MemoryEngine.making({IMAGE: Script(None, body=fill)})
    with running(tmp_path, make_engine=make, pace=Pace(disk_check=0.1)) as node:
        job_id = submit(node, disk=0.001).json()["data"]["job_id"]
        assert written.wait(30)
        failure = ended(node, job_id).ending.failure
        assert failure.reason == "NO_SPACE" and "resources.disk" in failure.message
        wait_for(lambda: list(node.engine.list()) == [], 30, about="the container is taken away")


def test_a_container_removed_from_its_network_is_ended_with_the_cause(node: Gateway) -> None:
    engine = having(node, Script(None))
    job_id = submit(node).json()["data"]["job_id"]
    wait_for(lambda: list(engine.list()) != [], 30)
    for found in engine.list():
        engine.cut_off(found.name)
    run = next(run for run in node.store.local_jobs.get(job_id).runs if run.name == found.name)
    assert isinstance(node.executor.probes.probe(run), Broken)
    told_all = replace(run, reported=TaskStatus.SUCCESS)
    assert isinstance(node.executor.probes.probe(told_all), Inspected), "it has nothing more to say"
    failure = ended(node, job_id).ending.failure
    assert failure.reason == "NETWORK_LOST" and "taken off its network" in failure.message
    wait_for(lambda: list(engine.list()) == [], 30, about="the container is taken away")


DOWN, BROKEN = EngineDown("no daemon answers"), EngineError("it answers nonsense")
AWAY, DENIED = (
    StorageAway("storage lake cannot be reached"),
    StorageFailed("storage lake denies access"),
)


def test_what_an_engine_or_a_storage_that_fails_means_for_a_run(
    node: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = having(node, Script(0))
    local = node.store.local_jobs.get(played(node).id)
    run = replace(
        local.runs[0],
        reported=None,
        stop_at=None,
        outputs={"out": Address("a", "b")},
    )
    executor, launching = node.executor, node.launching

    def seen(found: Any, error: Exception) -> Any:
        monkeypatch.setattr(
            engine, "probe", raising(found) if isinstance(found, Exception) else lambda _: found
        )
        monkeypatch.setattr(executor.probes, "_storage", SimpleNamespace(exists=raising(error)))
        return executor.probes.probe(run)

    assert isinstance(seen(DOWN, AWAY), EngineSilent) and isinstance(seen(BROKEN, AWAY), Inspected)
    assert isinstance(seen(Exited(0), AWAY), Inspected)
    assert seen(Exited(1, cut_off=True), AWAY).cause.reason == "NETWORK_LOST"
    assert seen(Exited(137, oom_killed=True, cut_off=True), AWAY).cause is None
    with monkeypatch.context() as patched:
        patched.setattr(
            executor.probes, "storage_failure", lambda *_: Failure("STORAGE_DENIED", "the cause")
        )
        assert seen(Exited(1, cut_off=True), AWAY).cause.reason == "STORAGE_DENIED"
    broken = seen(Exited(0), DENIED)
    assert isinstance(broken, Broken) and broken.failure.reason == "STORAGE_DENIED"
    with monkeypatch.context() as patched:
        patched.setattr(executor.endings, "_storage", SimpleNamespace(exists=raising(DENIED)))
        sealed = executor.endings.seal(local, replace(run, to_seal=("out",)))
    assert (
        isinstance(sealed, Sealed)
        and sealed.files is None
        and sealed.message == "storage lake denies access"
    )
    for name in ("logs", "stop", "address"):
        monkeypatch.setattr(engine, name, raising(DOWN))
    assert executor.probes.last_words(run) == ("", "") and launching.address_of(run) == ""
    (again,) = executor.endings.stop(run, StopRun(run.run_id, 1))
    assert isinstance(again, Done) and not again.final and again.message == "no daemon answers"
    for action, event in ((Probe(run.run_id), Inspected), (Seal(run.run_id), Sealed)):
        assert isinstance(executor._unexpected_error(action), event)
    monkeypatch.setattr(launching.disk, "check_room", raising(PermissionError(13, "not permitted")))
    failed = launching.launch(local, run, fetching=False)
    assert isinstance(failed, LaunchFailed) and failed.failure.reason == "CREATE_FAILED"
    monkeypatch.setattr(engine, "ensure_image", raising(DOWN))
    prepared = replace(local, preparation=Preparation({IMAGE: ""}, T0, T0))
    later = launching.prepare(prepared, Prepare(), lambda *_: None)
    assert isinstance(later, Done) and not later.final
    monkeypatch.setattr(executor.endings, "_end_credentials", raising(AWAY))
    with pytest.raises(StorageAway):
        executor.endings.revoke_credentials(replace(run, collect=Call()))
    executor.endings.revoke_credentials(
        replace(run, collect=Call(tries=1000))
    )  # the job goes on without


SCRIPT = """
for i in $(seq 150); do echo "line $i"; done
echo '{"result_code": "00000000", "message": "bye"}'
exit 7
"""
"""its code has a text in the description"""


@pytest.mark.parametrize(
    ("script", "reason", "message", "last"),
    [
        (SCRIPT, "EXIT_7", "00000000", "bye"),
        ("echo '[1]'; exit 3", "EXIT_3", "exit code 3", "[1]"),
        ("exec env python9 run", "EXIT_127", "interpreter", "python9"),
    ],
)
def test_what_was_said_last_is_shown(
    tmp_path: Path,
    script: str,
    reason: str,
    message: str,
    last: str,
):
    command = ["/bin/sh", "-c", script]
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": command}}}}
    with running(tmp_path, engine=engine) as node:
        job = played(node)
        failure, job_id = job.ending.failure, job.id
        assert failure.reason == reason and message in failure.message
        assert ("ok" in failure.message) is (script is SCRIPT), (
            "the description's text for the code"
        )
        runs = ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}").json()["runs"]
        lines = next(
            r["last_lines"] for r in runs if r["exit"] and f"EXIT_{r['exit']['code']}" == reason
        )
        assert last in lines[-1] and len(lines) <= 100
        if script is not SCRIPT:
            shown = cli(node, "show", job_id).stdout
            assert message in shown and "last lines of" in shown


def test_a_model_of_holes_is_not_read_through(
    node: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with what the run may take of disk, whatever room it takes, and where the job is stopped."""
    having(node, Script(0))
    local = node.store.local_jobs.get(played(node).id)
    size = 4 * storage.CHUNK
    place = Address("job-holes", "model")
    file = node.storage.path(place) / "data_0"
    file.parent.mkdir(parents=True)
    with file.open("xb") as hole:
        hole.truncate(size)
    run = replace(
        local.runs[0],
        outputs={"model": place},
        to_seal=("model",),
        limits={"disk": size},
    )
    open_file, read = node.storage.open_file, []

    def spied(*given: Any) -> Any:
        read.append(open_file(*given))
        return read[-1]

    monkeypatch.setattr(node.storage, "open_file", spied)
    seal = partial(node.executor.endings.seal, local)
    whole, over = seal(run), seal(replace(run, limits={"disk": size - 1}))
    assert whole.files[0].size == size
    assert over.files is None and "more bytes than the disk" in over.message and len(read) == 1, (
        "it is not opened"
    )
    with monkeypatch.context() as patch:
        patch.setattr(node.storage, "exists", lambda _: True)
        patch.setattr(node.storage, "sums", lambda _, look: look(size) or look(1) or [])
        elsewhere = seal(replace(run, outputs={"model": replace(place, storage="lake")}))
    assert elsewhere == replace(over, at=elsewhere.at) and over.final and not whole.final
    monkeypatch.setattr(storage, "PROGRESS_STEP", storage.CHUNK)
    chunks = []
    monkeypatch.setattr(
        storage, "hashlib", SimpleNamespace(sha256=lambda: SimpleNamespace(update=chunks.append))
    )
    stopped = seal(run)  # the node's record says that nothing is left to seal
    assert stopped.files is None and "stopped" in stopped.message and len(chunks) == 1
