"""Paths for this node's platform (the standard's control layer 4), containers and providers.

Paths under ``/v1/platform/schedule`` are the standard's; our first users have ``/v2/schedule`` for
the same, and register images under ``/v2/provider``.

The standard leaves the details of logs open. Here lines are numbered from 0, their level is read as
in `gateway.data.logs`, and a node with several roles returns the lines of all of them unless
``role`` selects one.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from adapter.bfia import examples, translate, views, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.requests import (
    IDS_BYTES,
    Done,
    Sender,
    incoming,
    query_parameters,
    read,
    run_blocking,
)
from adapter.bfia.submitted import unknown_fields
from gateway.data.log_levels import LEVELS, Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import TaskStatus
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, shorten
from gateway.http.moments import parse_moment
from gateway.jobs.job_requests import JobRequests
from gateway.jobs.job_statuses import JobStatuses
from gateway.jobs.offers import ALL_SITES
from gateway.ports import Callback, JobSelection, Limiters
from gateway.providers.registration import (
    Providers,
    Requester,
    audit_detail,
    problem_as_json,
    requester_of,
)
from gateway.runtime.context import acting_user, new_trace_id
from provider_registry.registry import Written

E = TypeVar("E", bound=Callable[..., Any])

SCHEDULE = "/v1/platform/schedule"
SCHEDULE_V2 = "/v2/schedule"  # the first users' spelling of SCHEDULE
_PROVIDER_KEYS = tuple(wire.ProviderKeys.model_fields)  # fields that select providers
_LARGEST_NUMBER = 10**15  # the largest accepted `start` or `length` of an excerpt from a log
_MOST_LISTED_JOBS = 100_000  # the largest accepted `limit` of a list of jobs
_CONTAINER_STATES = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)
_LONGEST_WARNINGS = 4000  # characters of a header with warnings; proxies refuse long headers
_LONGEST_STATUS = 100  # characters of a callback's unknown status that are logged


_RepeatKey = Annotated[
    str,
    Header(
        pattern=r"^[\x21-\x7e]*$",
        max_length=255,
        description=(
            "Chosen by the client, once for each job: a repeated submission with the same key and "
            "body creates no second job."
        ),
    ),
]


def _repeat_key_of(node: NodeId, key: str) -> str:
    """Return a submission's key among those of all persons and nodes; "" without a key.

    Two persons who choose the same key submit two jobs.
    """
    if not key:
        return ""
    return json.dumps([node, acting_user(), key])


def _warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    """Return the headers with a job's warnings: their number, and the first ones as a JSON list.

    JSON in ASCII, as a header takes nothing else; whole warnings, up to `_LONGEST_WARNINGS`.
    """
    listed: list[str] = []
    text = "[]"
    for warning in warnings:
        longer = json.dumps([*listed, warning])
        if len(longer) > _LONGEST_WARNINGS:
            break
        listed.append(warning)
        text = longer
    return {
        "x-job-warning-count": str(len(warnings)),
        "x-job-warnings": text,
    }


def _serve(
    router: APIRouter,
    path: str,
    *methods: str,
    **options: Any,
) -> Callable[[E], E]:
    """Serve a path below both `SCHEDULE` and `SCHEDULE_V2`.

    OpenAPI lists only the former, with the first of ``methods``.
    """

    def add(endpoint: E) -> E:
        for base in (SCHEDULE, SCHEDULE_V2):
            for method in methods:
                router.add_api_route(
                    base + path,
                    endpoint,
                    methods=[method],
                    include_in_schema=base == SCHEDULE and method == methods[0],
                    **options,
                )
        return endpoint

    return add


def _without_empty(value: object) -> object:
    """Return the value of an optional number; None for an empty text, as for an absent one."""
    if value == "":
        return None
    return value


class _ListQuery(BaseModel):
    """The parameters of ``query_job_list``; the standard has the first one alone."""

    # The empty text selects the flow with the empty id; without the parameter, all flows count.
    flow_id: str | None = Field(default=None, description="only this flow")
    since: Annotated[datetime | None, BeforeValidator(parse_moment)] = Field(
        default=None,
        description="extension: only jobs created from this time on, such as 2026-11-21T08:00Z",
    )
    limit: Annotated[int | None, BeforeValidator(_without_empty)] = Field(
        default=None,
        ge=1,
        le=_MOST_LISTED_JOBS,
        description="extension: only this number of jobs, the newest",
    )


def operator_router(
    requests: JobRequests,
    statuses: JobStatuses,
    own_node: NodeId,
    coordinator_node: NodeId,
    limiters: Limiters,
    expand_sites: Callable[[JobSpec], JobSpec],
    ids_bytes: int = IDS_BYTES,
) -> APIRouter:
    """Return the paths for this node's own platform; ``coordinator_node`` schedules its jobs.

    ``expand_sites`` replaces `ALL_SITES` in a job by the nodes of the job's project. ``ids_bytes``
    limits the bodies of requests that carry only ids, not a whole job.
    """
    router = APIRouter(tags=["platform"], route_class=Route)

    @_serve(router, "/job/create_all", "POST", summary="Submit a job")
    async def create_all(
        request: Request,
        sender: Sender,
        body: Annotated[wire.CreateAll, examples.CREATE_ALL],
        idempotency_key: _RepeatKey = "",
    ) -> wire.Answer[wire.JobData]:
        """Create a job at every node that it names.

        Responds when all have accepted it, or one refused. Warnings of this node are in the header
        `x-job-warnings`, as the standard's body has no place for them. A request that repeats the
        key and the body of an earlier one gets that one's job.
        """
        trace_id = sender.trace_id or new_trace_id()
        spec = translate.job_spec(
            body,
            job_id="",  # set below, once the parties are known
            scheduler=coordinator_node,
            trace_id=trace_id,
        )
        if any(party.node == ALL_SITES for party in spec.parties):
            spec = await run_blocking(limiters.rest, sender, partial(expand_sites, spec))
        peers = {coordinator_node, *spec.nodes} - {own_node}
        job_id = requests.new_id(peers, _repeat_key_of(own_node, idempotency_key))
        spec = replace(
            spec,
            job_id=job_id,
            unknown_fields=unknown_fields(body),
        )
        # Another node that schedules the job may choose a different id.
        job_id = await run_blocking(limiters.peers, sender, partial(requests.submit, spec))
        request.state.answered = {"job_id": job_id}  # the audit log names the new job
        warnings = await run_blocking(limiters.rest, sender, partial(statuses.warnings, job_id))
        if warnings:
            request.state.headers = _warning_headers(warnings)
        return ok(wire.JobData(job_id=job_id))

    @_serve(
        router,
        "/job/status_all",
        "GET",
        "POST",
        summary="State of a job and of all its tasks",
        openapi_extra=query_parameters(wire.JobQuery),
        max_body_size=ids_bytes,
    )
    async def status_all(request: Request) -> wire.Answer[wire.StatusData]:
        query = await read(request, wire.JobQuery)
        sender = incoming(request)
        view = await run_blocking(
            limiters.rest,
            sender,
            partial(statuses.status_here, query.job_id),
        )
        if view is None:  # another node has the job, and may be slow
            view = await run_blocking(
                limiters.peers,
                sender,
                partial(statuses.status, query.job_id),
            )
        warnings = await run_blocking(
            limiters.rest,
            sender,
            partial(statuses.warnings, query.job_id, view.warnings),
        )
        view = replace(view, warnings=tuple(warnings))
        return ok(wire.StatusData(**views.status_body(view)))

    @_serve(
        router,
        "/job/stop_all",
        "POST",
        summary="Stop a job at every node",
        max_body_size=ids_bytes,
    )
    async def stop_all(
        body: Annotated[wire.StopAll, examples.STOP_ALL],
        sender: Sender,
    ) -> Done:
        """Stop a job, or with `task_name` one task and all tasks that follow it (3.5, 5.2).

        Any node may schedule the job. Tasks that are over stay as they are; a second stop changes
        nothing.
        """
        await run_blocking(
            limiters.peers,
            sender,
            partial(requests.stop, body.job_id, body.task_name),
        )
        return ok()

    @_serve(
        router,
        "/job/stop_task",
        "POST",
        summary="Stop a task, and all that needs its output, at every node",
        max_body_size=ids_bytes,
    )
    async def stop_task(
        body: Annotated[wire.StopTaskOfJob, examples.STOP_TASK_OF_JOB], sender: Sender
    ) -> Done:
        """Stop one task and all tasks that follow it.

        Other branches go on; the job ends when nothing is left to run.
        """
        await run_blocking(
            limiters.peers,
            sender,
            partial(requests.stop, body.job_id, body.task_name),
        )
        return ok()

    @_serve(
        router,
        "/job/query_job_list",
        "GET",
        summary="All jobs of a flow, or all jobs",
        openapi_extra=query_parameters(_ListQuery),
        max_body_size=ids_bytes,
    )
    async def query_job_list(request: Request) -> wire.Answer[wire.JobList]:
        query = await read(request, _ListQuery)
        selection = JobSelection(query.flow_id, query.since, query.limit)
        states = await run_blocking(
            limiters.peers,
            incoming(request),
            partial(statuses.jobs, selection),
        )
        return ok(wire.JobList(job_list=dict(states)))

    return router


def container_router(
    take: Callable[[Callback], None],
    limiters: Limiters,
    run_of_token: Callable[[str], str | None] = str,  # by default a token is the run's id itself
    *,
    by_address: bool = True,
) -> APIRouter:
    """Return the path for the callbacks of containers.

    ``run_of_token`` returns the run of a callback's token, None for an unknown token;
    ``by_address``: a callback without a token may be recognised by its container's address.
    """
    router = APIRouter(tags=["container"], route_class=Route)

    @router.post(f"{SCHEDULE}/task/callback", summary="A container reports its state")
    async def task_callback(
        request: Request,
        body: Annotated[wire.ContainerCallback, examples.CALLBACK],
        sender: Sender,
        token: str = Query(
            default="",
            alias="run",
            description="the run's token; part of the address that the container got",
        ),
    ) -> Done:
        callback = Callback(
            status=_container_status(body.status),
            task_id=body.task_id,
            role=body.role,
            run_id=run_of(token, body.task_id),
            result_code=body.result_code,
            result_message=body.result_message,
            address=request.client.host if request.client else "",
            word=shorten(body.status, _LONGEST_STATUS),
        )
        if callback.status is None:
            # ``take`` adds a warning to the run. If it fails, its error is dropped, as the response
            # is STATUS_UNKNOWN in any case.
            with suppress(GatewayError):
                await run_blocking(limiters.news, sender, partial(take, callback))
            rule = f"must be one of {', '.join(_CONTAINER_STATES)}"
            raise Invalid(
                [Problem("status", rule, body.status)],
                reason="STATUS_UNKNOWN",
            )
        await run_blocking(limiters.news, sender, partial(take, callback))
        return ok()

    def run_of(token: str, task_id: str) -> str:
        """Return the id of a token's run; empty without a token: the address shows the run.

        Raises `Invalid` if both token and task id are missing, `NotAllowed` if a token is required,
        and `NotFound` for an unknown token.
        """
        if not token and not task_id:
            rule = "is required if the URL has no ?run="
            raise Invalid([Problem("task_id", rule, task_id)])
        if not token and not by_address:
            raise NotAllowed(
                "report to the whole of system.callback, ?run= included",
                reason="RUN_TOKEN_REQUIRED",
            )
        if not token:
            return ""
        run_id = run_of_token(token)
        if run_id is None:
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        return run_id

    return router


def _container_status(text: str) -> TaskStatus | None:
    """Return the state that a container reports; None for any other word."""
    word = text.upper()
    if word not in _CONTAINER_STATES:
        return None
    return TaskStatus(word)


def provider_router(providers: Providers, limiters: Limiters) -> APIRouter:
    """Return the paths of the provider registry."""
    router = APIRouter(tags=["providers"], route_class=Route)

    async def register_body(
        request: Request,
        sender: Sender,
        single: bool = False,
    ) -> Written:
        """Register the provider, or with ``single`` the one component, in the body.

        The registry parses the body, as it accepts the trailing commas of the standard's examples.
        """
        text = await request.body()
        by = _requester(request)

        def register_and_audit() -> tuple[Written, dict[str, Any]]:
            written = providers.register(text, by, single=single)
            return written, audit_detail(written)

        written, request.state.audit = await run_blocking(
            providers.limiter, sender, register_and_audit
        )
        return written

    @router.post(
        "/v2/provider/register",
        summary="Register an image and its components",
        openapi_extra=examples.REGISTER,
    )
    async def register(request: Request, sender: Sender) -> wire.UsersAnswer:
        """A registration of the same name, version and device replaces the former one."""
        written = await register_body(request, sender)
        message = "update success"
        if written.created:
            message = "create success"
        return wire.UsersAnswer(code=0, message=message)

    @router.post(
        "/v1/platform/schedule/component/register",
        summary="Register one component (5.8)",
        openapi_extra=examples.REGISTER_COMPONENT,
    )
    async def register_component(request: Request, sender: Sender) -> Done:
        """The standard's form: one image with one component.

        The component is added to the others of the same provider and version.
        """
        await register_body(request, sender, single=True)
        return ok()

    @router.get(
        "/v2/provider/query", summary="Providers by any of name, device, version, provider_name"
    )
    async def query(request: Request, sender: Sender) -> wire.UsersList:
        query = await read(request, wire.ProviderKeys)
        keys = query.model_dump(exclude_none=True)

        def matching_providers() -> list[dict[str, Any]]:
            return [_provider_body(provider) for provider in providers.registry.query(**keys)]

        matching = await run_blocking(limiters.rest, sender, matching_providers)
        return wire.UsersList(
            code=0,
            message="success",
            data=matching,
        )

    @router.post(
        "/v2/provider/delete",
        summary="Delete providers by any of name, device, version, provider_name",
    )
    async def delete(
        request: Request,
        sender: Sender,
        body: Annotated[wire.ProviderKeys, examples.DELETE],
    ) -> wire.UsersAnswer:
        """A provider that unfinished jobs use is retired instead: no new job gets it."""
        keys = body.model_dump(
            include=set(_PROVIDER_KEYS),
            exclude_none=True,
        )
        if not keys:
            rule = f"must hold at least one of {', '.join(_PROVIDER_KEYS)}"
            raise Invalid([Problem("body", rule, body.model_extra)])
        work = partial(providers.delete, _requester(request), **keys)
        removed = await run_blocking(limiters.rest, sender, work)
        request.state.audit = {
            "deleted": list(removed.deleted),
            "retired": list(removed.retired),
        }
        data: dict[str, Any] = {"deleted": len(removed.deleted)}
        message = f"deleted {len(removed.deleted)}"
        if removed.retired:
            message += f", retired {len(removed.retired)} that jobs still use"
            data["retired"] = list(removed.retired)
        return wire.UsersAnswer.model_validate({"code": 0, "message": message, "data": data})

    return router


def _requester(request: Request) -> Requester:
    """Return who changes providers: the person or program to whom the request's token belongs."""
    operator = getattr(request.state, "operator", "")
    role = getattr(request.state, "role", "")
    return requester_of(operator, role)


def _provider_body(provider: Any) -> dict[str, Any]:
    """Return a provider as our first users' interface describes it."""
    components = {name: dict(component.document) for name, component in provider.components.items()}
    return {
        "name": provider.name,
        "version": provider.version,
        "device": provider.device,
        "provider_name": provider.key,
        "protocol": provider.protocol,
        "metadata": dict(provider.metadata),
        "components_description": components,
        "warnings": [problem_as_json(warning) for warning in provider.warnings],
    }


def _level(value: Any) -> Any:
    """Return a level of log lines in lower case.

    A pydantic validator, which raises PydanticCustomError for any other value.
    """
    if not isinstance(value, str) or value.lower() not in LEVELS:
        raise PydanticCustomError("rule", "must be one of {levels}", {"levels": ", ".join(LEVELS)})
    return value.lower()


def _number_text(value: Any) -> str | None:
    """Return a number as text, so that JSON and query strings are parsed alike.

    None for "", which is then refused as not a number.
    """
    if value == "":
        return None
    return str(value)


_Number = Annotated[int, Field(ge=0, le=_LARGEST_NUMBER), BeforeValidator(_number_text)]


class _LineQuery(BaseModel):
    """The parameters of ``get_log_line``."""

    task_id: str = Field(min_length=1, description="the task's id")
    log_level: Annotated[Level, BeforeValidator(_level)] = Field(
        description="debug for all lines, info for info and worse, error for errors alone"
    )
    role: str = Field(
        default="", description="guest or guest.0: only that role's lines, numbered separately"
    )


class _LogQuery(_LineQuery):
    """The parameters of ``get_log``."""

    start: _Number = Field(description="number of the first line, from 0")
    length: _Number | None = Field(
        default=None, description="how many lines at most; without it all to the end"
    )


def log_router(run_logs: RunLogs, limiters: Limiters) -> APIRouter:
    """Return the two paths of logs; POST is accepted too."""
    router = APIRouter(tags=["platform"], route_class=Route)

    @_serve(
        router,
        "/task/get_log_line",
        "GET",
        "POST",
        summary="How many lines a task's log has by now",
        openapi_extra=query_parameters(_LineQuery),
    )
    async def get_log_line(
        request: Request,
        sender: Sender,
    ) -> wire.Answer[wire.LogLines]:
        """``data.num`` is the number of lines.

        ``data.roles`` lists the roles whose lines count, as the node may play several in the task.
        """
        query = await read(request, _LineQuery)
        # An excerpt without lines: only its total is needed.
        work = partial(
            run_logs.read, query.task_id, query.log_level, start=0, length=0, role=query.role
        )
        excerpt = await run_blocking(limiters.rest, sender, work)
        return ok(wire.LogLines(num=excerpt.total, **_log_fields(excerpt)))

    @_serve(
        router,
        "/task/get_log",
        "GET",
        "POST",
        summary="Lines of a task's log",
        openapi_extra=query_parameters(_LogQuery),
    )
    async def get_log(
        request: Request,
        sender: Sender,
    ) -> wire.Answer[wire.LogData]:
        """``data.data`` is the text of ``data.num`` lines.

        ``data.left_out`` more lines were requested but do not fit into one response: continue from
        ``data.next``. ``data.parts`` lists the role and the stream of consecutive lines, in the
        order of the lines. A line keeps its number for as long as the log is kept; lines of several
        roles are in the order in which the node found them.
        """
        query = await read(request, _LogQuery)
        work = partial(
            run_logs.read, query.task_id, query.log_level, query.start, query.length, query.role
        )
        excerpt = await run_blocking(limiters.rest, sender, work)
        data = wire.LogData(
            data="".join(f"{line.text}\n" for line in excerpt.lines),
            num=len(excerpt.lines),
            start=excerpt.start,
            next=excerpt.next,
            left_out=excerpt.left_out,
            parts=_log_parts(excerpt),
            **_log_fields(excerpt),
        )
        return ok(data)

    return router


def _log_parts(excerpt: Excerpt) -> list[dict[str, Any]]:
    """Return the sections of consecutive lines with the same role and stream."""
    parts = []
    for (role, stream), lines in groupby(excerpt.lines, key=attrgetter("party", "stream")):
        parts.append({"role": role, "stream": stream, "num": len(list(lines))})
    return parts


def _log_fields(excerpt: Excerpt) -> dict[str, Any]:
    """Return the fields that the responses of both log paths have in common."""
    fields: dict[str, Any] = {
        "roles": list(excerpt.parties),
        "over": excerpt.over,  # the log will not grow any more
    }
    if excerpt.incomplete:
        fields["incomplete"] = excerpt.incomplete
    return fields
