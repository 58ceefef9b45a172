"""The rules for one node's entry in a route table."""

import ipaddress
import math
import re
from difflib import get_close_matches
from urllib.parse import urlsplit

from route_table.model import (
    DEFAULT_DEADLINE,
    DEFAULT_ENTRY,
    DEFAULT_PROFILE,
    PROFILES,
    Identity,
    Problem,
    Route,
)
from route_table.tree import MAX_QUOTE, Entries, Node, Scalar, kind, short, step

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
