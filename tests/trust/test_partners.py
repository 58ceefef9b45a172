"""Two nodes that start without routes become partners by one invitation each."""

import json
from contextlib import contextmanager

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.client import EXIT_BAD_INPUT
from gateway.cli.main import app
from gateway.config.loader import load
from gateway.identity.invitations import digits_of, sealing_between, six_words
from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result
from tests.certificates import Authority
from tests.cli import call, call_node
from tests.conformance.platforms.reports import report_content, signed_report
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, Node, ask, serving

POLL = "/v1/interconn/schedule/task/poll"


def initialize(config, node):
    """Write a node's configuration, as `init` does."""
    done = call(
        "init",
        "--node",
        node,
        "--engine",
        "process",
        "-o",
        str(config),
    )
    assert done.exit_code == 0


@contextmanager
def new_node(home, node):
    """Serve a node as `init` configures it, on free ports; yield its configuration and itself."""
    config = home / "node.yml"
    initialize(config, node)
    settings = yaml.safe_load(config.read_text())
    for listener, port in zip(("peer", "container", "operator"), free_ports(3), strict=True):
        settings["listen"][listener]["bind"] = f"127.0.0.1:{port}"
    config.write_text(yaml.safe_dump(settings))
    with serving(Node(load(config))) as gateway:
        yield config, gateway


def write_invitation(file, node, address, key="key"):
    """Write the invitation of a node with one key."""
    invitation = {
        "node": node,
        "address": address,
        "keys": [key],
    }
    file.write_text(json.dumps(invitation))


# ---------------------------------------------------------------- two invitations


def invite(config, node, file):
    """Write a node's invitation into a file."""
    address = node.addresses()["peer"]
    done = call(
        "partner",
        "invite",
        "--address",
        address,
        "--config",
        str(config),
    )
    assert done.exit_code == 0, done.stderr
    file.write_text(done.stdout)


def accept(config, node, file):
    """Accept an invitation, after a first answer of "no"; return the words to compare."""
    address = node.addresses()["peer"]
    command = ["partner", "accept", str(file), "--address", address, "--config", str(config)]
    declined = CliRunner().invoke(app, command, input="n\n")
    assert declined.exit_code == 1
    assert "the words at both sides" in declined.stderr
    assert f"warning: {address} is not encrypted" in declined.stderr

    done = call(*command, "--yes", "--json")
    assert done.exit_code == 0, done.stderr
    start_of_json = done.stdout.index("{\n")
    return json.loads(done.stdout[start_of_json:])["words"]


def test_two_invitations_make_two_partners_that_sign(tmp_path):
    with (
        new_node(tmp_path / "me", ME) as (my_config, me),
        new_node(tmp_path / "peer", PEER) as (peer_config, peer),
    ):
        my_invitation = tmp_path / "me.json"
        peer_invitation = tmp_path / "peer.json"
        invite(my_config, me, my_invitation)
        invite(peer_config, peer, peer_invitation)

        my_words = accept(my_config, me, peer_invitation)
        peer_words = accept(peer_config, peer, my_invitation)

        assert my_words == peer_words
        assert len(my_words.split()) == 6
        check_partner_must_sign(me, PEER)
        check_partner_must_sign(peer, ME)


def test_partners_by_invitation_seal_their_messages(tmp_path):
    with (
        new_node(tmp_path / "me", ME) as (my_config, me),
        new_node(tmp_path / "peer", PEER) as (peer_config, peer),
    ):
        invite(my_config, me, tmp_path / "me.json")
        invite(peer_config, peer, tmp_path / "peer.json")
        accept(my_config, me, tmp_path / "peer.json")
        (step,) = [step for step in me.protocol.try_route(PEER) if step.name == "sealing"]
        assert step.result is not Result.OK
        accept(peer_config, peer, tmp_path / "me.json")

        for node, partner in ((me, PEER), (peer, ME)):
            assert node.routes.table.routes[partner].sealing_mode == "required"
            (step,) = [step for step in node.protocol.try_route(partner) if step.name == "sealing"]
            assert step.result is Result.OK, step
            word = "sealed, and unsealed ones are refused"
            assert step.found == f"sent: {word}; received: {word}"


def test_a_partner_whose_invitation_has_no_sealing_key_is_not_sealed(tmp_path, keys):
    invitation = tmp_path / "theirs.json"
    write_invitation(invitation, PEER, "https://theirs", keys[0])
    with new_node(tmp_path / "me", ME) as (config, node):
        command = ["partner", "accept", str(invitation), "--address", "https://me", "--yes"]
        done = call(*command, "--config", str(config))

        assert node.routes.table.routes[PEER].sealing_mode == "off"
        assert "one of the two nodes offers no sealing key" in done.stdout


def test_control_requests_are_sealed_if_the_invitation_is_accepted_so(tmp_path, keys):
    invitation = tmp_path / "theirs.json"
    write_invitation(invitation, PEER, "https://theirs", keys[0])
    with new_node(tmp_path / "me", ME) as (config, node):
        command = ["partner", "accept", str(invitation), "--address", "https://me", "--yes"]
        command += ["--seal-control", "--config", str(config)]
        refused = call(*command)
        assert refused.exit_code == EXIT_BAD_INPUT
        assert "--seal-control needs a sealing key in both invitations" in refused.stderr
        assert node.routes.table.routes == {}

        offer = json.loads(invitation.read_text())
        offer["sealing_key"] = SealingKeyFile(tmp_path).ensure().public
        invitation.write_text(json.dumps(offer))
        done = call(*command)

        assert "control requests are sealed end to end, too" in done.stdout
        assert node.routes.table.routes[PEER].control_sealing == "required"
        listed = call_node("route", node, "list")
        assert "required, control required" in listed.stdout


def check_partner_must_sign(node, partner):
    """Check that the route to a partner works, and that unsigned requests are refused."""
    assert node.routes.table.routes[partner].signing_mode == "required"
    results = {step.name: step.result for step in node.protocol.try_route(partner)}
    assert results["way back"] is Result.OK
    body = {
        "task_id": "t",
        "role": "guest",
    }
    response = ask(
        node,
        "peer",
        "POST",
        POLL,
        json=body,
        headers={"x-source-node-id": partner},
    )
    assert response.json()["data"]["reason"] == "SIGNATURE_REFUSED"


@pytest.fixture
def keys(tmp_path):
    """Give three public keys."""
    return [Keyring(tmp_path / name).make("ed25519").public for name in "abc"]


def test_both_sides_see_the_same_words(keys):
    mine = {
        "node": "A",
        "address": "https://a",
        "keys": [keys[0]],
    }
    theirs = {
        "node": "B",
        "address": "https://a",
        "keys": [keys[1]],
    }
    assert six_words(mine, theirs) == six_words(theirs, mine)


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 1, 15, 16, 4096, 65535),
        (12345, 54321, 7, 70, 700, 7000),
    ],
)
def test_the_digits_beside_the_words_are_as_strong_as_the_words(numbers):
    """Different words have different digits, so that no forgery fits the digits alone."""
    syllables = [f"{c}{v}" for c in "bdfghjklmnprstvz" for v in "aiou"]
    words = []
    for number in numbers:
        first, second = syllables[number >> 10], syllables[number >> 4 & 63]
        words.append(first + second + "bdfghjklmnprstvz"[number & 15])
    assert digits_of(" ".join(words)) == " ".join(f"{number:05}" for number in numbers)


def test_a_replaced_sealing_key_changes_the_words(keys):
    mine = {"node": "A", "address": "https://a", "keys": [keys[0]], "sealing_key": "a"}
    theirs = {"node": "B", "address": "https://b", "keys": [keys[1]], "sealing_key": "b"}

    words = six_words(mine, theirs)

    assert six_words(mine, theirs | {"sealing_key": "thief"}) != words
    assert six_words(mine, theirs | {"sealing_key": None}) != words


def test_a_sealing_key_that_the_words_do_not_cover_is_not_used(keys):
    mine = {"node": "A", "address": "https://a", "keys": [keys[0]]}
    theirs = {"node": "B", "address": "https://b", "keys": [keys[1]], "sealing_key": "thief"}

    assert six_words(mine, theirs) == six_words(mine, theirs | {"sealing_key": None})
    assert sealing_between(mine, theirs) is None


def test_an_older_node_gets_the_same_words(keys):
    new = {"node": "A", "address": "https://a", "keys": [keys[0]], "sealing_key": "a"}
    old = {"node": "B", "address": "https://b", "keys": [keys[1]]}
    as_the_old_one_reads_it = {key: new[key] for key in ("node", "address", "keys")}

    assert six_words(new, old) == six_words(old, as_the_old_one_reads_it)


@pytest.mark.parametrize("replaced", ["keys", "address"])
def test_a_replaced_key_or_address_changes_the_words_to_compare(keys, replaced):
    mine = {
        "node": "A",
        "address": "https://a",
        "keys": [keys[0]],
    }
    theirs = {
        "node": "B",
        "address": "https://a",
        "keys": [keys[1]],
    }
    of_thief = {
        "keys": [keys[2]],
        "address": "https://thief",
    }

    forged = theirs | {replaced: of_thief[replaced]}

    assert six_words(mine, forged) != six_words(mine, theirs)


# ---------------------------------------------------------------- a partner that is already there


def test_an_existing_route_is_replaced_only_on_demand(tmp_path):
    ring = Keyring(tmp_path / "partner")
    old_key = ring.make("ed25519")
    new_key = ring.make("ed25519")
    invitation = tmp_path / "theirs.json"
    with new_node(tmp_path / "me", ME) as (config, node):
        command = ["partner", "accept", str(invitation), "--address", "https://me"]
        command += ["--yes", "--config", str(config)]
        write_invitation(invitation, PEER, "https://before", old_key.public)
        call(*command)
        assert node.routes.table.routes[PEER].url == "https://before"

        write_invitation(invitation, PEER, "https://after", new_key.public)
        refused = call(*command)
        assert refused.exit_code == 1
        assert f"https://before, keys: {old_key.id}; to replace that" in refused.stderr
        assert node.routes.table.routes[PEER].url == "https://before"

        disabled = {"route": {"enabled": False}}
        response = ask(
            node,
            "operator",
            "PATCH",
            f"/api/v1/routes/{PEER}",
            json=disabled,
        )
        assert response.status_code == 200
        done = call(*command, "--replace", "--ca", Authority(tmp_path / "tls").file)
        assert done.exit_code == 0
        before = f"https://before, disabled, keys: {old_key.id}"
        assert f"replaces the route of {PEER}: {before}" in done.stderr
        route = node.routes.table.routes[PEER]
        assert route.url == "https://after"
        assert route.keys == (new_key.public,)
        assert route.enabled is True
        assert route.ca == str(tmp_path / "tls" / "ca.pem")


# ---------------------------------------------------------------- unusable invitations


@pytest.fixture
def config(tmp_path):
    """Give the configuration of a node that does not run."""
    file = tmp_path / "node.yml"
    initialize(file, ME)
    return str(file)


@pytest.fixture
def invitation(tmp_path):
    return tmp_path / "invitation.json"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"node": "A", "address": "http://a", "keys": []}',
        '{"node": "A", "address": "http://a\\nthe words at both sides: others", "keys": ["key"]}',
        "[1]",
    ],
    ids=["empty", "no keys", "a line break", "a list"],
)
def test_a_file_that_is_not_an_invitation_is_refused(config, invitation, text):
    invitation.write_text(text)
    command = ("partner", "accept", str(invitation), "--address", "https://me")

    refused = call(*command, "--config", config)

    assert refused.exit_code == 2
    assert "--address" not in refused.stderr


def test_accepting_requires_the_nodes_own_address(config, invitation):
    write_invitation(invitation, PEER, "https://peer")

    refused = call(
        "partner",
        "accept",
        str(invitation),
        "--config",
        config,
    )

    assert refused.exit_code == 2
    assert "give --address" in refused.stderr


def test_the_nodes_own_invitation_is_refused(config, invitation):
    write_invitation(invitation, ME, "https://me")
    command = ("partner", "accept", str(invitation), "--address", "https://me")

    message = call(*command, "--config", config).stderr

    assert message == (
        f"{invitation} is this node's own invitation: "
        "send it to the partner, and accept the partner's\n"
    )
    assert "是本节点自己的邀请：请发给合作方，并接受合作方的邀请" in translate(message, "zh")


def test_inviting_requires_an_address(config):
    assert call("partner", "invite", "--config", config).exit_code == 2


def test_the_address_of_an_invitation_needs_a_scheme(config):
    refused = call(
        "partner",
        "invite",
        "--address",
        "127.0.0.1:7380",
        "--config",
        config,
    )
    assert refused.exit_code == 2
    assert "must begin with https:// or http://" in refused.stderr


# ---------------------------------------------------------------- a report of the partner's check


def test_an_invitation_is_accepted_with_the_report_of_a_check(tmp_path, keys):
    invitation = tmp_path / "theirs.json"
    report = tmp_path / "report.json"
    write_invitation(invitation, PEER, "https://theirs", keys[0])
    with new_node(tmp_path / "me", ME) as (config, node):
        command = [
            "partner",
            "accept",
            str(invitation),
            "--address",
            "https://me",
            "--yes",
            "--report",
            str(report),
            "--config",
            str(config),
        ]
        write_report(report, ME)
        refused = call(*command)
        assert refused.exit_code == EXIT_BAD_INPUT
        assert "is another node" in refused.stderr
        assert node.routes.table.routes == {}

        write_report(report, PEER)
        done = call(*command)
        assert done.exit_code == 0
        assert "checked on 2026-03-04, 2 deviations" in done.stdout
        page = node.get("/api/v1/partner-reports").json()
        (stored,) = page["reports"]
        assert stored["node"] == PEER


def write_report(file, node_id):
    """Write a signed report about a node."""
    content = report_content(node_id)
    envelope = signed_report(content)
    file.write_text(json.dumps(envelope))
