"""Limits of the number of connections to a listener, in all and from one address."""

import resource
from collections import Counter

_MOST_DESCRIPTORS = 65_536  # the process's own limit is raised to this number at most
_MOST_CONNECTIONS = 4096  # open connections of one listener
# Connections from one address, by listener. All containers may share the address of their engine.
_MOST_PER_ADDRESS = {"peer": 512, "container": 1024}


class ConnectionCount:
    """The number of open connections of one listener, limited in all and per address."""

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._open: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Count a new connection; return False if there is no room for it."""
        is_full = self._open.total() >= self._total
        if is_full or self._open[address] >= self._per_address:
            return False
        self._open[address] += 1
        return True

    def free(self, address: str) -> None:
        """Count a connection as closed."""
        self._open[address] -= 1
        if not self._open[address]:  # otherwise every address would stay in memory
            del self._open[address]


def connection_count(listener: str) -> ConnectionCount:
    """Return a new count for a listener, limited to a quarter of the process's descriptors.

    There are up to three listeners; the last quarter is for engines, databases, files and calls to
    peers.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = min(_MOST_CONNECTIONS, descriptors // 4)
    per_address = total
    if listener in _MOST_PER_ADDRESS:
        per_address = min(_MOST_PER_ADDRESS[listener], total // 2)
    return ConnectionCount(total, per_address)


def allow_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard one, or to the most that could be used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(hard, _MOST_DESCRIPTORS)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
