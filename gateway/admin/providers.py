"""``/api/v1/providers``: registered images, their history and owners; the schemas of descriptions."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from gateway.admin.deps import (
    OPERATOR,
    AfterNumber,
    AfterText,
    Authored,
    Limit,
    Number,
    Object,
    Paths,
    Reply,
    View,
    named,
    numbered,
    paged,
    shape,
)
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
from provider_registry.registry import Unknown, Written, changes

ONE = "/providers/{provider_name}"
_NEW = {
    "name": "example",
    "version": "1.0.0",
    "device": "docker",
    "metadata": {"image": "example:1.0.0"},
}
_REGISTRATION = {
    "type": "object",
    "description": "as for /v2/provider/register, or as for …/schedule/component/register",
    "example": {**_NEW, "components_description": {}},
}
_REGISTER = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _REGISTRATION}}}
}
Name = Annotated[str, Path(examples=["example:1.0.0@docker"], description="name:version@device")]


class SchemaReply(Reply):
    """A JSON Schema."""

    media_type = "application/schema+json"


Reasoned = Annotated[Authored, Body(examples=[{"reason": "has a known flaw", "author": "ann"}])]


class Approval(Authored):
    """An approval of what an image is now."""

    image: str = Field(
        default="",
        max_length=512,
        description="only this image; empty: every one of the provider",
    )


class Owner(BaseModel):
    """Whose a provider's name is to be."""

    owner: str = Field(
        max_length=255, description="name of a vendor's tokens; empty: this node's admins"
    )


_IMAGES = Annotated[dict[str, str | None], Field(description="image -> pinned digest")]
_WARNINGS = [shape("ProviderWarning", path=str, rule=str)]
_CHANGES = [
    shape(
        "ValueChange",
        path=str,
        before=Any,
        after=Any,
    )
]
_shown = View(
    "Revision",
    provider_name=(str, lambda one: one.key),
    revision=(int, lambda one: one.number),
    at=datetime,
    author=str,
    action=Annotated[str, Field(examples=["registered"])],
    reason=str,
    in_words=(str, lambda one: one.action),
)
_IS_NEW = Annotated[
    bool, Field(description="false: it was so before, and this is its newest revision")
]
_change = View(
    "ProviderChange",
    created=bool,
    changed=(_IS_NEW, lambda done: done.written),
    changes=(_CHANGES, lambda done: changes_as_json(done.changes)),
    retired=(bool, lambda done: done.revision.provider.retired),
    digests=(dict[str, str], lambda done: done.revision.provider.digests),
    warnings=(_WARNINGS, lambda done: _warnings(done.revision.provider)),
)
_CHANGED = shape("ProviderChanged", **_shown.types, **_change.types)
_DIFF = shape(
    "ProviderDiff",
    provider_name=str,
    since=int,
    until=int,
    changes=_CHANGES,
    diff=str,
)
_SCHEMA = shape(
    "SchemaLine",
    **{
        "name": str,
        "for": Any,
        "title": str,
    },
)
_PARAMETERS = shape(
    "ParameterSchema",
    title=str,
    type=Any,
    properties=Object,
)


def router(providers: Providers) -> APIRouter:
    """Return the paths."""
    paths = Paths()
    registry = providers.registry
    brief = View(
        "Provider",
        provider_name=(
            Annotated[str, Field(examples=["unionpay:2.0.0@docker"])],
            lambda one: one.key,
        ),
        name=str,
        version=str,
        device=str,
        image=str,
        images=(
            _IMAGES,
            lambda one: {image: one.digests.get(image) for image in one.every_image()},
        ),
        retired=bool,
        components=(list[str], lambda one: list(one.components)),
        warning_count=(int, lambda one: len(one.warnings)),
        owner=(str, lambda one: providers.owner(one.name)),
    )
    full = View(
        "FullProvider",
        brief,
        revision=(int, lambda one: registry.repository.newest(one.key)),
        protocol=str,
        metadata=Object,
        digests=dict[str, str],
        jobs=(Annotated[list[str], Field(description="jobs that use it")], providers.users),
        warnings=(_WARNINGS, _warnings),
        components_description=(
            Object,
            lambda one: {n: c.document for n, c in one.components.items()},
        ),
    )

    async def changed(
        request: Request,
        author: str,
        change: Callable[[Requester], Written],
    ) -> Response:
        """Make a change, leave it to the audit log, and return the result."""
        by = requester_of(named(request, author), getattr(request.state, "role", ""))

        def work() -> Response:
            done = change(by)
            request.state.audit = audit_detail(done)
            return Reply({**_shown(done.revision), **_change(done)})

        return await anyio.to_thread.run_sync(work, limiter=providers.limiter)

    @paths(
        "GET",
        "/providers",
        "Registered providers; each filter narrows",
        paged("providers", brief.model),
    )
    def listed(
        name: str | None = None,
        provider_name: str | None = None,
        component: Annotated[str | None, Query(description="has a component of that name")] = None,
        owner: str | None = None,
        retired: bool | None = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Response:
        found = [
            provider
            for provider in registry.query(name, provider_name=provider_name)
            if (component is None or component in provider.components)
            and (retired is None or provider.retired is retired)
            and (owner is None or providers.owner(provider.name) == owner)
        ]

        def place(one: Provider) -> tuple[str, str, str]:
            return one.name, one.version, one.device

        return Reply(page_of("providers", found, place, after, limit, brief))

    @paths(
        "POST",
        "/providers",
        "Register a provider, or one component with its image",
        _CHANGED,
        openapi_extra=_REGISTER,
    )
    async def register(
        request: Request,
        strict: Annotated[
            bool, Query(description="refuse an image that cannot be inspected")
        ] = False,
        reason: Annotated[str, Query(max_length=1000)] = "",
        author: Annotated[str, Query(min_length=1, max_length=255)] = OPERATOR,
    ) -> Response:
        text = await request.body()
        return await changed(
            request, author, lambda by: providers.register(text, by, reason, strict=strict)
        )

    @paths("GET", ONE, "A provider in full, with its warnings and the jobs that use it", full.model)
    def one(provider_name: Name) -> Response:
        """Without version or device, the newest in use."""
        return Reply(full(_known(lambda: registry.named(provider_name))))

    @paths(
        "GET",
        f"{ONE}/history",
        "Who changed it, when and why, newest first",
        numbered("history", _shown.model),
    )
    def history(
        provider_name: Name,
        after: AfterNumber = None,
        limit: Limit = 100,
    ) -> Response:
        found = _known(lambda: registry.history(provider_name, after, limit + 1))
        return Reply(numbered_page("history", found, limit, "number", _shown))

    @paths("GET", f"{ONE}/diff", "What differs between two revisions", _DIFF)
    def diff(
        provider_name: Name,
        since: Annotated[
            Number | None, Query(description="default: the one before; 0: nothing at all")
        ] = None,
        until: Annotated[Number | None, Query(ge=1, description="default: the newest")] = None,
    ) -> Response:
        return Reply(_known(lambda: _diff(providers, provider_name, since, until)))

    @paths(
        "GET",
        f"{ONE}/components/{{component}}/parameters",
        "A component's parameters as a JSON Schema, for forms and editors",
        _PARAMETERS,
        response_class=SchemaReply,
    )
    def parameters(
        provider_name: Name, component: Annotated[str, Path(examples=["HeteroLR"])]
    ) -> Response:
        """``x-bfia`` of a property holds what a form shows beside it."""
        provider = _known(lambda: registry.named(provider_name))
        found = provider.components.get(component)
        if found is None:
            text = f"{provider.key} has no component {component[:80]}; it has {', '.join(provider.components)}"
            raise NotFound(text, reason="COMPONENT_UNKNOWN")
        return SchemaReply(form(found))

    @paths("POST", f"{ONE}/retire", "No new job gets it; jobs under way go on", _CHANGED)
    async def retire(
        request: Request,
        provider_name: Name,
        why: Reasoned = Authored(),
    ) -> Response:
        return await changed(
            request, why.author, lambda by: providers.retire(provider_name, by, why.reason)
        )

    @paths("POST", f"{ONE}/unretire", "Take it into use again", _CHANGED)
    async def unretire(
        request: Request,
        provider_name: Name,
        why: Reasoned = Authored(),
    ) -> Response:
        return await changed(
            request, why.author, lambda by: providers.unretire(provider_name, by, why.reason)
        )

    @paths("POST", f"{ONE}/approve", "The images as they are now are the right ones", _CHANGED)
    async def approve(
        request: Request,
        provider_name: Name,
        why: Annotated[Approval, Body(examples=[{"reason": "rebuilt with the fix"}])] = Approval(),
    ) -> Response:
        return await changed(
            request,
            why.author,
            lambda by: providers.approve(provider_name, by, why.reason, why.image),
        )

    @paths(
        "PUT",
        "/provider-owners/{name}",
        "Give a provider's name to a vendor",
        shape(
            "NameOwner",
            name=str,
            before=str | None,
            owner=str,
        ),
    )
    def give(
        request: Request,
        name: Annotated[str, Path(examples=["unionpay"])],
        owner: Annotated[Owner, Body(examples=[{"owner": "ann"}])],
    ) -> Response:
        done = {
            "name": name,
            "before": providers.give(name, owner.owner),
            "owner": owner.owner,
        }
        request.state.audit = done
        return Reply(done)

    @paths(
        "GET",
        "/schemas",
        "JSON Schemas of descriptions and registrations",
        shape("Schemas", schemas=[_SCHEMA]),
    )
    async def schemas() -> Response:
        found = [
            {
                "name": s.name,
                "for": s.covers,
                "title": s.title,
            }
            for s in schema.FILES.values()
        ]
        return Reply({"schemas": found})

    @paths(
        "GET",
        "/schemas/{name}",
        "One JSON Schema",
        shape("JsonSchema", title=str, type=Any),
        response_class=SchemaReply,
    )
    async def one_schema(name: Annotated[str, Path(examples=["description-1.json"])]) -> Response:
        found = schema.FILES.get(name)
        if found is None:
            text = f"there is no schema {name[:80]}; there are {', '.join(schema.FILES)}"
            raise NotFound(text, reason="SCHEMA_UNKNOWN")
        return SchemaReply(found.document)

    return paths.router


def _known(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns. Raises `NotFound` for what is not registered."""
    try:
        return work()
    except Unknown as error:
        raise NotFound(error.message, reason=error.reason) from error


def _warnings(provider: Provider) -> list[dict[str, Any]]:
    return [problem_as_json(warning) for warning in provider.warnings]


def _diff(
    providers: Providers,
    key: str,
    since: int | None,
    until: int | None,
) -> dict[str, Any]:
    """Compare two revisions. Raises `Unknown`."""
    registry = providers.registry
    last = registry.revision(key, until) if until else registry.history(key, limit=1)[0]
    number = last.number - 1 if since is None else since
    first = registry.revision(key, number).provider if number else None
    found = changes(first, last.provider)
    return {
        "provider_name": key,
        "since": number,
        "until": last.number,
        "changes": changes_as_json(found),
        "diff": "\n".join(map(str, found)),
    }
