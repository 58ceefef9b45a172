"""A daemon that is reached by ssh: through a real ssh server, to the real daemon behind it."""

import contextlib
import os
import uuid
from pathlib import Path

import pytest

from engines.base import EngineDown, Missing
from tests.contracts.engine_acts import LONG, a_spec, ended, exits
from tests.contracts.harnesses import DockerHarness
from tests.e2e.nodes import wait_for
from tests.services.own_docker import remove_network
from tests.services.sshd import sshd

pytestmark = [pytest.mark.docker, pytest.mark.sshd]
SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


def test_containers_run_at_a_daemon_behind_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        sshd(tmp_path / "sshd") as server,
        contextlib.closing(DockerHarness(f"bfia-ssh-{uuid.uuid4().hex[:8]}")) as harness,
    ):
        monkeypatch.setenv("PATH", f"{server.command}:{os.environ['PATH']}")
        engine = harness.engine(base_url=server.url + SOCKET)
        engine.check()
        spec = a_spec(harness, exits(3))
        heard: list[str] = []
        engine.watch(heard.append)
        engine.launch(spec)
        assert ended(engine, spec.name).code == 3
        wait_for(lambda: spec.name in heard, LONG, 0.05, "the exit is told")
        assert "on another machine" in engine.isolation().gaps[0]
        engine.remove(spec.name)
        assert engine.probe(spec.name) == Missing()
        remove_network(harness.network, engine.remove_network)

        unreachable = harness.engine(base_url=f"{server.url}/nowhere.sock")
        with pytest.raises(EngineDown):
            unreachable.check()
        (tmp_path / "sshd" / "known").write_text("")
        with pytest.raises(EngineDown, match="Host key verification failed"):
            harness.engine(base_url=server.url + SOCKET).check()  # never without knowing whom we talk to
        server.drop()
        with pytest.raises(EngineDown):
            wait_for(lambda: engine.check() is not None, LONG, 0.05)
        engine.close()
        harness._owners.clear()  # its containers are gone, and so is the way there


def test_without_the_program_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with contextlib.closing(DockerHarness("bfia-ssh-none")) as harness:
        with pytest.raises(EngineDown, match="install an OpenSSH client"):
            harness.engine(base_url="ssh://10.0.0.9").check()
        harness._owners.clear()
