"""The spellings that descriptions use in the field, each read into one value.

Vendors copy an example that spells booleans as text, lists as single strings and expressions as placeholders.
Every function takes what the schema lets through and returns the value; those that may meet something they cannot
read also return a remark, worded to follow the field's path, or None.
"""

import json
import re
from typing import Any

from provider_registry import regex
from provider_registry.limits import as_text, encodable
from provider_registry.model import Validator
from provider_registry.types import number

MAX_BINDING = 1000
"""values that are read from a list given as JSON text; a real list is bounded by the schema"""

_FUNCTION = re.compile(r"call_function\s{1,8}([A-Za-z_][\w.]{0,255})\s{0,8}(?:\(\s{0,8}\))?")
_EXPRESSION = re.compile(r"regular\s{0,8}[:：-](.*)", re.DOTALL)
_RANGE = re.compile(r"([(\[])([^,]{0,64}),([^,]{0,64})([)\]])")
_BARE_RANGE = re.compile(r"\s{0,8}([\d.eE+-]{1,32}|-?inf)\s{0,8}[,;~]\s{0,8}([\d.eE+-]{1,32}|inf)\s{0,8}")
_WIDE = str.maketrans("（），【】［］", "(),[][]")
_QUOTES = ("''", '""', "‘’", "“”")
_PLACEHOLDERS = ("", "正则项")
"""what stands in the published example where an expression would go: no check"""
_UNBOUNDED = ("", "inf", "-inf", "+inf", "∞", "-∞", "+∞", "sup")


def text(value: Any) -> str:
    """Return display text: absent is empty."""
    return value if isinstance(value, str) else ""


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts, or one text that stands for a list of one; blanks are left out."""
    values = [value] if isinstance(value, str) else value or []
    return tuple(v.strip() for v in values if v.strip())


def is_optional(value: Any) -> tuple[bool, str | None]:
    """Read ``optional``: a boolean, its text in any case, or nothing, which means that it may be omitted."""
    if isinstance(value, bool):
        return value, None
    spelled = text(value).strip().lower()
    return spelled != "false", None if spelled else "is missing; read as true"


def default_text(value: Any) -> str | None:
    """Read ``defaultValue`` as text: None if there is none, empty if it is blank, JSON for what is no text."""
    if value is None:
        return None
    if isinstance(value, str):
        return value if value.strip() else ""
    return as_text(value)


def binding(value: Any) -> tuple[tuple[str, ...] | None, str | None, str | None]:
    """Read ``bindingData``: (allowed values as text, or None; callback's name, or None; remark).

    Forms: a list of {label, value} or of plain values, the same list as JSON text, ``call_function name()``,
    or nothing.
    """
    if isinstance(value, str):
        if not value.strip():
            return None, None, None
        called = _FUNCTION.fullmatch(value.strip())
        if called:
            return None, called[1], None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, list):
            return None, None, "is neither a list nor call_function <name>(); any value is allowed"
    entries = [_entry(item) for item in (value or [])[:MAX_BINDING]]
    values = tuple(entry[0] for entry in entries if entry is not None)
    remark = "has entries without a plain value, which are left out" if None in entries else None
    return values or None, None, remark


def labels(value: Any) -> dict[str, str]:
    """Read the labels of ``bindingData``: allowed value as text -> what a form calls it, if it has a name."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    entries = map(_entry, value[:MAX_BINDING] if isinstance(value, list) else ())
    return {entry[0]: entry[1] for entry in entries if entry is not None and entry[1]}


def _entry(item: Any) -> tuple[str, str] | None:
    """Read one choice: its value as text and its label; None if it has no plain value."""
    found, label = (item.get("value"), item.get("label")) if isinstance(item, dict) else (item, None)
    if not isinstance(found, (str, int, float)) or not encodable(as_text(found)):
        return None
    told = as_text(label) if isinstance(label, (str, int, float)) else ""
    return as_text(found), told if encodable(told) else ""


def validator(value: Any) -> tuple[Validator | None, str | None]:
    """Read ``validator``: an expression, a range, or nothing. A placeholder in either place means no check."""
    spelled = text(value).strip()
    if not spelled:
        return None, None
    expression = _EXPRESSION.fullmatch(spelled)
    if expression:
        return _expression(spelled, expression[1].strip())
    bounds = _RANGE.fullmatch(spelled.translate(_WIDE))
    if bounds:
        return _range(spelled, bounds)
    return None, "is neither regular:'<expression>' nor (lower,upper); nothing is checked"


def _expression(spelled: str, pattern: str) -> tuple[Validator | None, str | None]:
    if len(pattern) > 1 and pattern[0] + pattern[-1] in _QUOTES:
        pattern = pattern[1:-1]
    if pattern.strip() in _PLACEHOLDERS:
        return None, None
    flaw = regex.flaw(pattern)
    if flaw:
        return None, f"{flaw}; nothing is checked"
    return Validator(spelled, pattern=pattern), None


def _range(spelled: str, found: re.Match[str]) -> tuple[Validator | None, str | None]:
    """Read a range. Round brackets alone are the format's only notation and say nothing of the bounds, which then
    belong to it; where a square one is used as well, a round one leaves its bound out."""
    opening, low, high, closing = (part.strip() for part in found.groups())
    bounds: list[float | None] = []
    for bound in (low, high):
        read = number(bound)
        if read is None and bound.lower() not in _UNBOUNDED:
            return None, "has a bound that is not a number; nothing is checked"
        bounds.append(read)
    lower, upper = bounds
    if lower is None and upper is None:
        return None, None
    if lower is not None and upper is not None and lower > upper:
        return None, "has a lower bound above the upper one; nothing is checked"
    told_apart = opening == "[" or closing == "]"
    return (
        Validator(
            spelled,
            lower,
            upper,
            lower_open=told_apart and opening == "(" and lower is not None,
            upper_open=told_apart and closing == ")" and upper is not None,
        ),
        None,
    )


def suggested(validator: Any) -> str:
    """Return how a check that cannot be read may have been meant; empty where that is not obvious."""
    spelled = text(validator).strip()
    if _EXPRESSION.fullmatch(spelled):
        return ""
    bare = _BARE_RANGE.fullmatch(spelled)
    if bare:
        return f"({bare[1]},{bare[2]})"
    bounds = _RANGE.fullmatch(spelled.translate(_WIDE))
    if bounds:
        low, high = number(bounds[2].strip()), number(bounds[3].strip())
        turned = low is not None and high is not None and low > high
        return f"{bounds[1]}{bounds[3].strip()},{bounds[2].strip()}{bounds[4]}" if turned else ""
    if spelled.startswith("^") or spelled.endswith("$"):
        return f"regular:'{spelled[:128]}'"
    word, colon, rest = spelled.partition(":")
    return f"regular:{rest[:128]}" if colon and word.lower().startswith("reg") else ""


def depends_on(value: Any) -> tuple[str, ...]:
    """Read ``dependsOn``: a list, one text with commas, or nothing."""
    if isinstance(value, str):
        return texts(value.split(","))
    return texts(value)
