"""Builders for the runs of one task and the events in the life of its container."""

from typing import Any

from gateway.domain.execution.messages import (
    Collect,
    EngineSilent,
    Exited,
    Launch,
    Probe,
    Reported,
    StopRequested,
    StopRun,
    Tell,
)
from gateway.domain.run import Exit, LocalJob, Reporting, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import T0, a_run, at

TIMING = RunTiming()
RUN_ID = "run-a-guest.0"
STOPPED = Ending(Outcome.STOPPED, T0)

# Commands for the run.
LAUNCH = Launch(RUN_ID)
PROBE = Probe(RUN_ID)
COLLECT = Collect(RUN_ID)
STOP = StopRun(RUN_ID, TIMING.stop_grace)
TELL_RUNNING = Tell(RUN_ID, TaskStatus.RUNNING)
TELL_FAILED = Tell(RUN_ID, TaskStatus.FAILED)

# Failures.
NO_IMAGE = Failure("IMAGE_NOT_FOUND", "no such image")
STORAGE_FULL = Failure("STORAGE_FULL", "it is full")
ENGINE_DOWN = Failure("ENGINE_DOWN", "the cluster does not answer")

# The run in its states; a "told" one has reported RUNNING to the scheduling node.
TOLD_RUNNING = Reporting(TaskStatus.RUNNING)
LAUNCHING_RUN = a_run(status=RunStatus.LAUNCHING)
RUNNING_RUN = a_run(status=RunStatus.RUNNING)
TOLD_RUNNING_RUN = a_run(status=RunStatus.RUNNING, reporting=TOLD_RUNNING)
TOLD_STOPPING_RUN = a_run(status=RunStatus.STOPPING, reporting=TOLD_RUNNING)


def a_successful_run(**changes: Any) -> Run:
    """Build a run whose success the scheduling node knows."""
    return a_run(
        status=RunStatus.SUCCESS,
        reporting=Reporting(TaskStatus.SUCCESS),
        **changes,
    )


def only_run(local: LocalJob) -> Run:
    """Return the run of a job that has one."""
    [run] = local.runs
    return run


def failure_reason(run: Run) -> str:
    """Return the reason of the run's failure; empty without a failure."""
    return run.failure.reason if run.failure else ""


def report_run(
    status: TaskStatus,
    seconds: float = 1.0,
    **fields: Any,
) -> Reported:
    """The container reports its state."""
    return Reported(RUN_ID, status, at(seconds), **fields)


def exit_run(
    code: int = 0,
    seconds: float = 2.0,
    *,
    oom: bool = False,
    missing: tuple[str, ...] = (),
    cause: Failure | None = None,
) -> Exited:
    """The container ends; ``missing`` are outputs that it has not written."""
    # A shell adds 128 to the number of the signal that ended a process.
    signal = code - 128 if code > 128 else None
    exit_ = Exit(code, signal, oom, T0, at(seconds), missing)
    return Exited(
        RUN_ID,
        exit_,
        at(seconds),
        cause=cause,
    )


def request_stop(seconds: float = 1.0, *tasks: str) -> StopRequested:
    """The scheduling node stops these tasks, or without any the whole job."""
    return StopRequested(at(seconds), frozenset(tasks) or None, STOPPED, "n2")


def engine_silent(seconds: float) -> EngineSilent:
    """The engine does not answer for the run."""
    return EngineSilent(RUN_ID, at(seconds))
