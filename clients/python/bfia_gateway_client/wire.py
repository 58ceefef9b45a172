"""Requests to a node and its responses, over httpx: blocking or with asyncio.

`Wire` builds requests and reads responses. Its two subclasses send them: `BlockingWire` by
httpx.Client, `AsyncWire` by httpx.AsyncClient. Both have the same coroutines; a `BlockingWire`
never suspends them (see `bridge`).
"""

import asyncio
import json
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO, ClassVar
from urllib.parse import urlsplit

import httpx

from bfia_gateway_client.calls import Json, path_of
from bfia_gateway_client.errors import (
    MAYBE_DONE,
    Invalid,
    NoAnswer,
    NotANode,
    Problem,
    Refused,
    invalid,
)

# Seconds to connect, read (unlimited), write and get a connection from the pool, for requests on
# which a node works long before it responds
SLOW = (60.0, None, 60.0, 60.0)
CHUNK_SIZE = 1024 * 1024  # bytes of a file that are sent or received in one piece
SUCCESS_CODES = (0, 200)  # values of ``code`` in the envelope of a response
BAD_INPUT_CODES = (400, 422)  # both HTTP statuses and values of ``code``
# Requests that change nothing although they are not sent by GET.
READING_PATHS = (path_of("jobs", "plan"),)
# Header that asks for the checksum of a download (RFC 9530).
DIGEST_REQUEST = {"want-repr-digest": "sha-256=1"}
# Failures that happen before the request leaves this machine.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Arguments = Mapping[str, Any]  # the keyword arguments of httpx.request
Query = Mapping[str, Any]  # the parameters of a query by name

# Receives a chunk of a download, and the download's size in bytes if the node names it.
Receiver = Callable[[bytes, int | None], None]


@dataclass(frozen=True)
class File:
    """A file to send in chunks."""

    name: str
    content: BinaryIO
    media_type: str = "application/octet-stream"

    def chunks(self) -> Iterator[bytes]:
        """Yield the content."""
        while True:
            chunk = self.content.read(CHUNK_SIZE)
            if not chunk:
                return
            yield chunk


class Wire(ABC):
    """Requests to one node. Every method raises `GatewayError`."""

    blocks: ClassVar[bool]  # True if requests block, so that coroutines never suspend

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        ca: str | PathLike[str] | None = None,
        language: str = "",
    ) -> None:
        """Prepare requests to the node at a URL.

        ``ca``: file with the certificate authority that signed the certificate of an https URL;
        None: the authorities that this machine trusts. ``language``: the one to request for texts;
        empty: none is requested. Raises `Invalid` for a URL, a token or a file that cannot be used.
        """
        self.url = url.rstrip("/")
        self._token = token
        _check_url(url)
        _check_token(token)
        headers = {}
        if language:
            headers["accept-language"] = language
        if token:
            headers["authorization"] = f"Bearer {token}"
        # The arguments of the httpx client
        self._http_options: dict[str, Any] = {
            "base_url": self.url,
            "headers": headers,
            "trust_env": False,
            "verify": _verification(url, ca),
        }

    # -------------------------------------------------------- implemented by the subclasses

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""

    @abstractmethod
    async def _send(self, request: Arguments) -> httpx.Response:
        """Send a request and return the response with its body."""

    @abstractmethod
    def _stream(self, request: Arguments) -> AbstractAsyncContextManager[httpx.Response]:
        """Send a request and give the response before its body is read."""

    @abstractmethod
    async def _read_body(self, response: httpx.Response) -> None:
        """Read the body of a streamed response."""

    @abstractmethod
    def _chunks(
        self,
        response: httpx.Response,
        size: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the body of a streamed response, in chunks of ``size`` bytes or as they arrive."""

    @abstractmethod
    def _content(self, file: File) -> Any:
        """Return a file as the httpx client takes the content of a request."""

    # -------------------------------------------------------- requests

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query | None = None,
        form: Json | None = None,
        file: File | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Any:
        """Send a request; return the response's JSON.

        Raises `GatewayError` also for a response of HTTP status 200 with an error code in its
        envelope.

        ``query``: parameters that are None, False or empty are left out. ``form`` carries the
        ``file`` as a part; without a form the file is the body. ``headers``: further ones.
        ``timeout`` is in seconds; None: `SLOW`.
        """
        _check_path(path)
        seconds: Any = timeout
        if timeout is None:
            seconds = SLOW
        request = {
            "method": method,
            "url": path,
            "params": _query_parameters(query or {}),
            "timeout": seconds,
            **self._body_arguments(body, form, file),
        }
        request["headers"] = {**request.get("headers", {}), **(headers or {})}
        changes = method != "GET" and path not in READING_PATHS
        with self._report_silence(changes=changes):
            response = await self._send(request)
        return self._read_json(response)

    async def fetch(
        self,
        path: str,
        receive: Receiver,
        query: Query | None = None,
    ) -> Mapping[str, str]:
        """Download a response: call ``receive`` for each chunk, and return the headers."""
        async with self._open(path, query) as response:
            length = response.headers.get("content-length", "")
            total = None
            if length.isdecimal():
                total = int(length)
            async for chunk in self._chunks(response, CHUNK_SIZE):
                receive(chunk, total)
            return response.headers

    async def lines(
        self,
        path: str,
        query: Query | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a response, such as a log or events, as they arrive.

        Only a line feed ends a line; a carriage return is part of it.
        """
        rest = b""
        async with self._open(path, query) as response:
            async for chunk in self._chunks(response):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    async def events(
        self, path: str, query: Query | None = None
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yield the kind and the data of each server-sent event of a response."""
        kind = ""
        async for line in self.lines(path, query):
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, line.removeprefix("data: ")

    def _body_arguments(
        self,
        body: Any,
        form: Json | None,
        file: File | None,
    ) -> dict[str, Any]:
        """Return the arguments of an httpx request for its body; none for a request without one."""
        if form is not None:
            files = None
            if file is not None:
                files = {"file": (file.name, file.content, file.media_type)}
            return {"data": form, "files": files}
        if file is not None:
            return {
                "content": self._content(file),
                "headers": {"content-type": file.media_type},
            }
        if body is not None:
            return {"content": _json(body), "headers": {"content-type": "application/json"}}
        return {}

    @asynccontextmanager
    async def _open(
        self,
        path: str,
        query: Query | None,
    ) -> AsyncIterator[httpx.Response]:
        """Give the response to a GET request, to be read in chunks.

        Raises `GatewayError` for a refusal.
        """
        _check_path(path)
        request = {
            "method": "GET",
            "url": path,
            "params": _query_parameters(query or {}),
            "headers": DIGEST_REQUEST,
            "timeout": SLOW,
        }
        with self._report_silence():
            async with self._stream(request) as response:
                if response.status_code >= 400:
                    await self._read_body(response)
                    self._read_json(response)  # raises
                yield response

    @contextmanager
    def _report_silence(self, *, changes: bool = False) -> Iterator[None]:
        """Turn a failed connection into `NoAnswer`.

        ``changes``: the request changes something at the node, and the change may have been made
        although no response arrived; the error then advises to look.
        """
        try:
            yield
        except httpx.HTTPError as error:
            next_step = ""
            may_be_done = changes and not isinstance(error, UNSENT)
            if may_be_done:
                next_step = MAYBE_DONE
            cause = self._cause(error)
            text = f"no response from {self.url}: {cause}"
            raise NoAnswer(text, next_step=next_step) from error

    def _cause(self, error: httpx.HTTPError) -> str:
        """Return the description of a failed connection, without error numbers and the token."""
        description = f"{type(error).__name__} {error}"
        cause = re.sub(r"\[Errno -?\d+\] ", "", description).strip()
        if self._token:
            cause = cause.replace(self._token, "…")
        return cause

    def _read_json(self, response: httpx.Response) -> Any:
        """Return the JSON of a response. Raises `NotANode`, `Invalid` or `Refused`."""
        status = response.status_code
        try:
            body = response.json()
        except ValueError:
            body = None
        code = 0  # of a response that is not an envelope
        if isinstance(body, Mapping):
            code = body.get("code", 0)
        is_success = status < 400 and code in SUCCESS_CODES
        if is_success and body is not None:
            return body
        if isinstance(body, Mapping):
            raise _refusal(status, body)
        raise NotANode(
            f"HTTP {status} without JSON: is {self.url} a node's operator listener?",
            status=status,
        )


class BlockingWire(Wire):
    """Requests that block the calling thread. Several threads may share a wire."""

    blocks = True

    def __init__(
        self,
        url: str,
        token: str = "",
        **options: Any,
    ) -> None:
        super().__init__(url, token, **options)
        self._http = httpx.Client(**self._http_options)

    async def close(self) -> None:
        """Close the connections."""
        self._http.close()

    async def sleep(self, seconds: float) -> None:
        """Block for some seconds."""
        time.sleep(seconds)

    async def _send(self, request: Arguments) -> httpx.Response:
        return self._http.request(**request)

    @asynccontextmanager
    async def _stream(self, request: Arguments) -> AsyncIterator[httpx.Response]:
        with self._http.stream(**request) as response:
            yield response

    async def _read_body(self, response: httpx.Response) -> None:
        response.read()

    async def _chunks(
        self, response: httpx.Response, size: int | None = None
    ) -> AsyncIterator[bytes]:
        for chunk in response.iter_bytes(size):
            yield chunk

    def _content(self, file: File) -> Iterator[bytes]:
        """Return the content of a file, in chunks."""
        return file.chunks()


class AsyncWire(Wire):
    """Requests that are awaited in one event loop."""

    blocks = False

    def __init__(
        self,
        url: str,
        token: str = "",
        **options: Any,
    ) -> None:
        super().__init__(url, token, **options)
        self._http = httpx.AsyncClient(**self._http_options)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        await asyncio.sleep(seconds)

    async def _send(self, request: Arguments) -> httpx.Response:
        return await self._http.request(**request)

    def _stream(self, request: Arguments) -> AbstractAsyncContextManager[httpx.Response]:
        return self._http.stream(**request)

    async def _read_body(self, response: httpx.Response) -> None:
        await response.aread()

    def _chunks(
        self,
        response: httpx.Response,
        size: int | None = None,
    ) -> AsyncIterator[bytes]:
        return response.aiter_bytes(size)

    async def _content(self, file: File) -> AsyncIterator[bytes]:
        """Yield the content of a file."""
        for chunk in file.chunks():
            yield chunk


# ------------------------------------------------------------ checks before a request


def _check_url(url: str) -> None:
    """Raise `Invalid` unless this may be the URL of a node."""
    if not url:
        raise invalid(Problem("url", "is missing: give it, or set BFIA_GATEWAY_URL"))
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https")
        if not is_http or not parts.hostname:
            raise ValueError("expected http://host:port")
        httpx.URL(url.rstrip("/"))
    except (httpx.InvalidURL, ValueError) as error:
        text = f"is not a valid address of a node: {error}"
        raise invalid(Problem("url", text, url)) from None


def _check_token(token: str) -> None:
    """Raise `Invalid` for characters outside printable ASCII, without repeating the token."""
    is_printable_ascii = all("!" <= letter <= "~" for letter in token)
    if not is_printable_ascii:
        text = "holds characters that no token has; copy the token again"
        raise invalid(Problem("token", text))


def _check_path(path: str) -> None:
    """Raise `Invalid` for an empty name in a path, which would make it another path."""
    if "//" in path or path.endswith("/"):
        raise invalid(Problem("name", "must not be empty", ""))


def _verification(
    url: str,
    ca: str | PathLike[str] | None,
) -> ssl.SSLContext | bool:
    """Return how to verify the certificate of the node at a URL, as httpx takes it.

    ``ca``: as in `Wire`. Raises `Invalid` for an unreadable ``ca``.
    """
    if urlsplit(url).scheme != "https":
        # http has no certificate; to load the authorities would take longer than a request.
        return False
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        text = f"is not a readable file of certificates: {error}"
        raise invalid(Problem("ca", text, str(ca))) from None


# ------------------------------------------------------------ bodies


def _query_parameters(query: Query) -> dict[str, Any]:
    """Return the parameters of a query without values that are None, False or empty.

    True becomes 1.
    """
    parameters: dict[str, Any] = {}
    for name, value in query.items():
        if value is True:
            parameters[name] = "1"
        elif not _is_empty(value):
            parameters[name] = value
    return parameters


def _is_empty(value: Any) -> bool:
    """True for None, False and an empty text; False for the number 0."""
    return value is None or value is False or value == ""


def _json(body: Any) -> bytes:
    """Return a body as JSON.

    Raises `Invalid` for values without a JSON form, such as NaN or numpy's numbers.
    """
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise invalid(Problem("body", f"holds what JSON cannot express: {error}")) from None


def _refusal(status: int, body: Json) -> Refused:
    """Return the error for a response in which a node refuses.

    `Invalid` for bad input, by its problems, or by status, code or reason; else `Refused`.
    """
    data = body.get("data")
    if not isinstance(data, Mapping):
        data = {}
    problems = [_problem(entry) for entry in data.get("problems") or ()]
    error_class = Refused
    if problems or _is_bad_input(status, body.get("code"), data.get("reason")):
        error_class = Invalid
    text = body.get("msg") or body.get("message") or body.get("detail") or f"HTTP {status}"
    return error_class(
        str(text),
        reason=str(data.get("reason") or ""),
        next_step=str(data.get("next_step") or ""),
        problems=problems,
        data=data,
        status=status,
    )


def _is_bad_input(status: int, code: Any, reason: Any) -> bool:
    """True if a refusal means that the request has mistakes."""
    has_code = status in BAD_INPUT_CODES or code in BAD_INPUT_CODES
    return has_code or reason == Invalid.reason


def _problem(entry: Json) -> Problem:
    """Return a mistake as a node describes it."""
    return Problem(
        path=str(entry.get("path")),
        rule=str(entry.get("rule")),
        got=entry.get("got"),
        suggestion=str(entry.get("suggestion") or ""),
        reason=str(entry.get("reason") or ""),
        node=str(entry.get("node") or ""),
        next_step=str(entry.get("next_step") or ""),
    )
