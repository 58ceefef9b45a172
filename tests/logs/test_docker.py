"""Logs of a real container that dies immediately."""

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
  echo info begun; tr '\\0' '\\n' </proc/1/environ; \
  echo lost >&2; printf 'error: no more' >&2; exit 7"]
"""


def docker(*words: str, **kwargs: str) -> None:
    """Run a command of Docker, which must succeed; ``kwargs`` go to `subprocess.run`."""
    completed = subprocess.run(
        ["docker", *words],
        text=True,
        capture_output=True,
        check=False,
        **kwargs,
    )  # type: ignore[call-overload]
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Stage]:
    image = f"bfia-test-talker:{uuid4().hex[:12]}"
    network = f"bfia-logs-{uuid4().hex[:12]}"
    docker(
        "build",
        "-q",
        "-t",
        image,
        "--build-arg",
        f"BASE={BASE}",
        "-",
        input=DOCKERFILE,
    )
    with running(tmp_path, engine={"kind": "docker", "docker": {"network": network}}) as gateway:
        stage = Stage(gateway)
        body = stage.ask(
            "/v2/provider/register",
            method="POST",
            json=registration(image),
        )
        assert body["code"] == 0
        yield stage
    remove_network(network)
    docker("rmi", "-f", image)


def test_the_log_of_a_container_that_dies_immediately_is_complete(talk):
    job = talk.submit("guest")
    talk.end(job)
    run = talk.gateway.store.local_jobs.get(job).runs[0]
    assert run.failure is not None
    assert run.failure.reason == "EXIT_7"
    assert talk.lines(run.task_id, "error") == ["lost", "error: no more"]
    log = talk.read(run.task_id, "debug")
    assert log["over"]
    assert log["num"] == talk.number(run.task_id, "debug")
    assert "info begun\n" in log["data"]
    assert "config.token=****" in log["data"]
    assert "callback?run=****" in log["data"]
    assert run.run_id not in log["data"]
    assert run.token not in log["data"]
