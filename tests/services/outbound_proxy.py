"""A real HTTP proxy on loopback, which asks for a login and allows tunnels to some ports."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen

from tests.e2e.nodes import free_ports
from tests.services import listens, started

PROGRAM = "/usr/bin/tinyproxy"
USER = "gateway"
PASSWORD = "open-sesame"


@dataclass
class OutboundProxy:
    """The proxy's port, configuration and process."""

    home: Path
    port: int
    ports: Collection[int]  # to which tunnels are allowed
    address: str = "127.0.0.1"
    process: Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The proxy's URL with its user, as routes name it."""
        return f"http://{USER}@{self.address}:{self.port}"

    @property
    def log(self) -> str:
        """What the proxy has logged."""
        return (self.home / "requests.log").read_text()

    def start(self) -> None:
        command = self.command()
        self.process = started(command, self.home / "log", partial(listens, self.port))

    def command(self) -> list[str]:
        """Write the configuration; return the command that runs the proxy."""
        lines = [
            f"Port {self.port}",
            f"Listen {self.address}",
            "Timeout 600",
            "MaxClients 200",
            f"BasicAuth {USER} {PASSWORD}",
            f'LogFile "{self.home / "requests.log"}"',
            "LogLevel Connect",
            *[f"ConnectPort {port}" for port in self.ports],
        ]
        file = self.home / "tinyproxy.conf"
        file.write_text("\n".join(lines) + "\n")
        return [PROGRAM, "-d", "-c", str(file)]

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def outbound_proxy(home: Path, *ports: int) -> Iterator[OutboundProxy]:
    """Run a proxy that opens tunnels to these ports."""
    home.mkdir(parents=True)
    (port,) = free_ports(1)
    proxy = OutboundProxy(home, port, ports)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
