"""The application of each listener: peers, containers, operators.

None serves the paths of another one, except that containers without a listener of their own use the
one for peers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from adapter.bfia import envelope, requests
from adapter.bfia.channel.grpc_server import GrpcServer
from adapter.bfia.control_sealing import RequestOpener
from gateway.admin.deps import set_language
from gateway.bootstrap.layers import LayerServices, middleware
from gateway.bootstrap.operator_routers import operator_mounts, provide_services
from gateway.bootstrap.peer_routers import channel_parts, container_mounts, peer_mounts
from gateway.bootstrap.peer_services import PeerServices
from gateway.bootstrap.services import Services
from gateway.console import session
from gateway.domain.redaction import for_others
from gateway.http import documents
from gateway.http.app import Mounted, create_app, with_head
from gateway.http.encoded_bodies import decoding_bodies
from gateway.identity.signatures import Verifier
from gateway.runtime.trials import Step
from gateway.store.repositories import SqlUsedSignatures

GRPC_OVERHEAD = 65536  # bytes that gRPC may add to a message


@dataclass(frozen=True)
class Listeners:
    """The application of each listener, with its middleware, and the endpoints of all listeners."""

    apps: Mapping[str, ASGIApp]
    endpoints: Sequence[APIRoute]


def build_listeners(
    services: Services,
    leaving: Event,
    doctor: Callable[[], Sequence[Step]],
) -> Listeners:
    """Return the applications of the listeners.

    - ``leaving`` is set when the process stops serving
    - ``doctor`` checks everything that the node needs
    """
    foundation = services.foundation
    verifier = Verifier(
        foundation.settings.node.id,
        foundation.clock,
        first_use=SqlUsedSignatures(foundation.store, foundation.clock).first,
    )
    channel = channel_parts(services)
    mounts = {
        "operator": operator_mounts(services),
        "peer": peer_mounts(services, verifier, channel),
        "container": container_mounts(services, channel),
    }
    endpoints = _api_routes(mounts)
    titles = {
        "operator": "operators",
        "peer": "peers",
        "container": "containers",
    }
    # Without a listener of their own, containers use the one for peers.
    if foundation.settings.listen.container is None:
        titles["peer"] = "peers and containers"
        mounts["peer"] = [*mounts.pop("container"), *mounts["peer"]]
    checks = _checks(services, verifier)
    layers = middleware(
        LayerServices(
            foundation,
            services.registries,
            services.peers,
            largest_message=channel.max_body,
        )
    )
    apps = {}
    for name, routers in mounts.items():
        app = create_app(
            titles[name],
            routers,
            documented=True,
            checks=checks[name],
        )
        if name == "operator":
            provide_services(app, services, endpoints, leaving, doctor)
            session.mount(app)
            documents.mount(app)
        served = _with_envelope(services.peers, name, app)
        for layer in layers[name]:
            served = layer(served)
        apps[name] = served
    return Listeners(apps, endpoints)


def grpc_servers(listeners: Listeners, message_bytes: int) -> dict[str, GrpcServer]:
    """Return the gRPC server of each listener for programs: all listeners but the operators'.

    ``message_bytes`` is the limit of a channel message.
    """
    max_message = message_bytes + GRPC_OVERHEAD
    return {
        name: GrpcServer(app, max_message)
        for name, app in listeners.apps.items()
        if name != "operator"
    }


def _api_routes(mounts: Mapping[str, Sequence[Mounted]]) -> list[APIRoute]:
    routes = []
    for routers in mounts.values():
        for mounted in routers:
            routes += [route for route in mounted.router.routes if isinstance(route, APIRoute)]
    return routes


def _checks(services: Services, verifier: Verifier) -> dict[str, list[Any]]:
    """Return the checks that each listener makes of every request before its handler."""
    peers = services.peers
    limiters = services.foundation.limiters
    return {
        "operator": [set_language],
        "peer": [
            requests.signature_check(
                verifier,
                peers.peer_table.signing_entry,
                limiters.rest,
                RequestOpener(services.foundation.settings.node.id, peers.seals),
            ),
            peers.fate.signature_check(lambda request: requests.incoming(request).source, limiters),
        ],
        "container": [],
    }


def _with_envelope(
    peers: PeerServices,
    name: str,
    app: FastAPI,
) -> ASGIApp:
    """Return the application of the listener ``name`` with responses and bodies as they are sent.

    These are the standard's error responses, responses to HEAD, and decoded bodies of requests.
    """
    as_200 = peers.peer_table.as_200  # whether a request's errors need the HTTP status 200
    elsewhere = peers.fate.error_response  # the error responses of FATE's paths
    redact = None
    if name == "peer":
        redact = for_others
        # The first check is that of signatures. `JsonRoute` makes it before it parses the body; as
        # a mere dependency, the check would run only afterwards.
        app.state.before_body = app.state.checks[0]
    envelope.install(app, as_200, elsewhere, words=redact)
    served = with_head(envelope.too_large_in_envelope(app, as_200, elsewhere))
    refused = partial(envelope.refused_body, as_200=as_200, elsewhere=elsewhere)
    return decoding_bodies(served, refused)
