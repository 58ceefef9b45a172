"""``/api/v1`` about running a node: health, engine, resources, draining, audit log, settings."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import Body, Depends, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import Field

from engines.base import Engine, EngineError, Missing, labels
from engines.multi import SeveralEngines
from engines.process.supervisor import identity
from gateway.admin.deps import (
    AfterNumber,
    Empty,
    Input,
    Limit,
    Reply,
    Since,
    Until,
    api_router,
    content,
    record_change,
    service,
)
from gateway.admin.responses import node as responses
from gateway.broker.broker import Broker
from gateway.config.report import effective
from gateway.config.schema import Settings
from gateway.errors import EngineFailed
from gateway.http.pagination import numbered_page
from gateway.identity.audit_chain import HEAD
from gateway.jobs.admission import Admission
from gateway.jobs.drain import Drain
from gateway.jobs.resources import Resources
from gateway.jobs.retention import Cleaner, Item
from gateway.language.catalogue import LANGUAGE, translate
from gateway.runtime.metrics import Metrics
from gateway.runtime.trials import Step, has_passed
from gateway.store.audit import AuditEntry, SqlAudit
from gateway.store.store import KnownRun, Store
from route_table.live import LiveRoutes


class Clean(Input):
    """What to remove."""

    orphans: bool = Field(default=False, description="also remove what the database does not know")
    dry_run: bool = Field(default=False, description="only say what would be removed")


class DrainOrder(Input):
    """How to drain the node."""

    running: Literal["wait", "stop"] = Field(
        default="wait", description="wait for the end of the jobs under way, or stop them"
    )
    exit: bool = Field(
        default=True, description="end the process when no job is under way any more"
    )


# Actions in the audit log that are not requests, so that `_meaning` returns them unchanged.
_COMMANDS = (
    "token create",
    "token revoke",
    "identity rotate",
    "restore",
    "login",
    HEAD,
    "application changed by a partner",
    "route changed by a contract",
)
_AUDITED_DRAIN_FIELDS = ("draining", "running", "exit")
_MAX_AUDITED = 100  # removed items that one entry of the audit log names
_DOCTOR_LOCK = Lock()  # one examination at a time
_CLEAN_EXAMPLES = {
    "only look": Example(value={"dry_run": True}),
    "clean": Example(value={}),
}
_DRAIN_EXAMPLES = {
    "wait, stay up": Example(value={"running": "wait", "exit": False}),
    "wait, then exit": Example(value={}),
}


@dataclass(frozen=True)
class HealthServices:
    """The services that the paths of health and metrics use."""

    # Names this gateway instance with its main engine, as `Run.owner` does: several gateways of a
    # node may share its database.
    owner: str
    store: Store
    engine: Engine
    admission: Admission
    routes: LiveRoutes
    broker: Broker
    metrics: Metrics


@dataclass(frozen=True)
class NodeServices:
    """The services that the other paths of the node use."""

    settings: Settings
    owner: str  # as in `HealthServices`
    store: Store
    audit: SqlAudit
    engine: Engine
    resources: Resources
    cleaner: Cleaner
    drain: Drain
    doctor: Callable[[], Sequence[Step]]  # checks everything that the node needs
    endpoints: Sequence[APIRoute]  # of every listener


_HealthServices = Annotated[HealthServices, Depends(service(HealthServices))]
_NodeServices = Annotated[NodeServices, Depends(service(NodeServices))]
health_router = api_router(prefix="")
router = api_router()


@health_router.get(
    "/health/live",
    summary="The process responds",
    response_model=responses.Live,
)
async def live() -> Response:
    return Reply({"status": "ok"})


@health_router.get(
    "/health",
    summary="Jobs can be taken; what is wrong",
    response_model=responses.Ready,
    include_in_schema=False,
)
@health_router.get(
    "/health/ready",
    summary="Jobs can be taken; what is wrong",
    response_model=responses.Ready,
    responses={503: {"model": responses.Ready, "description": "Not ready."}},
)
def ready(services: _HealthServices) -> Response:
    checks = _checks(services)
    is_ready = all(check["ok"] for check in checks.values())
    status = 200
    if not is_ready:
        status = 503
    return Reply({"ready": is_ready, "checks": checks}, status)


@health_router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses=content("text/plain"),
)
def metrics(services: _HealthServices) -> Response:
    return Response(
        services.metrics.text(),
        media_type=services.metrics.content_type,
    )


@router.get(
    "/engine",
    summary="What runs algorithms, and what they cannot reach",
    response_model=responses.Engine,
)
def engine(services: _NodeServices) -> Response:
    main = services.engine
    engines = []
    if isinstance(main, SeveralEngines):
        for name, further in main.further.items():
            engines.append({"name": name, **_describe(further)})
    return Reply({**_describe(main), "engines": engines})


@router.get(
    "/doctor",
    summary="All that the node needs, checked step by step, as `doctor` does",
    response_model=responses.DoctorSteps,
)
def doctor(services: _NodeServices) -> Response:
    """Takes some seconds and changes nothing."""
    with _DOCTOR_LOCK:
        steps = services.doctor()
    return Reply({"good": has_passed(steps), "steps": steps})


@router.get(
    "/orphans",
    summary="Runs that only the engine or only the store knows of",
    response_model=responses.Orphans,
)
def orphans(services: _NodeServices) -> Response:
    return Reply(_orphans(services.store, services.engine, services.owner))


@router.get(
    "/resources",
    summary="What this node has, who holds it, who waits",
    response_model=responses.Resources,
)
def resources(services: _NodeServices) -> Response:
    return Reply(services.resources.view())


@router.get(
    "/gc",
    summary="What cleaning would remove now",
    response_model=responses.Items,
)
def plan(
    services: _NodeServices,
    orphans: Annotated[bool, Query(description="also what the database does not know")] = False,
) -> Response:
    return _reply_items(services.cleaner.plan(orphans=orphans))


@router.post(
    "/gc",
    summary="Remove leftovers past their retention",
    response_model=responses.Items,
)
def clean(
    request: Request,
    services: _NodeServices,
    body: Annotated[Clean, Body(openapi_examples=_CLEAN_EXAMPLES)] = Clean(),
) -> Response:
    """``removed`` says of each item whether it is gone, ``cause`` why it is not."""
    if body.dry_run:
        items = services.cleaner.plan(orphans=body.orphans)
    else:
        items = services.cleaner.clean(orphans=body.orphans)
    names = [f"{item.kind} {item.name}" for item in items[:_MAX_AUDITED]]
    record_change(request, before=names, after=None, dry_run=body.dry_run)
    return _reply_items(items)


@router.get(
    "/drain",
    summary="Whether the node is being drained, and what is left",
    response_model=responses.Draining,
)
def draining(services: _NodeServices) -> Response:
    """``process``: a record by which a client on this machine tells whether the node has exited."""
    return _reply_drain_state(services.drain)


@router.post(
    "/drain",
    summary="Drain the node: accept no new jobs, exit once the running ones have ended",
    response_model=responses.Draining,
)
def begin(
    request: Request,
    services: _NodeServices,
    body: Annotated[DrainOrder, Body(openapi_examples=_DRAIN_EXAMPLES)] = DrainOrder(),
) -> Response:
    """New jobs are refused with reason DRAINING, here and towards other nodes.

    The order is not stored: a restarted node takes jobs again.
    """
    before = services.drain.state()
    after = services.drain.begin(
        stop_jobs=body.running == "stop",
        exit_when_empty=body.exit,
    )
    _record_drain(request, before, after)
    return _reply_drain_state(services.drain)


@router.post(
    "/undrain",
    summary="Accept new jobs again",
    response_model=responses.Draining,
)
def undo(
    request: Request,
    services: _NodeServices,
    body: Empty = None,
) -> Response:
    before = services.drain.state()
    after = services.drain.undo()
    _record_drain(request, before, after)
    return _reply_drain_state(services.drain)


@router.get(
    "/audit",
    summary="Who requested which change, and its result",
    response_model=responses.AuditPage,
)
def audit(
    services: _NodeServices,
    after: AfterNumber = None,
    limit: Limit = 100,
    who: Annotated[str | None, Query(description="only by this person or node")] = None,
    action: Annotated[
        str | None, Query(description="only if the action or its meaning contains this text")
    ] = None,
    since: Since = None,
    until: Until = None,
    refused: Annotated[
        bool | None,
        Query(description="true: only refused changes; false: only changes that were made"),
    ] = None,
) -> Response:
    """``detail`` has the values ``before`` and ``after`` the change, and in ``asked`` the ids that
    the request named.
    """
    endpoints = services.endpoints

    def show(entry: AuditEntry) -> dict[str, Any]:
        return {**vars(entry), "in_words": _meaning(endpoints, entry.action)}

    patterns = []
    if action:
        patterns = _matching_actions(endpoints, action)
    entries = services.audit.list(
        before=after,  # the newest entry comes first
        limit=limit + 1,  # one more shows that there is a next page
        who=who,
        action=action,
        since=since,
        until=until,
        refused=refused,
        patterns=patterns,
    )
    return Reply(numbered_page("audit", entries, limit, "id", show))


@router.get(
    "/settings",
    summary="Every setting in force, and where it comes from",
    response_model=responses.Settings,
    name="shown",
)
def settings(services: _NodeServices) -> Response:
    """``origin``: default, file (``where``: file and line), environment (the variable), or command;
    ``changed``: the value is not the default.

    Secrets and passwords are masked.
    """
    return Reply({"settings": effective(services.settings)})


def _checks(services: HealthServices) -> dict[str, dict[str, Any]]:
    """Return the result of each check by its name, with ``ok`` and further fields."""
    checks = {
        "database": _database_check(services.store),
        "engine": _engine_check(services.engine),
        "storage": _storage_check(services.admission),
        "routes": _routes_check(services.routes),
    }
    if checks["engine"]["ok"] and checks["database"]["ok"]:
        checks["orphans"] = _orphans_check(services)
    checks["channel"] = {"ok": True, **services.broker.usage()._asdict()}
    return checks


def _database_check(store: Store) -> dict[str, Any]:
    try:
        store.jobs.find("")  # reads the database
    except Exception as error:  # whatever the driver raises, readiness is a yes or a no
        return {"ok": False, "cause": type(error).__name__}
    return {"ok": True}


def _engine_check(engine: Engine) -> dict[str, Any]:
    try:
        engine.check()
    except EngineError as error:
        return {
            "ok": False,
            "kind": engine.kind,
            "cause": f"{error.reason}: {error}",
        }
    return {"ok": True, "kind": engine.kind}


def _storage_check(admission: Admission) -> dict[str, Any]:
    failures = [f"{failure.reason}: {failure.text}" for failure in admission.failures()]
    if failures:
        return {"ok": False, "cause": "; ".join(failures)}
    return {"ok": True}


def _routes_check(routes: LiveRoutes) -> dict[str, Any]:
    """Return the state of the route table.

    It is "ok" even with an unusable file, as the last valid table then stays in force.
    """
    problems = [str(problem) for problem in routes.problems]
    state_of_file = "ok"
    if problems:
        state_of_file = "refused"
    return {
        "ok": True,
        "nodes": len(routes.table.routes),
        "file": state_of_file,
        "problems": problems,
    }


def _orphans_check(services: HealthServices) -> dict[str, Any]:
    """Return the numbers of orphans, which do not make a node unready."""
    try:
        orphans = _orphans(services.store, services.engine, services.owner)
    except EngineFailed as error:
        return {"ok": True, "cause": f"{error.reason}: {error.message}"}
    counts = {kind: len(runs) for kind, runs in orphans.items()}
    return {"ok": True, **counts}


def _describe(engine: Engine) -> dict[str, Any]:
    """Return an engine's kind and capabilities, and its isolation if it answers."""
    description: dict[str, Any] = {
        "kind": engine.kind,
        "capabilities": sorted(engine.capabilities),
    }
    try:
        engine.check()
        isolation = engine.isolation()
    except EngineError as error:
        return {
            **description,
            "answers": False,
            "cause": f"{error.reason}: {error}",
            "isolation": None,
        }
    return {
        **description,
        "answers": True,
        "isolation": isolation,
    }


def _orphans(
    store: Store,
    engine: Engine,
    owner: str,
) -> dict[str, list[dict[str, Any]]]:
    """Return ``unknown`` (in the engine, not in the store) and ``lost`` (the other way round).

    Runs of other nodes and installations on the same engine do not count, nor do lost runs of
    this node's other gateways. Raises `EngineFailed`.
    """
    # The store is read first: otherwise a run that starts in between would count as lost.
    expected = store.launched(owner)
    try:
        containers = {container.name: container for container in engine.list()}
    except EngineError as error:
        raise EngineFailed(str(error), reason=error.reason) from error
    unknown = []
    for name, container in sorted(containers.items()):
        if store.job_of_container(name) is None:
            state = type(container.probe).__name__.lower()
            unknown.append(_orphan_fields(name, state, container.labels))
    missing = [run for run in expected if run.name not in containers]
    return {
        "unknown": unknown,
        "lost": _lost(store, engine, owner, missing),
    }


def _lost(
    store: Store,
    engine: Engine,
    owner: str,
    missing: Sequence[KnownRun],
) -> list[dict[str, Any]]:
    """Return those of the missing runs that no engine has and that have not ended by now."""
    lost = [run for run in missing if _is_lost(engine, run.name)]
    if not lost:
        return []
    unended = {run.name for run in store.launched(owner)}
    orphans = []
    for run in lost:
        if run.name in unended:
            # The labels of its container, as far as `_orphan_fields` reads them.
            run_labels = labels(
                node="",
                installation="",
                job=run.job_id,
                task=run.task_id,
                role=run.role,
                index=run.index,
                attempt=run.attempt,
            )
            orphans.append(_orphan_fields(run.name, run.status, run_labels))
    return orphans


def _is_lost(engine: Engine, name: str) -> bool:
    """Return whether no engine has a run; False if one does not answer, as it may have the run."""
    try:
        return isinstance(engine.probe(name), Missing)
    except EngineError:
        return False


def _orphan_fields(
    name: str,
    state: str,
    run_labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return an orphan as responses show it; ``run_labels`` are the ones that its container has."""
    identity_fields = {}
    for key in ("job", "task", "role", "index", "attempt"):
        identity_fields[key] = run_labels.get(f"bfia.{key}")
    return {
        "name": name,
        "state": state,
        **identity_fields,
    }


def _reply_items(items: list[Item]) -> Response:
    """Reply with items and their size."""
    return Reply({"items": items, "bytes": sum(item.bytes for item in items)})


def _reply_drain_state(drain: Drain) -> Response:
    """Reply with the state of the drain and this process."""
    return Reply({**drain.state(), "process": identity(os.getpid())})


def _record_drain(
    request: Request,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    """Record a change of the order to drain for the audit log."""
    record_change(
        request,
        {field: before[field] for field in _AUDITED_DRAIN_FIELDS},
        {field: after[field] for field in _AUDITED_DRAIN_FIELDS},
    )


def _meaning(endpoints: Sequence[APIRoute], action: str) -> str:
    """Return the summary of a request's endpoint; any other action as it is."""
    method, _, path = action.partition(" ")
    for endpoint in endpoints:
        takes_method = method in (endpoint.methods or ())
        if takes_method and endpoint.summary and endpoint.path_regex.match(path):
            return str(endpoint.summary)
    return action


def _matching_actions(endpoints: Sequence[APIRoute], text: str) -> list[str]:
    """Return the actions whose meaning, in the reader's language, contains a text.

    They are patterns of SQL, with % in place of each parameter in the path of a request.
    """
    meanings = {command: command for command in _COMMANDS}
    for endpoint in endpoints:
        pattern = re.sub("{[^}]*}", "%", endpoint.path)
        for method in endpoint.methods or ():
            meanings[f"{method} {pattern}"] = str(endpoint.summary)
    language = LANGUAGE.get()
    searched = text.lower()
    return [
        action
        for action, meaning in meanings.items()
        if searched in translate(meaning, language).lower()
    ]
