"""What senders of relayed requests share with relays: a header, reasons, and relays' responses.

`adapter.bfia.relay` is the relay itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.domain.entries import as_mapping

# Header with the milliseconds that the sender waits for a response through a relay
WITHIN = "x-relay-within"

# Reasons of errors of relays
RELAY_NOT_ALLOWED = "RELAY_NOT_ALLOWED"
RELAY_LOOP = "RELAY_LOOP"
RELAY_TOO_FAR = "RELAY_TOO_FAR"
RELAY_NO_ROUTE = "RELAY_NO_ROUTE"
INSTITUTION_UNKNOWN = "INSTITUTION_UNKNOWN"  # no route names the institution of the request
INSTITUTION_AMBIGUOUS = "INSTITUTION_AMBIGUOUS"  # routes to several nodes name it
TARGET_UNREACHABLE = "TARGET_UNREACHABLE"  # by the last relay: no response from the node behind it
NEXT_HOP_UNREACHABLE = "NEXT_HOP_UNREACHABLE"  # by the sender: no response from the first relay

# Reason that a relay gives -> code of its control response, code of its transport response
RELAY_CODES = {
    RELAY_NOT_ALLOWED: (403, "E0000000403"),
    RELAY_LOOP: (508, "E0000000503"),
    RELAY_TOO_FAR: (508, "E0000000503"),
    RELAY_NO_ROUTE: (404, "E0000000618"),
    INSTITUTION_UNKNOWN: (404, "E0000000618"),
    INSTITUTION_AMBIGUOUS: (409, "E0000000400"),
    TARGET_UNREACHABLE: (503, "E0000000607"),
}

# A relay's node id in its response: printable ASCII without commas, which separate the nodes in a
# header.
_RELAY_NODE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,128}")


@dataclass(frozen=True)
class RelayResponse:
    """The response that a relay gives instead of the called node."""

    relay: str  # the relay's node id
    reason: str  # one of `RELAY_CODES`
    message: str
    delivered: bool  # whether the called node may have got the request


def relay_response(envelope: Mapping[str, Any]) -> RelayResponse | None:
    """Return the parts of a control response that a relay gave; None for one of the called node.

    A response whose reason is not one of `RELAY_CODES`, or whose relay is not a node id, counts as
    a response of the called node.
    """
    data = as_mapping(envelope.get("data"))
    message = envelope.get("msg") or envelope.get("message") or ""
    match data:
        case {"reason": str(reason), "relay": str(relay)} if reason in RELAY_CODES:
            if _RELAY_NODE.fullmatch(relay) is None:
                return None
            return RelayResponse(
                relay,
                reason,
                str(message),
                # if absent, the request may have arrived
                delivered=data.get("delivered") is not False,
            )
    return None
