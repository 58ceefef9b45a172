"""The application of each listener: peers, containers, operators. None serves the paths of another one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Scope

from adapter.bfia import data, envelope, interconn, platform, relay, requests
from adapter.bfia import wire as bfia
from adapter.bfia.channel import router
from adapter.bfia.channel.codec import read_ends
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.channel.peers import HANDED_ON
from adapter.bfia.channel.rpc import Grpc
from adapter.bfia.examples import A_JOB
from adapter.bfia.management import client
from adapter.bfia.management import router as management
from adapter.bfia.requests import Peers, known_first
from adapter.body import JsonRoute
from gateway.admin import (
    about,
    applications,
    datasets,
    jobs,
    models,
    outputs,
    providers,
    routes,
    streams,
)
from gateway.admin import node as admin_node
from gateway.admin.deps import in_language, only_known
from gateway.auth import Access
from gateway.bootstrap.parts import approval_policy
from gateway.console import session
from gateway.domain.applications import Application, Kind
from gateway.domain.dry_run import JobPlan
from gateway.domain.redaction import for_others
from gateway.domain.spec import NodeId
from gateway.http.app import (
    Mounted,
    create_app,
    from_browser,
    from_elsewhere,
    with_head,
    without_foreign,
)
from gateway.http.encoded_bodies import decoding_bodies
from gateway.http.guard import Guard, Partners, Refusals, address_of, cookie_name, noting_refusals
from gateway.http.peers import (
    PeerIdentity,
    noting_origin,
    shown,
    with_identity,
    with_lookup,
    with_quota,
)
from gateway.identity.signatures import Verifier
from gateway.jobs.job_audits import JobAudits
from gateway.runtime.context import current_trace, new_trace_id
from gateway.store.repositories import SqlTemplates, SqlUsedSignatures
from route_table import certificates

if TYPE_CHECKING:
    from gateway.bootstrap.node import Gateway


def dry_run(node: "Gateway", body: Mapping[str, Any]) -> JobPlan:
    """Return the plan for a job, from the body that would submit it."""
    scheduler = node.settings.node.scheduler
    trace = current_trace() or new_trace_id()
    spec = node.protocol.specified({**body, "job_id": f"job-{uuid4().hex}"}, scheduler, trace)
    return node.dry_run.plan(node.offers.expanded(spec))


_CONTAINER_PATHS = frozenset(
    [f"/v1/interconn/chan/{verb}" for verb in ("push", "pop", "peek", "release")]
    + ["/v1/platform/schedule/task/callback"]
)
OPEN_PER_MINUTE = 60  # requests from one address to paths that serve unknown nodes
# Limits for bodies of our own paths in bytes; paths that take a job or a description have higher ones.
MEDIUM = 1024**2
SMALL = 64 * 1024
# Wraps an application in middleware.
Layer = Callable[[ASGIApp], ASGIApp]


def listener_apps(node: "Gateway") -> dict[str, ASGIApp]:
    """Return the application of each listener, with its middleware."""
    chan = _channel(node)
    channel_of_peers = router.peer_router(chan)
    channel_of_containers = router.container_router(chan)
    verifier = Verifier(
        node.settings.node.id, node.clock, SqlUsedSignatures(node.store, node.clock).first
    )
    one_port = node.settings.listen.container is None
    callbacks = platform.container_router(
        node.participant.callback, node.limiters, node.run_tokens.id_of, by_address=not one_port
    )
    mounts = {
        "operator": _for_operators(node),
        "peer": [
            Mounted(channel_of_peers, None, bfia.ChannelRefusal),
            *_for_peers(node, verifier),
        ],
        "container": [
            Mounted(channel_of_containers, None, bfia.ChannelRefusal),
            *_bounded(node, callbacks),
        ],
    }
    node.endpoints = _api_routes(mounts)
    titles = {
        "operator": "operators",
        "peer": "peers",
        "container": "containers",
    }
    if one_port:
        titles["peer"] = "peers and containers"
        mounts["peer"] = [*mounts.pop("container"), *mounts["peer"]]
    checks: dict[str, list[Any]] = {
        "operator": [in_language],
        "peer": [
            requests.signed(verifier, node.peer_table.proof, node.limiters.rest),
            node.fate.signed(lambda request: requests.incoming(request).source, node.limiters),
        ],
        "container": [],
    }
    layers = _layers(node, chan)
    apps = {}
    for name, routers in mounts.items():
        app = create_app(titles[name], routers, documented=True, first=checks[name])
        served = _with_envelope(node, name, app)
        for layer in layers[name]:
            served = layer(served)
        apps[name] = served
    return apps


def _api_routes(mounts: Mapping[str, Sequence[Mounted]]) -> list[APIRoute]:
    routes = []
    for routers in mounts.values():
        for mounted in routers:
            routes += [route for route in mounted.router.routes if isinstance(route, APIRoute)]
    return routes


def _with_envelope(
    node: "Gateway",
    name: str,
    app: FastAPI,
) -> ASGIApp:
    """Return a listener's application with the standard's error responses and decoded bodies."""
    as_200 = node.peer_table.as_200
    elsewhere = node.fate.elsewhere
    words = None
    if name == "operator":
        session.mount(app)
    elif name == "peer":
        words = for_others
        # The check of signatures; as a dependency it would run only after the body was parsed.
        app.state.before_body = app.state.first[0]
    envelope.install(app, as_200, elsewhere, words)
    served = with_head(envelope.too_large_in_envelope(app, as_200, elsewhere))
    refused = partial(envelope.refused_body, as_200=as_200, elsewhere=elsewhere)
    return decoding_bodies(served, refused)


def _layers(node: "Gateway", chan: ChannelParts) -> dict[str, list[Layer]]:
    """Return the middleware of each listener, the innermost first; a request meets the last one first."""
    refusals = Refusals(node.audit.add, node.clock)
    audit_threads = CapacityLimiter(2)
    # Any layer further in may use the lookup of an unknown sender without waiting for the database.
    look_up: Layer = partial(
        with_lookup,
        is_unknown=node.peer_table.is_unknown,
        look_up=node.peer_table.look,
        limiter=CapacityLimiter(2),
    )
    note_refusals = partial(
        noting_refusals,
        refusals=refusals,
        claimed=_claimed,
        limiter=audit_threads,
    )
    no_browsers: Layer = partial(without_foreign, foreign=from_browser)

    peer = [
        *_inner_peer_layers(node, chan, refusals, note_refusals),
        # Before anything is read or done for a sender: proof of its identity.
        _identity_layer(node, refusals, audit_threads),
        look_up,
        no_browsers,
        noting_origin,  # of every request, for all notes further in
    ]
    operator: list[Layer] = [look_up, _guard(node)]
    if node.settings.auth.mode != "on":
        # Without tokens, only the address identifies an operator.
        operator.append(partial(without_foreign, foreign=from_elsewhere))
    operator.append(note_refusals)  # including refusals by the layers above
    return {
        "operator": operator,
        "peer": peer,
        "container": [look_up, no_browsers],
    }


def _inner_peer_layers(
    node: "Gateway",
    chan: ChannelParts,
    refusals: Refusals,
    note_refusals: Callable[..., ASGIApp],
) -> list[Layer]:
    """Return the layers of peers that need the sender's identity: quotas, relay, refusals, signatures."""
    settings = node.settings
    peer_table = node.peer_table

    @lru_cache(1024)
    def refusals_of(partner: str) -> Refusals:
        return Refusals(node.audit.add, node.clock)

    def quota_name(scope: Scope) -> str | None:
        """Return the name for a request's quota. Without a certificate, a partner's id proves nothing."""
        if _of_container(scope):
            return None
        sender = _claimed(scope)
        if not sender:
            ends = read_ends(scope["headers"])
            sender = ends[0] if ends else ""
        if not peer_table.accepts(sender):
            sender = ""
        if sender and shown(scope):
            return sender
        return f"{sender} at {address_of(scope)}"

    def open_quota_name(scope: Scope) -> str | None:
        return address_of(scope) if scope["path"] in requests.OPEN else None

    partners = Partners(
        peer_table.accepts, refusals_of, unproven=Refusals(node.audit.add, node.clock)
    )
    return [
        # Signs responses of paths; refusals by layers further out prove nothing and are not signed.
        partial(
            requests.signing_answers,
            key=node.protocol.key,
            entry_of=peer_table.proof,
            limiter=node.limiters.rest,
        ),
        # Records refusals by the paths; the relay and the check of identity record their own.
        partial(note_refusals, partners=partners),
        # Relays requests for other nodes, which need an identity and count, but reach no path of this node.
        partial(
            relay.Relay,
            node=settings.node.id,
            table=lambda: node.routes.table,
            courier=node.courier,
            limits=(settings.limits.body_bytes, chan.max_body),
            refused=refusals.relay,
        ),
        partial(
            with_quota, per_minute=settings.limits.partner_requests_per_minute, sender=quota_name
        ),
        partial(with_quota, per_minute=OPEN_PER_MINUTE, sender=open_quota_name),
    ]


def _identity_layer(
    node: "Gateway",
    refusals: Refusals,
    audit_threads: CapacityLimiter,
) -> Layer:
    return partial(
        with_identity,
        identity=_identity(node),
        claimed=_claimed_nodes,
        unknown=partial(known_first, accepts=node.peer_table.accepts, here=node.settings.node.id),
        denied=partial(envelope.denial, elsewhere=node.fate.elsewhere),
        noted=refusals.denied,
        limiter=audit_threads,
    )


def _guard(node: "Gateway") -> Layer:
    auth = node.settings.auth
    access = None
    if auth.mode == "on":
        access = Access(node.tokens.find, node.clock, auth.token)
    return partial(
        Guard,
        access=access,
        record=node.audit.add,
        clock=node.clock,
        limiter=CapacityLimiter(4),
        cookie=cookie_name(node.settings.node.id),
    )


def _channel(node: "Gateway") -> ChannelParts:
    settings = node.settings
    return ChannelParts(
        node=settings.node.id,
        institution=_institution(node),
        broker=node.broker,
        run_of=node.sessions.run_of,
        own_session=node.sessions.own_session,
        route_of=node.peer_table.route_of,
        known_sender=node.peer_table.accepts,
        session_open=node.sessions.is_open,
        max_body=settings.limits.message_bytes * 4 // 3 + 65536,
        courier=node.courier,
        elsewhere=lambda session: node.peer_table.route_here(node.channel_elsewhere(session)),
        may_bring=partial(_may_bring, node),
    )


def _may_bring(
    node: "Gateway",
    sender: str,
    session: str,
) -> bool:
    takes_part = node.sessions.has_party(session, sender)
    return node.fate.may_bring(sender, takes_part, has_route=node.peer_table.knows(sender))


def _institution(node: "Gateway") -> str:
    return node.settings.node.institution or node.settings.node.id


def _bounded(
    node: "Gateway",
    *routers: APIRouter,
    size: int | None = None,
) -> list[Mounted]:
    """Mount routers of the standard; ``size``: bytes of a body, never more than limits.body_bytes."""
    max_body = node.settings.limits.body_bytes
    if size is not None:
        max_body = min(size, max_body)
    return [Mounted(api_router, max_body, bfia.Refusal) for api_router in routers]


def _for_peers(node: "Gateway", verifier: Verifier) -> list[Mounted]:
    """Return the routers for peers except the channel's; the most frequent first, as paths are tried in order."""
    node_id = node.settings.node.id
    institution = _institution(node)
    table = node.peer_table
    stored = node.applications
    peers = Peers(
        table.knows,
        table.profile_of,
        node.limiters,
        table.takes_part,
        table.check_part,
        min(requests.IDS_BYTES, node.settings.limits.body_bytes),
    )
    policy = approval_policy(node.settings)
    audits = JobAudits(node.context, node.admission, node.coordinator, node.executor, policy)

    def approve(job_id: str, by: str, reason: str) -> object:
        return node.participant.decide(job_id, True, by, reason)

    card_router = management.node_router(node.card, stored, peers, verifier, node.clock)
    audit_router = management.audit_router(node.card, stored, peers, node.clock)
    offers_router = management.offers_router(node.offers, institution, stored, peers)
    return [
        *_bounded(
            node,
            interconn.router(node_id, node.coordinator, node.participant, peers),
            interconn.audit_router(audits, peers),
            interconn.hello_router(node_id, institution, node.protocol.peer, peers),
            interconn.outputs_router(node.outputs, peers),
        ),
        *_bounded(node, card_router, size=SMALL),
        *_bounded(node, audit_router, size=MEDIUM),
        *_bounded(node, offers_router, size=SMALL),
        *node.fate.for_peers(
            node.coordinator,
            node.participant,
            node.limiters,
            table,
            approve,
        ),
    ]


def _for_operators(node: "Gateway") -> list[Mounted]:
    settings, limiters = node.settings, node.limiters
    body, upload, ours = settings.limits.body_bytes, settings.data.max_upload_bytes, [only_known]
    uploads = data.Uploads(node.datasets, upload)
    operators = platform.operator_router(
        node.coordinator,
        settings.node.id,
        settings.node.scheduler,
        node.peer_table.profile_of,
        limiters,
        node.offers.expanded,
        min(requests.IDS_BYTES, body),
    )
    open_streams = streams.Streams(node.leaving)
    sessions = session.Sessions(settings, node.tokens, node.audit.add, node.clock)
    small = [
        streams.logs_router(node.run_logs, open_streams),
        streams.events_router(node.feed, node.webhooks, open_streams),
        admin_node.router(node, node.cleaner, node.drain),
        admin_node.health_router(node),
        models.router(node.models, node, limiters.peers),
        datasets.router(
            node.datasets, node.sharing, node.storage, node.clock, lambda: node.routes.table.routes
        ),
        outputs.router(node.store, node.storage, node.outputs, limiters),
        jobs.router(node, node.deleting, limiters.peers),
        about.router(node),
        session.router(sessions),
        routes.router(
            settings.node.id,
            node.routes,
            node.protocol.try_route,
            limiters.peers,
            node.fate.has_to_sign,
        ),
        applications.router(
            node.applications,
            partial(_compose_application, node),
            partial(_keys, node),
            node.management.fetch_offers,
            limiters.peers,
        ),
    ]
    mounts = [
        *_bounded(node, operators),
        *_bounded(node, platform.log_router(node.run_logs, limiters), size=SMALL),
        Mounted(
            platform.provider_router(node.providers, limiters),
            body,
            bfia.OwnRefusal,
        ),
        Mounted(data.router(uploads), None, bfia.OwnRefusal),
        Mounted(providers.router(node.providers), body, first=ours),
        Mounted(
            jobs.dry_run_router(partial(dry_run, node), A_JOB, limiters, JsonRoute),
            body,
            first=ours,
        ),
        Mounted(jobs.templates_router(SqlTemplates(node.store), node.clock), body, first=ours),
        Mounted(models.import_router(node.models, node.storage, upload), None, first=ours),
        *(Mounted(router, SMALL, first=ours) for router in small),
    ]
    if settings.auth.oidc is not None:
        from gateway.console.oidc import Provider

        provider = Provider(settings.auth.oidc, node.clock)
        mounts.append(Mounted(session.oidc_router(sessions, provider), SMALL))
    return mounts


def grpc(node: "Gateway") -> dict[str, Grpc]:
    """Return the gRPC server of each listener for programs."""
    max_message = node.settings.limits.message_bytes + 65536
    return {name: Grpc(app, max_message) for name, app in node.apps.items() if name != "operator"}


def _compose_application(node: "Gateway", body: applications.Applying) -> Application:
    contract_id = ""
    if body.kind is not Kind.CONTRACT:
        contract = node.applications.contract_with(body.partner)
        if contract is not None:
            contract_id = contract.id
    draft = client.Draft(
        kind=body.kind,
        partner=body.partner,
        subject=body.subject,
        fields=body.fields,
        expires_at=body.expires_at,
        jobs=body.jobs,
        url=body.url,
        address=body.address,
        contract_id=contract_id,
        signing=body.signing or _signing(node, body.partner),
    )
    return client.compose_application(node.card, draft, node.clock())


def _signing(node: "Gateway", partner: NodeId) -> str:
    """Return the requirement for a partner to sign its response to a contract application, as its route says."""
    route = node.routes.table.routes.get(partner)
    if route is None:
        return "required"
    return route.signing or "required"


def _keys(node: "Gateway", application: Application) -> str:
    return client.key_ids(application, node.peer_table.keys_of(application.partner))


def _identity(node: "Gateway") -> PeerIdentity:
    tls = node.settings.listen.peer.tls
    pins = []
    if tls is not None:
        own_certificate = certificates.certificates(str(tls.certificate))[0]
        pins.append(certificates.pin(own_certificate))
    identity = PeerIdentity(
        node.settings.node.id,
        table=lambda: node.routes.table,
        former=node.peer_table.reached,
        handed_on=_is_handed_on,
        own=frozenset(pins),
        open=requests.OPEN,
    )
    if tls is None or tls.client_ca is None or tls.revoked is None:
        return identity
    revocation_list = certificates.RevocationList(str(tls.revoked), str(tls.client_ca))
    return replace(identity, revoked=revocation_list.revokes)


def _is_handed_on(scope: Scope) -> bool:
    return any(name == HANDED_ON.encode() for name, _ in scope["headers"])


def _claimed(scope: Scope) -> str:
    return requests.incoming(Request(scope)).source


def _claimed_nodes(scope: Scope) -> frozenset[str]:
    if _of_container(scope):
        return frozenset()
    return requests.claimed(scope["headers"])


def _of_container(scope: Scope) -> bool:
    """Return whether a request is for containers' paths, which run tokens guard, also in one-port mode."""
    return scope["path"] in _CONTAINER_PATHS
