"""``/api/v1/templates``: jobs that people here keep under a name to begin further ones with."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import OPERATOR, AfterText, Input, Limit, Object, Paths, Reply, named, noted, paged, shape
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotFound
from gateway.http.pagination import page_of
from gateway.ports import Clock
from gateway.store.repositories import SqlTemplates
from gateway.store.serialization import dumps
from provider_registry.model import unfit

_LISTED = shape("ListedTemplate", name=str, author=str, saved_at=datetime)
_ONE = shape("Template", name=str, author=str, saved_at=datetime, job=Object)
_NAME = shape("TemplateName", name=str)
_Name = Annotated[str, Path(max_length=128, pattern=r"^[^/\x00-\x1f]*[^/\x00-\x20]$")]
"""no blank ends it: MariaDB compares without those"""


class Kept(Input):
    """The body of a create_all, complete or not."""

    job: dict[str, Any] = Field(description="body of create_all")


_KEPT = {"begun": Example(value={"job": {"flow_id": "loans", "dag": {"version": "2.0", "components": []}}})}


def router(templates: SqlTemplates, clock: Clock) -> APIRouter:
    """Return the paths."""
    paths = Paths()

    @paths("GET", "/templates", "Jobs kept as templates, by name", paged("templates", _LISTED))
    def every(after: AfterText = "", limit: Limit = 100) -> Response:
        shown = [row._asdict() for row in templates.list()]
        return Reply(page_of("templates", shown, lambda one: (one["name"],), after, limit))

    @paths("GET", "/templates/{name}", "A template with its job", _ONE)
    def one(name: _Name) -> Response:
        return exactly(name)

    @paths("PUT", "/templates/{name}", "Keep a job as a template, in place of one of that name", _ONE)
    def keep(request: Request, name: _Name, body: Annotated[Kept, Body(openapi_examples=_KEPT)]) -> Response:
        if (wrong := unfit(body.job)) is not None:
            raise Invalid([Problem("job", wrong.rule, wrong.got)])
        before = templates.get(name)
        templates.put(name, named(request, OPERATOR), clock(), body.job)
        noted(request, before and before.job, body.job)
        return exactly(name)

    @paths("DELETE", "/templates/{name}", "Delete a template", _NAME)
    def delete(request: Request, name: _Name) -> Response:
        noted(request, found(name)["job"], None)
        templates.delete(name)
        return Reply({"name": name})

    def found(name: str) -> dict[str, Any]:
        if (kept := templates.get(name)) is None:
            raise NotFound(f"no template is called {name}", reason="TEMPLATE_UNKNOWN")
        return dict(kept._asdict())

    def exactly(name: str) -> Response:  # `Reply` would translate texts of the job
        return Response(dumps(found(name)), media_type="application/json")

    return paths.router
