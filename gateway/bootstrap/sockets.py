"""The sockets on which a node listens."""

import socket

from gateway.config.schema import Settings
from gateway.http.server import bound


def listening(settings: Settings) -> dict[str, list[socket.socket]]:
    """Bind every listener. Raises `Invalid` where an address cannot be had."""
    listen = settings.listen
    sockets = {"peer": [bound(listen.peer.bind)], "operator": [bound(listen.operator.bind)]}
    if listen.container is not None:
        sockets["container"] = [bound(listen.container.bind)]
    return sockets
