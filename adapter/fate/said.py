"""Parts of bodies and of answers that both clients and both routers know."""

from collections.abc import Mapping
from typing import Any

from adapter.fate.keys import Key
from gateway.domain.spec import Failure, NodeId
from gateway.ports import as_mapping


def task_body(key: Key, role: str, node: NodeId) -> dict[str, Any]:
    """Return how a version of a task at one party is named in a body."""
    return {
        "job_id": key.job_id,
        "role": role,
        "party_id": node,
        "task_id": key.task_id,
        "task_version": key.version,
    }


def failure_of(told: Any) -> Failure | None:
    """Read why something failed; None where that is not told."""
    said = as_mapping(told)
    reason, code = said.get("reason"), said.get("exit_code")
    if not isinstance(reason, str) or not reason:
        return None
    words = {name: str(said.get(name) or "") for name in ("message", "node", "role", "task")}
    exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Failure(reason[:255], exit_code=exit_code, **words)


def names_in(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the names that an answer lists under a key; none where it has no such list."""
    found = data.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()
