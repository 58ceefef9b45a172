"""The paths that FATE 2.2's own tools, its ``flow`` command and its pipeline, request of a FATE-Flow server.

Providers and uploads are the first users' interface, `adapter.bfia` has them; the rest is here. ``/v2/site`` and
``/v2/server`` say which site this is, and which gateways serve it.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request

from adapter.fate.envelope import Envelope, FateRoute, ok
from adapter.fate.tools import jobs, logs, outputs, tables
from adapter.fate.tools.deps import ClientParts, base_of

NOT_FOR_TOOLS: Mapping[str, str] = {
    "/v2/app": "the setting fate.clients (or bfia-gateway token create) names who may ask, routes which sites may",
    "/v2/permission": "tokens decide who may ask: bfia-gateway token create --role platform",
    "/v2/model": "models are deployed, exported and imported by bfia-gateway model",
    "/v2/table/bind": "upload the file instead: flow data upload-file, or bfia-gateway data upload",
    "/v2/data/component/dataframe": "a table is in the storage's form as soon as it is uploaded",
    "/v2/server/query": "services of other programs are not registered here",
    "/v2/server/registry": "services of other programs are not registered here",
    "/v2/server/delete": "services of other programs are not registered here",
    "/v2/server/service": "services of other programs are not registered here",
}
"""Paths of FATE's client API that are not served -> what to use instead."""


def routers(parts: ClientParts) -> list[APIRouter]:
    """Return the paths of FATE's client API that are served."""
    return [*(found.router(parts) for found in (jobs, outputs, logs, tables)), _about(parts)]


def _about(parts: ClientParts) -> APIRouter:
    router = APIRouter(tags=["fate client"], route_class=FateRoute)

    @router.get("/v2/site/info/query", summary="This node's id, FATE's party id")
    async def site() -> Envelope[dict[str, str]]:
        return ok({"party_id": parts.node})

    @router.get("/v2/server/fateflow", summary="This gateway, where FATE lists its servers")
    async def server(request: Request) -> Envelope[list[dict[str, Any]]]:
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
