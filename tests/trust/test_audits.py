"""Audits of projects, flows and models between two nodes with a contract, and what a partner without one gets."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapter.bfia.management.wire import AUDITED
from gateway.domain.applications import Kind
from gateway.errors import GatewayError
from gateway.identity.keys import Keyring
from tests.contracts.apis import THIRD, World, two_nodes
from tests.inprocess import ME, PEER, STRANGER
from tests.store.test_repositories import trained
from tests.trust.agreeing import applied, becomes, contract, person, requested, state, waiting

PROJECT = {"name": "scoring", "type": "HETERO_FL", "datasets": [{"dataset_id": "shop#orders"}]}
FIELDS: dict[Kind, dict[str, Any]] = {
    Kind.PROJECT: PROJECT,
    Kind.FLOW: {"name": "评分", "dag": {"components": []}},
    Kind.MODEL: {"apply_project_id": "project-1"},
}
SUBJECTS = {Kind.PROJECT: "project-1", Kind.FLOW: "flow-1", Kind.MODEL: "流程 1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Nodes with a contract, for which `PEER` has applied; `ME` has a model."""
    home = tmp_path_factory.mktemp("nodes")
    for node in (ME, PEER):
        Keyring(home / node / "state").make("ed25519")
    with two_nodes(home) as world:
        contract(world.peer, world.me)
        trained(world.me.store)
        yield world


def apply(world: World, kind: Kind, **more: Any) -> tuple[int, int]:
    """Apply for something of `ME`; return the numbers at both."""
    mine = applied(world.peer, str(kind), world.me, SUBJECTS[kind], fields=FIELDS[kind] | more)
    return mine, waiting(world.me)


def granted(world: World) -> tuple[str, ...]:
    return world.me.models.all("流程 1")[0].granted


@pytest.mark.parametrize("kind", FIELDS)
def test_an_approval_is_valid_with_a_permit_until_either_node_ends_it(world: World, kind: Kind):
    mine, theirs = apply(world, kind)
    assert person(world.me, "GET", f"/applications/{theirs}")["request"].items() >= FIELDS[kind].items()
    person(world.me, "POST", f"/applications/{theirs}/approve", {})
    becomes(world.peer, mine, "APPROVED")
    kept = world.peer.kept_applications.get(mine)
    assert kept.token and kept.level == AUDITED[kind].level
    assert granted(world) == ((PEER,) if kind is Kind.MODEL else ())
    person(world.peer, "POST", f"/applications/{mine}/terminate", {})
    becomes(world.me, theirs, "TERMINATED")
    assert granted(world) == ()


@pytest.mark.parametrize("kind", FIELDS)
def test_a_rejection_is_recorded_at_both_nodes_and_shown_by_the_query(world: World, kind: Kind):
    mine, theirs = apply(world, kind)
    person(world.me, "POST", f"/applications/{theirs}/reject", {"reason": "not this year"})
    becomes(world.peer, mine, "REJECTED")
    audit = world.peer.kept_applications.get(mine).id
    found = world.peer.protocol.peer(ME).manage(
        "GET", f"/v1/interconn/{kind}/audit/query", {}, {"audit_id": audit}
    )
    assert found["status"] == "REJECTED"
    again = {"audit_id": audit, **world.peer.kept_applications.get(mine).request}
    world.peer.protocol.peer(ME).manage("POST", f"/v1/interconn/{kind}/audit/apply", again)
    assert state(world.me, theirs) == "APPLIED"
    person(world.me, "POST", f"/applications/{theirs}/reject", {})


def test_a_permit_whose_confirmation_was_lost_comes_with_the_query(world: World, monkeypatch: pytest.MonkeyPatch):
    mine, theirs = apply(world, Kind.FLOW)

    def lost(_: Any) -> None:
        raise GatewayError("lost on the way")

    monkeypatch.setattr(world.me.management, "deliver", lost)
    person(world.me, "POST", f"/applications/{theirs}/approve", {})
    assert world.me.kept_applications.get(theirs).token
    assert person(world.peer, "POST", f"/applications/{mine}/refresh")["status"] == "APPROVED"
    assert world.peer.kept_applications.get(mine).token


def test_what_is_approved_while_the_partner_ends_it_ends_too(world: World, monkeypatch: pytest.MonkeyPatch):
    mine, theirs = apply(world, Kind.MODEL)
    kept = world.me.kept_applications
    find = kept.find

    def then_approved(*about: Any) -> Any:
        found = find(*about)
        monkeypatch.undo()
        person(world.me, "POST", f"/applications/{theirs}/approve", {})
        return found

    audit = kept.get(theirs).id
    monkeypatch.setattr(kept, "find", then_approved)
    world.me.applications.end(Kind.MODEL, audit, PEER)
    assert state(world.me, theirs) == "TERMINATED" and granted(world) == ()
    person(world.peer, "POST", f"/applications/{mine}/terminate", {})


def test_a_model_stays_granted_while_another_application_for_it_is_in_force(world: World):
    first, second = (apply(world, Kind.MODEL)[1] for _ in range(2))
    for number in (first, second):
        person(world.me, "POST", f"/applications/{number}/approve", {})
    person(world.me, "POST", f"/applications/{first}/terminate", {})
    assert granted(world) == (PEER,)
    person(world.me, "POST", f"/applications/{second}/terminate", {})
    assert granted(world) == ()


def test_a_model_that_is_not_here_cannot_be_approved(world: World):
    mine = applied(world.peer, "model", world.me, "none", fields=FIELDS[Kind.MODEL])
    theirs = waiting(world.me)
    refused = person(world.me, "POST", f"/applications/{theirs}/approve", {}, 404)
    assert refused["data"]["reason"] == "MODEL_UNKNOWN" and state(world.me, theirs) == "APPLIED"
    person(world.peer, "POST", f"/applications/{mine}/terminate", {})


def test_a_project_and_the_components_are_seen_by_their_partner_only(world: World):
    apply(world, Kind.PROJECT, description="for 2027")
    for asking, other in ((world.peer, ME), (world.me, PEER)):
        [found] = person(asking, "GET", f"/partners/{other}/projects")["records"]
        assert found == {
            "project_id": "project-1",
            "name": "scoring",
            "type": "HETERO_FL",
            "description": "for 2027",
        }
    known = world.me.applications.contract_with(PEER).id
    peer = world.peer.protocol.peer(ME)
    query = {"contract_id": known, "project_id": "project-1"}
    found = peer.manage("GET", "/v1/interconn/project/query", {}, query)
    assert (found["nodes"], found["datasets"]) == ([PEER, ME], {PEER: ["shop#orders"]})
    listed = person(world.peer, "GET", f"/partners/{ME}/components")["records"]
    assert {one["code"] for one in listed} >= {"vendor/Thing", "vendor/Judge"}
    query = {"contract_id": known, "code": "vendor/Thing", "version": "1.0.0"}
    found = peer.manage("GET", "/v1/interconn/component/query", {}, query)
    assert (found["status"], found["outputs"][0]["name"]) == ("ENABLED", "out")
    person(world.me, "PATCH", f"/routes/{PEER}", {"route": {"components": "other/*"}})
    assert person(world.peer, "GET", f"/partners/{ME}/components")["records"] == []
    person(world.me, "PATCH", f"/routes/{PEER}", {"route": {"components": None}})
    assert requested(world.me, "GET", "/project/query", query, THIRD)["code"] != 0


def test_only_the_two_nodes_can_change_or_see_an_application(world: World):
    mine, theirs = apply(world, Kind.FLOW)
    audit = world.me.kept_applications.get(theirs).id
    senders = {STRANGER: "NOT_AUTHORISED", "": "NOT_AUTHORISED", ME: "OWN_NODE_ID", THIRD: "APPLICATION_UNKNOWN"}
    for kind in AUDITED:
        for method, word, body in (
            ("POST", "confirm", {"audit_id": audit, "status": "APPROVED"}),
            ("POST", "terminate", {"audit_id": audit}),
            ("GET", "query", {"audit_id": audit}),
        ):
            for sender, reason in senders.items():
                said = requested(world.me, method, f"/{kind}/audit/{word}", body, sender)
                assert said["data"]["reason"] == reason, (kind, word, sender)
        body = {"audit_id": "x", "contract_id": "x", AUDITED[kind].subject: "x", **FIELDS.get(kind, {})}
        said = requested(world.me, "POST", f"/{kind}/audit/apply", body, THIRD)
        assert said["data"]["reason"] in ("CONTRACT_UNKNOWN", "NO_CONTRACT")
    wrong = world.peer.protocol.peer(ME)
    for status in ("APPLIED", "TERMINATED", "OTHER"):
        with pytest.raises(GatewayError) as refused:
            body = {"audit_id": audit, "status": status}
            wrong.manage("POST", "/v1/interconn/flow/audit/confirm", body)
        assert [problem.path for problem in refused.value.problems] == ["status"]
    assert state(world.me, theirs) == state(world.peer, mine) == "APPLIED"
