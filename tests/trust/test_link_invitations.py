"""A node without an open port becomes a partner by an invitation that says so."""

import json

import pytest

from tests.cli import call
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER
from tests.linking import ANSWER_SECONDS, answer_of, wait_for_links
from tests.trust.test_partners import new_node


def invitation(config, *options):
    """Return what a node prints as its invitation."""
    done = call("partner", "invite", *options, "--config", str(config))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def accepted(config, file, *options):
    """Accept an invitation; return the result of the command."""
    return call("partner", "accept", str(file), *options, "--yes", "--config", str(config))


def route_step(config):
    """Return the step about routes of `doctor`."""
    report = json.loads(call("doctor", "--json", "--config", str(config)).stdout)
    return next(step for step in report["steps"] if step["name"] == "routes")


def test_two_invitations_of_which_one_has_no_address_make_links(tmp_path):
    with (
        new_node(tmp_path / "open", ME) as (open_config, open_node),
        new_node(tmp_path / "closed", PEER) as (closed_config, closed_node),
    ):
        address = ("--address", open_node.addresses()["peer"])
        from_open = tmp_path / "open.json"
        from_closed = tmp_path / "closed.json"
        from_open.write_text(invitation(open_config, *address))
        from_closed.write_text(invitation(closed_config, "--link"))

        assert accepted(open_config, from_closed, *address).exit_code == 0
        wait_for(
            lambda: "no link with" in route_step(open_config)["cause"],
            ANSWER_SECONDS,
            about="doctor misses the link",
        )
        assert f'bfia_links{{direction="in",node="{PEER}"}} 0.0' in metrics(open_node)
        assert accepted(closed_config, from_open, "--link").exit_code == 0

        wait_for_links(open_node, PEER, 2)
        assert answer_of(open_node, PEER)["node_id"] == PEER
        for node, partner, direction in ((open_node, PEER, "in"), (closed_node, ME, "out")):
            line = f'bfia_links{{direction="{direction}",node="{partner}"}} 2.0'
            assert line in metrics(node)
        wait_for(
            lambda: "links with 1 node stand" in route_step(open_config)["found"],
            ANSWER_SECONDS,
            about="doctor knows the links",
        )
        listed = call("route", "list", "--config", str(open_config)).stdout
        assert "dials in: 2 links since" in " ".join(listed.split())


def metrics(node):
    """Return the metrics of a node."""
    return node.get("/metrics").text


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "node.yml"
    done = call("init", "--node", ME, "--engine", "process", "-o", str(file))
    assert done.exit_code == 0
    return file


def test_a_node_without_an_address_is_offered_a_link(config):
    done = call("partner", "invite", "--config", str(config))
    assert done.exit_code == 2
    assert "give --link if it cannot" in done.stderr


def test_an_invitation_has_an_address_or_a_link(config):
    done = call("partner", "invite", "--link", "--address", "https://me", "--config", str(config))
    assert done.exit_code == 2
    assert "not both" in done.stderr


def test_two_nodes_without_an_address_are_told_to_use_an_open_one(config, tmp_path):
    file = tmp_path / "peer.json"
    theirs = {
        "node": PEER,
        "address": f"link://{PEER}",
        "keys": ["key"],
    }
    file.write_text(json.dumps(theirs))
    done = accepted(config, file, "--link")
    assert done.exit_code == 2
    assert "both need a route to an open node" in " ".join(done.stderr.split())
