"""YAML, and JSON, in which a key that stands twice is a mistake: of two values only one would hold."""

import json
from collections.abc import Hashable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KeyTwice(Exception):
    """A mapping has a key twice. The lines are 0 where they are not known."""

    def __init__(self, key: str, first: int = 0, second: int = 0) -> None:
        at = f" in line {first} and again in line {second}" if first else " twice in one object"
        super().__init__(f"{key} stands{at}")
        self.key = key
        self.first = first
        self.second = second


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON from its pairs, as ``object_pairs_hook``. Raises `KeyTwice`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise KeyTwice(name)
            seen.add(name)
    return found


class KeysOnce(_LOADER):  # type: ignore[misc]
    """Reads YAML safely. Raises `KeyTwice` where one mapping has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping. Raises `KeyTwice`."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in lines:
                    raise KeyTwice(key.value, lines[key.value], line)
                lines[key.value] = line
        return dict(super().construct_mapping(node, deep=deep))


def wrong_in(error: Exception) -> str:
    """Say in one line where text is no YAML, or no JSON, and why, without the parser's own ornaments."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1} column {mark.column + 1}: {getattr(error, 'problem', None) or error}"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}: {error.msg}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
