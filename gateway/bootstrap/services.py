"""All services of a node, built in stages; each stage gets the ones before it."""

from dataclasses import dataclass

from adapter.bfia.connections import KEEPING_INTERVAL
from gateway.bootstrap.engine_services import EngineFactory, EngineServices, build_engine_services
from gateway.bootstrap.foundation import Foundation, Registries, build_registries, open_foundation
from gateway.bootstrap.job_services import (
    ParticipationServices,
    SchedulingServices,
    build_participation,
    build_scheduling,
)
from gateway.bootstrap.late import LateServices
from gateway.bootstrap.partner_services import PartnerServices, build_partner_services
from gateway.bootstrap.parts import Pace
from gateway.bootstrap.peer_services import PeerServices, build_peer_services
from gateway.bootstrap.run_services import RunServices, build_run_services
from gateway.bootstrap.sockets import Sockets, open_sockets
from gateway.config.schema import Settings
from gateway.jobs import announcements
from gateway.runtime.chores import Chore, Chores

_AUDIT_HEAD_INTERVAL = 3600.0  # seconds between two looks whether the audit log has to be signed
_VOLUMES_INTERVAL = 60.0  # seconds between two times that partners' bytes are written
_EXCHANGES_INTERVAL = 60.0  # seconds between two times that partners' requests are written


@dataclass(frozen=True)
class Services:
    """The services of a node by the stages in which they are built."""

    foundation: Foundation
    registries: Registries
    engines: EngineServices
    peers: PeerServices
    runs: RunServices
    scheduling: SchedulingServices
    participation: ParticipationServices
    partners: PartnerServices
    sockets: Sockets
    chores: Chores  # the work of all stages that is seldom due


def build_services(
    settings: Settings,
    make_engine: EngineFactory,
    pace: Pace,
) -> Services:
    """Build the services of a node and bind its sockets; nothing is started yet.

    Raises `Invalid` for settings that cannot work, `OSError` for an address in use.
    """
    late = LateServices()
    foundation = open_foundation(settings, pace)
    registries = build_registries(foundation)
    engines = build_engine_services(foundation, registries, late, make_engine)
    peers = build_peer_services(foundation, registries, engines, late)
    runs = build_run_services(foundation, registries, engines, peers, late)
    scheduling = build_scheduling(foundation, registries, peers, runs.executor, late)
    participation = build_participation(
        foundation, registries, engines, peers, runs, scheduling.drain, late
    )
    partners = build_partner_services(foundation, registries, peers, late)
    sockets = late.sockets.bind(open_sockets(settings, engines.engine))
    chores = [
        Chore("cleaning", participation.cleaner.clean, pace.cleaning, is_due_at_start=False),
        Chore("announcements", partners.announcements.compare, announcements.INTERVAL),
        Chore("connections", peers.protocol.keep_connections, KEEPING_INTERVAL),
        Chore("exchanges", peers.exchanges.save, _EXCHANGES_INTERVAL, is_due_at_start=False),
        Chore("volumes", peers.volumes.save, _VOLUMES_INTERVAL, is_due_at_start=False),
        Chore("audit head", peers.sign_audit, _AUDIT_HEAD_INTERVAL),
    ]
    return Services(
        foundation=foundation,
        registries=registries,
        engines=engines,
        peers=peers,
        runs=runs,
        scheduling=scheduling,
        participation=participation,
        partners=partners,
        sockets=sockets,
        chores=Chores(chores),
    )
