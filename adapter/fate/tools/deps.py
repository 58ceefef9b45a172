"""Dependencies of the paths for FATE's own tools, and the view of a job that they share."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request

from adapter.fate.dag.description import PROTOCOL
from adapter.fate.ids import newest
from gateway.data.datasets import Datasets
from gateway.data.logs import RunLogs
from gateway.data.outputs import OutputMetadata, Wanted
from gateway.data.storage import FileStorage
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.domain.states import JOB, ended
from gateway.errors import NotFound
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.retention import Deleting
from gateway.ports import Clock, JobView, Limiters
from gateway.runtime.context import new_trace_id, traced
from gateway.store.store import Store
from provider_registry.registry import Registry

X = TypeVar("X")
NOTED = "notes added"


@dataclass(frozen=True)
class ClientParts:
    """What the paths for FATE's own tools depend on."""

    node: NodeId
    coordinator_node: NodeId
    """which node schedules the jobs submitted here"""
    instance: str
    """this gateway, of several of the node"""
    version: str
    jobs: Coordinator
    store: Store
    registry: Registry
    run_logs: RunLogs
    storage: FileStorage
    datasets: Datasets
    facts_of: Callable[[Wanted], Sequence[OutputMetadata]]
    """returns metadata of outputs, those of other parties too. Raises `NotFound`, `NotAllowed`, `NotServed`"""
    deleting: Deleting
    cancel_waiting: Callable[[bool], Sequence[str]]
    """cancels the jobs scheduled here of which nothing runs; True: dry run"""
    protocols: Mapping[str, str]
    """which protocol runs jobs of each kind"""
    new_job_id: Callable[[Iterable[NodeId]], str]
    """makes a job id that all of these nodes can store"""
    drop_table: Callable[[Address], object]
    """deletes an uploaded table. Raises `NotFound`, and `Conflict` if a job needs it"""
    limiters: Limiters
    clock: Clock


async def on(limiter: CapacityLimiter, work: Callable[[], X]) -> X:
    """Run blocking work on the given threads, under a trace id of its own."""

    def run() -> X:
        with traced(new_trace_id()):
            return work()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


def by(request: Request) -> str:
    """Return the caller, as the operators' listener identified it."""
    return getattr(request.state, "operator", "") or "operator"


def base_of(request: Request) -> str:
    """Return this gateway's address as the caller has it, for links."""
    return str(request.base_url).rstrip("/")


@dataclass(frozen=True)
class Sight:
    """A job as this node knows it."""

    view: JobView
    spec: JobSpec
    """what this node may see of it"""
    local: LocalJob | None
    job: Job | None
    parties: tuple[Party, ...]
    """those that this node plays; all of a job that it has no part in"""
    created_at: datetime
    notes: str = ""
    """what somebody noted about it here"""
    user: str = ""
    """who submitted it here; empty if no token is needed"""
    begun_again: str = ""
    """the newest job that follows it here, if FATE has restarted it"""


def sight(parts: ClientParts, job_id: str, *, ask: bool = True, notes: bool = True) -> Sight:
    """Return what is known of a job. Raises `NotFound`.

    ``ask``: request the state from the scheduling node, if that is another one. ``notes``: include notes.
    """
    local, job = parts.store.local_jobs.find(job_id), parts.store.jobs.find(job_id)
    record = local or job
    if record is None:
        if not ask:
            raise unknown_job(job_id)
        found = parts.jobs.status(job_id)  # submitted here, or the error says why nothing is known
        spec = _submitted_here(parts.node, found)
        return Sight(found, spec, None, None, spec.parties, parts.clock())
    view = parts.jobs.status_here(job_id)
    if view is None:
        view = parts.jobs.status(job_id) if ask or local is None else _last_known(local)
    spec = record.spec.for_node(parts.node) if record.spec.parties_at(parts.node) else record.spec
    lines = parts.store.timeline(job_id) if notes else []
    texts = [e.detail.get("text") for e in lines if e.event == NOTED]
    elsewhere = next((e.detail["user"] for e in lines if e.side == "initiator" and e.detail.get("user")), "")
    return Sight(
        view,
        spec,
        local,
        job,
        spec.parties_at(parts.node) or spec.parties,
        record.created_at,
        str(texts[-1]) if texts else "",
        job.user if job is not None else str(elsewhere),
        _again(parts, local),
    )


def unknown_job(job_id: str) -> NotFound:
    """Return the error for a job without a record here."""
    return NotFound(f"no job {job_id} is scheduled or runs here", reason="JOB_UNKNOWN")


def _again(parts: ClientParts, local: LocalJob | None) -> str:
    if local is None or local.spec.protocol != PROTOCOL or not ended(JOB, local.status):
        return ""
    later = newest(local.id, parts.store.local_jobs.find)
    return later.id if later is not None and later.id != local.id else ""


def _submitted_here(node: NodeId, view: JobView) -> JobSpec:
    roles = dict.fromkeys((role, at) for task in view.tasks for at, own in task.nodes.items() for role in own)
    number: Counter[str] = Counter()
    parties = []
    for label, at in roles:
        role = label.partition(".")[0]
        parties.append(Party(role, number[role], at))
        number[role] += 1
    nodes = tuple(DagNode(task.name, ComponentRef("", "", "")) for task in view.tasks)
    return JobSpec(
        view.job_id, view.flow_id, Dag(nodes), tuple(parties), node, "", view.scheduler, "bfia", "", {}, {}
    )


def _last_known(local: LocalJob) -> JobView:
    spec, ending = local.spec, local.ending
    outcome, failure = (ending.outcome, ending.failure) if ending else (None, None)
    return JobView(local.id, local.status, (), outcome, failure, flow_id=spec.flow_id, scheduler=spec.scheduler)
