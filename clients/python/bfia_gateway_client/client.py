"""The two clients: the same calls, blocking or asynchronous."""

import os
from collections.abc import Callable
from os import PathLike
from typing import Any, Generic, Self

from bfia_gateway_client import types
from bfia_gateway_client.bridge import call, run_blocking
from bfia_gateway_client.calls import Group, Json, W, path_of
from bfia_gateway_client.data import Data
from bfia_gateway_client.jobs import Jobs
from bfia_gateway_client.models import Models
from bfia_gateway_client.providers import Providers
from bfia_gateway_client.routes import Routes
from bfia_gateway_client.wire import AsyncWire, BlockingWire

URL = "BFIA_GATEWAY_URL"  # environment variable with the default address
TOKEN = "BFIA_GATEWAY_TOKEN"  # environment variable with the default token


class _BaseClient(Group[W], Generic[W]):
    """All calls of a client, by subject."""

    _make_wire: Callable[..., W]

    def __init__(
        self,
        url: str = "",
        token: str = "",
        *,
        ca: str | PathLike[str] | None = None,
        language: str = "",
    ) -> None:
        """``url``: address of the node's operator listener; default: the variable BFIA_GATEWAY_URL.

        ``token``: default: the variable BFIA_GATEWAY_TOKEN. ``ca``: a file with the certificate
        authority of an https address; default: the authorities of this machine. ``language``: the
        language of the node's messages, ``en`` or ``zh``. Raises `Invalid` for a wrong address,
        token or ``ca``.
        """
        address = url or os.environ.get(URL, "")
        secret = token or os.environ.get(TOKEN, "")
        wire: W = self._make_wire(
            address,
            secret.strip(),
            ca=ca,
            language=language,
        )
        super().__init__(wire)
        self.jobs = Jobs(wire)
        self.data = Data(wire)
        self.models = Models(wire)
        self.providers = Providers(wire)
        self.routes = Routes(wire)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    @property
    def url(self) -> str:
        """The node's address."""
        return self._wire.url

    @call
    async def session(self) -> types.Session:
        """Return the node's identity, and the holder and role of the token."""
        return await self._ask(types.Session, "GET", path_of("session"))

    @call
    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Json | None = None,
        seconds: float = 60,
    ) -> Any:
        """Send any request that docs/endpoints.md names; return the response's JSON.

        ``seconds``: how long to wait for the response.
        """
        return await self._wire.call(
            method,
            path,
            body,
            query=query,
            timeout=seconds,
        )


class Client(_BaseClient[BlockingWire]):
    """A node's API; calls block. Use it as a context, or `close` it. Threads may share it."""

    _make_wire = BlockingWire

    def close(self) -> None:
        """Close the connections to the node."""
        run_blocking(self._wire.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_BaseClient[AsyncWire]):
    """A node's API; calls are awaited, logs and states iterated with ``async for``.

    A client belongs to one event loop.
    """

    _make_wire = AsyncWire

    async def close(self) -> None:
        """Close the connections to the node."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
