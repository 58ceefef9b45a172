"""The paths that an adapter brings, noted until somebody asks for them.

The framework's own router would build each path where it is declared and once more in the application that takes
it. That was half of what a node needs to start; a path of its own takes a millisecond or two, so the first request
to it builds it, and holds up nobody else for longer.
"""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Receive, Scope, Send


class Paths(APIRouter):
    """A router of which nothing is asked itself: `put_into` hands its paths to an application's."""

    def __init__(self, **options: Any) -> None:
        """Take what the framework's router takes."""
        super().__init__(**options)
        self._lives = options.get("lifespan") is not None
        self._noted: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Note a path; the framework's decorators come here as well."""
        self._noted.append((path, endpoint, options))

    def declared(self) -> Iterator[tuple[str, str]]:
        """Yield the method and the path of all that was noted."""
        for path, _, options in self._noted:
            for method in options.get("methods") or ("GET",):
                yield method, path

    def put_into(self, target: APIRouter, max_body: int | None) -> None:
        """Add the paths to an application's router. A path that names no largest body takes ``max_body`` bytes."""
        for path, endpoint, options in self._noted:
            own = {
                "tags": [*self.tags, *(options.get("tags") or ())],
                "dependencies": [*self.dependencies, *(options.get("dependencies") or ())],
                "route_class_override": options.get("route_class_override") or self.route_class,
                "max_body_size": max_body if options.get("max_body_size") is None else options["max_body_size"],
            }
            target.routes.append(_Noted(target, path, endpoint, options | own))
        if self._lives:  # there is no path in it any more, and its beginning and end are the application's
            target.include_router(self)


def build_all(router: APIRouter) -> None:
    """Build every path of an application's router that nobody has asked for, as its description needs them all."""
    for route in list(router.routes):
        if isinstance(route, _Noted):
            route.built()


class _Noted(BaseRoute):
    """Stands for a path until it is asked for; then the path takes its place."""

    def __init__(
        self, router: APIRouter, path: str, endpoint: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        self._router = router
        self._place = len(router.routes)
        self._declared = path, endpoint, options
        self._lock = Lock()  # the description is made in a thread
        self._route: BaseRoute | None = None
        self._regex, self.path_format, _ = compile_path(path)

    def built(self) -> BaseRoute:
        """Return the path itself, built now if it was not yet."""
        with self._lock:
            if self._route is None:
                path, endpoint, options = self._declared
                alone = _alone_like(self._router)
                alone.add_api_route(path, endpoint, **options)
                (self._route,) = alone.routes
                self._router.routes[self._place] = self._route
            return self._route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Say what the path would, which is built for a request that may be for it."""
        if scope["type"] != "http" or self._regex.match(scope["path"]) is None:
            return Match.NONE, {}
        return self.built().matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the path answer."""
        await self.built().handle(scope, receive, send)


def _alone_like(router: APIRouter) -> APIRouter:
    """Return an empty router that gives its paths what this one does."""
    return APIRouter(
        dependencies=router.dependencies,
        dependency_overrides_provider=router.dependency_overrides_provider,
        strict_content_type=router.strict_content_type,
    )
