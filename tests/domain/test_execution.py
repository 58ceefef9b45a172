"""The life of a run at its node, rule by rule. `test_execution_world` plays the rules at large."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.execution.machine import step
from gateway.domain.execution.messages import (
    Broken,
    Close,
    Collect,
    Command,
    Conclude,
    Done,
    Event,
    Exited,
    Gone,
    Inspected,
    Launched,
    LaunchFailed,
    OwnerLost,
    Reported,
    Restarted,
    StopRequested,
    StopRun,
    Tell,
)
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Failure
from gateway.domain.states import JOB, RUN, RunStatus, TaskStatus, ended, may
from tests.builders import OK, a_local_job, a_run, at, sent
from tests.domain.execution_world import reachable_in_one_write
from tests.domain.run_events import (
    COLLECT,
    ENGINE_DOWN,
    LAUNCH,
    LAUNCHING_RUN,
    NO_IMAGE,
    PROBE,
    RUN_ID,
    RUNNING_RUN,
    STOP,
    STOPPED,
    STORAGE_FULL,
    TELL_FAILED,
    TELL_RUNNING,
    TOLD_RUNNING_RUN,
    TOLD_STOPPING_RUN,
    a_successful_run,
    engine_silent,
    exit_run,
    failure_reason,
    only_run,
    report_run,
    request_stop,
)
from tests.domain.script import due_at_each, due_commands, play
from tests.domain.strategies import REPEATABLE


@dataclass(frozen=True)
class DueCase:
    """A run, steps of its job, and the commands that are due afterwards, by second."""

    run: Run
    due: Mapping[float, Sequence[Command]]
    steps: Sequence[Event | float] = ()


DUE: dict[str, DueCase] = {
    "a new run is launched": DueCase(
        run=a_run(),
        due={0: [LAUNCH]},
    ),
    "a launch without a response is repeated": DueCase(
        run=a_run(),
        steps=[0],
        due={
            0: [],
            119.9: [],
            120: [LAUNCH],
        },
    ),
    "a running container is probed and reported": DueCase(
        run=LAUNCHING_RUN,
        steps=[Launched(RUN_ID, at(1), "sha256:1")],
        due={
            1: [TELL_RUNNING],
            6: [PROBE, TELL_RUNNING],
        },
    ),
    "a probe is not repeated while it is under way": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[5],
        due={9.9: []},
    ),
    "a probe without news is repeated": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[
            5,
            Inspected(RUN_ID, at(7)),
        ],
        due={
            9.9: [],
            10: [PROBE],
        },
    ),
    "an old container is probed less often": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[
            200,
            Inspected(RUN_ID, at(201)),
        ],
        due={
            259.9: [],
            260: [PROBE],
        },
    ),
    "a container is probed every minute at least": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[
            9000,
            Inspected(RUN_ID, at(9001)),
        ],
        due={
            9059.9: [],
            9060: [PROBE],
        },
    ),
    "a failed launch is reported": DueCase(
        run=LAUNCHING_RUN,
        steps=[LaunchFailed(RUN_ID, NO_IMAGE, at(1))],
        due={1: [COLLECT, TELL_FAILED]},
    ),
    "a launch is repeated while the engine is down": DueCase(
        run=a_run(),
        steps=[
            0,
            LaunchFailed(RUN_ID, ENGINE_DOWN, at(1)),
        ],
        due={
            1.1: [],
            1.2: [LAUNCH],
        },
    ),
    "a stop ends the launch at an engine that is down": DueCase(
        run=a_run(),
        steps=[
            0,
            LaunchFailed(RUN_ID, ENGINE_DOWN, at(1)),
            request_stop(1.1, "a"),
        ],
        due={2: [COLLECT, TELL_FAILED]},
    ),
    "a run given up with its gateway starts after all": DueCase(
        run=a_run(
            owner="frozen",
            status=RunStatus.LAUNCHING,
            launch=sent(0),
        ),
        steps=[
            OwnerLost("frozen", "me", at(9)),
            10,
            Done(COLLECT, at(10)),
            Launched(RUN_ID, at(10)),
        ],
        due={10: [COLLECT]},
    ),
    "a collect without a response is repeated": DueCase(
        run=a_successful_run(),
        steps=[0],
        due={
            0: [],
            16.9: [],
            17: [COLLECT],
        },
    ),
    "a failed collect is repeated": DueCase(
        run=a_successful_run(),
        steps=[
            0,
            Done(
                COLLECT,
                at(1),
                final=False,
                message="engine down",
            ),
        ],
        due={1.2: [COLLECT]},
    ),
    "a finished collect is not repeated": DueCase(
        run=a_successful_run(),
        steps=[
            0,
            Done(COLLECT, at(2)),
            Done(COLLECT, at(3), final=False),
        ],
        due={1000: []},
    ),
    "a launch is not reported": DueCase(
        run=a_run(
            status=RunStatus.LAUNCHING,
            launch=sent(0),
        ),
        due={0: []},
    ),
    "newer news follows a report under way": DueCase(
        run=RUNNING_RUN,
        steps=[
            0,
            report_run(TaskStatus.FAILED, 1),
        ],
        due={1: [COLLECT, TELL_FAILED]},
    ),
    "older news is reported while newer news waits": DueCase(
        run=RUNNING_RUN,
        steps=[
            0,
            report_run(TaskStatus.FAILED, 1),
            1,
            Done(TELL_RUNNING, at(2)),
        ],
        due={2: []},
    ),
    "a late failure of an old report does not matter": DueCase(
        run=RUNNING_RUN,
        steps=[
            0,
            report_run(TaskStatus.FAILED, 1),
            1,
            Done(COLLECT, at(2)),
            Done(TELL_FAILED, at(3)),
            Done(TELL_RUNNING, at(4), final=False),
        ],
        due={1000: []},
    ),
    "an exit without a report is decided on after a grace": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[exit_run(0, 2)],
        due={
            2.9: [],
            3: [Conclude(RUN_ID)],
            100: [Conclude(RUN_ID)],
        },
    ),
    "a broken connection is probed soon": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[engine_silent(0.5), engine_silent(1.5), engine_silent(4.5)],
        due={
            4.9: [],
            5: [PROBE],
        },
    ),
    "a connection that breaks after a probe is probed later": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[
            engine_silent(0.5),
            Inspected(RUN_ID, at(5)),
            engine_silent(5.5),
        ],
        due={
            9.9: [],
            10: [PROBE],
        },
    ),
    # ---- stops
    "a stop before the launch is reported": DueCase(
        run=a_run(),
        steps=[request_stop(1, "a")],
        due={1: [TELL_FAILED]},
    ),
    "a stop during the launch waits for the start": DueCase(
        run=LAUNCHING_RUN,
        steps=[
            request_stop(1, "a"),
            Launched(RUN_ID, at(2)),
        ],
        due={2: [STOP, TELL_RUNNING]},
    ),
    "a stop of a running container": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[request_stop(1)],
        due={1: [STOP]},
    ),
    "a stop without an effect is repeated": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[request_stop(1), 1],
        due={
            17.9: [],
            18: [STOP],
        },
    ),
    "a failed stop is repeated soon": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[
            request_stop(1),
            1,
            Done(STOP, at(2), final=False),
        ],
        due={2.2: [STOP]},
    ),
    "a stopped container that still runs is probed": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[
            request_stop(1),
            1,
            Inspected(RUN_ID, at(2)),
            Done(STOP, at(2)),
        ],
        due={
            6.9: [],
            7: [PROBE],
        },
    ),
    # ---- a new process
    "a new process probes a running container": DueCase(
        run=TOLD_RUNNING_RUN,
        steps=[Restarted(at(1))],
        due={1: [PROBE]},
    ),
    "a new process probes a stopped container": DueCase(
        run=replace(TOLD_STOPPING_RUN, stop=OK),
        steps=[Restarted(at(1))],
        due={1: [PROBE]},
    ),
}


@pytest.mark.parametrize("case", DUE.values(), ids=DUE)
def test_commands_for_a_run_are_due_at_these_moments(case: DueCase):
    local = play(a_local_job(case.run), *case.steps)

    assert due_at_each(local, case.due) == case.due


# Events that change nothing in some states.
LATE_LAUNCHES = [
    Launched(RUN_ID, at(9)),
    LaunchFailed(RUN_ID, NO_IMAGE, at(9)),
]
OTHER_RUNS = [
    Reported("run-x", TaskStatus.FAILED, at(1)),
    Gone("run-x", at(1)),
]
ANY_NEWS = [
    engine_silent(86_400),
    report_run(TaskStatus.FAILED),
    exit_run(1),
    Gone(RUN_ID, at(3)),
    Inspected(RUN_ID, at(3)),
    request_stop(3, "a"),
]
EVERY_REPORT = [report_run(status, 2) for status in TaskStatus]

UNCHANGED: dict[str, tuple[LocalJob, Sequence[Event]]] = {
    "waiting": (a_local_job(a_run()), [*LATE_LAUNCHES, exit_run(0), Gone(RUN_ID, at(1))]),
    "launching": (
        a_local_job(LAUNCHING_RUN),
        [Gone(RUN_ID, at(1))],
    ),
    "running": (a_local_job(RUNNING_RUN), [*LATE_LAUNCHES, *OTHER_RUNS]),
    "stopping": (a_local_job(a_run(status=RunStatus.STOPPING)), LATE_LAUNCHES),
    "over": (a_local_job(a_successful_run(exit=Exit(0))), [*LATE_LAUNCHES, *ANY_NEWS]),
    "failed": (
        a_local_job(a_run(status=RunStatus.FAILED, exit=Exit(0))),
        [*LATE_LAUNCHES, *ANY_NEWS],
    ),
    "exited": (
        play(a_local_job(RUNNING_RUN), exit_run(0)),
        [Gone(RUN_ID, at(3))],
    ),
    "reported": (
        play(a_local_job(RUNNING_RUN), report_run(TaskStatus.SUCCESS)),
        EVERY_REPORT,
    ),
    "reported as failed": (
        play(a_local_job(RUNNING_RUN), report_run(TaskStatus.FAILED)),
        EVERY_REPORT,
    ),
}


@pytest.mark.parametrize(
    ("local", "events"),
    UNCHANGED.values(),
    ids=UNCHANGED,
)
def test_late_and_foreign_news_changes_nothing(local: LocalJob, events: Sequence[Event]):
    for event in events:
        assert play(local, event) == local, event


@dataclass(frozen=True)
class EndCase:
    """A run, steps of its job, and the run's state afterwards, with the reason of its failure."""

    run: Run
    steps: Sequence[Event | float]
    status: RunStatus
    reason: str = ""


ENDS: dict[str, EndCase] = {
    "stopped, and its launch fails": EndCase(
        run=LAUNCHING_RUN,
        steps=[
            request_stop(1, "a"),
            LaunchFailed(RUN_ID, NO_IMAGE, at(2)),
        ],
        status=RunStatus.FAILED,
        reason="IMAGE_NOT_FOUND",
    ),
    "stopped while it waits": EndCase(
        run=a_run(),
        steps=[request_stop(1, "a")],
        status=RunStatus.FAILED,
        reason="STOPPED",
    ),
    "its engine is down for a minute": EndCase(
        run=a_run(),
        steps=[
            0,
            LaunchFailed(RUN_ID, ENGINE_DOWN, at(1)),
            2,
            LaunchFailed(RUN_ID, ENGINE_DOWN, at(60.9)),
            62,
            LaunchFailed(RUN_ID, ENGINE_DOWN, at(62)),
        ],
        status=RunStatus.FAILED,
        reason="ENGINE_DOWN",
    ),
    "its engine comes back": EndCase(
        run=a_run(),
        steps=[
            0,
            LaunchFailed(RUN_ID, ENGINE_DOWN, at(1)),
            2,
            Launched(RUN_ID, at(3)),
            report_run(TaskStatus.SUCCESS, 62),
            exit_run(0, 62),
        ],
        status=RunStatus.SUCCESS,
    ),
    "ended before its launch was confirmed, and stopped": EndCase(
        run=LAUNCHING_RUN,
        steps=[
            exit_run(0, 0.5),
            request_stop(1, "a"),
            Launched(RUN_ID, at(2)),
        ],
        status=RunStatus.FAILED,
        reason="STOPPED",
    ),
    "stopped, and exits with 0 after a success": EndCase(
        run=RUNNING_RUN,
        steps=[
            request_stop(1),
            report_run(TaskStatus.SUCCESS, 2),
            exit_run(0, 3),
        ],
        status=RunStatus.FAILED,
        reason="STOPPED",
    ),
    "stopped by a signal": EndCase(
        run=RUNNING_RUN,
        steps=[
            request_stop(1),
            exit_run(143, 3),
        ],
        status=RunStatus.FAILED,
        reason="STOPPED",
    ),
    "stopped and gone": EndCase(
        run=RUNNING_RUN,
        steps=[
            request_stop(1),
            Gone(RUN_ID, at(3)),
        ],
        status=RunStatus.FAILED,
        reason="STOPPED",
    ),
    "stopped after its exit": EndCase(
        run=RUNNING_RUN,
        steps=[
            exit_run(0, 1),
            request_stop(1.5),
        ],
        status=RunStatus.FAILED,
        reason="STOPPED",
    ),
    "removed by somebody": EndCase(
        run=RUNNING_RUN,
        steps=[Gone(RUN_ID, at(1))],
        status=RunStatus.FAILED,
        reason="GONE",
    ),
    "reported during its launch": EndCase(
        run=LAUNCHING_RUN,
        steps=[
            report_run(TaskStatus.SUCCESS, 0.5),
            exit_run(0, 0.6),
        ],
        status=RunStatus.LAUNCHING,
    ),
    "reported during its launch, which is confirmed": EndCase(
        run=LAUNCHING_RUN,
        steps=[
            report_run(TaskStatus.SUCCESS, 0.5),
            exit_run(0, 0.6),
            Launched(RUN_ID, at(1)),
        ],
        status=RunStatus.SUCCESS,
    ),
    "reported success, no exit yet": EndCase(
        run=RUNNING_RUN,
        steps=[
            report_run(TaskStatus.SUCCESS, 1),
            30.9,
        ],
        status=RunStatus.RUNNING,
    ),
    "reported success, no exit for long": EndCase(
        run=RUNNING_RUN,
        steps=[
            report_run(TaskStatus.SUCCESS, 1),
            31,
        ],
        status=RunStatus.SUCCESS,
    ),
    # ---- its engine does not respond
    "killed with its engine": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(10),
            exit_run(137, 12),
        ],
        status=RunStatus.FAILED,
        reason="ENGINE_DOWN",
    ),
    "terminated with its engine": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(10),
            exit_run(143, 12),
        ],
        status=RunStatus.FAILED,
        reason="ENGINE_DOWN",
    ),
    "unknown exit code after a silence of its engine": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(10),
            exit_run(255, 12),
        ],
        status=RunStatus.FAILED,
        reason="ENGINE_DOWN",
    ),
    "end seen after a silence of its engine": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(20),
            exit_run(143, 8),
        ],
        status=RunStatus.FAILED,
        reason="ENGINE_DOWN",
    ),
    "ended long before the silence of its engine": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(60),
            exit_run(143, 5),
        ],
        status=RunStatus.FAILED,
        reason="EXIT_143",
    ),
    "failed by itself while its engine was silent": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(10),
            exit_run(1, 12),
        ],
        status=RunStatus.FAILED,
        reason="EXIT_1",
    ),
    "out of memory while its engine was silent": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(10),
            exit_run(137, 12, oom=True),
        ],
        status=RunStatus.FAILED,
        reason="OOM_KILLED",
    ),
    "terminated long after its engine was back": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(10),
            Inspected(RUN_ID, at(12)),
            exit_run(143, 500),
        ],
        status=RunStatus.FAILED,
        reason="EXIT_143",
    ),
    "succeeded while its engine was silent": EndCase(
        run=RUNNING_RUN,
        steps=[
            report_run(TaskStatus.SUCCESS),
            engine_silent(10),
            exit_run(0, 12),
        ],
        status=RunStatus.SUCCESS,
    ),
    "its storage is full, by its report": EndCase(
        run=RUNNING_RUN,
        steps=[report_run(TaskStatus.FAILED, cause=STORAGE_FULL)],
        status=RunStatus.FAILED,
        reason="STORAGE_FULL",
    ),
    "its storage is full, by its exit": EndCase(
        run=RUNNING_RUN,
        steps=[exit_run(3, cause=STORAGE_FULL)],
        status=RunStatus.FAILED,
        reason="STORAGE_FULL",
    ),
    "out of memory at a full storage": EndCase(
        run=RUNNING_RUN,
        steps=[exit_run(137, oom=True, cause=STORAGE_FULL)],
        status=RunStatus.FAILED,
        reason="OOM_KILLED",
    ),
    "its engine is silent for a short time": EndCase(
        run=RUNNING_RUN,
        steps=[engine_silent(10), engine_silent(40), 69.9],
        status=RunStatus.RUNNING,
    ),
    "its engine is silent for long": EndCase(
        run=RUNNING_RUN,
        steps=[engine_silent(10), engine_silent(40), 70],
        status=RunStatus.FAILED,
        reason="ENGINE_DOWN",
    ),
    "its engine is silent, but it reports": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(1),
            report_run(TaskStatus.SUCCESS, 65),
            70,
        ],
        status=RunStatus.RUNNING,
    ),
    "its engine is silent, no exit after its report": EndCase(
        run=RUNNING_RUN,
        steps=[
            engine_silent(1),
            report_run(TaskStatus.SUCCESS, 65),
            95,
        ],
        status=RunStatus.SUCCESS,
    ),
    "ended by the gateway": EndCase(
        run=RUNNING_RUN,
        steps=[
            Broken(RUN_ID, Failure("FULL"), at(1)),
            Broken(RUN_ID, Failure("OTHER"), at(1)),
        ],
        status=RunStatus.FAILED,
        reason="FULL",
    ),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_a_run_ends_for_the_right_reason(case: EndCase):
    run = only_run(play(a_local_job(case.run), *case.steps))

    assert (run.status, failure_reason(run)) == (case.status, case.reason)
    if run.failure is not None:
        assert (run.failure.node, run.failure.role, run.failure.task) == ("n1", "guest", "a")


# ---------------------------------------------------------------- at large


@st.composite
def events(
    draw: st.DrawFn,
    run_id: str,
    seconds: float,
) -> Event:
    """Draw any event of a run, or of the job with the task a."""
    now = at(seconds)
    flag = draw(st.booleans())
    status = draw(st.sampled_from(TaskStatus))
    exit_ = Exit(
        draw(st.sampled_from([0, 0, 1, 137])),
        oom_killed=flag,
        finished_at=now,
        missing_outputs=draw(st.sampled_from([(), ("x",)])),
    )
    candidates: list[Event] = [
        Launched(run_id, now),
        Launched(run_id, now),
        LaunchFailed(run_id, Failure("ENGINE_DOWN"), now),
        Inspected(run_id, now),
        Exited(run_id, exit_, now),
        Gone(run_id, now),
        Reported(run_id, status, now),
        Done(Collect(run_id), now, flag),
        Done(Tell(run_id, status), now, flag),
        Done(StopRun(run_id, 5.0), now, flag),
        Done(Close(), now, flag),
        StopRequested(now, frozenset({"a"}) if flag else None, STOPPED),
        Restarted(now),
    ]
    return draw(st.sampled_from(candidates))


TASKS = st.lists(
    st.sampled_from("ab"),
    min_size=1,
    max_size=2,
    unique=True,
)


@given(TASKS, st.data())
@REPEATABLE
def test_no_news_breaks_a_job_or_moves_it_beside_the_tables(tasks, data):
    local = a_local_job(*(a_run(task) for task in tasks))
    now = 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 130.0)))
        old = local
        if data.draw(st.booleans()):
            local, actions = step(local, at(now))
            assert not set(actions) & set(due_commands(local, now))
        else:
            run = data.draw(st.sampled_from(local.runs))
            local = play(
                local,
                data.draw(events(run.run_id, now)),
            )

        assert old.status is local.status or may(JOB, old.status, local.status)
        for old_run, run in zip(old.runs, local.runs, strict=True):
            check_run_move(old_run, run)


def check_run_move(old: Run, new: Run) -> None:
    """Compare a run before and after one step."""
    assert new.status in reachable_in_one_write(old.status)
    assert (new.failure is not None) is (new.status is RunStatus.FAILED)
    assert new.over is (new.ended_at is not None) is ended(RUN, new.status)
    if old.over:
        assert (old.status, old.failure, old.ended_at) == (
            new.status,
            new.failure,
            new.ended_at,
        )
