"""The routers of the listeners for programs: other nodes, and this node's containers."""

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter

from adapter.bfia import attestation, interconn, platform, requests
from adapter.bfia import wire as bfia
from adapter.bfia.channel import router
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.management import router as management
from adapter.bfia.requests import Peers
from adapter.bfia.route_sealing import sealing_facts
from gateway.bootstrap.parts import approval_policy
from gateway.bootstrap.services import Services
from gateway.config.schema import Settings
from gateway.domain.spec import NodeId
from gateway.http.app import Mounted
from gateway.identity.signatures import Verifier
from gateway.jobs.job_audits import JobAudits
from route_table.model import Route

# Limits in bytes for bodies that contain neither a job nor the description of a component.
MEDIUM_BODY = 1024**2
SMALL_BODY = 64 * 1024
ENVELOPE_BYTES = 65536  # the most that the envelope adds to a channel message


def channel_parts(services: Services) -> ChannelParts:
    """Return what the paths of the channel need."""
    peers = services.peers
    message_bytes = services.foundation.settings.limits.message_bytes
    return ChannelParts(
        node=services.foundation.settings.node.id,
        institution=services.foundation.institution,
        broker=peers.broker,
        run_of=peers.sessions.run_of,
        own_session=peers.sessions.own_session,
        route_of=peers.peer_table.route_of,
        known_sender=peers.peer_table.accepts,
        session_open=peers.sessions.is_open,
        max_body=message_bytes * 4 // 3 + ENVELOPE_BYTES,  # a message in base64
        courier=peers.courier,
        incoming=peers.incoming,
        elsewhere=partial(_session_route, services),
        may_bring=partial(_may_bring, services),
        seals=peers.seals,
        sender_route=peers.peer_table.signing_entry,
        nodes_of=peers.peer_table.nodes_of,
    )


def peer_mounts(services: Services, verifier: Verifier, channel: ChannelParts) -> list[Mounted]:
    """Return the routers for peers.

    Paths are tried in order, so the most frequently used routers come first.
    """
    return [
        # None: the channel itself applies `ChannelParts.max_body`.
        Mounted(router.peer_router(channel), None, bfia.ChannelRefusal),
        *_interconn_mounts(services),
        *_management_mounts(services, verifier),
        *_fate_mounts(services),
    ]


def container_mounts(services: Services, channel: ChannelParts) -> list[Mounted]:
    """Return the routers for containers."""
    foundation = services.foundation
    has_own_port = foundation.settings.listen.container is not None
    callbacks = platform.container_router(
        services.participation.container_callbacks.record,
        foundation.limiters,
        foundation.run_tokens.id_of,
        by_address=has_own_port,
    )
    reports = attestation.container_router(
        services.participation.attested_runs,
        foundation.limiters,
        foundation.run_tokens.id_of,
    )
    return [
        Mounted(router.container_router(channel), None, bfia.ChannelRefusal),
        *bounded(foundation.settings, callbacks),
        *bounded(foundation.settings, reports, size=MEDIUM_BODY),
    ]


def bounded(
    settings: Settings,
    *routers: APIRouter,
    size: int | None = None,
) -> list[Mounted]:
    """Mount routers of the standard, with a limit for bodies.

    The limit is ``size`` bytes, but never more than limits.body_bytes, which is also the default.
    """
    max_body = settings.limits.body_bytes
    if size is not None:
        max_body = min(size, max_body)
    return [Mounted(api_router, max_body, bfia.Refusal) for api_router in routers]


def _interconn_mounts(services: Services) -> list[Mounted]:
    """Return the standard's paths for jobs, their audits and outputs, and for greetings."""
    foundation = services.foundation
    node_id = foundation.settings.node.id
    coordinator = services.scheduling.coordinator
    peers = _admission_of_senders(services)
    audits = JobAudits(
        foundation.context,
        services.participation.admission,
        coordinator,
        services.runs.executor,
        approval_policy(foundation.settings),
    )
    return bounded(
        foundation.settings,
        interconn.router(node_id, coordinator, services.participation.participant, peers),
        interconn.audit_router(audits, peers),
        interconn.hello_router(
            node_id,
            foundation.institution,
            services.peers.protocol.peer,
            peers,
            partial(_sealing_of, services),
        ),
        interconn.outputs_router(services.partners.outputs, peers),
        attestation.peer_router(
            services.registries.verifiers,
            services.peers.protocol.key,
            foundation.clock,
            peers,
        ),
    )


def _management_mounts(services: Services, verifier: Verifier) -> list[Mounted]:
    """Return the paths of cards, contracts, applications and offers."""
    settings = services.foundation.settings
    clock = services.foundation.clock
    partners = services.partners
    applications = partners.applications
    peers = _admission_of_senders(services)
    cards = management.node_router(partners.card, applications, peers, verifier, clock)
    audits = management.audit_router(partners.card, applications, peers, clock)
    offers = management.offers_router(
        partners.offers, services.foundation.institution, applications, peers
    )
    return [
        *bounded(settings, cards, size=SMALL_BODY),
        *bounded(settings, audits, size=MEDIUM_BODY),
        *bounded(settings, offers, size=SMALL_BODY),
    ]


def _fate_mounts(services: Services) -> list[Mounted]:
    """Return the paths of FATE's protocol; none while it is switched off."""
    approvals = services.participation.approvals

    def approve(job_id: str, by: str, reason: str) -> object:
        return approvals.decide(
            job_id,
            approve=True,
            by=by,
            words=reason,
        )

    return services.peers.fate.peer_mounts(
        services.scheduling.coordinator,
        services.participation.participant,
        services.foundation.limiters,
        services.peers.peer_table,
        approve,
    )


def _admission_of_senders(services: Services) -> Peers:
    """Return the rules by which the routers for peers admit the senders of requests."""
    table = services.peers.peer_table
    body_bytes = services.foundation.settings.limits.body_bytes
    return Peers(
        knows=table.knows,
        profile_of=table.profile_of,
        limiters=services.foundation.limiters,
        takes_part=table.takes_part,
        check_part=table.check_part,
        proof=table.proof,
        unproven_entry=table.unproven_entry,
        ids_bytes=min(requests.IDS_BYTES, body_bytes),
        me=services.foundation.settings.node.id,
    )


def _sealing_of(services: Services, node: NodeId) -> Mapping[str, str]:
    """Return what a route test of another node learns about the seal of messages."""
    peers = services.peers
    return sealing_facts(peers.peer_table.entry(node), peers.seals)


def _session_route(services: Services, session: str) -> Route | None:
    """Return the route to the gateway of this node that has a session.

    Returns None if that is this gateway or an unknown one, and if no job here has the session.
    """
    home = services.peers.sessions.home_of(session)
    if home is None:
        return None
    url = services.runs.heartbeat.address_of_other(home)
    return services.peers.peer_table.route_here(url)


def _may_bring(
    services: Services,
    sender: NodeId,
    session: str,
) -> bool:
    """Return whether a node may send a message of a session, see `FateSide.may_bring`."""
    peers = services.peers
    takes_part = peers.sessions.has_party(session, sender)
    return peers.fate.may_bring(
        sender,
        takes_part,
        has_route=peers.peer_table.knows(sender),
    )
