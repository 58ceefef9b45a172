"""One node: what its listeners serve, how it starts and stops."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import structlog

from engines.base import Engine
from gateway.bootstrap.assembly import Node
from gateway.bootstrap.listeners import applications
from gateway.bootstrap.parts import engine_of
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.data.files import full, try_to_write
from gateway.http.server import host_of, port_of

log = structlog.get_logger(__name__)


class Gateway(Node):
    """One node: its parts, its listeners' applications and sockets, and how to start and stop it."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = partial(datetime.now, UTC),
        engine: Callable[[Settings, str], Engine] | None = None,
    ) -> None:
        """Build the node. ``engine`` makes its engine from the settings and the installation's id."""
        super().__init__(settings, clock, engine or engine_of)
        self.door.try_open()
        self.apps = applications(self)

    def start(self) -> None:
        """Take up what an earlier process left, then begin."""
        self._check_storage()
        if gap := peer_tls.unproven(self.settings.listen.peer.bind, self.settings.listen.peer.tls):
            log.warning("peers are not authenticated", cause=gap, remedy="listen.peer.tls with client_ca")
        self.broker.recover()
        self.heartbeat.start(self.settings.listen.peer.advertise or self.addresses()["peer"])
        self.executor.start()
        self.scheduler.loop.start()
        self.cleaner.start()
        self.webhooks.start()
        self.resources.loop.start()
        self.rooms.loop.start()

    def stop(self) -> None:
        """Let the work in progress end. Containers run on; the next process takes them up again."""
        self.heartbeat.stop()
        self.drain.close()
        self.outages.close()
        self.cleaner.stop()
        self.webhooks.stop()
        self.rooms.loop.stop()
        self.resources.loop.stop()
        self.scheduler.loop.stop()
        self.executor.stop()
        self.lanes.close()
        self.protocol.close()
        self.broker.close()
        self.engine.close()
        self.store.close()
        for sock in (sock for socks in self.sockets.values() for sock in socks):
            sock.close()  # where nothing was served, nothing else does
        self.listening.close()
        if self.lock is not None:
            self.lock.close()

    def addresses(self) -> dict[str, str]:
        """Return where each listener is reached on this machine."""
        return {
            name: f"{'https' if name in self.tls else 'http'}://{host_of(socks[0])}:{port_of(socks[0])}"
            for name, socks in self.sockets.items()
            if socks
        }

    def _check_storage(self) -> None:
        try:
            with self.storage.staging():
                try_to_write(self.settings.storage.path)
        except OSError as error:
            log.warning(
                "the storage cannot be written: until it can, jobs are refused (STORAGE_NOT_WRITABLE)",
                setting="storage.url",
                folder=str(self.settings.storage.path),
                error=error.strerror,
                next="make room there"
                if full(error)
                else "give the gateway's user the right to write there, or choose another storage.url",
            )
