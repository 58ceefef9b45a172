"""How this node sees its peers: routes, the protocol that each speaks, sessions of the channel."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count as counter

from fastapi import Request
from fastapi.responses import JSONResponse

from adapter.bfia import requests
from adapter.bfia.channel.router import Member
from adapter.bfia.channel.sessions import Claim
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.environment import session_id, session_of
from adapter.bfia.profiles import PROFILES, Profile, profile_named
from adapter.fate import endpoints, envelope
from adapter.fate.client import FateProtocol
from adapter.fate.dag.description import Descriptions
from adapter.fate.envelope import in_fates_words
from adapter.fate.requests import FateParts, signed
from adapter.fate.signing import REMEMBERED
from adapter.fate.signing import Signatures as FateSignatures
from adapter.fate.words import PROTOCOL
from gateway.auth import RunTokens, origin
from gateway.config import schema
from gateway.config.schema import Settings
from gateway.domain import run as domain_run
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, JobSpec, NodeId
from gateway.errors import GatewayError, NotAllowed, Refused
from gateway.http.app import Mounted
from gateway.http.peers import UnknownPeer, unknown_peer
from gateway.identity.signatures import UsedSignatures
from gateway.ports import Limiters, ParticipantApi, SchedulerApi
from gateway.store.repositories import SqlUsedSignatures
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.certificates import key_pin, public_key
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_PROFILE, Route, UnknownNode

PROFILE = "fate-partner"
"""the profile of routes to nodes that speak FATE's protocol"""
_MOST_NUMBERS = 100_000
"""FATE stores 25 characters of a job's id"""


class FateSide:
    """FATE's protocol as a client and as routers for each listener: none while it is switched off."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: Registry,
        standard: BfiaProtocol,
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
        self.used = UsedSignatures(REMEMBERED, SqlUsedSignatures(store, clock).first)
        self._signatures = FateSignatures(sites, self.used)
        self._descriptions = Descriptions(node, standard, registry, devices)
        self.protocol = FateProtocol(
            node,
            self._descriptions,
            standard,
            standard.send,
            self._signatures,
            store.jobs.find,
            self._protocol_of,
        )

    def speaks(self, node: NodeId) -> bool:
        """Tell whether a node's route names FATE's protocol."""
        return self._profile_of(node) == PROFILE

    def spoken(self, node: NodeId, protocol: str) -> str:
        """Return the protocol in which a node is called. Raises `Refused` for FATE's while it is switched off."""
        if not self.speaks(node):
            return "bfia"
        if not self._settings.fate.enabled:
            text = (
                f"node {node} speaks FATE's protocol, which is switched off here: set fate.enabled"
            )
            raise Refused(text, reason="PROTOCOL_OFF")
        return PROTOCOL

    def sign(self, node: NodeId) -> Mapping[str, str]:
        """Return the headers that sign a request of the standard's to a node; none where none is required."""
        return self._signatures.sign(node, "")

    def has_to_sign(self, node: NodeId) -> bool:
        """Tell whether a node has to sign its requests as FATE's sites do."""
        return self._signatures.asks(node)

    def may_bring(
        self,
        node: NodeId,
        takes_part: bool | None,
        *,
        has_route: bool,
    ) -> bool:
        """Tell whether a node may send a channel message: only to its own jobs.

        A job may not have been created here yet (None), which a node waits for that has to sign control requests,
        or has no route of its own.
        """
        return takes_part or (takes_part is None and has_route and not self._signatures.asks(node))

    def signed(
        self, source_of: Callable[[Request], NodeId], limiters: Limiters
    ) -> Callable[[Request], Awaitable[None]]:
        """Return what refuses a request of the standard's without the signature that its node has to give.

        FATE's paths check that themselves; channel messages come from a node's transport, which signs nothing.
        """

        async def check(request: Request) -> None:
            if not request.scope["path"].startswith(("/v2/", "/v1/interconn/chan/")):
                await signed(self._signatures, limiters, source_of(request), request)

        return check

    def elsewhere(
        self,
        path: str,
        error: GatewayError,
        status: int,
    ) -> JSONResponse | None:
        """Return FATE's answer to what none of its paths has taken; None for paths that are not FATE's."""
        return in_fates_words(path, error, status) if self._settings.fate.enabled else None

    def for_peers(
        self,
        coordinator: SchedulerApi,
        participant: ParticipantApi,
        limiters: Limiters,
        table: "PeerTable",
        agree: Callable[[str, str, str], object],
    ) -> list[Mounted]:
        """Return what other nodes ask. ``agree`` takes a consent to a job: its id, who gave it, in which words."""
        if not self._settings.fate.enabled:
            return []
        local_jobs = self._store.local_jobs
        parts = FateParts(
            self._settings.node.id,
            coordinator,
            participant,
            self._descriptions,
            self._signatures,
            limiters,
            partial(self._may_send, table),
            self.speaks,
            self._store.jobs.find,
            local_jobs.find,
            self._new_id,
            agree,
            lambda job_id, percent: local_jobs.update(
                job_id, lambda local: domain_run.with_progress(local, percent)
            ),
        )
        routers = (endpoints.router(parts), envelope.router(envelope.FOR_WORKERS))
        return [
            Mounted(router, self._settings.limits.body_bytes, envelope.Envelope)
            for router in routers
        ]

    def _may_send(self, table: "PeerTable", node: NodeId) -> bool:
        """Tell whether a node may send requests; one without a route signs them as a site."""
        if table.knows(node):
            return True
        return table.takes_part(node) and (table.had_route(node) or self._signatures.asks(node))

    def _protocol_of(self, job_id: str) -> str:
        local = self._store.local_jobs.find(job_id)
        return local.spec.protocol if local is not None else "bfia"

    def _new_id(self) -> str:
        """Return an id such as FATE gives: the local time to the microsecond, and a number."""
        return f"{self._clock():%Y%m%d%H%M%S%f}{next(self._numbers) % _MOST_NUMBERS}"


class PeerTable:
    """The other nodes, by the routes of now."""

    def __init__(
        self,
        here: schema.Node,
        routes: LiveRoutes,
        vouched: Callable[[NodeId], Mapping[str, tuple[str, ...]]],
        jobs_of_task: Callable[[str], Iterable[str]],
        *,
        open_: bool = False,
    ) -> None:
        """``vouched`` returns a node's public keys by the signed jobs under way that name it, by their ids.

        ``jobs_of_task`` returns the job here, if any, that a task belongs to; ``open_``: every node is known.
        """
        self._here = here
        self._open = open_
        self._routes = routes
        self._vouched = vouched
        self._jobs_of_task = jobs_of_task

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route of its own.

        A request that claims this node's own id from outside is not from here.
        """
        if node == self._here.id:
            return False
        return bool(self._open and node) or self._routes.table.knows(node)

    def takes_part(self, node: str) -> bool:
        """Tell whether a node without an enabled route of its own takes part in a job under way."""
        if self.knows(node) or node == self._here.id:
            return False
        found = unknown_peer(node) or self.look(node)
        if found.error is not None:
            raise found.error
        return found.admitted

    def accepts(self, node: str) -> bool:
        """Tell whether a node may send requests, be it only those that its part of a job needs."""
        return self.knows(node) or self.takes_part(node)

    def had_route(self, node: str) -> bool:
        """Tell whether a node that takes part in a job under way has a disabled route, or had one."""
        found = unknown_peer(node) or self.look(node)
        return node in self._routes.table.routes or found.former is not None

    def check_part(
        self,
        node: str,
        job_id: str,
        task_id: str,
    ) -> None:
        """Raise `NotAllowed` where the key that came with one job has signed a request about another one."""
        found = None if self.knows(node) else unknown_peer(node)
        if found is None or found.former is not None:
            return
        jobs = {job_id, *self._jobs_of_task(task_id)} - {""}
        for job in jobs:
            pins = [key_pin(public_key(key)) for key in found.keys.get(job, ())]
            if origin().key not in pins:
                raise NotAllowed(requests.NO_ROUTE.format(node))
        if not jobs:
            raise NotAllowed(requests.NO_ROUTE.format(node))

    def may_begin(self, node: str, *, asks: bool) -> bool:
        """Tell whether a new job may be one with a node: its entry is enabled, and there where it is what asks."""
        entry = self._routes.table.routes.get(node)
        return (self._open or not asks) if entry is None else entry.enabled

    def is_unknown(self, node: str) -> bool:
        """Tell, without a query, whether there is no route to a node."""
        return node != self._here.id and not self._routes.table.knows(node)

    def look(self, node: str) -> UnknownPeer:
        """Ask the database about a node without a route."""
        admitted, route = self._routes.look(node)
        former = self._routes.former(node) if admitted else None
        keys = self._vouched(node) if admitted and former is None else {}
        return UnknownPeer(admitted, route, former, keys)

    def reached(self, node: str) -> Route | None:
        """Return how a node without a route is reached, where the request under way is about it."""
        return found.route if (found := unknown_peer(node)) else None

    def entry(self, node: str) -> Route | None:
        """Return a node's own entry, also one that is disabled, or the one that it had while its jobs go on."""
        own = self._routes.table.routes.get(node)
        if own is not None:
            return own
        found = unknown_peer(node)
        return found.former if found is not None else None

    def proof(self, node: str) -> Route | None:
        """Return the entry by which a node's requests are proven; None: it needs none, or may send none.

        A node that only takes part in a job signs by the keys that came with it. Without one it proves nothing.
        """
        entry = self.entry(node)
        found = unknown_peer(node)
        if entry is not None or found is None or not found.admitted or self.knows(node):
            return entry
        keys = dict.fromkeys(key for of_job in found.keys.values() for key in of_job)
        return Route(node, "", keys=tuple(keys), signing="required")

    def keys_of(self, node: str) -> tuple[str, ...]:
        """Return the public keys in a node's own entry."""
        route = self._routes.table.routes.get(node)
        return route.keys if route is not None else ()

    def direct(self, node: str) -> Route | None:
        """Return how a node is called, though its entry may be disabled; None: it needs another route."""
        own = self._routes.table.routes.get(node)
        return own if own is not None and own.via is None else self._resolved(node)

    def barred(self, node: str, component: str) -> str:
        """Return why a node may not have a component (``provider/name``) run here; empty where it may."""
        route = self._routes.table.routes.get(node) or self._routes.former(node)
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
        return PROFILES["spec"] if node == self._here.id else profile_named(self.profile_name(node))

    def profile_name(self, node: str) -> str:
        """Return the profile that the route of a node names."""
        route = self._resolved(node)
        return route.profile if route else DEFAULT_PROFILE

    def as_200(self, request: Request) -> bool:
        """Say whether a request comes from a peer that knows HTTP 200 only."""
        return self.profile_of(requests.incoming(request).source).errors_as_200

    def takes_confirm(self, node: str) -> bool:
        """Tell whether a later decision on a job here can be sent to a node."""
        return node == self._here.id or self.profile_of(node).takes_confirm

    def route_of(self, node: str) -> Route | None:
        """Return where messages for a node go; None where there is no way to it."""
        route = self._resolved(node)
        return route and route.channel

    def route_here(self, url: str | None) -> Route | None:
        """Return the route to another gateway of this node, with the TLS files of an entry of its own id."""
        own = self._routes.table.routes.get(self._here.id) or Route(self._here.id, "")
        return None if url is None else replace(own, url=url, via=None)

    def _resolved(self, node: str) -> Route | None:
        if node == self._here.id:  # no route leads here, and to look whether one did costs a query
            return None
        if (unknown := unknown_peer(node)) is not None:
            return unknown.route
        try:
            return self._routes.resolve(node)
        except UnknownNode:
            return None


class Sessions:
    """What the channel needs to know of jobs, and jobs of the channel."""

    def __init__(
        self,
        store: Store,
        tokens: RunTokens,
        per_task: Callable[[JobSpec], bool],
        address_of: Callable[[Run], str],
    ) -> None:
        """``per_task``: whether the containers of a job have a session for each of its tasks.

        ``address_of``: from which address a run's requests come; empty where that says nothing.
        """
        self._store = store
        self._tokens = tokens
        self._on_end: list[Callable[[str], None]] = []
        self._per_task = per_task
        self._address_of = address_of

    def on_end(self, end: Callable[[str], None]) -> None:
        """Name what is to happen on the event loop when a session ends."""
        self._on_end.append(end)

    def end(self, job_id: str) -> None:
        """End the session of a job, and where its tasks have some of their own, those."""
        local = self._store.local_jobs.known(job_id) or self._store.local_jobs.find(job_id)
        tasks = (run.task_id for run in local.runs) if local and self._per_task(local.spec) else ()
        for session in dict.fromkeys(map(session_id, (job_id, *tasks))):
            for end in self._on_end:
                end(session)

    def run_of(self, claim: Claim) -> Member:
        """Return the run that a request comes from. Raises `NotAllowed`, also for the session of another run."""
        found = self._by_token(claim.token) if claim.token else self._by_address(claim)
        if found is None:
            wrong = (
                "x-ptp-token is not a valid token of a run here"
                if claim.token
                else "x-ptp-token is missing"
            )
            raise NotAllowed(
                f"RUN_TOKEN_REQUIRED: {wrong}: send the value of config.token",
                reason="RUN_TOKEN_REQUIRED",
            )
        local, run = found
        if claim.session != self._session_of(local, run):
            raise NotAllowed(
                "x-ptp-session-id is not this run's session: send the value of config.session_id"
            )
        return Member(run.name, frozenset(local.spec.nodes))

    def own_session(self, claim: Claim) -> str:
        """Return the session of the run that a request comes from, whichever it names; empty for no run here."""
        found = (
            self._by_token(claim.token) if claim.token else self._by_address_anywhere(claim.address)
        )
        return self._session_of(*found) if found is not None else ""

    def _by_address_anywhere(self, address: str) -> tuple[LocalJob, Run] | None:
        if not address:
            return None
        for job_id in self._store.local_jobs.unfinished():
            local = self._store.local_jobs.find(job_id)
            if local is None:
                continue
            for run in _there(local):
                if self._address_of(run) == address:
                    return local, run
        return None

    def _by_token(self, token: str) -> tuple[LocalJob, Run] | None:
        known = self._tokens.id_of(token)
        found = self._store.run_of_token(known) if known is not None else None
        local = self._store.local_jobs.find(found[0]) if found is not None else None
        runs = _there(local) if local else []
        return next(
            ((local, run) for run in runs if local and found and run.run_id == found[1]), None
        )

    def _by_address(self, claim: Claim) -> tuple[LocalJob, Run] | None:
        """Return the run of the session whose container, which is still there, has the address."""
        local = self._job_of(claim.session)
        if local is None or not claim.address:
            return None
        for run in _there(local):
            if (
                self._session_of(local, run) == claim.session
                and self._address_of(run) == claim.address
            ):
                return local, run
        return None

    def _session_of(self, local: LocalJob, run: Run) -> str:
        return session_of(local.id, run.task_id, self._per_task(local.spec))

    def is_open(self, session: str) -> bool | None:
        """Say whether a session takes messages; None for one of no job here."""
        local = self._job_of(session)
        return None if local is None else not local.closed

    def home_of(self, session: str) -> str | None:
        """Return the gateway of this node that has the session; None for one of no job here."""
        local = self._job_of(session)
        return None if local is None else local.home

    def has_party(self, session: str, node: NodeId) -> bool | None:
        """Say whether a node takes part in the job of a session; None where no job here has it."""
        local = self._job_of(session)
        return None if local is None else node in local.spec.nodes

    def _job_of(self, session: str) -> LocalJob | None:
        prefix, jobs = session_id(""), self._store.local_jobs
        name = session.removeprefix(prefix)
        if name == session:
            return None
        if (found := jobs.find(name)) is not None:
            return found
        job_id = self._store.local_job_of_task(name)
        found = jobs.find(job_id) if job_id is not None else None
        return found if found is not None and self._per_task(found.spec) else None


def _there(local: LocalJob) -> list[Run]:
    """Return the runs whose container has not been collected yet."""
    return [run for run in local.runs if run.collect.state is not CallState.OK]
