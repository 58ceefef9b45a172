"""Four eyes: the person who submits a job cannot give the approval that the rules require."""

import pytest

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.auth import Role, openid_token_name
from gateway.domain.states import JobStatus
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration
from tests.inprocess import ME, token_of
from tests.memory_engine import Script
from tests.world import NodeSetup

# The rules require an approval of the node's own jobs, too.
NODE = NodeSetup(
    scripts={IMAGE: Script()},
    token="0123456789abcdef0123",
    providers=[registration()],
    settings={"approval": {"mode": "rules", "rules": [{"decide": "ask"}]}},
)
LI = openid_token_name("li", "7")
LI_RENAMED = openid_token_name("na", "7")
ANOTHER_LI = openid_token_name("li", "8")


@pytest.fixture(scope="module")
def tokens(node):
    """Give the tokens of several admins, by their names; "operator" is the bootstrap token."""
    tokens = {"operator": NODE.token}
    for name in ("ann", "bob", LI, LI_RENAMED, ANOTHER_LI):
        tokens[name] = token_of(node, Role.ADMIN, name)
    return tokens


def submit(node, token):
    """Submit a job of this node; return its id."""
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (ME,),
        },
        scheduler=ME,
        initiator=ME,
    )
    body = create_body(spec, PROFILES["spec"])
    del body["job_id"]
    response = node.post(
        "/v1/platform/schedule/job/create_all",
        body,
        token=token,
    )
    return response.json()["data"]["job_id"]


def status_of(node, job_id):
    return node.store.local_jobs.get(job_id).status


def is_refusal_in_audit(node, person):
    """Return whether the audit has an approval that was refused to a person for its own job."""
    for entry in node.audit.list():
        if entry.who == person and entry.status == 403:
            return "SAME_PERSON" in entry.detail["refused"]
    return False


def test_the_list_of_approvals_names_the_person_who_submitted_the_job(node, tokens):
    job_id = submit(node, tokens["ann"])

    listed = node.get("/api/v1/approvals", token=tokens["bob"]).json()["approvals"]

    (submitters,) = [job["submitted_by"] for job in listed if job["job_id"] == job_id]
    assert submitters == ["ann"]
    node.post(f"/api/v1/jobs/{job_id}/reject", {"reason": "tried"}, token=tokens["bob"])


@pytest.mark.parametrize(
    ("submitter", "same_person", "another_person"),
    [
        ("ann", "ann", "bob"),
        ("operator", "operator", "bob"),
        (LI, LI_RENAMED, ANOTHER_LI),
    ],
    ids=["a token", "the bootstrap token", "an OpenID person"],
)
def test_only_another_person_than_the_submitter_may_approve(
    node, tokens, submitter, same_person, another_person
):
    job_id = submit(node, tokens[submitter])
    assert status_of(node, job_id) is JobStatus.PENDING
    path = f"/api/v1/jobs/{job_id}/approve"

    refusal = node.post(path, {"by": "somebody else"}, token=tokens[same_person]).json()

    assert refusal["code"] == 403
    assert refusal["data"]["reason"] == "SAME_PERSON"
    assert status_of(node, job_id) is JobStatus.PENDING
    assert is_refusal_in_audit(node, same_person)
    approved = node.post(path, token=tokens[another_person]).json()
    assert approved["approval"]["by"] == another_person


def test_the_submitter_of_a_job_may_reject_it(node, tokens):
    job_id = submit(node, tokens["ann"])
    response = node.post(
        f"/api/v1/jobs/{job_id}/reject",
        token=tokens["ann"],
    )
    assert response.json()["local_status"] == "REJECTED"
