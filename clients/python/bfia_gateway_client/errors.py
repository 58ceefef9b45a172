"""What a call raises.

GatewayError
├── NoAnswer        nothing responds at the address
├── NotANode        a server responds that is not a node's operator listener
├── Refused         the node refuses
│   └── Invalid     the request has mistakes; `problems` lists each with its path
├── Damaged         a download differs from the node's file
├── JobFailed       a watched job did not succeed
└── StillRunning    a watched job did not end in time
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Control characters except tab and line feed, and marks that change the direction of text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# The next step if the connection broke before the response to a request that changes something.
MAYBE_DONE = (
    "It may be done all the same: look before sending it again, for a job with jobs.list or "
    "job list."
)


def harmless(text: str) -> str:
    """Return a text from elsewhere with ``?`` in place of control characters.

    A terminal would obey these characters.
    """
    return CONTROL.sub("?", text)


class Problem(NamedTuple):
    """A mistake in an input."""

    path: str  # where, such as ``config.role.guest[0]``
    rule: str  # the rule that the value breaks
    got: Any = None  # the value; None also if there is none
    suggestion: str = ""  # the probably intended value; empty if unclear
    reason: str = ""  # a stable word for programs, such as COMPONENT_UNKNOWN; empty for none
    node: str = ""  # the node that found it; empty for the node that was called, and for none
    next_step: str = ""  # advice for the reason; empty for none

    def __str__(self) -> str:
        finder = f"{self.node}: " if self.node else ""
        text = f"{self.path}: {finder}{self.rule}"
        if self.got is not None:
            text += f" (got {self.got!r})"
        if self.suggestion:
            text += f"; did you mean {self.suggestion}?"
        return text


class GatewayError(Exception):
    """A call failed.

    ``message`` is the node's description, ``reason`` a stable word for programs and ``next_step``
    advice; both may be empty. ``problems`` are the mistakes of the input. ``data`` holds further
    fields of the response, such as the ``job_id`` of a job that is kept in spite of the failure.
    ``status`` is the HTTP status; 0 without a response.
    """

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
        self.reason = reason or self.reason
        self.next_step = next_step or self.next_step
        self.problems = tuple(problems)
        self.data = dict(data or {})
        self.status = status

    def __str__(self) -> str:
        lines = [self.message]
        if len(self.problems) > 1:  # the message has all of them in one line
            lines = [f"{self.reason}: {len(self.problems)} problems"]
            lines += [f"  {problem}" for problem in self.problems]
        steps = self.steps_by_reason()
        lines += [f"Next step for {reason}: {step}" for reason, step in steps.items()]
        if self.next_step and not steps:
            lines.append(f"Next step: {self.next_step}")
        return harmless("\n".join(lines))

    def steps_by_reason(self) -> dict[str, str]:
        """Return the next step of each reason that problems have.

        Empty if the whole error has the only reason: its own next step says as much.
        """
        steps = {}
        for problem in self.problems:
            if problem.next_step:
                steps[problem.reason] = problem.next_step
        if set(steps) <= {self.reason}:
            return {}
        return steps


class NoAnswer(GatewayError):
    """Nothing responds at the address, or the response broke off."""

    reason = "NO_ANSWER"
    next_step = "Check the address, and whether the node is up: bfia-gateway doctor on its machine."


class NotANode(GatewayError):
    """The server at the address is not a node's operator listener."""

    reason = "NO_ENVELOPE"
    next_step = (
        "Use the address of listen.operator in the node's configuration, such as "
        "http://127.0.0.1:7382."
    )


class Refused(GatewayError):
    """The node refuses."""


class Invalid(Refused):
    """The request has mistakes."""

    reason = "INVALID"


class Damaged(GatewayError):
    """A download does not have the checksum that the node names; it is discarded."""

    reason = "CHECKSUM_WRONG"
    next_step = "Download it again."


class JobFailed(GatewayError):
    """A watched job did not succeed; ``reason`` and ``data`` describe its failure."""


class StillRunning(GatewayError):
    """A watched job did not end in time; it continues."""

    reason = "STILL_RUNNING"
    next_step = "Watch it again, or stop it."


def invalid(*problems: Problem) -> Invalid:
    """Return the error for arguments that are refused before a request is sent.

    Its message has every problem.
    """
    return Invalid(
        "; ".join(map(str, problems)),
        problems=problems,
    )
