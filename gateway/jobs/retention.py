"""What jobs leave behind, a `Sweep` per kind of thing. What others still refer to (a `Keeper` says so) stays."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import structlog

from engines import files
from engines.base import Engine, EngineError
from gateway.broker.broker import Broker
from gateway.broker.journal import folder_name
from gateway.data.storage import FOLDER, FileStorage, clear_leftover, leftovers
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.scheduling import machine
from gateway.domain.spec import CallState
from gateway.domain.states import JOB, ended
from gateway.errors import GatewayError
from gateway.ports import Clock
from gateway.store import queries
from gateway.store.store import Store

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
    """Finds and removes things of one kind. Removing what is gone already raises nothing."""

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


Keeper = Callable[[Address], Sequence[str]]
"""Says who still refers to data at an address, each in a few words; empty: nobody it knows of."""

_IDLE_UNKNOWN = 86_400.0
"""seconds after which a mailbox of a job that nobody here knows is given up"""


class Containers:
    """Runs that the engine still holds although they are over for good."""

    kind = "container"

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield containers whose run was collected; ``orphans``: those of unknown runs, too."""
        there = {found.name: found for found in self._engine.list()}
        known = queries.runs_named(self._store, there)
        for name, found in sorted(there.items()):
            run = known.get(name)
            job = run.job_id if run else found.labels.get("bfia.job", "")
            if run is None and orphans:
                yield Item(self.kind, name, job, 0, "the database knows no such run")
            elif run is not None and run.over and self._collected(run.job_id, name):
                yield Item(self.kind, name, job, 0, "its run is over and was collected")

    def remove(self, item: Item, now: datetime) -> None:
        """Have the engine forget the container."""
        self._engine.remove(item.name)

    def _collected(self, job_id: str, name: str) -> bool:
        local = self._store.local_jobs.find(job_id)
        runs = local.runs if local else ()
        return any(r.name == name and r.over and r.collect.state is CallState.OK for r in runs)


class Sessions:
    """Mailboxes of jobs that have ended here, and of those that never came."""

    kind = "session"

    def __init__(
        self, store: Store, broker: Broker, folder: Path, prefix: str, end: Callable[[str], None]
    ) -> None:
        self._store = store
        self._broker = broker
        self._folder = folder
        self._prefix = prefix
        self._end = end

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield mailboxes of jobs that are closed.

        Of unknown ones after a day of silence, or with ``orphans``.
        """
        idle = set(self._broker.idle(_IDLE_UNKNOWN))
        for session in sorted(self._broker.sessions()):
            if not session.startswith(self._prefix):
                continue
            job = session.removeprefix(self._prefix)
            local = self._store.local_jobs.find(job)
            size = size_of(self._folder / folder_name(session))
            if local is None and (orphans or session in idle):
                yield Item(self.kind, session, job, size, "nobody here knows its job")
            elif local is not None and local.closed:
                yield Item(self.kind, session, job, size, "its job has ended")

    def remove(self, item: Item, now: datetime) -> None:
        """End the job's session, which deletes its mailboxes."""
        self._end(item.job)


class Uploads:
    """Uploads whose process died before they were whole."""

    kind = "upload"

    def __init__(self, storage: FileStorage) -> None:
        self._root = storage.root

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield uploads that no process goes on with."""
        for name in leftovers(self._root):
            yield Item(self.kind, name, "", size_of(self._root / FOLDER / name), "its process is gone")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete what has arrived of the upload."""
        clear_leftover(self._root, item.name)


class LogCopies:
    """Copies of a log that were being made when a process died."""

    kind = "log_copy"

    def __init__(self, runs: Path, seconds: float, clock: Clock) -> None:
        self._runs = runs
        self._seconds = seconds
        self._clock = clock

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield copies that nobody has written to for longer than a copy takes."""
        for path in sorted(self._runs.glob("*/copying")):
            if _unchanged_for(path, self._clock()) >= max(self._seconds, 1.0):
                yield Item(self.kind, path.parent.name, "", size_of(path), "its copying was cut short")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete the copy; the log itself stays."""
        shutil.rmtree(self._runs / item.name / "copying", ignore_errors=True)


class RunFolders:
    """Logs of runs, once the time of logs is over."""

    kind = "logs"

    def __init__(self, store: Store, runs: Path, policy: Policy, clock: Clock) -> None:
        self._store = store
        self._runs = runs
        self._clock = clock
        self._policy = policy
        self._times = JobTimes(store)

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield the logs of jobs whose time is over.

        Of unknown runs after the longest time, or with ``orphans``.
        """
        limits = [s for s in (self._policy.logs, self._policy.jobs) if s is not None]
        found = {path.name: path for path in self._runs.glob("*") if path.is_dir()}
        if not found or not (limits or orphans):
            return
        known = queries.runs_named(self._store, found)
        past: dict[str, bool] = {}
        for name, path in sorted(found.items()):
            run = known.get(name)
            if run is None:
                old = bool(limits) and _unchanged_for(path, self._clock()) >= max(limits)
                if orphans or old:
                    yield Item(self.kind, name, "", size_of(path), "the database knows no such run")
                continue
            if limits and run.job_id not in past:
                past[run.job_id] = self._times.past(run.job_id, min(limits), now)
            if past.get(run.job_id):
                yield Item(self.kind, name, run.job_id, size_of(path), "the time of its logs is over")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete the run's folder."""
        files.remove(self._runs / item.name)


class Outputs:
    """Tables, models and reports of jobs, once their time is over and nobody refers to them."""

    kind = "outputs"

    def __init__(self, store: Store, storage: FileStorage, policy: Policy, keepers: list[Keeper]) -> None:
        self._store = store
        self._storage = storage
        self._policy = policy
        self._times = JobTimes(store)
        self.keepers = keepers

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield what past jobs left and nobody refers to.

        The time is that of outputs or of jobs, the shorter one.
        """
        limits = [s for s in (self._policy.outputs, self._policy.jobs) if s is not None]
        if not limits:
            return
        old = set(queries.over_and_created_before(self._store, now - timedelta(seconds=min(limits))))
        candidates = sorted(old & self._jobs_with_data())
        past = [job_id for job_id in candidates if self._times.past(job_id, min(limits), now)]
        if not past:
            return
        used = self.used(now, limits)
        for job_id in past:
            local = self._store.local_jobs.find(job_id)
            for address in present_of(local, self._storage):
                if not self.needed_by(address, job_id, used):
                    size = size_of(self._storage.path(address))
                    yield Item(self.kind, text_of(address), job_id, size, "the time of its outputs is over")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete the data from the storage."""
        namespace, _, name = item.name.partition("#")
        self._storage.delete(Address(namespace, name))

    def needed_by(self, address: Address, job_id: str, used: Mapping[Address, set[str]]) -> list[str]:
        """Say who needs the data beside its own job, each in a few words."""
        readers = [f"read by job {other}" for other in sorted(used.get(address, set()) - {job_id})]
        return readers + [why for keeper in self.keepers for why in keeper(address)]

    def used(self, now: datetime, limits: Sequence[float]) -> dict[Address, set[str]]:
        """Return which jobs read what: those that go on, and those whose own time is not over."""
        since = now - timedelta(seconds=min(limits))
        return self._read_by(queries.local_jobs_open_or_created_after(self._store, since))

    def used_ever(self, addresses: Iterable[Address]) -> dict[Address, set[str]]:
        """Return which jobs of all that are still known read these."""
        return self._read_by(queries.local_jobs_naming(self._store, {a.namespace for a in addresses}))

    def _read_by(self, jobs: Iterable[str]) -> dict[Address, set[str]]:
        found: dict[Address, set[str]] = {}
        for job_id in jobs:
            local = self._store.local_jobs.find(job_id)
            for run in local.runs if local else ():
                begun = (run.checkpoint_from,) if run.checkpoint_from else ()
                for address in (*run.inputs.values(), *begun):
                    found.setdefault(address, set()).add(job_id)
        return found

    def _jobs_with_data(self) -> set[str]:
        """Return every text before a dash in the storage's namespaces: ``<job>-<role>-<index>``."""
        found: set[str] = set()
        for path in self._storage.root.glob("*-*-*"):
            parts = path.name.split("-")
            found.update("-".join(parts[:n]) for n in range(1, len(parts) - 1))
        return found


class Jobs:
    """Whole jobs, once their time is over: what the database holds of them, after their logs and outputs."""

    kind = "job"

    def __init__(self, store: Store, outputs: Outputs, storage: FileStorage, policy: Policy) -> None:
        self._store = store
        self._outputs = outputs
        self._storage = storage
        self._policy = policy
        self._times = JobTimes(store)

    def find(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield past jobs, but those of which outputs stay."""
        seconds = self._policy.jobs
        if seconds is None:
            return
        old = queries.over_and_created_before(self._store, now - timedelta(seconds=seconds))
        past = [job_id for job_id in old if self._times.past(job_id, seconds, now)]
        used = self._outputs.used(now, [seconds]) if past else {}
        for job_id in past:
            addresses = outputs_of(self._store.local_jobs.find(job_id))
            if any(self._storage.exists(a) and self._outputs.needed_by(a, job_id, used) for a in addresses):
                continue  # else nothing would tell whose the outputs are
            yield Item(self.kind, job_id, job_id, 0, "the time of the job is over")

    def remove(self, item: Item, now: datetime) -> None:
        """Delete both records and the timeline; one line stays that says so."""
        queries.drop_job(self._store, item.job, now, "gc", {"why": item.why})


def end_of(record: Job | LocalJob | None) -> datetime | None:
    """Return when a job ended here for good; None while something of it is still to be done."""
    if record is None or not ended(JOB, record.status) or record.ended_at is None:
        return None
    if isinstance(record, Job) and machine.next_due(record) is not None:
        return None  # not every node has acknowledged the end
    if isinstance(record, LocalJob) and not (record.closed and all(run.over for run in record.runs)):
        return None
    return record.ended_at


class JobTimes:
    """Says when jobs ended at this node, both sides of it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ended(self, job_id: str) -> datetime | None:
        """Return when the last of the job was over here; None while something of it goes on."""
        records = [
            r for r in (self._store.jobs.find(job_id), self._store.local_jobs.find(job_id)) if r is not None
        ]
        ends = [end_of(record) for record in records]
        return None if not ends or None in ends else max(e for e in ends if e is not None)

    def past(self, job_id: str, seconds: float | None, now: datetime) -> bool:
        """Tell whether a job ended here so many seconds ago; never, where that is None."""
        end = None if seconds is None else self.ended(job_id)
        return end is not None and seconds is not None and now - end >= timedelta(seconds=seconds)


def outputs_of(local: LocalJob | None) -> list[Address]:
    """Return where a job's runs here put what they made."""
    runs: Iterable[Run] = local.runs if local else ()
    return list(dict.fromkeys(address for run in runs for address in run.outputs.values()))


def present_of(local: LocalJob | None, storage: FileStorage) -> list[Address]:
    """Return what of a job's outputs, and of the checkpoints of its tasks, lies here."""
    runs: Iterable[Run] = local.runs if local else ()
    kept = dict.fromkeys(run.checkpoint for run in runs if run.checkpoint is not None)
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
    """Return the seconds since a file or folder was changed; none where it is gone."""
    try:
        return now.timestamp() - path.stat().st_mtime
    except OSError:
        return 0.0
