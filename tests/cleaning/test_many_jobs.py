"""Many jobs in a row leave nothing that grows: files, threads, child processes or memory."""

import os

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.cleaning.ended import session_folders
from tests.cleaning.growth import check_growth, measure, wait_until_idle
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine

WARM_UP = 25  # jobs before the first measurement
COUNT = 50  # jobs between the two measurements
AT_ONCE = 25  # jobs submitted before the test waits for their end

# How much of each resource of a node's process may have been added between the measurements.
MAX_GROWTH = {
    "files": 10,
    "threads": 16,
    "children": 0,
    "memory": 30 * 1024,  # KiB
    "folders and files": 0,
}


def run_jobs(
    federation: Federation,
    count: int,
) -> None:
    """Run ``count`` jobs and wait until both nodes have cleaned up after them."""
    guest, host = federation.nodes.values()
    for start in range(0, count, AT_ONCE):
        for number in range(start, start + AT_ONCE):
            job = jobs.echo_job(guest.id, host.id)
            job["flow_id"] = f"flow-{number}"
            guest.submit(job)
        for node in (guest, host):
            wait_until_idle(node)


@pytest.mark.slow
def test_nothing_grows_over_many_jobs(tmp_path):
    engine = process_engine(
        "example:1.0.0",
        command=["/bin/true"],
    )
    parties = [jobs.GUEST, jobs.HOST]
    with Federation(tmp_path, parties, engine) as federation:
        nodes = list(federation.nodes.values())
        for node in nodes:
            node.register(A_PROVIDER)
        run_jobs(federation, WARM_UP)
        before = [measure(node) for node in nodes]

        run_jobs(federation, COUNT)

        for node, first in zip(nodes, before, strict=True):
            check_growth(first, measure(node), MAX_GROWTH)
            check_nothing_is_left(node)


def check_nothing_is_left(node: Node) -> None:
    """Fail unless a node has no trace of its jobs except their records, all of them SUCCEEDED."""
    state = node.home / "state"
    assert session_folders(state) == []
    outputs = list(node.storage.glob("job-*"))
    assert outputs == []
    assert node.get("/api/v1/orphans") == {
        "unknown": [],
        "lost": [],
    }
    cleaning = node.get("/api/v1/gc", orphans=1)
    assert cleaning["items"] == []
    listing = node.get("/api/v1/jobs", limit=200)
    outcomes = [job["outcome"] for job in listing["jobs"]]
    assert outcomes == ["SUCCEEDED"] * (WARM_UP + COUNT)
    assert os.listdir(state / "process") == []
