"""Domain value <-> JSON; the only code that knows both.

A converter is built once per type from its annotations. What a stored text lacks takes the field's default, so
that a field can be added without rewriting rows; what it has beyond the type is ignored. A field that is renamed
keeps its stored name by ``field(metadata={"stored": "old"})``.
"""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Convert = Callable[[Any], Any]

_ELSEWHERE = ("notes", "spec")
"""fields of a job's record that have a table or a column of their own"""


def dumps(value: Any) -> str:
    """Write a domain value (or plain data) as JSON text."""
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def record(value: Any) -> str:
    """Write a job's record, without the fields that have their default."""
    return json.dumps(value, default=_sparse, ensure_ascii=False, separators=(",", ":"))


def loads(cls: type[T], text: str, **elsewhere: Any) -> T:
    """Read a value of this type from what `dumps` or `record` wrote.

    ``elsewhere``: fields that have a column of their own.
    """
    data = json.loads(text)
    kind: Any = cls
    return cast(T, _of_dataclass(kind)(data, elsewhere) if elsewhere else _reader(kind)(data))


def to_plain(value: Any) -> Any:
    """Return the value as dictionaries, lists and scalars."""
    return json.loads(dumps(value))


def as_time(seconds: float) -> datetime:
    """Return the time that a column holds as seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


def stored_names(cls: type) -> dict[str, str]:
    """Return the stored fields of a type: name -> key in the JSON text."""
    return {name: stored for name, stored, _ in _stored(cls)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {stored: getattr(value, name) for name, stored, _ in _fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"cannot store a {type(value).__name__}")


def _sparse(value: Any) -> Any:
    if not is_dataclass(value):
        return _plain(value)
    return {
        stored: kept
        for name, stored, default in _fields(value)
        if (kept := getattr(value, name)) is not default and kept != default
    }


def _fields(value: Any) -> list[tuple[str, str, Any]]:
    cls: Any = type(value)
    return _stored(cls)


@cache
def _stored(cls: Any) -> list[tuple[str, str, Any]]:
    """Return each stored field with its key and its default, `MISSING` where it has none."""
    return [
        (f.name, f.metadata.get("stored", f.name), _default(f))
        for f in fields(cls)
        if f.init and f.name not in _ELSEWHERE
    ]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def _reader(annotation: Any) -> Convert:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _optional(annotation)
    if origin is tuple:
        item = _reader(get_args(annotation)[0])
        return lambda values: tuple(map(item, values))
    if origin is not None and issubclass(origin, Mapping):
        key, value = map(_reader, get_args(annotation))
        return lambda pairs: {key(k): value(v) for k, v in pairs.items()}
    if annotation is Any or not isinstance(annotation, type):
        return lambda value: value
    if is_dataclass(annotation):
        return _of_dataclass(annotation)
    if issubclass(annotation, datetime):
        return datetime.fromisoformat
    if issubclass(annotation, Enum):
        return annotation
    return lambda value: value


def _optional(annotation: Any) -> Convert:
    inner = [a for a in get_args(annotation) if a is not type(None)]
    convert: Convert = _reader(inner[0]) if len(inner) == 1 else lambda value: value
    return lambda value: None if value is None else convert(value)


@cache
def _of_dataclass(cls: type) -> Callable[..., Any]:
    hints = get_type_hints(cls)
    readers = [(name, stored, _reader(hints[name]), default is MISSING) for name, stored, default in _stored(cls)]

    def read(data: Mapping[str, Any], elsewhere: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
        kept = {n: convert(data[key]) for n, key, convert, required in readers if required or key in data}
        return cls(**kept, **elsewhere)

    return read
