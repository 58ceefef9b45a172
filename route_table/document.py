"""The YAML form of a route table, read strictly and written back.

One entry per node: ``host`` and ``port`` with an optional ``scheme``, a ``url`` that may have a path prefix, or
``via``, the node that passes on; the other keys are in `route_table.document.KEYS`. The entry ``default`` serves
nodes without one. A key that is not known is refused, since a misspelled ``enabled`` would leave a route open.
Every problem is told at once, with its path and line.
"""

import ipaddress
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import urlsplit

import yaml

from route_table.model import (
    DEFAULT_DEADLINE,
    DEFAULT_ENTRY,
    DEFAULT_PROFILE,
    PROFILES,
    Identity,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
)

ROOT = "(document)"
MAX_QUOTE = 128
"""characters of a found value that a problem repeats"""


@dataclass(frozen=True)
class Scalar:
    """A single value as it is written; ``plain`` tells that it stands without quotes."""

    text: str
    plain: bool
    line: int

    @property
    def is_null(self) -> bool:
        """Whether it is YAML's null; in quotes the same is a text."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Entries:
    """A mapping: its keys and values in their order, repeated keys included."""

    items: tuple[tuple[Scalar, "Node"], ...]
    line: int
    last: int = 0
    """line of the closing brace where there is one, else 0"""


@dataclass(frozen=True)
class Items:
    """A list. Only its being one matters here."""

    line: int


Node = Scalar | Entries | Items


def step(path: str, key: str) -> str:
    """Extend a path by a key; odd keys are quoted."""
    if not re.fullmatch(r"[\w-]{1,128}", key):
        return f"{path}[{json.dumps(short(key), ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def short(text: str) -> str:
    """Return text as a problem repeats it: cut, and encodable."""
    shown = text.encode("utf-8", "replace").decode()
    return shown if len(shown) <= MAX_QUOTE else shown[:MAX_QUOTE] + "…"


def kind(node: Node) -> str:
    """Say what stands where something else was expected."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else short(node.text)
    return "a mapping" if isinstance(node, Entries) else "a list"


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
"""key of an entry -> what it says"""
SCHEMES = {"http": 80, "https": 443}
"""scheme -> its own port, which a url leaves out"""
MAX_DEADLINE = 3600.0
MAX_PROBLEMS = 200
MAX_VALUE = 2048
"""characters of one value"""

MOST_OF_NODE = 100
NODE_ID = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._:@-]{{0,{MOST_OF_NODE - 2}}}[A-Za-z0-9])?")
NODE_RULE = f"must be a node id: letters, digits and . _ : @ - inside, at most {MOST_OF_NODE} characters"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_BYTE}\.){{3}}{_BYTE}")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")
_FILE = re.compile(r"/[^\x00-\x1f\x7f]{1,1023}")
_PATTERN = re.compile(r"[^\s,/]{1,200}/[^\s,/]{1,200}|\*")
_BORNE = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[\x21-\x2b\x2d-\x7e]{1,500}")
"""what a certificate bears: the pin of its key or a name, in lower case"""
_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")


class Entry:
    """One node's entry while it is read: its values by key, and the problems found so far."""

    def __init__(self, node: str, entries: Entries, problems: list[Problem]) -> None:
        self.path = step("", node)
        self.line = entries.line
        self.problems = problems
        self.values: dict[str, Scalar] = {}
        for key, value in entries.items:
            if len(problems) > MAX_PROBLEMS:
                break
            self._take(key, value)

    def refuse(self, key: str, rule: str, line: int, got: str | None = None) -> None:
        """Note what is wrong with a key, or (empty) with the whole entry."""
        path = step(self.path, key) if key else self.path
        self.problems.append(Problem(path, f"line {line}: {rule}", got))

    def reject(self, key: str, rule: str) -> None:
        """Refuse the value that stands under a key."""
        value = self.values[key]
        self.refuse(key, rule, value.line, short(value.text))

    def text(self, key: str) -> str | None:
        """Return a key's value as it is written; None: it is not there."""
        value = self.values.get(key)
        return value.text if value else None

    def _take(self, key: Scalar, value: Node) -> None:
        name = key.text
        if name not in KEYS:
            near = get_close_matches(name[:MAX_QUOTE], KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
            self.refuse(name, f"is no key of a route; {hint}", key.line, short(name))
        elif name in self.values:
            first = self.values[name].line
            self.refuse(name, f"is given a second time; first in line {first}", key.line)
        elif not isinstance(value, Scalar):
            self.refuse(name, "must be a single value", value.line, kind(value))
        elif value.is_null or not value.text:
            self.refuse(name, "has no value; give one or remove the key", value.line)
        elif len(value.text) > MAX_VALUE:
            self.refuse(name, f"must have at most {MAX_VALUE} characters", value.line, short(value.text))
        else:
            self.values[name] = value


def route_of(node: str, entry: Entry) -> Route:
    """Make a route of an entry; where a value is refused, a default stands in and the table is never built."""
    via = _via(entry)
    url = "" if "via" in entry.values else _address(entry)
    identity = _identity(entry, url)
    if node == DEFAULT_ENTRY and "institution" in entry.values:
        entry.reject("institution", "belongs to one node; the default route serves many")
    return Route(
        node=node,
        url=url,
        profile=_profile(entry),
        institution=_institution(entry),
        deadline=_deadline(entry),
        enabled=_flag(entry, "enabled", True),
        via=via,
        relay=_flag(entry, "relay", False),
        ca=identity.ca,
        certificate=identity.certificate,
        key=identity.key,
        server_name=identity.server_name,
        components=_components(node, entry),
        peer_certificate=_peer_certificate(node, entry),
    )


def _peer_certificate(node: str, entry: Entry) -> tuple[str, ...]:
    text = entry.text("peer_certificate")
    if text is None:
        return ()
    wanted = tuple(part.strip().lower() for part in text.split(","))
    if node == DEFAULT_ENTRY:
        entry.reject("peer_certificate", "belongs to one node; the default route admits no node")
    elif not all(map(_BORNE.fullmatch, wanted)):
        rule = "must be subject alternative names or sha256:<64 hexadecimal digits>, separated by commas"
        entry.reject("peer_certificate", rule)
    return wanted


def _components(node: str, entry: Entry) -> tuple[str, ...]:
    text = entry.text("components")
    if text is None:
        return ()
    patterns = tuple(part.strip() for part in text.split(","))
    if node == DEFAULT_ENTRY:
        entry.reject("components", "belongs to one node; the default route admits nobody")
    elif not all(map(_PATTERN.fullmatch, patterns)):
        entry.reject("components", "must be patterns such as unionpay/*, separated by commas")
    return patterns


def _via(entry: Entry) -> str | None:
    via = entry.text("via")
    if via is None:
        return None
    for key in ("url", "host", "port", "scheme"):
        if key in entry.values:
            entry.reject(key, "must not stand beside via: a node is reached directly or through another")
    if not NODE_ID.fullmatch(via):
        entry.reject("via", "must be the id of the node that passes on")
        return None
    return via


def _identity(entry: Entry, url: str) -> Identity:
    given = {key: entry.text(key) for key in ("ca", "certificate", "key", "server_name") if key in entry.values}
    for key, text in given.items():
        if not url:
            entry.reject(key, "belongs to the entry of the node that via names")
        elif not url.startswith("https://"):
            entry.reject(key, "has no use without https; set scheme: https, or an https:// url")
        elif key == "server_name":
            if _host(text or "") is None:
                entry.reject(key, "must be a host name or an address")
        elif not _FILE.fullmatch(text or ""):
            entry.reject(key, "must be the absolute path of a PEM file")
    for key, other in (("certificate", "key"), ("key", "certificate")):
        if key in given and other not in given and not _told(entry, other):
            entry.refuse(other, f"is missing beside {key}", entry.values[key].line)
    return Identity(**given)


def _address(entry: Entry) -> str:
    parts = [key for key in ("host", "port", "scheme") if key in entry.values]
    url = entry.text("url")
    if url is not None:
        for key in parts:
            entry.reject(key, "must not stand beside url, which says it all")
        return _from_url(entry, url)
    for key in ("host", "port"):
        if key not in entry.values and not _told(entry, key):
            entry.refuse(key, "is missing; give host and port, or url", entry.line)
    scheme = (entry.text("scheme") or "http").lower()
    if scheme not in SCHEMES:
        entry.reject("scheme", f"must be one of {', '.join(SCHEMES)}")
    host = _host(entry.text("host") or "")
    if host is None and "host" in entry.values:
        entry.reject("host", "must be a host name or an address, without scheme, port or path")
    port = _port(entry.text("port") or "")
    if port is None and "port" in entry.values:
        entry.reject("port", "must be a whole number from 1 to 65535")
    return _url(scheme, host or "", port, "")


def _told(entry: Entry, key: str) -> bool:
    """Tell whether a key, or the url in its place, stands in the entry and was already refused."""
    told = {step(entry.path, key), step(entry.path, "url")}
    return any(problem.path in told for problem in entry.problems)


def _from_url(entry: Entry, text: str) -> str:
    try:
        split = urlsplit(text)
        port = split.port
    except ValueError:
        entry.reject("url", "must be a URL such as https://gateway.example:7380/prefix")
        return ""
    host = _host(split.hostname or "")
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
            shown = "a URL with a user name or password" if "@" in text else short(text)
            entry.refuse("url", rule, entry.values["url"].line, shown)
            return ""
    return _url(split.scheme.lower(), host or "", port, prefix)


def _profile(entry: Entry) -> str:
    profile = entry.text("profile") or DEFAULT_PROFILE
    if profile not in PROFILES:
        near = get_close_matches(profile[:MAX_QUOTE], PROFILES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        entry.reject("profile", f"must be one of {', '.join(PROFILES)}{hint}")
    return profile


def _institution(entry: Entry) -> str | None:
    institution = entry.text("institution")
    if institution is not None and not NODE_ID.fullmatch(institution):
        entry.reject("institution", "must be an id: letters, digits and . _ : @ - inside")
    return institution


def _deadline(entry: Entry) -> float:
    text = entry.text("deadline")
    if text is None:
        return DEFAULT_DEADLINE
    deadline = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 < deadline <= MAX_DEADLINE:
        entry.reject("deadline", f"must be a number of seconds above 0, at most {MAX_DEADLINE:g}")
    return deadline


def _flag(entry: Entry, key: str, default: bool) -> bool:
    text = entry.text(key)
    if text is None:
        return default
    if text.lower() not in (*_YES, *_NO):
        entry.reject(key, "must be true or false")
    return text.lower() in _YES


def _host(text: str) -> str | None:
    """Return a host as it stands in a URL: lower case, IPv6 in brackets; None if it is no host."""
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


def _port(text: str) -> int | None:
    port = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    return port if 1 <= port <= 65535 else None


def _url(scheme: str, host: str, port: int | None, prefix: str) -> str:
    own = port is None or SCHEMES.get(scheme) == port
    return f"{scheme}://{host}{'' if own else f':{port}'}{prefix}"


_MOST_SHOWN = 10
"""nodes of a circle that a problem names"""


def problems(routes: Mapping[str, Route], lines: Mapping[str, int]) -> Iterator[Problem]:
    """Yield a problem for each ``via`` that names no entry, and one for each circle, naming those in it.

    ``lines`` tells where each entry stands, those too that are no routes for another reason.
    """
    seen: set[str] = set()
    for node, route in routes.items():
        if route.via is None:
            continue
        if route.via == DEFAULT_ENTRY or route.via not in lines:
            rule = "names a node without an entry of its own; add one that says how it is reached"
            yield Problem(_path(node), f"line {lines[node]}: {rule}", short(route.via))
        if node not in seen:
            circle = _circle(routes, node, seen)
            if circle:
                shown = circle if len(circle) <= _MOST_SHOWN else [*circle[:_MOST_SHOWN], "…", circle[-1]]
                rule = "leads in a circle; give one of its nodes an address"
                yield Problem(_path(circle[0]), f"line {lines[circle[0]]}: {rule}", " via ".join(shown))


def _circle(routes: Mapping[str, Route], node: str, seen: set[str]) -> list[str]:
    """Follow the hops from a node; return the circle that they end in, closed, if it was not seen before."""
    way: dict[str, None] = {}
    at: str | None = node
    while at is not None and at in routes and at not in seen:
        seen.add(at)
        way[at] = None
        at = routes[at].via
    if at is None or at not in way:
        return []
    trail = list(way)
    return [*trail[trail.index(at) :], at]


def _path(node: str) -> str:
    return step(step("", node), "via")


MAX_TEXT = 4 * 1024 * 1024
"""characters of a document"""
MAX_DEPTH = 8
MAX_EVENTS = 200_000
"""keys, values and marks; about 10,000 entries with every key"""
MAX_ROUTES = 20_000

_IDENTITY = tuple(field.name for field in fields(Identity))
_SMALL = 1 << 18
"""characters of a text whose tree is kept for the next step of the same edit"""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str, version: int = 1, *, linked: bool = True) -> RouteTable:
    """Read a table from its YAML text; ``version`` is what the table will call itself.

    ``linked``: False for a part of a table, of which next hops may be missing. Raises InvalidRoutes with every
    problem. A text without any entry is refused, as half-written files look like that; an empty table is written
    ``{}``.
    """
    return RouteTable(version, _routes(text, linked))


@lru_cache(maxsize=4)  # an edit asks for the same text several times: before, after, and when it is taken up
def _routes(text: str, linked: bool) -> Mapping[str, Route]:
    root = read(text)
    if not isinstance(root, Entries):
        if root is None or (isinstance(root, Scalar) and root.is_null):
            raise InvalidRoutes((Problem(ROOT, "has no entries; write {} for a table without routes"),))
        rule = f"line {root.line}: must map node ids to routes"
        raise InvalidRoutes((Problem(ROOT, rule, kind(root)),))
    if len(root.items) > MAX_ROUTES:
        rule = f"must not hold more than {MAX_ROUTES} routes"
        raise InvalidRoutes((Problem(ROOT, rule, len(root.items)),))
    problems_here: list[Problem] = []
    routes: dict[str, Route] = {}
    lines: dict[str, int] = {}
    for key, value in root.items:
        node = key.text
        path = step("", node)
        if not NODE_ID.fullmatch(node):
            problems_here.append(Problem(path, f"line {key.line}: {NODE_RULE}", short(node)))
        elif node in lines:
            rule = f"line {key.line}: is given a second time; first in line {lines[node]}"
            problems_here.append(Problem(path, rule))
        lines.setdefault(node, key.line)
        if isinstance(value, Entries):
            routes[node] = route_of(node, Entry(node, value, problems_here))
        else:
            rule = f"line {value.line}: must be a mapping with host and port, or url"
            problems_here.append(Problem(path, rule, kind(value)))
        if len(problems_here) > MAX_PROBLEMS:
            break
    if linked and len(problems_here) <= MAX_PROBLEMS:
        problems_here += problems(routes, lines)
    if problems_here:
        if len(problems_here) > MAX_PROBLEMS:
            problems_here[MAX_PROBLEMS:] = [
                Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")
            ]
        raise InvalidRoutes(tuple(problems_here))
    return MappingProxyType(routes)


def dump(table: RouteTable) -> str:
    """Write a table as YAML that `parse` reads into the same routes. Ids and texts are quoted."""
    if not table.routes:
        return "{}\n"
    entries = []
    for node, route in table.routes.items():
        at = f"  via: {_quoted(route.via)}" if route.via is not None else f"  url: {_quoted(route.url)}"
        lines = [f"{_quoted(node)}:", at]
        if route.profile != DEFAULT_PROFILE:
            lines.append(f"  profile: {_quoted(route.profile)}")
        if route.institution is not None:
            lines.append(f"  institution: {_quoted(route.institution)}")
        if route.deadline != DEFAULT_DEADLINE:
            lines.append(f"  deadline: {_decimal(route.deadline)}")
        if not route.enabled:
            lines.append("  enabled: false")
        if route.peer_certificate:
            lines.append(f"  peer_certificate: {_quoted(', '.join(route.peer_certificate))}")
        if route.components:
            lines.append(f"  components: {_quoted(', '.join(route.components))}")
        if route.relay:
            lines.append("  relay: true")
        lines += [
            f"  {key}: {_quoted(getattr(route, key))}" for key in _IDENTITY if getattr(route, key) is not None
        ]
        entries.append("\n".join(lines))
    return "\n".join(entries) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _decimal(number: float) -> str:
    """Write a number without an exponent."""
    text = repr(number).removesuffix(".0")
    return f"{number:.18f}" if "e" in text else text


def read(text: str) -> Node | None:
    """Return the tree of a document's text, None if it holds nothing but comments.

    The parser's events are read one by one, so a key such as ``0123``, ``no`` or ``22:30`` stays the text it is, a
    repeated key is seen, and what could grow without bound (depth, aliases, length) ends the reading at once.
    """
    return _kept_tree(text) if len(text) <= _SMALL else _tree(text)


def _tree(text: str) -> Node | None:
    if len(text) > MAX_TEXT:
        raise _refusal(f"must not be longer than {MAX_TEXT} characters", len(text))
    try:
        return _document(_events(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        hint = (
            "; the line {} stands for a table without routes and goes when there are some" if _ended(text) else ""
        )
        raise _refusal(f"{where}is not YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise _refusal(f"is not YAML: {reason}") from error


def _ended(text: str) -> bool:
    """Tell whether a line of its own says that there are no routes."""
    return any(line.partition("#")[0].strip() == "{}" for line in text.splitlines())


_kept_tree = lru_cache(maxsize=2)(_tree)


def _events(text: str) -> Iterator[yaml.Event]:
    """Yield the parser's events up to the bounds, refusing those that have no place in a route table."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > MAX_EVENTS:
            raise _refusal(f"line {_line(event)}: must not hold more than {MAX_EVENTS} values and marks", count)
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            if event.anchor is not None:
                shown = short(f"&{event.anchor}")
                raise _refusal(f"line {_line(event)}: must not use anchors; write the entry out", shown)
            if event.tag is not None:
                raise _refusal(f"line {_line(event)}: must not use tags", short(event.tag))
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise _refusal(f"line {_line(event)}: must not nest deeper than {MAX_DEPTH} levels", depth)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            rule = f"line {_line(event)}: must not use aliases; write the entry out"
            raise _refusal(rule, short(f"*{event.anchor}"))
        yield event


def _document(events: Iterator[yaml.Event]) -> Node | None:
    root: Node | None = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _refusal(f"line {_line(event)}: must hold one document only", "a second document")
        elif isinstance(event, yaml.NodeEvent):
            root = _node(event, events)
    return root


def _node(event: yaml.Event, events: Iterator[yaml.Event]) -> Node:
    """Read the node that begins with an event; its depth is bounded by `_events`."""
    line = _line(event)
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(event.value, event.style is None or event.style == "", line)
    if isinstance(event, yaml.SequenceStartEvent):
        while not isinstance(following := next(events), yaml.SequenceEndEvent):
            _node(following, events)
        return Items(line)
    items: list[tuple[Scalar, Node]] = []
    while not isinstance(following := next(events), yaml.MappingEndEvent):
        key = _node(following, events)
        if not isinstance(key, Scalar):
            raise _refusal(f"line {key.line}: must have text for a key", "a list or a mapping")
        items.append((key, _node(next(events), events)))
    braces = isinstance(event, yaml.MappingStartEvent) and event.flow_style
    return Entries(tuple(items), line, _line(following) if braces else 0)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _refusal(rule: str, got: object = None) -> InvalidRoutes:
    return InvalidRoutes((Problem(ROOT, rule, got),))
