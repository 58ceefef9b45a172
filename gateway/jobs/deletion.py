"""Deletes a job, here and at every other node, or outputs of one task; each leaves a line in the timeline.

A job is deleted only when nothing of it is still to be done. What others refer to is not deleted: the job is then
kept as a whole, and the refusal names who needs what.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from engines.files import try_to_remove
from gateway.data.storage import FileStorage
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob
from gateway.domain.scheduling import machine
from gateway.domain.spec import NodeId
from gateway.domain.states import JOB, ended
from gateway.errors import Busy, Conflict, GatewayError, NotAllowed, NotFound, PeerUnreachable
from gateway.jobs.retention import Item, Outputs, ended_at, outputs_of, present_of, size_of, text_of
from gateway.runtime.context import NodeContext, Peers
from gateway.store import queries
from provider_registry.model import group_of

log = structlog.get_logger(__name__)

CONTENTS: Mapping[str, tuple[str, ...]] = {
    "outputs": ("data", "model"),
    "metrics": ("metric",),
    "models": ("model",),
}
"""what of a task can be deleted: tables and models, reports, or models alone"""

_MOST_NAMED = 20
_FREE_THEM = (
    "Delete first what refers to them, a job by `bfia-gateway job delete JOB`, a model by "
    "`bfia-gateway model delete MODEL VERSION` (see `job show JOB`, `model list`), or leave this job as it is"
)


@dataclass(frozen=True)
class AtNode:
    """How a deletion ended at one node."""

    deleted: bool
    reason: str = ""
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


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
        return {
            **asdict(self),
            "bytes": sum(item.bytes for item in self.items),
        }


class SomeUnreached(PeerUnreachable):
    """Nodes of the job do not answer; the job is kept here, so that it can be asked again."""

    def __init__(self, nodes: Mapping[NodeId, AtNode]) -> None:
        silent = ", ".join(n for n, at in nodes.items() if at.reason == PeerUnreachable.reason)
        super().__init__(f"no answer from {silent}; nothing was deleted here: ask again, or delete it only here")
        self.nodes = nodes


class Deleting:
    """The use case of deleting."""

    def __init__(
        self,
        context: NodeContext,
        storage: FileStorage,
        runs: Path,
        outputs: Outputs,
        peers: Peers,
        end_session: Callable[[str], None],
    ) -> None:
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._storage = storage
        self._runs = runs
        self._outputs = outputs
        self._peers = peers
        self._end_session = end_session

    def delete(
        self, job_id: str, *, by: str, reason: str = "", here: bool = False, dry_run: bool = False
    ) -> Deleted:
        """Delete a job at every node of it, last here; with ``here`` only here. Repeated, it goes on.

        Raises `NotFound`, `Conflict` (JOB_NOT_ENDED, OUTPUTS_IN_USE) before anything is deleted anywhere, and
        `SomeUnreached`. A node that has no such path, or refuses, is named in the result and holds up nobody else.
        """
        self._check(job_id)
        others = [] if here else self._others(job_id)
        nodes = self._ask(job_id, others, dry_run) if others else {}
        if any(at.reason == PeerUnreachable.reason for at in nodes.values()) and not dry_run:
            raise SomeUnreached(nodes)
        outcome = {n: at.reason or "deleted" for n, at in nodes.items()}
        items = self._delete_here(job_id, by, dry_run, {"reason": reason, "nodes": outcome})
        return Deleted(job_id, dry_run, items, None if here else nodes)

    def delete_for(self, job_id: str, sender: NodeId, dry_run: bool) -> None:
        """Delete a job here because another node asks; one that is not here is deleted already.

        Raises `NotAllowed` unless the sender schedules the job or submitted it, `Conflict` as `delete` does.
        """
        record = self._store.jobs.find(job_id) or self._store.local_jobs.find(job_id)
        if record is None:
            return
        if sender not in (record.spec.scheduler, record.spec.initiator, self._node):
            raise NotAllowed(
                f"only {record.spec.initiator}, which submitted job {job_id}, and {record.spec.scheduler}, which "
                "schedules it, may have it deleted"
            )
        self._check(job_id)
        self._delete_here(job_id, sender, dry_run, {})

    def clean_task(
        self, job_id: str, task: str, content: str, *, by: str, dry_run: bool, party: str = ""
    ) -> list[Item]:
        """Delete what a task of an ended job left here: one of `CONTENTS`, of one party (``guest.0``) or of all.

        Raises as `delete` does.
        """
        local = self._store.local_jobs.get(job_id)
        named = [run for run in local.runs if task in (run.task_name, run.task_id)]
        runs = [run for run in named if party in ("", run.party.label)]
        if not runs:
            raise NotFound(f"job {job_id} has no run of task {task} here", reason="TASK_UNKNOWN")
        self._check_ended(job_id)
        node = local.spec.dag.get(runs[0].task_name)
        types = {o.key: o.type for o in node.outputs} if node else {}
        chosen = {
            run.outputs[name]
            for run in runs
            for key, name in run.output_keys.items()
            if group_of(types.get(key, "")) in CONTENTS[content]
        }
        present = [a for a in outputs_of(local) if a in chosen and self._storage.exists(a)]
        self._check_unused(job_id, present)
        items = [self._outputs.item(job_id, a, f"{content} of task {runs[0].task_name}") for a in present]
        if dry_run or not items:
            return items
        for address in present:
            self._storage.delete(address)
        detail = {"task": runs[0].task_name, "content": content, "outputs": [i.name for i in items]}
        now = self._clock()
        queries.write_line(self._store, job_id, "operator", now, "outputs deleted", by, detail)
        return [replace(item, removed=True) for item in items]

    # ------------------------------------------------------------ what may be deleted

    def _check(self, job_id: str) -> None:
        if not queries.is_known(self._store, job_id):
            raise NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")
        job, local = self._store.jobs.find(job_id), self._store.local_jobs.find(job_id)
        if job is None and local is None:
            return
        self._check_ended(job_id)
        self._check_unused(job_id, outputs_of(local))

    def _check_ended(self, job_id: str) -> None:
        job = self._store.jobs.find(job_id)
        if job is not None and ended(JOB, job.status) and machine.next_due(job) is not None:
            silent = ", ".join(n.node for n in job.nodes.values() if not n.stop.completed)
            text = f"job {job_id} has ended, but {silent} has not acknowledged it yet: its stop is still repeated"
            raise Conflict(text, reason="JOB_NOT_ENDED")
        if ended_at(self._store, job_id) is None:
            text = f"job {job_id} has not ended here, or is still being tidied up; stop it first"
            raise Conflict(text, reason="JOB_NOT_ENDED")

    def _check_unused(self, job_id: str, addresses: Sequence[Address]) -> None:
        present = [a for a in addresses if self._storage.exists(a)]
        used = self._outputs.used_ever(present)
        needs: dict[str, list[str]] = {}
        for address in present:
            for who in self._outputs.needed_by(address, job_id, used):
                needs.setdefault(who, []).append(text_of(address))
        if needs:
            listed = [f"{who}: {_some(outputs)}" for who, outputs in needs.items()]
            text = "; ".join(
                [*listed[:_MOST_NAMED], *([f"{len(listed) - _MOST_NAMED} more"] * (len(listed) > _MOST_NAMED))]
            )
            raise Conflict(f"its outputs are needed: {text}. {_FREE_THEM}", reason="OUTPUTS_IN_USE")

    # ------------------------------------------------------------ elsewhere

    def _others(self, job_id: str) -> list[NodeId]:
        record: Job | LocalJob | None = self._store.jobs.find(job_id) or self._store.local_jobs.find(job_id)
        if record is None:
            scheduler = self._store.scheduler_of(job_id)
            return [scheduler] if scheduler and scheduler != self._node else []
        known = (*record.spec.nodes, record.spec.scheduler, record.spec.initiator)
        return [n for n in dict.fromkeys(known) if n != self._node]

    def _ask(self, job_id: str, nodes: Sequence[NodeId], dry_run: bool) -> dict[NodeId, AtNode]:
        record = self._store.jobs.find(job_id) or self._store.local_jobs.find(job_id)
        protocol = record.spec.protocol if record else "bfia"

        def ask(node: NodeId) -> AtNode:
            try:
                self._peers.participant(node, protocol).delete_job(job_id, dry_run, self._node)
            except (PeerUnreachable, Busy) as error:
                return AtNode(False, PeerUnreachable.reason, error.message)
            except GatewayError as error:
                return AtNode(False, error.reason, error.message)
            return AtNode(not dry_run)

        with ThreadPoolExecutor(min(16, len(nodes)), thread_name_prefix="delete") as pool:
            return dict(zip(nodes, pool.map(ask, nodes), strict=True))

    # ------------------------------------------------------------ here

    def _delete_here(self, job_id: str, by: str, dry_run: bool, detail: Mapping[str, Any]) -> list[Item]:
        local = self._store.local_jobs.find(job_id)
        present = present_of(local, self._storage)
        items = [self._outputs.item(job_id, address, "its job is deleted") for address in present]
        folders = [self._runs / run.name for run in (local.runs if local else ())]
        items += [Item("logs", f.name, job_id, size_of(f), "its job is deleted") for f in folders if f.is_dir()]
        items.append(Item("job", job_id, job_id, 0, "it is deleted"))
        if dry_run:
            return items
        for address in present:
            self._storage.delete(address)
        for folder in folders:
            try_to_remove(folder)
        if local is not None:
            self._end_session(job_id)
        left = {"outputs": len(present), "logs": len(items) - len(present) - 1, **detail}
        queries.drop_job(self._store, job_id, self._clock(), by, left)
        log.info("job deleted", job=job_id, by=by, **{k: v for k, v in left.items() if k != "nodes"})
        return [replace(item, removed=True) for item in items]


def _some(outputs: Sequence[str]) -> str:
    return outputs[0] if len(outputs) == 1 else f"{outputs[0]} and {len(outputs) - 1} more"
