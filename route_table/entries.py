"""One entry of a route table: its keys, how their values are read, and the route that they make."""

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import yaml

from route_table.certificates import public_key
from route_table.model import (
    BUNDLES,
    DEFAULT_DEADLINE,
    DEFAULT_ENTRY,
    DEFAULT_PROFILE,
    FATE_PARTNER,
    NODE_ID,
    PROFILES,
    SIGNING,
    InvalidRoutes,
    Problem,
    Route,
    join,
    near,
    short,
)

# Key of an entry -> its meaning.
KEYS: dict[str, str] = {
    "host": "host name or address",
    "port": "1 to 65535",
    "scheme": "http (default) or https",
    "url": "in place of host and port; may have a path prefix",
    "transport": "URL of the peer's transport layer (messages of containers); by gRPC: grpc://host:port, with TLS "
    "grpcs://; default: the same address",
    "profile": f"the peer's dialect; default {DEFAULT_PROFILE}",
    "institution": "id of who owns the node",
    "deadline": f"seconds that one call may take; default {DEFAULT_DEADLINE:g}",
    "enabled": "false keeps the entry and does not use it",
    "via": "in place of an address: the node that requests are handed to, to be passed on",
    "relay": "true: this node passes on between that node and others with relay: true; default false",
    "ca": "PEM file of the authorities that may have signed the peer's certificate",
    "certificate": "PEM file of the certificate that is shown to the peer, with its chain",
    "key": "PEM file of that certificate's key, without a password",
    "server_name": "the name that the peer's certificate must bear; default: the host",
    "peer_certificate": "what the certificate that the node connects with must bear: a subject alternative name "
    "or sha256:DIGEST of its public key; several separated by commas; default: the node id",
    "keys": "public keys that sign the node's requests: in PEM form, or base64 separated by commas",
    "signing": "required, accepted or off; default: required with keys, else accepted",
    "bundles": "required or accepted: whether the node's jobs need a signed bundle; default: accepted",
    "components": "what the node may have run here, as provider/name with * for anything, separated by commas; "
    "default: all",
}
ADDRESS_KEYS = ("host", "port", "scheme")
TLS_KEYS = ("ca", "certificate", "key", "server_name")
OPTIONS = [key for key in KEYS if key not in ("url", "transport", *ADDRESS_KEYS, *TLS_KEYS)]
SCHEMES = {"http": 80, "https": 443}  # scheme -> its default port, which a route's URL leaves out
MAX_DEADLINE = 3600.0  # seconds
ROOT = "(document)"  # path of problems that concern no single entry

_GRPC_SCHEMES = ("grpc", "grpcs")  # also accepted for a transport
_TLS_URLS = ("https://", "grpcs://")
_MAX_HOST = 253  # characters of a host name
_MAX_PORT = 65535
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_OF_ONE_NODE = ("institution", "components", "peer_certificate", "keys")  # not in the default route

_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")
_FILE = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_COMPONENT = re.compile(r"[^\s,/]{1,200}/[^\s,/]{1,200}|\*")
# A name or the pin of a key in a certificate, in lower case.
_CERTIFICATE_NAME = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[\x21-\x2b\x2d-\x7e]{1,500}")
_PORT = re.compile(r"[0-9]{1,5}")
_KEY_ENDS = re.compile(r",|-----(?:BEGIN|END) PUBLIC KEY-----")


# ------------------------------------------------------------ YAML nodes


def line_of(node: Any) -> int:
    """Return the line of a node or an event, counted from 1."""
    if not node.start_mark:
        return 1
    return int(node.start_mark.line) + 1


def key_text(key: yaml.Node) -> str:
    """Return the text of a mapping's key. Raises `InvalidRoutes` if it is a list or a mapping."""
    if not isinstance(key, yaml.ScalarNode):
        raise refusal(f"line {line_of(key)}: must have text for a key", "a list or a mapping")
    return str(key.value)


def is_null(node: yaml.Node) -> bool:
    """Return whether a node is YAML's null, which in quotes is text."""
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value in _NULLS


def describe(node: yaml.Node) -> str:
    """Return a node's value for a problem, or the kind of structure that it is."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if not isinstance(node, yaml.ScalarNode):
        return "a list"
    if is_null(node):
        return "nothing"
    return short(node.value)


def refusal(rule: str, got: object = None) -> InvalidRoutes:
    """Return the error of a table that cannot be read as a whole."""
    return InvalidRoutes((Problem(ROOT, rule, got),))


# ------------------------------------------------------------ an entry


class Entry:
    """One node's entry: its values by key, and its problems, which are added to a list."""

    def __init__(
        self,
        path: str,
        mapping: yaml.MappingNode,
        problems: list[Problem],
    ) -> None:
        """Raises `InvalidRoutes` for a key that is not text."""
        self.values: dict[str, str] = {}
        self._path = path
        self._line = line_of(mapping)
        self._lines: dict[str, int] = {}
        self._problems = problems
        for key, value in mapping.value:
            self._add(key_text(key), line_of(key), value)

    def _add(self, key: str, line: int, value: yaml.Node) -> None:
        first_line = self._lines.get(key)
        self._lines[key] = line
        if key not in KEYS:
            similar = near(key, KEYS)
            hint = f"did you mean {similar}?" if similar else f"known are {', '.join(KEYS)}"
            self.refuse(key, f"unknown key; {hint}", short(key))
        elif first_line is not None:
            self.refuse(key, f"duplicate key; first in line {first_line}")
        elif not isinstance(value, yaml.ScalarNode):
            self.refuse(key, "must be a single value", describe(value))
        elif is_null(value) or not value.value:
            self.refuse(key, "has no value; give one or remove the key")
        else:
            self.values[key] = value.value

    def has(self, key: str) -> bool:
        """Return whether a key is present, even with a refused value."""
        return key in self._lines

    def refuse(
        self,
        key: str,
        rule: str,
        got: str | None = None,
    ) -> None:
        """Report a problem of a key, by default without a value."""
        line = self._lines.get(key, self._line)
        self._problems.append(Problem(join(self._path, key), f"line {line}: {rule}", got))

    def reject(self, key: str, rule: str) -> None:
        """Report a problem of a key's value."""
        self.refuse(key, rule, short(self.values[key]))

    def read(self, key: str) -> Any:
        """Return the value of a key; None if it is missing, or refused, which is reported."""
        if key not in self.values:
            return None
        reader = _READERS[key]
        try:
            return reader.read(self.values[key])
        except ValueError:
            self.reject(key, reader.rule)
            return None


def read_route(node: str, entry: Entry) -> Route:
    """Return the route of an entry; problems are added to the entry's list.

    Refused values are replaced by defaults, so that the rest of the table can be checked.
    """
    url = _read_address(entry)
    transport = None
    if url and "transport" in entry.values:
        transport = _read_url(entry, "transport", _GRPC_SCHEMES)
    _check_tls(entry, url, transport)
    if node == DEFAULT_ENTRY:
        _check_default_route(entry)
    values: dict[str, Any] = {key: entry.values.get(key) for key in TLS_KEYS}
    for key in OPTIONS:
        values[key] = entry.read(key)
    if values["profile"] == FATE_PARTNER:
        _check_fate_partner(entry)
    present = {key: value for key, value in values.items() if value is not None}
    return Route(node, url, transport=transport, **present)


def _check_default_route(entry: Entry) -> None:
    """Report keys that the default route cannot have, as they belong to one node."""
    for key in _OF_ONE_NODE:
        if key in entry.values:
            entry.reject(key, "belongs to one node; the default route serves many")
    for key in ("signing", "bundles"):
        if entry.values.get(key) == "required":
            rule = "needs keys, which belong to one node; the default route serves many"
            entry.reject(key, rule)


def _check_fate_partner(entry: Entry) -> None:
    """Report keys that have no meaning in FATE's protocol."""
    rule = "has no use for FATE's protocol, whose signatures are those of fate.sites"
    if "keys" in entry.values:
        entry.reject("keys", rule)
    if entry.values.get("signing") == "required":
        entry.reject("signing", f"{rule}; say off")


def _check_tls(
    entry: Entry,
    url: str,
    transport: str | None,
) -> None:
    """Report files and names for TLS that are incomplete, or not used by the entry's addresses."""
    addresses = (url, transport or "")
    is_plain = url != "" and not any(address.startswith(_TLS_URLS) for address in addresses)
    for key in TLS_KEYS:
        if key not in entry.values:
            continue
        if "via" in entry.values:
            entry.reject(key, "belongs to the entry of the node that via names")
        elif is_plain:
            entry.reject(key, "has no use without https; set scheme: https, or an https:// url")
        else:
            entry.read(key)
    for key, counterpart in (("certificate", "key"), ("key", "certificate")):
        if key in entry.values and not entry.has(counterpart):
            entry.refuse(counterpart, f"is missing beside {key}")


# ------------------------------------------------------------ addresses


def _read_address(entry: Entry) -> str:
    """Return the URL of an entry; empty if it is reached through another node, or refused."""
    if "via" in entry.values:
        rule = "must not be given with via: a node is reached directly or through another"
        for key in ("url", *ADDRESS_KEYS, "transport"):
            if key in entry.values:
                entry.reject(key, rule)
        return ""
    if "url" in entry.values:
        for key in ADDRESS_KEYS:
            if key in entry.values:
                entry.reject(key, "must not be given with url, which has it all")
        return _read_url(entry, "url")
    for key in ("host", "port"):
        if not entry.has(key) and not entry.has("url"):
            entry.refuse(key, "is missing; give host and port, or url")
    scheme = entry.read("scheme") or "http"
    host = entry.read("host") or ""
    return _url(scheme, host, entry.read("port"), "")


def _read_url(
    entry: Entry,
    key: str,
    grpc_schemes: tuple[str, ...] = (),
) -> str:
    """Return a key's URL in its normal form; empty if it is refused."""
    text = entry.values[key]
    try:
        split = urlsplit(text)
        port = split.port
        host = _normal_host(split.hostname or "")
    except ValueError:
        entry.reject(key, "must be a URL such as https://gateway.example:7380/prefix")
        return ""
    rule = _url_rule(text, split, grpc_schemes)
    if rule:
        # A password is not repeated.
        quoted = "a URL with a user name or password" if "@" in text else short(text)
        entry.refuse(key, rule, quoted)
        return ""
    return _url(split.scheme.lower(), host or "", port, split.path.rstrip("/"))


def _url_rule(text: str, split: SplitResult, grpc_schemes: tuple[str, ...]) -> str:
    """Return the first rule that a URL breaks; empty if none."""
    scheme = split.scheme.lower()
    schemes = (*SCHEMES, *grpc_schemes)
    prefix = split.path.rstrip("/")
    has_more_than_port = split.port is None or prefix != ""
    beginnings = ", ".join(f"{name}://" for name in schemes)
    rules = {
        "must not hold spaces or control characters": text != text.strip()
        or not text.isprintable(),
        f"must begin with one of {beginnings}": scheme not in schemes,
        "must have a port and no path, for gRPC": scheme in grpc_schemes and has_more_than_port,
        "must name a valid host": _normal_host(split.hostname or "") is None,
        "must have a port from 1 to 65535 where it has one": split.port == 0
        or split.netloc.endswith(":"),
        "must not hold a user name or password": "@" in split.netloc,
        "must not have a query or fragment": "?" in text or "#" in text,
        "must have a plain path, if any": _PREFIX.fullmatch(prefix) is None,
    }
    broken = (rule for rule, is_broken in rules.items() if is_broken)
    return next(broken, "")


def _url(
    scheme: str,
    host: str,
    port: int | None,
    prefix: str,
) -> str:
    """Return a URL, without the port that is the scheme's default."""
    if port is None or port == SCHEMES.get(scheme):
        return f"{scheme}://{host}{prefix}"
    return f"{scheme}://{host}:{port}{prefix}"


def _normal_host(text: str) -> str | None:
    """Return a host in the form of URLs: lower case, IPv6 in brackets; None if it is not valid."""
    in_brackets = text.startswith("[") and text.endswith("]")
    bare = text[1:-1] if in_brackets else text
    address = _ip_address(bare)
    if address is not None and address.version == 6:
        return None if "%" in bare else f"[{address.compressed}]"
    if in_brackets:
        return None
    if address is None:
        return _normal_host_name(text)
    return text


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _normal_host_name(text: str) -> str | None:
    """Return a host name in lower case.

    Returns None if it is not valid, such as an address with too few parts.
    """
    labels = text.removesuffix(".").split(".")
    if len(text) > _MAX_HOST or labels[-1].isdigit():
        return None
    if not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return text.lower()


# ------------------------------------------------------------ values


class _Reader(NamedTuple):
    """How the text of a key is read, and the rule that it breaks if that raises `ValueError`."""

    read: Callable[[str], Any]
    rule: str


def public_keys(text: str) -> tuple[str, ...]:
    """Read public keys in PEM form, or in base64 with commas. Raises `ValueError`."""
    keys = []
    for part in _KEY_ENDS.split(text):
        key = re.sub(r"\s", "", part)
        if key:
            public_key(key)
            keys.append(key)
    if not keys:
        raise ValueError
    return tuple(keys)


def _one_of(words: Collection[str]) -> _Reader:
    """Return the reader of one of several words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return _Reader(read, f"must be one of {', '.join(words)}")


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Return a function that reads text which a pattern matches as a whole."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError
        return text

    return read


def _list_of(pattern: re.Pattern[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that reads texts separated by commas, each matched by a pattern."""
    read_item = _matching(pattern)

    def read(text: str) -> tuple[str, ...]:
        return tuple(read_item(item.strip()) for item in text.split(","))

    return read


def _read_host(text: str) -> str:
    host = _normal_host(text)
    if host is None:
        raise ValueError
    return host


def _read_server_name(text: str) -> str:
    _read_host(text)
    return text


def _read_port(text: str) -> int:
    port = int(_matching(_PORT)(text))
    if not 1 <= port <= _MAX_PORT:
        raise ValueError
    return port


def _read_scheme(text: str) -> str:
    scheme = text.lower()
    if scheme not in SCHEMES:
        raise ValueError
    return scheme


def _read_deadline(text: str) -> float:
    seconds = float(_matching(_NUMBER)(text))
    if not 0 < seconds <= MAX_DEADLINE:
        raise ValueError
    return seconds


def _read_boolean(text: str) -> bool:
    word = text.lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError
    return word in _TRUE


def _read_certificate_names(text: str) -> tuple[str, ...]:
    return _list_of(_CERTIFICATE_NAME)(text.lower())


_BOOLEAN = _Reader(_read_boolean, "must be true or false")
_PEM_FILE = _Reader(_matching(_FILE), "must be the path of a PEM file")

_READERS: Mapping[str, _Reader] = {
    "host": _Reader(_read_host, "must be a host name or an address, without scheme, port or path"),
    "port": _Reader(_read_port, "must be a whole number from 1 to 65535"),
    "scheme": _Reader(_read_scheme, f"must be one of {', '.join(SCHEMES)}"),
    "profile": _one_of(PROFILES),
    "institution": _Reader(
        _matching(NODE_ID), "must be an id: letters, digits and . _ : @ - inside"
    ),
    "deadline": _Reader(
        _read_deadline,
        f"must be a number of seconds above 0, at most {MAX_DEADLINE:g}",
    ),
    "enabled": _BOOLEAN,
    "relay": _BOOLEAN,
    "via": _Reader(_matching(NODE_ID), "must be the id of the node that passes on"),
    "ca": _PEM_FILE,
    "certificate": _PEM_FILE,
    "key": _PEM_FILE,
    "server_name": _Reader(_read_server_name, "must be a host name or an address"),
    "components": _Reader(
        _list_of(_COMPONENT), "must be patterns such as unionpay/*, separated by commas"
    ),
    "keys": _Reader(
        public_keys,
        "must be public keys for Ed25519, ECDSA on P-256, RSA with 2048 bits or more, or SM2 "
        "(where Python has OpenSSL 3), PEM or base64",
    ),
    "signing": _one_of(SIGNING),
    "bundles": _one_of(BUNDLES),
    "peer_certificate": _Reader(
        _read_certificate_names,
        "must be subject alternative names or sha256:<64 hexadecimal digits>, separated by commas",
    ),
}
