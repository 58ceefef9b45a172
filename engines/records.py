"""Reads records of container daemons and registries, which write null for empty values."""

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]  # a JSON object


def object_in(record: Record, name: str) -> Record:
    """Return an object of a record; empty if it is null or absent."""
    return record.get(name) or {}


def list_in(record: Record, name: str) -> Sequence[Any]:
    """Return a list of a record; empty if it is null or absent."""
    return record.get(name) or ()


def text_in(record: Record, name: str) -> str:
    """Return a text of a record; empty if it is null or absent."""
    return str(record.get(name) or "")
