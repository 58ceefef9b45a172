"""Origins of settings: the file's line, the environment's variable or the command that set each."""

import json
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.config.schema import PREFIX, Origin
from gateway.data.reading import MIB, NotFit, read_bounded


class Key(NamedTuple):
    """A key of a YAML file, and the setting or section that it names."""

    path: str  # of the setting, such as ``engine.kind``
    line: int  # counted from 1
    is_value: bool  # holds a value, not further keys


def find_origins(
    file: Path | None,
    text: str,
    overrides: Mapping[str, Any],
) -> dict[str, Origin]:
    """Return the origin of every setting that was set, by its path (``engine.kind``).

    - ``file``, ``text``: the configuration file and its content; without a file None and ""
    - ``overrides``: values that the command's options set

    The environment wins over the command, and the command over the file.
    """
    origins: dict[str, Origin] = {}
    for key in _keys(yaml.compose(text, Loader=yaml.SafeLoader)):
        if key.is_value:
            origins[key.path] = Origin("file", f"{file}:{key.line}")
    for path in _leaves(overrides):
        origins[path] = Origin("command")
    for path, variable in _environment():
        origins[path] = Origin("environment", variable)
    return origins


def origin_of(path: str, origins: Mapping[str, Origin]) -> Origin:
    """Return the origin of a setting's value.

    - ``path``: the setting's path, such as ``engine.docker.allow``
    - ``origins``: where settings were set, from `find_origins`

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
    """Return the nearest section around a setting that is among ``paths``, or "" if none is.

    A ``path`` that is itself among them is returned unchanged.
    """
    while path and path not in paths:
        path, _, _ = path.rpartition(".")
    return path


def place_of(file: Path, path: str) -> str:
    """Return where to look for a setting: the variable or the line that sets it.

    - ``file``: the configuration file
    - ``path``: the setting's path, such as ``engine.kind``

    A line is written as ``gateway.yml:12``. For a setting that is missing it is the line of the
    nearest section around the setting. The result is "" if neither a variable nor the file has the
    setting or such a section, or if the file cannot be read.
    """
    variables = dict(_environment())
    nearest = _nearest(path, variables)
    if nearest:
        return variables[nearest]
    try:
        text = read_bounded(file, MIB).decode()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = {key.path: key.line for key in _keys(root)}
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
        content: Any = value
        with suppress(ValueError, RecursionError):  # a text that is not JSON is a single value
            content = json.loads(value)
        for inner in _leaves({path: content}):
            yield inner, name


def _keys(node: Any, prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a YAML node and of the mappings below it.

    ``prefix`` is the node's path with a dot at its end; "" for the whole file. Entries of lists
    have no path; other nodes than mappings, and an empty file (None), have no keys.
    """
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        has_keys = isinstance(value, yaml.MappingNode) and bool(value.value)
        yield Key(path, key.start_mark.line + 1, is_value=not has_keys)
        yield from _keys(value, f"{path}.")


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of the single values in a section and in the sections below it.

    ``prefix`` is the section's path with a dot at its end; "" for the settings as a whole. An empty
    section below counts as a value.
    """
    for key, value in section.items():
        path = f"{prefix}{key}"
        has_entries = isinstance(value, Mapping) and bool(value)
        if has_entries:
            yield from _leaves(value, f"{path}.")
        else:
            yield path
