"""Pages of a list in memory by keyset: entries added or removed between two requests shift no
others.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from gateway.domain.problems import Problem
from gateway.errors import Invalid

T = TypeVar("T")
_SEPARATOR = "~"


def page_of(
    name: str,
    entries: Iterable[T],
    key: Callable[[T], Sequence[str]],
    after: str,
    limit: int,
    show: Callable[[T], Any] = lambda entry: entry,
    *,
    newest_first: bool = False,
) -> dict[str, Any]:
    """Return a page of at most ``limit`` entries under a name, with ``total`` and ``next``.

    Entries are ordered by ``key``, which is unique; descending if ``newest_first``. The page begins
    after the key ``after``. ``next`` is the ``after`` of the next page, None on the last one.
    Raises `Invalid` for a bad ``after``.
    """
    keyed = [(tuple(key(entry)), entry) for entry in entries]
    keyed.sort(key=itemgetter(0), reverse=newest_first)
    total = len(keyed)
    if after:
        last_key = _parse_key(after)
        if keyed and len(last_key) != len(keyed[0][0]):
            raise Invalid([Problem("after", "must be `next` of a response", after)])
        if newest_first:
            keyed = [pair for pair in keyed if pair[0] < last_key]
        else:
            keyed = [pair for pair in keyed if pair[0] > last_key]
    page = keyed[:limit]
    following = None
    if len(keyed) > limit:
        following = _format_key(page[-1][0])
    return {
        name: [show(entry) for _, entry in page],
        "total": total,
        "next": following,
    }


def _format_key(key: Iterable[str]) -> str:
    return _SEPARATOR.join(part.replace("%", "%25").replace(_SEPARATOR, "%7E") for part in key)


def _parse_key(text: str) -> tuple[str, ...]:
    parts = text.split(_SEPARATOR)
    return tuple(part.replace("%7E", _SEPARATOR).replace("%25", "%") for part in parts)


def numbered_page(
    name: str,
    entries: Sequence[T],
    limit: int,
    number: str,
    show: Callable[[T], Any] = lambda entry: entry,
) -> dict[str, Any]:
    """Return the first ``limit`` of ``limit + 1`` entries under a name, and ``next``, the last
    one's number.

    ``number`` is the entries' attribute with their number.
    """
    following = None
    if len(entries) > limit:
        following = getattr(entries[limit - 1], number)
    return {name: [show(entry) for entry in entries[:limit]], "next": following}
