"""Values of JSON as people read them: times, amounts, changes, ids."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.cli.language import t

FULL_ID = 36  # characters of a job's id; only ids that are cut for a partner's dialect have fewer
_SHORT_ID = 12  # characters of such an id in a list, if they suffice to distinguish it
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
# Placeholders of the node for values that are too long.
_ABBREVIATION = re.compile(
    "an object with [0-9]+ fields|a list of [0-9]+ values|an integer of many digits"
)
_TRUTH_WORDS = {
    True: "yes",
    False: "no",
}
# Names and reasons in histories that this program enters itself.
_PRODUCT_WORDS = frozenset({"somebody", "operator", "file", "invitation accepted"})
_APPLICATION = re.compile(r"application \d+")  # the reason of a grant by a permit


def cell(value: Any) -> str:
    """Return a value of JSON as a table shows it.

    Null is empty, and a time has no fraction of a second. Lists and objects are one line each, of
    their own cells.
    """
    match value:
        case None:
            return ""
        case bool():
            return t(_TRUTH_WORDS[value])
        case float():
            return f"{value:g}"
        case str() if _TIME.fullmatch(value):
            return f"{value[:19].replace('T', ' ')} UTC"
        case list():
            return ", ".join(map(cell, value))
        case Mapping():
            return _fields(value)
    return str(value)


def _fields(value: Mapping[str, Any]) -> str:
    """Return the names and values of an object's fields in one line.

    Fields without content are left out: null, and empty texts, lists and objects.
    """
    fields = {key: field for key, field in value.items() if field not in (None, "", {}, [])}
    texts = [f"{key} {cell(field)}" for key, field in fields.items()]
    return "; ".join(texts)


def translate_own(text: str) -> str:
    """Translate a name or reason that this program entered; leave users' texts unchanged."""
    is_own = text in _PRODUCT_WORDS or text.endswith(" (command line)")
    if is_own or _APPLICATION.fullmatch(text):
        return t(text)
    return text


# ---------------------------------------------------------------- times and amounts


def when(
    key: str,
    *,
    length: int = 19,
) -> Callable[[Mapping[str, Any]], str]:
    """Return a column for a time in UTC.

    ``length``: characters of the time in ISO 8601 that are shown: 16 to the minute, 19 to the
    second, 23 to the millisecond.
    """

    def time_of(entry: Mapping[str, Any]) -> str:
        return str(entry[key] or "")[:length].replace("T", " ")

    return time_of


def elapsed(since: str | None, until: str | None) -> str:
    """Return the time between two moments in its two largest units, such as ``3 min 5 s``.

    Without ``since`` the text is empty; without ``until`` the time until now is returned.
    """
    if not since:
        return ""
    end = datetime.now(UTC)
    if until:
        end = datetime.fromisoformat(until)
    duration = end - datetime.fromisoformat(since)
    return _in_largest_units(max(int(duration.total_seconds()), 0))


def _in_largest_units(seconds: int) -> str:
    """Return a duration in its largest unit and the next one, without zeros: ``3 min``."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    amounts = [
        (days, "d"),
        (hours, "h"),
        (minutes, "min"),
        (seconds, "s"),
    ]
    while len(amounts) > 1 and amounts[0][0] == 0:
        amounts.pop(0)
    texts = [f"{amount} {unit}" for amount, unit in amounts[:2] if amount]
    return " ".join(texts) or "0 s"


def size(key: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a column for an amount of bytes."""

    def amount_of(entry: Mapping[str, Any]) -> str:
        return amount(entry[key])

    return amount_of


def amount(count: int) -> str:
    """Return bytes as people read them: ``3.4 MiB``.

    The unit is B below 1024 bytes, then KiB, MiB, GiB or TiB with one decimal.
    """
    if count < 1024:
        return f"{count:.0f} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


# ---------------------------------------------------------------- changes


def compact(value: Any, *, longest: int = 60) -> str:
    """Return a value as JSON in one line of at most ``longest`` characters.

    Null is a dash. A text with which the node abbreviates a long value is translated.
    """
    if value is None:
        text = "–"
    elif isinstance(value, str) and _ABBREVIATION.fullmatch(value):
        text = t(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > longest:
        return text[: longest - 1] + "…"
    return text


def difference(change: Mapping[str, Any]) -> str:
    """Return one change of a route or provider in a line.

    A changed value follows its path, such as ``JG2.url: "a" → "b"``. An added route is a ``+`` and
    its node, a removed one a ``-`` and its node. A change of public keys lists the ids of the added
    and removed ones.
    """
    before = change.get("before")
    after = change.get("after")
    field = change.get("field")
    is_whole_route = "node" in change and not field
    if is_whole_route:
        sign = "+" if before is None else "-"
        return f"{sign}{change['node']}"
    # A change of a route has a node and a field, that of a provider a path.
    parts = [change.get(key) for key in ("node", "field", "path")]
    path = ".".join(map(str, filter(None, parts)))
    if field == "keys":
        return f"{path}: {_key_changes(before, after)}"
    return f"{path}: {compact(before)} → {compact(after)}"


def _key_changes(
    before: Sequence[str] | None,
    after: Sequence[str] | None,
) -> str:
    """Return the ids of added and removed public keys."""
    old_ids = _key_ids(before)
    new_ids = _key_ids(after)
    added = [f"+{key_id}" for key_id in sorted(new_ids - old_ids)]
    removed = [f"-{key_id}" for key_id in sorted(old_ids - new_ids)]
    return " ".join(added + removed)


def _key_ids(keys: Sequence[str] | None) -> set[str]:
    """Return the beginnings of public keys' ids; empty for None.

    A key is base64 of its SubjectPublicKeyInfo. The beginning has 12 of the id's 64 hex digits.
    """
    ids = set()
    for key in keys or ():
        digest = hashlib.sha256(base64.b64decode(key)).hexdigest()
        ids.add(f"sha256:{digest[:12]}…")
    return ids


# ---------------------------------------------------------------- ids


def short(ids: Sequence[str]) -> list[str]:
    """Shorten the full ids of a list to the least length that distinguishes them.

    Ids of `FULL_ID` characters or more are shortened, to `_SHORT_ID` or more; the others stay as
    they are.
    """
    length = _SHORT_ID
    while length < FULL_ID and not _are_distinct(ids, length):
        length += 1
    shortened = []
    for text in ids:
        is_full = len(text) >= FULL_ID
        shortened.append(text[:length] if is_full else text)
    return shortened


def _are_distinct(ids: Sequence[str], length: int) -> bool:
    """True if different ids have different beginnings of this length."""
    beginnings = {text[:length] for text in ids}
    return len(beginnings) == len(set(ids))
