"""The file in the state folder with the addresses of the listeners of a running gateway.

The gateway locks the file while it serves. Without a lock, an earlier gateway has left the file.
"""

import fcntl
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gateway.version import VERSION

_FILE = "listening.json"
_ALL_ADDRESSES = ("0.0.0.0", "::")


def claim(
    state_dir: Path,
    sockets: Iterable[socket.socket],
    files: Mapping[str, Sequence[str]] | None = None,
) -> TextIO:
    """Lock the file, write this gateway's listeners into it, and return it. Raises `OSError`.

    Closing the file unlocks it. ``files`` are the versions of the node's TLS files, see
    `gateway.config.tls.files`.
    """
    file = (state_dir / _FILE).open("a+", encoding="ascii")
    # A shared lock: it shows `_is_locked` that a gateway serves, but keeps no second gateway out.
    # Waits only for the moment in which `_is_locked` of another process holds its exclusive lock.
    fcntl.flock(file, fcntl.LOCK_SH)
    file.truncate(0)
    addresses = []
    for sock in sockets:
        host, port = sock.getsockname()[:2]
        addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    content = {
        "version": VERSION,
        "at": addresses,
        "files": files or {},
    }
    file.write(json.dumps(content))
    file.flush()
    return file


@dataclass(frozen=True)
class Serving:
    """The gateway that serves from a state folder."""

    version: str  # of the gateway
    at: tuple[str, ...]  # addresses of its listeners, ``host:port``
    files: Mapping[str, Sequence[str]]  # see `claim`

    def uses(self, address: str) -> bool:
        """Return whether a listener of this gateway prevents another one at an address."""
        return any(exclude_each_other(address, listener) for listener in self.at)


def serving(state_dir: Path) -> Serving | None:
    """Return the gateway that serves from this state folder, None without one."""
    try:
        with (state_dir / _FILE).open(encoding="ascii") as file:
            if not _is_locked(file):
                return None
            content = json.load(file)
            return Serving(
                content["version"],
                tuple(content["at"]),
                content.get("files", {}),
            )
    except (OSError, ValueError):
        return None


def _is_locked(file: TextIO) -> bool:
    """Return whether another process has locked the file, as a serving gateway does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the file is closed
    except BlockingIOError:
        return True
    return False


def exclude_each_other(first: str, second: str) -> bool:
    """Return whether listeners at two addresses, ``host:port``, exclude each other."""
    first_host, first_port = _host_and_port(first)
    second_host, second_port = _host_and_port(second)
    is_any_port = first_port == "0"  # each listener then gets a free port of its own
    if first_port != second_port or is_any_port:
        return False
    hosts = {first_host, second_host}
    return len(hosts) == 1 or not hosts.isdisjoint(_ALL_ADDRESSES)


def _host_and_port(address: str) -> tuple[str, str]:
    """Return the two parts of an address: without the brackets of IPv6, and a name as digits."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with suppress(OSError):  # an address of IPv6, or an unknown name
        host = socket.gethostbyname(host)
    return host, port
