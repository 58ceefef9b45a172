"""Jobs whose engine or container fails: reasons, pulled images, last lines of output."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.base import (
    CreateFailed,
    EngineDown,
    EngineError,
    Exited,
    ImageNotFound,
    PullDenied,
    PullTimeout,
)
from engines.watch import Follower
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
from gateway.domain.run import Address, ContainerReport, Preparation, RunData, Sealing
from gateway.domain.spec import Call, Failure
from gateway.domain.states import TaskStatus
from gateway.errors import DatabaseAway, StorageAway, StorageFailed
from gateway.jobs.container_probes import ContainerProbes
from gateway.jobs.run_endings import RunEndings
from tests.builders import T0, raising, returning
from tests.cli import call_node
from tests.core.example_jobs import IMAGE, PLATFORM, run_to_end, submit, submit_job, wait_for_end
from tests.e2e.nodes import wait_for
from tests.memory_engine import Script
from tests.world import NodeSetup

NODE = NodeSetup(scripts={IMAGE: Script(0)})


def node_with_image(world, script):
    """Start a node with an engine in memory whose only image has a script."""
    return world.node(scripts={IMAGE: script})


def node_that_pulls(world, pull):
    """Start a node whose engine lacks the image and pulls it with a function."""
    node = world.node(scripts={"present:1.0.0": Script(0)})
    node.engine.fetchable[IMAGE] = pull
    return node


def runs_of(node, job_id):
    return node.store.local_jobs.get(job_id).runs


def wait_until_runs_are_over(node, job_id):
    def are_over():
        return all(run.over for run in runs_of(node, job_id))

    wait_for(are_over, 30)


# ------------------------------------------------------------ images


def test_a_missing_image_is_pulled_first(world):
    def pull(report):
        report("1 of 3 layers")
        return Script(0)

    node = node_that_pulls(world, pull)
    job = run_to_end(node)

    # The container reports nothing, which ends the job unless its exit is seen first.
    assert job.outcome == "SUCCEEDED" or job.ending.failure.reason == "NO_CALLBACK"
    digests = {run.software.digest for run in runs_of(node, job.id)}
    assert digests == {f"memory:{IMAGE}"}


def test_a_pull_goes_on_while_the_database_is_away(world, monkeypatch):
    pulls = []
    one_outage = threading.Lock()  # two parties pull the image

    def pull(report):
        pulls.append(IMAGE)
        if len(pulls) == 1:
            raise ImageNotFound("not when it is registered")
        with one_outage, monkeypatch.context() as patch:
            patch.setattr(node.store.local_jobs, "get", raising(DatabaseAway("away")))
            report("1 of 3 layers")
        return Script(0)

    node = node_that_pulls(world, pull)
    job = run_to_end(node)

    digests = {run.software.digest for run in runs_of(node, job.id)}
    assert digests == {f"memory:{IMAGE}"}


def test_a_failed_pull_is_the_jobs_reason(world):
    error = PullDenied("not allowed")

    def pull(report):
        report("1 of 3 layers")
        raise error

    failure = run_to_end(node_that_pulls(world, pull)).ending.failure

    assert failure.reason == error.reason
    assert failure.message == str(error)


def test_a_pull_ends_when_the_job_is_stopped(world):
    is_pulling = threading.Event()
    pulls = []

    def pull(report):
        pulls.append(IMAGE)
        if len(pulls) == 1:
            raise ImageNotFound("not when it is registered")
        for _ in range(3000):  # a minute
            is_pulling.set()
            report("nothing has come yet")
            threading.Event().wait(0.02)
        raise PullTimeout("nobody ended it")

    node = node_that_pulls(world, pull)
    job_id = submit_job(node)
    assert is_pulling.wait(30)

    response = node.post(
        f"{PLATFORM}/stop_all",
        json={"job_id": job_id},
    )

    assert response.json()["code"] == 0
    wait_for_end(node, job_id)
    wait_until_runs_are_over(node, job_id)
    assert {run.failure.reason for run in runs_of(node, job_id)} == {"STOPPED"}
    assert node.engine.launches == []


# ------------------------------------------------------------ messages


def test_an_engines_messages_about_local_folders_are_not_sent_to_others(world):
    message = (
        "error while creating mount source path '/srv/bfia/storage/job-1': "
        "mkdir /srv/bfia: read-only file system"
    )
    node = node_with_image(
        world,
        Script(refused=CreateFailed(message)),
    )

    job = run_to_end(node)

    assert job.ending.failure.reason == "CREATE_FAILED"
    assert job.ending.failure.message == (
        "error while creating mount source path '…/job-1': mkdir …/bfia: read-only file system"
    )
    notes = [entry for entry in node.store.timeline(job.id) if entry.event == "engine message"]
    assert notes
    for note in notes:
        assert note.detail["message"] == message
        assert note.detail["task"] == "echo_1"


def test_an_engine_that_is_away_is_one_sentence_in_the_log(caplog):
    message = "the container engine does not answer: No such file or directory"
    looks = []

    class AwayFollower(Follower):
        def _look(self):
            looks.append(message)
            raise EngineDown(message)

    follower = AwayFollower(0.01, returning(None), None)
    wait_for(lambda: len(looks) > 2)
    follower.close()

    [record] = [record for record in caplog.records if record.name == "engines.watch"]
    assert record.getMessage().endswith(f"answers again: {message}")


# Its exit code has a text in the description, which is not among the last lines.
DESCRIBED_EXIT = """
for i in $(seq 150); do echo "line $i"; done
echo '{"result_code": "00000000", "message": "bye"}'
exit 7
"""


@pytest.mark.parametrize(
    ("script", "reason", "message", "last_line"),
    [
        (DESCRIBED_EXIT, "EXIT_7", "00000000", "bye"),
        ("echo '[1]'; exit 3", "EXIT_3", "exit code 3", "[1]"),
        ("exec env python9 run", "EXIT_127", "interpreter", "python9"),
    ],
    ids=["described", "undescribed", "no interpreter"],
)
def test_the_last_lines_of_a_failed_container_are_shown(world, script, reason, message, last_line):
    node = world.node(commands={IMAGE: ["/bin/sh", "-c", script]})

    job = run_to_end(node)

    failure = job.ending.failure
    assert failure.reason == reason
    assert message in failure.message
    has_described_text = "ok" in failure.message
    assert has_described_text is (script == DESCRIBED_EXIT)
    lines = last_lines(node, job.id, reason)
    assert last_line in lines[-1]
    assert len(lines) <= 100
    if script != DESCRIBED_EXIT:
        output = call_node("job", node, "show", job.id).stdout
        assert message in output
        assert "last lines of" in output


def last_lines(node, job_id, reason):
    """Return the last lines of the run that ended with the exit code in a job's reason."""
    for run in node.get(f"/api/v1/jobs/{job_id}").json()["runs"]:
        if run["exit"] and f"EXIT_{run['exit']['code']}" == reason:
            return run["last_lines"]
    raise AssertionError(f"no run ended with {reason}")


# ------------------------------------------------------------ what a node grants and bounds


def test_the_grants_of_an_admin_to_a_provider_are_shown_with_its_runs(world, tmp_path):
    mount = {
        "source": str(tmp_path),
        "target": "/opt/models",
    }
    grants = {
        "mounts": [mount],
        "capabilities": ["NET_BIND_SERVICE"],
    }
    engine = {
        "kind": "process",
        "docker": {"allow": {"example": grants}},
    }
    node = world.node(
        scripts={IMAGE: Script(0)},
        settings={"engine": engine},
    )

    job = run_to_end(node)

    runs = node.get(f"/api/v1/jobs/{job.id}").json()["runs"]
    assert runs
    for run in runs:
        assert run["granted"] == [
            f"{tmp_path} at /opt/models, read-only",
            "capability NET_BIND_SERVICE",
        ]
    for launch in node.engine.launches:
        assert launch.capabilities == ("NET_BIND_SERVICE",)
        assert launch.mounts[-1].source == tmp_path


def test_a_full_storage_refuses_to_start_anything(world, tmp_path, monkeypatch):
    node = world.node(
        scripts={IMAGE: Script(refused=EngineError("is not reached"))},
        settings={"limits": {"storage_reserve_bytes": 2**60}},
    )

    refusal = submit(node).json()
    assert refusal["code"] != 0
    assert refusal["data"]["reason"] == "NO_SPACE"

    readiness = node.get("/health/ready")
    assert readiness.status_code == 503
    assert "NO_SPACE" in readiness.json()["checks"]["storage"]["cause"]

    # As if the disk was filled between the submission and the start.
    monkeypatch.setattr(node.readiness, "failures", dict)
    failure = run_to_end(node).ending.failure
    assert failure.reason == "NO_SPACE"
    assert "GiB free" in failure.message
    assert str(tmp_path) not in failure.message


def test_a_container_that_takes_too_much_disk_is_ended(world):
    """End to end; an engine in memory has its logs in the same folder as the process engine."""
    is_full = threading.Event()

    def fill(spec, inside):
        log = Path(spec.environment["config.log.path"])
        (log / "big").write_bytes(b"x" * 4 * 1024**2)
        is_full.set()
        inside.asked_to_end.wait(60)
        return 0

    node = world.node(
        scripts={IMAGE: Script(None, body=fill)},
        pace=Pace(disk_check=0.1),
    )
    job_id = submit_job(node, disk=0.001)
    assert is_full.wait(30)

    failure = wait_for_end(node, job_id).ending.failure

    assert failure.reason == "NO_SPACE"
    assert "resources.disk" in failure.message
    wait_for_removal(node)


def test_a_container_removed_from_its_network_is_ended_with_the_cause(world):
    node = node_with_image(world, Script(None))
    engine = node.engine
    job_id = submit_job(node)
    wait_for(lambda: list(engine.list()) != [], 30)
    names = [listed.name for listed in engine.list()]

    for name in names:
        engine.cut_off(name)

    [run] = [run for run in runs_of(node, job_id) if run.name == names[-1]]
    assert isinstance(
        node.executor.probes.probe(run),
        Broken,
    )
    reported = replace(
        run,
        container_report=ContainerReport(TaskStatus.SUCCESS),
    )
    assert isinstance(node.executor.probes.probe(reported), Inspected), "it needs no network now"
    failure = wait_for_end(node, job_id).ending.failure
    assert failure.reason == "NETWORK_LOST"
    assert "taken off its network" in failure.message
    wait_for_removal(node)


def wait_for_removal(node):
    def has_no_containers():
        return list(node.engine.list()) == []

    wait_for(has_no_containers, 30, about="every container is removed")


# ------------------------------------------------------------ one run while engine or storage fails

NO_DAEMON = EngineDown("no daemon answers")
NONSENSE = EngineError("it answers nonsense")
STORAGE_AWAY = StorageAway("storage lake cannot be reached")
STORAGE_DENIED = StorageFailed("storage lake denies access")


@pytest.fixture(scope="module")
def ended_job(node):
    """The node's record of a job that has run to its end."""
    return node.store.local_jobs.get(run_to_end(node).id)


@pytest.fixture
def run(ended_job):
    """A run that has reported nothing so far, with one output."""
    return replace(
        ended_job.runs[0],
        data=RunData(outputs={"out": Address("a", "b")}),
        container_report=ContainerReport(),
        stop_at=None,
    )


def probes_with_storage(node, error):
    """Return the node's probes, with a storage that fails with an error."""
    failing_storage = SimpleNamespace(
        exists=raising(error),
        trouble=returning(None),
    )
    return ContainerProbes(node.launching, failing_storage, None, node.clock)


def endings(node, failing_storage=None, end_credentials=None):
    """Return the endings of the node's runs, with a storage or an end of credentials that fails."""
    return RunEndings(
        node.context,
        node.launching,
        failing_storage or node.storage,
        node.executor.probes,
        stop_grace=0.0,
        end_credentials=end_credentials or returning(None),
        on_channel=returning(""),
    )


@pytest.mark.parametrize(
    ("engine_error", "event"),
    [
        (NO_DAEMON, EngineSilent),
        (NONSENSE, Inspected),
    ],
    ids=["no daemon", "nonsense"],
)
def test_a_probe_of_an_engine_that_fails_ends_no_run(node, run, monkeypatch, engine_error, event):
    monkeypatch.setattr(node.engine, "probe", raising(engine_error))

    assert isinstance(
        node.executor.probes.probe(run),
        event,
    )


def test_an_exit_is_probed_again_while_the_outputs_cannot_be_seen(node, run, monkeypatch):
    monkeypatch.setattr(
        node.engine,
        "probe",
        returning(Exited(0)),
    )

    assert isinstance(
        probes_with_storage(node, STORAGE_AWAY).probe(run),
        Inspected,
    )


def test_a_storage_that_denies_the_outputs_breaks_the_run(node, run, monkeypatch):
    monkeypatch.setattr(
        node.engine,
        "probe",
        returning(Exited(0)),
    )

    event = probes_with_storage(node, STORAGE_DENIED).probe(run)

    assert isinstance(event, Broken)
    assert event.failure.reason == "STORAGE_DENIED"


def test_a_lost_network_is_the_cause_of_a_failed_exit(node, run, monkeypatch):
    monkeypatch.setattr(
        node.engine,
        "probe",
        returning(Exited(1, cut_off=True)),
    )
    probes = probes_with_storage(node, STORAGE_AWAY)
    assert probes.probe(run).cause.reason == "NETWORK_LOST"

    denied = Failure("STORAGE_DENIED", "the cause")
    monkeypatch.setattr(probes, "storage_failure", returning(denied))
    assert probes.probe(run).cause.reason == "STORAGE_DENIED", "the storage's trouble goes first"


def test_a_lost_network_does_not_hide_a_lack_of_memory(node, run, monkeypatch):
    killed = Exited(
        137,
        oom_killed=True,
        cut_off=True,
    )
    monkeypatch.setattr(node.engine, "probe", returning(killed))

    assert probes_with_storage(node, STORAGE_AWAY).probe(run).cause is None


def test_a_model_in_a_storage_that_fails_is_not_sealed(node, ended_job, run):
    denying = SimpleNamespace(exists=raising(STORAGE_DENIED))

    event = endings(node, denying).seal(ended_job, replace(run, sealing=Sealing(("out",))))

    assert isinstance(event, Sealed)
    assert event.files is None
    assert event.message == "storage lake denies access"


def test_without_an_engine_a_run_has_no_last_words_and_no_address(node, run, monkeypatch):
    for name in ("logs", "address"):
        monkeypatch.setattr(node.engine, name, raising(NO_DAEMON))

    assert node.executor.probes.last_words(run) == ("", "")
    assert node.launching.address_of(run) == ""


def test_a_stop_is_repeated_when_the_engine_answers_again(node, run, monkeypatch):
    monkeypatch.setattr(node.engine, "stop", raising(NO_DAEMON))

    [event] = node.executor.endings.stop(
        run,
        StopRun(run.run_id, 1),
    )

    assert isinstance(event, Done)
    assert not event.final
    assert event.message == "no daemon answers"


@pytest.mark.parametrize(
    ("action", "event"),
    [
        (Probe, Inspected),
        (Seal, Sealed),
    ],
)
def test_an_unexpected_error_of_an_action_ends_no_run(node, run, action, event):
    assert isinstance(
        node.executor._unexpected_error(action(run.run_id)),
        event,
    )


def test_a_folder_that_cannot_be_written_fails_the_launch(node, ended_job, run, monkeypatch):
    not_permitted = PermissionError(13, "not permitted")
    monkeypatch.setattr(
        node.launching.disk,
        "check_room",
        raising(not_permitted),
    )

    event = node.launching.launch(
        ended_job,
        run,
        fetching=False,
    )

    assert isinstance(event, LaunchFailed)
    assert event.failure.reason == "CREATE_FAILED"


def test_images_are_pulled_later_while_the_engine_is_down(node, ended_job, monkeypatch):
    monkeypatch.setattr(node.engine, "ensure_image", raising(NO_DAEMON))
    local = replace(
        ended_job,
        preparation=Preparation({IMAGE: ""}, T0, T0),
    )

    event = node.launching.prepare(
        local,
        Prepare(),
        returning(None),
    )

    assert isinstance(event, Done)
    assert not event.final


def test_the_end_of_credentials_is_tried_again_but_not_for_ever(node, run):
    ending = endings(
        node,
        end_credentials=raising(STORAGE_AWAY),
    )

    with pytest.raises(StorageAway):
        ending.revoke_credentials(replace(run, collect=Call()))
    ending.revoke_credentials(replace(run, collect=Call(tries=1000)))


# ------------------------------------------------------------ a model larger than the run's disk

MODEL_SIZE = 4 * storage.CHUNK  # bytes
MODEL = Address("job-holes", "model")


@pytest.fixture
def run_with_sparse_model(node, ended_job):
    """A run with a model of holes, which takes no room and has as many bytes as the run's disk."""
    file = node.storage.path(MODEL) / "data_0"
    file.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    with file.open("wb") as sparse_file:
        sparse_file.truncate(MODEL_SIZE)
    return replace(
        ended_job.runs[0],
        data=RunData(outputs={"model": MODEL}),
        sealing=Sealing(("model",)),
        limits={"disk": MODEL_SIZE},
    )


def test_a_model_as_large_as_the_disk_is_sealed(node, ended_job, run_with_sparse_model):
    event = endings(node).seal(ended_job, run_with_sparse_model)

    assert event.files[0].size == MODEL_SIZE
    assert not event.final


def test_a_model_larger_than_the_disk_is_not_read(
    node, ended_job, run_with_sparse_model, monkeypatch
):
    monkeypatch.setattr(
        node.storage,
        "open_file",
        raising(AssertionError("it is opened")),
    )

    run = replace(
        run_with_sparse_model,
        limits={"disk": MODEL_SIZE - 1},
    )
    event = endings(node).seal(ended_job, run)

    assert event.files is None
    assert "more bytes than the disk" in event.message
    assert event.final


def test_the_disk_bounds_a_model_in_another_storage(node, ended_job, run_with_sparse_model):
    def sums(address, watch):
        watch(MODEL_SIZE)
        watch(1)
        return []

    lake = SimpleNamespace(
        exists=returning(True),
        sums=sums,
    )
    run = replace(
        run_with_sparse_model,
        data=RunData(outputs={"model": replace(MODEL, storage="lake")}),
    )

    event = endings(node, lake).seal(ended_job, run)

    assert event.files is None
    assert "more bytes than the disk" in event.message
    assert event.final


def test_a_stopped_job_ends_the_reading_of_its_model(
    node, ended_job, run_with_sparse_model, monkeypatch
):
    chunks = []
    digest = SimpleNamespace(update=chunks.append)
    monkeypatch.setattr(
        storage,
        "hashlib",
        SimpleNamespace(sha256=returning(digest)),
    )
    monkeypatch.setattr(storage, "PROGRESS_STEP", storage.CHUNK)

    # The node's record of this job is ended, which looks like a stop to the reading.
    event = endings(node).seal(ended_job, run_with_sparse_model)

    assert event.files is None
    assert "stopped" in event.message
    assert len(chunks) == 1
