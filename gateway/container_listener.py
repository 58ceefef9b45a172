"""The way from this node's containers to its listener: an address on the engine's bridge, and nothing else of us.

The bridge is there only once the container engine answers. A gateway that starts before it opens the door at the
first launch after that; a bridge that was made anew is noticed there, too.
"""

import errno
import socket
import threading
from collections.abc import Callable

import structlog

from engines.base import Engine, EngineError
from engines.docker import ContainerdEngine
from gateway.config.schema import Listener
from gateway.errors import EngineFailed
from gateway.http.server import bound, host_of, port_of

log = structlog.get_logger(__name__)

ANY = "0.0.0.0"
LOOPBACK = "127.0.0.1"


class ContainerDoor:
    """Knows where containers find this gateway."""

    def __init__(
        self,
        engine: Engine,
        listener: Listener,
        first: socket.socket,
        arrived: Callable[[socket.socket], None],
    ) -> None:
        """``first`` is the listener's socket; ``arrived`` is given every further one that is to be served."""
        self._engine = engine
        self._advertised = listener.advertise
        self._own, self._port = host_of(first), port_of(first)
        self._arrived = arrived
        self._lock = threading.Lock()
        self._network = ""
        self._host = ""

    def address(self) -> str:
        """Return the base URL for containers, opening the door if that has still to be done.

        Raises `EngineFailed` (ENGINE_DOWN, CREATE_FAILED) where containers cannot reach this gateway.
        """
        with self._lock:
            if not isinstance(self._engine, ContainerdEngine):
                self._host = LOOPBACK if self._own == ANY else self._own
            else:
                self._look(self._engine)
            return self._advertised or f"http://{self._host}:{self._port}"

    def try_open(self) -> None:
        """Open the door now if the engine answers; say what of the isolation holds."""
        try:
            self.address()
        except EngineFailed as error:
            log.warning(
                "containers cannot reach this gateway yet; it is tried again", cause=error.message
            )
        if not isinstance(self._engine, ContainerdEngine):
            self._tell()

    def _look(self, engine: ContainerdEngine) -> None:
        try:
            network = engine.network_id()
            if network == self._network:
                return
            host = engine.gateway_address()
            self._bind(host)
            engine.close_host([self._port])
        except EngineError as error:
            raise EngineFailed(str(error), reason=error.reason) from error
        self._network, self._host = network, host
        self._tell()

    def _bind(self, host: str) -> None:
        if self._advertised is not None or self._host == host or self._own in (ANY, host):
            return
        try:
            self._arrived(bound(f"{host}:{self._port}"))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                text = (
                    "the container engine's bridge is not on this machine: listen.container.advertise must say "
                    "where containers reach this gateway, and engine.docker.outside let them"
                )
                raise EngineFailed(text, reason="CREATE_FAILED") from error
            raise EngineFailed(str(error.strerror), reason="PORT_IN_USE") from error

    def _tell(self) -> None:
        try:
            found = self._engine.isolation()
        except EngineError as error:
            log.warning("isolation of containers cannot be checked", cause=str(error))
            return
        log.info(
            "isolation of containers",
            from_each_other=found.tasks,
            from_host=found.host,
            from_outside=found.outside,
        )
        for gap in found.gaps:
            log.warning("containers are not fully isolated", gap=gap)
