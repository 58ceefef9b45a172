"""``/api/v1`` about running a node: engine, resources, draining, audit log, settings."""

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

from engines.base import Engine, EngineError
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
    record_change,
    service,
)
from gateway.admin.health import find_orphans
from gateway.admin.responses import node as responses
from gateway.config.report import effective
from gateway.config.schema import Settings
from gateway.http.pagination import numbered_page
from gateway.identity.audit_chain import HEAD
from gateway.jobs.drain import Drain
from gateway.jobs.resources import Resources
from gateway.jobs.retention import Cleaner, Item
from gateway.language.catalogue import LANGUAGE, translate
from gateway.runtime.trials import Step, has_passed
from gateway.store.audit import AuditEntry, SqlAudit
from gateway.store.store import Store


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
class NodeServices:
    """The services that the other paths of the node use."""

    settings: Settings
    owner: str  # as in `gateway.admin.health.HealthServices`
    store: Store
    audit: SqlAudit
    engine: Engine
    resources: Resources
    cleaner: Cleaner
    drain: Drain
    doctor: Callable[[], Sequence[Step]]  # checks everything that the node needs
    endpoints: Sequence[APIRoute]  # of every listener


_NodeServices = Annotated[NodeServices, Depends(service(NodeServices))]
router = api_router()


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
    return Reply(find_orphans(services.store, services.engine, services.owner))


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
