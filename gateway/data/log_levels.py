"""The level of a line in a vendor's log.

No standard prescribes how a line states its level; these rules recognise it:

1. A JSON object states it in its field ``level``, ``severity`` or ``levelname``.
2. Otherwise a level word at the beginning of the line counts, in any case, also in brackets, after
   a time, or coloured; so does glog's letter before the date (``E1121 10:00:00 …``).
3. Otherwise a line of stdout is info, and one of stderr, where tracebacks go, is error.

Warnings count as info: the protocol has no such level, and a job with warnings has not failed.
"""

import json
import re
from enum import StrEnum

LONGEST_LINE = 64 * 1024  # bytes of a line that are shown, and read for its level


class Level(StrEnum):
    """The level of a line; as a choice of lines, it means this level or worse."""

    DEBUG = "debug"
    INFO = "info"
    ERROR = "error"


LEVELS = tuple(Level)  # from the mildest on

_WORDS = {
    Level.DEBUG: "trace debug verbose",
    Level.INFO: "info information notice warn warning",
    Level.ERROR: "err error severe crit critical fatal alert emerg emergency panic traceback",
}
_LEVEL_OF_WORD = {word: level for level, words in _WORDS.items() for word in words.split()}
_LEVEL_OF_STREAM = {
    "stdout": Level.INFO,
    "stderr": Level.ERROR,
}
_FIELDS = ("level", "severity", "levelname")  # of a JSON object
_COLOUR = rb"\x1b\[[0-9;]*m"
# The first word, after brackets, times and colours. T, Z and UTC count as parts of a time.
_LEADING_WORD = re.compile(
    rb"(?:[\s0-9\[\](){}<>|:.,/+*-]|(?<=[0-9])[TZ](?=[0-9\s\])]|$)|(?<=[0-9])UTC|"
    + _COLOUR
    + rb")*+"
    rb"([A-Za-z]+)(?![A-Za-z0-9_])"
)
_LEADING_BYTES = 200  # bytes at the beginning of a line that are searched for that word
_GLOG = re.compile(rb"([IWEF])[0-9]{4,8} [0-9]{2}:")
_LEVEL_OF_GLOG = {
    b"I": Level.INFO,
    b"W": Level.INFO,
    b"E": Level.ERROR,
    b"F": Level.ERROR,
}


def level_of(line: bytes, stream: str) -> Level:
    """Return the level of a line of a stream.

    The first `LONGEST_LINE` bytes of the line are enough.
    """
    level = _stated_level(line)
    if level is None:
        return _LEVEL_OF_STREAM.get(stream, Level.INFO)
    return level


def _stated_level(line: bytes) -> Level | None:
    """Return the level that a line itself states; None if it states none.

    The module's docstring has the rules.
    """
    if line.lstrip().startswith(b"{"):
        return _level_of_object(line)
    glog = _GLOG.match(line)
    if glog is not None:
        return _LEVEL_OF_GLOG[glog[1]]
    word = _LEADING_WORD.match(line[:_LEADING_BYTES])
    if word is None:
        return None
    return _LEVEL_OF_WORD.get(word[1].decode().lower())


def _level_of_object(line: bytes) -> Level | None:
    """Return the level of a JSON object: that of the first of its `_FIELDS` with a level word.

    None for a line that is not JSON, or without such a field.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    for name in _FIELDS:
        level = _LEVEL_OF_WORD.get(str(fields.get(name)).lower())
        if level is not None:
            return level
    return None
