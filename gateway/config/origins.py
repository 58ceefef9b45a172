"""Origins of settings: the file's line, the environment's variable or the command that set each."""

import json
import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.config.schema import PREFIX, Origin
from gateway.data.reading import MIB, NotFit, read_bounded


class Key(NamedTuple):
    """A key of a YAML file, as it counts for the origins of settings."""

    path: str  # of the setting, such as ``engine.kind``
    line: int  # counted from 1
    is_value: bool  # holds a value, not further keys


def find_origins(
    file: Path | None,
    text: str,
    overrides: Mapping[str, Any],
) -> dict[str, Origin]:
    """Return the origin of every setting that was set, by its path (``engine.kind``).

    - ``file``, ``text``: the configuration file and its content; None and "" without one
    - ``overrides``: values that the command's options set

    The environment wins over the command, and the command over the file.
    """
    origins: dict[str, Origin] = {}
    if file is not None:
        for key in _keys_of_text(text):
            if key.is_value:
                origins[key.path] = Origin("file", f"{file}:{key.line}")
    for path in _leaves(overrides):
        origins[path] = Origin("command")
    for path, variable in _environment():
        origins[path] = Origin("environment", variable)
    return origins


def origin_of(path: str, origins: Mapping[str, Origin]) -> Origin:
    """Return the origin of a setting's value.

    - ``path``: of the setting, such as ``engine.docker.allow``
    - ``origins``: of the settings that were set, from `find_origins`

    For a section that was set key by key, this is the origin of its first key that was set. For a
    value inside something that was set as a whole, it is the origin of the nearest such section.
    """
    if path in origins:
        return origins[path]
    for inner, origin in origins.items():
        if inner.startswith(f"{path}."):
            return origin
    nearest = _nearest(path, origins)
    return origins.get(nearest, Origin("default"))


def _nearest(path: str, paths: Container[str]) -> str:
    """Return the path itself or the nearest section around it that is among ``paths``; else ""."""
    while path and path not in paths:
        path, _, _ = path.rpartition(".")
    return path


def place_of(file: Path, path: str) -> str:
    """Return where to look for a setting: the variable or the line that sets it.

    For a setting that is missing, the line of the nearest section around it, as
    ``gateway.yml:12``. "" if nothing sets it, or if the file cannot be read.
    """
    for variable_path, variable in _environment():
        if f"{path}.".startswith(f"{variable_path}."):
            return variable
    try:
        text = read_bounded(file, MIB).decode()
        lines = {key.path: key.line for key in _keys_of_text(text)}
    except (OSError, NotFit, ValueError, yaml.YAMLError):
        return ""
    nearest = _nearest(path, lines)
    if not nearest:
        return ""
    return f"{file.name}:{lines[nearest]}"


def _environment() -> Iterator[tuple[str, str]]:
    """Yield path and variable of each setting that the environment sets.

    A variable whose value is a JSON object sets several settings.
    """
    for name, value in os.environ.items():
        if not name.startswith(PREFIX):
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        for inner in _leaves(_parse_variable(value), path):
            yield inner, name


def _parse_variable(text: str) -> Any:
    """Return the value of a variable: JSON is parsed (a section or list), any other text stays."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _keys_of_text(text: str) -> Iterator[Key]:
    """Yield all keys of a YAML text. Raises `yaml.YAMLError`."""
    return _keys(yaml.compose(text, Loader=yaml.SafeLoader), "")


def _keys(node: Any, section: str) -> Iterator[Key]:
    """Yield the keys of a YAML node and of the mappings below it.

    ``section`` is the node's path, "" for the whole file. Entries of lists have no path.
    """
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = _join(section, key.value)
        has_keys = isinstance(value, yaml.MappingNode) and bool(value.value)
        yield Key(path, key.start_mark.line + 1, is_value=not has_keys)
        yield from _keys(value, path)


def _leaves(data: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the single values in the data, which is at a path of the settings.

    An empty section counts as a value; the settings as a whole (path "") do not.
    """
    is_mapping = isinstance(data, Mapping)
    is_empty_section = is_mapping and not data and path
    if not is_mapping or is_empty_section:
        yield path
        return
    for key, value in data.items():
        yield from _leaves(value, _join(path, key))


def _join(section: str, key: object) -> str:
    """Return the path of a key in a section; the whole file is the section ""."""
    if not section:
        return str(key)
    return f"{section}.{key}"
