"""A container makes system calls that lead past its network, or past what its seccomp profile sees."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from engines import seccomp
from tests.contracts.engine_acts import Act, output_of
from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import BASE, OwnDocker

ATTACKS = Path(__file__).with_name("system_calls.py").read_text(encoding="ascii")
TRIES_ALL = Act(("python3", "-c", ATTACKS))


@pytest.fixture
def own() -> Iterator[OwnDocker]:
    with contextlib.closing(OwnDocker()) as daemon:
        yield daemon


@pytest.mark.docker
def test_a_container_makes_no_socket_or_ring_that_leads_out(harness: DockerHarness) -> None:
    """Attack: AF_VSOCK in several spellings, AF_ALG, io_uring, new namespaces; ordinary sockets work."""
    assert output_of(harness, harness.engine(), TRIES_ALL) == b"done\n"


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_a_daemon_takes_the_printed_profile_as_its_default(own: OwnDocker) -> None:
    """As `docs/swarm.md` says for each machine of a Swarm."""
    file = own.home / "bfia-seccomp.json"
    file.write_text(json.dumps(seccomp.docker_profile()))
    own.start("--seccomp-profile", str(file))
    own.load(BASE)
    with contextlib.closing(docker.DockerClient(own.url)) as client:
        assert (
            client.containers.run(BASE, TRIES_ALL.command, network_mode="none", remove=True)
            == b"done\n"
        )
        assert not seccomp.is_replaceable(client.info()["SecurityOptions"])


@pytest.mark.parametrize(
    ("options", "replaced"),
    [
        (["name=apparmor", "name=seccomp,profile=default"], True),
        (["name=seccomp,profile=builtin", "name=cgroupns"], True),
        (["name=seccomp,profile=unconfined"], True),
        (["name=seccomp,profile=/etc/docker/stricter.json"], False),
        (["name=apparmor"], False),
        ([], False),
    ],
)
def test_only_a_daemons_own_profile_is_replaced(options: list[str], replaced: bool) -> None:
    """An admin's own stays, and a kernel without profiles is asked for none."""
    assert seccomp.is_replaceable(options) is replaced


def test_no_call_is_allowed_twice_or_without_a_name() -> None:
    rules = seccomp.docker_profile()["syscalls"]
    plain = [
        name
        for rule in rules
        if not {"args", "includes", "errnoRet"} & rule.keys()
        for name in rule["names"]
    ]
    assert len(plain) == len(set(plain)) > 300
    assert not {
        "socketcall",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "unshare",
    } & set(plain)


def test_the_profile_of_a_cluster_needs_no_capabilities_to_be_read() -> None:
    """Container runtimes know no conditions: what depends on a capability in Docker is left out."""
    profile = seccomp.cluster_profile()
    assert all(
        rule.keys() <= {"names", "action", "args", "errnoRet"} for rule in profile["syscalls"]
    )
    assert not [rule for rule in profile["syscalls"] if {"mount", "bpf"} & set(rule["names"])]
