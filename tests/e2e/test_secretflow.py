"""SecretFlow's published engine as the component of a job at two nodes: its own client speaks the channel.

It sits in an environment of its own (``make .venv-secretflow/.done``).
"""

import csv
import io
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, process_engine

pytestmark = [pytest.mark.secretflow, pytest.mark.slow]

PYTHON = ROOT / ".venv-secretflow" / "bin" / "python"


def ids(text: str) -> set[str]:
    return {row["id"] for row in csv.DictReader(io.StringIO(text))}


def test_secretflows_engine_intersects_two_nodes_tables(tmp_path: Path) -> None:
    command = [str(PYTHON), str(Path(__file__).with_name("secretflow_psi.py"))]
    engine = process_engine("unionpay:2.0.0", command=command)
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        body = jobs.quick_job(jobs.GUEST, jobs.HOST)
        align = body["dag"]["components"][0]
        body["dag"]["components"] = [align | {"output": [{"type": "dataset", "key": "train_data"}]}]
        del body["config"]["task_params"]["common"]["hetero_secureboost_1"]
        # its client discards a message if it reads the response over two seconds after its request
        body["config"]["job_params"].setdefault("common", {})["auto_retries"] = 3
        job_id = guest.submit(body)
        guest.wait_job(job_id)
        expected = ids((jobs.DATA / "breast_hetero_guest.csv").read_text(encoding="utf-8")) & ids(
            (jobs.DATA / "breast_hetero_host.csv").read_text(encoding="utf-8")
        )
        for node, party in ((guest, "guest.0"), (federation[jobs.HOST], "host.0")):
            at = f"/api/v1/jobs/{job_id}/outputs/{align['name']}/{party}/train_data/download"
            assert ids(node.ask("GET", at).text) == expected
