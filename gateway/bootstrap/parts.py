"""Makes the parts of one node and ties them together."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal

from adapter.bfia import platform
from adapter.bfia.channel.courier import Courier
from adapter.bfia.environment import session_id
from adapter.bfia.protocol import BfiaProtocol
from engines.base import Engine
from engines.multi import SeveralEngines
from gateway.bootstrap.engine import engines_by_address, grants_of, main_of, rooms_of
from gateway.bootstrap.fate import FateSide
from gateway.bootstrap.identity import instance_of, key_of, only_process
from gateway.bootstrap.neighbours import Neighbours
from gateway.bootstrap.rules import admission_rules, approval_policy, call_timing, retention, run_timing
from gateway.bootstrap.sessions import Sessions
from gateway.bootstrap.sockets import listening
from gateway.broker.broker import Broker
from gateway.broker.model import BrokerLimits
from gateway.config import peer_tls
from gateway.config.schema import Settings
from gateway.container_listener import ContainerDoor
from gateway.data.datasets import Datasets
from gateway.data.files import DiskWatch
from gateway.data.folders import made
from gateway.data.logs import RunLogs
from gateway.data.models import Models
from gateway.data.report_tables import oddities
from gateway.data.sharing import Sharing
from gateway.data.storage import FileStorage
from gateway.data.workspace import Workspace
from gateway.domain.datasets import Default
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import DatabaseAway, GatewayError
from gateway.events.feed import Feed
from gateway.events.webhooks import Hook, Webhooks
from gateway.http.own_ports import claimed
from gateway.http.partner_quota import QuotaReached
from gateway.http.server import Arrivals
from gateway.jobs import cleaning
from gateway.jobs import retention as jobs_retention
from gateway.jobs.ceilings import Ceilings
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.deletion import Deleting
from gateway.jobs.executor import Executor
from gateway.jobs.inheritance import Inheritance
from gateway.jobs.launcher import Launching, Place
from gateway.jobs.participant import Participant
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.resource_totals import defaults_of, detecting
from gateway.jobs.resources import Bounds, Resources
from gateway.jobs.scheduler import Scheduler
from gateway.ports import ProtocolAdapter
from gateway.providers.images import Signatures, signers_of
from gateway.providers.provider_images import Images
from gateway.providers.provider_reading import Reader
from gateway.providers.registration import Providers
from gateway.run_tokens import RunTokens
from gateway.runtime.clock import resume, wall_of
from gateway.runtime.context import traced
from gateway.runtime.drain import Drain
from gateway.runtime.executors import Lanes
from gateway.runtime.heartbeat import Heartbeat
from gateway.runtime.metrics import Metrics
from gateway.runtime.outages import Outages
from gateway.runtime.peers import Peers
from gateway.runtime.stuck import telling
from gateway.store.access import SqlAudit, SqlTokens
from gateway.store.counting import count
from gateway.store.gateways import Gateways
from gateway.store.leaves import SqlDatasets
from gateway.store.migrate import opened
from gateway.store.models import SqlModels
from gateway.store.records import Records
from gateway.store.repositories import SqlProviders
from gateway.store.routes import SqlRouteVersions
from gateway.store.sharing import SqlGrants
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes


class Node:
    """All parts of one node, tied together; nothing listens and nothing runs yet."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], datetime],
        engine: Callable[[Settings, str], Engine],
    ) -> None:
        """Build the parts. ``engine`` makes the engine from the settings and the installation's id."""
        self.settings = settings
        self.clock = clock
        self.wall = wall = wall_of(clock)
        node = settings.node.id
        self.tls = peer_tls.served(settings.listen.peer.tls)
        docker = settings.engine.kind == "docker"
        signatures = Signatures(signers_of(settings.engine.docker.signatures) if docker else ())
        made(settings.state_dir, "state_dir")
        made(settings.storage.path, "storage.url", 0o700)  # below, containers' folders are open
        made(settings.state_dir / "runs", "state_dir", 0o700)
        self._lock = only_process(settings)
        timing, runs_timing = call_timing(settings), run_timing(settings)
        self.store = Store(opened(settings.database.url), timing, runs_timing)
        self.owner = owner = f"{instance_of(settings.state_dir)}/{settings.engine.kind}"
        gateways = Gateways(self.store)
        resume(clock, gateways.last_time(owner))
        installation = self.store.installation()
        self.storage = FileStorage(settings.storage.path)
        self.datasets = Datasets(self.storage, SqlDatasets(self.store), settings.data.roots)
        self.registry = Registry(SqlProviders(self.store), clock)
        self.tokens = SqlTokens(self.store)
        self.audit = SqlAudit(self.store)
        self.routes = LiveRoutes(settings.route_table.file, SqlRouteVersions(self.store), self.store.in_use, wall)
        self.neighbours = Neighbours(settings.node, self.routes)
        self.run_tokens = RunTokens(key_of(settings.state_dir))
        self.sessions = Sessions(self.store, self.run_tokens)
        self.engine = engine(settings, installation)
        self.providers = Providers(
            self.registry,
            Reader(settings.state_dir / "registrations", settings.providers.check_seconds),
            Images(self.engine_for, settings.providers.fetch_seconds, signatures.check),
            self._unfinished,
            require_image=settings.providers.image == "require",
        )
        self.broker = Broker(
            settings.state_dir / "channel",
            BrokerLimits(message_bytes=settings.limits.message_bytes, session_bytes=settings.limits.session_bytes),
        )
        self.metrics = Metrics(partial(count, self.store), self.broker.usage, clock)
        self.protocol = BfiaProtocol(node, self.routes, self.metrics.requested)
        self.sessions.per_task = self.protocol.session_per_task
        self.fate = FateSide(
            settings, self.store, self.registry, self.protocol, self.neighbours.profile_name, clock
        )
        self.protocol.sign = self.fate.sign
        adapters: list[ProtocolAdapter] = [self.protocol, self.fate.protocol]
        self.peers = Peers(node, {adapter.name: adapter for adapter in adapters}, self.fate.spoken)
        self._lanes = Lanes()
        self.scheduler = Scheduler(self.store, self.peers, clock, self._lanes, timing)
        workspace = Workspace(
            settings.storage.path,
            settings.state_dir / "runs",
            contained=settings.engine.kind == "docker",
            log_bytes=settings.limits.run_log_bytes,
        )
        self.run_logs = RunLogs(node, self.store, self.engine, workspace)
        bounds = Ceilings(
            lambda: self.resources.means, part_of_a_core="fractional_cpu" in self.engine.capabilities
        )
        disk = DiskWatch(
            workspace,
            settings.limits.storage_reserve_bytes,
            settings.limits.disk_check_seconds,
            files=settings.limits.files,
            bounds=bounds,
            written=self.engine.written,
        )
        self.launching = Launching(
            self.store,
            self.engine,
            self.peers,
            workspace,
            clock,
            self._where,
            installation,
            disk,
            grants_of(settings),
            self.run_tokens,
        )
        self.launching.signed = signatures.check
        self.launching.pinned = self.registry.pin
        self.launching.bounds = bounds
        if isinstance(self.engine, SeveralEngines):
            self.launching.engine_at = self.engine.at
        self.executor = Executor(
            self.store,
            self.engine,
            self.peers,
            workspace,
            self.storage,
            clock,
            self._lanes,
            self.launching,
            self.sessions.end,
            self._release,
            disk,
            owner,
            runs_timing,
            partial(oddities, self.storage),
        )
        self.executor.observe = self.metrics.acted
        if settings.listen.container is not None:  # at the peer listener, an address tells nothing
            self.sessions.address_of = self.executor.address_of
        self.coordinator = Coordinator(self.store, self.scheduler, self.peers, self.registry, self.routes, clock)
        self.coordinator.new_id = lambda nodes: platform.new_id(map(self.neighbours.profile_of, nodes))
        defaults = defaults_of(settings.limits, settings.resources)
        self.rooms = rooms_of(settings, self.engine, self.store, clock, owner)
        self.resources = Resources(
            detecting(node, self.rooms, settings.storage.path, settings.resources, defaults, self.engine.kind),
            self.store,
            clock,
            self._freed,
            Bounds(admission_rules(settings)),
            lambda spec: self.planner.seats(spec),
        )
        self.rooms.changed = self.resources.look_again
        self.metrics.ledger = self.resources.ledger
        reserve = settings.limits.storage_reserve_bytes
        self.models = Models(node, SqlModels(self.store), self.storage, self._unfinished, clock, reserve)
        self.planner = planner = TaskPlanner(
            node,
            self.registry,
            self.datasets,
            self.storage,
            clock,
            defaults,
            owner=owner,
            models=self.models,
            engines=engines_by_address(settings),
        )
        self.heartbeat = Heartbeat(
            gateways,
            owner,
            self.executor.record,
            clock,
            lost_after=settings.limits.lost_gateway_seconds,
        )
        self.run_logs.elsewhere = self.heartbeat.has_files
        self.inheritance = Inheritance(node, self.store, planner, self.storage, self.executor.image_digest)
        planner.follows = self.inheritance.follows
        self.participant = Participant(
            node,
            self.store,
            self.executor,
            planner,
            self.registry,
            lambda other: other == node or self.neighbours.knows(other),
            clock,
            self.resources,
            self.models,
            self.heartbeat.home_of,
            approval_policy(settings),
            self.neighbours.takes_confirm,
            self.inheritance,
        )
        self.sharing = Sharing(
            node,
            self.datasets,
            SqlGrants(self.store),
            Default(settings.data.grants),
            self.participant.roles,
            self._unfinished,
            wall,
            lambda job_id: local.spec if (local := self.store.local_jobs.find(job_id)) else None,
        )
        self.participant.not_shared = self.sharing.refusal
        self.participant.barred = self.neighbours.barred
        self.participant.audit = lambda who, action, detail: self.audit.add(
            clock(), who, action, 403, None, detail
        )
        self.peers.settle_here(self.coordinator, self.participant)
        self.keepers: list[jobs_retention.Keeper] = [self.models.keeper, self.inheritance.keeper]
        """who beside jobs refers to outputs, so that cleaning leaves them"""
        runs = settings.state_dir / "runs"
        keep = retention(settings)
        outputs = jobs_retention.Outputs(self.store, self.storage, keep, self.keepers)
        kinds: list[cleaning.Sweep] = [
            jobs_retention.Containers(self.store, self.engine),
            jobs_retention.Sessions(
                self.store, self.broker, settings.state_dir / "channel", session_id(""), self.sessions.end
            ),
            jobs_retention.Uploads(self.storage),
            jobs_retention.LogCopies(runs, keep.workspace, wall),
            jobs_retention.RunFolders(self.store, runs, keep, wall),
            outputs,
            jobs_retention.Jobs(self.store, outputs, self.storage, keep),
        ]
        self.cleaner = cleaning.Cleaner(kinds, clock, settings.retention.every_seconds)
        self.deleting = Deleting(
            node,
            self.store,
            self.storage,
            runs,
            outputs,
            self.peers,
            self.sessions.end,
            clock,
        )
        self.participant.deleting = self.deleting.delete_for
        for side, loop in (("scheduler", self.scheduler.loop), ("participant", self.executor.loop)):
            loop.outages = (DatabaseAway,)
            loop.failed = telling(self.store, side, clock, self.metrics.stuck)
        self.outages = Outages(self.protocol.reaches, self._healed)
        self.scheduler.silent = self.executor.telling.silent = self.outages.silent
        self.drain = Drain(self.store, self.coordinator.stop, clock)
        self.coordinator.admit = self.participant.admit = self.drain.admit
        self.participant.admit_from = partial(self._admit_from, self.store.local_jobs, "scheduler")
        self.coordinator.admit_from = partial(self._admit_from, self.store.jobs, "initiator")
        self.feed = Feed(self.store)
        hooks = [Hook(h.url, tuple(h.events), h.secret) for h in settings.events.webhooks]
        self.webhooks = Webhooks(hooks, self.store, self.feed, node, owner, wall)
        self.courier = Courier()
        self.arrivals = Arrivals()
        self.sockets = listening(settings)
        self._listening = claimed(settings.state_dir, (s for socks in self.sockets.values() for s in socks))
        listener = settings.listen.container or settings.listen.peer
        name = "container" if settings.listen.container else "peer"
        socks = self.sockets[name]
        self.door = ContainerDoor(main_of(self.engine), listener, socks[0], partial(self.arrivals.put, name))

    def engine_for(self, base_url: str) -> Engine | None:
        """Return the engine of a provider's address; None for one that is not allowed."""
        name = engines_by_address(self.settings).get(base_url)
        return None if name is None else self.launching.engine_at(name)

    def _unfinished(self) -> Iterator[JobSpec]:
        """Yield what was submitted of every job that is not over here."""
        for job_id in self.store.local_jobs.unfinished():
            local = self.store.local_jobs.find(job_id)
            if local is not None and not local.closed:
                yield local.spec

    def _admit_from(self, jobs: Records[Any], whose: Literal["initiator", "scheduler"], node: NodeId) -> None:
        """Raise `QuotaReached` for a partner that has as many unfinished jobs here as it may."""
        most = self.settings.limits.partner_jobs
        if jobs.under_way_for(whose, node, most):
            raise QuotaReached(f"{node} has {most} jobs here that have not ended (limits.partner_jobs)")

    def _healed(self, node: str) -> None:
        self.scheduler.healed(node)
        self.executor.healed(node)

    def _release(self, job_id: str) -> None:
        self.resources.release(job_id)

    def _freed(self, jobs: list[str]) -> None:
        """Have these waiting jobs asked for again at once, whoever schedules them."""
        for job_id in jobs:
            local = self.store.local_jobs.find(job_id)
            if local is not None:
                self._lanes.submit(local.spec.scheduler, partial(self._tell_free, local.spec), job_id)

    def _tell_free(self, spec: JobSpec) -> None:
        with traced(spec.trace_id), suppress(GatewayError):  # it asks by itself in any case, only later
            node = self.settings.node.id
            self.peers.scheduler(spec.scheduler, spec.protocol).resources_free(spec.job_id, node)

    def _where(self) -> Place:
        """Return where containers find this gateway. Raises `EngineFailed` where they cannot."""
        base = self.door.address()
        return Place(base, base.partition("://")[2], self.neighbours.institution, self.door.host_of(base))

    def channel_elsewhere(self, session: str) -> str | None:
        """Return the address of the gateway of this node that has the session, None for this one."""
        home = self.sessions.home_of(session)
        return None if home is None else self.heartbeat.elsewhere(home)
