"""What the attacks on a real Docker daemon share."""

import contextlib
import uuid
from collections.abc import Iterator

import docker
import pytest

from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import remove_network


@pytest.fixture
def harness() -> Iterator[DockerHarness]:
    """Give a world with a network of its own."""
    with contextlib.closing(DockerHarness(f"bfia-trust-{uuid.uuid4().hex[:8]}")) as harness:
        yield harness
    with contextlib.closing(DockerHarness(harness.network)) as emptied:
        remove_network(harness.network, emptied.engine().remove_network)


@pytest.fixture
def daemon() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()
