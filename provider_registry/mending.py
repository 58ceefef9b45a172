"""What is unusual about a description that cannot be used: its broken parts are left out, and the rest is read.

A vendor then mends errors and warnings in one go, and no warning is told of a part that has an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from provider_registry.limits import join
from provider_registry.model import Problem

_LISTS = ("inputParam", "inputData", "outputData", "result")
_FILLED: Mapping[str, Any] = {
    "componentName": "unnamed",
    "roleList": ["guest"],
    "inputParam": [],
    "inputData": [],
    "outputData": [],
}
"""what stands in for a field that must be there"""


def mended(
    document: Mapping[str, Any], problems: Sequence[Problem], path: str
) -> tuple[dict[str, Any], list[str]]:
    """Return a document without what has a problem, and the places that were left out.

    Entries of lists keep their positions and, where they have one, their names, which others may refer to.
    """
    told = {problem.path for problem in problems}

    def broken(at: str) -> bool:
        return any(p == at or p.startswith((f"{at}.", f"{at}[")) for p in told)

    whole = dict(document)
    left_out: list[str] = []
    for field in {**_FILLED, **document}:
        at = join(path, field)
        if not broken(at):
            continue
        items = document.get(field)
        if field in _LISTS and isinstance(items, list) and at not in told:
            bad = [i for i in range(len(items)) if broken(join(at, i))]
            whole[field] = [_stand_in(field, i, item) if i in bad else item for i, item in enumerate(items)]
            left_out += [join(at, i) for i in bad]
            continue
        whole.pop(field, None)
        left_out.append(at)
        if field in _FILLED:
            whole[field] = _FILLED[field]
    return whole, left_out


def outside(warnings: Sequence[Problem], left_out: Sequence[str]) -> tuple[Problem, ...]:
    """Return the warnings that are not about what was left out."""
    return tuple(
        w for w in warnings if not any(w.path == at or w.path.startswith((f"{at}.", f"{at}[")) for at in left_out)
    )


def _stand_in(field: str, position: int, item: Any) -> dict[str, Any]:
    if field == "result":
        return {"resultCode": f"left-out-{position}", "resultMessage": ""}
    name = item.get("name") if isinstance(item, Mapping) else None
    kept = name if isinstance(name, str) and name and not name.isspace() else f"left-out-{position}"
    if field == "inputParam":
        return {"name": kept, "type": "string", "optional": True}
    return {"name": kept, "category": "dataset", "dataFormat": ["csv"]}
