"""The stage of a node for other nodes: protocols, signatures, the channel and its sessions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from adapter.bfia.channel.courier import Courier
from adapter.bfia.client import BfiaProtocol
from gateway.bootstrap.engine_services import EngineServices
from gateway.bootstrap.foundation import Foundation, Registries
from gateway.bootstrap.late import LateServices
from gateway.bootstrap.peer_proof import listener_proof
from gateway.bootstrap.peers import FateSide, PeerTable, Sessions
from gateway.broker import BrokerLimits
from gateway.broker.broker import Broker
from gateway.config.statement_keys import check_signer, statement_keys_of
from gateway.domain.job import Job
from gateway.domain.run import Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.volumes import Volume
from gateway.errors import SigningFailed
from gateway.http.exchange_book import FOLDER, ExchangeBook
from gateway.identity.audit_head import HeadFile
from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.identity.seals import Seals
from gateway.identity.statement_keys import StatementKeys
from gateway.jobs.bundles import Bundles
from gateway.jobs.trust import Trust
from gateway.links.links import Links
from gateway.ports import ParticipantApi, SchedulerApi
from gateway.runtime.context import Peers
from gateway.runtime.liveness import Outages
from gateway.runtime.metrics import Metrics
from gateway.runtime.pacing import PartnerLimit, PartnerPacing
from gateway.runtime.volume_counter import VolumeCounter
from gateway.store.queries import count
from gateway.store.store import Store
from gateway.store.volumes import SqlVolumes
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_ENTRY

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class PeerServices:
    """The other nodes: their protocols and keys, the channel and its sessions."""

    peer_table: PeerTable  # which nodes there are, and their rights
    broker: Broker
    metrics: Metrics
    protocol: BfiaProtocol
    fate: FateSide
    keyring: Keyring  # this node's keys
    sign_audit: Callable[[], None]  # signs the head of the audit log if this is due
    statement_keys: StatementKeys  # sign jobs and the audit log
    bundles: Bundles  # signed descriptions of jobs
    peers: Peers  # calls to nodes, by any protocol
    sessions: Sessions
    courier: Courier  # connections for messages to other nodes
    seals: Seals  # of messages to other nodes, and from them
    outages: Outages
    links: Links  # connections that nodes without an open port keep
    volumes: VolumeCounter  # bytes exchanged with each partner
    outgoing: PartnerPacing  # the pace at which messages leave for each partner
    incoming: PartnerPacing  # the pace at which messages of each partner are read
    exchanges: ExchangeBook  # the last requests of each partner, for a rehearsed upgrade


def build_peer_services(
    foundation: Foundation,
    registries: Registries,
    engines: EngineServices,
    late: LateServices,
) -> PeerServices:
    """Return the services for other nodes.

    Raises `Invalid` for a signing key that cannot be used, and a sealing key that cannot be read.
    """
    settings = foundation.settings
    store = foundation.store
    clock = foundation.clock
    node = settings.node.id
    limits = settings.limits
    listener = listener_proof(settings)
    # The lambda is called later: `bundles` is built below, since it needs this table.
    peer_table = PeerTable(
        settings.node,
        registries.routes,
        lambda partner: _vouched_keys(store, bundles, partner),
        partial(_jobs_of_task, store),
        listener,
        open_=settings.trust.level == "open",
    )
    broker = Broker(
        settings.state_dir / "channel",
        BrokerLimits(message_bytes=limits.message_bytes, session_bytes=limits.session_bytes),
    )
    links = Links()
    volumes = VolumeCounter(
        node,
        lambda: registries.routes.table.routes,
        DEFAULT_ENTRY,
        SqlVolumes(store),
        clock,
    )
    limit_of = partial(_limit_of, registries.routes, volumes, limits.partner_bandwidth)
    outgoing = PartnerPacing(limit_of)
    incoming = PartnerPacing(limit_of)
    metrics = Metrics(
        partial(count, store),
        broker,
        clock,
        engines.resources.ledger,
        engines.capacities.responding,
        partial(_link_counts, links, registries.routes),
        volumes.since_start,
        {"out": outgoing, "in": incoming},
    )
    keyring = Keyring(settings.state_dir)
    _ = keyring.signing  # refuses an unusable file at the start
    statement_keys = statement_keys_of(settings)
    check_signer(statement_keys)
    protocol = BfiaProtocol(
        node,
        registries.routes,
        metrics.count_request,
        listener,
        links,
        partial(_count_call, volumes, outgoing, incoming),
    )
    fate = FateSide(settings, store, registries.registry, protocol, peer_table.profile_name, clock)
    bundles = Bundles(node, registries.registry, statement_keys, peer_table.entry, clock)
    # Set late, as these need the protocol themselves, or are built after it.
    # FATE's side also signs requests of the standard, if the settings have FATE's credentials for
    # the node to which a request goes.
    protocol.proof_headers = fate.sign
    protocol.key = lambda: keyring.signing  # the key pair may be rotated while the node runs
    protocol.seals = Seals(
        node, SealingKeyFile(settings.state_dir).ensure(keyring.signing), protocol.key, clock
    )
    protocol.bundles = bundles.bundles_for
    protocol.permits = partial(_permit_header, store, registries.trust)
    protocol.permits_used = registries.trust.count_presented
    peers = Peers(
        node,
        {adapter.name: adapter for adapter in (protocol, fate.protocol)},
        fate.protocol_for,
        partial(_own_apis, late),
    )
    return PeerServices(
        peer_table=peer_table,
        broker=broker,
        metrics=metrics,
        protocol=protocol,
        fate=fate,
        keyring=keyring,
        sign_audit=partial(_sign_audit, foundation, registries, statement_keys),
        statement_keys=statement_keys,
        bundles=bundles,
        peers=late.peers.bind(peers),
        sessions=Sessions(
            store,
            foundation.run_tokens,
            protocol.session_per_task,
            partial(_container_address, foundation, late),
        ),
        courier=Courier(links, volumes.add, outgoing),
        seals=protocol.seals,
        outages=Outages(
            protocol.has_route,
            protocol.reaches,
            partial(_resume_calls, late),
        ),
        links=links,
        volumes=volumes,
        outgoing=outgoing,
        incoming=incoming,
        exchanges=ExchangeBook(settings.state_dir / FOLDER),
    )


def _limit_of(
    routes: LiveRoutes,
    volumes: VolumeCounter,
    default_rate: int | None,
    partner: NodeId,
) -> PartnerLimit | None:
    """Return the limit of the bytes exchanged with a partner; None without one.

    ``default_rate``: bytes per second for partners whose entry sets none; None: no limit.
    """
    entry = volumes.entry_of(partner)
    if not entry:
        return None
    rate = routes.table.routes[entry].bandwidth or default_rate
    if rate is None:
        return None
    return PartnerLimit(entry, rate)


def _count_call(
    volumes: VolumeCounter,
    outgoing: PartnerPacing,
    incoming: PartnerPacing,
    partner: NodeId,
    volume: Volume,
) -> None:
    """Count the bytes of a control request of this node, which has not waited for a turn."""
    volumes.add(partner, volume)
    outgoing.charge(partner, volume.bytes_out)
    incoming.charge(partner, volume.bytes_in)


def _link_counts(links: Links, routes: LiveRoutes) -> Mapping[tuple[NodeId, str], int]:
    """Return the number of standing links of each route with links, by node and direction."""
    counts = {}
    for route in routes.table.routes.values():
        if route.enabled and route.reached:
            counts[route.node, "in"] = 0
        if route.enabled and route.dial:
            counts[route.node, "out"] = 0
    for link in links.states():
        direction = "out" if link.dials_out else "in"
        counts[link.node, direction] = counts.get((link.node, direction), 0) + 1
    return counts


def _vouched_keys(
    store: Store,
    bundles: Bundles,
    node: NodeId,
) -> dict[str, tuple[str, ...]]:
    """Return a node's public keys in the signed jobs under way here, by the jobs' ids."""
    keys = {}
    for job_id in store.local_jobs.under_way_with(node):
        local = store.local_jobs.find(job_id)
        if local is not None and local.agreement is not None:
            spec = local.spec
            keys[job_id] = bundles.vouched_keys(
                local.agreement.bundle,
                initiator=spec.initiator,
                scheduler=spec.scheduler,
                node=node,
            )
    for job_id in store.jobs.under_way_with(node):
        job = store.jobs.find(job_id)
        if job is None or job_id in keys or not job.spec.bundles:
            continue
        initiator = job.spec.initiator
        # The initiator has made and signed all bundles of a job; each contains the same keys.
        bundle = next(iter(job.spec.bundles.values()))
        # A bundle of any other signer does not count. The scheduling node is this node, which did
        # not sign unless it is the initiator, so the initiator is passed for both.
        keys[job_id] = bundles.vouched_keys(
            bundle,
            initiator=initiator,
            scheduler=initiator,
            node=node,
        )
    return keys


def _jobs_of_task(store: Store, task_id: str) -> list[str]:
    """Return the id of a task's job here; empty for an unknown task.

    For a job that this node schedules and also takes part in, the list has the id twice.
    """
    job_ids = (store.job_of_task(task_id), store.local_job_of_task(task_id))
    return [job_id for job_id in job_ids if job_id]


def _permit_header(
    store: Store,
    trust: Trust,
    node: NodeId,
    job: JobSpec | str,
) -> str:
    """Return the header with the permits of a job for a node; "" if there are none.

    ``job`` is the job itself or its id.
    """
    if isinstance(job, JobSpec):
        # A job's own permit is needed for its creation only.
        return trust.header(node, job, _job_token(store.jobs.find(job.job_id), node))
    record = store.jobs.cached(job) or store.record(job)
    if record is None:
        return ""
    return trust.header(node, record.spec)


def _job_token(job: Job | None, node: NodeId) -> str:
    """Return the token of the permit that a node has issued for a job; empty for none."""
    if job is None:
        return ""
    node_job = job.nodes.get(node)
    if node_job is None or node_job.consent is None:
        return ""
    return node_job.consent.permit


def _sign_audit(
    foundation: Foundation,
    registries: Registries,
    keys: StatementKeys,
) -> None:
    """Sign the audit log if this is due. A key that cannot sign now is tried again next time."""
    settings = foundation.settings
    head = HeadFile(settings.state_dir)
    try:
        registries.audit.sign_daily(settings.node.id, keys.signing, foundation.clock(), head)
    except SigningFailed as error:
        log.warning("the audit log is not signed", reason=error.reason, cause=error.message)


def _own_apis(late: LateServices) -> tuple[SchedulerApi, ParticipantApi]:
    """Return the services that this node calls, without HTTP, in place of a peer's."""
    return late.coordinator(), late.participant()


def _container_address(foundation: Foundation, late: LateServices, run: Run) -> str:
    """Return the IP address of a run's container.

    Returns "" if containers have no listener of their own: at the shared port, the IP address of a
    sender does not identify a container.
    """
    if foundation.settings.listen.container is None:
        return ""
    return late.launching().address_of(run)


def _resume_calls(late: LateServices, node: NodeId) -> None:
    """Make the calls that wait for a node, which can be reached again."""
    late.scheduler().resume(node)
    late.executor().resume(node)
