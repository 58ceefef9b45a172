"""A node whose Docker daemon is down when it starts, dies while containers run, and comes back."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, wait_for
from tests.services.own_docker import BASE, Daemon, OwnDocker, enter

pytestmark = [pytest.mark.docker, pytest.mark.own_docker, pytest.mark.slow]

ME = "JG0100001100000010"
IMAGE = "example:1.0.0"


class Inside(Node):
    """A node in the daemon's network namespace: there it is asked, too."""

    namespace = ""

    def _ask(self, call: Any, *arguments: Any, **more: Any) -> Any:
        with ThreadPoolExecutor(1, initializer=enter, initargs=(self.namespace,)) as pool:
            return pool.submit(call, *arguments, **more).result()

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        return dict(self._ask(super().get, path, **params))

    def post(self, path: str, body: Any) -> dict[str, Any]:
        return dict(self._ask(super().post, path, body))


@pytest.fixture
def daemon() -> Iterator[OwnDocker]:
    with contextlib.closing(OwnDocker()) as daemon:
        yield daemon


@pytest.fixture
def node(daemon: OwnDocker, tmp_path: Path) -> Iterator[Inside]:
    """Give a node whose daemon has not been started yet."""
    engine = {"kind": "docker", "docker": {"base_url": daemon.url}}
    federation = Federation(tmp_path, [ME], engine, limits={"engine_down_seconds": 600.0})
    plain = federation[ME]
    node = Inside(plain.id, plain.home, plain.settings, prefix=daemon.inside)
    node.namespace = daemon.name
    try:
        yield node
    finally:
        node.stop()


def build(daemon: OwnDocker, tmp_path: Path, then: str = "") -> None:
    """Give the daemon an image that reports SUCCESS to the gateway, or does something else first."""
    daemon.load(BASE)
    folder = tmp_path / "image"
    folder.mkdir(exist_ok=True)
    reports = (ROOT / "tools" / "bench" / "noop.py").read_text()
    (folder / "run.py").write_text(f"import os, time\n{then}\n{reports}")
    (folder / "Dockerfile").write_text(f'FROM {BASE}\nCOPY run.py /\nENTRYPOINT ["python3", "/run.py"]\n')
    with contextlib.closing(Daemon(daemon.url)) as client:
        client.images.build(path=str(folder), tag=IMAGE, rm=True)


def submit(node: Node, **common: Any) -> str:
    return node.submit(jobs.echo_job(ME, ME, common))


def test_a_container_that_its_daemon_took_along_fails_by_the_engine_and_is_tried_again(
    node: Inside, daemon: OwnDocker, tmp_path: Path
) -> None:
    """The node starts without its daemon. Watch and bridge come back twice: the next attempt reports and ends."""
    node.start()
    assert node.get("/health/ready")["checks"]["engine"]["ok"] is False
    node.register(A_PROVIDER)
    assert node.wait_job(submit(node), 60, outcome="FAILED")["failure"]["reason"] == "ENGINE_DOWN"
    daemon.start()
    once = "seen = os.environ['system.checkpoint'] + '/seen'"
    build(daemon, tmp_path, then=f"{once}\nif not os.path.exists(seen): open(seen, 'w').close(); time.sleep(600)")
    wait_for(lambda: node.get("/health/ready")["checks"]["engine"]["ok"], 60)
    isolation = node.get("/api/v1/engine")["isolation"]
    assert isolation == {"tasks": True, "host": True, "outside": True, "gaps": []}
    job_id = submit(node, auto_retries=1, auto_retry_delay=1, checkpoints=True)
    wait_for(lambda: {r["status"] for r in node.job(job_id)["runs"]} == {"RUNNING"}, 60)
    daemon.kill()
    wait_for(lambda: all(r["away_at"] for r in node.job(job_id)["runs"]), 60, about="the absence is noted")
    assert node.job(job_id)["status"] == "RUNNING"
    daemon.start()
    job = node.wait_job(job_id, 90)
    (past,) = job["tasks"][0]["attempts"]
    assert past["failure"]["reason"] == "ENGINE_DOWN"
    first, second = ([r for r in job["runs"] if r["attempt"] == n] for n in (0, 1))
    assert "ENGINE_DOWN" in {run["failure"]["reason"] for run in first}
    assert {run["status"] for run in second} == {"SUCCESS"}

    def clean() -> bool:
        with contextlib.closing(Daemon(daemon.url)) as client:
            return client.containers.list(all=True, ignore_removed=True) == []

    wait_for(clean, 60, about="no container is left")
