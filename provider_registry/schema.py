"""The JSON Schema files of this room, compiled once, and what they find in words a vendor can act on."""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from provider_registry.limits import MAX_PROBLEMS, ROOT, join, shorten
from provider_registry.model import Problem

_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}


def problems(schema: Draft202012Validator, document: Any, path: str = "") -> list[Problem]:
    """Find everything in a document that its schema forbids, up to the bound on problems, each place once."""
    found: dict[tuple[str, str], Problem] = {}
    for error in islice(schema.iter_errors(document), MAX_PROBLEMS + 1):
        for problem in _translate(error, path):
            found.setdefault((problem.path, problem.rule), problem)
    return list(found.values())


def fields(schema: Draft202012Validator, *lists: str) -> tuple[str, ...]:
    """Return the names of the fields that a schema knows, at its top or in the entries of a list below."""
    part: Any = schema.schema
    for name in lists:
        part = part["properties"][name]["items"]
    return tuple(part["properties"])


def _translate(error: ValidationError, path: str) -> Iterator[Problem]:
    at = join(path, *error.absolute_path)
    if error.validator == "required":
        required: Any = error.validator_value
        found: Any = error.instance
        for name in required:
            if name not in found:
                yield Problem(join(at, name), "is missing")
    else:
        yield Problem(at or ROOT, _rule(error), shorten(error.instance))


def _rule(error: ValidationError) -> str:
    limit: Any = error.validator_value
    match error.validator:
        case "type":
            kinds = [limit] if isinstance(limit, str) else limit
            return "must be " + " or ".join(_KINDS[kind] for kind in kinds if kind != "null")
        case "maxLength":
            return f"must not be longer than {limit} characters"
        case "maxItems":
            return f"must not list more than {limit} entries"
        case "maxProperties":
            return f"must not have more than {limit} entries"
        case "minItems":
            return "must not be empty"
        case _:
            schema = error.schema
            rule = schema.get("x-rule") if isinstance(schema, Mapping) else None
            return str(rule or f"breaks the rule {error.validator!r} of the format")


def _load(name: str) -> Draft202012Validator:
    """Read a schema and compile it with its local references written out, which halves the time per document."""
    schema = json.loads(files("provider_registry").joinpath("schemas", name).read_text("utf-8"))
    definitions = schema.pop("$defs", {})

    def expand(part: Any) -> Any:
        if isinstance(part, list):
            return [expand(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return expand(definitions[part["$ref"].rpartition("/")[2]])
        return {key: expand(value) for key, value in part.items()}

    expanded = expand(schema)
    Draft202012Validator.check_schema(expanded)
    return Draft202012Validator(expanded)


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
