"""The listener for this node's containers: the only address of the gateway that they reach.

It is on the engine's bridge, which exists only once the container engine responds. A gateway that
starts earlier listens there from the first launch after that; each launch also notices a bridge
that was created again.
"""

import errno
import socket
import threading
from collections.abc import Callable

import structlog

from engines.base import BridgedEngine, Engine, EngineError
from gateway.config.schema.listeners import Listener
from gateway.errors import EngineFailed
from gateway.http.server import bound, host_of, port_of

log = structlog.get_logger(__name__)

ANY = "0.0.0.0"
LOOPBACK = "127.0.0.1"


class ContainerListener:
    """The gateway's listener for containers, on the engine's bridge if it has one."""

    def __init__(
        self,
        engine: Engine,
        listener: Listener,
        first_socket: socket.socket,
        add_socket: Callable[[socket.socket], None],
    ) -> None:
        """``first_socket`` is the one that the listener has from its start.

        ``add_socket`` is called with each further socket, to serve requests on it.
        """
        self._engine = engine
        self._advertised = listener.advertise
        self._first_host = host_of(first_socket)
        self._port = port_of(first_socket)
        self._add_socket = add_socket
        self._lock = threading.Lock()
        self._network = ""  # id of the bridge's network that the listener was opened for
        self._host = ""  # host name or address under which containers reach the gateway

    def base_url(self) -> str:
        """Return the URL of this gateway for containers; first listen on a new bridge, if any.

        Raises `EngineFailed` (ENGINE_DOWN, CREATE_FAILED, PORT_IN_USE) if containers cannot reach
        this gateway.
        """
        with self._lock:
            if isinstance(self._engine, BridgedEngine):
                self._follow_bridge(self._engine)
            elif self._first_host == ANY:  # an address to listen on, but not to connect to
                self._host = LOOPBACK
            else:
                self._host = self._first_host
            return self._advertised or f"http://{self._host}:{self._port}"

    def try_open(self) -> None:
        """Listen on the engine's bridge if the engine responds; otherwise log a warning.

        Also logs how containers are isolated.
        """
        try:
            self.base_url()
        except EngineFailed as error:
            log.warning(
                "containers cannot reach this gateway yet; it is tried again", cause=error.message
            )
        # With a bridge, `_follow_bridge` logs it.
        if not isinstance(self._engine, BridgedEngine):
            self._log_isolation()

    def _follow_bridge(self, engine: BridgedEngine) -> None:
        """Listen on the engine's bridge if the bridge is new. Raises `EngineFailed`."""
        try:
            network = engine.network_id()
            if network == self._network:
                return
            host = engine.gateway_address()
            if self._needs_socket(host):
                self._bind(host)
            # Containers may reach no other port of this host.
            engine.close_host([self._port])
        except EngineError as error:
            raise EngineFailed(str(error), reason=error.reason) from error
        self._network = network
        self._host = host
        self._log_isolation()

    def _needs_socket(self, host: str) -> bool:
        """Return whether the bridge's address needs a socket that does not exist yet."""
        if self._advertised is not None:
            return False  # containers use the advertised address
        if self._first_host == ANY:
            return False  # the first socket listens on the bridge, too
        return host not in (self._host, self._first_host)

    def _bind(self, host: str) -> None:
        """Listen on the bridge's address. Raises `EngineFailed`."""
        try:
            self._add_socket(bound(f"{host}:{self._port}"))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                text = (
                    "the container engine's bridge is not on this machine: "
                    "listen.container.advertise must say "
                    "where containers reach this gateway, and engine.docker.outside must be true, "
                    "so that they may"
                )
                raise EngineFailed(text, reason="CREATE_FAILED") from error
            raise EngineFailed(str(error.strerror), reason="PORT_IN_USE") from error

    def _log_isolation(self) -> None:
        """Log from what the containers are isolated, and a warning for each gap."""
        try:
            isolation = self._engine.isolation()
        except EngineError as error:
            log.warning("isolation of containers cannot be checked", cause=str(error))
            return
        log.info(
            "isolation of containers",
            from_each_other=isolation.tasks,
            from_host=isolation.host,
            from_outside=isolation.outside,
        )
        for gap in isolation.gaps:
            log.warning("containers are not fully isolated", gap=gap)
