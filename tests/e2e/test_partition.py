"""A node that was cut off learns the end, and tells its own, as soon as it is back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cleaning.waiting import Waiting, waiting_nodes
from tests.e2e import jobs
from tests.e2e.nodes import Node, wait_for
from tests.e2e.test_stop import FOR_EVER, STOP
from tests.e2e.wire import Wire, wire

AGREE_WITHIN = 10.0
"""seconds, on a machine with nothing else to do; `assert_soon` adds what this one takes for a job of nothing"""
CUT, LONG_CUT = 25.0, 35.0
"""seconds; long enough for pauses between tries to have grown past the bound above"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Waiting, Wire, Wire]]:
    """Two nodes, and the way to each of them."""
    with waiting_nodes(tmp_path) as found:
        ports = {node.id: int(node.peer.rpartition(":")[2]) for node in (found.guest, found.host)}
        with wire(ports[jobs.GUEST]) as to_guest, wire(ports[jobs.HOST]) as to_host:
            for node, other, way in ((found.guest, jobs.HOST, to_host), (found.host, jobs.GUEST, to_guest)):
                routes = {other: {"host": "127.0.0.1", "port": way.port}}
                (node.home / "routes.yml").write_text(yaml.safe_dump(routes))
            time.sleep(3)  # an edit of the table is taken up within two seconds
            yield found, to_guest, to_host


def agreed(two: Waiting, job_id: str, outcome: str) -> bool:
    def over(node: Node) -> bool:
        job = node.job(job_id)
        runs: list[dict[str, Any]] = job["runs"]
        ended = job["status"] == "FINISHED" and job["outcome"] == outcome
        here = [e["event"] for e in node.timeline(job_id) if e["side"] == "participant"]
        return ended and "job FINISHED here" in here and all(r["ended_at"] for r in runs)

    return over(two.guest) and over(two.host) and two.running() == []


def seconds_until(what: Callable[[], bool]) -> float:
    began = time.monotonic()
    wait_for(what, 60, 0.1)
    return time.monotonic() - began


def assert_soon(nodes: Waiting, took: float) -> None:
    """Hold the time against the bound, and against a job of nothing on this machine in this moment."""
    began = time.monotonic()
    nodes.guest.wait_job(nodes.submit(0), 120)
    here = time.monotonic() - began
    print(f"agreed {took:.1f} s after healing; a job of nothing takes {here:.1f} s")
    assert took <= AGREE_WITHIN + 3 * here


@pytest.mark.slow
def test_a_node_that_is_cut_off_at_the_last_task_agrees_soon_after(two: tuple[Waiting, Wire, Wire]):
    nodes, to_guest, to_host = two
    job_id = nodes.submit(12)
    nodes.until_running()
    to_guest.cut()
    to_host.cut()
    time.sleep(LONG_CUT)
    assert nodes.running() == [] and nodes.guest.job(job_id)["status"] == "RUNNING"
    to_guest.heal()
    to_host.heal()
    took = seconds_until(lambda: agreed(nodes, job_id, "SUCCEEDED"))
    assert_soon(nodes, took)


@pytest.mark.slow
def test_a_stop_that_was_missed_is_obeyed_soon_after(two: tuple[Waiting, Wire, Wire]):
    nodes, to_guest, to_host = two
    job_id = nodes.submit(FOR_EVER)
    nodes.until_running()
    to_guest.cut()
    to_host.cut()
    nodes.guest.post(STOP, {"job_id": job_id})
    nodes.guest.wait_job(job_id, 60, "STOPPED")
    time.sleep(CUT)
    assert len(nodes.running()) == 1, "the node that is cut off cannot know it yet"
    to_guest.heal()
    to_host.heal()
    took = seconds_until(lambda: agreed(nodes, job_id, "STOPPED"))
    assert_soon(nodes, took)
