"""The settings in force as the CLI and the operators' API show them.

Every value has its origin; secrets are masked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gateway.config.anchoring import anchored
from gateway.config.origins import origin_of
from gateway.config.schema import Settings
from gateway.config.schema.engine import EngineSettings
from gateway.config.schema.listeners import Node
from gateway.config.values import without_password

MASKED = "***"  # shown in place of a secret
# The path of a setting whose name says that it holds a secret.
_SECRET_PATH = re.compile(r"(token|secret|password)[^.]*$", re.IGNORECASE)


def effective(settings: Settings) -> list[dict[str, Any]]:
    """Return an entry for every setting, in the order of the schema.

    - ``path``: such as ``engine.kind``
    - ``value``: as `shown` returns it
    - ``origin``: default, file, environment or command
    - ``where``: file and line, or the variable; "" for the other origins
    - ``changed``: whether the value differs from the default, or the setting has no default
    """
    defaults = _defaults(settings)
    entries = []
    for path, value in _values(settings, ""):
        origin = origin_of(path, settings.origins)
        is_default = path in defaults and value == defaults[path]
        entries.append(
            {
                "path": path,
                "value": shown(path, value),
                "origin": origin.kind,
                "where": origin.where,
                "changed": not is_default,
            }
        )
    return entries


def shown(path: str, value: Any) -> Any:
    """Return the value of a setting as plain JSON, without secrets.

    A secret becomes `MASKED` if it is set; URLs lose their passwords. Sections and lists are shown
    entry by entry.
    """
    if value and _SECRET_PATH.search(path):
        return MASKED
    match value:
        case BaseModel():
            return _shown_entries(path, value)
        case Mapping():
            return _shown_entries(path, value.items())
        case list() | tuple() | set() | frozenset():
            return [shown(path, entry) for entry in value]
        case bool() | int() | float() | None:
            return value
    text = str(value)
    if "://" in text:
        return without_password(text)
    return text


def _shown_entries(
    path: str,
    entries: Iterable[tuple[Any, Any]],
) -> dict[str, Any]:
    """Return the entries of the section or mapping at a path, each as `shown` returns it.

    A section iterates over pairs of name and value; of a mapping, ``entries`` are the items.
    """
    return {str(name): shown(f"{path}.{name}", value) for name, value in entries}


def _defaults(settings: Settings) -> dict[str, Any]:
    """Return the default of each setting that has one, by its path.

    ``node`` and ``engine`` are required sections: they have no default as a whole, but most of
    their fields have. Paths in the defaults are resolved as in the settings, so that both can be
    compared.
    """
    required: dict[str, type[BaseModel]] = {
        "node": Node,
        "engine": EngineSettings,
    }
    sections: dict[str, Any] = {name: kind.model_construct() for name, kind in required.items()}
    blank = Settings.model_construct(**sections)
    return dict(_values(anchored(blank, settings.base), ""))


def _values(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each setting in a section and in the sections below it.

    ``prefix`` is the section's path with a dot at its end; "" for the settings as a whole.
    """
    for name in type(section).model_fields:
        # A section that `_defaults` has constructed lacks the attributes of required settings.
        value = getattr(section, name, None)
        path = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _values(value, f"{path}.")
        else:
            yield path, value
