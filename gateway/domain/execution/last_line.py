"""What a component says of its result in the last line that it writes to standard output."""

import json
from collections.abc import Sequence

LONGEST_CODE = 100
LONGEST_MESSAGE = 1000


def result_of(lines: Sequence[bytes]) -> tuple[str, str]:
    """Return result code and message where the last line is a JSON object with them; else empty texts.

    The names are ``result_code`` and ``result_message``, or as in descriptions ``resultCode`` and
    ``resultMessage``.
    """
    try:
        said = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(said, dict):
        return "", ""
    code = said.get("result_code") or said.get("resultCode")
    message = said.get("result_message") or said.get("resultMessage")
    return str(code or "")[:LONGEST_CODE], str(message or "")[:LONGEST_MESSAGE]
