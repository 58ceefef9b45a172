"""The settings in force, each with where it comes from; secrets are never shown."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gateway.config.schema import Origin, Settings
from gateway.config.values import without_password

MASKED = "***"
_SECRET = ("token", "secret", "password")


def effective(settings: Settings) -> list[dict[str, Any]]:
    """Return every value: ``path``, ``value``, ``origin`` (default, file, environment, command), ``where``."""
    found = []
    for path, value in _values(settings, ""):
        origin = _origin_of(path, settings.origins)
        found.append({"path": path, "value": shown(path, value), "origin": origin.kind, "where": origin.where})
    return found


def shown(path: str, value: Any) -> Any:
    """Return a value as it may be seen: plain JSON, without secrets and without the passwords of addresses."""
    if any(word in path.rpartition(".")[2].lower() for word in _SECRET):
        return MASKED if value else value
    if isinstance(value, BaseModel):
        return {name: shown(f"{path}.{name}", getattr(value, name)) for name in type(value).model_fields}
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
        value = getattr(section, name)
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
