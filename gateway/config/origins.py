"""Origins of settings: lines of the configuration file, variables of the environment, options of a command."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.config.schema import PREFIX, Origin
from gateway.data.reading import MIB, NotFit, read_bounded


class Key(NamedTuple):
    """A key in a YAML file."""

    path: str  # of the setting, such as ``engine.kind``
    line: int  # counted from 1
    is_value: bool  # holds a value, not further keys


def find_origins(
    file: Path | None,
    text: str,
    overrides: Mapping[str, Any],
) -> dict[str, Origin]:
    """Return the origin of every setting that was set.

    The environment overrides the command and the file.
    """
    origins: dict[str, Origin] = {}
    if file is not None:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        for key in _keys(tree, ""):
            if key.is_value:
                origins[key.path] = Origin("file", f"{file}:{key.line}")
    for path in _leaves(overrides):
        origins[path] = Origin("command")
    for path, variable in _environment():
        origins[path] = Origin("environment", variable)
    return origins


def origin_of(path: str, origins: Mapping[str, Origin]) -> Origin:
    """Return the origin of a value, of the first one set inside it, or of the nearest section around it."""
    if path not in origins:
        for inner, origin in origins.items():
            if inner.startswith(f"{path}."):
                return origin
    while path:
        if path in origins:
            return origins[path]
        path, _, _ = path.rpartition(".")
    return Origin("default")


def place_of(file: Path, path: str) -> str:
    """Return the variable or line of a setting, or of the section that lacks it.

    "" if nothing sets it.
    """
    for outer, variable in _environment():
        if f"{path}.".startswith(f"{outer}."):
            return variable
    try:
        text = read_bounded(file, MIB).decode()
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, NotFit, ValueError, yaml.YAMLError):
        return ""
    lines = {key.path: key.line for key in _keys(tree, "")}
    while path and path not in lines:
        path, _, _ = path.rpartition(".")
    return f"{file.name}:{lines[path]}" if path else ""


def _environment() -> Iterator[tuple[str, str]]:
    """Yield path and variable of each setting in the environment."""
    for name, value in os.environ.items():
        if not name.startswith(PREFIX):
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        for inner in _leaves(_parse_variable(value), path):
            yield inner, name


def _parse_variable(text: str) -> Any:
    """Return the value of a variable: JSON for a section, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _keys(node: Any, section: str) -> Iterator[Key]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = _join(section, key.value)
        has_keys = isinstance(value, yaml.MappingNode) and bool(value.value)
        yield Key(path, key.start_mark.line + 1, is_value=not has_keys)
        yield from _keys(value, path)


def _leaves(data: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the single values and of empty sections."""
    is_section = isinstance(data, Mapping) and (data or not path)
    if not is_section:
        yield path
        return
    for key, value in data.items():
        yield from _leaves(value, _join(path, key))


def _join(section: str, key: object) -> str:
    return f"{section}.{key}" if section else str(key)
