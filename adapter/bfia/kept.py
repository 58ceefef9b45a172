"""How long an idle connection to a peer is kept for its next request."""

import re
from collections.abc import Mapping

# Seconds without a promise of the peer: some servers close idle connections after five.
UNPROMISED = 4.0
_LONGEST = 300.0  # seconds, whatever the peer promises
_MARGIN = 10.0  # seconds by which the peer may be ahead, as its time began before ours
_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout=([0-9]{1,6})(?![0-9.])", re.IGNORECASE)


def idle_seconds(headers: Mapping[str, str]) -> float:
    """Return how long the connection of a response may be idle before its next request.

    ``headers`` (names in lower case) may have ``keep-alive: timeout=SECONDS``, by which a server
    promises how long it keeps an idle connection.
    """
    promise = _TIMEOUT.search(headers.get("keep-alive", ""))
    if promise is None:
        return UNPROMISED
    seconds = min(float(promise[1]), _LONGEST) - _MARGIN
    return max(seconds, UNPROMISED)
