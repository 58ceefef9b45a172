"""A job that asks for nothing takes the whole machine: no row of a new node's configuration bounded it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engines.base import Capacity, Limits
from engines.process.engine import this_machine
from gateway.cli.main import app
from gateway.config.loader import load
from gateway.domain.resources import GIB
from gateway.jobs.engine_capacities import SHARE, EngineCapacities
from gateway.runtime.context import NodeContext
from tests.builders import a_run, at
from tests.contracts.databases import a_store
from tests.core.test_engine_failures import IMAGE, ended
from tests.core.test_shells import submit
from tests.inprocess import running
from tests.inprocess import settings as settings_of
from tests.memory_engine import MemoryEngine, Script


def launched(tmp_path: Path, **settings: Any) -> list[Limits]:
    """Run a job that asks for nothing; return the bounds of its containers."""

    with running(tmp_path, make_engine=MemoryEngine.making({IMAGE: Script(0)}), **settings) as node:
        ended(node, submit(node).json()["data"]["job_id"])
        assert isinstance(node.engine, MemoryEngine) and node.engine.launches
        return [spec.limits for spec in node.engine.launches]


@pytest.mark.parametrize("engine", ["process", "docker"])
def test_a_new_configuration_leaves_the_machine_some_memory_and_disk(
    tmp_path: Path, engine: str
) -> None:
    file = tmp_path / "node.yml"
    CliRunner().invoke(app, ["init", "--engine", engine, "-o", str(file)], catch_exceptions=False)
    settings = load(file, {})
    assert settings.resources.memory_gib is not None and settings.resources.disk_gib is not None
    assert settings.limits.pids is not None
    assert 0 < settings.resources.memory_gib * GIB < this_machine().memory
    assert 0 < settings.resources.disk_gib * GIB < shutil.disk_usage(tmp_path).total
    bounded = launched(
        tmp_path / "node",
        limits=settings.limits.model_dump(),
        resources=settings.resources.model_dump(),
    )
    most = settings.resources.memory_gib * GIB * SHARE
    for limits in bounded:
        assert limits.memory == pytest.approx(most, abs=2) and limits.cpu and limits.pids


def test_without_any_setting_a_container_is_bounded_by_the_machine(tmp_path: Path) -> None:
    machine = this_machine()
    for limits in launched(tmp_path):
        assert (limits.cpu, limits.pids) == (machine.cpu, 512)
        assert limits.memory is not None and limits.memory < machine.memory


def test_what_a_job_asks_for_raises_the_bound(tmp_path: Path) -> None:
    engine = MemoryEngine(
        node="n1",
        installation="i",
        images={},
        capacity=Capacity(4, 8 * GIB),
    )
    with a_store(f"sqlite:///{tmp_path}/test.db") as store:
        context = NodeContext("n1", store, lambda: at(0))
        settings = settings_of(tmp_path, resources={"disk_gib": 1})
        ceilings = EngineCapacities(context, {"": engine}, settings).ceilings
        open_, asked = (
            {
                "cpu": None,
                "memory": None,
                "disk": None,
            },
            {
                "cpu": 3.5,
                "memory": 8 * GIB,
                "disk": 2 * GIB,
            },
        )
        assert ceilings(a_run(limits=open_)) == {
            "cpu": 4,
            "memory": 6 * GIB,
            "disk": 0.75 * GIB,
        }
        assert ceilings(a_run(limits=asked)) == asked
        for kind, amount in asked.items():
            assert ceilings(a_run(limits=open_ | {kind: amount}))[kind] == amount
