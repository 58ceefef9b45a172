"""The proof of a sender's identity at the listener for peers."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from gateway.config.schema import Settings
from gateway.config.schema.listeners import PeerListener
from gateway.config.values import is_loopback
from route_table import proof
from route_table.model import DEFAULT_ENTRY, Route
from route_table.proof import ListenerProof

# Next step for routes that take unsealed messages of containers.
MESSAGE_REMEDY = (
    "exchange invitations with these nodes again, so that messages are sealed (bfia-gateway "
    "partner accept --replace); or set listen.peer.tls with client_ca: see bfia-gateway docs routes"
)


def listener_proof(settings: Settings) -> ListenerProof:
    """Return the demands of the listener for peers on all nodes alike."""
    listener = settings.listen.peer
    sites = settings.fate.sites
    signing_sites = [node for node, site in sites.items() if site.expects is not None]
    return ListenerProof(
        asks_for_certificate=listener.asks_for_certificate,
        is_local=is_local(listener),
        fate_sites=frozenset(signing_sites),
    )


def proof_risks(routes: Iterable[Route], settings: Settings) -> list[str]:
    """Return the risks of routes whose nodes' requests are unproven."""
    return proof.risks(_partners(routes, settings), listener_proof(settings))


def proof_remedy(routes: Iterable[Route], settings: Settings) -> str:
    """Return the next step for routes whose nodes' requests are unproven; "" without such routes.

    It is the one of the first route, and names the list that has those of all others.
    """
    demands = listener_proof(settings)
    unproven = [
        route
        for route in _partners(routes, settings)
        if proof.proof_of(route, demands) in proof.UNPROVEN
    ]
    if not unproven:
        return ""
    step = proof.mending_command(unproven[0])
    if len(unproven) == 1:
        return step
    return f"{step}; next steps of all routes: bfia-gateway route list"


def _partners(routes: Iterable[Route], settings: Settings) -> list[Route]:
    """Return the routes by whose nodes requests are sent.

    No node sends requests by this node's own entry, or by the default one.
    """
    without_requests = (settings.node.id, DEFAULT_ENTRY)
    return [route for route in routes if route.node not in without_requests]


def is_local(listener: PeerListener) -> bool:
    """Return whether only this machine reaches a listener.

    It binds a loopback address, and is not advertised under any other address: a proxy on this
    machine may forward requests of other machines to it.
    """
    if listener.trusted_proxies:
        return False
    host = listener.bind.rpartition(":")[0].strip("[]")
    advertised_host = host
    if listener.advertise is not None:
        advertised_host = urlsplit(listener.advertise).hostname or ""
    return _is_this_machine(host) and _is_this_machine(advertised_host)


def message_risk(routes: Iterable[Route], settings: Settings) -> str:
    """Return the risk of forged messages of containers, with the nodes; "" if there is none.

    Listeners with client certificates and listeners within this machine are safe, and so is a route
    that takes sealed messages only, or none at all. ``routes`` are the enabled ones.
    """
    listener = settings.listen.peer
    if listener.asks_for_certificate or is_local(listener):
        return ""
    demands = listener_proof(settings)
    nodes = [
        route.node
        for route in _partners(routes, settings)
        if proof.takes_unsealed_messages(route, demands)
    ]
    if not nodes:
        return ""
    return (
        f"whoever reaches {listener.bind} can send unsealed messages of containers in the name of: "
        f"{', '.join(nodes)}"
    )


def message_safety(settings: Settings) -> str:
    """Return why there is no `message_risk`."""
    demands = listener_proof(settings)
    if demands.asks_for_certificate:
        return "each peer's certificate is bound to its node id"
    if demands.is_local:
        return "only this machine reaches the listener for peers"
    return "no route takes unsealed messages of containers"


def _is_this_machine(host: str) -> bool:
    """Return whether a host is this machine.

    False for any name but localhost, as a name can resolve to any address.
    """
    return host == "localhost" or is_loopback(host)
