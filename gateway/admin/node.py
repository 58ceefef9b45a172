"""``/api/v1`` about running a node: health, engine, resources, draining, audit and settings."""

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

    orphans: bool = False  # also what the database has no record of
    dry_run: bool = False  # remove nothing, only return what would be removed


class DrainOrder(Input):
    """How to drain the node."""

    running: Literal["wait", "stop"] = "wait"  # for the jobs under way, or stop them
    exit: bool = True  # end the process when no job is under way any more


# Actions in the audit log that are not requests.
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
_DRAIN_FIELDS = ("draining", "running", "exit")  # of a drain, in the audit log
_DOCTOR_LOCK = Lock()  # one examination at a time
_CLEAN = {
    "only look": Example(value={"dry_run": True}),
    "clean": Example(value={}),
}
_DRAIN = {
    "wait, stay up": Example(value={"running": "wait", "exit": False}),
    "wait, then exit": Example(value={}),
}


@dataclass(frozen=True)
class HealthServices:
    """The services that the paths of health and metrics use."""

    owner: str  # gateway instance and engine, which own runs where gateways share a database
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
    return Reply({"ready": is_ready, "checks": checks}, 200 if is_ready else 503)


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
    further = main.further if isinstance(main, SeveralEngines) else {}
    engines = [{"name": name, **_describe(engine)} for name, engine in further.items()]
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
    orphans: Annotated[bool, Query(description="also what the database knows nothing of")] = False,
) -> Response:
    return _items(services.cleaner.plan(orphans=orphans))


@router.post(
    "/gc",
    summary="Remove what has outlived its end or its time",
    response_model=responses.Items,
)
def clean(
    request: Request,
    services: _NodeServices,
    body: Annotated[Clean, Body(openapi_examples=_CLEAN)] = Clean(),
) -> Response:
    """``removed`` says of each whether it is gone; ``cause`` why not.

    ``dry_run``: none is removed.
    """
    if body.dry_run:
        items = services.cleaner.plan(orphans=body.orphans)
    else:
        items = services.cleaner.clean(orphans=body.orphans)
    names = [f"{item.kind} {item.name}" for item in items[:100]]
    record_change(request, names, None, dry_run=body.dry_run)
    return _items(items)


@router.get(
    "/drain",
    summary="Whether the node is being drained, and what is left",
    response_model=responses.Draining,
)
def draining(services: _NodeServices) -> Response:
    """``process``: by which a client on this machine tells that it has exited."""
    return _drain_state(services.drain)


@router.post(
    "/drain",
    summary="Take no new jobs; exit once nothing is under way",
    response_model=responses.Draining,
)
def begin(
    request: Request,
    services: _NodeServices,
    body: Annotated[DrainOrder, Body(openapi_examples=_DRAIN)] = DrainOrder(),
) -> Response:
    """New jobs are refused with reason DRAINING, here and towards other nodes.

    Forgotten by a restart.
    """
    before = services.drain.state()
    after = services.drain.begin(
        stop_jobs=body.running == "stop",
        exit_when_empty=body.exit,
    )
    _note_drain(request, before, after)
    return _drain_state(services.drain)


@router.post(
    "/undrain",
    summary="Take new jobs again",
    response_model=responses.Draining,
)
def undo(
    request: Request,
    services: _NodeServices,
    body: Empty = None,
) -> Response:
    before = services.drain.state()
    after = services.drain.undo()
    _note_drain(request, before, after)
    return _drain_state(services.drain)


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
        str | None, Query(description="only whose action, or its meaning, holds this text")
    ] = None,
    since: Since = None,
    until: Until = None,
    refused: Annotated[
        bool | None, Query(description="only changes that were not made, or that were")
    ] = None,
) -> Response:
    """``detail`` has the values ``before`` and ``after`` the change, and ``asked``, the ids in the
    request.
    """
    endpoints = services.endpoints

    def show(entry: AuditEntry) -> dict[str, Any]:
        return {**vars(entry), "in_words": _meaning(endpoints, entry.action)}

    patterns = _matching_actions(endpoints, action) if action else []
    entries = services.audit.list(
        after,
        limit + 1,
        who,
        action,
        since,
        until,
        refused,
        patterns,
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
    return {
        "ok": True,
        "nodes": len(routes.table.routes),
        "file": "refused" if problems else "ok",
        "problems": problems,
    }


def _orphans_check(services: HealthServices) -> dict[str, Any]:
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
    # The store is read before the engine: a run that starts in between would count as lost.
    expected = store.launched(owner)
    try:
        containers = {container.name: container for container in engine.list()}
    except EngineError as error:
        raise EngineFailed(str(error), reason=error.reason) from error
    unknown = []
    for name, container in sorted(containers.items()):
        if store.job_of_container(name) is None:
            state = type(container.probe).__name__.lower()
            unknown.append(_orphan(name, state, container.labels))
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
    """Return the missing runs that no engine has and that have not ended in the meantime."""
    lost = [run for run in missing if _is_lost(engine, run.name)]
    if not lost:
        return []
    unended = {run.name for run in store.launched(owner)}
    return [
        _orphan(
            run.name,
            run.status,
            labels(
                "",
                "",
                run.job_id,
                run.task_id,
                run.role,
                run.index,
                run.attempt,
            ),
        )
        for run in lost
        if run.name in unended
    ]


def _is_lost(engine: Engine, name: str) -> bool:
    """Return whether no engine has a run; False if one does not answer, as it may have the run."""
    try:
        return isinstance(engine.probe(name), Missing)
    except EngineError:
        return False


def _orphan(
    name: str,
    state: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    of_run = {key: labels.get(f"bfia.{key}") for key in ("job", "task", "role", "index", "attempt")}
    return {
        "name": name,
        "state": state,
        **of_run,
    }


def _items(items: list[Item]) -> Response:
    return Reply({"items": items, "bytes": sum(item.bytes for item in items)})


def _drain_state(drain: Drain) -> Response:
    return Reply({**drain.state(), "process": identity(os.getpid())})


def _note_drain(
    request: Request,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    record_change(
        request,
        {field: before[field] for field in _DRAIN_FIELDS},
        {field: after[field] for field in _DRAIN_FIELDS},
    )


def _meaning(endpoints: Sequence[APIRoute], action: str) -> str:
    """Return the summary of the endpoint of a request; any other action is returned unchanged."""
    method, _, path = action.partition(" ")
    for endpoint in endpoints:
        takes_method = method in (endpoint.methods or ())
        if takes_method and endpoint.summary and endpoint.path_regex.match(path):
            return str(endpoint.summary)
    return action


def _matching_actions(endpoints: Sequence[APIRoute], text: str) -> list[str]:
    """Return the actions whose meaning, in the reader's language, contains a text.

    Parameters in the path of a request are replaced by %, the wildcard of SQL.
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
