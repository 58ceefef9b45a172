"""The standard's open protocol ECDH-PSI between the containers of two nodes."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.cli import call
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, example, process_engine

pytestmark = pytest.mark.slow

FIRST = "intersect_rsa_1"
SECOND = "intersect_2"
JAVASCRIPT = ROOT / "examples" / "javascript_vendor"
JAVASCRIPT_IMAGE = "javascript-vendor:1.0.0"
JAVASCRIPT_COMMAND = ["node", str(JAVASCRIPT / "vendor.mjs")]


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


def parallel_job() -> Any:
    """Return the same tasks without an order, each attempt with a session of its own."""
    body = open_job()
    body["dag"]["components"][1]["input"] = []
    config = body["config"]
    config["job_params"]["common"]["task_sessions"] = True
    for role in ("guest", "host"):
        parameters_of_role = config["task_params"][role]["0"]
        parameters_of_role[SECOND] = parameters_of_role[FIRST]
    return body


def output_of(node: Node, job_id: str, task: str, party: str) -> list[str]:
    path = f"/api/v1/jobs/{job_id}/outputs/{task}/{party}/train_data/download"
    return ids_of(node.ask("GET", path).text)


def prepare(
    node: Node,
    role: str,
    registration: str,
) -> None:
    """Register a provider at a node and upload its party's table."""
    node.register(example(registration))
    jobs.upload(node, role)


def check_outputs(federation: Federation, job_id: str) -> None:
    """Fail unless each task has written the common ids at both nodes."""
    common = sorted(ids_in_file("guest") & ids_in_file("host"))
    assert len(common) == 509
    for task in (FIRST, SECOND):
        assert output_of(federation[jobs.GUEST], job_id, task, "guest.0") == common
        assert output_of(federation[jobs.HOST], job_id, task, "host.0") == common


def test_two_nodes_intersect_by_the_open_protocol(tmp_path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine()) as federation:
        guest = federation[jobs.GUEST]
        prepare(guest, "guest", "reference_vendor/register_reference.json")
        prepare(federation[jobs.HOST], "host", "reference_vendor/register_reference.json")

        job_id = guest.submit(open_job())
        guest.wait_job(job_id)

        check_outputs(federation, job_id)


def javascript_federation(home: Path) -> Federation:
    """Return two nodes: the guest has the reference vendor, the host the JavaScript vendor."""
    federation = Federation(home, [jobs.GUEST, jobs.HOST], process_engine())
    federation[jobs.HOST].settings["engine"] = process_engine(
        JAVASCRIPT_IMAGE,
        command=JAVASCRIPT_COMMAND,
    )
    return federation


def test_two_vendors_run_two_tasks_together_each_at_its_own_node(tmp_path):
    body = parallel_job()
    providers = dict.fromkeys((FIRST, SECOND), "scriptworks:1.0.0")
    body["config"]["job_params"]["host"]["0"]["providers"] = providers
    with javascript_federation(tmp_path) as federation:
        guest = federation[jobs.GUEST]
        prepare(guest, "guest", "reference_vendor/register_reference.json")
        prepare(federation[jobs.HOST], "host", "javascript_vendor/register.json")

        job_id = guest.submit(body)
        guest.wait_job(job_id)

        check_outputs(federation, job_id)


def test_provider_check_accepts_the_javascript_vendor():
    result = call(
        "provider",
        "check",
        str(JAVASCRIPT / "register.json"),
        "--command",
        " ".join(JAVASCRIPT_COMMAND),
    )
    assert result.exit_code == 0, result.stdout
