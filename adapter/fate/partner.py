"""``/v2/partner``: what a scheduling node that speaks FATE's protocol asks of this one.

Each request is about one role of this node. What concerns the node as a whole is done with the first and repeated
without effect by the others.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request

from adapter.fate import wire
from adapter.fate.dag.description import as_handed_on, scheduler_of
from adapter.fate.deciding import again, begun, undecided
from adapter.fate.endpoints import BY_PATH, PARTNER
from adapter.fate.envelope import FateRoute, coded, ok
from adapter.fate.keys import Key, id_of, name_of
from adapter.fate.partner_words import accepted, check_task, collected, end_of, not_started, shown, word_in
from adapter.fate.requests import Asker, FateParts, asker, commanded, names_itself, on, plays, trace_of
from adapter.fate.reruns import continued, may_begin_again
from adapter.fate.states import OUR_OUTCOME, JobWord, TaskWord, task_word
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, TaskStatus
from gateway.errors import Invalid, NotAllowed, NotFound, Refused
from gateway.http.paths import Paths
from gateway.ports import TaskNews


def router(parts: FateParts) -> Paths:
    """Return the paths for peers."""
    router = Paths(tags=["FATE: partner"], route_class=FateRoute)

    def post(path: str) -> Callable[..., Any]:
        found = BY_PATH[f"{PARTNER}{path}"]
        return router.post(found.path, summary=found.summary, openapi_extra=coded(found.codes))

    async def job(request: Request, body: wire.Party | wire.Task) -> tuple[LocalJob, Asker]:
        return await commanded(parts, request, body.job_id, body.role, body.party_id)

    async def task(request: Request, body: wire.Task) -> tuple[LocalJob, Asker, str, str]:
        """Return job, asker, the task's id here and its name; without a job the id tells who may ask."""
        key = Key(body.job_id, body.task_id, body.task_version)
        local, who = await job(request, body)
        return local, who, id_of(key), name_of(key) or body.task_name

    @post("/job/create")
    async def create(body: wire.CreateJob, request: Request) -> dict[str, Any]:
        said: Mapping[str, Any] = body.model_dump(include={"dag", "schema_version", "kind"})
        scheduler = scheduler_of(said)
        who = await asker(parts, request, scheduler)
        if scheduler not in ("", who.node):
            raise NotAllowed(f"only {scheduler}, which schedules job {body.job_id}, may create it, not {who.node}")
        if not who.named:
            said = as_handed_on(said, body.job_id)

        def work() -> dict[str, Any]:
            spec = parts.descriptions.read(said, lambda: body.job_id, scheduler, trace_of(request))
            if spec.job_id != body.job_id:
                raise Invalid([Problem("dag.conf.extra.standard.job_id", "must be job_id", spec.job_id)])
            if spec.parties_at(parts.node) and not plays(spec, parts.node, body.role, body.party_id):
                text = f"the job names no party {body.role} of {body.party_id or parts.node} here"
                raise NotFound(text, reason="ROLE_UNKNOWN")
            return accepted(parts.participant.create_job(continued(spec, parts.local_of), who.node))

        return ok(await on(parts.limiters.rest, request, work) or None)

    @post("/job/status/update")
    async def job_status(body: wire.JobStatus, request: Request) -> dict[str, Any]:
        local, who = await job(request, body)
        word = word_in(JobWord, body.status)
        if word in OUR_OUTCOME:
            ending = end_of(word, body.failed_by, who, local)
            await on(
                parts.limiters.rest,
                request,
                lambda: parts.participant.stop_job(local.id, "", ending, who.node),
            )
        elif local.status in (JobStatus.FINISHED, JobStatus.REJECTED):
            if word is not JobWord.WAITING or not may_begin_again(local):
                raise Refused(f"job {local.id} has ended here: it is {shown(local)}", reason="JOB_ENDED")
            await on(parts.limiters.rest, request, lambda: again(parts, local, body.job_id, who.node))
        elif word is JobWord.RUNNING and not undecided(local):
            await on(parts.limiters.rest, request, lambda: parts.participant.start_job(local.id, who.node))
        return ok()

    @post("/job/update")
    async def job_update(body: wire.JobProgress, request: Request) -> dict[str, Any]:
        local, _ = await job(request, body)
        if body.progress is not None:
            percent = body.progress
            await on(parts.limiters.rest, request, lambda: parts.is_at(local.id, percent))
        return ok()

    @post("/job/resource/apply")
    async def apply(body: wire.Party, request: Request) -> dict[str, Any]:
        local, who = await job(request, body)
        if not undecided(local):
            await on(parts.limiters.rest, request, lambda: parts.participant.hold(local.id, who.node))
        return ok()

    @post("/job/resource/return")
    async def give_back(body: wire.Party, request: Request) -> dict[str, Any]:
        local, who = await job(request, body)
        if not undecided(local):
            await on(parts.limiters.rest, request, lambda: parts.participant.give_back(local.id, who.node))
        return ok()

    @post("/job/start")
    async def start(body: wire.StartJob, request: Request) -> dict[str, Any]:
        local, who = await job(request, body)
        without = body.extra_info.get("without")
        left_out = tuple(map(str, without)) if isinstance(without, list) else ()
        if undecided(local):
            return ok()  # FATE goes on whatever is answered: see `deciding`
        await on(parts.limiters.rest, request, lambda: parts.participant.start_job(local.id, who.node, left_out))
        return ok()

    @post("/job/stop")
    async def stop(body: wire.StopJob, request: Request) -> dict[str, Any]:
        try:
            local, who = await job(request, body)
        except NotFound:
            if names_itself(request):
                raise
            return ok()  # as FATE's nodes: what is not there is stopped
        word = word_in(JobWord, body.status) if body.status else None
        ending = end_of(word, body.failed_by, who, local) if word in OUR_OUTCOME else None
        await on(parts.limiters.rest, request, lambda: parts.participant.stop_job(local.id, "", ending, who.node))
        return ok()

    @post("/task/resource/apply")
    async def apply_task(body: wire.Task, request: Request) -> dict[str, Any]:
        local, who, task_id, name = await task(request, body)
        check_task(local, name)
        if local.status in (JobStatus.FINISHED, JobStatus.REJECTED):
            if local.runs_of(task_id):  # it is asked again what was answered before
                return ok()
            # else FATE begins the task at its own party
            raise Refused(f"job {local.id} has ended here: it is {shown(local)}", reason="JOB_ENDED")
        await on(parts.limiters.rest, request, lambda: begun(parts.participant, local, who.node))
        most = local.pool.tasks_at_once if local.pool else None
        others = {run.task_id for run in local.runs if not run.over} - {task_id}
        if most is not None and len(others) >= most:
            text = f"job {local.id} holds enough for {most} tasks at once here, and so many run"
            raise Refused(text, reason="RESOURCES_BUSY")
        return ok()

    @post("/task/resource/return")
    async def return_task(body: wire.Task, request: Request) -> dict[str, Any]:
        local, _, _, name = await task(request, body)
        check_task(local, name)
        return ok()

    @post("/task/start")
    async def start_task(body: wire.Task, request: Request) -> dict[str, Any]:
        local, who, task_id, name = await task(request, body)
        await on(
            parts.limiters.rest,
            request,
            lambda: parts.participant.start_task(local.id, task_id, name, who.node),
        )
        return ok()

    @post("/task/collect")
    async def collect(body: wire.Task, request: Request) -> dict[str, Any]:
        key = Key(body.job_id, body.task_id, body.task_version)
        if body.job_id:
            local, who, task_id, name = await task(request, body)
        else:  # the id is one of a gateway like this one, which names itself
            local, task_id, name = None, id_of(key), body.task_name
            who = await asker(parts, request)

        def work() -> TaskNews:
            try:
                return parts.participant.poll_task(task_id, body.role, who.node)
            except NotFound as error:
                if local is None or error.reason != "TASK_UNKNOWN":
                    raise
                return not_started(local, body.job_id, name, body.task_version, error)

        news = await on(parts.limiters.news, request, work)
        word = TaskWord.RUNNING if news.status is TaskStatus.READY else task_word(news.status, news.failure)
        if not who.named and word is not TaskWord.WAITING and not parts.told.running(task_id, body.role):
            word = TaskWord.RUNNING
        return ok(collected(body, word, news, local, task_id))

    @post("/task/status/update")
    async def task_status(body: wire.TaskState, request: Request) -> dict[str, Any]:
        local, _, _, name = await task(request, body)
        check_task(local, name)
        word_in(TaskWord, body.status)
        return ok()

    @post("/task/stop")
    async def stop_task(body: wire.StopTask, request: Request) -> dict[str, Any]:
        if not body.job_id:
            who, found = await asker(parts, request), id_of(Key("", body.task_id, body.task_version))
            await on(parts.limiters.rest, request, lambda: parts.participant.stop_task("", found, "", who.node))
            return ok()
        local, who, task_id, name = await task(request, body)
        check_task(local, name)
        if body.newest:
            await on(
                parts.limiters.rest, request, lambda: parts.participant.stop_job(local.id, name, None, who.node)
            )
        else:
            await on(
                parts.limiters.rest,
                request,
                lambda: parts.participant.stop_task(local.id, task_id, name, who.node),
            )
        return ok()

    @post("/task/rerun")
    async def rerun_task(body: wire.RerunTask, request: Request) -> dict[str, Any]:
        try:
            local, _, _, name = await task(request, body)
            check_task(local, name)
        except NotFound:
            if names_itself(request):
                raise
        return ok()

    return router
