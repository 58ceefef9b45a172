"""Which listeners are this node's own: while it serves, a file in its state folder names them and is held locked.

What answers on a port cannot tell: another node's gateway answers the same.
"""

import fcntl
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

_FILE = "listening.json"
_ANY = ("0.0.0.0", "::")


def claimed(state_dir: Path, sockets: Iterable[socket.socket]) -> TextIO:
    """Note where this node listens, for as long as what is returned is open. Raises `OSError`."""
    file = (state_dir / _FILE).open("a+", encoding="ascii")
    fcntl.flock(file, fcntl.LOCK_SH)  # whoever looks holds it for a moment only
    file.truncate(0)
    names = [sock.getsockname()[:2] for sock in sockets]
    file.write(json.dumps([f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in names]))
    file.flush()
    return file


def own(state_dir: Path) -> list[str]:
    """Return the addresses at which the gateway of this state folder listens; none where it does not serve."""
    try:
        with (state_dir / _FILE).open(encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # it serves
                return [str(address) for address in json.load(file)]
    except (OSError, ValueError):
        pass
    return []


def same(one: str, other: str) -> bool:
    """Tell whether two listeners at these addresses, ``host:port``, are in each other's way."""
    (host, port), (host2, port2) = _parts(one), _parts(other)
    return port == port2 != "0" and (host == host2 or host in _ANY or host2 in _ANY)


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return "127.0.0.1" if host == "localhost" else host, port
