"""The result of a run from its reports and its exit, in any order, and the message of a failure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from gateway.domain.execution.machine import step
from gateway.domain.execution.messages import Event
from gateway.domain.run import Address, LocalJob, RunData
from gateway.domain.states import RunStatus, TaskStatus
from tests.builders import a_local_job, a_run, at
from tests.domain.run_events import (
    RUNNING_RUN,
    TIMING,
    exit_run,
    failure_reason,
    only_run,
    report_run,
    request_stop,
)
from tests.domain.script import play

# Exit codes, and whether the container ran out of memory.
EXITS = {
    "0": (0, False),
    "1": (1, False),
    "137": (137, False),
    "143": (143, False),
    "oom": (137, True),
}
REPORTS = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)
NEW_JOB = a_local_job(RUNNING_RUN)


def missing_outputs(is_missing: bool) -> tuple[str, ...]:
    return ("out",) if is_missing else ()


def expected_reason(
    report: TaskStatus | None,
    code: int,
    oom: bool,
    missing: bool,
) -> str:
    """Return the reason of the failure by report and exit; empty for a success."""
    if report is TaskStatus.FAILED:
        return "REPORTED_FAILED"
    if oom:
        return "OOM_KILLED"
    if code != 0:
        return f"EXIT_{code}"
    if missing and report is not TaskStatus.SUCCESS:
        return "NO_CALLBACK"
    return ""


@pytest.mark.parametrize(
    "missing",
    [False, True],
    ids=["all outputs", "missing output"],
)
@pytest.mark.parametrize("exit_id", EXITS)
@pytest.mark.parametrize("report", [None, *REPORTS])
def test_a_report_and_then_an_exit_give_the_result(
    report: TaskStatus | None,
    exit_id: str,
    missing: bool,
):
    code, oom = EXITS[exit_id]
    reports = [] if report is None else [report_run(report)]
    local = play(NEW_JOB, *reports)

    local = play(
        local,
        exit_run(
            code,
            oom=oom,
            missing=missing_outputs(missing),
        ),
    )
    run_at_exit = only_run(local)
    run = only_run(play(local, 3.0))

    assert failure_reason(run) == expected_reason(report, code, oom, missing)
    assert run.status is (RunStatus.FAILED if run.failure else RunStatus.SUCCESS)
    assert run.exit.code == code, "an exit after the end is kept for the record"
    succeeded = run.status is RunStatus.SUCCESS
    assert run.no_callback is (succeeded and report is not TaskStatus.SUCCESS)
    # Only after an exit with code 0 and without a final report the run waits for a report.
    waits_for_report = code == 0 and report in (None, TaskStatus.RUNNING)
    assert run_at_exit.over is not waits_for_report


@pytest.mark.parametrize(
    "missing",
    [False, True],
    ids=["all outputs", "missing output"],
)
@pytest.mark.parametrize("report", REPORTS)
def test_a_report_within_the_grace_after_a_good_exit_counts(report: TaskStatus, missing: bool):
    local = play(NEW_JOB, exit_run(0, missing=missing_outputs(missing)))

    run = only_run(play(local, report_run(report, 2.5), 4.0))

    assert failure_reason(run) == expected_reason(report, 0, False, missing)


ADDRESS = Address("n", "x")


def job_whose_flow_reads_out(role: str) -> LocalJob:
    """Return a job whose run writes ``data0``, which a later task reads, and ``report0``."""
    data = RunData(
        outputs={"out": ADDRESS, "report": ADDRESS},
        output_keys={"data0": "out", "report0": "report"},
        needed_outputs=("out",),
    )
    party = replace(RUNNING_RUN.party, role=role)
    return a_local_job(replace(RUNNING_RUN, party=party, data=data))


@pytest.mark.parametrize("reports_first", [True, False], ids=["report first", "exit first"])
@pytest.mark.parametrize(
    ("role", "missing", "reason"),
    [
        ("guest", ("out", "report"), "OUTPUT_MISSING"),
        ("guest", ("out",), "OUTPUT_MISSING"),
        ("guest", ("report",), ""),
        ("guest", (), ""),
        ("host", ("out", "report"), "OUTPUT_MISSING"),
        ("host", ("out",), ""),  # some components write a table at the guest only
    ],
)
def test_a_reported_success_needs_the_outputs_that_the_flow_uses(
    role,
    missing,
    reason,
    reports_first,
):
    events = [report_run(TaskStatus.SUCCESS), exit_run(0, missing=missing)]
    if not reports_first:
        events.reverse()

    run = only_run(play(job_whose_flow_reads_out(role), *events))

    assert failure_reason(run) == reason
    assert run.over
    if reason:
        assert "did not write data0, which a later task reads" in run.failure.message


@pytest.mark.parametrize(
    "missing",
    [False, True],
    ids=["all outputs", "missing output"],
)
@pytest.mark.parametrize("exit_id", ["1", "137", "143", "oom"])
@pytest.mark.parametrize("report", REPORTS)
def test_a_report_after_a_bad_exit_comes_too_late(
    report: TaskStatus,
    exit_id: str,
    missing: bool,
):
    code, oom = EXITS[exit_id]
    local = play(
        NEW_JOB,
        exit_run(
            code,
            oom=oom,
            missing=missing_outputs(missing),
        ),
    )

    run = only_run(play(local, report_run(report, 2.5), 4.0))

    assert run.failure.reason == ("OOM_KILLED" if oom else f"EXIT_{code}")


STRICT = replace(TIMING, silence_fails=True)


def test_a_node_may_count_silence_as_a_failure():
    local = play(NEW_JOB, exit_run(0, 2))

    local, _ = step(local, at(3), STRICT)

    run = only_run(local)
    assert run.status is RunStatus.FAILED
    assert run.failure.reason == "NO_CALLBACK"
    assert not run.no_callback


def test_a_strict_node_accepts_a_report_within_the_grace():
    local = play(
        NEW_JOB,
        exit_run(0, 2),
        report_run(TaskStatus.SUCCESS, 2.5),
    )

    local, _ = step(local, at(4), STRICT)

    assert only_run(local).status is RunStatus.SUCCESS


@dataclass(frozen=True)
class MessageCase:
    """Steps of a run that fails, words of the message, and the exit code (None without an exit)."""

    steps: Sequence[Event | float]
    words: str
    exit_code: int | None


MESSAGES: dict[str, MessageCase] = {
    "exit code": MessageCase([exit_run(3)], "exit code 3", 3),
    "signal": MessageCase([exit_run(137)], "exit code 137 by signal 9", 137),
    "exit code against a report": MessageCase(
        [report_run(TaskStatus.SUCCESS), exit_run(3)],
        "exit code 3 after it reported SUCCESS",
        3,
    ),
    "result code and message before the exit": MessageCase(
        [
            report_run(
                TaskStatus.RUNNING,
                result_code="7",
                result_message="bad key",
            ),
            exit_run(3),
        ],
        "result code 7: bad key",
        3,
    ),
    "result code before the exit": MessageCase(
        [
            report_run(TaskStatus.RUNNING, result_code="17"),
            exit_run(3),
        ],
        "; result code 17",
        3,
    ),
    "result code of an earlier report": MessageCase(
        [
            report_run(TaskStatus.RUNNING, result_code="7"),
            report_run(TaskStatus.FAILED, 2),
        ],
        "result code 7",
        None,
    ),
    "result message": MessageCase(
        [report_run(TaskStatus.FAILED, result_message="no rows")],
        "no rows",
        None,
    ),
    "no message, so the command for the logs": MessageCase(
        [report_run(TaskStatus.FAILED)],
        f"job logs {NEW_JOB.id} --task a --party guest.0",
        None,
    ),
    "missing outputs": MessageCase(
        [
            exit_run(0, missing=("data", "model")),
            9,
        ],
        "data, model",
        0,
    ),
    "stopped": MessageCase(
        [exit_run(0, 1), request_stop(1.5)],
        "stopped",
        0,
    ),
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_a_failure_says_everything_that_is_known(case: MessageCase):
    failure = only_run(play(NEW_JOB, *case.steps)).failure

    assert case.words in failure.message
    assert failure.exit_code == case.exit_code


@pytest.mark.parametrize(
    ("code", "hints_at_memory"),
    [
        (137, True),
        (134, True),
        (139, True),
        (3, False),
        (143, False),
    ],
)
def test_an_exit_that_may_be_due_to_the_memory_limit_says_so(code: int, hints_at_memory: bool):
    limited_run = a_run(
        status=RunStatus.RUNNING,
        limits={"memory": 2.0e8},
    )

    run = only_run(play(a_local_job(limited_run), exit_run(code)))

    assert ("memory" in run.failure.message) is hints_at_memory


@pytest.mark.parametrize(
    "code",
    [137, 134, 139, 3, 143],
)
def test_an_exit_without_a_memory_limit_does_not_mention_memory(code: int):
    unlimited_run = a_run(
        status=RunStatus.RUNNING,
        limits={},
    )

    run = only_run(play(a_local_job(unlimited_run), exit_run(code)))

    assert "memory" not in run.failure.message
