"""Connections to a daemon, by its socket, by TCP, or to another machine through ssh; its errors and its events.

The system's ssh client only forwards the daemon's socket; keys, known hosts and ports are up to its own
configuration. It never asks for a password.
"""

import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from struct import unpack
from typing import Any
from urllib.parse import urlsplit

import requests
from docker import APIClient
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.tls import TLSConfig
from docker.types import CancellableStream
from docker.utils import kwargs_from_env, parse_host
from urllib3.exceptions import HTTPError

from engines.base import (
    HOW_TO_HAVE_IT,
    CreateFailed,
    EngineDown,
    EngineError,
    ImageNotFound,
    NoSpace,
)
from engines.docker.configuration import StoredLogins, settings_without_logins
from engines.messages import start_error
from engines.watch import Follower

SCHEME = "ssh://"
SOCKET = "/var/run/docker.sock"
_OPEN_TIMEOUT = 15.0
"""seconds for the connection to come up"""
_ID = re.compile(r"(?<![:\w])([0-9a-f]{12})[0-9a-f]{52}(?!\w)")
"""of a network or container, of which the docker command shows the beginning; whole, a log masks it as a token"""
_LONGEST_OUTPUT = 500
_FIRST_WAIT = 0.2
"""seconds before a stream of events that has ended is opened again"""
_FRAME_HEAD = 8

_NOT_READY = (502, 503, 504)
"""statuses of a daemon that starts or stops, or of a proxy before one that is away"""
_PARTS_AWAY = re.compile(
    r"error while dialing|containerd\.sock|code = unavailable|client connection is closing|shutting down"
    r"|code = deadlineexceeded|does not have a leader",
    re.IGNORECASE,
)
"""messages of a daemon (500) one of whose own processes is away, which it restarts"""
_NO_NETWORK = re.compile(
    r"network \S+ not found|cannot join network of a non running container|no such container",
    re.IGNORECASE,
)
"""the latter two of a container whose sandbox is gone"""


class Tunnel:
    """One forwarded socket; not thread-safe."""

    def __init__(self, url: str) -> None:
        """``url``: ssh://[user@]host[:port][/path/of/the/socket]. Connects only when first used."""
        self._url = url
        self._folder: Path | None = None
        self._client: subprocess.Popen[bytes] | None = None

    def open(self) -> Path:
        """Return the socket on this machine; connect if nothing is connected. Raises `EngineDown`."""
        if self._folder is not None and self._client is not None and self._client.poll() is None:
            return self._folder / "s"
        self.close()
        program = shutil.which("ssh")
        if program is None:
            raise EngineDown(f"{self._url}: the program ssh is missing; install an OpenSSH client")
        self._folder = Path(tempfile.mkdtemp(prefix="bfia-ssh-"))  # sockets' paths must be short
        with (self._folder / "output").open("wb") as output:
            command = [program, *self._arguments(self._folder / "s")]
            self._client = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._wait(self._folder, self._client)
        return self._folder / "s"

    def close(self) -> None:
        """End the client, and delete the socket's folder."""
        if self._client is not None:
            self._client.kill()  # it only forwards
            self._client.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._client = self._folder = None

    def _arguments(self, here: Path) -> list[str]:
        parts = urlsplit(self._url)
        options = {
            "BatchMode": "yes",
            "ExitOnForwardFailure": "yes",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            "ControlMaster": "no",
            "StreamLocalBindMask": "0177",
        }
        found = ["-N", "-T", *(f"-o{name}={value}" for name, value in options.items())]
        found += ["-L", f"{here}:{parts.path if parts.path not in ('', '/') else SOCKET}"]
        found += ["-p", str(parts.port)] if parts.port else []
        found += ["-l", parts.username] if parts.username else []
        return [*found, "--", parts.hostname or ""]

    def _wait(self, folder: Path, client: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _OPEN_TIMEOUT
        while not (folder / "s").exists():
            ended = client.poll() is not None
            if ended or time.monotonic() > end:
                output = (folder / "output").read_text(errors="replace").strip()[-_LONGEST_OUTPUT:]
                self.close()
                raise EngineDown(f"{self._url}: {output or 'no connection in time'}")
            time.sleep(0.05)


class Client(APIClient):
    """Takes no proxy and no CA certificates from the environment, which would override ours.

    What is wrong with Docker's configuration keeps it from nothing: logins are read when they are needed.
    """

    trust_env = property(lambda self: False, lambda self, value: None)
    _auth_configs = property(lambda self: StoredLogins(), lambda self, value: None)

    def __init__(self, **options: Any) -> None:
        self._settings = settings_without_logins()
        super().__init__(**options)

    @property
    def _general_configs(self) -> dict[str, Any]:
        return self._settings

    @_general_configs.setter
    def _general_configs(self, settings: object) -> None:
        """Leave aside what the library has read itself."""


_TIMEOUT = 60
"""seconds for one call; starting a container takes some on a busy machine"""
_POOL = 64
"""connections: every stop and every watch keeps one for long"""


class Connection:
    """Calling it returns the client."""

    def __init__(self, base_url: str, tls: Mapping[str, str]) -> None:
        self._base_url = base_url
        self._tunnel = Tunnel(base_url) if base_url.startswith(SCHEME) else None
        self._tls = dict(tls)
        self._lock = threading.Lock()
        self._api: APIClient | None = None
        self._here = False
        self._tunnelled = ""

    def __call__(self) -> APIClient:
        """Return the client. Raises `EngineDown`."""
        with self._lock, translated(EngineDown):
            base_url = self._base_url
            if (
                self._tunnel is not None
                and (base_url := f"unix://{self._tunnel.open()}") != self._tunnelled
            ):
                self._drop()  # it was created again, elsewhere
                self._tunnelled = base_url
            if self._api is None:
                options: dict[str, Any] = (
                    {"base_url": base_url} if base_url else {**kwargs_from_env()}
                )
                if self._tls:
                    pair = (self._tls["cert"], self._tls["key"]) if "cert" in self._tls else None
                    options["tls"] = TLSConfig(
                        client_cert=pair,
                        ca_cert=self._tls["ca"],
                        verify=True,
                    )
                host = parse_host(options.get("base_url"), tls=bool(options.get("tls")))
                self._here = str(host).startswith("http+unix://")
                self._api = Client(
                    version="auto",
                    timeout=_TIMEOUT,
                    max_pool_size=_POOL,
                    **options,
                )
            return self._api

    def is_here(self) -> bool:
        """Whether the daemon's host is the one we run on, as far as is known. Raises `EngineDown`."""
        self()
        return self._here and self._tunnel is None

    def close(self) -> None:
        """Close the client and the tunnel; the next call opens new ones."""
        with self._lock:
            self._drop()
            if self._tunnel is not None:
                self._tunnel.close()

    def _drop(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            api.close()


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what the daemon refuses as the specific error or ``otherwise``, and `EngineDown` if it is away."""
    try:
        yield
    except APIError as error:
        raise _refusal(error, otherwise) from error
    except (
        DockerException,
        HTTPError,
        OSError,
    ) as error:  # OSError: every failure of a request is one
        raise EngineDown(f"the container engine does not answer: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """Return what the system said in the end, such as ``No such file or directory``, and no layer above it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return str(error)


def check_answer(answer: requests.Response) -> None:
    """Raise APIError unless a request that we made without the library succeeded."""
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


@contextmanager
def asked(
    api: APIClient,
    place: str,
    what: str,
    **params: str,
) -> Iterator[Any]:
    """Give the stream in which the daemon responds. Raises APIError, OSError."""
    url = f"{api.base_url}/v{api.api_version}/{place}/{what}"
    with closing(
        api.get(
            url,
            params=params,
            stream=True,
            timeout=api.timeout,
        )
    ) as answer:
        check_answer(answer)
        yield answer.raw


def log_of(
    api: APIClient,
    place: str,
    stream: str,
) -> Iterator[bytes]:
    """Yield what ``containers/…`` or ``tasks/…`` wrote to a stream, piece by piece. Raises APIError, OSError."""
    with asked(api, place, "logs", tail="all", **{stream: "1"}) as raw:
        while len(head := raw.read(_FRAME_HEAD)) == _FRAME_HEAD:
            left = unpack(">xxxxL", head)[0]
            while left and (piece := raw.read(left)):
                left -= len(piece)
                yield piece


def remove(api: APIClient, container: str) -> None:
    """Remove a container, which may be gone. Raises APIError."""
    try:
        api.remove_container(container, force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):  # its removal is in progress
            raise


def network_is_gone(error: APIError) -> bool:
    """Whether the daemon lacks a network or a sandbox that was removed since it was created."""
    return _NO_NETWORK.search(words(error)) is not None


def is_away(error: APIError) -> bool:
    """Whether the daemon cannot handle any request at present."""
    status = error.status_code
    return status in _NOT_READY or (status == 500 and _PARTS_AWAY.search(words(error)) is not None)


def words(error: APIError) -> str:
    """Return the daemon's message."""
    return str(error.explanation or error)


def _refusal(error: APIError, otherwise: type[EngineError]) -> EngineError:
    text = _ID.sub(r"\1", words(error))
    if is_away(error):
        return EngineDown(f"the container engine is not ready: {text}")
    if "no space left on device" in text.lower():
        return NoSpace(text)
    if otherwise is CreateFailed:
        if (
            error.status_code == 404 and "no such image" in text.lower()
        ):  # removed since it was found
            return ImageNotFound(text, HOW_TO_HAVE_IT)
        return start_error(text)
    return otherwise(text)


class EventWatch(Follower):
    """Reports each exit, after every connection first all runs that have exited, so that none is missed."""

    def __init__(
        self,
        client: Callable[[], APIClient],
        filters: Mapping[str, Any],
        over: Callable[[], Iterable[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._filters = {
            **filters,
            "type": "container",
            "event": "die",
        }
        self._over = over
        self._stream: CancellableStream[Any] | None = None
        super().__init__(_FIRST_WAIT, on_exit, on_away)

    def _look(self) -> None:
        """Report the runs that have exited, then those that exit, until the stream ends."""
        try:
            client = self._client()
            now = datetime.fromisoformat(
                client.info()["SystemTime"]
            )  # in the time zone of the daemon
            self._stream = stream = client.events(
                decode=True,
                since=int(now.timestamp()),
                filters=self._filters,
            )
            if self._closed.is_set():  # closed before there was a stream to close
                return
            for name in self._over():
                self.report(name)
            for event in stream:
                if self._closed.is_set():
                    return
                self.report(event["Actor"]["Attributes"]["name"])
        finally:
            self._interrupt()
        if not self._closed.is_set():
            self.report_away()

    def _interrupt(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(DockerException, OSError, AttributeError):  # it has ended already
                stream.close()
