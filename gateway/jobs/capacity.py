"""What the engines of a node have for jobs: they are asked now and then; between, it is as last known.

An engine that does not answer keeps the totals that it last had, for this process or, before it, in the database.
Of one beside the main one nothing more is held until it answers.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path

import structlog

from engines.base import Capacity, Engine, EngineError
from engines.process.engine import this_machine
from gateway.config.schema import LimitSettings, ResourceSettings
from gateway.data.files import nearest
from gateway.domain.resources import CORE, GIB, Amounts, Defaults, Means, Room
from gateway.domain.run import Run
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import Loop
from gateway.store.repositories import EngineTotals

log = structlog.get_logger(__name__)

_EVERY = 15.0
"""seconds between two looks at an engine"""
_AT_ONCE = 4
"""engines that are asked at the same time: one that hangs delays no other"""


@dataclass(frozen=True)
class Cap:
    """What jobs may have of an engine at most; None is all that it has."""

    cpu: float | None = None
    """cores"""
    memory_gib: float | None = None


@dataclass(frozen=True)
class _Seen:
    capacity: Capacity | None
    away_since: datetime | None = None
    cause: str = ""


class EngineRooms:
    """Call it for what each engine has now; "" is the main one."""

    def __init__(
        self,
        context: NodeContext,
        engines: Mapping[str, Engine],
        caps: Mapping[str, Cap],
        settings: ResourceSettings,
        changed: Callable[[], None] = lambda: None,
        first_look: float = 10.0,
    ) -> None:
        """``changed`` is called when an engine has become another, or answers again: whoever waits may go on.

        ``first_look``: seconds that somebody waits for an engine after the start.
        """
        self._node = context.node
        self._engines = engines
        self._caps = caps
        self._settings = settings
        self._kept = EngineTotals(context.store)
        self._clock = context.clock
        self._first = first_look
        self._main = context.owner or "main"
        self._changed = changed
        self._written: dict[str, Capacity] = {}
        self._seen: dict[str, _Seen] = {}
        self._looking = {name: threading.Lock() for name in engines}
        workers = min(len(engines), _AT_ONCE)
        self.loop = Loop("engines", self.look, lambda _: engines, every=_EVERY, workers=workers)

    def __call__(self) -> Mapping[str, Room]:
        """Return the rooms as last seen. One that this process has not seen yet is waited for, once, briefly."""
        if new := [name for name in self._engines if name not in self._seen]:
            self._wait_for(new)
        return {name: self._room(name, self._seen[name]) for name in self._engines}

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

        looks = [threading.Thread(target=first_look, args=(name,), daemon=True) for name in names]
        for one in looks:
            one.start()
        end = time.monotonic() + self._first
        for one in looks:
            one.join(max(end - time.monotonic(), 0))
        if late := [name for name in names if name not in self._seen]:
            known, now = self._kept.known(), self._clock()
            for name in late:
                self._seen.setdefault(name, _Seen(known.get(name or self._main), now, "it has not answered yet"))

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
        if not found.away_since and found.capacity is not None and self._written.get(name) != found.capacity:
            self._kept.keep(name or self._main, found.capacity, self._clock())
            self._written[name] = found.capacity
        return before is not None and _standing(before) != _standing(found)

    def _room(self, name: str, seen: _Seen) -> Room:
        away = ""
        if seen.away_since is not None:
            since = seen.away_since.isoformat(timespec="seconds")
            away = f"engine {name} of node {self._node} has not answered since {since}"
        if seen.capacity is None:
            return Room(None, away=away, cause=seen.cause)
        total = bounded(seen.capacity, self._caps.get(name, Cap()), self._settings)
        return Room(total, seen.capacity.cpu, away, seen.cause)


def bounded(has: Capacity, cap: Cap, settings: ResourceSettings) -> Amounts:
    """Return what jobs may have of the cores and the memory of an engine."""
    most = has.memory if cap.memory_gib is None else min(has.memory, int(cap.memory_gib * GIB))
    return Amounts.of(
        min(has.cpu, cap.cpu or has.cpu) * settings.cpu_overcommit, most * settings.memory_overcommit
    )


def _standing(seen: _Seen) -> tuple[Capacity | None, bool]:
    return seen.capacity, seen.away_since is None


def defaults_of(limits: LimitSettings, resources: ResourceSettings) -> Defaults:
    """Return what tasks get that ask for nothing, by role where a role has something of its own."""
    roles = {
        role: Defaults(own.cpu, _bytes(own.memory_gib), limits.pids, _bytes(own.disk_gib))
        for role, own in resources.roles.items()
    }
    return Defaults(limits.cpu, _bytes(limits.memory_gib), limits.pids, _bytes(limits.disk_gib), roles or None)


def detecting(
    node: NodeId,
    rooms: Callable[[], Mapping[str, Room]],
    storage: Path,
    settings: ResourceSettings,
    defaults: Defaults,
    kind: str = "main",
) -> Callable[[], Means]:
    """Return what tells the node's means from what its engines have; ``kind`` is what the main one is called.

    Until the main engine has answered for the first time, this machine stands for it.
    """

    @cache
    def disk() -> int:
        has = shutil.disk_usage(nearest(storage)).total  # of the file system where the storage lies, or is to lie
        return min(has, _bytes(settings.disk_gib) or has)

    def means() -> Means:
        further = dict(rooms())
        main = further.pop("")
        if main.total is None:
            has = this_machine()
            main = Room(bounded(has, Cap(settings.cpu, settings.memory_gib), settings), has.cpu)
        total = replace(main.total or Amounts(), disk=disk())
        return Means(node, total, main.cores, settings.job_share, defaults, further, kind)

    return means


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


SHARE = 0.75
"""of the node's memory and disk for jobs, that a run may use which asks for none"""


class Ceilings:
    """Call it for the bounds of a run. Nothing is held for them: only what is asked for is."""

    def __init__(self, means: Callable[[], Means], *, part_of_a_core: bool) -> None:
        """``part_of_a_core``: the engine can bound the cores of a run to a number that is not whole."""
        self._means = means
        self._part_of_a_core = part_of_a_core

    def __call__(self, run: Run) -> Mapping[str, float | None]:
        """Return the run's limits, none of them left open but the cores of an engine that cannot bound them."""
        if None not in map(run.limits.get, ("cpu", "memory", "disk")):
            return run.limits
        means = self._means()
        room = means.room(run.engine)
        total, cores = room.total or means.total, room.cores or means.cores
        most: dict[str, float | None] = {
            "cpu": min(total.cpu / CORE, cores) if self._part_of_a_core else None,
            "memory": int(total.memory * SHARE),
            "disk": int(total.disk * SHARE),
        }
        given = {kind: amount for kind, amount in run.limits.items() if amount is not None}
        return {**dict.fromkeys(run.limits), **most, **given}
