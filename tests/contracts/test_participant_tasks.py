"""The common behaviour of every `ParticipantApi`: starting, polling and stopping tasks.

The node under test plays one guest and two hosts of jobs that `PEER` schedules.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.run import Run
from gateway.domain.spec import Ending, Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.ports import Callback, ParticipantApi, TaskNews
from tests.builders import a_dag, parties
from tests.contracts.apis import Apis, World, catch_refusal, run_in_threads
from tests.contracts.participant import (
    ATTEMPTS_USED_UP,
    JOB_ENDED,
    PARTIES,
    RUNNING,
    TASK_ID_CONFLICT,
    TASK_UNKNOWN,
    a_job_of,
    end_parties,
    start,
    task_id_of,
)
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

pytestmark = pytest.mark.xdist_group("participant_tasks")
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED


@pytest.fixture
def api(apis: Apis) -> ParticipantApi:
    """The interface as the scheduling node sees it."""
    return apis.participant(PEER)


@pytest.fixture
def job(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


def start_task_b(api: ParticipantApi, spec: JobSpec) -> None:
    """Start the second task of a job."""
    task_id = task_id_of(spec, "b")
    api.start_task(spec.job_id, task_id, "b", PEER)


def end_attempt(
    world: World,
    spec: JobSpec,
    task_id: str,
    code: int = 0,
) -> None:
    """Let the containers of an attempt exit; return once the node knows it."""

    def runs() -> tuple[Run, ...]:
        return world.local(spec.job_id).runs_of(task_id)

    wait_for(lambda: all(run.started_at for run in runs()), 20, 0.01, f"{task_id} is up")
    for run in runs():
        if code == 0:
            world.me.container_callbacks.record(Callback(SUCCESS, run_id=run.run_id))
        world.engine().finish(run.name, code)
    wait_for(lambda: all(run.over for run in runs()), 20, 0.01, f"{task_id} is over")


def wait_for_failed_task(api: ParticipantApi, task_id: str) -> TaskNews:
    """Return the news of a task once it has failed."""

    def failed_news() -> TaskNews | None:
        news = api.poll_task(task_id, "", PEER)
        if news.status is not FAILED:
            return None
        return news

    news: TaskNews = wait_for(failed_news, 20, 0.01, f"{task_id} has failed")
    return news


# ---------------------------------------------------------------- starts of tasks


def test_a_task_id_of_another_job_is_refused(api, world, scratch):
    first = a_job_of(scratch)
    second = a_job_of(scratch)
    task_id = start(api, world, first)
    api.create_job(second, PEER)
    api.start_job(second.job_id, PEER)

    refusal = catch_refusal(
        api.start_task,
        second.job_id,
        task_id,
        "a",
        PEER,
    )

    assert refusal == TASK_ID_CONFLICT
    local = world.local(second.job_id)
    assert local.runs == ()


def test_a_task_without_a_party_of_this_node_is_refused(api, world, scratch):
    dag = a_dag("a; judged")
    judge = replace(
        dag["judged"],
        component=ComponentRef("vendor", "1.0.0", "Judge"),
    )
    spec = a_job_of(
        scratch,
        Dag((dag["a"], judge)),
    )
    id_of_a = start(api, world, spec)

    id_conflict = catch_refusal(
        api.start_task,
        spec.job_id,
        id_of_a,
        "judged",
        PEER,
    )
    no_role = catch_refusal(
        api.start_task,
        spec.job_id,
        f"task-{spec.job_id}",
        "judged",
        PEER,
    )

    assert id_conflict == TASK_ID_CONFLICT
    assert no_role == ("NO_ROLE_HERE", 409)
    assert {run.task_name for run in world.local(spec.job_id).runs} == {"a"}


def test_reports_of_absent_runs_and_undescribed_codes_are_handled(world, job):
    start(world.me.participant, world, job)
    callback = world.me.container_callbacks.record
    run_id = world.local(job.job_id).runs[0].run_id

    unknown = Callback(SUCCESS, run_id="0" * 64)
    refusal = catch_refusal(callback, unknown)
    assert refusal == ("RUN_UNKNOWN", 404)
    callback(Callback(FAILED, result_code="7", run_id=run_id))

    failure = wait_for(lambda: world.local(job.job_id).runs[0].failure, 20, 0.01)
    assert "7" in failure.message


# The requests of one start overlap differently from time to time.
@pytest.mark.parametrize("round_", range(4))
def test_a_task_starts_once_however_often_it_is_asked_for(api, world, job, round_):
    api.create_job(job, PEER)
    task_id = task_id_of(job)

    def start_task() -> None:
        api.start_task(job.job_id, task_id, "a", PEER)

    assert run_in_threads(6, start_task) == []
    runs = [world.run(job.job_id, "a", label) for label in PARTIES]
    start_task()

    labels = [run.party.label for run in world.local(job.job_id).runs]
    assert labels == list(PARTIES)
    launches = world.engine().launches
    launched = [launch.name for launch in launches if launch.labels["bfia.job"] == job.job_id]
    assert sorted(launched) == sorted(run.name for run in runs)


@pytest.mark.parametrize(
    "task_id",
    ["../x", "a/b", "a\\b", ".."],
)
def test_a_task_id_that_names_a_path_is_refused(api, world, job, task_id):
    api.create_job(job, PEER)

    refusal = catch_refusal(
        api.start_task,
        job.job_id,
        task_id,
        "a",
        PEER,
    )
    assert refusal == ("INVALID", 400)
    local = world.local(job.job_id)
    assert local.runs == ()


def test_an_unknown_task_of_a_job_is_refused(api, world, job):
    api.create_job(job, PEER)

    unknown_task = (job.job_id, "task-x", "nothing", PEER)
    refusal = catch_refusal(api.start_task, *unknown_task)
    assert refusal == TASK_UNKNOWN
    refusal = catch_refusal(api.stop_task, *unknown_task)
    assert refusal == TASK_UNKNOWN
    refusal = catch_refusal(
        api.stop_job,
        job.job_id,
        "nothing",
        None,
        PEER,
    )
    assert refusal == TASK_UNKNOWN
    local = world.local(job.job_id)
    assert local.runs == ()


def test_a_task_may_start_before_its_job_and_runs_under_one_id(api, world, job):
    """The start of a task may overtake the start of its job."""
    api.create_job(job, PEER)

    api.start_task(
        job.job_id,
        task_id_of(job),
        "a",
        PEER,
    )
    api.start_job(job.job_id, PEER)

    local = world.local(job.job_id)
    assert local.status is JobStatus.RUNNING
    second_id = (job.job_id, "task-other", "a", PEER)
    refusal = catch_refusal(api.start_task, *second_id)
    assert refusal == TASK_ID_CONFLICT
    assert len(world.local(job.job_id).runs) == len(PARTIES)


# ---------------------------------------------------------------- attempts


def write_output(world: World, run: Run) -> None:
    """Write the output table of a run."""
    address = run.data.outputs["out"]
    table = world.me.settings.storage.path / address.namespace / address.name
    table.mkdir(parents=True)
    (table / "data_0").write_text("id\n1\n")


def test_a_task_that_is_over_runs_again_under_another_id(api, world, scratch):
    """The next task gets the output of the latest attempt; a late stop of the first has no effect.

    A stop of the successful task, which some partners send to clean up, does not affect the next.
    """
    spec = a_job_of(
        scratch,
        "a -> b",
        job_params={"common": {"auto_retries": 1}},
    )
    first = start(api, world, spec)
    second = f"{first}-again"
    world.end(
        spec.job_id,
        "a",
        "guest.0",
        code=3,
    )
    for label in ("host.0", "host.1"):
        refusal = catch_refusal(
            api.start_task,
            spec.job_id,
            second,
            "a",
            PEER,
        )
        assert refusal == TASK_ID_CONFLICT, "the first attempt still runs"
        world.end(spec.job_id, "a", label)

    api.start_task(spec.job_id, second, "a", PEER)
    second_runs = wait_for(lambda: world.local(spec.job_id).runs[3:], 20, 0.01, "three more runs")
    runs = world.local(spec.job_id).runs
    attempts = [(run.attempt, run.task_id) for run in runs]
    assert attempts == 3 * [(0, first)] + 3 * [(1, second)]
    assert len({run.name for run in runs}) == 6
    news = api.poll_task(first, "", PEER)
    assert news.status is FAILED
    news = api.poll_task(second, "", PEER)
    assert news.status is not FAILED

    world.me.participant.stop_task(
        "",
        first,
        "",
        PEER,
    )
    for run in second_runs:
        write_output(world, run)
    end_attempt(world, spec, second)
    wait_for(lambda: api.poll_task(second, "", PEER).status is SUCCESS, 20, 0.01, "it succeeds")

    api.stop_job(spec.job_id, "a", None, PEER)
    start_task_b(api, spec)
    assert world.run(spec.job_id, "b", "guest.0").data.inputs["out"].name == f"{second}-out"


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        ({}, [3]),
        ({}, [0]),
        ({"auto_retries": 2}, [3, 3, 3]),
        ({"auto_retries": 2}, [3, 0]),
        (
            {
                "auto_retries": 2,
                "tasks": {"a": {"auto_retries": 0}},
            },
            [3],
        ),
    ],
)
def test_a_task_runs_as_often_as_its_job_allows_and_never_after_a_success(
    api, world, scratch, settings, codes
):
    """Attack: the scheduling node of an approved job reads a table again with each new start."""
    spec = a_job_of(
        scratch,
        job_params={"common": settings},
    )
    api.create_job(spec, PEER)
    for attempt, code in enumerate(codes):
        task_id = f"task-{spec.job_id}-{attempt}"
        api.start_task(spec.job_id, task_id, "a", PEER)
        end_attempt(world, spec, task_id, code)
    run_ids = [run.run_id for run in world.local(spec.job_id).runs]

    for number in range(3):
        further_start = (spec.job_id, f"task-{spec.job_id}-more-{number}", "a", PEER)
        refusal = catch_refusal(api.start_task, *further_start)
        assert refusal == ATTEMPTS_USED_UP
    api.start_task(spec.job_id, task_id, "a", PEER)  # a repetition is no further attempt

    assert [run.run_id for run in world.local(spec.job_id).runs] == run_ids


def test_a_task_of_several_nodes_runs_again_until_a_later_one_has_begun(api, world, scratch):
    """It may have failed at another node, which this node cannot see."""
    spec = a_job_of(
        scratch,
        "a -> b",
        job_params={"common": {"auto_retries": 9}},
    )
    spec = replace(
        spec,
        parties=parties({"guest": (PEER,), "host": (ME,)}),
        initiator_role="guest",
    )
    api.create_job(spec, PEER)
    for attempt in range(2):
        task_id = f"task-{spec.job_id}-{attempt}"
        api.start_task(spec.job_id, task_id, "a", PEER)
        (run,) = world.local(spec.job_id).runs_of(task_id)
        write_output(world, run)
        end_attempt(world, spec, task_id)

    start_task_b(api, spec)

    late_start = (spec.job_id, f"task-{spec.job_id}-late", "a", PEER)
    refusal = catch_refusal(api.start_task, *late_start)
    assert refusal == ATTEMPTS_USED_UP


def test_a_success_without_an_output_that_the_flow_reads_is_a_failure(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    task_id = start(api, world, spec)

    end_attempt(world, spec, task_id)

    for run in world.local(spec.job_id).runs_of(task_id):
        assert run.failure.reason == "OUTPUT_MISSING"
        assert "did not write out, which a later task reads" in run.failure.message


def test_a_task_whose_input_was_never_written_starts_with_a_warning(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    start(api, world, spec)
    end_parties(world, spec)

    start_task_b(api, spec)

    for label in PARTIES:
        (warning,) = world.run(spec.job_id, "b", label).warnings
        assert f"{label} has no output out of task a" in warning


# ---------------------------------------------------------------- polls


def test_each_role_and_index_answers_for_itself(api, world, job):
    task_id = start(api, world, job)

    def check_statuses(expected: dict[str, TaskStatus]) -> None:
        """Compare the status of each role; "" is the whole task at this node."""
        for role, status in expected.items():
            news = api.poll_task(task_id, role, PEER)
            assert news.status is status, role

    check_statuses(
        {
            "guest": RUNNING,
            "guest.0": RUNNING,
            "host": RUNNING,
            "host.0": RUNNING,
            "host.1": RUNNING,
            "": RUNNING,
        }
    )

    world.end(job.job_id, "a", "guest.0")
    check_statuses({"guest": SUCCESS, "guest.0": SUCCESS, "host": RUNNING, "": RUNNING})

    world.end(job.job_id, "a", "host.1")
    check_statuses({"host.0": RUNNING, "host.1": SUCCESS, "host": RUNNING, "": RUNNING})

    world.end(job.job_id, "a", "host.0")
    check_statuses({"host.0": SUCCESS, "host": SUCCESS, "": SUCCESS, "guest": SUCCESS})


def test_a_failure_is_reported_with_its_cause(api, world, job):
    task_id = start(api, world, job)

    world.end(
        job.job_id,
        "a",
        "host.1",
        code=3,
    )

    failure = Failure(
        "EXIT_3",
        "exit code 3",
        ME,
        "host",
        "a",
        3,
    )
    for role in ("host.1", "host", ""):
        news = api.poll_task(task_id, role, PEER)
        assert news == TaskNews(FAILED, failure)
    for role in ("host.0", "guest"):
        news = api.poll_task(task_id, role, PEER)
        assert news == TaskNews(RUNNING)


def test_a_role_that_this_node_does_not_play_is_unknown(api, world, job):
    task_id = start(api, world, job)

    for role in ("arbiter", "arbiter.0", "guest.1", "host.2", "nobody"):
        refusal = catch_refusal(api.poll_task, task_id, role, PEER)
        assert refusal == ("ROLE_UNKNOWN", 404)


# ---------------------------------------------------------------- stops

# The ways to stop one task, by the API and the ids of job and task.
STOP_TASK: dict[str, Callable[[ParticipantApi, str, str], None]] = {
    "by job": lambda api, job_id, task_id: api.stop_job(job_id, "a", None, PEER),
    "by name": lambda api, job_id, task_id: api.stop_task(job_id, task_id, "a", PEER),
    "by id": lambda api, job_id, task_id: api.stop_task("", task_id, "", PEER),
}


def test_stopping_a_task_that_succeeded_only_tidies_up(api, world, scratch):
    """Some partners stop every task after its success."""
    spec = a_job_of(scratch, "a; b")
    task_id = start(api, world, spec)
    end_parties(world, spec)

    for stop in 2 * list(STOP_TASK.values()):
        stop(api, spec.job_id, task_id)
        news = api.poll_task(task_id, "", PEER)
        assert news == TaskNews(SUCCESS)

    local = world.local(spec.job_id)
    assert local.status is JobStatus.RUNNING
    start_task_b(api, spec)
    assert world.run(spec.job_id, "b", "guest.0").stop_at is None


@pytest.mark.parametrize("way", STOP_TASK)
def test_stopping_a_task_that_runs_ends_it_and_its_successors(api, world, scratch, way):
    spec = a_job_of(scratch, "a -> b; c")
    api.create_job(spec, PEER)
    for name in ("b", "a", "c"):  # the scheduling node is responsible for the order
        api.start_task(
            spec.job_id,
            task_id_of(spec, name),
            name,
            PEER,
        )
        world.run(spec.job_id, name, "host.1")

    for _ in range(2):
        STOP_TASK[way](
            api,
            spec.job_id,
            task_id_of(spec, "a"),
        )

    for name in ("a", "b"):
        news = wait_for_failed_task(api, task_id_of(spec, name))
        assert news.failure.reason == "STOPPED"
        assert news.failure.task == name
    assert api.poll_task(task_id_of(spec, "c"), "host.1", PEER) == TaskNews(RUNNING)
    local = world.local(spec.job_id)
    assert local.status is JobStatus.RUNNING


def test_stopping_the_job_ends_everything_and_keeps_the_ending(api, world, job):
    task_id = start(api, world, job)
    failure = Failure(
        "EXIT_1",
        "exit code 1",
        PEER,
        "arbiter",
        "a",
        1,
    )

    for _ in range(2):
        ending = Ending(
            Outcome.FAILED,
            datetime.now(UTC),
            failure,
            PEER,
        )
        api.stop_job(job.job_id, "", ending, PEER)

    wait_for_failed_task(api, task_id)
    local = world.local(job.job_id)
    assert local.status is JobStatus.FINISHED
    assert local.ending is not None
    assert local.ending.outcome == Outcome.FAILED
    assert local.ending.failure == failure
    assert local.ending.by == PEER


def test_an_ended_job_starts_nothing_and_accepts_late_repetitions(api, world, job):
    task_id = start(api, world, job)
    failure = Failure(
        "EXIT_1",
        "exit code 1",
        PEER,
        "arbiter",
        "a",
        1,
    )
    api.stop_job(
        job.job_id,
        "",
        Ending(
            Outcome.FAILED,
            datetime.now(UTC),
            failure,
            PEER,
        ),
        PEER,
    )
    wait_for_failed_task(api, task_id)

    refusal = catch_refusal(api.start_job, job.job_id, PEER)
    assert refusal == JOB_ENDED
    refusal = catch_refusal(
        api.start_task,
        job.job_id,
        "task-late",
        "a",
        PEER,
    )
    assert refusal == JOB_ENDED

    # The first requests of the job may arrive again.
    api.create_job(job, PEER)
    local = world.local(job.job_id)
    assert local.status is JobStatus.FINISHED
    api.start_task(job.job_id, task_id, "a", PEER)
    news = api.poll_task(task_id, "", PEER)
    assert news.status is FAILED
