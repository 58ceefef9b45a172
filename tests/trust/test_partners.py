"""Two nodes that know nothing of each other become partners by an invitation each."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.config.loader import load
from gateway.identity.keys import Keyring, six_words
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result
from tests.certificates import Authority
from tests.cli import call
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, Node, ask, serving


@contextmanager
def new_node(home: Path, node: str) -> Iterator[tuple[Path, Gateway]]:
    """Serve a node as `init` makes it, on free ports."""
    file = home / "node.yml"
    assert call("init", "--node", node, "--engine", "process", "-o", str(file)).exit_code == 0
    settings = yaml.safe_load(file.read_text())
    for listener, port in zip(("peer", "container", "operator"), free_ports(3), strict=True):
        settings["listen"][listener]["bind"] = f"127.0.0.1:{port}"
    file.write_text(yaml.safe_dump(settings))
    with serving(Node(load(file))) as gateway:
        yield file, gateway


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[tuple[Path, Gateway]]]:
    with new_node(tmp_path / "me", ME) as me, new_node(tmp_path / "peer", PEER) as peer:
        yield [me, peer]


def test_two_invitations_make_two_partners_that_sign(
    nodes: list[tuple[Path, Gateway]], tmp_path: Path
):
    invitations = []
    for config, gateway in nodes:
        made = call(
            "partner", "invite", "--address", gateway.addresses()["peer"], "--config", str(config)
        )
        assert made.exit_code == 0, made.stderr
        invitations.append(tmp_path / f"{gateway.settings.node.id}.json")
        invitations[-1].write_text(made.stdout)
    shown = []
    for (config, gateway), theirs in zip(nodes, reversed(invitations), strict=True):
        address = gateway.addresses()["peer"]
        words = ["partner", "accept", str(theirs), "--address", address, "--config", str(config)]
        refused = CliRunner().invoke(app, words, input="n\n")
        assert refused.exit_code == 1 and "the words at both sides" in refused.stderr
        assert f"warning: {address} is not encrypted" in refused.stderr
        done = call(*words, "--yes", "--json")
        assert done.exit_code == 0, done.stderr
        shown.append(json.loads(done.stdout[done.stdout.index("{\n") :])["words"])
    assert shown[0] == shown[1] and len(shown[0].split()) == 6
    for (_, gateway), other in zip(nodes, (PEER, ME), strict=True):
        assert gateway.routes.table.routes[other].signing_mode == "required"
        assert {s.name: s.result for s in gateway.protocol.try_route(other)}[
            "way back"
        ] is Result.OK
        path, body = "/v1/interconn/schedule/task/poll", {"task_id": "t", "role": "guest"}
        said = ask(
            gateway, "peer", "POST", path, json=body, headers={"x-source-node-id": other}
        ).json()
        assert said["data"]["reason"] == "SIGNATURE_REFUSED"


def test_a_replaced_key_or_address_changes_the_words_to_compare(tmp_path: Path):
    keys = [[Keyring(tmp_path / name).make("ed25519").public] for name in "abc"]
    mine, theirs, thief = (
        {
            "node": "A",
            "address": "https://a",
            "keys": key,
        }
        for key in keys
    )
    theirs, thief = theirs | {"node": "B"}, thief | {"node": "B"}
    assert six_words(mine, theirs) == six_words(theirs, mine) != six_words(mine, thief)
    assert six_words(mine, theirs | {"address": "https://thief"}) != six_words(mine, theirs)


def test_a_route_that_is_there_is_replaced_only_on_demand(tmp_path: Path):
    ring = Keyring(tmp_path / "partner")
    old, new, file = ring.make("ed25519"), ring.make("ed25519"), tmp_path / "theirs.json"
    with new_node(tmp_path / "me", ME) as (config, gateway):
        words = [
            "partner",
            "accept",
            str(file),
            "--address",
            "https://me",
            "--yes",
            "--config",
            str(config),
        ]
        for address, pair in (("https://before", old), ("https://after", new)):
            file.write_text(
                json.dumps(
                    {
                        "node": PEER,
                        "address": address,
                        "keys": [pair.public],
                    }
                )
            )
            done = call(*words)
            assert gateway.routes.table.routes[PEER].url == "https://before"
        assert (
            done.exit_code == 1
            and f"https://before, keys: {old.id}; to replace that" in done.stderr
        )
        disabled = {"route": {"enabled": False}}
        assert (
            ask(gateway, "operator", "PATCH", f"/api/v1/routes/{PEER}", json=disabled).status_code
            == 200
        )
        done = call(*words, "--replace", "--ca", Authority(tmp_path / "tls").file)
        assert (
            done.exit_code == 0
            and f"replaces the route of {PEER}: https://before, disabled, keys: {old.id}"
            in done.stderr
        )
        route = gateway.routes.table.routes[PEER]
        assert (route.url, route.keys, route.enabled) == ("https://after", (new.public,), True)
        assert route.ca == str(tmp_path / "tls" / "ca.pem")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"node": "A", "address": "http://a", "keys": []}',
        '{"node": "A", "address": "http://a\\nthe words at both sides: others", "keys": ["key"]}',
        "[1]",
    ],
)
def test_what_is_not_an_invitation_is_refused(tmp_path: Path, text: str):
    config, file = tmp_path / "node.yml", tmp_path / "invitation.json"
    call("init", "--node", ME, "--engine", "process", "-o", str(config))
    file.write_text(text)
    refused = call(
        "partner", "accept", str(file), "--address", "https://me", "--config", str(config)
    )
    assert refused.exit_code == 2 and "--address" not in refused.stderr
    file.write_text(
        json.dumps(
            {
                "node": PEER,
                "address": "https://peer",
                "keys": ["key"],
            }
        )
    )
    refused = call("partner", "accept", str(file), "--config", str(config))
    assert refused.exit_code == 2 and "give --address" in refused.stderr
    assert call("partner", "invite", "--config", str(config)).exit_code == 2
    file.write_text(
        json.dumps(
            {
                "node": ME,
                "address": "https://me",
                "keys": ["key"],
            }
        )
    )
    own = call(
        "partner", "accept", str(file), "--address", "https://me", "--config", str(config)
    ).stderr
    assert (
        own
        == f"{file} is this node's own invitation: send it to the partner, and accept the partner's\n"
    )
    assert "是本节点自己的邀请：请发给合作方，并接受合作方的邀请" in translate(own, "zh")
    bare = call("partner", "invite", "--address", "127.0.0.1:7380", "--config", str(config))
    assert bare.exit_code == 2 and "must begin with https:// or http://" in bare.stderr
