"""What jobs leave behind, and how it goes: at its time, as a stray, or because somebody deletes a job.

What others still refer to (a `Keeper` says so) stays. A job is deleted as a whole, and only when nothing of it is
still to be done: where an output is needed it is kept, and the refusal names who needs what.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from engines import files
from engines.base import Engine, EngineError
from gateway.broker.broker import Broker
from gateway.broker.journal import folder_name
from gateway.config.schema import Retention
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import FOLDER, clear_leftover, leftovers
from gateway.domain import rerun
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob
from gateway.domain.scheduling import machine
from gateway.domain.spec import CallState, NodeId, Note, data_location, is_outside, is_own
from gateway.domain.states import JOB, ended
from gateway.errors import (
    Busy,
    Conflict,
    GatewayError,
    NotAllowed,
    NotFound,
    PeerUnreachable,
    StorageFailed,
)
from gateway.ports import Clock
from gateway.runtime.context import NodeContext, Peers
from gateway.store import queries
from gateway.store.records import job_unknown
from gateway.store.store import Store
from provider_registry.model import group_of

log = structlog.get_logger(__name__)

Keeper = Callable[[Address], Sequence[str]]
"""Says who still refers to data at an address, each in a few words; empty: nobody it knows of."""

CONTENTS: Mapping[str, tuple[str, ...]] = {
    "outputs": ("data", "model"),
    "metrics": ("metric",),
    "models": ("model",),
}
"""what of a task can be deleted: tables and models, reports, or models alone"""

_DELETED_BY_PARTNER = "deleted by a partner"
"""event of a timeline"""
_IDLE_UNKNOWN = 86_400.0
"""seconds after which a mailbox of a job that nobody here knows is given up"""
_MOST_NAMED = 20
_FREE_THEM = (
    "Delete first what refers to them, jobs by `bfia-gateway job delete`, models by `bfia-gateway model delete` "
    "(see `model list`), or keep this job"
)


@dataclass(frozen=True)
class Item:
    """One thing to remove."""

    kind: str
    """container, session, upload, logs, outputs, job"""
    name: str
    job: str
    """to which it belongs; empty where nobody knows"""
    bytes: int
    """0 where they are not counted"""
    why: str
    removed: bool = False
    cause: str = ""
    """why it could not be removed"""


class Leftovers:
    """What jobs have left on the disks of this node, and who refers to it."""

    def __init__(
        self,
        store: Store,
        storage: Storages,
        runs: Path,
        keep: Retention,
        keepers: list[Keeper],
    ) -> None:
        """``runs``: the folder with the logs of each run."""
        self.store = store
        self.storage = storage
        self.runs = runs
        self.keep = keep
        self.keepers = keepers

    def outputs(self, local: LocalJob | None) -> list[Address]:
        """Return what of a job's outputs, and of the checkpoints of its tasks, lies here."""
        kept = dict.fromkeys(
            run.checkpoint for run in (local.runs if local else ()) if run.checkpoint
        )
        there = [address for address in _outputs_of(local) if self.storage.exists(address)]
        known, names = ("", *self.storage.remotes), self.storage.names
        return [
            *there,
            *(a for a in kept if a.storage in known and a.name in names(a.namespace, a.storage)),
        ]

    def item(
        self,
        job_id: str,
        address: Address,
        why: str,
    ) -> Item:
        """Return what a cleaning or a deletion shows of an output."""
        size = (
            self.storage.size(address) if address.storage else size_of(self.storage.path(address))
        )
        return Item("outputs", address.dataset_id, job_id, size, why)

    def delete(self, name: str) -> None:
        """Delete an output by the name that an item gave it."""
        self.storage.delete(self.storage.find(*name.split("#", 1)))

    def needed_by(
        self,
        address: Address,
        job_id: str,
        used: Mapping[Address, set[str]],
    ) -> list[str]:
        """Say who needs the data beside its own job, each in a few words."""
        readers = [f"read by job {other}" for other in sorted(used.get(address, set()) - {job_id})]
        return readers + [why for keeper in self.keepers for why in keeper(address)]

    def read_by(self, jobs: Iterable[str]) -> dict[Address, set[str]]:
        """Return what these jobs read, each with who does."""
        found: dict[Address, set[str]] = {}
        for job_id in jobs:
            local = self.store.local_jobs.find(job_id)
            for run in local.runs if local else ():
                begun = (run.checkpoint_from,) if run.checkpoint_from else ()
                for address in (*run.inputs.values(), *begun):
                    found.setdefault(address, set()).add(job_id)
        return found

    def ended_at(self, job_id: str) -> datetime | None:
        """Return when the last of a job was over here, both sides; None while something of it goes on."""
        records = (self.store.jobs.find(job_id), self.store.local_jobs.find(job_id))
        ends = [_end_of(record) for record in records if record]
        return None if None in ends else max((end for end in ends if end), default=None)

    def is_past(
        self,
        job_id: str,
        seconds: float,
        now: datetime,
    ) -> bool:
        """Tell whether a job ended here so many seconds ago."""
        end = self.ended_at(job_id)
        return end is not None and now - end >= timedelta(seconds=seconds)


class _Sweep(NamedTuple):
    """How things of one kind are found and removed. Removing what is gone already raises nothing."""

    kind: str
    find: Callable[[datetime, bool], Iterable[Item]]
    """at a time; with True also what the database knows nothing of"""
    remove: Callable[[Item], object]


class Cleaner:
    """Looks for things to remove, on demand and every now and then."""

    def __init__(
        self,
        left: Leftovers,
        engine: Engine,
        broker: Broker,
        channel: Path,
        prefix: str,
        end_session: Callable[[str], None],
        clock: Clock,
        every: float = 60.0,
    ) -> None:
        """``channel``: the folder of the channel's messages; a job's session there is ``prefix`` and its id.

        ``every``: seconds between two cleanings.
        """
        self._left = left
        self._store = left.store
        self._engine = engine
        self._broker = broker
        self._channel = channel
        self._prefix = prefix
        self._clock = clock
        self._every = every
        self._alone = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._work,
            name="cleaner",
            daemon=True,
        )
        self._sweeps = (
            _Sweep("container", self._containers, lambda item: engine.remove(item.name)),
            _Sweep("session", self._sessions, lambda item: end_session(item.job)),
            _Sweep("upload", self._uploads, self._clear_upload),
            _Sweep("logs", self._logs, lambda item: files.remove(left.runs / item.name)),
            _Sweep("outputs", self._outputs, lambda item: left.delete(item.name)),
            _Sweep("job", self._jobs, self._drop),
        )

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

    def _work(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self.clean()
            except Exception:
                log.exception("cleaning failed")

    def _found(self, orphans: bool) -> list[tuple[Item, _Sweep]]:
        now, found = self._clock(), []
        for sweep in self._sweeps:
            try:
                found += [(item, sweep) for item in sweep.find(now, orphans)]
            except (
                EngineError,
                GatewayError,
                OSError,
            ) as error:  # the others are looked for all the same
                log.warning(
                    "cannot look for what is to be removed", kind=sweep.kind, cause=str(error)
                )
        return found

    def _removed(self, item: Item, sweep: _Sweep) -> Item:
        try:
            sweep.remove(item)
        except (EngineError, GatewayError, OSError) as error:
            log.warning(
                "not removed",
                kind=item.kind,
                name=item.name,
                job=item.job,
                cause=str(error),
            )
            return replace(item, cause=str(error))
        log.info(
            "removed",
            kind=item.kind,
            name=item.name,
            job=item.job,
            bytes=item.bytes,
            why=item.why,
        )
        return replace(item, removed=True)

    def _containers(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield containers whose run was collected; with ``orphans`` also those of unknown runs."""
        there = {found.name: found for found in self._engine.list()}
        known = queries.runs_named(self._store, there)
        for name, found in sorted(there.items()):
            run = known.get(name)
            if run is None and orphans:
                yield Item(
                    "container",
                    name,
                    found.labels.get("bfia.job", ""),
                    0,
                    "the database knows no such run",
                )
            elif run is not None and run.over:
                local = self._store.local_jobs.find(run.job_id)
                runs = [r for r in (local.runs if local else ()) if r.name == name]
                if any(r.over and r.collect.state is CallState.OK for r in runs):
                    yield Item(
                        "container", name, run.job_id, 0, "its run is over and was collected"
                    )

    def _sessions(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield mailboxes of closed jobs; of unknown ones after a day of silence, or with ``orphans``."""
        idle = set(self._broker.idle(_IDLE_UNKNOWN))
        for session in sorted(s for s in self._broker.sessions() if s.startswith(self._prefix)):
            job = session.removeprefix(self._prefix)
            local = self._store.local_jobs.find(job)
            size = size_of(self._channel / folder_name(session))
            if local is None and (orphans or session in idle):
                yield Item("session", session, job, size, "its job is unknown here")
            elif local is not None and local.closed:
                yield Item("session", session, job, size, "its job has ended")

    def _uploads(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield uploads whose process died before they were whole."""
        root = self._left.storage.root
        for name in leftovers(root):
            yield Item("upload", name, "", size_of(root / FOLDER / name), "its process is gone")

    def _clear_upload(self, item: Item) -> None:
        """Delete what a dead process left, at another storage too, unless it ended between the last two steps."""
        storage = self._left.storage

        def elsewhere(target: Address) -> bool:
            kept = any(keeper(target) for keeper in self._left.keepers)
            return kept or storage.delete(target) or True

        clear_leftover(storage.root, item.name, elsewhere)

    def _logs(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield logs whose time is over; of unknown runs after the longest time, or with ``orphans``."""
        limits = self._limits(self._left.keep.logs_seconds)
        found = {path.name: path for path in self._left.runs.glob("*") if path.is_dir()}
        if not found or not (limits or orphans):
            return
        known = queries.runs_named(self._store, found)
        past: dict[str, bool] = {}
        for name, path in sorted(found.items()):
            run = known.get(name)
            if run is None:
                if orphans or (limits and _unchanged_for(path, now) >= max(limits)):
                    yield Item("logs", name, "", size_of(path), "the database knows no such run")
                continue
            if limits and run.job_id not in past:
                past[run.job_id] = self._left.is_past(run.job_id, min(limits), now)
            if past.get(run.job_id):
                yield Item("logs", name, run.job_id, size_of(path), "the time of its logs is over")

    def _outputs(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield what past jobs left and nobody refers to, after the shorter time of outputs and jobs."""
        if not (limits := self._limits(self._left.keep.outputs_seconds)):
            return
        # every text before a dash in the storage's namespaces: <job>-<role>-<index>
        names = [name.split("-") for name in self._left.storage.namespaces() if name.count("-") > 1]
        with_data = {"-".join(parts[:n]) for parts in names for n in range(1, len(parts) - 1)}
        for job_id, used in self._past(min(limits), now, with_data):
            with _next_time(job_id):
                for address in self._left.outputs(self._store.local_jobs.find(job_id)):
                    if not self._left.needed_by(address, job_id, used):
                        yield self._left.item(job_id, address, "the time of its outputs is over")

    def _jobs(self, now: datetime, orphans: bool) -> Iterator[Item]:
        """Yield past jobs as a whole, but those of which outputs stay: nothing else would tell whose they are."""
        if (seconds := self._left.keep.jobs_seconds) is None:
            return
        exists, needed_by = self._left.storage.exists, self._left.needed_by
        for job_id, used in self._past(seconds, now):
            outputs = _outputs_of(self._store.local_jobs.find(job_id))
            with _next_time(job_id):
                if not any(exists(a) and needed_by(a, job_id, used) for a in outputs):
                    yield Item("job", job_id, job_id, 0, "the time of the job is over")

    def _drop(self, item: Item) -> None:
        """Delete both records and the timeline; one line stays that says so."""
        queries.drop_job(self._store, item.job, self._clock(), "gc", {"why": item.why})

    def _limits(self, seconds: float | None) -> list[float]:
        return [limit for limit in (seconds, self._left.keep.jobs_seconds) if limit is not None]

    def _past(
        self,
        seconds: float,
        now: datetime,
        among: set[str] | None = None,
    ) -> Iterator[tuple[str, dict[Address, set[str]]]]:
        """Yield jobs that ended so long ago, with what is read by jobs that did not."""
        since = now - timedelta(seconds=seconds)
        old = queries.over_and_created_before(self._store, since)
        candidates = sorted(old if among is None else old & among)
        past = [job_id for job_id in candidates if self._left.is_past(job_id, seconds, now)]
        if past:
            used = self._left.read_by(queries.local_jobs_open_or_created_after(self._store, since))
            yield from ((job_id, used) for job_id in past)


@dataclass(frozen=True)
class AtNode:
    """How a deletion ended at one node."""

    deleted: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Deleted:
    """What a deletion did, or would do."""

    job_id: str
    dry_run: bool
    items: Sequence[Item] = ()
    """what was here"""
    nodes: Mapping[NodeId, AtNode] | None = None
    """the other nodes of the job; None where they were not asked"""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; ``bytes`` is what the items take together."""
        return {**asdict(self), "bytes": sum(item.bytes for item in self.items)}


class SomeUnreached(PeerUnreachable):
    """Nodes of the job do not answer; the job is kept here, so that it can be asked again."""

    def __init__(self, nodes: Mapping[NodeId, AtNode]) -> None:
        silent = ", ".join(n for n, at in nodes.items() if at.reason == PeerUnreachable.reason)
        super().__init__(
            f"no answer from {silent}; nothing was deleted here: ask again, or delete it only here"
        )
        self.nodes = nodes


class Deleting:
    """Deletes a job, here and at every other node, or outputs of one task; each leaves a line in the timeline.

    What a partner's job used here stays on record, whoever deletes the job: a partner removes outputs only, and
    the line that this node's own people leave names the tasks, components and tables.
    """

    def __init__(
        self,
        context: NodeContext,
        left: Leftovers,
        peers: Peers,
        end_session: Callable[[str], None],
        audit: Callable[[str, str, Mapping[str, Any]], None],
    ) -> None:
        """``audit`` records who deleted what, with details."""
        self._audit = audit
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._left = left
        self._peers = peers
        self._end_session = end_session

    def delete(
        self,
        job_id: str,
        *,
        by: str,
        reason: str = "",
        here: bool = False,
        dry_run: bool = False,
    ) -> Deleted:
        """Delete a job at every node of it, last here; with ``here`` only here. Repeated, it goes on.

        Raises `NotFound`, `Conflict` (JOB_NOT_ENDED, OUTPUTS_IN_USE) before anything is deleted here, and
        `SomeUnreached`. A node that has no such path, or refuses for good, is named in the result.
        """
        if not queries.is_known(self._store, job_id):
            raise job_unknown(job_id)
        self._check(job_id)
        nodes = {} if here else self._ask_others(job_id, dry_run)
        if any(at.reason == PeerUnreachable.reason for at in nodes.values()) and not dry_run:
            raise SomeUnreached(nodes)
        if (busy := [n for n, at in nodes.items() if at.reason == "JOB_NOT_ENDED"]) and not dry_run:
            text = f"{', '.join(busy)} still tidies up after job {job_id}; nothing was deleted here: ask again"
            raise Conflict(text, reason="JOB_NOT_ENDED")
        outcome = {n: at.reason or "deleted" for n, at in nodes.items()}
        items = self._delete_here(job_id, by, dry_run, {"reason": reason, "nodes": outcome})
        return Deleted(job_id, dry_run, items, None if here else nodes)

    def delete_for(
        self,
        job_id: str,
        sender: NodeId,
        dry_run: bool,
    ) -> None:
        """Delete a job here because another node asks; one that is not here is deleted already.

        Of a job that has run here only the outputs go: record, parameters, logs and timeline stay for `retention`.
        Raises `NotAllowed` unless the sender schedules the job or submitted it, `Conflict` as `delete` does.
        """
        record = self._store.record(job_id)
        if record is None or is_outside(record.spec, sender):
            return
        spec = record.spec
        if sender not in (spec.scheduler, spec.initiator, self._node):
            raise NotAllowed(
                f"only {spec.initiator}, which submitted job {job_id}, and {spec.scheduler}, which schedules it, "
                "may have it deleted"
            )
        self._check(job_id)
        local = self._store.local_jobs.find(job_id)
        if sender != self._node and local is not None and local.runs:
            self._delete_outputs(local, sender, dry_run)
        else:
            self._delete_here(job_id, sender, dry_run, {})

    def _delete_outputs(
        self,
        local: LocalJob,
        sender: NodeId,
        dry_run: bool,
    ) -> None:
        """Delete what a job's tasks left here, for a partner; a repeated request leaves no further line."""
        present = self._left.outputs(local)
        repeated = any(line.event == _DELETED_BY_PARTNER for line in self._store.timeline(local.id))
        if dry_run or (repeated and not present):
            return
        for address in present:
            self._left.storage.delete(address)
        self._end_session(local.id)
        detail = {"outputs": [address.dataset_id for address in present]}
        self._store.note(
            local.id, "participant", [Note(self._clock(), _DELETED_BY_PARTNER, sender, detail)]
        )
        self._audit(
            f"node {sender}",
            f"job {local.id} deleted by a partner",
            {**detail, "used": used_by(local)},
        )

    def clean_task(
        self,
        job_id: str,
        task: str,
        content: str,
        *,
        by: str,
        dry_run: bool,
        party: str = "",
    ) -> list[Item]:
        """Delete what a task of an ended job left here: one of `CONTENTS`, of a party (``guest.0``) or of all."""
        local = self._store.local_jobs.get(job_id)
        named = [run for run in local.runs if task in (run.task_name, run.task_id)]
        runs = [run for run in named if party in ("", run.party.label)]
        if not runs:
            raise NotFound(f"job {job_id} has no run of task {task} here", reason="TASK_UNKNOWN")
        self._check_ended(job_id)
        name = runs[0].task_name
        chosen = {
            run.outputs[output]
            for run in runs
            for key, output in run.output_keys.items()
            if group_of(local.spec.dag.type_of(name, key)) in CONTENTS[content]
        }
        present = [a for a in _outputs_of(local) if a in chosen and self._left.storage.exists(a)]
        self._check_unused(job_id, present)
        items = [self._left.item(job_id, a, f"{content} of task {name}") for a in present]
        if dry_run or not items:
            return items
        for address in present:
            self._left.storage.delete(address)
        detail = {
            "task": name,
            "content": content,
            "outputs": [i.name for i in items],
        }
        self._store.note(job_id, "operator", [Note(self._clock(), "outputs deleted", by, detail)])
        return [replace(item, removed=True) for item in items]

    def _check(self, job_id: str) -> None:
        if self._store.record(job_id) is not None:
            self._check_ended(job_id)
            outputs = _outputs_of(self._store.local_jobs.find(job_id))
            self._check_unused(job_id, [a for a in outputs if self._left.storage.exists(a)])

    def _check_ended(self, job_id: str) -> None:
        job = self._store.jobs.find(job_id)
        if job is not None and ended(JOB, job.status) and machine.next_due(job) is not None:
            silent = ", ".join(n.node for n in job.nodes.values() if not n.stop.completed)
            text = f"job {job_id} has ended, but {silent} has not acknowledged it yet: its stop is still repeated"
            raise Conflict(text, reason="JOB_NOT_ENDED")
        if self._left.ended_at(job_id) is None:
            text = f"job {job_id} has not ended here, or is still being tidied up; stop it first"
            raise Conflict(text, reason="JOB_NOT_ENDED")

    def _check_unused(self, job_id: str, present: Sequence[Address]) -> None:
        """Raise `Conflict` where any of all jobs that are still known reads one of these."""
        used = self._left.read_by(
            queries.local_jobs_naming(self._store, {a.namespace for a in present})
        )
        needs: dict[str, list[str]] = {}
        for address in present:
            for who in self._left.needed_by(address, job_id, used):
                needs.setdefault(who, []).append(address.dataset_id)
        if needs:
            listed = [
                f"{who}: {outputs[0]}"
                + (f" and {len(outputs) - 1} more" if len(outputs) > 1 else "")
                for who, outputs in needs.items()
            ]
            more = [f"{len(listed) - _MOST_NAMED} more"] if len(listed) > _MOST_NAMED else []
            text = "; ".join([*listed[:_MOST_NAMED], *more])
            raise Conflict(f"its outputs are needed: {text}. {_FREE_THEM}", reason="OUTPUTS_IN_USE")

    def _ask_others(self, job_id: str, dry_run: bool) -> dict[NodeId, AtNode]:
        record = self._store.record(job_id)
        if record is None:
            known, protocol = [self._store.scheduler_of(job_id) or self._node], "bfia"
        else:
            spec = record.spec
            known, protocol = [*spec.nodes, spec.scheduler, spec.initiator], spec.protocol
        nodes = [node for node in dict.fromkeys(known) if node != self._node]

        def ask(node: NodeId) -> AtNode:
            try:
                self._peers.participant(node, protocol).delete_job(job_id, dry_run, self._node)
            except (PeerUnreachable, Busy) as error:
                return AtNode(False, PeerUnreachable.reason, error.message)
            except GatewayError as error:
                return AtNode(False, error.reason, error.message)
            return AtNode(not dry_run)

        with ThreadPoolExecutor(16, thread_name_prefix="delete") as pool:
            return dict(zip(nodes, pool.map(ask, nodes), strict=True))

    def _delete_here(
        self,
        job_id: str,
        by: str,
        dry_run: bool,
        detail: Mapping[str, Any],
    ) -> list[Item]:
        local = self._store.local_jobs.find(job_id)
        present = self._left.outputs(local)
        items = [self._left.item(job_id, address, "its job is deleted") for address in present]
        folders = [self._left.runs / run.name for run in (local.runs if local else ())]
        items += [
            Item("logs", f.name, job_id, size_of(f), "its job is deleted")
            for f in folders
            if f.is_dir()
        ]
        items.append(Item("job", job_id, job_id, 0, "it is deleted"))
        if dry_run:
            return items
        for address in present:
            self._left.storage.delete(address)
        for folder in folders:
            files.try_to_remove(folder)
        if local is not None:
            self._end_session(job_id)
        left = {
            "outputs": len(present),
            "logs": len(items) - len(present) - 1,
            **detail,
        }
        if local is not None and (uses := used_by(local)):
            left |= {
                "initiator": local.spec.initiator,
                "scheduler": local.spec.scheduler,
                "used": uses,
            }
        queries.drop_job(self._store, job_id, self._clock(), by, left)
        log.info(
            "job deleted",
            job=job_id,
            by=by,
            outputs=left["outputs"],
            logs=left["logs"],
        )
        return [replace(item, removed=True) for item in items]


@contextmanager
def _next_time(job_id: str) -> Iterator[None]:
    """Leave a job whose storage is away or gone to the next cleaning, and go on with the others."""
    try:
        yield
    except StorageFailed as error:
        log.warning("a job is not cleaned up now", job=job_id, cause=error.message)


def _end_of(record: Job | LocalJob) -> datetime | None:
    """Return when a job ended here for good; None while something of it is still to be done."""
    if not ended(JOB, record.status) or record.ended_at is None:
        return None
    if isinstance(record, Job) and machine.next_due(record) is not None:
        return None  # not every node has acknowledged the end
    if isinstance(record, LocalJob) and not (
        record.closed and all(run.over for run in record.runs)
    ):
        return None
    return record.ended_at


def used_by(local: LocalJob) -> list[dict[str, Any]]:
    """Return what a partner's job used here, by task and party: component, tables, when; empty for own jobs.

    Attempts of a task are counted in one entry.
    """
    spec = local.spec
    if is_own(spec, local.node):
        return []
    in_force = rerun.in_force(local).task_params
    uses: dict[tuple[str, str], dict[str, Any]] = {}
    for run in local.runs:
        data = data_location(in_force, run.party, run.task_name)
        use = {
            "task": run.task_name,
            "party": run.party.label,
            "component": f"{run.component.provider}/{run.component.name}",
            "version": run.component.version,
            "tables": [] if spec.dag[run.task_name].inputs else _tables_at(data),
            "at": run.created_at.isoformat(),
            "attempts": 0,
        }
        uses.setdefault((run.task_name, run.party.label), use)["attempts"] += 1
    return list(uses.values())


def _tables_at(location: Mapping[str, str] | None) -> list[str]:
    """Return the dataset ids that a data location names: one, or none."""
    if location is None:
        return []
    return [location.get("dataset_id") or f"{location['namespace']}#{location['name']}"]


def _outputs_of(local: LocalJob | None) -> list[Address]:
    """Return where a job's runs here put what they made."""
    return list(
        dict.fromkeys(a for run in (local.runs if local else ()) for a in run.outputs.values())
    )


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
