"""The links of a node: which stand, and how further ones are accepted and dialled."""

from functools import partial

from adapter.bfia.connections import connect_to, context
from gateway.bootstrap.layers import revocation, trusted_networks
from gateway.bootstrap.services import Services
from gateway.http.guard import Refusals
from gateway.http.proxies import host_before
from gateway.http.server import LinkService
from gateway.links.accepting import Acceptor, AcceptParts
from gateway.links.dialling import Dialler, DialParts
from gateway.links.proof import LinkRefused

_FORBIDDEN = 403  # HTTP status with which the audit lists a refused link


def link_service(services: Services) -> LinkService:
    """Return the links that the listener for peers takes and serves."""
    foundation = services.foundation
    routes = services.registries.routes
    refusals = Refusals(services.registries.audit.add, foundation.clock)

    def record_refusal(node: str, address: str, refused: LinkRefused) -> None:
        """Record a refused link in the log and, once a minute per node and address, the audit."""
        write = refusals.due("link", node, address, refused.reason)
        if write is not None:
            detail = {"reason": refused.reason, "from": address, "message": str(refused)}
            write(f"node {node}", "link", _FORBIDDEN, detail)

    parts = AcceptParts(
        node=foundation.settings.node.id,
        table=lambda: routes.table,  # the one in force at each opening
        key=services.peers.protocol.key,
        revoked=revocation(foundation.settings),
        record_refusal=record_refusal,
        host_of=partial(host_before, proxies=trusted_networks(foundation.settings)),
        clock=foundation.clock,
    )
    dial_parts = DialParts(
        node=foundation.settings.node.id,
        routes=lambda: routes.table.routes.values(),
        key=services.peers.protocol.key,
        connect=connect_to,
        tls_context=context,
        clock=foundation.clock,
    )
    links = services.peers.links
    return LinkService("peer", links, Acceptor(parts, links), Dialler(dial_parts, links))
