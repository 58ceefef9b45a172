"""SecretFlow's published engine as the component of a job at two nodes: its own client speaks the channel.

It sits in an environment of its own (``make .venv-secretflow/.done``).
"""

import csv
import io
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, process_engine, wait_for
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.secretflow, pytest.mark.slow]

RECEIVED = "bfia_channel_session_received_messages_total"
PYTHON = ROOT / ".venv-secretflow" / "bin" / "python"


def ids(text: str) -> set[str]:
    return {row["id"] for row in csv.DictReader(io.StringIO(text))}


def received(node: Node) -> bool:
    """Tells whether a message of the channel has come to a node since it was started."""
    lines = [line for line in node.ask("GET", "/metrics").text.splitlines() if line.startswith(RECEIVED)]
    return any(float(line.rpartition(" ")[2]) for line in lines)


def test_secretflows_engine_computes_over_a_bad_link_while_a_gateway_is_killed(tmp_path: Path) -> None:
    """It intersects two nodes' tables in two ways and multiplies in secret shares."""
    command = [str(PYTHON), str(Path(__file__).with_name("secretflow_psi.py"))]
    federation = Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0", command=command))
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    with ExitStack() as stack:
        ways = [stack.enter_context(Proxy("127.0.0.1", node.peer_port)) for node in (host, guest)]
        guest.route(**{host.id: ways[0].port})
        host.route(**{guest.id: ways[1].port})
        stack.enter_context(federation)
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        body = jobs.quick_job(jobs.GUEST, jobs.HOST)
        align = body["dag"]["components"][0]
        body["dag"]["components"] = [align | {"output": [{"type": "dataset", "key": "train_data"}]}]
        del body["config"]["task_params"]["common"]["hetero_secureboost_1"]
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
