"""The client of a Docker daemon, its errors, its logs and its events."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from struct import unpack
from typing import Any

import requests
from docker import APIClient
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.tls import TLSConfig
from docker.types import CancellableStream
from docker.utils import kwargs_from_env, parse_host
from urllib3.exceptions import HTTPError

from engines.base import (
    MISSING_IMAGE_REMEDY,
    CreateFailed,
    EngineDown,
    EngineError,
    ImageNotFound,
    NoSpace,
)
from engines.docker.configuration import StoredLogins, settings_without_logins
from engines.docker.tunnel import SCHEME, Tunnel
from engines.error_texts import start_error
from engines.watch import Follower

REQUEST_TIMEOUT = 60  # seconds; starting a container may take tens of them on a busy machine
POOL_SIZE = 64  # connections; every stop and every watch occupies one for a long time

_FIRST_WAIT = 0.2  # seconds before a stream of events that has ended is opened again
_FRAME_HEAD = 8  # bytes before each piece of a log

# Statuses of a daemon
_NOT_FOUND = 404
_CONFLICT = 409
_SERVER_ERROR = 500
_NOT_READY = (502, 503, 504)  # the daemon starts or stops, or its proxy does not reach it
_REMOVED = (_NOT_FOUND, _CONFLICT)  # the container is gone, or is being removed

# The id of a network or container. Our messages keep only its first 12 digits, as the docker
# command does: logs would mask the whole id as a token.
_ID = re.compile(r"(?<![:\w])([0-9a-f]{12})[0-9a-f]{52}(?!\w)")

# Messages of a daemon that restarts one of its own processes.
_PARTS_AWAY = re.compile(
    r"error while dialing|containerd\.sock|code = unavailable|client connection is closing"
    r"|shutting down|code = deadlineexceeded|does not have a leader",
    re.IGNORECASE,
)

# Messages about a network that was removed, or (the last two) about a removed sandbox.
_NO_NETWORK = re.compile(
    r"network \S+ not found|cannot join network of a non running container|no such container",
    re.IGNORECASE,
)


class Client(APIClient):
    """The library's client, which reads neither the environment nor, by itself, Docker's
    configuration.

    Proxies and CA certificates of the environment would override ours. We read Docker's
    configuration in the library's place, because the library fails on any fault in it: the settings
    at the construction, a login when one is needed.
    """

    def __init__(self, **options: Any) -> None:
        self._settings = settings_without_logins()  # first: the library's constructor reads it
        super().__init__(**options)

    @property
    def trust_env(self) -> bool:
        """Whether requests use the environment's proxies and certificates."""
        return False

    @trust_env.setter
    def trust_env(self, value: object) -> None:
        """Ignore the library's value."""

    @property
    def _auth_configs(self) -> StoredLogins:
        """Logins, which are read when the library needs one."""
        return StoredLogins()

    @_auth_configs.setter
    def _auth_configs(self, value: object) -> None:
        """Ignore the library's own reading."""

    @property
    def _general_configs(self) -> dict[str, Any]:
        """Docker's configuration without its logins."""
        return self._settings

    @_general_configs.setter
    def _general_configs(self, settings: object) -> None:
        """Ignore the library's own reading."""


class Connection:
    """The connection to a daemon; calling it returns the client."""

    def __init__(
        self,
        base_url: str,
        tls: Mapping[str, str],
    ) -> None:
        """``base_url``: empty for the daemon that the environment names.

        ``tls``: the files ``ca`` and, for a client certificate, ``cert`` and ``key``; empty without
        TLS.
        """
        self._base_url = base_url
        self._tls = dict(tls)
        self._tunnel: Tunnel | None = None
        if base_url.startswith(SCHEME):
            self._tunnel = Tunnel(base_url)
        self._lock = threading.Lock()
        self._api: APIClient | None = None
        self._uses_socket = False  # whether ``_api`` uses a socket of this machine
        self._tunnel_url = ""  # of the socket that the client uses

    def __call__(self) -> APIClient:
        """Return the client; connect unless connected. Raises `EngineDown`."""
        with self._lock, translated(EngineDown):
            base_url = self._open_url()
            if self._api is None:
                self._api = self._connect(base_url)
            return self._api

    def is_here(self) -> bool:
        """Whether the daemon runs on our own host, as far as is known. Raises `EngineDown`."""
        self()  # connects if necessary, which determines ``_uses_socket``
        return self._uses_socket and self._tunnel is None

    def close(self) -> None:
        """Close the client and the tunnel; the next call opens new ones."""
        with self._lock:
            self._drop_client()
            if self._tunnel is not None:
                self._tunnel.close()

    def _open_url(self) -> str:
        """Return the daemon's URL on this machine; open the tunnel to it if there is one.

        A tunnel that was opened again has another socket, so the client is dropped.
        """
        if self._tunnel is None:
            return self._base_url
        tunnel_url = f"unix://{self._tunnel.open()}"
        if tunnel_url != self._tunnel_url:
            self._drop_client()
            self._tunnel_url = tunnel_url
        return tunnel_url

    def _connect(self, base_url: str) -> APIClient:
        """Return a new client, and note whether it uses a socket of this machine.

        ``base_url``: as in `__init__`, or that of a tunnel.
        """
        options: dict[str, Any] = {"base_url": base_url}
        if not base_url:
            options = dict(kwargs_from_env())
        if self._tls:
            options["tls"] = self._tls_config()
        host = parse_host(
            options.get("base_url"),
            tls=bool(options.get("tls")),
        )
        self._uses_socket = str(host).startswith("http+unix://")
        return Client(
            version="auto",
            timeout=REQUEST_TIMEOUT,
            max_pool_size=POOL_SIZE,
            **options,
        )

    def _tls_config(self) -> TLSConfig:
        """Return the TLS settings; without ``cert`` there is no client certificate."""
        certificate = None
        if "cert" in self._tls:
            certificate = (self._tls["cert"], self._tls["key"])
        return TLSConfig(
            client_cert=certificate,
            ca_cert=self._tls["ca"],
            verify=True,
        )

    def _drop_client(self) -> None:
        """Close the client, if there is one; the next call connects again."""
        api = self._api
        self._api = None
        if api is not None:
            api.close()


# ------------------------------------------------------------ errors


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise a refusal of the daemon as a specific error or ``otherwise``.

    Raises `EngineDown` if the daemon does not respond.
    """
    try:
        yield
    except APIError as error:
        raise _refusal(error, otherwise) from error
    except (DockerException, HTTPError, OSError) as error:  # every failed request is an OSError
        raise EngineDown(f"the container engine does not answer: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """Return the system's message, such as ``No such file or directory``.

    If no system call failed, return the message of the error itself.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _refusal(error: APIError, otherwise: type[EngineError]) -> EngineError:
    """Return the error behind a daemon's refusal.

    ``otherwise``: the error if the daemon is available and has space. With `CreateFailed` the
    request was for a container, so the message is searched for the known causes.
    """
    text = _ID.sub(r"\1", message_of(error))
    lowered = text.lower()
    if is_away(error):
        return EngineDown(f"the container engine is not ready: {text}")
    if "no space left on device" in lowered:
        return NoSpace(text)
    if otherwise is not CreateFailed:
        return otherwise(text)
    has_no_image = error.status_code == _NOT_FOUND and "no such image" in lowered
    if has_no_image:
        return ImageNotFound(text, MISSING_IMAGE_REMEDY)  # removed since the launch looked for it
    return start_error(text)


def message_of(error: APIError) -> str:
    """Return the daemon's message."""
    return str(error.explanation or error)


def is_away(error: APIError) -> bool:
    """Whether the daemon cannot handle any request at present.

    A daemon that restarts one of its own processes reports an internal error; only the message
    distinguishes that from other internal errors.
    """
    if error.status_code == _SERVER_ERROR:
        return _PARTS_AWAY.search(message_of(error)) is not None
    return error.status_code in _NOT_READY


def network_is_gone(error: APIError) -> bool:
    """Whether a request failed because its network or its sandbox was removed."""
    return _NO_NETWORK.search(message_of(error)) is not None


def check_response(response: requests.Response) -> None:
    """Raise APIError unless a request that bypassed the library succeeded."""
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)  # raises APIError


# ------------------------------------------------------------ requests that the library lacks


def url_of(api: APIClient, path: str) -> str:
    """Return the URL of a path of the daemon's API."""
    return f"{api.base_url}/v{api.api_version}/{path}"


@contextmanager
def streamed(
    api: APIClient,
    path: str,
    **params: str,
) -> Iterator[Any]:
    """Open the raw response of a path as a stream. Raises APIError, OSError."""
    response = api.get(
        url_of(api, path),
        params=params,
        stream=True,
        timeout=api.timeout,
    )
    with closing(response):
        check_response(response)
        yield response.raw


def log_of(
    api: APIClient,
    path: str,
    stream: str,
) -> Iterator[bytes]:
    """Yield the output of ``containers/…`` or ``tasks/…`` on a stream, in chunks.

    The daemon sends frames, each with a head of 8 bytes whose last 4 are the frame's size. Raises
    APIError, OSError.
    """
    params = {stream: "1"}
    with streamed(api, f"{path}/logs", tail="all", **params) as raw:
        while True:
            head = raw.read(_FRAME_HEAD)
            if len(head) != _FRAME_HEAD:  # the end, or the connection was lost
                return
            (size,) = unpack(">xxxxL", head)
            yield from _read_frame(raw, size)


def _read_frame(raw: Any, size: int) -> Iterator[bytes]:
    """Yield the content of a frame of ``size`` bytes; less if the connection is lost."""
    while size:
        chunk = raw.read(size)
        if not chunk:
            return
        size -= len(chunk)
        yield chunk


def remove(api: APIClient, container: str) -> None:
    """Kill and remove a container with its volumes; it may be gone. Raises APIError."""
    try:
        api.remove_container(container, force=True, v=True)
    except APIError as error:
        if error.status_code not in _REMOVED:
            raise


class EventWatch(Follower):
    """Reports each exit.

    On every connection it first reports all runs that have exited, so that none is missed.
    """

    def __init__(
        self,
        client: Callable[[], APIClient],
        filters: Mapping[str, Any],
        exited_names: Callable[[], Iterable[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None = None,
    ) -> None:
        """``filters`` select the runs; ``exited_names`` returns those of them that have exited."""
        self._client = client
        self._filters = {**filters, "type": "container", "event": "die"}
        self._exited_names = exited_names
        self._stream: CancellableStream[Any] | None = None
        super().__init__(_FIRST_WAIT, on_exit, on_away)

    def _look(self) -> None:
        """Report the runs that have exited, then each exit until the stream ends."""
        try:
            stream = self._open_stream()
            if self._closed.is_set():  # closed before there was a stream to close
                return
            for name in self._exited_names():
                self.report(name)
            for event in stream:
                if self._closed.is_set():
                    return
                self.report(event["Actor"]["Attributes"]["name"])
        finally:
            self._interrupt()  # closes the stream
        # The stream ended, so the daemon is away. After `close`, this reaches no subscriber.
        self.report_away()

    def _open_stream(self) -> "CancellableStream[Any]":
        """Open the stream of events from this second on, by the daemon's clock.

        Raises APIError, OSError.
        """
        client = self._client()
        now = datetime.fromisoformat(client.info()["SystemTime"])  # in the daemon's time zone
        stream = client.events(
            decode=True,
            since=int(now.timestamp()),
            filters=self._filters,
        )
        self._stream = stream
        return stream

    def _interrupt(self) -> None:
        """Close the stream; a `_look` that is reading it then ends."""
        stream = self._stream
        self._stream = None
        if stream is not None:
            with suppress(DockerException, OSError, AttributeError):  # it has ended already
                stream.close()
