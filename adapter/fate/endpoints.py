"""``/v2/partner`` and ``/v2/scheduler``: what nodes that speak FATE's protocol request of this one.

A request of a scheduling node is about one role of this node. What concerns the node as a whole is done with the
first request; the others have no effect.

Jobs of FATE's own nodes may wait for approval here, a state that FATE does not have. It starts a job once every
party has granted the job's resources, one job after the other: a refusal there would block all other jobs of the
scheduling site. So the job may start there while nothing starts here, and its tasks' resources, which FATE
requests in every cycle, are refused until it is approved. A rejection has the scheduling site stop it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request

from adapter.fate import requests as wire
from adapter.fate import words
from adapter.fate.envelope import PARTNER, PATHS, SCHEDULER, Envelope, FateRoute, coded, ok
from adapter.fate.requests import (
    FateParts,
    asker,
    commanded,
    on,
    plays,
    refuse_unknown,
    source_of,
    trace_of,
)
from adapter.fate.words import (
    OUR_OUTCOME,
    OUR_TASK,
    PROTOCOL,
    REASONS,
    JobWord,
    TaskWord,
    key_of,
    milliseconds,
    task_word,
    word_in,
)
from gateway.domain.job import Job
from gateway.domain.problems import Problem
from gateway.domain.redaction import redacted
from gateway.domain.rerun import Order
from gateway.domain.run import LocalJob
from gateway.domain.spec import Ending, Failure, NodeId, is_outside, moment
from gateway.domain.states import JobStatus, TaskStatus
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, Refused
from gateway.ports import ParticipantApi, TaskNews, TaskReport, as_mapping

B = TypeVar("B", bound=wire.Party)

_MOST_TASKS = 10_000
_ENDED = (JobStatus.FINISHED, JobStatus.REJECTED)
_TRIES = 3
"""how many versions FATE may skip: it counts on if it could not reach a party"""


@dataclass(frozen=True)
class Command(Generic[B]):
    """What a scheduling node has one role of this node do about a job that is here."""

    parts: FateParts
    body: B
    local: LocalJob
    who: NodeId

    @property
    def here(self) -> ParticipantApi:
        """This node, as it takes part in jobs."""
        return self.parts.participant

    @property
    def undecided(self) -> bool:
        """Whether the job, which FATE's own node schedules, still waits for approval here."""
        return self.local.status is JobStatus.PENDING and self.local.spec.protocol == PROTOCOL


def _job_status(at: Command[wire.JobStatus]) -> None:
    local, word = at.local, word_in(JobWord, at.body.status)
    if word in OUR_OUTCOME:
        at.here.stop_job(local.id, "", _ending(word, at), at.who)
    elif local.status in _ENDED:
        if word is not JobWord.WAITING or not words.may_begin_again(local):
            raise _has_ended(local)
        spec = words.begun_again(local, at.body.job_id)
        accepted, known = at.here.create_job(spec, at.who), local.approval
        approver = known.by if known is not None and known.decision is JobStatus.READY else None
        if accepted.waits and approver is not None and words.is_retry(local, at.body.job_id):
            at.parts.agree(
                spec.job_id, approver, f"as before to job {local.id}, which begins again"
            )
    elif word is JobWord.RUNNING and not at.undecided:
        at.here.start_job(local.id, at.who)


def _stop(at: Command[wire.StopJob]) -> None:
    word = word_in(JobWord, at.body.status) if at.body.status else JobWord.RUNNING
    ending = _ending(word, at) if word in OUR_OUTCOME else None
    at.here.stop_job(at.local.id, "", ending, at.who)


def _apply_task(at: Command[wire.Task]) -> None:
    """FATE requests a task's resources only in a job that it has started, whatever the response to that was."""
    local, task_id = at.local, at.body.key.here
    _known_name(local, at.body)
    if local.status in _ENDED:
        if local.runs_of(task_id):  # a repeated request
            return
        raise _has_ended(local)  # a success would start the task at FATE's own party
    if at.undecided:
        until = moment(local.approval.until) if local.approval else ""
        text = f"job {local.id} waits until {until} for approval at {local.node}"
        raise Refused(text, reason="NOT_APPROVED")
    if local.status is JobStatus.READY and local.spec.protocol == PROTOCOL:
        at.here.start_job(local.id, at.who)
    most = local.pool.tasks_at_once if local.pool else None
    others = {run.task_id for run in local.runs if not run.over} - {task_id}
    if most is not None and len(others) >= most:
        text = f"job {local.id} holds resources for {most} tasks at the same time here, and so many run"
        raise Refused(text, reason="RESOURCES_BUSY")


def _known(at: Command[wire.Task]) -> None:
    _known_name(at.local, at.body)
    if isinstance(at.body, wire.TaskState):
        word_in(TaskWord, at.body.status)


Work = Callable[[Command[Any]], object]
Post = Callable[[str], Callable[..., Any]]
_COMMANDS: Mapping[str, tuple[type[wire.Party], Work]] = {
    "/job/status/update": (wire.JobStatus, _job_status),
    "/job/update": (
        wire.JobProgress,
        lambda at: at.body.progress is None or at.parts.is_at(at.local.id, at.body.progress),
    ),
    "/job/resource/apply": (wire.Party, lambda at: at.here.hold(at.local.id, at.who)),
    "/job/resource/return": (wire.Party, lambda at: at.here.give_back(at.local.id, at.who)),
    "/job/start": (
        wire.StartJob,
        lambda at: at.here.start_job(at.local.id, at.who, tuple(at.body.extra_info.without)),
    ),
    "/job/stop": (wire.StopJob, _stop),
    "/task/resource/apply": (wire.Task, _apply_task),
    "/task/resource/return": (wire.Task, _known),
    "/task/start": (
        wire.Task,
        lambda at: at.here.start_task(at.local.id, at.body.key.here, at.body.name, at.who),
    ),
    "/task/status/update": (wire.TaskState, _known),
    "/task/rerun": (wire.RerunTask, _known),
}
_LATER = ("/job/resource/apply", "/job/resource/return", "/job/start")
"""FATE continues with these, and they have no effect, while the job waits for approval"""
_DONE_IF_ABSENT = ("/job/stop", "/task/rerun")
"""FATE tells these to every party, to those too that had refused the job"""


def router(parts: FateParts) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(route_class=FateRoute)

    def post(path: str) -> Callable[..., Any]:
        means, codes = PATHS[path]
        tags: list[str | Enum] = [f"FATE: {path.split('/')[2]}"]
        return router.post(
            path,
            summary=f"FATE's: {means}",
            openapi_extra=coded(codes),
            tags=tags,
        )

    for path, (body, work) in _COMMANDS.items():
        post(PARTNER + path)(_endpoint(parts, path, body, work))
    _of_schedulers(parts, post)
    _of_parties(parts, post)
    return router


def _endpoint(
    parts: FateParts,
    path: str,
    shape: type[wire.Party],
    work: Work,
) -> Callable[..., Any]:
    async def endpoint(body: wire.Party, request: Request) -> Envelope:
        try:
            local, who = await commanded(parts, request, body)
            command = Command(parts, body, local, who)
            if not (command.undecided and path in _LATER):
                await on(parts.limiters.rest, request, lambda: work(command))
        except NotFound:
            if path not in _DONE_IF_ABSENT or source_of(request):
                raise
        return ok()

    endpoint.__name__ = path.strip("/").replace("/", "_")
    endpoint.__annotations__["body"] = shape
    return endpoint


def _of_schedulers(parts: FateParts, post: Post) -> None:
    """Add the paths of scheduling nodes about a job or a task that need not be known here."""

    @post(f"{PARTNER}/job/create")
    async def create(body: wire.CreateJob, request: Request) -> Envelope:
        scheduler, extra = body.dag.conf.scheduler_party_id, body.dag.conf.extra
        who = await asker(parts, request, scheduler)
        if scheduler != who:
            text = f"dag.conf.scheduler_party_id is {scheduler or 'not given'}: {who} may not create the job"
            raise NotAllowed(text)
        if extra.standard and extra.standard.get("job_id") != body.job_id:
            extra.standard = None  # FATE gives a job that a gateway submits an id of its own, and passes on the rest

        def work() -> dict[str, Any]:
            spec = parts.descriptions.read(body, lambda: body.job_id, scheduler, trace_of(request))
            if spec.parties_at(parts.node) and not plays(
                spec, parts.node, body.role, body.party_id
            ):
                text = f"the job names no party {body.role} of {body.party_id or parts.node} here"
                raise NotFound(text, reason="ROLE_UNKNOWN")
            found = parts.participant.create_job(words.continued(spec, parts.local_of), who)
            inherited = {} if found.inherited is None else {"inherited": list(found.inherited)}
            return inherited | ({"waits": True, "within": found.within} if found.waits else {})

        return ok(await on(parts.limiters.rest, request, work) or None)

    async def of_task(body: wire.Task, request: Request) -> tuple[LocalJob | None, NodeId]:
        """Return the job and the caller; None where a gateway like this one uses a task's id of its own."""
        if body.job_id:
            return await commanded(parts, request, body)
        return None, await asker(parts, request)

    @post(f"{PARTNER}/task/collect")
    async def collect(body: wire.Task, request: Request) -> Envelope:
        local, who = await of_task(body, request)
        task_id = body.key.here

        def work() -> TaskNews:
            try:
                return parts.participant.poll_task(task_id, body.role, who)
            except NotFound as error:
                if local is None or error.reason != "TASK_UNKNOWN":
                    raise
                return _not_started(local, body, error)

        news = await on(parts.limiters.news, request, work)
        word = (
            TaskWord.RUNNING
            if news.status is TaskStatus.READY
            else task_word(news.status, news.failure)
        )
        if (
            word is not TaskWord.WAITING
            and not source_of(request)
            and not _ran(parts.running, task_id, body.role)
        ):
            word = TaskWord.RUNNING
        return ok(collected(body, word, news, local, task_id))

    @post(f"{PARTNER}/task/stop")
    async def stop_task(body: wire.StopTask, request: Request) -> Envelope:
        local, who = await of_task(body, request)
        name = _known_name(local, body) if local is not None else ""

        def work() -> None:
            if local is not None and body.newest:
                parts.participant.stop_job(local.id, name, None, who)
            else:
                parts.participant.stop_task(local.id if local else "", body.key.here, name, who)

        await on(parts.limiters.rest, request, work)
        return ok()


def _of_parties(parts: FateParts, post: Post) -> None:
    """Add the paths of initiators and parties, for which this node schedules."""

    async def scheduled(request: Request, job_id: str) -> tuple[Job, NodeId]:
        """Return a job that is scheduled here, and the caller."""
        refuse_unknown(parts, request)
        job = await on(parts.limiters.rest, request, lambda: parts.job_of(job_id))
        who = (
            await asker(parts, request, job.spec.initiator, *job.spec.nodes)
            if job is not None
            else ""
        )
        if job is None or is_outside(job.spec, who):
            raise NotFound(f"no job {job_id} is scheduled here", reason="JOB_UNKNOWN")
        return job, who

    @post(f"{SCHEDULER}/job/create")
    async def create(body: wire.Described, request: Request) -> Envelope:
        initiator = body.dag.conf.initiator_party_id
        who = await asker(parts, request, request.headers.get("initiator-party-id", ""), initiator)

        def work() -> Envelope:
            spec = parts.descriptions.read(body, parts.new_id, parts.node, trace_of(request))
            if spec.scheduler != parts.node:
                rule = f"must be {parts.node}: this node schedules only jobs of its own"
                if spec.scheduler == who:
                    rule += "; the site's requests to itself arrive here: have its proxy send them to FATE-Flow"
                raise Invalid([Problem("dag.conf.scheduler_party_id", rule, spec.scheduler)])
            parts.scheduler.submit_job(spec, who)
            common = as_mapping(spec.job_params.get("common"))
            model = {
                name: str(common[name])
                for name in ("model_id", "model_version")
                if common.get(name)
            }
            return ok({"model_id": spec.job_id, "model_version": "0"} | model, job_id=spec.job_id)

        return await on(parts.limiters.peers, request, work)

    @post(f"{SCHEDULER}/job/stop")
    async def stop(body: wire.StopAll, request: Request) -> Envelope:
        job, who = await scheduled(request, body.job_id)
        why = None  # for a person's stop; FATE's own watch over its tasks reports a failure in this way
        if (reason := REASONS.get(body.stop_status, "STOPPED")) != "STOPPED":
            text = f"{who} says that its part has {body.stop_status}, and had the job stopped"
            why = Failure(reason, text, who)
        await on(
            parts.limiters.rest, request, lambda: parts.scheduler.stop_job(job.id, "", who, why)
        )
        return ok()

    @post(f"{SCHEDULER}/job/rerun")
    async def rerun(body: wire.RerunJob, request: Request) -> Envelope:
        job, who = await scheduled(request, body.job_id)
        wanted = Order(job.id, body.new_job_id or parts.new_id(), body.start, body.parameters)
        made = await on(
            parts.limiters.peers, request, lambda: parts.scheduler.rerun_job(wanted, who)
        )
        data = {
            "job_id": made.job_id,
            "from": made.start,
            "runs": made.runs,
            "inherits": made.inherits,
        }
        return ok(data, job_id=made.job_id)

    @post(f"{SCHEDULER}/task/report")
    async def report(body: wire.Report, request: Request) -> Envelope:
        status = OUR_TASK[word_in(TaskWord, body.status)]
        who = await asker(parts, request, body.party_id)
        if body.party_id not in ("", who):
            raise NotAllowed(f"{who} reports for itself only, not for {body.party_id}")
        news = TaskReport(body.key.here, body.role, status, body.failed_by, body.job_id)
        await on(parts.limiters.news, request, lambda: parts.scheduler.report_task(news, who))
        return ok()


def _known_name(local: LocalJob, body: wire.Task) -> str:
    """Return the name of a task. Raises `NotFound` for one that is not in the flow."""
    if local.spec.dag.get(body.name) is None:
        text = f"job {local.id} has no task {body.name or '(its id does not name it)'}"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return body.name


def _has_ended(local: LocalJob) -> Refused:
    ending = local.ending
    word = words.job_word(
        local.status, ending.outcome if ending else None, ending.failure if ending else None
    )
    return Refused(f"job {local.id} has ended here: it is {word}", reason="JOB_ENDED")


def _not_started(
    local: LocalJob,
    body: wire.Task,
    error: GatewayError,
) -> TaskNews:
    """Report a version of a task that was not started here: it waits, or was inherited; else raise."""
    name = _known_name(local, body)
    if any(run.task_name == name for run in local.inherited) and name in (local.can_inherit or ()):
        return TaskNews(TaskStatus.SUCCESS)
    ids = {run.task_id for run in local.runs if run.task_name == name}
    last = max((key_of(found).version for found in ids), default=-1)
    if (
        not last
        < body.task_version
        <= max(last, _TRIES * words.number_of(local, body.job_id)) + _TRIES
    ):
        raise error
    return TaskNews(TaskStatus.PENDING)


def _ran(
    running: dict[tuple[str, str], None],
    task_id: str,
    role: str,
) -> bool:
    """Record that a task is reported as running; return whether it was before."""
    before = (task_id, role) in running
    running[task_id, role] = None
    if len(running) > _MOST_TASKS:
        del running[next(iter(running))]
    return before


def collected(
    body: wire.Task,
    word: TaskWord,
    news: TaskNews,
    local: LocalJob | None,
    task_id: str,
) -> dict[str, Any]:
    """Return the state of a task at one party, with times in milliseconds, as FATE collects it."""
    runs = local.runs_of(task_id, body.role.partition(".")[0]) if local is not None else ()
    begun = milliseconds(min((run.started_at for run in runs if run.started_at), default=None))
    ended = milliseconds(max((run.ended_at for run in runs if run.ended_at), default=None))
    over = word not in (TaskWord.WAITING, TaskWord.RUNNING)
    data: dict[str, Any] = {
        **body.model_dump(include={"job_id", "role", "party_id", "task_id", "task_version"}),
        "status": str(word),
        "party_status": str(word),
        "start_time": begun,
        "end_time": ended if over else None,
        "update_time": ended or begun,
        "elapsed": ended - begun if over and ended is not None and begun is not None else None,
    }
    if over and news.failure is not None:
        data["failed_by"] = redacted(news.failure.as_dict())
    return data


def _ending(word: JobWord, at: Command[Any]) -> Ending:
    """Return the reported outcome; FATE gives no reason for a failure, so what failed here becomes the reason."""
    failure: Failure | None = at.body.failed_by
    if failure is None and word in (JobWord.FAILED, JobWord.TIMEOUT):
        failure = at.local.own_failure
    if failure is None and word is not JobWord.SUCCESS:
        failure = Failure(REASONS[word], f"{at.who} says that the job is {word}", at.who)
    return Ending(OUR_OUTCOME[word], datetime.now(UTC), failure, at.who)
