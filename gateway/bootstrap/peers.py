"""This node's peers: their routes, protocols and keys, and the sessions of the channel."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse

from adapter.bfia import requests
from adapter.bfia.channel.dependencies import Member
from adapter.bfia.channel.sessions import Claim
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.environment import session_id, session_of
from adapter.bfia.profiles import PROFILES, Profile, profile_named
from adapter.fate import endpoints, envelope
from adapter.fate.client import FateProtocol
from adapter.fate.dag.description import Descriptions
from adapter.fate.envelope import fate_response
from adapter.fate.requests import FateParts, check_signature
from adapter.fate.signing import REMEMBERED_SECONDS
from adapter.fate.signing import Signatures as FateSignatures
from adapter.fate.words import PROTOCOL
from gateway.auth import RunTokens, origin
from gateway.config.schema import Settings
from gateway.config.schema.listeners import Node
from gateway.config.secrets import fate_sites
from gateway.domain import run as domain_run
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, JobSpec, NodeId
from gateway.errors import GatewayError, NotAllowed, Refused
from gateway.http.app import Mounted
from gateway.http.console_links import console_link
from gateway.http.peers import UnknownPeer, unknown_peer
from gateway.identity.signatures import UsedSignatures
from gateway.jobs.ids import TimestampIds
from gateway.ports import Limiters, ParticipantApi, SchedulerApi
from gateway.store.repositories import SqlUsedSignatures
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.certificates import key_pin, public_key
from route_table.institutions import nodes_of
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_PROFILE, Route, UnknownNode
from route_table.proof import ListenerProof, Proof, proof_of

PROFILE = "fate-partner"  # the profile of routes to nodes with FATE's protocol


class FateSide:
    """FATE's protocol: its client, and its routers unless it is switched off."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: Registry,
        standard: BfiaProtocol,
        profile_of: Callable[[NodeId], str],
        clock: Callable[[], datetime],
    ) -> None:
        """``profile_of`` returns the name of the profile in a node's route."""
        self._settings = settings
        self._store = store
        self._profile_of = profile_of
        self.timestamp_ids = TimestampIds(clock)
        node = settings.node.id
        sites = fate_sites(settings)
        devices = {name: site.device for name, site in sites.items()}
        used = UsedSignatures(REMEMBERED_SECONDS, SqlUsedSignatures(store, clock).first)
        self._signatures = FateSignatures(sites, used)
        self._descriptions = Descriptions(node, standard, registry, devices)
        self.protocol = FateProtocol(
            me=node,
            descriptions=self._descriptions,
            standard=standard,
            send=standard.send,
            signatures=self._signatures,
            job_of=store.jobs.find,
            protocol_of=self._protocol_of,
        )

    def speaks(self, node: NodeId) -> bool:
        """Return whether a node speaks FATE's protocol, by the profile of its route."""
        return self._profile_of(node) == PROFILE

    def protocol_for(self, node: NodeId, protocol: str) -> str:
        """Return the name of the protocol for calls to a node, as its route says.

        ``protocol`` is the job's. It is not used, but `gateway.runtime.context.Peers` passes it.
        Raises `Refused` for FATE's protocol while it is switched off.
        """
        if not self.speaks(node):
            return "bfia"
        if not self._settings.fate.enabled:
            text = (
                f"node {node} speaks FATE's protocol, which is switched off here: set fate.enabled"
            )
            raise Refused(text, reason="PROTOCOL_OFF")
        return PROTOCOL

    def sign(self, node: NodeId) -> Mapping[str, str]:
        """Return the headers that sign a request of the standard to a node.

        They are empty if the node requires no signature.
        """
        return self._signatures.sign(node, initiator="")  # only FATE's own requests name one

    def has_to_sign(self, node: NodeId) -> bool:
        """Return whether a node must sign its requests as FATE's sites do."""
        return self._signatures.must_sign(node)

    def may_bring(
        self,
        node: NodeId,
        takes_part: bool | None,
        *,
        has_route: bool,
    ) -> bool:
        """Return whether a node may send a channel message: only for a job in which it takes part.

        ``takes_part``: whether it takes part in the message's job; None if no such job is known
        here, as a message may arrive before its job. Such a message is accepted only from a node
        that has a route and need not sign control requests.
        """
        if takes_part is None:
            return has_route and not self._signatures.must_sign(node)
        return takes_part

    def signature_check(
        self, source_of: Callable[[Request], NodeId], limiters: Limiters
    ) -> Callable[[Request], Awaitable[None]]:
        """Return the check that refuses a request of the standard without a required signature.

        FATE's own paths check signatures themselves. Channel messages have none: they come from a
        node's transport, which has no key.
        """

        async def check(request: Request) -> None:
            if not request.scope["path"].startswith(("/v2/", "/v1/interconn/chan/")):
                await check_signature(self._signatures, limiters, source_of(request), request)

        return check

    def error_response(
        self,
        path: str,
        error: GatewayError,
        status: int,
    ) -> JSONResponse | None:
        """Return the response to an error at a path of FATE's protocol.

        Returns None for any other path, and while FATE's protocol is switched off.
        """
        if not self._settings.fate.enabled:
            return None
        return fate_response(path, error, status)

    def peer_mounts(
        self,
        coordinator: SchedulerApi,
        participant: ParticipantApi,
        limiters: Limiters,
        table: "PeerTable",
        agree: Callable[[str, str, str], object],
    ) -> list[Mounted]:
        """Return the routers for peers; none while FATE's protocol is switched off.

        ``agree`` approves a job: takes its id, the user and the reason.
        """
        if not self._settings.fate.enabled:
            return []
        local_jobs = self._store.local_jobs
        operators = self._settings.listen.operator

        def set_progress(job_id: str, percent: float) -> object:
            return local_jobs.update(job_id, lambda job: domain_run.with_progress(job, percent))

        parts = FateParts(
            node=self._settings.node.id,
            scheduler=coordinator,
            participant=participant,
            descriptions=self._descriptions,
            signatures=self._signatures,
            limiters=limiters,
            may_send=partial(self._may_send, table),
            speaks=self.speaks,
            job_of=self._store.jobs.find,
            local_of=local_jobs.find,
            new_id=self.timestamp_ids.new,
            board_url=partial(console_link, address=operators.advertise or ""),
            agree=agree,
            set_progress=set_progress,
        )
        max_body = self._settings.limits.body_bytes
        routers = (endpoints.router(parts), envelope.refusing_router(envelope.FOR_WORKERS))
        return [Mounted(router, max_body, envelope.Envelope) for router in routers]

    def _may_send(self, table: "PeerTable", node: NodeId) -> bool:
        """Return whether a node may send requests by FATE's protocol.

        A node without an enabled route may, for a job under way, if it had a route or signs.
        """
        if table.knows(node):
            return True
        if not table.takes_part(node):
            return False
        return table.had_route(node) or self._signatures.must_sign(node)

    def _protocol_of(self, job_id: str) -> str:
        """Return the protocol of a job here; of an unknown job, the standard's."""
        local = self._store.local_jobs.find(job_id)
        if local is None:
            return "bfia"
        return local.spec.protocol


class PeerTable:
    """The other nodes, by the routes in force.

    A node that is not this one and has no enabled entry in the route table is unknown. Before a
    request is handled, each unknown node that it names is looked up (`look_up`); `unknown_peer`
    returns the result during the request.
    """

    def __init__(
        self,
        this_node: Node,
        routes: LiveRoutes,
        vouched: Callable[[NodeId], Mapping[str, tuple[str, ...]]],
        jobs_of_task: Callable[[str], Iterable[str]],
        listener: ListenerProof,
        *,
        open_: bool = False,
    ) -> None:
        """Take the routes and the functions that look up jobs.

        - ``vouched`` returns a node's public keys in the signed jobs under way, by the jobs' ids
        - ``jobs_of_task`` returns the ids of the jobs here with a task; none for an unknown task
        - ``listener``: what the listener for peers demands of all nodes
        - ``open_``: every node is known, even one without a route
        """
        self._this_node = this_node
        self._open = open_
        self._routes = routes
        self._vouched = vouched
        self._jobs_of_task = jobs_of_task
        self._listener = listener

    def knows(self, node: str) -> bool:
        """Return whether a node has an enabled route of its own; with ``open_``, True for any node.

        False for this node's own id: its requests do not come from outside.
        """
        if node == self._this_node.id:
            return False
        if self._open and node:
            return True
        return self._routes.table.knows(node)

    def takes_part(self, node: str) -> bool:
        """Return whether an unknown node (see `knows`) takes part in a job under way.

        Raises the error of a lookup that failed.
        """
        if self.knows(node) or node == self._this_node.id:
            return False
        peer = unknown_peer(node) or self.look_up(node)
        if peer.error is not None:
            raise peer.error
        return peer.admitted

    def accepts(self, node: str) -> bool:
        """Return whether a node may send requests, even if only those for its part of a job."""
        return self.knows(node) or self.takes_part(node)

    def had_route(self, node: str) -> bool:
        """Return whether a node that takes part in a job has a disabled route, or had a route."""
        peer = unknown_peer(node) or self.look_up(node)
        return node in self._routes.table.routes or peer.former is not None

    def check_part(
        self,
        node: str,
        job_id: str,
        task_id: str,
    ) -> None:
        """Raise `NotAllowed` if the key of a request is not in the signed job that it is about.

        Only a node without a present or former route is checked, since it is known by its signed
        jobs alone. ``job_id`` and ``task_id`` are those of the request; "" if it has none.
        """
        if self.knows(node):
            return
        peer = unknown_peer(node)
        # None: no header of the request names the node, so there is no proof of the node to check.
        if peer is None or peer.former is not None:
            return
        jobs = {job_id, *self._jobs_of_task(task_id)} - {""}
        is_vouched_for = bool(jobs) and all(_is_signed_for_job(peer, job) for job in jobs)
        if not is_vouched_for:
            raise NotAllowed(requests.NO_ROUTE.format(node, self._this_node.id))

    def may_begin(self, node: str, *, asks: bool) -> bool:
        """Return whether a new job may include a node; ``asks``: the node submits the job.

        A disabled entry excludes any node. A node that submits the job needs an enabled entry of
        its own, unless every node is known.
        """
        entry = self._routes.table.routes.get(node)
        if entry is not None:
            return entry.enabled
        return self._open or not asks

    def is_unknown(self, node: str) -> bool:
        """Return, without a query, whether a node has no enabled route of its own.

        Such a node has to be looked up, also if `knows` returns True for it because of ``open_``.
        """
        return node != self._this_node.id and not self._routes.table.knows(node)

    def look_up(self, node: str) -> UnknownPeer:
        """Return what the database has about a node without an enabled route of its own."""
        admitted, route = self._routes.look_up(node)
        if not admitted:
            return UnknownPeer(admitted=False, route=route)
        former = self._routes.former(node)
        if former is not None:
            return UnknownPeer(admitted=True, route=route, former=former)
        return UnknownPeer(admitted=True, route=route, keys=self._vouched(node))

    def route_of_unknown(self, node: str) -> Route | None:
        """Return the route to a node without an enabled one of its own: a former or default route.

        None unless the request under way names the node.
        """
        peer = unknown_peer(node)
        if peer is None:
            return None
        return peer.route

    def entry(self, node: str) -> Route | None:
        """Return a node's own entry, even a disabled one; None without one.

        A deleted entry counts until the node's jobs have ended.
        """
        entry = self._routes.table.routes.get(node)
        if entry is not None:
            return entry
        peer = unknown_peer(node)
        if peer is None:
            return None
        return peer.former

    def signing_entry(self, node: str) -> Route | None:
        """Return the entry with the keys that must sign a node's requests.

        For a node that only takes part in a job, it is made here, with the keys in the signed job.
        None if the node need not sign, or may send nothing.
        """
        entry = self.entry(node)
        if entry is not None or self.knows(node):
            return entry  # None for a node that is known only because all are (``open_``)
        peer = unknown_peer(node)
        if peer is None or not peer.admitted:
            return None
        keys = dict.fromkeys(key for job_keys in peer.keys.values() for key in job_keys)
        return Route(node, "", keys=tuple(keys), signing="required")

    def proof(self, node: str) -> Proof | None:
        """Return what proves the requests of a node by its own entry; None without an entry."""
        entry = self.entry(node)
        if entry is None:
            return None
        return proof_of(entry, self._listener)

    def unproven_entry(self, node: str) -> Route | None:
        """Return the entry of a node if nothing proves the node's requests; else None."""
        entry = self.entry(node)
        if entry is None or proof_of(entry, self._listener) is not Proof.MISSING:
            return None
        return entry

    def keys_of(self, node: str) -> tuple[str, ...]:
        """Return the public keys in a node's own entry."""
        route = self._routes.table.routes.get(node)
        if route is None:
            return ()
        return route.keys

    def direct(self, node: str) -> Route | None:
        """Return the route for calls to a node; None without one.

        A disabled entry of the node counts only if it names no next hop.
        """
        entry = self._routes.table.routes.get(node)
        if entry is not None and entry.via is None:
            return entry
        return self._resolved(node)

    def why_barred(self, node: str, component: str) -> str:
        """Return why a node may not run a component (``provider/name``) here; "" if it may."""
        route = self._routes.table.routes.get(node) or self._routes.former(node)
        if route is None or route.may_run(component):
            return ""
        return f"the route of {node} allows {', '.join(route.components)}, not {component}"

    def institution(self, node: str) -> str:
        """Return the institution of a node, by default the node's id."""
        if node == self._this_node.id:
            return self._this_node.institution or node
        route = self._resolved(node)
        if route is None:
            return node
        return route.institution or node

    def nodes_of(self, institution: str) -> tuple[str, ...]:
        """Return the other nodes of an institution that have an enabled entry of their own."""
        nodes = nodes_of(self._routes.table, institution)
        return tuple(node for node in nodes if node != self._this_node.id)

    def profile_of(self, node: str) -> Profile:
        """Return a node's deviations from the standard."""
        if node == self._this_node.id:
            return PROFILES["spec"]
        return profile_named(self.profile_name(node))

    def profile_name(self, node: str) -> str:
        """Return the name of the profile in the route of a node."""
        route = self._resolved(node)
        if route is None:
            return DEFAULT_PROFILE
        return route.profile

    def as_200(self, request: Request) -> bool:
        """Return whether a request comes from a peer that understands only HTTP 200."""
        return self.profile_of(requests.incoming(request).source).errors_as_200

    def waits_for_decision(self, node: str) -> bool:
        """Return whether a node waits if a person here has to decide on its job first."""
        return node == self._this_node.id or self.profile_of(node).takes_confirm

    def route_of(self, node: str) -> Route | None:
        """Return the route of channel messages to a node, None without any."""
        route = self._resolved(node)
        if route is None:
            return None
        return route.channel

    def route_here(self, url: str | None) -> Route | None:
        """Return the route to another gateway of this node; ``url``: None without such a gateway.

        It has the TLS files of the entry for this node's id, if there is one.
        """
        if url is None:
            return None
        node = self._this_node.id
        entry = self._routes.table.routes.get(node) or Route(node, "")
        return replace(entry, url=url, via=None)

    def _resolved(self, node: str) -> Route | None:
        """Return the route to a node, which may lead through another one; None without a route."""
        if node == self._this_node.id:  # has no route to itself; a search would cost a query
            return None
        peer = unknown_peer(node)
        if peer is not None:
            return peer.route
        try:
            return self._routes.resolve(node)
        except UnknownNode:
            return None


def _is_signed_for_job(peer: UnknownPeer, job_id: str) -> bool:
    """Return whether the key of the request under way is the peer's in a signed job."""
    pins = [key_pin(public_key(key)) for key in peer.keys.get(job_id, ())]
    return origin().key in pins


class Sessions:
    """The sessions of the channel, by the jobs and runs here."""

    def __init__(
        self,
        store: Store,
        tokens: RunTokens,
        per_task: Callable[[JobSpec], bool],
        address_of: Callable[[Run], str],
    ) -> None:
        """Take the store and two functions.

        - ``per_task`` returns whether the containers of a job have one session per task
        - ``address_of`` returns the client address of a run's requests, "" if it identifies no run
        """
        self._store = store
        self._tokens = tokens
        self._on_end: list[Callable[[str], None]] = []
        self._per_task = per_task
        self._address_of = address_of

    def on_end(self, notify: Callable[[str], None]) -> None:
        """Register a function to be called with a session's name when the session ends.

        It is called in the thread that ends the session.
        """
        self._on_end.append(notify)

    def end(self, job_id: str) -> None:
        """End the session of a job, and the sessions of its tasks."""
        names = [job_id]
        local = self._store.local_jobs.cached(job_id) or self._store.local_jobs.find(job_id)
        if local is not None and self._per_task(local.spec):
            names += [run.task_id for run in local.runs]
        for session in dict.fromkeys(map(session_id, names)):
            for notify in self._on_end:
                notify(session)

    def run_of(self, claim: Claim) -> Member:
        """Return the run that sent a request, as a member of its session.

        Raises `NotAllowed` if no run here has sent the request, or if the request names a session
        that is not the run's.
        """
        sender = self._by_token(claim.token) if claim.token else self._by_address(claim)
        if sender is None:
            invalid = "x-ptp-token is not a valid token of a run here"
            problem = invalid if claim.token else "x-ptp-token is missing"
            text = f"RUN_TOKEN_REQUIRED: {problem}: send the value of config.token"
            raise NotAllowed(text, reason="RUN_TOKEN_REQUIRED")
        local, run = sender
        if claim.session != self._session_of(local, run):
            raise NotAllowed(
                "x-ptp-session-id is not this run's session: send the value of config.session_id"
            )
        return Member(
            run.name,
            frozenset(local.spec.nodes),
            shares_session=self._shares_session(local, run),
        )

    def _shares_session(self, local: LocalJob, run: Run) -> bool:
        """Return whether messages of a run's session may be for another run here.

        True while another run with the session has not ended, and once the run itself has ended.
        """
        if run.over:
            return True
        session = self._session_of(local, run)
        for other in local.runs:
            is_other = other.run_id != run.run_id and not other.over
            if is_other and self._session_of(local, other) == session:
                return True
        return False

    def own_session(self, claim: Claim) -> str:
        """Return the session of the run that sent a request, even if the request names another one.

        It is empty if no run here has sent the request.
        """
        if claim.token:
            sender = self._by_token(claim.token)
        else:
            sender = self._by_address_anywhere(claim.address)
        if sender is None:
            return ""
        local, run = sender
        return self._session_of(local, run)

    def _by_address_anywhere(self, address: str) -> tuple[LocalJob, Run] | None:
        """Return the run of any job whose container has an address; None without one."""
        if not address:
            return None
        for local, run in self._all_uncollected_runs():
            if self._address_of(run) == address:
                return local, run
        return None

    def _all_uncollected_runs(self) -> Iterator[tuple[LocalJob, Run]]:
        """Yield the uncollected runs of all unfinished jobs here."""
        for job_id in self._store.local_jobs.unfinished():
            local = self._store.local_jobs.find(job_id)
            if local is not None:
                for run in _uncollected_runs(local):
                    yield local, run

    def _by_token(self, token: str) -> tuple[LocalJob, Run] | None:
        """Return the uncollected run with a token; None for an invalid token."""
        token_id = self._tokens.id_of(token)
        ids = None if token_id is None else self._store.run_of_token(token_id)
        if ids is None:
            return None
        job_id, run_id = ids
        local = self._store.local_jobs.find(job_id)
        if local is None:
            return None
        runs = {run.run_id: run for run in _uncollected_runs(local)}
        run = runs.get(run_id)
        return None if run is None else (local, run)

    def _by_address(self, claim: Claim) -> tuple[LocalJob, Run] | None:
        """Return the run of the claimed session whose container has the address of the request."""
        local = self._job_of(claim.session)
        if local is None or not claim.address:
            return None
        for run in _uncollected_runs(local):
            has_session = self._session_of(local, run) == claim.session
            if has_session and self._address_of(run) == claim.address:
                return local, run
        return None

    def _session_of(self, local: LocalJob, run: Run) -> str:
        """Return the session of a run: the job's, or one for its task."""
        return session_of(local.id, run.task_id, self._per_task(local.spec))

    def is_open(self, session: str) -> bool | None:
        """Return whether a session accepts messages; None if no job here has the session."""
        local = self._job_of(session)
        if local is None:
            return None
        return not local.closed

    def home_of(self, session: str) -> str | None:
        """Return the gateway of this node that has the session; None if no job here has it."""
        local = self._job_of(session)
        if local is None:
            return None
        return local.home

    def has_party(self, session: str, node: NodeId) -> bool | None:
        """Return whether a node takes part in a session's job; None if no job here has it."""
        local = self._job_of(session)
        if local is None:
            return None
        return node in local.spec.nodes

    def _job_of(self, session: str) -> LocalJob | None:
        """Return the job of a session; None if no job here has it.

        A session has the name of a job or, if the job has one session per task, of a task.
        """
        prefix = session_id("")
        if not session.startswith(prefix):
            return None
        name = session.removeprefix(prefix)
        return self._store.local_jobs.find(name) or self._job_of_task(name)

    def _job_of_task(self, task_id: str) -> LocalJob | None:
        """Return the job of a task, if that job has one session per task; else None."""
        job_id = self._store.local_job_of_task(task_id)
        if job_id is None:
            return None
        local = self._store.local_jobs.find(job_id)
        if local is None or not self._per_task(local.spec):
            return None
        return local


def _uncollected_runs(local: LocalJob) -> list[Run]:
    """Return the runs whose container has not been collected: its logs saved, and it removed."""
    return [run for run in local.runs if run.collect.state is not CallState.OK]
