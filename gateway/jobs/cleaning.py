"""Removes what jobs leave behind: at once what should have gone with their end, in time what policy keeps.

`Cleaner.plan` says what there is to remove and why, `Cleaner.clean` removes exactly that. Each kind of thing has a
`Sweep` of its own (`gateway.jobs.retention`); an engine or a helper table may add one.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import structlog

from engines.base import EngineError
from gateway.errors import GatewayError
from gateway.ports import Clock

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Policy:
    """How long things are kept after a job's end, in seconds; None: for ever."""

    workspace: float = 60.0
    logs: float | None = 30 * 86_400.0
    outputs: float | None = None
    jobs: float | None = None


@dataclass(frozen=True)
class Item:
    """One thing to remove."""

    kind: str
    """container, session, upload, log_copy, logs, outputs, job"""
    name: str
    job: str
    """to which it belongs; empty where nobody knows"""
    bytes: int
    """0 where they are not counted"""
    why: str
    removed: bool = False
    cause: str = ""
    """why it could not be removed"""

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "kind": self.kind,
            "name": self.name,
            "job": self.job,
            "bytes": self.bytes,
            "why": self.why,
            "removed": self.removed,
            "cause": self.cause,
        }


class Sweep(Protocol):
    """Finds and removes things of one kind. Removing what is gone already is no error."""

    kind: str

    def find(self, now: datetime, orphans: bool) -> Iterable[Item]:
        """Yield what may go; with ``orphans`` also what the database knows nothing of."""

    def remove(self, item: Item, now: datetime) -> None:
        """Take one thing away. Raises where it cannot be; its text becomes the item's cause."""


class Cleaner:
    """Looks for things to remove, on demand and every now and then."""

    def __init__(self, sweeps: Sequence[Sweep], clock: Clock, every: float = 60.0) -> None:
        self._sweeps = {sweep.kind: sweep for sweep in sweeps}
        self._clock = clock
        self._every = every
        self._alone = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, sweep: Sweep) -> None:
        """Name a further kind of thing to look for."""
        self._sweeps[sweep.kind] = sweep

    def plan(self, *, orphans: bool = False) -> list[Item]:
        """Return what `clean` would remove now. Removes nothing."""
        return [item for item, _ in self._found(orphans)]

    def clean(self, *, orphans: bool = False) -> list[Item]:
        """Remove what `plan` names; return it, each with its end."""
        with self._alone:
            return [self._removed(item, sweep) for item, sweep in self._found(orphans)]

    def start(self) -> None:
        """Begin to look every now and then, in a thread."""
        self._thread = threading.Thread(target=self._work, name="cleaner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End that; waits for a removal under way, at most 10 seconds."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _found(self, orphans: bool) -> list[tuple[Item, Sweep]]:
        now, found = self._clock(), []
        for sweep in self._sweeps.values():
            try:
                found += [(item, sweep) for item in sweep.find(now, orphans)]
            except (EngineError, GatewayError, OSError) as error:  # the others are looked for all the same
                log.warning("cannot look for what is to be removed", kind=sweep.kind, cause=str(error))
        return found

    def _removed(self, item: Item, sweep: Sweep) -> Item:
        try:
            sweep.remove(item, self._clock())
        except (EngineError, GatewayError, OSError) as error:
            log.warning("not removed", kind=item.kind, name=item.name, job=item.job, cause=str(error))
            return replace(item, cause=str(error))
        log.info("removed", kind=item.kind, name=item.name, job=item.job, bytes=item.bytes, why=item.why)
        return replace(item, removed=True)

    def _work(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self.clean()
            except Exception:
                log.exception("cleaning failed")
