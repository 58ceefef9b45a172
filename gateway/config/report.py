"""The settings in force for people to read: each with its origin, none with a secret."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gateway.config.anchoring import anchored
from gateway.config.engine import EngineSettings
from gateway.config.origins import origin_of
from gateway.config.schema import Node, Settings
from gateway.config.values import without_password

MASKED = "***"
_SECRET_WORDS = ("token", "secret", "password")


def effective(settings: Settings) -> list[dict[str, Any]]:
    """Return every value: ``path``, ``value``, ``origin`` (default, file, environment, command), ``where``.

    ``changed``: it is not the default.
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
    """Return a value as plain JSON, without secrets and without the passwords of addresses."""
    if _is_secret(path):
        return MASKED if value else value
    match value:
        case BaseModel():
            fields = type(value).model_fields
            return {name: shown(f"{path}.{name}", getattr(value, name)) for name in fields}
        case Mapping():
            return {str(key): shown(f"{path}.{key}", inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [shown(path, inner) for inner in value]
        case bool() | int() | float() | None:
            return value
    text = str(value)
    return without_password(text) if "://" in text else text


def _is_secret(path: str) -> bool:
    _, _, name = path.rpartition(".")
    return any(word in name.lower() for word in _SECRET_WORDS)


def _defaults(settings: Settings) -> dict[str, Any]:
    """Return the default of each setting that has one, by its path."""
    required: dict[str, type[BaseModel]] = {"node": Node, "engine": EngineSettings}
    sections: dict[str, Any] = {name: kind.model_construct() for name, kind in required.items()}
    blank = Settings.model_construct(**sections)
    return dict(_values(anchored(blank, settings.base), ""))


def _values(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each setting below a section."""
    for name in type(section).model_fields:
        value = getattr(section, name, None)
        path = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _values(value, f"{path}.")
        else:
            yield path, value
