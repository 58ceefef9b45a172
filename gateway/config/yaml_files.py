"""Reads YAML with safe types only, and refuses a mapping that has the same key twice."""

from collections.abc import Hashable
from typing import Any

import yaml

# libyaml's loader is faster; it is missing where PyYAML was built without libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE_KEY = "tag:yaml.org,2002:merge"  # the tag of ``<<``, which a mapping may repeat


class DuplicateKey(Exception):
    """A mapping has the same key twice; YAML itself would silently use the last one."""

    def __init__(
        self,
        key: str,
        first: int,
        second: int,
    ) -> None:
        """Describe a key and the two lines with it, counted from 1."""
        super().__init__(f"duplicate key {key} in lines {first} and {second}")
        self.key = key
        self.first = first
        self.second = second


class _UniqueKeys(_LOADER):  # type: ignore[misc]  # the base class is chosen at run time
    """Loader of safe YAML that refuses duplicate keys."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,
    ) -> dict[Hashable, Any]:
        """Return the mapping of a node. Raises `DuplicateKey`."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            is_plain_key = isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_KEY
            if not is_plain_key:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise DuplicateKey(key.value, lines[key.value], line)
            lines[key.value] = line
        return dict(super().construct_mapping(node, deep=deep))


def load_yaml(text: str) -> Any:
    """Return the content of a YAML text; None if it is empty.

    Raises `DuplicateKey`, `yaml.YAMLError`, and `ValueError` for a value that its type cannot hold,
    such as a date that does not exist.
    """
    return yaml.load(text, Loader=_UniqueKeys)


def syntax_error(error: Exception) -> str:
    """Describe in one line why a text cannot be parsed as YAML or JSON.

    The description begins with line and column, counted from 1, if the parser named them.
    """
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error)
    problem = getattr(error, "problem", None) or error
    return f"line {mark.line + 1} column {mark.column + 1}: {problem}"
