"""The route table by ``/api/v1/routes``: seen, changed, refused, undone."""

import json
from typing import Any

import pytest

from gateway.admin import route_tests
from tests.inprocess import ME, PEER, Node, running

API = "/api/v1/routes"
HISTORY = "/api/v1/route-versions"
FILE = f"{PEER}:  # our partner\n  host: 127.0.0.1\n  port: 1\n"


@pytest.fixture
def node(tmp_path):
    (tmp_path / "routes.yml").write_text(FILE)
    with running(tmp_path) as gateway:
        yield gateway


def call(
    node: Node,
    method: str,
    path: str,
    **kwargs: Any,
) -> tuple[int, Any]:
    """Return the HTTP status of a response, and its body."""
    response = node.request(method, path, **kwargs)
    return response.status_code, response.json()


def test_the_test_of_a_route_ends_in_time(node, monkeypatch):
    monkeypatch.setattr(route_tests, "LONGEST_TEST", 0.0)
    status, refused = call(node, "POST", f"{API}/{PEER}/test")
    assert status == 503
    assert refused["data"]["reason"] == "PEER_UNREACHABLE"
    assert f"the test of the route to {PEER} did not end within 0 s" in refused["msg"]


def events_of_test(node: Node, language: str = "en") -> list[tuple[str, Any]]:
    """Test the route to `PEER`; return the names and contents of the events of the stream."""
    response = node.request(
        "POST",
        f"{API}/{PEER}/test?follow=1",
        headers={"accept-language": language},
    )
    media_type = response.headers["content-type"]
    assert media_type.startswith("text/event-stream")
    events = []
    text = response.text.strip()
    for event in text.split("\n\n"):
        name_line, data_line = event.splitlines()
        name = name_line.removeprefix("event: ")
        data = data_line.removeprefix("data: ")
        content = json.loads(data)
        events.append((name, content))
    return events


def test_each_step_of_a_followed_test_is_an_event_before_the_result(node):
    *steps, (last, result) = events_of_test(node, "zh")

    names = {name for name, _ in steps}
    assert names == {"step"}
    contents = [content for _, content in steps]
    steps_in_order = [content["name"] for content in contents]
    assert steps_in_order == ["route", "dns", "tcp"]
    assert last == "end"
    assert result["good"] is False
    all_steps = result["steps"]
    assert all_steps[:3] == contents
    connection = all_steps[2]
    assert "端口" in connection["remedy"]


def test_a_followed_test_that_takes_too_long_ends_with_a_problem(node, monkeypatch):
    monkeypatch.setattr(route_tests, "LONGEST_TEST", 0.0)

    *_, (last, problem) = events_of_test(node)

    assert last == "problem"
    assert "did not end within 0 s" in problem["message"]


def test_an_edit_despite_a_broken_file_lasts_until_the_repair(node, tmp_path):
    entry = {"route": {"host": "127.0.0.1", "port": 2}}
    assert call(node, "PUT", f"{API}/JG7", json=entry)[1]["not_in_file"] == []
    file = tmp_path / "routes.yml"
    before = file.read_text()
    file.write_text(before + "X: {host: 1, prot: 2\n")
    status, edited = call(
        node,
        "PATCH",
        f"{API}/JG7",
        json={"route": {"port": 3}},
    )
    (cause,) = edited["not_in_file"]
    assert status == 200
    assert edited["version"] == 3
    assert str(file) in cause
    assert "line " in cause
    assert node.routes.table.resolve("JG7").url == "http://127.0.0.1:3"

    # repaired by someone who knows nothing of the edit
    repaired = before + "JG8: {host: 127.0.0.1, port: 8}\n"
    file.write_text(repaired)
    node.routes.reload()
    assert node.routes.table.resolve("JG7").url == "http://127.0.0.1:2"
    assert node.routes.table.knows("JG8")
    assert file.read_text() == repaired


@pytest.mark.parametrize("word", [False, "no", "OFF"])
def test_a_mode_is_turned_off_by_any_word_that_yaml_has_for_it(node, word):
    modes = dict.fromkeys(["signing", "sealing", "control_sealing"], word)
    entry = {"host": "127.0.0.1", "port": 2, **modes}
    status, _ = call(node, "PUT", f"{API}/JG7", json={"route": entry})

    assert status == 200
    route = node.routes.table.resolve("JG7")
    assert route.signing_mode == "off"
    assert route.sealing_mode == "off"
    assert route.control_sealing == "off"


def test_the_nodes_own_id_needs_no_route(node):
    status, body = call(
        node,
        "PUT",
        f"{API}/{ME}",
        json={"route": {"url": "http://127.0.0.1:2"}},
    )
    assert status == 400
    assert body["data"]["reason"] == "ROUTE_INVALID"
    assert "own id" in body["data"]["problems"][0]["rule"]
    assert call(node, "GET", API)[1]["version"] == 1


def test_the_other_gateways_of_a_node_may_have_a_route_to_its_own_id(node):
    entry = {
        "url": "https://127.0.0.1:2",
        "server_name": "gw.example",
    }
    assert call(node, "PUT", f"{API}/{ME}", json={"route": entry})[0] == 200
    change = {"server_name": "gw2.example"}
    assert call(node, "PATCH", f"{API}/{ME}", json={"route": change})[0] == 200


def test_an_ignored_entry_of_the_own_id_is_not_edited_but_deleted(node, tmp_path):
    (tmp_path / "routes.yml").write_text(FILE + f"{ME}: {{host: 127.0.0.1, port: 9}}\n")
    node.routes.reload()
    status, body = call(
        node,
        "PATCH",
        f"{API}/{ME}",
        json={"route": {"port": 10}},
    )
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
    status, body = call(
        node,
        "PUT",
        f"{API}/JG7",
        json=wrong,
    )
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
