"""The values of this room: a route to one node, and the table of all of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gateway.domain.problems import Problem as Problem
from gateway.domain.problems import Unfit
from gateway.domain.problems import near as near

FATES = "fate-partner"
PROFILES = ("spec", "fate", "kuscia", "audited", FATES)
DEFAULT_PROFILE = "spec"
SIGNING = ("required", "accepted", "off")
BUNDLES = ("required", "accepted")
DEFAULT_DEADLINE = 10.0
DEFAULT_ENTRY = "default"
"""the entry that serves nodes without one of their own; no node may be called so"""
MOST_OF_NODE = 100
NODE_ID = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._:@-]{{0,{MOST_OF_NODE - 2}}}[A-Za-z0-9])?")
NODE_RULE = (
    f"must be a node id: letters, digits and . _ : @ - inside, at most {MOST_OF_NODE} characters"
)


def short(text: str, most: int = 128) -> str:
    """Return text as a problem repeats it: cut, and encodable."""
    shown = text.encode("utf-8", "replace").decode()
    return shown if len(shown) <= most else shown[:most] + "…"


class InvalidRoutes(Unfit):
    """A route table cannot be used."""


class UnknownNode(Exception):
    """The table has no route to a node that may be used. The message says how to add one."""

    def __init__(
        self,
        node: str,
        version: int,
        disabled: bool = False,
        via: str = "",
    ) -> None:
        """``via`` names the next hop whose entry is the one that is disabled."""
        self.node = node
        self.version = version
        self.disabled = disabled
        table, shown = f"in version {version} of the route table", short(node)
        if via:
            text = f"the route to node {shown!r} goes via {via!r}, whose entry is disabled {table}; enable it"
        elif disabled:
            text = (
                f"the route to node {shown!r} is disabled {table}; set enabled: true in its entry"
            )
        else:
            text = f"node {shown!r} has no route {table}; add an entry under {shown!r} with its host and port"
        super().__init__(text)


class Unusable(Exception):
    """A file cannot be used; the text is the rule that it breaks."""


def read_file(file: str | Path, most: int) -> bytes:
    """Return the content of a regular file. Raises Unusable; a pipe is not opened, as that would wait."""
    path = Path(file)
    try:
        if not path.is_file():
            raise Unusable("is not a file" if path.exists() else "does not exist")
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise Unusable("is not a path") from error
    if len(content) > most:
        raise Unusable(f"must not be larger than {most} bytes")
    return content


@dataclass(frozen=True)
class Bearer:
    """The names in a certificate, by which its holder is recognised.

    ``bears``: its subject alternative names (DNS, URI, IP), in lower case, and the pin of its public key,
    ``sha256:`` and 64 hexadecimal digits. ``serial`` and ``issuer`` (DER) are what revocation lists name it by.
    """

    bears: frozenset[str]
    serial: int
    issuer: bytes


@dataclass(frozen=True)
class Identity:
    """How TLS with one address is done: paths of PEM files, and the name that the peer's certificate must bear.

    Without ``ca`` the authorities are those that this machine's Python brings; ``certificate`` and ``key`` are
    shown to a peer that asks for them; without ``server_name`` the name is the host of the address.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None


NO_IDENTITY = Identity()


_FILES = ("ca", "certificate", "key")
_OF_HOP = ("url", "transport", "peer_certificate", "server_name", *_FILES)
"""how the node is called that passes requests on"""


@dataclass(frozen=True)
class Route:
    """How one node is reached.

    ``url`` is scheme, host, port unless it is the scheme's own, and path prefix, without a slash at its end; it is
    empty where ``via`` names the node that requests are handed to, to be passed on. ``transport`` is the same for
    the messages of containers, where that is another address.
    ``profile`` names the peer's dialect, ``institution`` its owner where that is known. ``deadline`` is the
    time in seconds that one call may take. A disabled route is kept, but not used. ``relay``: this node passes on
    what comes from that node or is for it, where the other end's route says so too.
    ``ca`` to ``server_name`` are an `Identity`. ``components`` are patterns of those that the node may have run
    here, in which ``*`` stands for anything; none: all of them. ``peer_certificate`` says what the certificate
    that the node shows when it connects must bear (`bound_to`); none: the node's id. ``keys`` are the public keys
    that sign the node's requests (base64 of SubjectPublicKeyInfo), ``signing`` one of `SIGNING` (`signed`),
    ``bundles`` one of `BUNDLES`: whether the jobs that it initiates or schedules have to be signed.
    """

    node: str
    url: str
    profile: str = DEFAULT_PROFILE
    institution: str | None = None
    deadline: float = DEFAULT_DEADLINE
    enabled: bool = True
    via: str | None = None
    relay: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    components: tuple[str, ...] = ()
    peer_certificate: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    signing: str | None = None
    bundles: str = BUNDLES[1]
    transport: str | None = None

    @property
    def channel(self) -> "Route":
        """The route of containers' messages."""
        return self if self.transport is None else replace(self, url=self.transport)

    def beside(self, folder: Path) -> "Route":
        """Return the route with the whole path of each file that is named from a folder."""
        files: dict[str, Any] = {
            key: str(folder / name) for key in _FILES if (name := getattr(self, key))
        }
        return replace(self, **files) if files else self

    @property
    def signed(self) -> str:
        """Whether requests are signed, both ways: where it is not said, ``required`` if there are keys."""
        return self.signing or ("required" if self.keys else "accepted")

    def bound_to(self, certificate: Bearer) -> bool:
        """Tell whether a client certificate is that of the node that is called on this route.

        It is where it bears one of ``peer_certificate``, a subject alternative name or the pin of its key, or, if
        there are none, the node's id as a subject alternative name.
        """
        return not certificate.bears.isdisjoint(
            self.peer_certificate or {(self.via or self.node).lower()}
        )

    def may_run(self, component: str) -> bool:
        """Tell whether the node may have a component, ``provider/name``, run here."""
        return not self.components or any(
            fnmatchcase(component, pattern) for pattern in self.components
        )

    @property
    def identity(self) -> Identity:
        """The TLS files and names by which this node and that one know each other."""
        return Identity(self.ca, self.certificate, self.key, self.server_name)


@dataclass(frozen=True)
class RouteTable:
    """One version of all routes, by node id. Version 0 is the table before anything was read.

    That ``via`` leads to an entry with an address, and not in a circle, is checked where a table is read.
    """

    version: int = 0
    routes: Mapping[str, Route] = field(default_factory=dict)

    def resolve(self, node: str) -> Route:
        """Return the route to a node, with the address and identity of who is called for it.

        Where that is another node, ``via`` names it: the last of a chain of next hops, or `DEFAULT_ENTRY` where
        the default route has an address of its own. Raises UnknownNode if there is no route, or it is disabled.
        """
        route = self.routes.get(node)
        if route is None or node == DEFAULT_ENTRY:
            return self._by_default(node)
        if not route.enabled:
            raise UnknownNode(node, self.version, disabled=True)
        return route if route.via is None else self._through(route)

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route of its own; the default route makes nobody known."""
        route = self.routes.get(node)
        return route is not None and route.enabled and node != DEFAULT_ENTRY

    def _by_default(self, node: str) -> Route:
        route = self.routes.get(DEFAULT_ENTRY)
        if route is None or not route.enabled or node == DEFAULT_ENTRY:
            raise UnknownNode(node, self.version)
        if route.via is None:
            return replace(route, node=node, via=DEFAULT_ENTRY)
        return self._through(replace(route, node=node))

    def _through(self, route: Route) -> Route:
        hop = self.routes[route.via or ""]
        while hop.enabled and hop.via is not None:
            hop = self.routes[hop.via]
        if not hop.enabled:
            raise UnknownNode(route.node, self.version, disabled=True, via=hop.node)
        reached: dict[str, Any] = {name: getattr(hop, name) for name in _OF_HOP}
        return replace(route, via=hop.node, **reached)
