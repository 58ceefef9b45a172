"""What FATE's own workers and tools ask that this gateway does not serve: each is answered by its name."""

from collections.abc import Mapping

from fastapi import Request

from adapter.fate.envelope import FateRoute, NotServedHere
from gateway.http.paths import Paths

_ALL = ["GET", "POST", "PUT", "DELETE", "PATCH"]

FOR_WORKERS: Mapping[str, str] = {
    "/v2/worker/task/status": "a container reports to /v1/platform/schedule/task/callback",
    "/v2/worker/model/save": "a container writes its models to the storage that its environment names",
    "/v2/worker/model/download": "a container reads models from the storage that its environment names",
    "/v2/worker/data/tracking/query": "a container's inputs stand in its environment",
    "/v2/worker/data/tracking/save": "a container writes its tables to the storage that its environment names",
    "/v2/worker/metric/save": "a container writes its reports to the storage that its environment names",
    "/v2/worker": "what a container needs stands in its environment, and it reports to its callback",
}
"""Path of FATE's own workers -> what a component does here instead."""


def router(prefixes: Mapping[str, str], tag: str = "not served") -> Paths:
    """Return paths that answer "not served here": prefix -> why, and what to use instead."""
    router = Paths(tags=[tag], route_class=FateRoute)
    for prefix, instead in prefixes.items():

        async def refuse(request: Request, instead: str = instead) -> None:
            raise NotServedHere(f"{request.url.path} is not served here: {instead}")

        for path in (prefix, prefix + "/{rest:path}"):
            router.add_api_route(path, refuse, methods=_ALL, include_in_schema=False)
    return router
