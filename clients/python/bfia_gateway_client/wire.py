"""The one place that sends requests, blocking or with asyncio, and reads responses."""

import asyncio
import inspect
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.errors import (
    MAYBE_DONE,
    Invalid,
    NoAnswer,
    NotANode,
    Problem,
    Refused,
    invalid,
)

if TYPE_CHECKING:  # importing it takes longer than most commands
    import httpx

SLOW = (60.0, None, 60.0, 60.0)
"""seconds to connect, read, write and get a connection, for requests that a node works on before its first byte"""
_PIECE = 1024 * 1024
"""bytes"""
_HARMLESS = path_of("jobs", "plan")
"""what changes nothing, though its method says so"""
_WANTED = {"want-repr-digest": "sha-256=1"}


@dataclass(frozen=True)
class File:
    """What is sent in pieces."""

    name: str
    content: BinaryIO
    media_type: str = "application/octet-stream"

    def pieces(self) -> Iterator[bytes]:
        """Yield the content."""
        while piece := self.content.read(_PIECE):
            yield piece


class Wire:
    """Requests to one node. Every method raises `GatewayError`."""

    blocks: bool
    """whether a request blocks, so that nothing here ever suspends"""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        ca: str | PathLike[str] | None = None,
        language: str = "",
    ):
        """``ca``: a file with the certificate authority of an https address; default: those of this machine."""
        import httpx

        self.url = url.rstrip("/")
        self._token = token
        self._broken = httpx.HTTPError
        if not url:
            raise invalid(Problem("url", "is missing: give it, or set BFIA_GATEWAY_URL"))
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("expected http://host:port")
            httpx.URL(self.url)
        except (httpx.InvalidURL, ValueError) as error:
            raise invalid(
                Problem("url", f"is not a valid address of a node: {error}", url)
            ) from None
        if any(not "!" <= letter <= "~" for letter in token):
            raise invalid(
                Problem("token", "holds characters that no token has; copy the token again")
            )
        headers = {"accept-language": language} if language else {}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        secure: Any = (
            parts.scheme == "https"
        )  # reading the certificate authorities takes longer than a request
        if secure and ca is not None:
            import ssl

            try:
                secure = ssl.create_default_context(cafile=ca)
            except OSError as error:
                raise invalid(
                    Problem("ca", f"is not a readable file of certificates: {error}", str(ca))
                ) from None
        self.options = {
            "base_url": self.url,
            "headers": headers,
            "trust_env": False,
            "verify": secure,
        }
        self._http: Any = (httpx.Client if self.blocks else httpx.AsyncClient)(**self.options)

    async def close(self) -> None:
        """Close the connections."""
        await _done(self._http.close() if self.blocks else self._http.aclose())

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        if self.blocks:
            time.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        form: Mapping[str, Any] | None = None,
        file: File | None = None,
        timeout: float | None = 60.0,
    ) -> Any:
        """Send a request; return the response's JSON. An envelope's error code fails at any HTTP status.

        ``query``: what is None, False or empty is left out. ``form`` has its ``file`` as a part; without a form
        the file is the body. ``timeout`` is in seconds; None: `SLOW`.
        """
        sent: dict[str, Any] = {
            "method": method,
            "url": path,
            "params": _given(query or {}),
        }
        sent["timeout"] = SLOW if timeout is None else timeout
        if form is not None:
            sent["data"] = form
            sent["files"] = {"file": (file.name, file.content, file.media_type)} if file else None
        elif file is not None:
            pieces = file.pieces() if self.blocks else _each(file.pieces())
            sent |= {"content": pieces, "headers": {"content-type": file.media_type}}
        elif body is not None:
            sent |= {"content": _json(body), "headers": {"content-type": "application/json"}}
        _check(path)
        with self._reached(changing=method != "GET" and path != _HARMLESS):
            response = await _done(self._http.request(**sent))
        return self._read(response)

    async def fetch(
        self,
        path: str,
        piece: Callable[[bytes, int | None], None],
        query: Mapping[str, Any] | None = None,
    ) -> Mapping[str, str]:
        """Get a response, and return its headers; ``piece`` gets each part, and the bytes of all if known."""
        async with self._streamed(path, query) as response:
            text = response.headers.get("content-length", "")
            async for part in self._pieces(response, _PIECE):
                piece(part, int(text) if text.isdecimal() else None)
            return response.headers

    async def lines(
        self, path: str, query: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a response, such as a log or events, as they come; only a line feed ends one."""
        rest = b""
        async with self._streamed(path, query) as response:
            async for piece in self._pieces(response):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    async def events(
        self, path: str, query: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yield the kind and the line of each event of a response."""
        kind = ""
        async for line in self.lines(path, query):
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, line.removeprefix("data: ")

    def _pieces(self, response: "httpx.Response", size: int | None = None) -> AsyncIterator[bytes]:
        return _each(response.iter_bytes(size) if self.blocks else response.aiter_bytes(size))

    @asynccontextmanager
    async def _streamed(
        self, path: str, query: Mapping[str, Any] | None
    ) -> "AsyncIterator[httpx.Response]":
        _check(path)
        sent = {
            "method": "GET",
            "url": path,
            "params": _given(query or {}),
            "headers": _WANTED,
            "timeout": SLOW,
        }
        with self._reached():
            async with _entered(self._http.stream(**sent), blocks=self.blocks) as response:
                if response.status_code >= 400:
                    await _done(response.read() if self.blocks else response.aread())
                    self._read(response)
                yield response

    @contextmanager
    def _reached(self, *, changing: bool = False) -> Iterator[None]:
        import httpx

        try:
            yield
        except self._broken as error:
            unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
            step = MAYBE_DONE if changing and not isinstance(error, unsent) else ""
            cause = re.sub(r"\[Errno -?\d+\] ", "", f"{type(error).__name__} {error}").strip()
            cause = cause.replace(self._token, "…") if self._token else cause
            raise NoAnswer(f"no response from {self.url}: {cause}", next_step=step) from error

    def _read(self, response: "httpx.Response") -> Any:
        try:
            body = response.json()
        except ValueError:
            body = None
        code = body.get("code", 0) if isinstance(body, Mapping) else 0
        status = response.status_code
        if status < 400 and body is not None and code in (0, 200):
            return body
        if not isinstance(body, Mapping):
            raise NotANode(
                f"HTTP {status} without JSON: is {self.url} a node's operator listener?",
                status=status,
            )
        data = body["data"] if isinstance(body.get("data"), Mapping) else {}
        bad_input = (
            status in (400, 422) or code in (400, 422) or data.get("reason") == Invalid.reason
        )
        raise (Invalid if bad_input else Refused)(
            str(body.get("msg") or body.get("message") or body.get("detail") or f"HTTP {status}"),
            reason=str(data.get("reason") or ""),
            next_step=str(data.get("next_step") or ""),
            problems=map(_problem, data.get("problems") or ()),
            data=data,
            status=status,
        )


def _problem(one: Mapping[str, Any]) -> Problem:
    return Problem(
        str(one.get("path")), str(one.get("rule")), one.get("got"), str(one.get("suggestion") or "")
    )


def _check(path: str) -> None:
    """Raise `Invalid` where a name in a path is empty: it would be another path."""
    if "//" in path or path.endswith("/"):
        raise invalid(Problem("name", "must not be empty", ""))


def _json(body: Any) -> bytes:
    """Return a body as JSON. Raises `Invalid` for what JSON cannot express, such as NaN or a number of numpy's."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise invalid(Problem("body", f"holds what JSON cannot express: {error}")) from None


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {
        k: ("1" if v is True else v)
        for k, v in query.items()
        if v is not None and v is not False and v != ""
    }


class BlockingWire(Wire):
    """Blocks until the response is there. Threads may share it."""

    blocks = True


class AsyncWire(Wire):
    """Awaits the response. One event loop uses it."""

    blocks = False


async def _done(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


@asynccontextmanager
async def _entered(context: Any, *, blocks: bool) -> AsyncIterator[Any]:
    if blocks:
        with context as found:
            yield found
    else:
        async with context as found:
            yield found


async def _each(pieces: Any) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterator):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece
