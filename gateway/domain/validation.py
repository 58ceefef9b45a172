"""Settings in ``job_params`` that this gateway does not know.

Others may know them, so they refuse nothing; but a mistyped one must not pass for one that was not asked for.
``sync_type`` and ``resources`` are the standard's, the rest are extensions.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from gateway.domain import checkpoints, quorum
from gateway.domain.dag import DagNode, once_per_component
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec

# Computing engines of other platforms, which have no place beside containers: named, so that refusals name them.
#
# A vendor's image may bring and use any of them; the gateway starts its container and knows nothing of the inside.

ENGINES: Mapping[str, str] = {
    "eggroll": "Eggroll",
    "spark": "Spark",
    "linkis": "Linkis",
    "hive": "Hive",
    "rabbitmq": "RabbitMQ",
    "pulsar": "Pulsar",
}
"""as configurations of other platforms spell them -> their names"""

_ASKING = frozenset({"engine", "engines", "backend", "computing", "federation"})
"""settings of a job by which other platforms choose an engine, with or without ``_engine`` behind"""


def named(value: Any) -> str:
    """Return the name of the foreign engine that a value asks for; empty where it asks for none."""
    words = str(value).lower().replace("-", "_").split("_") if isinstance(value, str) else []
    return next((ENGINES[word] for word in words if word in ENGINES), "")


def chooses(setting: str) -> bool:
    """Say whether other platforms choose an engine by a setting of this name."""
    word = setting.lower()
    return word.endswith("_run") or word.removesuffix("_engine") in _ASKING


def rule(engine: str) -> str:
    """Say why this gateway does not take it."""
    return (
        f"ENGINE_NOT_HERE: {engine} is the business of a vendor's image, which may bring it along; "
        "this gateway starts containers (or processes in their place) and no computing engine"
    )


def check_foreign(job_params: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Find what asks for a foreign engine in a job's settings, such as ``computing_engine`` or ``spark_run``."""
    for role, entry in job_params.items():
        settings = {"": entry} if role == "common" else entry
        if not isinstance(settings, Mapping):
            continue
        for index, values in settings.items():
            if isinstance(values, Mapping):
                yield from _asked(values, f"{path}.{role}.{index}".rstrip("."))


def _asked(settings: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for key, value in settings.items():
        at, word = f"{path}.{key}", str(key).lower()
        if word.endswith("_run") and (engine := named(word.removesuffix("_run"))):
            yield Problem(at, rule(engine), value)
        elif word.removesuffix("_engine") in _ASKING:
            chosen = value if isinstance(value, Mapping) else {"": value}
            for part, name in chosen.items():
                if engine := named(name):
                    yield Problem(f"{at}.{part}".rstrip("."), rule(engine), name)


_LONGEST = 40
"""characters; a longer name is no mistyped role"""


def check_idle_roles(
    spec: JobSpec, roles_of: Callable[[DagNode], Sequence[str] | None], path: str = "config.role"
) -> tuple[list[Problem], list[Problem]]:
    """Find such roles: (those that refuse the job, those that are warned of).

    ``roles_of`` tells the roles of a task's component; None where it is not known here, and then nothing is told.
    Refused is what can only be a slip: it looks like a role that components have and that nobody plays.
    """
    ask = once_per_component(roles_of)
    known: dict[str, None] = {}
    for node in spec.dag.nodes:
        roles = ask(node)
        if roles is None:
            return [], []
        known |= dict.fromkeys(roles)
    played = dict.fromkeys(party.role for party in spec.parties)
    missing = [role for role in known if role not in played]
    problems, warnings = [], []
    for role in played:
        if role in known:
            continue
        rule = f"is a role that no component of the flow has; they have {', '.join(known)}"
        near = get_close_matches(role.lower(), missing, n=1, cutoff=0.7) if len(role) <= _LONGEST else []
        at = f"{path}.{role}"
        if near:
            problems.append(Problem(at, rule, role, near[0]))
        else:
            warnings.append(Problem(at, f"{rule}, so its parties have nothing to do", role))
    return problems, warnings


KEY = "strict"
_WORDS = {True: True, False: False, "true": True, "false": False}


def check_strictness(spec: JobSpec, path: str) -> list[Problem]:
    """Find what is wrong with the setting."""
    value = _value(spec)
    known = value is None or (isinstance(value, (bool, str)) and value in _WORDS)
    return [] if known else [Problem(f"{path}.{KEY}", "must be true or false", value)]


def applied(
    spec: JobSpec, problems: Sequence[Problem], warnings: Sequence[Problem]
) -> tuple[list[Problem], list[Problem]]:
    """Return what refuses the job, and what is only warned of: nothing, where the job is strict."""
    value = _value(spec)
    if isinstance(value, (bool, str)) and _WORDS.get(value, False):
        return [*problems, *warnings], []
    return list(problems), list(warnings)


def _value(spec: JobSpec) -> object:
    common = spec.job_params.get("common")
    return common.get(KEY) if isinstance(common, Mapping) else None


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
        KEY,
    }
)
OF_PARTIES = frozenset({"resources"})
AMOUNTS = frozenset({"cpu", "memory", "disk"})
SYNC_TYPES = ("poll", "callback")

_MOST = 50
"""told of one job"""
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
        if name in known or chooses(name):
            continue
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.7) if len(name) <= _LONGEST else []
        rule = "is no setting that this gateway knows; passed on as it is"
        yield Problem(f"{at}.{name}", rule, value, near[0] if near else "")
