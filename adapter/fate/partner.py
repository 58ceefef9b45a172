"""``/v2/partner``: requests of scheduling nodes that speak FATE's protocol.

Each request is about one role of this node. What concerns the node as a whole is done with the first request; the
others have no effect.

Jobs of FATE's own nodes may wait for approval here, a state that FATE does not have. It starts a job once every
party has granted the job's resources, one job after the other: a refusal there would block all other jobs of the
scheduling site. So the job may start there while nothing starts here, and its tasks' resources, which FATE
requests in every cycle, are refused until somebody has approved it. A rejection has the scheduling site stop it.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from adapter.fate import wire
from adapter.fate.client import failure_of
from adapter.fate.dag.description import PROTOCOL, scheduler_of, without_another_id
from adapter.fate.envelope import ANY, NO_JOB, NO_TASK, PARTNER, Code, Envelope, FateRoute, ok, posts
from adapter.fate.ids import Key, begun_again, continued, id_of, key_of, may_begin_again, name_of, number_of
from adapter.fate.requests import Asker, FateParts, asker, commanded, names_itself, on, plays, trace_of
from adapter.fate.states import OUR_OUTCOME, REASONS, JobWord, TaskWord, job_word, task_word, word_in
from gateway.domain.job import Acceptance
from gateway.domain.problems import Problem
from gateway.domain.redaction import redacted
from gateway.domain.run import LocalJob
from gateway.domain.spec import Ending, Failure, NodeId
from gateway.domain.states import JobStatus, TaskStatus
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, Refused
from gateway.ports import TaskNews

X = TypeVar("X")

_ENDED = (JobStatus.FINISHED, JobStatus.REJECTED)
_TRIES = 3
"""how many versions FATE may skip: it counts on if it could not reach a party"""


def router(parts: FateParts) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(tags=["FATE: partner"], route_class=FateRoute)

    post = posts(router, PARTNER)

    async def rest(request: Request, work: Callable[[], X]) -> X:
        return await on(parts.limiters.rest, request, work)

    async def job(request: Request, body: wire.Party | wire.Task) -> tuple[LocalJob, Asker]:
        return await commanded(parts, request, body.job_id, body.role, body.party_id)

    async def task(request: Request, body: wire.Task, *, known: bool = True) -> tuple[LocalJob, Asker, str, str]:
        """Return the job, the caller, the task's id here and its name; ``known``: a task of the flow only."""
        key = Key(body.job_id, body.task_id, body.task_version)
        local, who = await job(request, body)
        name = name_of(key) or body.task_name
        if known:
            _check_task(local, name)
        return local, who, id_of(key), name

    @post("/job/create", "create_job, once for all roles of the node", {ANY: Code.CREATE_JOB_FAILED})
    async def create(body: wire.CreateJob, request: Request) -> Envelope[Any]:
        description: Mapping[str, Any] = body.model_dump(include={"dag", "schema_version", "kind"})
        scheduler = scheduler_of(description)
        who = await asker(parts, request, scheduler)
        if scheduler not in ("", who.node):
            raise NotAllowed(f"only {scheduler}, which schedules job {body.job_id}, may create it, not {who.node}")
        if not who.named:
            description = without_another_id(description, body.job_id)

        def work() -> dict[str, Any]:
            spec = parts.descriptions.read(description, lambda: body.job_id, scheduler, trace_of(request))
            if spec.job_id != body.job_id:
                raise Invalid([Problem("dag.conf.extra.standard.job_id", "must be job_id", spec.job_id)])
            if spec.parties_at(parts.node) and not plays(spec, parts.node, body.role, body.party_id):
                text = f"the job names no party {body.role} of {body.party_id or parts.node} here"
                raise NotFound(text, reason="ROLE_UNKNOWN")
            return _accepted(parts.participant.create_job(continued(spec, parts.local_of), who.node))

        return ok(await rest(request, work) or None)

    @post(
        "/job/status/update",
        "an end: stop_job with it; `running`: start_job; `waiting` after an end: create_job again",
        {**NO_JOB, "": Code.UPDATE_JOB_FAILED},
    )
    async def job_status(body: wire.JobStatus, request: Request) -> Envelope[Any]:
        local, who = await job(request, body)
        word = word_in(JobWord, body.status)
        if word in OUR_OUTCOME:
            ending = _ending(word, body.failed_by, who, local)
            await rest(request, lambda: parts.participant.stop_job(local.id, "", ending, who.node))
        elif local.status in _ENDED:
            if word is not JobWord.WAITING or not may_begin_again(local):
                raise _has_ended(local)
            await rest(request, lambda: _begin_again(parts, local, body.job_id, who.node))
        elif word is JobWord.RUNNING and not _undecided(local):
            await rest(request, lambda: parts.participant.start_job(local.id, who.node))
        return ok()

    @post(
        "/job/update",
        "what this node shows of the job while FATE does not tell more",
        {"": Code.UPDATE_JOB_FAILED},
    )
    async def job_update(body: wire.JobProgress, request: Request) -> Envelope[Any]:
        local, _ = await job(request, body)
        if (percent := body.progress) is not None:
            await rest(request, lambda: parts.is_at(local.id, percent))
        return ok()

    @post("/job/resource/apply", "hold", {"": Code.JOB_RESOURCE_EXCEPTION})
    async def apply(body: wire.Party, request: Request) -> Envelope[Any]:
        local, who = await job(request, body)
        if not _undecided(local):
            await rest(request, lambda: parts.participant.hold(local.id, who.node))
        return ok()

    @post("/job/resource/return", "give_back", {"": Code.JOB_RESOURCE_EXCEPTION})
    async def give_back(body: wire.Party, request: Request) -> Envelope[Any]:
        local, who = await job(request, body)
        if not _undecided(local):
            await rest(request, lambda: parts.participant.give_back(local.id, who.node))
        return ok()

    @post("/job/start", "start_job", NO_JOB)
    async def start(body: wire.StartJob, request: Request) -> Envelope[Any]:
        local, who = await job(request, body)
        without = body.extra_info.get("without")
        left_out = tuple(map(str, without)) if isinstance(without, list) else ()
        if not _undecided(local):  # else FATE goes on whatever the response is
            await rest(request, lambda: parts.participant.start_job(local.id, who.node, left_out))
        return ok()

    @post("/job/stop", "stop_job", {"": Code.KILL_JOB_FAILED})
    async def stop(body: wire.StopJob, request: Request) -> Envelope[Any]:
        try:
            local, who = await job(request, body)
        except NotFound:
            if names_itself(request):
                raise
            return ok()  # as FATE's nodes do: a job that is not there is stopped
        ending = None
        if body.status and (word := word_in(JobWord, body.status)) in OUR_OUTCOME:
            ending = _ending(word, body.failed_by, who, local)
        await rest(request, lambda: parts.participant.stop_job(local.id, "", ending, who.node))
        return ok()

    @post(
        "/task/resource/apply",
        "refused while as many tasks run as the job holds for, or a person has still to agree",
        {"RESOURCES_BUSY": Code.TASK_RESOURCE_EXCEPTION, "": Code.TASK_RESOURCE_EXCEPTION},
    )
    async def apply_task(body: wire.Task, request: Request) -> Envelope[Any]:
        local, who, task_id, _ = await task(request, body)
        if local.status in _ENDED:
            if local.runs_of(task_id):  # a repeated request
                return ok()
            raise _has_ended(local)  # a success would start the task at FATE's own party
        await rest(request, lambda: _begin(parts, local, who.node))
        most = local.pool.tasks_at_once if local.pool else None
        others = {run.task_id for run in local.runs if not run.over} - {task_id}
        if most is not None and len(others) >= most:
            text = f"job {local.id} holds resources for {most} tasks at the same time here, and so many run"
            raise Refused(text, reason="RESOURCES_BUSY")
        return ok()

    @post(
        "/task/resource/return",
        "nothing: a task returns what it has at its end",
        {"": Code.TASK_RESOURCE_EXCEPTION},
    )
    async def return_task(body: wire.Task, request: Request) -> Envelope[Any]:
        await task(request, body)
        return ok()

    @post("/task/start", "start_task, once for all roles of the node", {**NO_TASK, "": Code.START_TASK_FAILED})
    async def start_task(body: wire.Task, request: Request) -> Envelope[Any]:
        local, who, task_id, name = await task(request, body, known=False)
        await rest(request, lambda: parts.participant.start_task(local.id, task_id, name, who.node))
        return ok()

    @post("/task/collect", "poll_task", {"JOB_UNKNOWN": Code.TASK_NOT_FOUND})
    async def collect(body: wire.Task, request: Request) -> Envelope[Any]:
        local: LocalJob | None = None
        if body.job_id:
            local, who, task_id, name = await task(request, body, known=False)
        else:  # a gateway like this one, which names itself, uses ids of its own
            task_id, name = id_of(Key("", body.task_id, body.task_version)), body.task_name
            who = await asker(parts, request)

        def work() -> TaskNews:
            try:
                return parts.participant.poll_task(task_id, body.role, who.node)
            except NotFound as error:
                if local is None or error.reason != "TASK_UNKNOWN":
                    raise
                return _not_started(local, body.job_id, name, body.task_version, error)

        news = await on(parts.limiters.news, request, work)
        word = TaskWord.RUNNING if news.status is TaskStatus.READY else task_word(news.status, news.failure)
        if not who.named and word is not TaskWord.WAITING and not parts.started.running(task_id, body.role):
            word = TaskWord.RUNNING
        return ok(collected(body, word, news, local, task_id))

    @post(
        "/task/status/update", "nothing: a node's runs tell their state", {**NO_TASK, "": Code.UPDATE_TASK_FAILED}
    )
    async def task_status(body: wire.TaskState, request: Request) -> Envelope[Any]:
        await task(request, body)
        word_in(TaskWord, body.status)
        return ok()

    @post("/task/stop", "stop_task", {"JOB_UNKNOWN": Code.TASK_NOT_FOUND, "": Code.KILL_TASK_FAILED})
    async def stop_task(body: wire.StopTask, request: Request) -> Envelope[Any]:
        if not body.job_id:
            who, found = await asker(parts, request), id_of(Key("", body.task_id, body.task_version))
            await rest(request, lambda: parts.participant.stop_task("", found, "", who.node))
            return ok()
        local, who, task_id, name = await task(request, body)
        if body.newest:
            await rest(request, lambda: parts.participant.stop_job(local.id, name, None, who.node))
        else:
            await rest(request, lambda: parts.participant.stop_task(local.id, task_id, name, who.node))
        return ok()

    @post(
        "/task/rerun", "nothing: the next version begins when it is started", {"JOB_UNKNOWN": Code.TASK_NOT_FOUND}
    )
    async def rerun_task(body: wire.RerunTask, request: Request) -> Envelope[Any]:
        try:
            await task(request, body)
        except NotFound:
            if names_itself(request):
                raise
        return ok()

    return router


def _accepted(found: Acceptance) -> dict[str, Any]:
    inherited = {} if found.inherited is None else {"inherited": list(found.inherited)}
    return inherited | ({"waits": True, "within": found.within} if found.waits else {})


def _check_task(local: LocalJob, name: str) -> None:
    if local.spec.dag.get(name) is None:
        raise NotFound(f"job {local.id} has no task {name or '(its id does not name it)'}", reason="TASK_UNKNOWN")


def _has_ended(local: LocalJob) -> Refused:
    ending = local.ending
    word = job_word(local.status, ending.outcome if ending else None, ending.failure if ending else None)
    return Refused(f"job {local.id} has ended here: it is {word}", reason="JOB_ENDED")


def _not_started(local: LocalJob, job_id: str, name: str, version: int, error: GatewayError) -> TaskNews:
    """Report a version of a task that was not started here: it waits, or was inherited; else raise."""
    _check_task(local, name)
    if any(run.task_name == name for run in local.inherited) and name in (local.can_inherit or ()):
        return TaskNews(TaskStatus.SUCCESS)
    ids = {run.task_id for run in local.runs if run.task_name == name}
    last = max((key_of(found).version for found in ids), default=-1)
    if not last < version <= max(last, _TRIES * number_of(local, job_id)) + _TRIES:
        raise error
    return TaskNews(TaskStatus.PENDING)


def collected(
    body: wire.Task, word: TaskWord, news: TaskNews, local: LocalJob | None, task_id: str
) -> dict[str, Any]:
    """Return the state of a task at one party, with times in milliseconds, as FATE collects it."""
    runs = local.runs_of(task_id, body.role.partition(".")[0]) if local is not None else ()
    begun = _ms(min((run.started_at for run in runs if run.started_at), default=None))
    ended = _ms(max((run.ended_at for run in runs if run.ended_at), default=None))
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


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def _ending(word: JobWord, failed_by: Any, who: Asker, local: LocalJob) -> Ending:
    """Return the reported outcome; FATE gives no reason for a failure, so what failed here becomes the reason."""
    failure = failure_of(failed_by)
    if failure is None and word in (JobWord.FAILED, JobWord.TIMEOUT):
        last = {(run.task_name, run.party): run for run in local.runs}.values()
        failure = next((run.failure for run in last if run.failure and run.failure.reason != "STOPPED"), None)
    if failure is None and word is not JobWord.SUCCESS:
        failure = Failure(REASONS[word], f"{who.node} says that the job is {word}", who.node)
    return Ending(OUR_OUTCOME[word], datetime.now(UTC), failure, who.node)


def _undecided(local: LocalJob) -> bool:
    """Whether a job that FATE's own node schedules still waits for approval here."""
    return local.status is JobStatus.PENDING and local.spec.protocol == PROTOCOL


def _begin(parts: FateParts, local: LocalJob, sender: NodeId) -> None:
    """Start a job that could not start when FATE requested it. Raises `Refused` while it is not approved.

    FATE requests a task's resources only in a job that it has started, whatever the response to the start was.
    """
    if _undecided(local):
        until = local.approval.until.isoformat(timespec="seconds") if local.approval else ""
        text = f"job {local.id} waits until {until} for approval at {local.node}"
        raise Refused(text, reason="NOT_APPROVED")
    if local.status is JobStatus.READY and local.spec.protocol == PROTOCOL:
        parts.participant.start_job(local.id, sender)


def _begin_again(parts: FateParts, local: LocalJob, job_id: str, sender: NodeId) -> None:
    """Create the job that follows an ended one of FATE's; an approval of that one holds for this one."""
    spec = begun_again(local, job_id)
    accepted = parts.participant.create_job(spec, sender)
    known = local.approval
    if accepted.waits and known is not None and known.decision is JobStatus.READY:
        parts.agree(spec.job_id, known.by, f"as before to job {local.id}, which begins again")
