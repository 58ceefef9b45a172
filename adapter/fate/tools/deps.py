"""What the paths for FATE's own tools work with, and how their work is done."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request

from adapter.fate.dag.description import PROTOCOL
from adapter.fate.reruns import newest
from gateway.data.datasets import Datasets
from gateway.data.logs import RunLogs
from gateway.data.outputs import Facts, Wanted
from gateway.data.storage import FileStorage
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.job import Job
from gateway.domain.rerun import RerunAnswer
from gateway.domain.run import Address, LocalJob
from gateway.domain.spec import JobSpec, NodeId, Note, Party
from gateway.domain.states import JOB, ended
from gateway.errors import NotFound
from gateway.ports import Clock, JobView, Limiters, OwnJobs
from gateway.runtime.context import new_trace_id, traced
from provider_registry.registry import Registry

X = TypeVar("X")
R_co = TypeVar("R_co", covariant=True)


class Listed(Protocol):
    """A job as the records list it."""

    @property
    def job_id(self) -> str:
        """The id that this node knows the job by."""

    @property
    def created_at(self) -> datetime:
        """When this node got to know of it."""


class Records(Protocol[R_co]):
    """One of a node's two kinds of records of jobs."""

    def find(self, job_id: str) -> R_co | None:
        """Return the record of a job; None: there is none."""

    def list(self, flow_id: str | None = None, limit: int | None = None) -> Sequence[Listed]:
        """Return the jobs, newest first."""


class Entry(Protocol):
    """A line of a job's timeline."""

    @property
    def at(self) -> datetime:
        """When it happened."""

    @property
    def side(self) -> str:
        """Whose line it is: ``scheduler``, ``participant`` or ``initiator``."""

    @property
    def event(self) -> str:
        """What happened."""

    @property
    def by(self) -> str:
        """Who brought it about; a node, a person, or this gateway itself."""

    @property
    def detail(self) -> Mapping[str, Any]:
        """What more is to be said, by name."""


class Kept(Protocol):
    """The part of the store that is asked: jobs scheduled here, jobs taken part in, and their timelines."""

    @property
    def jobs(self) -> Records[Job]:
        """The jobs that this node schedules."""

    @property
    def local_jobs(self) -> Records[LocalJob]:
        """The jobs that this node takes part in."""

    def timeline(self, job_id: str) -> Sequence[Entry]:
        """Return what happened to a job, oldest first."""

    def note(self, job_id: str, side: str, notes: Sequence[Note]) -> None:
        """Add lines to the timeline of a job."""


class FlowJobs(OwnJobs, Protocol):
    """What FATE's tools ask of jobs beyond this node's own platform."""

    def rerun(self, job_id: str, start: str, parameters: Mapping[str, Any]) -> RerunAnswer:
        """Run an ended job again as a new one; ``start`` empty: from the first task that has not succeeded."""


class Item(Protocol):
    """A thing that was, or would be, taken away."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""


class Deletion(Protocol):
    """What the deletion of a job took away, here and at other nodes."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""


class Tidy(Protocol):
    """Takes away what jobs left; see `gateway.jobs.deletion`."""

    def delete(
        self, job_id: str, *, by: str, reason: str = "", here: bool = False, dry_run: bool = False
    ) -> Deletion:
        """Delete an ended job; ``here``: at this node only, ``dry_run``: only tell what would go."""

    def clean_task(
        self, job_id: str, task: str, content: str, *, by: str, dry_run: bool, party: str = ""
    ) -> Sequence[Item]:
        """Delete what a task left, of the kind that ``content`` names; ``party``: of that party only."""


@dataclass(frozen=True)
class ClientParts:
    """What the paths for FATE's own tools are built of."""

    node: NodeId
    coordinator_node: NodeId
    """which node schedules the jobs handed in here"""
    instance: str
    """this gateway, of several of the node"""
    version: str
    jobs: FlowJobs
    kept: Kept
    registry: Registry
    run_logs: RunLogs
    storage: FileStorage
    datasets: Datasets
    facts_of: Callable[[Wanted], Sequence[Facts]]
    """tells what outputs are like, those of other parties too. Raises `NotFound`, `NotAllowed`, `NotServed`"""
    tidy: Tidy
    cancel_waiting: Callable[[bool], Sequence[str]]
    """stops the jobs scheduled here of which nothing runs; with True it only says which"""
    protocols: Mapping[str, str]
    """which protocol runs jobs of each kind"""
    new_job_id: Callable[[Iterable[NodeId]], str]
    """makes an id that all of these nodes can keep"""
    drop_table: Callable[[Address], object]
    """deletes an uploaded table. Raises `NotFound`, and where a job needs it `Conflict`"""
    limiters: Limiters
    clock: Clock


async def on(limiter: CapacityLimiter, work: Callable[[], X]) -> X:
    """Run blocking work on the given threads, under a trace id of its own."""

    def run() -> X:
        with traced(new_trace_id()):
            return work()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


def by(request: Request) -> str:
    """Return who asks, as the operators' listener knows it."""
    return getattr(request.state, "operator", "") or "operator"


def base_of(request: Request) -> str:
    """Return this gateway's address as the asker has it, for links."""
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
    """what somebody wrote down about it here"""
    user: str = ""
    """who handed it in here; empty where no token is needed"""
    begun_again: str = ""
    """the newest of the jobs that follow on it here, where FATE has begun it again"""


def sight(parts: ClientParts, job_id: str, *, ask: bool = True, notes: bool = True) -> Sight:
    """Return what is known of a job. Raises `NotFound`.

    ``ask``: have the node that schedules it tell, where that is another one; else what this node was told.
    ``notes``: look for what somebody wrote down about it.
    """
    local, job = parts.kept.local_jobs.find(job_id), parts.kept.jobs.find(job_id)
    record = local or job
    if record is None:
        if not ask:
            raise NotFound(f"no job {job_id} is scheduled or runs here", reason="JOB_UNKNOWN")
        told = parts.jobs.status(job_id)  # handed in here, or it says why nothing is known
        spec = _handed_in(parts.node, told)
        return Sight(told, spec, None, None, spec.parties, parts.clock())
    view = parts.jobs.status_here(job_id)
    if view is None:
        view = parts.jobs.status(job_id) if ask or local is None else _as_told(local)
    spec = record.spec.for_node(parts.node) if record.spec.parties_at(parts.node) else record.spec
    lines = parts.kept.timeline(job_id) if notes else []
    said = [e.detail.get("text") for e in lines if e.event == NOTED]
    elsewhere = next((e.detail["user"] for e in lines if e.side == "initiator" and e.detail.get("user")), "")
    return Sight(
        view,
        spec,
        local,
        job,
        spec.parties_at(parts.node) or spec.parties,
        record.created_at,
        str(said[-1]) if said else "",
        job.user if job is not None else str(elsewhere),
        _again(parts, local),
    )


NOTED = "notes added"


def _again(parts: ClientParts, local: LocalJob | None) -> str:
    if local is None or local.spec.protocol != PROTOCOL or not ended(JOB, local.status):
        return ""
    later = newest(local.id, parts.kept.local_jobs.find)
    return later.id if later is not None and later.id != local.id else ""


def _handed_in(node: NodeId, view: JobView) -> JobSpec:
    """Return what can be told of a job that was handed in here for other nodes to run."""
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


def _as_told(local: LocalJob) -> JobView:
    ending = local.ending
    return JobView(
        local.id,
        local.status,
        (),
        ending.outcome if ending else None,
        ending.failure if ending else None,
        flow_id=local.spec.flow_id,
        scheduler=local.spec.scheduler,
    )
