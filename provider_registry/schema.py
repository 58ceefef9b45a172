"""The JSON Schemas of descriptions and registrations, with errors that a vendor can act on."""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from provider_registry.model import MAX_PROBLEMS, ROOT, Problem, join, near, shorten

_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
}
_WORDS |= {"integer": "a whole number", "boolean": "true or false"}
_CERTAIN = 0.8
"""how alike an unknown field must be to one that is missing"""
_LIMITS = {
    "maxLength": "must not be longer than {} characters",
    "maxItems": "must not list more than {} entries",
    "maxProperties": "must not have more than {} entries",
    "minItems": "must not be empty",
}


class Schema(NamedTuple):
    """A schema as it is shipped, for editors and other programs, and its validator."""

    name: str
    covers: str
    """which documents it is for"""
    document: Mapping[str, Any]
    validator: Draft202012Validator

    @property
    def title(self) -> str:
        """The title that the schema gives itself."""
        return str(self.document["title"])

    def problems(self, document: Any, path: str = "") -> list[Problem]:
        """Find everything in a document that the schema forbids, up to the bound on problems, each place once."""
        found: dict[tuple[str, str], Problem] = {}
        for error in islice(self.validator.iter_errors(document), MAX_PROBLEMS + 1):
            for problem in _translate(error, join(path, *error.absolute_path)):
                found.setdefault((problem.path, problem.rule), problem)
        return list(found.values())

    def fits(self, item: Any, name: str) -> bool:
        """Tell whether a value may be an entry of a list at the schema's top."""
        part: Any = self.validator.schema
        return self.validator.evolve(schema=part["properties"][name]["items"]).is_valid(item)

    def fields(self, *lists: str) -> tuple[str, ...]:
        """Return the names of the fields that the schema knows, at its top or in the entries of a list below."""
        part: Any = self.validator.schema
        for name in lists:
            part = part["properties"][name]["items"]
        return tuple(part["properties"])


def _load(name: str, covers: str) -> Schema:
    """Read a schema; its validator gets local references written out, which halves the time per document."""
    document = json.loads(files("provider_registry").joinpath("schemas", name).read_text("utf-8"))
    definitions = document.get("$defs", {})

    def expand(part: Any) -> Any:
        if isinstance(part, list):
            return [expand(item) for item in part]
        if not isinstance(part, dict):
            return part
        own = {key: expand(value) for key, value in part.items() if key not in ("$ref", "$defs")}
        if isinstance(own.get("type"), str):
            own["type"] = [own["type"]]
        return (
            {**expand(definitions[part["$ref"].rpartition("/")[2]]), **own}
            if "$ref" in part
            else own
        )

    return Schema(name, covers, document, Draft202012Validator(expand(document)))


def _translate(error: ValidationError, path: str) -> Iterator[Problem]:
    """Yield the problems of a validator's error in words that a vendor can act on."""
    if error.validator == "required":
        yield from _missing_fields(error, path)
    elif error.validator == "type":
        yield _wrong_type(error, path)
    else:
        yield _broken_rule(error, path)


def _missing_fields(error: ValidationError, path: str) -> Iterator[Problem]:
    item: Any = error.instance
    schema: Any = error.schema
    required: Any = error.validator_value
    unknown = [name for name in item if name not in schema["properties"]]
    for name in required:
        if name in item:
            continue
        misspelled = near(name, unknown, _CERTAIN)
        suggestion = f"{name} instead of {misspelled}" if misspelled else ""
        yield Problem(join(path, name), "is missing", None, suggestion)


def _wrong_type(error: ValidationError, path: str) -> Problem:
    value: Any = error.instance
    types: Any = error.validator_value
    words = " or ".join(_WORDS[name] for name in types if name != "null")
    suggestion = ""
    if "array" in types and isinstance(value, str):
        entries = [entry.strip() for entry in value.split(",")]
        suggestion = json.dumps(entries)[:200]
    return Problem(path or ROOT, f"must be {words}", shorten(value), suggestion)


def _broken_rule(error: ValidationError, path: str) -> Problem:
    """Return the problem of any other rule: our wording of a limit, or the schema's own."""
    rule = f"breaks the rule {error.validator!r} of the format"
    if isinstance(error.schema, Mapping):
        rule = error.schema.get("x-rule") or rule
    rule = _LIMITS.get(str(error.validator), rule)
    return Problem(path or ROOT, rule.format(error.validator_value), shorten(error.instance))


DESCRIPTION = _load(
    "description-1.json", "self-descriptions with desVersion 1.x, such as 1.2.0 and 1.3.0"
)
REGISTRATION = _load("registration.json", "the body of POST /v2/provider/register")
COMPONENT_REGISTRATION = _load(
    "component-registration.json", "the body of POST /v1/platform/schedule/component/register"
)
FILES = {schema.name: schema for schema in (DESCRIPTION, REGISTRATION, COMPONENT_REGISTRATION)}
"""by file name"""
