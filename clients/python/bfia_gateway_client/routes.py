"""``client.routes``: the routes to other nodes, their tests and their versions."""

from typing import Any

from bfia_gateway_client import types
from bfia_gateway_client.bridge import call
from bfia_gateway_client.calls import Entries, Group, W, path_of


class Routes(Group[W]):
    """Routes. Every change makes a version of all routes, which is stored with its ``reason``.

    `rollback` restores the routes of an earlier version.
    """

    @call
    async def list(self, *, limit: int = 100) -> Entries[types.Route]:
        """Return the routes in force, at most ``limit``."""
        return await self._list(types.Route, path_of("routes"), "routes", limit)

    @call
    async def show(self, node: str) -> types.Route:
        """Return the route to a node."""
        response = await self._wire.call("GET", path_of("routes", node))
        return types.Route.model_validate(response["route"])

    @call
    async def add(
        self,
        node: str,
        /,
        *,
        reason: str = "",
        **entry: Any,
    ) -> types.NewRouteVersion:
        """Add a route, or replace an existing one.

        ``entry``: its keys as in the route file, such as ``url="https://gw.example:7380"`` or
        ``via="JG…"``. Raises `Invalid` (ROUTE_INVALID) with every mistake.
        """
        return await self._edit("PUT", node, entry, reason)

    @call
    async def change(
        self,
        node: str,
        /,
        *,
        reason: str = "",
        **entry: Any,
    ) -> types.NewRouteVersion:
        """Change some keys of a route, such as ``enabled=False``; None removes a key."""
        return await self._edit("PATCH", node, entry, reason)

    @call
    async def remove(
        self,
        node: str,
        *,
        reason: str = "",
    ) -> types.NewRouteVersion:
        """Remove a route."""
        return await self._ask(
            types.NewRouteVersion, "DELETE", path_of("routes", node), query={"reason": reason}
        )

    @call
    async def test(self, node: str) -> types.RouteTest:
        """Test a route in both directions, step by step; ``good`` is True if every step worked."""
        path = path_of("routes", node, "test")
        return await self._ask(
            types.RouteTest,
            "POST",
            path,
            {},
            timeout=150,
        )

    @call
    async def history(self, *, limit: int = 20) -> Entries[types.RouteVersion]:
        """Return the versions with author, time and reason; the newest first."""
        return await self._list(types.RouteVersion, path_of("route-versions"), "versions", limit)

    @call
    async def version(
        self,
        number: int,
        *,
        since: int | None = None,
    ) -> types.FullRouteVersion:
        """Return a version and its differences from an earlier one (``since``; default: the
        previous).
        """
        path = path_of("route-versions", str(number))
        return await self._ask(
            types.FullRouteVersion,
            "GET",
            path,
            query={"since": since},
        )

    @call
    async def rollback(
        self,
        version: int,
        *,
        reason: str = "",
    ) -> types.NewRouteVersion:
        """Restore the routes of an earlier version, as a new version, which can be rolled back
        too.
        """
        path = path_of("route-versions", str(version), "rollback")
        return await self._ask(types.NewRouteVersion, "POST", path, {"reason": reason})

    async def _edit(
        self,
        method: str,
        node: str,
        entry: dict[str, Any],
        reason: str,
    ) -> types.NewRouteVersion:
        """Change the entry of a route: replace it by PUT, change some keys by PATCH."""
        body = {"route": entry, "reason": reason}
        return await self._ask(types.NewRouteVersion, method, path_of("routes", node), body)
