"""YAML, and JSON, in which a key that stands twice is a mistake: of two values only one would hold."""

import json
from collections.abc import Hashable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MOST_LEVELS = 500


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


def load_yaml(text: str) -> Any:
    """Return what YAML says. Raises `KeyTwice`, `yaml.YAMLError`, `ValueError`, and `RecursionError` early.

    The reader itself calls itself for each level, be it by brackets or by dashes, until the process dies.
    """
    if len(text) > _MOST_LEVELS:  # a level takes a character at least
        _check_depth(text)
    return yaml.load(text, Loader=KeysOnce)


def _check_depth(text: str) -> None:
    """Raise `RecursionError` for what is nested too deeply, as soon as that is read; `yaml.YAMLError`."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            depth += 1
            if depth > _MOST_LEVELS:
                raise RecursionError
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def half_a_letter(text: str, value: Any) -> bool:
    """Tell whether something that was read from a text holds what UTF-8 cannot say, such as ``\\ud800`` alone."""
    if "\\u" not in text.lower():
        return False
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def wrong_in(error: Exception) -> str:
    """Say in one line where text is no YAML, or no JSON, and why, without the parser's own ornaments."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1} column {mark.column + 1}: {getattr(error, 'problem', None) or error}"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}: {error.msg}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
