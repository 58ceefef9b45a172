"""Retention: the removal of what jobs leave at this node, after the times in the settings.

Jobs leave containers, messages of the channel, logs, outputs and records. An output stays as long
as other jobs read it, or as a `Keeper` names users of it.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from engines import files
from engines.base import Engine, EngineError
from gateway.broker.broker import Broker
from gateway.broker.journal import folder_name
from gateway.config.schema.jobs import Retention
from gateway.data import file_storage
from gateway.data.combined_storage import Storages
from gateway.domain.checkpoints import superseded_entries
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob
from gateway.domain.scheduling import machine
from gateway.domain.spec import CallState
from gateway.domain.states import JOB, ended
from gateway.errors import GatewayError, StorageFailed
from gateway.ports import Clock
from gateway.store import queries
from gateway.store.store import Store

log = structlog.get_logger(__name__)

# Returns the users of the data at an address, each in a few words; empty if there are none.
Keeper = Callable[[Address], Sequence[str]]

# Seconds without a push or pop after which the session of an unknown job is removed.
_IDLE_UNKNOWN = 86_400.0
# Jobs that are over and older than this are not searched for old checkpoints again.
_CHECKPOINT_AGE = timedelta(days=2)


@dataclass(frozen=True)
class Item:
    """One thing to remove."""

    kind: str  # container, session, upload, logs, checkpoint, outputs or job
    name: str  # identifies the item within its kind, such as the dataset id of an output
    job: str  # id of the job to which the item belongs; empty if unknown
    bytes: int  # its size; 0 for kinds whose size is not counted
    why: str  # why it is removed
    removed: bool = False  # whether it is removed already
    cause: str = ""  # why it could not be removed; empty if it was not tried or has succeeded


class Leftovers:
    """Access to what jobs leave on this node: their outputs, the outputs' users, and their ends."""

    def __init__(
        self,
        store: Store,
        storage: Storages,
        runs: Path,
        keep: Retention,
        keepers: list[Keeper],
    ) -> None:
        """``runs`` is the folder that has a folder with the logs of each run.

        ``keep`` has the times of the settings. ``keepers`` tell who else uses an output.
        """
        self.store = store
        self.storage = storage
        self.runs = runs
        self.keep = keep
        self.keepers = keepers

    def outputs(self, local: LocalJob | None) -> list[Address]:
        """Return those of a job's outputs and checkpoints that exist here.

        Empty without a job.
        """
        outputs = [address for address in outputs_of(local) if self.storage.exists(address)]
        checkpoints = [address for address in _checkpoints_of(local) if self._is_stored(address)]
        return [*outputs, *checkpoints]

    def _is_stored(self, address: Address) -> bool:
        """Return whether a folder for checkpoints exists.

        False if the storage of the address is not among the node's storages any more.
        """
        if address.storage and address.storage not in self.storage.remotes:
            return False
        return address.name in self.storage.names(address.namespace, address.storage)

    def item(
        self,
        job_id: str,
        address: Address,
        why: str,
    ) -> Item:
        """Return an output of a job as an item to remove; ``why`` is the reason for its removal."""
        if address.storage:
            size = self.storage.size(address)
        else:
            # In the node's own folder, files that belong to no table count as well.
            size = size_of(self.storage.path(address))
        return Item("outputs", address.dataset_id, job_id, size, why)

    def delete(self, name: str) -> None:
        """Delete an output by the name of its item, ``namespace#name``."""
        self.storage.delete(self.storage.find(*name.split("#", 1)))

    def needed_by(
        self,
        address: Address,
        job_id: str,
        readers: Mapping[Address, set[str]],
    ) -> list[str]:
        """Return the users of a job's output, each in a few words, without the job itself.

        ``readers`` are, by address, the jobs that read the data there, as `read_by` returns them.
        """
        other_jobs = readers.get(address, set()) - {job_id}
        users = [f"read by job {job}" for job in sorted(other_jobs)]
        for keeper in self.keepers:
            users += keeper(address)
        return users

    def read_by(
        self,
        jobs: Iterable[str],
    ) -> dict[Address, set[str]]:
        """Return the inputs of these jobs, each with the ids of those jobs that read it."""
        readers: dict[Address, set[str]] = {}
        for job_id in jobs:
            local = self.store.local_jobs.find(job_id)
            if local is None:
                continue
            for address in _inputs_of(local):
                readers.setdefault(address, set()).add(job_id)
        return readers

    def ended_at(self, job_id: str) -> datetime | None:
        """Return since when a job has been over here, in every record of it that this node has.

        A node may have one record as scheduling node and one as participating node. None if one of
        them is not over, or if this node has no record of the job.
        """
        ends: list[datetime] = []
        for record in (self.store.jobs.find(job_id), self.store.local_jobs.find(job_id)):
            if record is None:
                continue
            end = _end_of(record)
            if end is None:
                return None
            ends.append(end)
        return max(ends, default=None)

    def is_past(
        self,
        job_id: str,
        seconds: float,
        now: datetime,
    ) -> bool:
        """Return whether a job has been over here for at least ``seconds``."""
        end = self.ended_at(job_id)
        return end is not None and now - end >= timedelta(seconds=seconds)


@dataclass(frozen=True)
class _Sweep:
    """The search and the removal of leftovers of one kind."""

    kind: str
    # Takes the current time, and whether to include orphans: items unknown to the database. Not
    # every search depends on both.
    find: Callable[[datetime, bool], Iterable[Item]]
    remove: Callable[[Item], object]  # does nothing for an item that does not exist any more


class Cleaner:
    """Removes leftovers, on demand and at intervals."""

    def __init__(
        self,
        leftovers: Leftovers,
        engine: Engine,
        broker: Broker,
        channel: Path,
        prefix: str,
        end_session: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Prepare the cleaner.

        ``channel`` is the folder of the channel's messages. The name of a job's session is
        ``prefix`` followed by the job's id. ``end_session`` takes a job's id, and ends the session
        with its messages.
        """
        self._leftovers = leftovers
        self._keep = leftovers.keep
        self._store = leftovers.store
        self._storage = leftovers.storage
        self._engine = engine
        self._broker = broker
        self._channel = channel
        self._prefix = prefix
        self._end_session = end_session
        self._clock = clock
        # Jobs that are over and have no old checkpoints.
        self._without_old_checkpoints: set[str] = set()
        self._lock = threading.Lock()
        self._sweeps = (
            _Sweep("container", self._containers, self._remove_container),
            _Sweep("session", self._sessions, self._remove_session),
            _Sweep("upload", self._uploads, self._remove_upload),
            _Sweep("logs", self._logs, self._remove_logs),
            _Sweep("checkpoint", self._checkpoints, self._remove_checkpoint),
            _Sweep("outputs", self._outputs, self._remove_output),
            _Sweep("job", self._jobs, self._remove_job),
        )

    def plan(self, *, orphans: bool = False) -> list[Item]:
        """Return the items that `clean` would remove now, and remove nothing.

        ``orphans``: also items that the database does not know.
        """
        return [item for item, _ in self._find(orphans)]

    def clean(self, *, orphans: bool = False) -> list[Item]:
        """Remove the items that `plan` returns; return them with their results."""
        with self._lock:
            return [self._remove(item, sweep) for item, sweep in self._find(orphans)]

    def _find(
        self,
        orphans: bool,
    ) -> list[tuple[Item, _Sweep]]:
        """Return the items of all sweeps, each with its sweep.

        A sweep that fails is logged, and the others go on.
        """
        now = self._clock()
        items = []
        for sweep in self._sweeps:
            try:
                for item in sweep.find(now, orphans):
                    items.append((item, sweep))
            except (EngineError, GatewayError, OSError) as error:
                log.warning(
                    "cannot look for what is to be removed", kind=sweep.kind, cause=str(error)
                )
        return items

    def _remove(self, item: Item, sweep: _Sweep) -> Item:
        """Remove an item; log the result, and return the item with the result."""
        try:
            sweep.remove(item)
        except (EngineError, GatewayError, OSError) as error:
            cause = str(error)
            log.warning(
                "not removed",
                kind=item.kind,
                name=item.name,
                job=item.job,
                cause=cause,
            )
            return replace(item, cause=cause)
        log.info(
            "removed",
            kind=item.kind,
            name=item.name,
            job=item.job,
            bytes=item.bytes,
            why=item.why,
        )
        return replace(item, removed=True)

    # ---------------------------------------------------------------- containers

    def _containers(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield containers of collected runs; with ``orphans`` also containers of unknown runs.

        A run is collected once its logs are saved.
        """
        containers = {container.name: container for container in self._engine.list()}
        runs = queries.runs_named(self._store, containers)
        for name, container in sorted(containers.items()):
            run = runs.get(name)
            if run is None:
                job = container.labels.get("bfia.job", "")
                if orphans:
                    why = "the database knows no such run"
                    yield Item("container", name, job, bytes=0, why=why)
            elif run.over and self._is_collected(run.job_id, name):
                why = "its run is over and was collected"
                yield Item("container", name, run.job_id, bytes=0, why=why)

    def _is_collected(self, job_id: str, run_name: str) -> bool:
        """Return whether the logs of a run are saved, so that its container can be removed."""
        local = self._store.local_jobs.find(job_id)
        if local is None:
            return False
        runs = [run for run in local.runs if run.name == run_name]
        return any(run.over and run.collect.state is CallState.OK for run in runs)

    def _remove_container(self, item: Item) -> None:
        """Remove a container."""
        self._engine.remove(item.name)

    # ---------------------------------------------------------------- sessions of the channel

    def _sessions(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield the sessions of closed jobs, and of unknown jobs.

        A job is closed once all that it held here is released. The session of an unknown job is
        yielded after `_IDLE_UNKNOWN` seconds without a push or pop, with ``orphans`` immediately.
        """
        idle = set(self._broker.idle_sessions(_IDLE_UNKNOWN))
        for session in sorted(self._broker.sessions()):
            if not session.startswith(self._prefix):
                continue
            job = session.removeprefix(self._prefix)
            local = self._store.local_jobs.find(job)
            size = size_of(self._channel / folder_name(session))
            if local is not None:
                if local.closed:
                    yield Item("session", session, job, size, "its job has ended")
            elif orphans or session in idle:
                yield Item("session", session, job, size, "its job is unknown here")

    def _remove_session(self, item: Item) -> None:
        """End a job's session of the channel, with its mailbox."""
        self._end_session(item.job)

    # ---------------------------------------------------------------- uploads

    def _uploads(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield uploads whose process died before they were complete."""
        root = self._storage.root
        for name in file_storage.leftovers(root):
            yield Item(
                "upload",
                name,
                job="",
                bytes=size_of(root / file_storage.STAGING_FOLDER / name),
                why="its process is gone",
            )

    def _remove_upload(self, item: Item) -> None:
        """Delete the files of a process that died, also those in another storage.

        Files in another storage stay if a keeper needs them: the process then died after it had
        registered the dataset and before it cleared its folder.
        """

        # Returns True in both cases, so that the folder of the process itself is deleted.
        def delete_elsewhere(target: Address) -> bool:
            if not any(keeper(target) for keeper in self._leftovers.keepers):
                self._storage.delete(target)
            return True

        file_storage.clear_leftover(self._storage.root, item.name, delete_elsewhere)

    # ---------------------------------------------------------------- logs

    def _logs(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield the logs of runs that have been kept long enough.

        The settings have a time for logs and one for jobs. Logs of known runs are yielded after the
        shorter time since the end of the job. Logs of unknown runs are yielded after the longer
        time without a change, with ``orphans`` immediately.
        """
        times = self._retention_times(self._keep.logs_seconds)
        folders = {path.name: path for path in self._leftovers.runs.glob("*") if path.is_dir()}
        if not folders or not (times or orphans):
            return
        runs = queries.runs_named(self._store, folders)
        job_ids = {run.job_id for run in runs.values()}
        past_jobs = {job_id for job_id in job_ids if self._is_logs_time_over(job_id, times, now)}
        for name, path in sorted(folders.items()):
            run = runs.get(name)
            if run is None:
                is_old = bool(times) and unchanged_for(path, now) >= max(times)
                if orphans or is_old:
                    why = "the database knows no such run"
                    yield Item("logs", name, job="", bytes=size_of(path), why=why)
            elif run.job_id in past_jobs:
                yield Item("logs", name, run.job_id, size_of(path), "the time of its logs is over")

    def _is_logs_time_over(
        self,
        job_id: str,
        times: Sequence[float],
        now: datetime,
    ) -> bool:
        """Return whether the end of a job is longer ago than the shortest of ``times`` (seconds).

        False if ``times`` is empty: the logs of the job stay.
        """
        return bool(times) and self._leftovers.is_past(job_id, min(times), now)

    def _remove_logs(self, item: Item) -> None:
        """Delete the folder with a run's logs."""
        files.remove(self._leftovers.runs / item.name)

    # ---------------------------------------------------------------- checkpoints

    def _checkpoints(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield the checkpoints that newer ones of the same task have replaced.

        These are searched for in jobs that go on, and in jobs of the last days until the first
        search after their end.
        """
        if self._keep.checkpoints is None:
            return
        job_ids = set(queries.local_jobs_open_or_created_after(self._store, now - _CHECKPOINT_AGE))
        self._without_old_checkpoints &= job_ids
        for job_id in sorted(job_ids - self._without_old_checkpoints):
            local = self._store.local_jobs.find(job_id)
            if local is None:
                continue
            with _skipping_failed_storage(job_id):
                items = list(self._old_checkpoints(local, self._keep.checkpoints))
                yield from items
                if not items and _end_of(local) is not None:
                    self._without_old_checkpoints.add(job_id)

    def _old_checkpoints(self, local: LocalJob, keep: int) -> Iterator[Item]:
        """Yield the checkpoints of a job's tasks besides the newest ``keep`` of each task.

        Raises `StorageFailed`.
        """
        for address in _checkpoints_of(local):
            if address.storage and address.storage not in self._storage.remotes:
                continue  # the settings do not name the storage any more
            for name in superseded_entries(self._storage.entries(address), keep):
                size = 0
                if not address.storage:
                    size = size_of(self._storage.path(address) / name)
                yield Item(
                    "checkpoint",
                    f"{address.dataset_id}/{name}",
                    local.id,
                    size,
                    why="its task has enough newer checkpoints",
                )

    def _remove_checkpoint(self, item: Item) -> None:
        """Delete a checkpoint by the name of its item, ``namespace#name/entry``."""
        dataset_id, _, entry = item.name.rpartition("/")
        address = self._storage.find(*dataset_id.split("#", 1))
        self._storage.delete_entry(address, entry)

    # ---------------------------------------------------------------- outputs

    def _outputs(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield the unused outputs of jobs that have ended long enough ago.

        The settings have a time for outputs and one for jobs; the shorter one counts.
        """
        times = self._retention_times(self._keep.outputs_seconds)
        if not times:
            return
        for job_id, readers in self._past_jobs(min(times), now, among=self._jobs_with_data()):
            with _skipping_failed_storage(job_id):
                yield from self._unused_outputs(job_id, readers)

    def _unused_outputs(
        self,
        job_id: str,
        readers: Mapping[Address, set[str]],
    ) -> Iterator[Item]:
        """Yield those outputs of a past job that have no users. Raises `StorageFailed`."""
        for address in self._leftovers.outputs(self._store.local_jobs.find(job_id)):
            if not self._leftovers.needed_by(address, job_id, readers):
                yield self._leftovers.item(job_id, address, "the time of its outputs is over")

    def _jobs_with_data(self) -> set[str]:
        """Return the ids of all jobs with outputs here, and further texts that are no ids.

        The namespace of an output is ``<job>-<role>-<index>``. Ids and roles may contain dashes, so
        the end of the id is ambiguous: every prefix that may be an id is returned.
        """
        ids = set()
        for namespace in self._storage.namespaces():
            parts = namespace.split("-")
            for length in range(1, len(parts) - 1):
                ids.add("-".join(parts[:length]))
        return ids

    def _remove_output(self, item: Item) -> None:
        """Delete an output of a job."""
        self._leftovers.delete(item.name)

    # ---------------------------------------------------------------- jobs

    def _jobs(
        self,
        now: datetime,
        orphans: bool,
    ) -> Iterator[Item]:
        """Yield past jobs, except jobs with outputs that others use.

        These keep their records: only the record of a job shows which outputs it has, so that
        without it no later cleaning would find them.
        """
        seconds = self._keep.jobs_seconds
        if seconds is None:
            return
        for job_id, readers in self._past_jobs(seconds, now):
            with _skipping_failed_storage(job_id):
                if not self._has_needed_outputs(job_id, readers):
                    yield Item("job", job_id, job_id, bytes=0, why="the time of the job is over")

    def _has_needed_outputs(
        self,
        job_id: str,
        readers: Mapping[Address, set[str]],
    ) -> bool:
        """Return whether an output or a checkpoint of a past job exists and has users.

        A job that takes over from this one uses the checkpoints until it has ended.
        """
        local = self._store.local_jobs.find(job_id)
        for address in self._leftovers.outputs(local):
            if self._leftovers.needed_by(address, job_id, readers):
                return True
        return False

    def _remove_job(self, item: Item) -> None:
        """Delete every record of a job that this node has, and the job's timeline.

        One line of the timeline stays, about the removal by ``gc``.
        """
        queries.drop_job(
            self._store,
            item.job,
            self._clock(),
            by="gc",
            detail={"why": item.why},
        )

    def _retention_times(self, seconds: float | None) -> list[float]:
        """Return ``seconds`` and the time for which jobs are kept, each only if it is set.

        Both matter, as the outputs and logs of a job do not outlive its record. If neither is set,
        the result is empty, and nothing is removed.
        """
        return [time for time in (seconds, self._keep.jobs_seconds) if time is not None]

    def _past_jobs(
        self,
        seconds: float,
        now: datetime,
        among: set[str] | None = None,
    ) -> Iterator[tuple[str, dict[Address, set[str]]]]:
        """Yield the ids of jobs that ended at least ``seconds`` ago, each with the same readers.

        The readers are, by address, the jobs that read the data there. Only jobs that are still
        open, or were created less than ``seconds`` ago, count as readers. ``among`` are the ids to
        consider; None: all jobs.
        """
        latest_end = now - timedelta(seconds=seconds)
        # A job that ended before this time was also created before it.
        candidates = queries.over_and_created_before(self._store, latest_end)
        if among is not None:
            candidates = candidates & among
        past_jobs = []
        for job_id in sorted(candidates):
            if self._leftovers.is_past(job_id, seconds, now):
                past_jobs.append(job_id)
        if not past_jobs:
            return
        recent = queries.local_jobs_open_or_created_after(self._store, latest_end)
        readers = self._leftovers.read_by(recent)
        for job_id in past_jobs:
            yield job_id, readers


@contextmanager
def _skipping_failed_storage(job_id: str) -> Iterator[None]:
    """Log a failed storage instead of raising the error: the next cleaning tries the job again."""
    try:
        yield
    except StorageFailed as error:
        log.warning(
            "a job is not cleaned up now",
            job=job_id,
            cause=error.message,
        )


def _end_of(record: Job | LocalJob) -> datetime | None:
    """Return when a job ended here; None while it goes on, or something is left to do about it."""
    if not ended(JOB, record.status) or record.ended_at is None:
        return None
    if _is_finished(record):
        return record.ended_at
    return None


def _is_finished(record: Job | LocalJob) -> bool:
    """Return whether nothing is left to do about an ended job: no stop to repeat, no cleanup."""
    if isinstance(record, Job):
        return machine.next_due(record) is None
    return record.closed and all(run.over for run in record.runs)


def _inputs_of(local: LocalJob) -> Iterator[Address]:
    """Yield the addresses that a job's runs read: inputs, and checkpoints of an earlier job."""
    for run in local.runs:
        yield from run.data.inputs.values()
        if run.data.checkpoint_from is not None:
            yield run.data.checkpoint_from


def outputs_of(local: LocalJob | None) -> list[Address]:
    """Return the addresses of a job's outputs here, each once, whether they exist or not.

    Empty without a job.
    """
    if local is None:
        return []
    addresses: dict[Address, None] = {}  # used as a set that keeps the order
    for run in local.runs:
        addresses.update(dict.fromkeys(run.data.outputs.values()))
    return list(addresses)


def _checkpoints_of(local: LocalJob | None) -> list[Address]:
    """Return the folders for checkpoints of a job's tasks here, each once; empty without a job."""
    if local is None:
        return []
    return list(dict.fromkeys(run.data.checkpoint for run in local.runs if run.data.checkpoint))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 for a path that does not exist.

    Links are not followed.
    """
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
    except OSError:
        return 0
    return sum(_length(entry) for entry in files.walk(path) if not files.is_folder(entry))


def _length(entry: os.DirEntry[str]) -> int:
    """Return the bytes of a file; 0 if it is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def unchanged_for(path: Path, now: datetime) -> float:
    """Return the seconds since a folder was changed; 0 if it is gone."""
    try:
        return now.timestamp() - path.stat().st_mtime
    except OSError:
        return 0.0
