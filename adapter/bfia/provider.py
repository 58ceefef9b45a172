"""Registering algorithm images: ``/v2/provider``, the first users' form, and the standard's (5.8)."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Body, Request

from adapter.bfia.envelope import ok
from adapter.bfia.requests import Sender, asked, on
from adapter.bfia.responses import DELETE, REGISTER, REGISTER_COMPONENT
from adapter.body import JsonRequest, JsonRoute
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.ports import Limiters
from gateway.providers.registration import By, Providers, asking, audited, shown_problem
from provider_registry.registry import Written

KEYS = ("name", "device", "version", "provider_name")


class _Unparsed(JsonRequest):
    """A request whose body the registry parses itself where it registers something: its rules for JSON differ."""

    async def json(self) -> Any:
        if not self.url.path.endswith("/register"):
            return await super().json()
        await self.body()
        self.state.read_elsewhere = True
        return {}


class _Registering(JsonRoute):
    request = _Unparsed


def router(providers: Providers, limiters: Limiters) -> APIRouter:
    """Return the paths of the provider registry."""
    router = APIRouter(tags=["providers"], route_class=_Registering)

    @router.post("/v2/provider/register", summary="Register an image and the components it holds")
    async def register(
        request: Request, sender: Sender, body: dict[str, Any] = Body(openapi_examples=REGISTER)
    ) -> dict[str, Any]:
        """Registering the same name, version and device again replaces what was there."""
        request.state.audit, done = await on(providers.limiter, sender, await _registering(request))
        return {"code": 0, "message": "create success" if done.created else "update success"}

    @router.post("/v1/platform/schedule/component/register", summary="Register one component (5.8)")
    async def register_component(
        request: Request, sender: Sender, body: dict[str, Any] = Body(openapi_examples=REGISTER_COMPONENT)
    ) -> dict[str, Any]:
        """The standard's form: one image, one component; it joins the others of its provider and version."""
        request.state.audit, _ = await on(providers.limiter, sender, await _registering(request))
        return ok()

    @router.get("/v2/provider/query", summary="Providers by any of name, device, version, provider_name")
    async def query(request: Request, sender: Sender) -> dict[str, Any]:
        keys = await asked(request, *KEYS)
        found = await on(limiters.rest, sender, lambda: [_shown(p) for p in providers.registry.query(**keys)])
        return {"code": 0, "message": "success", "data": found}

    @router.post("/v2/provider/delete", summary="Delete providers by any of name, device, version, provider_name")
    async def delete(
        request: Request, sender: Sender, body: dict[str, Any] = Body(openapi_examples=DELETE)
    ) -> dict[str, Any]:
        """What jobs under way use is retired instead: no new job gets it."""
        keys = {k: v for k, v in body.items() if k in KEYS and v is not None}
        wrong = [Problem(k, "must be a text", v) for k, v in keys.items() if not isinstance(v, str)]
        if not keys:
            wrong.append(Problem("body", f"must hold at least one of {', '.join(KEYS)}", body))
        if wrong:
            raise Invalid(wrong)
        gone = await on(limiters.rest, sender, lambda: providers.delete(_by(request), **keys))
        request.state.audit = {"deleted": list(gone.deleted), "retired": list(gone.retired)}
        data: dict[str, Any] = {"deleted": len(gone.deleted)}
        message = f"deleted {len(gone.deleted)}"
        if gone.retired:
            message += f", retired {len(gone.retired)} that jobs still use"
            data["retired"] = list(gone.retired)
        return {"code": 0, "message": message, "data": data}

    async def _registering(request: Request) -> Callable[[], tuple[dict[str, Any], Written]]:
        """Return the work: it registers the body and returns what the audit keeps of it, too."""
        body = await request.body()

        def work() -> tuple[dict[str, Any], Written]:
            done = providers.register(body, _by(request))
            return audited(done), done

        return work

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
