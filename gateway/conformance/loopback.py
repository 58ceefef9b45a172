"""One gateway per party of a trial, on one address of this machine; what their containers send is recorded."""

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from anyio import CapacityLimiter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia import envelope, platform
from adapter.bfia.channel import router
from adapter.bfia.channel.codec import decode_answer, decode_ask, read_push, read_topic
from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.dependencies import ChannelParts, Member
from adapter.bfia.channel.forms import form_of
from adapter.bfia.channel.rpc import Grpc
from gateway.broker import Broker
from gateway.conformance.evidence import ChannelCall, Requests, StateReport
from gateway.errors import GatewayError, NotFound
from gateway.http.app import Mounted, create_app
from gateway.http.server import bound, port_of, serve
from gateway.ports import Callback, Limiters
from route_table.model import Route

CALLBACK = "/v1/platform/schedule/task/callback"
CHANNEL = "/v1/interconn/chan/"
_CODE = re.compile(rb"E\d{10}")
_LARGEST_READ = 4 << 20
"""bytes of a request to the channel, or of its answer, that are kept to read topic and code"""
OPERATIONS = ("push", "pop", "peek", "release")
_LARGEST_BODY = 1 << 20
_LARGEST_MESSAGE = 256 << 20
_TIMEOUT = 30.0
_ROUNDS = 20
"""turns of the event loop, of which a request needs five to reach its application"""
_building = threading.Lock()
"""held while applications are made: meanwhile FastAPI changes the process's warning filters, and trials run at the
same time"""


class Station:
    """One party's gateway, and the requests to it. Used by the event loop and by threads."""

    def __init__(
        self,
        party: str,
        node: str,
        run: str,
        token: str,
    ) -> None:
        """``run`` is the query of its callback's address."""
        self.party, self.node, self.run, self.token = party, node, run, token
        self.requests = Requests()
        self.first = threading.Event()
        """set by the first request"""
        self.pending = 0
        """callbacks that have come and are not recorded yet; the event loop's"""

    def callback(self, report: Callback) -> None:
        """Record a callback that was read. Raises `NotFound` where it is another run's."""
        if report.run_id not in ("", self.run):
            raise NotFound("unknown run", reason="RUN_UNKNOWN")
        own = report.run_id == self.run
        self.requests.reports.append(
            StateReport(str(report.status), report.task_id, report.role, own, report.result_code)
        )
        self.first.set()

    def recorded(self, app: ASGIApp) -> ASGIApp:
        """Return an application that passes requests on and records them; of callbacks the refused ones."""

        async def record(
            scope: Scope,
            receive: Receive,
            send: Send,
        ) -> None:
            if scope["path"] == CALLBACK:
                await self._call_back(app, scope, receive, send)
            elif scope["path"].removeprefix(CHANNEL) in OPERATIONS:
                await self._channel_call(app, scope, receive, send)
            else:
                if (
                    scope["path"] != CHANNEL + "invoke"
                ):  # that is how its partners' gateways reach this one
                    self.requests.others.append(f"{scope['method']} {scope['path']}"[:200])
                self.first.set()
                await app(scope, receive, send)

        return record

    async def _call_back(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        response = bytearray()

        async def sending(message: Message) -> None:
            response.extend(message.get("body", b""))
            await send(message)

        self.pending += 1
        try:
            await app(scope, receive, sending)
            body = json.loads(response)
            if body.get("code") != 0:
                self.requests.refused.append(
                    str(body.get("msg") or body.get("message") or body)[:500]
                )
                self.first.set()
        finally:
            self.pending -= 1

    async def _channel_call(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        headers = {
            k.decode("latin-1").replace("_", "-"): v.decode("latin-1") for k, v in scope["headers"]
        }
        named = (
            headers.get(f"x-ptp-{name}", "") for name in ("session-id", "token", "target-node-id")
        )
        call = ChannelCall(str(scope["path"]).removeprefix(CHANNEL), *named)
        self.requests.channel_calls.append(call)
        self.first.set()
        asked, answered = bytearray(), bytearray()

        async def receiving() -> Message:
            message = await receive()
            if len(asked) < _LARGEST_READ:
                asked.extend(message.get("body", b""))
            if call.topic is None and not message.get("more_body"):
                call.topic = _topic(
                    call.operation, bytes(asked), scope["headers"], headers.get("content-type", "")
                )
            return message

        async def sending(message: Message) -> None:
            if len(answered) < _LARGEST_READ:
                answered.extend(message.get("body", b""))
            await send(message)

        await app(scope, receiving, sending)
        if found := _CODE.search(answered):
            call.code = found[0].decode()
            with suppress(GatewayError):  # a long message is cut, and then has a content
                call.content = True
                answer = decode_answer(bytes(answered), "" if answered[:1] == b"{" else "proto")
                call.content, call.message = bool(answer.content), answer.message[:300]


def _topic(
    operation: str,
    body: bytes,
    headers: list[tuple[bytes, bytes]],
    kind: str,
) -> str | None:
    """Return the topic that a request names; None where it cannot be read."""
    if (named := read_topic(headers)) is not None:
        return named
    with suppress(GatewayError):
        form = form_of(kind, None)
        return (
            read_push([body], form)[0].topic
            if operation == "push"
            else decode_ask(body, form).topic
        )
    return None


class Loopback:
    """Serves the stations on one address while it is open. A context."""

    def __init__(
        self,
        stations: Mapping[str, Station],
        host: str,
        folder: Path,
    ) -> None:
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
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()),
            name="loopback",
            daemon=True,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(_TIMEOUT):
            raise OSError("the sandbox's channel does not come up")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_TIMEOUT)
        self._close()

    @property
    def ports(self) -> list[int]:
        """The stations' ports."""
        return [port_of(sock) for sock in self._sockets.values()]

    def transport(self, node: str) -> str:
        """Return host:port of a node's gateway."""
        return self._bases[node]

    def callback(self, node: str) -> str:
        """Return the callback address of a node's run."""
        return f"http://{self._bases[node]}{CALLBACK}?run={self._stations[node].run}"

    def await_callbacks(self, node: str) -> None:
        """Wait until every callback that has come to a node is recorded: its sender may be gone before that."""
        assert self._loop is not None
        recorded = self._recorded(self._stations[node])
        try:
            asyncio.run_coroutine_threadsafe(recorded, self._loop).result(_TIMEOUT)
        except RuntimeError:  # it does not serve any more
            recorded.close()
        except TimeoutError:
            return

    async def _recorded(self, station: Station) -> None:
        for _ in range(_ROUNDS):  # a connection, then its data, then the application
            await asyncio.sleep(0)
        while station.pending:
            await asyncio.sleep(0.005)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        brokers = {node: Broker(self._folder / node) for node in self._stations}
        couriers = {node: Courier() for node in self._stations}
        for broker in brokers.values():
            broker.recover()
        with _building:
            apps = {
                node: self._application(node, brokers[node], couriers[node])
                for node in self._stations
            }
        logging.getLogger("uvicorn").addHandler(
            logging.NullHandler()
        )  # else it prints what is not HTTP
        rpc = {node: Grpc(app, _LARGEST_MESSAGE) for node, app in apps.items()}
        try:
            sockets = {node: [sock] for node, sock in self._sockets.items()}
            await serve(apps, sockets, self._up.set, self._stopping, http2=rpc)
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
        station = self._stations[node]
        parts = ChannelParts(
            node=node,
            institution=node,
            broker=broker,
            run_of=lambda claim: Member(
                station.run, frozenset(self._bases)
            ),  # wrong headers are judged later
            route_of=lambda other: (
                Route(other, f"http://{self._bases[other]}") if other in self._bases else None
            ),
            known_sender=lambda sender: sender in self._bases,
            session_open=lambda session: True,
            max_body=_LARGEST_MESSAGE,
            courier=courier,
        )
        limiters = Limiters(
            CapacityLimiter(4), CapacityLimiter(1), CapacityLimiter(4)
        )  # callbacks in their order
        app = create_app(
            "conformance",
            [
                Mounted(platform.container_router(station.callback, limiters), _LARGEST_BODY),
                Mounted(router.container_router(parts), None),
                Mounted(router.peer_router(parts), None),
            ],
        )
        envelope.install(app)
        return station.recorded(envelope.too_large_in_envelope(app))

    def _close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
