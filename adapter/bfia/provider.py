"""Registering algorithm images: ``/v2/provider``, the first users' form, and the standard's (5.8)."""

from typing import Any

from fastapi import APIRouter, Body, Request

from adapter.bfia.asking import Sender, asked, on
from adapter.bfia.envelope import ok
from adapter.bfia.examples import DELETE, REGISTER, REGISTER_COMPONENT
from adapter.reading import JsonRoute
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.ports import Limiters
from provider_registry.model import InvalidDescription
from provider_registry.registration import provider_from_component, provider_from_request
from provider_registry.registry import Registry

KEYS = ("name", "device", "version", "provider_name")


def router(registry: Registry, limiters: Limiters) -> APIRouter:
    """Return the paths of the provider registry."""
    router = APIRouter(tags=["providers"], route_class=JsonRoute)

    @router.post("/v2/provider/register", summary="Register an image and the components it holds")
    async def register(sender: Sender, body: dict[str, Any] = Body(openapi_examples=REGISTER)) -> dict[str, Any]:
        """Registering the same name, version and device again replaces what was there."""

        def work() -> bool:
            try:
                return registry.register(provider_from_request(body))
            except InvalidDescription as error:
                raise Invalid([Problem(*p) for p in error.problems]) from error

        created = await on(limiters.rest, sender, work)
        return {"code": 0, "message": "create success" if created else "update success"}

    @router.post("/v1/platform/schedule/component/register", summary="Register one component (5.8)")
    async def register_component(
        sender: Sender, body: dict[str, Any] = Body(openapi_examples=REGISTER_COMPONENT)
    ) -> dict[str, Any]:
        """The standard's form: one image, one component; it joins the others of its provider and version."""

        def work() -> bool:
            try:
                return registry.register_component(provider_from_component(body))
            except InvalidDescription as error:
                raise Invalid([Problem(*p) for p in error.problems]) from error

        await on(limiters.rest, sender, work)
        return ok()

    @router.get("/v2/provider/query", summary="Providers by any of name, device, version, provider_name")
    async def query(request: Request, sender: Sender) -> dict[str, Any]:
        keys = await asked(request, *KEYS)
        found = await on(limiters.rest, sender, lambda: registry.query(**keys))
        return {"code": 0, "message": "success", "data": [_shown(p) for p in found]}

    @router.post("/v2/provider/delete", summary="Delete providers by any of name, device, version, provider_name")
    async def delete(sender: Sender, body: dict[str, Any] = Body(openapi_examples=DELETE)) -> dict[str, Any]:
        keys = {k: v for k, v in body.items() if k in KEYS and v is not None}
        wrong = [Problem(k, "must be a text", v) for k, v in keys.items() if not isinstance(v, str)]
        if not keys:
            wrong.append(Problem("body", f"must hold at least one of {', '.join(KEYS)}", body))
        if wrong:
            raise Invalid(wrong)
        deleted = await on(limiters.rest, sender, lambda: registry.delete(**keys))
        return {"code": 0, "message": f"deleted {deleted}", "data": {"deleted": deleted}}

    return router


def _shown(provider: Any) -> dict[str, Any]:
    return {
        "name": provider.name,
        "version": provider.version,
        "device": provider.device,
        "provider_name": provider.key,
        "protocol": provider.protocol,
        "metadata": dict(provider.metadata),
        "components_description": {name: dict(c.document) for name, c in provider.components.items()},
        "warnings": [{"path": w.path, "rule": w.rule, "got": w.got} for w in provider.warnings],
    }
