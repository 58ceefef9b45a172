"""ALL_SITES in a job means the nodes with which its project is agreed, and no others."""

from datetime import timedelta

import pytest

from gateway.domain.applications import (
    APPLIED,
    APPROVED,
    REJECTED,
    TERMINATED,
    Application,
    Kind,
    Side,
)
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.inprocess import ME, PEER, STRANGER
from tests.trust.agreeing import (
    apply_for,
    approve,
    change_application,
    make_contract,
    newest_waiting,
    two_nodes,
)
from tests.world import NodeSetup

NODE = NodeSetup()
PROJECT = "project-1"


@pytest.fixture(autouse=True)
def without_applications(node):
    """Remove the applications of each test from the shared node."""
    yield
    for application in node.stored_applications.list():
        node.stored_applications.drop(application.number)


def store_project(node, partner, side, status):
    """Store an application for the project; ``side`` is the applicant's."""
    audit_id = f"audit-{partner}-{side}"
    application = Application(
        Kind.PROJECT,
        audit_id,
        partner,
        side,
        PROJECT,
        {},
        node.clock(),
        status,
    )
    assert node.stored_applications.add(application)


def nodes_of_job(node):
    """Return the nodes of a job between this node and ALL_SITES of the project."""
    spec = a_spec(
        roles={
            "guest": (ME,),
            "host": ("ALL_SITES",),
        },
        flow_id=PROJECT,
    )
    return [party.node for party in node.offers.expanded(spec).parties]


def check_project_is_unknown(node):
    """Check that a job with ALL_SITES is refused."""
    with pytest.raises(Invalid) as refusal:
        nodes_of_job(node)
    assert refusal.value.reason == "PROJECT_UNKNOWN"


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    "status",
    [APPLIED, REJECTED, TERMINATED],
)
def test_a_project_that_is_not_agreed_expands_to_no_node(node, side, status):
    store_project(node, STRANGER, side, status)
    check_project_is_unknown(node)

    store_project(node, PEER, Side.MINE, APPROVED)
    assert nodes_of_job(node) == [ME, PEER]


def test_an_own_project_takes_precedence_over_a_partners_of_that_id(node):
    store_project(node, STRANGER, Side.THEIRS, APPROVED)
    assert nodes_of_job(node) == [ME, STRANGER]

    store_project(node, PEER, Side.MINE, APPROVED)
    assert nodes_of_job(node) == [ME, PEER]


def test_two_partners_projects_of_one_id_expand_to_no_node(node):
    store_project(node, STRANGER, Side.THEIRS, APPROVED)
    store_project(node, PEER, Side.THEIRS, APPROVED)
    check_project_is_unknown(node)


def test_an_expired_project_expands_to_no_node(node):
    store_project(node, PEER, Side.MINE, APPROVED)
    [application] = node.stored_applications.list()
    one_second_ago = node.clock() - timedelta(seconds=1)
    change_application(
        node,
        application.number,
        expires_at=one_second_ago,
    )

    check_project_is_unknown(node)
    assert node.offers.projects(PEER) == []


def test_a_partner_sees_the_projects_that_have_not_expired(node):
    store_project(node, PEER, Side.MINE, APPROVED)

    [project] = node.offers.projects(PEER)

    assert project.id == PROJECT
    assert project.nodes == [ME, PEER]


def test_an_application_of_a_partner_adds_no_node_to_a_job(tmp_path):
    with two_nodes(tmp_path) as (me, peer):
        make_contract(peer, me)
        apply_for(
            peer,
            "project",
            me,
            PROJECT,
            fields={"name": "scoring"},
        )
        check_project_is_unknown(me)

        approve(me, newest_waiting(me))
        assert nodes_of_job(me) == [ME, PEER]
