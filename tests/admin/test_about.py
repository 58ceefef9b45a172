"""What a node says of itself: reasons in two languages, storages, ends of certificates, invitations."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.identity.keys import Keyring
from tests.certificates import Authority
from tests.inprocess import ME, PEER, ask, pair


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    with pair(tmp_path_factory.mktemp("about")) as both:
        for node in both:
            Keyring(node.settings.state_dir).make("ed25519")
        yield both


def get(
    node: Gateway,
    path: str,
    **more: Any,
) -> Any:
    return ask(node, "operator", "GET", f"/api/v1/{path}", **more).json()


def test_a_reason_is_explained_in_the_readers_language(nodes):
    english = get(nodes[0], "reasons/RESOURCES_BUSY")
    chinese = get(nodes[0], "reasons/RESOURCES_BUSY", headers={"accept-language": "zh-CN,zh;q=0.9"})
    assert english["means"]
    assert english["next_step"]
    assert chinese["means"] != english["means"]
    found = get(nodes[0], "reasons/RESOURCE_BUSY")
    assert found["data"]["reason"] == "REASON_UNKNOWN"
    assert "RESOURCES_BUSY" in found["msg"]
    assert (
        get(nodes[0], "reasons/EXIT_127")["next_step"]
        == get(nodes[0], "reasons/EXIT_n")["next_step"]
    )
    assert "exit code 127 and" in get(nodes[0], "reasons/EXIT_127")["means"]
    assert get(nodes[0], "reasons/EXIT_127x")["data"]["reason"] == "REASON_UNKNOWN"


def test_storages_and_the_ends_of_certificates(nodes, tmp_path):
    (folder,) = get(nodes[0], "storages")["storages"]
    assert folder["name"] == "file"
    assert folder["uploads"] is True
    assert folder["ok"] is True
    assert get(nodes[0], "certificates") == {"certificates": []}
    authority = Authority(tmp_path / "ca", days=90)
    soon = authority.sign("soon", days=3)
    files = {
        "ca": authority.file,
        "certificate": soon.certificate,
        "key": soon.key,
    }
    address = f"https://127.0.0.1:{nodes[1].addresses()['peer'].rpartition(':')[2]}"
    ask(
        nodes[0],
        "operator",
        "PUT",
        f"/api/v1/routes/{PEER}",
        json={"route": {"url": address, **files}},
    )
    found = get(nodes[0], "certificates")["certificates"]
    assert [(e["where"], e["file"], e["days"]) for e in found] == [
        (f"routes.{PEER}.certificate", soon.certificate, 2),
        (f"routes.{PEER}.ca", authority.file, 89),
    ]


def test_both_nodes_get_the_same_words_for_their_invitations(nodes):
    at = "https://gw.example:7380"
    mine, theirs = (get(node, "invitation", params={"address": at}) for node in nodes)
    assert mine["node"] == ME
    assert theirs["node"] == PEER
    assert mine["address"] == at
    assert mine["keys"]

    def words(node: Gateway, invitation: Any) -> Any:
        body = {"invitation": invitation, "address": at}
        return ask(node, "operator", "POST", "/api/v1/invitation/words", json=body).json()

    here, there = words(nodes[0], theirs), words(nodes[1], mine)
    assert here["words"] == there["words"]
    assert len(here["words"].split()) == 6
    assert here["node"] == PEER
    assert here["has_route"] is True
    assert words(nodes[0], {**theirs, "keys": mine["keys"]})["words"] != here["words"]
    for wrong in (
        mine,
        {},
        {**theirs, "keys": []},
        {**theirs, "address": "a b"},
        {**theirs, "node": 7},
    ):
        assert words(nodes[0], wrong)["data"]["problems"][0]["path"] == "invitation"
    refused = get(nodes[0], "invitation", params={"address": "gw.example"})
    assert refused["data"]["problems"][0]["path"] == "address"
