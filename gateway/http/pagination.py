"""Pages of lists in memory, by the key of the last entry.

Entries that are added or removed between two requests do not move the remaining entries to another
page.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from gateway.domain.problems import Problem
from gateway.errors import Invalid

T = TypeVar("T")
_SEPARATOR = "~"  # between the parts of a key in ``next``


def _unchanged(entry: Any) -> Any:
    """Show an entry as it is."""
    return entry


def page_of(
    name: str,
    entries: Iterable[T],
    key: Callable[[T], Sequence[str]],
    after: str,
    limit: int,
    show: Callable[[T], Any] = _unchanged,
    *,
    newest_first: bool = False,
) -> dict[str, Any]:
    """Return a page of at most ``limit`` entries under a name, with ``total`` and ``next``.

    - ``key`` returns the unique key by which entries are sorted; descending if ``newest_first``
    - ``after``: the ``next`` of the page before; empty for the first page
    - ``show`` returns an entry as it is in the response

    ``next`` is None on the last page. Raises `Invalid` for an ``after`` that cannot be a ``next``:
    its number of parts is not that of the keys.
    """
    keyed = [(tuple(key(entry)), entry) for entry in entries]
    keyed.sort(key=itemgetter(0), reverse=newest_first)
    start = 0
    if after:
        keys = [entry_key for entry_key, _ in keyed]
        start = _start_after(keys, after, newest_first=newest_first)
    end = start + limit
    following = None
    if len(keyed) > end:
        last_key, _ = keyed[end - 1]
        following = _format_key(last_key)
    return {
        name: [show(entry) for _, entry in keyed[start:end]],
        "total": len(keyed),
        "next": following,
    }


def _start_after(
    keys: Sequence[tuple[str, ...]],
    after: str,
    *,
    newest_first: bool,
) -> int:
    """Return the index of the first of the sorted keys that follows the key ``after``."""
    last_key = _parse_key(after)
    if keys and len(last_key) != len(keys[0]):
        raise Invalid([Problem("after", "must be `next` of a response", after)])
    # As the keys are sorted, the number of those up to ``after`` is the index.
    if newest_first:
        return sum(key >= last_key for key in keys)
    return sum(key <= last_key for key in keys)


def _format_key(key: Iterable[str]) -> str:
    """Return a key as one text; the separator in its parts is escaped."""
    return _SEPARATOR.join(part.replace("%", "%25").replace(_SEPARATOR, "%7E") for part in key)


def _parse_key(text: str) -> tuple[str, ...]:
    """Return the key of a text that `_format_key` made."""
    parts = text.split(_SEPARATOR)
    return tuple(part.replace("%7E", _SEPARATOR).replace("%25", "%") for part in parts)


def numbered_page(
    name: str,
    entries: Sequence[T],
    limit: int,
    number: str,
    show: Callable[[T], Any] = _unchanged,
) -> dict[str, Any]:
    """Return a page of numbered entries under a name, and ``next``, the number of its last entry.

    ``entries`` has one entry more than ``limit`` if there is a next page; else ``next`` is None.
    ``number`` is the name of the entries' attribute that has their number.
    """
    following = None
    if len(entries) > limit:
        following = getattr(entries[limit - 1], number)
    return {name: [show(entry) for entry in entries[:limit]], "next": following}
