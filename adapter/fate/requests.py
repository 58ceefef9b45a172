"""Requests between nodes: what their handlers depend on, who has sent them, and their bodies.

A field whose description begins with "ours" does not exist in FATE.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request
from pydantic import BeforeValidator, Field

from adapter.body import failure_of, within_bounds
from adapter.fate.dag.description import Descriptions
from adapter.fate.dag.wire import DagSchema, DagSpec, Wire
from adapter.fate.signing import Signatures
from adapter.fate.words import JobOf, Key, LocalOf, newest_restart
from gateway.auth import origin
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure, JobSpec, NodeId, is_outside
from gateway.errors import NotAllowed, NotFound
from gateway.http.peers import check_claim
from gateway.ports import Limiters, ParticipantApi, SchedulerApi
from gateway.runtime.context import new_trace_id, traced

X = TypeVar("X")

_SOURCE_HEADERS = ("x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id")


@dataclass(frozen=True)
class FateParts:
    """What the handlers of FATE's paths depend on."""

    node: NodeId
    scheduler: SchedulerApi
    participant: ParticipantApi
    descriptions: Descriptions
    signatures: Signatures
    limiters: Limiters
    # Whether a node may send requests: it has an enabled route, or takes part in a job under way
    # and either had a route or signs its requests.
    may_send: Callable[[NodeId], bool]
    speaks: Callable[[NodeId], bool]  # whether a node's route says that it speaks this protocol
    job_of: JobOf
    local_of: LocalOf
    new_id: Callable[[], str]  # returns an id for a submitted job
    board_url: Callable[[str], str]  # returns the link to a job's page in the console, by its id
    agree: Callable[[str, str, str], object]  # approves a waiting job: job, person, comment
    # Records a job's progress, in percent, as its scheduling node reports it.
    set_progress: Callable[[str, float], object]
    # Pairs of a task and a role that were reported as running to FATE's own nodes, the oldest
    # first. These nodes accept the end of a task only after such a report. A restart of the gateway
    # forgets the pairs.
    reported_running: dict[tuple[str, str], None] = field(default_factory=dict)


def trace_of(request: Request) -> str:
    """Return the trace id that the request brings, or a new one."""
    return request.headers.get("x-trace-id", "")[:128] or new_trace_id()


def source_of(request: Request) -> NodeId:
    """Return the node that the request's headers name as its source; empty without such a header.

    A gateway like this one sends the header, FATE's nodes do not.
    """
    for name in _SOURCE_HEADERS:
        value = request.headers.get(name)
        if value:
            return value.strip()
    return ""


def allowed_source(parts: FateParts, request: Request) -> NodeId:
    """Return the source of a request as `source_of` does.

    Raises `NotAllowed` for a node that may not send requests, and for this node.
    """
    source = source_of(request)
    if not source:
        return ""
    if source == parts.node or not parts.may_send(source):
        raise NotAllowed(
            f"node {source} has no enabled route here: ask the admin of {parts.node} for one"
        )
    return source


async def authenticate(
    parts: FateParts,
    request: Request,
    *candidates: NodeId,
) -> NodeId:
    """Return the sender of a request, after a check of its signature if it has to sign.

    A request of FATE's own nodes does not name its sender, but implies ``candidates`` for it. The
    sender is the first of them that may send requests and whose route says that it speaks this
    protocol. Raises `NotAllowed`.
    """
    sender = allowed_source(parts, request) or _fate_sender(parts, candidates)
    if not sender:
        raise NotAllowed(
            "name the calling node in the header x-source-node-id: no node that may call has a "
            "route of profile fate-partner here"
        )
    check_claim(request.scope, sender)
    await check_signature(parts.signatures, parts.limiters, sender, request)
    origin().node = sender
    return sender


def _fate_sender(parts: FateParts, candidates: Iterable[NodeId]) -> NodeId:
    """Return the first candidate that may send requests in this protocol.

    Empty if there is none.
    """
    for node in candidates:
        is_other_node = node not in ("", parts.node)
        if is_other_node and parts.speaks(node) and parts.may_send(node):
            return node
    return ""


async def check_signature(
    signatures: Signatures,
    limiters: Limiters,
    node: NodeId,
    request: Request,
) -> None:
    """Check the signature of a request if its node has to sign. Raises `NotAllowed`."""
    if not signatures.must_sign(node):
        return
    body = await request.body()
    path = request.url.path
    if request.url.query:
        path += f"?{request.url.query}"
    await run_blocking(
        limiters.rest,
        request,
        partial(signatures.check, node, request.headers, path, body),
    )
    origin().key = request.headers.get("appId", "")


async def commanded_job(
    parts: FateParts,
    request: Request,
    body: "Party",
) -> tuple[LocalJob, NodeId]:
    """Return the newest restart of the job that the body names, and the sender, which schedules it.

    FATE keeps a job for each of its parties, so a request for a party outside the job is refused
    as one for an unknown job. Raises `NotFound`, `NotAllowed`.
    """
    allowed_source(parts, request)  # refuses an unknown node before the job is looked up
    local = await run_blocking(
        parts.limiters.rest,
        request,
        partial(
            newest_restart,
            body.job_id,
            parts.local_of,
        ),
    )
    unknown = NotFound(f"no job {body.job_id} runs here", reason="JOB_UNKNOWN")
    if local is None:
        raise unknown
    scheduler = local.spec.scheduler
    sender = await authenticate(parts, request, scheduler)
    if is_outside(local.spec, sender):  # a node outside a job does not learn that the job exists
        raise unknown
    if sender != scheduler:
        raise NotAllowed(f"only {scheduler}, which schedules job {body.job_id}, may do that")
    if not plays(local.spec, parts.node, body.role, body.party_id):
        text = f"job {body.job_id} has no party {body.role} of {body.party_id} here"
        raise NotFound(text, reason="JOB_UNKNOWN")
    return local, sender


def plays(
    spec: JobSpec,
    node: NodeId,
    role: str,
    party_id: str,
) -> bool:
    """True if a node has a role in a job; ``party_id``: the node's id, as the request has it.

    A gateway like this one may send an empty role, which means any role, and an empty party id,
    which means this node.
    """
    if party_id not in ("", node):
        return False
    if not role:
        return True
    return any(role in (party.role, party.label) for party in spec.parties_at(node))


async def run_blocking(
    limiter: CapacityLimiter,
    request: Request,
    work: Callable[[], X],
) -> X:
    """Run blocking work in the threads of ``limiter``, under the trace id of the request."""

    def run() -> X:
        with traced(trace_of(request)):
            return work()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


Object = Annotated[dict[str, Any], BeforeValidator(within_bounds)]
Text = Annotated[str, Field(max_length=255)]
Id = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        pattern=r"^[\x21-\x7e]+$",
    ),
]
Version = Annotated[int, Field(ge=0, le=999_999)]
ReportedFailure = Annotated[
    Failure | None,
    BeforeValidator(failure_of),
    Field(description="ours: why; FATE has no such field"),
]


class Described(DagSchema):
    """A job's description; as ``/v2/scheduler/job/create``, of a job for this node to schedule."""

    dag: Annotated[DagSpec, BeforeValidator(within_bounds)]


class Party(Wire):
    """A job at one party: FATE sends each role of a node a request of its own."""

    job_id: Id
    role: Text = ""
    party_id: Text = ""  # the node's id


class CreateJob(Party, Described):
    """``/v2/partner/job/create``: a job in which one role of this node takes part."""


class StartInfo(Wire):
    """Further fields of a start, which FATE ignores."""

    without: list[Text] = Field(
        default_factory=list,
        description="ours: parties that are left out",
    )


class StartJob(Party):
    """``/v2/partner/job/start``"""

    extra_info: StartInfo = Field(default_factory=StartInfo)


class JobStatus(Party):
    """``/v2/partner/job/status/update``"""

    status: Text = ""
    failed_by: ReportedFailure = None


class JobProgress(Party):
    """``/v2/partner/job/update``: ``progress`` in percent."""

    progress: float | None = None


class StopJob(JobStatus):
    """``/v2/partner/job/stop``

    Only a gateway like this one sends ``status`` and ``failed_by`` with it. FATE reports the status
    by ``job/status/update`` before.
    """


class Task(Party):
    """A version of a task at one party; ``job_id`` may be empty."""

    job_id: Annotated[str, Field(max_length=100, pattern=r"^[\x21-\x7e]*$")]
    task_id: Text = ""
    task_version: Version
    task_name: Text = Field(default="", description="ours: where the task's id does not contain it")

    @property
    def key(self) -> Key:
        """The task's key in FATE's words."""
        return Key(self.job_id, self.task_id, self.task_version)

    @property
    def name(self) -> str:
        """The task's name in the flow."""
        return self.key.name or self.task_name


class TaskState(Task):
    """``/v2/partner/task/status/update``"""

    status: Text = ""


class StopTask(TaskState):
    """``/v2/partner/task/stop``"""

    newest: bool = Field(
        default=False, description="ours: stop the version that runs, whichever it is"
    )


class RerunTask(Task):
    """``/v2/partner/task/rerun``: announces a further version of a task."""

    new_version: Version


class Report(TaskState):
    """``/v2/scheduler/task/report``"""

    failed_by: ReportedFailure = None


class StopAll(Wire):
    """``/v2/scheduler/job/stop``"""

    job_id: Id
    stop_status: Text = ""  # FATE's word for the end of the job


class RerunJob(Wire):
    """``/v2/scheduler/job/rerun``"""

    job_id: Id
    new_job_id: Text = Field(default="", description="ours: the id of the new job")
    start: Text = Field(
        default="",
        alias="from",
        description="ours: the task to begin with",
    )
    parameters: Object = Field(
        default_factory=dict,
        description="ours: changed parameters of tasks",
    )
