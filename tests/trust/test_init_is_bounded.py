"""A job that requests nothing is bounded, so that it cannot use up the whole machine."""

import shutil

import pytest
from typer.testing import CliRunner

from engines.base import Capacity
from engines.process.engine import this_machine
from gateway.cli.main import app
from gateway.config.loader import load
from gateway.domain.amounts import GIB
from gateway.jobs.engine_capacities import SHARE, EngineCapacities
from gateway.runtime.context import NodeContext
from tests.builders import a_run, at
from tests.contracts.databases import a_store
from tests.core.example_jobs import IMAGE, run_to_end
from tests.inprocess import settings as settings_of
from tests.memory_engine import MemoryEngine, Script


def limits_of_containers(world, **settings):
    """Run a job that requests nothing; return the limits of its containers."""
    node = world.node(
        scripts={IMAGE: Script(0)},
        settings=settings,
    )
    run_to_end(node)
    assert node.engine.launches
    return [spec.limits for spec in node.engine.launches]


@pytest.fixture(params=["process", "docker"])
def new_settings(request, tmp_path):
    """Give the settings of a node as `init` writes them."""
    file = tmp_path / "node.yml"
    arguments = ["init", "--engine", request.param, "-o", str(file)]
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    return load(file, {})


def test_a_new_configuration_leaves_the_machine_memory_and_disk(new_settings, tmp_path):
    memory = new_settings.resources.memory_gib * GIB
    disk = new_settings.resources.disk_gib * GIB

    assert 0 < memory < this_machine().memory
    assert 0 < disk < shutil.disk_usage(tmp_path).total
    assert new_settings.limits.pids is not None


def test_a_new_configuration_bounds_a_job_that_requests_nothing(new_settings, world):
    limits = new_settings.limits.model_dump()
    resources = new_settings.resources.model_dump()

    for container in limits_of_containers(world, limits=limits, resources=resources):
        memory = new_settings.resources.memory_gib * GIB * SHARE
        assert container.memory == pytest.approx(
            memory,
            abs=2,
        )
        assert container.cpu
        assert container.pids


def test_without_any_setting_a_container_is_bounded_by_the_machine(world):
    machine = this_machine()
    for container in limits_of_containers(world):
        assert container.cpu == machine.cpu
        assert container.pids == 512
        assert container.memory is not None
        assert container.memory < machine.memory


NOTHING = {
    "cpu": None,
    "memory": None,
    "disk": None,
}
# Each more than the share of a job that requests nothing.
MUCH = {"cpu": 3.5, "memory": 8 * GIB, "disk": 2 * GIB}


@pytest.fixture
def ceilings(tmp_path):
    """Give the function that bounds a run, at a node with 4 cores, 8 GiB memory and 1 GiB disk."""
    engine = MemoryEngine(
        node="n1",
        installation="i",
        images={},
        capacity=Capacity(4, 8 * GIB),
    )
    with a_store(f"sqlite:///{tmp_path}/test.db") as store:
        context = NodeContext("n1", store, lambda: at(0))
        settings = settings_of(
            tmp_path,
            resources={"disk_gib": 1},
        )
        yield EngineCapacities(context, {"": engine}, settings).ceilings


def test_a_run_that_requests_nothing_is_bounded_by_a_share_of_the_node(ceilings):
    assert ceilings(a_run(limits=NOTHING)) == {
        "cpu": 4,
        "memory": 6 * GIB,
        "disk": 0.75 * GIB,
    }


def test_a_request_of_a_job_raises_the_bound(ceilings):
    assert ceilings(a_run(limits=MUCH)) == MUCH


@pytest.mark.parametrize("resource", MUCH)
def test_a_request_raises_the_bound_of_one_resource(ceilings, resource):
    limits = NOTHING | {resource: MUCH[resource]}
    assert ceilings(a_run(limits=limits))[resource] == MUCH[resource]
