"""Health of the node, and figures for Prometheus.

Apart from the other paths for operators: programs that watch a node need only these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends
from fastapi.responses import Response

from engines.base import Engine, EngineError, Missing, labels
from gateway.admin.deps import Reply, api_router, content, service
from gateway.admin.responses import health as responses
from gateway.broker.broker import Broker
from gateway.errors import EngineFailed
from gateway.jobs.admission import Admission
from gateway.runtime.metrics import Metrics
from gateway.store.store import KnownRun, Store
from route_table.live import LiveRoutes


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


_HealthServices = Annotated[HealthServices, Depends(service(HealthServices))]
router = api_router(prefix="")


@router.get(
    "/health/live",
    summary="The process responds",
    response_model=responses.Live,
)
async def live() -> Response:
    return Reply({"status": "ok"})


@router.get(
    "/health",
    summary="Jobs can be taken; what is wrong",
    response_model=responses.Ready,
    include_in_schema=False,
)
@router.get(
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


@router.get(
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


def find_orphans(
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
        orphans = find_orphans(services.store, services.engine, services.owner)
    except EngineFailed as error:
        return {"ok": True, "cause": f"{error.reason}: {error.message}"}
    counts = {kind: len(runs) for kind, runs in orphans.items()}
    return {"ok": True, **counts}
