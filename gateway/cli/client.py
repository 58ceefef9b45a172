"""The command line's way to a running node, its operator listener over HTTP, and to files that are sent."""

import getpass
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from urllib.parse import quote, urlsplit

from gateway.cli.language import spoken
from gateway.data.reading import MIB, NotFit, bounded, check_readable, whole
from gateway.errors import Invalid

if TYPE_CHECKING:
    import httpx

    from gateway.config.schema import Settings

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NO_ANSWER = 3

URL = "BFIA_GATEWAY_URL"
TOKEN = "BFIA_GATEWAY_TOKEN"
DEFAULT_CONFIG = Path("node.yml")
EXAMPLE_NODE = "JG0100001100000010"
"""the id that `init` gives a node, for trials"""
LARGEST = 32 * MIB
"""bytes of a file that is read whole: jobs, registrations, small tables"""

SLOW = (60.0, None, 60.0, 60.0)
"""to connect, read, write and get a connection; for requests that a node works on before its first byte, such as
the checksum of a large file"""
_NO_TOKEN = (
    f"NO_TOKEN: this node wants a token: export {TOKEN}=<token>, or name the --config with its auth.token; "
    "an admin makes one by: bfia-gateway token create NAME --role ROLE"
)


class CallFailed(Exception):
    """A command failed. ``code`` is its exit code, ``data`` what the node's response has beside the message."""

    def __init__(self, text: str, code: int = EXIT_FAILED, reason: str = "", data: Any = None) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason
        self.data = data


_WANTED = {"want-repr-digest": "sha-256=1"}


class Client:
    """Requests to one node. Use as a context. Every method raises `CallFailed`."""

    def __init__(self, url: str, word: str = "", *, timeout: float = 60.0, source: str = "the token") -> None:
        """``word`` is the token, ``source`` where it comes from."""
        import httpx

        self.url = url.rstrip("/")
        self._token = token(word, source)
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        headers["accept-language"] = spoken()
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("expected http://host:port")
            secure = parts.scheme == "https"  # reading the certificate authorities takes longer than a request
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=secure
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CallFailed(f"{url!r} is not a valid address of a node: {error}", EXIT_BAD_INPUT) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """Get JSON; parameters that are None, False or empty are left out."""
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """Post JSON."""
        return self.call("POST", path, body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        """Delete."""
        return self.call("DELETE", path, query=query)

    def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, **sent: Any
    ) -> Any:
        """Send one request; return the response's JSON. An envelope's error code fails at any HTTP status.

        ``sent`` is what `httpx` sends in place of a JSON body: a form, a file.
        """
        with self._reached():
            response = self._http.request(method, path, json=body, params=_given(query or {}), **sent)
        return self._read(response)

    def download(
        self, path: str, target: Path, moved: Callable[[int, int | None], None] = lambda *_: None, **query: Any
    ) -> int:
        """Write a response's body into a file; return its length in bytes.

        The file appears only when it is whole and has the checksum that the node names. ``moved`` is called for
        each chunk with its length and that of all, if known.
        """
        part = target.with_name(target.name + ".part")
        digest = hashlib.sha256()
        try:
            with self._streamed(path, query) as response, part.open("wb") as file:
                length = response.headers.get("content-length", "")
                for chunk in response.iter_bytes(1024 * 1024):
                    file.write(chunk)
                    digest.update(chunk)
                    moved(len(chunk), int(length) if length.isdecimal() else None)
                size, wanted = file.tell(), response.headers.get("x-checksum-sha256", "")
            if wanted and wanted != digest.hexdigest():
                text = f"received sha256 {digest.hexdigest()}, the node names {wanted}; nothing was kept"
                raise CallFailed(text, reason="CHECKSUM_WRONG")
            part.replace(target)
        except OSError as error:
            raise CallFailed(f"{target} cannot be written: {error.strerror}", EXIT_BAD_INPUT) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return size

    def lines(self, path: str, **query: Any) -> Iterator[str]:
        """Yield the lines of a streamed response, such as events."""
        with self._streamed(path, query) as response:
            yield from response.iter_lines()

    @contextmanager
    def _streamed(self, path: str, query: Mapping[str, Any]) -> "Iterator[httpx.Response]":
        with (
            self._reached(),
            self._http.stream("GET", path, params=_given(query), headers=_WANTED, timeout=SLOW) as response,
        ):
            if response.status_code >= 400:
                response.read()
                self._read(response)
            yield response

    @contextmanager
    def _reached(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            cause = f"{type(error).__name__} {error}".strip()
            cause = cause.replace(self._token, "…") if self._token else cause
            text = f"no response from {self.url}: {cause}; is the node up? bfia-gateway serve starts it"
            text += " (another node: --config, --url)"
            raise CallFailed(text, EXIT_NO_ANSWER, "NO_ANSWER") from error

    def _read(self, response: "httpx.Response") -> Any:
        try:
            body = response.json()
        except ValueError:
            body = None
        code = body.get("code", 0) if isinstance(body, Mapping) else 0
        if response.status_code < 400 and body is not None and code in (0, 200):
            return body
        if not isinstance(body, Mapping):
            text = f"HTTP {response.status_code} without JSON: is {self.url} a node's operator listener?"
            raise CallFailed(text, EXIT_FAILED, "NO_ENVELOPE")
        data = body["data"] if isinstance(body.get("data"), Mapping) else {}
        reason = str(data.get("reason") or "")
        text = str(body.get("msg") or body.get("message") or body.get("detail") or f"HTTP {response.status_code}")
        if reason == "NO_TOKEN":
            text = _NO_TOKEN
        if reason == "PATH_UNKNOWN":
            text += f"; commands need the listener for operators (listen.operator), and {self.url} is another one"
        bad_input = response.status_code in (400, 422) or code in (400, 422)
        raise CallFailed(text, EXIT_BAD_INPUT if bad_input else EXIT_FAILED, reason, data)


def connect(config: Path, url: str = "", *, timeout: float = 60.0) -> Client:
    """Return a client for the node at ``url``, else at the address in its configuration. Raises `CallFailed`."""
    if url:
        return Client(url, os.environ.get(TOKEN, ""), timeout=timeout, source=TOKEN)
    settings = settings_of(config)
    host, _, port = settings.listen.operator.bind.rpartition(":")
    if port == "0":
        text = f"{config} lets the operator listener choose its port; name it with --url or {URL}"
        raise CallFailed(text, EXIT_BAD_INPUT)
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
    word, source = os.environ.get(TOKEN, ""), TOKEN
    if not word and settings.auth.mode == "on":
        word, source = settings.auth.token, f"auth.token of {config}"
    return Client(f"http://{here}:{port}", word, timeout=timeout, source=source)


def settings_of(config: Path) -> "Settings":
    """Read a configuration. Raises `CallFailed` with every problem."""
    from gateway.config.loader import load

    if not config.exists():
        text = (
            f"{config} is not there: go to the node's folder, or name its configuration by --config, or a running"
            " node by --url; bfia-gateway init writes a new one"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
    try:
        return load(config)
    except Invalid as error:
        raise invalid_in(config, error) from None


def invalid_in(config: Path, error: Invalid) -> CallFailed:
    """Return the failure that names every problem of a configuration."""
    text = "\n".join([f"{config} cannot be used ({error.reason}):", *(f"  {p}" for p in error.problems)])
    return CallFailed(text, EXIT_BAD_INPUT, error.reason)


def segment(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {k: ("1" if v is True else v) for k, v in query.items() if v is not None and v is not False and v != ""}


# ---------------------------------------------------------------- files, and who types


def token(text: str, source: str) -> str:
    """Return a token without surrounding whitespace. Raises `NotFit`, which names the source and not the token."""
    bare = text.strip()
    if any(not "!" <= letter <= "~" for letter in bare):
        raise NotFit(f"{source} holds characters that no token has; copy the token again")
    return bare


def who() -> str:
    """Return the user's name, for histories; ``somebody`` where there is none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"


def content(file: Path) -> bytes:
    """Return a file's content; ``-`` is standard input. Raises `NotFit`."""
    if str(file) == "-":
        return bounded(sys.stdin.buffer.read(LARGEST + 1), "standard input", LARGEST)
    with _readable(file):
        return whole(file, LARGEST)


@contextmanager
def opened(file: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file that is sent in pieces (``-``: standard input); give it and its size. Raises `NotFit`."""
    with _readable(file):
        if str(file) != "-":
            check_readable(file)
        source = tempfile.TemporaryFile() if str(file) == "-" else file.open("rb")  # noqa: SIM115 (closed below)
    with source:
        if str(file) == "-":
            copyfileobj(sys.stdin.buffer, source)
            source.seek(0)
        yield source, source.seek(0, 2) - source.seek(0)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotFit(f"{file} cannot be read: {error.strerror}") from error


def new_file(target: Path, force: bool) -> None:
    """Raise `NotFit` where a file may not be written: it exists, or its place is not one for a file."""
    try:
        exists = target.exists()
        replaceable = exists and target.is_file()
    except OSError as error:
        raise NotFit(f"{str(target)[:80]}… cannot be written: {error.strerror}") from None
    if exists and not replaceable:
        raise NotFit(f"{target} is a folder, a device or a pipe, and is never replaced; name a file")
    if exists and not force:
        raise NotFit(f"{target} exists already; give --force to overwrite, or another -o")


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a file (``-``: standard input), JSON or YAML. Raises `NotFit`."""
    import yaml

    from gateway.config.loader import DuplicateKey, load_yaml, syntax_error, unique_keys

    read = content(file)
    try:
        text = read.decode()
        try:
            body = json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError):
            body = load_yaml(text)  # reads JSON with commas at the end, too
    except UnicodeDecodeError as error:
        raise NotFit(f"{file} is not text in UTF-8 (byte {error.start})") from None
    except DuplicateKey as error:
        raise NotFit(f"{file}: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise NotFit(f"{file} is neither JSON nor YAML: {syntax_error(error)}") from None
    if not isinstance(body, dict):
        found = "a list" if isinstance(body, list) else "nothing" if body is None else "a single value"
        raise NotFit(f"{file} must hold an object (name: value) and holds {found}")
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise NotFit(f"{file} holds what JSON cannot express: {error}") from None
    return body
