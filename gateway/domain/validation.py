"""Settings in ``job_params`` that this gateway does not know.

Others may know them, so they refuse nothing; but a mistyped one must not pass for one that was not asked for.
``sync_type`` and ``resources`` are the standard's, the rest are extensions.
"""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from gateway.domain import checkpoints, foreign, quorum, strictness
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec

OF_TASKS = frozenset({"timeout", "auto_retries", "auto_retry_delay"})
COMMON = frozenset(
    {
        "sync_type",
        "timeout",
        "task_timeout",
        "auto_retries",
        "auto_retry_delay",
        "tasks",
        "priority",
        "task_parallelism",
        "inherit",
        "job_type",
        "model_id",
        "model_version",
        quorum.MIN,
        quorum.REQUIRED,
        quorum.TOLERABLE,
        checkpoints.SETTING,
        strictness.KEY,
    }
)
OF_PARTIES = frozenset({"resources"})
AMOUNTS = frozenset({"cpu", "memory", "disk"})
SYNC_TYPES = ("poll", "callback")

_MOST = 50
"""told of one job"""
_LONGEST = 40
"""characters; a longer name is no mistyped one of ours"""


def check(spec: JobSpec, path: str) -> list[Problem]:
    """Return what is warned of. ``path``: of ``job_params``."""
    return list(islice(_found(spec, path), _MOST))


def _found(spec: JobSpec, path: str) -> Iterator[Problem]:
    for role, entry in spec.job_params.items():
        at = f"{path}.{role}"
        if not isinstance(entry, Mapping):
            continue  # refused elsewhere
        if role == "common":
            yield from _unknown(entry, COMMON, at)
            wanted = entry.get("sync_type")
            if wanted is not None and wanted not in SYNC_TYPES:
                yield Problem(f"{at}.sync_type", "is neither poll nor callback; taken as poll", wanted)
            for name, own in _objects(entry.get("tasks")):
                yield from _unknown(own, OF_TASKS, f"{at}.tasks.{name}")
            continue
        for index, settings in _objects(entry):
            yield from _unknown(settings, OF_PARTIES, f"{at}.{index}")
            for _, amounts in _objects({"": settings.get("resources")}):
                yield from _unknown(amounts, AMOUNTS, f"{at}.{index}.resources")


def _objects(entries: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, entry in entries.items() if isinstance(entries, Mapping) else ():
        if isinstance(entry, Mapping):
            yield name, entry


def _unknown(settings: Mapping[str, Any], known: Collection[str], at: str) -> Iterator[Problem]:
    for name, value in settings.items():
        if name in known or foreign.chooses(name):
            continue
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.7) if len(name) <= _LONGEST else []
        rule = "is no setting that this gateway knows; passed on as it is"
        yield Problem(f"{at}.{name}", rule, value, near[0] if near else "")
