"""Converts domain values to JSON and back.

A converter is built once per type from its annotations. A field that a stored text lacks gets its
default, so that a field can be added without rewriting rows; unknown fields are ignored. A renamed
field keeps its stored name with ``field(metadata={"stored": "old"})``.

A field with ``field(metadata={"flat": True})`` holds a dataclass that is stored flat: the JSON of
the record has the fields of that dataclass next to the record's other fields. The keys of a record
and of its flat parts have to differ.
"""

import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Convert = Callable[[Any], Any]

# Fields of a job's record that are stored in a separate table (notes) or column (spec). In the JSON
# of any type, fields with these names are left out.
_ELSEWHERE = ("notes", "spec")


def dumps(value: Any) -> str:
    """Write a domain value (or plain data) as JSON text, including default values."""
    return _dumps_complete(value)


def dumps_sparse(value: Any) -> str:
    """Write a domain value as JSON text without default values."""
    return _dumps_sparse(value)


def dumps_without(value: Any, field: str) -> str:
    """Write a job's record as `dumps_record` does, without the field with its tasks or runs."""
    cls: Any = type(value)
    rest = _writer(cls, sparse=True)(value)
    rest.pop(stored_names(cls)[field], None)
    return _dumps_sparse(rest)


def dumps_record(
    value: Any,
    field: str,
    cached_texts: Mapping[int, str],
) -> tuple[str, dict[int, str]]:
    """Write a job's record as JSON text without default values.

    Return the text of the record, and the texts of its tasks or runs by ``id()`` of the objects.
    ``field`` names the field with the tasks or runs. The text of an unchanged task or run is taken
    from ``cached_texts``, the second result of the previous call; otherwise the cost of a change
    would grow with the number of tasks. The caller has to keep the record of the previous call
    until this call, since otherwise another object could get the ``id()`` of one of that record's
    tasks or runs.
    """
    cls: Any = type(value)
    rest = _writer(cls, sparse=True)(value)
    key = stored_names(cls)[field]
    rest.pop(key, None)
    items = getattr(value, field)  # tasks by name, or a tuple of runs
    texts = _texts_of(items, cached_texts)
    joined = ",".join(texts.values())
    if isinstance(items, Mapping):
        joined = "{" + joined + "}"
    else:
        joined = "[" + joined + "]"
    # The field with the items is put before the closing brace of the rest, which is never empty.
    return f'{_dumps_sparse(rest)[:-1]},"{key}":{joined}}}', texts


def _texts_of(
    items: Mapping[str, Any] | Sequence[Any],
    cached_texts: Mapping[int, str],
) -> dict[int, str]:
    """Return the texts of tasks or runs by ``id()`` of the objects, in their order.

    The text of a task begins with its name, as the tasks are the values of a JSON object.
    """
    texts = {}
    if isinstance(items, Mapping):
        for name, item in items.items():
            text = cached_texts.get(id(item))
            texts[id(item)] = text or f"{json.dumps(name)}:{_dumps_sparse(item)}"
    else:
        for item in items:
            texts[id(item)] = cached_texts.get(id(item)) or _dumps_sparse(item)
    return texts


def _encoder(*, sparse: bool) -> Callable[[Any], str]:
    """Return an encoder of JSON for dataclasses; ``sparse`` leaves out default values."""

    def default(value: Any) -> Any:
        cls: Any = type(value)
        return _writer(cls, sparse=sparse)(value)

    return json.JSONEncoder(
        default=default,
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode


_dumps_complete = _encoder(sparse=False)
_dumps_sparse = _encoder(sparse=True)


def loads(
    cls: type[T],
    text: str,
    **elsewhere: Any,
) -> T:
    """Read a value written by `dumps` or `dumps_record`.

    ``elsewhere``: the values of fields that the text lacks, as another column has them.
    """
    data = json.loads(text)
    kind: Any = cls
    if elsewhere:
        return cast(T, _dataclass_reader(kind)(data, elsewhere))
    return cast(T, _reader(kind)(data))


def to_plain(value: Any) -> Any:
    """Return the value as dictionaries, lists and scalars."""
    return json.loads(dumps(value))


def as_time(seconds: float) -> datetime:
    """Return the time of a column with seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


@cache
def stored_names(cls: type) -> dict[str, str]:
    """Return the stored fields of a type: name -> key in the JSON text.

    The fields that hold flat parts are left out (`flat_parts`).
    """
    kind: Any = cls
    names = {}
    for field in fields(kind):
        is_flat = field.metadata.get("flat", False)
        if field.init and field.name not in _ELSEWHERE and not is_flat:
            names[field.name] = field.metadata.get(
                "stored",
                field.name,
            )
    return names


@cache
def flat_parts(cls: type) -> dict[str, type]:
    """Return the fields of a type that hold a dataclass stored flat: name -> the dataclass."""
    kind: Any = cls
    names = [field.name for field in fields(kind) if field.metadata.get("flat", False)]
    if not names:
        return {}  # types that are only written may have annotations that cannot be resolved
    hints = get_type_hints(cls)
    return {name: hints[name] for name in names}


@cache
def _writer(
    cls: Any,
    *,
    sparse: bool,
) -> Convert:
    """Return a function that turns a value of a dataclass into a dictionary.

    The values in the dictionary stay as they are: the encoder calls such a function for each of
    them that is a dataclass, too. With ``sparse`` default values are left out. A `datetime` is
    turned into a text.
    """
    if issubclass(cls, datetime):
        return datetime.isoformat
    written_fields = list(_written_fields(cls, sparse=sparse))

    def write(value: Any) -> dict[str, Any]:
        written = {}
        for key, get, default in written_fields:
            field_value = get(value)
            if field_value is default:  # faster than the comparison below
                continue
            if default is MISSING or field_value != default:
                written[key] = field_value
        return written

    return write


def _written_fields(
    cls: type,
    path: str = "",
    *,
    sparse: bool,
) -> Iterator[tuple[str, Convert, Any]]:
    """Yield the fields that are written for a type, including the fields of its flat parts.

    A field has its key in the JSON, a function that gets the value from the record, and the default
    value that is left out; `MISSING` for a field that is always written. ``path`` leads from the
    record to its part of type ``cls``, such as ``data.``; empty for the record itself.
    """
    defaults = _defaults(cls) if sparse else {}
    for name, key in stored_names(cls).items():
        yield key, attrgetter(path + name), defaults.get(name, MISSING)
    for name, part_class in flat_parts(cls).items():
        yield from _written_fields(
            part_class,
            f"{path}{name}.",
            sparse=sparse,
        )


def _defaults(cls: Any) -> dict[str, Any]:
    """Return the default of each field, `MISSING` for fields without one."""
    defaults = {}
    for field in fields(cls):
        if field.default_factory is MISSING:
            defaults[field.name] = field.default
        else:
            defaults[field.name] = field.default_factory()
    return defaults


@cache
def _reader(annotation: Any) -> Convert:
    """Return a function that reads a value of this type from parsed JSON."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _union_reader(annotation)
    if origin is tuple:
        return _tuple_reader(annotation)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(annotation)
    if annotation is Any or not isinstance(annotation, type):
        return _same
    if is_dataclass(annotation):
        return _dataclass_reader(annotation)
    if issubclass(annotation, datetime):
        return datetime.fromisoformat
    if issubclass(annotation, Enum):
        return {member.value: member for member in annotation}.__getitem__
    return _same


def _same(value: Any) -> Any:
    """Return a value unchanged: its type needs no conversion."""
    return value


def _union_reader(annotation: Any) -> Convert:
    """Return a function that reads a value of type ``X | None``.

    Other unions consist of types that JSON has, too, and need no conversion.
    """
    members = [member for member in get_args(annotation) if member is not type(None)]
    if len(members) > 1:
        return _same
    convert = _reader(members[0])
    if convert is _same:
        return _same

    def read(value: Any) -> Any:
        if value is None:
            return None
        return convert(value)

    return read


def _tuple_reader(annotation: Any) -> Convert:
    """Return a function that reads a list of JSON as a tuple of items of the same type."""
    convert_item = _reader(get_args(annotation)[0])

    def read(values: Any) -> Any:
        return tuple(map(convert_item, values))

    return read


def _mapping_reader(annotation: Any) -> Convert:
    """Return a function that reads an object of JSON as a dictionary."""
    convert_key, convert_value = map(_reader, get_args(annotation))

    def read(pairs: Any) -> Any:
        return {convert_key(key): convert_value(value) for key, value in pairs.items()}

    return read


@cache
def _dataclass_reader(cls: type) -> Callable[..., Any]:
    """Return a function that reads an object of JSON as a dataclass."""
    hints = get_type_hints(cls)
    readers = {}
    for name, key in stored_names(cls).items():
        readers[key] = (name, _reader(hints[name]))
    part_readers = {}
    for name, part_class in flat_parts(cls).items():
        part_readers[name] = _dataclass_reader(part_class)

    def read(
        data: Mapping[str, Any], elsewhere: Mapping[str, Any] = types.MappingProxyType({})
    ) -> Any:
        values = {}
        for key, value in data.items():
            if key in readers:
                name, convert = readers[key]
                values[name] = convert(value)
        for name, read_part in part_readers.items():
            values[name] = read_part(data)
        return cls(**values, **elsewhere)

    return read
