"""Trials: tests in several steps, such as that of a route, with the result of each step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Result(StrEnum):
    """The result of a step; a warning does not make the trial fail."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Step:
    """One step of a trial; ``cause`` and ``remedy`` are empty for a step that went well."""

    name: str  # "" before `Trial.take`
    result: Result
    found: str = ""  # such as an address or a latency
    cause: str = ""
    remedy: str = ""
    seconds: float = 0.0  # duration


# Is called with each step of a trial once it was taken.
Observe = Callable[[Step], object]


def ignore(step: Step) -> None:
    """Observe nothing."""


def ok(finding: str = "") -> Step:
    """Return a step that went well."""
    return Step("", Result.OK, finding)


def skipped(finding: str = "") -> Step:
    """Return a step that was not taken."""
    return Step("", Result.SKIPPED, finding)


def warning(
    cause: str,
    remedy: str,
    finding: str = "",
) -> Step:
    """Return a step that went well, with something to improve."""
    return Step("", Result.WARNING, finding, cause, remedy)


def failed(
    cause: str,
    remedy: str,
    finding: str = "",
) -> Step:
    """Return a step that failed."""
    return Step("", Result.FAILED, finding, cause, remedy)


class Stopped(Exception):
    """A step failed on which the following steps depend; these are not taken."""


@dataclass
class Trial:
    """The steps of a trial that were taken so far."""

    names: Sequence[str]  # of all steps, in their order
    steps: list[Step] = field(default_factory=list)
    observe: Observe = ignore

    def take(
        self,
        name: str,
        work: Callable[[], Step],
        *,
        needed: bool = True,
    ) -> Step:
        """Take a step, name it and measure its duration.

        ``needed``: the following steps depend on this one. Raises `Stopped` if such a step failed.
        """
        start = time.monotonic()
        outcome = work()
        seconds = round(time.monotonic() - start, 4)
        step = replace(outcome, name=name, seconds=seconds)
        self.steps.append(step)
        self.observe(step)
        if needed and step.result is Result.FAILED:
            raise Stopped(name)
        return step

    def all_steps(self) -> list[Step]:
        """Return all steps in their order, with the result SKIPPED for a step not taken."""
        by_name = {step.name: step for step in self.steps}
        return [by_name.get(name) or Step(name, Result.SKIPPED) for name in self.names]


def has_passed(steps: Sequence[Step]) -> bool:
    """Return whether no step failed; warnings and skipped steps do not count as failures."""
    return all(step.result is not Result.FAILED for step in steps)
