"""What breaks a schema, named mistake by mistake in words a vendor can act on.

Only documents that break one come here: `quick` tells the others apart, so that a process that reads a good one
need not load the library of schemas at all.
"""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from provider_registry.model import MAX_PROBLEMS, ROOT, Problem, join, shorten
from provider_registry.schema import Check, compiled

_BOOLEANS = {"yes": "true", "y": "true", "1": "true", "on": "true", "no": "false", "n": "false", "0": "false"}
_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}


def mistakes(schema: Mapping[str, Any], document: Any, path: str = "") -> list[Problem]:
    """Find everything in a document that its schema forbids, up to the bound on problems, each place once."""
    found: dict[tuple[str, str], Problem] = {}
    for error in islice(_Patient(schema).iter_errors(document), MAX_PROBLEMS + 1):
        for problem in _translate(error, path):
            found.setdefault((problem.path, problem.rule), problem)
    return list(found.values())


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


def _misspelled(name: str, found: Any, schema: Any) -> str:
    """Return which field of an object may stand for one that is missing."""
    others = {key.lower(): key for key in found if key not in schema["properties"] and len(key) <= 64}
    close = get_close_matches(name.lower(), list(others), n=1)
    return f"{name} instead of {others[close[0]]}" if close else ""


def _suggested(error: ValidationError) -> str:
    """Return the value in the form that was expected, where one can be made of it."""
    value, limit = error.instance, error.validator_value
    kinds = [limit] if isinstance(limit, str) else limit
    flag = _BOOLEANS.get(str(value).strip().lower()) if _is_flag(error) else None
    if flag:
        return _json(flag)
    if error.validator == "type" and isinstance(kinds, list):
        if "array" in kinds and isinstance(value, (str, dict)) and value:
            return _json([value])
        if "string" in kinds and isinstance(value, (int, float)):
            return _json(_json(value))
    if error.validator == "pattern" and isinstance(value, str) and value.strip():
        made = re.sub(r"[\s=]+", "_", value.strip())[:128]
        return _json(made) if re.search(str(limit), made) and made != value else ""
    return ""


def _is_flag(error: ValidationError) -> bool:
    return bool(error.absolute_path) and error.absolute_path[-1] == "optional"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else ""


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


def _of_items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Look only into entries that break their schema, and into none of a list that is too long anyway."""
    if isinstance(instance, list) and len(instance) <= schema.get("maxItems", len(instance)):
        keeps = _quick.get(id(items)) or _quick.setdefault(id(items), compiled(items))
        for index, item in enumerate(instance):
            if not keeps(item):
                yield from validator.descend(item, items, path=index)


def _of_others(validator: Any, others: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Look into no entry of an object that has too many anyway."""
    if isinstance(instance, dict) and len(instance) <= schema.get("maxProperties", len(instance)):
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, others, instance, schema)


_quick: dict[int, Check] = {}
"""by the identity of a part of a schema; those live as long as this module"""
_KEYWORDS = {"items": _of_items, "additionalProperties": _of_others}
_Patient: Any = validators.extend(Draft202012Validator, _KEYWORDS)  # type: ignore[no-untyped-call]
