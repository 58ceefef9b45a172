"""Daemons reached over TLS or by ssh, daemons that die and come back, and absent ones."""

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

PORT = 2376  # of the daemon with TLS
FAR = "far"  # the name of the engine at the test's own daemon
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
    """Engines of the test's own daemon, which ends together with its containers."""

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
        self.abandon_runs()
        super().close()


def tls_options(
    ca: Path,
    client: Path | None,
) -> dict[str, str]:
    """Return TLS options with the CA of one folder and the client's key of another, if any."""
    options = {"ca": f"{ca}/ca.pem"}
    if client is not None:
        options["cert"] = f"{client}/client.pem"
        options["key"] = f"{client}/client-key.pem"
    return options


@pytest.fixture
def tls_harness(daemon: OwnDocker) -> Iterator[OwnHarness]:
    with contextlib.closing(OwnHarness(f"tcp://{daemon.inner}:{PORT}")) as harness:
        yield harness


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_a_daemon_is_reached_over_tls_and_by_nobody_without_a_certificate(
    tls_harness, daemon, keys, tmp_path
):
    other_keys = tmp_path / "others"
    certificates(other_keys, daemon.inner)
    refused_options = {
        "another daemon": tls_options(other_keys, keys),
        "another client": tls_options(keys, other_keys),
        "no client": tls_options(keys, None),
        "missing files": tls_options(tmp_path / "none", keys),
    }

    tls_harness.engine(tls=tls_options(keys, keys)).check()

    for tls in refused_options.values():
        with pytest.raises(EngineDown):
            tls_harness.engine(tls=tls).check()
    with pytest.raises(EngineDown):
        tls_harness.engine().check()


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_runs_at_a_daemon_with_tls_are_watched_and_isolated(tls_harness, keys):
    engine = tls_harness.engine(tls=tls_options(keys, keys))
    reported = ExitListener()
    engine.watch(reported)

    spec = launch_run(tls_harness, engine, exits(3))

    reported.wait_for(spec.name)
    assert wait_for_exit(engine, spec.name).code == 3
    assert engine.logs(spec.name).stdout == b"out\n"
    isolation = engine.isolation()
    assert isolation.tasks
    assert isolation.outside
    assert not isolation.host
    assert "on another machine" in isolation.gaps[0]
    engine.remove(spec.name)


@pytest.mark.docker
@pytest.mark.own_docker
@pytest.mark.slow
def test_a_daemon_that_comes_back_has_lost_its_containers(daemon):
    with (
        contextlib.closing(OwnHarness(daemon.url)) as harness,
        contextlib.closing(DockerHarness(f"bfia-JG-{uuid.uuid4().hex[:8]}")) as near_harness,
    ):
        engine = harness.engine()
        both = SeveralEngines(
            near_harness.engine(),
            {FAR: engine},
        )
        near = launch_run(near_harness, both, WAITS)
        far = a_spec(harness, WAITS)
        reported = ExitListener()
        is_away = threading.Event()
        engine.watch(reported, lambda _: is_away.set())
        both.launch(replace(far, engine=FAR))
        wait_for_output(engine, far.name, b"ready")
        assert not is_away.is_set()

        daemon.kill()

        assert is_away.wait(LONG)
        with pytest.raises(EngineDown):
            both.probe(far.name)
        assert isinstance(both.probe(near.name), Running)

        daemon.start()

        reported.wait_for(far.name)
        probe = both.probe(far.name)
        assert isinstance(probe, Exited)
        assert probe.code in (137, 143, 255)
        assert engine.logs(far.name).stdout == b"ready\n"
        both.remove(far.name)
        assert both.probe(far.name) == Missing()
        assert isinstance(both.probe(near.name), Running)
        next_run = launch_run(harness, engine, WAITS)
        assert isinstance(engine.probe(next_run.name), Running)


@pytest.fixture
def ssh_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """A server for ssh, whose host key the client ``ssh`` on the path knows."""
    with sshd(tmp_path / "sshd") as server:
        monkeypatch.setenv("PATH", f"{server.command}:{os.environ['PATH']}")
        yield server


@pytest.fixture
def ssh_harness() -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(f"bfia-ssh-{uuid.uuid4().hex[:8]}")) as harness:
        yield harness
        harness.abandon_runs()  # a test removes its runs; the server has ended


@pytest.mark.docker
@pytest.mark.sshd
def test_containers_run_at_a_daemon_behind_ssh(ssh_server, ssh_harness):
    engine = ssh_harness.engine(base_url=ssh_server.url + SOCKET)
    engine.check()
    spec = a_spec(ssh_harness, exits(3))
    reported = ExitListener()
    engine.watch(reported)

    engine.launch(spec)

    assert wait_for_exit(engine, spec.name).code == 3
    reported.wait_for(spec.name)
    assert "on another machine" in engine.isolation().gaps[0]
    engine.remove(spec.name)
    assert engine.probe(spec.name) == Missing()
    remove_network(ssh_harness.network, engine.remove_network)


@pytest.mark.docker
@pytest.mark.sshd
def test_a_daemon_that_ssh_does_not_reach_is_down(ssh_server, ssh_harness, tmp_path):
    url = ssh_server.url + SOCKET
    engine = ssh_harness.engine(base_url=url)
    engine.check()

    with pytest.raises(EngineDown):
        ssh_harness.engine(base_url=f"{ssh_server.url}/nowhere.sock").check()

    (tmp_path / "sshd" / "known").write_text("")  # an unknown host is never trusted
    with pytest.raises(EngineDown, match="Host key verification failed"):
        ssh_harness.engine(base_url=url).check()

    ssh_server.drop()
    with pytest.raises(EngineDown):
        wait_for(lambda: engine.check() is not None, "the engine notices the lost connection")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ssh://10.0.0.9", "install an OpenSSH client$"),
        (
            "unix:///no/such/none.sock",
            "^the container engine does not answer: No such file or directory$",
        ),
    ],
)
def test_the_cause_of_an_absent_daemon_is_one_sentence(monkeypatch, tmp_path, url, words):
    monkeypatch.setenv("PATH", str(tmp_path))  # without ssh
    engine = ContainerdEngine("N1", "here", DockerOptions(url))

    with contextlib.closing(engine), pytest.raises(EngineDown, match=words):
        engine.check()
