"""What the tests with a Docker daemon share, and those of two nodes."""

import contextlib
import uuid
from collections.abc import Iterator

import docker
import pytest

from engines.docker import ContainerdEngine, DockerOptions
from tests.contracts.apis import IMPLEMENTATIONS, Apis, World, two_nodes
from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import remove_network
from tests.services.registry import registry


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    """Give a network for the containers of this module, made by the first that needs it."""
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    yield name
    with contextlib.closing(
        ContainerdEngine("alpha", "none", DockerOptions(network=name))
    ) as engine:
        remove_network(name, engine.remove_network)


@pytest.fixture
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network)) as harness:
        yield harness


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry for all tests of a module: what an image of one shares with that of another is pushed once."""
    with registry(tmp_path_factory.mktemp("shop") / "registry") as address:
        yield address


@pytest.fixture
def daemon() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Serve two nodes; the module's ``SETTINGS`` are further ones of ``me`` and ``peer``."""
    with two_nodes(
        tmp_path_factory.mktemp("nodes"), **getattr(request.module, "SETTINGS", {})
    ) as world:
        yield world


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def apis(request: pytest.FixtureRequest, world: World) -> Iterator[Apis]:
    """Reach `ME` in each way there is."""
    with IMPLEMENTATIONS[request.param](world.me, world.home) as apis:
        yield apis


@pytest.fixture
def scratch(world: World) -> Iterator[list[str]]:
    """Give a list for the ids of a test's jobs; they are stopped after it."""
    jobs: list[str] = []
    yield jobs
    for job_id in jobs:
        if (job := world.me.store.jobs.find(job_id)) is not None:
            world.stop(job.spec)
        elif world.me.store.local_jobs.find(job_id) is not None:
            world.me.participant.stop_job(job_id, "", None, "")
