"""Many peers are called in parallel, and one that hangs delays no other."""

import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from adapter.bfia import peer as calls
from gateway.domain.states import JobStatus, Outcome
from gateway.jobs import job_statuses
from gateway.ports import JobSelection
from tests.adapter.bfia.scripted import says, scripted, silence
from tests.adapter.bfia.site import by_path
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

PEERS = [f"JG01000000000001{number:02d}" for number in range(10)]
HUNG = PEERS[-1]
ANSWERING = PEERS[:-1]
NOW = datetime(
    2026,
    1,
    1,
    tzinfo=UTC,
)


@pytest.fixture
def peers():
    """Scripted peers by their ids, with their addresses."""
    with ExitStack() as stack:
        peers = {}
        for node_id in PEERS:
            script, url = stack.enter_context(scripted())
            peers[node_id] = SimpleNamespace(
                script=script,
                url=url,
            )
        yield peers


def a_node(world, peers, deadline):
    """Start a node with a route to each peer; ``deadline``: seconds for its responses."""
    routes = {}
    for node_id, peer in peers.items():
        routes[node_id] = {
            "url": peer.url,
            "deadline": deadline,
        }
    return world.node(routes=routes)


def together(count, **fields):
    """Answer once ``count`` peers are called: never, if they are called one after the other."""
    barrier = threading.Barrier(count)
    have_met = threading.Event()

    def answer(handler):
        if not have_met.is_set():
            barrier.wait(30)
            have_met.set()
        says(**fields)(handler)

    return answer


def wait_for_calls(peers, path):
    """Wait until each peer has been called at a path."""

    def are_called():
        return all(is_called(peer, path) for peer in peers.values())

    wait_for(are_called, 30, 0.01)


def is_called(peer, path):
    return any(path in request.target for request in peer.script.asked)


def test_ten_peers_are_called_in_parallel_and_a_hung_one_blocks_no_stop(world, peers):
    answers = {
        "job_create": together(10),
        "job_start": together(10),
        "task_start": together(10),
        "task_poll": says(data={"status": "RUNNING"}),
        "job_stop": together(9),
    }
    for peer in peers.values():
        peer.script.will(by_path(**answers))
    peers[HUNG].script.will(by_path(**(answers | {"job_stop": silence})))
    node = a_node(
        world,
        peers,
        deadline=4,
    )
    spec = a_spec(
        "a",
        {"host": PEERS},
        job_id="job-ten",
        scheduler=ME,
    )

    node.coordinator.submit_job(spec, PEERS[0])
    wait_for_calls(peers, "task/start")
    node.job_requests.stop("job-ten")
    wait_for_calls(peers, "job/stop")

    def stops():
        """Return the calls that stop the job, by node."""
        nodes = node.store.jobs.get("job-ten").nodes
        return {node_id: job.stop for node_id, job in nodes.items()}

    def answering_have_stopped():
        return all(stops()[node_id].completed for node_id in ANSWERING)

    def is_finished():
        return node.store.jobs.get("job-ten").status is JobStatus.FINISHED

    wait_for(answering_have_stopped, 30, 0.01)
    assert not stops()[HUNG].completed
    wait_for(is_finished, 60, 0.05)
    assert node.store.jobs.get("job-ten").outcome is Outcome.STOPPED


def test_a_list_of_jobs_asks_in_parallel_and_awaits_no_silent_node(world, peers, monkeypatch):
    monkeypatch.setattr(calls, "LONGEST_CALL", 600.0)
    monkeypatch.setattr(job_statuses, "LIST_WITHIN", 2.0)
    silence_is_over = threading.Event()

    def stay_silent(handler):
        handler.server.peer.over.wait(40)
        silence_is_over.set()
        handler.close_connection = True

    running = together(
        9,
        data={
            "job_status": "RUNNING",
            "status": {},
        },
    )
    for node_id in ANSWERING:
        peers[node_id].script.will(running)
    peers[HUNG].script.will(stay_silent)
    node = a_node(
        world,
        peers,
        deadline=600,
    )
    expected = {}
    for number, node_id in enumerate(PEERS):
        node.store.add_submission(f"job-{number}", "flow", node_id, NOW)
        expected[f"job-{number}"] = JobStatus.RUNNING
    expected["job-9"] = JobStatus.PENDING
    for number in range(30):
        node.store.add_submission(f"job-silent-{number}", "flow", HUNG, NOW)
        expected[f"job-silent-{number}"] = JobStatus.PENDING

    statuses = node.job_statuses.jobs(JobSelection("flow"))

    assert not silence_is_over.is_set(), "the list waited for the silent node"

    def are_listed():
        # On a machine that stands still during the first list, no response arrives in time.
        return statuses == expected or node.job_statuses.jobs(JobSelection("flow")) == expected

    wait_for(are_listed)
