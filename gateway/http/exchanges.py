"""Watches the exchanges with partners that pass a listener: bodies, their lengths, status."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.domain.spec import NodeId


class PassedBody:
    """A body that has passed: its length, and its content if that is short."""

    def __init__(self, kept_bytes: int) -> None:
        """``kept_bytes``: size of the longest body whose content is kept."""
        self.size = 0
        self.content = bytearray()  # empty if the body is longer
        self._kept_bytes = kept_bytes

    @property
    def is_kept(self) -> bool:
        """Whether `content` is the whole body."""
        return self.size <= self._kept_bytes

    def add(self, message: Message) -> None:
        """Add what a message has of the body."""
        part = message.get("body", b"")
        self.size += len(part)
        if self.is_kept:
            self.content += part
        else:
            self.content.clear()


@dataclass
class PassedExchange:
    """A request of a partner, and the response to it."""

    partner: NodeId
    scope: Scope  # of the request
    request: PassedBody
    response: PassedBody
    status: int = 0
    is_complete: bool = False  # False: the application has failed


class WatchingExchanges:
    """Middleware that hands on each exchange with a partner once it has ended, or has failed.

    - ``sender``: the node that a request comes from; empty for a request that is not watched
    - ``watch``: takes an exchange; it must not block
    - ``kept_bytes``: size of the longest body that is handed on with its content
    """

    def __init__(
        self,
        app: ASGIApp,
        sender: Callable[[Scope], str],
        watch: Callable[[PassedExchange], None],
        kept_bytes: int = 0,
    ) -> None:
        self._app = app
        self._sender = sender
        self._watch = watch
        self._kept_bytes = kept_bytes

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request on, and hand the exchange on if the request comes from a partner."""
        partner = ""
        if scope["type"] == "http":
            partner = self._sender(scope)
        if not partner:
            await self._app(scope, receive, send)
            return
        exchange = PassedExchange(
            partner,
            scope,
            PassedBody(self._kept_bytes),
            PassedBody(self._kept_bytes),
        )

        async def watched_receive() -> Message:
            message = await receive()
            exchange.request.add(message)
            return message

        async def watched_send(message: Message) -> None:
            exchange.status = message.get("status", exchange.status)
            exchange.response.add(message)
            await send(message)

        try:
            await self._app(scope, watched_receive, watched_send)
            exchange.is_complete = True
        finally:
            self._watch(exchange)
