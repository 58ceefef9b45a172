"""Under contract: permits for datasets by time and number of jobs; audits of other things."""

from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from adapter.bfia.management.wire import AUDITED
from gateway.domain.applications import Kind, jobs_in_words
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import GatewayError, NotFound
from gateway.jobs.trust import presented_digests
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER
from tests.store.builders import store_training
from tests.trust.agreeing import (
    apply_for,
    approve,
    call_api,
    change_application,
    edit_route,
    make_contract,
    newest_waiting,
    reject,
    send_unsigned,
    status_of,
    terminate,
    wait_for_status,
)
from tests.trust.permits import (
    ADDRESS,
    DATASET,
    PUBLISHED,
    a_job,
    create_at_me,
    end_permit,
    flow_of,
    get_permit,
    world_with_contract,
    world_with_dataset,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Nodes with a contract on the application of `PEER`; `ME` requires permits and has a model."""
    with world_with_contract(tmp_path_factory.mktemp("nodes"), "permit") as world:
        store_training(world.me.store)
        yield world


def contract_id(world):
    """Return the id of the contract between the nodes."""
    return world.me.applications.contract_with(PEER).id


def query_me(world, path, query):
    """Query a path of `ME` as `PEER` does, signed."""
    return world.peer.protocol.peer(ME).ask(f"/v1/interconn{path}", {}, "GET", query=query)


# ---------------------------------------------------------------- datasets and their permits


def test_a_partner_sees_the_description_of_a_dataset_and_no_rows(world):
    listed = call_api(world.peer, "GET", f"/partners/{ME}/datasets")

    [record] = listed["records"]
    assert record["dataset_id"] == DATASET
    assert record["count"] == 2
    assert listed["total"] == 1
    id_column, income_column = record["column_metas"]
    assert id_column["name"] == "id"
    assert id_column["data_type"] == "varchar"
    assert id_column["distribution"] == "DISCRETE"
    assert income_column["name"] == "income"
    assert income_column["data_type"] == "int"
    assert income_column["distribution"] == "CONTINUOUS"
    assert "secret" not in str(listed)
    query = {
        "contract_id": contract_id(world),
        "dataset_id": DATASET,
    }
    assert query_me(world, "/dataset/pub/query", query)["label_columns"] == ""


def test_an_unpublished_dataset_is_like_one_that_does_not_exist(world):
    call_api(world.me, "DELETE", PUBLISHED)

    assert call_api(world.peer, "GET", f"/partners/{ME}/datasets")["records"] == []
    for dataset in (DATASET, "bank#none"):
        body = {
            "kind": "dataset",
            "partner": ME,
            "subject": dataset,
        }
        refusal = call_api(
            world.peer,
            "POST",
            "/applications",
            body,
            404,
        )
        assert refusal["data"]["reason"] == "DATASET_NOT_PUBLISHED"

    call_api(world.me, "PUT", PUBLISHED, {})
    assert call_api(world.peer, "GET", f"/partners/{ME}/datasets")["total"] == 1


def test_a_job_needs_the_permit_and_runs_with_it(world):
    assert create_at_me(world, a_job()) == "NOT_AUTHORISED"
    world.me.sharing.grant(ADDRESS, PEER, "ann")
    assert create_at_me(world, a_job()) == "PERMIT_MISSING"
    world.me.sharing.revoke(ADDRESS, PEER, "ann")  # the approval would leave it as it is

    mine, theirs = get_permit(world)
    stored = world.me.stored_applications
    wait_for(
        lambda: not stored.get(theirs).token,
        10,
        0.02,
        "the owner forgets the permit once it is delivered",
    )
    assert stored.get(theirs).digest

    spec = a_job()
    world.peer.coordinator.submit_job(spec, PEER)
    world.end_all(spec)
    job = world.wait_status(
        spec.job_id,
        JobStatus.FINISHED,
        world.peer,
    )
    assert job.outcome is Outcome.SUCCEEDED
    assert stored.get(theirs).jobs == 1

    spec = a_job()
    assert create_at_me(world, spec) == ""
    end_permit(world, mine, theirs)
    with pytest.raises(GatewayError) as refusal:
        world.peer.peers.participant(ME, "bfia").start_job(spec.job_id, PEER)
    assert refusal.value.reason == "NOT_AUTHORISED"  # the grant ended with the permit


def test_a_permit_ends_by_count_and_a_repeated_creation_counts_once(world):
    mine, theirs = get_permit(
        world,
        jobs=2,
    )
    first = a_job()

    assert create_at_me(world, first) == ""
    assert create_at_me(world, first) == ""
    assert create_at_me(world, a_job()) == ""
    assert create_at_me(world, a_job()) == "PERMIT_USED_UP"
    # The applicant counts like the owner: neither the repetition nor the refused job.
    for node, number in ((world.peer, mine), (world.me, theirs)):
        words = jobs_in_words(node.stored_applications.get(number))
        assert words == "2 of 2 used"

    world.peer.peers.participant(ME, "bfia").start_job(first.job_id, PEER)
    end_permit(world, mine, theirs)


def test_concurrent_jobs_use_a_permit_no_more_often_than_allowed(world, monkeypatch):
    mine, theirs = get_permit(
        world,
        jobs=2,
    )
    another_job_was_first = Mock(return_value=False)
    monkeypatch.setattr(world.me.stored_applications, "use", another_job_was_first)
    spec = a_job()

    assert create_at_me(world, spec) == "PERMIT_USED_UP"

    assert world.me.store.local_jobs.find(spec.job_id) is None
    end_permit(world, mine, theirs)


def test_an_unpublished_dataset_cannot_be_applied_for_again(world):
    mine = apply_for(
        world.peer,
        "dataset",
        world.me,
        DATASET,
    )
    theirs = newest_waiting(world.me)
    reject(world.me, theirs)
    call_api(world.me, "DELETE", PUBLISHED)
    application = world.peer.stored_applications.get(mine)

    with pytest.raises(GatewayError) as refusal:
        world.peer.management.apply(application)

    assert refusal.value.reason == "DATASET_NOT_PUBLISHED"
    assert status_of(world.me, theirs) == "REJECTED"
    call_api(world.me, "PUT", PUBLISHED, {})


def test_a_permit_ends_by_time(world):
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    mine, theirs = get_permit(
        world,
        expires_at=tomorrow,
    )
    assert create_at_me(world, a_job()) == ""

    for node, number in ((world.me, theirs), (world.peer, mine)):
        change_application(
            node,
            number,
            expires_at=datetime.now(UTC),
        )
        wait_for_status(node, number, "TERMINATED")

    assert create_at_me(world, a_job()) == "NOT_AUTHORISED"  # the grant ended with the permit
    world.me.sharing.grant(ADDRESS, PEER, "ann")
    with pytest.raises(GatewayError, match="the permit of the requesting node has expired") as end:
        world.peer.peers.participant(ME, "bfia").create_job(a_job(), PEER)
    assert end.value.reason == "PERMIT_MISSING"
    world.me.sharing.revoke(ADDRESS, PEER, "ann")


def test_a_permit_is_valid_only_with_its_token(world):
    mine, theirs = get_permit(world)
    token = world.peer.stored_applications.get(mine).token
    assert presented_digests(f"other/1/{token}") == (
        world.me.stored_applications.get(theirs).digest,
    )
    assert presented_digests("no permit, a/b") == ()

    change_application(
        world.peer,
        mine,
        token="guessed",
    )
    assert create_at_me(world, a_job()) == "PERMIT_MISSING"
    change_application(
        world.peer,
        mine,
        token=token,
    )
    assert create_at_me(world, a_job()) == ""

    end_permit(world, mine, theirs)


@pytest.mark.parametrize(
    ("sender", "reason"),
    [
        (STRANGER, "NOT_AUTHORISED"),
        (ME, "OWN_NODE_ID"),
        ("", "NOT_AUTHORISED"),
    ],
    ids=["a stranger", "the node itself", "no name"],
)
def test_a_request_of_no_partner_learns_nothing(world, sender, reason):
    mine, theirs = get_permit(world)
    of_contract = {"contract_id": contract_id(world)}
    of_audit = {"audit_id": world.me.stored_applications.get(theirs).id}

    for path, query in (
        ("/dataset/pub/list", of_contract),
        ("/project/list", of_contract),
        ("/component/list", of_contract),
        ("/dataset/audit/query", of_audit),
    ):
        response = send_unsigned(
            world.me,
            "GET",
            path,
            query,
            sender,
        )
        assert response["data"]["reason"] == reason, path

    end_permit(world, mine, theirs)


def test_a_partner_without_the_contract_learns_nothing(world):
    mine, theirs = get_permit(world)
    audit_id = world.me.stored_applications.get(theirs).id

    for path, key, existing, reason in (
        ("/dataset/pub/list", "contract_id", contract_id(world), "CONTRACT_UNKNOWN"),
        ("/dataset/audit/query", "audit_id", audit_id, "APPLICATION_UNKNOWN"),
    ):
        for value in (existing, "none"):
            response = send_unsigned(
                world.me,
                "GET",
                path,
                {key: value},
                THIRD,
            )
            assert response["data"]["reason"] == reason

    end_permit(world, mine, theirs)


def test_level_known_requires_no_contract(tmp_path):
    with world_with_dataset(tmp_path, "known") as world:
        world.me.sharing.grant(ADDRESS, PEER, "ann")
        assert create_at_me(world, a_job()) == ""


def test_level_contract_requires_a_contract_that_is_valid(tmp_path):
    with world_with_dataset(tmp_path, "contract") as world:
        world.me.sharing.grant(ADDRESS, PEER, "ann")
        spec = a_job()
        assert create_at_me(world, spec) == "NO_CONTRACT"
        plan = world.peer.peers.participant(ME, "bfia").dry_run(spec, PEER)
        assert any("NO_CONTRACT" in problem.cause for problem in plan)

        mine, _ = make_contract(world.peer, world.me)
        assert create_at_me(world, spec) == ""

        terminate(world.peer, mine)
        assert create_at_me(world, a_job()) != ""


def test_a_plan_without_a_permit_advises_to_apply_for_one(tmp_path):
    with world_with_dataset(tmp_path, "permit") as world:
        world.me.sharing.grant(ADDRESS, PEER, "ann")
        make_contract(world.peer, world.me)

        plan = world.peer.peers.participant(ME, "bfia").dry_run(a_job(), PEER)

        (refusal,) = [item for item in plan if item.check == "datasets"]
        assert "bfia-gateway partner apply" in refusal.remedy


# ---------------------------------------------------------------- audits: projects, flows, models

PROJECT = {
    "name": "scoring",
    "type": "HETERO_FL",
    "datasets": [{"dataset_id": "shop#orders"}],
}
FIELDS = {
    Kind.PROJECT: PROJECT,
    Kind.FLOW: {
        "name": "评分",
        "dag": flow_of(a_job()),
    },
    Kind.MODEL: {"apply_project_id": "project-1"},
}
SUBJECTS = {
    Kind.PROJECT: "project-1",
    Kind.FLOW: "flow-applied-for",
    Kind.MODEL: "流程 1",
}


def apply_at_me(world, kind, **fields):
    """Apply to `ME` for an audit; return the application's numbers at `PEER` and at `ME`."""
    fields = FIELDS[kind] | fields
    mine = apply_for(
        world.peer,
        str(kind),
        world.me,
        SUBJECTS[kind],
        fields=fields,
    )
    return mine, newest_waiting(world.me)


def nodes_with_the_model(world):
    """Return the nodes that may use the model of `ME`."""
    return world.me.models.all(SUBJECTS[Kind.MODEL])[0].granted


@pytest.mark.parametrize("kind", FIELDS)
def test_an_approval_is_valid_with_a_permit_until_either_node_ends_it(world, kind):
    mine, theirs = apply_at_me(world, kind)
    shown_request = call_api(world.me, "GET", f"/applications/{theirs}")["request"]
    assert shown_request.items() >= FIELDS[kind].items()

    approve(world.me, theirs)
    wait_for_status(world.peer, mine, "APPROVED")
    application = world.peer.stored_applications.get(mine)
    assert application.token
    assert application.level == AUDITED[kind].level
    model_users = (PEER,) if kind is Kind.MODEL else ()
    assert nodes_with_the_model(world) == model_users

    terminate(world.peer, mine)
    wait_for_status(world.me, theirs, "TERMINATED")
    assert nodes_with_the_model(world) == ()


@pytest.mark.parametrize("kind", FIELDS)
def test_a_rejected_audit_can_be_queried(world, kind):
    mine, theirs = apply_at_me(world, kind)
    rejection = {"reason": "not this year"}
    call_api(world.me, "POST", f"/applications/{theirs}/reject", rejection)
    wait_for_status(world.peer, mine, "REJECTED")

    audit_id = world.peer.stored_applications.get(mine).id
    response = query_me(world, f"/{kind}/audit/query", {"audit_id": audit_id})

    assert response["status"] == "REJECTED"


def test_an_approval_that_crosses_its_end_by_the_partner_ends_too(world, monkeypatch):
    mine, theirs = apply_at_me(world, Kind.MODEL)
    stored = world.me.stored_applications
    find = stored.find

    def find_then_approve(*arguments):
        """Approve after the partner's request has read the application."""
        application = find(*arguments)
        if application:
            monkeypatch.undo()
            approve(world.me, theirs)
        return application

    monkeypatch.setattr(stored, "find", find_then_approve)
    world.me.applications.end(
        Kind.MODEL,
        stored.get(theirs).id,
        PEER,
    )

    assert status_of(world.me, theirs) == "TERMINATED"
    assert nodes_with_the_model(world) == ()
    terminate(world.peer, mine)


def test_an_unknown_model_cannot_be_approved(world):
    mine = apply_for(
        world.peer,
        "model",
        world.me,
        "none",
        fields=FIELDS[Kind.MODEL],
    )
    theirs = newest_waiting(world.me)

    refusal = call_api(
        world.me,
        "POST",
        f"/applications/{theirs}/approve",
        {},
        404,
    )

    assert refusal["data"]["reason"] == "MODEL_UNKNOWN"
    assert status_of(world.me, theirs) == "APPLIED"
    terminate(world.peer, mine)


# ---------------------------------------------------------------- what partners see of each other


def test_a_project_is_seen_by_its_two_partners_only(world):
    apply_at_me(
        world,
        Kind.PROJECT,
        description="for 2027",
    )

    for node, partner in ((world.peer, ME), (world.me, PEER)):
        [project] = call_api(node, "GET", f"/partners/{partner}/projects")["records"]
        assert project == {
            "project_id": "project-1",
            "name": "scoring",
            "type": "HETERO_FL",
            "description": "for 2027",
        }
    query = {
        "contract_id": contract_id(world),
        "project_id": "project-1",
    }
    project = query_me(world, "/project/query", query)
    assert project["nodes"] == [PEER, ME]
    assert project["datasets"] == {PEER: ["shop#orders"]}
    with pytest.raises(GatewayError, match="no project of that id"):
        query_me(world, "/project/query", query | {"project_id": "project-2"})
    assert send_unsigned(world.me, "GET", "/project/query", query, THIRD)["code"] != 0


def test_a_partner_sees_the_components_that_its_route_allows(world):
    listed = call_api(world.peer, "GET", f"/partners/{ME}/components")["records"]
    codes = {component["code"] for component in listed}
    assert codes >= {"vendor/Thing", "vendor/Judge"}

    query = {
        "contract_id": contract_id(world),
        "code": "vendor/Thing",
        "version": "1.0.0",
    }
    component = query_me(world, "/component/query", query)
    assert component["status"] == "ENABLED"
    assert component["outputs"][0]["name"] == "out"
    with pytest.raises(NotFound, match="no component of that code and version"):
        query_me(world, "/component/query", query | {"version": "9"})

    edit_route(
        world.me,
        PEER,
        components="other/*",
    )
    assert call_api(world.peer, "GET", f"/partners/{ME}/components")["records"] == []
    edit_route(
        world.me,
        PEER,
        components="*",
    )


@pytest.mark.parametrize(
    ("sender", "reason"),
    [
        (STRANGER, "NOT_AUTHORISED"),
        ("", "NOT_AUTHORISED"),
        (ME, "OWN_NODE_ID"),
        (THIRD, "APPLICATION_UNKNOWN"),
    ],
    ids=["a stranger", "no name", "the node itself", "another partner"],
)
def test_only_the_two_nodes_can_change_or_see_an_application(world, sender, reason):
    mine, theirs = apply_at_me(world, Kind.FLOW)
    audit_id = world.me.stored_applications.get(theirs).id

    for kind in AUDITED:
        for method, verb, fields in (
            ("POST", "confirm", {"status": "APPROVED"}),
            ("POST", "terminate", {}),
            ("GET", "query", {}),
        ):
            body = {"audit_id": audit_id, **fields}
            response = send_unsigned(
                world.me,
                method,
                f"/{kind}/audit/{verb}",
                body,
                sender,
            )
            assert response["data"]["reason"] == reason, (kind, verb)

    assert status_of(world.me, theirs) == "APPLIED"
    assert status_of(world.peer, mine) == "APPLIED"
    reject(world.me, theirs)


@pytest.mark.parametrize("kind", AUDITED)
def test_a_partner_without_the_contract_cannot_apply(world, kind):
    body = {
        "audit_id": "x",
        "contract_id": "x",
        AUDITED[kind].subject: "x",
        **FIELDS.get(kind, {}),
    }
    response = send_unsigned(
        world.me,
        "POST",
        f"/{kind}/audit/apply",
        body,
        THIRD,
    )
    assert response["data"]["reason"] in ("CONTRACT_UNKNOWN", "NO_CONTRACT")


def test_an_application_for_an_invalid_flow_is_refused_with_all_problems(world):
    task = flow_of(a_job())["components"][0]
    dag = {"components": [task, task, {**task, "name": ""}]}
    body = {
        "audit_id": "x",
        "flow_id": "x",
        "name": "x",
        "dag": dag,
    }

    with pytest.raises(GatewayError) as refusal:
        world.peer.protocol.peer(ME).ask("/v1/interconn/flow/audit/apply", body)

    paths = [problem.path for problem in refusal.value.problems]
    assert paths == ["dag.components[1].name", "dag.components[2].name"]


@pytest.mark.parametrize("components", [[], [{"name": "psi"}], "psi"])
def test_a_person_cannot_apply_for_an_invalid_flow(world, components):
    body = {
        "kind": "flow",
        "partner": ME,
        "subject": "flow-9",
        "fields": {"name": "x", "dag": {"components": components}},
    }

    refusal = call_api(world.peer, "POST", "/applications", body, status=400)

    assert all(
        problem["path"].startswith("dag.components") for problem in refusal["data"]["problems"]
    )


@pytest.mark.parametrize(
    "status",
    ["APPLIED", "TERMINATED", "OTHER"],
)
def test_a_partner_can_confirm_only_by_a_decision(world, status):
    mine, theirs = apply_at_me(world, Kind.FLOW)
    audit_id = world.me.stored_applications.get(theirs).id
    body = {
        "audit_id": audit_id,
        "status": status,
    }

    with pytest.raises(GatewayError) as refusal:
        world.peer.protocol.peer(ME).ask("/v1/interconn/flow/audit/confirm", body)

    assert [problem.path for problem in refusal.value.problems] == ["status"]
    assert status_of(world.me, theirs) == "APPLIED"
    assert status_of(world.peer, mine) == "APPLIED"
    reject(world.me, theirs)
