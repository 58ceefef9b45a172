"""Use cases of the node's resources: check what a job needs, hold it, take it back, tell who has what.

What is held lies in the database and is changed under one lock, so several gateways on it share one pool. The
totals are each process's own: what each engine has, bounded by the settings. After a change of the totals what is
left is the new total less what is held.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from gateway.domain import admission, resources
from gateway.domain import run as domain_run
from gateway.domain.resources import Amounts, Claim, ClaimState, Ledger, Means, Never, Pool, Seat
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.errors import Conflict, NotFound, Refused, Unreadable
from gateway.ports import Clock
from gateway.runtime.loop import Loop
from gateway.store.ledger import Claims, again, ended
from gateway.store.store import Store


def engines_view(means: Means, ledger: Ledger) -> list[dict[str, Any]]:
    """Return each engine with what it has and what is held of it, the main one first; null: not known yet.

    One that the settings no longer name is there for as long as something is held of it.
    """
    still_held = {name for claim in ledger.holders for name in claim.further}
    totals = {"": ledger.total, **ledger.further}
    found = []
    for name in ("", *means.further, *sorted(still_held - means.further.keys())):
        total, held, room = totals.get(name), ledger.held_at(name), means.further.get(name)
        cores = means.cores if not name else room.cores if room and room.total is not None else None
        found.append(
            {
                "engine": name or means.engine,
                "main": not name,
                "cores": cores,
                "total": None if total is None else _of(name, total),
                "held": _of(name, held),
                "remaining": None if total is None else _of(name, total - held),
                "away": ledger.away.get(name, ""),
                "cause": room.cause if room else "the settings name no such engine any more" if name else "",
            }
        )
    return found


def held_by(claim: Claim) -> dict[str, Any]:
    """Return what a job holds or waits for: of the main engine, and under ``engines`` of each further one."""
    further = {name: _of(name, amounts) for name, amounts in claim.further.items() if amounts}
    return {**claim.amounts.as_dict(), "engines": further}


def pool_view(local: LocalJob) -> dict[str, Any]:
    """Return a job's own pool: what it has, what its runs have borrowed, and who of them waits."""
    pool, borrowed, left = local.pool, domain_run.borrowed(local), domain_run.remaining(local)
    totals = {"": pool.amounts, **pool.further} if pool else {"": Amounts()}
    engines = {
        name: {
            kind: _of(name, of[name])
            for kind, of in (("total", totals), ("borrowed", borrowed), ("remaining", left))
        }
        for name in totals
    }
    waiting = [(run, reason) for run in local.runs if (reason := domain_run.waits_for(local, run))]
    return {
        **engines.pop(""),
        "engines": engines,
        "tasks_at_once": pool.tasks_at_once if pool else None,
        "waiting": [{"task": run.task_name, "role": run.party.label, "reason": reason} for run, reason in waiting],
    }


def _of(engine: str, amounts: Amounts) -> dict[str, float]:
    return {kind: amount for kind, amount in amounts.as_dict().items() if not engine or kind != "disk_gib"}


log = structlog.get_logger(__name__)

_EVERY = 15.0
"""seconds between two looks of the reconciler"""
_AFTER_END = timedelta(seconds=30)
"""an ended job returns what it holds by itself; after this it is done for it"""


@dataclass(frozen=True)
class Bounds:
    """How long is waited for what, in seconds."""

    rules: admission.Rules = field(default_factory=admission.Rules)
    lease: float = 900.0
    """what is held for a job that its scheduling node neither starts nor asks for again is returned after this"""


class Resources:
    """The node's pool and its rules."""

    def __init__(
        self,
        means: Callable[[], Means],
        store: Store,
        clock: Clock,
        freed: Callable[[list[str]], None],
        bounds: Bounds = Bounds(),
        seats: Callable[[JobSpec], Mapping[str, Seat]] = lambda spec: {},
    ) -> None:
        """``freed`` is called with waiting jobs that may hold what they need now; ``seats``: where tasks run."""
        self._means = means
        self._store = store
        self._claims = Claims(store)
        self._clock = clock
        self._freed = freed
        self._bounds = bounds
        self._seats = seats
        self.loop = Loop("resources", lambda _: self.reconcile(), lambda _: ["all"], every=_EVERY, workers=1)

    @property
    def means(self) -> Means:
        """What the node has, and how it is given."""
        return self._means()

    def pool_for(self, spec: JobSpec) -> Pool | None:
        """Return what a job will hold here; None for nothing. Raises `Refused` with RESOURCES_NEVER."""
        means = self.means
        if not means.further and not resources.asks(spec, means.node, means.defaults):
            return None
        try:
            return resources.pool(resources.demand(spec, means.node, means.defaults, self._seats(spec)), means)
        except Never as error:
            raise Refused(str(error), reason="RESOURCES_NEVER") from error

    def would_wait_for(self, spec: JobSpec, pool: Pool) -> str:
        """Return what a job would wait for if it asked for this now: empty for nothing. Reserves nothing."""
        now = self._clock()
        claim = _claim(spec, pool, now)
        ledger, held = admission.apply(self._claims.ledger(self.means), claim, now, self._bounds.rules)
        return "" if held else ledger.claims[claim.job_id].reason

    def hold(self, local: LocalJob) -> None:
        """Have a job hold what it needs here. Repeated, or where it needs nothing: nothing to do.

        Raises `Refused` with RESOURCES_BUSY, which says what it waits for, or RESOURCES_NEVER where an engine
        turned out to be too small; `Conflict` for an ended job.
        """
        if local.pool is None:
            return
        now, means = self._clock(), self.means
        if never := resources.outgrown(local.pool, means):
            known = self._claims.find(local.id)
            if known is None or known.state is not ClaimState.HELD:
                raise Refused(never, reason="RESOURCES_NEVER")
        claim = _claim(local.spec, local.pool, now)

        def decide(ledger: Ledger, status: str | None) -> tuple[Ledger, tuple[bool, str]]:
            if ended(status):
                raise Conflict(f"job {local.id} has ended here", reason="JOB_ENDED")
            was = local.id in ledger.claims and ledger.claims[local.id].state is ClaimState.HELD
            ledger, held = admission.apply(ledger, claim, now, self._bounds.rules)
            return ledger, (held and not was, "" if held else ledger.claims[local.id].reason)

        # who cannot have it with nobody else waiting cannot have it at all
        news, reason = self._claims.decide(means, local.id, decide, lambda decided: bool(decided[1]))
        if reason:
            raise Refused(reason, reason="RESOURCES_BUSY")
        if news:
            detail = held_by(claim)
            self._note(local.id, "resources held", **{key: value for key, value in detail.items() if value != {}})

    def give_back(self, job_id: str) -> None:
        """Take back what a job holds that has not begun. Without anything held: counted, nothing changes."""
        self._return(job_id, lambda ledger, _: ledger.give_back(job_id), "resources returned")

    def release(self, job_id: str) -> None:
        """Forget a job that is over, with all that it holds. Repeated, it changes nothing."""
        if self._claims.find(job_id) is not None:
            self._return(job_id, lambda ledger, _: ledger.without(job_id), "resources returned")

    def _return(
        self, job_id: str, change: Callable[[Ledger, str | None], Ledger], event: str, **counted: int
    ) -> bool:
        """Change a job's place in the ledger; say whether it held something, and tell whoever may go on now."""
        now = self._clock()

        def decide(ledger: Ledger, status: str | None) -> tuple[Ledger, tuple[bool, list[str]]]:
            new, claim = change(ledger, status), ledger.claims.get(job_id)
            if new is ledger:
                return ledger, (False, [])
            held = claim is not None and claim.state is ClaimState.HELD
            return again(new, **counted) if held else new, (held, self._next(new, now))

        held, jobs = self._claims.decide(self.means, job_id, decide)
        if held:
            self._note(job_id, event)
        self._freed(jobs)
        return held

    def _next(self, ledger: Ledger, now: datetime) -> list[str]:
        return admission.admissible(ledger, now, self._bounds.rules)

    def _note(self, job_id: str, event: str, **detail: Any) -> None:
        with suppress(Unreadable, NotFound):  # nothing can be added to such a record
            self._store.local_jobs.update(job_id, lambda local: local.noted(self._clock(), event, **detail))

    def look_again(self) -> None:
        """Tell the waiting jobs that may go on now that an engine has become another."""
        self.loop.wake("all")

    def reconcile(self) -> None:
        """Return what ended jobs still hold, and what was held for jobs that nobody ever started."""
        now = self._clock()
        for found in self._claims.claimants():
            claim, status = found.claim, found.status
            if ended(status):
                local = self._store.local_jobs.find(claim.job_id)
                if local is None or _is_over(local, now):
                    self._repair(claim)
            elif status == "READY" and self._is_forgotten(claim, now):
                self._expire(claim)
        self._freed(self._next(self.ledger(), now))  # once more, where a word of it was lost

    def _is_forgotten(self, claim: Claim, now: datetime) -> bool:
        return claim.state is ClaimState.HELD and now - claim.asked_at > timedelta(seconds=self._bounds.lease)

    def _repair(self, claim: Claim) -> None:
        event = "resources returned by the reconciler"
        if self._return(claim.job_id, lambda ledger, _: ledger.without(claim.job_id), event, repaired=1):
            log.warning("an ended job still held resources", job=claim.job_id, amounts=claim.amounts.text())

    def _expire(self, claim: Claim) -> None:
        def change(ledger: Ledger, status: str | None) -> Ledger:
            known = ledger.claims.get(claim.job_id)
            forgotten = known is not None and status == "READY" and self._is_forgotten(known, self._clock())
            return ledger.give_back(claim.job_id) if forgotten else ledger

        self._return(claim.job_id, change, "resources returned, the job was not started", expired=1)

    def ledger(self) -> Ledger:
        """Return the pool as it is: totals, and what is held and waited for."""
        return self._claims.ledger(self.means)

    def view(self) -> dict[str, Any]:
        """Return the totals, what is held by whom since when, and who waits, why and in which order.

        The totals at the top are the main engine's, and the disk of all; ``engines`` has each of them.
        """
        now, means = self._clock(), self.means
        ledger = self._claims.ledger(means)
        waiting = admission.queue(ledger, now, self._bounds.rules)
        return {
            "node": means.node,
            "engine_cores": means.cores,
            "total": ledger.total.as_dict(),
            "held": ledger.held.as_dict(),
            "remaining": ledger.remaining.as_dict(),
            "job_share": means.share,
            "engines": engines_view(means, ledger),
            "holders": [self._holder(c) for c in sorted(ledger.holders, key=lambda c: c.held_at or c.since)],
            "waiting": [_waiting(c) for c in waiting],
            "returns_ignored": ledger.ignored,
            "returned_by_reconciler": ledger.repaired,
            "expired": ledger.expired,
        }

    def _holder(self, claim: Claim) -> dict[str, Any]:
        local = self._store.local_jobs.find(claim.job_id)
        return {
            "job_id": claim.job_id,
            **held_by(claim),
            "since": claim.held_at.isoformat() if claim.held_at else None,
            "priority": claim.priority,
            "scheduler": claim.scheduler,
            "pool": None if local is None else pool_view(local),
        }

    def of_job(self, local: LocalJob) -> dict[str, Any] | None:
        """Return what a job holds of this node or waits for, and its own pool; None where it needs nothing."""
        if local.pool is None:
            return None
        claim = self._claims.find(local.id)
        return {
            "state": str(claim.state) if claim else "NONE",
            "reason": claim.reason if claim else "",
            "since": (claim.held_at or claim.since).isoformat() if claim else None,
            **pool_view(local),
        }


def _claim(spec: JobSpec, pool: Pool, now: datetime) -> Claim:
    priority = resources.priority(spec)
    further = pool.further
    return Claim(
        spec.job_id, pool.amounts, ClaimState.WAITING, now, now, priority, spec.scheduler, further=further
    )


def _waiting(claim: Claim) -> dict[str, Any]:
    return {
        "job_id": claim.job_id,
        **held_by(claim),
        "since": claim.since.isoformat(),
        "asked_at": claim.asked_at.isoformat(),
        "priority": claim.priority,
        "scheduler": claim.scheduler,
        "reason": claim.reason,
    }


def _is_over(local: LocalJob, now: datetime) -> bool:
    """Whether the job is over here for so long that it should have returned everything by itself."""
    runs_over = local.closed or all(run.over for run in local.runs)
    return runs_over and (local.ended_at is None or now - local.ended_at > _AFTER_END)
