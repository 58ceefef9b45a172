"""Entries of parameters and settings in the body of a job, and unknown names among them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from gateway.domain.problems import Problem, near

_MOST_KNOWN = 100  # valid names that a mistyped one is compared with; bounds the time of a check
_SIMILARITY = 0.7  # of two names, from 0 to 1; from here on one may be a misspelling


def entries_of(params: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each entry of parameters or settings with its place in the body.

    The place is ``common``, or role and key such as ``guest.0``. Values that should be objects and
    are not have no entries: `gateway.domain.validation` reports them.
    """
    for role, entry in objects_in(params):
        if role == "common":
            yield role, entry
            continue
        for key, party_entry in objects_in(entry):
            yield f"{role}.{key}", party_entry


def objects_in(entries: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the items of ``entries`` that are objects; none if it is not an object itself."""
    if not isinstance(entries, Mapping):
        return
    for name, entry in entries.items():
        if isinstance(entry, Mapping):
            yield name, entry


def unknown_names(
    entry: Iterable[str],
    valid_names: Collection[str],
    at: str,
    rule: str,
    values: Mapping[str, Any] | None = None,
) -> Iterator[Problem]:
    """Find names in an entry that are not among the valid ones.

    A problem shows the name's value if ``values`` has one, else the name itself, and suggests the
    valid name that was probably meant. The entry is at the path ``at``.
    """
    valid = frozenset(valid_names)
    for name in entry:
        if name in valid:
            continue
        value = name
        if values:
            value = values[name]
        yield Problem(f"{at}.{name}", rule, value, probable_name(name, valid_names))


def probable_name(word: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant by a word; empty if none is similar enough."""
    return near(word, islice(names, _MOST_KNOWN), _SIMILARITY)
