"""The links that should stand, and do not."""

from collections.abc import Iterable, Mapping, Sequence

from gateway.domain.links.states import GatewayLinks
from gateway.domain.spec import NodeId
from route_table.model import Route


def linked_nodes(routes: Iterable[Route]) -> list[NodeId]:
    """Return the nodes whose enabled routes have links."""
    return [route.node for route in routes if route.enabled and (route.dial or route.reached)]


def causes_of_missing_links(
    nodes: Iterable[NodeId],
    links: Sequence[GatewayLinks],
) -> Mapping[NodeId, str]:
    """Return the nodes without a standing link at any gateway, each with the cause as text."""
    linked = {at_gateway.node for at_gateway in links if at_gateway.links.standing}
    causes = {node: f"no link with {node} stands" for node in nodes if node not in linked}
    for at_gateway in links:
        failure = at_gateway.links.last_failure
        if failure is not None and at_gateway.node in causes:
            causes[at_gateway.node] = f"no link with {at_gateway.node} stands: {failure.cause}"
    return causes
