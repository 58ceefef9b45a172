"""Drain: a node takes no new jobs, so that its process can end once no job is under way."""

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

STOP_AGAIN = 5.0  # seconds between two requests to stop the same unfinished jobs


@dataclass(frozen=True)
class _DrainOrder:
    """An operator's request to empty the node."""

    since: datetime
    stop_jobs: bool  # whether the jobs under way are stopped; False: they go on to their end
    exit_when_empty: bool  # whether the process ends once no job is under way


class Drain:
    """Carries out the order to drain, during which this node takes no new jobs.

    The jobs under way go on to their end, or are stopped if so ordered. If so ordered, the process
    ends after the last job. The order is not stored: a restarted gateway takes jobs again.
    """

    def __init__(
        self,
        store: Store,
        stop_job: Callable[[str], None],
        clock: Clock,
        look_every: float = 0.5,
    ) -> None:
        """``stop_job`` stops a job at every node; ``look_every``: seconds between two checks."""
        self.draining = threading.Event()  # set while no new jobs are accepted
        self._store = store
        self._stop_job = stop_job
        self._clock = clock
        self._order: _DrainOrder | None = None
        self._stopped_at: datetime | None = None  # when jobs were last requested to stop
        # Ends the process; None before `on_empty` has set it, and once it was called.
        self._exit_process: Callable[[], None] | None = None

        def one_item(_: object) -> list[str]:  # the loop checks a single thing, the drain
            return ["drain"]

        self._loop = Loop(
            "drain",
            self._check,
            one_item,
            every=look_every,
            workers=1,
        )
        self._lock = threading.Lock()
        self._loop_started = False

    def on_empty(self, exit_process: Callable[[], None]) -> None:
        """Set the function that ends the process once no job is under way."""
        self._exit_process = exit_process

    def begin(
        self,
        *,
        stop_jobs: bool,
        exit_when_empty: bool,
    ) -> dict[str, Any]:
        """Accept no new jobs from now on; return the state.

        With ``stop_jobs`` the jobs under way are stopped. With ``exit_when_empty`` the process ends
        once no job is under way. A second order replaces the first one, but has the first one's
        time.
        """
        with self._lock:
            since = self._clock()
            if self._order is not None:
                since = self._order.since
            self._order = _DrainOrder(
                since,
                stop_jobs=stop_jobs,
                exit_when_empty=exit_when_empty,
            )
            self.draining.set()
            if not self._loop_started:
                self._loop_started = True
                self._loop.start()
        self._loop.wake("drain")
        log.info(
            "draining",
            stop=stop_jobs,
            leave=exit_when_empty,
        )
        return self.state()

    def undo(self) -> dict[str, Any]:
        """Take jobs again; jobs that were stopped stay stopped."""
        with self._lock:
            was_draining = self._order is not None
            self._order = None
            self.draining.clear()
        if was_draining:
            log.info("draining was called off")
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return the order and the jobs still under way, for JSON.

        ``running`` is what happens to these jobs: ``wait`` (for their end) or ``stop``; None
        without an order.
        """
        jobs = []
        for job_id, status in queries.jobs_with_work_left(self._store):
            jobs.append({"job_id": job_id, "status": status})
        order = self._order
        if order is None:
            return {
                "draining": False,
                "since": None,
                "running": None,
                "exit": False,
                "jobs": jobs,
            }
        running_jobs = "wait"
        if order.stop_jobs:
            running_jobs = "stop"
        return {
            "draining": True,
            "since": order.since.isoformat(),
            "running": running_jobs,
            "exit": order.exit_when_empty,
            "jobs": jobs,
        }

    def close(self) -> None:
        """End the regular checks, without ending the process."""
        self._loop.stop()

    def _check(self, _: str) -> None:
        """Stop the jobs under way if ordered, and end the process once there are none.

        The process does not end if the order was replaced or called off during the check.
        """
        order = self._order
        if order is None:
            return
        unfinished = [job_id for job_id, _status in queries.jobs_with_work_left(self._store)]
        if order.stop_jobs:
            self._stop_jobs(unfinished)
        is_current = order is self._order  # no other thread has replaced the order
        if order.exit_when_empty and not unfinished and is_current:
            log.info("nothing is under way any more: leaving")
            self._exit_once()

    def _exit_once(self) -> None:
        """Call the function that `on_empty` has set, unless it has been called already."""
        exit_process = self._exit_process
        self._exit_process = None
        if exit_process is not None:
            exit_process()

    def _stop_jobs(self, job_ids: list[str]) -> None:
        """Stop jobs at all their nodes, at most every `STOP_AGAIN` seconds."""
        now = self._clock()
        if self._stopped_at is not None:
            elapsed = now - self._stopped_at
            if elapsed.total_seconds() < STOP_AGAIN:
                return
        self._stopped_at = now
        for job_id in job_ids:
            self._stop(job_id)

    def _stop(self, job_id: str) -> None:
        """Stop a job; after a failure a later check tries again, as the job is still under way."""
        try:
            self._stop_job(job_id)
        except GatewayError as error:
            log.warning(
                "not stopped",
                job=job_id,
                reason=error.reason,
                cause=error.message,
            )
