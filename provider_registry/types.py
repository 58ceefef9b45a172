"""What the types and the regular expressions of descriptions mean, and which text belongs to them.

Types are advisory in the field and spelled in several ways; a name that is not listed means no check. Expressions
are matched by RE2: in time linear in the value, whatever the expression. RE2 has neither look-around nor back
references; an expression that needs them is not checked, and `flaw` says so.
"""

import json
import math
import re
from enum import StrEnum
from functools import lru_cache
from typing import Any

import re2

from provider_registry.model import encodable

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

MAX_PATTERN = 512
MAX_VALUE = 4096
_MEMORY = 256 * 1024
"""bytes that RE2 may use for one expression; it refuses those that need more"""


class Kind(StrEnum):
    """What a value is read as; ``other``: it is not read at all."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    LIST = "list"
    OTHER = "other"


NAMES = {
    **dict.fromkeys(("string", "str", "text"), Kind.TEXT),
    **dict.fromkeys(("int", "integer", "long"), Kind.INTEGER),
    **dict.fromkeys(("float", "double", "number"), Kind.NUMBER),
    **dict.fromkeys(("bool", "boolean"), Kind.BOOLEAN),
    **dict.fromkeys(("object", "json", "dict", "map"), Kind.OBJECT),
    **dict.fromkeys(("list", "array"), Kind.LIST),
}


def kind_of(declared: str) -> Kind:
    """Return what a type's name means, however it is spelled."""
    return NAMES.get(declared.strip().lower(), Kind.OTHER)


def number(value: Any) -> float | None:
    """Read a JSON number or its decimal text as a finite number; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value.strip()):
            return None
    elif not isinstance(value, (int, float)):
        return None
    try:
        read = float(value)
    except OverflowError:
        return None
    return read if math.isfinite(read) else None


def reads_as(kind: Kind, text: str) -> bool:
    """Tell whether text can be read as a value of a kind. Every text is a text, and of a kind we do not know.

    ``12.0`` is a whole number; ``inf`` and ``1e999`` are numbers, ``1_000`` is not.
    """
    text = text.strip()
    match kind:
        case Kind.INTEGER:
            read = None if _INTEGER.fullmatch(text) else number(text)
            return bool(_INTEGER.fullmatch(text)) or (read is not None and read.is_integer())
        case Kind.NUMBER:
            return bool(_NUMBER.fullmatch(text)) or text.lower().lstrip("+-") in ("inf", "infinity", "nan")
        case Kind.BOOLEAN:
            return text.lower() in ("true", "false")
        case Kind.OBJECT:
            return isinstance(json_of(text), dict)
        case Kind.LIST:
            return isinstance(json_of(text), list)
    return True


def json_of(text: str) -> Any:
    """Return the JSON value that a text spells; None if it spells none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def flaw(pattern: str) -> str | None:
    """Say why an expression cannot be used; None if it can."""
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    found = _compiled(pattern)
    return f"is not a regular expression that RE2 supports ({found})" if isinstance(found, str) else None


def full_match(pattern: str, value: str) -> bool | None:
    """Tell whether the whole value matches; None where the value is too long, or one of the two cannot be used."""
    found = _compiled(pattern) if len(pattern) <= MAX_PATTERN else ""
    if isinstance(found, str) or len(value) > MAX_VALUE or not encodable(value):
        return None
    return found.fullmatch(value) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """Return an expression ready for use, or the reason why there is none."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options)
    except UnicodeEncodeError as error:
        return str(error)
    except re2.error as error:
        [reason] = error.args
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
