"""The node's resources: what its engines have, what a job needs of it, who holds what, who waits.

What is held lies in the database and is changed under one lock, so several gateways on it share one pool. The
totals are each process's own: what each engine has, bounded by the settings. An engine is asked now and then; one
that does not answer keeps the totals that it last had, for this process or, before it, in the database, and of one
beside the main one nothing more is held until it answers. What is left is always the total less what is held, and
less what others use of a cluster.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import structlog

from engines.base import Capacity, Engine, EngineError
from engines.process.engine import this_machine
from gateway.config.engine import NamedEngine
from gateway.config.schema import ResourceSettings, Settings
from gateway.data.reading import nearest
from gateway.domain import resource_queue, resources
from gateway.domain import run as domain_run
from gateway.domain.resources import (
    CORE,
    GIB,
    Amounts,
    Claim,
    ClaimState,
    Defaults,
    EngineCapacity,
    Ledger,
    NodeCapacity,
    Pool,
)
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, moment
from gateway.errors import Conflict, GatewayError, NotFound, Refused, Unreadable
from gateway.ports import Clock
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import Loop
from gateway.store.ledger import Claims, again, ended
from gateway.store.repositories import EngineTotals
from gateway.store.store import Store

log = structlog.get_logger(__name__)

EVERY = 15.0
"""seconds between two looks at an engine, and at what ended jobs hold"""
_LEASE = timedelta(minutes=15)
"""after which is returned what is held for a job that its scheduling node neither starts nor asks for again"""
_AT_ONCE = 4
"""engines that are asked at the same time: one that hangs delays no other"""
SHARE = 0.75
"""of the node's memory and disk for jobs, that a run may use which asks for none"""
_AFTER_END = timedelta(seconds=30)
"""an ended job returns what it holds by itself; after this it is done for it"""


@dataclass(frozen=True)
class _Seen:
    capacity: Capacity | None
    away_since: datetime | None = None
    cause: str = ""


class EngineCapacities:
    """What each engine has now; "" is the main one. Call it for the means of the whole node."""

    def __init__(
        self,
        context: NodeContext,
        engines: Mapping[str, Engine],
        settings: Settings,
        changed: Callable[[], None] = lambda: None,
        first_look: float = 10.0,
    ) -> None:
        """``changed`` is called when an engine has become another, or answers again: whoever waits may go on.

        ``first_look``: seconds that somebody waits for an engine after the start.
        """
        self._node = context.node
        self._engines = engines
        self._settings = settings
        self._caps: dict[str, NamedEngine | ResourceSettings] = {"": settings.resources}
        self._caps |= settings.engines
        self._kept = EngineTotals(context.store)
        self._clock = context.clock
        self._first = first_look
        self._main = context.owner or "main"
        self._changed = changed
        self._written: dict[str, Capacity] = {}
        self._seen: dict[str, _Seen] = {}
        self._looking = {name: threading.Lock() for name in engines}
        self.defaults = _defaults(settings)
        workers = min(len(engines), _AT_ONCE)
        self.loop = Loop("engines", self.look, lambda _: engines, every=EVERY, workers=workers)

    def __call__(self) -> NodeCapacity:
        """Return the means of the node. Until the main engine has answered once, this machine stands for it."""
        own, further = self._settings.resources, self.by_engine()
        main = further.pop("")
        if main.total is None:
            has = this_machine()
            main = EngineCapacity(self._bounded("", has), has.cpu)
        total = replace(main.total or Amounts(), disk=self._disk)
        kind = self._engines[""].kind
        return NodeCapacity(
            self._node, total, main.cores, own.job_share, self.defaults, further, kind, main.others
        )

    def by_engine(self) -> dict[str, EngineCapacity]:
        """Return the capacities as last seen. One not seen yet is waited for, once, briefly."""
        if new := [name for name in self._engines if name not in self._seen]:
            self._wait_for(new)
        return {name: self._capacity(name, self._seen[name]) for name in self._engines}

    def answering(self) -> dict[str, bool]:
        """Say of each engine whether it answers, by name."""
        return {name or "main": not seen.away for name, seen in self.by_engine().items()}

    def ceilings(self, run: Run) -> Mapping[str, float | None]:
        """Return a run's limits, none left open but the cores of an engine that bounds whole ones only.

        Nothing is held for them: only what is asked for is.
        """
        if None not in map(run.limits.get, ("cpu", "memory", "disk")):
            return run.limits
        means = self()
        capacity = means.of(run.engine)
        total, cores = capacity.total or means.total, capacity.cores or means.cores
        fractional = all(
            "fractional_cpu" in engine.capabilities for engine in self._engines.values()
        )
        usable_cores = min(total.cpu / CORE, cores)
        if run.limit_origins.get("cpu") == resources.PARTNERS_BOUND:
            usable_cores *= self._settings.resources.partner_share
        most: dict[str, float | None] = {
            "cpu": usable_cores if fractional else None,
            "memory": int(total.memory * SHARE),
            "disk": int(total.disk * SHARE),
        }
        given = {kind: amount for kind, amount in run.limits.items() if amount is not None}
        return {
            **dict.fromkeys(run.limits),
            **most,
            **given,
        }

    def look(self, name: str) -> None:
        """Ask one engine what it has, and whether it answers at all."""
        with self._looking[name]:
            changed = self._look(name)
        if changed:
            self._changed()

    def _wait_for(self, names: list[str]) -> None:
        """Have engines be looked at that were not; who takes longer has not answered so far."""

        def first_look(name: str) -> None:
            with suppress(GatewayError):  # a database that is away; it is tried again
                self.look(name)

        looks = [
            threading.Thread(
                target=first_look,
                args=(name,),
                daemon=True,
            )
            for name in names
        ]
        for one in looks:
            one.start()
        end = time.monotonic() + self._first
        for one in looks:
            one.join(max(end - time.monotonic(), 0))
        if late := [name for name in names if name not in self._seen]:
            known, now = self._kept.known(), self._clock()
            for name in late:
                self._seen.setdefault(
                    name, _Seen(known.get(name or self._main), now, "it has not answered yet")
                )

    def _look(self, name: str) -> bool:
        """Ask it; say whether that is news to who was told before."""
        try:
            found = _Seen(self._engines[name].capacity())
        except EngineError as error:
            before = self._seen.get(name)
            known = before.capacity if before else self._kept.known().get(name or self._main)
            since = before.away_since if before and before.away_since else self._clock()
            found = _Seen(known, since, str(error))
        before = self._seen.get(name)
        self._seen[name] = found
        if found.away_since and (before is None or before.away_since is None):
            log.warning("an engine does not answer", engine=name or "main", cause=found.cause)
        elif before is not None and before.away_since and not found.away_since:
            log.info("an engine answers again", engine=name or "main")
        whole = found.capacity and replace(found.capacity, others=None)
        if not found.away_since and whole is not None and self._written.get(name) != whole:
            self._kept.keep(name or self._main, whole, self._clock())
            self._written[name] = whole
        same = (found.capacity, found.away_since is None)
        return before is not None and (before.capacity, before.away_since is None) != same

    def _capacity(self, name: str, seen: _Seen) -> EngineCapacity:
        away = ""
        if seen.away_since is not None:
            since = moment(seen.away_since)
            away = f"engine {name} of node {self._node} has not answered since {since}"
        if seen.capacity is None:
            return EngineCapacity(None, away=away, cause=seen.cause)
        has, others = seen.capacity, seen.capacity.others or Capacity(0, 0)
        left = Capacity(has.cpu - others.cpu, has.memory - others.memory, has.gpu - others.gpu)
        most = self._bounded(name, has)
        return EngineCapacity(most, has.cpu, away, seen.cause, most - self._bounded(name, left))

    def _bounded(self, name: str, has: Capacity) -> Amounts:
        cap, own = self._caps.get(name), self._settings.resources
        cores = min(has.cpu, cap.cpu) if cap and cap.cpu else has.cpu
        most = _bytes(cap.memory_gib) if cap else None
        memory = has.memory if most is None else min(has.memory, most)
        return Amounts.of(cores * own.cpu_overcommit, memory * own.memory_overcommit, gpu=has.gpu)

    @cached_property
    def _disk(self) -> int:
        """The bytes for jobs on the file system where the storage lies, or is to lie."""
        has = shutil.disk_usage(nearest(self._settings.storage.path)).total
        return min(has, _bytes(self._settings.resources.disk_gib) or has)


def _defaults(settings: Settings) -> Defaults:
    """Return what tasks get that ask for nothing, by role where a role has something of its own."""
    limits = settings.limits
    roles = {
        role: Defaults(own.cpu, _bytes(own.memory_gib), limits.pids, _bytes(own.disk_gib))
        for role, own in settings.resources.roles.items()
    }
    return Defaults(
        limits.cpu, _bytes(limits.memory_gib), limits.pids, _bytes(limits.disk_gib), roles or None
    )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


class Resources:
    """The node's pool and its rules."""

    def __init__(
        self,
        means: Callable[[], NodeCapacity],
        store: Store,
        clock: Clock,
        freed: Callable[[list[str]], None],
        rules: resource_queue.Rules = resource_queue.Rules(),
        seats: Callable[[JobSpec], Mapping[str, resources.Seat]] = lambda spec: {},
    ) -> None:
        """``freed`` is called with waiting jobs that may hold what they need now; ``seats``: where tasks run."""
        self._means = means
        self._store = store
        self._claims = Claims(store)
        self._clock = clock
        self._freed = freed
        self._rules = rules
        self._seats = seats
        self.loop = Loop(
            "resources", lambda _: self.reconcile(), lambda _: ["all"], every=EVERY, workers=1
        )

    @property
    def means(self) -> NodeCapacity:
        """What the node has, and how it is given."""
        return self._means()

    def pool_for(self, spec: JobSpec) -> Pool | None:
        """Return what a job will hold here; None for nothing. Raises `Refused` with RESOURCES_NEVER."""
        means, seats = self.means, self._seats(spec)
        if nothing := resources.nothing_at((seat.engine for seat in seats.values()), means):
            raise Refused(nothing, reason="RESOURCES_NEVER")
        try:
            return resources.pool(resources.demand(spec, means.node, means.defaults, seats), means)
        except resources.Never as error:
            raise Refused(str(error), reason="RESOURCES_NEVER") from error

    def would_wait_for(self, spec: JobSpec, pool: Pool) -> str:
        """Return what a job would wait for if it asked for this now: empty for nothing. Reserves nothing."""
        now = self._clock()
        claim = _claim(spec, pool, now)
        ledger, held = resource_queue.apply(self.ledger(), claim, now, self._rules)
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
            ledger, held = resource_queue.apply(ledger, claim, now, self._rules)
            return ledger, (held and not was, "" if held else ledger.claims[local.id].reason)

        # who cannot have it with nobody else waiting cannot have it at all
        news, reason = self._claims.decide(
            means, local.id, decide, lambda decided: bool(decided[1])
        )
        if reason:
            raise Refused(reason, reason="RESOURCES_BUSY")
        if news:
            self._note(
                local.id,
                "resources held",
                **{k: v for k, v in _amounts_of(claim).items() if v or k not in _WHERE_ANY},
            )

    def give_back(self, job_id: str) -> None:
        """Take back what a job holds that has not begun. Without anything held: counted, nothing changes."""
        self._return(job_id, lambda ledger, _: ledger.give_back(job_id), "resources returned")

    def release(self, job_id: str) -> None:
        """Forget a job that is over, with all that it holds. Repeated, it changes nothing."""
        if self._claims.find(job_id) is not None:
            self._return(job_id, lambda ledger, _: ledger.without(job_id), "resources returned")

    def _return(
        self,
        job_id: str,
        change: Callable[[Ledger, str | None], Ledger],
        event: str,
        **counted: int,
    ) -> bool:
        """Change a job's place in the ledger; say whether it held something, and tell whoever may go on now."""
        now = self._clock()

        def decide(ledger: Ledger, status: str | None) -> tuple[Ledger, tuple[bool, list[str]]]:
            new, claim = change(ledger, status), ledger.claims.get(job_id)
            if new is ledger:
                return ledger, (False, [])
            held = claim is not None and claim.state is ClaimState.HELD
            next_ = resource_queue.admissible(new, now, self._rules)
            return again(new, **counted) if held else new, (held, next_)

        held, jobs = self._claims.decide(self.means, job_id, decide)
        if held:
            self._note(job_id, event)
        self._freed(jobs)
        return held

    def _note(
        self,
        job_id: str,
        event: str,
        **detail: Any,
    ) -> None:
        with suppress(Unreadable, NotFound):  # nothing can be added to such a record
            self._store.local_jobs.update(
                job_id, lambda local: local.noted(self._clock(), event, **detail)
            )

    def look_again(self) -> None:
        """Tell the waiting jobs that may go on now that an engine has become another."""
        self.loop.wake("all")

    def reconcile(self) -> None:
        """Return what ended jobs still hold, and what was held for jobs that nobody ever started."""
        now = self._clock()

        def forgotten(claim: Claim | None, status: str | None) -> bool:
            held = claim is not None and claim.state is ClaimState.HELD and status == "READY"
            return held and claim is not None and now - claim.asked_at > _LEASE

        for claim, status in self._claims.with_states():
            if ended(status):
                local = self._store.local_jobs.find(claim.job_id)
                since = local.ended_at if local else None
                going_on = local and not (local.closed or all(run.over for run in local.runs))
                if not going_on and (since is None or now - since > _AFTER_END):
                    self._repair(claim)
            elif forgotten(claim, status):

                def expire(
                    ledger: Ledger,
                    status: str | None,
                    job_id: str = claim.job_id,
                ) -> Ledger:
                    return (
                        ledger.give_back(job_id)
                        if forgotten(ledger.claims.get(job_id), status)
                        else ledger
                    )

                self._return(
                    claim.job_id, expire, "resources returned, the job was not started", expired=1
                )
        self._freed(
            resource_queue.admissible(self.ledger(), now, self._rules)
        )  # where a word of it was lost

    def _repair(self, claim: Claim) -> None:
        event = "resources returned by the reconciler"
        if self._return(
            claim.job_id, lambda ledger, _: ledger.without(claim.job_id), event, repaired=1
        ):
            log.warning(
                "an ended job still held resources", job=claim.job_id, amounts=claim.amounts.text()
            )

    def ledger(self) -> Ledger:
        """Return the pool as it is: totals, and what is held and waited for."""
        return self._claims.ledger(self.means)

    def view(self) -> dict[str, Any]:
        """Return totals, what is held by whom since when, what others use, and who waits, why and in which order.

        The totals at the top are the main engine's, and the disk of all; ``engines`` has each of them.
        """
        now, means = self._clock(), self.means
        ledger = self._claims.ledger(means)
        return {
            "node": means.node,
            "engine_cores": means.cores,
            "total": ledger.total.as_dict(),
            "held": ledger.held.as_dict(),
            "others": ledger.others[""].as_dict(),
            "remaining": ledger.remaining.as_dict(),
            "job_share": means.share,
            "engines": _engines(means, ledger),
            "holders": [
                _shown(
                    claim,
                    since=claim.held_at,
                    pool=_pool(self._store.local_jobs.find(claim.job_id)),
                )
                for claim in sorted(ledger.holders, key=lambda c: c.held_at or c.since)
            ],
            "waiting": [
                _shown(
                    claim,
                    since=claim.since,
                    asked_at=claim.asked_at.isoformat(),
                    reason=claim.reason,
                )
                for claim in resource_queue.queue(ledger, now, self._rules)
            ],
            "returns_ignored": ledger.ignored,
            "returned_by_reconciler": ledger.repaired,
            "expired": ledger.expired,
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
            **(_pool(local) or {}),
        }


def _claim(
    spec: JobSpec,
    pool: Pool,
    now: datetime,
) -> Claim:
    priority = spec.settings.priority
    return Claim(
        spec.job_id,
        pool.amounts,
        ClaimState.WAITING,
        now,
        now,
        priority,
        spec.scheduler,
        further=pool.further,
    )


# ------------------------------------------------------------ how it is shown

_WHERE_ANY = ("engines", "gpu")


def _of(engine: str, amounts: Amounts) -> dict[str, float]:
    return {
        kind: amount
        for kind, amount in amounts.as_dict().items()
        if not engine or kind != "disk_gib"
    }


def _amounts_of(claim: Claim) -> dict[str, Any]:
    """Return what a job holds or waits for: of the main engine, and under ``engines`` of each further one."""
    further = {name: _of(name, amounts) for name, amounts in claim.further.items() if amounts}
    return {**claim.amounts.as_dict(), "engines": further}


def _shown(
    claim: Claim,
    since: datetime | None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "job_id": claim.job_id,
        **_amounts_of(claim),
        "since": since.isoformat() if since else None,
        "priority": claim.priority,
        "scheduler": claim.scheduler,
        **more,
    }


def _engines(means: NodeCapacity, ledger: Ledger) -> list[dict[str, Any]]:
    """Return each engine with what it has and what is held of it, the main one first; null: not known yet.

    One that the settings no longer name is there for as long as something is held of it.
    """
    still_held = {name for claim in ledger.holders for name in claim.further}
    totals = {"": ledger.total, **ledger.further}
    found = []
    for name in ("", *means.further, *sorted(still_held - means.further.keys())):
        total, held, others = totals.get(name), ledger.held_at(name), ledger.others[name]
        capacity, gone = means.of(name), name and name not in means.further
        found.append(
            {
                "engine": name or means.engine,
                "main": not name,
                "cores": None if capacity.total is None else capacity.cores,
                "total": None if total is None else _of(name, total),
                "held": _of(name, held),
                "others": _of(name, others),
                "remaining": None if total is None else _of(name, total - held - others),
                "away": ledger.away.get(name, ""),
                "cause": "the settings name no such engine any more" if gone else capacity.cause,
            }
        )
    return found


def _pool(local: LocalJob | None) -> dict[str, Any] | None:
    """Return a job's own pool: what it has, what its runs have borrowed, and who of them waits."""
    if local is None:
        return None
    pool, borrowed, left = local.pool, domain_run.borrowed(local), domain_run.remaining(local)
    totals = {"": pool.amounts, **pool.further} if pool else {"": Amounts()}
    engines = {
        name: {
            "total": _of(name, total),
            "borrowed": _of(name, borrowed[name]),
            "remaining": _of(name, left[name]),
        }
        for name, total in totals.items()
    }
    waiting = [(run, reason) for run in local.runs if (reason := domain_run.waits_for(local, run))]
    return {
        **engines.pop(""),
        "engines": engines,
        "tasks_at_once": pool.tasks_at_once if pool else None,
        "waiting": [
            {
                "task": run.task_name,
                "role": run.party.label,
                "reason": reason,
            }
            for run, reason in waiting
        ],
    }
