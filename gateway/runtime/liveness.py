"""Who is there: the gateways of this node that share its database, and other nodes that did not answer.

Jobs need nothing of the former: whoever finds one due advances it. Containers do: they and their channel belong to
one. When it is silent for long, its runs fail with CHANNEL_LOST and the retry rule decides what follows.

Nodes that calls did not reach are looked after, one cheap connection every second or two for all that waits for
them. One that accepts connections and still does not answer is tried at growing pauses.
"""

import math
import threading
import time
from collections.abc import Callable

import structlog

from gateway.domain.execution.messages import Event, OwnerLost
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId
from gateway.ports import Clock
from gateway.runtime.loop import Loop
from gateway.store.repositories import Gateways, KnownGateway

log = structlog.get_logger(__name__)

EVERY = 1.0
LONGEST = 30.0
_AWAY = 8.0
"""seconds of silence of a gateway after which jobs that have nothing there yet are begun elsewhere"""
_RELAPSE = 15.0
"""seconds after which a node that falls silent again counts as a new outage"""


class Heartbeat:
    """Beats for one gateway, and answers where a job's channel is.

    ``record`` takes news of a job's runs; ``lost_after`` is in seconds: when a gateway counts as lost with what it
    has.
    """

    def __init__(
        self,
        gateways: Gateways,
        owner: str,
        record: Callable[[str, Event], object],
        clock: Clock,
        *,
        lost_after: float = 60.0,
    ) -> None:
        self._gateways = gateways
        self._owner = owner
        self._record = record
        self._clock = clock
        self._lost_after = lost_after
        self._url = ""
        self._known: dict[str, KnownGateway] = {}
        self._left: set[str] = set()
        """lost gateways whose jobs have all got another home"""
        self._steady_since: float | None = None
        every = min(2.0, lost_after / 3)
        self._loop = Loop(
            "heartbeat", lambda _: self.beat(), lambda _: [owner], every=every, workers=1
        )

    def start(self, url: str) -> None:
        """Begin; ``url`` is where the other gateways reach this one."""
        self._url = url
        self.beat()
        self._loop.start()

    def stop(self) -> None:
        """End the beats; the other gateways notice by their silence."""
        self._loop.stop()

    def beat(self) -> None:
        """Say that this gateway lives, and see to those that are lost.

        Only a gateway that has beaten without a break for as long as others must be silent may say so: after an
        outage of the database, or a start of all machines together, every gateway seems silent. Nor after a
        freeze: whatever held this process for long may have held the others as well.
        """
        try:
            silent = self._gateways.beat(self._owner, self._url)
            self._known = {found.owner: found for found in self._gateways.all()}
        except Exception as error:  # the database is away: nothing can be said of anybody
            if self._steady_since is not None:
                log.warning("cannot write the heartbeat", cause=str(error)[:500])
            self._steady_since = None
            return
        now = time.monotonic()
        if self._steady_since is None or silent > self._lost_after / 2:
            self._steady_since = now
        if now - self._steady_since < self._lost_after:
            return
        for other in self._known.values():
            if other.owner != self._owner and other.silent > self._lost_after:
                self._take_over(other.owner)
            else:
                self._left.discard(other.owner)

    def home_of(self, local: LocalJob) -> str:
        """Return the gateway that the runs of a job here belong to: its own, while that lives or has some."""
        home = local.home
        if home in ("", self._owner):
            return self._owner
        known = self._known.get(home)
        away = known is None or known.silent > _AWAY
        has_runs = any(run.owner == home and not run.over for run in local.runs)
        return self._owner if away and not has_runs else home

    def elsewhere(self, home: str) -> str | None:
        """Return where another gateway is reached; None for this one and for unknown ones."""
        known = self._known.get(home)
        return None if home == self._owner or known is None else known.url

    def has_files(self, owner: str) -> str:
        """Say which other gateway has what lies in the state folder of a run's owner; empty for this one."""
        if owner.rpartition("/")[0] in ("", self._owner.rpartition("/")[0]):
            return ""
        known = self._known.get(owner)
        named = known is not None and known.url not in (
            "",
            self._url,
        )  # after a restore that is this one's
        return f"the gateway {known.url}" if known is not None and named else "another gateway"

    def _take_over(self, owner: str) -> None:
        """Fail the runs of a lost gateway, and have its jobs done with here; the latter are looked for once."""
        jobs = dict.fromkeys(self._gateways.jobs_of(owner))
        first = owner not in self._left
        if first:
            jobs |= dict.fromkeys(self._gateways.jobs_at(owner))
        done = True
        for job_id in jobs:
            try:
                self._record(job_id, OwnerLost(owner, self._owner, self._clock()))
            except Exception:
                log.exception("cannot take over", job=job_id, owner=owner)
                done = False
        if first and done:
            self._left.add(owner)


class Outages:
    """Keeps which nodes are silent, and tells once they are not."""

    def __init__(
        self,
        reaches: Callable[[NodeId], bool],
        healed: Callable[[NodeId], None],
        monotonic: Callable[[], float] = time.monotonic,
        every: float = EVERY,
    ) -> None:
        """``reaches`` tries to connect to a node, ``healed`` is called with one that could be reached again."""
        self._reaches = reaches
        self._healed = healed
        self._monotonic = monotonic
        self._every = every
        self._lock = threading.Lock()
        self._loop = Loop("outages", self.look, lambda _: self.due(), every=every, workers=16)
        self._silent: dict[NodeId, tuple[float, float]] = {}
        """when each is tried next, and the pause between two tries"""
        self._back: dict[NodeId, tuple[float, float]] = {}
        """when each could be reached again, and its pause before"""
        self._begun = self._closing = False

    def silent(self, node: NodeId) -> None:
        """Note that a call did not reach a node."""
        with self._lock:
            if node in self._silent or self._closing:
                return
            now = self._monotonic()
            back_at, pause = self._back.pop(node, (-math.inf, 0.0))
            pause = min(pause * 2, LONGEST) if now - back_at < _RELAPSE else self._every
            self._silent[node] = (now + pause, pause)
            if not self._begun:
                self._begun = True
                self._loop.start()

    def nodes(self) -> list[NodeId]:
        """Return the nodes that are silent just now."""
        with self._lock:
            return sorted(self._silent)

    def close(self) -> None:
        """End the looks."""
        with self._lock:
            self._closing = True
        self._loop.stop()

    def due(self) -> list[NodeId]:
        """Return the silent nodes whose time it is."""
        with self._lock:
            now = self._monotonic()
            return [node for node, (look_at, _) in self._silent.items() if look_at <= now]

    def look(self, node: NodeId) -> None:
        """Try a node, unless that was just done; tell if it was reached."""
        if node not in self.due():
            return
        there = self._reaches(node)
        with self._lock:
            now = self._monotonic()
            _, pause = self._silent.pop(node)
            if there:
                self._back[node] = (now, pause)
            else:
                self._silent[node] = (now + pause, pause)
        if there:
            log.info("a node can be reached again", node=node)
            self._healed(node)
