"""The middleware of each listener: identity, quotas, relay, guards, and audit of refusals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import ip_network

from anyio import CapacityLimiter
from fastapi import Request
from starlette.types import ASGIApp, Scope

from adapter.bfia import envelope, relay, requests
from adapter.bfia.channel.codec import CHANNEL, read_ends
from adapter.bfia.channel.peers import HANDED_ON
from adapter.bfia.control_sealing import is_sealed, with_sealed_responses
from adapter.bfia.paths import JOB_AUDIT, NODE, SCHEDULE
from adapter.bfia.requests import check_sender_first
from gateway.auth import Access
from gateway.bootstrap.foundation import Foundation, Registries
from gateway.bootstrap.peer_services import PeerServices
from gateway.config.schema import Settings
from gateway.config.secrets import admin_token
from gateway.domain.volumes import Volume
from gateway.http.app import from_browser, from_elsewhere, without_foreign
from gateway.http.exchange_book import MAX_BODY, note_exchange
from gateway.http.exchanges import PassedExchange, WatchingExchanges
from gateway.http.guard import Guard, Partners, Refusals, address_of, cookie_name, noting_refusals
from gateway.http.peers import (
    PeerIdentity,
    client_certificate,
    link_of,
    noting_origin,
    with_identity,
    with_lookup,
    with_quota,
)
from gateway.http.proxies import Network, through_proxies
from route_table import certificates
from route_table.model import Bearer

_CONTAINER_PATHS = frozenset(
    [f"/v1/interconn/chan/{verb}" for verb in ("push", "pop", "peek", "release")]
    + ["/v1/platform/schedule/task/callback"]
)
OPEN_PER_MINUTE = 60  # requests from one IP address to the paths that serve unknown nodes
AUDIT_THREADS = 2
LOOKUP_THREADS = 2
GUARD_THREADS = 4
# Wraps an application in middleware.
Layer = Callable[[ASGIApp], ASGIApp]


@dataclass(frozen=True)
class LayerServices:
    """The services that middleware uses."""

    foundation: Foundation
    registries: Registries
    peers: PeerServices
    largest_message: int  # bytes of a message of the channel, with its envelope

    @property
    def settings(self) -> Settings:
        """The settings of this node."""
        return self.foundation.settings

    def refusals(self) -> Refusals:
        """Return a new record of refused requests, which writes to the audit log."""
        return Refusals(self.registries.audit.add, self.foundation.clock)


def middleware(services: LayerServices) -> Mapping[str, list[Layer]]:
    """Return the middleware of each listener, the innermost layer first.

    A request passes the last layer of the list first.
    """
    refusals = services.refusals()
    audit_threads = CapacityLimiter(AUDIT_THREADS)
    # Looks up unknown senders in the database, in a thread: the layers further in, which must not
    # wait for the database, use the results.
    look_up: Layer = partial(
        with_lookup,
        is_unknown=services.peers.peer_table.is_unknown,
        look_up=services.peers.peer_table.look_up,
        limiter=CapacityLimiter(LOOKUP_THREADS),
    )
    note_refusals = partial(
        noting_refusals,
        refusals=refusals,
        claimed=_claimed_sender,
        limiter=audit_threads,
    )
    no_browsers: Layer = partial(without_foreign, cause_of_refusal=from_browser)
    peer = [
        *_inner_peer_layers(services, refusals, note_refusals),
        # The proof of the sender's identity, before a body is read or anything is done.
        _identity_layer(services, refusals, audit_threads),
        look_up,
        no_browsers,
        noting_origin,  # of every request, for all notes further in
        *_proxy_layers(services.settings),
    ]
    operator: list[Layer] = [look_up, _guard(services)]
    if services.settings.auth.mode != "on":
        # Without tokens, every request from this machine counts as an operator's. Refuse those that
        # a browser sends for a page of another site.
        operator.append(partial(without_foreign, cause_of_refusal=from_elsewhere))
    operator.append(note_refusals)  # outermost, to record the refusals of all other layers
    return {
        "operator": operator,
        "peer": peer,
        "container": [look_up, no_browsers],
    }


def _proxy_layers(settings: Settings) -> list[Layer]:
    """Return the layer for requests through trusted proxies; empty without such proxies."""
    networks = trusted_networks(settings)
    if not networks:
        return []
    return [partial(through_proxies, proxies=networks)]


def trusted_networks(settings: Settings) -> list[Network]:
    """Return the addresses of the trusted proxies before the listener for peers."""
    return [ip_network(name) for name in settings.listen.peer.trusted_proxies]


def _inner_peer_layers(
    services: LayerServices,
    refusals: Refusals,
    note_refusals: Callable[..., ASGIApp],
) -> list[Layer]:
    """Return the layers of the peers' listener that need the sender's identity.

    From the outermost to the innermost, they are the count of bytes, the quotas, the relay, the
    record of refusals, the signatures of responses, their seals, and the notes for a rehearsed
    upgrade.
    """
    settings = services.settings
    routes = services.registries.routes
    peers = services.peers

    @lru_cache(1024)
    def refusals_of(partner: str) -> Refusals:
        """Return the record of a partner's refusals: a new one, which the cache then returns."""
        return services.refusals()

    partners = Partners(
        peers.peer_table.accepts,
        refusals_of,
        unproven=services.refusals(),
    )
    return [
        partial(
            WatchingExchanges,
            sender=partial(_noted_partner, peers.peer_table.accepts),
            watch=partial(note_exchange, peers.exchanges.add, services.foundation.clock),
            kept_bytes=MAX_BODY,
        ),
        with_sealed_responses,
        # Signs the responses of this node's paths. Refusals by layers further out are not signed.
        partial(
            requests.with_signed_responses,
            key=peers.protocol.key,
            entry_of=peers.peer_table.signing_entry,
            limiter=services.foundation.limiters.rest,
        ),
        # Records refusals by the paths; the relay and the check of identity record their own.
        partial(note_refusals, partners=partners),
        # Relays requests for other nodes. These requests reach no path of this node, but need proof
        # of the sender's identity and count against its quota.
        partial(
            relay.Relay,
            node=settings.node.id,
            institution=services.foundation.institution,
            table=lambda: routes.table,  # the one in force at each request
            courier=peers.courier,
            control_limit=settings.limits.body_bytes,
            channel_limit=services.largest_message,
            record_refusal=refusals.not_relayed,
            incoming=peers.incoming,
        ),
        partial(
            with_quota,
            per_minute=settings.limits.partner_requests_per_minute,
            sender=partial(_quota_name, peers.peer_table.accepts),
        ),
        partial(with_quota, per_minute=OPEN_PER_MINUTE, sender=_open_quota_name),
        # Also of relayed requests, and of refusals by the layers above.
        partial(
            WatchingExchanges,
            sender=_counted_partner,
            watch=partial(_count_exchange, peers),
        ),
    ]


def _count_exchange(peers: PeerServices, exchange: PassedExchange) -> None:
    """Count the bytes of an exchange.

    Those of messages are in the partner's pace already, as far as they have waited for turns.
    """
    volume = Volume(exchange.request.size, exchange.response.size)
    peers.volumes.add(exchange.partner, volume)
    peers.outgoing.charge(exchange.partner, volume.bytes_out)
    if not exchange.scope["path"].startswith(CHANNEL):
        peers.incoming.charge(exchange.partner, volume.bytes_in)


def _noted_partner(
    accepts: Callable[[str], bool],
    scope: Scope,
) -> str:
    """Return the partner that a request between nodes comes from; empty for all other requests.

    Messages of the channel and sealed requests are not noted.
    """
    is_control = scope["path"].startswith((f"{SCHEDULE}/", f"{JOB_AUDIT}/", f"{NODE}/"))
    sender = _claimed_sender(scope)
    if is_control and accepts(sender) and not is_sealed(Request(scope)):
        return sender
    return ""


def _quota_name(
    accepts: Callable[[str], bool],
    scope: Scope,
) -> str | None:
    """Return the name for a request's quota; None for a container's request, which has no quota.

    Without a certificate, a partner's id proves nothing, so the name contains the IP address.
    """
    if _is_of_container(scope):
        return None
    sender = _sender_by_any_header(scope)
    if not accepts(sender):
        sender = ""
    if sender and (link_of(scope) or client_certificate(scope)):
        return sender
    return f"{sender} at {address_of(scope)}"


def _sender_by_any_header(scope: Scope) -> str:
    """Return the node that a request names as its sender; "" if it names none."""
    sender = _claimed_sender(scope)
    if sender:
        return sender
    ends = read_ends(scope["headers"])  # of a message of the channel
    if ends is None:
        return ""
    return ends[0]


def _counted_partner(scope: Scope) -> str:
    """Return the node whose bytes a request has.

    Empty for a container's request, and for one that another gateway of this node passes on: that
    gateway has counted it.
    """
    if _is_of_container(scope) or _is_handed_on(scope):
        return ""
    return _sender_by_any_header(scope)


def _open_quota_name(scope: Scope) -> str | None:
    """Return the name for the quota of paths that serve unknown nodes: the sender's IP address.

    None for any other path, which has no such quota.
    """
    if scope["path"] not in requests.OPEN:
        return None
    return address_of(scope)


def _identity_layer(
    services: LayerServices,
    refusals: Refusals,
    audit_threads: CapacityLimiter,
) -> Layer:
    peers = services.peers
    return partial(
        with_identity,
        identity=_identity(services),
        claimed=_claimed_nodes,
        require_known_sender=partial(
            check_sender_first,
            accepts=peers.peer_table.accepts,
            me=services.settings.node.id,
        ),
        denial=partial(envelope.denial, elsewhere=peers.fate.error_response),
        audit_denial=refusals.denied,
        limiter=audit_threads,
    )


def _identity(services: LayerServices) -> PeerIdentity:
    """Return the check of peers' certificates, with the revocation list if there is one."""
    routes = services.registries.routes
    return PeerIdentity(
        services.settings.node.id,
        table=lambda: routes.table,  # the one in force at each request
        former=services.peers.peer_table.route_of_unknown,
        handed_on=_is_handed_on,
        needs_certificate=bool(services.settings.listen.peer.trusted_proxies),
        is_own=own_certificate(services.settings),
        open_paths=requests.OPEN,
        unproven_entry=services.peers.peer_table.unproven_entry,
        revoked=revocation(services.settings),
    )


def own_certificate(settings: Settings) -> Callable[[Bearer], bool]:
    """Return the function that says whether a client's certificate is one of this node."""
    # `Bearer.names` has names in lower case.
    names = {settings.node.id.lower()}
    tls = settings.listen.peer.tls
    if tls is not None:
        certificate = certificates.certificates(str(tls.certificate))[0]
        names.add(certificates.pin(certificate))
    return lambda certificate: not certificate.names.isdisjoint(names)


def revocation(settings: Settings) -> Callable[[Bearer], bool]:
    """Return the function that says whether a certificate is revoked at the listener for peers."""
    tls = settings.listen.peer.tls
    if tls is None or tls.client_ca is None or tls.revoked is None:
        return _never_revoked
    return certificates.RevocationList(str(tls.revoked), str(tls.client_ca)).revokes


def _never_revoked(_: Bearer) -> bool:
    """Return False: the listener has no list of revoked certificates."""
    return False


def _guard(services: LayerServices) -> Layer:
    """Return the layer that checks operators' tokens and records their changes.

    Without ``auth.mode: on``, no token is needed.
    """
    auth = services.settings.auth
    clock = services.foundation.clock
    access = None
    if auth.mode == "on":
        token = admin_token(services.settings)
        access = Access(services.registries.tokens.find, clock, token)
    return partial(
        Guard,
        access=access,
        record=services.registries.audit.add,
        clock=clock,
        limiter=CapacityLimiter(GUARD_THREADS),
        cookie=cookie_name(services.settings.node.id),
    )


def _is_handed_on(scope: Scope) -> bool:
    """Return whether a request says that another gateway of this node passes it on."""
    return any(name == HANDED_ON.encode() for name, _ in scope["headers"])


def _claimed_sender(scope: Scope) -> str:
    """Return the node that a control request names as its sender; "" if it names none."""
    return requests.incoming(Request(scope)).source


def _claimed_nodes(scope: Scope) -> frozenset[str]:
    """Return all nodes that a request names as its sender, in any of its headers.

    Empty for a container's request.
    """
    if _is_of_container(scope):
        return frozenset()
    return requests.claimed_nodes(scope["headers"])


def _is_of_container(scope: Scope) -> bool:
    """Return whether a request is for the containers' paths, which are guarded by run tokens.

    The listener for peers serves these paths if containers have no listener of their own.
    """
    return scope["path"] in _CONTAINER_PATHS
