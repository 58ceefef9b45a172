"""The transport's responses: the code of each refusal, how a message gets to its reader, their description."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapter.bfia.channel.codec import SUCCESS, Ask, Push, encode_answer, read_topic
from adapter.bfia.channel.forms import Form, UnknownForm, form_of
from adapter.bfia.channel.pieces import encode_base64
from gateway.broker import Broker, BufferFull, Message, PartsMissing, SessionReleased
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, PeerUnreachable, TooLarge

log = logging.getLogger(__name__)

IN_THREAD = 1 << 18
"""Bytes over which a body is read and written in a thread."""
_PIECE = 3 << 18
"""bytes of a long message that are read and sent together; a multiple of what Base64 takes together"""

PARTS_MISSING = "E0000000404"
_CODES: tuple[tuple[type[GatewayError], str], ...] = (
    (BufferFull, "E0000000700"),
    (SessionReleased, "E0000000608"),
    (UnknownForm, "E0000000616"),
    (TooLarge, "E0000000413"),
    (PartsMissing, PARTS_MISSING),
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
        if ptp_code == NOT_JOINED:
            self.code = NotAllowed.code


def form_for(headers: Iterable[tuple[bytes, bytes]]) -> Form:
    """Return the form in which a request with these raw headers is answered; JSON where it has no known one."""
    kind = next(
        (value.decode("latin-1") for name, value in headers if name.lower() == b"content-type"), ""
    )
    try:
        return form_of(kind, read_topic(headers))
    except UnknownForm:
        return Form.JSON


def success(form: Form) -> Response:
    """Return a success without content."""
    return Response(_success(form), media_type=form.value)


@cache
def _success(form: Form) -> bytes:
    return encode_answer(SUCCESS, "success", form=form)


_KEPT_STATUS = (413, 415)
"""HTTP statuses of refusals of a body that was not read"""


def refusal(error: GatewayError, form: Form) -> Response:
    """Return the response to a request that failed."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _OTHERWISE)
    if isinstance(error, ChannelRefused):
        code = error.ptp_code
    if code == _OTHERWISE:
        log.error("channel request failed", extra={"error": error.message})
    return reply(code, error.message, form, error.code if error.code in _KEPT_STATUS else 200)


def reply(
    code: str,
    message: str,
    form: Form,
    status: int = 200,
) -> Response:
    """Return a response with any code."""
    return Response(
        encode_answer(code, message, form=form), status_code=status, media_type=form.value
    )


class Handover(Response):
    """A response that waits for a message, and reports to the broker whether the message got out.

    A reader that hangs up cancels the wait or the sending. The end of a long response is held back until all
    before it has left this process, so that a reader that is gone by then does not take the message with it.
    """

    def __init__(
        self,
        broker: Broker,
        taking: Callable[[], Awaitable[Message | None]],
        frame: Callable[[Message], list[bytes | None]],
        form: Form,
        limiter: CapacityLimiter,
    ) -> None:
        """``frame`` gives the pieces of the response, None for the content; ``limiter`` bounds reading threads."""
        super().__init__()
        self._form = form
        self._broker = broker
        self._taking = taking
        self._frame = frame
        self._limiter = limiter

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Wait for the message and send it; a reader that hangs up ends both."""
        here, gone = asyncio.current_task(), False
        assert here is not None

        async def watch() -> (
            None
        ):  # by plain tasks: a task group costs an eighth of a small message
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            here.cancel()

        watching = asyncio.ensure_future(watch())
        try:
            await self._respond(scope, receive, send)
        except asyncio.CancelledError:
            if not gone or here.uncancel():
                raise
        finally:
            watching.cancel()

    async def _respond(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            message = await self._taking()
        except GatewayError as error:
            await refusal(error, self._form)(scope, receive, send)
        else:
            if message is None:
                await success(self._form)(scope, receive, send)
            else:
                await self._hand_over(message, send)

    async def _hand_over(self, message: Message, send: Send) -> None:
        try:
            await _go_on()
            pieces = self._frame(message)
            encode = encode_base64 if self._form is Form.JSON else bytes
            if message.size <= IN_THREAD:
                content = encode(message.payload)
                body = b"".join(content if piece is None else piece for piece in pieces)
                await send(_start(200, len(body), self._form))
                await send({"type": "http.response.body", "body": body})
            else:
                size = -(-message.size // 3) * 4 if self._form is Form.JSON else message.size
                await send(
                    _start(200, sum(size if p is None else len(p) for p in pieces), self._form)
                )
                await self._send_long(message, pieces, encode, send)
        except BaseException:
            self._broker.returned(message)
            raise
        self._broker.delivered(message)

    async def _send_long(
        self,
        message: Message,
        pieces: list[bytes | None],
        encode: Callable[[bytes], bytes],
        send: Send,
    ) -> None:
        held = b""
        for piece in pieces:
            parts = iter([piece]) if piece is not None else map(encode, message.pieces(_PIECE))
            while (
                part := await anyio.to_thread.run_sync(next, parts, None, limiter=self._limiter)
            ) is not None:
                if held:
                    await send(
                        {
                            "type": "http.response.body",
                            "body": held,
                            "more_body": True,
                        }
                    )
                held = part
        await _go_on()
        await send({"type": "http.response.body", "body": held})


async def _go_on() -> None:
    """Gives the watch its turn, which ends the sending if the reader has just hung up."""
    await asyncio.sleep(0)


def _start(
    status: int,
    size: int,
    form: Form,
) -> dict[str, Any]:
    headers = [(b"content-type", form.value.encode()), (b"content-length", b"%d" % size)]
    return {
        "type": "http.response.start",
        "status": status,
        "headers": headers,
    }


def described(
    summary: str,
    body: type[BaseModel] | None,
    example: dict[str, Any],
    *headers: tuple[str, str, str, bool],
) -> dict[str, Any]:
    """Return a path's options for the interface description.

    ``headers``: name, description, example, and whether it is required.
    """
    schema = body.model_json_schema() if body else {"type": "object"}
    response = {"content": {"application/json": {"schema": _RESPONSE}}}
    text = {"in": "header", "schema": {"type": "string"}}
    return {
        "summary": summary,
        "openapi_extra": {
            "parameters": [
                text
                | {
                    "name": name,
                    "description": about,
                    "required": required,
                    "example": shown,
                }
                for name, about, shown, required in (_SESSION, *headers)
            ],
            "requestBody": {
                "required": bool(schema.get("required")),
                "content": {
                    "application/json": {"schema": schema | {"example": example}},
                    **_OTHER_FORMS,
                },
            },
            "responses": {
                "200": {"description": "the code tells success from failure", **response},
                "413": {"description": "the body is over the limit", **response},
            },
        },
    }


_RESPONSE = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "E0000000000, or why it failed"},
        "message": {"type": "string"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "content": {"type": "string", "format": "byte"},
        "payload": {
            "type": "string",
            "format": "byte",
            "description": "the same bytes as content",
        },
    },
    "required": ["code", "message"],
    "example": {
        "code": SUCCESS,
        "message": "success",
        "metadata": {},
        "content": "",
        "payload": "",
    },
}
_BYTES = {"type": "string", "format": "binary"}
_OTHER_FORMS = {
    "application/x-protobuf": {
        "schema": _BYTES | {"description": "the message in protobuf; the response too"}
    },
    "application/octet-stream": {
        "schema": _BYTES
        | {"description": "the bare payload, with x-ptp-topic; the response is in protobuf"}
    },
}
_HERE, _THERE = "JG0100001100000010", "JG0100001100000011"
_SESSION = ("x-ptp-session-id", "session; session_<job id>", "session_example", True)
_TOKEN = (
    "x-ptp-token",
    "config.token; Docker containers may leave it out: their address tells",
    "",
    False,
)
_FROM = (
    "x-ptp-target-node-id",
    "own node or none: any source; a peer: that source only",
    "",
    False,
)
_POP_ID = ("x-ptp-pop-id", "names one logical pop; its repeat gets the same message", "", False)
_SENDER = ("x-ptp-source-node-id", "the sending node", _THERE, True)
_TOPIC = {"topic": "guest.0-host.0"}
_MESSAGE = {
    **_TOPIC,
    "payload": "aGVsbG8=",
    "metadata": {"sequence": "1"},
}

PUSH = described(
    "Append a message to a topic on the target node",
    Push,
    _MESSAGE,
    (
        "x-ptp-target-node-id",
        "the node that is to receive it; at the own one only other parties do",
        _HERE,
        True,
    ),
    _TOKEN,
)
POP = described(
    "Take the next message of a topic; wait for it if there is none",
    Ask,
    {**_TOPIC, "timeout": 1000},
    _FROM,
    _TOKEN,
    _POP_ID,
)
PEEK = described(
    "Take the next message of a topic if there is one", Ask, _TOPIC, _FROM, _TOKEN, _POP_ID
)
RELEASE = described(
    "Drop a topic; without one, what is kept for repeats of the reader's pops",
    Ask,
    {**_TOPIC, "timeout": 10000},
    _TOKEN,
)
INVOKE = described(
    "Store a message that another node's transport brings",
    Push,
    _MESSAGE,
    (
        "x-ptp-version",
        "1: the body is the container's push; else it is wrapped in an Inbound",
        "1",
        False,
    ),
    ("x-ptp-uri", "what it is for on this node", "/v1/interconn/chan/push", False),
    _SENDER,
    ("x-ptp-target-node-id", "this node", _HERE, False),
)
TRANSPORT = described("Not served over HTTP: responds with E0000000614", None, {})
PART = described(
    "Store a part of a message's bare payload that another node of this kind brings",
    None,
    {},
    (
        "x-ptp-part",
        "offset, size of the whole, and crc32 of the body, which has 2 MiB, the last one less",
        "0/2097152/0a1b2c3d",
        True,
    ),
    ("x-ptp-message-id", "names the message in each of its parts", "5f0c", True),
    ("x-ptp-topic", "the message's topic", "guest.0-host.0", True),
    _SENDER,
)
