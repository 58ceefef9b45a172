"""Pages of a list that is at hand whole: what comes behind a place, so that what is added or removed meanwhile
moves nothing from one page to another."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gateway.domain.problems import Problem
from gateway.errors import Invalid

T = TypeVar("T")
_BETWEEN = "~"


class PageOf(NamedTuple, Generic[T]):
    """One page, and where the next begins."""

    entries: list[T]
    total: int
    """entries of all pages"""
    next: str | None
    """what to send as ``after`` for the next page; None on the last one"""

    def shown(self, name: str, show: Callable[[T], Any] = lambda entry: entry) -> dict[str, Any]:
        """Return the page as a response, its entries below this name."""
        return {name: [show(entry) for entry in self.entries], "total": self.total, "next": self.next}


def page_of(
    entries: Iterable[T],
    place: Callable[[T], Sequence[str]],
    after: str,
    limit: int,
    *,
    newest_first: bool = False,
) -> PageOf[T]:
    """Return the first ``limit`` entries behind ``after``, ordered by ``place``, which is another for each entry.

    ``newest_first`` turns the order round. Raises `Invalid` for an ``after`` that no page ended with.
    """
    ordered = sorted(((tuple(place(one)), one) for one in entries), key=lambda at: at[0], reverse=newest_first)
    total = len(ordered)
    if after:
        begin = tuple(_unquoted(part) for part in after.split(_BETWEEN))
        if ordered and len(begin) != len(ordered[0][0]):
            raise Invalid([Problem("after", "must be `next` of a response", after)])
        ordered = [at for at in ordered if (at[0] < begin if newest_first else at[0] > begin)]
    shown = ordered[:limit]
    more = len(ordered) > limit
    following = _BETWEEN.join(_quoted(part) for part in shown[-1][0]) if more else None
    return PageOf([one for _, one in shown], total, following)


def _quoted(part: str) -> str:
    return part.replace("%", "%25").replace(_BETWEEN, "%7E")


def _unquoted(part: str) -> str:
    return part.replace("%7E", _BETWEEN).replace("%25", "%")
