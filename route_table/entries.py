"""One entry of a route table: its keys, the readers of their values, and the resulting route."""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import yaml

from route_table.certificates import public_key, sealing_key
from route_table.model import (
    BOOLEAN_WORDS,
    BUNDLES,
    DEFAULT_DEADLINE,
    DEFAULT_ENTRY,
    DEFAULT_PARALLEL,
    DEFAULT_PROFILE,
    DIAL,
    FATE_PARTNER,
    NODE_ID,
    PROFILES,
    REACHED,
    SEALING,
    SIGNING,
    InvalidRoutes,
    Problem,
    Route,
    join,
    link_url,
    near,
    short,
    switch_word,
)
from route_table.proxies import PROXY, PROXY_RULE
from route_table.rates import RATE_RULE, read_rate

MAX_PARALLEL = 7  # so that a receiver has room for the parts which overtake another one

# Key of an entry -> its meaning, as the operators' API and the CLI show it.
KEYS: dict[str, str] = {
    "host": "host name or address",
    "port": "1 to 65535",
    "scheme": "http (default) or https",
    "url": "in place of host and port; may have a path prefix",
    "transport": (
        "URL of the peer's transport layer (messages of containers); by gRPC: "
        "grpc://host:port, with TLS grpcs://; default: the same address"
    ),
    "profile": f"the peer's dialect; default {DEFAULT_PROFILE}",
    "institution": "id of who owns the node",
    "deadline": (
        "seconds that the creation or the start of a job may take with all its tries, and a "
        f"message at most; default {DEFAULT_DEADLINE:g}, for the start 60"
    ),
    "enabled": "false keeps the entry and does not use it",
    "via": "in place of an address: the node that requests are handed to, to be passed on",
    "dial": (
        "out: this node opens links to the node and keeps them, and needs no open port; requests "
        "pass over them in both directions"
    ),
    "reached": (
        "by-link: in place of an address, for a node that opens links to this one (dial: out there)"
    ),
    "relay": (
        "true: this node passes requests on between the entry's node and every other node whose "
        "entry has relay: true; default false"
    ),
    "parallel": (
        "connections that carry a long message to the node together, 1 to "
        f"{MAX_PARALLEL}; more are faster over a long line that loses packets; default "
        f"{DEFAULT_PARALLEL}"
    ),
    "bandwidth": (
        "bytes per second that are exchanged with the node in each direction, such as 20MB; "
        "default: limits.partner_bandwidth of the node's configuration"
    ),
    "ca": "PEM file of the authorities that may have signed the peer's certificate",
    "certificate": "PEM file of the certificate that is shown to the peer, with its chain",
    "key": "PEM file of that certificate's key, without a password",
    "server_name": "the name that the peer's certificate must bear; default: the host",
    "proxy": "HTTP proxy that opens tunnels to the node (CONNECT), as http://user@host:port",
    "proxy_password": "file with the password of the proxy's user and nothing else",
    "peer_certificate": (
        "what the certificate that the node connects with must bear: a subject alternative "
        "name or sha256:DIGEST of its public key; several separated by commas; default: the "
        "node id"
    ),
    "keys": "public keys that sign the node's requests: in PEM form, or base64 separated by commas",
    "signing": (
        "required, accepted or off; default: required with keys; without keys the node's requests "
        "are refused, unless a client certificate proves them or only this machine can send any"
    ),
    "bundles": (
        "required or accepted: whether the node's jobs need a signed bundle; default: accepted"
    ),
    "sealing_key": ("public key to which messages for the node are sealed: in PEM form, or base64"),
    "sealing": (
        "required, accepted or off: whether containers' messages are sealed end to end; default: "
        "accepted with sealing_key, else off"
    ),
    "control_sealing": (
        "required, accepted or off: whether the bodies of control requests (jobs, tasks, reports) "
        "and of their responses are sealed end to end, too; default: off"
    ),
    "components": (
        "the components that may run here in the node's jobs, as provider/name with * for "
        "anything, separated by commas; default: all"
    ),
}
# Keys by subject; ``url`` and ``transport`` are in none of the lists, as `_read_url` reads them.
# OPTIONS: ``via``, and the keys that an entry may have with any kind of address.
ADDRESS_KEYS = ("host", "port", "scheme")
TLS_KEYS = ("ca", "certificate", "key", "server_name")
PROXY_KEYS = ("proxy", "proxy_password")
OPTIONS = [
    key for key in KEYS if key not in ("url", "transport", *ADDRESS_KEYS, *TLS_KEYS, *PROXY_KEYS)
]
SCHEMES = {"http": 80, "https": 443}  # scheme -> its default port, which a route's URL leaves out
MAX_DEADLINE = 3600.0  # seconds
ROOT = "(document)"  # path of problems that concern no single entry

_GRPC_SCHEMES = ("grpc", "grpcs")  # also accepted for a transport
_TLS_URLS = ("https://", "grpcs://")  # beginnings of addresses that use TLS
_MAX_HOST = 253  # characters of a host name
_MAX_PORT = 65535
_NO_ADDRESS = "is missing; give host and port, or url"  # the rule of an absent host or port
# Kind of YAML node with other nodes inside -> its name in problems.
_STRUCTURES: Mapping[type, str] = {
    yaml.MappingNode: "a mapping",
    yaml.SequenceNode: "a list",
}
_NULL_TAG = "tag:yaml.org,2002:null"  # the type that YAML 1.1 gives to an unquoted null
_OF_ONE_NODE = (  # not in the default route
    "institution",
    "components",
    "peer_certificate",
    "keys",
    "sealing_key",
    "dial",
    "reached",
)

# Forms of values. _LABEL is a part of a host name, _PREFIX a URL's path without the steps . and ..
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4_ADDRESS = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
# A name that ends in a number is not a host name but a mistyped IPv4 address.
_HOST_NAME = rf"(?:{_LABEL}\.)*(?![0-9]+\.?\Z){_LABEL}\.?"
_HOST = re.compile(rf"(?!.{{{_MAX_HOST + 1}}})(?:{_IPV4_ADDRESS}|{_HOST_NAME})")
_IN_BRACKETS = re.compile(r"\A\[(.*)\]\Z", re.DOTALL)
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")
_FILE = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_COMPONENT = re.compile(r"[^\s,/]{1,200}/[^\s,/]{1,200}|\*")
# A name or the pin of a key in a certificate, in lower case.
_CERTIFICATE_NAME = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[\x21-\x2b\x2d-\x7e]{1,500}")
_USER_IN_URL = re.compile(r"://.*@", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,5}")
_SCHEME = re.compile("|".join(SCHEMES))
# Separates public keys: a comma, or a line of PEM around a key.
_KEY_ENDS = re.compile(r",|-----(?:BEGIN|END) PUBLIC KEY-----")


# ------------------------------------------------------------ YAML nodes


def line_of(node: Any) -> int:
    """Return the line of a node or an event of the parser, counted from 1."""
    return int(node.start_mark.line) + 1


def key_text(key: yaml.Node) -> str:
    """Return the text of a mapping's key. Raises `InvalidRoutes` if it is a list or a mapping."""
    if not isinstance(key, yaml.ScalarNode):
        raise refusal(f"line {line_of(key)}: must have text for a key", "a list or a mapping")
    return str(key.value)


def is_null(node: yaml.Node) -> bool:
    """Return whether a node is YAML's null; in quotes the same text is an ordinary value."""
    return bool(node.tag == _NULL_TAG)


def describe(node: yaml.Node) -> str:
    """Return a node's value as problems quote it.

    This is the shortened text of a scalar, ``nothing`` for null, and the kind of structure for a
    mapping or a list.
    """
    structure = _STRUCTURES.get(type(node))
    if structure is not None:
        return structure
    if is_null(node):
        return "nothing"
    return short(node.value)


def refusal(rule: str, got: object = None) -> InvalidRoutes:
    """Return the error of a document that is not a table at all.

    ``got`` is the unsuitable value.
    """
    return InvalidRoutes((Problem(ROOT, rule, got),))


# ------------------------------------------------------------ an entry


class Entry:
    """One node's entry: the text of each accepted key, and the problems of the others.

    Problems are added to a list that all entries of a table share.
    """

    def __init__(
        self,
        path: str,
        mapping: yaml.MappingNode,
        problems: list[Problem],
    ) -> None:
        """Read the keys of an entry.

        ``path`` is that of the entry in the table. Raises `InvalidRoutes` for a key that is not
        text.
        """
        self.values: dict[str, str] = {}
        self._path = path
        self._line = line_of(mapping)
        self._lines: dict[str, int] = {}
        self._problems = problems
        for key, value in mapping.value:
            self._add(key_text(key), line_of(key), value)

    def _add(
        self,
        key: str,
        line: int,
        value: yaml.Node,
    ) -> None:
        """Add a key that is known, new in this entry, and has a single value; else report it."""
        first_line = self._lines.get(key)
        self._lines[key] = line
        if key not in KEYS:
            self.refuse(key, f"unknown key; {_hint_for(key)}", short(key))
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
        """Report a problem of a key, which may be absent; ``got`` is the refused value, if any."""
        line = self._lines.get(key, self._line)
        self._problems.append(Problem(join(self._path, key), f"line {line}: {rule}", got))

    def require(self, key: str, rule: str) -> None:
        """Report a key that is absent; a refused value has been reported already."""
        if not self.has(key):
            self.refuse(key, rule)

    def refuse_value(self, key: str, rule: str) -> None:
        """Report a problem with the accepted text of a key."""
        self.refuse(key, rule, _quoted(self.values[key]))

    def read(self, key: str) -> Any:
        """Return the value of a key in its type.

        Returns None if the key is absent, or if its text breaks the key's rule, which is then
        reported.
        """
        if key not in self.values:
            return None
        reader = _READERS[key]
        try:
            return reader.read(self.values[key])
        except ValueError:
            self.refuse_value(key, reader.rule)
            return None

    def read_all(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of some keys in their types, by key.

        Absent keys and refused values are left out.
        """
        values = {}
        for key in keys:
            value = self.read(key)
            if value is not None:
                values[key] = value
        return values

    def refuse_present(self, keys: Iterable[str], rule: str) -> None:
        """Report each of some keys that has an accepted text.

        Keys with a refused text have been reported already.
        """
        for key in keys:
            if key in self.values:
                self.refuse_value(key, rule)


def _quoted(text: str) -> str:
    """Return a refused text for its problem, but not a URL that may have a password."""
    if _USER_IN_URL.search(text):
        return "a URL with a user name or password"
    return short(text)


def _hint_for(unknown_key: str) -> str:
    """Return the end of an unknown key's problem.

    It asks whether a similar known key was meant; if none is similar, it lists the known keys.
    """
    similar = near(unknown_key, KEYS)
    if similar:
        return f"did you mean {similar}?"
    return f"known are {', '.join(KEYS)}"


def read_route(node: str, entry: Entry) -> Route:
    """Return the route of an entry; its problems are added to the entry's list.

    Defaults replace refused values, so that the rest of the table can be checked.
    """
    url = _read_address(node, entry)
    transport = None
    if url and "transport" in entry.values:
        transport = _read_url(entry, "transport", _GRPC_SCHEMES)
    tls_values = _read_tls_keys(entry, url, transport)
    proxy_values = _read_proxy_keys(entry)
    if node == DEFAULT_ENTRY:
        _check_default_route(entry)
    options = entry.read_all(OPTIONS)
    _check_control_sealing(entry)
    _check_link(entry)
    if options.get("profile") == FATE_PARTNER:
        _check_fate_partner(entry)
    return Route(
        node,
        url,
        transport=transport,
        **tls_values,
        **proxy_values,
        **options,
    )


def _check_default_route(entry: Entry) -> None:
    """Report the keys that only a single node can have.

    They describe one node, or demand signatures or seals, which need the public keys of one node.
    """
    entry.refuse_present(_OF_ONE_NODE, "belongs to one node; the default route serves many")
    for key in ("signing", "bundles", "sealing", "control_sealing"):
        if entry.values.get(key) == "required":
            rule = "needs keys, which belong to one node; the default route serves many"
            entry.refuse_value(key, rule)


def _check_control_sealing(entry: Entry) -> None:
    """Report sealed control requests without signatures: only these refuse repetitions."""
    mode = switch_word(entry.values.get("control_sealing", "off"))
    signing = switch_word(entry.values.get("signing"))
    if mode != "off" and signing == "off":
        rule = "needs signatures, by which repeated requests are refused: leave signing out"
        entry.refuse_value("control_sealing", rule)


def _check_link(entry: Entry) -> None:
    """Report a link without keys, by which both nodes prove their identities when it is opened."""
    has_link = not entry.values.keys().isdisjoint(("dial", "reached"))
    if has_link:
        entry.require("keys", "is missing beside dial or reached: accept the node's invitation")


def _check_fate_partner(entry: Entry) -> None:
    """Report the keys that have no meaning in FATE's own protocol."""
    rule = "has no use for FATE's protocol, whose signatures are those of fate.sites"
    entry.refuse_present(["keys", "sealing_key", "control_sealing"], rule)
    if entry.values.get("signing") == "required":
        entry.refuse_value("signing", f"{rule}; say off")


def _read_tls_keys(
    entry: Entry,
    url: str,
    transport: str | None,
) -> dict[str, Any]:
    """Return the values of the keys for TLS, by key.

    Keys that are invalid, incomplete, or unused by the entry's addresses are reported. ``url`` is
    "" if there is no usable one, ``transport`` None if messages go to the same address.
    """
    values = {}
    reason = _reason_against_tls(entry, (url, transport or ""))
    if reason:
        entry.refuse_present(TLS_KEYS, reason)
    else:
        values = entry.read_all(TLS_KEYS)
    for key, counterpart in (("certificate", "key"), ("key", "certificate")):
        if key in entry.values:
            entry.require(counterpart, f"is missing beside {key}")
    return values


def _read_proxy_keys(entry: Entry) -> dict[str, Any]:
    """Return the values of the keys for a proxy, by key.

    Keys beside ``via`` are reported, and a password without a user.
    """
    if "via" in entry.values:
        entry.refuse_present(PROXY_KEYS, "belongs to the entry of the node that via names")
        return {}
    values = entry.read_all(PROXY_KEYS)
    has_user = "@" in values.get("proxy", "")
    if not has_user:
        entry.refuse_present(["proxy_password"], "needs a user in proxy: http://user@host:port")
    return values


def _reason_against_tls(
    entry: Entry,
    addresses: tuple[str, str],
) -> str:
    """Return the reason why an entry has no use for TLS.

    Returns "" if an address uses TLS, or if the node's URL was refused. ``addresses`` are the
    node's URL and the URL of its transport; an absent or a refused URL is "".
    """
    if "via" in entry.values:
        return "belongs to the entry of the node that via names"
    if "reached" in entry.values:
        return "has no use here: the node that opens the links checks the certificates"
    uses_tls = any(address.startswith(_TLS_URLS) for address in addresses)
    if addresses[0] and not uses_tls:
        return "has no use without https; set scheme: https, or an https:// url"
    return ""


# ------------------------------------------------------------ addresses


def _read_address(node: str, entry: Entry) -> str:
    """Return the URL of an entry.

    Returns "" if the node is reached through another one, or if the value of ``url`` is refused. If
    host or port is missing or refused, the URL is returned without that part: its scheme decides
    which keys for TLS are refused.
    """
    if "reached" in entry.values:
        rule = "must not be given with reached: the node opens the links"
        entry.refuse_present(("url", *ADDRESS_KEYS, "transport", "via", "dial"), rule)
        return link_url(node)
    if "via" in entry.values:
        rule = "must not be given with via: a node is reached directly or through another"
        entry.refuse_present(("url", *ADDRESS_KEYS, "transport", "dial"), rule)
        return ""
    if "url" in entry.values:
        entry.refuse_present(ADDRESS_KEYS, "must not be given with url, which has it all")
        return _read_url(entry, "url")
    if entry.has("url"):  # with a value that has been refused
        return ""
    entry.require("host", _NO_ADDRESS)
    entry.require("port", _NO_ADDRESS)
    address = entry.read_all(ADDRESS_KEYS)
    return _url(
        address.get("scheme", "http"),
        address.get("host", ""),
        address.get("port"),
        prefix="",
    )


def _read_url(
    entry: Entry,
    key: str,
    grpc_schemes: tuple[str, ...] = (),
) -> str:
    """Return the URL of a key in its normal form, see `_url`; "" if it is refused.

    ``grpc_schemes`` are accepted besides http and https.
    """
    text = entry.values[key]
    try:
        split = urlsplit(text)
        port = split.port
    except ValueError:
        entry.refuse_value(key, "must be a URL such as https://gateway.example:7380/prefix")
        return ""
    rule = _url_rule(text, split, grpc_schemes)
    if rule:
        entry.refuse_value(key, rule)
        return ""
    return _url(
        split.scheme.lower(),
        _host_of(split),
        port,
        prefix=split.path.rstrip("/"),
    )


def _host_of(split: SplitResult) -> str:
    """Return the host of a URL in its normal form, see `_normal_host`.

    Returns "" for a URL without a host, or with one that is not valid.
    """
    return _normal_host(split.hostname or "")


def _url_rule(
    text: str,
    split: SplitResult,
    grpc_schemes: tuple[str, ...],
) -> str:
    """Return the first rule that a URL breaks; "" if it breaks none.

    ``split`` is the URL ``text`` in parts. ``grpc_schemes`` are accepted besides http and https.
    """
    scheme = split.scheme.lower()
    schemes = (*SCHEMES, *grpc_schemes)
    prefix = split.path.rstrip("/")
    beginnings = ", ".join(f"{name}://" for name in schemes)
    has_blanks = text != text.strip() or not text.isprintable()
    lacks_port_or_has_path = split.port is None or prefix != ""
    has_unusable_port = split.port == 0 or split.netloc.endswith(":")
    # Rule -> whether the URL breaks it; only the first broken rule is reported.
    rules = {
        "must not hold spaces or control characters": has_blanks,
        f"must begin with one of {beginnings}": scheme not in schemes,
        "must have a port and no path, for gRPC": scheme in grpc_schemes and lacks_port_or_has_path,
        "must name a valid host": _host_of(split) == "",
        "must have a port from 1 to 65535 where it has one": has_unusable_port,
        "must not hold a user name or password": "@" in split.netloc,
        "must not have a query or fragment": not {"?", "#"}.isdisjoint(text),
        "must have a plain path, if any": _PREFIX.fullmatch(prefix) is None,
    }
    return next((rule for rule, is_broken in rules.items() if is_broken), "")


def _url(
    scheme: str,
    host: str,
    port: int | None,
    prefix: str,
) -> str:
    """Return a URL, without the port if it is None or the scheme's default.

    ``prefix`` is "" or begins with a slash.
    """
    if port is None or port == SCHEMES.get(scheme):
        return f"{scheme}://{host}{prefix}"
    return f"{scheme}://{host}:{port}{prefix}"


def _normal_host(text: str) -> str:
    """Return a host as URLs have it: lower case, IPv6 in brackets; "" if it is not valid.

    The brackets of an IPv6 address may be missing in ``text``.
    """
    if ":" in text:
        return _normal_ipv6_address(_IN_BRACKETS.sub(r"\1", text))
    if not _HOST.fullmatch(text):
        return ""
    return text.lower()


def _normal_ipv6_address(text: str) -> str:
    """Return an IPv6 address in brackets and in its shortest form; "" if it is not valid.

    An address with a zone, such as fe80::1%eth0, is not valid: it means nothing on another machine.
    """
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return ""
    return "" if address.scope_id else f"[{address.compressed}]"


# ------------------------------------------------------------ values


class _Reader(NamedTuple):
    """Reads the text of a key: ``read`` raises `ValueError` for a text that breaks the ``rule``."""

    read: Callable[[str], Any]
    rule: str


def public_keys(text: str) -> tuple[str, ...]:
    """Return the public keys in a text, in PEM or in base64 with commas, all as base64.

    Raises `ValueError` if one of them cannot be used, or if there are none.
    """
    keys = []
    for part in _KEY_ENDS.split(text):
        key = re.sub(r"\s", "", part)
        if key:
            public_key(key)  # only for its `ValueError`
            keys.append(key)
    if not keys:
        raise ValueError
    return tuple(keys)


def _read_sealing_key(text: str) -> str:
    """Return the public key in a text, in PEM or base64, as base64.

    Raises `ValueError` unless the text has exactly one key that messages can be sealed to.
    """
    parts = [re.sub(r"\s", "", part) for part in _KEY_ENDS.split(text)]
    (key,) = filter(None, parts)
    sealing_key(key)  # only for its `ValueError`
    return key


def _one_of(words: Collection[str]) -> _Reader:
    """Return the reader of a value that is one of several words."""
    pattern = re.compile("|".join(words))
    return _Reader(_matching(pattern), f"must be one of {', '.join(words)}")


def _switch_among(words: Collection[str]) -> _Reader:
    """Return the reader of one of several words, one of which is off.

    YAML's other words for false are read as off.
    """
    reader = _one_of(words)

    def read(text: str) -> str:
        return str(reader.read(switch_word(text)))

    return _Reader(read, reader.rule)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Return a function that reads text which a pattern matches as a whole.

    Like all readers here, it raises `ValueError` for any other text.
    """

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
    """Return a host in its normal form, see `_normal_host`.

    Raises `ValueError` for a text that is neither a host name nor an IP address.
    """
    host = _normal_host(text)
    if not host:
        raise ValueError
    return host


def _read_server_name(text: str) -> str:
    """Return a host as it is spelled.

    Raises `ValueError` as `_read_host` does.
    """
    _read_host(text)
    return text


def _read_port(text: str) -> int:
    """Return the number of a port.

    Raises `ValueError` for 0, a number above `_MAX_PORT` and a text with other characters.
    """
    port = int(_matching(_PORT)(text))
    if not 1 <= port <= _MAX_PORT:
        raise ValueError
    return port


def _read_scheme(text: str) -> str:
    """Return http or https, which the text may spell in upper or lower case.

    Raises `ValueError` for any other scheme.
    """
    return _matching(_SCHEME)(text.lower())


def _read_deadline(text: str) -> float:
    """Return a number of seconds above 0.

    Raises `ValueError` for 0, for more than `MAX_DEADLINE`, and for a text with a sign or exponent.
    """
    seconds = float(_matching(_NUMBER)(text))
    if not 0 < seconds <= MAX_DEADLINE:
        raise ValueError
    return seconds


def _read_parallel(text: str) -> int:
    """Return a number of connections.

    Raises `ValueError` for 0, for more than `MAX_PARALLEL`, and for a text with other characters.
    """
    number = int(_matching(_WHOLE)(text))
    if not 1 <= number <= MAX_PARALLEL:
        raise ValueError
    return number


def _read_boolean(text: str) -> bool:
    """Return the truth value of a word of YAML 1.1, in upper or lower case.

    Raises `ValueError` for any other word.
    """
    value = BOOLEAN_WORDS.get(text.lower())
    if value is None:
        raise ValueError
    return value


def _read_certificate_names(text: str) -> tuple[str, ...]:
    """Return names and pins of certificates in lower case, in which they are compared.

    Raises `ValueError` for an empty name, and for a pin without its 64 digits.
    """
    return _list_of(_CERTIFICATE_NAME)(text.lower())


def _read_proxy(text: str) -> str:
    """Return the URL of a proxy.

    Raises `ValueError` for any other text, and for a URL with a password: it belongs into a file.
    """
    match = PROXY.fullmatch(text)
    if match is None:
        raise ValueError
    _read_host(match["host"])
    _read_port(match["port"])
    return text


_BOOLEAN = _Reader(_read_boolean, "must be true or false")
_PEM_FILE = _Reader(_matching(_FILE), "must be the path of a PEM file")

# The readers of all keys but ``url`` and ``transport``, see `_read_url`.
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
    "parallel": _Reader(_read_parallel, f"must be a whole number from 1 to {MAX_PARALLEL}"),
    "bandwidth": _Reader(read_rate, RATE_RULE),
    "dial": _one_of(DIAL),
    "reached": _one_of(REACHED),
    "enabled": _BOOLEAN,
    "relay": _BOOLEAN,
    "via": _Reader(_matching(NODE_ID), "must be the id of the node that passes on"),
    "ca": _PEM_FILE,
    "certificate": _PEM_FILE,
    "key": _PEM_FILE,
    "server_name": _Reader(_read_server_name, "must be a host name or an address"),
    "proxy": _Reader(_read_proxy, PROXY_RULE),
    "proxy_password": _Reader(_matching(_FILE), "must be the path of a file"),
    "components": _Reader(
        _list_of(_COMPONENT), "must be patterns such as unionpay/*, separated by commas"
    ),
    "keys": _Reader(
        public_keys,
        "must be public keys for Ed25519, ECDSA on P-256, RSA with 2048 bits or more, or SM2 "
        "(where Python has OpenSSL 3), PEM or base64",
    ),
    "signing": _switch_among(SIGNING),
    "bundles": _one_of(BUNDLES),
    "sealing_key": _Reader(
        _read_sealing_key,
        "must be one public key for X25519, or SM2 (where Python has OpenSSL 3), PEM or base64",
    ),
    "sealing": _switch_among(SEALING),
    "control_sealing": _switch_among(SEALING),
    "peer_certificate": _Reader(
        _read_certificate_names,
        "must be subject alternative names or sha256:<64 hexadecimal digits>, separated by commas",
    ),
}
