"""The checks of a job's settings: of the whole job, of its tasks, and of single parties."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from gateway.domain import models, resources
from gateway.domain.entries import as_mapping, entries_of, unknown_names
from gateway.domain.foreign_engines import chooses_engine, foreign_engines
from gateway.domain.problems import LARGEST_NAME, Problem, has_json_type, name_rule, violation
from gateway.domain.spec import PROVIDERS, JobSpec, NodeId

_MOST_SECONDS = 1e9  # largest time in the settings: about 32 years
_MOST_RETRIES = 100  # largest number of retries of one task
_MOST_PRIORITY = 1_000_000  # largest priority; the smallest is the negative of this number


def _is_number(value: Any) -> bool:
    """Return whether a setting is a number within `_MOST_SECONDS`.

    False for a boolean, which Python counts as an integer.
    """
    return has_json_type(value, int, float) and abs(value) <= _MOST_SECONDS


def _is_positive(value: Any) -> bool:
    """Return whether a setting is a number above 0."""
    return _is_number(value) and value > 0


def _is_not_negative(value: Any) -> bool:
    """Return whether a setting is 0 or a number above it."""
    return _is_number(value) and value >= 0


def _whole_number_check(
    lowest: float,
    highest: float,
) -> Callable[[Any], bool]:
    """Return a check for whole numbers from ``lowest`` to ``highest``, both included.

    The check takes the value of a setting. It is false for a boolean, which Python counts as an
    integer.
    """

    def is_in_range(value: Any) -> bool:
        return has_json_type(value, int) and lowest <= value <= highest

    return is_in_range


def _is_job_type(value: Any) -> bool:
    """Return whether a setting is a type of job: to train a model, or to predict with one.

    The empty text is the default type.
    """
    return value in ("", models.TRAIN, models.PREDICT)


def _is_flag(value: Any) -> bool:
    """Return whether a setting is a boolean, or the text "true" or "false" in any case."""
    return str(value).lower() in ("true", "false")


def _is_amount(value: Any) -> bool:
    """Return whether a value is an amount of resources that a machine can have.

    -1 is valid too: it means the node's default.
    """
    number = resources.amount(value)
    return number is not None and (number >= 0 or number == -1)


def _is_device_count(value: Any) -> bool:
    """Return whether a value is a whole number of devices; 0 and -1 mean none."""
    number = resources.amount(value)
    return number is not None and number >= -1 and number.is_integer()


# The check of a setting's value (true for a valid one), and the text of the rule that it enforces.
Setting = tuple[Callable[[Any], bool], str]

_SECONDS: Setting = (
    _is_positive,
    f"must be seconds, more than 0 and at most {_MOST_SECONDS:.0f}",
)
_AMOUNT: Setting = (
    _is_amount,
    "must be a number that a machine can have, or -1 for the node's default",
)
# Resources of a party: the kinds of `resources.UNITS`.
_AMOUNTS: Mapping[str, Setting] = {
    "cpu": _AMOUNT,
    "memory": _AMOUNT,
    "disk": _AMOUNT,
    "gpu": (
        _is_device_count,
        "must be a whole number of devices, 0 or -1 for none",
    ),
}
# Settings of each task, which a job may set for all of its tasks as well.
_OF_TASKS: Mapping[str, Setting] = {
    "timeout": _SECONDS,
    "auto_retries": (
        _whole_number_check(0, _MOST_RETRIES),
        f"must be a whole number from 0 to {_MOST_RETRIES}",
    ),
    "auto_retry_delay": (
        _is_not_negative,
        f"must be seconds, 0 to {_MOST_SECONDS:.0f}",
    ),
}
# Settings of the job as a whole.
_OF_JOBS: Mapping[str, Setting] = {
    **_OF_TASKS,
    "task_timeout": _SECONDS,
    "priority": (
        _whole_number_check(-_MOST_PRIORITY, _MOST_PRIORITY),
        f"must be a whole number between -{_MOST_PRIORITY} and {_MOST_PRIORITY}",
    ),
    "task_parallelism": (
        _whole_number_check(1, math.inf),
        "must be a whole number of at least 1",
    ),
    "checkpoints": (_is_flag, "must be true or false"),
    "task_sessions": (_is_flag, "must be true or false"),
    "strict": (_is_flag, "must be true or false"),
    "job_type": (
        _is_job_type,
        f"must be {models.TRAIN} or {models.PREDICT}, or absent",
    ),
}
# All settings in ``common``; ``sync_type`` is the standard's, the rest are extensions.
COMMON = frozenset(_OF_JOBS) | {
    "sync_type",
    "tasks",
    "inherit",
    "model_id",
    "model_version",
    "min_parties",
    "required_parties",
    "tolerable_tasks",
}
_OF_PARTIES = frozenset({"resources", PROVIDERS})  # all settings of single parties
_PROVIDER = re.compile(r"[^\s:@*/\\]{1,128}:[^\s:@*/\\]{1,128}")  # name:version
_AT = "config.job_params"  # path of the settings in the body of a job
_AT_COMMON = f"{_AT}.common"  # path of the common settings, which hold for all parties


def setting_problems(spec: JobSpec) -> Iterator[Problem]:
    """Find the settings that make a job invalid."""
    yield from _common_settings(spec)
    yield from _party_settings(spec)
    yield from _providers(spec)
    yield from _quorum(spec)
    yield from _inheritance(spec)


def _common_settings(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid values of the settings of the whole job, and of its tasks."""
    yield from _invalid(spec.common, _OF_JOBS, _AT_COMMON)
    yield from _task_settings(spec, spec.common.get("tasks"), f"{_AT_COMMON}.tasks")
    yield from _model_setting(spec, "model_id")
    yield from _model_setting(spec, "model_version")


def _model_setting(spec: JobSpec, key: str) -> Iterator[Problem]:
    """Find a missing or invalid id or version of the job's model; ``key`` names the setting.

    Only a job that predicts has to name its model. Null and an empty text count as absent.
    """
    path = f"{_AT_COMMON}.{key}"
    value = spec.common.get(key)
    if value in (None, ""):
        if spec.common.get("job_type") == models.PREDICT:
            yield Problem(path, "is required in a job that predicts")
        return
    yield from violation(path, _model_rule(value), value)


def _model_rule(value: Any) -> str | None:
    """Return the rule that the id or version of a model breaks; None for a valid one.

    Both are texts; a whole number is taken as its digits.
    """
    if not has_json_type(value, str, int):
        return "must be a text"
    return models.id_rule(str(value))


def _invalid(
    entry: Mapping[str, Any],
    settings: Mapping[str, Setting],
    at: str,
) -> Iterator[Problem]:
    """Find values of settings that break their rule.

    ``at`` is the path of ``entry`` in the body. Null and absent are the same: the setting then has
    its default.
    """
    for name, (is_valid, rule) in settings.items():
        value = entry.get(name)
        if value is not None and not is_valid(value):
            yield Problem(f"{at}.{name}", rule, value)


def _task_settings(
    spec: JobSpec,
    entries: Any,
    at: str,
) -> Iterator[Problem]:
    """Find invalid settings of single tasks, and settings of tasks that the flow does not have.

    ``entries`` should be an object of settings by task; None is the same as an empty one. ``at`` is
    its path in the body.
    """
    by_task, problems = _object(
        entries,
        at,
        "must be an object: settings by the name of a task",
    )
    yield from problems
    names = ", ".join(_OF_TASKS)
    for task, entry in by_task.items():
        path = f"{at}.{task}"
        if spec.dag.get(task) is None:
            yield Problem(path, "names a task that is not in the flow", task)
        elif not isinstance(entry, Mapping):
            yield Problem(path, f"must be an object with {names}", entry)
        else:
            yield from _invalid(entry, _OF_TASKS, path)
            yield from unknown_names(
                entry,
                _OF_TASKS,
                path,
                f"must be one of {names}",
            )


def _object(
    value: Any,
    at: str,
    rule: str,
) -> tuple[Mapping[str, Any], list[Problem]]:
    """Return a setting that has to be an object, and the problem of one that is not.

    Null, an absent setting, and any other value than an object count as an empty object. ``rule``
    is the text of the problem, and ``at`` the path of the setting in the body.
    """
    if isinstance(value, Mapping):
        return value, []
    if value is None:
        return {}, []
    return {}, [Problem(at, rule, value)]


def _party_settings(spec: JobSpec) -> Iterator[Problem]:
    """Find requests for engines of other platforms, and invalid resources of parties.

    ``resources`` in the common settings means nothing, so that it is not checked there.
    """
    for at, settings in _all_settings(spec):
        yield from foreign_engines(settings, at)
        if at != _AT_COMMON:
            yield from _amount_problems(settings.get("resources"), f"{at}.resources")


def _amount_problems(amounts: Any, at: str) -> Iterator[Problem]:
    """Find amounts of resources that no machine can have.

    ``amounts`` should be an object with some of the kinds of `resources.UNITS`; null and absent are
    the node's default. ``at`` is its path in the body.
    """
    by_kind, problems = _object(
        amounts,
        at,
        "must be an object of cpu, memory, disk and gpu",
    )
    yield from problems
    yield from _invalid(by_kind, _AMOUNTS, at)


def _providers(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid providers of parties, and different ones for parties at the same node.

    Providers in the common settings mean nothing, so that they are not checked there.
    """
    for at, settings in _all_settings(spec):
        if at != _AT_COMMON:
            yield from _provider_problems(
                spec,
                settings.get(PROVIDERS),
                f"{at}.{PROVIDERS}",
            )
    for node in spec.nodes:
        yield from _differing_providers(spec, node)


def _differing_providers(spec: JobSpec, node: NodeId) -> Iterator[Problem]:
    """Find parties at a node that name other providers than the node's first party.

    A node gets one flow, with one provider for each task.
    """
    first, *further = spec.parties_at(node)
    expected = spec.providers_of(first)
    for party in further:
        if spec.providers_of(party) != expected:
            yield Problem(
                f"{_AT}.{party.role}.{party.index}.{PROVIDERS}",
                f"differ from those of {first.label} at the same node",
                node,
            )


def _provider_problems(
    spec: JobSpec,
    entries: Any,
    at: str,
) -> Iterator[Problem]:
    """Find invalid names in a party's choice of providers, and choices for unknown tasks.

    ``entries`` should be an object of providers (``name:version``) by task; None is the same as an
    empty one. ``at`` is its path in the body.
    """
    by_task, problems = _object(
        entries,
        at,
        "must be an object: name:version by the name of a task",
    )
    yield from problems
    for task, provider in by_task.items():
        path = f"{at}.{task}"
        if spec.dag.get(task) is None:
            yield Problem(path, "names a task that is not in the flow", task)
        elif not isinstance(provider, str) or not _PROVIDER.fullmatch(provider):
            yield Problem(path, "must be the name and version of a provider", provider)


def _all_settings(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the common settings and then each party's, each with its path in the body."""
    for origin, settings in entries_of(spec.job_params):
        yield f"{_AT}.{origin}", settings


def unknown_settings(spec: JobSpec) -> Iterator[Problem]:
    """Find settings that this gateway ignores.

    A request for an engine of another platform is left out: `_party_settings` rejects it.
    """
    rule = "is not a setting that this gateway knows; passed on as it is"
    for at, settings in _all_settings(spec):
        names = [name for name in settings if not chooses_engine(name)]
        if at == _AT_COMMON:
            yield from unknown_names(names, COMMON, at, rule, values=settings)
            continue
        yield from unknown_names(names, _OF_PARTIES, at, rule, values=settings)
        amounts = as_mapping(settings.get("resources"))
        yield from unknown_names(
            amounts,
            resources.UNITS,
            f"{at}.resources",
            rule,
            values=amounts,
        )
    yield from _unknown_sync_type(spec)


def _unknown_sync_type(spec: JobSpec) -> Iterator[Problem]:
    """Find a ``sync_type`` that the standard does not have; absent is the same as ``poll``."""
    sync_type = spec.common.get("sync_type")
    if sync_type not in (None, "poll", "callback"):
        rule = "is neither poll nor callback; taken as poll"
        yield Problem(f"{_AT_COMMON}.sync_type", rule, sync_type)


def _quorum(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid settings of `gateway.domain.quorum`.

    These settings say which parties and tasks the job can do without.
    """
    yield from _min_parties(spec)
    labels = {party.label for party in spec.parties}
    yield from _names(spec, "required_parties", labels, "a party of the job")
    tasks = {node.name for node in spec.dag.nodes}
    yield from _names(spec, "tolerable_tasks", tasks, "a task of the flow")


def _min_parties(spec: JobSpec) -> Iterator[Problem]:
    """Find roles in ``min_parties`` that the job does not have, and numbers that are too large.

    ``min_parties`` is an object of numbers by role, each at most the role's number of parties. Null
    and absent are the same as an empty one.
    """
    at = f"{_AT_COMMON}.min_parties"
    min_parties, problems = _object(
        spec.common.get("min_parties"),
        at,
        "must be an object: role -> number",
    )
    yield from problems
    counts = Counter(party.role for party in spec.parties)
    for role, number in min_parties.items():
        path = f"{at}.{role}"
        count = counts[role]
        is_possible = _whole_number_check(0, count)
        if not count:
            yield Problem(path, "names a role that the job does not have", role)
        elif not is_possible(number):
            yield Problem(path, f"must be a whole number from 0 to {count}", number)


def _names(
    spec: JobSpec,
    setting: str,
    valid_names: Collection[str],
    kind: str,
) -> Iterator[Problem]:
    """Find invalid names in a common setting that is a list of names.

    ``kind`` says in messages what the names stand for, such as "a task of the flow". Null and
    absent are the same as an empty list.
    """
    at = f"{_AT_COMMON}.{setting}"
    names = spec.common.get(setting)
    if names is None:
        return
    if not isinstance(names, list):
        yield Problem(at, "must be a list of names", names)
        return
    for position, name in enumerate(names):
        # only texts are looked up: another value of JSON may not be hashable
        if not isinstance(name, str) or name not in valid_names:
            yield Problem(
                f"{at}[{position}]",
                f"must be the name of {kind}",
                name,
            )


def _inheritance(spec: JobSpec) -> Iterator[Problem]:
    """Find an invalid earlier job, and tasks that cannot be inherited from it.

    The setting ``inherit`` is a list of tasks; null and absent mean all tasks that are unchanged.
    """
    yield from _earlier_job(spec)
    at = f"{_AT_COMMON}.inherit"
    names = spec.common.get("inherit")
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield Problem(at, "must be a list of names of tasks", names)
    else:
        yield from _inherited_tasks(spec, names, at)


def _earlier_job(spec: JobSpec) -> Iterator[Problem]:
    """Find an id of an earlier job that is not valid, or that is the id of this job.

    The id becomes part of names of folders, as the job's own id does, so that it may have only a
    third of the longest name.
    """
    earlier_id = spec.old_job_id
    if not earlier_id:
        return
    rule = name_rule(earlier_id, LARGEST_NAME // 3)
    if earlier_id == spec.job_id:
        rule = rule or "must be another job"
    yield from violation("old_job_id", rule, earlier_id)


def _inherited_tasks(
    spec: JobSpec,
    names: list[str],
    at: str,
) -> Iterator[Problem]:
    """Find tasks in ``inherit`` that cannot be inherited.

    They are named without an earlier job, are named twice, or have inputs that are not inherited.

    ``at`` is the path of the list in the body.
    """
    if names and not spec.old_job_id:
        yield Problem(at, "needs old_job_id: the job to inherit from", names)
    inherited = set(names)
    if len(inherited) < len(names):
        number = len(names)  # shown as the value, since the list may be long
        yield Problem(at, "must not name a task twice", number)
    for position, name in enumerate(names):
        rule = _inheritance_rule(spec, name, inherited)
        yield from violation(f"{at}[{position}]", rule, name)


def _inheritance_rule(
    spec: JobSpec,
    task: str,
    inherited: Collection[str],
) -> str:
    """Return the rule that an inherited task breaks; empty for a valid one.

    Its inputs have to be inherited as well, since its output was computed from theirs.
    """
    node = spec.dag.get(task)
    if node is None:
        return "names a task that is not in the flow"
    missing = sorted(node.upstream - set(inherited))
    if not missing:
        return ""
    return f"needs the output of {', '.join(missing)}: inherit it too"
