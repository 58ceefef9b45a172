"""Counts the bytes that pass a listener, by partner."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.domain.volumes import CountVolume, Volume


class CountingVolumes:
    """Middleware that counts the bytes of each request and of its response.

    - ``sender``: the node that a request comes from; empty for one that is not to be counted
    - ``count``: takes the bytes of a request and of its response; it must not block
    """

    def __init__(
        self,
        app: ASGIApp,
        sender: Callable[[Scope], str],
        count: CountVolume,
    ) -> None:
        self._app = app
        self._sender = sender
        self._count = count

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request on, and count its bytes once it has ended, or has failed."""
        partner = ""
        if scope["type"] == "http":
            partner = self._sender(scope)
        if not partner:
            await self._app(scope, receive, send)
            return
        bytes_in = 0
        bytes_out = 0

        async def counted_receive() -> Message:
            nonlocal bytes_in
            message = await receive()
            bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal bytes_out
            bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            self._count(partner, Volume(bytes_in, bytes_out))
