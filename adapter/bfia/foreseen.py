"""What a node tells of a job that was only asked about, on the wire of the extension ``/job/plan``."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.domain.dry_run import Item, Standing
from gateway.domain.outward import for_others

_MOST = 500
_LONGEST = 2000
"""characters of one text that a peer tells"""


def body(items: Iterable[Item]) -> dict[str, Any]:
    """Return the data of the answer."""
    return {
        "checks": [
            {
                "check": i.check,
                "about": i.about,
                "standing": str(i.standing),
                "found": for_others(i.found),
                "cause": for_others(i.cause),
                "remedy": i.remedy,
            }
            for i in items
        ]
    }


def items(data: Mapping[str, Any]) -> tuple[Item, ...]:
    """Read what a peer tells; a standing that is not known counts as unknown, what is no entry is left out."""
    told = data.get("checks")
    return tuple(_item(one) for one in told[:_MOST] if isinstance(one, Mapping)) if isinstance(told, list) else ()


def _item(one: Mapping[str, Any]) -> Item:
    def text(key: str) -> str:
        value = one.get(key)
        return value[:_LONGEST] if isinstance(value, str) else ""

    said = text("standing")
    standing = Standing(said) if said in set(Standing) else Standing.UNKNOWN
    return Item(text("check") or "told", standing, text("found"), text("cause"), text("remedy"), text("about"))
