"""Connections to other nodes, directly or through an HTTP proxy that opens tunnels (CONNECT)."""

import base64
import re
import socket
import time

from route_table.model import Identity
from route_table.proxies import (
    LOGIN,
    REFUSED,
    UNREACHABLE,
    Proxy,
    ProxyFailed,
    authority,
    proxy_at,
)

_LONGEST_HEAD = 16384  # bytes of a proxy's response before the tunnel
_END_OF_HEAD = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]{0,200}))?\r?\n")
_OPEN = range(200, 300)  # statuses of an open tunnel
_NEED_LOGIN = (401, 407)  # tinyproxy answers 401 to a wrong password

# httpx's extension of a request with the URL in the route: in a URL, httpx lower-cases the host.
ROUTE_URL = "route_url"


def proxy_of(identity: Identity) -> Proxy | None:
    """Return the proxy on the way to an address; None if the address is reached directly."""
    return proxy_at(identity.proxy, identity.proxy_password)


def login_header(proxy: Proxy) -> bytes:
    """Return the header line with user and password; empty for a proxy without a user.

    Raises `ProxyFailed` as `Proxy.login` does.
    """
    login = proxy.login()
    if login is None:
        return b""
    pair = base64.b64encode(":".join(login).encode())
    return b"proxy-authorization: Basic %s\r\n" % pair


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
        _open_tunnel(sock, proxy, authority(host, port), end)
    except BaseException:
        sock.close()
        raise
    sock.settimeout(seconds)
    return sock


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
    target: str,
    end: float,
) -> None:
    """Have a proxy open a tunnel until ``end`` (monotonic clock). Raises `ProxyFailed`."""
    name = target.encode("ascii")
    request = b"CONNECT %s HTTP/1.1\r\nhost: %s\r\n" % (name, name)
    request += login_header(proxy) + b"\r\n"
    try:
        sock.sendall(request)
        head = _read_head(sock, end)
    except OSError as error:
        text = f"proxy {proxy.address} does not answer: {error}"
        raise ProxyFailed(text, UNREACHABLE) from error
    _check_head(head, proxy, target)


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


def _check_head(head: bytes, proxy: Proxy, target: str) -> None:
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
    text = f"proxy {proxy.address} refuses the way to {target}: HTTP {status} {phrase}".strip()
    raise ProxyFailed(text, REFUSED)
