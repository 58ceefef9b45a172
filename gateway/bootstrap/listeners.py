"""What each listener answers: peers, containers, operators. A path on the wrong listener is not there."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from anyio import CapacityLimiter
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Scope

from adapter.bfia import data, envelope, interconn, platform, relay, requests
from adapter.bfia import wire as bfia
from adapter.bfia.ahead import ahead
from adapter.bfia.channel import router
from adapter.bfia.channel.codec import read_ends
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
    """Return what would happen to the job of a body that submits it."""
    scheduler, trace = node.settings.node.scheduler, current_trace() or new_trace_id()
    spec = node.protocol.specified({**body, "job_id": f"job-{uuid4().hex}"}, scheduler, trace)
    return node.dry_run.plan(node.offers.expanded(spec))


_CONTAINER_PATHS = frozenset(
    [f"/v1/interconn/chan/{verb}" for verb in ("push", "pop", "peek", "release")]
    + ["/v1/platform/schedule/task/callback"]
)
OPEN_PER_MINUTE = 60
"""requests from one address at paths that serve unknown nodes"""
MEDIUM = 1024**2
SMALL = 64 * 1024
"""bytes of a body of our own paths, read on the event loop; those that take a job or a description take more"""
Layer = Callable[[ASGIApp], ASGIApp]
"""what puts something around an application"""


def listener_apps(node: "Gateway") -> dict[str, ASGIApp]:
    """Return what each listener answers: its paths, and around them the layers that a request passes before."""
    chan = _channel(node)
    of_peers, of_containers = router.peer_router(chan), router.container_router(chan)
    one_port, taken = node.settings.listen.container is None, node.participant.callback
    callbacks = platform.container_router(
        taken, node.limiters, node.run_tokens.id_of, by_address=not one_port
    )
    verifier = Verifier(
        node.settings.node.id, node.clock, SqlUsedSignatures(node.store, node.clock).first
    )
    mounts = {
        "operator": _for_operators(node),
        "peer": [Mounted(of_peers, None, bfia.ChannelRefusal), *_for_peers(node, verifier)],
        "container": [
            Mounted(of_containers, None, bfia.ChannelRefusal),
            *_bounded(node, callbacks, ahead=True),
        ],
    }
    all_ = [one for some in mounts.values() for one in some]
    node.endpoints = [
        route for one in all_ for route in one.router.routes if isinstance(route, APIRoute)
    ]
    titles = {
        "operator": "operators",
        "peer": "peers",
        "container": "containers",
    }
    channel = {
        "operator": (),
        "peer": (of_peers,),
        "container": (of_containers,),
    }
    if one_port:
        titles["peer"], channel["peer"] = "peers and containers", (of_peers, of_containers)
        mounts["peer"] = [*mounts.pop("container"), *mounts["peer"]]
    signed = [
        requests.signed(verifier, node.peer_table.proof, node.limiters.rest),
        node.fate.signed(lambda request: requests.incoming(request).source, node.limiters),
    ]
    first: dict[str, list[Any]] = {
        "operator": [in_language],
        "peer": signed,
        "container": [],
    }
    body, as_200, elsewhere = (
        node.settings.limits.body_bytes,
        node.peer_table.as_200,
        node.fate.elsewhere,
    )
    layers, apps = _layers(node, chan), {}
    for name, routers in mounts.items():
        app = create_app(titles[name], routers, documented=True, first=first[name])
        if name == "operator":
            session.mount(app)
        elif name == "peer":
            app.state.before_body = signed[0]  # a dependency comes after the body was parsed
        envelope.install(app, as_200, elsewhere, for_others if name == "peer" else None)
        usual = envelope.too_large_in_envelope(app, as_200, elsewhere)
        control = (one.router for one in routers if one.ahead)
        served = router.ahead(ahead(with_head(usual), app, control, body), *channel[name])
        apps[name] = decoding_bodies(
            served, partial(envelope.refused_body, as_200=as_200, elsewhere=elsewhere)
        )
        for layer in layers[name]:
            apps[name] = layer(apps[name])
    return apps


def _layers(node: "Gateway", chan: router.ChannelParts) -> dict[str, list[Layer]]:
    """Return what stands around each listener's paths, the innermost first; a request meets the last first."""
    settings, here, peer_table = node.settings, node.settings.node.id, node.peer_table
    largest = (settings.limits.body_bytes, chan.max_body)
    refusals = Refusals(node.audit.add, node.clock)
    of_partner = lru_cache(1024)(lambda _: Refusals(node.audit.add, node.clock))
    partners = Partners(peer_table.accepts, of_partner, Refusals(node.audit.add, node.clock))
    noting, asking = CapacityLimiter(2), CapacityLimiter(2)

    def counted(scope: Scope) -> str | None:
        """Return whose quota a request counts against: without a certificate anybody can send a partner's id."""
        if _of_container(scope):
            return None
        name = _claimed(scope) or (read_ends(scope["headers"]) or ("",))[0]
        name = name if peer_table.accepts(name) else ""
        return name if name and shown(scope) else f"{name} at {address_of(scope)}"

    def open_to_all(scope: Scope) -> str | None:
        return address_of(scope) if scope["path"] in requests.OPEN else None

    # Everything further in may ask who an unknown sender is, without waiting for the database.
    looked_up = partial(
        with_lookup,
        is_unknown=peer_table.is_unknown,
        look_up=peer_table.look,
        limiter=asking,
    )
    no_browser = partial(without_foreign, foreign=from_browser)
    noting_own = partial(
        noting_refusals,
        refusals=refusals,
        claimed=_claimed,
        limiter=noting,
    )
    peer: list[Layer] = [
        # Signs what the paths answer; what is refused further out proves nothing and is not signed.
        partial(
            requests.signing_answers,
            key=node.protocol.key,
            entry_of=peer_table.proof,
            limiter=node.limiters.rest,
        ),
        # Notes what the paths refuse; a relay and the check of identity note their own refusals.
        partial(noting_own, partners=partners),
        # Hands on what is for another node: it needs an identity and counts, but meets no path of this node.
        partial(
            relay.Relay,
            node=here,
            table=lambda: node.routes.table,
            courier=node.courier,
            limits=largest,
            refused=refusals.relay,
        ),
        # Counts by sender, so behind the check of who that is.
        partial(with_quota, per_minute=settings.limits.partner_requests_per_minute, sender=counted),
        partial(with_quota, per_minute=OPEN_PER_MINUTE, sender=open_to_all),
        # Before anything is read or done for a sender: it is who it claims to be.
        partial(
            with_identity,
            identity=_identity(node),
            claimed=lambda scope: (
                frozenset() if _of_container(scope) else requests.claimed(scope["headers"])
            ),
            unknown=partial(known_first, accepts=peer_table.accepts, here=here),
            denied=partial(envelope.denial, elsewhere=node.fate.elsewhere),
            noted=refusals.denied,
            limiter=noting,
        ),
        looked_up,
        no_browser,
        noting_origin,  # of every request, for whatever is noted further in
    ]
    guarded = settings.auth.mode == "on"
    access = Access(node.tokens.find, node.clock, settings.auth.token) if guarded else None
    operator: list[Layer] = [
        looked_up,
        partial(
            Guard,
            access=access,
            record=node.audit.add,
            clock=node.clock,
            limiter=CapacityLimiter(4),
            cookie=cookie_name(here),
        ),
        # Without tokens nothing but the address tells who may.
        *([] if guarded else [partial(without_foreign, foreign=from_elsewhere)]),
        noting_own,  # those of the layers above, too
    ]
    return {
        "operator": operator,
        "peer": peer,
        "container": [looked_up, no_browser],
    }


def _channel(node: "Gateway") -> router.ChannelParts:
    settings = node.settings
    return router.ChannelParts(
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
    ahead: bool = False,
) -> list[Mounted]:
    """Mount routers of the standard's paths; ``size``: bytes of a body, never more than limits.body_bytes."""
    max_body = node.settings.limits.body_bytes
    if size is not None:
        max_body = min(size, max_body)
    return [Mounted(one, max_body, bfia.Refusal, ahead=ahead) for one in routers]


def _for_peers(node: "Gateway", verifier: Verifier) -> list[Mounted]:
    """Return the routers for peers but the channel's, the most frequent first: paths are tried in this order."""
    here, institution, kept = node.settings.node.id, _institution(node), node.applications
    table = node.peer_table
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
    return [
        *_bounded(
            node,
            interconn.router(here, node.coordinator, node.participant, peers),
            interconn.audit_router(audits, peers),
            interconn.hello_router(here, institution, node.protocol.peer, peers),
            interconn.outputs_router(node.outputs, peers),
            ahead=True,
        ),
        *_bounded(
            node, management.node_router(node.card, kept, peers, verifier, node.clock), size=SMALL
        ),
        *_bounded(node, management.audit_router(node.card, kept, peers, node.clock), size=MEDIUM),
        *_bounded(
            node, management.offers_router(node.offers, institution, kept, peers), size=SMALL
        ),
        *node.fate.for_peers(
            node.coordinator,
            node.participant,
            node.limiters,
            table,
            lambda job_id, by, words: node.participant.decide(job_id, True, by, words),
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
            partial(_composed, node),
            partial(_keys, node),
            node.management.listed,
            limiters.peers,
        ),
    ]
    mounts = [
        *_bounded(node, operators, ahead=True),
        *_bounded(node, platform.log_router(node.run_logs, limiters), size=SMALL, ahead=True),
        Mounted(
            platform.provider_router(node.providers, limiters),
            body,
            bfia.OwnRefusal,
            ahead=True,
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
    """Return what serves gRPC beside the listeners' applications, and by them."""
    most = node.settings.limits.message_bytes + 65536
    return {name: Grpc(app, most) for name, app in node.apps.items() if name != "operator"}


def _composed(node: "Gateway", body: applications.Applying) -> Application:
    contract = None if body.kind is Kind.CONTRACT else node.applications.contract_with(body.partner)
    return client.composed(
        node.card,
        body.kind,
        body.partner,
        body.subject,
        body.fields,
        node.clock(),
        body.expires_at,
        body.jobs,
        body.url,
        body.address,
        contract.id if contract else "",
        body.signing or _signing(node, body.partner),
    )


def _signing(node: "Gateway", partner: NodeId) -> str:
    """Return whether a partner has to sign its answer to an application for a contract, as its route says."""
    route = node.routes.table.routes.get(partner)
    return (route.signing if route is not None else None) or "required"


def _keys(node: "Gateway", known: Application) -> str:
    route = node.routes.table.routes.get(known.partner)
    return client.key_ids(known, route.keys if route is not None else ())


def _identity(node: "Gateway") -> PeerIdentity:
    tls = node.settings.listen.peer.tls
    revokes: Callable[[Any], bool] = lambda _: False  # noqa: E731
    if tls is not None and tls.client_ca is not None and tls.revoked is not None:
        revokes = certificates.RevocationList(str(tls.revoked), str(tls.client_ca)).revokes
    pins = (
        []
        if tls is None
        else [certificates.pin(certificates.certificates(str(tls.certificate))[0])]
    )
    return PeerIdentity(
        node.settings.node.id,
        lambda: node.routes.table,
        node.peer_table.reached,
        revokes,
        lambda scope: any(name == router.HANDED_ON.encode() for name, _ in scope["headers"]),
        frozenset(pins),
        requests.OPEN,
    )


def _claimed(scope: Scope) -> str:
    return requests.incoming(Request(scope)).source


def _of_container(scope: Scope) -> bool:
    """Tell whether a request is for a path of containers, which the run's token guards, also in one-port mode."""
    return scope["path"] in _CONTAINER_PATHS
