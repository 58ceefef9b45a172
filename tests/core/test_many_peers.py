"""Many peers are asked at the same time, and one that hangs delays nobody else."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import yaml

from adapter.bfia import peer as calls
from gateway.bootstrap.node import Gateway
from gateway.domain.states import JobStatus, Outcome
from gateway.jobs import coordinator
from tests.adapter.bfia.scripted import Answer, ScriptedPeer, says, scripted, silence
from tests.adapter.bfia.site import by_path
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, running

PEERS = [f"JG01000000000001{i:02d}" for i in range(10)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def node_and_peers(home: Path, deadline: float = 4) -> Iterator[tuple[Gateway, list[ScriptedPeer]]]:
    with ExitStack() as stack:
        found = [stack.enter_context(scripted()) for _ in PEERS]
        node = stack.enter_context(running(home))
        routes = {
            name: {"url": url, "deadline": deadline}
            for name, (_, url) in zip(PEERS, found, strict=True)
        }
        (home / "routes.yml").write_text(yaml.safe_dump(routes))
        node.routes.reload()
        yield node, [peer for peer, _ in found]


def together(count: int, **fields: object) -> Answer:
    """Answer once so many peers are asked: never, if they are asked one after the other."""
    barrier, met = threading.Barrier(count), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if not met.is_set():
            barrier.wait(30)
            met.set()
        says(**fields)(handler)

    return answer


def asked(peer: ScriptedPeer, words: str) -> bool:
    return any(words in a.target for a in peer.asked)


def test_ten_peers_are_called_in_parallel_and_a_hung_one_blocks_no_stop(tmp_path: Path):
    with node_and_peers(tmp_path) as (node, peers):
        create, start, task, stop = together(10), together(10), together(10), together(9)
        poll = says(data={"status": "RUNNING"})
        for peer in peers:
            peer.will(
                by_path(
                    job_create=create,
                    job_start=start,
                    task_start=task,
                    task_poll=poll,
                    job_stop=stop,
                )
            )
        peers[-1].will(
            by_path(
                job_create=create,
                job_start=start,
                task_start=task,
                task_poll=poll,
                job_stop=silence,
            )
        )
        spec = a_spec("a", {"host": PEERS}, job_id="job-ten", scheduler=ME)
        node.coordinator.submit_job(spec, PEERS[0])
        wait_for(lambda: all(asked(peer, "task/start") for peer in peers), 30, 0.01)
        node.coordinator.stop("job-ten")
        wait_for(lambda: all(asked(peer, "job/stop") for peer in peers), 30, 0.01)

        def stopped() -> bool:
            parts = node.store.jobs.get("job-ten").nodes
            return all(parts[name].stop.completed for name in PEERS[:-1])

        wait_for(stopped, 30, 0.01)  # and not one after the other: each waits for all nine
        assert not node.store.jobs.get("job-ten").nodes[PEERS[-1]].stop.completed
        wait_for(lambda: node.store.jobs.get("job-ten").status is JobStatus.FINISHED, 60, 0.05)
        assert node.store.jobs.get("job-ten").outcome is Outcome.STOPPED


def test_a_list_of_jobs_asks_all_nodes_at_once_and_waits_for_no_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calls, "LONGEST_CALL", 600.0)
    monkeypatch.setattr(coordinator, "LIST_WITHIN", 2.0)
    gave_up = threading.Event()

    def holds(handler: BaseHTTPRequestHandler) -> None:
        handler.server.peer.over.wait(40)  # type: ignore[attr-defined]
        gave_up.set()
        handler.close_connection = True

    with node_and_peers(tmp_path, deadline=600) as (node, peers):
        state = together(9, data={"job_status": "RUNNING", "status": {}})
        for peer in peers[:-1]:
            peer.will(state)
        peers[-1].will(holds)
        for i, name in enumerate(PEERS):
            node.store.add_submission(f"job-{i}", "flow", name, NOW)
        for i in range(30):
            node.store.add_submission(f"job-silent-{i}", "flow", PEERS[-1], NOW)
        wanted = {f"job-{i}": JobStatus.RUNNING for i in range(9)} | {"job-9": JobStatus.PENDING}
        wanted |= {f"job-silent-{i}": JobStatus.PENDING for i in range(30)}
        found = node.coordinator.jobs("flow")
        assert not gave_up.is_set(), "it waited until the silent node hung up"
        # a machine that stands still for the seconds of one question hears nobody in them
        wait_for(lambda: found == wanted or node.coordinator.jobs("flow") == wanted)
