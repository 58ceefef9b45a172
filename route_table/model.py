"""The values of this package: the route to one node, and the table of all routes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.domain.problems import Problem as Problem
from gateway.domain.problems import Unfit
from gateway.domain.problems import near as near

FATE_PARTNER = "fate-partner"  # the profile of nodes that speak FATE's own protocol
PROFILES = ("spec", "fate", "kuscia", "audited", "transport", FATE_PARTNER)
DEFAULT_PROFILE = "spec"
SIGNING = ("required", "accepted", "off")  # whether requests are signed
BUNDLES = ("required", "accepted")  # whether jobs need a bundle, a signed description of the job
SEALING = ("required", "accepted", "off")  # whether messages of one kind are sealed
# The words that YAML 1.1 reads as booleans, in lower case. YAML 1.2 keeps most of them as text.
BOOLEAN_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}
DIAL = ("out",)  # this node keeps a link to the node
REACHED = ("by-link",)  # the node keeps a link to this node
DEFAULT_DEADLINE = 10.0  # seconds
DEFAULT_PARALLEL = 2  # parts of a long message
DEFAULT_ENTRY = "default"  # serves nodes without an entry of their own; not valid as a node's id
MAX_NODE_ID = 100  # characters
NODE_ID = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._:@-]{{0,{MAX_NODE_ID - 2}}}[A-Za-z0-9])?")
NODE_RULE = (
    f"must be a node id: letters, digits and . _ : @ - inside, at most {MAX_NODE_ID} characters"
)

_PLAIN_KEY = re.compile(r"[\w-]{1,128}")
_FILES = ("ca", "certificate", "key", "proxy_password")
# The fields that a route takes from the entry of the node that passes its requests on.
_HOP_FIELDS = ("url", "transport", "peer_certificate", "server_name", "proxy", *_FILES)


# ------------------------------------------------------------ problems and files


def switch_word(value: Any) -> Any:
    """Return ``on`` or ``off`` for a boolean, or for a word that YAML reads as one.

    An unquoted ``off`` in YAML is false, and in other formats people write false or no for it. Any
    other value is returned unchanged.
    """
    is_on = value
    if isinstance(value, str):
        is_on = BOOLEAN_WORDS.get(value.lower())
    if is_on is True:
        return "on"
    if is_on is False:
        return "off"
    return value


def short(text: str, limit: int = 128) -> str:
    """Return text as problems repeat it: encodable in UTF-8, and cut after ``limit`` characters."""
    encodable = text.encode("utf-8", "replace").decode()
    if len(encodable) > limit:
        return encodable[:limit] + "…"
    return encodable


def join(path: str, key: str) -> str:
    """Return a path extended by a key.

    A key with unusual characters is quoted in brackets. ``path`` is "" for the table as a whole.
    """
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(short(key), ensure_ascii=False)}]"
    if not path:
        return key
    return f"{path}.{key}"


class InvalidRoutes(Unfit):
    """A route table cannot be used."""


class UnknownNode(Exception):
    """The table has no usable route to a node; the message says how to add or enable one."""

    def __init__(
        self,
        node: str,
        version: int,
        disabled: bool = False,
        via: str = "",
    ) -> None:
        """Describe a missing or disabled route in a version of the table.

        ``via`` is the next hop if its entry is the disabled one; "" otherwise.
        """
        self.node = node
        self.version = version
        self.disabled = disabled
        table = f"in version {version} of the route table"
        quoted = short(node)
        text = (
            f"node {quoted!r} has no route {table}; "
            f"add an entry under {quoted!r} with its host and port"
        )
        if disabled:
            text = (
                f"the route to node {quoted!r} is disabled {table}; set enabled: true in its entry"
            )
        if via:
            text = (
                f"the route to node {quoted!r} goes via {via!r}, whose entry is disabled {table}; "
                "enable it"
            )
        super().__init__(text)


def link_url(node: str) -> str:
    """Return the URL of a node that is only reached by the links which it opens.

    No such URL can be dialled. For "", return the beginning of all of them.
    """
    return f"link://{quote(node, safe='')}"


class Unusable(Exception):
    """A file cannot be used; the text is the rule that it breaks."""


def read_file(file: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises `Unusable` for any other file, and for one that is missing or may not be read. A pipe or
    device is refused before it is opened, since that could block.
    """
    path = Path(file)
    try:
        if not path.exists():
            raise Unusable("does not exist")
        if not path.is_file():
            raise Unusable("is not a file")
        with path.open("rb") as stream:
            content = stream.read(limit + 1)  # one byte more shows that the file is too large
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # the name contains a null character
        raise Unusable("is not a path") from error
    if len(content) > limit:
        raise Unusable(f"must not be larger than {limit} bytes")
    return content


# ------------------------------------------------------------ certificates


@dataclass(frozen=True)
class Bearer:
    """The parts of a certificate that identify its holder, also in a revocation list."""

    # Subject alternative names (DNS, URI, IP) in lower case, and the pin of the public key:
    # ``sha256:`` and 64 hexadecimal digits.
    names: frozenset[str]
    serial: int
    issuer: bytes  # DER


@dataclass(frozen=True)
class Identity:
    """The way to one address: the files (PEM) and names for TLS, and the proxy."""

    ca: str | None = None  # None: the authorities of this machine's Python
    certificate: str | None = None  # shown to a peer that asks for one; None: none is shown
    key: str | None = None  # of ``certificate``
    # The name that the peer's certificate must bear; None: the address's host.
    server_name: str | None = None
    # URL of the HTTP proxy that opens tunnels to the address, perhaps with a user; None: no proxy.
    proxy: str | None = None
    proxy_password: str | None = None  # file with the password of the proxy's user

    def without_tls(self) -> "Identity":
        """Return the way to the address without TLS: the proxy alone."""
        return Identity(
            proxy=self.proxy,
            proxy_password=self.proxy_password,
        )

    def without_proxy(self) -> "Identity":
        """Return the files and names for TLS alone."""
        return replace(
            self,
            proxy=None,
            proxy_password=None,
        )


NO_IDENTITY = Identity()


# ------------------------------------------------------------ routes


@dataclass(frozen=True)
class Route:
    """The address of one node, and the means by which it and this node prove who they are."""

    node: str
    # Scheme, host, port unless it is the scheme's default, and path prefix, without a final slash.
    # Empty in a table's route with ``via``.
    url: str  # with ``reached``, the one that `link_url` returns
    profile: str = DEFAULT_PROFILE  # the peer's dialect
    institution: str | None = None  # the node's owner, if known
    deadline: float = DEFAULT_DEADLINE  # seconds that one call may take
    enabled: bool = True  # a disabled route is stored but not used
    # The node that passes requests on; in a result of `RouteTable.resolve`, the last such node.
    # None: ``node`` itself is called.
    via: str | None = None
    # This node passes requests on between ``node`` and every other node whose route has ``relay``.
    relay: bool = False
    ca: str | None = None  # this and the next five: see `Identity`
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    proxy: str | None = None
    proxy_password: str | None = None
    # Patterns, with ``*`` for anything, of the components that may run here in jobs of the node;
    # empty: all.
    components: tuple[str, ...] = ()
    # Names or key pins; the node's client certificate must bear one of them. Empty: the node's id.
    peer_certificate: tuple[str, ...] = ()
    # Public keys for the node's signatures, not for TLS: base64 of SubjectPublicKeyInfo.
    keys: tuple[str, ...] = ()
    signing: str | None = None  # one of `SIGNING`; None: see `signing_mode`
    # One of `BUNDLES`: whether jobs that the node initiates or schedules need a signed bundle.
    bundles: str = "accepted"
    transport: str | None = None  # like ``url``, for containers' messages; None: the same address
    # Public key to which containers' messages and control requests for the node are sealed: base64
    # of SubjectPublicKeyInfo; None: the node offers none.
    sealing_key: str | None = None
    sealing: str | None = None  # one of `SEALING`; None: see `sealing_mode`
    # One of `SEALING`, for the bodies of control requests and of their responses.
    control_sealing: str = "off"
    # One of `DIAL`: this node opens links to the node, which carry requests both ways; None: the
    # node is called at its address.
    dial: str | None = None
    # One of `REACHED`: the node has no address and opens links to this node.
    reached: str | None = None
    # Parts of a long message that are under way to the node together, on a connection each.
    parallel: int = DEFAULT_PARALLEL
    # Bytes per second in each direction; None: as the node's configuration says.
    bandwidth: int | None = None

    @property
    def total_deadline(self) -> float | None:
        """Seconds for all tries of a call together.

        None for the default deadline, with which each kind of call has a limit of its own.
        """
        if self.deadline == DEFAULT_DEADLINE:
            return None
        return self.deadline

    @property
    def channel(self) -> "Route":
        """The route of containers' messages, which may have an address of their own."""
        if self.transport is None:
            return self
        return replace(self, url=self.transport)

    @property
    def signing_mode(self) -> str:
        """One of `SIGNING`, for requests in both directions.

        Without a setting, it is ``required`` if there are keys, and otherwise ``accepted``.
        """
        if self.signing:
            return self.signing
        return "required" if self.keys else "accepted"

    @property
    def sealing_mode(self) -> str:
        """One of `SEALING`, for containers' messages in both directions.

        Without a setting, it is ``accepted`` if there is a sealing key, and otherwise ``off``. With
        ``accepted``, messages are sent sealed, and unsealed ones are taken.
        """
        if self.sealing:
            return self.sealing
        return "accepted" if self.sealing_key else "off"

    @property
    def sends_sealed(self) -> bool:
        """Whether containers' messages for the node are sent only sealed."""
        if self.sealing_mode == "accepted":
            return self.sealing_key is not None
        return self.sealing_mode == "required"

    @property
    def seals_control(self) -> bool:
        """Whether control requests for the node are sent only sealed."""
        if self.control_sealing == "accepted":
            return self.sealing_key is not None
        return self.control_sealing == "required"

    @property
    def identity(self) -> Identity:
        """The files and names for TLS with the node."""
        return Identity(
            self.ca,
            self.certificate,
            self.key,
            self.server_name,
            self.proxy,
            self.proxy_password,
        )

    def with_paths_from(self, folder: Path) -> "Route":
        """Return the route with full paths of its files.

        The table's paths are relative to a folder.
        """
        paths: dict[str, Any] = {}
        for key in _FILES:
            name = getattr(self, key)
            if name is not None:
                paths[key] = str(folder / name)
        return replace(self, **paths)

    def bound_to(self, certificate: Bearer) -> bool:
        """Return whether a client certificate belongs to the node that this route calls.

        It must bear one of ``peer_certificate`` or, without any, the id of that node: the next
        hop's if requests are passed on.
        """
        expected = self.peer_certificate or [(self.via or self.node).lower()]
        return not certificate.names.isdisjoint(expected)

    def may_run(self, component: str) -> bool:
        """Return whether a component, ``provider/name``, may run here in jobs of the node.

        Patterns are matched in exact case; a route without any allows every component.
        """
        patterns = self.components or ("*",)
        return any(fnmatchcase(component, pattern) for pattern in patterns)


_NO_ROUTE = Route(node="", url="", enabled=False)  # in place of an absent entry


@dataclass(frozen=True)
class RouteTable:
    """One version of the routes to all nodes, by node id.

    Version 0 is the empty table before the first one was read. In a table that was read, every
    ``via`` leads to an entry with an address.
    """

    version: int = 0
    routes: Mapping[str, Route] = field(default_factory=dict)

    def resolve(self, node: str) -> Route:
        """Return the route to a node, with the address and identity of the node that is called.

        If the called node is not ``node`` itself, ``via`` names it: the last of a chain of next
        hops, or `DEFAULT_ENTRY` if the default route has an address. Raises `UnknownNode` for a
        node without a route, or with a disabled one.
        """
        route = self.routes.get(node)
        if route is None or node == DEFAULT_ENTRY:
            return self._by_default(node)
        if not route.enabled:
            raise UnknownNode(node, self.version, disabled=True)
        if route.via is None:
            return route
        return self._through_hops(route)

    def knows(self, node: str) -> bool:
        """Return whether a node has an enabled entry of its own.

        The default route does not count.
        """
        return node != DEFAULT_ENTRY and self.routes.get(node, _NO_ROUTE).enabled

    def _by_default(self, node: str) -> Route:
        """Return the default route with a node's id.

        Raises `UnknownNode` if there is no enabled default route, and for the id ``default``, which
        no node has.
        """
        default = self.routes.get(DEFAULT_ENTRY, _NO_ROUTE)
        if node == DEFAULT_ENTRY or not default.enabled:
            raise UnknownNode(node, self.version)
        if default.via is None:
            return replace(default, node=node, via=DEFAULT_ENTRY)
        return self._through_hops(replace(default, node=node))

    def _through_hops(self, route: Route) -> Route:
        """Return a route with the address and identity of its last hop, which ``via`` then names.

        Raises `UnknownNode` if a hop is disabled.
        """
        hop = route
        while hop.via is not None:
            hop = self.routes[hop.via]
            if not hop.enabled:
                raise UnknownNode(
                    route.node,
                    self.version,
                    disabled=True,
                    via=hop.node,
                )
        hop_values: dict[str, Any] = {name: getattr(hop, name) for name in _HOP_FIELDS}
        return replace(route, via=hop.node, **hop_values)
