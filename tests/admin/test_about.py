"""A node's own facts: explained reasons, storages, expiring certificates and invitations."""

from typing import Any

import pytest

from gateway.identity.keys import Keyring
from tests.certificates import Authority
from tests.inprocess import ME, PEER, Node

ADDRESS = "https://gw.example:7380"


@pytest.fixture(scope="module")
def nodes(shared_world) -> tuple[Node, Node]:
    """Two connected nodes with key pairs."""
    node = shared_world.node()
    partner = shared_world.node(node_id=PEER)
    shared_world.connect(node, partner)
    for each in (node, partner):
        Keyring(each.settings.state_dir).make("ed25519")
    return node, partner


@pytest.fixture
def node(nodes: tuple[Node, Node]) -> Node:
    return nodes[0]


@pytest.fixture
def partner(nodes: tuple[Node, Node]) -> Node:
    return nodes[1]


def get(
    node: Node,
    path: str,
    **kwargs: Any,
) -> Any:
    """Return the JSON body of a path of ``/api/v1``."""
    return node.get(f"/api/v1/{path}", **kwargs).json()


# ---------------------------------------------------------------- reasons


def test_a_reason_is_explained_in_the_readers_language(node):
    english = get(node, "reasons/RESOURCES_BUSY")
    chinese = get(
        node,
        "reasons/RESOURCES_BUSY",
        headers={"accept-language": "zh-CN,zh;q=0.9"},
    )
    assert english["means"]
    assert english["next_step"]
    assert chinese["means"] != english["means"]


def test_a_misspelt_reason_is_refused_with_a_suggestion(node):
    refused = get(node, "reasons/RESOURCE_BUSY")
    assert refused["data"]["reason"] == "REASON_UNKNOWN"
    assert "RESOURCES_BUSY" in refused["msg"]


def test_a_reason_with_an_exit_code_is_explained_with_the_code(node):
    explained = get(node, "reasons/EXIT_127")
    assert explained["next_step"] == get(node, "reasons/EXIT_n")["next_step"]
    assert "exit code 127 and" in explained["means"]
    assert get(node, "reasons/EXIT_127x")["data"]["reason"] == "REASON_UNKNOWN"


# ---------------------------------------------------------------- storages and certificates


def test_the_storage_of_uploads_is_listed(node):
    (storage,) = get(node, "storages")["storages"]
    assert storage["name"] == "file"
    assert storage["uploads"] is True
    assert storage["ok"] is True


def test_certificates_of_routes_are_listed_with_their_remaining_days(node, partner, tmp_path):
    assert get(node, "certificates") == {"certificates": []}
    authority = Authority(
        tmp_path / "ca",
        days=90,
    )
    files = authority.sign(
        "soon",
        days=3,
    )
    port = partner.addresses()["peer"].rpartition(":")[2]
    route = {
        "url": f"https://127.0.0.1:{port}",
        "ca": authority.file,
        "certificate": files.certificate,
        "key": files.key,
    }
    node.request(
        "PUT",
        f"/api/v1/routes/{PEER}",
        json={"route": route},
    )

    own, ca = get(node, "certificates")["certificates"]

    assert own["where"] == f"routes.{PEER}.certificate"
    assert own["file"] == files.certificate
    assert own["days"] == 2
    assert ca["where"] == f"routes.{PEER}.ca"
    assert ca["file"] == authority.file
    assert ca["days"] == 89


# ---------------------------------------------------------------- invitations


def invitation_of(node: Node) -> Any:
    """Return a node's invitation."""
    return get(
        node,
        "invitation",
        params={"address": ADDRESS},
    )


def words_for(node: Node, invitation: Any) -> Any:
    """Return what a node says of a partner's invitation: words for comparison, or problems."""
    body = {
        "invitation": invitation,
        "address": ADDRESS,
    }
    return node.post("/api/v1/invitation/words", body).json()


def test_an_invitation_names_the_node_its_address_and_keys(node, partner):
    invitation = invitation_of(node)
    assert invitation["node"] == ME
    assert invitation["address"] == ADDRESS
    assert invitation["keys"]
    assert invitation_of(partner)["node"] == PEER


# Name -> this node's address, the partner's, how the route to the partner reaches it.
WAYS = {
    "both open": (
        ADDRESS,
        "https://peer",
        {"url": "https://peer"},
    ),
    "a closed partner": (
        ADDRESS,
        f"link://{PEER}",
        {"reached": "by-link"},
    ),
    "closed here": (
        f"link://{ME}",
        "https://peer",
        {
            "url": "https://peer",
            "dial": "out",
        },
    ),
}


@pytest.mark.parametrize("case", WAYS)
def test_the_addresses_of_both_invitations_say_who_dials(node, partner, case):
    address, address_of_partner, way = WAYS[case]
    body = {
        "invitation": {**invitation_of(partner), "address": address_of_partner},
        "address": address,
    }
    assert node.post("/api/v1/invitation/words", body).json()["way"] == way


def test_both_nodes_get_the_same_words_for_their_invitations(node, partner):
    invitation = invitation_of(node)
    of_partner = invitation_of(partner)

    words = words_for(node, of_partner)

    assert words["words"] == words_for(partner, invitation)["words"]
    assert len(words["words"].split()) == 6
    assert words["node"] == PEER
    assert words["has_route"] is True
    assert words["sealing"] == "required"
    assert words["sealing_key"] == of_partner["sealing_key"]
    with_wrong_keys = {**of_partner, "keys": invitation["keys"]}
    assert words_for(node, with_wrong_keys)["words"] != words["words"]


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": []},
        {"address": "a b"},
        {"node": 7},
    ],
    ids=["no-keys", "address", "node"],
)
def test_a_wrong_invitation_is_a_problem(node, partner, changes):
    refused = words_for(node, invitation_of(partner) | changes)
    assert refused["data"]["problems"][0]["path"] == "invitation"


def test_the_nodes_own_invitation_is_a_problem(node):
    refused = words_for(node, invitation_of(node))
    assert refused["data"]["problems"][0]["path"] == "invitation"


def test_an_empty_invitation_is_a_problem(node):
    assert words_for(node, {})["data"]["problems"][0]["path"] == "invitation"


def test_an_invitation_needs_a_url_as_its_address(node):
    refused = get(
        node,
        "invitation",
        params={"address": "gw.example"},
    )
    assert refused["data"]["problems"][0]["path"] == "address"
