"""Fixtures of the tests with a Docker daemon and of those with two nodes."""

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
    """Return the name of a network for the module's containers; the first user creates it."""
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    yield name
    engine = ContainerdEngine("alpha", "none", DockerOptions(network=name))
    with contextlib.closing(engine):
        remove_network(name, engine.remove_network)


@pytest.fixture
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network)) as harness:
        yield harness


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a registry for all tests of a module: layers that images share are pushed once."""
    with registry(tmp_path_factory.mktemp("shop") / "registry") as address:
        yield address


@pytest.fixture
def daemon() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """Serve two nodes; a module's ``SETTINGS`` are further settings of ``me`` and ``peer``."""
    home = tmp_path_factory.mktemp("nodes")
    settings = getattr(request.module, "SETTINGS", {})
    with two_nodes(home, **settings) as world:
        yield world


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def apis(
    request: pytest.FixtureRequest,
    world: World,
) -> Iterator[Apis]:
    """Reach `ME` in each of the possible ways."""
    reach = IMPLEMENTATIONS[request.param]
    with reach(world.me, world.home) as apis:
        yield apis


@pytest.fixture
def scratch(world: World) -> Iterator[list[str]]:
    """Return a list for the ids of a test's jobs, which are stopped after the test."""
    job_ids: list[str] = []
    yield job_ids
    store = world.me.store
    for job_id in job_ids:
        job = store.jobs.find(job_id)
        if job is not None:
            world.stop(job.spec)
        elif store.local_jobs.find(job_id) is not None:
            world.me.participant.stop_job(
                job_id,
                "",
                None,
                "",
            )
