"""One entry of a route table: its checks, and the resulting route. Its keys are in `keys`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import yaml

from route_table.keys import ADDRESS_KEYS, KEYS, OF_ONE_NODE, OPTIONS, PROXY_KEYS, TLS_KEYS
from route_table.model import (
    DEFAULT_ENTRY,
    FATE_PARTNER,
    InvalidRoutes,
    Problem,
    Route,
    join,
    link_url,
    near,
    short,
    switch_word,
)
from route_table.readers import SCHEMES, normal_host

ROOT = "(document)"  # path of problems that concern no single entry

_GRPC_SCHEMES = ("grpc", "grpcs")  # also accepted for a transport
_TLS_URLS = ("https://", "grpcs://")  # beginnings of addresses that use TLS
_NO_ADDRESS = "is missing; give host and port, or url"  # the rule of an absent host or port
# Kind of YAML node with other nodes inside -> its name in problems.
_STRUCTURES: Mapping[type, str] = {
    yaml.MappingNode: "a mapping",
    yaml.SequenceNode: "a list",
}
_NULL_TAG = "tag:yaml.org,2002:null"  # the type that YAML 1.1 gives to an unquoted null

# A URL's path without the steps . and ..
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_USER_IN_URL = re.compile(r"://.*@", re.DOTALL)


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
        reader = KEYS[key].reader
        assert reader is not None  # `_read_url` reads the keys without one
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
    entry.refuse_present(OF_ONE_NODE, "belongs to one node; the default route serves many")
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
    """Return the host of a URL in its normal form, see `normal_host`.

    Returns "" for a URL without a host, or with one that is not valid.
    """
    return normal_host(split.hostname or "")


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
