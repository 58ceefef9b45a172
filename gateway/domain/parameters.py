"""Which value each parameter has at which party, and where it came from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

from gateway.domain import checkpoints, models, resources, validation
from gateway.domain import spec as domain_spec
from gateway.domain.problems import LARGEST_NAME, Problem, index_of, name_rule
from gateway.domain.spec import JobSpec, NodeId, Party

MOST_KEYS = 1000
LONGEST_KEY = 4096
"""characters of an index key such as ``0|1|2``"""
MOST_WARNINGS = 200
MOST_MEANT = 20
"""unknown names of one job of which it is looked for what was meant: each takes a while"""
_LONGEST_WORD = 100
"""characters; a longer name is no mistyped one"""
_MOST_KNOWN = 200
"""names that one of them is compared with"""
MOST_AT_NODE = 50
"""parties that one node plays in a job; each is a container of every task"""

DATA_LOCATION = frozenset({"dataset_id"})
"""Keys of a party's own entry that say where its data lies; they are never handed on as parameters."""


@dataclass(frozen=True)
class Effective:
    """A parameter's value and the entry it was taken from, such as ``common`` or ``guest.0``."""

    value: Any
    origin: str


def overlay(params: Mapping[str, Any], party: Party, task: str) -> dict[str, Effective]:
    """Merge the entries that the role holds for this index: role index over common is done by `effective`."""
    found: dict[str, Effective] = {}
    by_index = params.get(party.role)
    if not isinstance(by_index, Mapping):
        return found
    for key, by_task in by_index.items():
        if str(party.index) not in str(key).split("|") or not isinstance(by_task, Mapping):
            continue
        values = by_task.get(task)
        if isinstance(values, Mapping):
            found |= {name: Effective(value, f"{party.role}.{key}") for name, value in values.items()}
    return found


def effective(params: Mapping[str, Any], party: Party, task: str) -> dict[str, Effective]:
    """Return the parameters of a task at a party: common, overlaid by the party's own, shallow.

    Data locations are left out: ``dataset_id`` of the party's own entry names an input, not a parameter.
    """
    merged: dict[str, Effective] = {}
    common = params.get("common")
    values = common.get(task) if isinstance(common, Mapping) else None
    if isinstance(values, Mapping):
        merged = {name: Effective(value, "common") for name, value in values.items()}
    own = overlay(params, party, task)
    return merged | {name: value for name, value in own.items() if name not in DATA_LOCATION}


def data_location(params: Mapping[str, Any], party: Party, task: str) -> Mapping[str, str] | None:
    """Return ``{dataset_id}`` or ``{namespace, name}`` of the party's own entry, if it has one."""
    own = overlay(params, party, task)
    if "dataset_id" in own:
        return {"dataset_id": str(own["dataset_id"].value)}
    if "namespace" in own and "name" in own:
        return {"namespace": str(own["namespace"].value), "name": str(own["name"].value)}
    return None


def unlisted(initiator: NodeId, role: str, path: str = "config") -> Problem:
    """Return the mistake of an initiator that does not hold the role it claims."""
    return Problem(f"{path}.initiator.node_id", f"must be listed under config.role.{role}", initiator)


def check(spec: JobSpec, path: str = "config") -> tuple[list[Problem], list[Problem]]:
    """Find what is wrong with roles and parameters: (problems that refuse the job, warnings).

    Refused: no party at all, an initiator that does not hold the role it claims, more or longer index keys than
    any job needs. Warned: parameters of a task, role or index that the job does not have, up to `MOST_WARNINGS`;
    a job that is `strictness.KEY` is refused for those.
    """
    problems: list[Problem] = models.check(spec, path)
    warnings: list[Problem] = []
    for at, name in (("job_id", spec.job_id), *((f"{path}.role.{p.role}", p.role) for p in spec.parties)):
        if rule := name_rule(name, LARGEST_NAME // 3):
            problems.append(Problem(at, rule, name))
    if not spec.parties:
        problems.append(Problem(f"{path}.role", "must name at least one node", {}))
    elif not any(p.node == spec.initiator and p.role == spec.initiator_role for p in spec.parties):
        problems.append(unlisted(spec.initiator, spec.initiator_role, path))
    if crowded := [
        f"{node} ({n})" for node, n in Counter(p.node for p in spec.parties).items() if n > MOST_AT_NODE
    ]:
        problems.append(Problem(f"{path}.role", f"must not name one node more than {MOST_AT_NODE} times", crowded))
    count = Counter(p.role for p in spec.parties)
    tasks = {node.name: None for node in spec.dag.nodes}
    meant = _Meant()
    problems += domain_spec.check(spec.job_params.get("common"), tasks, f"{path}.job_params.common")
    problems += checkpoints.check(spec.job_params.get("common"), f"{path}.job_params.common")
    for name, params in (("job_params", spec.job_params), ("task_params", spec.task_params)):
        for role, by_index in params.items():
            at = f"{path}.{name}.{role}"
            if not isinstance(by_index, Mapping):
                problems.append(Problem(at, "must be an object", by_index))
            elif role == "common":
                if name == "task_params":
                    warnings += _unknown_tasks(by_index, tasks, at, meant)
            elif len(by_index) > MOST_KEYS or any(len(key) > LONGEST_KEY for key in by_index):
                rule = f"must not have more than {MOST_KEYS} keys, nor one of more than {LONGEST_KEY} characters"
                problems.append(Problem(at, rule, len(by_index)))
            else:
                if role in count:
                    warnings += _unknown_indices(by_index, role, count[role], at)
                else:
                    rule = "is no role of this job, so nobody gets this"
                    warnings.append(Problem(at, rule, role, meant.by(role, ("common", *count))))
                if name == "task_params":
                    for key, by_task in by_index.items():
                        if isinstance(by_task, Mapping):
                            warnings += _unknown_tasks(by_task, tasks, f"{at}.{key}", meant)
    problems += resources.check(spec, f"{path}.job_params")
    problems += validation.check_foreign(spec.job_params, f"{path}.job_params")
    warnings += [key.problem for key in spec.unread]
    warnings += validation.check(spec, f"{path}.job_params")
    problems += validation.check_strictness(spec, f"{path}.job_params.common")
    return validation.applied(spec, problems, warnings[:MOST_WARNINGS])


def _unknown_tasks(
    by_task: Mapping[str, Any], tasks: Mapping[str, None], at: str, meant: "_Meant"
) -> list[Problem]:
    return [
        Problem(f"{at}.{task}", "names a task that is not in the flow", task, meant.by(task, tasks))
        for task in by_task
        if task not in tasks
    ]


class _Meant:
    """Finds what was probably meant by the first unknown names of a job."""

    def __init__(self) -> None:
        self._left = MOST_MEANT

    def by(self, word: str, known: Iterable[str]) -> str:
        """Return which of the known words; empty where that is not clear, or was looked for too often."""
        if not self._left or len(word) > _LONGEST_WORD:
            return ""
        self._left -= 1
        found = get_close_matches(word.lower(), list(islice(known, _MOST_KNOWN)), n=1, cutoff=0.7)
        return found[0] if found else ""


def _unknown_indices(by_index: Mapping[str, Any], role: str, count: int, at: str) -> list[Problem]:
    found: list[Problem] = []
    for key in by_index:
        indices = map(index_of, key.split("|"))
        if any(index is None or index >= count for index in indices):
            found.append(Problem(f"{at}.{key}", f"is no index of a {role}: the job has {count}", key))
    return found
