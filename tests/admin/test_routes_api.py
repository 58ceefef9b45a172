"""The route table by ``/api/v1/routes``: seen, changed, refused, undone."""

import pytest

from gateway.admin import routes
from tests.inprocess import ME, PEER, ask, running

API = "/api/v1/routes"
HISTORY = "/api/v1/route-versions"
FILE = f"{PEER}:  # our partner\n  host: 127.0.0.1\n  port: 1\n"


@pytest.fixture
def node(tmp_path):
    (tmp_path / "routes.yml").write_text(FILE)
    with running(tmp_path) as gateway:
        yield gateway


def call(
    gateway,
    method,
    path,
    **kwargs,
):
    answer = ask(gateway, "operator", method, path, **kwargs)
    return answer.status_code, answer.json()


def test_the_test_of_a_route_ends_in_time(node, monkeypatch):
    monkeypatch.setattr(routes, "_LONGEST_TEST", 0.0)
    status, refused = call(node, "POST", f"{API}/{PEER}/test")
    assert status == 503
    assert refused["data"]["reason"] == "PEER_UNREACHABLE"
    assert f"the test of the route to {PEER} did not end within 0 s" in refused["msg"]


def test_an_edit_beside_a_broken_file_says_so_and_lasts_until_its_repair(node, tmp_path):
    entry = {"route": {"host": "127.0.0.1", "port": 2}}
    assert call(node, "PUT", f"{API}/JG7", json=entry)[1]["not_in_file"] == []
    file = tmp_path / "routes.yml"
    before = file.read_text()
    file.write_text(before + "X: {host: 1, prot: 2\n")
    status, made = call(node, "PATCH", f"{API}/JG7", json={"route": {"port": 3}})
    (cause,) = made["not_in_file"]
    assert status == 200
    assert made["version"] == 3
    assert str(file) in cause
    assert "line " in cause
    assert node.routes.table.resolve("JG7").url == "http://127.0.0.1:3"
    repaired = before + "JG8: {host: 127.0.0.1, port: 8}\n"  # by who knows nothing of the edit
    file.write_text(repaired)
    node.routes.reload()
    assert node.routes.table.resolve("JG7").url == "http://127.0.0.1:2"
    assert node.routes.table.knows("JG8")
    assert file.read_text() == repaired


def test_the_nodes_own_id_needs_no_route(node):
    status, body = call(node, "PUT", f"{API}/{ME}", json={"route": {"url": "http://127.0.0.1:2"}})
    assert status == 400
    assert body["data"]["reason"] == "ROUTE_INVALID"
    assert "own id" in body["data"]["problems"][0]["rule"]
    assert call(node, "GET", API)[1]["version"] == 1
    named = {"route": {"url": "https://127.0.0.1:2", "server_name": "gw.example"}}
    assert (
        call(node, "PUT", f"{API}/{ME}", json=named)[0] == 200
    )  # for the other gateways of this node
    assert (
        call(node, "PATCH", f"{API}/{ME}", json={"route": {"server_name": "gw2.example"}})[0] == 200
    )


def test_an_own_entry_that_a_file_holds_is_not_edited_as_if_it_counted(node, tmp_path):
    (tmp_path / "routes.yml").write_text(FILE + f"{ME}: {{host: 127.0.0.1, port: 9}}\n")
    node.routes.reload()
    status, body = call(node, "PATCH", f"{API}/{ME}", json={"route": {"port": 10}})
    assert status == 400
    assert "only several gateways" in body["data"]["problems"][0]["rule"]
    assert call(node, "DELETE", f"{API}/{ME}")[0] == 200


def test_a_wrong_entry_is_refused_with_every_problem_and_nothing_changes(node):
    wrong = {
        "route": {
            "host": "a b",
            "port": 70000,
            "profile": "fat",
            "colour": 1,
        }
    }
    status, body = call(node, "PUT", f"{API}/JG7", json=wrong)
    assert status == 400
    assert body["data"]["reason"] == "ROUTE_INVALID"
    assert {p["path"] for p in body["data"]["problems"]} == {
        "JG7.host",
        "JG7.port",
        "JG7.profile",
        "JG7.colour",
    }
    assert not any(p["rule"].startswith("line ") for p in body["data"]["problems"])
    assert call(node, "PUT", f"{API}/no%20id", json={"route": {"url": "http://h"}})[0] == 400
    assert call(node, "PATCH", f"{API}/JG7", json={"route": {"enabled": False}})[0] == 404
    assert call(node, "DELETE", f"{API}/JG7")[0] == 404
    stale = call(node, "DELETE", f"{API}/{PEER}?version=7")
    assert stale[0] == 409
    assert stale[1]["data"]["reason"] == "VERSION_STALE"
    assert call(node, "GET", API)[1]["version"] == 1
