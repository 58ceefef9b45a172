"""The table of what nodes ask of each other: it is whole, the documents show it, and no peer needs all of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.bfia.extensions import COMMANDS, EXTENSION, EXTENSIONS, Command, table
from adapter.bfia.interconn import SCHEDULE
from gateway.errors import GatewayError, NotFound, NotServed, PeerUnreachable, Refused
from tests.adapter.bfia.scripted import Answer, ScriptedPeer, clients, says, scripted, silence, text
from tests.inprocess import PEER, ask, running

ROOT = Path(__file__).resolve().parents[3]
OURS = Command("something of ours", "/job/ours", EXTENSION, "it is left undone")
WANTED = [*EXTENSIONS.values(), OURS]


@pytest.fixture
def peer() -> Iterator[tuple[ScriptedPeer, str]]:
    with scripted() as pair:
        yield pair


def test_the_document_shows_the_table():
    shown = (ROOT / "docs" / "between-nodes.md").read_text(encoding="utf-8")
    assert f"<!-- commands -->\n{table()}\n<!-- end -->" in shown


def test_every_path_between_nodes_has_its_row_and_every_row_its_path(tmp_path: Path):
    with running(tmp_path) as gateway:
        described = ask(gateway, "peer", "GET", "/openapi.json").json()["paths"]
    assert {p.removeprefix(SCHEDULE) for p in described if p.startswith(SCHEDULE)} == {c.path for c in COMMANDS}


def test_every_row_says_what_happens_without_it_where_a_peer_may_lack_it():
    for command in COMMANDS:
        assert command.without or command.source[0].isdigit(), command
    assert len({(c.name, c.path) for c in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("command", WANTED, ids=lambda c: c.path)
@pytest.mark.parametrize(
    ("profile", "answer"),
    [
        ("spec", says({"code": 404, "msg": "PATH_UNKNOWN: x", "data": {"reason": "PATH_UNKNOWN"}}, 404)),
        ("spec", says({"code": 405, "msg": "x", "data": {"reason": "METHOD_NOT_ALLOWED"}}, 405)),
        ("spec", says({"detail": "Not Found"}, 404)),
        ("spec", text(b"<html>404</html>", 404)),
        ("spec", text(b"", 501)),
        ("kuscia", text(b"404 page not found", 404, "text/plain")),
        ("fate", says({"code": 6000, "message": "404 Not Found"})),
    ],
    ids=["envelope", "method", "framework", "page", "not implemented", "kuscia", "fate"],
)
def test_a_peer_that_has_only_the_standard(
    peer: tuple[ScriptedPeer, str], tmp_path: Path, command: Command, profile: str, answer: Answer
):
    peer[0].will(answer)
    with clients(tmp_path, peer[1], profile) as found, pytest.raises(NotServed) as caught:
        found.peer.ask(command, {"job_id": "j"})
    assert caught.value.reason == "NOT_SERVED_THERE"
    assert all(word in caught.value.message for word in (PEER, command.path, command.without))
    (asked,) = peer[0].asked
    assert (asked.method, asked.target, json.loads(asked.raw)) == (
        "POST",
        SCHEDULE + command.path,
        {"job_id": "j"},
    )


@pytest.mark.parametrize(
    ("profile", "answer", "kind", "reason"),
    [
        ("spec", says({"code": 404, "msg": "x", "data": {"reason": "JOB_UNKNOWN"}}), NotFound, "JOB_UNKNOWN"),
        ("spec", says({"code": 404, "msg": "x", "data": {"reason": "JOB_UNKNOWN"}}, 404), NotFound, "JOB_UNKNOWN"),
        ("spec", says({"code": 6000, "msg": "no"}), Refused, "REFUSED"),
        ("fate", says({"code": 1, "message": "no"}), Refused, "REFUSED"),
        ("spec", text(b"<html>", 400), Refused, "NO_ENVELOPE"),
        ("spec", text(b"<html>", 503), PeerUnreachable, "PEER_UNREACHABLE"),
        ("spec", silence, PeerUnreachable, "PEER_UNREACHABLE"),
    ],
)
def test_a_peer_that_has_the_path_and_says_no(
    peer: tuple[ScriptedPeer, str], tmp_path: Path, profile: str, answer: Answer, kind: type, reason: str
):
    peer[0].will(answer)
    with clients(tmp_path, peer[1], profile, deadline=0.5) as found, pytest.raises(GatewayError) as caught:
        found.peer.ask(OURS, {})
    assert (type(caught.value), caught.value.reason) == (kind, reason)


def test_a_peer_that_has_it_answers(peer: tuple[ScriptedPeer, str], tmp_path: Path):
    peer[0].will(says(data={"a": 1}))
    with clients(tmp_path, peer[1]) as found:
        assert found.peer.ask(OURS, {}) == {"a": 1}
