"""Whether this node accepts new jobs at the moment."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed, Refused


@dataclass(frozen=True)
class Intake:
    """The conditions under which this node accepts new jobs.

    They are: this node is not being drained, and the sender has a route and quota left.
    """

    draining: threading.Event  # set while this node takes no new jobs
    quota: Callable[[NodeId], None]  # raises `Busy` for a node at its limit of unfinished jobs here
    may_begin: Callable[[NodeId], bool]  # whether a node has an enabled route of its own

    def check(self, sender: NodeId = "") -> None:
        """Raise unless new jobs are accepted; an empty sender is this node itself.

        Raises `Refused` while this node is drained, `NotAllowed` for a sender without an enabled
        route, and `Busy` for one at its limit.
        """
        if self.draining.is_set():
            raise Refused("this node is being drained and takes no new jobs", reason="DRAINING")
        if not sender:
            return
        if not self.may_begin(sender):
            raise NotAllowed(
                f"node {sender} has no enabled route here: ask the admin of this node for one"
            )
        self.quota(sender)
