"""How serious a line of a vendor's log is. Nothing prescribes how a line says so; this is how it is read here.

1. A line that is a JSON object says it in its field ``level``, ``severity`` or ``levelname``.
2. Else a level word at its beginning, in any case, also in brackets, after a time, or coloured.
   So does glog's letter with the date (``E1121 10:00:00 …``).
3. Else a line of stdout is info, and one of stderr error: that is where tracebacks and the last lines of a
   crash end up.

Warnings count as info: the protocol knows no level of that name, and a job with warnings has not failed.
"""

import json
import re
from enum import StrEnum

LONGEST_LINE = 64 * 1024
"""bytes of a line that are read for its level, and shown"""


class Level(StrEnum):
    """What can be requested: ``debug`` gives every line, ``info`` what is info or worse, ``error`` only errors."""

    DEBUG = "debug"
    INFO = "info"
    ERROR = "error"


LEVELS = tuple(Level)
"""from all lines to the fewest"""

_WORDS = {
    Level.DEBUG: "trace debug verbose",
    Level.INFO: "info information notice warn warning",
    Level.ERROR: "err error severe crit critical fatal alert emerg emergency panic traceback",
}
_LEVEL_OF = {word: level for level, words in _WORDS.items() for word in words.split()}
_FIELDS = ("level", "severity", "levelname")
_COLOUR = rb"\x1b\[[0-9;]*m"
_LEADING = re.compile(
    rb"(?:[\s0-9\[\](){}<>|:.,/+*-]|(?<=[0-9])[TZ](?=[0-9\s\])]|$)|(?<=[0-9])UTC|"
    + _COLOUR
    + rb")*+"
    rb"([A-Za-z]+)(?![A-Za-z0-9_])"
)
_GLOG = re.compile(rb"([IWEF])[0-9]{4,8} [0-9]{2}:")
_GLOG_LEVEL = {
    b"I": Level.INFO,
    b"W": Level.INFO,
    b"E": Level.ERROR,
    b"F": Level.ERROR,
}
_HEAD = 200
"""bytes within which a leading word has to begin"""


def level_of(line: bytes, stream: str) -> Level:
    """Return the level of a line, whose first `LONGEST_LINE` bytes are enough."""
    otherwise = Level.ERROR if stream == "stderr" else Level.INFO
    if line.lstrip()[:1] == b"{":
        return _level_of_object(line) or otherwise
    if glog := _GLOG.match(line):
        return _GLOG_LEVEL[glog[1]]
    word = _LEADING.match(line[:_HEAD])
    return _LEVEL_OF.get(word[1].decode().lower(), otherwise) if word else otherwise


def _level_of_object(line: bytes) -> Level | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    words = (fields.get(field) for field in _FIELDS)
    return next(
        (_LEVEL_OF[w.lower()] for w in words if isinstance(w, str) and w.lower() in _LEVEL_OF), None
    )
