"""Entries of parameters and settings in the body of a job, and unknown names among them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from gateway.domain.problems import Problem, near

# Largest number of valid names that a mistyped name is compared with, so that a check stays fast.
_MAX_COMPARED = 100
# Similarity of two names, from 0 to 1, from which on one counts as a misspelling of the other.
_SIMILARITY = 0.7


def entries_of(params: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each entry of parameters or settings with its place in the body.

    The place is ``common``, or role and key such as ``guest.0``. A value that should be an object
    and is not is skipped: `gateway.domain.validation` reports it.
    """
    for role, entry in objects_in(params):
        if role == "common":
            yield role, entry
            continue
        for key, party_entry in objects_in(entry):
            yield f"{role}.{key}", party_entry


def objects_in(entries: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and value of each object in ``entries``; nothing if that is not an object."""
    for name, entry in as_mapping(entries).items():
        if isinstance(entry, Mapping):
            yield name, entry


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON value if it is an object, otherwise an empty object.

    Jobs and messages of other nodes may have any JSON where an object is expected. In a job,
    `gateway.domain.validation` reports such a value.
    """
    if isinstance(value, Mapping):
        return value
    return {}


def unknown_names(
    entry: Iterable[str],
    valid_names: Collection[str],
    at: str,
    rule: str,
    values: Mapping[str, Any] | None = None,
) -> Iterator[Problem]:
    """Find names in an entry that are not among the valid ones.

    ``at`` is the path of the entry. A problem shows the unknown name's value in ``values``, or the
    name itself without ``values``, and suggests the valid name that was probably meant.
    """
    valid = frozenset(valid_names)
    for name in entry:
        if name in valid:
            continue
        value = name
        if values:
            value = values[name]
        suggestion = probable_name(name, valid_names)
        remedy = "leave it out, unless another node's platform is known to read it"
        if suggestion:
            remedy = f"write {suggestion}, if it is meant"
        yield Problem(f"{at}.{name}", rule, value, suggestion, remedy=remedy)


def probable_name(word: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant by a word; empty if none is similar enough."""
    return near(word, islice(names, _MAX_COMPARED), _SIMILARITY)
