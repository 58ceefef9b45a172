"""How commands call a running node (by the Python client), and read and check the user's files.

`NotFit` is raised for every file or text that cannot be used, not only for one that is too large.
"""

import getpass
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar
from urllib.parse import urlsplit

from bfia_gateway_client.bridge import iterate_blocking, run_blocking
from bfia_gateway_client.errors import MAYBE_DONE, GatewayError, NoAnswer
from bfia_gateway_client.errors import Invalid as BadInput
from gateway.cli.language import language_in_use
from gateway.data.reading import MIB, NotFit, check_readable, check_size, read_bounded
from gateway.errors import Invalid

if TYPE_CHECKING:
    from gateway.config.schema import Settings

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NO_ANSWER = 3

# Environment variables with the address of a node and the token for it
URL = "BFIA_GATEWAY_URL"
TOKEN = "BFIA_GATEWAY_TOKEN"
DEFAULT_CONFIG = Path("node.yml")
EXAMPLE_NODE = "JG0100001100000010"  # the id that `init` gives a node, for trials
_LARGEST_INPUT = 32 * MIB  # bytes of a file that is read whole: jobs, registrations, small tables

_STANDARD_INPUT = "-"
_NAMELESS_USER = "somebody"
# Addresses that mean every interface, and the one by which this machine reaches them.
_LOOPBACK = {
    "0.0.0.0": "127.0.0.1",
    "[::]": "[::1]",
    "::": "[::1]",
}

_NO_TOKEN = (
    f"NO_TOKEN: this node wants a token: export {TOKEN}=<token>, or name the --config with its "
    "auth.token; an admin makes one by: bfia-gateway token create NAME --role ROLE"
)
T = TypeVar("T")


def _ignore_progress(_moved: int, _total: int | None) -> None:
    """Take the place of a function that shows progress."""


class CallFailed(GatewayError):
    """A command failed. ``code`` is its exit code, ``data`` the details in the node's response."""

    def __init__(
        self,
        text: str,
        code: int = EXIT_FAILED,
        reason: str = "",
        data: Any = None,
    ) -> None:
        super().__init__(text, reason=reason)
        self.code = code
        self.data = data


class Client:
    """Requests to one node. Use as a context. Every request raises `CallFailed` if it fails."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = 60.0,
        source: str = "the token",
    ) -> None:
        """``timeout`` is in seconds; ``source`` names the token's origin in messages.

        Raises `CallFailed` for an invalid address, `NotFit` for a token with invalid characters.
        """
        from bfia_gateway_client.wire import BlockingWire

        bare_token = checked_token(token, source)
        try:
            self.wire = BlockingWire(
                url,
                bare_token,
                language=language_in_use(),
            )
        except BadInput as error:
            raise CallFailed(str(error), EXIT_BAD_INPUT) from None
        self.url = self.wire.url
        self._timeout = timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        run_blocking(self.wire.close())

    def get(self, path: str, **query: Any) -> Any:
        """Get JSON; parameters of the query that are None, False or empty are left out."""
        return self.call("GET", path, query=query)

    def post(
        self,
        path: str,
        body: Any = None,
        **query: Any,
    ) -> Any:
        """Post JSON."""
        return self.call("POST", path, body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        """Delete."""
        return self.call("DELETE", path, query=query)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        **options: Any,
    ) -> Any:
        """Send one request; return the response's JSON. ``options``: see `Wire.call`."""
        options = {"timeout": self._timeout, **options}
        return self.run_call(self.wire.call(method, path, body, **options))

    def download(
        self,
        path: str,
        target: Path,
        moved: Callable[[int, int | None], None] = _ignore_progress,
        **query: Any,
    ) -> int:
        """Write a response's body into a file, whole or not at all; return its length in bytes.

        ``moved`` is called for each chunk, with the bytes of the chunk and of the whole body; None
        if the whole is not known.
        """
        from bfia_gateway_client.transfers import download

        return self.run_call(download(self.wire, path, target, moved, query))

    def lines(self, path: str, **query: Any) -> Iterator[str]:
        """Yield the lines of a streamed response, such as a log."""
        with self._converted_errors():
            yield from iterate_blocking(self.wire.lines(path, query))

    def events(
        self,
        path: str,
        **query: Any,
    ) -> Iterator[tuple[str, str]]:
        """Yield the kind and the line of each server-sent event of a response."""
        with self._converted_errors():
            yield from iterate_blocking(self.wire.events(path, query))

    def run_call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call of the Python client and return its result."""
        with self._converted_errors():
            return run_blocking(work)

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        """Turn an error of the Python client into `CallFailed` with exit code and next step."""
        try:
            yield
        except NoAnswer as error:
            text = self._no_answer_text(error)
            raise CallFailed(text, EXIT_NO_ANSWER, error.reason) from error
        except GatewayError as error:
            text = self.with_addresses(self._refusal_text(error))
            code = _exit_code(error)
            raise CallFailed(text, code, error.reason, error.data) from error

    def _no_answer_text(self, error: NoAnswer) -> str:
        """Return why the node did not respond, and the next step."""
        scheme_hint = self._scheme_hint(error.message)
        if scheme_hint:
            return scheme_hint
        if error.next_step == MAYBE_DONE:
            return f"{error.message}; {MAYBE_DONE}"
        return (
            f"{error.message}; is the node up? bfia-gateway serve starts it (another node: "
            "--config, --url)"
        )

    def _refusal_text(self, error: GatewayError) -> str:
        """Return the node's refusal, and the next step if this machine knows it."""
        if error.reason == "NO_TOKEN":
            return _NO_TOKEN
        if error.reason == "PATH_UNKNOWN":
            operators = "commands need the listener for operators (listen.operator)"
            return f"{error.message}; {operators}, and {self.url} is another one"
        steps = error.steps_by_reason()
        lines = [f"next for {reason}: {step}" for reason, step in steps.items()]
        return "\n".join([error.message, *lines])

    def with_addresses(self, text: str) -> str:
        """Return a text whose pages of the documentation have the node's address before them."""
        return re.sub(r"(?<![\w/.])/docs/", f"{self.url}/docs/", text)

    def _scheme_hint(self, cause: str) -> str:
        """Return a hint if the address has http for https or the reverse; else an empty text."""
        scheme, _, rest = self.url.partition("://")
        if "wrong version number" in cause:  # the message of OpenSSL for a response without TLS
            return f"http is spoken at {self.url}, not https: name the node by --url http://{rest}"
        # Errors of httpx when it reads TLS, or an abort, as the response to http
        may_be_tls = "RemoteProtocolError" in cause or "ReadError" in cause
        if scheme == "http" and may_be_tls and self._speaks_tls():
            return f"https is spoken at {self.url}, not http: name the node by --url https://{rest}"
        return ""

    def _speaks_tls(self) -> bool:
        """Return whether TLS is spoken at the node's address."""
        from adapter.bfia.route_tls import speaks_tls  # its import takes long

        parts = urlsplit(self.url)
        return speaks_tls(parts.hostname or "", parts.port or 80)


def _exit_code(error: GatewayError) -> int:
    """Return the exit code of a refusal.

    If the refusal names a job, the job was created: the input was accepted, so it is not bad input.
    """
    has_job = "job_id" in error.data
    if isinstance(error, BadInput) and not has_job:
        return EXIT_BAD_INPUT
    return EXIT_FAILED


def connect(
    config: Path,
    url: str = "",
    *,
    timeout: float = 60.0,
) -> Client:
    """Return a client for the node at ``url``, or else at the address in its configuration.

    Raises `CallFailed`, and `NotFit` for a token with invalid characters.
    """
    if url:
        return Client(
            url,
            os.environ.get(TOKEN, ""),
            timeout=timeout,
            source=TOKEN,
        )
    settings = settings_of(config)
    host, _, port = settings.listen.operator.bind.rpartition(":")
    if port == "0":
        text = f"{config} lets the operator listener choose its port; name it with --url or {URL}"
        raise CallFailed(text, EXIT_BAD_INPUT)
    token = os.environ.get(TOKEN, "")
    source = TOKEN
    if not token and settings.auth.mode == "on":
        token = _admin_token(settings, config)
        source = f"auth.token of {config}"
    host = _LOOPBACK.get(host, host)
    return Client(f"http://{host}:{port}", token, timeout=timeout, source=source)


def _admin_token(settings: "Settings", config: Path) -> str:
    """Return the admin's token of a configuration; "" without one. Raises `CallFailed`."""
    from gateway.config.secrets import admin_token

    try:
        return admin_token(settings)
    except Invalid as error:
        raise invalid_in(config, error) from None


def settings_of(config: Path) -> "Settings":
    """Read a configuration. Raises `CallFailed` with every problem."""
    from gateway.config.loader import load

    check_exists(config)
    try:
        return load(config)
    except Invalid as error:
        raise invalid_in(config, error) from None


def check_exists(config: Path) -> None:
    """Raise `CallFailed` if there is no such configuration."""
    if not config.exists():
        text = (
            f"{config} is not there: go to the node's folder, or name its configuration by "
            "--config, or a running node by --url; bfia-gateway init writes a new one"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")


def invalid_in(config: Path, error: Invalid) -> CallFailed:
    """Return the failure that names every problem of a configuration."""
    from gateway.config.origins import place_of

    lines = [f"{config} cannot be used ({error.reason}):"]
    for problem in error.problems:
        place = place_of(config, problem.path)
        prefix = f"{place}: " if place else ""
        lines.append(f"  {prefix}{problem}")
    return CallFailed("\n".join(lines), EXIT_BAD_INPUT, error.reason)


# ---------------------------------------------------------------- the user


def checked_token(text: str, source: str) -> str:
    """Return a token without surrounding whitespace.

    Raises `NotFit` for characters that no token has. The message names the source, not the token,
    which is a secret.
    """
    bare = text.strip()
    if any(not "!" <= letter <= "~" for letter in bare):
        raise NotFit(f"{source} holds characters that no token has; copy the token again")
    return bare


def who() -> str:
    """Return the user's name for histories, or a fixed word for a nameless user of a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return _NAMELESS_USER


# ---------------------------------------------------------------- files


def content(file: Path) -> bytes:
    """Return a file's content; ``-`` is standard input. Raises `NotFit`."""
    if str(file) == _STANDARD_INPUT:
        data = sys.stdin.buffer.read(_LARGEST_INPUT + 1)
        check_size(data, "standard input", _LARGEST_INPUT)
        return data
    with _reading(file):
        return read_bounded(file, _LARGEST_INPUT)


@contextmanager
def open_input(file: Path) -> Iterator[BinaryIO]:
    """Open a file that is sent in pieces (``-``: standard input). Raises `NotFit`."""
    if str(file) == _STANDARD_INPUT:
        with tempfile.TemporaryFile() as spool:
            copyfileobj(sys.stdin.buffer, spool)
            spool.seek(0)
            yield spool
        return
    with _reading(file):
        check_readable(file)
        source = file.open("rb")
    with source:
        yield source


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn an error of the file system into `NotFit`."""
    try:
        yield
    except OSError as error:
        raise NotFit(f"{file} cannot be read: {error.strerror}") from error


def check_may_write(target: Path, force: bool) -> None:
    """Raise `NotFit` for a file that exists (unless ``force``), and for a folder or device."""
    try:
        exists = target.exists()
        is_file = target.is_file()
    except OSError as error:  # such as a name that is too long
        raise NotFit(f"{str(target)[:80]}… cannot be written: {error.strerror}") from None
    if not exists:
        return
    if not is_file:
        raise NotFit(
            f"{target} is a folder, a device or a pipe, and is never replaced; name a file"
        )
    if not force:
        raise NotFit(f"{target} exists already; give --force to overwrite, or name another file")


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a file (``-``: standard input), JSON or YAML. Raises `NotFit`."""
    value = _read_value(file)
    if not isinstance(value, dict):
        raise NotFit(f"{file} must hold an object (name: value) and holds {_kind_of(value)}")
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise NotFit(f"{file} holds what JSON cannot express: {error}") from None
    return value


def _read_value(file: Path) -> Any:
    """Return the value in a file of JSON or YAML. Raises `NotFit`."""
    import yaml

    from gateway.config.yaml_files import DuplicateKey, load_yaml, syntax_error

    data = content(file)
    json_error: Exception | None = None
    try:
        text = data.decode()
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            json_error = error
            return load_yaml(text)  # reads JSON with commas at the end, too
    except UnicodeDecodeError as error:
        raise NotFit(f"{file} is not text in UTF-8 (byte {error.start})") from None
    except DuplicateKey as error:
        raise NotFit(f"{file}: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if file.suffix.lower() == ".json":
            raise NotFit(f"{file} is not JSON: {_json_error_text(json_error)}") from None
        raise NotFit(f"{file} is neither JSON nor YAML: {syntax_error(error)}") from None


def _json_error_text(error: Exception | None) -> str:
    """Return why a text is not JSON, after line and column if the parser names them."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}: {error.msg}"
    return str(error)


def _kind_of(value: Any) -> str:
    """Return the kind of a value that should have been an object, for messages."""
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return "a single value"
