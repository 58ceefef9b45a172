"""What to do next, in answers and commands, names the node and the job that it is about."""

import re

import pytest
import yaml

from adapter.bfia.examples import A_JOB
from bfia_gateway_client.calls import next_step_of
from gateway.language.catalogue import CHINESE, ENGLISH, next_step, reasons
from tests.inprocess import ME, ask, running

OF_A_RUN = ("EXIT_n", "REPORTED_FAILED")
"""failures of jobs, whose readers fill in job, task, party and node"""
PLACEHOLDER = re.compile(r"\b(NODE|URL|JOB|TASK|PARTY|NAME|FILE|[TPN])\b")


@pytest.mark.parametrize("node", ["", "alice"])
@pytest.mark.parametrize("language", [ENGLISH, CHINESE])
def test_no_next_step_of_an_answer_keeps_a_placeholder(language, node):
    steps = {
        reason: next_step(reason, language, node) for reason in reasons() if reason not in OF_A_RUN
    }
    assert {reason: step for reason, step in steps.items() if PLACEHOLDER.search(step)} == {}
    assert not node or f"route test {node} " in steps["PEER_UNREACHABLE"]


def test_the_next_step_after_a_silent_node_names_that_node(tmp_path):
    (tmp_path / "routes.yml").write_text(
        yaml.safe_dump({"alice": {"host": "127.0.0.1", "port": 1}})
    )
    with running(tmp_path, node={"id": ME, "coordinator": "alice"}) as node:
        answer = ask(
            node, "operator", "POST", "/v1/platform/schedule/job/create_all", json=A_JOB
        ).json()
        assert answer["data"]["reason"] == "PEER_UNREACHABLE"
        assert (
            answer["data"]["next_step"]
            == "bfia-gateway route test alice names the step that fails."
        )


@pytest.mark.parametrize(
    ("reason", "failure", "says"),
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
def test_what_to_do_about_a_failed_job_names_its_node_and_run(reason, failure, says):
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
    assert next_step_of(reasons()[reason].next_step[ENGLISH], job, failure) == says
