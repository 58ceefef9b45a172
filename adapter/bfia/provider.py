"""Registering algorithm images: ``/v2/provider``, the first users' form, and the standard's (5.8)."""

from typing import Annotated, Any

from fastapi import APIRouter, Request

from adapter.bfia import examples, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.requests import Done, Sender, on, texts
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.ports import Limiters
from gateway.providers.registration import By, Providers, asking, audited, shown_problem
from provider_registry.registry import Written

KEYS = ("name", "device", "version", "provider_name")


def router(providers: Providers, limiters: Limiters) -> APIRouter:
    """Return the paths of the provider registry."""
    router = APIRouter(tags=["providers"], route_class=Route)

    async def registered(request: Request, sender: Sender) -> Written:
        """Register the body, which the registry parses itself: it accepts the standard's trailing commas."""
        text, by = await request.body(), _by(request)

        def work() -> tuple[Written, dict[str, Any]]:
            done = providers.register(text, by)
            return done, audited(done)

        done, request.state.audit = await on(providers.limiter, sender, work)
        return done

    @router.post(
        "/v2/provider/register",
        summary="Register an image and the components it holds",
        openapi_extra=examples.REGISTER,
    )
    async def register(request: Request, sender: Sender) -> wire.OwnAnswer:
        """Registering the same name, version and device again replaces what was there."""
        done = await registered(request, sender)
        return wire.OwnAnswer(code=0, message="create success" if done.created else "update success")

    @router.post(
        "/v1/platform/schedule/component/register",
        summary="Register one component (5.8)",
        openapi_extra=examples.REGISTER_COMPONENT,
    )
    async def register_component(request: Request, sender: Sender) -> Done:
        """The standard's form: one image, one component; it joins the others of its provider and version."""
        await registered(request, sender)
        return ok()

    @router.get("/v2/provider/query", summary="Providers by any of name, device, version, provider_name")
    async def query(request: Request, sender: Sender) -> wire.OwnList:
        keys = await texts(request, *KEYS)
        found = await on(limiters.rest, sender, lambda: [_shown(p) for p in providers.registry.query(**keys)])
        return wire.OwnList(code=0, message="success", data=found)

    @router.post("/v2/provider/delete", summary="Delete providers by any of name, device, version, provider_name")
    async def delete(
        request: Request, sender: Sender, body: Annotated[wire.ProviderKeys, examples.DELETE]
    ) -> wire.OwnAnswer:
        """What running jobs use is retired instead: no new job gets it."""
        keys = body.model_dump(include=set(KEYS), exclude_none=True)
        if not keys:
            raise Invalid([Problem("body", f"must hold at least one of {', '.join(KEYS)}", body.model_extra)])
        by = _by(request)
        gone = await on(limiters.rest, sender, lambda: providers.delete(by, **keys))
        request.state.audit = {"deleted": list(gone.deleted), "retired": list(gone.retired)}
        data: dict[str, Any] = {"deleted": len(gone.deleted)}
        message = f"deleted {len(gone.deleted)}"
        if gone.retired:
            message += f", retired {len(gone.retired)} that jobs still use"
            data["retired"] = list(gone.retired)
        return wire.OwnAnswer.model_validate({"code": 0, "message": message, "data": data})

    return router


def _by(request: Request) -> By:
    return asking(getattr(request.state, "operator", ""), getattr(request.state, "role", ""))


def _shown(provider: Any) -> dict[str, Any]:
    return {
        "name": provider.name,
        "version": provider.version,
        "device": provider.device,
        "provider_name": provider.key,
        "protocol": provider.protocol,
        "metadata": dict(provider.metadata),
        "components_description": {name: dict(c.document) for name, c in provider.components.items()},
        "warnings": [shown_problem(w) for w in provider.warnings],
    }
