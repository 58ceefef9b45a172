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
from gateway.admin.deps import provide, set_language
from gateway.bootstrap.layers import LayerServices, middleware
from gateway.bootstrap.peer_routers import channel_parts, container_mounts, peer_mounts
from gateway.bootstrap.platform_routers import EARLY_PATHS, health_services, platform_mounts
from gateway.bootstrap.services import Services
from gateway.domain.redaction import for_others
from gateway.http.app import Mounted, add_description, create_app, include, with_head
from gateway.http.encoded_bodies import decoding_bodies
from gateway.http.late_routes import LateRoutes
from gateway.identity.signatures import Verifier
from gateway.runtime.trials import Step
from gateway.store.repositories import SqlUsedSignatures

GRPC_OVERHEAD = 65536  # bytes that gRPC may add to a message


@dataclass(frozen=True)
class Listeners:
    """The application of each listener, with its middleware, and the routers of all listeners."""

    apps: Mapping[str, ASGIApp]
    # The routers of each listener; those of the operators' are built in part, see `LateRoutes`.
    mounts: Mapping[str, Sequence[Mounted]]
    operators: LateRoutes

    @property
    def endpoints(self) -> Sequence[APIRoute]:
        """The endpoints of all listeners. Builds those for people, if they are missing."""
        self.operators.complete()
        return _api_routes(self.mounts)


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
        "operator": platform_mounts(services),
        "peer": peer_mounts(services, verifier, channel),
        "container": container_mounts(services, channel),
    }
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
    apps = {}
    for name, routers in mounts.items():
        apps[name] = create_app(
            titles[name],
            routers,
            documented=name != "operator",  # described once all its routers are built
            checks=checks[name],
        )
    served = {name: _with_envelope(services, name, app) for name, app in apps.items()}
    provide(apps["operator"], health_services(services))
    further = _OperatorRoutes(apps["operator"], services, mounts, leaving, doctor)
    late = LateRoutes(served["operator"], EARLY_PATHS, further.add)
    served["operator"] = late
    return Listeners(_with_layers(services, served, channel.max_body), mounts, late)


@dataclass(frozen=True)
class _OperatorRoutes:
    """The routes for people at the operators' listener, built at their first request."""

    app: FastAPI
    services: Services
    mounts: Mapping[str, list[Mounted]]  # the routers of every listener, by its name
    leaving: Event
    doctor: Callable[[], Sequence[Step]]

    def add(self) -> None:
        """Add the routes to the application."""
        # Imported late: the modules and their models take 8 MB of memory.
        from gateway.bootstrap.operator_routers import (
            mount_pages,
            operator_mounts,
            provide_services,
        )

        further = operator_mounts(self.services)
        include(self.app, further)
        self.mounts["operator"].extend(further)
        add_description(self.app, self.mounts["operator"])
        provide_services(
            self.app,
            self.services,
            _api_routes(self.mounts),
            self.leaving,
            self.doctor,
        )
        mount_pages(self.app)


def _with_layers(
    services: Services,
    served: Mapping[str, ASGIApp],
    largest_message: int,
) -> dict[str, ASGIApp]:
    """Return the application of each listener in its middleware.

    ``largest_message``: bytes of a message of the channel, with its envelope.
    """
    layers = middleware(
        LayerServices(
            services.foundation,
            services.registries,
            services.peers,
            largest_message=largest_message,
        )
    )
    apps = {}
    for name, app in served.items():
        for layer in layers[name]:
            app = layer(app)
        apps[name] = app
    return apps


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
    services: Services,
    name: str,
    app: FastAPI,
) -> ASGIApp:
    """Return the application of the listener ``name`` with responses and bodies as they are sent.

    These are the standard's error responses, responses to HEAD, and decoded bodies of requests.
    """
    peers = services.peers
    body_bytes = services.foundation.settings.limits.body_bytes
    as_200 = peers.peer_table.as_200  # whether a request's errors need the HTTP status 200
    elsewhere = peers.fate.error_response  # the error responses of FATE's paths
    redact = None
    if name == "peer":
        redact = for_others
        # The first check is that of signatures. `JsonRoute` makes it before it parses the body; as
        # a mere dependency, the check would run only afterwards.
        app.state.before_body = app.state.checks[0]
    envelope.install(app, as_200, elsewhere, words=redact)
    served = with_head(envelope.too_large_in_envelope(app, as_200, elsewhere, body_bytes))
    refused = partial(envelope.refused_body, as_200=as_200, elsewhere=elsewhere)
    return decoding_bodies(served, refused)
