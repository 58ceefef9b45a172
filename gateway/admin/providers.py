"""``/api/v1/providers``: registered images, their history and owners; the schemas of
descriptions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Body, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from gateway.admin.deps import (
    OPERATOR,
    AfterNumber,
    AfterText,
    Authored,
    Limit,
    Number,
    Reply,
    api_router,
    author_of,
    service,
)
from gateway.admin.responses import partners as responses
from gateway.errors import NotFound
from gateway.http.pagination import numbered_page, page_of
from gateway.providers.registration import (
    Providers,
    Requester,
    audit_detail,
    changes_as_json,
    problem_as_json,
    requester_of,
)
from provider_registry import schema
from provider_registry.forms import form
from provider_registry.model import Provider
from provider_registry.registry import Unknown, Written
from provider_registry.revisions import Revision, changes

_PROVIDER = "/providers/{provider_name}"
_REGISTRATION_EXAMPLE = {
    "name": "example",
    "version": "1.0.0",
    "device": "docker",
    "metadata": {"image": "example:1.0.0"},
}
_REGISTRATION = {
    "type": "object",
    "description": "as for /v2/provider/register, or as for …/schedule/component/register",
    "example": {**_REGISTRATION_EXAMPLE, "components_description": {}},
}
_REGISTRATION_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _REGISTRATION}},
    }
}
Name = Annotated[str, Path(examples=["example:1.0.0@docker"], description="name:version@device")]


class SchemaReply(Reply):
    """A JSON Schema."""

    media_type = "application/schema+json"


Reasoned = Annotated[Authored, Body(examples=[{"reason": "has a known flaw", "author": "ann"}])]


class Approval(Authored):
    """An approval of the present content of a provider's images."""

    image: str = Field(
        default="",
        max_length=512,
        description="only this image; empty: every one of the provider",
    )


class Owner(BaseModel):
    """The new owner of a provider's name."""

    owner: str = Field(
        max_length=255, description="name of a vendor's tokens; empty: this node's admins"
    )


_Providers = Annotated[Providers, Depends(service(Providers))]
router = api_router()


@router.get(
    "/providers",
    summary="Registered providers; each filter narrows",
    response_model=responses.ProvidersPage,
    name="listed",
)
def list_providers(
    providers: _Providers,
    name: Annotated[str | None, Query(description="without version and device")] = None,
    provider_name: Annotated[
        str | None, Query(description="name, name:version or name:version@device")
    ] = None,
    component: Annotated[str | None, Query(description="has a component of that name")] = None,
    owner: Annotated[
        str | None, Query(description="name of a vendor's tokens; empty: this node's admins")
    ] = None,
    retired: bool | None = None,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    matching = []
    for provider in providers.registry.query(name, provider_name=provider_name):
        if component is not None and component not in provider.components:
            continue
        if retired is not None and provider.retired is not retired:
            continue
        if owner is not None and providers.owner(provider.name) != owner:
            continue
        matching.append(provider)
    show = partial(_brief, providers)
    return Reply(page_of("providers", matching, _sort_key, after, limit, show))


@router.post(
    "/providers",
    summary="Register a provider, or one component with its image",
    response_model=responses.ProviderChanged,
    openapi_extra=_REGISTRATION_BODY,
)
async def register(
    request: Request,
    providers: _Providers,
    strict: Annotated[bool, Query(description="refuse an image that cannot be inspected")] = False,
    reason: Annotated[str, Query(max_length=1000)] = "",
    author: Annotated[str, Query(min_length=1, max_length=255)] = OPERATOR,
) -> Response:
    body = await request.body()
    by = _requester(request, author)
    change = partial(providers.register, body, by, reason, strict=strict)
    return await _change(request, providers, change)


@router.get(
    _PROVIDER,
    summary="A provider in full, with its warnings and the jobs that use it",
    response_model=responses.FullProvider,
    name="one",
)
def get_provider(providers: _Providers, provider_name: Name) -> Response:
    """Without version or device, the newest in use."""
    with _unknown_is_not_found():
        provider = providers.registry.named(provider_name)
        return Reply(_full(providers, provider))


@router.get(
    f"{_PROVIDER}/history",
    summary="Who changed it, when and why, newest first",
    response_model=responses.HistoryPage,
)
def history(
    providers: _Providers,
    provider_name: Name,
    after: AfterNumber = None,
    limit: Limit = 100,
) -> Response:
    with _unknown_is_not_found():
        revisions = providers.registry.history(provider_name, after, limit + 1)
    return Reply(numbered_page("history", revisions, limit, "number", _revision_fields))


@router.get(
    f"{_PROVIDER}/diff",
    summary="What differs between two revisions",
    response_model=responses.ProviderDiff,
)
def diff(
    providers: _Providers,
    provider_name: Name,
    since: Annotated[
        Number | None, Query(description="default: the one before `until`; 0: no provider at all")
    ] = None,
    until: Annotated[Number | None, Query(ge=1, description="default: the newest")] = None,
) -> Response:
    with _unknown_is_not_found():
        return Reply(_diff(providers, provider_name, since, until))


@router.get(
    f"{_PROVIDER}/components/{{component}}/parameters",
    summary="A component's parameters as a JSON Schema, for forms and editors",
    response_model=responses.ParameterSchema,
    response_class=SchemaReply,
)
def parameters(
    providers: _Providers,
    provider_name: Name,
    component: Annotated[str, Path(examples=["HeteroLR"])],
) -> Response:
    """``x-bfia`` of a property: what a form shows with its field."""
    with _unknown_is_not_found():
        provider = providers.registry.named(provider_name)
    described = provider.components.get(component)
    if described is None:
        text = (
            f"{provider.key} has no component {component[:80]}; it has "
            f"{', '.join(provider.components)}"
        )
        raise NotFound(text, reason="COMPONENT_UNKNOWN")
    return SchemaReply(form(described))


@router.post(
    f"{_PROVIDER}/retire",
    summary="Retire a provider: no new job uses it, running ones go on",
    response_model=responses.ProviderChanged,
)
async def retire(
    request: Request,
    providers: _Providers,
    provider_name: Name,
    why: Reasoned = Authored(),
) -> Response:
    by = _requester(request, why.author)
    change = partial(providers.retire, provider_name, by, why.reason)
    return await _change(request, providers, change)


@router.post(
    f"{_PROVIDER}/unretire",
    summary="Bring a retired provider back into use",
    response_model=responses.ProviderChanged,
)
async def unretire(
    request: Request,
    providers: _Providers,
    provider_name: Name,
    why: Reasoned = Authored(),
) -> Response:
    by = _requester(request, why.author)
    change = partial(providers.unretire, provider_name, by, why.reason)
    return await _change(request, providers, change)


@router.post(
    f"{_PROVIDER}/approve",
    summary="Approve a provider's current images",
    response_model=responses.ProviderChanged,
)
async def approve(
    request: Request,
    providers: _Providers,
    provider_name: Name,
    why: Annotated[Approval, Body(examples=[{"reason": "rebuilt with the fix"}])] = Approval(),
) -> Response:
    by = _requester(request, why.author)
    change = partial(providers.approve, provider_name, by, why.reason, why.image)
    return await _change(request, providers, change)


@router.put(
    "/provider-owners/{name}",
    summary="Assign a provider's name to a vendor",
    response_model=responses.NameOwner,
)
def give(
    request: Request,
    providers: _Providers,
    name: Annotated[str, Path(examples=["unionpay"])],
    owner: Annotated[Owner, Body(examples=[{"owner": "ann"}])],
) -> Response:
    change = {
        "name": name,
        "before": providers.give(name, owner.owner),
        "owner": owner.owner,
    }
    request.state.audit = change
    return Reply(change)


@router.get(
    "/schemas",
    summary="JSON Schemas of descriptions and registrations",
    response_model=responses.Schemas,
)
async def schemas() -> Response:
    lines = [
        {
            "name": file.name,
            "for": file.covers,
            "title": file.title,
        }
        for file in schema.FILES.values()
    ]
    return Reply({"schemas": lines})


@router.get(
    "/schemas/{name}",
    summary="One JSON Schema",
    response_model=responses.JsonSchema,
    response_class=SchemaReply,
)
async def one_schema(name: Annotated[str, Path(examples=["description-1.json"])]) -> Response:
    file = schema.FILES.get(name)
    if file is None:
        text = f"there is no schema {name[:80]}; there are {', '.join(schema.FILES)}"
        raise NotFound(text, reason="SCHEMA_UNKNOWN")
    return SchemaReply(file.document)


def _requester(request: Request, author: str) -> Requester:
    """Return who requests a change, with that person's role.

    It is the person whom the request's token names; without a token, ``author``.
    """
    return requester_of(author_of(request, author), getattr(request.state, "role", ""))


async def _change(
    request: Request,
    providers: Providers,
    change: Callable[[], Written],
) -> Response:
    """Make a change in a thread, record it for the audit log, and reply with its result."""

    def work() -> Response:
        written = change()
        request.state.audit = audit_detail(written)
        return Reply(_change_fields(written))

    return await anyio.to_thread.run_sync(work, limiter=providers.limiter)


@contextmanager
def _unknown_is_not_found() -> Iterator[None]:
    """Raise `NotFound` in place of `Unknown`."""
    try:
        yield
    except Unknown as error:
        raise NotFound(error.message, reason=error.reason) from error


def _revision_fields(revision: Revision) -> dict[str, Any]:
    """Return a revision as responses show it."""
    return {
        "provider_name": revision.key,
        "revision": revision.number,
        "at": revision.at,
        "author": revision.author,
        "action": revision.action,
        "reason": revision.reason,
        "in_words": revision.action,  # `Reply` translates this field, not ``action``
    }


def _change_fields(written: Written) -> dict[str, Any]:
    """Return the result of a change: its revision, and the provider's state after it."""
    provider = written.revision.provider
    return {
        **_revision_fields(written.revision),
        "created": written.created,
        "changed": written.written,  # False if nothing had to change
        "changes": changes_as_json(written.changes),
        "retired": provider.retired,
        "digests": provider.digests,
        "warnings": _warnings(provider),
    }


def _sort_key(provider: Provider) -> tuple[str, str, str]:
    return provider.name, provider.version, provider.device


def _brief(providers: Providers, provider: Provider) -> dict[str, Any]:
    """Return a provider as lists show it."""
    return {
        "provider_name": provider.key,
        "name": provider.name,
        "version": provider.version,
        "device": provider.device,
        "image": provider.image,
        "images": {image: provider.digests.get(image) for image in provider.every_image()},
        "retired": provider.retired,
        "components": list(provider.components),
        "warning_count": len(provider.warnings),
        "owner": providers.owner(provider.name),
        "granted": providers.granted(provider.name),
        "attestation": providers.attestation(provider.name),
    }


def _full(providers: Providers, provider: Provider) -> dict[str, Any]:
    """Return a provider in full."""
    documents = {name: component.document for name, component in provider.components.items()}
    return {
        **_brief(providers, provider),
        "revision": providers.registry.repository.newest_number(provider.key),
        "protocol": provider.protocol,
        "metadata": provider.metadata,
        "digests": provider.digests,
        "jobs": providers.jobs_using(provider),
        "warnings": _warnings(provider),
        "components_description": documents,
    }


def _warnings(provider: Provider) -> list[dict[str, Any]]:
    return [problem_as_json(warning) for warning in provider.warnings]


def _diff(
    providers: Providers,
    key: str,
    since: int | None,
    until: int | None,
) -> dict[str, Any]:
    """Return the differences between two revisions. Raises `Unknown`.

    By default these are the newest revision and the one before. Before revision 1 there was no
    provider.
    """
    registry = providers.registry
    if until:
        last = registry.revision(key, until)
    else:
        [last] = registry.history(key, limit=1)
    number = since
    if number is None:
        number = last.number - 1
    before = None
    if number > 0:
        before = registry.revision(key, number).provider
    differences = changes(before, last.provider)
    return {
        "provider_name": key,
        "since": number,
        "until": last.number,
        "changes": changes_as_json(differences),
        "diff": "\n".join(map(str, differences)),
    }
