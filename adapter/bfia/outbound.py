"""Connections to other nodes, directly or through an HTTP proxy that opens tunnels (CONNECT)."""

import base64
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from route_table.model import Identity

UNREACHABLE = "PROXY_UNREACHABLE"
LOGIN = "PROXY_LOGIN"
REFUSED = "PROXY_REFUSED"

_DEFAULT_PORT = 3128  # of proxies
_LONGEST_HEAD = 16384  # bytes of a proxy's response before the tunnel
_END_OF_HEAD = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]{0,200}))?\r?\n")
_OPEN = range(200, 300)  # statuses of an open tunnel
_NEED_LOGIN = (401, 407)  # tinyproxy answers 401 to a wrong password


class ProxyFailed(ConnectionError):
    """A proxy did not open a tunnel; ``reason`` is its symbolic name."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy on the way to a node."""

    host: str
    port: int
    user: str = ""
    password_file: str | None = None  # None: the user has no password

    @property
    def address(self) -> str:
        """Host and port, as in URLs."""
        return _authority(self.host, self.port)

    def login(self) -> tuple[str, str] | None:
        """Return user and password; None for a proxy without a user.

        The file is read at each call, so a new password counts immediately. Raises `ProxyFailed`
        if it cannot be read.
        """
        if not self.user:
            return None
        if self.password_file is None:
            return self.user, ""
        try:
            password = Path(self.password_file).read_text()
        except (OSError, UnicodeError) as error:
            text = f"the password of proxy {self.address} cannot be read: {error}"
            raise ProxyFailed(text, LOGIN) from error
        return self.user, password.rstrip("\n")

    def url(self) -> str:
        """Return the proxy's URL with user and password. Raises `ProxyFailed` as `login` does."""
        login = self.login()
        if login is None:
            return f"http://{self.address}"
        user, password = map(quote, login)
        return f"http://{user}:{password}@{self.address}"

    def login_header(self) -> bytes:
        """Return the header line with user and password; empty for a proxy without a user.

        Raises `ProxyFailed` as `login` does.
        """
        login = self.login()
        if login is None:
            return b""
        pair = base64.b64encode(":".join(login).encode())
        return b"proxy-authorization: Basic %s\r\n" % pair


def proxy_of(identity: Identity) -> Proxy | None:
    """Return the proxy on the way to an address; None if the address is reached directly."""
    if identity.proxy is None:
        return None
    parts = urlsplit(identity.proxy)
    return Proxy(
        parts.hostname or "",
        parts.port or _DEFAULT_PORT,
        unquote(parts.username or ""),
        identity.proxy_password,
    )


def open_socket(
    host: str,
    port: int,
    seconds: float,
    proxy: Proxy | None,
) -> socket.socket:
    """Return a connection to a host, which a proxy may have opened.

    Raises OSError, also `ProxyFailed`, if it is not open after ``seconds``.
    """
    if proxy is None:
        return socket.create_connection((host, port), seconds)
    end = time.monotonic() + seconds
    sock = _connect(proxy, seconds)
    try:
        _open_tunnel(sock, proxy, _authority(host, port), end)
    except BaseException:
        sock.close()
        raise
    sock.settimeout(seconds)
    return sock


def _authority(host: str, port: int) -> str:
    """Return host and port as CONNECT names them."""
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


def _connect(proxy: Proxy, seconds: float) -> socket.socket:
    """Connect to a proxy. Raises `ProxyFailed`."""
    try:
        return socket.create_connection((proxy.host, proxy.port), seconds)
    except OSError as error:
        text = f"proxy {proxy.address} cannot be reached: {error}"
        raise ProxyFailed(text, UNREACHABLE) from error


def _open_tunnel(
    sock: socket.socket,
    proxy: Proxy,
    authority: str,
    end: float,
) -> None:
    """Have a proxy open a tunnel until ``end`` (monotonic clock). Raises `ProxyFailed`."""
    target = authority.encode("ascii")
    request = b"CONNECT %s HTTP/1.1\r\nhost: %s\r\n" % (target, target)
    request += proxy.login_header() + b"\r\n"
    try:
        sock.sendall(request)
        head = _read_head(sock, end)
    except OSError as error:
        text = f"proxy {proxy.address} does not answer: {error}"
        raise ProxyFailed(text, UNREACHABLE) from error
    _check_head(head, proxy, authority)


def _read_head(sock: socket.socket, end: float) -> bytes:
    """Return the head of a proxy's response, byte by byte: what follows belongs to the tunnel.

    Raises OSError if it is not complete at ``end``.
    """
    head = bytearray()
    while not head.endswith(_END_OF_HEAD):
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no response in time")
        sock.settimeout(remaining)
        received = sock.recv(1)
        if not received:
            raise ConnectionResetError("it closed the connection")
        head += received
        if len(head) > _LONGEST_HEAD:
            raise ConnectionAbortedError("its response is mostly headers")
    return bytes(head)


def _check_head(head: bytes, proxy: Proxy, authority: str) -> None:
    """Raise `ProxyFailed` unless a response says that the tunnel is open."""
    line = _STATUS_LINE.match(head)
    if line is None:
        text = f"what listens at {proxy.address} is not an HTTP proxy"
        raise ProxyFailed(text, UNREACHABLE)
    status = int(line[1])
    if status in _OPEN:
        return
    if status in _NEED_LOGIN:
        text = f"proxy {proxy.address} asks for another user or password"
        raise ProxyFailed(text, LOGIN)
    phrase = (line[2] or b"").decode("latin-1").strip()
    text = f"proxy {proxy.address} refuses the way to {authority}: HTTP {status} {phrase}".strip()
    raise ProxyFailed(text, REFUSED)
