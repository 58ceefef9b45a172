"""Tokens of people and programs, as an admin creates, lists and revokes them at a running node."""

import pytest

from gateway.auth import Role
from tests.inprocess import Node, token_of
from tests.world import NodeSetup

ADMIN = "0123456789abcdef0123"
NODE = NodeSetup(token=ADMIN)
PATH = "/api/v1/tokens"
ANN = {"name": "ann", "role": "viewer", "days": 1}


def create(node: Node, **changes: object) -> dict[str, str]:
    """Create a token and return the response."""
    response = node.post(
        PATH,
        ANN | changes,
        token=ADMIN,
    )
    return dict(response.json())


def test_a_created_token_is_listed_and_works(node):
    created = create(node)

    listed = node.get(PATH, token=ADMIN).json()
    states = {token["id"]: token["state"] for token in listed["tokens"]}
    assert states[created["id"]] == "valid"
    jobs = node.get("/api/v1/jobs", token=created["token"])
    assert jobs.status_code == 200


def test_a_revoked_token_is_refused(node):
    created = create(node)

    path = f"{PATH}/{created['id']}"
    for count in (1, 0):
        revoked = node.request("DELETE", path, token=ADMIN)
        assert revoked.json() == {"revoked": count}
    response = node.get("/api/v1/jobs", token=created["token"])
    assert response.json()["data"]["reason"] == "TOKEN_REVOKED"


def test_the_text_of_a_token_is_in_no_list_and_no_audit(node):
    text = create(node)["token"]

    for path in (PATH, "/api/v1/audit"):
        response = node.get(path, token=ADMIN)
        assert response.status_code == 200
        assert text not in response.text


@pytest.mark.parametrize(
    "changes",
    [
        {"name": " "},
        {"name": "oidc:ann"},
        {"role": "root"},
        {"days": -1},
        {"digest": "0"},
    ],
    ids=["no-name", "openid", "role", "days", "field"],
)
def test_a_wrong_token_is_refused_with_its_problem(node, changes):
    refusal = create(node, **changes)["data"]

    (name,) = changes
    assert refusal["reason"] == "INVALID"
    assert [problem["path"] for problem in refusal["problems"]] == [name]


@pytest.mark.parametrize("role", [Role.VENDOR, Role.PLATFORM, Role.VIEWER])
def test_only_an_admin_sees_and_creates_tokens(node, role):
    token = token_of(node, role)

    assert node.get(PATH, token=token).status_code == 403
    assert node.post(PATH, ANN, token=token).status_code == 403


def test_a_node_that_requires_no_tokens_creates_none(world):
    node = world.node()

    refused = node.post(PATH, ANN).json()

    assert refused["data"]["reason"] == "AUTH_OFF"
    assert node.get(PATH).json()["tokens"] == []
