"""``/api/v1/templates``: jobs that people store under a name, as the start of further jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Body, Depends, Path, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import (
    OPERATOR,
    AfterText,
    Input,
    Limit,
    Reply,
    api_router,
    author_of,
    record_change,
    service,
)
from gateway.admin.responses import jobs as responses
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotFound
from gateway.http.pagination import page_of
from gateway.ports import Clock
from gateway.store.repositories import SqlTemplates
from gateway.store.serialization import dumps
from provider_registry.model import document_problem


# The OpenAPI document contains the name of this class.
class Kept(Input):
    """The job of a template: a body of ``create_all``, complete or not."""

    job: dict[str, Any] = Field(description="body of create_all")


_KEPT_EXAMPLE = {
    "job": {
        "flow_id": "loans",
        "dag": {"version": "2.0", "components": []},
    }
}
_KEPT_EXAMPLES = {"begun": Example(value=_KEPT_EXAMPLE)}
# No space at the end: MariaDB ignores it in comparisons.
Name = Annotated[str, Path(max_length=128, pattern=r"^[^/\x00-\x1f]*[^/\x00-\x20]$")]


@dataclass(frozen=True)
class TemplateServices:
    """The services that the paths of templates use."""

    templates: SqlTemplates
    clock: Clock


_Services = Annotated[TemplateServices, Depends(service(TemplateServices))]
router = api_router()


@router.get(
    "/templates",
    summary="Jobs kept as templates, by name",
    response_model=responses.TemplatesPage,
    name="every",  # part of the operation's id in the OpenAPI document, as each ``name`` below
)
def list_templates(
    services: _Services,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    rows = [row._asdict() for row in services.templates.list()]
    return Reply(page_of("templates", rows, _sort_key, after, limit))


@router.get(
    "/templates/{name}",
    summary="A template with its job",
    response_model=responses.Template,
    name="one",
)
def get_template(services: _Services, name: Name) -> Response:
    return _reply_untranslated(services.templates, name)


@router.put(
    "/templates/{name}",
    summary="Save a job as a template, replacing one of the same name",
    response_model=responses.Template,
    name="keep",
)
def put_template(
    request: Request,
    services: _Services,
    name: Name,
    body: Annotated[Kept, Body(openapi_examples=_KEPT_EXAMPLES)],
) -> Response:
    problem = document_problem(body.job)
    if problem is not None:
        raise Invalid([Problem("job", problem.rule, problem.got)])
    templates = services.templates
    before = templates.get(name)
    job_before = None
    if before is not None:
        job_before = before.job
    templates.put(name, author_of(request, OPERATOR), services.clock(), body.job)
    record_change(request, job_before, body.job)
    return _reply_untranslated(templates, name)


@router.delete(
    "/templates/{name}",
    summary="Delete a template",
    response_model=responses.TemplateName,
    name="delete",
)
def delete_template(
    request: Request,
    services: _Services,
    name: Name,
) -> Response:
    template = _find(services.templates, name)
    record_change(request, template["job"], None)
    services.templates.delete(name)
    return Reply({"name": name})


def _sort_key(template: Mapping[str, Any]) -> tuple[str]:
    return (template["name"],)


def _find(templates: SqlTemplates, name: str) -> dict[str, Any]:
    """Return the columns of a template. Raises `NotFound` (TEMPLATE_UNKNOWN)."""
    template = templates.get(name)
    if template is None:
        raise NotFound(f"no template is called {name}", reason="TEMPLATE_UNKNOWN")
    return dict(template._asdict())


def _reply_untranslated(templates: SqlTemplates, name: str) -> Response:
    """Return the response with a template. Raises `NotFound`.

    It is no `Reply`, as that would translate texts in the job.
    """
    return Response(dumps(_find(templates, name)), media_type="application/json")
