"""What a participating node makes of a report and of an exit, whichever comes first."""

from dataclasses import replace
from itertools import product

import pytest

from gateway.domain.execution.machine import step
from gateway.domain.execution.messages import (
    Collect,
    Conclude,
    Gone,
    Inspected,
    Launched,
    Probe,
    Reported,
    Tell,
)
from gateway.domain.run import Exit
from gateway.domain.states import TaskStatus
from tests.builders import a_local_job, a_run, at
from tests.domain.executed import (
    FAILED,
    ID,
    LAUNCHING,
    RUNNING,
    SUCCESS,
    TIMING,
    WAITING,
    after,
    due,
    exited,
    only,
    said,
    settled,
    stopped,
)

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
    assert Conclude(ID) not in due(local, 2.9)
    assert Conclude(ID) in due(local, 3)
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
    for late in (said(TaskStatus.FAILED), exited(1), Gone(ID, at(3)), Inspected(ID, at(3)), stopped(3, "a")):
        assert after(local, late) == local


def test_news_of_a_run_that_is_not_here_changes_nothing():
    local = a_local_job(a_run(status=RUNNING))
    assert after(local, Reported("run-x", TaskStatus.FAILED, at(1)), Gone("run-x", at(1))) == local
