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
"""seconds, on a machine with nothing else to do; the test adds what this one takes for a job of nothing"""
CUT = 25.0
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


@pytest.mark.slow
def test_a_node_that_was_cut_off_agrees_soon_after(two: tuple[Waiting, Wire, Wire]):
    """One job ended meanwhile at both nodes, one was stopped at the node that schedules it."""
    nodes, to_guest, to_host = two
    ends, stopped = nodes.submit(10), nodes.submit(FOR_EVER)
    nodes.until_running(4)
    to_guest.cut()
    to_host.cut()
    healed = time.monotonic() + CUT
    nodes.guest.post(STOP, {"job_id": stopped})
    nodes.guest.wait_job(stopped, 60, "STOPPED")
    wait_for(lambda: len(nodes.running()) == 1, about="only the container that cannot know of the stop runs")
    time.sleep(max(0.0, healed - time.monotonic()))
    assert len(nodes.running()) == 1 and nodes.guest.job(ends)["status"] == "RUNNING"
    to_guest.heal()
    to_host.heal()
    took = seconds_until(lambda: agreed(nodes, ends, "SUCCEEDED") and agreed(nodes, stopped, "STOPPED"))
    here = seconds_until(lambda: bool(nodes.guest.wait_job(nodes.submit(0), 120)))
    assert took <= AGREE_WITHIN + 3 * here, f"{took:.1f} s after healing; a job of nothing takes {here:.1f} s"
