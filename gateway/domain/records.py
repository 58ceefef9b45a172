"""Copies of frozen records, such as jobs and runs, with other values of some fields."""

from functools import cache, cached_property
from typing import TYPE_CHECKING

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

        The copy computes its cached properties anew.
        """
        changed_record = object.__new__(type(record))
        changed_record.__dict__.update(record.__dict__, **changes)
        for name in _cached_properties(type(record)):
            changed_record.__dict__.pop(name, None)
        return changed_record

    @cache
    def _cached_properties(cls):
        """Return the names of a type's cached properties."""
        return [name for name, value in vars(cls).items() if isinstance(value, cached_property)]
