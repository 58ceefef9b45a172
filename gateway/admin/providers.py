"""``/api/v1/providers``: registered images, who changed what of them; the schemas. Real HTTP statuses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from gateway.admin.deps import NUMBER, AfterNumber, AfterText, Limit, answering, named, refusal
from gateway.errors import GatewayError, NotFound
from gateway.http.pagination import page_of
from gateway.ports import Limiters
from gateway.providers.registration import By, Providers, asking, audited, shown_changes, shown_problem
from provider_registry import schema
from provider_registry.forms import form
from provider_registry.model import Provider, Revision, changes
from provider_registry.registry import COMPONENT_UNKNOWN, Unknown, Written

ONE = "/api/v1/providers/{provider_name}"
_SCHEMA = "application/schema+json"
_REGISTER: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "as for /v2/provider/register, or as for …/schedule/component/register",
                    "example": {
                        "name": "example",
                        "version": "1.0.0",
                        "device": "docker",
                        "metadata": {"image": "example:1.0.0"},
                        "components_description": {},
                    },
                }
            }
        },
    }
}
Name = Annotated[str, Path(examples=["example:1.0.0@docker"], description="name:version@device")]


class Why(BaseModel):
    """Who changes something, and why; both are kept in the history."""

    reason: str = Field(default="", max_length=1000)
    author: str = Field(default="operator", min_length=1, max_length=255, description="where no token tells it")


Reasoned = Annotated[Why, Body(examples=[{"reason": "has a known flaw", "author": "ann"}])]


class Approval(Why):
    """An approval of what an image is now."""

    image: str = Field(default="", max_length=512, description="only this image; empty: every one of the provider")


class Owner(BaseModel):
    """Whose a provider's name is to be."""

    owner: str = Field(max_length=255, description="name of a vendor's tokens; empty: this node's admins")


@dataclass(frozen=True)
class ProviderParts:
    """What the paths are built of."""

    providers: Providers
    limiters: Limiters


def router(parts: ProviderParts) -> APIRouter:
    """Return the paths."""
    router = APIRouter(tags=["operators"])
    run = answering(parts.limiters)
    providers = parts.providers

    async def noted(request: Request, change: Callable[[], Written]) -> Any:
        """Make a change, leave its difference to the audit, answer with what it is now."""

        def work() -> tuple[dict[str, Any], dict[str, Any]]:
            done = change()
            return audited(done), _written(done)

        try:
            request.state.audit, answer = await anyio.to_thread.run_sync(work, limiter=providers.limiter)
        except GatewayError as error:
            return refusal(error)
        return answer

    @router.get("/api/v1/providers", summary="Registered providers; each filter narrows", response_model=None)
    async def listed(
        name: str | None = None,
        version: str | None = None,
        device: str | None = None,
        provider_name: str | None = None,
        component: Annotated[str | None, Query(description="has a component of that name")] = None,
        image: str | None = None,
        owner: str | None = None,
        retired: bool | None = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``next``: what to send as ``after`` for the next page; null on the last one."""

        def work() -> dict[str, Any]:
            found = [
                (provider, whose)
                for provider in providers.registry.query(name, device, version, provider_name)
                if (component is None or component in provider.components)
                and (image is None or image in provider.every_image())
                and (retired is None or provider.retired is retired)
                and ((whose := providers.owner(provider.name)) == owner or owner is None)
            ]
            page = page_of(found, lambda one: _place(one[0]), after, limit)
            shown = [{**_brief(provider), "owner": whose} for provider, whose in page.entries]
            return {"providers": shown, "total": page.total, "next": page.next}

        return await run(work)

    @router.post(
        "/api/v1/providers",
        summary="Register a provider, or one component with its image",
        response_model=None,
        openapi_extra=_REGISTER,
    )
    async def register(
        request: Request,
        strict: Annotated[bool, Query(description="refuse an image that cannot be looked at")] = False,
        reason: Annotated[str, Query(max_length=1000)] = "",
        author: Annotated[str, Query(min_length=1, max_length=255)] = "operator",
    ) -> Any:
        text = await request.body()
        by = _by(request, author)
        return await noted(request, lambda: providers.register(text, by, reason, strict=strict))

    @router.get(ONE, summary="A provider in full, with its warnings and the jobs that use it", response_model=None)
    async def one(provider_name: Name) -> Any:
        def work() -> dict[str, Any]:
            provider = _known(lambda: providers.registry.get(provider_name))
            number = providers.registry.repository.newest(provider.key)
            return {
                **_brief(provider),
                "owner": providers.owner(provider.name),
                "revision": number,
                "protocol": provider.protocol,
                "metadata": dict(provider.metadata),
                "digests": dict(provider.digests),
                "jobs": providers.users(provider),
                "warnings": [shown_problem(w) for w in provider.warnings],
                "components_description": {n: dict(c.document) for n, c in provider.components.items()},
            }

        return await run(work)

    @router.get(f"{ONE}/history", summary="Who changed it, when and why, newest first", response_model=None)
    async def history(provider_name: Name, after: AfterNumber = None, limit: Limit = 100) -> Any:
        def work() -> dict[str, Any]:
            found = _known(lambda: providers.registry.history(provider_name, after, limit + 1))
            return {
                "history": [_revision(r) for r in found[:limit]],
                "next": found[limit - 1].number if len(found) > limit else None,
            }

        return await run(work)

    @router.get(f"{ONE}/diff", summary="What differs between two revisions", response_model=None)
    async def diff(
        provider_name: Name,
        since: Annotated[
            int | None, NUMBER, Query(ge=0, description="default: the one before; 0: nothing at all")
        ] = None,
        until: Annotated[int | None, NUMBER, Query(ge=1, description="default: the newest")] = None,
    ) -> Any:
        return await run(lambda: _known(lambda: _diff(providers, provider_name, since, until)))

    @router.get(
        f"{ONE}/components/{{component}}/parameters",
        summary="A component's parameters as a JSON Schema, for forms and editors",
        response_model=None,
        responses={200: {"content": {_SCHEMA: {}}}},
    )
    async def parameters(provider_name: Name, component: Annotated[str, Path(examples=["HeteroLR"])]) -> Any:
        def work() -> Any:
            provider = _known(lambda: providers.registry.get(provider_name))
            found = provider.components.get(component)
            if found is None:
                text = f"{provider.key} has no component {component[:80]}; it has {', '.join(provider.components)}"
                raise NotFound(text, reason=COMPONENT_UNKNOWN)
            return JSONResponse(form(found), media_type=_SCHEMA)

        return await run(work)

    @router.post(f"{ONE}/retire", summary="No new job gets it; jobs under way go on", response_model=None)
    async def retire(request: Request, provider_name: Name, why: Reasoned = Why()) -> Any:
        by = _by(request, why.author)
        return await noted(request, lambda: providers.retire(provider_name, by, why.reason))

    @router.post(f"{ONE}/unretire", summary="Take it into use again", response_model=None)
    async def unretire(request: Request, provider_name: Name, why: Reasoned = Why()) -> Any:
        by = _by(request, why.author)
        return await noted(request, lambda: providers.unretire(provider_name, by, why.reason))

    @router.post(f"{ONE}/approve", summary="The images as they are now are the right ones", response_model=None)
    async def approve(
        request: Request,
        provider_name: Name,
        why: Annotated[Approval, Body(examples=[{"reason": "rebuilt with the fix"}])] = Approval(),
    ) -> Any:
        by = _by(request, why.author)
        return await noted(request, lambda: providers.approve(provider_name, by, why.reason, why.image))

    @router.put(
        "/api/v1/provider-owners/{name}", summary="Give a provider's name to a vendor", response_model=None
    )
    async def give(
        request: Request,
        name: Annotated[str, Path(examples=["unionpay"])],
        owner: Annotated[Owner, Body(examples=[{"owner": "ann"}])],
    ) -> Any:
        def work() -> dict[str, Any]:
            done = {"name": name, "before": providers.give(name, owner.owner), "owner": owner.owner}
            request.state.audit = done
            return done

        return await run(work)

    @router.get("/api/v1/schemas", summary="JSON Schemas of descriptions and registrations", response_model=None)
    async def schemas() -> Any:
        return {"schemas": [{"name": s.name, "for": s.covers, "title": s.title} for s in schema.FILES.values()]}

    @router.get(
        "/api/v1/schemas/{name}",
        summary="One JSON Schema",
        response_model=None,
        responses={200: {"content": {_SCHEMA: {}}}},
    )
    async def one_schema(name: Annotated[str, Path(examples=["description-1.json"])]) -> Any:
        found = schema.FILES.get(name)
        if found is None:
            text = f"there is no schema {name[:80]}; there are {', '.join(schema.FILES)}"
            return refusal(NotFound(text, reason="SCHEMA_UNKNOWN"))
        return JSONResponse(found.document, media_type=_SCHEMA)

    return router


def _by(request: Request, author: str) -> By:
    return asking(named(request, author), getattr(request.state, "role", ""))


def _known(look: Callable[[], Any]) -> Any:
    """Raises `NotFound` for what is not registered."""
    try:
        return look()
    except Unknown as error:
        raise NotFound(error.message, reason=error.reason) from error


def _place(provider: Provider) -> tuple[str, str, str]:
    return provider.name, provider.version, provider.device


def _brief(provider: Provider) -> dict[str, Any]:
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
    }


def _written(done: Written) -> dict[str, Any]:
    provider = done.revision.provider
    return {
        **_revision(done.revision),
        "created": done.created,
        "changed": done.written,
        "changes": shown_changes(done.changes),
        "retired": provider.retired,
        "digests": dict(provider.digests),
        "warnings": [shown_problem(w) for w in provider.warnings],
    }


def _revision(revision: Revision) -> dict[str, Any]:
    return {
        "provider_name": revision.key,
        "revision": revision.number,
        "at": revision.at.isoformat(),
        "author": revision.author,
        "action": str(revision.action),
        "reason": revision.reason,
    }


def _diff(providers: Providers, key: str, since: int | None, until: int | None) -> dict[str, Any]:
    """Compare two revisions. Raises `Unknown`."""
    registry = providers.registry
    newest = registry.history(key, limit=1)
    last = registry.revision(key, until) if until else newest[0]
    number = last.number - 1 if since is None else since
    first = registry.revision(key, number).provider if number else None
    found = changes(first, last.provider)
    return {
        "provider_name": key,
        "since": number,
        "until": last.number,
        "changes": shown_changes(found),
        "diff": "\n".join(map(str, found)),
    }
