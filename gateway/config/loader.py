"""Reads the configuration: one YAML file, the environment over it (``BFIA_GATEWAY__ENGINE__KIND``), read once.

Nothing else in the project reads the environment for configuration. Each setting in force is shown with where it
comes from; secrets are never shown.
"""

import json
import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from gateway.config.engine import EngineSettings
from gateway.config.schema import PREFIX, Node, Origin, Settings
from gateway.config.values import DEFAULT_STORAGE, without_password
from gateway.data.reading import MIB, NotFit, read_bounded
from gateway.domain.problems import Problem
from gateway.errors import Invalid, join, problems_of

HIDDEN = "(not shown)"
"""instead of what may be a secret"""
MASKED = "***"
_SECRET = ("token", "secret", "password")

REMOVED: Mapping[str, Any] = {
    "engine.docker.daemons": [],
    "engine.docker.pull_stale_seconds": 120.0,
    "engine.kubernetes.context": "",
    "fate.clients": {},
    "limits.disk_check_seconds": 10.0,
    "limits.engine_down_seconds": 60.0,
    "limits.files": 250_000,
    "limits.lost_gateway_seconds": 60.0,
    "limits.orphan_seconds": None,
    "providers.check_seconds": 30.0,
    "providers.fetch_seconds": 20.0,
    "retention.every_seconds": 60.0,
    "retention.workspace_seconds": 60.0,
}
"""settings of earlier versions with their defaults, which `init` wrote into every file"""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the configuration. Raises `Invalid` with every problem and its path.

    Relative paths are relative to the configuration file's folder (to the working folder without a file). A
    setting that only earlier versions had is left out where it has its default.
    """
    text, data = _read(path) if path is not None else ("", {})
    removed = list(_removed(data))
    data = _merged(data, overrides or {})
    base = path.resolve().parent if path is not None else Path.cwd()
    unknown = [
        Problem(name, "is not a setting; see `bfia-gateway init`", HIDDEN)
        for name in os.environ
        if name.startswith(PREFIX)
        and name[len(PREFIX) :].partition("__")[0].lower() not in Settings.model_fields
    ]
    try:
        settings = Settings(**data)
    except ValidationError as error:
        found = [
            one._replace(path=join(e["loc"]) or "settings", got=_shown(e["loc"], one.got))
            for e, one in zip(error.errors(), problems_of(error.errors(), Settings), strict=True)
        ]
        raise Invalid([*unknown, *removed, *found]) from error
    except SettingsError as error:  # an environment variable for a section that is not JSON
        raise Invalid([*unknown, *removed, Problem(f"{PREFIX}…", str(error), HIDDEN)]) from error
    if unknown or removed:
        raise Invalid([*unknown, *removed])
    settings = _anchored(settings, base)
    settings._origins, settings._base = _origins(path, text, overrides or {}), base
    return settings


def _removed(data: dict[str, Any]) -> Iterator[Problem]:
    """Take out settings of earlier versions; report those that were changed."""
    for path, default in REMOVED.items():
        *sections, name = path.split(".")
        section: Any = data
        for one in sections:
            section = section.get(one) if isinstance(section, dict) else None
        if (
            isinstance(section, dict)
            and name in section
            and (value := section.pop(name)) != default
        ):
            rule = "is not a setting of this version any more; delete it"
            yield Problem(path, rule, _shown((*sections, name), value))


def _shown(path: tuple[int | str, ...], value: Any) -> Any:
    """Return what was found at the path, but no secret."""
    if not path:
        return None
    if (path[0] == "auth" and path[-1] != "mode") or path[0] in ("events", "fate"):
        return HIDDEN
    if path[0] == "storages" and (len(path) < 3 or path[2] == "password"):
        return HIDDEN
    return without_password(str(value)) if path[0] in ("database", "storages") else value


def _merged(data: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(data)
    for key, value in over.items():
        old = result.get(key)
        result[key] = (
            _merged(old, value)
            if isinstance(value, Mapping) and isinstance(old, Mapping)
            else value
        )
    return result


def _anchored(settings: Settings, base: Path) -> Settings:
    """Return the settings with every relative path below a folder."""
    database, storage = settings.database, settings.storage
    if database.url.startswith("sqlite:///") and not database.url.startswith("sqlite:////"):
        url = f"sqlite:///{base / database.url.removeprefix('sqlite:///')}"
        database = database.model_copy(update={"url": url})
    if storage.url is None:
        storage = storage.model_copy(update={"url": f"file://{base / DEFAULT_STORAGE}"})
    anchored: Settings = _below(
        base, settings.model_copy(update={"database": database, "storage": storage})
    )
    return anchored


def _below(base: Path, value: Any) -> Any:
    if isinstance(value, Path):
        return base / value
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _below(base, inner) for name, inner in value})
    if isinstance(value, list):
        return [_below(base, inner) for inner in value]
    if isinstance(value, dict):
        return {name: _below(base, inner) for name, inner in value.items()}
    return value


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text and content. Raises `Invalid`; its problems show no values."""
    try:
        text = read_bounded(path, MIB).decode()
        data: Any = load_yaml(text)
    except OSError as error:
        raise Invalid([Problem(str(path), "cannot be read", error.strerror)]) from error
    except NotFit as error:
        raise Invalid([Problem(str(path), str(error).removeprefix(f"{path} "))]) from error
    except UnicodeDecodeError as error:
        raise Invalid(
            [Problem(str(path), "must be text in UTF-8", f"byte {error.start}")]
        ) from error
    except DuplicateKey as error:
        rule = f"duplicate key in lines {error.first} and {error.second}; keep one of them"
        raise Invalid([Problem(error.key, rule, HIDDEN)]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise Invalid([Problem(str(path), f"must be YAML: {syntax_error(error)}")]) from error
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise Invalid(
            [Problem(str(path), "must be a YAML mapping (name: value)", type(data).__name__)]
        )
    return text, data


class DuplicateKey(Exception):
    """A mapping has a key twice."""

    def __init__(
        self,
        key: str,
        first: int,
        second: int,
    ) -> None:
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
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in lines:
                    raise DuplicateKey(key.value, lines[key.value], line)
                lines[key.value] = line
        return dict(super().construct_mapping(node, deep=deep))


def load_yaml(text: str) -> Any:
    """Parse YAML. Raises `DuplicateKey`, `yaml.YAMLError` and `ValueError`."""
    return yaml.load(text, Loader=_UniqueKeys)


def syntax_error(error: Exception) -> str:
    """Say in one line where and why text is not YAML, or not JSON."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1} column {mark.column + 1}: {getattr(error, 'problem', None) or error}"
    return str(error)


def _origins(
    path: Path | None,
    text: str,
    overrides: Mapping[str, Any],
) -> dict[str, Origin]:
    """Find the origin of everything that was set; what overrides another comes later."""
    found: dict[str, Origin] = {}
    if path is not None:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        found |= {
            at: Origin("file", f"{path}:{line}") for at, line, whole in _nodes(tree, "") if whole
        }
    found |= {at: Origin("command") for at in _leaves(overrides)}
    return found | {at: Origin("environment", name) for at, name in _of_environment()}


def _of_environment() -> Iterator[tuple[str, str]]:
    """Yield path and variable of each setting that the environment has."""
    for name, value in os.environ.items():
        if name.startswith(PREFIX):
            try:  # a value, or all that it holds of a section
                data = json.loads(value)
            except (ValueError, RecursionError):
                data = value
            for inner in _leaves(data, name[len(PREFIX) :].lower().replace("__", ".")):
                yield inner, name


def place_of(file: Path, path: str) -> str:
    """Return the variable or line of a setting, or of the section that it is missing in; empty: none has it."""
    for at, name in _of_environment():
        if f"{path}.".startswith(f"{at}."):
            return name
    try:
        tree = yaml.compose(read_bounded(file, MIB).decode(), Loader=yaml.SafeLoader)
    except (OSError, NotFit, ValueError, yaml.YAMLError):
        return ""
    known = {at: line for at, line, _ in _nodes(tree, "")}
    while path and path not in known:
        path = path.rpartition(".")[0]
    return f"{file.name}:{known[path]}" if path else ""


def _nodes(node: Any, at: str) -> Iterator[tuple[str, int, bool]]:
    """Yield path and line of each key, and whether it holds a value, not further keys."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = f"{at}.{key.value}" if at else str(key.value)
        yield (
            inner,
            key.start_mark.line + 1,
            not isinstance(value, yaml.MappingNode) or not value.value,
        )
        yield from _nodes(value, inner)


def _leaves(data: Any, at: str = "") -> Iterator[str]:
    """Yield the paths of the single values, and of what is empty."""
    if not isinstance(data, Mapping) or (at and not data):
        yield at
        return
    for key, value in data.items():
        yield from _leaves(value, f"{at}.{key}" if at else str(key))


def effective(settings: Settings) -> list[dict[str, Any]]:
    """Return every value: ``path``, ``value``, ``origin`` (default, file, environment, command), ``where``.

    ``changed``: it is not the default.
    """
    required: Mapping[str, Any] = {"node": Node, "engine": EngineSettings}
    blank = Settings.model_construct(
        **{name: section.model_construct() for name, section in required.items()}
    )
    defaults = dict(_values(_anchored(blank, settings.base), ""))
    found = []
    for path, value in _values(settings, ""):
        origin = _origin_of(path, settings.origins)
        one = {
            "path": path,
            "value": shown(path, value),
            "origin": origin.kind,
            "where": origin.where,
        }
        found.append(one | {"changed": path not in defaults or value != defaults[path]})
    return found


def shown(path: str, value: Any) -> Any:
    """Return a value as it may be seen: plain JSON, without secrets and without the passwords of addresses."""
    if any(word in path.rpartition(".")[2].lower() for word in _SECRET):
        return MASKED if value else value
    if isinstance(value, BaseModel):
        return {
            name: shown(f"{path}.{name}", getattr(value, name)) for name in type(value).model_fields
        }
    if isinstance(value, Mapping):
        return {str(key): shown(f"{path}.{key}", one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [shown(path, one) for one in value]
    if isinstance(value, (bool, int, float, type(None))):
        return value
    text = str(value)
    return without_password(text) if "://" in text else text


def _values(section: BaseModel, at: str) -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name, None)
        path = f"{at}{name}"
        if isinstance(value, BaseModel):
            yield from _values(value, f"{path}.")
        else:
            yield path, value


def _origin_of(path: str, known: Mapping[str, Origin]) -> Origin:
    """Return the origin of a value, of the first thing set inside it, or of the nearest section around it."""
    if path not in known:
        for inner, origin in known.items():
            if inner.startswith(f"{path}."):
                return origin
    while path:
        if path in known:
            return known[path]
        path = path.rpartition(".")[0]
    return Origin("default")
