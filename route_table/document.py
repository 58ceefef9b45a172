"""The YAML form of a route table, read strictly.

One entry per node: ``host`` and ``port`` with an optional ``scheme``, a ``url`` that may have a path prefix, or
``via``, the node that passes on; the other keys are in `KEYS`. The entry ``default`` serves nodes without one. An
unknown key is refused, since a misspelled ``enabled`` would leave a route open. Every problem is reported with its
path and line.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import yaml

from route_table.model import (
    DEFAULT_DEADLINE,
    DEFAULT_ENTRY,
    DEFAULT_PROFILE,
    PROFILES,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
)

KEYS: dict[str, str] = {
    "host": "host name or address",
    "port": "1 to 65535",
    "scheme": "http (default) or https",
    "url": "in place of host and port; may have a path prefix",
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
    "components": "what the node may have run here, as provider/name with * for anything, separated by commas; "
    "default: all",
}
"""key of an entry -> its meaning"""
ADDRESS_KEYS = ("host", "port", "scheme")
TLS_KEYS = ("ca", "certificate", "key", "server_name")
SCHEMES = {"http": 80, "https": 443}
"""scheme -> its own port, which a url leaves out"""
MAX_DEADLINE = 3600.0

ROOT = "(document)"
MAX_TEXT = 4 * 1024 * 1024
"""characters of a document"""
MAX_DEPTH = 8
MAX_EVENTS = 200_000
"""keys, values and marks; about 10,000 entries with every key"""
MAX_ROUTES = 20_000
MAX_PROBLEMS = 200
MAX_VALUE = 2048
"""characters of one value"""
MAX_QUOTE = 128
"""characters of a found value that a problem repeats"""
MAX_CIRCLE = 10
"""nodes of a circle that a problem names"""

MOST_OF_NODE = 100
NODE_ID = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._:@-]{{0,{MOST_OF_NODE - 2}}}[A-Za-z0-9])?")
NODE_RULE = f"must be a node id: letters, digits and . _ : @ - inside, at most {MOST_OF_NODE} characters"
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")
_FILE = re.compile(r"/[^\x00-\x1f\x7f]{1,1023}")
_COMPONENT = re.compile(r"[^\s,/]{1,200}/[^\s,/]{1,200}|\*")
_BORNE = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[\x21-\x2b\x2d-\x7e]{1,500}")
"""what a certificate bears: the pin of its key or a name, in lower case"""
_BOOLEANS = {**dict.fromkeys(("true", "yes", "on"), True), **dict.fromkeys(("false", "no", "off"), False)}
_NULLS = ("", "~", "null", "Null", "NULL")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str, version: int = 1) -> RouteTable:
    """Read a table from its YAML text; ``version`` is what the table will call itself.

    Raises InvalidRoutes with every problem. A text without any entry is refused, as half-written files look like
    that; an empty table is written ``{}``.
    """
    return RouteTable(version, _routes(text))


def entry_of(route: Route) -> dict[str, Any]:
    """Return the keys and values of the entry that `parse` reads into a route, defaults left out."""
    entry: dict[str, Any] = {"url": route.url} if route.via is None else {"via": route.via}
    entry |= {
        "profile": route.profile if route.profile != DEFAULT_PROFILE else None,
        "institution": route.institution,
        "deadline": f"{route.deadline:.18f}".rstrip("0").rstrip(".")
        if route.deadline != DEFAULT_DEADLINE
        else None,
        "enabled": None if route.enabled else False,
        "peer_certificate": ", ".join(route.peer_certificate) or None,
        "components": ", ".join(route.components) or None,
        "relay": route.relay or None,
        **{key: getattr(route, key) for key in TLS_KEYS},
    }
    return {key: value for key, value in entry.items() if value is not None}


def step(path: str, key: str) -> str:
    """Extend a path by a key; odd keys are quoted."""
    if not re.fullmatch(r"[\w-]{1,128}", key):
        return f"{path}[{json.dumps(short(key), ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def short(text: str) -> str:
    """Return text as a problem repeats it: cut, and encodable."""
    shown = text.encode("utf-8", "replace").decode()
    return shown if len(shown) <= MAX_QUOTE else shown[:MAX_QUOTE] + "…"


@lru_cache(maxsize=4)  # an edit needs the same text several times: before, after, and when it takes effect
def _routes(text: str) -> Mapping[str, Route]:
    root = _tree(text)
    if root is None or _is_null(root):
        raise _refusal("has no entries; write {} for a table without routes")
    if not isinstance(root, yaml.MappingNode):
        raise _refusal(f"line {_line(root)}: must map node ids to routes", _kind(root))
    if len(root.value) > MAX_ROUTES:
        raise _refusal(f"must not hold more than {MAX_ROUTES} routes", len(root.value))
    problems: list[Problem] = []
    routes: dict[str, Route] = {}
    lines: dict[str, int] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _refusal(f"line {_line(key)}: must have text for a key", "a list or a mapping")
        node, path, line = key.value, step("", key.value), _line(key)
        if not NODE_ID.fullmatch(node):
            problems.append(Problem(path, f"line {line}: {NODE_RULE}", short(node)))
        elif node in lines:
            problems.append(Problem(path, f"line {line}: duplicate key; first in line {lines[node]}"))
        lines.setdefault(node, line)
        if isinstance(value, yaml.MappingNode):
            routes[node] = _route(node, _Entry(path, value, problems))
        else:
            rule = f"line {_line(value)}: must be a mapping with host and port, or url"
            problems.append(Problem(path, rule, _kind(value)))
        if len(problems) > MAX_PROBLEMS:
            break
    else:
        problems += _dead_ends(routes, lines)
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")]
    if problems:
        raise InvalidRoutes(tuple(problems))
    return MappingProxyType(routes)


def _tree(text: str) -> yaml.Node | None:
    """Return the nodes of a document, whose values are the text they are written as; None if there are none.

    Depth, length, anchors and tags are checked on the parser's events before it builds anything.
    """
    if len(text) > MAX_TEXT:
        raise _refusal(f"must not be longer than {MAX_TEXT} characters", len(text))
    try:
        _check_events(text)
        return yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        hint = "; remove the line {}, which stands for a table without routes" if "{}" in lines else ""
        raise _refusal(f"{where}is not YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise _refusal(f"is not YAML: {reason}") from error


def _check_events(text: str) -> None:
    depth = documents = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        at = f"line {_line(event)}: "
        if count > MAX_EVENTS:
            raise _refusal(f"{at}must not hold more than {MAX_EVENTS} values and marks", count)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _refusal(f"{at}must hold one document only", "a second document")
        elif isinstance(event, yaml.AliasEvent):
            raise _refusal(f"{at}must not use aliases; write the entry out", short(f"*{event.anchor}"))
        elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            if event.anchor is not None:
                raise _refusal(f"{at}must not use anchors; write the entry out", short(f"&{event.anchor}"))
            if event.tag is not None:
                raise _refusal(f"{at}must not use tags", short(event.tag))
            depth += isinstance(event, yaml.CollectionStartEvent)
            if depth > MAX_DEPTH:
                raise _refusal(f"{at}must not nest deeper than {MAX_DEPTH} levels", depth)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(part: Any) -> int:
    return part.start_mark.line + 1 if part.start_mark else 1


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

    def __init__(self, path: str, mapping: yaml.MappingNode, problems: list[Problem]) -> None:
        self.path = path
        self.line = _line(mapping)
        self.values: dict[str, str] = {}
        self.refused: set[str] = set()
        self._lines: dict[str, int] = {}
        self._problems = problems
        for key, value in mapping.value:
            if len(problems) > MAX_PROBLEMS:
                break
            self._take(key, value)

    def refuse(self, key: str, rule: str, line: int, got: str | None = None) -> None:
        """Report what is wrong with a key."""
        self.refused.add(key)
        self._problems.append(Problem(step(self.path, key), f"line {line}: {rule}", got))

    def reject(self, key: str, rule: str, got: str | None = None) -> None:
        """Report what is wrong with the value of a key."""
        self.refuse(key, rule, self._lines[key], short(self.values[key]) if got is None else got)

    def require(self, key: str, rule: str, line_of: str = "") -> None:
        """Report a key that is missing, unless it is there and was refused."""
        if key not in self.values and key not in self.refused:
            self.refuse(key, rule, self._lines.get(line_of, self.line))

    def read(self, key: str, default: Any) -> Any:
        """Return the value of a key; where it is missing or refused, a default."""
        text = self.values.get(key)
        if text is None:
            return default
        reader, rule = _READERS[key]
        try:
            return reader(text)
        except (KeyError, ValueError):
            self.reject(key, rule(text) if callable(rule) else rule)
            return default

    def _take(self, key: yaml.Node, value: yaml.Node) -> None:
        if not isinstance(key, yaml.ScalarNode):
            raise _refusal(f"line {_line(key)}: must have text for a key", "a list or a mapping")
        name = key.value
        if name not in KEYS:
            near = get_close_matches(name[:MAX_QUOTE], KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
            self.refuse(name, f"unknown key; {hint}", _line(key), short(name))
        elif name in self.values:
            self.refuse(name, f"duplicate key; first in line {self._lines[name]}", _line(key))
        elif not isinstance(value, yaml.ScalarNode):
            self.refuse(name, "must be a single value", _line(value), _kind(value))
        elif _is_null(value) or not value.value:
            self.refuse(name, "has no value; give one or remove the key", _line(value))
        elif len(value.value) > MAX_VALUE:
            self.refuse(name, f"must have at most {MAX_VALUE} characters", _line(value), short(value.value))
        else:
            self.values[name], self._lines[name] = value.value, _line(value)


def _route(node: str, entry: _Entry) -> Route:
    """Make a route of an entry; a refused value is replaced by a default, and the table is never built."""
    url = _address(entry)
    _check_tls(entry, url)
    if node == DEFAULT_ENTRY:
        for key in ("institution", "components", "peer_certificate"):
            if key in entry.values:
                entry.reject(key, "belongs to one node; the default route serves many")
    return Route(
        node=node,
        url=url,
        profile=entry.read("profile", DEFAULT_PROFILE),
        institution=entry.read("institution", None),
        deadline=entry.read("deadline", DEFAULT_DEADLINE),
        enabled=entry.read("enabled", True),
        via=entry.read("via", None),
        relay=entry.read("relay", False),
        ca=entry.values.get("ca"),
        certificate=entry.values.get("certificate"),
        key=entry.values.get("key"),
        server_name=entry.values.get("server_name"),
        components=entry.read("components", ()),
        peer_certificate=entry.read("peer_certificate", ()),
    )


def _address(entry: _Entry) -> str:
    """Return the URL of an entry; empty where it is reached through another node."""
    beside = [key for key in ADDRESS_KEYS if key in entry.values]
    if "via" in entry.values:
        for key in ("url", *beside):
            if key in entry.values:
                entry.reject(key, "must not be given with via: a node is reached directly or through another")
        return ""
    if "url" in entry.values:
        for key in beside:
            entry.reject(key, "must not be given with url, which has it all")
        return _from_url(entry, entry.values["url"])
    if "url" not in entry.refused:
        for key in ("host", "port"):
            entry.require(key, "is missing; give host and port, or url")
    return _url(entry.read("scheme", "http"), entry.read("host", ""), entry.read("port", None), "")


def _from_url(entry: _Entry, text: str) -> str:
    try:
        split = urlsplit(text)
        port, host = split.port, _host(split.hostname or "")
    except ValueError:
        entry.reject("url", "must be a URL such as https://gateway.example:7380/prefix")
        return ""
    prefix = split.path.rstrip("/")
    for broken, rule in (
        (text != text.strip() or not text.isprintable(), "must not hold spaces or control characters"),
        (split.scheme.lower() not in SCHEMES, f"must begin with {' or '.join(f'{s}://' for s in SCHEMES)}"),
        (host is None, "must name a host"),
        (port == 0 or split.netloc.endswith(":"), "must have a port from 1 to 65535 where it has one"),
        ("@" in split.netloc, "must not hold a user name or password"),
        ("?" in text or "#" in text, "must not have a query or fragment"),
        (not _PREFIX.fullmatch(prefix), "must have a plain path, if any"),
    ):
        if broken:
            entry.reject("url", rule, "a URL with a user name or password" if "@" in text else None)
            return ""
    return _url(split.scheme.lower(), host or "", port, prefix)


def _check_tls(entry: _Entry, url: str) -> None:
    for key in TLS_KEYS:
        if key not in entry.values:
            continue
        if not url:
            entry.reject(key, "belongs to the entry of the node that via names")
        elif not url.startswith("https://"):
            entry.reject(key, "has no use without https; set scheme: https, or an https:// url")
        elif key == "server_name":
            if _host(entry.values[key]) is None:
                entry.reject(key, "must be a host name or an address")
        elif not _FILE.fullmatch(entry.values[key]):
            entry.reject(key, "must be the absolute path of a PEM file")
    for key, other in (("certificate", "key"), ("key", "certificate")):
        if key in entry.values:
            entry.require(other, f"is missing beside {key}", key)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError
        return text

    return read


def _all_matching(pattern: re.Pattern[str], lower: bool) -> Callable[[str], tuple[str, ...]]:
    read = _matching(pattern)
    return lambda text: tuple(read(part.strip()) for part in (text.lower() if lower else text).split(","))


def _deadline(text: str) -> float:
    if not _NUMBER.fullmatch(text) or not 0 < float(text) <= MAX_DEADLINE:
        raise ValueError
    return float(text)


def _profile(text: str) -> str:
    return PROFILES[PROFILES.index(text)]


def _profile_rule(text: str) -> str:
    near = get_close_matches(text[:MAX_QUOTE], PROFILES, n=1)
    return f"must be one of {', '.join(PROFILES)}{f'; did you mean {near[0]}?' if near else ''}"


def _scheme(text: str) -> str:
    SCHEMES[text.lower()]
    return text.lower()


def _required_host(text: str) -> str:
    host = _host(text)
    if host is None:
        raise ValueError
    return host


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError
    return int(text)


_READERS: dict[str, tuple[Callable[[str], Any], str | Callable[[str], str]]] = {
    "host": (_required_host, "must be a host name or an address, without scheme, port or path"),
    "port": (_port, "must be a whole number from 1 to 65535"),
    "scheme": (_scheme, f"must be one of {', '.join(SCHEMES)}"),
    "profile": (_profile, _profile_rule),
    "institution": (_matching(NODE_ID), "must be an id: letters, digits and . _ : @ - inside"),
    "deadline": (_deadline, f"must be a number of seconds above 0, at most {MAX_DEADLINE:g}"),
    "enabled": (lambda text: _BOOLEANS[text.lower()], "must be true or false"),
    "relay": (lambda text: _BOOLEANS[text.lower()], "must be true or false"),
    "via": (_matching(NODE_ID), "must be the id of the node that passes on"),
    "components": (
        _all_matching(_COMPONENT, lower=False),
        "must be patterns such as unionpay/*, separated by commas",
    ),
    "peer_certificate": (
        _all_matching(_BORNE, lower=True),
        "must be subject alternative names or sha256:<64 hexadecimal digits>, separated by commas",
    ),
}
"""key -> how its text is read, and the rule that it breaks where that fails"""


def _host(text: str) -> str | None:
    """Return a host as it stands in a URL: lower case, IPv6 in brackets; None if it is not a valid host."""
    if _IPV4.fullmatch(text):
        return text
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        labels = bare.removesuffix(".").split(".")
        numeric = labels[-1].isdigit()
        good = bare == text and len(bare) <= 253 and not numeric and all(map(_LABEL.fullmatch, labels))
        return bare.lower() if good else None
    if address.version == 6:
        return None if "%" in bare else f"[{address.compressed}]"
    return str(address) if bare == text else None


def _url(scheme: str, host: str, port: int | None, prefix: str) -> str:
    own = port is None or SCHEMES.get(scheme) == port
    return f"{scheme}://{host}{'' if own else f':{port}'}{prefix}"


def _dead_ends(routes: Mapping[str, Route], lines: Mapping[str, int]) -> Iterator[Problem]:
    """Yield a problem for each ``via`` that names no entry, and one for each circle, naming those in it."""
    seen: set[str] = set()
    for node, route in routes.items():
        if route.via is None:
            continue
        if route.via == DEFAULT_ENTRY or route.via not in lines:
            rule = "names a node without an entry of its own; add one that says how it is reached"
            yield Problem(step(step("", node), "via"), f"line {lines[node]}: {rule}", short(route.via))
        if node not in seen and (circle := _circle(routes, node, seen)):
            shown = circle if len(circle) <= MAX_CIRCLE else [*circle[:MAX_CIRCLE], "…", circle[-1]]
            rule = "leads in a circle; give one of its nodes an address"
            path = step(step("", circle[0]), "via")
            yield Problem(path, f"line {lines[circle[0]]}: {rule}", " via ".join(shown))


def _circle(routes: Mapping[str, Route], node: str, seen: set[str]) -> list[str]:
    """Follow the hops from a node; return the circle that they end in, closed, if it was not seen before."""
    way: list[str] = []
    at: str | None = node
    while at is not None and at in routes and at not in seen:
        seen.add(at)
        way.append(at)
        at = routes[at].via
    return [*way[way.index(at) :], at] if at is not None and at in set(way) else []
