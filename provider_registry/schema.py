"""The JSON Schema files of this room, compiled once, and what they find in words a vendor can act on."""

import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from provider_registry.model import Problem

# Says quickly that a document keeps a schema: most do, and the library that names each mistake takes its time.
#
# Only the keywords that this room's schemas use are known; another one is refused when the schema is compiled.

Check = Callable[[Any], bool]

_ANNOTATIONS = frozenset({"$schema", "$id", "title", "description", "examples", "x-rule"})
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def compiled(schema: Mapping[str, Any]) -> Check:
    """Return a function that is true only for values without a mistake.

    Raises ValueError for a keyword that this module does not know.
    """
    unknown = schema.keys() - _ANNOTATIONS - _MAKERS.keys()
    if unknown:
        raise ValueError(f"no quick check for {', '.join(sorted(unknown))}")
    checks = [_MAKERS[name](limit) for name, limit in schema.items() if name in _MAKERS]
    if "additionalProperties" in schema:
        others, known = compiled(schema["additionalProperties"]), frozenset(schema.get("properties", ()))
        checks.append(
            lambda value: type(value) is not dict or all(others(v) for k, v in value.items() if k not in known)
        )
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _type(names: str | list[str]) -> Check:
    kinds = frozenset(kind for name in ([names] if isinstance(names, str) else names) for kind in _TYPES[name])
    return lambda value: type(value) in kinds


def _required(names: list[str]) -> Check:
    needed = frozenset(names)
    return lambda value: type(value) is not dict or needed <= value.keys()


def _properties(schemas: Mapping[str, Any]) -> Check:
    checks = {name: compiled(schema) for name, schema in schemas.items()}

    def check(value: Any) -> bool:
        if type(value) is dict:
            for name, part in value.items():
                known = checks.get(name)
                if known is not None and not known(part):
                    return False
        return True

    return check


def _items(schema: Mapping[str, Any]) -> Check:
    check = compiled(schema)
    return lambda value: type(value) is not list or all(check(item) for item in value)


def _longest(kind: type[str | list[Any] | dict[str, Any]]) -> Callable[[int], Check]:
    return lambda limit: lambda value: type(value) is not kind or len(value) <= limit


def _pattern(text: str) -> Check:
    search = re.compile(text).search
    return lambda value: type(value) is not str or search(value) is not None


_MAKERS: Mapping[str, Callable[[Any], Check]] = {
    "type": _type,
    "required": _required,
    "properties": _properties,
    "additionalProperties": lambda _: lambda _value: True,
    "items": _items,
    "maxLength": _longest(str),
    "maxItems": _longest(list),
    "maxProperties": _longest(dict),
    "minItems": lambda limit: lambda value: type(value) is not list or len(value) >= limit,
    "pattern": _pattern,
}


class Schema(NamedTuple):
    """A schema with its local references written out, and what tells quickly that a document keeps it."""

    document: Mapping[str, Any]
    kept_by: Check


def problems(schema: Schema, document: Any, path: str = "") -> list[Problem]:
    """Find everything in a document that its schema forbids, up to the bound on problems, each place once."""
    if schema.kept_by(document):
        return []
    from provider_registry.mistakes import mistakes  # noqa: PLC0415  slow to load, and most processes never need it

    return mistakes(schema.document, document, path)


def fields(schema: Schema, *lists: str) -> tuple[str, ...]:
    """Return the names of the fields that a schema knows, at its top or in the entries of a list below."""
    part: Any = schema.document
    for name in lists:
        part = part["properties"][name]["items"]
    return tuple(part["properties"])


def _load(name: str) -> Schema:
    """Read a schema and compile it with its local references written out, which halves the time per document."""
    schema = json.loads(files("provider_registry").joinpath("schemas", name).read_text("utf-8"))
    definitions = schema.pop("$defs", {})

    def expand(part: Any) -> Any:
        if isinstance(part, list):
            return [expand(item) for item in part]
        if not isinstance(part, dict):
            return part
        own = {key: expand(value) for key, value in part.items() if key != "$ref"}
        return {**expand(definitions[part["$ref"].rpartition("/")[2]]), **own} if "$ref" in part else own

    expanded = expand(schema)
    return Schema(expanded, compiled(expanded))


DESCRIPTION = _load("description-1.json")
REGISTRATION = _load("registration.json")
COMPONENT_REGISTRATION = _load("component-registration.json")


class SchemaFile(NamedTuple):
    """A schema as it is shipped, for editors and other programs."""

    name: str
    title: str
    covers: str
    """which documents it is for"""
    document: Mapping[str, Any]


def _shipped(name: str, covers: str) -> SchemaFile:
    document = json.loads(files("provider_registry").joinpath("schemas", name).read_text("utf-8"))
    return SchemaFile(name, document["title"], covers, document)


FILES = {
    name: _shipped(name, covers)
    for name, covers in (
        ("description-1.json", "self-descriptions with desVersion 1.x, such as 1.2.0 and 1.3.0"),
        ("registration.json", "the body of POST /v2/provider/register"),
        ("component-registration.json", "the body of POST /v1/platform/schedule/component/register"),
    )
}
"""by file name; the schemas that `problems` is asked with are these"""
