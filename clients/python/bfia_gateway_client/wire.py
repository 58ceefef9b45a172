"""The one place that sends requests, blocking or with asyncio, and reads responses."""

import asyncio
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.errors import MAYBE_DONE, Invalid, NoAnswer, NotANode, Problem, Refused, invalid

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


class Wire(ABC):
    """Requests to one node. Every method raises `GatewayError`."""

    blocks: bool

    def __init__(self, url: str, token: str = "", *, ca: str | PathLike[str] | None = None, language: str = ""):
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
            raise invalid(Problem("url", f"is not a valid address of a node: {error}", url)) from None
        if any(not "!" <= letter <= "~" for letter in token):
            raise invalid(Problem("token", "holds characters that no token has; copy the token again"))
        headers = {"accept-language": language} if language else {}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        secure: Any = parts.scheme == "https"  # reading the certificate authorities takes longer than a request
        if secure and ca is not None:
            import ssl

            try:
                secure = ssl.create_default_context(cafile=ca)
            except OSError as error:
                raise invalid(Problem("ca", f"is not a readable file of certificates: {error}", str(ca))) from None
        self.options = {"base_url": self.url, "headers": headers, "trust_env": False, "verify": secure}

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    async def _send(self, **sent: Any) -> "httpx.Response": ...

    @abstractmethod
    def _open(self, **sent: Any) -> "AbstractAsyncContextManager[httpx.Response]": ...

    @abstractmethod
    async def _whole(self, response: "httpx.Response") -> None: ...

    @abstractmethod
    def _pieces(self, response: "httpx.Response", size: int | None) -> AsyncIterator[bytes]: ...

    @abstractmethod
    def _body(self, file: File) -> Any: ...

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
        sent: dict[str, Any] = {"method": method, "url": path, "params": _given(query or {})}
        sent["timeout"] = SLOW if timeout is None else timeout
        if form is not None:
            sent["data"] = form
            sent["files"] = {"file": (file.name, file.content, file.media_type)} if file else None
        elif file is not None:
            sent |= {"content": self._body(file), "headers": {"content-type": file.media_type}}
        elif body is not None:
            sent |= {"content": _json(body), "headers": {"content-type": "application/json"}}
        _check(path)
        with self._reached(changing=method != "GET" and path != _HARMLESS):
            response = await self._send(**sent)
        return self._read(response)

    async def fetch(
        self, path: str, piece: Callable[[bytes, int | None], None], query: Mapping[str, Any] | None = None
    ) -> Mapping[str, str]:
        """Get a response, and return its headers; ``piece`` gets each part, and the bytes of all if known."""
        async with self._streamed(path, query) as response:
            text = response.headers.get("content-length", "")
            async for part in self._pieces(response, _PIECE):
                piece(part, int(text) if text.isdecimal() else None)
            return response.headers

    async def lines(self, path: str, query: Mapping[str, Any] | None = None) -> AsyncGenerator[str, None]:
        """Yield the lines of a response, such as a log or events, as they come; only a line feed ends one."""
        rest = b""
        async with self._streamed(path, query) as response:
            async for piece in self._pieces(response, None):
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

    @asynccontextmanager
    async def _streamed(self, path: str, query: Mapping[str, Any] | None) -> "AsyncIterator[httpx.Response]":
        _check(path)
        sent = {"method": "GET", "url": path, "params": _given(query or {}), "headers": _WANTED, "timeout": SLOW}
        with self._reached():
            async with self._open(**sent) as response:
                if response.status_code >= 400:
                    await self._whole(response)
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
            raise NotANode(f"HTTP {status} without JSON: is {self.url} a node's operator listener?", status=status)
        data = body["data"] if isinstance(body.get("data"), Mapping) else {}
        bad_input = status in (400, 422) or code in (400, 422) or data.get("reason") == Invalid.reason
        raise (Invalid if bad_input else Refused)(
            str(body.get("msg") or body.get("message") or body.get("detail") or f"HTTP {status}"),
            reason=str(data.get("reason") or ""),
            next_step=str(data.get("next_step") or ""),
            problems=map(_problem, data.get("problems") or ()),
            data=data,
            status=status,
        )


def _problem(one: Mapping[str, Any]) -> Problem:
    return Problem(str(one.get("path")), str(one.get("rule")), one.get("got"), str(one.get("suggestion") or ""))


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
    return {k: ("1" if v is True else v) for k, v in query.items() if v is not None and v is not False and v != ""}


class BlockingWire(Wire):
    """Blocks until the response is there. Threads may share it."""

    blocks = True

    def __init__(self, url: str, token: str = "", **options: Any) -> None:
        import httpx

        super().__init__(url, token, **options)
        self._http = httpx.Client(**self.options)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    async def sleep(self, seconds: float) -> None:
        """Block for so long."""
        time.sleep(seconds)

    async def _send(self, **sent: Any) -> "httpx.Response":
        return self._http.request(**sent)

    @asynccontextmanager
    async def _open(self, **sent: Any) -> "AsyncIterator[httpx.Response]":
        with self._http.stream(**sent) as response:
            yield response

    async def _whole(self, response: "httpx.Response") -> None:
        response.read()

    async def _pieces(self, response: "httpx.Response", size: int | None) -> AsyncIterator[bytes]:
        for piece in response.iter_bytes(size):
            yield piece

    def _body(self, file: File) -> Iterator[bytes]:
        return file.pieces()


class AsyncWire(Wire):
    """Awaits the response. One event loop uses it."""

    blocks = False

    def __init__(self, url: str, token: str = "", **options: Any) -> None:
        import httpx

        super().__init__(url, token, **options)
        self._http = httpx.AsyncClient(**self.options)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def sleep(self, seconds: float) -> None:
        """Let others work for so long."""
        await asyncio.sleep(seconds)

    async def _send(self, **sent: Any) -> "httpx.Response":
        return await self._http.request(**sent)

    def _open(self, **sent: Any) -> "AbstractAsyncContextManager[httpx.Response]":
        return self._http.stream(**sent)

    async def _whole(self, response: "httpx.Response") -> None:
        await response.aread()

    def _pieces(self, response: "httpx.Response", size: int | None) -> AsyncIterator[bytes]:
        return response.aiter_bytes(size)

    async def _body(self, file: File) -> AsyncIterator[bytes]:
        for piece in file.pieces():
            yield piece
