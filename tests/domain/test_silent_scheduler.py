"""A scheduling node that is silent: queries, the end of the job, and a local stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from gateway.domain.execution import contact
from gateway.domain.execution.messages import (
    Abandon,
    AskStop,
    Close,
    Command,
    Done,
    Event,
    Gone,
    QueryScheduler,
    Restarted,
    SchedulerAlive,
    StoppedHere,
    StopRun,
    Tell,
)
from gateway.domain.local_waiting import of_local
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import RunTiming
from tests.builders import a_local_job, a_spec, at
from tests.domain.run_events import TOLD_RUNNING_RUN, request_stop
from tests.domain.script import due_at_each, due_commands, end_reason, play

QUERY = QueryScheduler()
SIGN_OF_LIFE = SchedulerAlive(at(60))
# A job that another node schedules.
SUPERVISED_JOB = a_local_job(spec=a_spec("a", {"guest": ("n9",), "host": ("n1",)}))


def lose_query(seconds: float, message: str = "cannot connect") -> Done:
    """A query of the scheduling node has no response."""
    return Done(
        QUERY,
        at(seconds),
        final=False,
        message=message,
    )


def restart_and_lose_query(seconds: float) -> list[Event | float]:
    """The process restarts, and its query has no response."""
    return [
        Restarted(at(seconds)),
        seconds,
        lose_query(seconds + 1, "no"),
    ]


ONE_LOST_QUERY: list[Event | float] = [726, lose_query(727)]
TWO_LOST_QUERIES = [*ONE_LOST_QUERY, 793, lose_query(794)]


@dataclass(frozen=True)
class SilenceCase:
    """Steps of a job, the commands due afterwards by second, and the reason of its end, if any."""

    due: Mapping[float, Sequence[Command]]
    steps: Sequence[Event | float] = ()
    local: LocalJob = SUPERVISED_JOB
    reason: str = ""


WATCH: dict[str, SilenceCase] = {
    "a query after a long silence": SilenceCase(
        due={
            725.9: [],
            726: [QUERY],
        },
    ),
    "a query without a response is repeated": SilenceCase(
        steps=[726],
        due={
            737.9: [],
            738: [QUERY],
        },
    ),
    "a sign of life": SilenceCase(
        steps=[SIGN_OF_LIFE],
        due={
            785.9: [],
            786: [QUERY],
        },
    ),
    "a second query after a lost one": SilenceCase(
        steps=ONE_LOST_QUERY,
        due={
            792.9: [],
            793: [QUERY],
        },
    ),
    "the second query is answered": SilenceCase(
        steps=[*ONE_LOST_QUERY, 793, Done(QUERY, at(794))],
        due={
            1519.9: [],
            1520: [QUERY],
        },
    ),
    "the scheduling node sends a request": SilenceCase(
        steps=[*ONE_LOST_QUERY, SchedulerAlive(at(730))],
        due={
            1455.9: [],
            1456: [QUERY],
        },
    ),
    "two lost queries": SilenceCase(
        steps=TWO_LOST_QUERIES,
        due={794: [Abandon()]},
    ),
    "the job ends after two lost queries": SilenceCase(
        steps=[*TWO_LOST_QUERIES, 795],
        due={10_000: [Close()]},
        reason="SCHEDULER_UNREACHABLE",
    ),
    "a new process repeats the query": SilenceCase(
        steps=[726, Restarted(at(727))],
        due={727: [QUERY]},
    ),
    "a restart asks soon": SilenceCase(
        steps=[Restarted(at(50))],
        due={
            49.9: [],
            50: [QUERY],
        },
    ),
    "three restarts without a response": SilenceCase(
        steps=[
            *restart_and_lose_query(50),
            *restart_and_lose_query(120),
            *restart_and_lose_query(190),
        ],
        due={
            256.9: [],
            257: [QUERY],
        },
    ),
    "a response after a restart": SilenceCase(
        steps=[
            Restarted(at(50)),
            50,
            Done(QUERY, at(51)),
        ],
        due={
            776.9: [],
            777: [QUERY],
        },
    ),
    "the job ends during the query": SilenceCase(
        steps=[
            726,
            request_stop(727),
            Done(QUERY, at(728)),
        ],
        due={10_000: [Close()]},
    ),
    "the node schedules the job itself": SilenceCase(
        local=a_local_job(),
        due={10_000: []},
    ),
}

STATUSES = (JobStatus.PENDING, JobStatus.READY, JobStatus.RUNNING)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("case", WATCH.values(), ids=WATCH)
def test_a_silent_scheduling_node_is_queried_and_given_up_at_last(
    case: SilenceCase, status: JobStatus
):
    local = play(replace(case.local, status=status), *case.steps)

    assert due_at_each(local, case.due) == case.due
    assert end_reason(local) == case.reason


@pytest.mark.parametrize("status", STATUSES)
def test_a_job_without_its_scheduling_node_is_stopped_with_the_cause(status: JobStatus):
    local = play(replace(SUPERVISED_JOB, status=status), *TWO_LOST_QUERIES, 795)

    was_pending = status is JobStatus.PENDING
    assert local.status is (JobStatus.REJECTED if was_pending else JobStatus.FINISHED)
    assert local.ending.outcome is Outcome.STOPPED
    assert local.ending.failure.node == "n1"
    assert "n9" in local.ending.failure.message
    assert "cannot connect" in local.ending.failure.message


def due_kinds(local: LocalJob, seconds: float) -> set[type]:
    """Return the types of the due commands."""
    return {type(command) for command in due_commands(local, seconds)}


def stop_locally() -> LocalJob:
    """Return a running job after people of this node have stopped it."""
    running = replace(
        SUPERVISED_JOB,
        status=JobStatus.RUNNING,
        runs=(TOLD_RUNNING_RUN,),
    )
    return play(running, StoppedHere(at(1), "cannot connect"))


def lose_local_stop() -> LocalJob:
    """Return a locally stopped job without containers, whose scheduling node is still silent."""
    local = play(
        stop_locally(),
        1,
        Done(
            AskStop(),
            at(2),
            final=False,
            message="cannot connect",
        ),
    )
    removals = [Gone(run.run_id, at(3)) for run in local.runs]
    return play(local, *removals)


def test_a_local_stop_ends_the_runs_and_is_reported():
    local = stop_locally()

    assert local.ending is not None
    assert local.ending.outcome is Outcome.STOPPED
    assert {StopRun, AskStop} <= due_kinds(local, 1)


def test_a_local_stop_is_reported_before_the_states_of_the_runs():
    local = lose_local_stop()
    assert AskStop in due_kinds(local, 1000)
    assert Tell not in due_kinds(local, 1000)

    local = play(
        local,
        1000,
        Done(AskStop(), at(1001)),
    )

    assert Tell in due_kinds(local, 1001)
    assert AskStop not in due_kinds(local, 10_000)


def test_a_local_stop_waits_for_its_confirmation_by_the_scheduling_node():
    local = lose_local_stop()

    wait = of_local(local, RunTiming())

    assert wait is not None
    assert wait.reason == "CONFIRMING"
    assert "n9" in wait.message


def test_a_local_stop_is_reported_again_once_the_node_is_back():
    local = contact.retry_reports(lose_local_stop(), "n9")

    assert AskStop() in due_commands(local, 2)


@pytest.mark.parametrize(
    ("seconds", "is_noted"),
    [(9, False), (11, True)],
)
def test_a_sign_of_life_is_noted_in_steps_of_a_tenth_of_the_limit(seconds, is_noted):
    assert contact.worth_noting(SUPERVISED_JOB, at(seconds), 100) is is_noted


def test_a_sign_of_life_is_noted_at_once_during_a_query():
    querying = play(SUPERVISED_JOB, *ONE_LOST_QUERY)

    assert contact.worth_noting(
        replace(querying, last_contact=at(727)),
        at(728),
        100,
    )


def test_silence_and_return_of_the_scheduling_node_are_in_the_timeline():
    local = play(SUPERVISED_JOB, *ONE_LOST_QUERY, SchedulerAlive(at(730)))

    events = [note.event for note in local.notes]
    assert events == ["scheduling node does not respond", "scheduling node responds"]
