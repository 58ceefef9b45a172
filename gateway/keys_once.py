"""YAML in which a key that stands twice is a mistake: of two values only one would hold, and nobody said which."""

from collections.abc import Hashable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KeyTwice(Exception):
    """A mapping has a key twice."""

    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(f"{key} stands in line {first} and again in line {second}")
        self.key = key
        self.first = first
        self.second = second


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
