"""What both records of a job are made of: what was submitted, who takes part, a call, a failure, a note.

A job has two records. `gateway.domain.job.Job` is the scheduling node's: what it knows of everyone.
`gateway.domain.run.LocalJob` is a participating node's: what it accepted and what it runs. A node that does
both has both. All these values are frozen; a change makes a new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from gateway.domain import lifetimes
from gateway.domain.dag import Dag
from gateway.domain.states import Outcome
from gateway.domain.unread import Unread

NodeId = str


@dataclass(frozen=True)
class Party:
    """One role of a job: its position in the role's list, and the node that plays it."""

    role: str
    index: int
    node: NodeId

    @property
    def label(self) -> str:
        """Role and index, such as ``guest.0``."""
        return f"{self.role}.{self.index}"


@dataclass(frozen=True)
class JobSpec:
    """What was submitted. Never changes."""

    job_id: str
    flow_id: str
    dag: Dag
    parties: tuple[Party, ...]
    initiator: NodeId
    initiator_role: str
    scheduler: NodeId
    protocol: str
    trace_id: str
    job_params: Mapping[str, Any] = field(default_factory=dict)
    """common, then role -> index -> settings of the job there"""
    task_params: Mapping[str, Any] = field(default_factory=dict)
    """common, then role -> index, then task -> parameters"""
    version: str = "2.0.0"
    old_job_id: str = ""
    """an earlier job of which finished tasks are taken over; empty for none"""
    unread: tuple[Unread, ...] = ()
    """keys of what was handed in here that nobody reads; other nodes are not told of them"""

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """Every node of the job once, in the order of the parties."""
        return tuple(dict.fromkeys(p.node for p in self.parties))

    def parties_at(self, node: NodeId) -> tuple[Party, ...]:
        """Return the roles that a node plays; none where it has no part."""
        return tuple(p for p in self.parties if p.node == node)

    @property
    def by_callback(self) -> bool:
        """Whether participants push their states; by default the scheduler polls."""
        common = self.job_params.get("common")
        return isinstance(common, Mapping) and common.get("sync_type") == "callback"

    @cached_property
    def lifetimes(self) -> lifetimes.Lifetimes:
        """How long the job and its tasks may take, and how often a task is tried again."""
        return lifetimes.read(self.job_params.get("common"))

    def for_node(self, node: NodeId) -> Self:
        """Return what that node is told: entries of parties at other nodes are emptied."""
        mine = {p.label for p in self.parties_at(node)}
        return replace(
            self,
            job_params=_only(self.job_params, mine),
            task_params=_only(self.task_params, mine),
        )


def _only(params: Mapping[str, Any], mine: set[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for role, by_index in params.items():
        if role == "common" or not isinstance(by_index, Mapping):
            kept[role] = by_index
            continue
        kept[role] = {
            key: value if any(f"{role}.{i}" in mine for i in key.split("|")) else {}
            for key, value in by_index.items()
        }
    return kept


@dataclass(frozen=True)
class Note:
    """One line of a job's timeline: what happened, to whom, caused by whom."""

    at: datetime
    event: str
    by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class CallState(StrEnum):
    """What has become of a request."""

    IDLE = "IDLE"
    SENT = "SENT"
    OK = "OK"
    REFUSED = "REFUSED"
    LOST = "LOST"
    """no answer came; may be tried again at `Call.due_at`"""


@dataclass(frozen=True)
class Call:
    """One request to one node: the record of the intent, and what came back."""

    state: CallState = CallState.IDLE
    sent_at: datetime | None = None
    due_at: datetime | None = None
    """of one that is to be made, or made again: when; None: at once"""
    tries: int = 0
    """how often it was made"""
    reason: str = ""
    """why it was refused"""
    message: str = ""

    @property
    def settled(self) -> bool:
        """Whether its answer is known, so that it is not made again."""
        return self.state in (CallState.OK, CallState.REFUSED)


UNTOLD = ("INTERNAL", "NO_ENVELOPE")
"""Reasons of refusals that leave open whether what was asked was done: an error of the node's own, and an answer
that is none, as something gives that stands in the node's place."""


@dataclass(frozen=True)
class Failure:
    """Why something did not work, in words that every party gets alike."""

    reason: str
    message: str = ""
    node: NodeId = ""
    role: str = ""
    task: str = ""
    exit_code: int | None = None
    """of the container; None where none has ended"""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "reason": self.reason,
            "message": self.message,
            "node": self.node,
            "role": self.role,
            "task": self.task,
            "exit_code": self.exit_code,
        }


@dataclass(frozen=True)
class Ending:
    """The decision that a job ends, or that a task is stopped, and how; made once."""

    outcome: Outcome
    at: datetime
    failure: Failure | None = None
    by: str = ""
