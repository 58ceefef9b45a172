"""One node: builds its parts from its settings and ties them together, starts and stops them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import structlog
from anyio import CapacityLimiter
from fastapi.routing import APIRoute

from adapter.bfia import interconn, platform
from adapter.bfia.channel.courier import Courier
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.environment import session_id
from adapter.bfia.management.client import Card, ManagementClient
from adapter.bfia.management.wire import key_of
from engines.base import Engine
from engines.multi import SeveralEngines
from gateway.auth import RunTokens, origin
from gateway.bootstrap import parts
from gateway.bootstrap.listeners import listener_apps
from gateway.bootstrap.peers import FateSide, PeerTable, Sessions
from gateway.broker import BrokerLimits
from gateway.broker.broker import Broker
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.container_listener import ContainerDoor
from gateway.data import credentials
from gateway.data.datasets import Datasets
from gateway.data.logs import RunLogs
from gateway.data.models import Models
from gateway.data.outputs import OutputCatalog
from gateway.data.remote_storage import Remote
from gateway.data.sharing import Sharing
from gateway.data.workspace import DiskWatch, Workspace, check_storage, make_folder, try_to_write
from gateway.domain import rerun
from gateway.domain.applications import Kind
from gateway.domain.datasets import Default
from gateway.domain.run import Run
from gateway.domain.settings import JobLimits
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError, Invalid
from gateway.events.feed import Feed
from gateway.events.webhooks import Webhooks
from gateway.http.peers import QuotaReached
from gateway.http.server import Arrivals, bound, claimed, host_of, port_of
from gateway.identity.audit_head import HeadFile
from gateway.identity.keys import Keyring
from gateway.jobs import admission_rules
from gateway.jobs.admission import Admission
from gateway.jobs.applications import Applications, Effect
from gateway.jobs.bundles import Bundles
from gateway.jobs.contract_routes import ContractRoutes
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.deletion import Deleting
from gateway.jobs.drain import Drain
from gateway.jobs.dry_run import DryRun
from gateway.jobs.engine_capacities import EngineCapacities
from gateway.jobs.executor import Executor, Hooks
from gateway.jobs.grants import DatasetGrants, ModelGrants
from gateway.jobs.inheritance import Inheritance
from gateway.jobs.intake import Intake
from gateway.jobs.launcher import ContainerSite, Launching, LaunchRules
from gateway.jobs.new_jobs import roles_of
from gateway.jobs.offers import Offers
from gateway.jobs.participant import Participant
from gateway.jobs.planner import Places, TaskPlanner
from gateway.jobs.readiness import Readiness
from gateway.jobs.resources import Resources
from gateway.jobs.retention import Cleaner, Keeper, Leftovers
from gateway.jobs.scheduler import Scheduler
from gateway.jobs.trust import Trust
from gateway.ports import Clock, Limiters
from gateway.providers.images import Images, Signatures, signers_of
from gateway.providers.registration import Providers
from gateway.runtime.context import NodeContext, Peers, traced
from gateway.runtime.lanes import Lanes
from gateway.runtime.liveness import Heartbeat, Outages
from gateway.runtime.loop import Loop
from gateway.runtime.metrics import Metrics
from gateway.runtime.trials import Step
from gateway.store import repositories
from gateway.store.applications import SqlApplications
from gateway.store.audit import SqlAudit
from gateway.store.database import open_database
from gateway.store.models import SqlModels
from gateway.store.queries import count
from gateway.store.records import Records
from gateway.store.repositories import (
    SqlDatasets,
    SqlGrants,
    SqlProviders,
    SqlRouteVersions,
    SqlTokens,
)
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes

log = structlog.get_logger(__name__)

_FOLLOWED = 10.0
"""seconds within which another gateway has followed an edit of a file that both have, or counts as stopped"""


class Gateway:
    """The parts of one node, its listeners' applications and sockets.

    Parts need each other in circles: a part may get a function that calls one which is built later; it is called
    only once all are there.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Callable[[Settings, str], Engine] | None = None,
        pace: parts.Pace = parts.Pace(),
    ) -> None:
        """Build the node. ``engine`` makes its engine from the settings and the installation's id."""
        self.settings = settings
        self.clock: Clock = partial(datetime.now, UTC)
        self.doctor: Callable[[], Sequence[Step]] = tuple
        self.endpoints: Sequence[APIRoute] = ()
        self.leaving = threading.Event()
        self._pace = pace
        self.limiters = Limiters(CapacityLimiter(64), CapacityLimiter(8), CapacityLimiter(16))
        self._open_state()
        self._build_registries()
        self._build_engine(engine or parts.engine_of)
        self._build_peers()
        self._build_runs()
        self._build_scheduling()
        self._build_participation()
        self._build_applications()
        self._bind()
        self.door.try_open()
        self.apps = listener_apps(self)

    def start(self) -> None:
        """Take up what an earlier process left, then begin."""
        self._check_route_file()
        peer_listener = self.settings.listen.peer
        gap = peer_tls.unproven(peer_listener.bind, peer_listener.tls)
        if gap:
            log.warning(
                "peers are not authenticated", cause=gap, remedy="listen.peer.tls with client_ca"
            )
        self.broker.recover()
        self.heartbeat.start(parts.for_gateways(self.settings, self.addresses()["peer"]))
        self.executor.start()
        self.applications.loop.start()
        for background in (
            self.scheduler.loop,
            self.cleaner,
            self.webhooks,
            self.resources.loop,
            self.capacities.loop,
        ):
            background.start()
        self.audit_head.start()

    def stop(self) -> None:
        """Let the work in progress end. Containers run on; the next process takes them up again."""
        self.heartbeat.stop()
        self.drain.close()
        self.outages.close()
        self.audit_head.stop()
        self.applications.loop.stop()
        for background in (
            self.cleaner,
            self.webhooks,
            self.capacities.loop,
            self.resources.loop,
            self.scheduler.loop,
        ):
            background.stop()
        self.executor.stop()
        self.lanes.close()
        for shell in (self.scheduler, self.executor):
            shell.record_deferred()
        for part in (self.protocol, self.broker, self.engine, self.store):
            part.close()
        for sock in (sock for socks in self.sockets.values() for sock in socks):
            sock.close()  # where nothing was served, nothing else does
        self.listening.close()
        if self.lock is not None:
            self.lock.close()

    def addresses(self) -> dict[str, str]:
        """Return where each listener is reached on this machine."""
        return {
            name: f"{'https' if name in self.tls else 'http'}://{host_of(socks[0])}:{port_of(socks[0])}"
            for name, socks in self.sockets.items()
            if socks
        }

    def engine_for(self, base_url: str) -> Engine | None:
        """Return the engine of a provider's address; None for one that is not allowed."""
        named_engine = self._engine_named_for(base_url)
        if named_engine is None:
            return None
        return named_engine[1]

    def channel_elsewhere(self, session: str) -> str | None:
        """Return the address of the gateway of this node that has the session, None for this one."""
        home = self.sessions.home_of(session)
        if home is None:
            return None
        return self.heartbeat.elsewhere(home)

    # ------------------------------------------------------------ builders, in their order

    def _open_state(self) -> None:
        settings, state = self.settings, self.settings.state_dir
        make_folder(state, "state_dir")
        make_folder(
            settings.storage.path, "storage.url", 0o700
        )  # below, containers' folders are open
        self.runs_folder = state / "runs"
        make_folder(self.runs_folder, "state_dir", 0o700)
        self.lock = parts.only_process(settings)
        self._timing, self._run_timing = (
            parts.call_timing(settings, self._pace),
            parts.run_timing(settings),
        )
        self.store = Store(
            parts.when_there(partial(open_database, settings.database.url)),
            self._timing,
            self._run_timing,
            sole_writer=self.lock is not None,
        )
        self.owner = f"{parts.instance_of(state)}/{settings.engine.kind}"
        self.context = NodeContext(settings.node.id, self.store, self.clock, self.owner)
        self.installation = self.store.installation()
        self.run_tokens = RunTokens(parts.key_of(state))

    def _build_registries(self) -> None:
        settings, store = self.settings, self.store
        self.storage = parts.storages(settings)
        self.datasets = Datasets(
            self.storage,
            SqlDatasets(store),
            settings.data.roots,
            users=lambda address: self.sharing.users(address),
        )
        self.registry = Registry(SqlProviders(store, sole_writer=self.lock is not None), self.clock)
        self.tokens = SqlTokens(store)
        self.audit = SqlAudit(store)
        versions = SqlRouteVersions(store, self.owner)
        self.routes = LiveRoutes(settings.route_table.file, versions, store.in_use, self.clock)
        self.peer_table = PeerTable(
            settings.node,
            self.routes,
            self._vouched,
            self._jobs_of_task,
            open_=settings.trust.level == "open",
        )
        node = settings.node.id
        self.models = Models(node, SqlModels(store), self.storage, self._unfinished, self.clock)
        self.sharing = Sharing(
            node,
            self.datasets,
            SqlGrants(store),
            Default(settings.data.grants),
            partial(roles_of, self.registry),
            self._unfinished,
            self.clock,
        )
        self.kept_applications = SqlApplications(store)
        self.trust = Trust(
            node,
            self.kept_applications,
            settings.trust.level,
            partial(roles_of, self.registry),
            self.clock,
        )
        self.feed = Feed(store, node)
        self.webhooks = Webhooks(settings.events.webhooks, store, self.feed, self.owner, self.clock)

    def _vouched(self, node: NodeId) -> dict[str, tuple[str, ...]]:
        """Return a node's public keys by the signed jobs under way here that name it."""
        keys = {}
        for job_id in self.store.local_jobs.under_way_with(node):
            local = self.store.local_jobs.find(job_id)
            if local is not None and local.agreement is not None:
                spec = local.spec
                keys[job_id] = self.bundles.vouched_keys(
                    local.agreement.bundle, spec.initiator, spec.scheduler, node
                )
        for job_id in self.store.jobs.under_way_with(node):
            job = self.store.jobs.find(job_id)
            if job is not None and job_id not in keys:
                initiator = job.spec.initiator
                bundle = next(
                    iter(job.spec.bundles.values()), None
                )  # all are the initiator's, with the same keys
                if bundle is not None:
                    keys[job_id] = self.bundles.vouched_keys(bundle, initiator, initiator, node)
        return keys

    def _jobs_of_task(self, task_id: str) -> list[str]:
        found = (self.store.job_of_task(task_id), self.store.local_job_of_task(task_id))
        return [job_id for job_id in found if job_id]

    def _build_engine(self, engine: Callable[[Settings, str], Engine]) -> None:
        settings = self.settings
        docker = settings.engine.docker if settings.engine.main is not None else None
        self.engine = engine(settings, self.installation)
        self.signatures = Signatures(signers_of(docker.signatures) if docker else ())
        self.providers = Providers(
            self.registry,
            Images(self.engine_for, self._pace.registration_pull, self.signatures.check),
            self._unfinished,
            require_image=settings.providers.image == "require",
            storage_rule=self.storage.at_registration,
        )
        self.workspace = Workspace(
            settings.storage.path,
            self.runs_folder,
            contained=docker is not None,
            apart=parts.apart(settings),
            log_bytes=settings.limits.run_log_bytes,
            remote_of=self._remote_of,
            copy=self.storage.copy,
        )
        others = self.engine.others if isinstance(self.engine, SeveralEngines) else {}
        engines = {"": parts.main_of(self.engine), **others}
        self.capacities = EngineCapacities(
            self.context, engines, settings, lambda: self.resources.look_again()
        )
        self.planner = TaskPlanner(
            self.context,
            self.registry,
            self.datasets,
            self.storage,
            self.models,
            self.capacities.defaults,
            Places(parts.engines_by_place(settings), parts.apart(settings).storage),
        )
        rules = parts.queue_rules(settings)
        self.resources = Resources(
            self.capacities, self.store, self.clock, self._freed, rules, self.planner.seats
        )

    def _build_peers(self) -> None:
        settings = self.settings
        limits = settings.limits
        self.broker = Broker(
            settings.state_dir / "channel",
            BrokerLimits(message_bytes=limits.message_bytes, session_bytes=limits.session_bytes),
        )
        figures = (partial(count, self.store), self.broker, self.clock, self.resources.ledger)
        self.metrics = Metrics(*figures, self.capacities.answering)
        self.protocol = BfiaProtocol(settings.node.id, self.routes, self.metrics.requested)
        self.fate = FateSide(
            settings,
            self.store,
            self.registry,
            self.protocol,
            self.peer_table.profile_name,
            self.clock,
        )
        self.protocol.sign = self.fate.sign
        keyring = Keyring(settings.state_dir)
        _ = keyring.signing  # a file that cannot be used is refused at the start
        self.protocol.key = lambda: keyring.signing
        sign = partial(self._sign_audit, keyring)
        self.audit_head = Loop("audit head", sign, lambda _: [""], every=3600, workers=1)
        self.bundles = Bundles(
            settings.node.id, self.registry, keyring, self.peer_table.entry, self.clock
        )
        self.protocol.bundles = self.bundles.of
        self.protocol.permits = self._permits
        self.peers = Peers(
            settings.node.id,
            {a.name: a for a in (self.protocol, self.fate.protocol)},
            self.fate.spoken,
            partial(attrgetter("coordinator", "participant"), self),
        )
        self.sessions = Sessions(
            self.store,
            self.run_tokens,
            self.protocol.session_per_task,
            # at the peer listener, an address says nothing
            lambda run: self.launching.address_of(run) if settings.listen.container else "",
        )
        self.courier = Courier()
        self.outages = Outages(self.protocol.reaches, self._healed)
        self.lanes = Lanes(own_lane=settings.node.id)

    def _build_runs(self) -> None:
        settings, limits = self.settings, self.settings.limits
        disk = DiskWatch(
            self.workspace,
            limits.storage_reserve_bytes,
            self._pace.disk_check,
            files=self._pace.files,
            bounds=self.capacities.ceilings,
            written=self.engine.disk_use,
        )
        allow = settings.engine.docker.allow
        rules = LaunchRules(allow, self.signatures, self.registry.pin, self.capacities.ceilings)
        self.launching = Launching(
            self.context, self.engine, self.peers, self.workspace, disk, self._place, rules
        )
        self.executor = Executor(
            self.context,
            self.launching,
            self.peers,
            self.lanes,
            self.storage,
            Hooks(
                self.sessions.end,
                self.resources.release,
                self.metrics.acted,
                self.outages.silent,
                self.metrics.stuck,
                self._end_credentials,
                self._on_channel,
            ),
            self._run_timing,
        )
        self.heartbeat = Heartbeat(
            repositories.Gateways(self.store),
            self.owner,
            self.executor.record,
            self.clock,
            lost_after=self._pace.lost_gateway,
        )
        self.run_logs = RunLogs(
            settings.node.id,
            self.store,
            self.engine,
            self.workspace,
            elsewhere=self.heartbeat.has_files,
        )

    def _build_scheduling(self) -> None:
        self.drain = Drain(self.store, lambda job_id: self.coordinator.stop(job_id), self.clock)
        self.scheduler = Scheduler(
            self.context,
            self.peers,
            self.lanes,
            self._timing,
            self.outages.silent,
            self.metrics.stuck,
        )
        self.coordinator = Coordinator(
            self.context,
            self.scheduler,
            self.peers,
            self.registry,
            self.routes,
            Intake(
                self.drain.draining,
                partial(self._check_quota, self.store.jobs, "initiator"),
                partial(self.peer_table.may_begin, asks=True),
            ),
            lambda nodes: platform.new_id(map(self.peer_table.profile_of, nodes)),
            self.executor,
        )
        self.dry_run = DryRun(
            self.peers, self.registry, self.coordinator.check, self.protocol.try_route
        )

    def _build_participation(self) -> None:
        settings, docker = self.settings, self.settings.engine.docker
        self.inheritance = Inheritance(
            settings.node.id, self.store, self.planner, self.launching.digest_now
        )
        reserve = settings.limits.storage_reserve_bytes
        self.readiness = Readiness(
            settings.node.id,
            self.registry,
            self._engine_named_for,
            {
                "storage": partial(self._check_storages, reserve),
                "transport": self._check_transport,
            },
            docker if settings.engine.main is not None else None,
        )
        rules = admission_rules.Rules(
            self.peer_table,
            Intake(
                self.drain.draining,
                partial(self._check_quota, self.store.local_jobs, "scheduler"),
                partial(self.peer_table.may_begin, asks=True),
            ),
            parts.approval_policy(settings),
            self.signatures,
            self.bundles,
            self.trust,
            lambda who, action, detail: self.audit.add(
                self.clock(), who, action, 403, None, detail
            ),
            require_images=settings.providers.image == "require",
        )
        self.admission = Admission(
            self.context,
            self.planner,
            self.inheritance,
            self.sharing,
            self.resources,
            self.readiness,
            rules,
        )
        keepers: list[Keeper] = [self.models.keeper, self.inheritance.keeper, self.datasets.keeper]
        self.left = Leftovers(
            self.store, self.storage, self.runs_folder, settings.retention, keepers
        )
        self.deleting = Deleting(
            self.context,
            self.left,
            self.peers,
            self.sessions.end,
            lambda who, action, detail: self.audit.add(
                self.clock(), who, action, 200, None, detail
            ),
        )
        self.participant = Participant(
            self.context,
            self.admission,
            self.executor,
            self.planner,
            self.resources,
            self.deleting,
            self.heartbeat.home_of,
        )
        channel, prefix = settings.state_dir / "channel", session_id("")
        self.cleaner = Cleaner(
            self.left,
            self.engine,
            self.broker,
            channel,
            prefix,
            self.sessions.end,
            self.clock,
            self._pace.cleaning,
        )

    def _build_applications(self) -> None:
        settings, node = self.settings, self.settings.node
        self.card = Card(
            node.id,
            node.institution or node.id,
            lambda: settings.listen.peer.advertise or self.addresses()["peer"],
            self.protocol.key,
        )
        self.outputs = OutputCatalog(
            node.id,
            self.store,
            self.storage,
            self.sharing,
            lambda at, wanted: interconn.ask_output_metadata(self.protocol.peer(at), wanted),
            self.audit.add,
            self.clock,
        )
        self.management = ManagementClient(self.card, self.protocol.peer, self.peer_table.direct)
        self.offers = Offers(
            node.id,
            self.kept_applications,
            self.datasets,
            self.sharing,
            self.registry,
            self.peer_table.barred,
            self.clock,
        )
        effects: dict[Kind, Effect] = {
            Kind.CONTRACT: ContractRoutes(self.routes, key_of, self._note),
            Kind.DATASET: DatasetGrants(self.sharing, self.offers),
            Kind.MODEL: ModelGrants(self.models),
        }
        self.applications = Applications(
            self.kept_applications,
            effects,
            self.management,
            self.lanes,
            self._note,
            self.clock,
            self.peer_table.keys_of,
        )

    def _bind(self) -> None:
        listen = self.settings.listen
        self.tls = peer_tls.served(listen.peer.tls)
        binds = {"peer": listen.peer.bind, "operator": listen.operator.bind}
        if listen.container is not None:
            binds["container"] = listen.container.bind
        self.sockets = {name: [bound(bind)] for name, bind in binds.items()}
        bound_to = (s for socks in self.sockets.values() for s in socks)
        self.listening = claimed(self.settings.state_dir, bound_to, peer_tls.files(listen.peer.tls))
        self.arrivals = Arrivals()
        name = "container" if listen.container else "peer"
        arrived = partial(self.arrivals.put, name)
        first = self.sockets[name][0]
        self.door = ContainerDoor(
            parts.main_of(self.engine), listen.container or listen.peer, first, arrived
        )

    # ------------------------------------------------------------ what parts call

    def _note(
        self,
        partner: NodeId,
        action: str,
        detail: Mapping[str, Any],
    ) -> None:
        who = f"node {partner}" if partner else "gateway"
        self.audit.add(self.clock(), who, action, 200, None, {**detail, **origin().detail()})

    def _sign_audit(self, keyring: Keyring, _: str) -> None:
        kept = HeadFile(self.settings.state_dir)
        self.audit.sign_daily(self.settings.node.id, keyring.signing, self.clock(), kept)

    def _check_storages(self, reserve: int) -> None:
        check_storage(self.storage.staging, self.storage.root, reserve)
        self.storage.check()

    def _remote_of(self, run: Run, begins: bool) -> Remote | None:
        storage = self.storage.remote_of(run)
        if storage is None:
            return None
        if not begins:
            return storage.remote
        storage.check_answers()
        job_id = self.store.local_job_of_task(run.task_id)
        limits = (
            self.store.local_jobs.get(job_id).spec.settings.time_limits if job_id else JobLimits()
        )
        longest = [
            seconds for seconds in (limits.of(run.task_name).timeout, limits.job_timeout) if seconds
        ]
        return credentials.of(storage.remote, run, min(longest, default=None))

    def _on_channel(self, run: Run) -> str:
        """Report the topic that a run waits for, its unread topics, and the last refused request."""
        job_id = self.store.local_job_of_task(run.task_id) or ""
        sessions = (session_id(job_id), session_id(run.task_id))
        found = [on for session in sessions for on in self.broker.waiting(session)]
        waits = [on.topic for on in found if run.name in on.readers]
        left = [f"{on.topic} ({on.messages})" for on in found if on.messages]
        refused = next(filter(None, map(self.broker.last_refused, sessions)), "")
        texts = (
            ("it waited for topic " + ", ".join(waits[:5])) if waits else "it waited for no message"
        )
        texts += f"; unread: {', '.join(left[:5])}" if left else ""
        texts += f"; last refused {refused}" if refused else ""
        return texts if waits or left or refused else ""

    def _end_credentials(self, run: Run) -> None:
        storage = self.storage.remote_of(run)
        if storage is not None:
            credentials.end(storage.remote, run, self.clock())

    def _check_route_file(self) -> None:
        """Refuse a file that differs from another gateway's. It may have edited one that both follow just now."""
        began = time.monotonic()
        while self.routes.rival and time.monotonic() - began < _FOLLOWED:
            time.sleep(0.5)
            self.routes.reload()
        if self.routes.rival:
            raise Invalid(self.routes.problems)

    def _engine_named_for(self, place: str) -> tuple[str, Engine] | None:
        name = parts.engines_by_place(self.settings).get(place)
        return None if name is None else (name, self.launching.engine_at(name))

    def _unfinished(self) -> Iterator[JobSpec]:
        for job_id in self.store.local_jobs.unfinished():
            local = self.store.local_jobs.find(job_id)
            if local is not None and not local.closed:
                spec = rerun.in_force(local)  # and what may come into force
                yield spec
                yield from (
                    rerun.amended(spec, [one])
                    for one in local.offered
                    if one.id not in local.amendments
                )

    def _permits(self, node: NodeId, job: JobSpec | str) -> str:
        if isinstance(job, JobSpec):
            return self.trust.header(node, job)
        known = self.store.jobs.cached(job) or self.store.record(job)
        return self.trust.header(node, known.spec) if known is not None else ""

    def _check_quota(
        self,
        jobs: Records[Any],
        whose: Literal["initiator", "scheduler"],
        node: NodeId,
    ) -> None:
        most = self.settings.limits.partner_jobs
        if jobs.under_way_for(whose, node, most):
            raise QuotaReached(
                f"{node} has {most} jobs here that have not ended (limits.partner_jobs)"
            )

    def _healed(self, node: str) -> None:
        self.scheduler.resume(node)
        self.executor.resume(node)

    def _freed(self, jobs: list[str]) -> None:
        for job_id in jobs:
            local = self.store.local_jobs.find(job_id)
            if local is not None:
                self.lanes.submit(
                    local.spec.scheduler, partial(self._report_free, local.spec), job_id
                )

    def _report_free(self, spec: JobSpec) -> None:
        with (
            traced(spec.trace_id),
            suppress(GatewayError),
        ):  # it asks by itself in any case, only later
            node = self.settings.node.id
            self.peers.scheduler(spec.scheduler, spec.protocol).resources_free(spec.job_id, node)

    def _check_transport(self) -> None:
        try_to_write(self.settings.state_dir / "channel")
        self.door.address()

    def _place(self) -> ContainerSite:
        """Return where containers find this gateway. Raises `EngineFailed` where they cannot."""
        base = self.door.address()
        return ContainerSite(
            base,
            base.partition("://")[2],
            self.peer_table.institution,
            self.installation,
            self.run_tokens.issue,
        )
