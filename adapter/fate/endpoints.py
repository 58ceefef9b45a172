"""``/v2/partner`` and ``/v2/scheduler``: requests of nodes that speak FATE's protocol.

A request of a scheduling node is about one role of this node. An effect on the node as a whole
takes place with the first request; the requests for further roles have no effect.

Jobs of FATE's own nodes may wait for approval here, a state that FATE does not have. FATE starts a
job once every party has granted the job's resources, one job after the other: if this node refused
them, all other jobs of the scheduling site would be blocked. So the job may start at FATE while
nothing starts here, and its tasks' resources, which FATE requests in every cycle, are refused until
the job is approved. After a rejection the scheduling site stops the job.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request

from adapter.fate import requests, words
from adapter.fate.envelope import PARTNER, PATHS, SCHEDULER, Envelope, FateRoute, codes_extra, ok
from adapter.fate.requests import (
    FateParts,
    allowed_source,
    authenticate,
    commanded_job,
    plays,
    run_blocking,
    source_of,
    trace_of,
)
from adapter.fate.words import (
    OUR_OUTCOME,
    OUR_TASK_STATUS,
    PROTOCOL,
    REASONS_OF_ENDS,
    JobWord,
    TaskWord,
    key_of,
    milliseconds,
    read_word,
    task_word,
)
from gateway.domain.entries import as_mapping
from gateway.domain.job import Acceptance, Job
from gateway.domain.problems import Problem
from gateway.domain.redaction import redacted
from gateway.domain.rerun import Order
from gateway.domain.run import LocalJob
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId, is_outside, moment
from gateway.domain.states import JobStatus, TaskStatus
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, Refused
from gateway.ports import ParticipantApi, TaskNews, TaskReport

B = TypeVar("B", bound=requests.Party)

MAX_REPORTED_RUNNING = 10_000  # the most pairs in `FateParts.reported_running`
_ENDED = (JobStatus.FINISHED, JobStatus.REJECTED)
# The most versions that FATE may announce to other parties while it cannot reach this one
_SKIPPED_VERSIONS = 3
# Requests that FATE sends although the job waits for approval here; then they have no effect.
_DEFERRED = ("/job/resource/apply", "/job/resource/return", "/job/start")
# Requests that FATE sends to every party, even to one that has refused the job; there they succeed
# without effect.
_DONE_IF_ABSENT = ("/job/stop", "/task/rerun")


@dataclass(frozen=True)
class Command(Generic[B]):
    """A request of a scheduling node about one role of this node in a job."""

    parts: FateParts
    body: B
    local: LocalJob
    sender: NodeId

    @property
    def participant(self) -> ParticipantApi:
        """This node as a participant of jobs."""
        return self.parts.participant

    @property
    def is_undecided(self) -> bool:
        """True while a job of FATE's own node waits for approval here."""
        return self.local.status is JobStatus.PENDING and self.local.spec.protocol == PROTOCOL


def _update_job(command: Command[requests.JobStatus]) -> None:
    """Follow a job's state as FATE reports it: an end, a restart after an end, or a start.

    Any other state has no effect.
    """
    local = command.local
    word = read_word(JobWord, command.body.status)
    if word in OUR_OUTCOME:
        command.participant.stop_job(
            local.id,
            task_name="",
            ending=_ending(word, command),
            sender=command.sender,
        )
    elif local.status in _ENDED:
        _restart_job(command, word)
    elif word is JobWord.RUNNING and not command.is_undecided:
        command.participant.start_job(local.id, command.sender)


def _restart_job(command: Command[requests.JobStatus], word: JobWord) -> None:
    """Create the job that follows an ended one. Raises `Refused` unless ``word`` means a restart.

    A retry that the job allows needs no second approval.
    """
    local = command.local
    # FATE's id stays the same; `local.id` is the id here of the newest restart.
    fate_job_id = command.body.job_id
    is_restart = word is JobWord.WAITING and words.can_restart(local)
    if not is_restart:
        raise _job_ended(local)
    spec = words.restarted_spec(local, fate_job_id)
    accepted = command.participant.create_job(spec, command.sender)
    approver = _approver(local)
    if not accepted.waits or approver is None:
        return
    if words.is_retry(local, fate_job_id):
        comment = f"as before to job {local.id}, which begins again"
        command.parts.agree(spec.job_id, approver, comment)


def _approver(local: LocalJob) -> str | None:
    """Return the person who approved a job; None if it needed no approval or got none."""
    approval = local.approval
    if approval is None or approval.decision is not JobStatus.READY:
        return None
    return approval.by


def _set_progress(command: Command[requests.JobProgress]) -> None:
    """Record the job's progress, if the scheduling node reports any."""
    if command.body.progress is not None:
        command.parts.set_progress(command.local.id, command.body.progress)


def _hold(command: Command[requests.Party]) -> None:
    """Reserve the job's resources."""
    command.participant.hold(command.local.id, command.sender)


def _give_back(command: Command[requests.Party]) -> None:
    """Return the job's resources."""
    command.participant.give_back(command.local.id, command.sender)


def _start_job(command: Command[requests.StartJob]) -> None:
    """Start the job."""
    without = tuple(command.body.extra_info.without)
    command.participant.start_job(command.local.id, command.sender, without)


def _stop_job(command: Command[requests.StopJob]) -> None:
    """Stop the job, with its end if the request reports one."""
    ending = None
    status = command.body.status
    if status:
        word = read_word(JobWord, status)
        if word in OUR_OUTCOME:
            ending = _ending(word, command)
    command.participant.stop_job(
        command.local.id,
        task_name="",
        ending=ending,
        sender=command.sender,
    )


def _apply_task(command: Command[requests.Task]) -> None:
    """Grant a task's resources, or refuse them by an error.

    FATE requests them only in a job that it has started, even if this node refused that start.
    """
    local = command.local
    task_id = command.body.key.local_id
    _task_name(local, command.body)  # raises for a task that is not in the flow
    if local.status in _ENDED:
        was_started = bool(local.runs_of(task_id))
        if was_started:  # the request repeats an earlier one
            return
        raise _job_ended(local)  # a success would start the task at FATE's own party
    if command.is_undecided:
        raise _not_approved(local)
    is_created_by_fate = local.spec.protocol == PROTOCOL
    # The job has started at FATE, but its start was deferred or refused here: start it now.
    if is_created_by_fate and local.status is JobStatus.READY:
        command.participant.start_job(local.id, command.sender)
    _check_task_limit(local, task_id)


def _not_approved(local: LocalJob) -> Refused:
    """Return the refusal of a task whose job waits for approval."""
    until = ""
    if local.approval:
        until = moment(local.approval.until)
    text = f"job {local.id} waits until {until} for approval at {local.node}"
    return Refused(text, reason="NOT_APPROVED")


def _check_task_limit(local: LocalJob, task_id: str) -> None:
    """Raise `Refused` if as many other tasks run as the job holds resources for."""
    if local.pool is None:
        return
    limit = local.pool.tasks_at_once
    if limit is None:
        return
    running = {run.task_id for run in local.runs if not run.over}
    running.discard(task_id)
    if len(running) >= limit:
        text = (
            f"job {local.id} holds resources for {limit} tasks at the same time here, and so many "
            "run"
        )
        raise Refused(text, reason="RESOURCES_BUSY")


def _start_task(command: Command[requests.Task]) -> None:
    """Start one version of a task."""
    body = command.body
    command.participant.start_task(
        command.local.id,
        body.key.local_id,
        body.name,
        command.sender,
    )


def _check_task(command: Command[requests.Task]) -> None:
    """Accept a request about a task, without any effect here.

    Raises `NotFound` for an unknown task, `Invalid` for an unknown state.
    """
    _task_name(command.local, command.body)
    if isinstance(command.body, requests.TaskState):
        read_word(TaskWord, command.body.status)


Work = Callable[[Command[Any]], object]  # carries out a command
Post = Callable[[str], Callable[..., Any]]  # declares a POST path; returns a decorator
# Path below `PARTNER` -> the type of its body, and its work.
_COMMANDS: Mapping[str, tuple[type[requests.Party], Work]] = {
    "/job/status/update": (requests.JobStatus, _update_job),
    "/job/update": (requests.JobProgress, _set_progress),
    "/job/resource/apply": (requests.Party, _hold),
    "/job/resource/return": (requests.Party, _give_back),
    "/job/start": (requests.StartJob, _start_job),
    "/job/stop": (requests.StopJob, _stop_job),
    "/task/resource/apply": (requests.Task, _apply_task),
    "/task/resource/return": (requests.Task, _check_task),
    "/task/start": (requests.Task, _start_task),
    "/task/status/update": (requests.TaskState, _check_task),
    "/task/rerun": (requests.RerunTask, _check_task),
}


def router(parts: FateParts) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(route_class=FateRoute)

    def post(path: str) -> Callable[..., Any]:
        effect, codes = PATHS[path]
        tags: list[str | Enum] = [f"FATE: {path.split('/')[2]}"]
        return router.post(
            path,
            summary=f"FATE's: {effect}",
            openapi_extra=codes_extra(codes),
            tags=tags,
        )

    for path, (body, work) in _COMMANDS.items():
        post(PARTNER + path)(_endpoint(parts, path, body, work))
    _add_job_creation(parts, post)
    _add_task_paths(parts, post)
    _add_job_submission(parts, post)
    _add_paths_of_scheduled_jobs(parts, post)
    return router


def _endpoint(
    parts: FateParts,
    path: str,
    body_type: type[requests.Party],
    work: Work,
) -> Callable[..., Any]:
    """Return the endpoint of a command, which takes a body of ``body_type``.

    The paths `_DEFERRED` and `_DONE_IF_ABSENT` may succeed without effect, as FATE's nodes need it.
    """

    async def endpoint(body: requests.Party, request: Request) -> Envelope:
        try:
            local, sender = await commanded_job(parts, request, body)
            command = Command(parts, body, local, sender)
            is_deferred = command.is_undecided and path in _DEFERRED
            if not is_deferred:
                await run_blocking(parts.limiters.rest, request, partial(work, command))
        except NotFound:
            is_from_fate = not source_of(request)
            may_be_absent = is_from_fate and path in _DONE_IF_ABSENT
            if not may_be_absent:
                raise
        return ok()

    # The framework takes the operation's name and the type of the body from these attributes.
    endpoint.__name__ = path.strip("/").replace("/", "_")
    endpoint.__annotations__["body"] = body_type
    return endpoint


def _add_job_creation(parts: FateParts, post: Post) -> None:
    """Add the path by which a scheduling node creates a job here."""

    @post(f"{PARTNER}/job/create")
    async def create(body: requests.CreateJob, request: Request) -> Envelope:
        scheduler = body.dag.conf.scheduler_party_id
        sender = await authenticate(parts, request, scheduler)
        if scheduler != sender:
            text = (
                f"dag.conf.scheduler_party_id is {scheduler or 'not given'}: {sender} may not "
                "create the job"
            )
            raise NotAllowed(text)
        extra = body.dag.conf.extra
        if extra.standard and extra.standard.get("job_id") != body.job_id:
            # `standard` describes the job as a gateway submitted it. FATE passes it on unchanged,
            # but has replaced the job's id, so the description no longer fits.
            extra.standard = None

        def job_id() -> str:
            return body.job_id

        def create_job() -> dict[str, Any]:
            spec = parts.descriptions.read(body, job_id, scheduler, trace_of(request))
            return _create_job(parts, spec, body, sender)

        data = await run_blocking(parts.limiters.rest, request, create_job)
        return ok(data or None)


def _create_job(
    parts: FateParts,
    spec: JobSpec,
    body: requests.CreateJob,
    sender: NodeId,
) -> dict[str, Any]:
    """Create the job and return the response's data.

    Raises `NotFound` if this node takes part in the job, but not in the role that the body names.
    """
    takes_part = bool(spec.parties_at(parts.node))
    has_role = plays(
        spec,
        parts.node,
        body.role,
        body.party_id,
    )
    if takes_part and not has_role:
        text = f"the job names no party {body.role} of {body.party_id or parts.node} here"
        raise NotFound(text, reason="ROLE_UNKNOWN")
    spec = words.with_newest_predecessor(spec, parts.local_of)
    return _acceptance_data(parts.participant.create_job(spec, sender))


def _acceptance_data(acceptance: Acceptance) -> dict[str, Any]:
    """Return the data of the response for a created job; FATE's own nodes ignore them."""
    data: dict[str, Any] = {}
    if acceptance.inherited is not None:
        data["inherited"] = list(acceptance.inherited)
    if acceptance.waits:
        data["waits"] = True
        data["within"] = acceptance.within
    return data


def _add_task_paths(parts: FateParts, post: Post) -> None:
    """Add the paths of scheduling nodes about a task whose job may be unknown here."""

    async def job_and_sender(
        body: requests.Task,
        request: Request,
    ) -> tuple[LocalJob | None, NodeId]:
        """Return the job and the sender.

        The job is None if a gateway like this one sends the task's id without the job's.
        """
        if body.job_id:
            return await commanded_job(parts, request, body)
        return None, await authenticate(parts, request)

    @post(f"{PARTNER}/task/collect")
    async def collect(body: requests.Task, request: Request) -> Envelope:
        local, sender = await job_and_sender(body, request)
        news = await run_blocking(
            parts.limiters.news,
            request,
            partial(
                _poll_task,
                parts,
                body,
                local,
                sender,
            ),
        )
        word = _reported_word(parts, body, news, by_fate=not source_of(request))
        return ok(task_data(body, word, news, local, body.key.local_id))

    @post(f"{PARTNER}/task/stop")
    async def stop_task(body: requests.StopTask, request: Request) -> Envelope:
        local, sender = await job_and_sender(body, request)
        name = ""
        if local is not None:
            name = _task_name(local, body)

        def stop() -> None:
            if local is not None and body.newest:
                # With a task's name, this stops the version of that task that runs.
                parts.participant.stop_job(
                    local.id,
                    task_name=name,
                    ending=None,
                    sender=sender,
                )
            else:
                job_id = local.id if local else ""
                parts.participant.stop_task(
                    job_id,
                    task_id=body.key.local_id,
                    task_name=name,
                    sender=sender,
                )

        await run_blocking(parts.limiters.rest, request, stop)
        return ok()


def _poll_task(
    parts: FateParts,
    body: requests.Task,
    local: LocalJob | None,
    sender: NodeId,
) -> TaskNews:
    """Return the state of a task's version. Raises `NotFound`."""
    try:
        return parts.participant.poll_task(body.key.local_id, body.role, sender)
    except NotFound as error:
        if local is None or error.reason != "TASK_UNKNOWN":
            raise
        return _news_of_unstarted(local, body, error)


def _reported_word(
    parts: FateParts,
    body: requests.Task,
    news: TaskNews,
    by_fate: bool,
) -> TaskWord:
    """Return the state to report.

    ``by_fate``: one of FATE's own nodes asks. These accept no end of a task that was not reported
    to them as running. So the first report of an ended task is ``running``.
    """
    word = task_word(news.status, news.failure)
    if news.status is TaskStatus.READY:  # the task was started here, and its container is not up
        word = TaskWord.RUNNING
    if word is TaskWord.WAITING or not by_fate:
        return word
    was_running = _record_running(parts.reported_running, body.key.local_id, body.role)
    if was_running:
        return word
    return TaskWord.RUNNING


def _add_job_submission(parts: FateParts, post: Post) -> None:
    """Add the path by which an initiator submits a job that this node schedules."""

    @post(f"{SCHEDULER}/job/create")
    async def create(body: requests.Described, request: Request) -> Envelope:
        initiator = body.dag.conf.initiator_party_id
        by_header = request.headers.get("initiator-party-id", "")
        sender = await authenticate(parts, request, by_header, initiator)

        def submit() -> Envelope:
            spec = parts.descriptions.read(
                body,
                parts.new_id,
                parts.node,
                trace_of(request),
            )
            _check_scheduler(parts.node, spec, sender)
            parts.scheduler.submit_job(spec, sender)
            data = {**_model_data(spec), "board_url": parts.board_url(spec.job_id)}
            return ok(data, job_id=spec.job_id)

        return await run_blocking(parts.limiters.peers, request, submit)


def _check_scheduler(node: NodeId, spec: JobSpec, sender: NodeId) -> None:
    """Raise `Invalid` if the job names another node as its scheduler."""
    if spec.scheduler == node:
        return
    rule = f"must be {node}: this node schedules only jobs of its own"
    if spec.scheduler == sender:
        rule += "; the site's requests to itself arrive here: have its proxy send them to FATE-Flow"
    raise Invalid([Problem("dag.conf.scheduler_party_id", rule, spec.scheduler)])


def _model_data(spec: JobSpec) -> dict[str, str]:
    """Return the name and version of the model that a job writes.

    A job that does not set them gets FATE's defaults: the job's id, and version 0.
    """
    data = {"model_id": spec.job_id, "model_version": "0"}
    common = as_mapping(spec.job_params.get("common"))
    for name in data:
        if common.get(name):
            data[name] = str(common[name])
    return data


def _add_paths_of_scheduled_jobs(parts: FateParts, post: Post) -> None:
    """Add the paths of initiators and parties about jobs that this node schedules."""

    async def scheduled_job(
        request: Request,
        job_id: str,
    ) -> tuple[Job, NodeId]:
        """Return the job and the sender.

        Raises `NotFound` also for a sender that is not in the job.
        """
        allowed_source(parts, request)  # refuses an unknown node before the job is looked up
        job = await run_blocking(
            parts.limiters.rest,
            request,
            partial(parts.job_of, job_id),
        )
        unknown = NotFound(f"no job {job_id} is scheduled here", reason="JOB_UNKNOWN")
        if job is None:
            raise unknown
        sender = await authenticate(
            parts,
            request,
            job.spec.initiator,
            *job.spec.nodes,
        )
        if is_outside(job.spec, sender):
            raise unknown
        return job, sender

    @post(f"{SCHEDULER}/job/stop")
    async def stop(body: requests.StopAll, request: Request) -> Envelope:
        job, sender = await scheduled_job(request, body.job_id)
        cause = _cause_of_stop(body.stop_status, sender)
        await run_blocking(
            parts.limiters.rest,
            request,
            partial(
                parts.scheduler.stop_job,
                job.id,
                task_name="",
                sender=sender,
                why=cause,
            ),
        )
        return ok()

    @post(f"{SCHEDULER}/job/rerun")
    async def rerun(body: requests.RerunJob, request: Request) -> Envelope:
        job, sender = await scheduled_job(request, body.job_id)
        order = Order(
            job.id,
            body.new_job_id or parts.new_id(),
            body.start,
            body.parameters,
        )
        result = await run_blocking(
            parts.limiters.peers,
            request,
            partial(
                parts.scheduler.rerun_job,
                order,
                sender,
            ),
        )
        data = {
            "job_id": result.job_id,
            "from": result.start,
            "runs": result.runs,
            "inherits": result.inherits,
        }
        return ok(data, job_id=result.job_id)

    @post(f"{SCHEDULER}/task/report")
    async def report(body: requests.Report, request: Request) -> Envelope:
        status = OUR_TASK_STATUS[read_word(TaskWord, body.status)]
        sender = await authenticate(parts, request, body.party_id)
        if body.party_id not in ("", sender):
            raise NotAllowed(f"{sender} reports for itself only, not for {body.party_id}")
        report = TaskReport(
            body.key.local_id,
            body.role,
            status,
            body.failed_by,
            body.job_id,
        )
        await run_blocking(
            parts.limiters.news,
            request,
            partial(parts.scheduler.report_task, report, sender),
        )
        return ok()


def _cause_of_stop(stop_status: str, sender: NodeId) -> Failure | None:
    """Return the failure at FATE's own party that stops the job; None if a person stops it."""
    reason = REASONS_OF_ENDS.get(stop_status, "STOPPED")
    if reason == "STOPPED":
        return None
    text = f"{sender} says that its part has {stop_status}, and had the job stopped"
    return Failure(reason, text, sender)


def _task_name(local: LocalJob, body: requests.Task) -> str:
    """Return the name of a task. Raises `NotFound` for a task that is not in the flow."""
    if local.spec.dag.get(body.name) is None:
        text = f"job {local.id} has no task {body.name or '(its id does not name it)'}"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return body.name


def _job_ended(local: LocalJob) -> Refused:
    """Return the refusal of a request about a job that has ended."""
    outcome = None
    failure = None
    if local.ending is not None:
        outcome = local.ending.outcome
        failure = local.ending.failure
    word = words.job_word(local.status, outcome, failure)
    return Refused(f"job {local.id} has ended here: it is {word}", reason="JOB_ENDED")


def _news_of_unstarted(
    local: LocalJob,
    body: requests.Task,
    error: GatewayError,
) -> TaskNews:
    """Return the state of a version that was not started here: inherited, or waiting.

    Raises ``error`` for a version that FATE cannot have announced.
    """
    name = _task_name(local, body)
    # `can_inherit` names the tasks that this node offers to inherit, `inherited` has their runs.
    is_inherited = any(run.task_name == name for run in local.inherited)
    if is_inherited and name in (local.can_inherit or ()):
        return TaskNews(TaskStatus.SUCCESS)
    versions = [key_of(run.task_id).version for run in local.runs if run.task_name == name]
    last = max(versions, default=-1)  # so that version 0 counts as the next one
    # After a restart, FATE goes on with the version numbers; here each restart is another job. So
    # the most versions that FATE may have announced before count, too.
    most_before_restart = _SKIPPED_VERSIONS * words.restart_count(local, body.job_id)
    highest = max(last, most_before_restart) + _SKIPPED_VERSIONS
    may_be_announced = last < body.task_version <= highest
    if not may_be_announced:
        raise error
    return TaskNews(TaskStatus.PENDING)


def _record_running(
    running: dict[tuple[str, str], None],
    task_id: str,
    role: str,
) -> bool:
    """Record that a task is reported as running; return whether it was recorded before."""
    was_recorded = (task_id, role) in running
    running[task_id, role] = None
    if len(running) > MAX_REPORTED_RUNNING:
        oldest = next(iter(running))
        del running[oldest]
    return was_recorded


def task_data(
    body: requests.Task,
    word: TaskWord,
    news: TaskNews,
    local: LocalJob | None,
    task_id: str,
) -> dict[str, Any]:
    """Return the data of FATE's ``task/collect``: a task at one party, with times in milliseconds.

    ``local``: None if the job is unknown here, so that there are no times.
    """
    started_at, ended_at = _times(local, task_id, body.role)
    has_ended = word not in (TaskWord.WAITING, TaskWord.RUNNING)
    elapsed = None
    if has_ended and started_at is not None and ended_at is not None:
        elapsed = ended_at - started_at
    data: dict[str, Any] = {
        **body.model_dump(include={"job_id", "role", "party_id", "task_id", "task_version"}),
        "status": str(word),
        "party_status": str(word),
        "start_time": started_at,
        "end_time": ended_at if has_ended else None,
        "update_time": ended_at or started_at,
        "elapsed": elapsed,
    }
    if has_ended and news.failure is not None:
        data["failed_by"] = redacted(news.failure.as_dict())
    return data


def _times(
    local: LocalJob | None,
    task_id: str,
    role: str,
) -> tuple[int | None, int | None]:
    """Return the first start and the last end of a task's runs at a party, in milliseconds.

    Each is None without such a run. ``role`` may have a party's index, which is ignored.
    """
    if local is None:
        return None, None
    runs = local.runs_of(task_id, role.partition(".")[0])
    starts = [run.started_at for run in runs if run.started_at]
    ends = [run.ended_at for run in runs if run.ended_at]
    first_start = min(starts, default=None)
    last_end = max(ends, default=None)
    return milliseconds(first_start), milliseconds(last_end)


def _ending(word: JobWord, command: Command[Any]) -> Ending:
    """Return the reported end of the job.

    FATE gives no reason for a failure, only a gateway like this one does. Without a reported
    reason, the failure of this node's part is used, or else a general one.
    """
    failure: Failure | None = command.body.failed_by
    has_failed = word in (JobWord.FAILED, JobWord.TIMEOUT)
    if failure is None and has_failed:
        failure = command.local.own_failure
    if failure is None and word is not JobWord.SUCCESS:
        text = f"{command.sender} says that the job is {word}"
        failure = Failure(REASONS_OF_ENDS[word], text, command.sender)
    return Ending(
        OUR_OUTCOME[word],
        datetime.now(UTC),
        failure,
        command.sender,
    )
