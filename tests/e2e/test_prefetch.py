"""An image that only a registry has: the job waits while a real daemon pulls it, and then runs."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import ROOT, Federation, Node, wait_for
from tests.services.registry import Gate, gate_to, registry

pytestmark = [pytest.mark.docker, pytest.mark.registry, pytest.mark.slow]

BASE = "bfia-base:py311"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A proxy before a registry that holds layers back until it is opened."""
    with registry(tmp_path / "registry") as address, gate_to(address) as gate:
        yield gate


@pytest.fixture
def image(
    gate: Gate,
    tmp_path: Path,
) -> Iterator[str]:
    """An image that reports SUCCESS; the registry has it and the daemon has not."""
    folder = tmp_path / "image"
    folder.mkdir()
    name = f"{gate.address}/algorithms/echo:1.0"
    program = (ROOT / "tools" / "bench" / "noop.py").read_text()
    # The comment makes a layer that no daemon has.
    (folder / "run.py").write_text(f"# {uuid.uuid4().hex}\n{program}")
    (folder / "Dockerfile").write_text(
        f'FROM {BASE}\nCOPY run.py /\nENTRYPOINT ["python3", "/run.py"]\n'
    )
    with contextlib.closing(docker.from_env(timeout=300)) as client:
        image, _ = client.images.build(
            path=str(folder),
            tag=name,
            rm=True,
        )
        for line in client.images.push(name, stream=True, decode=True):
            assert "error" not in line, line
        client.images.remove(name, force=True)
        yield name
        for reference in (name, str(image.id)):
            with contextlib.suppress(docker.errors.ImageNotFound):
                client.images.remove(
                    reference,
                    force=True,
                )


def waiting_for_layers(node: Node, job_id: str) -> Any:
    """Return why a job waits at a node, None unless the text counts layers."""
    waiting = node.job(job_id)["local_waiting"]
    if waiting and "layers" in waiting["message"]:
        return waiting
    return None


def test_a_job_waits_for_its_image_says_how_far_it_has_come_and_runs(gate, image, tmp_path):
    engine = {
        "kind": "docker",
        "docker": {
            "pull": "missing",
            "registries": [gate.address],
        },
    }
    provider = A_PROVIDER | {"metadata": {"base_url": "", "image": image}}
    # The registration of the provider waits 0.1 s for the image.
    pace = {"registration_pull": 0.1}
    with Federation(tmp_path, [GUEST, HOST], engine, pace=pace) as federation:
        guest = federation[GUEST]
        host = federation[HOST]
        guest.register(provider)
        host.register(provider)

        job_id = guest.submit(jobs.echo_job())
        wait_for(
            gate.asked.is_set,
            60,
            about="the daemon asks the registry for the image",
        )
        for node in (guest, host):
            waiting = wait_for(lambda node=node: waiting_for_layers(node, job_id), 60)
            assert waiting["reason"] == "PREPARING", waiting
            assert image in waiting["message"], waiting
            assert node.job(job_id)["runs"] == []
        job = guest.job(job_id)
        assert job["status"] == "PENDING", job
        assert job["waiting"]["reason"] == "PREPARING", job

        gate.open.set()

        job = guest.wait_job(job_id)
        assert {run["status"] for run in job["runs"]} == {"SUCCESS"}
        for node in (guest, host):
            check_order_of_events(node, job_id)


def check_order_of_events(node: Node, job_id: str) -> None:
    """Check that the images were pulled before the job became ready."""
    events = [entry["event"] for entry in node.timeline(job_id)]
    positions = [
        events.index("images are fetched"),
        events.index("images fetched"),
        events.index("job READY here"),
        events.index("job RUNNING here"),
    ]
    assert positions == sorted(positions), events
