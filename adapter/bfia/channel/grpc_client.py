"""Calls to peers' transports by gRPC.

A route asks for such calls by a ``transport`` URL with ``grpc://`` or, with TLS, ``grpcs://``.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adapter.bfia.channel.codec import encode_answer
from adapter.bfia.channel.http_client import PeerResponse
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.outbound import proxy_of
from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid
from route_table.model import Identity

# The gRPC service between nodes; `grpc_server.SERVICE` is the one for containers.
SERVICE = "org.ppc.ptp.PrivateTransferProtocol"

# Assumed rate of a slow link. By this rate a call's deadline grows with its message: gRPC has one
# deadline for a whole call, none for its pauses.
_BYTES_PER_SECOND = 1 << 20
_LARGE = 1 << 18  # bytes above which a message counts as large
_MOST_LARGE = 2  # large messages sent at the same time, as gRPC copies each of them
# Options of a connection; -1: no limit.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_VISIBLE = re.compile(r"[\x20-\x7e]*")  # printable ASCII
# gRPC status -> HTTP status of the response that it stands for; any other gRPC status means no
# response.
_HTTP_STATUS = {
    "UNIMPLEMENTED": 404,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
    "RESOURCE_EXHAUSTED": 413,
}


class GrpcMissing(GatewayError):
    """The package grpcio is not installed."""

    reason = "GRPC_MISSING"
    code = 501

    def __init__(self) -> None:
        super().__init__(
            "a container or a peer's transport speaks gRPC: install bfia-gateway[grpc]"
        )


def is_grpc(url: str) -> bool:
    """True if a transport's URL is one of gRPC."""
    return url.startswith(("grpc://", "grpcs://"))


class GrpcConnection:
    """The connection to one peer's transport. Belongs to one event loop; close it there."""

    def __init__(
        self,
        url: str,
        identity: Identity,
        verify: ssl.SSLContext,
    ) -> None:
        """``verify`` has the authorities that are trusted if the identity names none.

        Raises `GrpcMissing`, and OSError if a file of the identity cannot be read.
        """
        grpc = library()
        target = _target(url, identity, verify)
        self._large = asyncio.Semaphore(_MOST_LARGE)
        self._channel: Any = target.open(grpc.aio)

    async def post(
        self,
        path: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        seconds: float,
    ) -> PeerResponse:
        """Call the method of an HTTP path.

        ``seconds`` is the peer's time to respond, without the transfer. Raises Invalid for a header
        that gRPC cannot carry, and OSError if no response arrives.
        """
        grpc = library()
        call = self._channel.unary_unary(_method(path))
        timeout = seconds + len(body) / _BYTES_PER_SECOND
        call_metadata = metadata(headers)
        try:
            async with self._slot(body):
                content = await call(body, metadata=call_metadata, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return _http_response(error.code(), error.details())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels the calls of a closed connection, not the task.
            raise ConnectionAbortedError("the connection was closed") from None
        return PeerResponse(200, Form.PROTOBUF.value, content)

    def _slot(self, body: bytes) -> AbstractAsyncContextManager[None]:
        """Return the slot that a large body needs; a small one needs none."""
        if len(body) > _LARGE:
            return self._large
        return nullcontext()

    async def close(self) -> None:
        """Close the connection; calls in progress fail."""
        await self._channel.close()


def call_once(
    url: str,
    identity: Identity,
    verify: ssl.SSLContext,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
) -> tuple[int, bytes]:
    """Call the method of an HTTP path over a new connection, and block until the response.

    Return the status and body of the HTTP response; the body is empty unless the status is 200.
    ``seconds`` is the deadline, whatever the body's length. Raises the errors of `GrpcConnection`
    and of its method ``post``.
    """
    grpc = library()
    target = _target(url, identity, verify)
    call_metadata = metadata([(name.encode(), value.encode()) for name, value in headers.items()])
    with target.open(grpc) as channel:
        call = channel.unary_unary(_method(path))
        try:
            return 200, call(body, metadata=call_metadata, timeout=seconds)
        except grpc.RpcError as error:
            return _http_response(error.code(), error.details()).status, b""


def metadata(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers that begin with ``x-`` as gRPC metadata.

    A topic that is not printable ASCII is left out: the message contains it, too. Raises Invalid
    for any other value that is not printable ASCII.
    """
    pairs = []
    problems = []
    for raw_name, raw_value in headers:
        if not raw_name.startswith(b"x-"):
            continue
        name = raw_name.decode()
        value = raw_value.decode("latin-1")
        if _VISIBLE.fullmatch(value):
            pairs.append((name, value))
        elif name != "x-ptp-topic":
            rule = "must be printable ASCII where the peer's transport takes gRPC"
            problems.append(Problem(name, rule))
    if problems:
        raise Invalid(problems)
    return pairs


def _method(path: str) -> str:
    """Return the full name of the gRPC method for an HTTP path."""
    _, _, name = path.rpartition("/")
    return f"/{SERVICE}/{name}"


def library() -> Any:
    """Return the package ``grpc`` with its module ``aio`` loaded. Raises `GrpcMissing`."""
    try:
        import grpc
        import grpc.aio
    except ImportError:
        raise GrpcMissing from None
    return grpc


@dataclass(frozen=True, slots=True)
class _Target:
    """The other end of a connection, and how to connect to it."""

    address: str  # host:port
    credentials: Any  # None without TLS
    options: list[tuple[str, Any]]

    def open(self, api: Any) -> Any:
        """Return gRPC's channel; ``api`` is ``grpc`` for blocking calls, or ``grpc.aio``."""
        if self.credentials is None:
            return api.insecure_channel(self.address, self.options)
        return api.secure_channel(self.address, self.credentials, self.options)


def _target(
    url: str,
    identity: Identity,
    verify: ssl.SSLContext,
) -> _Target:
    """Return the host and port, credentials and options for a connection to a transport.

    Without TLS there are no credentials. Raises OSError if a file of the identity cannot be read.
    """
    split = urlsplit(url)
    options: list[tuple[str, Any]] = list(_OPTIONS)
    proxy = proxy_of(identity)
    # Without a proxy, gRPC must not take one from the environment.
    options.append(("grpc.enable_http_proxy", int(proxy is not None)))
    if proxy is not None:
        options.append(("grpc.http_proxy", proxy.url()))
    if split.scheme == "grpc":
        return _Target(split.netloc, None, options)
    if identity.server_name:
        options.append(("grpc.ssl_target_name_override", identity.server_name))
    credentials = library().ssl_channel_credentials(
        _authorities(identity, verify),
        _read_optional(identity.key),
        _read_optional(identity.certificate),
    )
    return _Target(split.netloc, credentials, options)


def _authorities(identity: Identity, verify: ssl.SSLContext) -> bytes:
    """Return the trusted authorities in PEM: those of the identity, else those of ``verify``."""
    if identity.ca is not None:
        return Path(identity.ca).read_bytes()
    certificates = verify.get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode()


def _read_optional(path: str | None) -> bytes | None:
    """Return the content of a file; None without a path."""
    if not path:
        return None
    return Path(path).read_bytes()


def _http_response(status: Any, details: str | None) -> PeerResponse:
    """Return the HTTP response for a gRPC status. Raises OSError for one that means no response."""
    text = details or ""
    http_status = _HTTP_STATUS.get(status.name)
    if http_status is None:
        raise ConnectionError(f"gRPC {status.name}: {text[:500]}")
    return PeerResponse(http_status, Form.JSON.value, encode_answer(status.name, text))
