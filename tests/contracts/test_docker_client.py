"""The Docker client leaves nothing open where no daemon answers; a watch survives what it cannot read."""

import gc
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from engines.base import EngineDown
from engines.docker import ContainerdEngine, DockerOptions
from engines.docker.client import Client
from engines.docker.watch import EventWatch
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


class Stream(list[dict[str, Any]]):
    def close(self) -> None:
        pass


class Daemon:
    """Says one thing that it never should, and goes on as ever."""

    def __init__(self) -> None:
        self._said = iter([[{"Actor": None}], [{"Actor": {"Attributes": {"name": "run"}}}]])

    def __call__(self) -> "Daemon":
        return self

    def info(self) -> dict[str, str]:
        return {"SystemTime": "2026-01-02T03:04:05.678Z"}

    def events(self, **_: Any) -> Stream:
        return Stream(next(self._said, []))


def test_an_event_that_cannot_be_read_does_not_end_the_watch():
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = EventWatch(Daemon(), {}, list, heard.put)  # type: ignore[arg-type]  # as much of a daemon as it takes
    try:
        assert heard.get(timeout=30) == "run"
    finally:
        watch.close()
