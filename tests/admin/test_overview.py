"""What a person at a node looks at first: what waits, and whether partners answer."""

from datetime import timedelta

import pytest

from gateway.domain.applications import APPROVED, Side
from tests.admin.test_about import get
from tests.cleaning.ended import ago
from tests.domain.test_applications import an_application
from tests.domain.test_sharing import a_grant
from tests.inprocess import PEER, STRANGER, Node
from tests.world import UNREACHABLE


@pytest.fixture
def node(world) -> Node:
    """A node with a partner that answers, one that does not, and a disabled one."""
    node = world.node(
        routes={
            STRANGER: UNREACHABLE,
            "JG0100003300000030": UNREACHABLE | {"enabled": False},
        }
    )
    world.connect(node, world.node(node_id=PEER))
    return node


def test_partners_are_listed_with_their_answers(node):
    partners = get(node, "partners")["partners"]

    answers = {partner["node"]: partner["answers"] for partner in partners}
    assert answers == {
        STRANGER: False,
        "JG0100003300000030": None,
        PEER: True,
    }


def test_a_node_lists_what_waits_and_what_ends_soon(node):
    node.stored_applications.add(an_application())
    node.stored_applications.add(an_application(Side.MINE, id="mine"))
    in_a_week = ago(-timedelta(days=7).total_seconds())
    permit = an_application(
        id="permit",
        status=APPROVED,
        expires_at=in_a_week,
    )
    node.stored_applications.add(permit)
    node.sharing.grants.put(a_grant(expires_at=ago(-60)))

    waiting = get(node, "waiting")

    assert waiting["approvals"] == 0
    assert waiting["applications"] == 1
    assert waiting["certificates"] == []
    kinds = [entry["kind"] for entry in waiting["expiring"]]
    assert kinds == ["grant", "dataset"]
