"""Network namespaces that the Docker engine prepares for runs: their use and their removal."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import docker
import pytest

from engines.base import JOB, Capacity, Exited, Missing, Running
from engines.docker import ContainerdEngine
from engines.docker.sandboxes import LABEL, MEMORY
from gateway.bootstrap import daemon_engines, engine_parts
from gateway.config.loader import load
from tests.contracts.engine_acts import (
    WAITS,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    wait_for,
    wait_for_exit,
)
from tests.contracts.harnesses import DockerHarness, InSandboxes

pytestmark = pytest.mark.docker


@pytest.fixture
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network, InSandboxes)) as harness:
        yield harness


@pytest.fixture
def sandboxes(
    harness: DockerHarness,
    daemon: docker.DockerClient,
) -> Callable[[], list[str]]:
    """List the ids of the running sandboxes of the harness's installation."""

    def list_sandboxes() -> list[str]:
        labels = [LABEL, f"bfia.installation={harness.installation}"]
        containers = daemon.api.containers(filters={"label": labels})
        return [container["Id"] for container in containers]

    return list_sandboxes


def sandbox_of(
    daemon: docker.DockerClient,
    name: str,
) -> str:
    """Return the id of a run's sandbox; "" if it has none."""
    mode: str = daemon.api.inspect_container(name)["HostConfig"]["NetworkMode"]
    kind, _, sandbox = mode.partition(":")
    return sandbox if kind == "container" else ""


def assert_connected(engine: ContainerdEngine, name: str) -> None:
    """Check that a run is running and has its network."""
    probe = engine.probe(name)
    assert isinstance(probe, Running)
    assert not probe.cut_off


def test_one_is_ready_for_each_run_that_is_known_to_come(network, daemon, sandboxes, harness):
    cold = DockerHarness(network)  # without a sandbox at the first start
    cold.installation = harness.installation
    used: set[str] = set()

    with contextlib.closing(cold):
        engine = cold.engine(sandboxes=3)

        def run_to_end(later_runs: int) -> str:
            """Run to the end; return the sandbox, "" if the run had none."""
            spec = a_spec(cold, exits(0), later_runs=later_runs)
            engine.launch(replace(spec, labels={**spec.labels, JOB: "job-1"}))
            wait_for_exit(engine, spec.name)
            sandbox = sandbox_of(daemon, spec.name)
            used.add(sandbox)
            return sandbox

        def wait_for_ready(count: int) -> None:
            wait_for(lambda: len(set(sandboxes()) - used) == count, f"{count} are ready")

        assert run_to_end(later_runs=9) == ""
        wait_for_ready(3)  # the limit
        assert run_to_end(later_runs=1) != ""
        wait_for_ready(1)
        assert run_to_end(later_runs=0) != ""
        wait_for_ready(0)

        for run in engine.list():
            engine.remove(run.name)
        wait_for(lambda: not used & set(sandboxes()), "the used ones are removed with their runs")


def test_a_restart_keeps_the_used_sandboxes_and_removes_the_rest(harness, daemon, sandboxes):
    killed = harness.engine()
    spec = launch_run(harness, killed, WAITS)
    killed.sandboxes.prepare(killed.network_id())
    used = sandbox_of(daemon, spec.name)
    assert len(sandboxes()) == 2

    def wait_for_sandboxes(
        ids: list[str],
        event: str,
    ) -> None:
        wait_for(lambda: sandboxes() == ids, event)

    engine = harness.engine(sandboxes=1)
    with contextlib.closing(engine.watch(ExitListener())):
        wait_for_sandboxes([used], "only the used one is left")
        assert_connected(engine, spec.name)
        address = killed.address(spec.name)
        assert address != ""
        assert engine.address(spec.name) == address

        engine.remove(spec.name)

        wait_for_sandboxes([], "the used one is removed with its run")
    assert engine.probe(spec.name) == Missing()


def kill_container(
    daemon: docker.DockerClient,
    container: str,
) -> None:
    daemon.api.kill(container)


def remove_container(
    daemon: docker.DockerClient,
    container: str,
) -> None:
    daemon.api.remove_container(
        container,
        force=True,
    )


BY_KILL_AND_REMOVAL = pytest.mark.parametrize(
    "end_sandbox",
    [kill_container, remove_container],
)


@BY_KILL_AND_REMOVAL
def test_a_dead_sandbox_does_not_delay_a_start(harness, daemon, sandboxes, end_sandbox):
    engine = harness.engine()
    engine.sandboxes.prepare(engine.network_id())
    end_sandbox(daemon, sandboxes()[0])
    spec = a_spec(harness, WAITS)

    ContainerdEngine.launch(engine, spec)  # that of `InSandboxes` would prepare another one

    assert sandbox_of(daemon, spec.name) == ""
    assert engine.address(spec.name) != ""


@BY_KILL_AND_REMOVAL
def test_a_run_whose_sandbox_ends_is_reported_as_cut_off(harness, daemon, end_sandbox):
    engine = harness.engine()
    spec = launch_run(harness, engine, WAITS)
    assert_connected(engine, spec.name)

    end_sandbox(daemon, sandbox_of(daemon, spec.name))

    probe = engine.probe(spec.name)
    assert isinstance(probe, Running)
    assert probe.cut_off
    assert engine.address(spec.name) == ""
    engine.stop(spec.name, 0.1)
    exit_ = engine.probe(spec.name)
    assert isinstance(exit_, Exited)
    # A killed sandbox may have ended together with its run.
    assert exit_.cut_off is (end_sandbox is remove_container)


@pytest.mark.parametrize(("cores", "count"), [(1.5, 4), (8.0, 16)])
def test_a_node_keeps_at_most_two_for_each_core(cores, count, daemon, monkeypatch, tmp_path):
    monkeypatch.setattr(daemon_engines, "this_machine", lambda: Capacity(cores, 1 << 30))
    content = {
        "node": {"id": "JG1"},
        "engine": {"kind": "docker"},
        "state_dir": str(tmp_path),
    }

    with contextlib.closing(engine_parts.engine_of(load(None, content), "none")) as engine:
        assert engine.capacity().memory == daemon.info()["MemTotal"] - count * MEMORY


@pytest.mark.parametrize("base_url", ["tcp://10.0.0.9:2376", "ssh://bank@10.0.0.9"])
def test_a_daemon_on_another_machine_gets_few_sandboxes(base_url):
    """The gateway does not know the cores of that machine."""
    assert daemon_engines._sandboxes_at(base_url) == 4
