"""The YAML form of a route table, read strictly and changed with its comments.

One entry per node: ``host`` and ``port`` with an optional ``scheme``, a ``url`` that may have a path prefix, or
``via``, the node that passes on; the other keys are in `KEYS`. The entry ``default`` serves nodes without one. An
unknown key is refused, since a misspelled ``enabled`` would leave a route open. Every problem is reported with its
path and line.
"""

import io
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tokens import CommentToken

from route_table.certificates import public_key
from route_table.model import (
    BUNDLES,
    DEFAULT_DEADLINE,
    DEFAULT_ENTRY,
    DEFAULT_PROFILE,
    FATES,
    NODE_ID,
    NODE_RULE,
    PROFILES,
    SIGNING,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
    near,
    short,
)

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
"""key of an entry -> its meaning"""
ADDRESS_KEYS = ("host", "port", "scheme")
TLS_KEYS = ("ca", "certificate", "key", "server_name")
_OPTIONS = [key for key in KEYS if key not in ("url", "transport", *ADDRESS_KEYS, *TLS_KEYS)]
SCHEMES = {"http": 80, "https": 443}
"""scheme -> its own port, which a url leaves out"""
_GRPC = ("grpc", "grpcs")
"""further schemes of a transport"""
MAX_DEADLINE = 3600.0

ROOT = "(document)"
MAX_TEXT = 4 * 1024 * 1024
"""characters of a document"""
MAX_DEPTH = 8
MAX_PROBLEMS = 200

_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")
_FILE = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_COMPONENT = re.compile(r"[^\s,/]{1,200}/[^\s,/]{1,200}|\*")
_BORNE = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[\x21-\x2b\x2d-\x7e]{1,500}")
"""what a certificate bears: the pin of its key or a name, in lower case"""
_KEY_ENDS = re.compile(r",|-----(?:BEGIN|END) PUBLIC KEY-----")
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_NULLS = ("", "~", "null", "Null", "NULL")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Change:
    """What a node's entry shall hold. A value of None removes the key."""

    node: str
    values: Mapping[str, Any] | None
    """None: the entry is removed"""
    whole: bool = True
    """False: keys that are not named stay as they are"""


def parse(text: str, version: int = 1) -> RouteTable:
    """Read a table from its YAML text; ``version`` is what the table will call itself.

    Raises InvalidRoutes with every problem. A text without any entry is refused, as half-written files look like
    that; an empty table is written ``{}``.
    """
    return RouteTable(version, _routes(text))


def step(path: str, key: str) -> str:
    """Extend a path by a key; odd keys are quoted."""
    if not re.fullmatch(r"[\w-]{1,128}", key):
        return f"{path}[{json.dumps(short(key), ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


@lru_cache(
    maxsize=4
)  # an edit needs the same text several times: before, after, and when it takes effect
def _routes(text: str) -> Mapping[str, Route]:
    root = _tree(text)
    if root is None or _is_null(root):
        raise _refusal("has no entries; write {} for a table without routes")
    if not isinstance(root, yaml.MappingNode):
        raise _refusal(f"line {_line(root)}: must map node ids to routes", _kind(root))
    problems: list[Problem] = []
    routes: dict[str, Route] = {}
    lines: dict[str, int] = {}
    for key, value in root.value:
        node, line = _text(key), _line(key)
        path = step("", node)
        if not NODE_ID.fullmatch(node):
            problems.append(Problem(path, f"line {line}: {NODE_RULE}", short(node)))
        elif node in lines:
            problems.append(
                Problem(path, f"line {line}: duplicate key; first in line {lines[node]}")
            )
        lines.setdefault(node, line)
        if isinstance(value, yaml.MappingNode):
            routes[node] = _route(node, _Entry(path, value, problems))
        else:
            rule = f"line {_line(value)}: must be a mapping with host and port, or url"
            problems.append(Problem(path, rule, _kind(value)))
    problems += _dead_ends(routes, lines)
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [
            Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")
        ]
    if problems:
        raise InvalidRoutes(tuple(problems))
    return MappingProxyType(routes)


def _tree(text: str) -> yaml.Node | None:
    """Return the nodes of a document, whose values are the text they are written as; None if there are none."""
    if len(text) > MAX_TEXT:
        raise _refusal(f"must not be longer than {MAX_TEXT} characters", len(text))
    try:
        _check_events(text)
        return yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        hint = (
            "; remove the line {}, which stands for a table without routes" if "{}" in lines else ""
        )
        raise _refusal(f"{where}is not YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        raise _refusal(f"is not YAML: {str(error).partition(chr(10))[0][:200]}") from error


def _check_events(text: str) -> None:
    """Check depth, anchors and tags before the parser builds anything: its own recursion has no bound."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            depth += isinstance(event, yaml.CollectionStartEvent)
            if event.anchor is not None or getattr(event, "tag", None) is not None:
                raise _refusal(
                    f"line {_line(event)}: must not use anchors, aliases or tags; write the entry out"
                )
            if depth > MAX_DEPTH:
                raise _refusal(
                    f"line {_line(event)}: must not nest deeper than {MAX_DEPTH} levels", depth
                )


def _line(part: Any) -> int:
    return part.start_mark.line + 1 if part.start_mark else 1


def _text(key: yaml.Node) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise _refusal(f"line {_line(key)}: must have text for a key", "a list or a mapping")
    return str(key.value)


def _is_null(node: yaml.Node) -> bool:
    """Tell whether a node is YAML's null; in quotes the same is a text."""
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value in _NULLS


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "nothing" if _is_null(node) else short(node.value)
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _refusal(rule: str, got: object = None) -> InvalidRoutes:
    return InvalidRoutes((Problem(ROOT, rule, got),))


class _Entry:
    """One node's entry while it is read: its values by key, and the problems found so far."""

    def __init__(
        self,
        path: str,
        mapping: yaml.MappingNode,
        problems: list[Problem],
    ) -> None:
        self.values: dict[str, str] = {}
        self._path = path
        self._line = _line(mapping)
        self._lines: dict[str, int] = {}
        self._problems = problems
        for key, value in mapping.value:
            self._take(_text(key), _line(key), value)

    def _take(
        self,
        name: str,
        line: int,
        value: yaml.Node,
    ) -> None:
        first = self._lines.get(name)
        self._lines[name] = line
        if name not in KEYS:
            meant = near(name, KEYS)
            hint = f"did you mean {meant}?" if meant else f"known are {', '.join(KEYS)}"
            self.refuse(name, f"unknown key; {hint}", short(name))
        elif first is not None:
            self.refuse(name, f"duplicate key; first in line {first}")
        elif not isinstance(value, yaml.ScalarNode):
            self.refuse(name, "must be a single value", _kind(value))
        elif _is_null(value) or not value.value:
            self.refuse(name, "has no value; give one or remove the key")
        else:
            self.values[name] = value.value

    def has(self, key: str) -> bool:
        """Tell whether a key is there, with whatever value."""
        return key in self._lines

    def refuse(
        self,
        key: str,
        rule: str,
        got: str | None = None,
    ) -> None:
        """Report what is wrong with a key; by default with its value."""
        line = self._lines.get(key, self._line)
        self._problems.append(Problem(step(self._path, key), f"line {line}: {rule}", got))

    def reject(self, key: str, rule: str) -> None:
        """Report what is wrong with the value of a key."""
        self.refuse(key, rule, short(self.values[key]))

    def read(self, key: str) -> Any:
        """Return the value of a key; None where it is missing or refused."""
        if key not in self.values:
            return None
        reader, rule = _READERS[key]
        try:
            return reader(self.values[key])
        except (KeyError, ValueError):
            self.reject(key, rule)
            return None


def _route(node: str, entry: _Entry) -> Route:
    """Make a route of an entry; a refused value is replaced by a default, and the table is never built."""
    url = _address(entry)
    transport = (
        _from_url(entry, "transport", _GRPC) if url and "transport" in entry.values else None
    )
    _check_tls(entry, url, transport)
    if node == DEFAULT_ENTRY:
        for key in ("institution", "components", "peer_certificate", "keys"):
            if key in entry.values:
                entry.reject(key, "belongs to one node; the default route serves many")
        for key in ("signing", "bundles"):
            if entry.values.get(key) == "required":
                entry.reject(
                    key, "needs keys, which belong to one node; the default route serves many"
                )
    values = {key: entry.values.get(key) for key in TLS_KEYS} | {
        key: entry.read(key) for key in _OPTIONS
    }
    if values["profile"] == FATES:
        _check_fates(entry)
    return Route(
        node,
        url,
        transport=transport,
        **{key: value for key, value in values.items() if value is not None},
    )


def _check_fates(entry: _Entry) -> None:
    """Report what a route for FATE's protocol has no use for."""
    rule = "has no use for FATE's protocol, whose signatures are those of fate.sites"
    if "keys" in entry.values:
        entry.reject("keys", rule)
    if entry.values.get("signing") == "required":
        entry.reject("signing", f"{rule}; say off")


def _address(entry: _Entry) -> str:
    """Return the URL of an entry; empty where it is reached through another node."""
    given = [key for key in ("url", *ADDRESS_KEYS, "transport") if key in entry.values]
    if "via" in entry.values:
        for key in given:
            entry.reject(
                key, "must not be given with via: a node is reached directly or through another"
            )
        return ""
    if "url" in entry.values:
        for key in set(given) & set(ADDRESS_KEYS):
            entry.reject(key, "must not be given with url, which has it all")
        return _from_url(entry, "url")
    for key in ("host", "port"):
        if not entry.has(key) and not entry.has("url"):
            entry.refuse(key, "is missing; give host and port, or url")
    return _url(entry.read("scheme") or "http", entry.read("host") or "", entry.read("port"), "")


def _from_url(
    entry: _Entry,
    key: str,
    more: tuple[str, ...] = (),
) -> str:
    text, schemes = entry.values[key], (*SCHEMES, *more)
    try:
        split = urlsplit(text)
        port, host = split.port, _host(split.hostname or "")
    except ValueError:
        entry.reject(key, "must be a URL such as https://gateway.example:7380/prefix")
        return ""
    prefix, scheme = split.path.rstrip("/"), split.scheme.lower()
    for broken, rule in (
        (
            text != text.strip() or not text.isprintable(),
            "must not hold spaces or control characters",
        ),
        (scheme not in schemes, f"must begin with one of {', '.join(f'{s}://' for s in schemes)}"),
        (
            scheme in more and (port is None or bool(prefix)),
            "must have a port and no path, for gRPC",
        ),
        (host is None, "must name a valid host"),
        (
            port == 0 or split.netloc.endswith(":"),
            "must have a port from 1 to 65535 where it has one",
        ),
        ("@" in split.netloc, "must not hold a user name or password"),
        ("?" in text or "#" in text, "must not have a query or fragment"),
        (not _PREFIX.fullmatch(prefix), "must have a plain path, if any"),
    ):
        if broken:  # a password in it is not repeated
            entry.refuse(
                key, rule, "a URL with a user name or password" if "@" in text else short(text)
            )
            return ""
    return _url(scheme, host or "", port, prefix)


def _check_tls(
    entry: _Entry,
    url: str,
    transport: str | None,
) -> None:
    for key in TLS_KEYS:
        if key not in entry.values:
            continue
        if "via" in entry.values:
            entry.reject(key, "belongs to the entry of the node that via names")
        elif url and not any(
            (address or "").startswith(("https://", "grpcs://")) for address in (url, transport)
        ):
            entry.reject(key, "has no use without https; set scheme: https, or an https:// url")
        else:
            entry.read(key)
    for key, other in (("certificate", "key"), ("key", "certificate")):
        if key in entry.values and not entry.has(other):
            entry.refuse(other, f"is missing beside {key}")


def _host(text: str) -> str | None:
    """Return a host as it stands in a URL: lower case, IPv6 in brackets; None if it is not a valid host."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        labels = bare.removesuffix(".").split(".")
        good = len(bare) <= 253 and not labels[-1].isdigit() and all(map(_LABEL.fullmatch, labels))
        return bare.lower() if good and bare == text else None
    if address.version == 6:
        return None if "%" in bare else f"[{address.compressed}]"
    return text if bare == text else None


def _checked(reader: Callable[[str], Any], fits: Callable[[str], object]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not fits(text):
            raise ValueError
        return reader(text)

    return read


def _one_of(
    words: Collection[str], spelled: Callable[[str], str] = str
) -> tuple[Callable[[str], Any], str]:
    return _checked(
        spelled, lambda text: spelled(text) in words
    ), f"must be one of {', '.join(words)}"


def _parts(pattern: re.Pattern[str]) -> Callable[[str], tuple[str, ...]]:
    read = _checked(str, pattern.fullmatch)
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def public_keys(text: str) -> tuple[str, ...]:
    """Read public keys in PEM form or in base64 with commas. Raises ValueError."""
    found = tuple(filter(None, (re.sub(r"\s", "", part) for part in _KEY_ENDS.split(text))))
    if not found:
        raise ValueError
    for key in found:
        public_key(key)
    return found


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "host": (
        _checked(_host, _host),
        "must be a host name or an address, without scheme, port or path",
    ),
    "port": (
        _checked(int, lambda text: re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= 65535),
        "must be a whole number from 1 to 65535",
    ),
    "scheme": _one_of(SCHEMES, str.lower),
    "profile": _one_of(PROFILES),
    "institution": (
        _checked(str, NODE_ID.fullmatch),
        "must be an id: letters, digits and . _ : @ - inside",
    ),
    "deadline": (
        _checked(float, lambda text: _NUMBER.fullmatch(text) and 0 < float(text) <= MAX_DEADLINE),
        f"must be a number of seconds above 0, at most {MAX_DEADLINE:g}",
    ),
    **dict.fromkeys(
        ("enabled", "relay"), (lambda text: _BOOLEANS[text.lower()], "must be true or false")
    ),
    "via": (_checked(str, NODE_ID.fullmatch), "must be the id of the node that passes on"),
    **dict.fromkeys(TLS_KEYS, (_checked(str, _FILE.fullmatch), "must be the path of a PEM file")),
    "server_name": (_checked(str, _host), "must be a host name or an address"),
    "components": (_parts(_COMPONENT), "must be patterns such as unionpay/*, separated by commas"),
    "keys": (
        public_keys,
        "must be public keys for Ed25519, ECDSA on P-256, RSA with 2048 bits or more, or SM2 (where Python has "
        "OpenSSL 3), PEM or base64",
    ),
    "signing": _one_of(SIGNING),
    "bundles": _one_of(BUNDLES),
    "peer_certificate": (
        lambda text: _parts(_BORNE)(text.lower()),
        "must be subject alternative names or sha256:<64 hexadecimal digits>, separated by commas",
    ),
}
"""key -> how its text is read, and the rule that it breaks where that fails"""


def _url(
    scheme: str,
    host: str,
    port: int | None,
    prefix: str,
) -> str:
    own = port is None or SCHEMES.get(scheme) == port
    return f"{scheme}://{host}{'' if own else f':{port}'}{prefix}"


def _dead_ends(routes: Mapping[str, Route], lines: Mapping[str, int]) -> Iterator[Problem]:
    """Yield a problem for each ``via`` that names no entry, and one for each circle, naming those in it."""
    seen: set[str] = set()
    for node, route in routes.items():
        if route.via is None:
            continue
        path = step(step("", node), "via")
        if route.via == DEFAULT_ENTRY or route.via not in lines:
            rule = "names a node without an entry of its own; add one that says how it is reached"
            yield Problem(path, f"line {lines[node]}: {rule}", short(route.via))
        way: dict[str, None] = {}
        at: str | None = node
        while at is not None and at in routes and at not in seen:
            seen.add(at)
            way[at] = None
            at = routes[at].via
        if at is not None and at in way:
            circle = [*way][[*way].index(at) :]
            path = step(step("", at), "via")
            rule = "leads in a circle; give one of its nodes an address"
            yield Problem(path, f"line {lines[at]}: {rule}", short(" via ".join([*circle, at])))


def apply(text: str, change: Change) -> str:
    """Return the text with one entry changed. Raises InvalidRoutes if the result is not a valid route table."""
    yaml = _yaml(text)
    try:
        document: CommentedMap = yaml.load(text)
    except (YAMLError, ValueError) as error:
        raise InvalidRoutes(
            (Problem(ROOT, f"cannot be edited; correct it in the file: {error}"),)
        ) from error
    if change.values is None:
        _remove(document, change.node)
    elif change.node in document:
        below = _take_below(document, change.node)
        _update(document[change.node], change)
        _put_below(document, change.node, below)
    else:
        if not document:
            document.fa.set_block_style()  # the table was {}
        document[change.node] = CommentedMap(_texts(change.values))
    out = io.StringIO()
    yaml.dump(document, out)
    edited = out.getvalue()
    return text if parse(edited).routes == parse(text).routes else edited


def with_proof_kept(text: str, before: Mapping[str, Route]) -> str:
    """Return the text in which a route that lost its last key says ``signing: required``.

    ``before`` are the routes that the text replaces. Without the word a route without keys would take anybody's
    requests; with it, it takes none until it has a key again.
    """
    for node, route in parse(text).routes.items():
        former = before.get(node)
        if former is None or former.signed != "required":
            continue
        if not route.keys and route.signing is None:
            text = apply(text, Change(node, {"signing": "required"}, whole=False))
    return text


def opened_to_all(routes: Mapping[str, Route], before: Mapping[str, Route]) -> Iterator[Problem]:
    """Yield a problem for each route that lists no components any more, and so would allow every one."""
    for node, route in routes.items():
        former = before.get(node)
        if former is not None and former.components and not route.components:
            yield without_components(node)


def without_components(node: str) -> Problem:
    """Return what is wrong with leaving out the components that a route lists."""
    rule = "must not be removed, which would allow every component: say * for all, or disable the route"
    return Problem(step(step("", node), "components"), rule)


def _update(entry: CommentedMap, change: Change) -> None:
    """Set and remove keys; another kind of address replaces the one that was there."""
    values = dict(change.values or {})
    if not change.whole:
        given = {key for key, value in values.items() if value is not None}
        if "via" in given:
            values |= dict.fromkeys({"url", "transport", *ADDRESS_KEYS, *TLS_KEYS} - given)
        elif "url" in given:
            values |= dict.fromkeys(("via", *ADDRESS_KEYS))
        elif given & set(ADDRESS_KEYS):
            values |= dict.fromkeys(("via", "url"))
    entry.update(_texts(values))
    for key in [
        key for key in entry if values.get(key) is None and (change.whole or key in values)
    ]:
        del entry[key]
        entry.ca.items.pop(key, None)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in values.items()
        if value is not None
    }


def _remove(document: CommentedMap, node: str) -> None:
    """Remove an entry but not the comments in the lines below it, which belong to what follows."""
    if node not in document:
        return
    below = _take_below(document, node)
    position = list(document).index(node)
    del document[node]
    document.ca.items.pop(node, None)
    if position:
        _put_below(document, list(document)[position - 1], below)
    elif below:
        above = (document.ca.comment or [None, None])[1] or []
        document.ca.comment = [None, [*above, CommentToken(below, CommentMark(0), None)]]


def _take_below(document: CommentedMap, node: str) -> str:
    """Remove and return the lines of comment after an entry, up to the next one."""
    holder, key = _last_value(document, node)
    slots = holder.ca.items.get(key)
    if not slots or not slots[2]:
        return ""
    comment, _, below = slots[2].value.partition("\n")
    slots[2] = CommentToken(f"{comment}\n", slots[2].start_mark, None) if comment else None
    return str(below)


def _put_below(
    document: CommentedMap,
    node: str,
    below: str,
) -> None:
    if below:
        holder, key = _last_value(document, node)
        slots = holder.ca.items.setdefault(key, [None, None, None, None])
        before = slots[2]
        mark = before.start_mark if before else CommentMark(0)
        slots[2] = CommentToken((before.value if before else "\n") + below, mark, None)


def _last_value(document: CommentedMap, node: str) -> tuple[CommentedMap, str]:
    """Return where the comment after an entry is kept: at the last key of a block, else at the node itself."""
    entry = document[node]
    if isinstance(entry, CommentedMap) and entry and not entry.fa.flow_style():
        return entry, list(entry)[-1]
    return document, node


class _Texts(VersionedResolver):
    """Takes every plain value for the text that is written, so that ``0123`` and ``no`` stay what they are."""

    def resolve(
        self,
        kind: Any,
        value: Any,
        implicit: Any,
    ) -> Any:
        if kind is ScalarNode and implicit[0]:
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)


def _yaml(text: str) -> YAML:
    yaml = YAML()
    yaml.Resolver = _Texts
    yaml.preserve_quotes = True
    yaml.width = 4096
    inner = next(
        (
            line
            for line in text.splitlines()
            if line.startswith(" ") and line.lstrip()[:1] not in "#"
        ),
        "  ",
    )
    yaml.indent(mapping=max(len(inner) - len(inner.lstrip(" ")), 1))
    return yaml
