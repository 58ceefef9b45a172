"""Under contract: datasets, permitted for a time and a number of jobs; audits of projects, flows and models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.management.wire import AUDITED
from gateway.domain.applications import Kind
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import GatewayError, NotFound
from gateway.identity.keys import Keyring
from gateway.jobs.trust import presented
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, uploaded
from tests.store.test_repositories import trained
from tests.trust.agreeing import applied, becomes, contract, person, requested, state, waiting

DATASET = "bank#credit, 2026"
"""commas separate permits in their header"""
PUBLISHED = "/datasets/bank/credit%2C%202026/published"
_numbers = count()


@contextmanager
def world_of(home: Path, level: str) -> Iterator[World]:
    """`ME` has a dataset and asks for so much; `PEER` wants to use it."""
    for node in (ME, PEER):
        Keyring(home / node / "state").make("ed25519")
    with two_nodes(home, me={"trust": {"level": level}, "data": {"grants": "listed"}}) as world:
        uploaded(world.me, *DATASET.split("#"), b"id,income\nsecret-a,1\nsecret-b,2\n")
        yield world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Nodes with a contract, for which `PEER` has applied; `ME` wants permits, and has a model."""
    with world_of(tmp_path_factory.mktemp("nodes"), "permit") as world:
        contract(world.peer, world.me)
        trained(world.me.store)
        person(world.me, "PUT", PUBLISHED, {"nodes": [PEER]})
        yield world


def a_job(dataset: str = DATASET) -> JobSpec:
    spec = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id=f"job-permit-{next(_numbers)}")
    params = {r: {"0": {"a": {"dataset_id": d}}} for r, d in (("host", dataset), ("guest", ""))}
    return replace(spec, task_params=params)


def created(world: World, spec: JobSpec) -> str:
    """Create a job of the partner here; return the reason of the refusal."""
    try:
        world.peer.peers.participant(ME, "bfia").create_job(spec, PEER)
    except GatewayError as error:
        return error.reason
    return ""


def permitted(world: World, **more: Any) -> tuple[int, int]:
    """Apply for the dataset and approve that; return the numbers at both."""
    mine = applied(world.peer, "dataset", world.me, DATASET, **more)
    theirs = waiting(world.me)
    person(world.me, "POST", f"/applications/{theirs}/approve", {})
    becomes(world.peer, mine, "APPROVED")
    return mine, theirs


def ended(
    world: World,
    mine: int,
    theirs: int,
) -> None:
    person(world.me, "POST", f"/applications/{theirs}/terminate", {})
    becomes(world.peer, mine, "TERMINATED")


def test_a_partner_sees_what_is_published_for_it_and_never_rows(world: World):
    listed = person(world.peer, "GET", f"/partners/{ME}/datasets")
    [record] = listed["records"]
    assert (record["dataset_id"], record["count"], listed["total"]) == (DATASET, 2, 1)
    assert [(c["name"], c["data_type"], c["distribution"]) for c in record["column_metas"]] == [
        ("id", "varchar", "DISCRETE"),
        ("income", "int", "CONTINUOUS"),
    ]
    assert "secret" not in str(listed)
    known = world.me.applications.contract_with(PEER).id
    found = world.peer.protocol.peer(ME)
    query = {"contract_id": known, "dataset_id": DATASET}
    assert (
        found.ask("/v1/interconn/dataset/pub/query", {}, "GET", query=query)["label_columns"] == ""
    )
    person(world.me, "DELETE", PUBLISHED)
    assert person(world.peer, "GET", f"/partners/{ME}/datasets")["records"] == []
    for dataset in (DATASET, "bank#none"):
        body = {
            "kind": "dataset",
            "partner": ME,
            "subject": dataset,
        }
        assert (
            person(world.peer, "POST", "/applications", body, 404)["data"]["reason"]
            == "DATASET_NOT_PUBLISHED"
        )
    person(world.me, "PUT", PUBLISHED, {})
    assert person(world.peer, "GET", f"/partners/{ME}/datasets")["total"] == 1


def test_a_job_needs_the_permit_and_runs_with_it(world: World):
    assert created(world, a_job()) == "NOT_AUTHORISED"
    world.me.sharing.grant(Address(*DATASET.split("#")), PEER, "ann")
    assert created(world, a_job()) == "PERMIT_MISSING"
    mine, theirs = permitted(world)
    kept = world.me.stored_applications
    wait_for(
        lambda: not kept.get(theirs).token,
        10,
        0.02,
        "the owner forgets the permit once it is delivered",
    )
    assert kept.get(theirs).digest
    spec = a_job()
    world.peer.coordinator.submit_job(spec, PEER)
    world.end_all(spec)
    assert (
        world.wait_status(spec.job_id, JobStatus.FINISHED, world.peer).outcome is Outcome.SUCCEEDED
    )
    assert world.me.stored_applications.get(theirs).jobs == 1
    spec = a_job()
    assert created(world, spec) == ""
    ended(world, mine, theirs)
    with pytest.raises(GatewayError) as refused:
        world.peer.peers.participant(ME, "bfia").start_job(spec.job_id, PEER)
    assert refused.value.reason == "NOT_AUTHORISED"  # the grant ended with it


def test_a_permit_ends_by_count_and_a_repeated_creation_counts_once(world: World):
    mine, theirs = permitted(world, jobs=2)
    first = a_job()
    assert [created(world, spec) for spec in (first, first, a_job(), a_job())] == [
        "",
        "",
        "",
        "PERMIT_USED_UP",
    ]
    world.peer.peers.participant(ME, "bfia").start_job(first.job_id, PEER)
    ended(world, mine, theirs)


def test_concurrent_jobs_use_a_permit_no_more_often_than_allowed(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    mine, theirs = permitted(world, jobs=2)
    monkeypatch.setattr(
        world.me.stored_applications, "use", lambda *_, **__: False
    )  # another was faster
    spec = a_job()
    assert (
        created(world, spec) == "PERMIT_USED_UP"
        and world.me.store.local_jobs.find(spec.job_id) is None
    )
    ended(world, mine, theirs)


def test_an_unpublished_dataset_cannot_be_applied_for_again(world: World):
    mine, theirs = applied(world.peer, "dataset", world.me, DATASET), waiting(world.me)
    person(world.me, "POST", f"/applications/{theirs}/reject", {})
    person(world.me, "DELETE", PUBLISHED)
    again = world.peer.stored_applications.get(mine)
    with pytest.raises(GatewayError) as refused:
        world.peer.management.apply(again)
    assert refused.value.reason == "DATASET_NOT_PUBLISHED"
    assert person(world.me, "GET", f"/applications/{theirs}")["status"] == "REJECTED"
    person(world.me, "PUT", PUBLISHED, {})


def test_a_permit_ends_by_time(world: World):
    mine, theirs = permitted(world, expires_at=(datetime.now(UTC) + timedelta(days=1)).isoformat())
    assert created(world, a_job()) == ""
    for node, number in ((world.me, theirs), (world.peer, mine)):
        node.stored_applications.change(
            number, lambda one: replace(one, expires_at=datetime.now(UTC))
        )
        becomes(node, number, "TERMINATED")
    assert created(world, a_job()) in ("NOT_AUTHORISED", "PERMIT_MISSING")


def test_a_permit_is_of_no_use_to_others_or_for_others(world: World):
    mine, theirs = permitted(world)
    token = world.peer.stored_applications.get(mine).token
    assert presented(f"other/1/{token}") == (world.me.stored_applications.get(theirs).digest,)
    assert presented("no permit, a/b") == ()
    world.peer.stored_applications.change(mine, lambda one: replace(one, token="guessed"))
    assert created(world, a_job()) == "PERMIT_MISSING"
    world.peer.stored_applications.change(mine, lambda one: replace(one, token=token))
    assert created(world, a_job()) == ""
    ended(world, mine, theirs)


def test_a_request_without_a_contract_learns_nothing(world: World):
    mine, theirs = permitted(world)
    audit = world.me.stored_applications.get(theirs).id
    known = world.me.applications.contract_with(PEER).id
    for path, query in (
        ("/dataset/pub/list", {"contract_id": known}),
        ("/project/list", {"contract_id": known}),
        ("/component/list", {"contract_id": known}),
        ("/dataset/audit/query", {"audit_id": audit}),
    ):
        assert (
            requested(world.me, "GET", path, query, STRANGER)["data"]["reason"] == "NOT_AUTHORISED"
        )
        assert requested(world.me, "GET", path, query, ME)["data"]["reason"] == "OWN_NODE_ID"
        assert requested(world.me, "GET", path, query, "")["data"]["reason"] == "NOT_AUTHORISED"
    for path, query in (
        ("/dataset/pub/list", {"contract_id": known}),
        ("/dataset/audit/query", {"audit_id": audit}),
    ):
        said = requested(world.me, "GET", path, query, THIRD)["data"]["reason"]
        nowhere = requested(world.me, "GET", path, dict.fromkeys(query, "none"), THIRD)["data"][
            "reason"
        ]
        assert said == nowhere and said in ("CONTRACT_UNKNOWN", "APPLICATION_UNKNOWN")
    ended(world, mine, theirs)


@pytest.mark.parametrize("level", ["known", "contract"])
def test_what_a_level_asks_for(tmp_path: Path, level: str):
    with world_of(tmp_path, level) as world:
        world.me.sharing.grant(Address(*DATASET.split("#")), PEER, "ann")
        spec = a_job()
        assert created(world, spec) == ("" if level == "known" else "NO_CONTRACT")
        if level == "contract":
            plan = world.peer.peers.participant(ME, "bfia").dry_run(spec, PEER)
            assert any("NO_CONTRACT" in item.cause for item in plan)
            mine, _ = contract(world.peer, world.me)
            assert created(world, spec) == ""
            person(world.peer, "POST", f"/applications/{mine}/terminate", {})
            assert created(world, a_job()) != ""


# ---------------------------------------------------------------- audits of projects, flows and models

PROJECT = {
    "name": "scoring",
    "type": "HETERO_FL",
    "datasets": [{"dataset_id": "shop#orders"}],
}
FIELDS: dict[Kind, dict[str, Any]] = {
    Kind.PROJECT: PROJECT,
    Kind.FLOW: {"name": "评分", "dag": {"components": []}},
    Kind.MODEL: {"apply_project_id": "project-1"},
}
SUBJECTS = {
    Kind.PROJECT: "project-1",
    Kind.FLOW: "flow-1",
    Kind.MODEL: "流程 1",
}


def apply(
    world: World,
    kind: Kind,
    **more: Any,
) -> tuple[int, int]:
    """Apply for something of `ME`; return the numbers at both."""
    mine = applied(world.peer, str(kind), world.me, SUBJECTS[kind], fields=FIELDS[kind] | more)
    return mine, waiting(world.me)


def granted(world: World) -> tuple[str, ...]:
    return world.me.models.all("流程 1")[0].granted


@pytest.mark.parametrize("kind", FIELDS)
def test_an_approval_is_valid_with_a_permit_until_either_node_ends_it(world: World, kind: Kind):
    mine, theirs = apply(world, kind)
    assert (
        person(world.me, "GET", f"/applications/{theirs}")["request"].items()
        >= FIELDS[kind].items()
    )
    person(world.me, "POST", f"/applications/{theirs}/approve", {})
    becomes(world.peer, mine, "APPROVED")
    kept = world.peer.stored_applications.get(mine)
    assert kept.token and kept.level == AUDITED[kind].level
    assert granted(world) == ((PEER,) if kind is Kind.MODEL else ())
    person(world.peer, "POST", f"/applications/{mine}/terminate", {})
    becomes(world.me, theirs, "TERMINATED")
    assert granted(world) == ()
    mine, theirs = apply(world, kind)
    person(world.me, "POST", f"/applications/{theirs}/reject", {"reason": "not this year"})
    becomes(world.peer, mine, "REJECTED")
    audit = {"audit_id": world.peer.stored_applications.get(mine).id}
    asked = world.peer.protocol.peer(ME).ask(
        f"/v1/interconn/{kind}/audit/query", {}, "GET", query=audit
    )
    assert asked["status"] == "REJECTED"


def test_what_is_approved_while_the_partner_ends_it_ends_too(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    mine, theirs = apply(world, Kind.MODEL)
    kept = world.me.stored_applications
    find = kept.find

    def then_approved(*about: Any) -> Any:
        if found := find(*about):
            monkeypatch.undo()
            person(world.me, "POST", f"/applications/{theirs}/approve", {})
        return found

    audit = kept.get(theirs).id
    monkeypatch.setattr(kept, "find", then_approved)
    world.me.applications.end(Kind.MODEL, audit, PEER)
    assert state(world.me, theirs) == "TERMINATED" and granted(world) == ()
    person(world.peer, "POST", f"/applications/{mine}/terminate", {})


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
    found = peer.ask("/v1/interconn/project/query", {}, "GET", query=query)
    assert (found["nodes"], found["datasets"]) == ([PEER, ME], {PEER: ["shop#orders"]})
    with pytest.raises(GatewayError, match="no project of that id"):
        peer.ask(
            "/v1/interconn/project/query", {}, "GET", query=query | {"project_id": "project-2"}
        )
    listed = person(world.peer, "GET", f"/partners/{ME}/components")["records"]
    assert {one["code"] for one in listed} >= {"vendor/Thing", "vendor/Judge"}
    query = {
        "contract_id": known,
        "code": "vendor/Thing",
        "version": "1.0.0",
    }
    found = peer.ask("/v1/interconn/component/query", {}, "GET", query=query)
    assert (found["status"], found["outputs"][0]["name"]) == ("ENABLED", "out")
    with pytest.raises(NotFound, match="no component of that code and version"):
        peer.ask("/v1/interconn/component/query", {}, "GET", query=query | {"version": "9"})
    person(world.me, "PATCH", f"/routes/{PEER}", {"route": {"components": "other/*"}})
    assert person(world.peer, "GET", f"/partners/{ME}/components")["records"] == []
    person(world.me, "PATCH", f"/routes/{PEER}", {"route": {"components": "*"}})
    assert requested(world.me, "GET", "/project/query", query, THIRD)["code"] != 0


def test_only_the_two_nodes_can_change_or_see_an_application(world: World):
    mine, theirs = apply(world, Kind.FLOW)
    audit = world.me.stored_applications.get(theirs).id
    senders = {
        STRANGER: "NOT_AUTHORISED",
        "": "NOT_AUTHORISED",
        ME: "OWN_NODE_ID",
        THIRD: "APPLICATION_UNKNOWN",
    }
    for kind in AUDITED:
        for method, word, body in (
            ("POST", "confirm", {"audit_id": audit, "status": "APPROVED"}),
            ("POST", "terminate", {"audit_id": audit}),
            ("GET", "query", {"audit_id": audit}),
        ):
            for sender, reason in senders.items():
                said = requested(world.me, method, f"/{kind}/audit/{word}", body, sender)
                assert said["data"]["reason"] == reason, (kind, word, sender)
        body = {
            "audit_id": "x",
            "contract_id": "x",
            AUDITED[kind].subject: "x",
            **FIELDS.get(kind, {}),
        }
        said = requested(world.me, "POST", f"/{kind}/audit/apply", body, THIRD)
        assert said["data"]["reason"] in ("CONTRACT_UNKNOWN", "NO_CONTRACT")
    wrong = world.peer.protocol.peer(ME)
    for status in ("APPLIED", "TERMINATED", "OTHER"):
        with pytest.raises(GatewayError) as refused:
            body = {"audit_id": audit, "status": status}
            wrong.ask("/v1/interconn/flow/audit/confirm", body)
        assert [problem.path for problem in refused.value.problems] == ["status"]
    assert state(world.me, theirs) == state(world.peer, mine) == "APPLIED"
