"""Validation of a job as submitted: its flow, parties, settings and parameters.

`check` returns problems, which reject the job, and warnings, which do not. A setting that this
gateway does not know is a warning, as other platforms may know it. With ``strict`` in the common
settings every warning is a problem.

The node that submits a job also knows the components of its tasks (``roles_of``). There two more
mistakes reject the job: an entry that no task gets, and a dataset that was probably forgotten.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from gateway.domain import dag as flow
from gateway.domain import models, resources
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.problems import LARGEST_NAME, Problem, index_of, is_unprintable, name_rule, near
from gateway.domain.spec import PROVIDERS, JobSpec, NodeId, Party, data_location, overlay

MOST_WARNINGS = 100  # of one job
MOST_KEYS = 1000  # index keys of one role
MOST_JOINED = 8192  # characters of a role's keys that join indices, such as ``0|1|2``
MOST_AT_NODE = 50  # parties that one node plays in a job; every task has a container for each
_MOST_SECONDS = 1e9  # of any time in the settings: about 32 years
_MOST_RETRIES = 100  # of one task
_MOST_PRIORITY = 1_000_000  # either side of 0
# Bytes of one parameter with its name. A container gets each as an environment variable; Linux
# passes at most 128 KiB, which the gateway's own prefix of the name shares.
_LARGEST_PARAMETER = 131_000
_MOST_KNOWN = 100  # valid names that a mistyped one is compared with; bounds the time of a check
_SIMILARITY = 0.7  # of two names, from 0 to 1; from here on one may be a misspelling


def check(spec: JobSpec, roles_of: RolesOf | None = None) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that reject the job, and the warnings; both empty for a valid job.

    ``roles_of`` returns the roles of a task's component. It is None for a job that another node
    submitted: its tasks and entries may be known to that node only, so that those unknown to this
    gateway are warnings.

    At most `MOST_WARNINGS` unknown entries are reported. A job with so many indices that the
    checks would take too long is reported for these alone.
    """
    oversized = list(_oversized_entries(spec))
    if oversized:
        return oversized, []
    problems = list(_problems(spec))
    unknown_fields = [field.problem for field in spec.unknown_fields]
    unknown_tasks = list(islice(_unknown_tasks(spec), MOST_WARNINGS))
    unknown_entries = chain(_unknown_parties(spec), _unknown_settings(spec))
    if roles_of is None:
        all_warnings = chain(unknown_fields, unknown_tasks, unknown_entries)
        warnings = list(islice(all_warnings, MOST_WARNINGS))
    else:
        misspelled_roles, unplayed_roles = idle_roles(spec, roles_of)
        problems += unknown_tasks
        problems += _without_dataset(spec, roles_of)
        problems += misspelled_roles
        warnings = list(islice(chain(unknown_fields, unknown_entries), MOST_WARNINGS))
        warnings += unplayed_roles
    return with_strictness(spec, problems, warnings)


def _problems(spec: JobSpec) -> Iterator[Problem]:
    """Find everything that makes a job invalid at any node, whatever components it knows.

    The problems come in the order of the sections of a job's body.
    """
    yield from flow.check(spec.dag)
    yield from _names_and_parties(spec)
    yield from _no_objects(spec)
    yield from _parameters(spec)
    yield from _common_settings(spec)
    yield from _party_settings(spec)
    yield from _providers(spec)
    yield from _quorum(spec)
    yield from _inheritance(spec)


def with_strictness(
    spec: JobSpec,
    problems: Sequence[Problem],
    warnings: Sequence[Problem],
) -> tuple[list[Problem], list[Problem]]:
    """Return problems and warnings as the job's ``strict`` setting has them.

    In a strict job every warning is a problem, after the others, and no warning is left.
    """
    if spec.settings.strict:
        return [*problems, *warnings], []
    return list(problems), list(warnings)


# ---------------------------------------------------------------- parties and their entries


def unlisted(initiator: NodeId, role: str) -> Problem:
    """Return the problem of an initiator that does not hold the role it claims."""
    return Problem(
        "config.initiator.node_id", f"must be listed under config.role.{role}", initiator
    )


def _names_and_parties(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid names, and parties that do not make a job.

    A job needs at least one party, its initiator must be one of them in the role that it claims,
    and no node may be more than `MOST_AT_NODE` parties.
    """
    yield from _invalid_names(spec)
    yield from _joined_roles(spec)
    if not spec.parties:
        yield Problem("config.role", "must name at least one node", {})
    elif not any(_is_initiator(spec, party) for party in spec.parties):
        yield unlisted(spec.initiator, spec.initiator_role)
    yield from _crowded_nodes(spec)


def _crowded_nodes(spec: JobSpec) -> Iterator[Problem]:
    """Find nodes that are more than `MOST_AT_NODE` parties; one problem names all of them."""
    counts = Counter(party.node for party in spec.parties)
    crowded = []
    for node, count in counts.items():
        if count > MOST_AT_NODE:
            crowded.append(f"{node} ({count})")
    if crowded:
        rule = f"must not name one node more than {MOST_AT_NODE} times"
        yield Problem("config.role", rule, crowded)


def _invalid_names(spec: JobSpec) -> Iterator[Problem]:
    """Find a job id, roles or a flow id that cannot be parts of folders and messages.

    The id and a role may have a third of the longest name only, as names of folders and containers
    join them with the task and more.
    """
    names = [("job_id", spec.job_id)]
    for party in spec.parties:
        names.append((f"config.role.{party.role}", party.role))
    for path, name in names:
        rule = name_rule(name, LARGEST_NAME // 3)
        if rule:
            yield Problem(path, rule, name)
    if is_unprintable(spec.flow_id):
        yield Problem("flow_id", "must not hold control characters or broken Unicode", spec.flow_id)


def _joined_roles(spec: JobSpec) -> Iterator[Problem]:
    """Find several roles written as one, such as ``guest,host``.

    The problem suggests the single roles, here "guest and host".
    """
    roles = dict.fromkeys(party.role for party in spec.parties)  # each once, in their order
    for role in roles:
        if "," not in role:
            continue
        rule = "must be one role, with the nodes that play it"
        single_roles = re.findall("[^ ,]+", role)
        yield Problem(f"config.role.{role}", rule, role, " and ".join(single_roles))


def _is_initiator(spec: JobSpec, party: Party) -> bool:
    """Return whether a party is the job's initiator, in the role that it claims."""
    return party.node == spec.initiator and party.role == spec.initiator_role


def _oversized_entries(spec: JobSpec) -> Iterator[Problem]:
    """Find roles with more indices than can be looked through for every task of every party.

    A role has at most `MOST_KEYS` keys, and `MOST_JOINED` characters in keys such as ``0|1|2``.
    """
    rule = f"must not have more than {MOST_KEYS} keys, nor {MOST_JOINED} characters in joined ones"
    for name, params in _both(spec):
        for role, by_index in _objects(params):
            if role != "common" and _is_oversized(by_index):
                yield Problem(f"config.{name}.{role}", rule, len(by_index))


def _is_oversized(by_index: Mapping[str, Any]) -> bool:
    """Return whether the entry of a role has too many keys, or too long ones that join indices."""
    joined_keys = [key for key in by_index if "|" in key]
    characters = sum(len(key) for key in joined_keys)
    return len(by_index) > MOST_KEYS or characters > MOST_JOINED


def _no_objects(spec: JobSpec) -> Iterator[Problem]:
    """Find entries of roles that are not objects.

    The other checks skip such an entry, so that it is reported only here.
    """
    for name, params in _both(spec):
        for role, entry in params.items():
            if not isinstance(entry, Mapping):
                yield Problem(f"config.{name}.{role}", "must be an object", entry)


def _parameters(spec: JobSpec) -> Iterator[Problem]:
    """Find parameters that no container can get, by their name, characters or size."""
    for origin, by_task in _entries(spec.task_params):
        for task, values in _objects(by_task):
            path = f"config.task_params.{origin}.{task}"
            yield from _invalid_parameters(values, path)


def _invalid_parameters(values: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Find the invalid parameters of one task in one entry, which is at ``path`` in the body."""
    for name, value in values.items():
        rule = _parameter_rule(name, value)
        if rule:
            yield Problem(f"{path}.{name}", rule, value)


def _entries(params: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each entry of parameters or settings with its place in the body.

    The place is ``common``, or role and key such as ``guest.0``. Values that should be objects and
    are not have no entries: `_no_objects` reports them.
    """
    for role, entry in _objects(params):
        if role == "common":
            yield role, entry
            continue
        for key, party_entry in _objects(entry):
            yield f"{role}.{key}", party_entry


def _parameter_rule(name: str, value: Any) -> str:
    """Return the rule that a parameter breaks; empty for a valid one.

    A container gets it as an environment variable: text as it is, any other value as JSON. So
    neither a ``=`` in the name nor a zero character is possible, and Linux bounds the size.
    """
    if not name or "=" in name or "\0" in name:
        return "must have a name without = and without zero characters"
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    if "\0" in text:
        return "must not hold zero characters"
    size = len(name.encode()) + len(text.encode())
    if size > _LARGEST_PARAMETER:
        return f"must have at most {_LARGEST_PARAMETER} bytes with its name"
    return ""


def _both(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the job's settings and its tasks' parameters, with their names in the body."""
    yield "job_params", spec.job_params
    yield "task_params", spec.task_params


def _unknown_tasks(spec: JobSpec) -> Iterator[Problem]:
    """Find parameters for a task that the job does not have.

    The task that they are meant for would run on its defaults. Parameters of an unknown role are
    not looked at: `_unknown_parties` reports the role.
    """
    roles = {party.role for party in spec.parties}
    tasks = [node.name for node in spec.dag.nodes]
    rule = "names a task that is not in the flow"
    for role, by_index in _objects(spec.task_params):
        at = f"config.task_params.{role}"
        if role == "common":
            yield from _unknown(by_index, tasks, at, rule)
        elif role in roles:
            for key, by_task in _objects(by_index):
                yield from _unknown(by_task, tasks, f"{at}.{key}", rule)


def _without_dataset(spec: JobSpec, roles_of: RolesOf) -> Iterator[Problem]:
    """Find parties without a dataset for a task that another party has a dataset for.

    Only tasks that read no output of other tasks are checked. An arbiter has no data. A party that
    is meant to read nothing says so with an empty ``dataset_id``.
    """
    for node in spec.dag.nodes:
        if node.inputs:
            continue
        roles = set(roles_of(node) or ()) - {"arbiter"}
        parties = [party for party in spec.parties if party.role in roles]
        yield from _forgotten_datasets(spec, node.name, parties)


def _forgotten_datasets(
    spec: JobSpec,
    task: str,
    parties: Iterable[Party],
) -> Iterator[Problem]:
    """Find the parties of a task without a dataset, if another one of them has one.

    A task for which no party has a dataset has no problem: it may not read any data.
    """
    readers: list[Party] = []
    idle: list[Party] = []
    for party in parties:
        if data_location(spec.task_params, party, task):
            readers.append(party)
        elif "dataset_id" not in overlay(spec.task_params, party, task):
            idle.append(party)
    if not readers:
        return
    for party in idle:
        path = f"config.task_params.{party.role}.{party.index}.{task}.dataset_id"
        rule = (
            f"is missing: {party.label} reads nothing in {task}, where {readers[0].label} reads "
            "a dataset; name one, or an empty text where it needs none"
        )
        yield Problem(path, rule)


def _unknown_parties(spec: JobSpec) -> Iterator[Problem]:
    """Find entries for a role or an index that the job does not have, in settings and parameters.

    No party gets such an entry. A role that looks like a misspelled one is suggested.
    """
    counts = Counter(party.role for party in spec.parties)
    for name, params in _both(spec):
        for role, by_index in _objects(params):
            path = f"config.{name}.{role}"
            if role in counts:
                yield from _unknown_indices(by_index, role, counts[role], path)
            elif role != "common":
                rule = "is not a role of this job, so no party gets this entry"
                yield Problem(path, rule, role, _meant(role, ("common", *counts)))


def _unknown_indices(
    keys: Iterable[str],
    role: str,
    number: int,
    path: str,
) -> Iterator[Problem]:
    """Find keys of a role with an index that none of its parties has.

    A key is one index or several joined by ``|``. The role has ``number`` parties, whose indices
    begin at 0.
    """
    for key in keys:
        if all(_is_index(part, number) for part in key.split("|")):
            continue
        rule = f"is not a valid index of {role}: the job has {number}"
        yield Problem(f"{path}.{key}", rule, key)


def _is_index(text: str, number: int) -> bool:
    """Return whether a text is the index of one of ``number`` parties."""
    index = index_of(text)
    return index is not None and index < number


def _unknown(
    entry: Iterable[str],
    valid_names: Collection[str],
    at: str,
    rule: str,
    values: Mapping[str, Any] | None = None,
) -> Iterator[Problem]:
    """Find names in an entry that are not among the valid ones.

    A problem shows the name's value if ``values`` has one, else the name itself, and suggests the
    valid name that was probably meant. The entry is at the path ``at``.
    """
    valid = frozenset(valid_names)
    for name in entry:
        if name in valid:
            continue
        value = name
        if values:
            value = values[name]
        yield Problem(f"{at}.{name}", rule, value, _meant(name, valid_names))


def _meant(word: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant by a word; empty if none is similar enough."""
    return near(word, islice(names, _MOST_KNOWN), _SIMILARITY)


def _objects(entries: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the items of an object that are objects; none of anything else."""
    if not isinstance(entries, Mapping):
        return
    for name, entry in entries.items():
        if isinstance(entry, Mapping):
            yield name, entry


def idle_roles(spec: JobSpec, roles_of: RolesOf) -> tuple[list[Problem], list[Problem]]:
    """Compare the roles of the parties with the roles that the components have.

    Returns problems, which reject the job, and warnings. A party's role that no component has is a
    warning; it is a problem if it looks like a misspelling of a component's role that no party
    plays. A component's role that no party plays is a warning. Nothing is reported while the roles
    of a component are unknown.
    """
    components = _components_by_role(spec, roles_of)
    if components is None:
        return [], []
    played = dict.fromkeys(party.role for party in spec.parties)  # each once, in their order
    unplayed = [role for role in components if role not in played]
    problems = []
    warnings = []
    for role in played:
        if role in components:
            continue
        path = f"config.role.{role}"
        rule = f"is a role that no component of the flow has; they have {', '.join(components)}"
        suggestion = _meant(role, unplayed)
        if suggestion:
            problems.append(Problem(path, rule, role, suggestion))
            unplayed.remove(suggestion)  # one misspelling explains it: no warning as well
        else:
            warnings.append(Problem(path, f"{rule}, so its parties have nothing to do", role))
    for role in unplayed:
        rule = f"is missing: {components[role]} has this role, and may fail or wait without it"
        warnings.append(Problem(f"config.role.{role}", rule))
    return problems, warnings


def _components_by_role(spec: JobSpec, roles_of: RolesOf) -> dict[str, str] | None:
    """Return the name of the first component with each role, in the order of the flow.

    None if the roles of some component are not known.
    """
    ask = once_per_component(roles_of)
    components: dict[str, str] = {}
    for node in spec.dag.nodes:
        roles = ask(node)
        if roles is None:
            return None
        for role in roles:
            components.setdefault(role, node.component.name)
    return components


# ---------------------------------------------------------------- settings of the job


def _is_number(value: Any) -> bool:
    """Return whether a setting is a number within `_MOST_SECONDS`; a boolean is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _MOST_SECONDS


def _is_positive(value: Any) -> bool:
    """Return whether a setting is a number above 0."""
    return _is_number(value) and value > 0


def _is_not_negative(value: Any) -> bool:
    """Return whether a setting is 0 or a number above it."""
    return _is_number(value) and value >= 0


def _is_whole_number(lowest: float, highest: float) -> Callable[[Any], bool]:
    """Return a check for whole numbers from ``lowest`` to ``highest``."""

    def is_in_range(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return lowest <= value <= highest

    return is_in_range


def _is_job_type(value: Any) -> bool:
    """Return whether a setting is a type of job; the empty text is the default type."""
    return value in ("", models.TRAIN, models.PREDICT)


def _is_flag(value: Any) -> bool:
    """Return whether a setting is a boolean, or the text "true" or "false" in any case."""
    return str(value).lower() in ("true", "false")


Setting = tuple[Callable[[Any], bool], str]  # the check of a value, and the rule that it enforces

_SECONDS: Setting = (
    _is_positive,
    f"must be seconds, more than 0 and at most {_MOST_SECONDS:.0f}",
)
# Settings of each task, which a job may set for all of its tasks as well.
_OF_TASKS: Mapping[str, Setting] = {
    "timeout": _SECONDS,
    "auto_retries": (
        _is_whole_number(0, _MOST_RETRIES),
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
        _is_whole_number(-_MOST_PRIORITY, _MOST_PRIORITY),
        f"must be a whole number between -{_MOST_PRIORITY} and {_MOST_PRIORITY}",
    ),
    "task_parallelism": (_is_whole_number(1, math.inf), "must be a whole number of at least 1"),
    "checkpoints": (_is_flag, "must be true or false"),
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
_OF_PARTIES = frozenset({"resources", PROVIDERS})  # settings of single parties
_PROVIDER = re.compile(r"[^\s:@*/\\]{1,128}:[^\s:@*/\\]{1,128}")  # name:version
_AT = "config.job_params"  # the settings' path in the body of a job


def _common_settings(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid values of the settings of the whole job, and of its tasks."""
    yield from _invalid(spec.common, _OF_JOBS, f"{_AT}.common")
    yield from _task_settings(spec, spec.common.get("tasks"), f"{_AT}.common.tasks")
    for key in ("model_id", "model_version"):
        yield from _model_setting(spec, key)


def _model_setting(spec: JobSpec, key: str) -> Iterator[Problem]:
    """Find a missing or invalid id or version of the job's model; ``key`` names the setting.

    Only a job that predicts has to name its model. Null and an empty text count as absent.
    """
    value = spec.common.get(key)
    is_absent = value in (None, "")
    if not is_absent:
        rule = _model_rule(value)
    elif spec.common.get("job_type") == models.PREDICT:
        rule = "is required in a job that predicts"
        value = None
    else:
        return
    if rule:
        yield Problem(f"{_AT}.common.{key}", rule, value)


def _model_rule(value: Any) -> str | None:
    """Return the rule that the id or version of a model breaks; None for a valid one.

    Both are texts; a whole number is taken as its digits.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return "must be a text"
    return models.id_rule(str(value))


def _invalid(
    entry: Mapping[str, Any],
    settings: Mapping[str, Setting],
    at: str,
) -> Iterator[Problem]:
    """Find values of settings that break their rule.

    Null and absent are the same: the setting has its default then.
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

    ``entries`` should be an object of settings by task; None is the same as an empty one.
    """
    if entries is None:
        return
    if not isinstance(entries, Mapping):
        yield Problem(at, "must be an object: settings by the name of a task", entries)
        return
    names = ", ".join(_OF_TASKS)
    for task, entry in entries.items():
        if spec.dag.get(task) is None:
            yield Problem(f"{at}.{task}", "names a task that is not in the flow", task)
        elif not isinstance(entry, Mapping):
            yield Problem(f"{at}.{task}", f"must be an object with {names}", entry)
        else:
            yield from _invalid(entry, _OF_TASKS, f"{at}.{task}")
            yield from _unknown(entry, _OF_TASKS, f"{at}.{task}", f"must be one of {names}")


def _party_settings(spec: JobSpec) -> Iterator[Problem]:
    """Find requests for engines of other platforms, and invalid resources of parties.

    ``resources`` in the common settings means nothing, so that it is not checked there.
    """
    for at, settings in _all_settings(spec):
        yield from foreign_engines(settings, at)
        amounts = settings.get("resources")
        if amounts is not None and not _is_common(at):
            yield from _amount_problems(amounts, f"{at}.resources")


def _is_common(path: str) -> bool:
    """Return whether a path is that of the common settings, not of a party's."""
    return path == f"{_AT}.common"


def _amount_problems(amounts: Any, at: str) -> Iterator[Problem]:
    """Find amounts of resources that no machine can have.

    ``amounts`` should be an object with some of the kinds of `resources.UNITS`; null and absent are
    the node's default.
    """
    if not isinstance(amounts, Mapping):
        yield Problem(at, "must be an object of cpu, memory, disk and gpu", amounts)
        return
    for kind in resources.UNITS:
        value = amounts.get(kind)
        if value is None:
            continue
        rule = _amount_rule(kind, resources.amount(value))
        if rule:
            yield Problem(f"{at}.{kind}", rule, value)


def _amount_rule(kind: str, number: float | None) -> str:
    """Return the rule that an amount breaks; empty for a valid one.

    ``number`` is None for a value other than a number. -1 means the node's default, for a GPU the
    same as 0.
    """
    if kind == "gpu":
        if _is_device_count(number):
            return ""
        return "must be a whole number of devices, 0 or -1 for none"
    if number is not None and (number >= 0 or number == -1):
        return ""
    return "must be a number that a machine can have, or -1 for the node's default"


def _is_device_count(number: float | None) -> bool:
    """Return whether an amount is a whole number of devices, or -1 for none."""
    return number is not None and number.is_integer() and number >= -1


def _providers(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid providers of parties, and different ones for parties at the same node."""
    for at, settings in _all_settings(spec):
        entries = settings.get(PROVIDERS)
        if entries is not None and not _is_common(at):
            yield from _provider_problems(spec, entries, f"{at}.{PROVIDERS}")
    for node in spec.nodes:
        yield from _differing_providers(spec, node)


def _differing_providers(spec: JobSpec, node: NodeId) -> Iterator[Problem]:
    """Find parties at a node that name other providers than the node's first party.

    A node gets one flow, with one provider for each task.
    """
    first, *further = spec.parties_at(node)
    for party in further:
        if spec.providers_of(party) != spec.providers_of(first):
            at = f"{_AT}.{party.role}.{party.index}.{PROVIDERS}"
            yield Problem(at, f"differ from those of {first.label} at the same node", node)


def _provider_problems(
    spec: JobSpec,
    entries: Any,
    at: str,
) -> Iterator[Problem]:
    """Find invalid names of a party's own providers, or providers of unknown tasks.

    ``entries`` should be an object of providers (``name:version``) by task.
    """
    if not isinstance(entries, Mapping):
        yield Problem(at, "must be an object: name:version by the name of a task", entries)
        return
    for task, provider in entries.items():
        path = f"{at}.{task}"
        if spec.dag.get(task) is None:
            yield Problem(path, "names a task that is not in the flow", task)
        elif not isinstance(provider, str) or not _PROVIDER.fullmatch(provider):
            yield Problem(path, "must be the name and version of a provider", provider)


def _all_settings(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the common settings and then each party's, each with its path in the body."""
    for origin, settings in _entries(spec.job_params):
        yield f"{_AT}.{origin}", settings


def _unknown_settings(spec: JobSpec) -> Iterator[Problem]:
    """Find settings that this gateway ignores.

    A request for an engine of another platform is left out: `_party_settings` rejects it.
    """
    rule = "is not a setting that this gateway knows; passed on as it is"
    for at, settings in _all_settings(spec):
        names = [name for name in settings if not chooses_engine(name)]
        if _is_common(at):
            yield from _unknown(names, COMMON, at, rule, settings)
            continue
        yield from _unknown(names, _OF_PARTIES, at, rule, settings)
        amounts = settings.get("resources")
        if isinstance(amounts, Mapping):
            yield from _unknown(amounts, resources.UNITS, f"{at}.resources", rule, amounts)
    yield from _unknown_sync_type(spec)


def _unknown_sync_type(spec: JobSpec) -> Iterator[Problem]:
    """Find a ``sync_type`` that the standard does not have; absent is the same as ``poll``."""
    sync_type = spec.common.get("sync_type")
    if sync_type not in (None, "poll", "callback"):
        rule = "is neither poll nor callback; taken as poll"
        yield Problem(f"{_AT}.common.sync_type", rule, sync_type)


def _quorum(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid settings of `gateway.domain.quorum`."""
    yield from _min_parties(spec)
    labels = {party.label for party in spec.parties}
    yield from _names(spec, "required_parties", labels, "a party of the job")
    tasks = {node.name for node in spec.dag.nodes}
    yield from _names(spec, "tolerable_tasks", tasks, "a task of the flow")


def _min_parties(spec: JobSpec) -> Iterator[Problem]:
    """Find numbers of parties that are not possible in the job.

    ``min_parties`` is an object of numbers by role, each at most the role's number of parties.
    """
    at = f"{_AT}.common.min_parties"
    min_parties = spec.common.get("min_parties")
    if min_parties is None:
        return
    if not isinstance(min_parties, Mapping):
        yield Problem(at, "must be an object: role -> number", min_parties)
        return
    counts = Counter(party.role for party in spec.parties)
    for role, number in min_parties.items():
        if role not in counts:
            yield Problem(f"{at}.{role}", "names a role that the job does not have", role)
        elif not _is_whole_number(0, counts[role])(number):
            rule = f"must be a whole number from 0 to {counts[role]}"
            yield Problem(f"{at}.{role}", rule, number)


def _names(
    spec: JobSpec,
    setting: str,
    valid_names: Collection[str],
    kind: str,
) -> Iterator[Problem]:
    """Find invalid names in a common setting that is a list of names.

    ``kind`` says in messages what is named, such as "a task of the flow".
    """
    at = f"{_AT}.common.{setting}"
    names = spec.common.get(setting)
    if names is None:
        return
    if not isinstance(names, list):
        yield Problem(at, "must be a list of names", names)
        return
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in valid_names:
            yield Problem(f"{at}[{i}]", f"must be the name of {kind}", name)


def _inheritance(spec: JobSpec) -> Iterator[Problem]:
    """Find an invalid earlier job, and tasks that cannot be inherited from it."""
    yield from _earlier_job(spec)
    at = f"{_AT}.common.inherit"
    names = spec.common.get("inherit")
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield Problem(at, "must be a list of names of tasks", names)
        return
    yield from _inherited_tasks(spec, names, at)


def _earlier_job(spec: JobSpec) -> Iterator[Problem]:
    """Find an id of an earlier job that is not valid, or the job's own."""
    if not spec.old_job_id:
        return
    rule = name_rule(spec.old_job_id, LARGEST_NAME // 3)
    if not rule and spec.old_job_id == spec.job_id:
        rule = "must be another job"
    if rule:
        yield Problem("old_job_id", rule, spec.old_job_id)


def _inherited_tasks(
    spec: JobSpec,
    names: list[str],
    at: str,
) -> Iterator[Problem]:
    """Find inherited tasks without an earlier job, named twice, or with inputs left to be computed.

    ``at`` is the path of the list in the body.
    """
    if names and not spec.old_job_id:
        yield Problem(at, "needs old_job_id: the job to inherit from", names)
    inherited = set(names)
    if len(inherited) < len(names):
        yield Problem(at, "must not name a task twice", len(names))
    for position, name in enumerate(names):
        rule = _inheritance_rule(spec, name, inherited)
        if rule:
            yield Problem(f"{at}[{position}]", rule, name)


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


# ---------------------------------------------------------------- engines of other platforms
#
# Vendors' images bring their engines with them. Jobs written for other platforms have settings that
# request an engine of the platform; this gateway has none, and rejects the job with a reason.

# Names of engines by their spelling in configurations of other platforms.
ENGINES: Mapping[str, str] = {
    "eggroll": "Eggroll",
    "spark": "Spark",
    "linkis": "Linkis",
    "hive": "Hive",
    "rabbitmq": "RabbitMQ",
    "pulsar": "Pulsar",
}
# Settings by which other platforms choose an engine, with or without the suffix ``_engine``.
_CHOOSING = frozenset({"engine", "engines", "backend", "computing", "federation"})


def foreign_engine(value: Any) -> str:
    """Return the name of the foreign engine that a value requests; empty if it requests none.

    The engine is one of the words between ``_`` and ``-``, such as in ``spark_cluster``.
    """
    if not isinstance(value, str):
        return ""
    for word in value.lower().replace("-", "_").split("_"):
        if word in ENGINES:
            return ENGINES[word]
    return ""


def foreign_engine_rule(engine: str) -> str:
    """Return the message to a job that requests a foreign engine."""
    return (
        f"ENGINE_NOT_HERE: {engine} is the business of a vendor's image, which may bring it along; "
        "this gateway starts containers (or processes in their place) and no computing engine"
    )


def chooses_engine(setting: str) -> bool:
    """Return whether other platforms choose an engine by this setting of a job.

    Such settings are ``engine``, ``computing_engine`` or ``spark_run``.
    """
    word = setting.lower()
    return word.endswith("_run") or word.removesuffix("_engine") in _CHOOSING


def foreign_engines(settings: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Find settings that request an engine, such as ``computing_engine`` or ``spark_run``.

    ``path`` is that of the settings in the body. A setting of this kind without the name of a
    foreign engine is valid.
    """
    for key, value in settings.items():
        for at, engine, requested in _engine_requests(key, value, f"{path}.{key}"):
            if engine:
                yield Problem(at, foreign_engine_rule(engine), requested)


def _engine_requests(
    setting: str,
    value: Any,
    path: str,
) -> Iterator[tuple[str, str, Any]]:
    """Yield path, foreign engine and value of each request that a setting makes.

    The engine is empty if the value names no foreign one. Nothing is yielded for a setting that
    chooses no engine. The value may be an object, such as the engines of several services.
    """
    word = str(setting).lower()
    if word.endswith("_run"):
        yield path, foreign_engine(word.removesuffix("_run")), value
    elif word.removesuffix("_engine") not in _CHOOSING:
        return
    elif isinstance(value, Mapping):
        for part, name in value.items():
            yield f"{path}.{part}".rstrip("."), foreign_engine(name), name
    else:
        yield path, foreign_engine(value), value
