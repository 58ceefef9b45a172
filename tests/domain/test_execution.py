"""What a participating node decides of its runs: (given, events, expected). At large: `test_workshop`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.execution import contact, machine
from gateway.domain.execution.machine import next_due, step
from gateway.domain.execution.messages import (
    Abandon,
    AskStop,
    Broken,
    Close,
    Collect,
    Conclude,
    Done,
    EngineSilent,
    Event,
    Exited,
    Gone,
    Inspected,
    Launch,
    Launched,
    LaunchFailed,
    OwnerLost,
    Probe,
    QueryScheduler,
    Reported,
    Restarted,
    SchedulerAlive,
    StoppedHere,
    StopRequested,
    StopRun,
    Tell,
)
from gateway.domain.run import Approval, Exit, LocalJob, Reporting, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JOB, RUN, JobStatus, Outcome, RunStatus, TaskStatus, ended, may
from gateway.domain.timeouts import RunTiming
from gateway.domain.waiting import of_local
from tests.builders import IDLE, OK, T0, a_local_job, a_run, a_spec, at, sent
from tests.domain.execution_world import reachable_in_one_write
from tests.domain.script import due_commands, play
from tests.domain.strategies import REPEATABLE

TIMING = RunTiming()
ID = "run-a-guest.0"
LAUNCHING, RUNNING, STOPPING = RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.STOPPING
SUCCESS, FAILED = RunStatus.SUCCESS, RunStatus.FAILED
ENDING = Ending(Outcome.STOPPED, T0)
NO_IMAGE = Failure("IMAGE_NOT_FOUND", "no such image")
TELL_RUNNING, TELL_FAILED = Tell(ID, TaskStatus.RUNNING), Tell(ID, TaskStatus.FAILED)
LAUNCH, PROBE, COLLECT, STOP = Launch(ID), Probe(ID), Collect(ID), StopRun(ID, TIMING.stop_grace)
REPORTED_RUNNING = Reporting(TaskStatus.RUNNING)
UP = a_run(status=RUNNING, reporting=REPORTED_RUNNING)
NEW = a_run(status=RUNNING)
FULL = Failure("STORAGE_FULL", "it is full")
ENDS_SOON = a_run(status=STOPPING, reporting=REPORTED_RUNNING)
STARTS = a_run(status=LAUNCHING)
AWAY = Failure("ENGINE_DOWN", "the cluster does not answer")


def only(local: LocalJob) -> Run:
    [run] = local.runs
    return run


def said(
    status: TaskStatus,
    seconds: float = 1.0,
    **more,
) -> Reported:
    return Reported(ID, status, at(seconds), **more)


def exited(
    code: int = 0,
    seconds: float = 2.0,
    *,
    oom: bool = False,
    missing: tuple[str, ...] = (),
) -> Exited:
    signal = code - 128 if code > 128 else None
    return Exited(ID, Exit(code, signal, oom, T0, at(seconds), missing), at(seconds))


def stopped(seconds: float = 1.0, *tasks: str) -> StopRequested:
    return StopRequested(at(seconds), frozenset(tasks) or None, ENDING, "n2")


def silent(seconds: float) -> EngineSilent:
    return EngineSilent(ID, at(seconds))


def over(**changes) -> Run:
    return a_run(
        status=SUCCESS,
        reporting=Reporting(TaskStatus.SUCCESS),
        **changes,
    )


DUE: dict[str, tuple[Run, Sequence[Event | float], Mapping[float, list]]] = {
    "waiting": (a_run(), [], {0: [LAUNCH]}),
    "launched once": (
        a_run(),
        [0],
        {
            0: [],
            119.9: [],
            120: [LAUNCH],
        },
    ),
    "up": (
        STARTS,
        [Launched(ID, at(1), "sha256:1")],
        {1: [TELL_RUNNING], 6: [PROBE, TELL_RUNNING]},
    ),
    "probed": (UP, [5], {9.9: []}),
    "probed without news": (UP, [5, Inspected(ID, at(7))], {9.9: [], 10: [PROBE]}),
    "probed long after its start": (UP, [200, Inspected(ID, at(201))], {259.9: [], 260: [PROBE]}),
    "probed hours after its start": (
        UP,
        [9000, Inspected(ID, at(9001))],
        {9059.9: [], 9060: [PROBE]},
    ),
    "the launch failed": (STARTS, [LaunchFailed(ID, NO_IMAGE, at(1))], {1: [COLLECT, TELL_FAILED]}),
    "its engine is away": (a_run(), [0, LaunchFailed(ID, AWAY, at(1))], {1.1: [], 1.2: [LAUNCH]}),
    "stopped while its engine is away": (
        a_run(),
        [0, LaunchFailed(ID, AWAY, at(1)), stopped(1.1, "a")],
        {2: [COLLECT, TELL_FAILED]},
    ),
    "given up with its gateway, then up": (
        a_run(
            owner="frozen",
            status=LAUNCHING,
            launch=sent(0),
        ),
        [OwnerLost("frozen", "me", at(9)), 10, Done(COLLECT, at(10)), Launched(ID, at(10))],
        {10: [COLLECT]},
    ),
    "collected once": (
        over(),
        [0],
        {
            0: [],
            16.9: [],
            17: [COLLECT],
        },
    ),
    "collected in vain": (
        over(),
        [0, Done(COLLECT, at(1), final=False, message="engine down")],
        {1.2: [COLLECT]},
    ),
    "collected": (over(), [0, Done(COLLECT, at(2)), Done(COLLECT, at(3), final=False)], {1000: []}),
    "nothing worth telling": (a_run(status=LAUNCHING, launch=sent(0)), [], {0: []}),
    "newer news": (NEW, [0, said(TaskStatus.FAILED, 1)], {1: [COLLECT, TELL_FAILED]}),
    "old news told": (NEW, [0, said(TaskStatus.FAILED, 1), 1, Done(TELL_RUNNING, at(2))], {2: []}),
    "old news told last": (
        NEW,
        [
            0,
            said(TaskStatus.FAILED, 1),
            1,
            Done(COLLECT, at(2)),
            Done(TELL_FAILED, at(3)),
            Done(TELL_RUNNING, at(4), final=False),
        ],
        {1000: []},
    ),
    "an exit without a report": (
        UP,
        [exited(0, 2)],
        {
            2.9: [],
            3: [Conclude(ID)],
            100: [Conclude(ID)],
        },
    ),
    "a connection that breaks": (
        UP,
        [silent(0.5), silent(1.5), silent(4.5)],
        {4.9: [], 5: [PROBE]},
    ),
    "and breaks after a look": (
        UP,
        [silent(0.5), Inspected(ID, at(5)), silent(5.5)],
        {9.9: [], 10: [PROBE]},
    ),
    # stops
    "stopped while it waits": (a_run(), [stopped(1, "a")], {1: [TELL_FAILED]}),
    "stopped, then up": (STARTS, [stopped(1, "a"), Launched(ID, at(2))], {2: [STOP, TELL_RUNNING]}),
    "stopped": (UP, [stopped(1)], {1: [STOP]}),
    "a stop without an end": (UP, [stopped(1), 1], {17.9: [], 18: [STOP]}),
    "a stop that failed": (UP, [stopped(1), 1, Done(STOP, at(2), final=False)], {2.2: [STOP]}),
    "not seen gone": (
        UP,
        [stopped(1), 1, Inspected(ID, at(2)), Done(STOP, at(2))],
        {6.9: [], 7: [PROBE]},
    ),
    # a new process
    "new: running": (UP, [Restarted(at(1))], {1: [PROBE]}),
    "new: stopped": (replace(ENDS_SOON, stop=OK), [Restarted(at(1))], {1: [PROBE]}),
}


@pytest.mark.parametrize(("run", "steps", "expected"), DUE.values(), ids=DUE)
def test_what_is_due(
    run: Run,
    steps: Sequence[Event | float],
    expected: Mapping[float, list],
):
    local = play(a_local_job(run), *steps)
    assert {seconds: due_commands(local, seconds) for seconds in expected} == expected


LATE = [Launched(ID, at(9)), LaunchFailed(ID, NO_IMAGE, at(9))]
OTHERS = [Reported("run-x", TaskStatus.FAILED, at(1)), Gone("run-x", at(1))]
AT_ALL = [
    silent(86_400),
    said(TaskStatus.FAILED),
    exited(1),
    Gone(ID, at(3)),
    Inspected(ID, at(3)),
    stopped(3, "a"),
]
UNCHANGED: dict[str, tuple[LocalJob, Sequence[Event]]] = {
    "waiting": (a_local_job(a_run()), [*LATE, exited(0), Gone(ID, at(1))]),
    "launching": (a_local_job(STARTS), [Gone(ID, at(1))]),
    "running": (a_local_job(NEW), [*LATE, *OTHERS]),
    "stopping": (a_local_job(a_run(status=STOPPING)), LATE),
    "over": (a_local_job(over(exit=Exit(0))), [*LATE, *AT_ALL]),
    "failed": (a_local_job(a_run(status=FAILED, exit=Exit(0))), [*LATE, *AT_ALL]),
    "exited": (play(a_local_job(NEW), exited(0)), [Gone(ID, at(3))]),
    "reported": (
        play(a_local_job(NEW), said(TaskStatus.SUCCESS)),
        [said(s, 2) for s in TaskStatus],
    ),
    "reported as failed": (
        play(a_local_job(NEW), said(TaskStatus.FAILED)),
        [said(s, 2) for s in TaskStatus],
    ),
}


@pytest.mark.parametrize(("local", "events"), UNCHANGED.values(), ids=UNCHANGED)
def test_what_changes_nothing(local: LocalJob, events: Sequence[Event]):
    for event in events:
        assert play(local, event) == local, event


ENDS: dict[str, tuple[Run, Sequence[Event | float], tuple[RunStatus, str | None]]] = {
    "stopped in vain": (
        STARTS,
        [stopped(1, "a"), LaunchFailed(ID, NO_IMAGE, at(2))],
        (FAILED, "IMAGE_NOT_FOUND"),
    ),
    "stopped while it waits": (a_run(), [stopped(1, "a")], (FAILED, "STOPPED")),
    "its engine is away for a minute": (
        a_run(),
        [
            0,
            LaunchFailed(ID, AWAY, at(1)),
            2,
            LaunchFailed(ID, AWAY, at(60.9)),
            62,
            LaunchFailed(ID, AWAY, at(62)),
        ],
        (FAILED, "ENGINE_DOWN"),
    ),
    "its engine comes back": (
        a_run(),
        [
            0,
            LaunchFailed(ID, AWAY, at(1)),
            2,
            Launched(ID, at(3)),
            said(TaskStatus.SUCCESS, 62),
            exited(0, 62),
        ],
        (SUCCESS, None),
    ),
    "over before it was up": (
        STARTS,
        [exited(0, 0.5), stopped(1, "a"), Launched(ID, at(2))],
        (FAILED, "STOPPED"),
    ),
    "stopped with 0": (
        NEW,
        [stopped(1), said(TaskStatus.SUCCESS, 2), exited(0, 3)],
        (FAILED, "STOPPED"),
    ),
    "stopped by a signal": (NEW, [stopped(1), exited(143, 3)], (FAILED, "STOPPED")),
    "stopped and gone": (NEW, [stopped(1), Gone(ID, at(3))], (FAILED, "STOPPED")),
    "stopped after its exit": (NEW, [exited(0, 1), stopped(1.5)], (FAILED, "STOPPED")),
    "gone": (NEW, [Gone(ID, at(1))], (FAILED, "GONE")),
    "reported while launching": (
        STARTS,
        [said(TaskStatus.SUCCESS, 0.5), exited(0, 0.6)],
        (LAUNCHING, None),
    ),
    "and up": (
        STARTS,
        [said(TaskStatus.SUCCESS, 0.5), exited(0, 0.6), Launched(ID, at(1))],
        (SUCCESS, None),
    ),
    "success without an exit": (NEW, [said(TaskStatus.SUCCESS, 1), 30.9], (RUNNING, None)),
    "and no exit for long": (NEW, [said(TaskStatus.SUCCESS, 1), 31], (SUCCESS, None)),
    # its engine does not respond
    "killed with its engine": (NEW, [silent(10), exited(137, 12)], (FAILED, "ENGINE_DOWN")),
    "ended with its engine": (NEW, [silent(10), exited(143, 12)], (FAILED, "ENGINE_DOWN")),
    "nobody knows how": (NEW, [silent(10), exited(255, 12)], (FAILED, "ENGINE_DOWN")),
    "seen to be gone only then": (NEW, [silent(20), exited(143, 8)], (FAILED, "ENGINE_DOWN")),
    "ended long before": (NEW, [silent(60), exited(143, 5)], (FAILED, "EXIT_143")),
    "its own failure": (NEW, [silent(10), exited(1, 12)], (FAILED, "EXIT_1")),
    "its own memory": (NEW, [silent(10), exited(137, 12, oom=True)], (FAILED, "OOM_KILLED")),
    "after it was back": (
        NEW,
        [silent(10), Inspected(ID, at(12)), exited(143, 500)],
        (FAILED, "EXIT_143"),
    ),
    "lived through it": (
        NEW,
        [said(TaskStatus.SUCCESS), silent(10), exited(0, 12)],
        (SUCCESS, None),
    ),
    "its storage is full, it reports": (
        NEW,
        [said(TaskStatus.FAILED, cause=FULL)],
        (FAILED, "STORAGE_FULL"),
    ),
    "its storage is full, it ends": (
        NEW,
        [replace(exited(3), cause=FULL)],
        (FAILED, "STORAGE_FULL"),
    ),
    "out of memory at a full storage": (
        NEW,
        [replace(exited(137, oom=True), cause=FULL)],
        (FAILED, "OOM_KILLED"),
    ),
    "silent, not yet for long": (NEW, [silent(10), silent(40), 69.9], (RUNNING, None)),
    "silent for long": (NEW, [silent(10), silent(40), 70], (FAILED, "ENGINE_DOWN")),
    "reported meanwhile": (NEW, [silent(1), said(TaskStatus.SUCCESS, 65), 70], (RUNNING, None)),
    "and no exit": (NEW, [silent(1), said(TaskStatus.SUCCESS, 65), 95], (SUCCESS, None)),
    "it may not go on": (
        NEW,
        [Broken(ID, Failure(reason), at(1)) for reason in ("FULL", "OTHER")],
        (FAILED, "FULL"),
    ),
}


@pytest.mark.parametrize(("run", "steps", "expected"), ENDS.values(), ids=ENDS)
def test_how_a_run_ends(
    run: Run,
    steps: Sequence[Event | float],
    expected: tuple[RunStatus, str | None],
):
    run = only(play(a_local_job(run), *steps))
    assert (run.status, run.failure.reason if run.failure else None) == expected
    assert run.failure is None or (run.failure.node, run.failure.role, run.failure.task) == (
        "n1",
        "guest",
        "a",
    )


# ---------------------------------------------------------------- reports and exits, whichever comes first

MEMORY = {"memory": 2.0e8}
EXITS = {
    "0": (0, False),
    "1": (1, False),
    "137": (137, False),
    "143": (143, False),
    "oom": (137, True),
}
REPORTS = (None, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


def expected(
    report: TaskStatus | None,
    code: int,
    oom: bool,
    missing: bool,
) -> str:
    """The rule once more: what a run that was launched and not stopped ends as."""
    if report is TaskStatus.FAILED:
        return "REPORTED_FAILED"
    if oom:
        return "OOM_KILLED"
    if code != 0:
        return f"EXIT_{code}"
    return "NO_CALLBACK" if missing and report is not TaskStatus.SUCCESS else "SUCCESS"


@pytest.mark.parametrize(("report", "end", "missing"), list(product(REPORTS, EXITS, [False, True])))
def test_a_report_then_an_exit(
    report,
    end,
    missing,
):
    code, oom = EXITS[end]
    local = play(a_local_job(NEW), *([said(report)] if report is not None else []))
    local = play(local, exited(code, oom=oom, missing=("out",) if missing else ()))
    early = only(local)
    run = only(play(local, 3.0))
    assert (run.failure.reason if run.failure else "SUCCESS") == expected(
        report, code, oom, missing
    )
    assert run.status is (SUCCESS if run.failure is None else FAILED)
    assert run.exit.code == code, "an exit after the end is kept for the record"
    assert run.no_callback is (run.status is SUCCESS and report is not TaskStatus.SUCCESS)
    waits = code == 0 and report in (None, TaskStatus.RUNNING)
    assert early.over is not waits, "only an exit with code 0 and without a report is waited for"


@pytest.mark.parametrize(
    ("report", "end", "missing"), list(product(REPORTS[1:], EXITS, [False, True]))
)
def test_an_exit_then_a_report_within_the_grace(
    report,
    end,
    missing,
):
    code, oom = EXITS[end]
    local = play(a_local_job(NEW), exited(code, oom=oom, missing=("out",) if missing else ()))
    run = only(play(local, said(report, 2.5), 4.0))
    if code == 0:
        assert (run.failure.reason if run.failure else "SUCCESS") == expected(
            report, 0, False, missing
        )
    else:
        assert run.failure.reason == ("OOM_KILLED" if oom else f"EXIT_{code}"), (
            "it was over when the report came"
        )


def test_a_node_may_count_silence_as_a_failure():
    strict = replace(TIMING, silence_fails=True)
    local = play(a_local_job(NEW), exited(0, 2))
    run = only(step(local, at(3), strict)[0])
    assert (run.status, run.failure.reason, run.no_callback) == (FAILED, "NO_CALLBACK", False)
    assert (
        only(step(play(local, said(TaskStatus.SUCCESS, 2.5)), at(4), strict)[0]).status is SUCCESS
    )


@pytest.mark.parametrize(
    ("events", "words", "code"),
    [
        ([exited(3)], "exit code 3", 3),
        ([exited(137)], "exit code 137 by signal 9", 137),
        ([said(TaskStatus.SUCCESS), exited(3)], "exit code 3 after it reported SUCCESS", 3),
        (
            [said(TaskStatus.RUNNING, result_code="7", result_message="bad key"), exited(3)],
            "result code 7: bad key",
            3,
        ),
        ([said(TaskStatus.RUNNING, result_code="17"), exited(3)], "; result code 17", 3),
        (
            [said(TaskStatus.RUNNING, result_code="7"), said(TaskStatus.FAILED, 2)],
            "result code 7",
            None,
        ),
        ([said(TaskStatus.FAILED, result_message="no rows")], "no rows", None),
        (
            [said(TaskStatus.FAILED)],
            f"job logs {a_local_job(NEW).id} --task a --party guest.0",
            None,
        ),
        ([exited(0, missing=("data", "model")), 9], "data, model", 0),
        ([exited(0, 1), stopped(1.5)], "stopped", 0),
    ],
)
def test_a_failure_says_what_is_known(
    events,
    words: str,
    code: int | None,
):
    failure = only(play(a_local_job(NEW), *events)).failure
    assert words in failure.message and failure.exit_code == code


@pytest.mark.parametrize(
    ("code", "told"), [(137, True), (134, True), (139, True), (3, False), (143, False)]
)
def test_an_exit_that_may_be_due_to_the_memory_limit_says_so(code, told):
    free, limited = (
        only(play(a_local_job(a_run(status=RUNNING, limits=m)), exited(code))) for m in ({}, MEMORY)
    )
    assert ("memory" in limited.failure.message, "memory" in free.failure.message) == (told, False)


# ---------------------------------------------------------------- the job as a whole


def test_a_failed_report_is_retried_with_backoff_and_given_up_at_last():
    local, now, pauses = a_local_job(a_run(status=SUCCESS, collect=OK)), at(0), []
    while (when := next_due(local)) is not None:
        pauses.append(max((when - now).total_seconds(), 0.0))
        now = max(when, now)
        local, [tell] = step(local, now)
        local = play(local, Done(tell, now, final=False))
    assert len(pauses) == TIMING.tell_tries
    assert pauses == sorted(pauses)
    assert pauses[-1] == TIMING.retry_max


@pytest.mark.parametrize(
    ("runs", "closes"),
    [
        ((), True),
        ((over(collect=OK),), True),
        ((over(),), False),
        ((over(collect=sent()),), False),
        ((over(collect=OK), a_run("b", STOPPING)), False),
        ((over(collect=OK), a_run("b", FAILED, launch=IDLE)), True),
    ],
    ids=[
        "no run",
        "collected",
        "not collected",
        "being collected",
        "one still there",
        "one never launched",
    ],
)
def test_a_job_is_closed_only_after_all_of_it_is_collected(runs, closes):
    assert (Close() in due_commands(a_local_job(*runs, status=JobStatus.FINISHED), 0)) is closes
    assert Close() not in due_commands(a_local_job(*runs), 1000)


def test_a_step_of_the_tidying_up_that_fails_is_noted_once_and_repeated():
    local = play(a_local_job(over(collect=IDLE), status=JobStatus.FINISHED), 0)
    for second, words in ((1, "no space"), (2, "no space"), (3, "engine down")):
        local = play(local, Done(COLLECT, at(second), final=False, message=words))
        assert local.status is JobStatus.FINISHED and COLLECT in due_commands(local, second + 60)
    told = [
        (n.at, n.event, n.detail["message"]) for n in local.notes if n.event == "removing failed"
    ]
    assert told == [
        (at(1), "removing failed", "no space"),
        (at(3), "removing failed", "engine down"),
    ]
    closing = play(
        a_local_job(status=JobStatus.FINISHED), 0, Done(Close(), at(1), final=False, message="away")
    )
    assert [n.event for n in closing.notes] == ["closing failed"] and due_commands(closing, 60) == [
        Close()
    ]


def test_a_close_is_repeated_until_it_is_done_and_then_never():
    local = play(a_local_job(status=JobStatus.FINISHED), 0)
    assert due_commands(local, 11.9) == [] and due_commands(play(local, Restarted(at(1))), 1) == [
        Close()
    ]
    local = play(local, Done(Close(), at(1), final=False))
    assert due_commands(local, 1.2) == [Close()]
    local = play(local, 2, Done(Close(), at(2)))
    late = play(local, Done(Close(), at(3), final=False))
    assert local.closed and late.closed and next_due(late) is None


def test_every_move_of_a_run_is_written_into_the_timeline():
    local = play(
        a_local_job(a_run()), 0, Launched(ID, at(1), "sha256:1"), stopped(2), exited(143, 3)
    )
    moves = ["run LAUNCHING", "run RUNNING", "run STOPPING", "job FINISHED here", "run FAILED"]
    assert [note.event for note in local.notes] == moves
    detail = local.notes[-1].detail
    words = {
        "reason": "STOPPED",
        "task": "a",
        "role": "guest.0",
        "exit_code": 143,
    }
    assert words.items() <= detail.items()
    run = only(local)
    assert (run.started_at, run.ended_at, run.image_digest) == (at(1), at(3), "sha256:1")


@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.READY, JobStatus.RUNNING])
def test_a_stop_of_the_job_ends_it_here_with_how_it_ended(status):
    local = play(a_local_job(status=status), stopped(1))
    final = JobStatus.REJECTED if status is JobStatus.PENDING else JobStatus.FINISHED
    assert (local.status, local.ended_at, local.ending) == (final, at(1), ENDING)


@pytest.mark.parametrize(
    ("runs", "flow", "outcome"),
    [
        ((a_run("a", SUCCESS), a_run("b", SUCCESS)), "a -> b", Outcome.SUCCEEDED),
        ((a_run("a", SUCCESS),), "a -> b", None),
        ((a_run("a", SUCCESS), a_run("b", RUNNING)), "a -> b", None),
        ((a_run("a", FAILED, failure=Failure("EXIT_1")),), "a -> b", Outcome.FAILED),
        ((a_run("a", FAILED, failure=Failure("STOPPED")),), "a", Outcome.STOPPED),
        (
            (a_run("a", FAILED, failure=Failure("EXIT_1")), a_run("a", SUCCESS, attempt=1)),
            "a",
            Outcome.SUCCEEDED,
        ),
        ((), "a", None),
    ],
)
def test_a_stop_without_an_outcome_leaves_the_outcome_to_the_runs(
    runs,
    flow,
    outcome,
):
    local = play(a_local_job(*runs, spec=a_spec(flow)), StopRequested(at(1), None, None, "n2"))
    assert local.status is JobStatus.FINISHED
    assert (local.ending.outcome if local.ending else None) is outcome


@pytest.mark.parametrize(
    ("outcome", "refused", "told"),
    [
        (Outcome.STOPPED, None, (Outcome.STOPPED, "STOPPED")),
        (Outcome.FAILED, None, (Outcome.FAILED, "STOPPED")),
        (Outcome.STOPPED, Failure("APPROVAL_REJECTED"), (Outcome.REJECTED, "APPROVAL_REJECTED")),
        (Outcome.SUCCEEDED, None, None),
    ],
)
def test_the_outcome_of_a_job_may_arrive_after_the_stop(
    outcome,
    refused,
    told,
):
    """Once, and never as a success: what had not succeeded by then was stopped."""
    approval = Approval(T0, at(9), JobStatus.REJECTED, failure=refused) if refused else None
    local = play(replace(a_local_job(), approval=approval), StopRequested(at(1), None, None, "n2"))
    assert local.ending is None
    local = play(
        local, StopRequested(at(2), None, Ending(outcome, at(2), Failure("STOPPED")), "n2")
    )
    ending = local.ending
    assert (None if ending is None else (ending.outcome, ending.failure.reason)) == told
    if told:
        assert play(local, StopRequested(at(3), None, Ending(Outcome.FAILED, at(3)), "n2")) == local


# ---------------------------------------------------------------- at large

EXIT_CODES = st.sampled_from([0, 0, 1, 137])


@st.composite
def _event(
    draw: st.DrawFn,
    run: str,
    seconds: float,
) -> Event:
    now, final = at(seconds), draw(st.booleans())
    exit_ = Exit(
        draw(EXIT_CODES),
        oom_killed=final,
        finished_at=now,
        missing_outputs=draw(st.sampled_from([(), ("x",)])),
    )
    return draw(
        st.sampled_from(
            [
                Launched(run, now),
                Launched(run, now),
                LaunchFailed(run, Failure("ENGINE_DOWN"), now),
                Inspected(run, now),
                Exited(run, exit_, now),
                Gone(run, now),
                Reported(run, draw(st.sampled_from(TaskStatus)), now),
                Done(Collect(run), now, final),
                Done(Tell(run, draw(st.sampled_from(TaskStatus))), now, final),
                Done(StopRun(run, 5.0), now, final),
                Done(Close(), now, final),
                StopRequested(now, frozenset({"a"}) if final else None, ENDING),
                Restarted(now),
            ]
        )
    )


@given(
    st.lists(
        st.sampled_from("ab"),
        min_size=1,
        max_size=2,
        unique=True,
    ),
    st.data(),
)
@REPEATABLE
def test_no_news_whatever_breaks_a_job_or_moves_it_beside_the_tables(tasks, data):
    local, now = a_local_job(*(a_run(task) for task in tasks)), 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 130.0)))
        old = local
        if data.draw(st.booleans()):
            local, actions = step(local, at(now))
            assert not set(actions) & set(due_commands(local, now))
        else:
            local = play(
                local, data.draw(_event(data.draw(st.sampled_from(local.runs)).run_id, now))
            )
        assert old.status is local.status or may(JOB, old.status, local.status)
        for was, run in zip(old.runs, local.runs, strict=True):
            assert run.status in reachable_in_one_write(was.status)
            assert (run.failure is not None) is (run.status is FAILED)
            assert run.over is (run.ended_at is not None) is ended(RUN, run.status)
            if was.over:
                assert (was.status, was.failure, was.ended_at) == (
                    run.status,
                    run.failure,
                    run.ended_at,
                )


# ---------------------------------------------------------------- a scheduling node that is silent

QUERY = QueryScheduler()
ALIVE = SchedulerAlive(at(60))
WATCHED = a_local_job(spec=a_spec("a", {"guest": ("n9",), "host": ("n1",)}))
NO_ANSWER = [726, Done(QUERY, at(727), final=False, message="cannot connect")]
GIVEN_UP = [*NO_ANSWER, 793, Done(QUERY, at(794), final=False, message="cannot connect")]

WATCH: dict[str, tuple[LocalJob, Sequence[Event | float], Mapping[float, list], str]] = {
    "asked after long": (WATCHED, [], {725.9: [], 726: [QUERY]}, ""),
    "asked and not answered": (WATCHED, [726], {737.9: [], 738: [QUERY]}, ""),
    "a sign of life": (WATCHED, [ALIVE], {785.9: [], 786: [QUERY]}, ""),
    "asked once more": (WATCHED, NO_ANSWER, {792.9: [], 793: [QUERY]}, ""),
    "it answers": (
        WATCHED,
        [*NO_ANSWER, 793, Done(QUERY, at(794))],
        {1519.9: [], 1520: [QUERY]},
        "",
    ),
    "it asks": (WATCHED, [*NO_ANSWER, SchedulerAlive(at(730))], {1455.9: [], 1456: [QUERY]}, ""),
    "given up": (WATCHED, GIVEN_UP, {794: [Abandon()]}, ""),
    "and ended": (WATCHED, [*GIVEN_UP, 795], {10_000: [Close()]}, "SCHEDULER_UNREACHABLE"),
    "a new process": (WATCHED, [726, Restarted(at(727))], {727: [QUERY]}, ""),
    "asked after a restart": (WATCHED, [Restarted(at(50))], {49.9: [], 50: [QUERY]}, ""),
    "no answer after a restart": (
        WATCHED,
        [
            s
            for t in (50, 120, 190)
            for s in (Restarted(at(t)), t, Done(QUERY, at(t + 1), final=False, message="no"))
        ],
        {256.9: [], 257: [QUERY]},
        "",
    ),
    "an answer after a restart": (
        WATCHED,
        [Restarted(at(50)), 50, Done(QUERY, at(51))],
        {776.9: [], 777: [QUERY]},
        "",
    ),
    "ended meanwhile": (
        WATCHED,
        [726, stopped(727), Done(QUERY, at(728))],
        {10_000: [Close()]},
        "",
    ),
    "itself": (a_local_job(), [], {10_000: []}, ""),
}


@pytest.mark.parametrize(("local", "steps", "dues", "reason"), WATCH.values(), ids=WATCH)
def test_what_a_silent_scheduling_node_brings(
    local: LocalJob,
    steps,
    dues,
    reason: str,
):
    for status in (JobStatus.PENDING, JobStatus.READY, JobStatus.RUNNING):
        job = play(replace(local, status=status), *steps)
        assert {seconds: due_commands(job, seconds) for seconds in dues} == dues
        failure = job.ending.failure if job.ending else None
        assert (failure.reason if failure else "") == reason
        if failure:
            assert job.ending.outcome is Outcome.STOPPED and failure.node == "n1"
            assert "n9" in failure.message and "cannot connect" in failure.message
            assert job.status is (
                JobStatus.REJECTED if status is JobStatus.PENDING else JobStatus.FINISHED
            )


def test_a_local_stop_is_reported_before_the_states_of_the_runs():
    running = replace(WATCHED, status=JobStatus.RUNNING, runs=(UP,))
    stopped_here = play(running, StoppedHere(at(1), "cannot connect"))
    assert stopped_here.ending is not None and stopped_here.ending.outcome is Outcome.STOPPED
    assert any(
        isinstance(one, StopRun) for one in due_commands(stopped_here, 1)
    ) and AskStop() in due_commands(stopped_here, 1)
    silent = play(stopped_here, 1, Done(AskStop(), at(2), final=False, message="cannot connect"))
    gone = play(silent, *(Gone(run.run_id, at(3)) for run in silent.runs))
    assert not any(
        isinstance(one, Tell) for one in due_commands(gone, 1000)
    ) and AskStop() in due_commands(gone, 1000)
    waits = of_local(gone, RunTiming())
    assert waits is not None and (waits.reason, "n9" in waits.message) == ("CONFIRMING", True)
    assert AskStop() in due_commands(contact.retry_reports(gone, "n9"), 2)
    told = play(gone, 1000, Done(AskStop(), at(1001)))
    assert any(
        isinstance(one, Tell) for one in due_commands(told, 1001)
    ) and AskStop() not in due_commands(told, 10_000)


def test_news_of_the_scheduling_node_is_kept_coarsely():
    assert [contact.worth_noting(WATCHED, at(t), 100) for t in (9, 11)] == [False, True]
    asking = play(WATCHED, *NO_ANSWER)
    assert contact.worth_noting(replace(asking, last_contact=at(727)), at(728), 100)
    events = [note.event for note in play(asking, SchedulerAlive(at(730))).notes]
    assert events == ["scheduling node does not respond", "scheduling node responds"]


# ---------------------------------------------------------------- several gateways


def test_runs_of_a_lost_gateway_fail_unless_they_had_not_started():
    waiting, running = a_run("a", owner="lost"), a_run("b", RUNNING, owner="lost")
    stopping = a_run("c", STOPPING, owner="lost", stop_at=at(0))
    over, mine = a_run("d", SUCCESS, owner="lost"), a_run("e", RUNNING, owner="me")
    local = a_local_job(waiting, running, stopping, over, mine, home="lost")
    local = play(local, OwnerLost("lost", "me", at(5)))
    a, b, c, d, e = local.runs
    assert (a, d, e, local.home) == (replace(waiting, owner="me"), over, mine, "me")
    assert (b.failure.reason, c.failure.reason) == ("CHANNEL_LOST", "STOPPED")
    assert play(local, OwnerLost("lost", "me", at(6))) == local


def test_only_the_home_gateway_closes_a_job_without_its_containers():
    left = a_run("a", FAILED, owner="lost", launch=OK)
    local = a_local_job(left, status=JobStatus.FINISHED, home="me")
    assert Close() in machine.plan(local, at(9), owner="me")
    assert Close() not in machine.plan(local, at(9), owner="third")
    assert machine.plan(local, at(9), owner="lost") == [
        Collect(left.run_id),
        Tell(left.run_id, TaskStatus.FAILED),
    ]
