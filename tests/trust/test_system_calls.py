"""Attack: a container makes system calls that lead past its network or its seccomp profile."""

import contextlib
import json
from pathlib import Path

import docker
import pytest

from engines import seccomp
from tests.contracts.engine_acts import Act, output_of
from tests.services.own_docker import BASE, OwnDocker

ATTACKS = Path(__file__).with_name("system_calls.py").read_text(encoding="ascii")
TRIES_ALL = Act(("python3", "-c", ATTACKS))
# System calls that the profile allows to no process.
FORBIDDEN = {
    "socketcall",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "unshare",
}


@pytest.mark.docker
def test_a_container_makes_no_socket_or_ring_that_leads_out(harness):
    """Attack: AF_VSOCK in several spellings, AF_ALG, io_uring, new namespaces.

    Ordinary sockets work.
    """
    assert output_of(harness, harness.engine(), TRIES_ALL) == b"done\n"


@pytest.fixture
def own_docker():
    """Give a Docker daemon of the test, not started yet."""
    with contextlib.closing(OwnDocker()) as daemon:
        yield daemon


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_a_daemon_accepts_the_printed_profile_as_its_default(own_docker):
    """`docs/swarm.md` describes this for each machine of a Swarm."""
    file = own_docker.home / "bfia-seccomp.json"
    file.write_text(json.dumps(seccomp.docker_profile()))
    own_docker.start("--seccomp-profile", str(file))
    own_docker.load(BASE)

    with contextlib.closing(docker.DockerClient(own_docker.url)) as client:
        command = TRIES_ALL.command
        output = client.containers.run(
            BASE,
            command,
            network_mode="none",
            remove=True,
        )
        assert output == b"done\n"
        assert not seccomp.is_replaceable(client.info()["SecurityOptions"])


@pytest.mark.parametrize(
    ("options", "is_replaced"),
    [
        (["name=apparmor", "name=seccomp,profile=default"], True),
        (["name=seccomp,profile=builtin", "name=cgroupns"], True),
        (["name=seccomp,profile=unconfined"], True),
        (["name=seccomp,profile=/etc/docker/stricter.json"], False),
        (["name=apparmor"], False),
        ([], False),
    ],
)
def test_only_a_daemons_default_profile_is_replaced(options, is_replaced):
    """An admin's own profile stays; a kernel without seccomp gets none."""
    assert seccomp.is_replaceable(options) is is_replaced


def is_unconditional(rule):
    """Return whether a rule of a profile allows its calls with any arguments."""
    return not {"args", "includes", "errnoRet"} & rule.keys()


def test_no_call_is_allowed_twice():
    names = []
    for rule in seccomp.docker_profile()["syscalls"]:
        if is_unconditional(rule):
            names += rule["names"]

    assert len(names) > 300
    assert len(set(names)) == len(names)
    assert not FORBIDDEN & set(names)


def test_the_profile_of_a_cluster_has_no_conditions_on_capabilities():
    """Container runtimes know no conditions: calls that depend on a capability are left out."""
    for rule in seccomp.cluster_profile()["syscalls"]:
        assert rule.keys() <= {"names", "action", "args", "errnoRet"}
        assert not {"mount", "bpf"} & set(rule["names"])
