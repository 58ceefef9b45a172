"""The proof of a sender's identity at the listener for peers."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from gateway.config.schema import PeerListener, Settings
from gateway.config.values import is_loopback
from route_table import proof
from route_table.model import DEFAULT_ENTRY, Route
from route_table.proof import ListenerProof


def listener_proof(settings: Settings) -> ListenerProof:
    """Return the demands of the listener for peers on all nodes alike."""
    listener = settings.listen.peer
    sites = settings.fate.sites
    signing_sites = [node for node, site in sites.items() if site.expects is not None]
    return ListenerProof(
        asks_for_certificate=_asks_for_certificate(listener),
        is_local=is_local(listener),
        fate_sites=frozenset(signing_sites),
    )


def proof_risks(routes: Iterable[Route], settings: Settings) -> list[str]:
    """Return the risks of routes whose nodes' requests are unproven.

    Left out are this node's own entry and the default one, by which no node sends requests.
    """
    without_requests = (settings.node.id, DEFAULT_ENTRY)
    partners = [route for route in routes if route.node not in without_requests]
    return proof.risks(partners, listener_proof(settings))


def is_local(listener: PeerListener) -> bool:
    """Return whether only this machine reaches a listener.

    It binds a loopback address, and is not advertised under any other address: a proxy on this
    machine may forward requests of other machines to it.
    """
    host = listener.bind.rpartition(":")[0].strip("[]")
    advertised_host = host
    if listener.advertise is not None:
        advertised_host = urlsplit(listener.advertise).hostname or ""
    return _is_this_machine(host) and _is_this_machine(advertised_host)


def message_risk(listener: PeerListener) -> str:
    """Return the risk of forged messages of containers; "" if there is none.

    Listeners with client certificates and listeners within this machine are safe.
    """
    if _asks_for_certificate(listener) or is_local(listener):
        return ""
    return (
        f"whoever reaches {listener.bind} can send messages of containers in a partner's name: "
        "peers show no certificate"
    )


def _asks_for_certificate(listener: PeerListener) -> bool:
    """Return whether every client of a listener has to show a certificate."""
    return listener.tls is not None and listener.tls.client_ca is not None


def _is_this_machine(host: str) -> bool:
    """Return whether a host is this machine.

    False for any name but localhost, as a name can resolve to any address.
    """
    return host == "localhost" or is_loopback(host)
