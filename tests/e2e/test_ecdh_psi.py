"""The standard's open protocol ECDH-PSI between the containers of two nodes."""

import csv
import io
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, example, process_engine

pytestmark = pytest.mark.slow

FIRST = "intersect_rsa_1"
SECOND = "intersect_2"


def ids_of(table: str) -> list[str]:
    """Return the ids in a table."""
    return [row["id"] for row in csv.DictReader(io.StringIO(table))]


def ids_in_file(role: str) -> set[str]:
    """Return the ids in the table of a role."""
    return set(ids_of((jobs.DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8")))


def parameters(**ecdh_params: Any) -> dict[str, Any]:
    return {
        "id": "id",
        "intersect_method": "ecdh",
        "protocol": "open",
        "ecdh_params": ecdh_params,
    }


def open_job() -> Any:
    """Return a job of two tasks that use the same topics, one after the other."""
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    (first,) = body["dag"]["components"]
    first |= {
        "provider": "reference",
        "version": "1.0.0",
        "output": [{"type": "dataset", "key": "train_data"}],
    }
    second = first | {
        "name": SECOND,
        "input": [{"type": "dataset", "key": f"{FIRST}.train_data"}],
    }
    body["dag"]["components"].append(second)
    body["config"]["task_params"]["common"] = {
        FIRST: parameters(curves="curve25519", bit_length_after_truncated=96, batch_size=100),
        SECOND: parameters(curves="sm2"),
    }
    return body


def output_of(node: Node, job_id: str, task: str, party: str) -> list[str]:
    path = f"/api/v1/jobs/{job_id}/outputs/{task}/{party}/train_data/download"
    return ids_of(node.ask("GET", path).text)


def test_two_nodes_intersect_by_the_open_protocol(tmp_path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine()) as federation:
        for node in federation.nodes.values():
            node.register(example("reference_vendor/register_reference.json"))
        guest = federation[jobs.GUEST]
        host = federation[jobs.HOST]
        jobs.upload(guest, "guest")
        jobs.upload(host, "host")

        job_id = guest.submit(open_job())
        guest.wait_job(job_id)

        common = sorted(ids_in_file("guest") & ids_in_file("host"))
        assert len(common) == 509
        for task in (FIRST, SECOND):
            assert output_of(guest, job_id, task, "guest.0") == common
            assert output_of(host, job_id, task, "host.0") == common
