"""The inbox for applications for contracts, which nodes without a route may send.

The number of undecided applications is limited, so that unknown senders cannot fill the database.
The limit per IP address, and the deletion in favour of smaller networks, keep one sender from
taking all `MAX_WAITING` places.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from uuid import uuid4

import structlog

from gateway.domain.applications import APPLIED, Application, Kind, Side
from gateway.domain.spec import NodeId
from gateway.errors import Busy
from gateway.store.applications import SqlApplications

log = structlog.get_logger(__name__)

MAX_WAITING = 100  # undecided contracts of unknown nodes, all together
MAX_OF_ADDRESS = 5  # undecided contracts of one IP address, or of one partner with a route
_NETWORK_BITS = {4: 24, 6: 48}  # version of IP -> length of a network's prefix in bits


class ContractInbox:
    """Takes applications for contracts."""

    def __init__(
        self,
        store: SqlApplications,
        keys_of: Callable[[NodeId], Sequence[str]],
    ) -> None:
        """``keys_of`` returns the public keys in the route of a node."""
        self._store = store
        self._keys_of = keys_of
        # Held from the search for a repetition until the application is stored.
        self._receiving = Lock()

    def receive(self, new: Application, address: str) -> Application:
        """Store an application, or return the stored one that it repeats.

        Only an equal application signed by the same key is a repetition, so that no other sender
        learns the contract's id. ``address`` is the sender's IP address. Raises `Busy` if too many
        applications wait for a decision.
        """
        with self._receiving:
            return self._receive(new, address)

    def _receive(self, new: Application, address: str) -> Application:
        """Do what `receive` does, for one application at a time."""
        waiting = self._store.list(
            Side.THEIRS,
            Kind.CONTRACT,
            APPLIED,
            new.partner,
        )
        for application in waiting:
            if _is_repetition(application, new):
                return application
        # `keys` of an application: the key that signed it; empty without a signature.
        signed_by_partner = not set(new.keys).isdisjoint(self._keys_of(new.partner))
        if signed_by_partner and len(waiting) < MAX_OF_ADDRESS:
            address = ""  # not counted among the applications of unknown nodes
        else:
            self._make_room(address)
        stored = self._store.add(
            replace(new, id=uuid4().hex),  # the applicant has left it to this node
            address,
        )
        assert stored is not None, "the id is new"
        return stored

    def _make_room(self, address: str) -> None:
        """Make room for one more application from an IP address.

        If all places are taken, the newest application of the network with the most applications is
        deleted. Raises `Busy` if the address has too many, or if its network would then have as
        many as the largest network has now.
        """
        if self._store.count_undecided(address=address) >= MAX_OF_ADDRESS:
            raise too_many_applications()
        waiting = self._store.undecided_addresses(Kind.CONTRACT)
        if len(waiting) < MAX_WAITING:
            return
        by_network: dict[str, list[int]] = {}  # network -> numbers of its applications
        for number, sender in waiting.items():
            by_network.setdefault(network_of(sender), []).append(number)
        largest = max(by_network.values(), key=len)
        from_same_network = by_network.get(network_of(address), [])
        # Otherwise two networks of nearly the same size would displace each other in turn.
        if len(largest) <= len(from_same_network) + 1:
            raise too_many_applications()
        newest = max(largest)  # later applications have larger numbers
        log.warning("an application gives way to one from another network", number=newest)
        self._store.drop(newest)


def _is_repetition(application: Application, new: Application) -> bool:
    """Return whether a new application repeats a stored one.

    It is signed, and the stored one with the same request was signed by the same key.
    """
    is_signed = bool(new.keys)
    is_same = application.request == new.request and application.keys == new.keys
    return is_signed and is_same


def too_many_applications() -> Busy:
    """Return the refusal of an application because too many wait."""
    text = "too many applications wait for a decision here"
    return Busy(text, reason="TOO_MANY_APPLICATIONS")


def network_of(address: str) -> str:
    """Return the network of an IP address that one institution usually has: /24, or /48 for IPv6.

    Any other text is returned unchanged.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone of an IPv6 address
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    bits = _NETWORK_BITS[ip.version]
    return str(ipaddress.ip_network((ip, bits), strict=False))
