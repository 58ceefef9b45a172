"""The JSON Schema files of this room, compiled once, and what they find in words a vendor can act on."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from provider_registry.model import Problem
from provider_registry.quick import Check, compiled


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
