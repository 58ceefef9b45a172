"""The JSON Schemas of descriptions and registrations; their errors as problems for vendors."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from typing import TYPE_CHECKING, Any

from provider_registry.model import MAX_PROBLEMS, ROOT, Problem, join, near, shorten

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

# JSON Schema's types as problems name them; null, which goes with another type, is not named.
_TYPE_NAMES = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}
# The least similarity of an unknown field to the missing field that it misspells
_MISSPELLING_SIMILARITY = 0.8
_MAX_SUGGESTION = 200  # characters
# JSON Schema's keywords for limits -> the rule that a problem names; {} is the limit.
_LIMITS = {
    "maxLength": "must not be longer than {} characters",
    "maxItems": "must not list more than {} entries",
    "maxProperties": "must not have more than {} entries",
    "minItems": "must not be empty",
}


@dataclass(frozen=True)
class Schema:
    """A JSON Schema: the shipped document, for editors and other programs, and its validator."""

    name: str  # the name of the document's file
    covers: str  # the documents that the schema applies to, for people
    document: Mapping[str, Any]
    expanded: Mapping[str, Any]  # the document, with its references replaced, see `_expand`

    @cached_property
    def validator(self) -> "Draft202012Validator":
        """The validator, built when the first document is checked."""
        # Imported late: a node in which nobody registers a provider does without the library.
        from jsonschema import Draft202012Validator  # noqa: PLC0415

        return Draft202012Validator(self.expanded)

    @property
    def title(self) -> str:
        """The title that the schema gives itself."""
        return str(self.document["title"])

    def problems(
        self,
        document: Any,
        path: str = "",
    ) -> list[Problem]:
        """Return the problems of a document, each only once; empty for a valid document.

        ``path`` is that of the document; the problems' paths begin with it. Validation ends one
        error after `MAX_PROBLEMS`, so that the caller can see that there are more.
        """
        unique: dict[tuple[str, str], Problem] = {}
        for error in islice(self.validator.iter_errors(document), MAX_PROBLEMS + 1):
            for problem in _translate(error, join(path, *error.absolute_path)):
                unique.setdefault((problem.path, problem.rule), problem)
        return list(unique.values())

    def accepts_entry(self, entry: Any, field: str) -> bool:
        """Return whether a value is valid as an entry of the list in a top-level field.

        The rest of the document does not matter. ``field`` must be a list by the schema.
        """
        entry_schema = self.expanded["properties"][field]["items"]
        return self.validator.evolve(schema=entry_schema).is_valid(entry)

    def max_entries(self, field: str) -> int:
        """Return how many entries the list in a top-level field may have.

        ``field`` must be a list with a limit by the schema.
        """
        schema: Any = self.validator.schema
        return int(schema["properties"][field]["maxItems"])

    def fields(self, *lists: str) -> tuple[str, ...]:
        """Return the names of the fields that the schema has at its top.

        With ``lists``, returns the fields of the entries of a nested list instead:
        ``fields("inputData")``. Each name leads one list deeper.
        """
        schema: Any = self.expanded
        for field in lists:
            schema = schema["properties"][field]["items"]
        return tuple(schema["properties"])


def read_schema(file: Traversable, covers: str) -> Schema:
    """Read a schema that is shipped in a package; ``covers``: see `Schema`."""
    document = json.loads(file.read_text("utf-8"))
    expanded = _expand(document, document.get("$defs", {}))
    return Schema(file.name, covers, document, expanded)


def _load(name: str, covers: str) -> Schema:
    """Read a schema of this package; ``name`` is that of its file."""
    return read_schema(files("provider_registry").joinpath("schemas", name), covers)


def _expand(
    node: Any,
    definitions: Mapping[str, Any],
) -> Any:
    """Return a part of a schema with its local references replaced by their definitions.

    Validation without references takes half the time. A single type becomes a list of one, the
    form that `_wrong_type` reads.
    """
    if isinstance(node, list):
        return [_expand(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    definition = node.get("$ref", "").rpartition("/")[2]
    merged = {**definitions.get(definition, {}), **node}
    expanded = {
        key: _expand(value, definitions)
        for key, value in merged.items()
        if key not in ("$ref", "$defs")
    }
    if isinstance(expanded.get("type"), str):
        expanded["type"] = [expanded["type"]]
    return expanded


def _translate(error: "ValidationError", path: str) -> Iterator[Problem]:
    """Yield the problems of one error of the validator, which is about the value at a path.

    Only missing fields can be several problems: each of them has a path of its own.
    """
    value_path = path or ROOT
    if error.validator == "required":
        yield from _missing_fields(error, path)
    elif error.validator == "type":
        yield _wrong_type(error, value_path)
    else:
        yield _broken_rule(error, value_path)


def _missing_fields(error: "ValidationError", path: str) -> Iterator[Problem]:
    """Yield a problem for each required field that an object lacks.

    An unknown field with a similar name is taken for a misspelling of it.
    """
    item: Any = error.instance
    schema: Any = error.schema
    required: Any = error.validator_value
    unknown = [name for name in item if name not in schema["properties"]]
    missing = [name for name in required if name not in item]
    for name in missing:
        misspelled = near(name, unknown, _MISSPELLING_SIMILARITY)
        suggestion = f"{name} instead of {misspelled}" if misspelled else ""
        yield Problem(join(path, name), "is missing", suggestion=suggestion)


def _wrong_type(error: "ValidationError", path: str) -> Problem:
    """Return the problem of a value of a wrong type.

    For a text in place of a list, it suggests the list of its parts between commas.
    """
    value: Any = error.instance
    types: Any = error.validator_value
    words = " or ".join(_TYPE_NAMES[name] for name in types if name != "null")
    suggestion = ""
    is_text_for_list = "array" in types and isinstance(value, str)
    if is_text_for_list:
        entries = list(map(str.strip, value.split(",")))
        suggestion = json.dumps(entries)[:_MAX_SUGGESTION]
    return Problem(path, f"must be {words}", shorten(value), suggestion)


def _broken_rule(error: "ValidationError", path: str) -> Problem:
    """Return the problem of any other error.

    Its rule is ours for a limit, the text of ``x-rule`` in the schema, or the validator's keyword.
    """
    rule = f"breaks the rule {error.validator!r} of the format"
    if isinstance(error.schema, Mapping):
        rule = error.schema.get("x-rule", rule)
    rule = _LIMITS.get(str(error.validator), rule)
    return Problem(path, rule.format(error.validator_value), shorten(error.instance))


DESCRIPTION = _load(
    "description-1.json", "self-descriptions with desVersion 1.x, such as 1.2.0 and 1.3.0"
)
REGISTRATION = _load("registration.json", "the body of POST /v2/provider/register")
COMPONENT_REGISTRATION = _load(
    "component-registration.json", "the body of POST /v1/platform/schedule/component/register"
)
# The schemas by the name of their file.
FILES = {schema.name: schema for schema in (DESCRIPTION, REGISTRATION, COMPONENT_REGISTRATION)}
