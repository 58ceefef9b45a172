"""The x-* headers: sent in full, read in every spelling (management layer, "Common HTTP headers").

Signing is not part of this module yet: ``x-auth-sign`` is sent with the word that says so.
"""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import uuid4

from fastapi import Request

from gateway.domain.spec import NodeId
from gateway.runtime.context import current_trace, new_trace_id

UNSIGNED = "unsigned"


def outgoing(source: NodeId, target: NodeId, trace_id: str = "") -> dict[str, str]:
    """Return all headers of one request; nonce and timestamp (ms) are fresh at every try."""
    return {
        "x-auth-sign": UNSIGNED,
        "x-csrf-protection": uuid4().hex,
        "x-source-node-id": source,
        "x-node-id": source,
        "x-target-node-id": target,
        "x-nonce": str(uuid4()),
        "x-trace-id": trace_id or current_trace() or new_trace_id(),
        "x-timestamp": str(time.time_ns() // 1_000_000),
    }


@dataclass(frozen=True)
class Incoming:
    """What the headers of a request say; empty where they say nothing."""

    source: NodeId
    target: NodeId
    trace_id: str


_TRACE = re.compile(r"[\x21-\x7e]{1,128}")
"""trace ids that can be passed on in a header and an environment; another is taken for none"""
_CLAIMS = (b"x-source-node-id", b"x-node-id", b"x-ptp-source-node-id", b"x-ptp-from-node-id")
_SOURCE = ("x-source-node-id", "x-node-id")


def incoming(request: Request) -> Incoming:
    """Read a request's headers, in hyphen or underscore form, old or new name."""
    headers = request.headers
    trace = _either(headers, "x-trace-id")
    return Incoming(
        source=next((v for name in _SOURCE if (v := _either(headers, name))), ""),
        target=_either(headers, "x-target-node-id"),
        trace_id=trace if _TRACE.fullmatch(trace) else "",
    )


def _either(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name) or headers.get(name.replace("-", "_")) or ""
    return value.strip()


def claimed(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """Return every node that raw headers name as the sender, in whatever spelling, repeated ones too."""
    found = {
        value.decode("latin-1").strip() for name, value in headers if name.lower().replace(b"_", b"-") in _CLAIMS
    }
    return frozenset(found - {""})
