"""Loads the configuration: one YAML file and, over it, options and then environment variables.

The variable of a setting is its path: ``BFIA_GATEWAY__ENGINE__KIND`` sets ``engine.kind``. Nothing
else in the project reads the environment for configuration.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError

from gateway.config.anchoring import anchored
from gateway.config.origins import find_origins
from gateway.config.schema import PREFIX, Settings
from gateway.config.secrets import strict_problems
from gateway.config.values import without_password
from gateway.config.yaml_files import DuplicateKey, load_yaml, syntax_error
from gateway.data.reading import MIB, NotFit, read_bounded
from gateway.domain.problems import Problem
from gateway.errors import Invalid, join, problems_of

# Shown in place of a value that may be a secret.
HIDDEN = "(not shown)"
# Matches the path of a setting that is or may contain a secret, a misspelled or misplaced one too.
_SECRET_PATH = re.compile(
    r"""pass|secret|token|command|(\b|_)pin(\b|_)   # in any name
    |^(events|fate)\b|^auth\b(?!\.mode$)         # sections
    |^storages(\.[^.]+)?$                        # a storage as a whole
    """,
    re.IGNORECASE | re.VERBOSE,
)

# Settings that only earlier versions had, with their defaults. `init` wrote them into every file,
# so a file may contain them without anybody having chosen them.
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


def load(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    *,
    check_secrets: bool = True,
) -> Settings:
    """Read the configuration.

    - ``path``: the configuration file; None without one
    - ``overrides``: values that the command's options set, by section; they win over the file, and
      variables of the environment win over both
    - ``check_secrets``: whether `secrets.mode` refuse counts

    Relative paths are resolved against the file's folder, without a file against the working
    folder. A setting that only earlier versions had is ignored if it has its default.

    Raises `Invalid` with every problem and its path.
    """
    text = ""
    data: dict[str, Any] = {}
    folder = Path.cwd()
    if path is not None:
        text, data = _read(path)
        folder = path.resolve().parent
    overrides = overrides or {}
    problems = [*_unknown_variables(), *_take_removed(data)]
    settings = _validated(_merged(data, overrides), problems)
    result = anchored(settings, folder)
    result._origins = find_origins(path, text, overrides)
    result._base = folder
    if check_secrets:
        secret_problems = strict_problems(result)
        if secret_problems:
            raise Invalid(secret_problems)
    return result


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text and its parsed content; an empty file has no content: ``{}``.

    Raises `Invalid`; its problems do not show values of the file.
    """
    try:
        text = read_bounded(path, MIB).decode()
        data: Any = load_yaml(text)
    except (OSError, NotFit, ValueError, DuplicateKey, yaml.YAMLError) as error:
        raise Invalid([_reading_problem(path, error)]) from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        rule = "must be a YAML mapping (name: value)"
        raise Invalid([Problem(str(path), rule, type(data).__name__)])
    return text, data


def _reading_problem(path: Path, error: Exception) -> Problem:
    """Return the problem of a file that cannot be read as YAML.

    ``error`` is what `_read` caught: from the file system, the decoder or the parser.
    """
    file = str(path)
    match error:
        case OSError():
            return Problem(file, "cannot be read", error.strerror)
        case NotFit():
            return Problem(file, str(error).removeprefix(f"{path} "))
        case UnicodeDecodeError():
            return Problem(file, "must be text in UTF-8", f"byte {error.start}")
        case DuplicateKey():
            rule = f"duplicate key in lines {error.first} and {error.second}; keep one of them"
            return Problem(error.key, rule, HIDDEN)
    return Problem(file, f"must be YAML: {syntax_error(error)}")


def _unknown_variables() -> Iterator[Problem]:
    """Yield a problem for each variable with our prefix that names no section of the settings.

    Keys inside a known section are checked by the section itself. Pydantic would ignore an unknown
    section of the environment, where a misspelled name would go unnoticed.
    """
    for name in os.environ:
        if not name.startswith(PREFIX):
            continue
        section, _, _ = name.removeprefix(PREFIX).partition("__")
        if section.lower() not in Settings.model_fields:
            yield Problem(name, "is not a setting; see `bfia-gateway init`", HIDDEN)


def _take_removed(data: dict[str, Any]) -> Iterator[Problem]:
    """Remove the settings of earlier versions from the data.

    Yields a problem for each of them that has another value than its default: the admin chose it,
    and it has no effect any more.
    """
    for path, default in REMOVED.items():
        *sections, name = path.split(".")
        section = _section_at(data, sections)
        value = section.pop(name, default)
        if value != default:
            rule = "is not a setting of this version any more; delete it"
            yield Problem(path, rule, _without_secrets((*sections, name), value))


def _section_at(
    data: dict[str, Any],
    path: Sequence[str],
) -> dict[str, Any]:
    """Return the section at a path of the data; an empty one if there is no mapping."""
    section = data
    for name in path:
        inner = section.get(name)
        if not isinstance(inner, dict):
            return {}
        section = inner
    return section


def _merged(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the data with the overrides.

    A section in both is merged; any other value of the overrides replaces that of the data.
    """
    result = dict(data)
    for key, value in overrides.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result


def _validated(data: Mapping[str, Any], problems: Sequence[Problem]) -> Settings:
    """Return the settings of the data, with the values that the environment sets instead.

    ``data`` has the values of the file and of the options. ``problems`` are those reported even if
    the data is valid. Raises `Invalid` if there are any, together with the problems of the data.
    """
    try:
        settings = Settings(**data)
    except ValidationError as error:
        raise Invalid([*problems, *_value_problems(error)]) from error
    except SettingsError as error:  # the environment variable of a section does not contain JSON
        raise Invalid([*problems, Problem(f"{PREFIX}…", str(error), HIDDEN)]) from error
    if problems:
        raise Invalid(problems)
    return settings


def _value_problems(error: ValidationError) -> Iterator[Problem]:
    """Yield a problem for each invalid value.

    A problem has the value's path and rule, and the value itself unless it may be a secret. If a
    rule is about several settings, the path is "settings".
    """
    details = error.errors()
    for detail, problem in zip(details, problems_of(details, Settings), strict=True):
        path = detail["loc"]
        value = _without_secrets(path, problem.got)
        yield problem._replace(path=join(path) or "settings", got=value)


def _without_secrets(path: tuple[int | str, ...], value: Any) -> Any:
    """Return the value at a path as a problem may show it.

    That is `HIDDEN` for a section or a value that is or may contain a secret, a URL without its
    password, and None for the settings as a whole (an empty path).
    """
    if not path:
        return None
    is_section = isinstance(value, dict)
    if is_section or _may_be_secret(path):
        return HIDDEN
    if path[0] in ("database", "storages", "outbound"):
        return without_password(str(value))
    return value


def _may_be_secret(path: tuple[int | str, ...]) -> bool:
    """Return whether the value at a path is a secret or a section that may contain one."""
    setting = join(path)
    match = _SECRET_PATH.search(setting)
    return match is not None
