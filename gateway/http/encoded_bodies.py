"""Compressed bodies: decoded while they are read, so that limits count decoded bytes."""

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.http.streamed_bodies import READ

# Scope key of a function that returns the digest of the body as sent, before decoding.
SENT_DIGEST = "gateway.sent_digest"
# Coding -> zlib's wbits, which also select the header of the format.
_WINDOWS = {
    "gzip": 31,
    "x-gzip": 31,
    "deflate": 15,
}
_RAW_DEFLATE = -15  # wbits of deflate without a header
# Lower half of the first byte of deflate with a header (RFC 1950). Many clients send no header.
_DEFLATE_METHOD = 8
_PIECE = 64 * 1024  # decoded bytes per message


class EncodingRefused(Invalid):
    """A body has a content coding that this node does not decode."""

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
        """Add a part of the encoded body."""
        self._input += data

    def piece(self) -> bytes:
        """Return decoded bytes; b"" at the end, or if more input is needed. Raises `Invalid`."""
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
        """Raise `Invalid` if the body is incomplete."""
        if self._inflater is not None and not self._inflater.eof:
            raise self._refusal("its end is missing")

    def _window(self) -> int:
        """Return zlib's parameter for the coding; for deflate it depends on the first byte."""
        has_header = self._input[0] & 0x0F == _DEFLATE_METHOD
        if self._coding == "deflate" and not has_header:
            return _RAW_DEFLATE
        return _WINDOWS[self._coding]

    def _refusal(self, cause: str) -> Invalid:
        """Return the refusal of a body that cannot be decoded."""
        rule = f"the body cannot be decoded: {cause}"
        return Invalid([Problem("content-encoding", rule, self._coding)])


class _DecodedBody:
    """The decoded body of one request.

    ``refusal`` is the error of a body that cannot be decoded; None until `receive` raises it.
    """

    def __init__(self, coding: str, receive: Receive) -> None:
        self._decoder = _Decoder(coding)
        self._receive = receive
        self._sha256 = hashlib.sha256()
        self._is_received = False  # whether the whole body was received, as it was sent
        self._is_over = False  # whether `receive` has returned the end of the decoded body
        self.refusal: Invalid | None = None

    async def receive(self) -> Message:
        """Receive the next decoded piece. Raises `Invalid`."""
        if self._is_over:  # only the message that the client has disconnected can follow
            return await self._receive()
        try:
            piece = self._decoder.piece()
            while not piece and not self._is_received:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                data = message.get("body", b"")
                self._sha256.update(data)
                self._decoder.add(data)
                self._is_received = not message.get("more_body", False)
                piece = self._decoder.piece()
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
        """Return ``content-digest`` of the bytes received so far."""
        return f"sha-256=:{b64encode(self._sha256.digest()).decode()}:"


def decoding_bodies(
    app: ASGIApp,
    refused: Callable[[Scope, Invalid], Response],
) -> ASGIApp:
    """Decode gzip and deflate for an application.

    Other codings are refused, as well as bodies that cannot be decoded; ``refused`` builds the
    response.
    """

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        codings = _codings(scope)
        if not codings:
            await app(scope, receive, send)
            return
        if len(codings) > 1 or codings[0] not in _WINDOWS:
            rule = "must be gzip, deflate or identity"
            error = EncodingRefused([Problem("content-encoding", rule, ", ".join(codings)[:100])])
            await refused(scope, error)(scope, receive, send)
            return
        body = _DecodedBody(codings[0], receive)
        is_refused = False

        async def send_or_refuse(message: Message) -> None:
            """Send the application's response; if decoding has failed, send the refusal instead."""
            nonlocal is_refused
            if message["type"] == "http.response.start" and body.refusal is not None:
                is_refused = True
                await refused(scope, body.refusal)(scope, receive, send)
            if not is_refused:
                await send(message)

        await app(_decoded_scope(scope, body), body.receive, send_or_refuse)

    return serve


def _codings(scope: Scope) -> list[str]:
    """Return the codings of a body except identity."""
    codings = []
    for name, value in scope["headers"]:
        if name != b"content-encoding":
            continue
        for coding in value.decode("latin-1").split(","):
            coding = coding.strip().lower()
            if coding not in ("", "identity"):
                codings.append(coding)
    return codings


def _decoded_scope(scope: Scope, body: _DecodedBody) -> Scope:
    """Return a request's scope as if its body had been sent decoded, with unknown length."""
    body_headers = (b"content-encoding", b"content-length", b"transfer-encoding")
    headers = [header for header in scope["headers"] if header[0] not in body_headers]
    headers.append((b"transfer-encoding", b"chunked"))
    extensions = dict(scope.get("extensions", {}))
    # `READ` would give the rest of the body as sent, not decoded.
    extensions.pop(READ, None)
    return {
        **scope,
        "headers": headers,
        "extensions": extensions,
        SENT_DIGEST: body.sent_digest,
    }
