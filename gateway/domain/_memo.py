"""What follows from a frozen value alone is worked out once: one that changes is another value.

A step of a job looks at each of its tasks, and changes one or two. With hundreds of tasks under way nearly all of
that would be worked out again at every step, as it was.
"""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def remembered(value: Any, name: str, given: object, make: Callable[[], T]) -> T:
    """Return what ``make`` made of this value and of what is ``given`` (the very same object) the last time.

    It is kept beside the fields: neither equal values nor copies know of it. There are few things to be given.
    """
    beside: dict[str, Any] = value.__dict__
    known = beside.get(name)
    if known is None:
        known = beside[name] = {}
    found = known.get(id(given))
    if found is None or found[0] is not given:
        found = known[id(given)] = (given, make())
    made: T = found[1]
    return made
