"""What a call raises.

GatewayError
├── NoAnswer        nothing responds at the address
├── NotANode        what responds there is not a node's operator listener
├── Refused         the node refuses
│   └── Invalid     the request has mistakes; `problems` lists each with its path
├── Damaged         what was downloaded is not what the node sent
├── JobFailed       a job that was watched has not succeeded
└── StillRunning    it was not over within the time that the caller gave
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Return text of others without control characters, which would steer a terminal."""
    return CONTROL.sub("?", text)


class Problem(NamedTuple):
    """One mistake of an input."""

    path: str
    """where, such as ``config.role.guest[0]``"""
    rule: str
    """what is wrong there"""
    got: Any = None
    """what was found; None also where there was nothing"""
    suggestion: str = ""
    """what was probably meant; empty where that is not clear"""

    def __str__(self) -> str:
        meant = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        got = "" if self.got is None else f" (got {self.got!r})"
        return f"{self.path}: {self.rule}{got}{meant}"


class GatewayError(Exception):
    """A call failed. ``reason`` is a stable word for programs, ``next_step`` what to do; both may be empty."""

    reason = ""
    next_step = ""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        next_step: str = "",
        problems: Iterable[Problem] = (),
        data: Mapping[str, Any] | None = None,
        status: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        """what happened, as the node words it"""
        self.reason = reason or self.reason
        self.next_step = next_step or self.next_step
        self.problems = tuple(problems)
        self.data = dict(data or {})
        """what else the node responded, such as ``job_id`` of a job that is kept all the same"""
        self.status = status
        """HTTP status; 0 where no response of a node is behind this"""

    def __str__(self) -> str:
        lines = [self.message]
        if len(self.problems) > 1:
            lines = [
                f"{self.reason}: {len(self.problems)} problems",
                *(f"  {problem}" for problem in self.problems),
            ]
        return harmless(
            "\n".join([*lines, *([f"Next step: {self.next_step}"] if self.next_step else [])])
        )


class NoAnswer(GatewayError):
    """Nothing responds at the address, or the response broke off."""

    reason = "NO_ANSWER"
    next_step = "Check the address, and whether the node is up: bfia-gateway doctor on its machine."


MAYBE_DONE = "It may be done all the same: before sending it again, look, for a job in jobs.list or by job list."
"""what to do where the response to a change broke off"""


class NotANode(GatewayError):
    """What responds is not a node's operator listener."""

    reason = "NO_ENVELOPE"
    next_step = "Use the address of listen.operator in the node's configuration, such as http://127.0.0.1:7382."


class Refused(GatewayError):
    """The node refuses."""


class Invalid(Refused):
    """The request has mistakes."""

    reason = "INVALID"


class Damaged(GatewayError):
    """A download does not have the checksum that the node names; nothing was kept."""

    reason = "CHECKSUM_WRONG"
    next_step = "Download it again."


class JobFailed(GatewayError):
    """A job that was watched ended otherwise than SUCCEEDED; ``reason`` and ``data`` are those of its failure."""


class StillRunning(GatewayError):
    """A job that was watched was not over in time; it goes on."""

    reason = "STILL_RUNNING"
    next_step = "Watch it again, or stop it."


def invalid(*problems: Problem) -> Invalid:
    """Return what is raised for arguments that are refused before a request is made."""
    return Invalid("; ".join(map(str, problems)), problems=problems)
