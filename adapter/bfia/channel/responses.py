"""The transport's responses: codes of refusals, delivery of messages to readers, and the
descriptions of its paths for OpenAPI.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import anyio.to_thread
from anyio import CapacityLimiter
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapter.bfia.channel.codec import SUCCESS, Ask, Push, encode_answer, read_topic
from adapter.bfia.channel.message_forms import Form, UnknownForm, form_of
from adapter.bfia.channel.pieces import encode_base64
from gateway.broker import Broker, BufferFull, Message, PartsMissing, SessionReleased
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, PeerUnreachable, TooLarge

log = logging.getLogger(__name__)

IN_THREAD = 1 << 18  # bytes above which a body is parsed and written in a thread
# Bytes of a long message that are read and sent together: a multiple of 3, so that only the last
# chunk has padding in Base64.
_CHUNK = 3 << 18

# Codes of the standard's table for transports
PARTS_MISSING = "E0000000404"
LOOP = "E0000000503"
NOT_PERMITTED = "E0000000614"
NOT_JOINED = "E0000000618"
_OTHER_ERROR = "E0000000500"
# The first class that an error belongs to counts.
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
# HTTP statuses of refusals before a body was read; all other refusals have HTTP status 200.
_STATUSES_BEFORE_READING = (413, 415)


class ChannelRefused(GatewayError):
    """A refusal that has a code of its own in the transport's table."""

    reason = "REFUSED"
    # Every `GatewayError` has an HTTP status; but this one's response has 200, and `ptp_code` in
    # its body.
    code = 409

    def __init__(self, ptp_code: str, message: str) -> None:
        super().__init__(message)
        self.ptp_code = ptp_code
        if ptp_code == NOT_JOINED:
            # By this code, the router recognises the refusals that go into the audit log.
            self.code = NotAllowed.code


def response_form(headers: Iterable[tuple[bytes, bytes]]) -> Form:
    """Return the form of the response to a request with these raw headers.

    It is the request's own form, or JSON if that is unknown.
    """
    content_type = ""
    for name, value in headers:
        if name.lower() == b"content-type":
            content_type = value.decode("latin-1")
            break
    try:
        return form_of(content_type, read_topic(headers))
    except UnknownForm:
        return Form.JSON


def success(form: Form) -> Response:
    """Return a success without content."""
    return Response(_success_body(form), media_type=form.value)


@cache
def _success_body(form: Form) -> bytes:
    """Return the body of a success without content."""
    return encode_answer(SUCCESS, "success", form=form)


def refusal(error: GatewayError, form: Form) -> Response:
    """Return the response to a request that failed."""
    code = _code_of(error)
    if code == _OTHER_ERROR:
        log.error("channel request failed", extra={"error": error.message})
    status = 200
    if error.code in _STATUSES_BEFORE_READING:
        status = error.code
    return reply(code, error.message, form, status)


def _code_of(error: GatewayError) -> str:
    """Return the transport's code for an error."""
    if isinstance(error, ChannelRefused):
        return error.ptp_code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return _OTHER_ERROR


def reply(
    code: str,
    message: str,
    form: Form,
    status: int = 200,
) -> Response:
    """Return a response with any code."""
    body = encode_answer(code, message, form=form)
    return Response(body, status_code=status, media_type=form.value)


class Handover(Response):
    """A response that waits for a message, and reports to the broker whether it was delivered.

    A reader that hangs up cancels the wait or the sending. The last chunk of a long response is
    held back until all other chunks have left this process: a reader that hangs up before then does
    not lose the message, which is put back.
    """

    def __init__(
        self,
        broker: Broker,
        pop: Callable[[], Awaitable[Message | None]],
        frame: Callable[[Message], list[bytes | None]],
        form: Form,
        limiter: CapacityLimiter,
    ) -> None:
        """``pop`` returns the message; None if none arrives in time.

        ``frame`` returns the pieces of the response, with None in each place of the content (JSON
        has two such places). ``limiter`` bounds the threads that read long messages.
        """
        super().__init__()
        self._broker = broker
        self._pop = pop
        self._frame = frame
        self._form = form
        self._limiter = limiter

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Wait for the message and send it; a reader that hangs up ends both."""
        responding = asyncio.current_task()
        assert responding is not None
        has_hung_up = False

        async def watch() -> None:
            nonlocal has_hung_up
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    break
            has_hung_up = True
            responding.cancel()

        # A plain task, because a task group would cost an eighth of a small message's time.
        watching = asyncio.ensure_future(watch())
        try:
            await self._respond(scope, receive, send)
        except asyncio.CancelledError:
            # `uncancel` takes back the cancellation by `watch`, and returns the number of other
            # cancellations, such as by the end of the server.
            is_cancelled_by_server = not has_hung_up or responding.uncancel() > 0
            if is_cancelled_by_server:
                raise
        finally:
            watching.cancel()

    async def _respond(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Take a message and send it; put it back if it could not be sent completely."""
        try:
            message = await self._pop()
        except GatewayError as error:
            await refusal(error, self._form)(scope, receive, send)
            return
        if message is None:
            await success(self._form)(scope, receive, send)
            return
        try:
            await _let_watch_run()
            if message.size <= IN_THREAD:
                await self._send_short(message, send)
            else:
                await self._send_long(message, send)
        except BaseException:
            self._broker.put_back(message)
            raise
        self._broker.confirm_delivery(message)

    async def _send_short(self, message: Message, send: Send) -> None:
        """Send a message in one piece."""
        content = self._encode(message.payload)
        body = b"".join(_fill_in(self._frame(message), content))
        await send(_start(len(body), self._form))
        await send({"type": "http.response.body", "body": body})

    async def _send_long(self, message: Message, send: Send) -> None:
        """Send a message chunk by chunk; the chunks are read in threads.

        The last chunk is sent only if the reader has not hung up, as the message counts as
        delivered afterwards.
        """
        pieces = self._frame(message)
        await send(_start(self._response_size(pieces, message.size), self._form))
        held_back = b""
        chunks = self._chunks(message, pieces)
        while True:
            chunk = await anyio.to_thread.run_sync(
                next,
                chunks,
                None,
                limiter=self._limiter,
            )
            if chunk is None:
                break
            if held_back:
                await send(
                    {
                        "type": "http.response.body",
                        "body": held_back,
                        "more_body": True,
                    }
                )
            held_back = chunk
        await _let_watch_run()
        await send({"type": "http.response.body", "body": held_back})

    def _chunks(
        self,
        message: Message,
        pieces: list[bytes | None],
    ) -> Iterator[bytes]:
        """Yield a long response in chunks; reads the message from its file."""
        for piece in pieces:
            if piece is not None:
                yield piece
                continue
            for content in message.pieces(_CHUNK):
                yield self._encode(content)

    def _encode(self, content: bytes) -> bytes:
        """Return a content as the response has it: in JSON as Base64."""
        if self._form is Form.JSON:
            return encode_base64(content)
        return content

    def _response_size(
        self,
        pieces: list[bytes | None],
        content_size: int,
    ) -> int:
        """Return the number of bytes of a response; ``pieces``: as `codec.frame` returns them."""
        if self._form is Form.JSON:
            content_size = -(-content_size // 3) * 4  # Base64: 4 characters for each 3 bytes
        size = 0
        for piece in pieces:
            if piece is None:
                size += content_size
            else:
                size += len(piece)
        return size


def _fill_in(
    pieces: list[bytes | None],
    content: bytes,
) -> Iterator[bytes]:
    """Yield the pieces of a response, with the content in its places."""
    for piece in pieces:
        if piece is None:
            yield content
        else:
            yield piece


async def _let_watch_run() -> None:
    """Let the task ``watch`` of `Handover.__call__` run.

    If the reader has just hung up, that task cancels the response.
    """
    await asyncio.sleep(0)


def _start(size: int, form: Form) -> dict[str, Any]:
    """Return ASGI's message that starts a response with a body of ``size`` bytes."""
    headers = [
        (b"content-type", form.value.encode()),
        (b"content-length", b"%d" % size),
    ]
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": headers,
    }


# ---------------------------------------------------------------- description of the paths


def _describe(
    summary: str,
    body: type[BaseModel] | None,
    example: dict[str, Any],
    *headers: "_Header",
) -> dict[str, Any]:
    """Return the keyword arguments with which `add_api_route` describes a path.

    ``body`` None: no JSON model describes the body. ``headers``: those besides the session's.
    """
    schema: dict[str, Any] = {"type": "object"}
    if body is not None:
        schema = body.model_json_schema()
    response = {"content": {"application/json": {"schema": _RESPONSE}}}
    return {
        "summary": summary,
        "openapi_extra": {
            "parameters": [header.parameter for header in (_SESSION, *headers)],
            "requestBody": {
                # A body without required fields may be absent.
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


class _Header(NamedTuple):
    """A header in the interface description."""

    name: str
    description: str
    example: str = ""
    required: bool = False

    @property
    def parameter(self) -> dict[str, Any]:
        """The header as OpenAPI describes parameters."""
        return {
            "in": "header",
            "schema": {"type": "string"},
            "name": self.name,
            "description": self.description,
            "required": self.required,
            "example": self.example,
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
# Examples
_THIS_NODE = "JG0100001100000010"
_OTHER_NODE = "JG0100001100000011"
_TOPIC = {"topic": "guest.0-host.0"}
_MESSAGE = {
    **_TOPIC,
    "payload": "aGVsbG8=",
    "metadata": {"sequence": "1"},
}

# Headers of several paths
_SESSION = _Header(
    "x-ptp-session-id",
    "session; session_<job id>",
    example="session_example",
    required=True,
)
_TOKEN = _Header(
    "x-ptp-token",
    "config.token; Docker containers may leave it out: their address tells",
)
# In a pop or peek, the target names the node from which the message must come.
_SOURCE_OF_POP = _Header(
    "x-ptp-target-node-id",
    "own node or none: any source; a peer: that source only",
)
_POP_ID = _Header(
    "x-ptp-pop-id",
    "names one logical pop; its repeat gets the same message",
)
_SENDER = _Header(
    "x-ptp-source-node-id",
    "the sending node",
    example=_OTHER_NODE,
    required=True,
)

_TARGET_INSTITUTION = _Header(
    "x-ptp-target-inst-id",
    "the receiving node's institution; needed if the node is absent",
)
_TARGET_NODE = _Header("x-ptp-target-node-id", "this node", example=_THIS_NODE)

PUSH_DESCRIPTION = _describe(
    "Append a message to a topic on the target node",
    Push,
    _MESSAGE,
    _Header(
        "x-ptp-target-node-id",
        "the receiving node; this node: for its other parties, not for the sender",
        example=_THIS_NODE,
    ),
    _TARGET_INSTITUTION,
    _TOKEN,
)
POP_DESCRIPTION = _describe(
    "Take the next message of a topic; wait for it if there is none",
    Ask,
    {**_TOPIC, "timeout": 1000},
    _SOURCE_OF_POP,
    _TOKEN,
    _POP_ID,
)
PEEK_DESCRIPTION = _describe(
    "Take the next message of a topic if there is one",
    Ask,
    _TOPIC,
    _SOURCE_OF_POP,
    _TOKEN,
    _POP_ID,
)
RELEASE_DESCRIPTION = _describe(
    "Drop a topic; without a topic: all unread messages of a session that no other run here uses",
    Ask,
    {**_TOPIC, "timeout": 10000},
    _TOKEN,
)
INVOKE_DESCRIPTION = _describe(
    "Store a message that another node's transport brings",
    Push,
    _MESSAGE,
    _Header(
        "x-ptp-version",
        "1: the body is the container's push; else it is wrapped in an Inbound",
        example="1",
    ),
    _Header("x-ptp-uri", "what it is for on this node", example="/v1/interconn/chan/push"),
    _SENDER,
    _TARGET_NODE,
)
TRANSPORT_DESCRIPTION = _describe(
    "Store a message that another node's transport brings as the body of the path in x-ptp-uri",
    Push,
    _MESSAGE,
    _Header("x-ptp-uri", "what it is for on this node", example="/v1/interconn/chan/push"),
    _SENDER,
    _TARGET_NODE,
    _TARGET_INSTITUTION,
)
PART_DESCRIPTION = _describe(
    "Store a part of a message's bare payload that another node of this kind brings",
    None,
    {},
    _Header(
        "x-ptp-part",
        "offset, size of the whole message, crc32 of this part; parts have 2 MiB, the last less",
        example="0/2097152/0a1b2c3d",
        required=True,
    ),
    _Header(
        "x-ptp-message-id",
        "names the message in each of its parts",
        example="5f0c",
        required=True,
    ),
    _Header(
        "x-ptp-topic",
        "the message's topic",
        example="guest.0-host.0",
        required=True,
    ),
    _SENDER,
)
