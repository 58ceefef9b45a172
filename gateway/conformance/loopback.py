"""One gateway per party of a trial, all on one address of this machine."""

import asyncio
import logging
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from anyio import CapacityLimiter
from starlette.types import ASGIApp

from adapter.bfia import envelope, platform
from adapter.bfia.channel import router
from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.dependencies import ChannelParts, Member
from adapter.bfia.channel.grpc_server import GrpcServer
from gateway.broker import Broker
from gateway.conformance.stations import CALLBACK, Station
from gateway.http.app import Mounted, create_app
from gateway.http.server import bound, port_of, serve
from gateway.ports import Limiters
from route_table.model import Route

MAX_CALLBACK_SIZE = 1 << 20  # bytes
MAX_MESSAGE_SIZE = 256 << 20  # bytes
TIMEOUT = 30.0  # seconds for the gateways to start, to stop, and to record a callback
# Turns of the event loop after which a request has certainly reached its application; about five
# are enough.
TURNS = 20
# Held while applications are built: FastAPI changes the process's warning filters then, and trials
# run in parallel.
_building = threading.Lock()


class Loopback:
    """Serves the stations on one address. Use as a context."""

    def __init__(
        self,
        stations: Mapping[str, Station],
        host: str,
        folder: Path,
    ) -> None:
        """Take the stations by node, and open a port for each on ``host``, an IP address.

        ``folder`` is for the messages of the channel. Raises `OSError` if no port can be opened on
        that address.
        """
        self._stations = stations
        self._folder = folder
        self._sockets: dict[str, socket.socket] = {}
        try:
            for node in stations:
                self._sockets[node] = bound(f"{host}:0")
        except OSError:
            self._close()
            raise
        self._addresses = {}
        for node, sock in self._sockets.items():
            self._addresses[node] = f"{host}:{port_of(sock)}"
        self._up = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            name="loopback",
            daemon=True,
        )
        # Set by the thread.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        """Start the gateways. Raises `OSError` if they do not listen within `TIMEOUT`."""
        self._thread.start()
        if not self._up.wait(TIMEOUT):
            raise OSError("the sandbox's channel does not come up")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the gateways and close their ports; wait for their thread up to `TIMEOUT`."""
        # `__enter__` has waited until the thread has set both.
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(TIMEOUT)
        self._close()

    @property
    def ports(self) -> list[int]:
        """The stations' ports."""
        return [port_of(sock) for sock in self._sockets.values()]

    def transport(self, node: str) -> str:
        """Return host:port of a node's gateway."""
        return self._addresses[node]

    def callback(self, node: str) -> str:
        """Return the URL for the callbacks of a node's run."""
        return f"http://{self._addresses[node]}{CALLBACK}?run={self._stations[node].run}"

    def await_callbacks(self, node: str) -> None:
        """Wait up to `TIMEOUT` until all callbacks to a node are recorded.

        A container may exit before its last callback is recorded.
        """
        assert self._loop is not None
        waiting = self._wait_for_callbacks(self._stations[node])
        try:
            asyncio.run_coroutine_threadsafe(waiting, self._loop).result(TIMEOUT)
        except RuntimeError:  # the event loop has ended
            waiting.close()
        except TimeoutError:
            return

    async def _wait_for_callbacks(self, station: Station) -> None:
        """Let requests reach the station, then wait until none is pending."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        while station.pending:
            await asyncio.sleep(0.005)

    def _run(self) -> None:
        """Serve in an event loop of this thread."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        """Serve until the context is left."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        brokers = {}
        couriers = {}
        for node in self._stations:
            brokers[node] = Broker(self._folder / node)
            brokers[node].recover()
            couriers[node] = Courier()
        apps = {}
        with _building:
            for node in self._stations:
                apps[node] = self._application(
                    node,
                    brokers[node],
                    couriers[node],
                )
        # Without a handler uvicorn prints requests that are not HTTP.
        logging.getLogger("uvicorn").addHandler(logging.NullHandler())
        grpc_servers = {node: GrpcServer(app, MAX_MESSAGE_SIZE) for node, app in apps.items()}
        try:
            sockets = {node: [sock] for node, sock in self._sockets.items()}
            await serve(
                apps,
                sockets,
                self._up.set,
                self._stopping,
                http2=grpc_servers,
            )
        finally:
            for courier in couriers.values():
                await courier.close()
            for broker in brokers.values():
                broker.close()

    def _application(
        self,
        node: str,
        broker: Broker,
        courier: Courier,
    ) -> ASGIApp:
        """Return a node's endpoints for its container and for partners, recorded by its station."""
        station = self._stations[node]
        # Callbacks are handled one by one, to keep their order.
        limiters = Limiters(
            peers=CapacityLimiter(4), news=CapacityLimiter(1), rest=CapacityLimiter(4)
        )
        channel = self._channel_parts(station, broker, courier)
        app = create_app(
            "conformance",
            [
                Mounted(platform.container_router(station.callback, limiters), MAX_CALLBACK_SIZE),
                Mounted(router.container_router(channel), None),
                Mounted(router.peer_router(channel), None),
            ],
        )
        envelope.install(app)
        return station.recorder(envelope.too_large_in_envelope(app))

    def _channel_parts(
        self,
        station: Station,
        broker: Broker,
        courier: Courier,
    ) -> ChannelParts:
        """Return a channel that knows the trial's nodes and accepts every session."""

        def member(claim: object) -> Member:
            # Any session and token is accepted here: a clause judges them.
            return Member(station.run, frozenset(self._addresses))

        def route_to(node: str) -> Route | None:
            if node not in self._addresses:
                return None
            return Route(node, f"http://{self._addresses[node]}")

        def is_known(node: str) -> bool:
            return node in self._addresses

        def is_open(session: str) -> bool:
            return True

        return ChannelParts(
            node=station.node,
            institution=station.node,
            broker=broker,
            run_of=member,
            route_of=route_to,
            known_sender=is_known,
            session_open=is_open,
            max_body=MAX_MESSAGE_SIZE,
            courier=courier,
        )

    def _close(self) -> None:
        """Close the ports."""
        for sock in self._sockets.values():
            sock.close()
