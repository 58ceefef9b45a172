"""Bodies that come compressed: decoded while they are read, so that every bound of a body counts what it holds."""

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.http.streamed_bodies import READ

SENT_DIGEST = "gateway.sent_digest"
"""where the scope of a request whose body was decoded has what tells the digest of the body as it was sent"""
_WINDOWS = {
    "gzip": 31,
    "x-gzip": 31,
    "deflate": 15,
}
"""coding -> what zlib calls its format"""
_RAW_DEFLATE = -15
_ZLIB = 8
"""the lower half of the first byte of deflate with a header (RFC 1950); many clients send it without"""
_PIECE = 64 * 1024
"""decoded bytes that are in memory before somebody takes them"""


class EncodingRefused(Invalid):
    """A body comes in a coding that is not read here."""

    reason = "MEDIA_TYPE"
    code = 415


class _Decoder:
    """Decodes one body, a piece at a time."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._inflater: zlib._Decompress | None = None
        self._input = b""
        self._has_more_output = False

    def add(self, data: bytes) -> None:
        """Take a part of the body as it was sent."""
        self._input += data

    def piece(self) -> bytes:
        """Return some decoded bytes; empty: more of the body is needed. Raises `Invalid`."""
        if not self._input and not self._has_more_output:
            return b""
        if self._inflater is None:
            self._inflater = zlib.decompressobj(self._window())
        try:
            piece = self._inflater.decompress(self._input, _PIECE)
        except zlib.error as error:
            raise self._refusal(str(error)) from None
        if self._inflater.unused_data:
            raise self._refusal("something follows its end")
        self._input = self._inflater.unconsumed_tail
        self._has_more_output = len(piece) == _PIECE
        return piece

    def end(self) -> None:
        """Raise `Invalid` where the body is not whole."""
        if self._inflater is not None and not self._inflater.eof:
            raise self._refusal("its end is missing")

    def _window(self) -> int:
        if self._coding == "deflate" and self._input[0] & 0x0F != _ZLIB:
            return _RAW_DEFLATE
        return _WINDOWS[self._coding]

    def _refusal(self, cause: str) -> Invalid:
        return Invalid(
            [Problem("content-encoding", f"the body cannot be decoded: {cause}", self._coding)]
        )


class _Body:
    """The body of one request, decoded; ``refusal`` says what was wrong with it."""

    def __init__(self, coding: str, receive: Receive) -> None:
        self._decoder = _Decoder(coding)
        self._receive = receive
        self._sha256 = hashlib.sha256()
        self._is_sent = False
        self._is_over = False
        self.refusal: Invalid | None = None

    async def receive(self) -> Message:
        """Receive the next decoded piece. Raises `Invalid`."""
        if self._is_over:
            return await self._receive()
        try:
            while not (piece := self._decoder.piece()) and not self._is_sent:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                data = message.get("body", b"")
                self._sha256.update(data)
                self._decoder.add(data)
                self._is_sent = not message.get("more_body", False)
            if not piece:
                self._is_over = True
                self._decoder.end()
        except Invalid as error:
            self.refusal = error
            raise
        return {
            "type": "http.request",
            "body": piece,
            "more_body": not self._is_over,
        }

    def sent_digest(self) -> str:
        """Return ``content-digest`` of what was sent so far."""
        return f"sha-256=:{b64encode(self._sha256.digest()).decode()}:"


def decoding_bodies(app: ASGIApp, refused: Callable[[Scope, Invalid], Response]) -> ASGIApp:
    """Decode gzip and deflate before an application; refuse other codings, and what cannot be decoded."""

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        for name, _ in scope["headers"]:
            if name == b"content-encoding":
                break
        else:
            await app(scope, receive, send)
            return
        codings = _codings(scope)
        if not codings:
            await app(scope, receive, send)
            return
        if len(codings) > 1 or codings[0] not in _WINDOWS:
            sent = ", ".join(codings)[:100]
            error = EncodingRefused(
                [Problem("content-encoding", "must be gzip, deflate or identity", sent)]
            )
            await refused(scope, error)(scope, receive, send)
            return
        body = _Body(codings[0], receive)
        is_refused = False

        async def send_or_refuse(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and body.refusal is not None:
                is_refused = True
                await refused(scope, body.refusal)(scope, receive, send)
            if not is_refused:
                await send(message)

        await app(_decoded_scope(scope, body), body.receive, send_or_refuse)

    return served


def _codings(scope: Scope) -> list[str]:
    """Return the codings of a body, without those that change nothing."""
    values = [
        value.decode("latin-1") for name, value in scope["headers"] if name == b"content-encoding"
    ]
    codings = [coding.strip().lower() for coding in ",".join(values).split(",")]
    return [coding for coding in codings if coding not in ("", "identity")]


def _decoded_scope(scope: Scope, body: _Body) -> Scope:
    """Return the scope of a request as if its body had been sent decoded, of a length that is not known."""
    about_body = (b"content-encoding", b"content-length", b"transfer-encoding")
    headers = [header for header in scope["headers"] if header[0] not in about_body]
    headers.append((b"transfer-encoding", b"chunked"))
    extensions = {
        name: value for name, value in scope.get("extensions", {}).items() if name != READ
    }
    return {
        **scope,
        "headers": headers,
        "extensions": extensions,
        SENT_DIGEST: body.sent_digest,
    }
