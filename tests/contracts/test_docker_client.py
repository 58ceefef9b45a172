"""What the Docker client leaves open where no daemon answers: nothing."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from engines.base import EngineDown
from engines.docker import ContainerdEngine, DockerOptions
from engines.docker.client import Client
from gateway.cli.init import docker_answers


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Have the garbage collector warn of what is left here, and not in some later test: a warning is an error."""
    gc.collect()
    yield
    gc.collect()


def test_a_socket_that_finds_no_daemon_is_closed(tmp_path: Path) -> None:
    with Client(f"unix://{tmp_path}/no.sock", version="1.44") as client, pytest.raises(requests.ConnectionError):
        client.ping()


def test_an_engine_without_a_daemon_leaves_nothing_open(tmp_path: Path) -> None:
    engine = ContainerdEngine("alpha", "one", DockerOptions(f"unix://{tmp_path}/no.sock"))
    for _ in range(2):
        with pytest.raises(EngineDown):
            engine.check()
    engine.close()


def test_the_first_look_for_a_daemon_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert not docker_answers()
