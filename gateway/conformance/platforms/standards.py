"""The versions of the standard, and what differs between them for the clauses."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Standard:
    """A version of the standard; each default is that of version 1.2.0.

    Which clauses a version has, is said by the clauses (``since``).
    """

    version: str
    success_code: int = 0  # the code of a success in the control layer
    # Methods by which ``status_all`` has to be served.
    status_methods: tuple[str, ...] = ("POST", "GET")
    session_prefix: str = "session_"  # of a session's id, before the id of its job


_ALL = (
    Standard(
        "1.0",
        success_code=200,
        status_methods=("GET",),
        session_prefix="",
    ),
    Standard("1.1"),
    Standard("1.2.0"),
)
STANDARDS: Mapping[str, Standard] = {each.version: each for each in _ALL}  # the oldest first
LATEST = _ALL[-1].version
