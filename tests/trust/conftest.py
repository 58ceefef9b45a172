"""Fixtures of the attacks on a real Docker daemon."""

import contextlib
import uuid
from collections.abc import Iterator

import docker
import pytest

from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import remove_network


@pytest.fixture
def harness() -> Iterator[DockerHarness]:
    """Give a harness with a Docker network of its own, which is removed afterwards."""
    with contextlib.closing(DockerHarness(f"bfia-trust-{uuid.uuid4().hex[:8]}")) as harness:
        yield harness
    with contextlib.closing(DockerHarness(harness.network)) as harness:
        remove_network(harness.network, harness.engine().remove_network)


@pytest.fixture
def daemon() -> Iterator[docker.DockerClient]:
    """Give a client of the machine's Docker daemon."""
    client = docker.from_env()
    yield client
    client.close()
