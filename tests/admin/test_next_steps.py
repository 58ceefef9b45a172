"""Next steps, in responses and commands, name the node and the job that they are about."""

import re

import pytest

from adapter.bfia.examples import A_JOB
from bfia_gateway_client.calls import next_step_of
from gateway.language.catalogue import CHINESE, ENGLISH, next_step, reasons
from tests.inprocess import ME
from tests.world import UNREACHABLE

# Failures of jobs: the reader of a job fills in job, task, party and node.
OF_A_RUN = ("EXIT_n", "REPORTED_FAILED")
# Words of a next step in place of a value.
PLACEHOLDER = re.compile(r"\b(NODE|URL|JOB|TASK|PARTY|NAME|FILE|[TPN])\b")


@pytest.mark.parametrize("node", ["", "alice"])
@pytest.mark.parametrize("language", [ENGLISH, CHINESE])
def test_no_next_step_of_a_response_keeps_a_placeholder(language, node):
    symbols = reasons().keys() - set(OF_A_RUN)
    steps = {reason: next_step(reason, language, node) for reason in symbols}
    unfilled = [reason for reason, step in steps.items() if PLACEHOLDER.search(step)]
    assert unfilled == []
    if node:
        assert f"route test {node} " in steps["PEER_UNREACHABLE"]


def test_the_next_step_after_a_silent_node_names_that_node(world):
    settings = {"node": {"id": ME, "coordinator": "alice"}}
    node = world.node(
        routes={"alice": UNREACHABLE},
        settings=settings,
    )
    data = node.post("/v1/platform/schedule/job/create_all", A_JOB).json()["data"]
    assert data["reason"] == "PEER_UNREACHABLE"
    assert data["next_step"] == "bfia-gateway route test alice names the step that fails."


@pytest.mark.parametrize(
    ("reason", "failure", "step"),
    [
        ("UNREACHABLE", {"node": "alice"}, "bfia-gateway route test alice."),
        (
            "REPORTED_FAILED",
            {
                "node": "alice",
                "role": "host",
                "task": "psi 1",
            },
            "Look at result code and message, and at node alice at the log: "
            "bfia-gateway job logs job-1 --task 'psi 1' --party host.0.",
        ),
    ],
)
def test_what_to_do_about_a_failed_job_names_its_node_and_run(reason, failure, step):
    job = {
        "job_id": "job-1",
        "parties": [
            {
                "role": "host",
                "index": 0,
                "node": "alice",
            }
        ],
    }
    assert next_step_of(reasons()[reason].next_step[ENGLISH], job, failure) == step
