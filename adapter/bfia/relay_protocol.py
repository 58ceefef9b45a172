"""What relays say: the headers that they add, their reasons for not passing on, and whose words an answer has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PASSED = "x-relay-path"
"""the nodes that have passed a request on so far, separated by commas"""
WITHIN = "x-relay-within"
"""milliseconds that the sender waits for the answer of a control request"""
MOST_HOPS = 8
"""nodes that may pass one request on"""

NOT_ALLOWED = "RELAY_NOT_ALLOWED"
LOOP = "RELAY_LOOP"
TOO_FAR = "RELAY_TOO_FAR"
NO_ROUTE = "RELAY_NO_ROUTE"
TARGET_UNREACHABLE = "TARGET_UNREACHABLE"
"""said by the last relay: the node that it hands the request to gave no answer"""
NEXT_HOP_UNREACHABLE = "NEXT_HOP_UNREACHABLE"
"""said by who wants to send: the first relay gave no answer"""

CODES = {
    NOT_ALLOWED: (403, "E0000000403"),
    LOOP: (508, "E0000000503"),
    TOO_FAR: (508, "E0000000503"),
    NO_ROUTE: (404, "E0000000618"),
    TARGET_UNREACHABLE: (503, "E0000000607"),
}
"""reason of a relay -> code of a control answer, code of a transport answer"""

_NODE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,128}")


@dataclass(frozen=True)
class Beyond:
    """What a relay said in the place of the node that was asked."""

    relay: str
    reason: str
    message: str
    delivered: bool

    @property
    def silent(self) -> bool:
        """Whether the node behind the relay gave no answer, rather than that the relay refused."""
        return self.reason == TARGET_UNREACHABLE


def told_by_relay(answer: Mapping[str, Any]) -> Beyond | None:
    """Return what a relay said in a control answer; None where the answer is that of the node itself."""
    data = answer.get("data")
    if not isinstance(data, Mapping):
        return None
    reason, relay = data.get("reason"), data.get("relay")
    if not isinstance(reason, str) or reason not in CODES:
        return None
    if not isinstance(relay, str) or not _NODE.fullmatch(relay):
        return None
    message = str(answer.get("msg") or answer.get("message") or "")
    return Beyond(relay, reason, message, data.get("delivered") is not False)


def passed(path: str) -> tuple[str, ...]:
    """Read the header of the nodes that have passed a request on."""
    return tuple(name for part in path[:4096].split(",") if (name := part.strip()))
