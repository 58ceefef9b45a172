"""HTTP proxies on the way to other hosts, and which hosts are reached directly."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from route_table.model import Route

# Symbolic names of the faults of a proxy.
UNREACHABLE = "PROXY_UNREACHABLE"
LOGIN = "PROXY_LOGIN"
REFUSED = "PROXY_REFUSED"

_DEFAULT_PORT = 3128
_THIS_MACHINE = ("localhost", "127.0.0.0/8", "::1")
# The user is percent-encoded and without a password; an IPv6 address is in brackets.
PROXY = re.compile(
    r"http://(?:[A-Za-z0-9._~!$&'()*+,;=%-]{1,200}@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+):(?P<port>[0-9]{1,5})/?"
)
# A name, or an ending of names with a leading dot. The last part has a letter: without one, it is a
# mistyped address.
_NAME = re.compile(r"\.?(?:[\w-]+\.)*[0-9_-]*[^\W\d_][\w-]*", re.ASCII)
HOST_RULE = (
    "must be a name, the ending of names such as .bank.example, an address or a network such as "
    "10.0.0.0/8"
)
PROXY_RULE = "must read http://host:port or http://user@host:port, without a password"


class ProxyFailed(ConnectionError):
    """A proxy does not open the way; ``reason`` is the symbolic name."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy, and how this node logs in at it."""

    host: str
    port: int
    user: str = ""
    password_file: str | Path | None = None  # None: the user has no password

    @property
    def address(self) -> str:
        """Host and port, as in URLs."""
        return authority(self.host, self.port)

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
        user, password = [quote(text, safe="") for text in login]
        return f"http://{user}:{password}@{self.address}"


def authority(host: str, port: int) -> str:
    """Return host and port as URLs have them."""
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


def proxy_at(url: str | None, password_file: str | Path | None) -> Proxy | None:
    """Return the proxy of a URL; None without a URL."""
    if url is None:
        return None
    parts = urlsplit(url)
    return Proxy(
        parts.hostname or "",
        parts.port or _DEFAULT_PORT,
        unquote(parts.username or ""),
        password_file,
    )


def is_proxy(url: str) -> bool:
    """Return whether a text is the URL of a proxy whose host and port can exist."""
    with suppress(ValueError):
        return all([PROXY.fullmatch(url), urlsplit(url).port])
    return False


def is_host(text: str) -> bool:
    """Return whether a text is a host, an ending of hosts or a network."""
    forms = [_NAME.fullmatch(text), *_networks([text])]
    return any(forms)


@dataclass(frozen=True)
class DefaultProxy:
    """The proxy on the way to all hosts but some.

    ``direct`` has the other hosts: names, endings of names with a leading dot, addresses and
    networks, in upper or lower case. This machine is always reached directly.
    """

    url: str | None = None
    password_file: Path | None = None
    direct: tuple[str, ...] = ()

    def on_way_to(self, url: str) -> Proxy | None:
        """Return the proxy on the way to a URL; None if its host is reached directly."""
        if self._is_direct(urlsplit(url).hostname or ""):
            return None
        return proxy_at(self.url, self.password_file)

    def applied(self, route: Route) -> Route:
        """Return a route with this proxy, if it has an address and names no proxy itself."""
        if route.proxy is not None or not route.url or self.on_way_to(route.url) is None:
            return route
        password = None
        if self.password_file is not None:
            password = str(self.password_file)
        return replace(
            route,
            proxy=self.url,
            proxy_password=password,
        )

    def _is_direct(self, host: str) -> bool:
        """Return whether a host is reached without the proxy; ``host`` is in lower case."""
        hosts = _THIS_MACHINE + tuple(map(str.lower, self.direct))
        address = _address(host)
        if address is None:
            endings = tuple(name for name in hosts if name.startswith("."))
            return host in hosts or host.endswith(endings)
        return any(address in network for network in _networks(hosts))


def _networks(
    hosts: Sequence[str],
) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Yield the addresses and networks among hosts."""
    for host in hosts:
        with suppress(ValueError):  # a name
            yield ipaddress.ip_network(host, strict=False)  # 10.0.0.1/8 is 10.0.0.0/8


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
