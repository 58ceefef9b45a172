"""What a trial of something finds, step by step: each with its result, its time, the cause and what to do."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial


class Result(StrEnum):
    """How a step ended; a warning does not make the trial a failed one."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Step:
    """One step of a trial. ``cause`` and ``remedy`` are empty where it went well."""

    name: str
    result: Result
    found: str = ""
    cause: str = ""
    remedy: str = ""
    seconds: float = 0.0


ok, skipped = (partial(Step, "", result) for result in (Result.OK, Result.SKIPPED))


def warning(
    cause: str,
    remedy: str,
    found: str = "",
) -> Step:
    """Return a step that went well, with what should be better."""
    return Step("", Result.WARNING, found, cause, remedy)


def failed(
    cause: str,
    remedy: str,
    found: str = "",
) -> Step:
    """Return a step that went wrong."""
    return Step("", Result.FAILED, found, cause, remedy)


class Stopped(Exception):
    """A step failed on which the following ones depend."""


@dataclass
class Trial:
    """Collects steps; what comes after a step that stops the trial is skipped."""

    names: Sequence[str]
    steps: list[Step] = field(default_factory=list)

    def take(
        self,
        name: str,
        work: Callable[[], Step],
        *,
        needed: bool = True,
    ) -> Step:
        """Do one step and keep its time. Raises `Stopped` if it failed and what follows needs it."""
        began = time.monotonic()
        step = replace(work(), seconds=round(time.monotonic() - began, 4))
        self.steps.append(step)
        if needed and step.result is Result.FAILED:
            raise Stopped(name)
        return step

    def finished(self) -> list[Step]:
        """Return all steps in their order, those that were not taken as skipped."""
        taken = {step.name: step for step in self.steps}
        return [taken.get(name) or Step(name, Result.SKIPPED) for name in self.names]


def good(steps: Sequence[Step]) -> bool:
    """Tell whether no step failed."""
    return all(step.result is not Result.FAILED for step in steps)
