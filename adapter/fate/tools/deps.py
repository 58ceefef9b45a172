"""What the paths for FATE's own tools work with, and how their work is done."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request
from fastapi.openapi.models import Example
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from adapter.fate.dag.description import PROTOCOL
from adapter.fate.dag.wire import Wire
from adapter.fate.envelope import Told
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


# What the paths of FATE's tools answer in ``data``, for the interface description; a refusal is `Told`.
#
# FATE-Flow documents each answer by an example only. The fields that its tools read are named here; others may
# stand beside them.

JobId = Annotated[str, Field(examples=["job-0123456789abcdef0123456789abcdef"])]
PartyId = Annotated[str, Field(examples=["JG0100001100000010"])]
Role = Annotated[str, Field(examples=["guest"])]
Millis = Annotated[int | None, Field(description="milliseconds since 1970", examples=[1763798400000])]


class _Shown(BaseModel):
    model_config = ConfigDict(extra="allow", defer_build=True)


class Site(_Shown):
    """``site/info/query``: which party this node is."""

    party_id: PartyId


class Server(_Shown):
    """``server/fateflow``: where this gateway is, and its version."""

    instance_id: str
    host: str | None
    http_port: int | None
    version: str
    timestamp: Millis


class Submitted(_Shown):
    """``job/submit``: the version of a model that the job trains, or predicts with."""

    model_id: str | None = None
    model_version: str | None = None
    warnings: list[str] = Field(
        default_factory=list, description="parts of the description that mean nothing here"
    )


class PartyOf(_Shown):
    """A role of a job, and the parties that play it."""

    role: Role
    party_id: list[PartyId]


class JobRow(_Shown):
    """A job as one of its parties sees it."""

    job_id: JobId
    role: Role
    party_id: PartyId
    status: Annotated[str, Field(examples=["success"], description="FATE's words for states")]
    progress: int = Field(description="per cent of its tasks", examples=[100])
    protocol: Annotated[str, Field(examples=["fate"])]
    parties: list[PartyOf]
    scheduler_party_id: PartyId | None
    create_time: Millis
    update_time: Millis
    start_time: Millis
    end_time: Millis
    elapsed: Millis


class TaskRow(_Shown):
    """A task at one party."""

    job_id: JobId
    role: Role
    party_id: PartyId
    task_name: str
    task_id: str
    task_version: int
    component: str
    provider_name: str | None
    status: Annotated[str, Field(examples=["running"])]
    party_status: str
    error_report: str
    create_time: Millis
    start_time: Millis
    end_time: Millis


class Jobs(_Shown):
    """``job/list/query``: a page of jobs."""

    count: int = Field(description="of all pages")
    data: list[JobRow]


class Tasks(_Shown):
    """``job/task/list/query``: a page of tasks."""

    count: int = Field(description="of all pages")
    data: list[TaskRow]


class Rerun(_Shown):
    """``job/rerun``: the new job."""

    job_id: JobId
    rerun_of: JobId
    runs: list[str] = Field(description="tasks that run again")
    inherits: list[str] = Field(description="tasks whose outputs are taken over")


class Needs(_Shown):
    """``job/dag/dependency``: which components a job's tasks run."""

    component_list: list[str]
    component_module: dict[str, str]
    dependencies: dict[str, Any]


class DataView(_Shown):
    """``job/data/view``: what one party reads."""

    role: Role
    party_id: PartyId
    data_view: dict[str, dict[str, list[Any]]] = Field(description="role, then party id: its datasets")


class Thing(_Shown):
    """Something that is deleted, or would be."""

    kind: Annotated[str, Field(examples=["outputs"])]
    name: str
    bytes: int
    why: str
    removed: bool
    cause: str = Field(description="why it could not be removed")


class Deleted(_Shown):
    """What was taken away, or (``dry_run``) would be."""

    dry_run: bool
    items: list[Thing]


class LogLine(_Shown):
    """A line of a log; the number counts from 1."""

    line_num: int
    content: str


class Table(_Shown):
    """A table of this node; ``count`` is of its rows."""

    namespace: str
    name: str
    count: int


class TableInFull(Table):
    """A table of this node with what is written down about it."""

    meta: dict[str, Any] = Field(description="delimiter, label, columns and their types")
    data_type: str
    partitions: int
    disabled: bool


class Place(_Shown):
    """Where a table lies."""

    namespace: str
    name: str


class Rows(_Shown):
    """The first rows of a task's output; ``total`` is None where nobody counted them."""

    data: list[list[Any]]
    metadata: dict[str, Any]
    total: int | None


class MetricKey(_Shown):
    """Under which name and type a report of a task lies."""

    name: str
    type: str


class Metric(MetricKey):
    """A report of a task."""

    data: Any = Field(description="what the report says; its form is the component's")


_DATA: dict[str, Any] = {
    "/v2/site/info/query": Site,
    "/v2/server/fateflow": list[Server],
    "/v2/job/submit": Submitted,
    "/v2/job/query": list[JobRow],
    "/v2/job/list/query": Jobs,
    "/v2/job/rerun": Rerun,
    "/v2/job/task/query": list[TaskRow],
    "/v2/job/task/list/query": Tasks,
    "/v2/job/clean": Deleted,
    "/v2/job/queue/clean": dict[str, Any],
    "/v2/job/dag/dependency": Needs,
    "/v2/job/data/view": DataView,
    "/v2/log/count": int,
    "/v2/log/query": list[LogLine],
    "/v2/table/query": TableInFull,
    "/v2/data/component/upload": Table,
    "/v2/data/component/upload/file": Table,
    "/v2/output/data/table": dict[str, list[Place]],
    "/v2/output/data/display": dict[str, list[Rows]],
    "/v2/output/model/query": dict[str, Any],
    "/v2/output/model/delete": Deleted,
    "/v2/output/metric/delete": Deleted,
    "/v2/output/metric/key/query": list[MetricKey],
    "/v2/output/metric/query": list[Metric],
}
_BESIDE = ("/v2/job/submit", "/v2/job/rerun", "/v2/job/stop", "/v2/data/component/upload")
"""answers in which the job's id stands beside ``data``"""


def answer_of(path: str) -> type[BaseModel]:
    """Return what a path answers when it is done; of one that is not listed the envelope alone."""
    return _MODELS.get(path, Told)


def _model(path: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    if path in _DATA:
        fields["data"] = (_DATA[path], ...)
    if path.startswith(_BESIDE):
        fields["job_id"] = (JobId, ...)
    name = "".join(part.title() for part in path.removeprefix("/v2/").split("/"))
    return create_model(f"Fate{name}", __base__=Told, **fields)


_MODELS = {path: _model(path) for path in dict.fromkeys((*_DATA, "/v2/job/stop"))}


LONGEST_NOTE = 2000
MOST_LISTED = 1000

_JOB = Field(min_length=1, max_length=100, description="the job's id")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_listed)]


class JobQuery(Wire):
    """``job/query``: every field narrows the answer."""

    job_id: str = ""
    role: str = ""
    party_id: str = ""
    status: str = Field(default="", description="FATE's word, such as success")


class JobListQuery(Wire):
    """``job/list/query``: a page of jobs; every field that is given narrows it."""

    limit: int = Field(default=0, ge=0, le=MOST_LISTED, description="jobs of a page; 0: all, at most 1000")
    page: int = Field(default=1, ge=0, description="from 1")
    job_id: str = Field(default="", description="a part of the id")
    description: str = Field(default="", description="a part of the notes")
    partner: str = ""
    party_id: str = ""
    role: Words = Field(default_factory=list)
    status: Words = Field(default_factory=list)
    order_by: str = "create_time"
    order: str = "desc"


class TaskQuery(JobQuery):
    """``job/task/query``: every field narrows the answer."""

    job_id: str = ""
    task_name: str = ""
    task_id: str = ""
    task_version: int | None = Field(default=None, ge=0, description="an attempt, from 0; else the newest")


class TaskListQuery(Wire):
    """``job/task/list/query``: a page of a job's tasks; ``limit`` 0 is all of them."""

    limit: int = Field(default=0, ge=0, le=MOST_LISTED)
    page: int = Field(default=1, ge=0)
    job_id: str = _JOB
    role: str = ""
    party_id: str = ""
    task_name: str = ""
    order_by: str = "create_time"
    order: str = "desc"


class OfParty(Wire):
    """One party's part of a job."""

    job_id: str = _JOB
    role: str = Field(min_length=1)
    party_id: str = Field(min_length=1)


class OfTask(OfParty):
    """One party's part of a task."""

    task_name: str = Field(min_length=1)


class OutputOfTask(OfTask):
    """One output of a task at one party, or (key empty) all."""

    output_key: str = ""


class DeleteOutput(OfTask):
    """What a task left at one party is to be deleted."""

    dry_run: bool = False
    """only say what would be deleted; not of FATE"""


class LogQuery(Wire):
    """``log/count`` and ``log/query``: lines of one log of a job."""

    log_type: str = Field(
        description="task_error, task_warning, task_info or task_debug; schedule_info or schedule_error"
    )
    job_id: str = _JOB
    role: str = ""
    party_id: str = ""
    task_name: str = Field(default="", description="else of all tasks, one after the other")
    begin: int = Field(default=0, ge=0, description="number of the first line, from 1")
    end: int = Field(default=0, ge=0, description="number of the last line; 0: all there are")


class Submit(Wire):
    """``job/submit``: FATE 2's description, or in its place FATE 1's ``dsl`` and ``runtime_conf``."""

    dag_schema: dict[str, Any] = Field(default_factory=dict)
    dsl: dict[str, Any] | None = None
    runtime_conf: dict[str, Any] | None = None


class JobIdRequest(Wire):
    """A path that asks for a job and nothing more."""

    job_id: str = _JOB


class CleanJob(JobIdRequest):
    """``job/clean``: an ended job is to be deleted."""

    dry_run: bool = False
    """only say what would be deleted; not of FATE"""


class CleanQueue(Wire):
    """``job/queue/clean``: jobs of which nothing runs yet are to be cancelled."""

    dry_run: bool = False
    """only say which jobs would be cancelled; not of FATE"""


class AddNotes(OfParty):
    """``job/notes/add``: what somebody wants remembered about a job."""

    notes: str = Field(max_length=LONGEST_NOTE)


class TableRequest(Wire):
    """A table of this node."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)


class TableQuery(TableRequest):
    """``table/query``."""

    display: bool = Field(default=False, description="the first rows too")


class TableDownload(TableRequest):
    """``data/download``: a table as a file."""

    header: str = Field(default="", description="false: without the line that names the columns")


class ComponentDownload(TableRequest):
    """``data/component/download``: a table into a folder of this server."""

    path: str = ""


_GUEST, _HOST = "JG0100001100000010", "JG0100002200000020"
_PARTIES = [{"role": "guest", "party_id": [_GUEST]}, {"role": "host", "party_id": [_HOST]}]

DAG_SCHEMA: dict[str, Any] = {
    "kind": "bfia",
    "schema_version": "2.2.0",
    "dag": {
        "conf": {"extra": {"initiator": {"role": "guest", "party_id": _GUEST}}},
        "parties": _PARTIES,
        "stage": "train",
        "tasks": {
            "intersect_rsa_1": {
                "component_ref": "Intersection",
                "conf": {"provider": "unionpay", "version": "2.0.0"},
                "parameters": {"id": "id", "intersect_method": "rsa"},
                "inputs": {
                    "data": {
                        "train_data": {
                            "data_warehouse": [
                                {"dataset_id": "testspace#test_guest", "parties": _PARTIES[:1]},
                                {"dataset_id": "testspace#test_host", "parties": _PARTIES[1:]},
                            ]
                        }
                    }
                },
            }
        },
    },
}
"""A job of one task, as FATE's pipeline writes it"""

SUBMIT = {"one task": Example(summary="An intersection of two parties", value={"dag_schema": DAG_SCHEMA})}
