"""A node that was cut off learns the end, and tells its own, once it is back."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e.jobs import FOR_EVER, GUEST, HOST, PATIENT_ENGINE, STOP, events, job_of, running
from tests.e2e.nodes import Federation, Node, wait_for
from tools.chaos.proxy import Proxy


def agree(nodes: tuple[Node, Node], job_id: str, outcome: str) -> bool:
    def over(node: Node) -> bool:
        job = node.job(job_id)
        ended = (
            job["status"] == "FINISHED" and job["outcome"] == outcome and all(r["ended_at"] for r in job["runs"])
        )
        return ended and bool(events(node, job_id, "job FINISHED here"))

    return all(map(over, nodes))


@pytest.mark.slow
def test_a_node_that_was_cut_off_agrees_once_it_is_back(tmp_path: Path, register: Path):
    """One job ended meanwhile at both nodes, one was stopped at the node that schedules it."""
    federation = Federation(tmp_path / "nodes", [GUEST, HOST], PATIENT_ENGINE)
    nodes = guest, host = federation[GUEST], federation[HOST]
    with ExitStack() as stack:
        ways = []
        for node, other in ((guest, host), (host, guest)):
            ways.append(stack.enter_context(Proxy("127.0.0.1", other.peer_port)))
            node.route(**{other.id: ways[-1].port})
        stack.enter_context(federation)
        for node in nodes:
            node.register(A_PROVIDER)
        cut = tmp_path / "cut"
        ends = guest.submit(job_of(register, {"first": 0}, until=str(cut)))
        stopped = guest.submit(job_of(register, {"first": FOR_EVER}))
        wait_for(lambda: len(running(register)) == 4, 60, about="all containers run")
        for way in ways:
            way.turn("blackhole")
        cut.touch()
        guest.post(STOP, {"job_id": stopped})
        guest.wait_job(stopped, 60, "STOPPED")
        wait_for(lambda: len(running(register)) == 1, about="only the container that cannot know of the stop runs")
        assert guest.job(ends)["status"] == "RUNNING"
        for way in ways:
            way.turn("")
        wait_for(lambda: agree(nodes, ends, "SUCCEEDED") and agree(nodes, stopped, "STOPPED"))
        assert not running(register)
