"""The result that a container prints: a JSON object as the last line of its log."""

import json
from collections.abc import Sequence
from typing import Any

# Longest result code, and longest message of it, in characters; the rest is cut off.
_MAX_CODE_LENGTH = 100
_MAX_MESSAGE_LENGTH = 1000


def result_of(lines: Sequence[bytes]) -> tuple[str, str]:
    """Return result code and message from the last line of a container's log.

    The line is a JSON object with ``result_code`` and ``result_message``, or with the names that
    descriptions of components use, ``resultCode`` and ``resultMessage``. Both texts are empty for
    any other line.
    """
    if not lines:
        return "", ""
    result = _parse_result(lines[-1])
    code = _first_text(result, "result_code", "resultCode")
    message = _first_text(result, "result_message", "resultMessage")
    return code[:_MAX_CODE_LENGTH], message[:_MAX_MESSAGE_LENGTH]


def _parse_result(line: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty one for any other line."""
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return {}
    if not isinstance(result, dict):
        return {}
    return result


def _first_text(result: dict[str, Any], *names: str) -> str:
    """Return the first value under these names as text; empty if no name has a value.

    Null, false, 0 and an empty text do not count as values.
    """
    for name in names:
        if result.get(name):
            return str(result[name])
    return ""
