"""Builds every object once from the settings; the only file that sees everything and names concrete classes."""

import fcntl
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import structlog
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.types import ASGIApp

from adapter.bfia import channel, data, envelope, headers, hello, interconn, job_audit, logs, platform, provider
from adapter.bfia.client import LONGEST_CALL
from adapter.bfia.courier import Courier, PeerRoute
from adapter.bfia.environment import session_id
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.protocol import BfiaProtocol
from engines.base import Engine, Mount
from engines.containerd import ContainerdEngine, PullRules
from engines.process import ProcessEngine
from gateway import cleaning
from gateway.access import Access
from gateway.admin import archive as admin_archive
from gateway.admin import datasets as admin_datasets
from gateway.admin import deleting as admin_deleting
from gateway.admin import events as admin_events
from gateway.admin import logs as admin_logs
from gateway.admin import maintenance
from gateway.admin import models as admin_models
from gateway.admin import providers as admin_providers
from gateway.admin.parts import AdminParts
from gateway.admin.router import router as admin_router
from gateway.app import LoopbackOnly, Mounted, create_app
from gateway.broker.broker import Broker
from gateway.broker.model import BrokerLimits
from gateway.container_door import ContainerDoor
from gateway.coordinator import Coordinator
from gateway.datasets import Datasets
from gateway.deleting import Deleting
from gateway.disk_watch import DiskWatch
from gateway.domain.admission import Rules
from gateway.domain.approval import Mode, Policy, Rule, Verdict
from gateway.domain.executing.timing import Timing as RunTiming
from gateway.domain.model import JobSpec, LocalJob
from gateway.domain.problems import Problem
from gateway.domain.scheduling.timing import Timing
from gateway.domain.sharing import Default
from gateway.drain import Drain
from gateway.engine_settings import StorageSource
from gateway.errors import GatewayError, Invalid
from gateway.events import Feed
from gateway.executor import Executor, Place
from gateway.fate_wiring import FateSide
from gateway.grants import Grant
from gateway.guard import Guard
from gateway.heartbeat import Heartbeat
from gateway.inheritance import Inheritance
from gateway.job_audits import JobAudits
from gateway.lanes import Lanes
from gateway.metrics import Metrics
from gateway.models import Models
from gateway.outages import Outages
from gateway.participant import Participant
from gateway.peers import Peers
from gateway.ports import Limiters
from gateway.provider_images import Images
from gateway.provider_reading import Reader
from gateway.providers import Providers
from gateway.reports import oddities
from gateway.resource_totals import defaults_of, detecting
from gateway.resources import Bounds, Resources
from gateway.run_logs import RunLogs
from gateway.scheduler import Scheduler
from gateway.server import Arrivals, bound, host_of, port_of
from gateway.settings import Settings
from gateway.sharing import Sharing
from gateway.storage import FileStorage
from gateway.store.access import SqlAudit, SqlTokens
from gateway.store.counting import count
from gateway.store.gateways import Gateways
from gateway.store.leaves import SqlDatasets
from gateway.store.migrate import opened
from gateway.store.models import SqlModels
from gateway.store.providers import SqlProviders
from gateway.store.routes import SqlRouteVersions
from gateway.store.sharing import SqlGrants
from gateway.store.store import Store
from gateway.task_plan import TaskPlanner
from gateway.tracing import traced
from gateway.webhooks import Hook, Webhooks
from gateway.workspace import Workspace
from provider_registry.registry import Registry
from route_table.live import LiveRoutes
from route_table.model import Route, UnknownNode

log = structlog.get_logger(__name__)


def now() -> datetime:
    return datetime.now(UTC)


class Gateway:
    """One node: its parts, its listeners' applications and sockets, and how to start and stop it."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = now,
        engine: Callable[[Settings, str], Engine] | None = None,
    ) -> None:
        """Build the node. ``engine`` makes its engine from the settings and the installation's id."""
        self.settings = settings
        self._clock = clock
        self._clock = clock
        node = settings.node.id
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        for folder in (settings.storage.path, settings.state_dir / "runs"):  # below, containers' folders are open
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _only_process(settings)
        self.store = Store(opened(settings.database.url))
        installation = self.store.installation()
        self.storage = FileStorage(settings.storage.path)
        self.datasets = Datasets(self.storage, SqlDatasets(self.store), settings.data.roots)
        self.registry = Registry(SqlProviders(self.store), clock)
        self.tokens = SqlTokens(self.store)
        self.audit = SqlAudit(self.store)
        self.routes = LiveRoutes(settings.route_table.file, SqlRouteVersions(self.store), self.store.in_use, clock)
        self.engine = (engine or engine_of)(settings, installation)
        self.providers = Providers(
            self.registry,
            Reader(settings.state_dir / "registrations", settings.providers.check_seconds),
            Images(self.engine, settings.providers.fetch_seconds),
            self._unfinished,
            require_image=settings.providers.image == "require",
        )
        self.broker = Broker(
            settings.state_dir / "channel",
            BrokerLimits(message_bytes=settings.limits.message_bytes, session_bytes=settings.limits.session_bytes),
        )
        self.metrics = Metrics(partial(count, self.store), self.broker.usage, clock)
        self.protocol = BfiaProtocol(node, self.routes, self.metrics.requested)
        self.peers = Peers(node, {self.protocol.name: self.protocol})
        self._lanes = Lanes()
        # a claim may wait 1 s in its lane, a connection 1 s for a place and 3 s to come up
        timing = Timing(call_deadline=LONGEST_CALL + 6.0, unreachable_limit=settings.limits.unreachable_seconds)
        self.scheduler = Scheduler(self.store, self.peers, clock, self._lanes, timing)
        contained = settings.engine.kind == "docker"
        self._owner = owner = f"{_instance(settings.state_dir)}/{settings.engine.kind}"
        workspace = Workspace(
            settings.storage.path,
            settings.state_dir / "runs",
            contained=contained,
            log_bytes=settings.limits.run_log_bytes,
        )
        self.run_logs = RunLogs(node, self.store, self.engine, workspace)
        self.executor = Executor(
            self.store,
            self.engine,
            self.peers,
            workspace,
            self.storage,
            clock,
            self._lanes,
            self._where,
            self._end_session,
            self._release,
            installation,
            owner,
            RunTiming(
                launch_deadline=120.0 + settings.engine.docker.pull_seconds,
                engine_patience=settings.limits.engine_down_seconds,
                orphan=settings.limits.orphan_seconds or settings.limits.unreachable_seconds + 60.0,
            ),
            DiskWatch(workspace, settings.limits.storage_reserve_bytes, settings.limits.disk_check_seconds),
            _grants(settings),
            partial(oddities, self.storage),
        )
        self.executor.observe = self.metrics.acted
        self.coordinator = Coordinator(self.store, self.scheduler, self.peers, self.registry, self.routes, clock)
        defaults = defaults_of(settings.limits, settings.resources)
        self.resources = Resources(
            detecting(node, self.engine, settings.storage.path, settings.resources, defaults),
            self.store,
            clock,
            self._freed,
            Bounds(Rules(ageing=settings.limits.ageing_seconds)),
        )
        self.models = Models(node, SqlModels(self.store), self.storage, self._unfinished, clock)
        planner = TaskPlanner(
            node,
            self.registry,
            self.datasets,
            self.storage,
            clock,
            defaults,
            owner=owner,
            models=self.models,
        )
        self.heartbeat = Heartbeat(
            Gateways(self.store),
            owner,
            self.executor.record,
            clock,
            lost_after=settings.limits.lost_gateway_seconds,
        )
        self.inheritance = Inheritance(node, self.store, planner, self.storage, self.executor.image_digest)
        self.participant = Participant(
            node,
            self.store,
            self.executor,
            planner,
            self.registry,
            self.knows,
            clock,
            self.resources,
            self.models,
            self.heartbeat.home_of,
            _policy(settings),
            lambda other: other == node or self._profile_of(other).takes_confirm,
            self.inheritance,
        )
        self.sharing = Sharing(
            node,
            self.datasets,
            SqlGrants(self.store),
            Default(settings.data.grants),
            self.participant.roles,
            self._unfinished,
            clock,
        )
        self.participant.not_shared = self.sharing.refusal
        self.participant.audit = lambda who, action, detail: self.audit.add(
            clock(), who, action, 403, None, detail
        )
        self.peers.settle_here(self.coordinator, self.participant)
        self._end_of_session: list[Callable[[str], None]] = []
        self.keepers: list[cleaning.Keeper] = [self.models.keeper, self.inheritance.keeper]
        """who beside jobs refers to outputs, so that cleaning leaves them"""
        self.cleaner = self._cleaner(clock)
        self.deleting = Deleting(
            node,
            self.store,
            self.storage,
            settings.state_dir / "runs",
            self._outputs,
            self.peers,
            self._end_session,
            clock,
        )
        self.participant.deleting = self.deleting.delete_for
        self.outages = Outages(self.protocol.reaches, self._healed)
        self.scheduler.silent = self.executor.silent = self.outages.silent
        self.drain = Drain(self.store, self.coordinator.stop, clock)
        self.coordinator.admit = self.participant.admit = self.drain.admit
        self.feed = Feed(self.store)
        hooks = [Hook(h.url, tuple(h.events), h.secret) for h in settings.events.webhooks]
        self.webhooks = Webhooks(hooks, self.store, self.feed, node, owner, clock)
        self.courier = Courier()
        self.arrivals = Arrivals()
        self.sockets = self._listen()
        self.door = self._door()
        self.door.try_open()
        self.apps = self._applications()

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Take up what an earlier process left, then begin."""
        self.broker.recover()
        self.heartbeat.start(self.settings.listen.peer.advertise or self.addresses()["peer"])
        self.executor.start()
        self.scheduler.loop.start()
        self.cleaner.start()
        self.webhooks.start()
        self.resources.loop.start()

    def stop(self) -> None:
        """Let the work in hand end. Containers run on; the next process takes them up again."""
        self.heartbeat.stop()
        self.drain.close()
        self.outages.close()
        self.cleaner.stop()
        self.webhooks.stop()
        self.resources.loop.stop()
        self.scheduler.loop.stop()
        self.executor.stop()
        self._lanes.close()
        self.protocol.close()
        self.broker.close()
        self.engine.close()
        self.store.close()
        if self._lock is not None:
            self._lock.close()

    def on_session_end(self, end: Callable[[str], None]) -> None:
        """Name what is to happen on the event loop when a transport session ends."""
        self._end_of_session.append(end)

    def knows(self, node: str) -> bool:
        """Tell whether a node is this one, has an enabled route, or had one and takes part in a job under way."""
        return node == self.settings.node.id or self.routes.table.knows(node) or self._resolved(node) is not None

    def addresses(self) -> dict[str, str]:
        """Return where each listener is reached on this machine."""
        return {
            name: f"http://{host_of(socks[0])}:{port_of(socks[0])}"
            for name, socks in self.sockets.items()
            if socks
        }

    # ------------------------------------------------------------ parts

    def _cleaner(self, clock: Callable[[], datetime]) -> cleaning.Cleaner:
        settings = self.settings.retention
        keep = cleaning.Policy(
            settings.workspace_seconds, settings.logs_seconds, settings.outputs_seconds, settings.jobs_seconds
        )
        runs = self.settings.state_dir / "runs"
        channel_folder = self.settings.state_dir / "channel"
        self._outputs = outputs = cleaning.Outputs(self.store, self.storage, keep, self.keepers)
        sweeps: list[cleaning.Sweep] = [
            cleaning.Containers(self.store, self.engine),
            cleaning.Sessions(self.store, self.broker, channel_folder, session_id(""), self._end_session),
            cleaning.Uploads(self.storage),
            cleaning.LogCopies(runs, keep.workspace),
            cleaning.RunFolders(self.store, runs, keep),
            outputs,
            cleaning.Jobs(self.store, outputs, self.storage, keep),
        ]
        return cleaning.Cleaner(sweeps, clock, settings.every_seconds)

    def _unfinished(self) -> Iterator[JobSpec]:
        """Yield what was submitted of every job that is not over here."""
        for job_id in self.store.local_jobs.unfinished():
            local = self.store.local_jobs.find(job_id)
            if local is not None and not local.closed:
                yield local.spec

    def _healed(self, node: str) -> None:
        self.scheduler.healed(node)
        self.executor.healed(node)

    def _end_session(self, job_id: str) -> None:
        for end in self._end_of_session:
            end(session_id(job_id))

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
        return Place(base, base.partition("://")[2], self._institution)

    def _institution(self, node: str) -> str:
        if node == self.settings.node.id:
            return self.settings.node.institution or node
        route = self._resolved(node)
        return (route.institution if route else None) or node

    def _resolved(self, node: str) -> Route | None:
        try:
            return self.routes.resolve(node)
        except UnknownNode:
            return None

    def _listen(self) -> dict[str, list[socket.socket]]:
        listen = self.settings.listen
        sockets = {"peer": [bound(listen.peer.bind)], "operator": [bound(listen.operator.bind)]}
        if listen.container is not None:
            sockets["container"] = [bound(listen.container.bind)]
        return sockets

    def _door(self) -> ContainerDoor:
        listener = self.settings.listen.container or self.settings.listen.peer
        name = "container" if self.settings.listen.container else "peer"

        return ContainerDoor(self.engine, listener, self.sockets[name][0], partial(self.arrivals.put, name))

    def _applications(self) -> dict[str, ASGIApp]:
        settings = self.settings
        limiters = Limiters(CapacityLimiter(64), CapacityLimiter(8), CapacityLimiter(16))
        body = settings.limits.body_bytes
        platform_parts = platform.PlatformParts(
            settings.node.id,
            settings.node.coordinator or settings.node.id,
            self.coordinator,
            self.participant,
            limiters,
            self._profile_of,
        )
        chan = channel.ChannelParts(
            node=settings.node.id,
            institution=settings.node.institution or settings.node.id,
            broker=self.broker,
            run_of_token=self._run_of_token,
            route_of=self._route_of,
            known_sender=self.knows,
            session_open=self._session_open,
            max_body=settings.limits.message_bytes * 4 // 3 + 65536,
            courier=self.courier,
            elsewhere=self._channel_elsewhere,
        )
        between = interconn.InterconnParts(
            settings.node.id, self.coordinator, self.participant, limiters, self._profile_of, self.knows
        )
        audits = JobAudits(
            self.store, self.participant, self.coordinator, self.executor, _policy(settings), self._clock
        )
        auditing = job_audit.JobAuditParts(audits, limiters, self._profile_of, self.knows)
        greeting = hello.HelloParts(
            settings.node.id,
            settings.node.institution or settings.node.id,
            self.protocol.peer,
            self.knows,
            self._profile_of,
            limiters,
        )
        for_peers = [
            Mounted(interconn.router(between), body),
            Mounted(job_audit.router(auditing), body),
            Mounted(hello.router(greeting), body),
            Mounted(channel.peer_router(chan), None),
        ]
        for_containers = [
            Mounted(platform.container_router(platform_parts), body),
            Mounted(channel.container_router(chan), None),
        ]
        model_parts = admin_models.ModelParts(self.models, self.storage, limiters, settings.data.max_upload_bytes)
        admin_parts = AdminParts(
            node=settings.node.id,
            owner=self._owner,
            store=self.store,
            coordinator=self.coordinator,
            participant=self.participant,
            routes=self.routes,
            try_route=self.protocol.try_route,
            metrics=self.metrics,
            tokens=self.tokens,
            audit=self.audit,
            registry=self.registry,
            engine=self.engine,
            broker=self.broker,
            storage=self.storage,
            run_logs=self.run_logs,
            resources=self.resources,
            limiters=limiters,
        )
        archiving = admin_archive.ArchiveParts(
            admin_parts,
            settings.state_dir / "runs",
            lambda spec: self.peers.adapter(spec.protocol).request(spec),
            self.executor.environment,
            self._clock,
        )
        for_operators = [
            Mounted(platform.operator_router(platform_parts), body),
            Mounted(logs.router(logs.LogParts(self.run_logs, limiters)), body),
            Mounted(admin_logs.router(admin_logs.LogParts(self.run_logs, limiters)), body),
            Mounted(
                admin_events.router(admin_events.EventParts(settings.node.id, self.feed, self.webhooks, limiters)),
                body,
            ),
            Mounted(
                admin_deleting.router(
                    admin_deleting.DeletingParts(
                        settings.node.id, self.store, self.coordinator, self.deleting, limiters
                    )
                ),
                body,
            ),
            Mounted(maintenance.router(self.cleaner, self.drain, limiters), body),
            Mounted(admin_models.router(model_parts), body),
            Mounted(admin_models.import_router(model_parts), None),
            Mounted(provider.router(self.providers, limiters), body),
            Mounted(admin_providers.router(admin_providers.ProviderParts(self.providers, limiters)), body),
            Mounted(data.router(self.datasets, settings.data.max_upload_bytes), None),
            Mounted(
                admin_datasets.router(
                    admin_datasets.DatasetParts(self.datasets, self.sharing, self.storage, self._clock, limiters)
                ),
                body,
            ),
            Mounted(admin_router(admin_parts), body),
            Mounted(admin_archive.router(archiving), body),
        ]
        fate = FateSide(settings)
        for_peers += fate.for_peers()
        for_operators += fate.for_operators()
        apps: dict[str, Any] = {
            "operator": create_app("operators", for_operators, documented=True),
        }
        if settings.listen.container is None:
            apps["peer"] = create_app("peers and containers", [*for_peers, *for_containers], documented=True)
        else:
            apps["peer"] = create_app("peers", for_peers, documented=True)
            apps["container"] = create_app("containers", for_containers, documented=True)
        for name, app in apps.items():
            envelope.install(app, self._as_200)
            apps[name] = envelope.TooLargeInEnvelope(app, self._as_200)
        guarded = settings.auth.mode == "on"
        access = Access(self.tokens.find, self._clock, settings.auth.token) if guarded else None
        apps["operator"] = Guard(apps["operator"], access, self.audit.add, self._clock, CapacityLimiter(4))
        if not guarded:
            apps["operator"] = LoopbackOnly(apps["operator"])
        return apps

    def _profile_of(self, node: str) -> Profile:
        route = self._resolved(node)
        return PROFILES[route.profile if route else "spec"]

    def _as_200(self, request: Request) -> bool:
        """Say whether a request comes from a peer that knows HTTP 200 only."""
        return self._profile_of(headers.incoming(request).source).errors_as_200

    def _route_of(self, node: str) -> PeerRoute | None:
        route = self._resolved(node)
        return PeerRoute(url=route.url, deadline=route.deadline, profile=route.profile) if route else None

    def _run_of_token(self, token: str) -> str | None:
        return self.store.name_of_token(token) if token else None

    def _session_open(self, session: str) -> bool | None:
        local = self._job_of_session(session)
        return None if local is None else not local.closed

    def _channel_elsewhere(self, session: str) -> str | None:
        """Return the address of the gateway of this node that has the session, None for this one."""
        local = self._job_of_session(session)
        return None if local is None else self.heartbeat.elsewhere(local.home)

    def _job_of_session(self, session: str) -> LocalJob | None:
        prefix = session_id("")
        return self.store.local_jobs.find(session.removeprefix(prefix)) if session.startswith(prefix) else None


def engine_of(settings: Settings, installation: str, instance: str = "") -> Engine:
    """Return the engine that the settings name; ``instance`` is this gateway's own id, by default the kept one."""
    node = settings.node.id
    if settings.engine.kind == "process":
        images = {name: tuple(image.command) for name, image in settings.engine.process.images.items()}
        return ProcessEngine(
            node=node,
            installation=installation,
            images=images,
            run_root=settings.state_dir / "process",
            saved_log_size=settings.limits.run_log_bytes,
        )
    docker = settings.engine.docker
    return ContainerdEngine(
        node=node,
        installation=installation,
        base_url=docker.base_url,
        network=docker.network or None,
        user=docker.user,
        storage_source=_source(docker.storage_source),
        storage_root=settings.storage.path,
        runs_source=_source(docker.runs_source),
        runs_root=settings.state_dir / "runs",
        network_mode=docker.network_mode,
        read_only_root=docker.read_only_root,
        pull=PullRules(frozenset(docker.registries if docker.pull == "missing" else ()), docker.pull_seconds),
        outside=docker.outside,
        tls={name: str(path) for name, path in docker.tls if path is not None} if docker.tls else None,
        saved_log_size=settings.limits.run_log_bytes,
        log_size=settings.limits.run_log_bytes // 2,
        instance=instance or _instance(settings.state_dir),
    )


def _grants(settings: Settings) -> dict[str, Grant]:
    return {
        provider: Grant(
            tuple(Mount(mount.source, mount.target, mount.read_only) for mount in allowed.mounts),
            tuple(allowed.capabilities),
        )
        for provider, allowed in settings.engine.docker.allow.items()
    }


def _policy(settings: Settings) -> Policy:
    approval = settings.approval
    rules = (Rule(Verdict(r.decide), r.source, r.component, r.dataset, r.role) for r in approval.rules)
    return Policy(Mode(approval.mode), approval.deadline_seconds, tuple(rules))


def _source(source: StorageSource | None) -> dict[str, str] | None:
    return source.model_dump(exclude_none=True) if source else None


def _only_process(settings: Settings) -> TextIO | None:
    """Hold a lock beside an SQLite file: several gateways share MariaDB, never SQLite. Raises `Invalid`."""
    url = settings.database.url
    if not url.startswith("sqlite:///"):
        return None
    file = Path(url.removeprefix("sqlite:///")).resolve()  # the same file by another path has the same lock
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(file.name + ".lock").open("w")
    except OSError as error:
        rule = f"cannot be used: {error.strerror}"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_UNUSABLE") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        rule = "is in use by another gateway process; several of them need mysql+pymysql://…"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_IN_USE") from None
    return lock


def _instance(state_dir: Path) -> str:
    """Return this gateway's own id, made with its state folder: runs belong to one of several gateways."""
    file = state_dir / "instance"
    if not file.exists():
        part = file.with_suffix(".part")
        part.write_text(uuid4().hex, encoding="ascii")
        part.replace(file)
    return file.read_text(encoding="ascii")
