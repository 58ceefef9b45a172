"""An image that is in a registry only: the job waits while it is fetched, by a real daemon, and then runs."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, wait_for
from tests.services.registry import Gate, gate_to, registry

pytestmark = [pytest.mark.docker, pytest.mark.registry, pytest.mark.slow]

GUEST, HOST = jobs.GUEST, jobs.HOST
BASE = "bfia-base:py311"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with registry(tmp_path / "registry") as address, gate_to(address) as gate:
        yield gate


@pytest.fixture
def image(gate: Gate, tmp_path: Path) -> Iterator[str]:
    """Put an image that reports SUCCESS into the registry, and take it away from the daemon; give its name."""
    folder, name = tmp_path / "image", f"{gate.address}/algorithms/echo:1.0"
    folder.mkdir()
    reports = (ROOT / "tools" / "bench" / "noop.py").read_text()
    (folder / "run.py").write_text(f"# {uuid.uuid4().hex}\n{reports}")  # a layer that no daemon has
    (folder / "Dockerfile").write_text(
        f'FROM {BASE}\nCOPY run.py /\nENTRYPOINT ["python3", "/run.py"]\n'
    )
    with contextlib.closing(docker.from_env(timeout=60)) as client:
        built, _ = client.images.build(
            path=str(folder),
            tag=name,
            rm=True,
        )
        for line in client.images.push(name, stream=True, decode=True):
            assert "error" not in line, line
        client.images.remove(name, force=True)
        yield name
        for known in (name, str(built.id)):
            with contextlib.suppress(docker.errors.ImageNotFound):
                client.images.remove(known, force=True)


def test_a_job_waits_for_its_image_says_how_far_it_has_come_and_runs(gate, image, tmp_path):
    engine = {"kind": "docker", "docker": {"pull": "missing", "registries": [gate.address]}}
    with Federation(tmp_path, [GUEST, HOST], engine, pace={"registration_pull": 0.1}) as federation:
        guest, host = federation[GUEST], federation[HOST]
        provider = A_PROVIDER | {"metadata": {"base_url": "", "image": image}}
        for node in (guest, host):
            node.register(provider)  # which does not wait long for the image
        job_id = guest.submit(jobs.echo_job())
        wait_for(
            gate.asked.is_set, 60, about="the daemon asks the registry for the image's content"
        )
        for node in (guest, host):
            waits = wait_for(
                lambda node=node: (
                    (w := node.job(job_id)["local_waiting"]) and "layers" in w["message"] and w
                ),
                60,
            )
            assert waits["reason"] == "PREPARING" and image in waits["message"], waits
        shown = guest.job(job_id)
        assert shown["status"] == "PENDING" and shown["waiting"]["reason"] == "PREPARING", shown
        assert guest.job(job_id)["runs"] == host.job(job_id)["runs"] == []
        gate.open.set()
        job = guest.wait_job(job_id)
        assert {run["status"] for run in job["runs"]} == {"SUCCESS"}
        for node in (guest, host):
            events = [entry["event"] for entry in node.timeline(job_id)]
            order = [
                events.index(e)
                for e in (
                    "images are fetched",
                    "images fetched",
                    "job READY here",
                    "job RUNNING here",
                )
            ]
            assert order == sorted(order), events
