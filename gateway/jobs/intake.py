"""Whether this node accepts new jobs at the moment."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed, Refused


def _has_signer() -> None:
    """Accept the node's signing key unseen: for requests that sign nothing."""


@dataclass(frozen=True)
class Intake:
    """The conditions under which this node accepts new jobs.

    They are: this node is not being drained, it can sign its own jobs, and another sender has a
    route and quota left.
    """

    draining: threading.Event  # set while this node takes no new jobs
    quota: Callable[[NodeId], None]  # raises `Busy` for a node at its limit of unfinished jobs here
    may_begin: Callable[[NodeId], bool]  # whether a node has an enabled route of its own
    me: NodeId  # this node
    # raises `SigningFailed` if this node cannot sign its jobs
    check_signer: Callable[[], None] = _has_signer

    def check(self, sender: NodeId = "") -> None:
        """Raise unless new jobs are accepted; an empty sender is this node itself.

        Raises `Refused` while this node is drained, `SigningFailed` if it cannot sign a job of its
        own, `NotAllowed` for a sender without an enabled route, and `Busy` for one at its limit.
        """
        if self.draining.is_set():
            raise Refused("this node is being drained and takes no new jobs", reason="DRAINING")
        if not sender:
            self.check_signer()
            return
        if not self.may_begin(sender):
            raise NotAllowed(
                f"node {sender} has no enabled route here: ask the admin of {self.me} for one"
            )
        self.quota(sender)
