"""A hundred jobs in containers, one after the other: nothing grows, and cleaning removes it all."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest
from docker.models.volumes import Volume

from engines.base import NODE
from engines.docker.sandboxes import LABEL as SANDBOX
from tests.cleaning.ended import session_folders
from tests.cleaning.growth import check_growth, measure, wait_until_idle
from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import ROOT, Federation, Node, example
from tests.services.own_docker import BASE, Daemon

pytestmark = [pytest.mark.scale, pytest.mark.docker]

# Nodes of no other test, so that what the daemon has of them is of this one.
GUEST = "JG0100001100000091"
HOST = "JG0100002200000092"

WARM_UP = 10  # jobs before the first measurement
COUNT = 100  # jobs between the two measurements

# How much of each resource of a node may have been added between the measurements.
MAX_GROWTH = {
    "files": 10,
    "threads": 16,
    "children": 0,
    "memory": 30 * 1024,  # KiB
    "folders and files": 0,
    "sessions": 0,
    "containers": 0,
    "networks": 0,
    "volumes": 0,
}

# A file of the image in the folder of a volume, so that all volumes of its containers have it.
MARK = "of-a-hundred-jobs"

Items = set[tuple[str, str]]  # kind and name

# Every kind is expired as soon as its job has ended.
NOTHING_IS_KEPT = {
    "logs_seconds": 0,
    "outputs_seconds": 0,
    "jobs_seconds": 0,
}


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """The image of the shell vendor, whose containers exchange a message."""
    vendor = ROOT / "examples" / "shell_vendor"
    lines = [
        f"FROM {BASE}",
        "COPY run.sh /app/run.sh",
        f"COPY run.sh /scratch/{MARK}",
        "VOLUME /scratch",
        "USER 65534:65534",
        'ENTRYPOINT ["/bin/sh", "/app/run.sh"]',
    ]
    name = f"bfia-hundred-jobs:{uuid4().hex[:12]}"
    with small_image(tmp_path / "image", name, lines, vendor / "run.sh"):
        yield name


@pytest.fixture
def federation(
    tmp_path: Path,
    image: str,
) -> Iterator[Federation]:
    """Two nodes with tables and the provider, which are cleaned on request only."""
    with Federation(
        tmp_path / "nodes",
        [GUEST, HOST],
        {"kind": "docker"},
        pace={"cleaning": 3600.0},
    ) as federation:
        registration = example("shell_vendor/register.json")
        registration["metadata"] = {"image": image}
        roles = {
            GUEST: "guest",
            HOST: "host",
        }
        for node in federation.nodes.values():
            node.storage.chmod(0o755)
            node.register(registration)
            jobs.upload(node, roles[node.id])
        yield federation


def run_jobs(federation: Federation, count: int) -> None:
    """Run jobs one after the other, and wait until both nodes have cleaned up after them."""
    guest = federation[GUEST]
    body = jobs.counting_job(GUEST, HOST)
    for _ in range(count):
        job_id = guest.submit(body)
        guest.wait_job(job_id)
    for node in federation.nodes.values():
        wait_until_idle(node)


def measure_all(node: Node) -> dict[str, int]:
    """Return the resources of a node's process, and what the daemon has for the node."""
    return {
        **measure(node),
        **measure_daemon(node.id),
        "sessions": len(session_folders(node.home / "state")),
    }


def measure_daemon(node_id: str) -> dict[str, int]:
    """Return the daemon's containers and networks of a node, and the image's volumes."""
    with contextlib.closing(Daemon()) as client:
        containers = labelled(client, f"{NODE}={node_id}")
        networks = client.networks.list(names=[f"bfia-{node_id}"])
        volumes = [volume for volume in client.volumes.list() if is_of_the_image(volume)]
    return {
        "containers": len(containers),
        "networks": len(networks),
        "volumes": len(volumes),
    }


def is_of_the_image(volume: Volume) -> bool:
    """Return whether a volume is of a container of the image; those of other tests are not."""
    return Path(volume.attrs["Mountpoint"], MARK).exists()


def count_sandboxes(node: Node) -> int:
    """Return the number of network namespaces that a node keeps prepared for further runs."""
    count = 0
    with contextlib.closing(Daemon()) as client:
        for labels in labelled(client, SANDBOX):
            count += node.id in labels
    return count


def labelled(client: docker.DockerClient, label: str) -> list[str]:
    """Return the values of all labels of each container that has a label, as one text."""
    containers = client.api.containers(
        all=True,
        filters={"label": label},
    )
    labels = []
    for container in containers:
        labels.append(str(container["Labels"]))
    return labels


def list_items(node: Node) -> Items:
    """Return kind and name of everything that a cleaning would remove."""
    dry_run = node.get("/api/v1/gc", orphans=1)
    return items_of(dry_run)


def items_of(cleaning: dict[str, Any]) -> Items:
    """Return kind and name of every item of a cleaning."""
    items = set()
    for item in cleaning["items"]:
        items.add((item["kind"], item["name"]))
    return items


def test_nothing_grows_over_a_hundred_container_jobs_in_a_row(federation):
    nodes = list(federation.nodes.values())
    run_jobs(federation, WARM_UP)
    before = [measure_all(node) for node in nodes]

    run_jobs(federation, COUNT)

    for node, first in zip(nodes, before, strict=True):
        check_growth(first, measure_all(node), MAX_GROWTH)
        assert count_sandboxes(node) == 0  # no run is known to come
        assert node.get("/api/v1/orphans") == {
            "unknown": [],
            "lost": [],
        }
        check_cleaning(node)


def check_cleaning(node: Node) -> None:
    """Fail unless a cleaning removes exactly what its dry run lists, and all of the jobs."""
    assert list_items(node) == set()
    node.stop()
    assert count_sandboxes(node) == 0
    node.settings["retention"] = NOTHING_IS_KEPT
    node.start()

    listed = list_items(node)
    cleaning = node.post(
        "/api/v1/gc",
        {
            "dry_run": False,
            "orphans": True,
        },
    )

    for item in cleaning["items"]:
        assert item["removed"], item
    assert items_of(cleaning) == listed
    kinds = Counter(kind for kind, _ in listed)
    assert set(kinds) == {"logs", "outputs", "job"}
    assert kinds["job"] == WARM_UP + COUNT
    assert list_items(node) == set()
    assert node.get("/api/v1/jobs")["jobs"] == []
    logs = list((node.home / "state" / "runs").iterdir())
    assert logs == []
    outputs = list(node.storage.glob("job-*"))
    assert outputs == []
