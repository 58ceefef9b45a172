"""SecretFlow's published engine as the component of a job at two nodes: its own client speaks the channel.

It sits in an environment of its own (``make .venv-secretflow/.done``).
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import ROOT, Federation, Node, example, process_engine, wait_for
from tests.services import own_docker
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.secretflow, pytest.mark.docker, pytest.mark.slow]

RECEIVED = "bfia_channel_session_received_messages_total"
VENV = ROOT / ".venv-secretflow"
PARTY = Path(__file__).with_name("secretflow_psi.py")
INSTEAD = {"dash": "/usr/bin/sh", "sort": "/usr/bin/sort"}
"""tools that the engine calls with options that busybox, in the base image, does not have"""


def ids(text: str) -> set[str]:
    return {row["id"] for row in csv.DictReader(io.StringIO(text))}


def received(node: Node) -> bool:
    """Tells whether a message of the channel has come to a node since it was started."""
    lines = [
        line for line in node.ask("GET", "/metrics").text.splitlines() if line.startswith(RECEIVED)
    ]
    return any(float(line.rpartition(" ")[2]) for line in lines)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image of the component; what is published is a gigabyte, and mounted into its containers."""
    tools = [shutil.which(tool) or tool for tool in INSTEAD]
    lines = [f"FROM {own_docker.BASE}", f"RUN {json.dumps(['rm', *INSTEAD.values()])}"]
    lines += [f"COPY {tool} {place}" for tool, place in INSTEAD.items()]
    lines += [
        f"COPY {PARTY.name} /",
        "ENV PYTHONPATH=/site",
        f'ENTRYPOINT ["python3", "/{PARTY.name}"]',
    ]
    with small_image(
        tmp_path / "image", f"bfia-secretflow:{os.getpid()}", lines, PARTY, *tools
    ) as name:
        yield name


def test_secretflow_computes_over_a_bad_link_and_a_killed_gateway(image, tmp_path):
    """It intersects two nodes' tables in two ways and multiplies in secret shares, at one by Docker."""
    (packages,) = (VENV / "lib").glob("python3*/site-packages")
    mounted = {"unionpay": {"mounts": [{"source": str(packages), "target": "/site"}]}}
    engine = {"kind": "docker", "docker": {"allow": mounted}}
    federation = Federation(tmp_path / "nodes", [jobs.GUEST, jobs.HOST], engine)
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    host.settings["engine"] = process_engine(
        image, command=[str(VENV / "bin" / "python"), str(PARTY)]
    )
    with ExitStack() as stack:
        ways = [stack.enter_context(Proxy("127.0.0.1", node.peer_port)) for node in (host, guest)]
        guest.route(**{host.id: ways[0].port})
        host.route(**{guest.id: ways[1].port})
        stack.enter_context(federation)
        provider = example("register_unionpay.json")
        provider["metadata"]["image"] = image
        for node, role in ((guest, "guest"), (host, "host")):
            node.storage.chmod(0o755)
            node.register(provider)
            jobs.upload(node, role)
        body = jobs.align_job(jobs.GUEST, jobs.HOST)
        (align,) = body["dag"]["components"]
        align["output"] = [{"type": "dataset", "key": "train_data"}]
        # its client discards a message if it reads the response over two seconds after its request
        body["config"]["job_params"].setdefault("common", {})["auto_retries"] = 3
        job_id = guest.submit(body)
        for way, fault in zip(ways, ("delay", "cut"), strict=True):
            way.turn(fault, share=0.1)
        wait_for(lambda: received(host), about="the engine has sent a message")
        host.kill()
        host.start()
        guest.wait_job(job_id, 300)
        assert all(way.struck for way in ways)
        expected = ids((jobs.DATA / "breast_hetero_guest.csv").read_text(encoding="utf-8")) & ids(
            (jobs.DATA / "breast_hetero_host.csv").read_text(encoding="utf-8")
        )
        for node, party in ((guest, "guest.0"), (host, "host.0")):
            at = f"/api/v1/jobs/{job_id}/outputs/{align['name']}/{party}/train_data/download"
            assert ids(node.ask("GET", at).text) == expected
