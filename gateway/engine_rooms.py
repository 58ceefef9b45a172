"""What the engines beside the main one have for jobs: each is asked now and then, between as last known.

An engine that does not answer keeps the totals that it last told, to this process or, before it, to the database;
nothing more is held of it until it answers.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import structlog

from engines.base import Capacity, Engine, EngineError
from gateway.domain.amounts import GIB, Amounts
from gateway.domain.model import NodeId
from gateway.domain.needs import Room
from gateway.errors import GatewayError
from gateway.limit_settings import ResourceSettings
from gateway.loop import Loop
from gateway.ports import Clock
from gateway.store.engine_totals import EngineTotals

log = structlog.get_logger(__name__)

_EVERY = 15.0
"""seconds between two looks at an engine"""
_AT_ONCE = 4
"""engines that are asked at the same time: one that hangs delays no other"""


@dataclass(frozen=True)
class Cap:
    """What jobs may have of an engine at most; None is all that it has."""

    cpu: float | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class _Seen:
    capacity: Capacity | None
    away_since: datetime | None = None
    cause: str = ""


class EngineRooms:
    """Call it for what each further engine has now."""

    def __init__(
        self,
        node: NodeId,
        engines: Mapping[str, Engine],
        caps: Mapping[str, Cap],
        settings: ResourceSettings,
        kept: EngineTotals,
        clock: Clock,
        first_look: float = 3.0,
    ) -> None:
        """``first_look``: seconds that somebody waits for an engine after the start, whichever they ask about."""
        self._node = node
        self._engines = engines
        self._caps = caps
        self._settings = settings
        self._kept = kept
        self._clock = clock
        self._first = first_look
        self._seen: dict[str, _Seen] = {}
        self._looking = {name: threading.Lock() for name in engines}
        self.changed: Callable[[], None] = lambda: None
        """told when an engine has become another, or answers again: whoever waits may go on"""
        workers = max(min(len(engines), _AT_ONCE), 1)
        self.loop = Loop("engines", self._advance, lambda _: self._engines, every=_EVERY, workers=workers)

    def start(self) -> None:
        """Begin to look; where there are no further engines there is nothing to do."""
        if self._engines:
            self.loop.start()

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
            self.changed()

    def _advance(self, name: str) -> None:
        self.look(name)

    def _wait_for(self, names: list[str]) -> None:
        """Have engines be looked at that were not; who takes longer has not answered so far."""
        looks = [threading.Thread(target=self._first_look, args=(name,), daemon=True) for name in names]
        for one in looks:
            one.start()
        end = time.monotonic() + self._first
        for one in looks:
            one.join(max(end - time.monotonic(), 0))
        if late := [name for name in names if name not in self._seen]:
            known, now = self._kept.known(), self._clock()
            for name in late:
                self._seen.setdefault(name, _Seen(known.get(name), now, "it has not answered yet"))

    def _first_look(self, name: str) -> None:
        with suppress(GatewayError):  # a database that is away; it is tried again
            with self._looking[name]:
                changed = name not in self._seen and self._look(name)
            if changed:
                self.changed()

    def _look(self, name: str) -> bool:
        """Ask it; say whether that is news to who was told before."""
        try:
            found = _Seen(self._engines[name].capacity())
        except EngineError as error:
            before = self._seen.get(name)
            known = before.capacity if before else self._kept.known().get(name)
            since = before.away_since if before and before.away_since else self._clock()
            found = _Seen(known, since, str(error))
        before = self._seen.get(name)
        if (
            found.capacity is not None
            and found.away_since is None
            and found.capacity != (before and before.capacity)
        ):
            self._kept.keep(name, found.capacity, self._clock())
        self._seen[name] = found
        if found.away_since and (before is None or before.away_since is None):
            log.warning("an engine does not answer; jobs that need it wait", engine=name, cause=found.cause)
        elif before is not None and before.away_since and not found.away_since:
            log.info("an engine answers again", engine=name)
        return before is not None and _standing(before) != _standing(found)

    def _room(self, name: str, seen: _Seen) -> Room:
        capacity, cap = seen.capacity, self._caps.get(name, Cap())
        away = ""
        if seen.away_since is not None:
            since = seen.away_since.isoformat(timespec="seconds")
            away = f"engine {name} of node {self._node} has not answered since {since}"
        if capacity is None:
            return Room(None, away=away, cause=seen.cause)
        most = capacity.memory if cap.memory_gib is None else min(capacity.memory, int(cap.memory_gib * GIB))
        total = Amounts.of(
            min(capacity.cpu, cap.cpu or capacity.cpu) * self._settings.cpu_overcommit,
            most * self._settings.memory_overcommit,
        )
        return Room(total, capacity.cpu, away, seen.cause)


def _standing(seen: _Seen) -> tuple[Capacity | None, bool]:
    return seen.capacity, seen.away_since is None
