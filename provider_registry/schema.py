"""The JSON Schemas of descriptions and registrations, with errors in words that a vendor can act on."""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from provider_registry.model import MAX_PROBLEMS, ROOT, Problem, join, shorten

_BOOLEANS = {"yes": "true", "y": "true", "1": "true", "on": "true", "no": "false", "n": "false", "0": "false"}
_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
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
        if _fits(document, self.validator.schema):
            return []
        found: dict[tuple[str, str], Problem] = {}
        for error in islice(self.validator.iter_errors(document), MAX_PROBLEMS + 1):
            for problem in _translate(error, path):
                found.setdefault((problem.path, problem.rule), problem)
        return list(found.values())

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
        return {**expand(definitions[part["$ref"].rpartition("/")[2]]), **own} if "$ref" in part else own

    return Schema(name, covers, document, Draft202012Validator(expand(document)))


_NAMES = {dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean"}
_NAMES |= {type(None): "null"}


def _fits(value: Any, part: Any) -> bool:
    """Tell whether a value surely keeps a part of a schema, many times faster than a search for errors."""
    types = part.get("type")
    if types and _NAMES.get(type(value)) not in types and not (type(value) is int and "number" in types):
        return False
    if isinstance(value, str):
        pattern = part.get("pattern")
        return len(value) <= part.get("maxLength", len(value)) and (not pattern or bool(re.search(pattern, value)))
    if isinstance(value, list):
        items = part.get("items", {})
        few = part.get("minItems", 0) <= len(value) <= part.get("maxItems", len(value))
        return few and all(_fits(item, items) for item in value)
    if isinstance(value, dict):
        known, others = part.get("properties", {}), part.get("additionalProperties", {})
        return (
            len(value) <= part.get("maxProperties", len(value))
            and all(name in value for name in part.get("required", ()))
            and all(_fits(inner, own) for name, inner in value.items() if (own := known.get(name, others)))
        )
    return True


DESCRIPTION = _load("description-1.json", "self-descriptions with desVersion 1.x, such as 1.2.0 and 1.3.0")
REGISTRATION = _load("registration.json", "the body of POST /v2/provider/register")
COMPONENT_REGISTRATION = _load(
    "component-registration.json", "the body of POST /v1/platform/schedule/component/register"
)
FILES = {schema.name: schema for schema in (DESCRIPTION, REGISTRATION, COMPONENT_REGISTRATION)}
"""by file name"""


def _translate(error: ValidationError, path: str) -> Iterator[Problem]:
    at = join(path, *error.absolute_path)
    if error.validator == "required":
        required: Any = error.validator_value
        found: Any = error.instance
        for name in required:
            if name not in found:
                yield Problem(join(at, name), "is missing", None, _misspelled(name, found, error.schema))
    else:
        yield Problem(at or ROOT, _rule(error), shorten(error.instance), _suggested(error))


def _rule(error: ValidationError) -> str:
    limit: Any = error.validator_value
    match error.validator:
        case "type":
            return "must be " + " or ".join(_KINDS[kind] for kind in limit if kind != "null")
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


def _misspelled(name: str, found: Any, schema: Any) -> str:
    """Return which unknown field of an object may be a misspelling of a missing one."""
    others = {key.lower(): key for key in found if key not in schema["properties"] and len(key) <= 64}
    close = get_close_matches(name.lower(), list(others), n=1)
    return f"{name} instead of {others[close[0]]}" if close else ""


def _suggested(error: ValidationError) -> str:
    """Return the value in the form that was expected, where one can be made of it."""
    value, limit = error.instance, error.validator_value
    is_flag = error.absolute_path and error.absolute_path[-1] == "optional"
    if is_flag and (flag := _BOOLEANS.get(str(value).strip().lower())):
        return _json(flag)
    if error.validator == "type" and isinstance(limit, list):
        if "array" in limit and isinstance(value, (str, dict)) and value:
            return _json([value])
        if "string" in limit and isinstance(value, (int, float)):
            return _json(_json(value))
    if error.validator == "pattern" and isinstance(value, str) and value.strip():
        made = re.sub(r"[\s=]+", "_", value.strip())[:128]
        return _json(made) if re.search(str(limit), made) and made != value else ""
    return ""


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else ""
