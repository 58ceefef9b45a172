"""The paths that an adapter brings, noted until the application of a listener builds them.

The framework's own router would build each path where it is declared and once more in the application that takes
it: half of what a node needs to start.
"""

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter


class Paths(APIRouter):
    """A router whose paths are built once, by `build`, and of which nothing is asked before."""

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

    def build(self, target: APIRouter, max_body: int | None) -> None:
        """Add the paths to an application's router. A path that names no largest body takes ``max_body`` bytes."""
        for path, endpoint, options in self._noted:
            own = {
                "tags": [*self.tags, *(options.get("tags") or ())],
                "dependencies": [*self.dependencies, *(options.get("dependencies") or ())],
                "route_class_override": options.get("route_class_override") or self.route_class,
                "max_body_size": max_body if options.get("max_body_size") is None else options["max_body_size"],
            }
            target.add_api_route(path, endpoint, **options | own)
        if self._lives:  # there is no path in it any more, and its beginning and end are the application's
            target.include_router(self)
