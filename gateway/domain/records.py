"""Copies of frozen records, such as jobs and runs, with other values of some fields."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")


class _Derived(cached_property[T]):
    """A cached property of a record that depends on some of the record's fields only."""

    def __init__(
        self,
        compute: Callable[[Any], T],
        fields: tuple[str, ...],
    ) -> None:
        super().__init__(compute)
        self.fields = frozenset(fields)


def derived_from(*fields: str) -> Callable[[Callable[[Any], T]], cached_property[T]]:
    """Decorate a method as a cached property that depends on these fields only.

    A copy of the record keeps the value unless one of these fields is changed.
    """

    def decorate(compute: Callable[[Any], T]) -> cached_property[T]:
        return _Derived(compute, fields)

    return decorate


def carry(
    record: object,
    name: str,
    value: Any,
) -> None:
    """Set the value of a record's cached property, which the caller has computed otherwise."""
    record.__dict__[name] = value


if TYPE_CHECKING:
    # Type checkers see the signature of `dataclasses.replace`; the program uses the faster function
    # below. ``as`` marks the name as one that other modules may import from here.
    from dataclasses import replace as replace
else:

    def replace(record, /, **changes):
        """Return a record with other values of some fields.

        This takes a tenth of the time of `dataclasses.replace`.

        It runs neither the constructor nor ``__post_init__``. The records that are copied here need
        neither: they are frozen dataclasses with ordinary fields. A `Dag` has a ``__post_init__``:
        copy it with `dataclasses.replace`.

        The copy computes its cached properties anew, except those of `derived_from` whose fields
        stay as they are.
        """
        changed_record = object.__new__(type(record))
        changed_record.__dict__.update(record.__dict__, **changes)
        for name, fields in _cached_properties(type(record)):
            if fields is None or not fields.isdisjoint(changes):
                changed_record.__dict__.pop(name, None)
        return changed_record

    @cache
    def _cached_properties(cls):
        """Return a type's cached properties, each with the fields that it depends on.

        None in place of the fields stands for all of them.
        """
        properties = []
        for name, value in vars(cls).items():
            if isinstance(value, cached_property):
                properties.append((name, getattr(value, "fields", None)))
        return properties
