"""Deletion of jobs, or of the outputs of one task: here and at every other node of the job.

Each deletion leaves a line in the timeline. A job is deleted as a whole and only once it is over.
Outputs that others need stay, and the refusal names their users.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from engines import files
from gateway.domain import rerun
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.agenda import needs_stop
from gateway.domain.spec import JobSpec, NodeId, Note, data_location, is_outside, is_own
from gateway.domain.states import JOB, ended
from gateway.errors import Busy, Conflict, GatewayError, NotAllowed, NotFound, PeerUnreachable
from gateway.jobs.retention import Item, Leftovers, outputs_of, size_of
from gateway.ports import ParticipantApi
from gateway.runtime.context import NodeContext, Peers
from gateway.store import queries
from gateway.store.records import job_unknown
from provider_registry.model import group_of

log = structlog.get_logger(__name__)

# The contents of a task that can be deleted: name -> the groups of outputs that it covers.
CONTENTS: Mapping[str, tuple[str, ...]] = {
    "outputs": ("data", "model"),
    "metrics": ("metric",),
    "models": ("model",),
}

_SILENT = PeerUnreachable.reason  # reason of the result of a node that was silent or busy
_DELETED_BY_PARTNER = "deleted by a partner"  # event of a timeline
_MAX_NAMED = 20  # users of outputs listed in a refusal; the rest is counted
_NODES_AT_A_TIME = 16  # nodes called in parallel
_REMEDY = (
    "Delete first what refers to them, jobs by `bfia-gateway job delete`, "
    "models by `bfia-gateway model delete` (see `model list`), or keep this job"
)


@dataclass(frozen=True)
class NodeResult:
    """The result of a deletion at one other node."""

    deleted: bool  # always False in a dry run
    # Reason and message of the failure; empty if the node has deleted the job, or would do so.
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Deleted:
    """The result of a deletion, or of its dry run."""

    job_id: str
    dry_run: bool
    items: Sequence[Item] = ()  # of this node
    # Results of the job's other nodes; None if they were not asked.
    nodes: Mapping[NodeId, NodeResult] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON, with the ``bytes`` of all items."""
        return {**asdict(self), "bytes": sum(item.bytes for item in self.items)}


class SomeUnreached(PeerUnreachable):
    """Nodes of the job do not respond; the job stays here, so that its deletion can be repeated."""

    def __init__(self, nodes: Mapping[NodeId, NodeResult]) -> None:
        silent = ", ".join(_nodes_with(nodes, _SILENT))
        super().__init__(
            f"no answer from {silent}; nothing was deleted here: ask again, or delete it only here"
        )
        self.nodes = nodes


class Deleting:
    """Deletes jobs, and outputs of their tasks.

    The record of a partner's use of this node outlasts every deletion. A partner deletes outputs
    only; a deletion by people here leaves a line that names tasks, components and tables.
    """

    def __init__(
        self,
        context: NodeContext,
        leftovers: Leftovers,
        peers: Peers,
        end_session: Callable[[str], None],
        audit: Callable[[str, str, Mapping[str, Any]], None],
    ) -> None:
        """``end_session`` is called with the id of a job whose session of the channel has to end.

        ``audit`` writes deletions by partners into the audit log. It is called with the name of who
        deleted, the text of the event, and details.
        """
        self._audit = audit
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._leftovers = leftovers
        self._storage = leftovers.storage
        self._peers = peers
        self._end_session = end_session

    # ---------------------------------------------------------------- whole jobs

    def delete(
        self,
        job_id: str,
        *,
        by: str,
        reason: str = "",
        only_here: bool = False,
        dry_run: bool = False,
    ) -> Deleted:
        """Delete a job at all its nodes, at this one last; with ``only_here`` only at this one.

        A repeated deletion goes on where the last one ended. Raises `NotFound`, `Conflict`
        (JOB_NOT_ENDED, OUTPUTS_IN_USE) before anything is deleted here, and `SomeUnreached`. A node
        that cannot delete jobs, or refuses for good, is named in the result.
        """
        if not queries.is_known(self._store, job_id):
            raise job_unknown(job_id)
        self._check_deletable(job_id)
        nodes: dict[NodeId, NodeResult] = {}
        if not only_here:
            nodes = self._delete_elsewhere(job_id, dry_run)
        if not dry_run:
            _check_none_pending(job_id, nodes)
        # For the timeline. In a dry run this says "deleted" of nodes that have deleted nothing, but
        # a dry run adds no line to the timeline.
        results = {node: result.reason or "deleted" for node, result in nodes.items()}
        items = self._delete_here(
            job_id,
            by,
            dry_run,
            detail={"reason": reason, "nodes": results},
        )
        if only_here:
            return Deleted(job_id, dry_run, items)
        return Deleted(job_id, dry_run, items, nodes)

    def delete_for(
        self,
        job_id: str,
        sender: NodeId,
        dry_run: bool,
    ) -> None:
        """Delete a job here on behalf of another node; a job that is not here counts as deleted.

        If the other node is a partner and the job has run here, only the outputs are deleted:
        record, parameters, logs and timeline stay for the time set by ``retention``. Raises
        `NotAllowed` unless the sender schedules or submitted the job, and `Conflict` as `delete`
        does.
        """
        record = self._store.record(job_id)
        if record is None or is_outside(record.spec, sender):
            return  # a node without a part in the job does not learn whether it exists
        self._check_may_delete(record.spec, sender)
        self._check_deletable(job_id)
        local = self._store.local_jobs.find(job_id)
        if sender != self._node and local is not None and local.runs:
            self._delete_outputs(local, sender, dry_run)
        else:
            self._delete_here(job_id, sender, dry_run, detail={})

    def _delete_outputs(
        self,
        local: LocalJob,
        sender: NodeId,
        dry_run: bool,
    ) -> None:
        """Delete a job's outputs here for a partner, and end the job's session of the channel.

        A repeated request without anything to delete leaves no further line in the timeline.
        """
        outputs = self._leftovers.outputs(local)
        if dry_run or (not outputs and self._was_deleted_by_partner(local.id)):
            return
        for address in outputs:
            self._storage.delete(address)
        self._end_session(local.id)
        detail = {"outputs": [address.dataset_id for address in outputs]}
        note = Note(self._clock(), _DELETED_BY_PARTNER, sender, detail)
        self._store.note(local.id, "participant", [note])
        self._audit(
            f"node {sender}",
            f"job {local.id} deleted by a partner",
            {**detail, "used": used_by(local)},
        )

    def _was_deleted_by_partner(self, job_id: str) -> bool:
        """Return whether a partner has deleted the job's outputs before."""
        return any(entry.event == _DELETED_BY_PARTNER for entry in self._store.timeline(job_id))

    def _delete_elsewhere(
        self,
        job_id: str,
        dry_run: bool,
    ) -> dict[NodeId, NodeResult]:
        """Have the job's other nodes delete it; return their results."""

        def delete(participant: ParticipantApi) -> None:
            participant.delete_job(job_id, dry_run, self._node)

        return self._ask_elsewhere(job_id, dry_run, delete)

    def _ask_elsewhere(
        self,
        job_id: str,
        dry_run: bool,
        request: Callable[[ParticipantApi], None],
    ) -> dict[NodeId, NodeResult]:
        """Send the request for a deletion to the job's other nodes in parallel; return results."""
        nodes, protocol = self._other_nodes(job_id)

        def delete_at(node: NodeId) -> NodeResult:
            try:
                request(self._peers.participant(node, protocol))
            except (PeerUnreachable, Busy) as error:
                return NodeResult(deleted=False, reason=_SILENT, message=error.message)
            except GatewayError as error:
                return NodeResult(deleted=False, reason=error.reason, message=error.message)
            return NodeResult(deleted=not dry_run)

        with ThreadPoolExecutor(_NODES_AT_A_TIME, thread_name_prefix="delete") as pool:
            return dict(zip(nodes, pool.map(delete_at, nodes), strict=True))

    def _other_nodes(
        self,
        job_id: str,
    ) -> tuple[list[NodeId], str]:
        """Return the other nodes of a job, each once, and the protocol to call them by.

        Without a record of the job only its scheduling node is known.
        """
        record = self._store.record(job_id)
        if record is None:
            # Without a known scheduling node no node is called: this node is left out below.
            involved = [self._store.scheduler_of(job_id) or self._node]
            protocol = "bfia"
        else:
            spec = record.spec
            involved = [*spec.nodes, spec.scheduler, spec.initiator]
            protocol = spec.protocol
        nodes = [node for node in dict.fromkeys(involved) if node != self._node]
        return nodes, protocol

    def _delete_here(
        self,
        job_id: str,
        by: str,
        dry_run: bool,
        detail: Mapping[str, Any],
    ) -> list[Item]:
        """Delete outputs, logs and records of a job here; return the items.

        ``detail`` is added to the line that stays in the timeline. A dry run deletes nothing.
        """
        local = self._store.local_jobs.find(job_id)
        outputs = self._leftovers.outputs(local)
        log_folders = self._log_folders(local)
        items = self._items(job_id, outputs, log_folders)
        if dry_run:
            return items
        for address in outputs:
            self._storage.delete(address)
        for folder in log_folders:
            files.try_to_remove(folder)
        if local is not None:
            self._end_session(job_id)
        logs = sum(item.kind == "logs" for item in items)
        line = {"outputs": len(outputs), "logs": logs, **detail, **_use_by_partner(local)}
        queries.drop_job(
            self._store,
            job_id,
            self._clock(),
            by,
            line,
        )
        log.info(
            "job deleted",
            job=job_id,
            by=by,
            outputs=len(outputs),
            logs=logs,
        )
        return [replace(item, removed=True) for item in items]

    def _log_folders(self, local: LocalJob | None) -> list[Path]:
        """Return the folders with the logs of a job's runs, whether they exist or not."""
        if local is None:
            return []
        return [self._leftovers.runs / run.name for run in local.runs]

    def _items(
        self, job_id: str, outputs: Sequence[Address], log_folders: Sequence[Path]
    ) -> list[Item]:
        """Return the outputs and logs of a job, and the job itself, as items of a deletion."""
        why = "its job is deleted"
        items = [self._leftovers.item(job_id, address, why) for address in outputs]
        for folder in log_folders:
            if folder.is_dir():
                items.append(Item("logs", folder.name, job_id, bytes=size_of(folder), why=why))
        items.append(Item("job", job_id, job_id, bytes=0, why="it is deleted"))
        return items

    # ---------------------------------------------------------------- outputs of one task

    def clean_task(
        self,
        job_id: str,
        task: str,
        content: str,
        *,
        by: str,
        dry_run: bool,
        party: str = "",
        role: str = "operator",
    ) -> list[Item]:
        """Delete outputs of a task of an ended job here.

        ``task`` is the task's name or id, ``content`` a key of `CONTENTS`, and ``party`` a label
        such as ``guest.0``, empty for all parties. ``role``: that of ``by`` in the timeline.
        Returns the outputs as items. Raises `NotFound` (TASK_UNKNOWN), and `Conflict` as `delete`
        does.
        """
        local = self._store.local_jobs.get(job_id)
        runs = _runs_of_task(local, task, party)
        if not runs:
            raise NotFound(f"job {job_id} has no run of task {task} here", reason="TASK_UNKNOWN")
        self._check_ended(job_id)
        task_name = runs[0].task_name
        selected = _outputs_with(local, runs, CONTENTS[content])
        # `outputs_of` has an order, which the set does not have.
        outputs = self._existing([address for address in outputs_of(local) if address in selected])
        self._check_unused(job_id, outputs)
        why = f"{content} of task {task_name}"
        items = [self._leftovers.item(job_id, address, why) for address in outputs]
        if dry_run or not items:
            return items
        for address in outputs:
            self._storage.delete(address)
        detail = {
            "task": task_name,
            "content": content,
            "outputs": [item.name for item in items],
        }
        self._store.note(
            job_id,
            role,
            [Note(self._clock(), "outputs deleted", by, detail)],
        )
        return [replace(item, removed=True) for item in items]

    def clean_task_everywhere(
        self,
        job_id: str,
        task: str,
        content: str,
        *,
        by: str,
        dry_run: bool,
    ) -> Deleted:
        """Delete outputs of a task of an ended job at all its nodes, at this one last.

        The arguments are those of `clean_task`. A node without a run of the task has nothing to
        delete. Raises `NotFound` (JOB_UNKNOWN, TASK_UNKNOWN), and otherwise as `delete` does.
        """
        record = self._store.record(job_id)
        if record is None:
            raise job_unknown(job_id)
        task_name = self._task_name(record.spec, task)
        self._check_ended(job_id)

        def clean(participant: ParticipantApi) -> None:
            participant.clean_task(job_id, task_name, content, dry_run, self._node)

        # A refusal here has to come before another node deletes anything.
        items = self._clean_runs_here(job_id, task_name, content, by, dry_run=True)
        nodes = self._ask_elsewhere(job_id, dry_run, clean)
        if not dry_run:
            _check_none_pending(job_id, nodes)
            items = self._clean_runs_here(job_id, task_name, content, by, dry_run=False)
        return Deleted(job_id, dry_run, items, nodes)

    def _clean_runs_here(
        self,
        job_id: str,
        task_name: str,
        content: str,
        by: str,
        *,
        dry_run: bool,
    ) -> list[Item]:
        """Delete outputs of a task's runs here as `clean_task` does; empty if it has none here."""
        if not self._has_runs(job_id, task_name):
            return []
        return self.clean_task(job_id, task_name, content, by=by, dry_run=dry_run)

    def clean_task_for(
        self,
        job_id: str,
        task_name: str,
        content: str,
        sender: NodeId,
        dry_run: bool,
    ) -> None:
        """Delete outputs of a task here on behalf of another node.

        A job or a task that is not here has nothing to delete. Raises `NotAllowed` and `Conflict`
        as `delete_for` does.
        """
        record = self._store.record(job_id)
        if record is None or is_outside(record.spec, sender):
            return  # a node without a part in the job does not learn whether it exists
        self._check_may_delete(record.spec, sender)
        if not self._has_runs(job_id, task_name):
            return
        items = self.clean_task(
            job_id, task_name, content, by=sender, dry_run=dry_run, role="participant"
        )
        if items and not dry_run:
            self._audit(
                f"node {sender}",
                f"outputs of job {job_id} deleted by a partner",
                {"task": task_name, "outputs": [item.name for item in items]},
            )

    def _task_name(self, spec: JobSpec, task: str) -> str:
        """Return the name of a task, which may be named by its id.

        Raises `NotFound` (TASK_UNKNOWN).
        """
        if spec.dag.get(task) is not None:
            return task
        local = self._store.local_jobs.find(spec.job_id)
        runs: Sequence[Run] = ()
        if local is not None:
            runs = local.runs_of(task)
        if runs:
            return runs[0].task_name
        raise NotFound(f"job {spec.job_id} has no task {task}", reason="TASK_UNKNOWN")

    def _has_runs(self, job_id: str, task_name: str) -> bool:
        """Return whether a task of a job has run here."""
        local = self._store.local_jobs.find(job_id)
        return local is not None and bool(_runs_of_task(local, task_name, party=""))

    # ---------------------------------------------------------------- checks

    def _check_may_delete(self, spec: JobSpec, sender: NodeId) -> None:
        """Raise `NotAllowed` unless a node submitted or schedules the job, or is this one."""
        if sender not in (spec.scheduler, spec.initiator, self._node):
            raise NotAllowed(
                f"only {spec.initiator}, which submitted job {spec.job_id}, "
                f"and {spec.scheduler}, which schedules it, may have it deleted"
            )

    def _check_deletable(self, job_id: str) -> None:
        """Raise `Conflict` for a job that has not ended, or whose outputs are needed.

        A job without a record here has nothing to check.
        """
        if self._store.record(job_id) is None:
            return
        self._check_ended(job_id)
        outputs = outputs_of(self._store.local_jobs.find(job_id))
        self._check_unused(job_id, self._existing(outputs))

    def _check_ended(self, job_id: str) -> None:
        """Raise `Conflict` (JOB_NOT_ENDED) while the job has something left to do at this node.

        If that is the repetition of stops, the message names the nodes that have not acknowledged
        theirs.
        """
        job = self._store.jobs.find(job_id)
        if job is not None and ended(JOB, job.status) and machine.next_due(job) is not None:
            silent = ", ".join(
                node_job.node
                for node_job in job.nodes.values()
                if needs_stop(node_job) and not node_job.stop.completed
            )
            text = (
                f"job {job_id} has ended, but {silent} has not acknowledged it yet: "
                "its stop is still repeated"
            )
            raise Conflict(text, reason="JOB_NOT_ENDED")
        if self._leftovers.ended_at(job_id) is None:
            text = f"job {job_id} has not ended here, or is still being tidied up; stop it first"
            raise Conflict(text, reason="JOB_NOT_ENDED")

    def _check_unused(
        self,
        job_id: str,
        outputs: Sequence[Address],
    ) -> None:
        """Raise `Conflict` (OUTPUTS_IN_USE) if one of these outputs has users.

        Users are other jobs on record that read the output, and those that `Leftovers.keepers`
        name, such as a model with the output as a part.
        """
        namespaces = {address.namespace for address in outputs}
        readers = self._leftovers.read_by(queries.local_jobs_naming(self._store, namespaces))
        outputs_by_user: dict[str, list[str]] = {}
        for address in outputs:
            for user in self._leftovers.needed_by(address, job_id, readers):
                outputs_by_user.setdefault(user, []).append(address.dataset_id)
        if not outputs_by_user:
            return
        lines = [_use_text(user, names) for user, names in outputs_by_user.items()]
        hidden = len(lines) - _MAX_NAMED
        if hidden > 0:
            lines = [*lines[:_MAX_NAMED], f"{hidden} more"]
        text = "; ".join(lines)
        raise Conflict(f"its outputs are needed: {text}. {_REMEDY}", reason="OUTPUTS_IN_USE")

    def _existing(self, outputs: Sequence[Address]) -> list[Address]:
        """Return the outputs that exist in the storage."""
        return [address for address in outputs if self._storage.exists(address)]


def _check_none_pending(
    job_id: str,
    nodes: Mapping[NodeId, NodeResult],
) -> None:
    """Raise if a node was silent or busy, or has not finished the job.

    The deletion has to be repeated then.
    """
    if _nodes_with(nodes, _SILENT):
        raise SomeUnreached(nodes)
    unfinished = _nodes_with(nodes, "JOB_NOT_ENDED")
    if unfinished:
        text = (
            f"{', '.join(unfinished)} still tidies up after job {job_id}; "
            "nothing was deleted here: ask again"
        )
        raise Conflict(text, reason="JOB_NOT_ENDED")


def _nodes_with(
    nodes: Mapping[NodeId, NodeResult],
    reason: str,
) -> list[NodeId]:
    """Return the nodes whose result has this reason."""
    return [node for node, result in nodes.items() if result.reason == reason]


def _use_text(user: str, outputs: Sequence[str]) -> str:
    """Return a user of outputs with the first of them, and the number of the others."""
    if len(outputs) == 1:
        return f"{user}: {outputs[0]}"
    return f"{user}: {outputs[0]} and {len(outputs) - 1} more"


def _runs_of_task(
    local: LocalJob,
    task: str,
    party: str,
) -> list[Run]:
    """Return the runs of a task, by its name or id; ``party`` is a label, empty for all parties."""
    runs = []
    for run in local.runs:
        if task in (run.task_name, run.task_id) and party in ("", run.party.label):
            runs.append(run)
    return runs


def _outputs_with(
    local: LocalJob,
    runs: Sequence[Run],
    groups: Sequence[str],
) -> set[Address]:
    """Return the outputs of runs whose type belongs to one of the groups (data, model, metric)."""
    addresses = set()
    for run in runs:
        for key, address in run.data.outputs_by_key().items():
            if group_of(local.spec.dag.type_of(run.task_name, key)) in groups:
                addresses.add(address)
    return addresses


def _use_by_partner(local: LocalJob | None) -> dict[str, Any]:
    """Return the use of this node by a partner's job for the line that outlasts the job.

    Empty for a job of this node's own, or without runs here.
    """
    if local is None:
        return {}
    uses = used_by(local)
    if not uses:
        return {}
    return {
        "initiator": local.spec.initiator,
        "scheduler": local.spec.scheduler,
        "used": uses,
    }


def used_by(local: LocalJob) -> list[dict[str, Any]]:
    """Return the use of this node by a partner's job, an entry for each task and party that ran.

    Each entry has the task, the party, the component and its version, the tables, the time of the
    first attempt, and the number of attempts. Empty for a job of this node's own.
    """
    if is_own(local.spec, local.node):
        return []
    task_params = rerun.in_force(local).task_params
    uses: dict[tuple[str, str], dict[str, Any]] = {}
    for run in local.runs:
        key = (run.task_name, run.party.label)
        if key not in uses:
            uses[key] = _use_of(local, run, task_params)
        uses[key]["attempts"] += 1
    return list(uses.values())


def _use_of(
    local: LocalJob,
    run: Run,
    task_params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the entry of `used_by` for a run's task at its party, with no attempt counted yet.

    ``run`` is the first attempt.
    """
    tables: list[str] = []
    if not local.spec.dag[run.task_name].inputs:  # a task with inputs reads no table, but outputs
        tables = _tables_at(data_location(task_params, run.party, run.task_name))
    component = run.software.component
    return {
        "task": run.task_name,
        "party": run.party.label,
        "component": f"{component.provider}/{component.name}",
        "version": component.version,
        "tables": tables,
        "at": run.created_at.isoformat(),
        "attempts": 0,
    }


def _tables_at(location: Mapping[str, str] | None) -> list[str]:
    """Return the dataset ids that a data location names: one, or none."""
    if location is None:
        return []
    return [location.get("dataset_id") or f"{location['namespace']}#{location['name']}"]
