"""The x-ptp-* headers of the transport channel, read in every spelling and written in full.

Extension headers of ours: ``x-ptp-message-id`` names one logical push and stays the same on its retries;
``x-ptp-pop-id`` names one logical pop, so that its repeat gets the same message; ``x-ptp-content-field`` chooses
the bytes field of an answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from adapter.bfia.codec import parse_timeout
from gateway.domain.problems import Problem
from gateway.errors import Invalid

PUSH = "/v1/interconn/chan/push"
INVOKE = "/v1/interconn/chan/invoke"
PASS_THROUGH = "1"

_PREFIX = "x-ptp-"
_BEGINS = (b"x-", b"x_")
_GRPC_PUSH = "/org.ppc.ptp.PrivateTransferTransport/push"
_LONGEST = 512
_OTHER_NAMES = {
    "from-node-id": "source-node-id",
    "from-inst-id": "source-inst-id",
    "tecn-provider-code": "tech-provider-code",
}


@dataclass(frozen=True, slots=True)
class Ptp:
    """What the headers of one request say; empty text where they say nothing."""

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
    """Reads raw headers, and ``metadata`` for what they do not say.

    Raises Invalid for a missing session id and for values that are too long.
    """
    plain: dict[str, str] = {}
    underscored: dict[str, str] = {}
    fallback: dict[str, str] = {}
    for raw_name, raw_value in headers:
        if raw_name[:2].lower() not in _BEGINS:
            continue
        name = raw_name.decode("latin-1")
        _note(underscored if "_" in name else plain, name, raw_value.decode("latin-1").strip())
    for name, value in (metadata or {}).items():
        _note(fallback, name, value.strip())
    said = {**fallback, **underscored, **plain}
    problems = [
        Problem(f"{_PREFIX}{name}", f"must have at most {_LONGEST} characters", len(value))
        for name, value in said.items()
        if len(value) > (8 * _LONGEST if name in ("topic", "token") else _LONGEST)
    ]
    if not said.get("session-id"):
        problems.append(Problem("x-ptp-session-id", "is required", None))
    if problems:
        raise Invalid(problems)
    return Ptp(
        session=said["session-id"],
        token=said.get("token", ""),
        trace=said.get("trace-id", ""),
        provider=said.get("tech-provider-code", ""),
        target=said.get("target-node-id", ""),
        target_institution=said.get("target-inst-id", ""),
        source=said.get("source-node-id", ""),
        source_institution=said.get("source-inst-id", ""),
        version=said.get("version", ""),
        uri=said.get("uri", ""),
        topic=said.get("topic"),
        timeout=said.get("timeout", ""),
        message_id=said.get("message-id", ""),
        pop_id=said.get("pop-id", ""),
        content_field=said.get("content-field", ""),
    )


def outgoing(
    ptp: Ptp, *, node: str, institution: str, message_id: str, old_names: bool
) -> list[tuple[bytes, bytes]]:
    """Writes the headers of a pass-through invoke. ``old_names`` adds the source under its former names."""
    said = {
        "version": PASS_THROUGH,
        "tech-provider-code": ptp.provider,
        "trace-id": ptp.trace,
        "token": ptp.token,
        "session-id": ptp.session,
        "target-node-id": ptp.target,
        "source-node-id": node,
        "source-inst-id": institution,
        "uri": PUSH,
        "message-id": message_id,
    }
    if ptp.target_institution:
        said["target-inst-id"] = ptp.target_institution
    if ptp.topic is not None:
        said["topic"] = ptp.topic
    if old_names:
        said |= {"from-node-id": node, "from-inst-id": institution}
    return [(f"{_PREFIX}{name}".encode(), value.encode("latin-1", "replace")) for name, value in said.items()]


def wait_seconds(header: str, body: float | None, query: str | None, default: float) -> float:
    """Works out how long a pop waits, in seconds; the first that is said and not 0 counts.

    Header and body are milliseconds, but a value below 1000 is taken as seconds; the query is in seconds. Raises
    Invalid naming what is no number.
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


def _note(said: dict[str, str], name: str, value: str) -> None:
    plain = name.lower().replace("_", "-")
    if not plain.startswith(_PREFIX):
        return
    plain = plain.removeprefix(_PREFIX)
    if plain in _OTHER_NAMES:
        said.setdefault(_OTHER_NAMES[plain], value)
    else:
        said[plain] = value
