"""SecretFlow's published engine as the component of a job at two nodes, with its own client.

It has an environment of its own (``make .venv-secretflow/.done``).
"""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import ROOT, Federation, Node, example, process_engine, wait_for
from tests.services import own_docker
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.secretflow, pytest.mark.docker, pytest.mark.slow]

RECEIVED = "bfia_channel_session_received_messages_total"
VENV = ROOT / ".venv-secretflow"
VENDOR = ROOT / "examples" / "secretflow_vendor"
PARTY = Path(__file__).with_name("secretflow_psi.py")
# An interpreter with SecretFlow and the example's program.
PYTHON = ["env", f"PYTHONPATH={VENDOR}", str(VENV / "bin" / "python")]
# Tools that the engine calls with options that busybox, in the base image, does not have; and
# their places.
REPLACED_TOOLS = {
    "dash": "/usr/bin/sh",
    "sort": "/usr/bin/sort",
}


def ids_of(table: str) -> set[str]:
    """Return the ids in a table."""
    return {row["id"] for row in csv.DictReader(io.StringIO(table))}


def has_received_messages(node: Node) -> bool:
    """Return whether the node's channel has received a message since it was started."""
    for line in node.ask("GET", "/metrics").text.splitlines():
        if line.startswith(RECEIVED) and float(line.rpartition(" ")[2]):
            return True
    return False


@contextmanager
def built_image(
    folder: Path,
    entrypoint: list[str],
    *files: Path,
) -> Iterator[str]:
    """Build an image of the example's program without SecretFlow.

    The gigabyte of SecretFlow is mounted into containers (`federation_of`).
    """
    tools = [shutil.which(tool) or tool for tool in REPLACED_TOOLS]
    remove_tools = json.dumps(["rm", *REPLACED_TOOLS.values()])
    lines = [f"FROM {own_docker.BASE}", f"RUN {remove_tools}"]
    lines += [f"COPY {tool} {path}" for tool, path in REPLACED_TOOLS.items()]
    lines += [
        "COPY sfvendor /app/sfvendor",
        *(f"COPY {file.name} /app/" for file in files),
        "ENV PYTHONPATH=/site:/app",
        f"ENTRYPOINT {json.dumps(entrypoint)}",
    ]
    tag = f"bfia-secretflow:{uuid4().hex[:12]}"
    with small_image(folder, tag, lines, VENDOR / "sfvendor", *files, *tools) as name:
        yield name


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image of the component of this test."""
    entrypoint = ["python3", f"/app/{PARTY.name}"]
    with built_image(tmp_path / "image", entrypoint, PARTY) as name:
        yield name


def federation_of(
    home: Path,
    provider: str,
    image: str,
    command: list[str],
) -> Federation:
    """Return two nodes: the guest runs the provider in Docker, the host as a process."""
    (packages,) = (VENV / "lib").glob("python3*/site-packages")
    mounts = {provider: {"mounts": [{"source": str(packages), "target": "/site"}]}}
    docker_engine = {
        "kind": "docker",
        "docker": {"allow": mounts},
    }
    federation = Federation(
        home,
        [jobs.GUEST, jobs.HOST],
        docker_engine,
    )
    federation[jobs.HOST].settings["engine"] = process_engine(
        image,
        command=command,
    )
    return federation


def prepare(
    node: Node,
    role: str,
    image: str,
) -> None:
    """Register the engine's image at a node and upload its party's table."""
    # Containers of Docker read the storage as another user.
    node.storage.chmod(0o755)
    provider = example("register_unionpay.json")
    provider["metadata"]["image"] = image
    node.register(provider)
    jobs.upload(node, role)


def intersection_job() -> Any:
    """Return a job that writes the intersection of both tables at each party."""
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    (component,) = body["dag"]["components"]
    component["output"] = [{"type": "dataset", "key": "train_data"}]
    # SecretFlow's client discards a message if it reads the response more than two seconds after
    # its request, so a busy machine may fail an attempt.
    body["config"]["job_params"].setdefault("common", {})["auto_retries"] = 3
    return body


def expected_ids() -> set[str]:
    """Return the ids that both tables have."""
    guest_table = (jobs.DATA / "breast_hetero_guest.csv").read_text(encoding="utf-8")
    host_table = (jobs.DATA / "breast_hetero_host.csv").read_text(encoding="utf-8")
    return ids_of(guest_table) & ids_of(host_table)


def test_secretflow_computes_over_a_bad_link_and_a_killed_gateway(image, tmp_path):
    """It intersects the nodes' tables in two ways and multiplies in secret shares."""
    federation = federation_of(
        tmp_path / "nodes",
        "unionpay",
        image,
        [*PYTHON, str(PARTY)],
    )
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    with ExitStack() as stack:
        to_host = stack.enter_context(Proxy("127.0.0.1", host.peer_port))
        to_guest = stack.enter_context(Proxy("127.0.0.1", guest.peer_port))
        guest.route(**{host.id: to_host.port})
        host.route(**{guest.id: to_guest.port})
        stack.enter_context(federation)
        prepare(guest, "guest", image)
        prepare(host, "host", image)

        job_id = guest.submit(intersection_job())
        to_host.turn("delay", share=0.1)
        to_guest.turn("cut", share=0.1)
        wait_for(lambda: has_received_messages(host), about="the engine has sent a message")
        host.kill()
        host.start()
        guest.wait_job(job_id, 300)

        assert to_host.struck
        assert to_guest.struck
        for node, party in ((guest, "guest.0"), (host, "host.0")):
            output = f"intersect_rsa_1/{party}/train_data"
            path = f"/api/v1/jobs/{job_id}/outputs/{output}/download"
            assert ids_of(node.ask("GET", path).text) == expected_ids()
