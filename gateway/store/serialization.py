"""Domain value <-> JSON; the only code that knows both.

A converter is built once per type from its annotations. What a stored text lacks takes the field's default, so
that a field can be added without rewriting rows; what it has beyond the type is ignored. A field that is renamed
keeps its stored name by ``field(metadata={"stored": "old"})``.
"""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Convert = Callable[[Any], Any]

_ELSEWHERE = ("notes", "spec")
"""fields of a job's record that have a table or a column of their own"""


def dumps(value: Any) -> str:
    """Write a domain value (or plain data) as JSON text."""
    return _WHOLE(value)


def record(
    value: Any,
    field: str,
    known: Mapping[int, str],
) -> tuple[str, dict[int, str]]:
    """Write a job's record without the fields that have their default; return the texts of its parts, too.

    ``field`` names its tasks or runs. One whose identity is in ``known`` has that text and is not written again:
    each change of a job would else cost more with every task that it has.
    """
    kind: Any = type(value)
    rest, key, parts = _writer(kind, True)(value), stored_names(kind)[field], getattr(value, field)
    rest.pop(key, None)
    named = isinstance(parts, Mapping)
    texts = {id(p): known.get(id(p)) or _SPARSE(p) for p in (parts.values() if named else parts)}
    if named:
        joined = (
            "{"
            + ",".join(f"{json.dumps(name)}:{texts[id(part)]}" for name, part in parts.items())
            + "}"
        )
    else:
        joined = "[" + ",".join(texts[id(part)] for part in parts) + "]"
    return f'{_SPARSE(rest)[:-1]},"{key}":{joined}}}', texts


def _encoder(*, sparse: bool) -> Callable[[Any], str]:
    def default(value: Any) -> Any:
        kind: Any = type(value)
        return _writer(kind, sparse)(value)

    return json.JSONEncoder(
        default=default,
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode


_WHOLE, _SPARSE = _encoder(sparse=False), _encoder(sparse=True)


def loads(cls: type[T], text: str, **elsewhere: Any) -> T:
    """Read a value that `dumps` or `record` wrote; ``elsewhere``: fields that have a column of their own."""
    data = json.loads(text)
    kind: Any = cls
    return cast(T, _of_dataclass(kind)(data, elsewhere) if elsewhere else _reader(kind)(data))


def to_plain(value: Any) -> Any:
    """Return the value as dictionaries, lists and scalars."""
    return json.loads(dumps(value))


def as_time(seconds: float) -> datetime:
    """Return the time that a column holds as seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


@cache
def stored_names(cls: type) -> dict[str, str]:
    """Return the stored fields of a type: name -> key in the JSON text."""
    kind: Any = cls
    return {
        f.name: f.metadata.get("stored", f.name)
        for f in fields(kind)
        if f.init and f.name not in _ELSEWHERE
    }


@cache
def _writer(cls: Any, sparse: bool) -> Convert:
    if issubclass(cls, datetime):
        return datetime.isoformat
    names = stored_names(cls)
    defaults = {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(cls)
    }
    columns = [
        (key, attrgetter(name), defaults[name] if sparse else MISSING)
        for name, key in names.items()
    ]
    return lambda value: {
        key: kept
        for key, get, default in columns
        if (kept := get(value)) is not default and (default is MISSING or kept != default)
    }


@cache
def _reader(annotation: Any) -> Convert:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        convert = _reader(inner[0]) if len(inner) == 1 else _same
        return (
            _same if convert is _same else lambda value: None if value is None else convert(value)
        )
    if origin is tuple:
        item = _reader(get_args(annotation)[0])
        return lambda values: tuple(map(item, values))
    if origin is not None and issubclass(origin, Mapping):
        key, value = map(_reader, get_args(annotation))
        return lambda pairs: {key(k): value(v) for k, v in pairs.items()}
    if annotation is Any or not isinstance(annotation, type):
        return _same
    if is_dataclass(annotation):
        return _of_dataclass(annotation)
    if issubclass(annotation, datetime):
        return datetime.fromisoformat
    if issubclass(annotation, Enum):
        return {member.value: member for member in annotation}.__getitem__
    return _same


def _same(value: Any) -> Any:
    return value


@cache
def _of_dataclass(cls: type) -> Callable[..., Any]:
    hints = get_type_hints(cls)
    readers = {key: (name, _reader(hints[name])) for name, key in stored_names(cls).items()}

    def read(
        data: Mapping[str, Any], elsewhere: Mapping[str, Any] = types.MappingProxyType({})
    ) -> Any:
        kept = {}
        for key, value in data.items():
            if key in readers:
                name, convert = readers[key]
                kept[name] = value if convert is _same else convert(value)
        return cls(**kept, **elsewhere)

    return read
