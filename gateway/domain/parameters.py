"""Which value each parameter has at which party, and where it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.domain.spec import Party

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
