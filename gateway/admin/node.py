"""The node itself: health, metrics, engine, resources, cleaning, draining, audit log and settings."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from threading import Lock
from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter, Body, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response

from engines.base import Engine, EngineError, Missing, labels
from engines.multi import SeveralEngines
from engines.process.supervisor import identity
from gateway.admin.deps import (
    AdminParts,
    AfterNumber,
    Empty,
    Input,
    Limit,
    Object,
    Paths,
    Reply,
    Since,
    Until,
    View,
    content,
    noted,
    numbered,
    shape,
)
from gateway.config.loader import effective
from gateway.errors import EngineFailed
from gateway.http.pagination import numbered_page
from gateway.identity.statements import HEAD
from gateway.jobs.drain import Drain
from gateway.jobs.retention import Cleaner, Item
from gateway.language.catalogue import LANGUAGE, translate
from gateway.runtime.trials import Step, good
from gateway.store.audit import AuditEntry


class Clean(Input):
    """What to remove."""

    orphans: bool = False
    """also what the database knows nothing of"""
    dry_run: bool = False
    """remove nothing, only say what would be removed"""


class DrainOrder(Input):
    """How to drain the node."""

    running: Literal["wait", "stop"] = "wait"
    """what becomes of the jobs under way"""
    exit: bool = True
    """whether the process exits once nothing is under way"""


_COMMANDS = (
    *("token create", "token revoke", "identity rotate", "restore", "login", HEAD),
    *("application changed by a partner", "route changed by a contract"),
)
"""actions in the audit log that are not requests"""
_CLEAN = {"only look": Example(value={"dry_run": True}), "clean": Example(value={})}
_DRAIN = {
    "wait, stay up": Example(value={"running": "wait", "exit": False}),
    "wait, then exit": Example(value={}),
}
_READY = shape("Ready", ready=bool, checks=dict[str, Object])
_ENGINE = shape(
    "Engine",
    kind=str,
    capabilities=list[str],
    answers=bool,
    isolation=Object | None,
    engines=list[Object],
)
_RESOURCES = shape(
    "Resources",
    node=str,
    **dict.fromkeys(("total", "held", "others", "remaining"), Object),
    **dict.fromkeys(("engines", "holders", "waiting"), list[Object]),
)
_STEPS = shape("DoctorSteps", good=bool, steps=list[Step])
_ITEMS = shape("Items", items=[Item], bytes=int)
_DRAINING = shape(
    "Draining",
    draining=bool,
    since=datetime | None,
    running=str | None,
    exit=bool,
    jobs=[Object],
    process=Object,
)
_SETTING = shape(
    "Setting",
    path=str,
    value=Any,
    origin=str,
    where=str | None,
    changed=bool,
)


def health_router(parts: AdminParts) -> APIRouter:
    """Return the paths by which others watch the node."""
    paths = Paths(prefix="")

    @paths("GET", "/health/live", "The process responds", shape("Live", status=str))
    async def live() -> Response:
        return Reply({"status": "ok"})

    @paths("GET", "/health", "Jobs can be taken; what is wrong", _READY, include_in_schema=False)
    @paths(
        "GET",
        "/health/ready",
        "Jobs can be taken; what is wrong",
        _READY,
        responses={503: {"model": _READY, "description": "Not ready."}},
    )
    def ready() -> Response:
        checks = _checks(parts)
        good = all(check["ok"] for check in checks.values())
        return Reply({"ready": good, "checks": checks}, status_code=200 if good else 503)

    @paths(
        "GET",
        "/metrics",
        "Figures for Prometheus",
        response_class=Response,
        responses=content("text/plain"),
    )
    def metrics() -> Response:
        return Response(parts.metrics.text(), media_type=parts.metrics.content_type)

    return paths.router


def _checks(parts: AdminParts) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"database": {"ok": True}}
    try:
        parts.store.jobs.find("")  # reads the database
    except Exception as error:  # whatever the driver raises, readiness is a yes or a no
        found["database"] = {"ok": False, "cause": type(error).__name__}
    try:
        parts.engine.check()
        found["engine"] = {"ok": True, "kind": parts.engine.kind}
    except EngineError as error:
        found["engine"] = {
            "ok": False,
            "kind": parts.engine.kind,
            "cause": f"{error.reason}: {error}",
        }
    failures = parts.participant.admission.failures()
    lacks = "; ".join(f"{failure.reason}: {failure.text}" for failure in failures)
    found["storage"] = {"ok": not lacks, "cause": lacks} if lacks else {"ok": True}
    problems = [str(p) for p in parts.routes.problems]
    # a file that cannot be used does no harm: the table before it stays in force
    nodes = len(parts.routes.table.routes)
    found["routes"] = {
        "ok": True,
        "nodes": nodes,
        "file": "refused" if problems else "ok",
        "problems": problems,
    }
    if found["engine"]["ok"] and found["database"]["ok"]:
        try:
            found["orphans"] = {
                "ok": True,
                **{kind: len(runs) for kind, runs in _orphans(parts).items()},
            }
        except EngineFailed as error:
            found["orphans"] = {"ok": True, "cause": f"{error.reason}: {error.message}"}
    found["channel"] = {"ok": True, **parts.broker.usage()._asdict()}
    return found


def _shown(engine: Engine) -> dict[str, Any]:
    about = {"kind": engine.kind, "capabilities": sorted(engine.capabilities)}
    try:
        engine.check()
        return {
            **about,
            "answers": True,
            "isolation": engine.isolation(),
        }
    except EngineError as error:
        return {
            **about,
            "answers": False,
            "cause": f"{error.reason}: {error}",
            "isolation": None,
        }


def _is_lost(engine: Engine, name: str) -> bool:
    """Tell whether no engine has a run; one that is away or fails may have it."""
    try:
        return isinstance(engine.probe(name), Missing)
    except EngineError:
        return False


def _orphans(parts: AdminParts) -> dict[str, list[dict[str, Any]]]:
    """Return ``unknown`` (in the engine, not in the store) and ``lost`` (the other way round).

    Only runs of this node and installation; ``lost`` only those of this gateway. Raises `EngineFailed`.
    """
    expected = parts.store.launched(
        parts.owner
    )  # before the engine is listed: what starts meanwhile is not lost
    try:
        there = {found.name: found for found in parts.engine.list()}
    except EngineError as error:
        raise EngineFailed(str(error), reason=error.reason) from error
    missing = [
        run for run in expected if run.name not in there and _is_lost(parts.engine, run.name)
    ]
    still = {run.name for run in parts.store.launched(parts.owner)} if missing else set()
    return {
        "unknown": [
            _orphan(name, type(found.probe).__name__.lower(), found.labels)
            for name, found in sorted(there.items())
            if parts.store.job_of_container(name) is None
        ],
        "lost": [
            _orphan(
                run.name,
                run.status,
                labels("", "", run.job_id, run.task_id, run.role, run.index, run.attempt),
            )
            for run in missing
            if run.name in still  # and did not end meanwhile
        ],
    }


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


def router(
    parts: AdminParts,
    cleaner: Cleaner,
    drain: Drain,
) -> APIRouter:
    """Return the paths of the engine, resources, cleaning, draining, the audit log and settings."""
    paths = Paths()

    @paths("GET", "/engine", "What runs algorithms, and what they cannot reach", _ENGINE)
    def engine() -> Response:
        engines = parts.engine.others if isinstance(parts.engine, SeveralEngines) else {}
        each = [{"name": name, **_shown(engine)} for name, engine in engines.items()]
        return Reply({**_shown(parts.engine), "engines": each})

    one_at_a_time = Lock()

    @paths(
        "GET", "/doctor", "All that the node needs, checked step by step, as `doctor` does", _STEPS
    )
    def doctor() -> Response:
        """Takes some seconds and changes nothing."""
        with one_at_a_time:
            steps = parts.doctor()
        return Reply({"good": good(steps), "steps": steps})

    @paths(
        "GET",
        "/orphans",
        "Runs that only the engine or only the store knows of",
        shape("Orphans", unknown=[Object], lost=[Object]),
    )
    def orphans() -> Response:
        return Reply(_orphans(parts))

    @paths("GET", "/resources", "What this node has, who holds it, who waits", _RESOURCES)
    def resources() -> Response:
        return Reply(parts.resources.view())

    @paths("GET", "/gc", "What cleaning would remove now", _ITEMS)
    def plan(
        orphans: Annotated[
            bool, Query(description="also what the database knows nothing of")
        ] = False,
    ) -> Response:
        return _listed(cleaner.plan(orphans=orphans))

    @paths("POST", "/gc", "Remove what has outlived its end or its time", _ITEMS)
    def clean(
        request: Request, body: Annotated[Clean, Body(openapi_examples=_CLEAN)] = Clean()
    ) -> Response:
        """``removed`` says of each whether it is gone; ``cause`` why not. ``dry_run``: none is removed."""
        items = (cleaner.plan if body.dry_run else cleaner.clean)(orphans=body.orphans)
        noted(
            request,
            [f"{item.kind} {item.name}" for item in items[:100]],
            None,
            dry_run=body.dry_run,
        )
        return _listed(items)

    def state() -> dict[str, Any]:
        return drain.state() | {"process": identity(os.getpid())}

    def ordered(request: Request, order: Callable[[], dict[str, Any]]) -> Response:
        before, after = drain.state(), order()
        keys = ("draining", "running", "exit")
        noted(request, {key: before[key] for key in keys}, {key: after[key] for key in keys})
        return Reply(state())

    @paths("GET", "/drain", "Whether the node is being drained, and what is left", _DRAINING)
    def draining() -> Response:
        """``process``: by which a client on this machine tells that it has exited."""
        return Reply(state())

    @paths("POST", "/drain", "Take no new jobs; exit once nothing is under way", _DRAINING)
    def begin(
        request: Request, body: Annotated[DrainOrder, Body(openapi_examples=_DRAIN)] = DrainOrder()
    ) -> Response:
        """New jobs are refused with reason DRAINING, here and towards other nodes. Forgotten by a restart."""
        return ordered(request, lambda: drain.begin(stop=body.running == "stop", leave=body.exit))

    @paths("POST", "/undrain", "Take new jobs again", _DRAINING)
    def undo(request: Request, body: Empty = None) -> Response:
        return ordered(request, drain.undo)

    entry = View(
        "AuditEntry",
        **get_type_hints(AuditEntry),
        in_words=(str, lambda one: _means(parts, one.action)),
    )

    @paths(
        "GET",
        "/audit",
        "Who requested which change, and its result",
        numbered("audit", entry.model),
    )
    def audit(
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
        """``detail`` holds what was there ``before`` and ``after``, and the ids that were ``asked`` for."""
        alike = _meant(parts, action) if action else []
        found = parts.audit.list(after, limit + 1, who, action, since, until, refused, alike)
        return Reply(numbered_page("audit", found, limit, "id", entry))

    @paths(
        "GET",
        "/settings",
        "Every setting in force, and where it comes from",
        shape("Settings", settings=[_SETTING]),
    )
    def shown() -> Response:
        """``origin``: default, file (``where``: file and line), environment (the variable), or command;
        ``changed``: the value is not the default.

        Secrets and passwords are masked.
        """
        return Reply({"settings": effective(parts.settings)})

    return paths.router


def _means(parts: AdminParts, action: str) -> str:
    """Return what a request is for, by the summary of its endpoint; of another action its name."""
    method, _, path = action.partition(" ")
    fits = (e for e in parts.endpoints if method in (e.methods or ()) and e.path_regex.match(path))
    return next((str(e.summary) for e in fits if e.summary), action)


def _meant(parts: AdminParts, text: str) -> list[str]:
    """Return the actions whose meaning, in the reader's language, holds a text; % stands for what is in a path."""
    found = {name: name for name in _COMMANDS} | {
        f"{method} {re.sub('{[^}]*}', '%', endpoint.path)}": str(endpoint.summary)
        for endpoint in parts.endpoints
        for method in endpoint.methods or ()
    }
    return [
        name
        for name, means in found.items()
        if text.lower() in translate(means, LANGUAGE.get()).lower()
    ]


def _listed(items: list[Item]) -> Response:
    return Reply({"items": items, "bytes": sum(item.bytes for item in items)})
