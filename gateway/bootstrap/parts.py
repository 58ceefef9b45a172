"""Makes the parts of one node and ties them together."""

import fcntl
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import count as counter
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO
from uuid import uuid4

from fastapi import Request
from fastapi.responses import JSONResponse

from adapter.bfia import headers, platform
from adapter.bfia.channel.courier import Courier, PeerRoute
from adapter.bfia.channel.router import Claim, Member
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.environment import session_id, session_of
from adapter.bfia.peer import LONGEST_CALL
from adapter.bfia.profiles import Profile, profile_named
from adapter.fate import envelope, partner, scheduler
from adapter.fate.client import FateProtocol
from adapter.fate.dag.description import PROTOCOL, Descriptions
from adapter.fate.dag.read import Catalogue
from adapter.fate.envelope import in_fates_words
from adapter.fate.ports import Standard
from adapter.fate.requests import FateParts, signed
from adapter.fate.signing import App, Site, UsedSignatures
from adapter.fate.signing import Signatures as FateSignatures
from engines.base import Engine, Mount
from engines.docker import ContainerdEngine, DockerOptions, PullRules
from engines.docker.engine import source_of
from engines.multi import SeveralEngines
from engines.process.engine import ProcessEngine
from gateway.auth import RunTokens
from gateway.broker.broker import Broker
from gateway.broker.mailbox import BrokerLimits
from gateway.config import schema
from gateway.config import tls as peer_tls
from gateway.config.engine import DaemonSettings, DockerEngineSettings, StorageSource
from gateway.config.schema import FateApp, Settings
from gateway.container_listener import ContainerDoor
from gateway.data.datasets import Datasets
from gateway.data.files import DiskWatch, made
from gateway.data.logs import RunLogs
from gateway.data.models import Models
from gateway.data.reports import output_warnings
from gateway.data.sharing import Sharing
from gateway.data.storage import FileStorage
from gateway.data.workspace import Workspace
from gateway.domain import admission
from gateway.domain import run as domain_run
from gateway.domain.approval import Mode, Policy, Rule, Verdict
from gateway.domain.datasets import Default
from gateway.domain.job import Job
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, JobSpec, NodeId
from gateway.domain.timeouts import RunTiming, Timing
from gateway.errors import DatabaseAway, GatewayError, Invalid, NotAllowed, Refused
from gateway.events.feed import Feed
from gateway.events.webhooks import Hook, Webhooks
from gateway.http.app import Mounted
from gateway.http.partner_quota import QuotaReached
from gateway.http.server import Arrivals, bound, claimed
from gateway.http.strangers import Seen, seen
from gateway.jobs import retention as cleaning
from gateway.jobs import retention as jobs_retention
from gateway.jobs.capacity import Cap, Ceilings, EngineRooms, defaults_of, detecting
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.deletion import Deleting
from gateway.jobs.executor import Executor
from gateway.jobs.inheritance import Inheritance
from gateway.jobs.launcher import Grant, Launching, Place
from gateway.jobs.participant import Participant
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.resources import Bounds, Resources
from gateway.jobs.scheduler import Scheduler
from gateway.ports import Clock, Limiters, ParticipantApi, ProtocolAdapter, SchedulerApi
from gateway.providers.images import Images, Signatures, signers_of
from gateway.providers.registration import Providers
from gateway.runtime.clock import resume, wall_of
from gateway.runtime.context import traced
from gateway.runtime.drain import Drain
from gateway.runtime.executors import Lanes
from gateway.runtime.heartbeat import Heartbeat
from gateway.runtime.metrics import Metrics, telling
from gateway.runtime.outages import Outages
from gateway.runtime.peers import Peers
from gateway.store.database import opened
from gateway.store.models import SqlModels
from gateway.store.queries import count
from gateway.store.records import Records
from gateway.store.repositories import (
    EngineTotals,
    Gateways,
    SqlAudit,
    SqlDatasets,
    SqlGrants,
    SqlHeardSignatures,
    SqlProviders,
    SqlRouteVersions,
    SqlTokens,
)
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_PROFILE, NO_IDENTITY, Identity, Route, UnknownNode

PROFILE = "fate-partner"
"""the profile of routes to nodes that speak FATE's protocol"""


_MOST_NUMBERS = 100_000
"""FATE stores 25 characters of a job's id"""


class Transport(Standard, Protocol):
    """The standard's protocol, whose connections FATE's requests take too."""

    def send(
        self, node: NodeId, path: str, body: Mapping[str, Any], headers: Mapping[str, str], patience: float
    ) -> tuple[int, Any]:
        """Post to a path of FATE's; return HTTP status and JSON."""


class FateSide:
    """FATE's protocol as a client and as routers for each listener: none while it is switched off."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: Registry,
        standard: Transport,
        profile_of: Callable[[NodeId], str],
        clock: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._store = store
        self._profile_of = profile_of
        self._clock = clock
        self._numbers = counter()
        node = settings.node.id
        sites = settings.fate.sites
        devices = {site: found.device for site, found in sites.items()}
        self.heard = UsedSignatures(SqlHeardSignatures(store, wall_of(clock)).first)
        applications = {n: Site(_app(s.sends), _app(s.expects)) for n, s in sites.items()}
        self._signatures = FateSignatures(applications, self.heard)
        self._descriptions = Descriptions(node, standard, Catalogue(registry), devices)
        self.protocol = FateProtocol(
            node, self._descriptions, standard, standard.send, self._signatures, self._job, self._protocol_of
        )

    def speaks(self, node: NodeId) -> bool:
        """Say whether a node's route says that it speaks FATE's protocol."""
        return self._profile_of(node) == PROFILE

    def spoken(self, node: NodeId, protocol: str) -> str:
        """Return the protocol in which a node is called. Raises `Refused` for FATE's while it is switched off."""
        if not self.speaks(node):
            return "bfia"
        if not self._settings.fate.enabled:
            text = f"node {node} speaks FATE's protocol, which is switched off here: set fate.enabled"
            raise Refused(text, reason="PROTOCOL_OFF")
        return PROTOCOL

    def sign(self, node: NodeId) -> Mapping[str, str]:
        """Return the headers that sign a request of the standard's to a node; none where it asks for none."""
        return self._signatures.sign(node, "")

    def may_bring(self, node: NodeId, takes_part: bool | None) -> bool:
        """Say whether a node may bring a channel message: only to its own jobs.

        A job may not have been created here yet (None), which a node that has to sign control requests waits for.
        """
        return takes_part or (takes_part is None and not self._signatures.asks(node))

    def signed(
        self, source_of: Callable[[Request], NodeId], limiters: Limiters
    ) -> Callable[[Request], Awaitable[None]]:
        """Return what refuses a request of the standard's without the signature that its node has to give.

        FATE's paths check that themselves; channel messages come from a node's transport, which signs nothing.
        """

        async def check(request: Request) -> None:
            if not request.url.path.startswith(("/v2/", "/v1/interconn/chan/")):
                await signed(self._signatures, limiters, source_of(request), request)

        return check

    def elsewhere(self, path: str, error: GatewayError, status: int) -> JSONResponse | None:
        """Return FATE's answer to what none of its paths has taken; None for paths that are not FATE's."""
        return in_fates_words(path, error, status) if self._settings.fate.enabled else None

    def for_peers(
        self,
        coordinator: SchedulerApi,
        participant: ParticipantApi,
        limiters: Limiters,
        knows: Callable[[NodeId], bool],
        agree: Callable[[str, str, str], object],
    ) -> list[Mounted]:
        """Return what other nodes ask. ``agree`` takes a consent to a job: its id, who gave it, in which words."""
        parts = FateParts(
            self._settings.node.id,
            coordinator,
            participant,
            self._descriptions,
            self._signatures,
            limiters,
            knows,
            self.speaks,
            self._job,
            self._local,
            self._new_id,
            agree,
            self._is_at,
        )
        routers = (partner.router(parts), scheduler.router(parts), envelope.router(envelope.FOR_WORKERS))
        return self._if_on(*(Mounted(router, self._body, envelope.Envelope) for router in routers))

    def _is_at(self, job_id: str, percent: float) -> None:
        self._store.local_jobs.update(job_id, lambda local: domain_run.told(local, percent))

    @property
    def _body(self) -> int:
        return self._settings.limits.body_bytes

    def _if_on(self, *routers: Mounted) -> list[Mounted]:
        return list(routers) if self._settings.fate.enabled else []

    def _job(self, job_id: str) -> Job | None:
        return self._store.jobs.find(job_id)

    def _local(self, job_id: str) -> LocalJob | None:
        return self._store.local_jobs.find(job_id)

    def _protocol_of(self, job_id: str) -> str:
        local = self._local(job_id)
        return local.spec.protocol if local is not None else "bfia"

    def _new_id(self) -> str:
        """Return an id such as FATE gives: the local time to the microsecond, and a number."""
        return f"{self._clock():%Y%m%d%H%M%S%f}{next(self._numbers) % _MOST_NUMBERS}"


def _app(found: FateApp | None) -> App | None:
    return App(found.app_id, found.app_token) if found is not None else None


class Neighbours:
    """The other nodes, by the routes of now."""

    def __init__(self, here: schema.Node, routes: LiveRoutes) -> None:
        self._here = here
        self._routes = routes

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route, or had one and takes part in a job under way.

        This node itself is no peer: a request that claims its id from outside is not from here.
        """
        if node == self._here.id:
            return False
        if (stranger := seen(node)) is None:
            return self._routes.admits(node)
        if stranger.error is not None:
            raise stranger.error
        return stranger.admitted

    def is_stranger(self, node: str) -> bool:
        """Tell, without a query, whether there is no route to a node."""
        return node != self._here.id and not self._routes.table.knows(node)

    def look(self, node: str) -> Seen:
        """Ask the database about a node without a route."""
        return Seen(*self._routes.look(node))

    def former(self, node: str) -> Route | None:
        """Return the route that a node without one had, where the request under way is about it."""
        return found.route if (found := seen(node)) else None

    def barred(self, node: str, component: str) -> str:
        """Return why a node may not have a component (``provider/name``) run here; empty where it may."""
        route = self._routes.table.routes.get(node)
        if route is None or route.may_run(component):
            return ""
        return f"the route of {node} allows {', '.join(route.components)}, not {component}"

    def institution(self, node: str) -> str:
        """Return the institution of a node; of one that names none, the node's own id."""
        if node == self._here.id:
            return self._here.institution or node
        route = self._resolved(node)
        return (route.institution if route else None) or node

    def profile_of(self, node: str) -> Profile:
        """Return how a node departs from the standard."""
        return profile_named(self.profile_name(node))

    def profile_name(self, node: str) -> str:
        """Return the profile that the route of a node names."""
        route = self._resolved(node)
        return route.profile if route else DEFAULT_PROFILE

    def as_200(self, request: Request) -> bool:
        """Say whether a request comes from a peer that knows HTTP 200 only."""
        return self.profile_of(headers.incoming(request).source).errors_as_200

    def takes_confirm(self, node: str) -> bool:
        """Say whether a node can be told later what was decided on a job here."""
        return node == self._here.id or self.profile_of(node).takes_confirm

    def route_of(self, node: str) -> PeerRoute | None:
        """Return where messages for a node go; None where there is no way to it."""
        route = self._resolved(node)
        if route is None:
            return None
        return PeerRoute(route.url, route.deadline, route.profile, route.via or "", route.identity)

    def identity_here(self) -> Identity:
        """Return how other gateways of this node are reached: as an entry of its own id says, if there is one."""
        own = self._routes.table.routes.get(self._here.id)
        return own.identity if own else NO_IDENTITY

    def _resolved(self, node: str) -> Route | None:
        if node == self._here.id:  # no route leads here, and to look whether one did costs a query
            return None
        if (stranger := seen(node)) is not None:
            return stranger.route
        try:
            return self._routes.resolve(node)
        except UnknownNode:
            return None


class Sessions:
    """What the channel asks of jobs, and jobs of the channel."""

    def __init__(self, store: Store, tokens: RunTokens) -> None:
        self._store = store
        self._tokens = tokens
        self._on_end: list[Callable[[str], None]] = []
        self.per_task: Callable[[JobSpec], bool] = lambda spec: False
        """whether the containers of a job have a session for each of its tasks"""
        self.address_of: Callable[[Run], str] = lambda run: ""
        """from which address a run's requests come; empty where that does not tell"""

    def on_end(self, end: Callable[[str], None]) -> None:
        """Name what is to happen on the event loop when a session ends."""
        self._on_end.append(end)

    def end(self, job_id: str) -> None:
        """End the session of a job, and where its tasks have some of their own, those."""
        local = self._store.local_jobs.find(job_id)
        tasks = (run.task_id for run in local.runs) if local and self.per_task(local.spec) else ()
        for session in dict.fromkeys(map(session_id, (job_id, *tasks))):
            for end in self._on_end:
                end(session)

    def run_of(self, claim: Claim) -> Member:
        """Return the run that a request comes from. Raises `NotAllowed`, also for the session of another run."""
        found = self._by_token(claim.token) if claim.token else self._by_address(claim)
        if found is None:
            wrong = "x-ptp-token is no token of a run here" if claim.token else "x-ptp-token is missing"
            raise NotAllowed(
                f"RUN_TOKEN_REQUIRED: {wrong}: send the value of config.token", reason="RUN_TOKEN_REQUIRED"
            )
        local, run = found
        if claim.session != self._session_of(local, run):
            raise NotAllowed("x-ptp-session-id is not this run's session: send the value of config.session_id")
        return Member(run.name, frozenset(local.spec.nodes))

    def _by_token(self, token: str) -> tuple[LocalJob, Run] | None:
        known = self._tokens.id_of(token)
        found = self._store.run_of_token(known) if known is not None else None
        local = self._store.local_jobs.find(found[0]) if found is not None else None
        if found is None or local is None:
            return None
        return next(((local, run) for run in local.runs if run.run_id == found[1]), None)

    def _by_address(self, claim: Claim) -> tuple[LocalJob, Run] | None:
        """Return the run of the session whose container, which is still there, has the address."""
        local = self._job_of(claim.session)
        if local is None or not claim.address:
            return None
        for run in local.runs:
            own = run.collect.state is not CallState.OK and self._session_of(local, run) == claim.session
            if own and self.address_of(run) == claim.address:
                return local, run
        return None

    def _session_of(self, local: LocalJob, run: Run) -> str:
        return session_of(local.id, run.task_id, self.per_task(local.spec))

    def is_open(self, session: str) -> bool | None:
        """Say whether a session takes messages; None for one that is no job's here."""
        local = self._job_of(session)
        return None if local is None else not local.closed

    def home_of(self, session: str) -> str | None:
        """Return the gateway of this node that has the session; None for one that is no job's here."""
        local = self._job_of(session)
        return None if local is None else local.home

    def has_party(self, session: str, node: NodeId) -> bool | None:
        """Say whether a node takes part in the job of a session; None where that is no job's here."""
        local = self._job_of(session)
        return None if local is None else node in local.spec.nodes

    def _job_of(self, session: str) -> LocalJob | None:
        prefix = session_id("")
        if not session.startswith(prefix):
            return None
        name = session.removeprefix(prefix)
        jobs = self._store.local_jobs
        found = jobs.find(name)
        if found is None and (job_id := self._store.local_job_of_task(name)) is not None:
            found = jobs.find(job_id)
            return found if found is not None and self.per_task(found.spec) else None
        return found


_JITTER = 0.25


def call_timing(settings: Settings) -> Timing:
    """Return how long the scheduling node waits for what."""
    # a claim may wait 1 s in its lane, a connection 1 s for a place and 3 s to come up
    return Timing(
        call_deadline=LONGEST_CALL + 6.0,
        unreachable_limit=settings.limits.unreachable_seconds,
        jitter=_JITTER,
        hold_first=settings.limits.schedule_pause_seconds,
        hold_most=max(settings.limits.schedule_longest_pause_seconds, settings.limits.schedule_pause_seconds),
        hold_tries=settings.limits.schedule_attempts,
        ageing=settings.limits.ageing_seconds,
    )


def run_timing(settings: Settings) -> RunTiming:
    """Return how long a participating node waits for what."""
    return RunTiming(
        jitter=_JITTER,
        launch_deadline=120.0 + settings.engine.docker.pull_seconds,
        engine_patience=settings.limits.engine_down_seconds,
        silence_fails=settings.limits.exit_without_report == "fails",
        orphan=settings.limits.orphan_seconds or settings.limits.unreachable_seconds + 60.0,
    )


def admission_rules(settings: Settings) -> admission.Rules:
    """Return for how long waiting jobs keep their place, and when they go before all others."""
    pause = call_timing(settings).hold_most
    return admission.Rules(ageing=settings.limits.ageing_seconds, fresh=max(admission.Rules.fresh, 3 * pause))


def approval_policy(settings: Settings) -> Policy:
    """Return who has to agree to a job here."""
    approval = settings.approval
    rules = (Rule(Verdict(r.decide), r.source, r.component, r.dataset, r.role, r.command) for r in approval.rules)
    return Policy(Mode(approval.mode), approval.deadline_seconds, tuple(rules))


def retention(settings: Settings) -> cleaning.Policy:
    """Return how long what jobs leave behind is kept."""
    kept = settings.retention
    return cleaning.Policy(kept.workspace_seconds, kept.logs_seconds, kept.outputs_seconds, kept.jobs_seconds)


def only_process(settings: Settings) -> TextIO | None:
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


def instance_of(state_dir: Path) -> str:
    """Return this gateway's own id, made with its state folder: runs belong to one of several gateways."""
    file = state_dir / "instance"
    if not file.exists():
        part = file.with_suffix(".part")
        part.write_text(uuid4().hex, encoding="ascii")
        part.replace(file)
    return file.read_text(encoding="ascii")


def key_of(state_dir: Path) -> bytes:
    """Return the key of this gateway's run tokens, made with its state folder and readable by its user only."""
    file = state_dir / "run-tokens.key"
    if not file.exists():
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(32))
        part.replace(file)
    return file.read_bytes()


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
    instance = instance or instance_of(settings.state_dir)
    main = _daemon(settings, docker, docker.base_url, installation, instance)
    others = {d.base_url: _daemon(settings, d, d.base_url, installation, instance) for d in docker.daemons}
    return SeveralEngines(main, others) if others else main


def main_of(engine: Engine) -> Engine:
    """Return the engine whose network is on this machine, where that is so of any."""
    return engine.main if isinstance(engine, SeveralEngines) else engine


def engines_by_address(settings: Settings) -> dict[str, str]:
    """Return which daemons a provider may name, each with the name of the engine for it."""
    docker = settings.engine.docker
    if settings.engine.kind != "docker":
        return {"": ""}
    return {"": "", docker.base_url: "", **{d.base_url: d.base_url for d in docker.daemons}}


def rooms_of(settings: Settings, engine: Engine, store: Store, clock: Clock, owner: str) -> EngineRooms:
    """Return what tells what each engine has; ``owner`` is what this gateway's own main one is kept as."""
    others = engine.others if isinstance(engine, SeveralEngines) else {}
    own = settings.resources
    caps = {d.base_url: Cap(d.cpu, d.memory_gib) for d in settings.engine.docker.daemons}
    caps[""] = Cap(own.cpu, own.memory_gib)
    engines = {"": main_of(engine), **others}
    return EngineRooms(settings.node.id, engines, caps, own, EngineTotals(store), clock, main=owner)


def _daemon(
    settings: Settings,
    place: DockerEngineSettings | DaemonSettings,
    base_url: str,
    installation: str,
    instance: str,
) -> ContainerdEngine:
    """Return the engine of one daemon; what ``place`` does not say is the same for all."""
    docker = settings.engine.docker
    options = DockerOptions(
        base_url=base_url,
        tls={name: str(path) for name, path in place.tls if path is not None} if place.tls else {},
        pull=PullRules(
            frozenset(docker.registries if docker.pull == "missing" else ()),
            docker.pull_seconds,
            docker.pull_stale_seconds,
        ),
        network=docker.network or None,
        network_mode=docker.network_mode,
        outside=place.outside,
        instance=instance,
        user=docker.user,
        read_only_root=docker.read_only_root,
        sources=(
            *source_of(settings.storage.path, _source(place.storage_source)),
            *source_of(settings.state_dir / "runs", _source(place.runs_source)),
        ),
        log_size=settings.limits.run_log_bytes // 2,
        saved_log_size=settings.limits.run_log_bytes,
    )
    return ContainerdEngine(settings.node.id, installation, options)


def grants_of(settings: Settings) -> dict[str, Grant]:
    """Return what the settings let each provider have, by its name."""
    return {
        provider: Grant(
            tuple(Mount(mount.source, mount.target, mount.read_only) for mount in allowed.mounts),
            tuple(allowed.capabilities),
        )
        for provider, allowed in settings.engine.docker.allow.items()
    }


def _source(source: StorageSource | None) -> dict[str, str] | None:
    return source.model_dump(exclude_none=True) if source else None


def listening(settings: Settings) -> dict[str, list[socket.socket]]:
    """Bind every listener. Raises `Invalid` where an address cannot be had."""
    listen = settings.listen
    sockets = {"peer": [bound(listen.peer.bind)], "operator": [bound(listen.operator.bind)]}
    if listen.container is not None:
        sockets["container"] = [bound(listen.container.bind)]
    return sockets


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
            partial(output_warnings, self.storage),
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
