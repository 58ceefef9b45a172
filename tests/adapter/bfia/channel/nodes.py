"""Nodes that have nothing but the transport channel, and a container that speaks with them."""

import asyncio
import base64
import contextlib
import json
import socket
import time

import uvicorn
from fastapi import FastAPI

from adapter.bfia.channel.dependencies import ChannelParts, Member
from adapter.bfia.channel.router import container_router, peer_router
from adapter.bfia.channel.rpc import Grpc
from gateway.broker import Broker, BrokerLimits
from gateway.errors import NotAllowed
from gateway.http.server import bound, port_of, serve

OK = "E0000000000"
CHAN = "/v1/interconn/chan/"
SESSION = "session_job-1"


def listening():
    """Returns a listening socket; asyncio sets TCP_NODELAY only where the protocol is named."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


class Node:
    """One node's channel behind real sockets: one port, both routers, as a site with one port has it."""

    def __init__(
        self,
        name,
        root,
        **parts,
    ):
        self.name = name
        self.root = root
        self.routes = {}
        self.nodes = {"alpha", "beta", "b", "peer", "stranger"}
        self.sessions = {}
        self.known = {"alpha", "beta"}
        self.limits = parts.pop("limits", BrokerLimits())
        self.around = lambda app: app
        """what stands before the application"""
        self.more = {"max_body": 100 << 20, "retry_for": 60.0} | parts
        self.socket = listening()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def open(self):
        self.broker = Broker(self.root, self.limits)
        self.broker.recover()
        self.parts = ChannelParts(
            node=self.name,
            institution=f"{self.name}-inst",
            broker=self.broker,
            run_of=self.run_of,
            route_of=self.routes.get,
            known_sender=self.known.__contains__,
            session_open=self.sessions.get,
            **self.more,
        )
        self.app = FastAPI()
        self.app.include_router(peer_router(self.parts))
        self.app.include_router(container_router(self.parts))

    def run_of(self, claim):
        """Every token is a run's, and every session its own."""
        if not claim.token:
            raise NotAllowed("no token")
        return Member(claim.token, self.nodes)

    async def start(self):
        self.open()
        config = uvicorn.Config(
            self.app,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self.server = uvicorn.Server(config)
        self.server.capture_signals = contextlib.nullcontext
        self.task = asyncio.create_task(self.server.serve(sockets=[self.socket.dup()]))
        while not self.server.started:
            await asyncio.sleep(0.001)

    async def stop(self):
        self.server.should_exit = True
        await self.task
        self.broker.close()


@contextlib.asynccontextmanager
async def served(node, most_bytes=16 << 20):
    """Serves a node's channel as a gateway does, by HTTP and gRPC."""
    node.open()
    sock = bound("127.0.0.1:0")
    node.url = f"http://127.0.0.1:{port_of(sock)}"
    ready, stopping = asyncio.Event(), asyncio.Event()
    app = node.around(node.app)
    http2 = {"peer": Grpc(app, most_bytes)}
    serving = asyncio.create_task(
        serve({"peer": app}, {"peer": [sock]}, ready.set, stopping, http2=http2)
    )
    await ready.wait()
    try:
        yield node
    finally:
        stopping.set()
        await serving
        await node.parts.courier.close()
        node.broker.close()
        node.socket.close()


class Container:
    """What an algorithm's container does: it knows its own transport and nothing else.

    Without a token, one run of the node writes and another reads.
    """

    def __init__(
        self,
        client,
        node,
        token="",
        **headers,
    ):
        self.client = client
        self.node = node
        self.token = token
        self.headers = {"x-ptp-session-id": SESSION} | headers

    async def post(
        self,
        verb,
        body,
        **headers,
    ):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        token = self.token or ("writer" if verb == "push" else "reader")
        kind = {"content-type": "application/json", "x-ptp-token": token}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await self.client.post(
            self.node.url + CHAN + verb, content=content, headers=kind | self.headers | named
        )
        return response.json()

    async def push(
        self,
        target,
        payload,
        topic="t",
        **more,
    ):
        headers = more.pop("headers", {})
        body = {"topic": topic, "payload": base64.b64encode(payload).decode()} | more
        return (await self.post("push", body, x_ptp_target_node_id=target, **headers))["code"]

    async def pop(
        self,
        topic="t",
        timeout=1000,
        **headers,
    ):
        answer = await self.post("pop", {"topic": topic, "timeout": timeout}, **headers)
        assert answer["code"] == OK, answer
        assert answer["content"] == answer["payload"]
        return base64.b64decode(answer["content"])

    async def peek(self, topic="t", **headers):
        answer = await self.post("peek", {"topic": topic}, **headers)
        assert answer["code"] == OK, answer
        return base64.b64decode(answer["content"])


async def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def waiters(node):
    return sum(map(len, node.broker._readers.values()))
