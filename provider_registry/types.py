"""What the type names of descriptions mean, and how text is read as one of them.

Types are advisory in the field and spelled in several ways; a name that is not listed means no check.
"""

import json
import math
import re
from enum import StrEnum
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


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
            return isinstance(_json(text), dict)
        case Kind.LIST:
            return isinstance(_json(text), list)
    return True


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
