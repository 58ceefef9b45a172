"""Problems of an input, from the framework's words into ours and onto the wire."""

import math
from collections.abc import Iterable
from typing import Any

from gateway.domain.problems import Problem


def problems_of(errors: Any) -> list[Problem]:
    """Turn the framework's list of validation errors into problems with our kind of path."""
    found = []
    for error in errors:
        where = list(error.get("loc", ()))
        if where and where[0] in ("body", "query", "path", "header"):
            where = where[1:]
        found.append(Problem(join(where) or "body", str(error.get("msg", "is not valid")), error.get("input")))
    return found


def join(parts: Any) -> str:
    """Join keys and indices into a path such as ``config.role.guest[0]``."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def shown(value: Any, limit: int = 500) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bool, int, type(None))):
        return value
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + "…"


def listed(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return problems as an answer lists them."""
    return [
        {"path": shown(p.path), "rule": shown(p.rule), "got": shown(p.got)}
        | ({"suggestion": shown(p.suggestion)} if p.suggestion else {})
        for p in problems
    ]
