"""What names of other nodes say, and which may name a folder: ids, task names and output keys end up in paths."""

import unicodedata

LARGEST_NAME = 255
"""bytes of one path segment"""


def name_rule(text: str, largest: int = LARGEST_NAME) -> str | None:
    """Return the rule that a namespace or a name breaks, None where it may name a folder."""
    if not text:
        return "must not be empty"
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
        return "must not hold control characters or broken Unicode"
    if "/" in text or "\\" in text:
        return "must not hold / or \\"
    if text.startswith("."):
        return "must not begin with a dot"
    if text != text.strip():
        return "must not begin or end with a space"
    if len(text.encode()) > largest:
        return f"must not be longer than {largest} bytes"
    return None


def index_of(text: str) -> int | None:
    """Read a party's index; None for what is no decimal number of at most nine digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
