"""Commas after a last entry, which the standard's own samples have and JSON does not know."""

import re

LAST_COMMA = re.compile(rb",\s*+[\]}]")
"""what such a comma looks like, also inside of a text"""
_STRING_OR_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,(?=\s*+[\]}])', re.DOTALL)
"""a text runs to the end where nothing closes it, so that every sign is looked at once"""


def without_last_commas(text: str) -> tuple[str, int]:
    """Return JSON without the commas before a closing bracket, and how many there were."""
    count = 0

    def kept(found: re.Match[str]) -> str:
        nonlocal count
        if found[0] != ",":
            return found[0]
        count += 1
        return ""

    return _STRING_OR_COMMA.sub(kept, text), count


def told(count: int) -> str:
    """Say so of a document."""
    return (
        f"has {count} commas before a closing bracket, which JSON does not know; read without"
        if count > 1
        else ("has a comma before a closing bracket, which JSON does not know; read without")
    )
