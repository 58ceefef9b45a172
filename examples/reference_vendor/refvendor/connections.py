"""Connections to the platform's transport module, over HTTP or gRPC.

Each carries one call at a time.
"""

from __future__ import annotations

import http.client
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from refvendor.contract import BadParameters, VendorError
from refvendor.forms import GrpcForm, Request

PATH = "/v1/interconn/chan/"
DEFAULT_PORT = 80


class ChannelRefused(VendorError):
    """The transport module answered with an error that no repetition cures."""


@dataclass(frozen=True)
class TransportAddress:
    """Where the transport module listens."""

    host: str
    port: int
    prefix: str  # of paths, without a slash at its end


class Connection(Protocol):
    """A connection that is opened by its first exchange."""

    @property
    def is_open(self) -> bool:
        """True if an exchange has opened the connection, until it is closed."""

    def exchange(
        self,
        verb: str,
        headers: Mapping[str, str],
        request: Request,
        seconds: float,
    ) -> tuple[int, bytes]:
        """Send a request and return the HTTP status and body of its response.

        Raises `OSError` or `http.client.HTTPException` for trouble that may pass.
        """

    def close(self) -> None:
        """Close the connection; the next exchange opens another one."""


class HttpConnection:
    """A persistent HTTP connection."""

    def __init__(self, address: TransportAddress) -> None:
        self._address = address
        self._http: http.client.HTTPConnection | None = None

    @property
    def is_open(self) -> bool:
        """True if an exchange has opened the connection, until it is closed."""
        return self._http is not None

    def exchange(
        self,
        verb: str,
        headers: Mapping[str, str],
        request: Request,
        seconds: float,
    ) -> tuple[int, bytes]:
        """Post a request. Raises `OSError`, `http.client.HTTPException`."""
        if self._http is None:
            self._http = http.client.HTTPConnection(
                self._address.host,
                self._address.port,
            )
        self._http.timeout = seconds
        if self._http.sock is not None:
            self._http.sock.settimeout(seconds)
        path = self._address.prefix + PATH + verb + request.query
        self._http.request("POST", path, request.body, {**headers, **request.headers})
        response = self._http.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        """Close the connection; the next exchange opens another one."""
        if self._http is not None:
            self._http.close()
            self._http = None


class GrpcConnection:
    """A gRPC channel.

    It reconnects by itself, so it does not count as a connection that may be stale.
    """

    is_open = False

    def __init__(self, address: TransportAddress) -> None:
        self._address = address
        self._channel: Any = None

    def exchange(
        self,
        verb: str,
        headers: Mapping[str, str],
        request: Request,
        seconds: float,
    ) -> tuple[int, bytes]:
        """Call a method. Raises `OSError` for trouble that may pass, else `ChannelRefused`."""
        grpc: Any = importlib.import_module("grpc")  # only this form needs it
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", -1),
                ("grpc.enable_http_proxy", 0),
            ]
            target = f"{self._address.host}:{self._address.port}"
            self._channel = grpc.insecure_channel(
                target,
                options=options,
            )
        metadata = [(name.lower(), value) for name, value in headers.items()]
        method = self._channel.unary_unary(GrpcForm.SERVICE + verb)
        try:
            return 200, method(
                request.body,
                metadata=metadata,
                timeout=seconds,
            )
        except grpc.RpcError as error:
            trouble = f"gRPC {error.code().name}: {error.details()}"
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise OSError(trouble) from error
            raise ChannelRefused(f"transport {verb}: {trouble}") from error

    def close(self) -> None:
        """Close the channel; the next exchange opens another one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def open_connection(address: str, form: str) -> Connection:
    """Return a connection to the transport module in the protocol of a form.

    Raises `BadParameters`.
    """
    parsed = parse_address(address)
    if form == GrpcForm.name:
        return GrpcConnection(parsed)
    return HttpConnection(parsed)


def parse_address(text: str) -> TransportAddress:
    """Read ``system.transport``: ``host:port`` or the same as an http URL. Raises
    `BadParameters`.
    """
    is_url = "://" in text
    try:
        parts = urlsplit(text if is_url else f"http://{text}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise BadParameters(f"system.transport: must be host:port, got {text!r}") from None
    lacks_port = port is None and not is_url
    if parts.scheme != "http" or not host or parts.query or lacks_port:
        raise BadParameters(f"system.transport: must be host:port, got {text!r}")
    return TransportAddress(host, port or DEFAULT_PORT, parts.path.rstrip("/"))
