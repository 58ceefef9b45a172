"""The gateways of a trial's parties, on one machine: channel and callback, with nothing behind them."""

import asyncio
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from anyio import CapacityLimiter
from starlette.types import ASGIApp

from adapter.bfia import envelope, platform
from adapter.bfia.channel import router
from adapter.bfia.channel.courier import Courier, PeerRoute
from adapter.bfia.channel.sessions import Member
from gateway.broker import Broker
from gateway.conformance.tap import CALLBACK, Ear, Tap
from gateway.http.app import Mounted, create_app
from gateway.http.server import bound, port_of, serve
from gateway.ports import Limiters, OwnJobs, OwnRuns

_LARGEST_BODY = 1 << 20
_LARGEST_MESSAGE = 256 << 20
_PATIENCE = 30.0
_ROUNDS = 20
"""turns of the loop, of which a request needs five to be with its application"""
_building = threading.Lock()
"""held while applications are made: the framework changes the process's filters of warnings for that moment, and
trials run side by side"""


@dataclass(frozen=True)
class Station:
    """One party's gateway."""

    party: str
    node: str
    run: str
    """what the query of its callback's address says"""
    token: str
    ear: Ear


class Loopback:
    """Serves the stations on one address while it is open. A context."""

    def __init__(self, stations: Mapping[str, Station], host: str, folder: Path) -> None:
        """``stations`` by node. Raises `OSError` if nothing can listen on ``host``."""
        self._stations = stations
        self._folder = folder
        self._sockets: dict[str, socket.socket] = {}
        try:
            for node in stations:
                self._sockets[node] = bound(f"{host}:0")
        except OSError:
            self._close()
            raise
        self._bases = {node: f"{host}:{port_of(sock)}" for node, sock in self._sockets.items()}
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="loopback", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(_PATIENCE):
            raise OSError("the sandbox's channel does not come up")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_PATIENCE)
        self._close()

    @property
    def ports(self) -> list[int]:
        """The stations' ports."""
        return [port_of(sock) for sock in self._sockets.values()]

    def transport(self, node: str) -> str:
        """Return host:port of a node's gateway."""
        return self._bases[node]

    def callback(self, node: str) -> str:
        """Return the address that a node's run is told for its callbacks."""
        return f"http://{self._bases[node]}{CALLBACK}?run={self._stations[node].run}"

    def settle(self, node: str) -> None:
        """Wait until a node has heard every callback that has come: its sender may be gone before that."""
        assert self._loop is not None
        settled = self._settled(self._stations[node].ear)
        try:
            asyncio.run_coroutine_threadsafe(settled, self._loop).result(_PATIENCE)
        except RuntimeError:  # it serves nobody any more
            settled.close()
        except TimeoutError:
            return

    async def _settled(self, ear: Ear) -> None:
        for _ in range(_ROUNDS):  # each takes in what has come: a connection, then what it says, then who answers
            await asyncio.sleep(0)
        while ear.listens:
            await asyncio.sleep(0.005)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        brokers = {node: Broker(self._folder / node) for node in self._stations}
        couriers = {node: Courier() for node in self._stations}
        for broker in brokers.values():
            broker.recover()
        with _building:
            apps = {node: self._application(node, brokers[node], couriers[node]) for node in self._stations}
        try:
            sockets = {node: [sock] for node, sock in self._sockets.items()}
            await serve(apps, sockets, self._up.set, self._stopping)
        finally:
            for courier in couriers.values():
                await courier.close()
            for broker in brokers.values():
                broker.close()

    def _application(self, node: str, broker: Broker, courier: Courier) -> ASGIApp:
        station = self._stations[node]
        parts = router.ChannelParts(
            node=node,
            institution=node,
            broker=broker,
            run_of=lambda claim: Member(station.run, frozenset(self._bases)),  # what it sent wrong is judged later
            route_of=lambda other: PeerRoute(f"http://{self._bases[other]}") if other in self._bases else None,
            known_sender=lambda sender: sender in self._bases,
            session_open=lambda session: True,
            max_body=_LARGEST_MESSAGE,
            courier=courier,
        )
        limiters = Limiters(CapacityLimiter(4), CapacityLimiter(1), CapacityLimiter(4))  # news in their order
        runs = cast(OwnRuns, station.ear)  # of which the container's path asks for the callback only
        callbacks = platform.PlatformParts(node, node, cast(OwnJobs, None), runs, limiters)
        app = create_app(
            "conformance",
            [
                Mounted(platform.container_router(callbacks), _LARGEST_BODY),
                Mounted(router.container_router(parts), None),
                Mounted(router.peer_router(parts), None),
            ],
        )
        envelope.install(app)
        return Tap(envelope.TooLargeInEnvelope(app), station.ear)

    def _close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
