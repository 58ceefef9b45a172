"""Regular expressions of vendors, matched by RE2: in time linear in the value, whatever the expression.

RE2 has neither look-around nor back references. An expression that needs them is not checked, and `flaw` says so.
"""

from functools import lru_cache
from typing import Any

import re2

from provider_registry.model import encodable

MAX_PATTERN = 512
MAX_VALUE = 4096
_MEMORY = 256 * 1024
"""bytes that RE2 may use for one expression; it refuses those that need more"""


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
