"""What a participating node decides, rule by rule. The same rules at large: `test_workshop`."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.executing import execute
from gateway.domain.executing.commands import Close, Collect, Launch, Probe, StopRun, Tell, Weigh
from gateway.domain.executing.events import (
    Done,
    Event,
    Gone,
    HasExited,
    Launched,
    LaunchFailed,
    OwnerLost,
    Reported,
    Restarted,
    Seen,
    StopAsked,
)
from gateway.domain.executing.execute import apply, next_due, plan, step
from gateway.domain.executing.timing import Timing
from gateway.domain.executing.weighing import merge_runs
from gateway.domain.local_job import Approval, Exit, LocalJob, Run, Told
from gateway.domain.model import Ending, Failure, Party
from gateway.domain.states import JOB, RUN, JobStatus, Outcome, RunStatus, TaskStatus, ended, may
from tests.builders import IDLE, OK, T0, a_local_job, a_run, a_spec, at, sent
from tests.domain.strategies import REPEATABLE
from tests.domain.workshop import soon

TIMING = Timing()
ID = "run-a-guest.0"
WAITING, LAUNCHING, RUNNING = RunStatus.WAITING, RunStatus.LAUNCHING, RunStatus.RUNNING
STOPPING, SUCCESS, FAILED = RunStatus.STOPPING, RunStatus.SUCCESS, RunStatus.FAILED
ENDING = Ending(Outcome.STOPPED, T0)


def after(local: LocalJob, *events: Event) -> LocalJob:
    for event in events:
        local = apply(local, event)
    return local


def only(local: LocalJob) -> Run:
    [run] = local.runs
    return run


def due(local: LocalJob, seconds: float = 0.0) -> list:
    return plan(local, at(seconds))


def settled(local: LocalJob, seconds: float) -> Run:
    """Return the only run after the decisions that are due by then."""
    return only(step(local, at(seconds))[0])


def said(status: TaskStatus, seconds: float = 1.0, **more) -> Reported:
    return Reported(ID, status, at(seconds), **more)


def exited(code: int = 0, seconds: float = 2.0, *, oom: bool = False, missing: tuple[str, ...] = ()) -> HasExited:
    signal = code - 128 if code > 128 else None
    return HasExited(ID, Exit(code, signal, oom, T0, at(seconds), missing), at(seconds))


def stopped(seconds: float = 1.0, *tasks: str) -> StopAsked:
    return StopAsked(at(seconds), frozenset(tasks) or None, ENDING, "n2")


# ---------------------------------------------------------------- the way of a run


def test_a_waiting_run_is_launched_once():
    local, actions = step(a_local_job(a_run()), at(0))
    assert actions == [Launch(ID)]
    assert (only(local).status, due(local)) == (LAUNCHING, [])


def test_a_launch_without_any_end_is_repeated_after_its_deadline():
    local, _ = step(a_local_job(a_run()), at(0))
    assert next_due(local) == at(120)
    local, actions = step(local, at(120))
    assert actions == [Launch(ID)]
    assert (only(local).status, only(local).launch.tries) == (LAUNCHING, 2)


def test_a_launched_run_is_running_told_and_looked_at_from_time_to_time():
    local = after(a_local_job(a_run(status=LAUNCHING)), Launched(ID, at(1), "sha256:1"))
    run = only(local)
    assert (run.status, run.started_at, run.image_digest) == (RUNNING, at(1), "sha256:1")
    assert due(local, 1) == [Tell(ID, TaskStatus.RUNNING)]
    assert due(local, 6) == [Probe(ID), Tell(ID, TaskStatus.RUNNING)]


def test_a_look_that_shows_nothing_new_is_repeated_later():
    local = a_local_job(a_run(status=RUNNING, told=Told(TaskStatus.RUNNING)))
    local, actions = step(local, at(5))
    assert actions == [Probe(ID)]
    assert due(local, 9.9) == []
    local = after(local, Seen(ID, at(7)))
    assert due(local, 11.9) == []
    assert due(local, 12) == [Probe(ID)]


def test_a_failed_launch_fails_the_run_in_the_engines_words_and_is_tidied():
    local = after(
        a_local_job(a_run(status=LAUNCHING)), LaunchFailed(ID, Failure("IMAGE_NOT_FOUND", "no such image"), at(1))
    )
    run = only(local)
    assert (run.status, run.ended_at) == (FAILED, at(1))
    assert run.failure == Failure("IMAGE_NOT_FOUND", "no such image", "n1", "guest", "a")
    assert due(local, 1) == [Collect(ID), Tell(ID, TaskStatus.FAILED)]


@pytest.mark.parametrize("status", [s for s in RunStatus if s is not LAUNCHING])
@pytest.mark.parametrize("late", [Launched(ID, at(9)), LaunchFailed(ID, Failure("ENGINE_DOWN"), at(9))])
def test_the_end_of_a_launch_counts_only_while_launching(status, late):
    local = a_local_job(a_run(status=status))
    assert after(local, late) == local


# ---------------------------------------------------------------- how it ends

MEMORY = {"memory": 2.0e8}
EXITS = {"0": (0, False), "1": (1, False), "137": (137, False), "143": (143, False), "oom": (137, True)}
REPORTS = (None, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


def expected(report: TaskStatus | None, code: int, oom: bool, missing: bool) -> str:
    """The rule once more: what a run that was launched and not stopped ends as."""
    if report is TaskStatus.FAILED:
        return "REPORTED_FAILED"
    if oom:
        return "OOM_KILLED"
    if code != 0:
        return f"EXIT_{code}"
    return "NO_CALLBACK" if missing and report is not TaskStatus.SUCCESS else "SUCCESS"


@pytest.mark.parametrize(("report", "end", "missing"), list(product(REPORTS, EXITS, [False, True])))
def test_a_report_then_an_exit(report, end, missing):
    code, oom = EXITS[end]
    local = a_local_job(a_run(status=RUNNING))
    if report is not None:
        local = after(local, said(report))
    local = after(local, exited(code, oom=oom, missing=("out",) if missing else ()))
    early = only(local)
    run = settled(local, 3.0)
    assert (run.failure.reason if run.failure else "SUCCESS") == expected(report, code, oom, missing)
    assert run.status is (SUCCESS if run.failure is None else FAILED)
    assert run.exit.code == code, "an exit after the end is kept for the record"
    assert run.no_callback is (run.status is SUCCESS and report is not TaskStatus.SUCCESS)
    waits = code == 0 and report in (None, TaskStatus.RUNNING)
    assert early.over is not waits, "only an exit with code 0 and without a report is waited for"


@pytest.mark.parametrize(("report", "end", "missing"), list(product(REPORTS[1:], EXITS, [False, True])))
def test_an_exit_then_a_report_within_the_grace(report, end, missing):
    code, oom = EXITS[end]
    local = after(a_local_job(a_run(status=RUNNING)), exited(code, oom=oom, missing=("out",) if missing else ()))
    run = settled(after(local, said(report, 2.5)), 4.0)
    if code == 0:
        assert (run.failure.reason if run.failure else "SUCCESS") == expected(report, 0, False, missing)
    else:
        assert run.failure.reason == ("OOM_KILLED" if oom else f"EXIT_{code}"), "it was over when the report came"


def test_a_failure_reported_before_the_exit_is_final_and_the_container_is_ended():
    local = after(a_local_job(a_run(status=RUNNING)), said(TaskStatus.FAILED, result_message="no rows"))
    run = only(local)
    assert (run.status, run.ended_at, run.failure.message) == (FAILED, at(1), "no rows")
    assert due(local, 1) == [Collect(ID), Tell(ID, TaskStatus.FAILED)]


def test_a_success_without_an_exit_waits_for_it_but_not_for_ever():
    local = after(a_local_job(a_run(status=RUNNING)), said(TaskStatus.SUCCESS, 1))
    assert only(local).status is RUNNING
    assert settled(local, 30.9).status is RUNNING
    run = settled(local, 31)
    assert (run.status, run.exit, run.no_callback) == (SUCCESS, None, False)


def test_an_exit_without_a_report_waits_a_grace_counted_from_the_exit_itself():
    local = after(a_local_job(a_run(status=RUNNING)), exited(0, 2))
    assert Weigh(ID) not in due(local, 2.9)
    assert Weigh(ID) in due(local, 3)
    assert not any(isinstance(c, Probe) for c in due(local, 100))


def test_a_node_may_count_silence_as_a_failure():
    strict = replace(TIMING, silence_fails=True)
    local = after(a_local_job(a_run(status=RUNNING)), exited(0, 2))
    run = only(step(local, at(3), strict)[0])
    assert (run.status, run.failure.reason, run.no_callback) == (FAILED, "NO_CALLBACK", False)
    assert only(step(after(local, said(TaskStatus.SUCCESS, 2.5)), at(4), strict)[0]).status is SUCCESS


def test_outputs_that_are_missing_are_named():
    run = settled(after(a_local_job(a_run(status=RUNNING)), exited(0, missing=("data", "model"))), 9)
    assert run.failure.reason == "NO_CALLBACK"
    assert "data, model" in run.failure.message
    assert run.failure.exit_code == 0


@pytest.mark.parametrize(
    ("report", "event", "expected"),
    [
        (None, exited(3), "exit code 3"),
        (None, exited(137), "exit code 137 by signal 9"),
        (said(TaskStatus.SUCCESS), exited(3), "exit code 3 after it reported SUCCESS"),
        (
            said(TaskStatus.RUNNING, result_code="17", result_message="bad key"),
            exited(3),
            "result code 17: bad key",
        ),
        (said(TaskStatus.RUNNING, result_code="17"), exited(3), "; result code 17"),
    ],
)
def test_a_failure_says_what_is_known(report, event, expected):
    local = a_local_job(a_run(status=RUNNING))
    run = only(after(local, *([report] if report else []), event))
    assert expected in run.failure.message
    assert run.failure.exit_code == event.exit.code
    assert (run.failure.node, run.failure.role, run.failure.task) == ("n1", "guest", "a")


@pytest.mark.parametrize(("code", "told"), [(137, True), (134, True), (139, True), (3, False), (143, False)])
def test_an_end_that_too_little_memory_may_be_behind_says_so_where_it_is_limited(code, told):
    free, limited = (only(after(a_local_job(a_run(status=RUNNING, limits=m)), exited(code))) for m in ({}, MEMORY))
    assert ("memory" in limited.failure.message, "memory" in free.failure.message) == (told, False)


def test_a_later_report_keeps_the_result_code_of_an_earlier_one():
    local = after(a_local_job(a_run(status=RUNNING)), said(TaskStatus.RUNNING, result_code="7"))
    assert only(after(local, said(TaskStatus.FAILED, 2))).failure.message == "result code 7"


def test_a_container_that_is_gone_fails_the_run():
    run = only(after(a_local_job(a_run(status=RUNNING)), Gone(ID, at(1))))
    assert (run.status, run.failure.reason) == (FAILED, "GONE")


def test_a_container_that_is_gone_after_its_exit_was_seen_changes_nothing():
    local = after(a_local_job(a_run(status=RUNNING)), exited(0))
    assert after(local, Gone(ID, at(3))) == local


@pytest.mark.parametrize("status", [WAITING, LAUNCHING, SUCCESS, FAILED])
def test_gone_says_nothing_of_a_run_that_is_not_up(status):
    local = a_local_job(a_run(status=status))
    assert after(local, Gone(ID, at(1))) == local


def test_what_is_told_while_launching_counts_as_soon_as_the_run_is_up():
    local = a_local_job(a_run(status=LAUNCHING))
    early = after(local, said(TaskStatus.SUCCESS, 0.5), exited(0, 0.6))
    assert only(early).status is LAUNCHING
    assert only(after(early, Launched(ID, at(1)))).status is SUCCESS
    broken = after(local, exited(1, 0.6), Launched(ID, at(1)))
    assert only(broken).failure.reason == "EXIT_1"
    failed = after(local, said(TaskStatus.FAILED, 0.5), Launched(ID, at(1)))
    assert only(failed).failure.reason == "REPORTED_FAILED"


def test_a_run_that_waits_cannot_have_ended():
    local = a_local_job(a_run())
    assert after(local, exited(0)) == local


@pytest.mark.parametrize("first", [TaskStatus.SUCCESS, TaskStatus.FAILED])
@pytest.mark.parametrize("second", TaskStatus)
def test_the_first_final_report_counts(first, second):
    local = after(a_local_job(a_run(status=RUNNING)), said(first, 1))
    assert after(local, said(second, 2)) == local


@pytest.mark.parametrize("status", [SUCCESS, FAILED])
def test_nothing_changes_a_run_that_is_over(status):
    local = a_local_job(a_run(status=status, exit=Exit(0)))
    for late in (said(TaskStatus.FAILED), exited(1), Gone(ID, at(3)), Seen(ID, at(3)), stopped(3, "a")):
        assert after(local, late) == local


def test_news_of_a_run_that_is_not_here_changes_nothing():
    local = a_local_job(a_run(status=RUNNING))
    assert after(local, Reported("run-x", TaskStatus.FAILED, at(1)), Gone("run-x", at(1))) == local


# ---------------------------------------------------------------- stopping


def test_a_run_that_waits_is_stopped_without_the_engine():
    local = after(a_local_job(a_run()), stopped(1, "a"))
    run = only(local)
    assert (run.status, run.failure.reason) == (FAILED, "STOPPED")
    assert due(local, 1) == [Tell(ID, TaskStatus.FAILED)]


def test_a_run_that_launches_is_stopped_when_it_is_up():
    local = after(a_local_job(a_run(status=LAUNCHING)), stopped(1, "a"))
    assert (only(local).status, due(local, 1)) == (LAUNCHING, [])
    local = after(local, Launched(ID, at(2)))
    assert only(local).status is STOPPING
    assert StopRun(ID, TIMING.stop_grace) in due(local, 2)


def test_a_run_that_launches_in_vain_is_not_stopped_besides():
    local = after(a_local_job(a_run(status=LAUNCHING)), stopped(1, "a"))
    run = only(after(local, LaunchFailed(ID, Failure("IMAGE_NOT_FOUND"), at(2))))
    assert (run.status, run.failure.reason) == (FAILED, "IMAGE_NOT_FOUND")


def test_a_run_that_was_over_before_it_was_known_to_be_up_needs_no_stop():
    local = after(a_local_job(a_run(status=LAUNCHING)), exited(0, 0.5), stopped(1, "a"), Launched(ID, at(2)))
    assert (only(local).status, only(local).failure.reason) == (FAILED, "STOPPED")


@pytest.mark.parametrize("end", [exited(0, 3), exited(143, 3), Gone(ID, at(3))])
def test_a_running_run_is_stopped_through_the_engine(end):
    local, actions = step(
        after(a_local_job(a_run(status=RUNNING, told=Told(TaskStatus.RUNNING))), stopped(1)), at(1)
    )
    assert actions == [StopRun(ID, TIMING.stop_grace)]
    assert only(local).status is STOPPING
    run = only(after(local, end))
    assert (run.status, run.failure.reason, run.ended_at) == (FAILED, "STOPPED", at(3))


def test_a_run_whose_exit_is_weighed_still_is_stopped_at_once():
    run = only(after(a_local_job(a_run(status=RUNNING)), exited(0, 1), stopped(1.5)))
    assert (run.status, run.failure.reason, run.failure.exit_code) == (FAILED, "STOPPED", 0)


def test_what_a_stopped_container_reports_does_not_save_it():
    local = after(a_local_job(a_run(status=RUNNING)), stopped(1), said(TaskStatus.SUCCESS, 2), exited(0, 3))
    assert only(local).failure.reason == "STOPPED"


def test_a_stop_that_failed_is_repeated_and_one_without_an_end_after_its_deadline():
    local, [stop, _] = step(after(a_local_job(a_run(status=RUNNING)), stopped(1)), at(1))
    assert stop not in due(local, 17.9)
    assert stop in due(local, 18)
    assert stop in due(after(local, Done(stop, at(2), final=False)), 2.2)


def test_a_stopped_container_is_looked_at_until_it_is_seen_gone():
    local, [stop, *_] = step(after(a_local_job(a_run(status=RUNNING)), stopped(1)), at(1))
    local = after(local, Seen(ID, at(2)), Done(stop, at(2)))
    assert Probe(ID) not in due(local, 6.9)
    assert Probe(ID) in due(local, 7)
    assert stop not in due(local, 100)
    assert only(after(step(local, at(7))[0], exited(143, 7))).failure.reason == "STOPPED"


def test_a_stop_of_some_tasks_leaves_the_others_and_the_job():
    local = a_local_job(a_run("a", RUNNING), a_run("b", RUNNING), a_run("c"))
    local = after(local, stopped(1, "a", "c"))
    assert [run.status for run in local.runs] == [STOPPING, RUNNING, FAILED]
    assert (local.status, local.ending) == (JobStatus.RUNNING, None)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (JobStatus.PENDING, JobStatus.REJECTED),
        (JobStatus.READY, JobStatus.FINISHED),
        (JobStatus.RUNNING, JobStatus.FINISHED),
    ],
)
def test_a_stop_of_the_job_ends_it_here_with_how_it_ended(status, final):
    local = after(a_local_job(status=status), stopped(1))
    assert (local.status, local.ended_at, local.ending) == (final, at(1), ENDING)


@pytest.mark.parametrize(
    ("runs", "flow", "outcome"),
    [
        ((a_run("a", SUCCESS), a_run("b", SUCCESS)), "a -> b", Outcome.SUCCEEDED),
        ((a_run("a", SUCCESS),), "a -> b", None),
        ((a_run("a", SUCCESS), a_run("b", RUNNING)), "a -> b", None),
        ((a_run("a", FAILED, failure=Failure("EXIT_1")),), "a -> b", Outcome.FAILED),
        ((a_run("a", FAILED, failure=Failure("STOPPED")),), "a", Outcome.STOPPED),
        ((a_run("a", FAILED, failure=Failure("EXIT_1")), a_run("a", SUCCESS, attempt=1)), "a", Outcome.SUCCEEDED),
        ((), "a", None),
    ],
)
def test_a_stop_that_does_not_say_how_the_job_ended_leaves_it_to_the_runs(runs, flow, outcome):
    local = a_local_job(*runs, spec=a_spec(flow))
    local = after(local, StopAsked(at(1), None, None, "n2"))
    assert local.status is JobStatus.FINISHED
    assert (local.ending.outcome if local.ending else None) is outcome


def test_a_second_stop_changes_nothing():
    local = after(a_local_job(a_run(status=RUNNING)), stopped(1))
    again = StopAsked(at(9), None, Ending(Outcome.SUCCEEDED, at(9)), "n3")
    assert after(local, again) == local


@pytest.mark.parametrize(
    ("outcome", "refused", "told"),
    [
        (Outcome.STOPPED, None, (Outcome.STOPPED, "STOPPED")),
        (Outcome.FAILED, None, (Outcome.FAILED, "STOPPED")),
        (Outcome.STOPPED, Failure("APPROVAL_REJECTED"), (Outcome.REJECTED, "APPROVAL_REJECTED")),
        (Outcome.SUCCEEDED, None, None),
    ],
)
def test_how_a_job_ended_may_be_told_after_the_stop(outcome, refused, told):
    """Once, and never as a success: what had not succeeded by then was stopped."""
    approval = Approval(T0, at(9), JobStatus.REJECTED, failure=refused) if refused else None
    local = after(replace(a_local_job(), approval=approval), StopAsked(at(1), None, None, "n2"))
    assert local.ending is None
    local = after(local, StopAsked(at(2), None, Ending(outcome, at(2), Failure("STOPPED")), "n2"))
    ending = local.ending
    assert (None if ending is None else (ending.outcome, ending.failure.reason)) == told
    if told:
        assert after(local, StopAsked(at(3), None, Ending(Outcome.FAILED, at(3)), "n2")) == local


# ---------------------------------------------------------------- tidying up, telling, closing


def test_a_run_that_is_over_is_collected_until_that_is_done():
    local, actions = step(a_local_job(a_run(status=SUCCESS, told=Told(TaskStatus.SUCCESS))), at(0))
    assert actions == [Collect(ID)]
    assert due(local, 16.9) == []
    assert due(local, 17) == [Collect(ID)]
    local = after(local, Done(Collect(ID), at(1), final=False, message="engine down"))
    assert due(local, 1.2) == [Collect(ID)]
    local = after(step(local, at(2))[0], Done(Collect(ID), at(2)))
    assert due(local, 1000) == []


def test_what_is_collected_stays_collected_whatever_a_repeat_comes_to():
    local, [collect] = step(a_local_job(a_run(status=SUCCESS, told=Told(TaskStatus.SUCCESS))), at(0))
    local = after(local, Done(collect, at(1)), Done(collect, at(2), final=False))
    assert due(local, 1000) == []


@pytest.mark.parametrize(
    ("status", "news"),
    [
        (WAITING, None),
        (LAUNCHING, None),
        (RUNNING, TaskStatus.RUNNING),
        (STOPPING, TaskStatus.RUNNING),
        (SUCCESS, TaskStatus.SUCCESS),
        (FAILED, TaskStatus.FAILED),
    ],
)
def test_every_state_worth_telling_is_told_once(status, news):
    local = a_local_job(a_run(status=status))
    tells = [c for c in due(local, 0) if isinstance(c, Tell)]
    assert tells == ([Tell(ID, news)] if news else [])
    if news:
        local = after(step(local, at(0))[0], Done(Tell(ID, news), at(1)))
        assert not any(isinstance(c, Tell) for c in due(local, 1000))


def test_a_tell_that_failed_is_repeated_after_growing_pauses_but_not_for_ever():
    local, now, pauses = a_local_job(a_run(status=SUCCESS, collect=OK)), at(0), []
    while (when := next_due(local)) is not None:
        pauses.append(max((when - now).total_seconds(), 0.0))
        now = max(when, now)
        local, [tell] = step(local, now)
        local = after(local, Done(tell, now, final=False))
    assert len(pauses) == TIMING.tell_tries
    assert pauses == sorted(pauses)
    assert pauses[-1] == TIMING.retry_max


def test_news_does_not_wait_for_a_tell_of_older_news():
    local, _ = step(a_local_job(a_run(status=RUNNING)), at(0))
    local = after(local, said(TaskStatus.FAILED, 1))
    assert Tell(ID, TaskStatus.FAILED) in due(local, 1)


@pytest.mark.parametrize("final", [True, False])
def test_the_end_of_a_tell_of_older_news_says_nothing_of_the_newer(final):
    local, _ = step(a_local_job(a_run(status=RUNNING)), at(0))
    local, actions = step(after(local, said(TaskStatus.FAILED, 1)), at(1))
    assert Tell(ID, TaskStatus.FAILED) in actions
    local = after(local, Done(Tell(ID, TaskStatus.RUNNING), at(2), final=final))
    assert not any(isinstance(c, Tell) for c in due(local, 2))
    local = after(local, Done(Tell(ID, TaskStatus.FAILED), at(3)))
    local = after(local, Done(Tell(ID, TaskStatus.RUNNING), at(4), final=final))
    assert not any(isinstance(c, Tell) for c in due(local, 1000))


def _over(**changes) -> Run:
    return a_run(status=SUCCESS, told=Told(TaskStatus.SUCCESS), **changes)


@pytest.mark.parametrize(
    ("runs", "closes"),
    [
        ((), True),
        ((_over(collect=OK),), True),
        ((_over(),), False),
        ((_over(collect=sent()),), False),
        ((_over(collect=OK), a_run("b", STOPPING)), False),
        ((_over(collect=OK), a_run("b", FAILED, launch=IDLE)), True),
    ],
    ids=["no run", "collected", "not collected", "being collected", "one still there", "one never launched"],
)
def test_a_job_is_closed_only_after_all_of_it_is_collected(runs, closes):
    local = a_local_job(*runs, status=JobStatus.FINISHED)
    assert (Close() in due(local, 0)) is closes


def test_a_job_that_goes_on_is_not_closed():
    assert due(a_local_job(_over(collect=OK)), 1000) == []


def test_a_step_of_the_tidying_up_that_fails_is_told_once_and_repeated():
    local = step(a_local_job(_over(collect=IDLE), status=JobStatus.FINISHED), at(0))[0]
    for second, words in ((1, "no space"), (2, "no space"), (3, "engine down")):
        local = after(local, Done(Collect(ID), at(second), final=False, message=words))
        assert local.status is JobStatus.FINISHED and Collect(ID) in due(local, second + 60)
    told = [(n.at, n.event, n.detail["message"]) for n in local.notes if n.event == "removing failed"]
    assert told == [(at(1), "removing failed", "no space"), (at(3), "removing failed", "engine down")]
    closing = step(a_local_job(status=JobStatus.FINISHED), at(0))[0]
    closing = after(closing, Done(Close(), at(1), final=False, message="the channel is away"))
    assert [n.event for n in closing.notes] == ["closing failed"] and due(closing, 60) == [Close()]
    assert after(step(closing, at(60))[0], Done(Close(), at(61))).closed


def test_a_close_is_repeated_until_it_is_done_and_then_never():
    local, actions = step(a_local_job(status=JobStatus.FINISHED), at(0))
    assert actions == [Close()]
    assert due(local, 11.9) == []
    local = after(local, Done(Close(), at(1), final=False))
    assert due(local, 1.2) == [Close()]
    local = after(step(local, at(2))[0], Done(Close(), at(2)))
    assert local.closed
    late = after(local, Done(Close(), at(3), final=False))
    assert late.closed
    assert next_due(late) is None


# ---------------------------------------------------------------- a new process


@pytest.mark.parametrize(
    ("run", "again"),
    [
        (a_run(), [Launch(ID)]),
        (a_run(status=LAUNCHING), [Launch(ID)]),
        (a_run(status=RUNNING, told=Told(TaskStatus.RUNNING)), [Probe(ID)]),
        (
            a_run(status=RUNNING, told=Told(call=sent()), probe_at=at(5)),
            [Probe(ID), Tell(ID, TaskStatus.RUNNING)],
        ),
        (
            a_run(status=STOPPING, told=Told(TaskStatus.RUNNING), stop=sent()),
            [StopRun(ID, TIMING.stop_grace)],
        ),
        (a_run(status=STOPPING, told=Told(TaskStatus.RUNNING), stop=OK), [Probe(ID)]),
        (_over(collect=sent()), [Collect(ID)]),
        (_over(collect=OK), []),
        (a_run(status=FAILED, collect=OK, told=Told(TaskStatus.RUNNING, sent())), [Tell(ID, TaskStatus.FAILED)]),
    ],
)
def test_a_new_process_takes_up_at_once_what_the_old_one_had_in_hand(run, again):
    assert due(after(a_local_job(run), Restarted(at(1))), 1) == again


def test_a_new_process_takes_up_a_close():
    local, _ = step(a_local_job(status=JobStatus.FINISHED), at(0))
    assert due(local, 1) == []
    assert due(after(local, Restarted(at(1))), 1) == [Close()]


def test_a_run_keeps_what_it_told_and_how_it_exited_over_a_new_process():
    local = after(a_local_job(a_run(status=RUNNING)), exited(0, 2), Restarted(at(2.5)))
    assert settled(local, 3).status is SUCCESS
    told = after(a_local_job(a_run(status=RUNNING)), said(TaskStatus.SUCCESS), Restarted(at(9)), exited(0, 10))
    assert only(told).status is SUCCESS


# ---------------------------------------------------------------- at large


def test_every_move_of_a_run_is_written_into_the_timeline():
    local, _ = step(a_local_job(a_run()), at(0))
    local = after(local, Launched(ID, at(1)), stopped(2), exited(143, 3))
    assert [note.event for note in local.notes] == [
        "run LAUNCHING",
        "run RUNNING",
        "run STOPPING",
        "job FINISHED here",
        "run FAILED",
    ]
    detail = local.notes[-1].detail
    assert (detail["reason"], detail["task"], detail["role"], detail["exit_code"]) == (
        "STOPPED",
        "a",
        "guest.0",
        143,
    )


def test_the_runs_of_a_task_are_told_as_one():
    host = Party("host", 1, "n1")
    runs = [a_run(status=SUCCESS), a_run(status=LAUNCHING, party=host)]
    assert merge_runs(runs) is TaskStatus.READY
    assert merge_runs([*runs, a_run(status=FAILED)]) is TaskStatus.FAILED
    assert merge_runs(runs[:1]) is TaskStatus.SUCCESS


EXIT_CODES = st.sampled_from([0, 0, 1, 137])


@st.composite
def _event(draw: st.DrawFn, run: str, seconds: float) -> Event:
    now, final = at(seconds), draw(st.booleans())
    exit_ = Exit(
        draw(EXIT_CODES), oom_killed=final, finished_at=now, missing_outputs=draw(st.sampled_from([(), ("x",)]))
    )
    return draw(
        st.sampled_from(
            [
                Launched(run, now),
                Launched(run, now),
                LaunchFailed(run, Failure("ENGINE_DOWN"), now),
                Seen(run, now),
                HasExited(run, exit_, now),
                Gone(run, now),
                Reported(run, draw(st.sampled_from(TaskStatus)), now),
                Done(Collect(run), now, final),
                Done(Tell(run, draw(st.sampled_from(TaskStatus))), now, final),
                Done(StopRun(run, 5.0), now, final),
                Done(Close(), now, final),
                StopAsked(now, frozenset({"a"}) if final else None, ENDING),
                Restarted(now),
            ]
        )
    )


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True), st.data())
@REPEATABLE
def test_no_news_whatever_breaks_a_job_or_moves_it_beside_the_tables(tasks, data):
    local, now = a_local_job(*(a_run(task) for task in tasks)), 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 130.0)))
        old = local
        if data.draw(st.booleans()):
            local, actions = step(local, at(now))
            assert not set(actions) & set(due(local, now))
        else:
            local = after(local, data.draw(_event(data.draw(st.sampled_from(local.runs)).run_id, now)))
        assert old.status is local.status or may(JOB, old.status, local.status)
        for was, run in zip(old.runs, local.runs, strict=True):
            assert run.status in soon(was.status)
            assert (run.failure is not None) is (run.status is FAILED)
            assert run.over is (run.ended_at is not None) is ended(RUN, run.status)
            if was.over:
                assert (was.status, was.failure, was.ended_at) == (run.status, run.failure, run.ended_at)


# ---------------------------------------------------------------- several gateways


def test_a_lost_gateway_leaves_what_it_had_not_begun_and_its_other_runs_fail_by_name():
    waiting, running = a_run("a", owner="lost"), a_run("b", status=RunStatus.RUNNING, owner="lost")
    stopping = a_run("c", status=RunStatus.STOPPING, owner="lost", stop_at=at(0))
    over, mine = (
        a_run("d", status=RunStatus.SUCCESS, owner="lost"),
        a_run("e", status=RunStatus.RUNNING, owner="me"),
    )
    local = replace(a_local_job(waiting, running, stopping, over, mine), home="lost")
    local = execute.apply(local, OwnerLost("lost", "me", at(5)))
    by_task = {run.task_name: run for run in local.runs}
    assert by_task["a"] == replace(waiting, owner="me") and local.home == "me"
    assert by_task["b"].failure.reason == "CHANNEL_LOST"
    assert by_task["c"].failure.reason == "STOPPED"
    assert (by_task["d"], by_task["e"]) == (over, mine)
    assert execute.apply(local, OwnerLost("lost", "me", at(6))) == local


def test_only_the_gateway_that_has_a_job_closes_it_and_waits_for_no_container_it_left_behind():
    left = a_run("a", status=RunStatus.FAILED, owner="lost", launch=OK)
    local = replace(a_local_job(left, status=JobStatus.FINISHED), home="me")
    assert Close() in execute.plan(local, at(9), owner="me")
    assert Close() not in execute.plan(local, at(9), owner="third")
    assert execute.plan(local, at(9), owner="lost") == [
        Collect(left.run_id),
        Tell(left.run_id, TaskStatus.FAILED),
    ]
