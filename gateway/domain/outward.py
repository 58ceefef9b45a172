"""What other institutions may read of a failure here: the words, and not where things lie on our machines."""

import re
from itertools import islice
from typing import Any

_PATH = re.compile(
    r"(?:(?<![\w/.…~-])|(?<=unix://)|(?<=file://))"  # where a word begins: inside of an address it stays
    r"/(?!v\d+/|api/|bfia/)"  # our paths on the wire, and the folders that every container has
    r"(?:[^\s/'\":,;()<>]+/)+"
    r"(?P<last>[^\s/'\":,;()<>]*)"
)


_QUOTED = re.compile(
    r"(?<=['\"])/(?!v\d+/|api/|bfia/)(?:[^\n'\"/]+/)+(?P<last>[^\n'\"/]*)(?=['\"])"  # blanks belong to it
)


_DAEMON = re.compile(
    r"(?<!\w)(?P<scheme>tcp|ssh)://(?!…)(?:[^\s'\",;()<>@/]*@)?(?P<host>\[[^\s\]]*\]|[^\s'\",;()<>:/]+)"
    r"(?:[^\s'\",;()<>]*[^\s'\",;()<>:.])?"
)
_POOL = re.compile(r"host='[^'\s]*', port=\d+")
"""how the client of Docker names a daemon"""
_MOST_DAEMONS = 8
"""of one text are looked for without their scheme too: others may have written it, to keep us busy"""


def for_others(text: str) -> str:
    """Return the text without addresses of Docker daemons, and with the last part alone of each absolute path.

    What is neither stays: addresses of nodes, names of images, paths of the protocols, a path of one part.
    """
    hosts = {found["host"] for found in islice(_DAEMON.finditer(text), _MOST_DAEMONS)}
    text = _DAEMON.sub(lambda found: f"{found['scheme']}://…", text)
    for host in sorted(hosts, key=len, reverse=True):  # what ssh says of it names it once more
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "…", text)
    text = _POOL.sub("host='…'", text)
    for pattern in (_QUOTED, _PATH):
        text = pattern.sub(lambda found: f"…/{found['last']}", text)
    return text


def told(said: Any) -> Any:
    """Return what is said to another institution's node with messages and warnings, at any depth, `for_others`."""
    match said:
        case dict():
            return {key: _words(value) if key in _WORDS else told(value) for key, value in said.items()}
        case list():
            return [told(one) for one in said]
    return said


_WORDS = ("message", "warnings")


def _words(value: Any) -> Any:
    match value:
        case str():
            return for_others(value)
        case list():
            return [_words(one) for one in value]
    return told(value)
