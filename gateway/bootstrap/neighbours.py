"""What this node knows of other nodes from its route table, in the forms in which the parts ask for it."""

from starlette.requests import Request

from adapter.bfia import headers
from adapter.bfia.channel.courier import PeerRoute
from adapter.bfia.profiles import Profile, profile_named
from gateway.config import schema
from gateway.http.strangers import Seen, seen
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_PROFILE, NO_IDENTITY, Identity, Route, UnknownNode


class Neighbours:
    """The other nodes, by the routes of now."""

    def __init__(self, here: schema.Node, routes: LiveRoutes) -> None:
        self._here = here
        self._routes = routes

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route, or had one and takes part in a job under way.

        This node itself is no peer: a request that claims its id from outside is not from here.
        """
        if node == self._here.id:
            return False
        if (stranger := seen(node)) is None:
            return self._routes.admits(node)
        if stranger.error is not None:
            raise stranger.error
        return stranger.admitted

    def is_stranger(self, node: str) -> bool:
        """Tell, without a query, whether there is no route to a node."""
        return node != self._here.id and not self._routes.table.knows(node)

    def look(self, node: str) -> Seen:
        """Ask the database about a node without a route."""
        return Seen(*self._routes.look(node))

    def former(self, node: str) -> Route | None:
        """Return the route that a node without one had, where the request under way is about it."""
        return found.route if (found := seen(node)) else None

    def barred(self, node: str, component: str) -> str:
        """Return why a node may not have a component (``provider/name``) run here; empty where it may."""
        route = self._routes.table.routes.get(node)
        if route is None or route.may_run(component):
            return ""
        return f"the route of {node} allows {', '.join(route.components)}, not {component}"

    def institution(self, node: str) -> str:
        """Return the institution of a node; of one that names none, the node's own id."""
        if node == self._here.id:
            return self._here.institution or node
        route = self._resolved(node)
        return (route.institution if route else None) or node

    def profile_of(self, node: str) -> Profile:
        """Return how a node departs from the standard."""
        return profile_named(self.profile_name(node))

    def profile_name(self, node: str) -> str:
        """Return the profile that the route of a node names."""
        route = self._resolved(node)
        return route.profile if route else DEFAULT_PROFILE

    def as_200(self, request: Request) -> bool:
        """Say whether a request comes from a peer that knows HTTP 200 only."""
        return self.profile_of(headers.incoming(request).source).errors_as_200

    def takes_confirm(self, node: str) -> bool:
        """Say whether a node can be told later what was decided on a job here."""
        return node == self._here.id or self.profile_of(node).takes_confirm

    def route_of(self, node: str) -> PeerRoute | None:
        """Return where messages for a node go; None where there is no way to it."""
        route = self._resolved(node)
        if route is None:
            return None
        return PeerRoute(route.url, route.deadline, route.profile, route.via or "", route.identity)

    def identity_here(self) -> Identity:
        """Return how other gateways of this node are reached: as an entry of its own id says, if there is one."""
        own = self._routes.table.routes.get(self._here.id)
        return own.identity if own else NO_IDENTITY

    def _resolved(self, node: str) -> Route | None:
        if node == self._here.id:  # no route leads here, and to look whether one did costs a query
            return None
        if (stranger := seen(node)) is not None:
            return stranger.route
        try:
            return self._routes.resolve(node)
        except UnknownNode:
            return None
