"""Reading YAML: safely, and with an error for a key that one mapping has twice."""

from collections.abc import Hashable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE_KEY = "tag:yaml.org,2002:merge"


class DuplicateKey(Exception):
    """A mapping has a key twice."""

    def __init__(
        self,
        key: str,
        first: int,
        second: int,
    ) -> None:
        """Take the key and its two lines, counted from 1."""
        super().__init__(f"duplicate key {key} in lines {first} and {second}")
        self.key = key
        self.first = first
        self.second = second


class _UniqueKeys(_LOADER):  # type: ignore[misc]
    """Reads YAML safely. Raises `DuplicateKey` where one mapping has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping. Raises `DuplicateKey`."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_KEY:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise DuplicateKey(key.value, lines[key.value], line)
            lines[key.value] = line
        return dict(super().construct_mapping(node, deep=deep))


def load_yaml(text: str) -> Any:
    """Parse YAML. Raises `DuplicateKey`, `yaml.YAMLError` and `ValueError`."""
    return yaml.load(text, Loader=_UniqueKeys)


def syntax_error(error: Exception) -> str:
    """Describe in one line why a text is not YAML, or not JSON, with the line and column if they are known."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error)
    problem = getattr(error, "problem", None) or error
    return f"line {mark.line + 1} column {mark.column + 1}: {problem}"
