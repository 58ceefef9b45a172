"""Nodes that have nothing but the transport channel, and containers that use it."""

import asyncio
import base64
import contextlib
import json
import socket
import time

import uvicorn
from fastapi import FastAPI

from adapter.bfia.channel.dependencies import ChannelParts, Member
from adapter.bfia.channel.grpc_server import GrpcServer
from adapter.bfia.channel.router import container_router, peer_router
from gateway.broker import Broker, BrokerLimits
from gateway.errors import NotAllowed
from gateway.http.server import bound, port_of, serve

OK = "E0000000000"
CHAN = "/v1/interconn/chan/"
SESSION = "session_job-1"

# Headers of a container that pushes to its own node.
PUSH_HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-target-node-id": "alpha",
    "x-ptp-token": "writer",
}
# Headers of the peer beta that invokes a push at alpha.
INVOKE_HEADERS = PUSH_HEADERS | {
    "x-ptp-version": "1",
    "x-ptp-source-node-id": "beta",
    "x-ptp-uri": "/v1/interconn/chan/push",
}


def listening():
    """Return a listening socket; asyncio sets TCP_NODELAY only if the protocol is named."""
    sock = socket.socket(
        socket.AF_INET,
        socket.SOCK_STREAM,
        socket.IPPROTO_TCP,
    )
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def dashed(headers):
    """Return headers, given as keyword arguments, with dashes in their names."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


def push_body(payload, topic="t", **fields):
    """Return the JSON body of a push, as a dictionary."""
    body = {
        "topic": topic,
        "payload": base64.b64encode(payload).decode(),
    }
    return body | fields


class Node:
    """One node's channel on one port with both routers, as a site with a single port has it."""

    def __init__(
        self,
        name,
        root,
        limits=None,
        **options,
    ):
        self.name = name
        self.root = root
        self.routes = {}
        # the nodes of the session's job
        self.nodes = {"alpha", "beta", "b", "peer", "stranger"}
        # whether other runs of the node use the session
        self.shares_session = False
        # the other nodes of each institution
        self.institutions = {}
        # whether a session's job runs, by session; unknown sessions are missing
        self.sessions = {}
        # the nodes from which messages are accepted
        self.senders = {"alpha", "beta"}
        self.limits = limits or BrokerLimits()
        # wraps the application that `served` serves; None if it is served as it is
        self.wrap_app = None
        # further fields of `ChannelParts`
        self.options = {"max_body": 100 << 20, "retry_for": 60.0} | options
        self.socket = listening()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def open(self):
        """Build the application and the broker with its stored messages."""
        self.broker = Broker(self.root, self.limits)
        self.broker.recover()
        self.parts = ChannelParts(
            node=self.name,
            institution=f"{self.name}-inst",
            broker=self.broker,
            run_of=self.run_of,
            route_of=self.routes.get,
            known_sender=self.senders.__contains__,
            session_open=self.sessions.get,
            nodes_of=self.nodes_of,
            **self.options,
        )
        self.app = FastAPI()
        self.app.include_router(peer_router(self.parts))
        self.app.include_router(container_router(self.parts))

    def nodes_of(self, institution):
        """Return the other nodes of an institution."""
        return self.institutions.get(institution, ())

    def run_of(self, claim):
        """Accept every token as that of a run in every session; refuse a claim without one."""
        if not claim.token:
            raise NotAllowed("no token")
        return Member(claim.token, frozenset(self.nodes), self.shares_session)

    async def start(self):
        """Serve the node at its socket."""
        self.open()
        config = uvicorn.Config(
            self.app,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self.server = uvicorn.Server(config)
        self.server.capture_signals = contextlib.nullcontext
        # A copy, so that the port stays reserved while the node is stopped.
        self.task = asyncio.create_task(self.server.serve(sockets=[self.socket.dup()]))
        while not self.server.started:
            await asyncio.sleep(0.001)

    async def stop(self):
        """Stop serving; `start` serves the same stored messages again."""
        self.server.should_exit = True
        await self.task
        self.broker.close()


@contextlib.asynccontextmanager
async def served(node, most_bytes=16 << 20):
    """Serve a node's channel as a gateway does, by HTTP and gRPC, at an address of its own."""
    node.open()
    sock = bound("127.0.0.1:0")
    node.url = f"http://127.0.0.1:{port_of(sock)}"
    app = node.wrap_app(node.app) if node.wrap_app else node.app
    http2 = {"peer": GrpcServer(app, most_bytes)}
    ready = asyncio.Event()
    stopping = asyncio.Event()
    server = serve(
        {"peer": app},
        {"peer": [sock]},
        ready.set,
        stopping,
        http2=http2,
    )
    serving = asyncio.create_task(server)
    await ready.wait()
    try:
        yield node
    finally:
        stopping.set()
        await serving
        await node.parts.courier.close()
        node.broker.close()
        node.socket.close()


async def post_message(client, node, verb, body, headers):
    """Post bytes or a JSON value to the channel; return the status and the JSON response."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(
        node.url + CHAN + verb,
        content=content,
        headers=headers,
    )
    return response.status_code, response.json()


class Container:
    """An algorithm's container, which speaks JSON with its own node's channel.

    Without a token, it writes as one run of the node and reads as another.
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

    async def post(self, verb, body, **headers):
        """Send a request; return the JSON response. Header names are written with ``_``."""
        token = self.token
        if not token:
            token = "writer" if verb == "push" else "reader"
        all_headers = {
            "content-type": "application/json",
            "x-ptp-token": token,
        }
        all_headers |= self.headers
        all_headers |= dashed(headers)
        _, response = await post_message(
            self.client,
            self.node,
            verb,
            body,
            all_headers,
        )
        return response

    async def push(
        self,
        target,
        payload,
        topic="t",
        **fields,
    ):
        """Push a message to a node; return the response's code."""
        body = push_body(payload, topic, **fields)
        response = await self.post(
            "push",
            body,
            x_ptp_target_node_id=target,
        )
        return response["code"]

    async def pop(
        self,
        topic="t",
        timeout=1000,
        **headers,
    ):
        """Return the next payload of a topic, b"" if none comes in time (milliseconds)."""
        response = await self.post("pop", {"topic": topic, "timeout": timeout}, **headers)
        assert response["code"] == OK, response
        assert response["content"] == response["payload"]
        return base64.b64decode(response["content"])

    async def peek(self, topic="t", **headers):
        """Return the next payload of a topic without waiting, b"" if there is none."""
        response = await self.post("peek", {"topic": topic}, **headers)
        assert response["code"] == OK, response
        return base64.b64decode(response["content"])


async def until(condition):
    """Wait at most 60 s until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def until_readers(node, count):
    """Wait until ``count`` pops of a node wait for a message."""
    await until(lambda: sum(map(len, node.broker._readers.values())) == count)


async def until_push_waits(node):
    """Wait until a push to a node waits for capacity."""
    await until(lambda: node.broker._capacity._queues)
