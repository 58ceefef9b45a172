"""``bfia-gateway route …`` at a node: changes, tests and rollbacks, in tables and in JSON."""

import json
from functools import partial
from pathlib import Path

import pytest

from gateway.cli import routes
from gateway.identity.keys import Keyring
from tests.certificates import Authority
from tests.cli import call_node
from tests.inprocess import ME, PEER, running

# The node that relays for another one.
HOP = "JG0100003300000030"


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path) as gateway:
        yield gateway


cli = partial(call_node, "route")


def test_a_route_is_added_changed_disabled_and_everything_is_undone(node):
    added = cli(
        node,
        "add",
        PEER,
        "--to",
        "http://127.0.0.1:9",
        "-m",
        "new partner",
    )
    assert added.exit_code == 0
    assert added.stdout == f"version 2 is in force: +{PEER}\n"
    assert f"nothing of {PEER} is taken before its route has a key" in added.stderr
    assert "none: refused" in cli(node, "list").stdout
    again = cli(node, "add", PEER, "--to", "http://127.0.0.1:9")
    assert again.exit_code == 0
    assert again.stdout == "nothing changed: version 2 is in force as before\n"
    edited = cli(
        node,
        "edit",
        PEER,
        "--deadline",
        "5",
        "--profile",
        "fate",
    )
    assert 'profile: "spec" → "fate"' in edited.stdout
    assert "deadline: 10.0 → 5.0" in edited.stdout
    assert cli(node, "disable", PEER, "-m", "maintenance").exit_code == 0
    assert not node.routes.table.knows(PEER)
    listed = cli(node, "list").stdout
    assert "http://127.0.0.1:9" in listed
    assert "5 s" in listed
    assert cli(node, "enable", PEER).exit_code == 0
    assert node.routes.table.knows(PEER)
    past = cli(node, "history").stdout
    assert "new partner" in past
    assert "maintenance" in past
    assert "+  profile: fate" in cli(node, "diff", "3").stdout
    assert cli(node, "remove", PEER).stdout.startswith(f"version 6 is in force: -{PEER}")
    assert cli(node, "rollback", "2").exit_code == 0
    assert json.loads(cli(node, "list", "--json").stdout)["routes"][0]["deadline"] == 10.0
    again = cli(node, "rollback")
    assert again.stdout == f"version 8 is in force: -{PEER}\n"
    assert "the rollback of version 7" in again.stderr
    audit = call_node("audit", node, "--action", PEER).stdout
    assert f"+{PEER}" in audit
    assert f'{PEER}.profile: "spec" → "fate"' in audit


def test_a_missing_key_is_told_only_where_signatures_are_required(node):
    hint = f"nothing of {PEER} is taken before its route has a key"
    keys = Keyring(node.settings.state_dir).make("ed25519").public
    add = cli(node, "add", PEER, "--to", "http://127.0.0.1:9", "--keys", keys, "--signing", "off")
    assert add.exit_code == 0, add.output

    removal = cli(node, "edit", PEER, "--unset", "keys")
    assert removal.exit_code == 0, removal.output
    assert hint not in removal.stderr

    requirement = cli(node, "edit", PEER, "--signing", "required")
    assert requirement.exit_code == 0, requirement.output
    assert hint in requirement.stderr


def test_a_file_of_a_route_is_relative_to_the_working_folder(node, tmp_path, monkeypatch):
    ca = Authority(tmp_path / "tls").file
    monkeypatch.chdir(tmp_path)
    added = cli(
        node,
        "add",
        PEER,
        "--to",
        "https://127.0.0.1:9",
        "--ca",
        "tls/ca.pem",
    )
    assert added.exit_code == 0, added.stderr
    assert node.routes.table.routes[PEER].ca == ca


def test_a_way_through_another_node_and_the_difference_of_versions(node):
    assert cli(node, "add", HOP, "--to", "http://127.0.0.1:9", "--relay").exit_code == 0
    assert cli(node, "add", PEER, "--via", HOP).exit_code == 0
    assert cli(node, "edit", PEER, "--deadline", "5").exit_code == 0
    listed = cli(node, "list").stdout
    assert f"via {HOP}" in listed
    assert node.routes.table.resolve(PEER).url == "http://127.0.0.1:9"
    assert node.routes.table.routes[HOP].relay
    assert cli(node, "edit", PEER, "--unset", "deadline", "--no-relay").exit_code == 0
    assert node.routes.table.routes[PEER].deadline == 10.0
    assert f"+  via: {HOP}" in cli(node, "diff", "3").stdout
    both = cli(node, "diff", "--since", "2").stdout
    assert f"+  via: {HOP}" in both
    assert "deadline" not in both
    changes = json.loads(cli(node, "diff", "5", "--since", "1", "--json").stdout)["changes"]
    assert {change["node"] for change in changes} == {HOP, PEER}

    circle = cli(node, "edit", HOP, "--via", PEER)
    assert circle.exit_code == 2
    assert "leads in a circle" in circle.stderr
    assert cli(node, "edit", PEER, "--to", "https://h", "--ca", "/no/such.pem").exit_code == 2
    assert cli(node, "diff", "99").exit_code == 1


def test_the_history_names_keys_by_their_ids(node, tmp_path):
    old = Keyring(tmp_path / "old").make("ed25519")
    new = Keyring(tmp_path / "new").make("ed25519")
    cli(
        node,
        "add",
        PEER,
        "--to",
        "http://127.0.0.1:9",
        "--keys",
        old.public,
    )
    changed = cli(node, "edit", PEER, "--keys", new.public).stdout
    assert changed == f"version 3 is in force: {PEER}.keys: +{new.id[:19]}… -{old.id[:19]}…\n"


def test_a_wrong_route_is_refused_with_the_fields_and_exit_code_2(node):
    refused = cli(
        node,
        "add",
        PEER,
        "--to",
        "ftp://x",
        "--profile",
        "fat",
    )
    assert refused.exit_code == 2
    assert f"{PEER}.url" in refused.stderr
    assert "must be one of spec, fate, kuscia, audited" in refused.stderr
    assert cli(node, "disable", PEER).exit_code == 1


def test_a_route_is_tried_and_the_exit_code_tells(node, tmp_path):
    with running(tmp_path / "peer", PEER) as peer:
        cli(
            node,
            "add",
            PEER,
            "--to",
            peer.addresses()["peer"],
        )
        without_key = cli(node, "test", PEER)
        assert without_key.exit_code == 1
        assert f"route edit {PEER} --keys" in without_key.stdout

        assert cli(node, "edit", PEER, "--signing", "off").exit_code == 0
        one_way = cli(node, "test", PEER)
        assert one_way.exit_code == 1
        assert "way back" in one_way.stdout
        assert "FAILED" in one_way.stdout

        cli(
            peer,
            "add",
            ME,
            "--to",
            node.addresses()["peer"],
            "--signing",
            "off",
        )
        both_ways = cli(node, "test", PEER)
        assert both_ways.exit_code == 0
        assert "FAILED" not in both_ways.stdout
        assert json.loads(cli(node, "test", PEER, "--json").stdout)["good"] is True


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", "required, control accepted"),
        ("zh", "必须, 控制请求 可选"),
    ],
)
def test_the_list_names_the_sealing_in_the_language_in_use(use_language, language, expected):
    use_language(language)
    route = {
        "sealing_key": "a key",
        "sealing": "required",
        "control_sealing": "accepted",
    }
    assert routes._sealing(route) == expected
