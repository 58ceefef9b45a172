"""A job with one run as the execution rules take it on: what is due is decided, reports and exits come in."""

from gateway.domain.execution.machine import apply, plan, step
from gateway.domain.execution.messages import Event, Exited, Reported, StopRequested
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Ending
from gateway.domain.states import Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import T0, at

TIMING = RunTiming()
ID = "run-a-guest.0"
WAITING, LAUNCHING, RUNNING = RunStatus.WAITING, RunStatus.LAUNCHING, RunStatus.RUNNING
STOPPING, SUCCESS, FAILED = RunStatus.STOPPING, RunStatus.SUCCESS, RunStatus.FAILED
ENDING = Ending(Outcome.STOPPED, T0)


def after(local: LocalJob, *steps: Event | float) -> LocalJob:
    """Return the job after events; a number is the time at which what is due is begun."""
    for one in steps:
        local = step(local, at(one))[0] if isinstance(one, float | int) else apply(local, one)
    return local


def only(local: LocalJob) -> Run:
    [run] = local.runs
    return run


def due(local: LocalJob, seconds: float = 0.0) -> list:
    return plan(local, at(seconds))


def said(status: TaskStatus, seconds: float = 1.0, **more) -> Reported:
    return Reported(ID, status, at(seconds), **more)


def exited(code: int = 0, seconds: float = 2.0, *, oom: bool = False, missing: tuple[str, ...] = ()) -> Exited:
    signal = code - 128 if code > 128 else None
    return Exited(ID, Exit(code, signal, oom, T0, at(seconds), missing), at(seconds))


def stopped(seconds: float = 1.0, *tasks: str) -> StopRequested:
    return StopRequested(at(seconds), frozenset(tasks) or None, ENDING, "n2")
