"""Validation of a job as submitted: its flow, parties, settings and parameters.

`check` returns problems, which reject the job, and warnings, which do not. A setting that this
gateway does not know is a warning, as other platforms may know it. With ``strict`` in the common
settings every warning is a problem.

The node that submits a job also knows the components of its tasks (``roles_of``). At that node
three more mistakes reject the job: parameters of a task that the flow does not have, a dataset that
was probably forgotten, and a role that was probably misspelled.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from gateway.domain import dag as flow
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.entries import entries_of, objects_in, probable_name, unknown_names
from gateway.domain.job_setting_checks import setting_problems, unknown_settings
from gateway.domain.problems import (
    LARGEST_NAME,
    Problem,
    index_of,
    is_unprintable,
    name_rule,
    violation,
)
from gateway.domain.spec import JobSpec, NodeId, Party, data_location, overlay, role_entries

MOST_WARNINGS = 100  # largest number of unknown tasks, or other entries, reported for one job
MOST_KEYS = 1000  # keys with indices that one role may have in settings or parameters
MOST_JOINED = 8192  # characters of a role's keys that join indices, such as ``0|1|2``
MOST_AT_NODE = 50  # parties that one node plays in a job; every task has a container for each
# Bytes of one parameter with its name. A container gets each as an environment variable; Linux
# passes at most 128 KiB, which the gateway's own prefix of the name shares.
_LARGEST_PARAMETER = 131_000


def check(
    spec: JobSpec,
    roles_of: RolesOf | None = None,
) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that reject the job, and the warnings; both empty for a valid job.

    ``roles_of`` returns the roles of a task's component. It is None for a job that another node
    submitted: names that this gateway does not know may be known there, and are warnings only.

    At most `MOST_WARNINGS` parameters of unknown tasks are reported, and as many other unknown
    entries. A job with so many indices that the checks would take too long is reported for these
    alone.
    """
    oversized = list(_oversized_entries(spec))
    if oversized:
        return oversized, []
    problems = list(_problems(spec))
    unknown_fields = [field.problem for field in spec.unknown_fields]
    unknown_tasks = list(islice(_unknown_tasks(spec), MOST_WARNINGS))
    unknown_entries = chain(_unknown_parties(spec), unknown_settings(spec))
    if roles_of is None:
        all_warnings = chain(unknown_fields, unknown_tasks, unknown_entries)
        warnings = list(islice(all_warnings, MOST_WARNINGS))
        return with_strictness(spec, problems, warnings)
    role_problems, role_warnings = idle_roles(spec, roles_of)
    problems += unknown_tasks
    problems += _without_dataset(spec, roles_of)
    problems += role_problems
    warnings = list(islice(chain(unknown_fields, unknown_entries), MOST_WARNINGS))
    warnings += role_warnings
    return with_strictness(spec, problems, warnings)


def _problems(spec: JobSpec) -> Iterator[Problem]:
    """Find everything that makes a job invalid at any node, whatever components it knows.

    The problems come in the order of the sections of a job's body.
    """
    yield from flow.check(spec.dag)
    yield from _names_and_parties(spec)
    yield from _non_objects(spec)
    yield from _parameters(spec)
    yield from setting_problems(spec)


def with_strictness(
    spec: JobSpec,
    problems: Sequence[Problem],
    warnings: Sequence[Problem],
) -> tuple[list[Problem], list[Problem]]:
    """Return problems and warnings as the job's ``strict`` setting has them.

    In a strict job every warning is a problem, after the others, and no warning is left. In any
    other job problems and warnings are returned as they are.
    """
    if spec.settings.strict:
        return [*problems, *warnings], []
    return list(problems), list(warnings)


# ---------------------------------------------------------------- parties and their entries


def unlisted_initiator(initiator: NodeId, role: str) -> Problem:
    """Return the problem of an initiator that does not play the role it claims.

    ``initiator`` is a node's id.
    """
    return Problem(
        "config.initiator.node_id",
        f"must be listed under config.role.{role}",
        initiator,
    )


def _names_and_parties(spec: JobSpec) -> Iterator[Problem]:
    """Find invalid names, and parties that do not make a job.

    A job needs at least one party, its initiator must be one of them in the role that it claims,
    and no node may play more than `MOST_AT_NODE` parties.
    """
    yield from _invalid_names(spec)
    yield from _joined_roles(spec)
    initiator_roles = [party.role for party in spec.parties_at(spec.initiator)]
    if not spec.parties:
        yield Problem("config.role", "must name at least one node", {})
    elif spec.initiator_role not in initiator_roles:
        yield unlisted_initiator(spec.initiator, spec.initiator_role)
    yield from _crowded_nodes(spec)


def _crowded_nodes(spec: JobSpec) -> Iterator[Problem]:
    """Find nodes that play more than `MOST_AT_NODE` parties; one problem names all of them.

    Each node is named with its number of parties.
    """
    counts = Counter(party.node for party in spec.parties)
    crowded = [f"{node} ({count})" for node, count in counts.items() if count > MOST_AT_NODE]
    if crowded:
        yield Problem(
            "config.role",
            f"must not name one node more than {MOST_AT_NODE} times",
            crowded,
        )


def _invalid_names(spec: JobSpec) -> Iterator[Problem]:
    """Find a job id, roles or a flow id that cannot be parts of folders and messages.

    Names of folders and containers join the id and a role with the task and more, so each may have
    only a third of the longest name.
    """
    names = [("job_id", spec.job_id)]
    for party in spec.parties:
        names.append((f"config.role.{party.role}", party.role))
    for path, name in names:
        rule = name_rule(name, LARGEST_NAME // 3)
        yield from violation(path, rule, name)
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


def _oversized_entries(spec: JobSpec) -> Iterator[Problem]:
    """Find roles with more indices than can be looked through for every task of every party.

    A role has at most `MOST_KEYS` keys, and `MOST_JOINED` characters in keys such as ``0|1|2``.
    """
    rule = f"must not have more than {MOST_KEYS} keys, nor {MOST_JOINED} characters in joined ones"
    for name, params in _sections(spec):
        for role, by_index in role_entries(params):
            if _is_oversized(by_index):
                yield Problem(
                    f"config.{name}.{role}",
                    rule,
                    len(by_index),
                )


def _is_oversized(by_index: Mapping[str, Any]) -> bool:
    """Return whether the entry of a role has too many keys, or too long ones that join indices.

    The bounds are `MOST_KEYS` keys, and `MOST_JOINED` characters in joined keys together.
    """
    characters = sum(len(key) for key in by_index if "|" in key)
    return len(by_index) > MOST_KEYS or characters > MOST_JOINED


def _non_objects(spec: JobSpec) -> Iterator[Problem]:
    """Find roles whose entry in the job's settings or parameters is not an object.

    The other checks skip such an entry, so that it is reported only here.
    """
    for name, params in _sections(spec):
        for role, entry in params.items():
            if not isinstance(entry, Mapping):
                yield Problem(
                    f"config.{name}.{role}",
                    "must be an object",
                    entry,
                )


def _parameters(spec: JobSpec) -> Iterator[Problem]:
    """Find parameters that no container can get, by their name, characters or size.

    Values that should be objects and are not are skipped: `_non_objects` reports entries of roles.
    """
    for origin, by_task in entries_of(spec.task_params):
        for task, values in objects_in(by_task):
            path = f"config.task_params.{origin}.{task}"
            yield from _invalid_parameters(values, path)


def _invalid_parameters(
    values: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Find the invalid parameters of one task in one entry, which is at ``path`` in the body."""
    for name, value in values.items():
        rule = _parameter_rule(name, value)
        yield from violation(f"{path}.{name}", rule, value)


def _parameter_rule(name: str, value: Any) -> str:
    """Return the rule that a parameter breaks; empty for a valid one.

    A container gets it as an environment variable: text as it is, any other value as JSON. So
    neither a ``=`` in the name nor a zero character is possible, and Linux bounds the size.
    """
    if name == "" or not {"=", "\0"}.isdisjoint(name):
        return "must have a name without = and without zero characters"
    text = value
    if not isinstance(value, str):
        text = json.dumps(
            value,
            ensure_ascii=False,
        )
    if "\0" in text:
        return "must not hold zero characters"
    size = len(name.encode()) + len(text.encode())
    if size > _LARGEST_PARAMETER:
        return f"must have at most {_LARGEST_PARAMETER} bytes with its name"
    return ""


def _sections(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
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
    for role, by_index in objects_in(spec.task_params):
        at = f"config.task_params.{role}"
        if role == "common":
            yield from unknown_names(by_index, tasks, at, rule)
        elif role in roles:
            for key, by_task in objects_in(by_index):
                yield from unknown_names(by_task, tasks, f"{at}.{key}", rule)


def _without_dataset(spec: JobSpec, roles_of: RolesOf) -> Iterator[Problem]:
    """Find parties without a dataset for a task that another party has a dataset for.

    Only tasks that read no output of other tasks are checked, and only if their component is known.
    An arbiter has no data. A party that is meant to read nothing says so with an empty
    ``dataset_id``.
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
        # a party with an empty ``dataset_id`` reads nothing on purpose
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
    for name, params in _sections(spec):
        for role, by_index in objects_in(params):
            path = f"config.{name}.{role}"
            if role in counts:
                yield from _unknown_indices(
                    by_index,
                    role,
                    counts[role],
                    path,
                )
            elif role != "common":
                yield Problem(
                    path,
                    "is not a role of this job, so no party gets this entry",
                    role,
                    probable_name(role, ("common", *counts)),
                )


def _unknown_indices(
    keys: Iterable[str],
    role: str,
    number: int,
    path: str,
) -> Iterator[Problem]:
    """Find keys of a role with an index that none of its parties has.

    A key is one index or several joined by ``|``. The role has ``number`` parties, whose indices
    begin at 0. ``path`` is the path of the role's entry in the body.
    """
    for key in keys:
        wrong = [text for text in key.split("|") if index_of(text) not in range(number)]
        if not wrong:
            continue
        labels = ", ".join(f"{role}.{text}" for text in wrong)
        yield Problem(
            f"{path}.{key}",
            f"{labels} is not a party of this job: {_parties_in_words(role, number)}",
            key,
        )


def _parties_in_words(role: str, number: int) -> str:
    """Return the parties of a role, such as ``guest has guest.0 alone``."""
    if number == 1:
        return f"{role} has {role}.0 alone"
    return f"{role} has {role}.0 to {role}.{number - 1}"


def idle_roles(
    spec: JobSpec,
    roles_of: RolesOf,
) -> tuple[list[Problem], list[Problem]]:
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
    idle = [role for role in played if role not in components]
    problems = []
    warnings = []
    for role in idle:
        path = f"config.role.{role}"
        rule = f"is a role that no component of the flow has; they have {', '.join(components)}"
        suggestion = probable_name(role, unplayed)
        if suggestion:
            problems.append(Problem(path, rule, role, suggestion))
            unplayed.remove(suggestion)  # explained by the misspelling, so no warning
        else:
            rule = f"{rule}, so its parties have nothing to do"
            remedy = "leave the role out, or add a component that has it"
            warnings.append(Problem(path, rule, role, remedy=remedy))
    for role in unplayed:
        path = f"config.role.{role}"
        rule = f"is missing: {components[role]} has this role, and may fail or wait without it"
        remedy = f"name a node that plays {role}"
        warnings.append(Problem(path, rule, remedy=remedy))
    return problems, warnings


def _components_by_role(
    spec: JobSpec,
    roles_of: RolesOf,
) -> dict[str, str] | None:
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
