"""ALL_SITES of a job of ours stands for the nodes with which its project is agreed, and for nobody else."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.applications import (
    APPLIED,
    APPROVED,
    REJECTED,
    TERMINATED,
    Application,
    Kind,
    Side,
)
from gateway.domain.approval import AuditStatus
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.inprocess import ME, PEER, STRANGER, running
from tests.trust.agreeing import applied, contract, person, two_nodes, waiting

PROJECT = "project-1"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(gateway: Gateway) -> Iterator[Gateway]:
    yield gateway
    for left in gateway.stored_applications.list():
        gateway.stored_applications.drop(left.number)


def a_project(
    node: Gateway,
    partner: str,
    side: Side,
    status: AuditStatus,
) -> None:
    new = Application(
        Kind.PROJECT, f"audit-{partner}-{side}", partner, side, PROJECT, {}, node.clock(), status
    )
    assert node.stored_applications.add(new)


def expanded(node: Gateway) -> list[str]:
    spec = a_spec(roles={"guest": (ME,), "host": ("ALL_SITES",)}, flow_id=PROJECT)
    return [party.node for party in node.offers.expanded(spec).parties]


def refused(node: Gateway) -> str:
    with pytest.raises(Invalid) as error:
        expanded(node)
    return str(error.value.reason)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("status", [APPLIED, REJECTED, TERMINATED])
def test_a_project_that_is_not_agreed_expands_to_nobody(
    node: Gateway,
    side: Side,
    status: AuditStatus,
):
    a_project(node, STRANGER, side, status)
    assert refused(node) == "PROJECT_UNKNOWN"
    a_project(node, PEER, Side.MINE, APPROVED)
    assert expanded(node) == [ME, PEER]


def test_a_partners_project_does_not_stand_for_one_of_ours(node: Gateway):
    a_project(node, STRANGER, Side.THEIRS, APPROVED)
    assert expanded(node) == [ME, STRANGER]
    a_project(node, PEER, Side.MINE, APPROVED)
    assert expanded(node) == [ME, PEER]


def test_two_partners_projects_of_one_id_expand_to_nobody(node: Gateway):
    for partner in (STRANGER, PEER):
        a_project(node, partner, Side.THEIRS, APPROVED)
    assert refused(node) == "PROJECT_UNKNOWN"


def test_an_agreed_project_that_is_over_expands_to_nobody(node: Gateway):
    a_project(node, PEER, Side.MINE, APPROVED)
    [known] = node.stored_applications.list()
    past = node.clock() - timedelta(seconds=1)
    node.stored_applications.change(known.number, lambda one: replace(one, expires_at=past))
    assert refused(node) == "PROJECT_UNKNOWN"


def test_an_application_of_a_partner_adds_no_node_to_a_job(tmp_path: Path):
    with two_nodes(tmp_path) as (me, peer):
        contract(peer, me)
        applied(peer, "project", me, PROJECT, fields={"name": "scoring"})
        assert refused(me) == "PROJECT_UNKNOWN"
        person(me, "POST", f"/applications/{waiting(me)}/approve", {})
        assert expanded(me) == [ME, PEER]
