"""Pages of a list in memory: what comes after a place, so that what is added or removed meanwhile moves nothing
from one page to another."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from gateway.domain.problems import Problem
from gateway.errors import Invalid

T = TypeVar("T")
_BETWEEN = "~"


def page_of(
    name: str,
    entries: Iterable[T],
    place: Callable[[T], Sequence[str]],
    after: str,
    limit: int,
    show: Callable[[T], Any] = lambda entry: entry,
    *,
    newest_first: bool = False,
) -> dict[str, Any]:
    """Return the first ``limit`` entries behind ``after`` below a name, how many there are in all, and ``next``.

    Entries are ordered by ``place``, which is another for each; ``newest_first`` turns the order round.
    ``next`` is what to send as ``after``, None on the last page. Raises `Invalid` for another ``after``.
    """
    ordered = sorted(
        ((tuple(place(one)), one) for one in entries), key=lambda at: at[0], reverse=newest_first
    )
    total = len(ordered)
    if after:
        begin = tuple(
            part.replace("%7E", _BETWEEN).replace("%25", "%") for part in after.split(_BETWEEN)
        )
        if ordered and len(begin) != len(ordered[0][0]):
            raise Invalid([Problem("after", "must be `next` of a response", after)])
        ordered = [at for at in ordered if (at[0] < begin if newest_first else at[0] > begin)]
    page = ordered[:limit]
    following = None
    if len(ordered) > limit:
        following = _BETWEEN.join(
            part.replace("%", "%25").replace(_BETWEEN, "%7E") for part in page[-1][0]
        )
    return {
        name: [show(one) for _, one in page],
        "total": total,
        "next": following,
    }


def numbered_page(
    name: str,
    found: Sequence[T],
    limit: int,
    number: str,
    show: Callable[[T], Any] = lambda entry: entry,
) -> dict[str, Any]:
    """Return the first ``limit`` of one more entry than that below a name, and the number to go on after.

    ``number`` is the attribute of an entry that holds its number.
    """
    following = getattr(found[limit - 1], number) if len(found) > limit else None
    return {name: [show(one) for one in found[:limit]], "next": following}
