"""YAML, and JSON, in which a key that stands twice is a mistake: of two values only one would hold."""

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.data.files import MIB, NotFit, whole
from gateway.domain.problems import Problem
from gateway.errors import Invalid

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


HIDDEN = "(not shown)"
"""instead of what may be a secret"""


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text and what it says. Raises `Invalid`; the text of a problem shows nothing of a value."""
    try:
        text = whole(path, MIB).decode()
        data: Any = load_yaml(text)
    except OSError as error:
        raise Invalid([Problem(str(path), "cannot be read", error.strerror)]) from error
    except NotFit as error:
        raise Invalid([Problem(str(path), str(error).removeprefix(f"{path} "))]) from error
    except UnicodeDecodeError as error:
        raise Invalid([Problem(str(path), "must be text in UTF-8", f"byte {error.start}")]) from error
    except KeyTwice as error:
        rule = f"stands in line {error.first} and again in line {error.second}; keep one of them"
        raise Invalid([Problem(error.key, rule, HIDDEN)]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Invalid([Problem(str(path), f"must be YAML: {wrong_in(error)}")]) from error
    if _deep(data):
        raise Invalid([Problem(str(path), "is nested too deeply")])
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise Invalid([Problem(str(path), "must be a YAML mapping (name: value)", type(data).__name__)])
    return text, data


_LEVELS = 50
"""more than any configuration has; the reader of YAML takes more than Python can go through"""


def _deep(data: Any) -> bool:
    """Tell whether something is nested deeper than makes sense; what an alias repeats is looked at once."""
    seen: set[int] = set()
    layer = [data] if isinstance(data, dict | list) else []
    for _ in range(_LEVELS):
        inner = [v for one in layer for v in (one.values() if isinstance(one, dict) else one)]
        layer = [v for v in inner if isinstance(v, dict | list) and id(v) not in seen]
        seen.update(map(id, layer))
    return bool(layer)
