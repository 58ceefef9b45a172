"""What the tests with a Docker daemon share."""

import contextlib
import uuid
from collections.abc import Iterator

import docker
import pytest

from engines.docker import ContainerdEngine, DockerOptions
from tests.contracts.harnesses import DockerHarness


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    """Give a network for the containers of this module, made by the first that needs it."""
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    yield name
    engine = ContainerdEngine("alpha", "none", DockerOptions(network=name))
    engine.remove_network()
    engine.close()


@pytest.fixture
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network)) as harness:
        yield harness


@pytest.fixture
def daemon() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()
