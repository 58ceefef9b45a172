"""Logs of real containers: while one runs, and of one that dies at once."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.inprocess import running
from tests.logs.talk import Stage, registration
from tests.services.own_docker import BASE, remove_network

pytestmark = [pytest.mark.docker, pytest.mark.slow]

DOCKERFILE = r"""
ARG BASE
FROM $BASE
CMD ["/bin/sh", "-c", "\
  echo info begun; tr '\\0' '\\n' </proc/1/environ; echo lost >&2; printf 'error: no more' >&2; exit 7"]
"""


def docker(*words: str, **kwargs: str) -> None:
    done = subprocess.run(
        ["docker", *words],
        text=True,
        capture_output=True,
        check=False,
        **kwargs,
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Stage]:
    image, network = f"bfia-test-talker:{uuid4().hex[:12]}", f"bfia-logs-{uuid4().hex[:12]}"
    docker("build", "-q", "-t", image, "--build-arg", f"BASE={BASE}", "-", input=DOCKERFILE)
    with running(tmp_path, engine={"kind": "docker", "docker": {"network": network}}) as gateway:
        found = Stage(gateway)
        assert (
            found.ask("/v2/provider/register", method="POST", json=registration(image))["code"] == 0
        )
        yield found
    remove_network(network)
    docker("rmi", "-f", image)


def test_the_log_of_a_container_that_dies_immediately_is_complete(talk):
    job = talk.submit("guest")
    talk.end(job)
    run = talk.gateway.store.local_jobs.get(job).runs[0]
    assert run.failure is not None
    assert run.failure.reason == "EXIT_7"
    assert talk.lines(run.task_id, "error") == ["lost", "error: no more"]
    shown = talk.read(run.task_id, "debug")
    assert shown["over"]
    assert shown["num"] == talk.number(run.task_id, "debug")
    assert "info begun\n" in shown["data"]
    assert "config.token=****" in shown["data"]
    assert "callback?run=****" in shown["data"]
    assert run.run_id not in shown["data"]
    assert run.token not in shown["data"]
