"""httpx over links: the relay's requests for a node that opens links to this one."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpcore
import httpx

from adapter.bfia.outbound import ROUTE_URL
from gateway.links.links import Connector
from route_table.model import link_url

_MAX_CONNECTIONS = 256  # as many as the relay opens to all nodes without a link
_MAX_KEPT = 64  # idle connections
_KEPT_SECONDS = 4.0


class LinkTransport(httpx.AsyncBaseTransport):
    """Sends requests to URLs of links; their errors are those of httpx."""

    def __init__(self, links: Connector) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_KEPT,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=_LinkBackend(links),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its response, whose body is still to be read."""
        url = httpcore.URL(
            scheme=b"http",
            host=str(request.extensions[ROUTE_URL]).removeprefix(link_url("")).encode("ascii"),
            port=80,
            target=request.url.raw_path,
        )
        sent = httpcore.Request(
            request.method,
            url,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            response = await self._pool.handle_async_request(sent)
        except httpcore.ConnectError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except httpcore.PoolTimeout as error:
            raise httpx.PoolTimeout(str(error), request=request) from error
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    """The body of a response, as httpx reads it."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.aiter_stream():
                yield piece
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise httpx.ReadError(str(error)) from error

    async def aclose(self) -> None:
        await self._response.aclose()


class _LinkBackend(httpcore.AsyncNetworkBackend):
    """Opens connections over links instead of TCP."""

    def __init__(self, links: Connector) -> None:
        self._links = links

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return a connection over a link to a host, which is the one of a link's URL."""
        try:
            sock = self._links.connect(link_url("") + host)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        assert sock is not None  # the URL of a link is never dialled
        reader, writer = await asyncio.open_connection(sock=sock)
        return _LinkStream(reader, writer)


class _LinkStream(httpcore.AsyncNetworkStream):
    """One connection over a link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes; b"" at the end."""
        try:
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write bytes, and wait while the link takes no more."""
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(buffer)
                await self._writer.drain()
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return the connection: the link itself is encrypted."""
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return whether an idle connection is over, by which a pool decides to use it again."""
        if info == "is_readable":
            return self._reader.at_eof()
        return None
