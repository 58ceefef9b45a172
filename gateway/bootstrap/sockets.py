"""The last stage of a node: its bound sockets, and the listener that its containers reach."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TextIO

from engines.base import Engine
from gateway.bootstrap import engine_parts
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.config.tls import Tls
from gateway.container_listener import ContainerListener
from gateway.http.listening_file import claim
from gateway.http.server import Arrivals, bound, host_of, port_of


@dataclass(frozen=True)
class Sockets:
    """The sockets of each listener."""

    by_listener: Mapping[str, Sequence[socket.socket]]
    tls: Mapping[str, Tls]  # TLS of the listeners that have it
    lock: TextIO  # the locked file that names the listeners
    arrivals: Arrivals  # takes sockets that are bound later
    for_containers: ContainerListener

    def addresses(self) -> dict[str, str]:
        """Return the URL of each listener on this machine."""
        addresses = {}
        for name, sockets in self.by_listener.items():
            scheme = "http"
            if name in self.tls:
                scheme = "https"
            if sockets:
                addresses[name] = f"{scheme}://{host_of(sockets[0])}:{port_of(sockets[0])}"
        return addresses

    def close(self) -> None:
        """Close the sockets, whether they were served or not."""
        for listening in chain.from_iterable(self.by_listener.values()):
            listening.close()
        self.lock.close()


def open_sockets(settings: Settings, engine: Engine) -> Sockets:
    """Bind the sockets of the listeners, and lock the file that names them.

    Raises `OSError` for an address in use, `Invalid` for unusable TLS files.
    """
    listen = settings.listen
    tls = peer_tls.served(listen.peer.tls)
    binds = {
        "peer": listen.peer.bind,
        "operator": listen.operator.bind,
    }
    if listen.container is not None:
        binds["container"] = listen.container.bind
    by_listener = {name: [bound(bind)] for name, bind in binds.items()}
    lock = claim(
        settings.state_dir,
        chain.from_iterable(by_listener.values()),
        files=peer_tls.files(listen.peer.tls),
    )
    arrivals = Arrivals()
    # Without a listener of their own, containers use the one for peers.
    container_listener = "peer" if listen.container is None else "container"
    for_containers = ContainerListener(
        engine_parts.main_of(engine),
        listen.container or listen.peer,
        first_socket=by_listener[container_listener][0],
        add_socket=partial(arrivals.put, container_listener),
    )
    return Sockets(by_listener, tls, lock, arrivals, for_containers)
