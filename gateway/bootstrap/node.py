"""One node: its services and listeners, started and stopped in order."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import structlog
from starlette.types import ASGIApp

from adapter.bfia.channel.grpc_server import GrpcServer
from gateway.bootstrap import engine_parts, parts
from gateway.bootstrap.engine_services import EngineFactory
from gateway.bootstrap.listeners import build_listeners, grpc_servers
from gateway.bootstrap.peer_proof import MESSAGE_REMEDY, message_risk
from gateway.bootstrap.services import build_services
from gateway.config.schema import Settings
from gateway.errors import GatewayError, Invalid
from gateway.runtime.trials import Step
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_ENTRY
from route_table.proof import UNPROVEN, mending_command

log = structlog.get_logger(__name__)

# Seconds to wait until another gateway of this node has the same routes as this one. After this
# time, a running gateway has followed an edit of the route file that both gateways read, and a
# stopped gateway, whose routes no longer matter, counts as stopped (`GATEWAY_TIMEOUT`).
FOLLOW_TIMEOUT = 10.0


class Gateway:
    """One node: its services and listeners, its start and its end."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: EngineFactory | None = None,
        pace: parts.Pace = parts.Pace(),
        doctor: Callable[[], Sequence[Step]] = tuple,
    ) -> None:
        """Build the node and bind its sockets. Raises `Invalid` for settings that cannot work.

        - ``engine`` makes the engine from the settings and the installation's id
        - ``doctor`` checks everything that the node needs, for ``/api/v1/doctor``; by default,
          `tuple` returns no checks
        """
        self.settings = settings
        self.leaving = threading.Event()  # set when the process stops serving
        self.services = build_services(settings, engine or engine_parts.engine_of, pace)
        # Binds a further socket, on the engine's bridge, if the engine has one and responds.
        self.services.sockets.for_containers.try_open()
        self.listeners = build_listeners(self.services, self.leaving, doctor)

    @property
    def apps(self) -> Mapping[str, ASGIApp]:
        """The application of each listener."""
        return self.listeners.apps

    @property
    def routes(self) -> LiveRoutes:
        """The route table, reloaded by the process when its file changes."""
        return self.services.registries.routes

    def start(self) -> None:
        """Resume the work of an earlier process, and begin new work.

        Raises `Invalid` if another gateway of this node follows a file with other routes.
        """
        services = self.services
        check_route_file(self.routes)
        self._warn_of_unproven_peers()
        services.peers.broker.recover()
        peer_url = self.addresses()["peer"]
        services.runs.heartbeat.start(parts.url_for_gateways(self.settings, peer_url))
        services.runs.executor.start()
        services.partners.applications.loop.start()
        services.scheduling.scheduler.loop.start()
        services.registries.webhooks.start()
        services.engines.resources.loop.start()
        services.engines.capacities.loop.start()
        services.chores.start()

    def stop(self) -> None:
        """Let the work in progress end.

        Containers run on; the next process resumes watching them.
        """
        services = self.services
        services.runs.heartbeat.stop()
        # `drain` and `outages` begin their work when they are first used, so `start` omits them.
        services.scheduling.drain.close()
        services.peers.outages.close()
        services.chores.stop()
        with suppress(OSError):
            services.peers.exchanges.save()
        services.partners.applications.loop.stop()
        services.registries.webhooks.stop()
        services.engines.capacities.loop.stop()
        services.engines.resources.loop.stop()
        services.scheduling.scheduler.loop.stop()
        services.runs.executor.stop()
        services.foundation.lanes.close()
        with suppress(GatewayError):  # the database is away
            services.peers.volumes.save()
        # All loops and lanes have ended, so no further response can be deferred.
        services.scheduling.scheduler.record_deferred()
        services.runs.executor.record_deferred()
        self._close()

    def addresses(self) -> dict[str, str]:
        """Return the URL of each listener on this machine."""
        return self.services.sockets.addresses()

    def grpc_servers(self) -> dict[str, GrpcServer]:
        """Return the gRPC server of each listener for programs."""
        return grpc_servers(self.listeners, self.settings.limits.message_bytes)

    def _close(self) -> None:
        services = self.services
        services.peers.protocol.close()
        services.peers.broker.close()
        services.engines.engine.close()
        services.foundation.store.close()
        services.sockets.close()
        if services.foundation.lock is not None:
            services.foundation.lock.close()

    def _warn_of_unproven_peers(self) -> None:
        """Log the routes whose nodes' requests are unproven, and the risk for messages."""
        table = self.services.peers.peer_table
        for route in self.routes.table.routes.values():
            if route.node != DEFAULT_ENTRY and table.proof(route.node) in UNPROVEN:
                log.warning(
                    "nothing proves the requests of a node",
                    node=route.node,
                    signing=route.signing_mode,
                    remedy=mending_command(route),
                )
        enabled = [route for route in self.routes.table.routes.values() if route.enabled]
        risk = message_risk(enabled, self.settings)
        if risk:
            log.warning(
                "messages of containers are not authenticated",
                cause=risk,
                remedy=MESSAGE_REMEDY,
            )


def check_route_file(routes: LiveRoutes) -> None:
    """Raise `Invalid` for a route file with other routes than another gateway of this node has.

    If both have the same file, it may have been edited a moment ago: wait until the other gateway
    has followed the edit.
    """
    deadline = time.monotonic() + FOLLOW_TIMEOUT
    while routes.rival and time.monotonic() < deadline:
        time.sleep(0.5)
        routes.reload()
    if routes.rival:
        raise Invalid(routes.problems)
