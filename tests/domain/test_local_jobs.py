"""A node's part in a job as a whole: its reports, its clean-up, its end, its gateways."""

from dataclasses import replace

import pytest

from gateway.domain.execution import machine
from gateway.domain.execution.agenda import success_can_wait
from gateway.domain.execution.machine import next_due, step
from gateway.domain.execution.messages import (
    Close,
    Collect,
    Done,
    Launched,
    OwnerLost,
    Restarted,
    StopRequested,
    Tell,
)
from gateway.domain.run import Approval, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.builders import IDLE, OK, T0, a_local_job, a_run, a_spec, at, sent
from tests.domain.run_events import (
    COLLECT,
    RUN_ID,
    STOPPED,
    TIMING,
    a_successful_run,
    exit_run,
    only_run,
    request_stop,
)
from tests.domain.script import due_commands, play

FINISHED = JobStatus.FINISHED


def test_a_failed_report_is_retried_with_backoff_and_given_up_at_last():
    local = a_local_job(a_run(status=RunStatus.SUCCESS, collect=OK))
    now = at(0)
    pauses = []

    while (due_at := next_due(local)) is not None:
        pauses.append(max((due_at - now).total_seconds(), 0.0))
        now = max(due_at, now)
        local, [report] = step(local, now)
        local = play(local, Done(report, now, final=False))

    assert len(pauses) == TIMING.tell_tries
    assert pauses == sorted(pauses)
    assert pauses[-1] == TIMING.retry_max


@pytest.mark.parametrize("status", [RunStatus.SUCCESS, RunStatus.FAILED])
def test_the_response_to_a_report_waits_only_while_its_run_has_no_news(status):
    report = Tell(RUN_ID, TaskStatus.RUNNING)
    running = a_local_job(a_run(status=RunStatus.RUNNING))
    over = a_local_job(a_run(status=status))

    assert success_can_wait(running, report)
    assert not success_can_wait(over, report)  # the end of the run is to be reported next
    assert not success_can_wait(a_local_job(), report)


# ---------------------------------------------------------------- clean-up

RUNS: dict[str, tuple[tuple[Run, ...], bool]] = {
    "no run": ((), True),
    "collected": (
        (a_successful_run(collect=OK),),
        True,
    ),
    "not collected": ((a_successful_run(),), False),
    "being collected": (
        (a_successful_run(collect=sent()),),
        False,
    ),
    "one still stopping": (
        (a_successful_run(collect=OK), a_run("b", RunStatus.STOPPING)),
        False,
    ),
    "one never launched": (
        (a_successful_run(collect=OK), a_run("b", RunStatus.FAILED, launch=IDLE)),
        True,
    ),
}


@pytest.mark.parametrize(
    ("runs", "closes"),
    RUNS.values(),
    ids=RUNS,
)
def test_a_job_is_closed_only_after_all_of_it_is_collected(runs: tuple[Run, ...], closes: bool):
    finished = a_local_job(*runs, status=FINISHED)
    still_running = a_local_job(*runs)

    assert (Close() in due_commands(finished, 0)) is closes
    assert Close() not in due_commands(still_running, 1000)


def test_a_failed_collect_is_repeated_and_each_message_noted_once():
    local = play(
        a_local_job(a_successful_run(collect=IDLE), status=FINISHED),
        0,
    )

    for second, message in ((1, "no space"), (2, "no space"), (3, "engine down")):
        local = play(
            local,
            Done(
                COLLECT,
                at(second),
                final=False,
                message=message,
            ),
        )
        assert local.status is FINISHED
        assert COLLECT in due_commands(local, second + 60)

    notes = [note for note in local.notes if note.event == "removing failed"]
    assert [(note.at, note.detail["message"]) for note in notes] == [
        (at(1), "no space"),
        (at(3), "engine down"),
    ]


def test_a_failed_close_is_repeated_and_noted():
    local = a_local_job(status=FINISHED)

    local = play(
        local,
        0,
        Done(
            Close(),
            at(1),
            final=False,
            message="away",
        ),
    )

    assert [note.event for note in local.notes] == ["closing failed"]
    assert due_commands(local, 60) == [Close()]


def test_a_close_under_way_is_repeated_after_a_restart_only():
    local = play(a_local_job(status=FINISHED), 0)

    assert due_commands(local, 11.9) == []
    assert due_commands(play(local, Restarted(at(1))), 1) == [Close()]


def test_a_close_is_repeated_until_it_is_done_and_then_never():
    local = play(a_local_job(status=FINISHED), 0)
    local = play(
        local,
        Done(
            Close(),
            at(1),
            final=False,
        ),
    )
    assert due_commands(local, 1.2) == [Close()]

    local = play(
        local,
        2,
        Done(Close(), at(2)),
    )
    after_late_failure = play(
        local,
        Done(
            Close(),
            at(3),
            final=False,
        ),
    )

    assert local.closed
    assert after_late_failure.closed
    assert next_due(after_late_failure) is None


# ---------------------------------------------------------------- the end


def test_every_move_of_a_run_is_written_into_the_timeline():
    local = play(
        a_local_job(a_run()),
        0,
        Launched(RUN_ID, at(1), "sha256:1"),
        request_stop(2),
        exit_run(143, 3),
    )

    assert [note.event for note in local.notes] == [
        "run LAUNCHING",
        "run RUNNING",
        "run STOPPING",
        "job FINISHED here",
        "run FAILED",
    ]
    expected_detail = {
        "reason": "STOPPED",
        "task": "a",
        "role": "guest.0",
        "exit_code": 143,
    }
    assert expected_detail.items() <= local.notes[-1].detail.items()
    run = only_run(local)
    assert (run.started_at, run.ended_at, run.software.digest) == (
        at(1),
        at(3),
        "sha256:1",
    )


@pytest.mark.parametrize(
    ("status", "final_status"),
    [
        (JobStatus.PENDING, JobStatus.REJECTED),
        (JobStatus.READY, JobStatus.FINISHED),
        (JobStatus.RUNNING, JobStatus.FINISHED),
    ],
)
def test_a_stop_ends_the_job_at_this_node_with_its_outcome(status, final_status):
    local = play(a_local_job(status=status), request_stop(1))

    assert (local.status, local.ended_at, local.ending) == (final_status, at(1), STOPPED)


STOP_WITHOUT_OUTCOME = StopRequested(at(1), None, None, "n2")
EXIT_1 = Failure("EXIT_1")

ENDED_RUNS: dict[str, tuple[str, tuple[Run, ...], Outcome | None]] = {
    "every task succeeded": (
        "a -> b",
        (a_run("a", RunStatus.SUCCESS), a_run("b", RunStatus.SUCCESS)),
        Outcome.SUCCEEDED,
    ),
    "a task has no run": (
        "a -> b",
        (a_run("a", RunStatus.SUCCESS),),
        None,
    ),
    "a task still runs": (
        "a -> b",
        (a_run("a", RunStatus.SUCCESS), a_run("b", RunStatus.RUNNING)),
        None,
    ),
    "a task failed": (
        "a -> b",
        (a_run("a", RunStatus.FAILED, failure=EXIT_1),),
        Outcome.FAILED,
    ),
    "a task was stopped": (
        "a",
        (a_run("a", RunStatus.FAILED, failure=Failure("STOPPED")),),
        Outcome.STOPPED,
    ),
    "a retry succeeded": (
        "a",
        (
            a_run("a", RunStatus.FAILED, failure=EXIT_1),
            a_run("a", RunStatus.SUCCESS, attempt=1),
        ),
        Outcome.SUCCEEDED,
    ),
    "no run": ("a", (), None),
}


@pytest.mark.parametrize(
    ("flow", "runs", "outcome"),
    ENDED_RUNS.values(),
    ids=ENDED_RUNS,
)
def test_a_stop_without_an_outcome_leaves_the_outcome_to_the_runs(
    flow: str,
    runs: tuple[Run, ...],
    outcome: Outcome | None,
):
    local = play(a_local_job(*runs, spec=a_spec(flow)), STOP_WITHOUT_OUTCOME)

    assert local.status is FINISHED
    if outcome is None:
        assert local.ending is None
    else:
        assert local.ending.outcome is outcome


def test_a_task_that_is_stopping_does_not_hide_how_the_job_ended():
    """FATE-Flow stops a failed task before its job; the container may end after both stops."""
    spec = replace(a_spec("a"), scheduler="n2")
    running = a_local_job(
        a_run("a", RunStatus.RUNNING),
        spec=spec,
    )
    stop_task = StopRequested(
        at(1),
        frozenset({"a"}),
        None,
        "n2",
    )

    local = play(running, stop_task, STOP_WITHOUT_OUTCOME)
    assert local.runs[0].status is RunStatus.STOPPING
    assert local.ending.outcome is Outcome.STOPPED
    assert local.ending.failure.task == "a"

    failed = Ending(
        Outcome.FAILED,
        at(2),
        Failure("FAILED_ELSEWHERE"),
        "n2",
    )
    local = play(
        local,
        StopRequested(
            at(2),
            None,
            failed,
            "n2",
            is_inferred=True,
        ),
    )
    assert local.ending.outcome is Outcome.FAILED


def stop_with(
    outcome: Outcome, failure: Failure | None = None, seconds: float = 2
) -> StopRequested:
    """The scheduling node stops the job with an outcome."""
    return StopRequested(
        at(seconds),
        None,
        Ending(outcome, at(seconds), failure),
        "n2",
    )


REFUSAL = Failure("APPROVAL_REJECTED")


@pytest.mark.parametrize(
    ("outcome", "refusal", "expected"),
    [
        (Outcome.STOPPED, None, (Outcome.STOPPED, "STOPPED")),
        (Outcome.FAILED, None, (Outcome.FAILED, "STOPPED")),
        (Outcome.STOPPED, REFUSAL, (Outcome.REJECTED, "APPROVAL_REJECTED")),
    ],
    ids=["stopped", "failed", "refused by this node"],
)
def test_the_outcome_of_a_job_may_arrive_once_after_the_stop(outcome, refusal, expected):
    approval = Approval(T0, at(9), JobStatus.REJECTED, failure=refusal) if refusal else None
    local = play(replace(a_local_job(), approval=approval), STOP_WITHOUT_OUTCOME)
    assert local.ending is None

    local = play(local, stop_with(outcome, Failure("STOPPED")))

    assert (local.ending.outcome, local.ending.failure.reason) == expected
    assert play(local, stop_with(Outcome.FAILED, seconds=3)) == local


def test_a_success_does_not_arrive_after_the_stop():
    """Runs that had not succeeded before the stop were ended by it."""
    local = play(a_local_job(), STOP_WITHOUT_OUTCOME)
    assert local.ending is None

    local = play(local, stop_with(Outcome.SUCCEEDED, Failure("STOPPED")))

    assert local.ending is None


# ---------------------------------------------------------------- several gateways


def test_runs_of_a_lost_gateway_fail_unless_they_had_not_started():
    waiting = a_run("a", owner="lost")
    running = a_run("b", RunStatus.RUNNING, owner="lost")
    stopping = a_run(
        "c",
        RunStatus.STOPPING,
        owner="lost",
        stop_at=at(0),
    )
    ended = a_run("d", RunStatus.SUCCESS, owner="lost")
    of_heir = a_run("e", RunStatus.RUNNING, owner="heir")
    local = a_local_job(
        waiting,
        running,
        stopping,
        ended,
        of_heir,
        home="lost",
    )

    local = play(local, OwnerLost("lost", "heir", at(5)))

    assert local.home == "heir"
    run_a, run_b, run_c, run_d, run_e = local.runs
    assert run_a == replace(waiting, owner="heir")
    assert run_b.failure.reason == "CHANNEL_LOST"
    assert run_c.failure.reason == "STOPPED"
    assert run_d == ended
    assert run_e == of_heir
    assert play(local, OwnerLost("lost", "heir", at(6))) == local


def test_only_the_home_gateway_closes_a_job_without_its_containers():
    run_of_lost = a_run(
        "a",
        RunStatus.FAILED,
        owner="lost",
        launch=OK,
    )
    local = a_local_job(run_of_lost, status=FINISHED, home="home")

    assert Close() in machine.plan(local, at(9), owner="home")
    assert Close() not in machine.plan(local, at(9), owner="third")
    assert machine.plan(local, at(9), owner="lost") == [
        Collect(run_of_lost.run_id),
        Tell(run_of_lost.run_id, TaskStatus.FAILED),
    ]


def test_the_runs_to_come_are_those_of_tasks_that_have_not_begun():
    local = a_local_job(a_run("a"), spec=a_spec("a; b; c"))
    party_elsewhere = replace(local, node="n3")

    assert local.expected_runs == 2
    assert a_local_job(a_run("a")).expected_runs == 0
    assert party_elsewhere.expected_runs == 0
