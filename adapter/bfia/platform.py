"""What this node's own platform and its containers request: ``/v1/platform/schedule`` (control layer 4 and 5).

With it ``/v2/provider``, the first users' form of registering images. The standard leaves open how lines of a log
are numbered, what makes a line's level, and whose lines a node with several roles gives. Here: from 0; see
`gateway.data.logs`; those of all its roles, unless ``role`` picks one.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from adapter.bfia import examples, translate, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.requests import IDS_BYTES, Done, Sender, described, incoming, on, read
from gateway.data.log_levels import LEVELS, Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import TaskStatus
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, shorten
from gateway.jobs.contracts import ALL_SITES
from gateway.jobs.coordinator import Coordinator
from gateway.ports import Callback, Limiters
from gateway.providers.registration import By, Providers, asking, audited, shown_problem
from gateway.runtime.context import new_trace_id
from provider_registry.registry import Written

E = TypeVar("E", bound=Callable[..., Any])

SCHEDULE = "/v1/platform/schedule"
OTHER = "/v2/schedule"
"""another spelling of `SCHEDULE`, which the first users have"""
_FROM_CONTAINER = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


def _spelled(
    router: APIRouter,
    path: str,
    *methods: str,
    **options: Any,
) -> Callable[[E], E]:
    """Serve a path in both spellings; the standard's is described, with the first of the methods."""

    def serve(endpoint: E) -> E:
        for at in (SCHEDULE, OTHER):
            for method in methods:
                shown = (at, method) == (SCHEDULE, methods[0])
                router.add_api_route(
                    at + path,
                    endpoint,
                    methods=[method],
                    include_in_schema=shown,
                    **options,
                )
        return endpoint

    return serve


class _Flow(BaseModel):
    flow_id: str = Field(default="", description="only this flow")


def operator_router(
    jobs: Coordinator,
    own_node: NodeId,
    coordinator_node: NodeId,
    profile_of: Callable[[NodeId], Profile],
    limiters: Limiters,
    expanded: Callable[[JobSpec], JobSpec],
    ids_bytes: int = IDS_BYTES,
) -> APIRouter:
    """Return the paths for this node's own platform; ``coordinator_node`` schedules the jobs submitted here.

    ``expanded`` puts the nodes of the job's project in place of the word for them. ``ids_bytes``: of a body at the
    paths that take no job.
    """
    router = APIRouter(tags=["platform"], route_class=Route)

    @_spelled(router, "/job/create_all", "POST", summary="Submit a job")
    async def create_all(
        request: Request,
        sender: Sender,
        body: Annotated[wire.CreateAll, examples.CREATE_ALL],
    ) -> wire.Answer[wire.JobData]:
        """Create a job at every node that it names. Responds when all have accepted it, or one refused."""
        trace = sender.trace_id or new_trace_id()
        spec = translate.job_spec(body, "", coordinator_node, trace)
        if any(party.node == ALL_SITES for party in spec.parties):
            spec = await on(limiters.rest, sender, lambda: expanded(spec))
        job_id = new_id(map(profile_of, {coordinator_node, *spec.nodes} - {own_node}))
        spec = replace(spec, job_id=job_id, unknown_fields=translate.unknown_fields(body))
        job_id = await on(limiters.peers, sender, lambda: jobs.submit(spec))
        request.state.answered = {"job_id": job_id}
        return ok(wire.JobData(job_id=job_id))

    @_spelled(
        router,
        "/job/status_all",
        "GET",
        "POST",
        summary="State of a job and of all its tasks",
        openapi_extra=described(wire.JobQuery),
        max_body_size=ids_bytes,
    )
    async def status_all(request: Request) -> wire.Answer[wire.StatusData]:
        wanted, sender = (await read(request, wire.JobQuery)).job_id, incoming(request)
        view = await on(limiters.rest, sender, lambda: jobs.status_here(wanted))
        if view is None:  # another node knows, and may take its time
            view = await on(limiters.peers, sender, lambda: jobs.status(wanted))
        return ok(wire.StatusData(**translate.status_body(view)))

    @_spelled(
        router,
        "/job/stop_all",
        "POST",
        summary="Stop a job at every node",
        max_body_size=ids_bytes,
    )
    async def stop_all(body: Annotated[wire.StopAll, examples.STOP_ALL], sender: Sender) -> Done:
        """Stop a job, whichever node schedules it. What is over stays as it is; a second stop changes nothing."""
        await on(limiters.peers, sender, lambda: jobs.stop(body.job_id, body.task_name))
        return ok()

    @_spelled(
        router,
        "/job/stop_task",
        "POST",
        summary="Stop a task, and all that needs its output, at every node",
        max_body_size=ids_bytes,
    )
    async def stop_task(
        body: Annotated[wire.StopTaskOfJob, examples.STOP_TASK_OF_JOB], sender: Sender
    ) -> Done:
        """Stop one task and what follows it. Other branches go on; the job ends when nothing is left to run."""
        await on(limiters.peers, sender, lambda: jobs.stop(body.job_id, body.task_name))
        return ok()

    @_spelled(
        router,
        "/job/query_job_list",
        "GET",
        summary="All jobs of a flow, or all jobs",
        openapi_extra=described(_Flow),
        max_body_size=ids_bytes,
    )
    async def query_job_list(request: Request) -> wire.Answer[wire.JobList]:
        asked = await read(request, _Flow)
        flow_id = asked.flow_id if asked.model_fields_set else None
        found = await on(limiters.peers, incoming(request), lambda: jobs.jobs(flow_id))
        return ok(wire.JobList(job_list=dict(found)))

    return router


def container_router(
    take: Callable[[Callback], None],
    limiters: Limiters,
    run_of_token: Callable[[str], str | None] = lambda token: token,
    *,
    by_address: bool = True,
) -> APIRouter:
    """Return the path on which containers report.

    ``run_of_token`` gives the run that a callback's token belongs to, None for an unknown token; ``by_address``:
    whether a run may be recognised by its address where its callback has no token.
    """
    router = APIRouter(tags=["container"], route_class=Route)

    @router.post(f"{SCHEDULE}/task/callback", summary="A container reports its state")
    async def task_callback(
        request: Request,
        body: Annotated[wire.ContainerCallback, examples.CALLBACK],
        sender: Sender,
        run: str = Query(
            default="", description="the run's token; part of the address that the container got"
        ),
    ) -> Done:
        status = next((one for one in _FROM_CONTAINER if one == body.status.upper()), None)
        if not run and not body.task_id:
            raise Invalid(
                [Problem("task_id", "is required where the address has no ?run=", body.task_id)]
            )
        if not run and not by_address:
            raise NotAllowed(
                "report to the whole of system.callback, ?run= included",
                reason="RUN_TOKEN_REQUIRED",
            )
        run_id = run_of_token(run) if run else ""
        if run_id is None:
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        address = request.client.host if request.client else ""
        about = body.task_id, body.role, run_id, body.result_code, body.result_message, address
        work = partial(take, Callback(status, *about, shorten(body.status, 100)))
        if status is None:
            with suppress(GatewayError):  # of whichever run: the report is refused
                await on(limiters.news, sender, work)
            rule = f"must be one of {', '.join(_FROM_CONTAINER)}"
            raise Invalid([Problem("status", rule, body.status)], reason="STATUS_UNKNOWN")
        await on(limiters.news, sender, work)
        return ok()

    return router


def new_id(profiles: Iterable[Profile]) -> str:
    """Return a random job id that every node of the job can store."""
    longest = min((p.longest_job_id for p in profiles), default=PROFILES["spec"].longest_job_id)
    return f"job-{uuid4().hex}"[:longest]


KEYS = tuple(wire.ProviderKeys.model_fields)


def provider_router(providers: Providers, limiters: Limiters) -> APIRouter:
    """Return the paths of the provider registry."""
    router = APIRouter(tags=["providers"], route_class=Route)

    async def registered(
        request: Request,
        sender: Sender,
        single: bool = False,
    ) -> Written:
        """Register the body, which the registry parses itself: it accepts the standard's trailing commas."""
        text, by = await request.body(), _asking(request)

        def work() -> tuple[Written, dict[str, Any]]:
            done = providers.register(text, by, single=single)
            return done, audited(done)

        done, request.state.audit = await on(providers.limiter, sender, work)
        return done

    @router.post(
        "/v2/provider/register",
        summary="Register an image and the components it holds",
        openapi_extra=examples.REGISTER,
    )
    async def register(request: Request, sender: Sender) -> wire.OwnAnswer:
        """Registering the same name, version and device again replaces what was there."""
        done = await registered(request, sender)
        return wire.OwnAnswer(
            code=0, message="create success" if done.created else "update success"
        )

    @router.post(
        "/v1/platform/schedule/component/register",
        summary="Register one component (5.8)",
        openapi_extra=examples.REGISTER_COMPONENT,
    )
    async def register_component(request: Request, sender: Sender) -> Done:
        """The standard's form: one image, one component; it joins the others of its provider and version."""
        await registered(request, sender, single=True)
        return ok()

    @router.get(
        "/v2/provider/query", summary="Providers by any of name, device, version, provider_name"
    )
    async def query(request: Request, sender: Sender) -> wire.OwnList:
        keys = (await read(request, wire.ProviderKeys)).model_dump(exclude_none=True)
        found = await on(
            limiters.rest, sender, lambda: [_shown(p) for p in providers.registry.query(**keys)]
        )
        return wire.OwnList(
            code=0,
            message="success",
            data=found,
        )

    @router.post(
        "/v2/provider/delete",
        summary="Delete providers by any of name, device, version, provider_name",
    )
    async def delete(
        request: Request,
        sender: Sender,
        body: Annotated[wire.ProviderKeys, examples.DELETE],
    ) -> wire.OwnAnswer:
        """What running jobs use is retired instead: no new job gets it."""
        keys = body.model_dump(include=set(KEYS), exclude_none=True)
        if not keys:
            raise Invalid(
                [Problem("body", f"must hold at least one of {', '.join(KEYS)}", body.model_extra)]
            )
        by = _asking(request)
        gone = await on(limiters.rest, sender, lambda: providers.delete(by, **keys))
        request.state.audit = {"deleted": list(gone.deleted), "retired": list(gone.retired)}
        data: dict[str, Any] = {"deleted": len(gone.deleted)}
        message = f"deleted {len(gone.deleted)}"
        if gone.retired:
            message += f", retired {len(gone.retired)} that jobs still use"
            data["retired"] = list(gone.retired)
        return wire.OwnAnswer.model_validate(
            {
                "code": 0,
                "message": message,
                "data": data,
            }
        )

    return router


def _asking(request: Request) -> By:
    return asking(getattr(request.state, "operator", ""), getattr(request.state, "role", ""))


def _shown(provider: Any) -> dict[str, Any]:
    return {
        "name": provider.name,
        "version": provider.version,
        "device": provider.device,
        "provider_name": provider.key,
        "protocol": provider.protocol,
        "metadata": dict(provider.metadata),
        "components_description": {
            name: dict(c.document) for name, c in provider.components.items()
        },
        "warnings": [shown_problem(w) for w in provider.warnings],
    }


TASK = f"{SCHEDULE}/task"
LARGEST_NUMBER = 10**15


def _level(value: Any) -> Any:
    if not isinstance(value, str) or value.lower() not in LEVELS:
        raise PydanticCustomError("rule", "must be one of {levels}", {"levels": ", ".join(LEVELS)})
    return value.lower()


_Number = Annotated[
    int,
    Field(ge=0, le=LARGEST_NUMBER),
    BeforeValidator(lambda value: None if value == "" else str(value)),
]


class _LineQuery(BaseModel):
    task_id: str = Field(min_length=1, description="the task's id")
    log_level: Annotated[Level, BeforeValidator(_level)] = Field(
        description="debug for all lines, info for info and worse, error for errors alone"
    )
    role: str = Field(
        default="", description="guest or guest.0: only that role's lines, numbered separately"
    )


class _LogQuery(_LineQuery):
    start: _Number = Field(description="number of the first line, from 0")
    length: _Number | None = Field(
        default=None, description="how many lines at most; without it all to the end"
    )


def log_router(run_logs: RunLogs, limiters: Limiters) -> APIRouter:
    """Return the two paths; POST is accepted too."""
    router = APIRouter(tags=["platform"], route_class=Route)

    summary = "How many lines a task's log has by now"

    @_spelled(
        router,
        "/task/get_log_line",
        "GET",
        "POST",
        summary=summary,
        openapi_extra=described(_LineQuery),
    )
    async def get_log_line(request: Request, sender: Sender) -> wire.Answer[wire.LogLines]:
        """``data.num`` lines; ``data.roles`` says whose, where the node plays several roles in the task."""
        query = await read(request, _LineQuery)
        work = partial(run_logs.read, query.task_id, query.log_level, 0, 0, query.role)
        found = await on(limiters.rest, sender, work)
        return ok(wire.LogLines(num=found.total, **_about(found)))

    summary = "Lines of a task's log"

    @_spelled(
        router, "/task/get_log", "GET", "POST", summary=summary, openapi_extra=described(_LogQuery)
    )
    async def get_log(request: Request, sender: Sender) -> wire.Answer[wire.LogData]:
        """``data.data`` is the text of ``data.num`` lines.

        ``data.left_out`` more lines were requested but do not fit into one response: continue from ``data.next``.
        ``data.parts`` says of which role and stream the lines are, in their order. A line keeps its number for as
        long as the log is kept; lines of several roles stand in the order in which the node found them.
        """
        q = await read(request, _LogQuery)
        work = partial(run_logs.read, q.task_id, q.log_level, q.start, q.length, q.role)
        found = await on(limiters.rest, sender, work)
        whose = groupby(found.lines, key=lambda line: (line.party, line.stream))
        data = wire.LogData(
            data="".join(f"{line.text}\n" for line in found.lines),
            num=len(found.lines),
            start=found.start,
            next=found.next,
            left_out=found.left_out,
            parts=[
                {
                    "role": r,
                    "stream": s,
                    "num": sum(1 for _ in same),
                }
                for (r, s), same in whose
            ],
            **_about(found),
        )
        return ok(data)

    return router


def _about(found: Excerpt) -> dict[str, Any]:
    more = {"incomplete": found.incomplete} if found.incomplete else {}
    return {
        "roles": list(found.parties),
        "over": found.over,
        **more,
    }
