"""``/v2/site`` and ``/v2/server``: which site this is, and which gateways serve it."""

from typing import Any
from urllib.parse import urlsplit

from fastapi import Request

from adapter.fate.envelope import FateRoute, ok
from adapter.fate.tools.deps import ClientParts, base_of
from gateway.http.paths import Paths


def router(parts: ClientParts) -> Paths:
    """Return the paths that say who answers."""
    router = Paths(tags=["fate client"], route_class=FateRoute)

    @router.get("/v2/site/info/query", summary="This node's id, FATE's party id")
    async def site() -> dict[str, Any]:
        return ok({"party_id": parts.node})

    @router.get("/v2/server/fateflow", summary="This gateway, where FATE lists its servers")
    async def server(request: Request) -> dict[str, Any]:
        place = urlsplit(base_of(request))
        about = {
            "instance_id": parts.instance,
            "host": place.hostname,
            "http_port": place.port,
            "grpc_port": None,
            "version": parts.version,
            "timestamp": int(parts.clock().timestamp() * 1000),
        }
        return ok([about])

    return router
