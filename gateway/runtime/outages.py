"""Notices when a node that did not answer can be reached again, so that what waits for it need not wait longer.

Nodes that calls did not reach are looked after here, one cheap connection every second or two for all that waits
for them. One that accepts connections and still does not answer is tried at growing pauses.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from gateway.domain.spec import NodeId
from gateway.runtime.loop import Loop

log = structlog.get_logger(__name__)

EVERY = 1.0
LONGEST = 30.0
_RELAPSE = 15.0
"""seconds after which a node that falls silent again counts as a new outage"""


@dataclass
class _Silent:
    look_at: float
    pause: float


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
        self._loop = Loop("outages", self._advance, lambda _: ["all"], every=every, workers=1)
        self._silent: dict[NodeId, _Silent] = {}
        self._back: dict[NodeId, tuple[float, float]] = {}
        self._begun = self._closing = False

    def silent(self, node: NodeId) -> None:
        """Note that a call did not reach a node."""
        with self._lock:
            if node in self._silent or self._closing:
                return
            now = self._monotonic()
            back_at, pause = self._back.pop(node, (0.0, 0.0))
            relapse = pause > 0 and now - back_at < _RELAPSE
            pause = min(pause * 2, LONGEST) if relapse else self._every
            self._silent[node] = _Silent(now + pause, pause)
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

    def look(self) -> list[NodeId]:
        """Try every silent node whose time it is; return those that were reached."""
        with self._lock:
            now = self._monotonic()
            due = [node for node, state in self._silent.items() if state.look_at <= now]
        if not due:
            return []
        with ThreadPoolExecutor(min(16, len(due)), thread_name_prefix="outages") as pool:
            answers = dict(zip(due, pool.map(self._reaches, due), strict=True))
        found = []
        with self._lock:
            now = self._monotonic()
            for node, there in answers.items():
                state = self._silent[node]
                if there:
                    del self._silent[node]
                    self._back[node] = (now, state.pause)
                    found.append(node)
                else:
                    state.look_at = now + min(state.pause, LONGEST)
        return found

    def _advance(self, _: str) -> None:
        for node in self.look():
            log.info("a node can be reached again", node=node)
            try:
                self._healed(node)
            except Exception:
                log.exception("cannot take up what waits for a node", node=node)
