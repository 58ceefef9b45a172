"""Serves FATE's OSX client on loopback and passes its messages on to the node's channel."""

from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import grpc
import requests
from fate.arch.federation.backends.osx import osx_pb2

from fatevendor.channel import POP_SECONDS, Channel, Post, Refused
from fatevendor.task import Task

SERVICE = "org.ppc.ptp.PrivateTransferTransport"
# FATE's workers and its main process wait for messages at the same time.
THREADS = 64
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def channel_of(task: Task) -> Channel:
    """Return a task's channel at its node."""
    return Channel(task.id, task.token, http_post(task.transport), osx_pb2)


def http_post(transport: str) -> Post:
    """Return a function that posts to the node's channel at an address, host:port."""
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=THREADS))

    def post(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        url = f"http://{transport}{path}"
        timeout = 2 * POP_SECONDS
        # A connection without a response is an `OSError`, as are all errors of this library.
        response = session.post(url, data=body, headers=dict(headers), timeout=timeout)
        if response.status_code >= 500:
            raise OSError(f"HTTP {response.status_code}")
        return response.content

    return post


def serve(channel: Channel) -> tuple[grpc.Server, int]:
    """Serve FATE's client on loopback; return the server and its port."""
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=UNLIMITED)
    methods = {
        "push": _method(channel.push, osx_pb2.PushInbound),
        "pop": _method(channel.pop, osx_pb2.PopInbound),
        "release": _method(channel.release, osx_pb2.ReleaseInbound),
    }
    handler = grpc.method_handlers_generic_handler(SERVICE, methods)
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def _method(call: Callable[[Any, Mapping[str, str]], Any], message: Any) -> Any:
    """Return gRPC's handler of a method; a refusal aborts FATE's call, which fails the task."""

    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        metadata = dict(context.invocation_metadata())
        headers = {name: text for name, text in metadata.items() if name.startswith("x-ptp-")}
        try:
            return call(request, headers)
        except Refused as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=message.FromString,
        response_serializer=osx_pb2.TransportOutbound.SerializeToString,
    )
