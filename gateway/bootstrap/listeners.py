"""What each listener answers: peers, containers, operators. A path on the wrong listener is not there."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
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
from adapter.bfia.management import client as management_client
from adapter.bfia.management import router as management
from adapter.bfia.requests import Peers, known_first
from adapter.body import JsonRoute
from adapter.fate import envelope as fate_envelope
from adapter.fate import tools as fate_tools
from adapter.fate.envelope import Envelope
from adapter.fate.signing import ClientSignatures
from adapter.fate.tools.outputs import upload_router
from gateway.admin import about, datasets, jobs, models, outputs, providers, routes, streams
from gateway.admin import applications as admin_applications
from gateway.admin import node as admin_node
from gateway.admin.deps import in_language, only_known
from gateway.auth import Access
from gateway.bootstrap.parts import approval_policy
from gateway.console import session
from gateway.domain.applications import Application, Kind
from gateway.domain.datasets import Dataset
from gateway.domain.dry_run import JobPlan
from gateway.domain.redaction import for_others
from gateway.http.app import Mounted, create_app, from_browser, from_elsewhere, without_foreign
from gateway.http.guard import Guard, Refusals, cookie_name, noting_refusals
from gateway.http.peers import PeerIdentity, noting_origin, shown, with_identity, with_lookup, with_quota
from gateway.identity.messages import Verifier
from gateway.jobs.participant import JobAudits
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


def mounted(node: "Gateway", uploads: data.Uploads) -> list[Mounted]:
    """Return the routers for the operators' listener: none while FATE's protocol is switched off."""
    if not node.settings.fate.enabled:
        return []
    body = node.settings.limits.body_bytes
    return [
        *(Mounted(router, body, Envelope) for router in fate_tools.routers(node)),
        Mounted(upload_router(_Uploads(uploads)), None, Envelope),
        Mounted(fate_envelope.router({**fate_tools.NOT_FOR_TOOLS, **fate_envelope.FOR_WORKERS}), body),
    ]


class _Uploads:
    """The uploads that this node has anyhow, for FATE's paths."""

    def __init__(self, uploads: data.Uploads) -> None:
        self._uploads = uploads

    async def from_path(self, document: Mapping[str, Any]) -> Dataset:
        return await self._uploads.from_path(_NOBODY, document)

    async def from_form(self, request: Request, change: Callable[[dict[str, str]], dict[str, str]]) -> Dataset:
        return await self._uploads.from_form(requests.incoming(request), request, change)


_NOBODY = requests.Incoming("", "", "")


_CONTAINER_PATHS = frozenset(
    [f"/v1/interconn/chan/{verb}" for verb in ("push", "pop", "peek", "release")]
    + ["/v1/platform/schedule/task/callback"]
)
OPEN_PER_MINUTE = 60
"""requests from one address at paths that serve unknown nodes"""
MEDIUM = 1024**2
SMALL = 64 * 1024
"""bytes of a body of our own paths, read on the event loop; those that take a job or a description take more"""


def applications(node: "Gateway") -> dict[str, ASGIApp]:
    """Return what each listener answers."""
    settings = node.settings
    limiters = node.limiters
    body = settings.limits.body_bytes
    peers = Peers(node.peer_table.knows, node.peer_table.profile_of, limiters)
    institution = settings.node.institution or settings.node.id
    chan = router.ChannelParts(
        node=settings.node.id,
        institution=institution,
        broker=node.broker,
        run_of=node.sessions.run_of,
        route_of=node.peer_table.route_of,
        known_sender=node.peer_table.knows,
        session_open=node.sessions.is_open,
        max_body=settings.limits.message_bytes * 4 // 3 + 65536,
        courier=node.courier,
        elsewhere=lambda session: node.peer_table.route_here(node.channel_elsewhere(session)),
        may_bring=lambda sender, session: node.fate.may_bring(sender, node.sessions.has_party(session, sender)),
    )
    of_peers, of_containers = router.peer_router(chan), router.container_router(chan)
    audits = JobAudits(node.context, node.admission, node.coordinator, node.executor, approval_policy(settings))

    def bounded(one: APIRouter, size: int = body) -> Mounted:
        return Mounted(one, size, bfia.Refusal)

    for_peers_here = [  # the most frequent first: paths are tried in this order
        Mounted(of_peers, None, bfia.ChannelRefusal),
        bounded(interconn.router(settings.node.id, node.coordinator, node.participant, peers)),
        bounded(interconn.audit_router(audits, peers)),
        bounded(interconn.hello_router(settings.node.id, institution, node.protocol.peer, peers)),
        bounded(interconn.outputs_router(node.outputs, peers)),
        bounded(management.node_router(node.card, node.applications, peers, node.clock), SMALL),
        bounded(management.audit_router(node.card, node.applications, peers, node.clock), MEDIUM),
        bounded(management.offers_router(node.offers, institution, node.applications, peers), SMALL),
    ]
    by_address = settings.listen.container is not None
    callbacks = platform.container_router(
        node.participant.callback, limiters, node.run_tokens.id_of, by_address=by_address
    )
    for_containers = [Mounted(of_containers, None, bfia.ChannelRefusal), bounded(callbacks)]
    uploads = data.Uploads(node.datasets, settings.data.max_upload_bytes)
    ours = [only_known]
    operators = platform.operator_router(
        node.coordinator,
        settings.node.id,
        settings.node.scheduler,
        node.peer_table.profile_of,
        limiters,
        node.offers.expanded,
    )
    for_operators = [
        bounded(operators),
        bounded(platform.log_router(node.run_logs, limiters)),
        Mounted(platform.provider_router(node.providers, limiters), body, bfia.OwnRefusal),
        Mounted(data.router(uploads), None, bfia.OwnRefusal),
        Mounted(providers.router(node.providers), body, first=ours),
        Mounted(jobs.dry_run_router(partial(dry_run, node), A_JOB, limiters, JsonRoute), body, first=ours),
        Mounted(jobs.templates_router(SqlTemplates(node.store), node.clock), body, first=ours),
        Mounted(models.import_router(node.models, node.storage, settings.data.max_upload_bytes), None, first=ours),
    ]
    sessions = session.Sessions(settings, node.tokens, node.audit.add, node.clock)
    small = (
        streams.logs_router(node.run_logs, node.leaving),
        streams.events_router(settings.node.id, node.feed, node.webhooks, node.leaving),
        jobs.deletion_router(node, node.deleting, limiters.peers),
        jobs.archive_router(node),
        admin_node.router(node, node.cleaner, node.drain),
        admin_node.health_router(node),
        models.router(node.models),
        models.prediction_router(node, node.models, limiters.peers),
        datasets.router(node.datasets, node.sharing, node.storage, node.clock, lambda: node.routes.table.routes),
        outputs.metadata_router(node.outputs, limiters),
        outputs.router(node.store, node.storage),
        jobs.router(node),
        about.router(node),
        session.router(sessions),
        routes.router(settings.node.id, node.routes, node.protocol.try_route, limiters.peers),
        admin_applications.router(node.applications, _composing(node), node.clock, limiters.peers),
    )
    for_operators += [Mounted(router, SMALL, first=ours) for router in small]
    if settings.auth.oidc is not None:
        from gateway.console.oidc import Provider

        for_operators.append(
            Mounted(session.oidc_router(sessions, Provider(settings.auth.oidc, node.clock)), SMALL)
        )
    for_peers_here += node.fate.for_peers(
        node.coordinator,
        node.participant,
        limiters,
        node.peer_table.knows,
        lambda job_id, by, words: node.participant.decide(job_id, True, by, words),
    )
    for_operators += mounted(node, uploads)
    all_ = [*for_operators, *for_peers_here, *for_containers]
    node.endpoints = [route for one in all_ for route in one.router.routes if isinstance(route, APIRoute)]
    mounts = {"operator": for_operators}
    apps: dict[str, Any] = {
        "operator": create_app("operators", for_operators, documented=True, first=[in_language])
    }
    session.mount(apps["operator"])
    verifier = Verifier(settings.node.id, node.clock, SqlUsedSignatures(node.store, node.clock).first)
    signed = [
        requests.signed(verifier, node.peer_table.entry, limiters.rest),
        node.fate.signed(lambda request: requests.incoming(request).source, limiters),
    ]
    if settings.listen.container is None:
        mounts["peer"] = [*for_containers, *for_peers_here]
        apps["peer"] = create_app("peers and containers", mounts["peer"], documented=True, first=signed)
    else:
        mounts |= {"peer": for_peers_here, "container": for_containers}
        apps["peer"] = create_app("peers", for_peers_here, documented=True, first=signed)
        apps["container"] = create_app("containers", for_containers, documented=True)
    apps["peer"].state.before_body = signed[0]  # a dependency comes after the body was parsed
    for name, app in apps.items():
        outside = for_others if name == "peer" else None
        envelope.install(app, node.peer_table.as_200, node.fate.elsewhere, outside)
        usual = envelope.too_large_in_envelope(app, node.peer_table.as_200, node.fate.elsewhere)
        control = (one.router for one in mounts[name] if one.max_body == body and not one.first)
        apps[name] = ahead(usual, app, control, body)
    apps["peer"] = router.ahead(apps["peer"], of_peers)
    name = "peer" if settings.listen.container is None else "container"
    apps[name] = router.ahead(apps[name], of_containers)
    apps["peer"] = requests.signing_answers(apps["peer"], node.protocol.key, node.peer_table.entry, limiters.rest)
    refusals = Refusals(node.audit.add, node.clock)
    noting = CapacityLimiter(2)
    partners = (node.peer_table.knows, Refusals(node.audit.add, node.clock), Refusals(node.audit.add, node.clock))
    apps["peer"] = noting_refusals(apps["peer"], refusals, _claimed, noting, partners)  # a relay notes its own
    apps["peer"] = relay.Relay(
        apps["peer"],
        settings.node.id,
        lambda: node.routes.table,
        node.courier,
        (body, chan.max_body),
        refusals.relay,
    )
    peer_table = node.peer_table

    def counted(scope: Scope) -> str | None:
        """Return whose quota a request counts against: without a certificate anybody can send a partner's id."""
        if _of_container(scope):
            return None
        name = _claimed(scope) or (read_ends(scope["headers"]) or ("",))[0]
        name = name if peer_table.knows(name) else ""
        return name if name and shown(scope) else f"{name} at {_address(scope)}"

    apps["peer"] = with_quota(apps["peer"], settings.limits.partner_requests_per_minute, counted)
    open_to_all = lambda scope: _address(scope) if scope["path"] in requests.OPEN else None  # noqa: E731
    apps["peer"] = with_quota(apps["peer"], OPEN_PER_MINUTE, open_to_all)
    apps["peer"] = with_identity(
        apps["peer"],
        _identity(node),
        lambda scope: frozenset() if _of_container(scope) else requests.claimed(scope["headers"]),
        lambda scope: known_first(scope, peer_table.knows, settings.node.id),
        lambda scope, error: envelope.denial(scope, error, node.fate.elsewhere),
        refusals.denied,
        noting,
    )
    asking = CapacityLimiter(2)
    for name, app in apps.items():
        apps[name] = with_lookup(app, peer_table.is_unknown, peer_table.look, asking)
    apps |= {name: without_foreign(app, from_browser) for name, app in apps.items() if name != "operator"}
    apps["peer"] = noting_origin(apps["peer"])
    guarded = settings.auth.mode == "on"
    access = Access(node.tokens.find, node.clock, settings.auth.token) if guarded else None
    fate = settings.fate
    signer = ClientSignatures(fate.clients if fate.enabled else {}, node.clock, node.fate.used).identify
    apps["operator"] = Guard(
        apps["operator"],
        access,
        node.audit.add,
        node.clock,
        CapacityLimiter(4),
        signer,
        node.fate.elsewhere,
        cookie_name(settings.node.id),
    )
    if not guarded:
        apps["operator"] = without_foreign(apps["operator"], from_elsewhere)
    apps["operator"] = noting_refusals(apps["operator"], refusals, _claimed, noting)
    return apps


def grpc(node: "Gateway") -> dict[str, Grpc]:
    """Return what serves gRPC beside the listeners' applications, and by them."""
    most = node.settings.limits.message_bytes + 65536
    return {name: Grpc(app, most) for name, app in node.apps.items() if name != "operator"}


def _composing(node: "Gateway") -> admin_applications.Composing:
    def compose(body: admin_applications.Applying, now: datetime) -> Application:
        contract = None if body.kind is Kind.CONTRACT else node.applications.contract_with(body.partner)
        return management_client.composed(
            node.card,
            body.kind,
            body.partner,
            body.subject,
            body.fields,
            now,
            body.expires_at,
            body.jobs,
            body.url,
            body.address,
            contract.id if contract else "",
        )

    return admin_applications.Composing(compose, management_client.key_id, node.management.listed)


def _identity(node: "Gateway") -> PeerIdentity:
    tls = node.settings.listen.peer.tls
    revokes: Callable[[Any], bool] = lambda _: False  # noqa: E731
    if tls is not None and tls.client_ca is not None and tls.revoked is not None:
        revokes = certificates.RevocationList(str(tls.revoked), str(tls.client_ca)).revokes
    pins = [] if tls is None else [certificates.pin(certificates.certificates(str(tls.certificate))[0])]
    return PeerIdentity(
        node.settings.node.id,
        lambda: node.routes.table,
        node.peer_table.former,
        revokes,
        lambda scope: any(name == router.HANDED_ON.encode() for name, _ in scope["headers"]),
        frozenset(pins),
        requests.OPEN,
    )


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _claimed(scope: Scope) -> str:
    return requests.incoming(Request(scope)).source


def _of_container(scope: Scope) -> bool:
    """Tell whether a request is for a path of containers, which the run's token guards, also in one-port mode."""
    return scope["path"] in _CONTAINER_PATHS
