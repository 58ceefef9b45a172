"""What jobs leave behind: a `Sweep` per kind of thing. What others still refer to (a `Keeper` says so) stays."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import structlog

from engines import files
from engines.base import Engine, EngineError
from gateway.broker.broker import Broker
from gateway.broker.journal import folder_name
from gateway.data.storage import FOLDER, FileStorage, clear_leftover, leftovers
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob
from gateway.domain.scheduling import machine
from gateway.domain.spec import CallState
from gateway.domain.states import JOB, ended
from gateway.errors import GatewayError
from gateway.ports import Clock
from gateway.store import queries
from gateway.store.store import Store

log = structlog.get_logger(__name__)

Keeper = Callable[[Address], Sequence[str]]
"""Says who still refers to data at an address, each in a few words; empty: nobody it knows of."""

_IDLE_UNKNOWN = 86_400.0
"""seconds after which a mailbox of a job that nobody here knows is given up"""


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

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Sweep(Protocol):
    """Finds and removes things of one kind. Removing what is gone already raises nothing."""

    kind: str

    def find(self, now: datetime, orphans: bool) -> Iterable[Item]:
        """Yield what may go; with ``orphans`` also what the database knows nothing of."""

    def remove(self, item: Item, now: datetime) -> None:
        """Take one thing away. Raises where it cannot be; its text becomes the item's cause."""


class Cleaner:
    """Looks for things to remove, on demand and every now and then."""

    def __init__(self, sweeps: Sequence[Sweep], clock: Clock, every: float = 60.0) -> None:
        self._sweeps = sweeps
        self._clock = clock
        self._every = every
        self._alone = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cleaner", daemon=True)

    def plan(self, *, orphans: bool = False) -> list[Item]:
        """Return what `clean` would remove now. Removes nothing."""
        return [item for item, _ in self._found(orphans)]

    def clean(self, *, orphans: bool = False) -> list[Item]:
        """Remove what `plan` names; return it, each with its end."""
        with self._alone:
            return [self._removed(item, sweep) for item, sweep in self._found(orphans)]

    def start(self) -> None:
        """Begin to look every now and then, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End that; waits for a removal under way, at most 10 seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _found(self, orphans: bool) -> list[tuple[Item, Sweep]]:
        now, found = self._clock(), []
        for sweep in self._sweeps:
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


@dataclass(frozen=True)
class Containers:
    """Runs that the engine still holds although they are over for good."""

    kind = "container"
    store: Store
    engine: Engine

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield containers whose run was collected; ``orphans``: those of unknown runs, too."""
        there = {found.name: found for found in self.engine.list()}
        known = queries.runs_named(self.store, there)
        for name, found in sorted(there.items()):
            run = known.get(name)
            if run is None and orphans:
                yield Item(self.kind, name, found.labels.get("bfia.job", ""), 0, "the database knows no such run")
            elif run is not None and run.over and self._collected(run.job_id, name):
                yield Item(self.kind, name, run.job_id, 0, "its run is over and was collected")

    def remove(self, item: Item, now: datetime) -> None:
        """Have the engine forget the container."""
        self.engine.remove(item.name)

    def _collected(self, job_id: str, name: str) -> bool:
        local = self.store.local_jobs.find(job_id)
        runs = local.runs if local else ()
        return any(r.name == name and r.over and r.collect.state is CallState.OK for r in runs)


@dataclass(frozen=True)
class Sessions:
    """Mailboxes of jobs that have ended here, and of those that never came."""

    kind = "session"
    store: Store
    broker: Broker
    folder: Path
    prefix: str
    end: Callable[[str], None]

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield mailboxes of closed jobs; of unknown ones after a day of silence, or with ``orphans``."""
        idle = set(self.broker.idle(_IDLE_UNKNOWN))
        for session in sorted(s for s in self.broker.sessions() if s.startswith(self.prefix)):
            job = session.removeprefix(self.prefix)
            local = self.store.local_jobs.find(job)
            size = size_of(self.folder / folder_name(session))
            if local is None and (orphans or session in idle):
                yield Item(self.kind, session, job, size, "nobody here knows its job")
            elif local is not None and local.closed:
                yield Item(self.kind, session, job, size, "its job has ended")

    def remove(self, item: Item, now: datetime) -> None:
        """End the job's session, which deletes its mailboxes."""
        self.end(item.job)


@dataclass(frozen=True)
class Uploads:
    """Uploads whose process died before they were whole."""

    kind = "upload"
    root: Path

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield uploads that no process goes on with."""
        for name in leftovers(self.root):
            yield Item(self.kind, name, "", size_of(self.root / FOLDER / name), "its process is gone")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete what has arrived of the upload."""
        clear_leftover(self.root, item.name)


@dataclass(frozen=True)
class LogCopies:
    """Copies of a log that were being made when a process died."""

    kind = "log_copy"
    runs: Path
    seconds: float

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield copies that nobody has written to for longer than a copy takes."""
        for path in sorted(self.runs.glob("*/copying")):
            if _unchanged_for(path, now) >= max(self.seconds, 1.0):
                yield Item(self.kind, path.parent.name, "", size_of(path), "its copying was cut short")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete the copy; the log itself stays."""
        shutil.rmtree(self.runs / item.name / "copying", ignore_errors=True)


@dataclass(frozen=True)
class RunFolders:
    """Logs of runs, once the time of logs is over."""

    kind = "logs"
    store: Store
    runs: Path
    policy: Policy

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield logs whose time is over; of unknown runs after the longest time, or with ``orphans``."""
        limits = [s for s in (self.policy.logs, self.policy.jobs) if s is not None]
        found = {path.name: path for path in self.runs.glob("*") if path.is_dir()}
        if not found or not (limits or orphans):
            return
        known = queries.runs_named(self.store, found)
        past: dict[str, bool] = {}
        for name, path in sorted(found.items()):
            run = known.get(name)
            if run is None:
                if orphans or (limits and _unchanged_for(path, now) >= max(limits)):
                    yield Item(self.kind, name, "", size_of(path), "the database knows no such run")
                continue
            if limits and run.job_id not in past:
                past[run.job_id] = is_past(self.store, run.job_id, min(limits), now)
            if past.get(run.job_id):
                yield Item(self.kind, name, run.job_id, size_of(path), "the time of its logs is over")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete the run's folder."""
        files.remove(self.runs / item.name)


@dataclass(frozen=True)
class Outputs:
    """Tables, models and reports of jobs, once their time is over and nobody refers to them."""

    kind = "outputs"
    store: Store
    storage: FileStorage
    policy: Policy
    keepers: list[Keeper] = field(default_factory=list)

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield what past jobs left and nobody refers to, after the shorter time of outputs and jobs."""
        limits = [s for s in (self.policy.outputs, self.policy.jobs) if s is not None]
        if not limits:
            return
        old = set(queries.over_and_created_before(self.store, now - timedelta(seconds=min(limits))))
        candidates = sorted(old & self._jobs_with_data())
        past = [job_id for job_id in candidates if is_past(self.store, job_id, min(limits), now)]
        used = self.used(now, min(limits)) if past else {}
        for job_id in past:
            for address in present_of(self.store.local_jobs.find(job_id), self.storage):
                if not self.needed_by(address, job_id, used):
                    yield self.item(job_id, address, "the time of its outputs is over")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete the data from the storage."""
        namespace, _, name = item.name.partition("#")
        self.storage.delete(Address(namespace, name))

    def item(self, job_id: str, address: Address, why: str) -> Item:
        """Return what a cleaning or a deletion shows of an output."""
        return Item(self.kind, text_of(address), job_id, size_of(self.storage.path(address)), why)

    def needed_by(self, address: Address, job_id: str, used: Mapping[Address, set[str]]) -> list[str]:
        """Say who needs the data beside its own job, each in a few words."""
        readers = [f"read by job {other}" for other in sorted(used.get(address, set()) - {job_id})]
        return readers + [why for keeper in self.keepers for why in keeper(address)]

    def used(self, now: datetime, seconds: float) -> dict[Address, set[str]]:
        """Return which jobs read what: those that go on, and those whose own time is not over."""
        since = now - timedelta(seconds=seconds)
        return self._read_by(queries.local_jobs_open_or_created_after(self.store, since))

    def used_ever(self, addresses: Iterable[Address]) -> dict[Address, set[str]]:
        """Return which jobs of all that are still known read these."""
        return self._read_by(queries.local_jobs_naming(self.store, {a.namespace for a in addresses}))

    def _read_by(self, jobs: Iterable[str]) -> dict[Address, set[str]]:
        found: dict[Address, set[str]] = {}
        for job_id in jobs:
            local = self.store.local_jobs.find(job_id)
            for run in local.runs if local else ():
                begun = (run.checkpoint_from,) if run.checkpoint_from else ()
                for address in (*run.inputs.values(), *begun):
                    found.setdefault(address, set()).add(job_id)
        return found

    def _jobs_with_data(self) -> set[str]:
        """Return every text before a dash in the storage's namespaces: ``<job>-<role>-<index>``."""
        names = [path.name.split("-") for path in self.storage.root.glob("*-*-*")]
        return {"-".join(parts[:n]) for parts in names for n in range(1, len(parts) - 1)}


@dataclass(frozen=True)
class Jobs:
    """Whole jobs, once their time is over: what the database holds of them, after their logs and outputs."""

    kind = "job"
    outputs: Outputs

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield past jobs, but those of which outputs stay."""
        outputs, store, seconds = self.outputs, self.outputs.store, self.outputs.policy.jobs
        if seconds is None:
            return
        old = queries.over_and_created_before(store, now - timedelta(seconds=seconds))
        past = [job_id for job_id in old if is_past(store, job_id, seconds, now)]
        used = outputs.used(now, seconds) if past else {}
        for job_id in past:
            addresses = outputs_of(store.local_jobs.find(job_id))
            if any(outputs.storage.exists(a) and outputs.needed_by(a, job_id, used) for a in addresses):
                continue  # else nothing would tell whose the outputs are
            yield Item(self.kind, job_id, job_id, 0, "the time of the job is over")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete both records and the timeline; one line stays that says so."""
        queries.drop_job(self.outputs.store, item.job, now, "gc", {"why": item.why})


def ended_at(store: Store, job_id: str) -> datetime | None:
    """Return when the last of a job was over at this node, both sides; None while something of it goes on."""
    ends = [_end_of(record) for record in (store.jobs.find(job_id), store.local_jobs.find(job_id)) if record]
    return None if None in ends else max((end for end in ends if end), default=None)


def is_past(store: Store, job_id: str, seconds: float, now: datetime) -> bool:
    """Tell whether a job ended here so many seconds ago."""
    end = ended_at(store, job_id)
    return end is not None and now - end >= timedelta(seconds=seconds)


def _end_of(record: Job | LocalJob) -> datetime | None:
    """Return when a job ended here for good; None while something of it is still to be done."""
    if not ended(JOB, record.status) or record.ended_at is None:
        return None
    if isinstance(record, Job) and machine.next_due(record) is not None:
        return None  # not every node has acknowledged the end
    if isinstance(record, LocalJob) and not (record.closed and all(run.over for run in record.runs)):
        return None
    return record.ended_at


def outputs_of(local: LocalJob | None) -> list[Address]:
    """Return where a job's runs here put what they made."""
    return list(
        dict.fromkeys(address for run in (local.runs if local else ()) for address in run.outputs.values())
    )


def present_of(local: LocalJob | None, storage: FileStorage) -> list[Address]:
    """Return what of a job's outputs, and of the checkpoints of its tasks, lies here."""
    kept = dict.fromkeys(run.checkpoint for run in (local.runs if local else ()) if run.checkpoint)
    return [*(a for a in outputs_of(local) if storage.exists(a)), *(a for a in kept if storage.path(a).is_dir())]


def text_of(address: Address) -> str:
    """Return an address as a cleaning names it: ``namespace#name``."""
    return f"{address.namespace}#{address.name}"


def size_of(path: Path) -> int:
    """Return the bytes of the files at a place and below it; links are not followed."""
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
    except OSError:
        return 0
    return sum(_length(entry) for entry in files.walk(path) if not files.is_folder(entry))


def _length(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _unchanged_for(path: Path, now: datetime) -> float:
    try:
        return now.timestamp() - path.stat().st_mtime
    except OSError:
        return 0.0
