"""Attack C1: a request at the peer port that calls itself this node, to pass for its own platform."""

from collections.abc import Iterator

import pytest

from adapter.bfia import examples
from gateway.bootstrap.node import Gateway
from tests.inprocess import ME, PEER, ask, running

SCHEDULE = "/v1/interconn/schedule"
SPELLINGS = [
    {"x-source-node-id": ME},
    {"x_source_node_id": ME},
    {"x-node-id": ME},
    {"X-Source-Node-ID": ME},
    {"x-source-node-id": PEER, "x-node-id": ME},
    {"x-source-node-id": PEER, "x-ptp-source-node-id": ME},
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("node")
    # an entry of the own id, as several gateways of one node have it, makes nothing known either
    (home / "routes.yml").write_text(
        f"{PEER}: {{url: 'http://127.0.0.1:9'}}\n{ME}: {{url: 'http://127.0.0.1:9'}}\n"
    )
    with running(home) as gateway:
        yield gateway


@pytest.mark.parametrize("headers", SPELLINGS, ids=str)
def test_no_command_is_taken_from_a_peer_that_claims_the_own_id(node: Gateway, headers: dict[str, str]):
    """In every spelling; `test_init_and_strictest` tries every path."""
    body = {**examples.A_JOB, "job_id": examples.JOB}
    for path in (f"{SCHEDULE}/job/create_all", f"{SCHEDULE}/job/stop", "/v1/interconn/job/audit/apply"):
        said = ask(node, "peer", "POST", path, headers=headers, json=body).json()
        assert (said["code"], said["data"]["reason"]) == (403, "OWN_NODE_ID")
    assert ask(node, "operator", "GET", "/api/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ptp-source-node-id": ME},
        {"x-ptp-from-node-id": ME},
        {"x_ptp_source_node_id": ME},
        {"x-source-node-id": ME},
    ],
    ids=str,
)
@pytest.mark.parametrize("more", [{}, {"x-handed-on": "1"}], ids=["direct", "handed on"])
@pytest.mark.parametrize("path", ["invoke", "part"])
def test_a_message_that_claims_the_own_id_is_not_taken(
    node: Gateway, headers: dict[str, str], more: dict[str, str], path: str
):
    about = {
        "x-ptp-version": "1",
        "x-ptp-session-id": "session_job-1",
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": ME,
    }
    about |= {"content-type": "application/json"}  # in which form the refusal comes
    url = f"/v1/interconn/chan/{path}"
    said = ask(node, "peer", "POST", url, headers=about | headers | more, json={}).json()
    assert said["code"] == "E0000000403" and "own id" in said["message"]


def test_a_message_whose_body_claims_the_own_id_is_not_taken(node: Gateway):
    body = {"metadata": {"x-ptp-session-id": "session_job-1", "x-ptp-source-node-id": ME}, "payload": ""}
    said = ask(node, "peer", "POST", "/v1/interconn/chan/invoke", json=body).json()
    assert said["code"] == "E0000000403" and "own id" in said["message"]


def test_the_body_of_an_unknown_sender_is_not_read(node: Gateway):
    for headers in ({}, {"x-source-node-id": "JG0000000000000404"}):
        for path in ("job/create", "task/callback"):
            said = ask(node, "peer", "POST", f"{SCHEDULE}/{path}", headers=headers, content=b"{not json").json()
            assert (said["code"], said["data"]["reason"]) == (403, "NOT_AUTHORISED")  # and not INVALID
