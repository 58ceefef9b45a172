"""The x-ptp-* headers of the transport channel, read in every spelling and written in full.

Extension headers of ours: ``x-ptp-message-id`` names one logical push and stays the same on its retries;
``x-ptp-pop-id`` names one logical pop, so that its repeat gets the same message; ``x-ptp-content-field`` chooses
the bytes field of an answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from adapter.bfia.channel.codec import parse_timeout
from gateway.domain.problems import Problem
from gateway.errors import Invalid

PUSH = "/v1/interconn/chan/push"
INVOKE = "/v1/interconn/chan/invoke"
PASS_THROUGH = "1"

_PREFIX = "x-ptp-"
_BEGINS = (b"x-", b"x_")
_GRPC_PUSH = "/org.ppc.ptp.PrivateTransferTransport/push"
_LONGEST = 512
_NAMES = {
    "session": "session-id",
    "token": "token",
    "trace": "trace-id",
    "provider": "tech-provider-code",
    "target": "target-node-id",
    "target_institution": "target-inst-id",
    "source": "source-node-id",
    "source_institution": "source-inst-id",
    "version": "version",
    "uri": "uri",
    "topic": "topic",
    "timeout": "timeout",
    "message_id": "message-id",
    "pop_id": "pop-id",
    "content_field": "content-field",
}
"""field of `Ptp` -> header, without its prefix"""
_FORMER_NAMES = {
    "from-node-id": "source-node-id",
    "from-inst-id": "source-inst-id",
    "tecn-provider-code": "tech-provider-code",
}


@dataclass(frozen=True, slots=True)
class Ptp:
    """The headers of one request; empty text where they are absent."""

    session: str = ""
    token: str = ""
    trace: str = ""
    provider: str = ""
    target: str = ""
    target_institution: str = ""
    source: str = ""
    source_institution: str = ""
    version: str = ""
    uri: str = ""
    topic: str | None = None
    timeout: str = ""
    message_id: str = ""
    pop_id: str = ""
    content_field: str = ""

    @property
    def is_push(self) -> bool:
        """Whether the request means a push on the receiving node, as it also does when it says nothing."""
        try:
            path = urlsplit(self.uri).path
        except ValueError:
            return False
        return path in ("", PUSH, _GRPC_PUSH)


def read_ptp(headers: Iterable[tuple[bytes, bytes]], metadata: Mapping[str, str] | None = None) -> Ptp:
    """Read raw headers, and ``metadata`` for those that are absent.

    Raises Invalid for a missing session id, values that are too long, and headers with several values.
    """
    inside, _ = _named((name, value.strip()) for name, value in (metadata or {}).items())
    outside, ambiguous = _read(headers)
    found = {**inside, **outside}
    problems = [
        *(Problem(name, "stands several times, with different values", None) for name in ambiguous),
        *_too_long(found),
    ]
    if not found.get("session-id"):
        problems.append(Problem("x-ptp-session-id", "is required", None))
    if problems:
        raise Invalid(problems)
    return Ptp(**{field: found[name] for field, name in _NAMES.items() if name in found})


def read_ends(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str] | None:
    """Return source and target node as `read_ptp` reads them; None where a header has several values."""
    found, ambiguous = _read(headers)
    return None if ambiguous else (found.get("source-node-id", ""), found.get("target-node-id", ""))


def outgoing(
    ptp: Ptp, *, node: str, institution: str, message_id: str, token: str, old_names: bool
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a pass-through invoke. ``old_names`` adds the source under its former names.

    ``token`` stands for the container's own, which opens its session here and is not sent to other nodes.
    """
    headers = {
        "version": PASS_THROUGH,
        "tech-provider-code": ptp.provider,
        "trace-id": ptp.trace,
        "token": token,
        "session-id": ptp.session,
        "target-node-id": ptp.target,
        "source-node-id": node,
        "source-inst-id": institution,
        "uri": PUSH,
        "message-id": message_id,
    }
    if ptp.target_institution:
        headers["target-inst-id"] = ptp.target_institution
    if ptp.topic is not None:
        headers["topic"] = ptp.topic
    if old_names:
        headers |= {"from-node-id": node, "from-inst-id": institution}
    return [(f"{_PREFIX}{name}".encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]


def wait_seconds(header: str, body: float | None, query: str | None, default: float) -> float:
    """Return how long a pop waits, in seconds; the first that is given and not 0 counts. Raises Invalid.

    Header and body are milliseconds, but a value below 1000 is taken as seconds; the query is in seconds.
    """
    for name, value, milliseconds in (
        ("x-ptp-timeout", header, True),
        ("timeout", body, True),
        ("query.timeout", query, False),
    ):
        try:
            number = parse_timeout(value)
        except ValueError:
            problem = Problem(name, "must be a number that is not negative", str(value)[:80])
            raise Invalid([problem]) from None
        if number:
            return number / 1000 if milliseconds and number >= 1000 and number < math.inf else number
    return default


def _read(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], list[str]]:
    """Return the values of raw headers by their plain names, and the names that stand with different values.

    The spelling with hyphens alone counts before any other.
    """
    text = [
        (name.decode("latin-1").lower(), value.decode("latin-1").strip())
        for name, value in headers
        if name[:2].lower() in _BEGINS
    ]
    plain, ambiguous = _named((name, value) for name, value in text if "_" not in name)
    underscored, more = _named((name, value) for name, value in text if "_" in name)
    return {**underscored, **plain}, [*ambiguous, *more]


def _named(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the values of one spelling, former names counting less, and the names with different values.

    An empty value counts as absent; a topic may be empty.
    """
    found: dict[str, str] = {}
    ambiguous: dict[str, None] = {}
    for name, value in pairs:
        key = name.lower().replace("_", "-")
        if not key.startswith(_PREFIX) or not (value or key == f"{_PREFIX}topic"):
            continue
        if found.setdefault(key, value) != value:
            ambiguous[key] = None
    headers = {key.removeprefix(_PREFIX): value for key, value in found.items()}
    former = {new: headers.pop(old) for old, new in _FORMER_NAMES.items() if old in headers}
    return {**former, **headers}, list(ambiguous)


def _too_long(headers: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(f"{_PREFIX}{name}", f"must have at most {_LONGEST} characters", len(value))
        for name, value in headers.items()
        if len(value) > (8 * _LONGEST if name in ("topic", "token") else _LONGEST)
    ]
