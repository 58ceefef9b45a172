"""Fifty posts of one job id at the same moment: one job, created once at each node."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapter.bfia.examples import A_JOB
from gateway.runtime.shell import CALLED
from tests.core.example_jobs import LASTING_COMMANDS, PLATFORM, submit
from tests.inprocess import ME, PEER
from tests.world import NodeSetup

POSTS = 50
JOB_ID = "job-fifty"
BODY = copy.deepcopy(A_JOB) | {"job_id": JOB_ID}
BODY["config"] |= {
    "initiator": {
        "role": "guest",
        "node_id": PEER,
    },
    "role": {
        "guest": [PEER],
        "host": [ME],
    },
}
OTHER_BODY = BODY | {"flow_id": "another"}


@pytest.fixture
def node(world):
    """A scheduling node whose partner submits jobs."""
    node = world.node(commands=LASTING_COMMANDS)
    partner = world.node(
        NodeSetup(PEER),
        commands=LASTING_COMMANDS,
    )
    world.connect(node, partner)
    for each in (node, partner):
        submit(each)  # registers the provider
    return node


def post_at_once(node, bodies):
    """Post bodies in the partner's name, each in a thread of its own; return the responses."""
    gate = threading.Barrier(len(bodies))

    def post(body):
        gate.wait(60)
        response = node.post(
            "/v1/interconn/schedule/job/create_all",
            body,
            listener="peer",
            headers={"x-source-node-id": PEER},
        )
        return response.json()

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(post, bodies))


def calls_of_creation(node):
    """Return the nodes to which a creation of the job was sent, one entry for each call."""
    return [
        entry.by
        for entry in node.store.timeline(JOB_ID)
        if entry.event == CALLED and entry.detail["path"].endswith("/job/create")
    ]


def acceptances(node):
    """Return the nodes that accepted the creation of the job, one entry for each time."""
    entries = node.store.timeline(JOB_ID)
    return sorted(entry.by for entry in entries if entry.event == "create accepted")


def test_fifty_identical_posts_make_one_job(node):
    responses = post_at_once(node, [BODY] * POSTS)

    assert {response["code"] for response in responses} == {0}
    assert {response["data"]["job_id"] for response in responses} == {JOB_ID}
    listing = node.get(f"{PLATFORM}/query_job_list", params={"flow_id": BODY["flow_id"]})
    job_ids = list(listing.json()["data"]["job_list"])
    assert job_ids.count(JOB_ID) == 1
    assert calls_of_creation(node) == [PEER]
    assert acceptances(node) == sorted([ME, PEER])


def test_fifty_posts_of_another_body_leave_the_job_as_it_is(node):
    post_at_once(node, [BODY])
    spec = node.store.jobs.get(JOB_ID).spec

    responses = post_at_once(node, [OTHER_BODY] * POSTS)

    assert {response["data"]["reason"] for response in responses} == {"JOB_ID_CONFLICT"}
    assert node.store.jobs.get(JOB_ID).spec == spec
    assert calls_of_creation(node) == [PEER]
    assert acceptances(node) == sorted([ME, PEER])


def test_of_two_bodies_posted_at_once_one_makes_the_job(node):
    responses = post_at_once(node, [BODY, OTHER_BODY] * (POSTS // 2))

    accepted = [response["code"] == 0 for response in responses]
    assert accepted in ([True, False] * (POSTS // 2), [False, True] * (POSTS // 2))
    assert calls_of_creation(node) == [PEER]
