"""Where the values of a configuration come from: the file's line, an environment variable, whoever started it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Origin:
    """Where a setting comes from."""

    kind: str
    """default, file, environment or command"""
    where: str = ""
    """file and line, or the variable's name"""


DEFAULT = Origin("default")
Origins = Mapping[str, Origin]
"""by path, such as ``engine.kind``; what is not in it, nor below something in it, is a default"""


def origins(
    path: Path | None, text: str, overrides: Mapping[str, Any], environment: Mapping[str, str], prefix: str
) -> Origins:
    """Find the origin of everything that was set; what goes over another comes later."""
    found: dict[str, Origin] = {}
    if path is not None:
        found |= {at: Origin("file", f"{path}:{line}") for at, line in _lines(text)}
    found |= {at: Origin("command") for at in _leaves(overrides)}
    for name, value in environment.items():
        if name.startswith(prefix):
            at = name[len(prefix) :].lower().replace("__", ".")
            found |= {inner: Origin("environment", name) for inner in _set_by(at, value)}
    return found


def origin_of(path: str, known: Origins) -> Origin:
    """Return the origin of a value, of the first thing set inside it, or of the nearest section around it."""
    if path not in known:
        for inner, origin in known.items():
            if inner.startswith(f"{path}."):
                return origin
    while path:
        if path in known:
            return known[path]
        path = path.rpartition(".")[0]
    return DEFAULT


def _lines(text: str) -> Iterator[tuple[str, int]]:
    try:
        yield from _nodes(yaml.compose(text, Loader=yaml.SafeLoader), "")
    except (yaml.YAMLError, RecursionError):  # whoever reads it as a configuration says so
        return


def _nodes(node: Any, at: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = f"{at}.{key.value}" if at else str(key.value)
        if not isinstance(value, yaml.MappingNode) or not value.value:
            yield inner, key.start_mark.line + 1
        yield from _nodes(value, inner)


def _leaves(data: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for key, value in data.items():
        inner = f"{at}.{key}" if at else str(key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, inner)
        else:
            yield inner


def _set_by(at: str, value: str) -> Iterator[str]:
    """Yield what a variable sets: a value, or all that it holds of a section as JSON."""
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        data = value
    if isinstance(data, Mapping) and data:
        yield from _leaves(data, at)
    else:
        yield at
