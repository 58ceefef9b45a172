"""How long a job and its tasks may take, and how often a task that failed is begun again.

All of it are extensions in ``config.job_params.common``: ``timeout`` (the job), ``task_timeout`` (every task),
``auto_retries``, ``auto_retry_delay``, and ``tasks`` with ``timeout``, ``auto_retries`` and ``auto_retry_delay``
of single tasks. Absent or null means the standard's behaviour: no limit, no retry.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.problems import Problem

MOST_SECONDS = 1e9
MOST_RETRIES = 100

_OF_TASK = ("timeout", "auto_retries", "auto_retry_delay")


@dataclass(frozen=True)
class Lifetime:
    """The rules for one task; times in seconds."""

    timeout: float | None = None
    """of one attempt, from when its first start is sent"""
    retries: int = 0
    """how often it is begun again"""
    retry_delay: float = 0.0
    """between the failure of an attempt and the start of the next one"""


@dataclass(frozen=True)
class Lifetimes:
    """The rules for a job and its tasks."""

    job_timeout: float | None = None
    """seconds, from when every node has started the job"""
    usual: Lifetime = Lifetime()
    tasks: Mapping[str, Lifetime] = field(default_factory=dict)
    """tasks that differ from the usual"""

    def of(self, task: str) -> Lifetime:
        """Return the rules for one task."""
        return self.tasks.get(task, self.usual)

    @property
    def none(self) -> bool:
        """Whether nothing is limited and nothing is tried again."""
        return self == Lifetimes()


def read(common: Any) -> Lifetimes:
    """Return what is asked for; what `check` refuses counts as absent."""
    if not isinstance(common, Mapping):
        return Lifetimes()
    usual = Lifetime(
        _seconds(common.get("task_timeout")),
        _retries(common.get("auto_retries")) or 0,
        _delay(common.get("auto_retry_delay")) or 0.0,
    )
    entries = common.get("tasks")
    tasks = entries.items() if isinstance(entries, Mapping) else ()
    own = {name: _of_task(entry, usual) for name, entry in tasks if isinstance(entry, Mapping)}
    return Lifetimes(_seconds(common.get("timeout")), usual, own)


def _of_task(entry: Mapping[str, Any], usual: Lifetime) -> Lifetime:
    timeout = _seconds(entry.get("timeout"))
    retries = _retries(entry.get("auto_retries"))
    delay = _delay(entry.get("auto_retry_delay"))
    return Lifetime(
        usual.timeout if timeout is None else timeout,
        usual.retries if retries is None else retries,
        usual.retry_delay if delay is None else delay,
    )


def check(common: Any, tasks: Collection[str], path: str = "config.job_params.common") -> list[Problem]:
    """Find everything wrong in the entries; ``tasks`` are the names in the flow."""
    if not isinstance(common, Mapping):
        return []
    problems = list(_wrong(common, ("timeout", "task_timeout", "auto_retries", "auto_retry_delay"), path))
    entries = common.get("tasks")
    if entries is None:
        return problems
    if not isinstance(entries, Mapping):
        return [*problems, Problem(f"{path}.tasks", "must be an object: settings by the name of a task", entries)]
    for name, entry in entries.items():
        at = f"{path}.tasks.{name}"
        if name not in tasks:
            problems.append(Problem(at, "names a task that is not in the flow", name))
        elif not isinstance(entry, Mapping):
            problems.append(Problem(at, f"must be an object with {', '.join(_OF_TASK)}", entry))
        else:
            problems += _wrong(entry, _OF_TASK, at)
            unknown = [key for key in entry if key not in _OF_TASK]
            problems += [Problem(f"{at}.{key}", f"must be one of {', '.join(_OF_TASK)}", key) for key in unknown]
    return problems


def _wrong(entry: Mapping[str, Any], names: Collection[str], path: str) -> Iterator[Problem]:
    for name in names:
        value = entry.get(name)
        if value is None:
            continue
        if name == "auto_retries":
            if _retries(value) is None:
                yield Problem(f"{path}.{name}", f"must be a whole number from 0 to {MOST_RETRIES}", value)
        elif name == "auto_retry_delay":
            if _delay(value) is None:
                yield Problem(f"{path}.{name}", f"must be seconds, 0 to {MOST_SECONDS:.0f}", value)
        elif _seconds(value) is None:
            yield Problem(f"{path}.{name}", f"must be seconds, more than 0 and at most {MOST_SECONDS:.0f}", value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MOST_SECONDS and math.isfinite(value) else None


def _seconds(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _delay(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _retries(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MOST_RETRIES else None
