"""Which listeners are this node's own: while it serves, a file in its state folder names them and is held locked.

What answers on a port cannot tell: another node's gateway answers the same. An earlier version wrote no such file,
but held the lock of its channel; of that one, what answers as a gateway on a port of the configuration is its own.
"""

import fcntl
import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gateway.version import VERSION

_FILE = "listening.json"
_CHANNEL_LOCK = Path("channel", "lock")
_ANSWER_SECONDS = 10.0
"""for what listens on a port to say what it is: a gateway under load takes its time"""
_ANY = ("0.0.0.0", "::")


def claimed(state_dir: Path, sockets: Iterable[socket.socket]) -> TextIO:
    """Note where this node listens, for as long as what is returned is open. Raises `OSError`."""
    file = (state_dir / _FILE).open("a+", encoding="ascii")
    fcntl.flock(file, fcntl.LOCK_SH)  # whoever looks holds it for a moment only
    file.truncate(0)
    names = [sock.getsockname()[:2] for sock in sockets]
    at = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in names]
    file.write(json.dumps({"version": VERSION, "at": at}))
    file.flush()
    return file


@dataclass(frozen=True)
class Serving:
    """The gateway that serves from a state folder."""

    version: str = ""
    """empty: one that did not write its version down"""
    at: tuple[str, ...] | None = None
    """where it listens; None: it did not write it down"""

    def has(self, address: str) -> bool:
        """Tell whether it is what listens at an address that is taken."""
        return _is_gateway(address) if self.at is None else any(same(address, there) for there in self.at)


def serving(state_dir: Path) -> Serving | None:
    """Return what serves from this state folder; None where nothing does."""
    try:
        with (state_dir / _FILE).open(encoding="ascii") as file:
            if _is_locked(file):
                found = json.load(file)
                at = found["at"] if isinstance(found, dict) else found
                return Serving(str(found["version"]) if isinstance(found, dict) else "", tuple(map(str, at)))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        with (state_dir / _CHANNEL_LOCK).open(encoding="ascii") as file:
            return Serving() if _is_locked(file) else None
    except OSError:
        return None


def _is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
    except BlockingIOError:
        return True
    return False


def _is_gateway(address: str) -> bool:
    """Tell whether a gateway listens there: it tells its health, or in its own words that it has no such path."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    try:
        with socket.create_connection((host, int(port)), _ANSWER_SECONDS) as conn:
            conn.settimeout(_ANSWER_SECONDS)
            conn.sendall(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            with conn.makefile("rb") as answer:
                said = answer.read(4096)
    except OSError:
        return False
    return said.endswith(b'{"status":"ok"}') or b"PATH_UNKNOWN" in said


def same(one: str, other: str) -> bool:
    """Tell whether two listeners at these addresses, ``host:port``, are in each other's way."""
    (host, port), (host2, port2) = _parts(one), _parts(other)
    return port == port2 != "0" and (host == host2 or host in _ANY or host2 in _ANY)


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return "127.0.0.1" if host == "localhost" else host, port
