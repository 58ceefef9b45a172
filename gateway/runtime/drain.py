"""Empties a node: no new job is taken, those under way end or are stopped, then the process leaves.

Draining is an order to this process alone and is not stored: a gateway that is started again takes jobs again.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from gateway.errors import GatewayError
from gateway.ports import Clock
from gateway.runtime.loop import Loop
from gateway.store import queries
from gateway.store.store import Store

log = structlog.get_logger(__name__)

STOP_AGAIN = 5.0
"""seconds between two requests to stop what does not end"""


@dataclass(frozen=True)
class Order:
    """What was asked for: whether jobs are stopped, and whether the process ends afterwards."""

    since: datetime
    stop: bool
    leave: bool


class Drain:
    """Keeps the order, and looks how far it is carried out."""

    def __init__(
        self, store: Store, stop_job: Callable[[str], None], clock: Clock, look_every: float = 0.5
    ) -> None:
        """``stop_job`` has a job stopped at every node."""
        self.draining = threading.Event()
        """set while no new job is taken"""
        self._store = store
        self._stop_job = stop_job
        self._clock = clock
        self._order: Order | None = None
        self._stopped_at: datetime | None = None
        self._leave: Callable[[], None] = lambda: None
        self._loop = Loop("drain", self._look, lambda _: ["drain"], every=look_every, workers=1)
        self._alone = threading.Lock()
        self._begun = False

    def on_empty(self, leave: Callable[[], None]) -> None:
        """Name what ends the process once nothing is under way."""
        self._leave = leave

    def begin(self, *, stop: bool, leave: bool) -> dict[str, Any]:
        """Take no new jobs from now on; a second order takes the place of the first."""
        with self._alone:
            since = self._order.since if self._order else self._clock()
            self._order = Order(since, stop, leave)
            self.draining.set()
            if not self._begun:
                self._begun = True
                self._loop.start()
        self._loop.wake("drain")
        log.info("draining", stop=stop, leave=leave)
        return self.state()

    def undo(self) -> dict[str, Any]:
        """Take jobs again. What was stopped stays stopped."""
        with self._alone:
            undone, self._order = self._order, None
            self.draining.clear()
        if undone:
            log.info("draining was called off")
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return what was ordered and what is still under way."""
        order, left = self._order, queries.under_way(self._store)
        return {
            "draining": order is not None,
            "since": order.since.isoformat() if order else None,
            "running": None if order is None else "stop" if order.stop else "wait",
            "exit": bool(order and order.leave),
            "jobs": [{"job_id": job_id, "status": status} for job_id, status in left],
        }

    def close(self) -> None:
        """End the wait, without the process leaving; for one that ends in another way."""
        self._loop.stop()

    def _look(self, _: str) -> None:
        order, now = self._order, self._clock()
        if order is None:
            return
        left = queries.under_way(self._store)
        stopped_at = self._stopped_at
        if order.stop and (stopped_at is None or (now - stopped_at).total_seconds() >= STOP_AGAIN):
            self._stopped_at = now
            for job_id, _status in left:
                self._stop(job_id)
        if order.leave and not left and order is self._order:
            log.info("nothing is under way any more: leaving")
            leave, self._leave = self._leave, lambda: None  # once
            leave()

    def _stop(self, job_id: str) -> None:
        try:
            self._stop_job(job_id)
        except GatewayError as error:  # the node that schedules it may not answer just now
            log.warning("not stopped", job=job_id, reason=error.reason, cause=error.message)
