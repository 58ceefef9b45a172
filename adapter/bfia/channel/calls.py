"""Calls of peers' transports by gRPC, where the route's ``transport`` says so: ``grpc://`` or, by TLS, ``grpcs://``."""

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adapter.bfia.channel.codec import encode_answer
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.wire import Answered
from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid
from route_table.model import Identity

SERVICE = "org.ppc.ptp.PrivateTransferProtocol"
_BYTES_PER_SECOND = 1 << 20
"""how slow a link may be: gRPC has one deadline for all of a message"""
_LARGE = 1 << 18
_MOST_LARGE = 2
"""long messages under way together: gRPC copies each"""
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_VISIBLE = re.compile(r"[\x20-\x7e]*")


class GrpcMissing(GatewayError):
    """The package grpcio is not installed."""

    reason = "GRPC_MISSING"
    code = 501

    def __init__(self) -> None:
        super().__init__(
            "a container or a peer's transport speaks gRPC: install bfia-gateway[grpc]"
        )


def by_grpc(url: str) -> bool:
    """Tell whether a transport's address is one of gRPC."""
    return url.startswith(("grpc://", "grpcs://"))


class Calls:
    """The connection to one transport. Belongs to one event loop; close it there."""

    def __init__(
        self,
        url: str,
        identity: Identity,
        verify: ssl.SSLContext,
    ) -> None:
        """Raises `GrpcMissing`; OSError for files that cannot be read."""
        grpc = library()
        target, credentials, options = _towards(url, identity, verify)
        self._large = asyncio.Semaphore(_MOST_LARGE)
        self._channel: Any = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )

    async def post(
        self,
        path: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        seconds: float,
    ) -> Answered:
        """Call the method that a path of HTTP names. ``seconds``: how long the peer may take beside the transfer.

        Raises Invalid for a header that gRPC cannot bear, and OSError where there was no response.
        """
        grpc = library()
        call = self._channel.unary_unary(_method(path))
        seconds += len(body) / _BYTES_PER_SECOND
        sent = metadata(headers)
        try:
            async with self._large if len(body) > _LARGE else nullcontext():
                content = await call(body, metadata=sent, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            return _failed(error.code(), error.details())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionAbortedError("the connection was closed") from None
        return Answered(200, Form.PROTOBUF.value, content)

    async def close(self) -> None:
        """End it, and what is under way."""
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
    """Call by a connection of its own; return status and body as HTTP would. Raises as `Calls` does."""
    grpc = library()
    target, credentials, options = _towards(url, identity, verify)
    made = (
        grpc.insecure_channel(target, options)
        if credentials is None
        else grpc.secure_channel(target, credentials, options)
    )
    sent = metadata([(name.encode(), value.encode()) for name, value in headers.items()])
    with made as channel:
        try:
            return 200, channel.unary_unary(_method(path))(body, metadata=sent, timeout=seconds)
        except grpc.RpcError as error:
            return _failed(error.code(), error.details()).status, b""


def metadata(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return headers as gRPC takes them; a topic that it cannot bear stands in the message too. Raises Invalid."""
    texts = [
        (name.decode(), value.decode("latin-1"))
        for name, value in headers
        if name.startswith(b"x-")
    ]
    problems = [
        Problem(name, "must be printable ASCII where the peer's transport takes gRPC")
        for name, text in texts
        if name != "x-ptp-topic" and not _VISIBLE.fullmatch(text)
    ]
    if problems:
        raise Invalid(problems)
    return [(name, text) for name, text in texts if _VISIBLE.fullmatch(text)]


def _method(path: str) -> str:
    return f"/{SERVICE}/{path.rpartition('/')[2]}"


def library() -> Any:
    """Return the package that speaks gRPC. Raises `GrpcMissing`."""
    try:
        import grpc
        import grpc.aio
    except ImportError:
        raise GrpcMissing from None
    return grpc


def _towards(
    url: str,
    identity: Identity,
    verify: ssl.SSLContext,
) -> tuple[str, Any, list[tuple[str, Any]]]:
    """Return target, credentials (None without TLS) and options of a channel."""
    split = urlsplit(url)
    if split.scheme == "grpc":
        return split.netloc, None, list(_OPTIONS)
    if identity.ca is not None:
        authorities = Path(identity.ca).read_bytes()
    else:
        authorities = "".join(
            map(ssl.DER_cert_to_PEM_cert, verify.get_ca_certs(binary_form=True))
        ).encode()
    key = Path(identity.key).read_bytes() if identity.key else None
    chain = Path(identity.certificate).read_bytes() if identity.certificate else None
    name = [("grpc.ssl_target_name_override", identity.server_name)] if identity.server_name else []
    return (
        split.netloc,
        library().ssl_channel_credentials(authorities, key, chain),
        [*_OPTIONS, *name],
    )


def _failed(status: Any, details: str | None) -> Answered:
    """Return the response that HTTP would have for a status of gRPC. Raises OSError where there was none."""
    http = {
        "UNIMPLEMENTED": 404,
        "PERMISSION_DENIED": 403,
        "UNAUTHENTICATED": 401,
        "RESOURCE_EXHAUSTED": 413,
    }
    if status.name in http:
        words = encode_answer(status.name, details or "")
        return Answered(http[status.name], Form.JSON.value, words)
    raise ConnectionError(f"gRPC {status.name}: {(details or '')[:500]}")
