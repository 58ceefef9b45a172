"""The node's pool of resources: which jobs hold a part of it, and which wait for one.

Reservations are stored in the database and change under one lock, so several gateways on the same
database share one pool. The totals come from `gateway.jobs.engine_capacities`; the free resources
are always the totals minus the reservations and minus the use by others of a shared cluster.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from gateway.domain import resource_queue, resources
from gateway.domain.amounts import Pool
from gateway.domain.resources import Claim, ClaimState, Ledger, NodeCapacity
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.errors import Conflict, NotFound, Refused, Unreadable
from gateway.jobs import resource_view
from gateway.ports import Clock
from gateway.runtime.loop import Loop
from gateway.store.ledger import Claims, ended, with_increased
from gateway.store.store import Store

log = structlog.get_logger(__name__)

INTERVAL = 15.0  # seconds between two searches for reservations that nobody releases
# A reservation expires if its scheduling node neither starts the job nor repeats the request for
# this long.
LEASE = timedelta(minutes=15)
_RELEASE_GRACE = timedelta(seconds=30)  # time for an ended job to release its own reservation

# Takes the ledger and the status of the job here (None without a record). Returns the new ledger,
# or the same object if nothing changes.
LedgerChange = Callable[[Ledger, str | None], Ledger]


def _all_at_main_engine(spec: JobSpec) -> Mapping[str, resources.TaskPlacement]:
    """Return no placements: a task without a placement runs at the main engine."""
    return {}


@dataclass(frozen=True)
class _Reservation:
    """The decision about a job's request for resources."""

    is_new: bool  # the job holds the resources now, and did not hold them before
    reason: str  # why the job waits; empty if it holds the resources

    @property
    def is_waiting(self) -> bool:
        """Whether the job has to wait."""
        return bool(self.reason)


@dataclass(frozen=True)
class _Release:
    """The outcome of a release."""

    was_held: bool  # whether the job held resources before the release
    next_jobs: list[str]  # the waiting jobs for which there is enough now


class Resources:
    """The node's pool and its rules."""

    def __init__(
        self,
        capacity: Callable[[], NodeCapacity],
        store: Store,
        clock: Clock,
        freed: Callable[[list[str]], None],
        rules: resource_queue.QueueRules = resource_queue.QueueRules(),
        placements: Callable[
            [JobSpec], Mapping[str, resources.TaskPlacement]
        ] = _all_at_main_engine,
    ) -> None:
        """``capacity`` returns the node's capacity.

        ``freed`` is called with the ids (perhaps none) of the waiting jobs for which there is
        enough now. ``placements`` returns the engine and the roles of a job's tasks, by their
        names.
        """
        self._capacity = capacity
        self._store = store
        self._claims = Claims(store)
        self._clock = clock
        self._freed = freed
        self._rules = rules
        self._placements = placements

        def reconcile(_: str) -> None:
            self.reconcile()

        def one_item(_: object) -> list[str]:
            return ["all"]  # the loop advances keys; its only key stands for all reservations

        self.loop = Loop(
            name="resources",
            advance=reconcile,
            overdue=one_item,
            every=INTERVAL,
            workers=1,
        )

    @property
    def capacity(self) -> NodeCapacity:
        """The node's capacity and its rules for jobs."""
        return self._capacity()

    def pool_for(self, spec: JobSpec) -> Pool | None:
        """Return the amounts that a job has to hold at this node; None if it needs nothing.

        Raises `Refused` with RESOURCES_NEVER if an engine is too small.
        """
        node = self.capacity
        placements = self._placements(spec)
        engines = [placement.engine for placement in placements.values()]
        unusable = resources.nothing_at(engines, node)
        if unusable:
            raise Refused(unusable, reason="RESOURCES_NEVER")
        demand = resources.demand(spec, node.node, node.defaults, placements)
        try:
            return resources.pool(demand, node)
        except resources.Never as error:
            raise Refused(str(error), reason="RESOURCES_NEVER") from error

    def would_wait_for(self, spec: JobSpec, pool: Pool) -> str:
        """Return the reason why a job would have to wait now; empty if it would not.

        Nothing is reserved.
        """
        now = self._clock()
        claim = _new_claim(spec, pool, now)
        _, reservation = _reserve(self.ledger(), claim, now, self._rules)
        return reservation.reason

    def hold(self, local: LocalJob) -> None:
        """Reserve the resources that a job needs; idempotent.

        Raises `Refused` with RESOURCES_BUSY and the reason for waiting, or with RESOURCES_NEVER if
        an engine has become too small since the job was created; `Conflict` for an ended job.
        """
        if local.pool is None:
            return
        now = self._clock()
        node = self.capacity
        self._refuse_outgrown(local.id, local.pool, node)
        claim = _new_claim(local.spec, local.pool, now)

        def decide(
            ledger: Ledger,
            status: str | None,
        ) -> tuple[Ledger, _Reservation]:
            if ended(status):
                raise Conflict(f"job {local.id} has ended here", reason="JOB_ENDED")
            return _reserve(ledger, claim, now, self._rules)

        # `Claims.decide` first decides without the claims of other waiting jobs. If the job has to
        # wait even without these competitors, that decision counts.
        reservation = self._claims.decide(node, local.id, decide, enough=_is_waiting)
        if reservation.is_waiting:
            raise Refused(reservation.reason, reason="RESOURCES_BUSY")
        if reservation.is_new:
            self._add_note(local.id, "resources held", **resource_view.event_detail(claim))

    def _refuse_outgrown(
        self,
        job_id: str,
        pool: Pool,
        node: NodeCapacity,
    ) -> None:
        """Raise `Refused` if an engine is now too small for a pool that is not held yet."""
        problem = resources.refusal_if_outgrown(pool, node)
        if not problem:
            return
        claim = self._claims.find(job_id)
        if not _is_held(claim):
            raise Refused(problem, reason="RESOURCES_NEVER")

    def give_back(self, job_id: str) -> None:
        """Release the reservation of a job that has not started; its place in the queue is kept.

        Without a reservation `Ledger.give_back` only counts the call in `Ledger.ignored`.
        """

        def give_back(ledger: Ledger, status: str | None) -> Ledger:
            return ledger.give_back(job_id)

        self._release(job_id, give_back, "resources returned")

    def release(self, job_id: str) -> None:
        """Remove an ended job and its reservation from the ledger; idempotent."""
        if self._claims.find(job_id) is not None:
            self._release(job_id, _removal_of(job_id), "resources returned")

    def _release(
        self,
        job_id: str,
        change: LedgerChange,
        event: str,
        **counted: int,
    ) -> bool:
        """Change a job's claim in the ledger, and report the waiting jobs that may go on now.

        If the job held resources, ``event`` is added to its timeline, and the counters of the
        ledger named in ``counted`` increase by their values. Returns whether it held resources.
        """
        now = self._clock()

        def decide(
            ledger: Ledger,
            status: str | None,
        ) -> tuple[Ledger, _Release]:
            changed = change(ledger, status)
            if changed is ledger:  # nothing was released, so no waiting job is admitted for it
                return ledger, _Release(was_held=False, next_jobs=[])
            was_held = _is_held(ledger.claims.get(job_id))
            next_jobs = resource_queue.admissible(changed, now, self._rules)
            if was_held:
                changed = with_increased(changed, **counted)
            return changed, _Release(was_held, next_jobs)

        release = self._claims.decide(self.capacity, job_id, decide)
        if release.was_held:
            self._add_note(job_id, event)
        self._freed(release.next_jobs)
        return release.was_held

    def _add_note(
        self,
        job_id: str,
        event: str,
        **detail: Any,
    ) -> None:
        """Add an event to the job's timeline, if its record exists and is readable."""

        def add_note(local: LocalJob) -> LocalJob:
            return local.with_note(self._clock(), event, **detail)

        with suppress(Unreadable, NotFound):
            self._store.local_jobs.update(job_id, add_note)

    def look_again(self) -> None:
        """Call `reconcile` soon, as waiting jobs may go on after a change of an engine."""
        self.loop.wake("all")

    # -------------------------------------------------- reservations left over

    def reconcile(self) -> None:
        """Release reservations of jobs that have ended, or that were not started for too long.

        Then report the waiting jobs that may go on.
        """
        now = self._clock()
        for claim, status in self._claims.with_job_statuses():
            if ended(status):
                if self._needs_repair(claim.job_id, now):
                    self._repair(claim)
            elif _is_expired(claim, status, now):
                self._expire(claim.job_id, now)
        # Repeated here because an earlier notification may have been lost.
        self._freed(resource_queue.admissible(self.ledger(), now, self._rules))

    def _needs_repair(self, job_id: str, now: datetime) -> bool:
        """Return whether the reconciler has to release the reservation of an ended job.

        Usually the end of the job releases it. The reconciler does not interfere as long as the job
        has open runs, and for `_RELEASE_GRACE` after the job's end.
        """
        local = self._store.local_jobs.find(job_id)
        if local is None:
            return True
        has_open_runs = any(not run.over for run in local.runs)
        if has_open_runs and not local.closed:
            return False
        if local.ended_at is None:
            return True
        return now - local.ended_at > _RELEASE_GRACE

    def _repair(self, claim: Claim) -> None:
        """Remove an ended job from the ledger; log a warning if it still held a reservation."""
        event = "resources returned by the reconciler"
        was_held = self._release(
            claim.job_id,
            _removal_of(claim.job_id),
            event,
            repaired=1,
        )
        if was_held:
            amounts = claim.amounts.text()
            log.warning(
                "an ended job still held resources",
                job=claim.job_id,
                amounts=amounts,
            )

    def _expire(self, job_id: str, now: datetime) -> None:
        """Release the reservation of a job that its scheduling node never started."""

        def expire(ledger: Ledger, status: str | None) -> Ledger:
            # Checked again under the lock, as the job may have started or asked again since.
            if not _is_expired(ledger.claims.get(job_id), status, now):
                return ledger
            return ledger.give_back(job_id)

        self._release(
            job_id,
            expire,
            "resources returned, the job was not started",
            expired=1,
        )

    # -------------------------------------------------- views

    def ledger(self) -> Ledger:
        """Return the current totals, reservations and waiting requests."""
        return self._claims.ledger(self.capacity)

    def view(self) -> dict[str, Any]:
        """Return the node's totals, its engines, the reservations, and the queue in its order."""
        now = self._clock()
        node = self.capacity
        ledger = self._claims.ledger(node)
        holders = []
        for claim in sorted(ledger.holders, key=_holding_since):
            local = self._store.local_jobs.find(claim.job_id)
            holders.append(resource_view.holder_view(claim, local))
        queue = resource_queue.queue(ledger, now, self._rules)
        waiting = [resource_view.waiting_view(claim) for claim in queue]
        return resource_view.node_view(node, ledger, holders, waiting)

    def of_job(self, local: LocalJob) -> dict[str, Any] | None:
        """Return a view of a job's reservation and its use; None if the job needs no resources."""
        if local.pool is None:
            return None
        return resource_view.job_view(local, self._claims.find(local.id))


def _new_claim(
    spec: JobSpec,
    pool: Pool,
    now: datetime,
) -> Claim:
    """Return a job's request for its pool.

    If it repeats an earlier request, `resource_queue.apply` replaces ``since`` by the earlier time.
    """
    return Claim(
        job_id=spec.job_id,
        amounts=pool.amounts,
        state=ClaimState.WAITING,
        since=now,
        asked_at=now,
        priority=spec.settings.priority,
        scheduler=spec.scheduler,
        further=pool.further,
    )


def _reserve(
    ledger: Ledger,
    claim: Claim,
    now: datetime,
    rules: resource_queue.QueueRules,
) -> tuple[Ledger, _Reservation]:
    """Return the ledger after a job's request, and the decision about the request."""
    was_held = _is_held(ledger.claims.get(claim.job_id))
    ledger, is_held = resource_queue.apply(ledger, claim, now, rules)
    if is_held:
        return ledger, _Reservation(is_new=not was_held, reason="")
    return ledger, _Reservation(
        is_new=False,
        reason=ledger.claims[claim.job_id].reason,
    )


def _is_waiting(reservation: _Reservation) -> bool:
    """Return whether a job has to wait."""
    return reservation.is_waiting


def _is_held(claim: Claim | None) -> bool:
    """Return whether a claim is granted; False for None."""
    return claim is not None and claim.state is ClaimState.HELD


def _is_expired(
    claim: Claim | None,
    status: str | None,
    now: datetime,
) -> bool:
    """Return whether a job was neither started nor its reservation requested again for `LEASE`.

    ``status`` is that of the job here. READY means that this node has accepted the job and that the
    job has not started. False for a job with another status, and for a claim that is not held.
    """
    if claim is None or claim.state is not ClaimState.HELD or status != "READY":
        return False
    return now - claim.asked_at > LEASE


def _removal_of(job_id: str) -> LedgerChange:
    """Return the change that removes a job from the ledger."""

    def remove(ledger: Ledger, status: str | None) -> Ledger:
        return ledger.without(job_id)

    return remove


def _holding_since(claim: Claim) -> datetime:
    """Return when a claim was granted, to sort the holders; if unknown, when it was requested."""
    return claim.held_at or claim.since
