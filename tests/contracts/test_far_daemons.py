"""A daemon that is reached over TLS or by ssh, one that dies and comes back, and one that is away."""

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineDown, Exited, Missing, Running
from engines.docker import ContainerdEngine, DockerOptions
from engines.multi import SeveralEngines
from tests.contracts.engine_acts import (
    LONG,
    WAITS,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    wait_for,
    wait_for_exit,
    wait_for_output,
)
from tests.contracts.harnesses import DockerHarness
from tests.services.own_docker import BASE, OwnDocker, certificates, remove_network
from tests.services.sshd import sshd

PORT = 2376
FAR = "far"
SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls") / "keys"


@pytest.fixture(scope="module")
def daemon(keys: Path) -> Iterator[OwnDocker]:
    """A daemon that listens on its socket, and with TLS on a port."""
    with contextlib.closing(OwnDocker()) as daemon:
        certificates(keys, daemon.inner)
        daemon.start(
            "-H", f"tcp://{daemon.inner}:{PORT}", "--tlsverify", "--tlscacert", f"{keys}/ca.pem",
            "--tlscert", f"{keys}/server.pem", "--tlskey", f"{keys}/server-key.pem",
        )  # fmt: skip
        daemon.load(BASE)
        yield daemon


class OwnHarness(DockerHarness):
    """Engines of the test's own daemon."""

    def __init__(self, url: str) -> None:
        super().__init__(f"bfia-own-{uuid.uuid4().hex[:8]}")
        self._url = url

    def _build(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> ContainerdEngine:
        return super()._build(node, installation, **{"base_url": self._url, **options})

    def close(self) -> None:
        self.abandon_runs()  # its containers go with the daemon
        super().close()


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_a_daemon_is_reached_over_tls_and_by_nobody_without_a_certificate(daemon, keys, tmp_path):
    certificates(others := tmp_path / "others", daemon.inner)

    def tls(ca: Path, client: Path | None) -> dict[str, str]:
        own = {"cert": f"{client}/client.pem", "key": f"{client}/client-key.pem"} if client else {}
        return {"ca": f"{ca}/ca.pem", **own}

    with contextlib.closing(OwnHarness(f"tcp://{daemon.inner}:{PORT}")) as harness:
        engine = harness.engine(tls=tls(keys, keys))
        engine.check()
        heard = ExitListener()
        engine.watch(heard)
        spec = launch_run(harness, engine, exits(3))
        heard.wait_for(spec.name)
        assert wait_for_exit(engine, spec.name).code == 3
        assert engine.logs(spec.name).stdout == b"out\n"
        holds = engine.isolation()
        assert holds.tasks
        assert holds.outside
        assert not holds.host
        assert "on another machine" in holds.gaps[0]
        engine.remove(spec.name)
        for wrong in (
            harness.engine(tls=tls(others, keys)),  # the daemon is not who we expect
            harness.engine(tls=tls(keys, others)),  # we are not whom it expects
            harness.engine(tls=tls(keys, None)),
            harness.engine(tls=tls(tmp_path / "none", keys)),
            harness.engine(),
        ):
            with pytest.raises(EngineDown):
                wrong.check()


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_containers_end_with_a_daemon_that_comes_back_and_the_watch_tells(daemon):
    with (
        contextlib.closing(OwnHarness(daemon.url)) as harness,
        contextlib.closing(DockerHarness(f"bfia-JG-{uuid.uuid4().hex[:8]}")) as beside,
    ):
        engine = harness.engine()
        both = SeveralEngines(beside.engine(), {FAR: engine})
        near = launch_run(beside, both, WAITS)
        heard, away = ExitListener(), threading.Event()
        engine.watch(heard, lambda _: away.set())
        spec = a_spec(harness, WAITS)
        both.launch(replace(spec, engine=FAR))
        wait_for_output(engine, spec.name, b"ready")
        assert not away.is_set()
        daemon.kill()
        assert away.wait(LONG)
        with pytest.raises(EngineDown):
            both.probe(spec.name)
        assert isinstance(both.probe(near.name), Running)
        daemon.start()
        heard.wait_for(spec.name)
        probe = both.probe(spec.name)
        assert isinstance(probe, Exited)
        assert probe.code in (137, 143, 255)
        assert engine.logs(spec.name).stdout == b"ready\n"
        both.remove(spec.name)
        assert both.probe(spec.name) == Missing()
        assert isinstance(both.probe(near.name), Running)
        again = launch_run(harness, engine, WAITS)
        assert isinstance(engine.probe(again.name), Running)


@pytest.mark.docker
@pytest.mark.sshd
def test_containers_run_at_a_daemon_behind_ssh(tmp_path, monkeypatch):
    with (
        sshd(tmp_path / "sshd") as server,
        contextlib.closing(DockerHarness(f"bfia-ssh-{uuid.uuid4().hex[:8]}")) as harness,
    ):
        monkeypatch.setenv("PATH", f"{server.command}:{os.environ['PATH']}")
        engine = harness.engine(base_url=server.url + SOCKET)
        engine.check()
        spec = a_spec(harness, exits(3))
        heard = ExitListener()
        engine.watch(heard)
        engine.launch(spec)
        assert wait_for_exit(engine, spec.name).code == 3
        heard.wait_for(spec.name)
        assert "on another machine" in engine.isolation().gaps[0]
        engine.remove(spec.name)
        assert engine.probe(spec.name) == Missing()
        remove_network(harness.network, engine.remove_network)

        unreachable = harness.engine(base_url=f"{server.url}/nowhere.sock")
        with pytest.raises(EngineDown):
            unreachable.check()
        (tmp_path / "sshd" / "known").write_text("")
        with pytest.raises(EngineDown, match="Host key verification failed"):
            harness.engine(
                base_url=server.url + SOCKET
            ).check()  # never without knowing whom we talk to
        server.drop()
        with pytest.raises(EngineDown):
            wait_for(lambda: engine.check() is not None, "it notices")
        engine.close()
        harness.abandon_runs()  # its containers are gone, and so is the way there


def test_why_a_daemon_is_away_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # without ssh
    for url, words in (
        ("ssh://10.0.0.9", "install an OpenSSH client$"),
        (
            f"unix://{tmp_path / 'none.sock'}",
            "^the container engine does not answer: No such file or directory$",
        ),
    ):
        engine = ContainerdEngine("N1", "here", DockerOptions(url))
        with contextlib.closing(engine), pytest.raises(EngineDown, match=words):
            engine.check()
