"""Notes the exchanges of the peers' listener, as the application receives and answers them."""

from collections.abc import Callable
from datetime import datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.exchange_book import MAX_BODY, RawExchange


class NotingExchanges:
    """Middleware that hands on each exchange with a partner, once it is complete.

    - ``sender``: the node that a request comes from; empty for none that is to be noted
    - ``note``: takes an exchange; it must not block
    """

    def __init__(
        self,
        app: ASGIApp,
        sender: Callable[[Scope], str],
        note: Callable[[RawExchange], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._app = app
        self._sender = sender
        self._note = note
        self._clock = clock

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request on, and note it if it comes from a partner."""
        partner = ""
        if scope["type"] == "http":
            partner = self._sender(scope)
        if not partner:
            await self._app(scope, receive, send)
            return
        request = _Body()
        response = _Body()
        status = 0

        async def noted_receive() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                request.add(message)
            return message

        async def noted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                response.add(message)
            await send(message)

        await self._app(scope, noted_receive, noted_send)
        if request.is_short and response.is_short:
            exchange = RawExchange(
                partner,
                scope["method"],
                scope["path"],
                scope["query_string"].decode("latin-1"),
                _headers(scope),
                bytes(request.content),
                status,
                bytes(response.content),
                self._clock().isoformat(),
            )
            self._note(exchange)


class _Body:
    """The bytes of a body, as long as they are few enough to be kept."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.is_short = True

    def add(self, message: Message) -> None:
        """Add a part of the body."""
        part = message.get("body", b"")
        self.is_short = self.is_short and len(self.content) + len(part) <= MAX_BODY
        if self.is_short:
            self.content += part


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request, in lower case and with hyphens."""
    headers = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower().replace("_", "-")
        headers[key] = value.decode("latin-1")
    return headers
