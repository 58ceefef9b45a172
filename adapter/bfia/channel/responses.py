"""The transport's answers: which code a refusal has, and how a message is handed to its reader."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapter.bfia.channel.codec import SUCCESS, UnknownForm, encode_answer
from gateway.broker import Broker, BufferFull, Message, SessionReleased
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, PeerUnreachable, TooLarge

log = logging.getLogger(__name__)

IN_THREAD = 1 << 18
"""Bytes over which a body is read and written in a thread."""

_CODES: tuple[tuple[type[GatewayError], str], ...] = (
    (BufferFull, "E0000000700"),
    (SessionReleased, "E0000000608"),
    (UnknownForm, "E0000000616"),
    (TooLarge, "E0000000413"),
    (Invalid, "E0000000400"),
    (NotAllowed, "E0000000403"),
    (NotFound, "E0000000404"),
    (PeerUnreachable, "E0000000607"),
)
LOOP = "E0000000503"
NOT_PERMITTED = "E0000000614"
NOT_JOINED = "E0000000618"
_OTHERWISE = "E0000000500"


class ChannelRefused(GatewayError):
    """A refusal that has a code of its own in the transport's table."""

    reason = "REFUSED"
    code = 409

    def __init__(self, ptp_code: str, message: str) -> None:
        super().__init__(message)
        self.ptp_code = ptp_code


def success() -> Response:
    """Says that it was done, and that there is no content."""
    return reply(SUCCESS, "success")


def refusal(error: GatewayError) -> Response:
    """Says why it was not done."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _OTHERWISE)
    if isinstance(error, ChannelRefused):
        code = error.ptp_code
    if code == _OTHERWISE:
        log.error("channel request failed", extra={"error": error.message})
    return reply(code, error.message, 413 if isinstance(error, TooLarge) else 200)


def reply(code: str, message: str, status: int = 200) -> Response:
    """Answers with any code."""
    body = b"".join(encode_answer(code, message))
    return Response(body, status_code=status, media_type="application/json")


class Handover(Response):
    """An answer that waits for a message, and tells the broker whether the message got out.

    A reader that hangs up cancels the wait or the sending. A long answer holds its end back until all before it
    has left this process, so that a reader that is gone by then does not take the message with it.
    """

    def __init__(
        self,
        broker: Broker,
        taking: Callable[[], Awaitable[Message | None]],
        written: Callable[[Message], Awaitable[list[bytes]]],
    ) -> None:
        super().__init__()
        self._broker = broker
        self._taking = taking
        self._written = written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the message and send it; a reader that hangs up ends both."""
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                message = await self._taking()
            except GatewayError as error:
                await refusal(error)(scope, receive, send)
            else:
                if message is None:
                    await success()(scope, receive, send)
                else:
                    await self._hand_over(message, send)
            group.cancel_scope.cancel()

    async def _hand_over(self, message: Message, send: Send) -> None:
        try:
            await _go_on()
            pieces = await self._written(message)
            await send(_start(200, pieces))
            if sum(map(len, pieces)) > IN_THREAD:
                for piece in pieces[:-1]:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                pieces = pieces[-1:]
                await _go_on()
            await send({"type": "http.response.body", "body": b"".join(pieces)})
        except BaseException:
            self._broker.returned(message)
            raise
        self._broker.delivered(message)


async def _go_on() -> None:
    """Gives the watch its turn, and ends the sending if the reader has just hung up."""
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint_if_cancelled()


def _start(status: int, pieces: list[bytes]) -> dict[str, Any]:
    length = str(sum(map(len, pieces))).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    return {"type": "http.response.start", "status": status, "headers": headers}
