"""Network namespaces that the Docker engine prepares: who gets one, and what becomes of it."""

import contextlib
from collections.abc import Callable, Iterator

import docker
import pytest

from engines.base import Capacity, Exited, Missing, Running
from engines.docker import ContainerdEngine
from engines.docker.sandboxes import LABEL, MEMORY
from gateway.bootstrap import engine_parts
from gateway.config.loader import load
from tests.contracts.engine_acts import WAITS, a_spec, exits, launch_run, wait_for, wait_for_exit
from tests.contracts.harnesses import DockerHarness, InSandboxes

pytestmark = pytest.mark.docker


@pytest.fixture
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network, InSandboxes)) as harness:
        yield harness


@pytest.fixture
def sandboxes(harness: DockerHarness, daemon: docker.DockerClient) -> Callable[[], list[str]]:
    """List those of the test's own installation that run."""

    def found() -> list[str]:
        labels = [LABEL, f"bfia.installation={harness.installation}"]
        return [one["Id"] for one in daemon.api.containers(filters={"label": labels})]

    return found


def sandbox_of(daemon: docker.DockerClient, name: str) -> str:
    mode: str = daemon.api.inspect_container(name)["HostConfig"]["NetworkMode"]
    return mode.removeprefix("container:") if mode.startswith("container:") else ""


def test_as_many_are_ready_as_were_needed_lately_and_each_is_used_once(
    network, daemon, sandboxes, harness
):
    cold = DockerHarness(network)
    cold.installation = harness.installation
    with contextlib.closing(cold):
        engine = cold.engine(sandboxes=3)

        used = {""}

        def start() -> str:
            spec = launch_run(cold, engine, exits(0))
            wait_for_exit(engine, spec.name)
            used.add(sandbox := sandbox_of(daemon, spec.name))
            return sandbox

        def ready() -> int:
            return len(set(sandboxes()) - used)

        assert start() == ""
        start()
        wait_for(
            lambda: ready() == 2, "two are ready"
        )  # made one after the other: the first is, surely
        assert start() != ""
        wait_for(lambda: ready() == 3, "three are ready")
        for found in engine.list():
            engine.remove(found.name)
        wait_for(lambda: not used & set(sandboxes()), "the used ones are removed with their runs")
        engine.close()
        assert sandboxes() == []


def test_a_restart_leaves_what_runs_use_and_removes_the_rest(harness, daemon, sandboxes):
    killed = harness.engine()
    spec = launch_run(harness, killed, WAITS)
    killed.sandboxes.prepare(killed.network_id())
    used = sandbox_of(daemon, spec.name)
    assert len(sandboxes()) == 2
    engine = harness.engine(sandboxes=1)
    with contextlib.closing(engine.watch(lambda name: None)):
        wait_for(lambda: sandboxes() == [used], "only the used one is left")
        probe = engine.probe(spec.name)
        assert isinstance(probe, Running)
        assert not probe.cut_off
        assert engine.address(spec.name) == killed.address(spec.name) != ""
        engine.remove(spec.name)
        wait_for(lambda: sandboxes() == [], "that is removed with its run")
    assert engine.probe(spec.name) == Missing()


def test_a_dead_sandbox_delays_no_start_and_a_cut_off_run_is_told(harness, daemon, sandboxes):
    engine = harness.engine()
    for end in (daemon.api.kill, lambda one: daemon.api.remove_container(one, force=True)):
        engine.sandboxes.prepare(engine.network_id())
        end(sandboxes()[0])
        spec = a_spec(harness, WAITS)
        ContainerdEngine.launch(engine, spec)
        assert sandbox_of(daemon, spec.name) == ""
        assert engine.address(spec.name) != ""
        engine.remove(spec.name)
        engine.launch(spec)
        probe = engine.probe(spec.name)
        assert isinstance(probe, Running)
        assert not probe.cut_off
        end(sandbox_of(daemon, spec.name))
        probe = engine.probe(spec.name)
        assert isinstance(probe, Running)
        assert probe.cut_off
        assert engine.address(spec.name) == ""
        engine.stop(spec.name, 0.1)
        ended, removed = engine.probe(spec.name), end != daemon.api.kill
        assert isinstance(ended, Exited) and ended.cut_off is removed, (
            "one that ended may have done so with it"
        )
        engine.remove(spec.name)


@pytest.mark.parametrize(("gib", "most"), [(1, 10), (16, 40), (1024, 64)])
def test_a_node_keeps_as_many_as_the_memory_of_its_machine_allows(
    gib, most, daemon, monkeypatch, tmp_path
):
    monkeypatch.setattr(engine_parts, "this_machine", lambda: Capacity(2, gib << 30))
    settings = load(
        None,
        {
            "node": {"id": "JG1"},
            "engine": {"kind": "docker"},
            "state_dir": str(tmp_path),
        },
    )
    with contextlib.closing(engine_parts.engine_of(settings, "none")) as engine:
        assert engine.capacity().memory == daemon.info()["MemTotal"] - most * MEMORY
    for elsewhere in ("tcp://10.0.0.9:2376", "ssh://bank@10.0.0.9"):
        assert engine_parts._sandboxes_at(elsewhere) == 10
