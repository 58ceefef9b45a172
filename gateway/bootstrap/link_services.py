"""The links of a node: which stand, and how further ones are accepted, dialled and shared."""

from functools import partial

from adapter.bfia.connections import connect_to, context
from gateway.bootstrap.layers import own_certificate, revocation, trusted_networks
from gateway.bootstrap.services import Services
from gateway.http.guard import Refusals
from gateway.http.proxies import arrival_before
from gateway.http.server import LinkService
from gateway.links.accepting import Acceptor, AcceptParts
from gateway.links.dialling import Dialler, DialParts
from gateway.links.opening import Ways
from gateway.links.proof import LinkRefused
from gateway.links.sharing import Sharing, SharingParts
from gateway.store.links import SqlLinkBoard

_FORBIDDEN = 403  # HTTP status with which the audit lists a refused link
_WAYS = Ways(connect_to, context)


def link_service(services: Services) -> LinkService:
    """Return the links that the listener for peers takes and serves."""
    links = services.peers.links
    return LinkService(
        "peer",
        links,
        Acceptor(_accept_parts(services), links),
        Dialler(_dial_parts(services), links),
        _sharing(services),
    )


def _accept_parts(services: Services) -> AcceptParts:
    """Return what the acceptor of links needs."""
    foundation = services.foundation
    settings = foundation.settings
    routes = services.registries.routes
    refusals = Refusals(services.registries.audit.add, foundation.clock)

    def record_refusal(node: str, address: str, refused: LinkRefused) -> None:
        """Record a refused link in the log and, once a minute per node and address, the audit."""
        write = refusals.due("link", node, address, refused.reason)
        if write is not None:
            detail = {"reason": refused.reason, "from": address, "message": str(refused)}
            write(f"node {node}", "link", _FORBIDDEN, detail)

    return AcceptParts(
        node=settings.node.id,
        gateway=foundation.owner,
        table=lambda: routes.table,  # the one in force at each opening
        key=services.peers.protocol.key,
        revoked=revocation(settings),
        is_own=own_certificate(settings),
        record_refusal=record_refusal,
        before_proxy=partial(arrival_before, proxies=trusted_networks(settings)),
        needs_certificate=bool(settings.listen.peer.trusted_proxies),
        clock=foundation.clock,
    )


def _dial_parts(services: Services) -> DialParts:
    """Return what the dialling of links needs."""
    routes = services.registries.routes
    return DialParts(
        node=services.foundation.settings.node.id,
        routes=lambda: routes.table.routes.values(),
        key=services.peers.protocol.key,
        ways=_WAYS,
        clock=services.foundation.clock,
    )


def _sharing(services: Services) -> Sharing:
    """Return the sharing of links with the node's other gateways, and with `doctor`."""
    foundation = services.foundation
    routes = services.registries.routes
    parts = SharingParts(
        node=foundation.settings.node.id,
        table=lambda: routes.table,
        key=services.peers.protocol.key,
        route_to=services.peers.peer_table.route_here,
        ways=_WAYS,
        clock=foundation.clock,
        is_alone=foundation.lock is not None,
    )
    board = SqlLinkBoard(foundation.store, foundation.owner)
    return Sharing(parts, services.peers.links, board)
