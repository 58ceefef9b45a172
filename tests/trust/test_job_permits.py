"""Permits of flows, projects, audited jobs and models: each opens only what it was given for."""

from dataclasses import replace

import pytest

from gateway.domain.applications import Kind
from gateway.domain.approval import audit_id_for
from gateway.domain.dag import Dag
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError
from tests.builders import a_dag
from tests.cli.test_models import FLOW, MODEL, VERSION, store_training
from tests.contracts.apis import THIRD
from tests.inprocess import ME, PEER
from tests.trust.agreeing import (
    apply_for,
    approve,
    call_api,
    change_application,
    edit_route,
    newest_waiting,
    terminate,
    wait_for_status,
)
from tests.trust.permits import (
    a_job,
    create_at_me,
    flow_of,
    get_permit,
    job_numbers,
    world_with_contract,
)

FLOW_FIELDS = {
    "name": "flow",
    "dag": flow_of(a_job()),
}
PROJECT_FIELDS = {"name": "project"}
START = "start"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Nodes with a contract and a permit for the dataset of `ME`, which has a model, too."""
    with world_with_contract(tmp_path_factory.mktemp("nodes"), "permit") as world:
        store_training(world.me, host=THIRD)
        get_permit(world)
        yield world


def start_at_me(world, spec):
    """Start a job of `PEER` at `ME`; return the refusal's reason, or ""."""
    try:
        world.peer.peers.participant(ME, "bfia").start_job(spec.job_id, PEER)
    except GatewayError as error:
        return error.reason
    return ""


# ---------------------------------------------------------------- flows and projects


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(Kind.FLOW, FLOW_FIELDS), (Kind.PROJECT, PROJECT_FIELDS)],
)
def test_a_flow_or_project_that_was_applied_for_needs_its_permit(world, kind, fields):
    subject = f"{kind}-7"
    assert create_at_me(world, a_job(flow_id=subject)) == ""

    mine = apply_for(
        world.peer,
        str(kind),
        world.me,
        subject,
        fields=fields,
    )
    theirs = newest_waiting(world.me)
    assert create_at_me(world, a_job(flow_id=subject)) == "PERMIT_MISSING"
    approve(world.me, theirs)
    wait_for_status(world.peer, mine, "APPROVED")

    spec = a_job(flow_id=subject)
    assert create_at_me(world, spec) == ""
    assert call_api(world.me, "GET", f"/applications/{theirs}")["jobs"] == 1
    token = world.peer.stored_applications.get(mine).token
    change_application(world.peer, mine, token="guessed")
    assert create_at_me(world, a_job(flow_id=subject)) == "PERMIT_MISSING"
    change_application(world.peer, mine, token=token)

    terminate(world.me, theirs)
    assert start_at_me(world, spec) == "PERMIT_MISSING"
    assert create_at_me(world, a_job(flow_id=subject)) == "PERMIT_MISSING"
    assert create_at_me(world, a_job(flow_id="another")) == ""


def test_a_flows_permit_ends_by_count(world):
    mine = apply_for(
        world.peer,
        "flow",
        world.me,
        "flow-once",
        fields=FLOW_FIELDS,
    )
    theirs = newest_waiting(world.me)
    call_api(world.me, "POST", f"/applications/{theirs}/approve", {"jobs": 1})
    wait_for_status(world.peer, mine, "APPROVED")
    spec = a_job(flow_id="flow-once")

    assert create_at_me(world, spec) == ""
    assert create_at_me(world, a_job(flow_id="flow-once")) == "PERMIT_USED_UP"
    assert start_at_me(world, spec) == ""


def get_flow_permit(world, flow_id, fields):
    """Apply for a flow and approve it; return the number at `ME`."""
    mine = apply_for(
        world.peer,
        "flow",
        world.me,
        flow_id,
        fields=fields,
    )
    theirs = newest_waiting(world.me)
    approve(world.me, theirs)
    wait_for_status(world.peer, mine, "APPROVED")
    return theirs


def test_a_flows_permit_covers_only_jobs_with_its_tasks(world):
    theirs = get_flow_permit(world, "flow-8", FLOW_FIELDS)
    shown = call_api(world.me, "GET", f"/applications/{theirs}")
    assert shown["tasks"] == ["a: vendor:1.0.0/Thing"]
    extended = replace(a_job(flow_id="flow-8"), dag=a_dag("a -> extra"))

    with pytest.raises(GatewayError, match="in its tasks extra") as refusal:
        world.peer.peers.participant(ME, "bfia").create_job(extended, PEER)
    assert refusal.value.reason == "FLOW_DIFFERS"

    extended_too = get_flow_permit(world, "flow-8", {"name": "flow", "dag": flow_of(extended)})
    assert create_at_me(world, extended) == ""
    assert create_at_me(world, a_job(flow_id="flow-8")) == "", "both permits are in force"
    terminate(world.me, theirs)
    assert create_at_me(world, a_job(flow_id="flow-8")) == "FLOW_DIFFERS"
    terminate(world.me, extended_too)


# ---------------------------------------------------------------- audits of jobs


@pytest.fixture
def auditing(world):
    """Let `PEER` request an audit before it creates a job at `ME`."""
    edit_route(world.peer, ME, profile="audited")
    yield
    edit_route(world.peer, ME, profile="spec")


@pytest.mark.usefixtures("auditing")
def test_the_audit_of_a_job_presents_its_permits(world):
    participant = world.peer.peers.participant(ME, "bfia")
    unpermitted = world.me.stored_applications.list(kind=Kind.DATASET)[-1]
    token = world.peer.stored_applications.list(kind=Kind.DATASET)[-1].token
    number = world.peer.stored_applications.list(kind=Kind.DATASET)[-1].number

    assert participant.ask_first(a_job(), PEER).asked_only
    assert unpermitted.digest
    change_application(world.peer, number, token="guessed")
    with pytest.raises(GatewayError) as refusal:
        participant.ask_first(a_job(), PEER)
    assert refusal.value.reason == "PERMIT_MISSING"
    change_application(world.peer, number, token=token)


@pytest.mark.usefixtures("auditing")
def test_an_audited_job_runs_with_the_permit_of_its_approval(world):
    spec = a_job()
    world.peer.coordinator.submit_job(spec, PEER)

    world.wait_status(spec.job_id, JobStatus.RUNNING, world.peer)

    consent = world.scheduled(spec).nodes[ME].consent
    assert consent.permit
    assert world.local(spec.job_id).audit.permit == "", "it is used up by the creation"
    world.end_all(spec)


@pytest.mark.usefixtures("auditing")
def test_an_audited_job_is_not_created_without_the_permit_of_its_approval(world):
    spec = a_job()
    url = world.me.routes.table.routes[PEER].url
    edit_route(world.me, PEER, url="http://127.0.0.1:9")  # the approval is not delivered
    world.peer.peers.participant(ME, "bfia").ask_first(spec, PEER)

    assert create_at_me(world, spec) == "PERMIT_MISSING"

    query = {"audit_id": audit_id_for(spec.job_id)}
    path = "/v1/interconn/job/audit/query"
    state = world.peer.protocol.peer(ME).ask(path, {}, "GET", query=query)
    permit = state["resource_permit"]
    assert permit["resource_id"] == spec.job_id
    assert permit["request_node_id"] == PEER
    assert len(permit["token"]) == 43
    edit_route(world.me, PEER, url=url)


@pytest.mark.usefixtures("auditing")
def test_the_project_of_an_audit_is_the_jobs(world):
    fields = {"scope": {"PROJECT": ["project-of-audit"]}}
    mine, theirs = get_permit(world, **fields)
    general = next(
        application
        for application in world.me.stored_applications.list(kind=Kind.DATASET)
        if not application.scope.projects
    )
    change_application(world.me, general.number, expires_at=general.at)
    spec = a_job()
    body = {
        "audit_id": audit_id_for(spec.job_id),
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "name": "audit",
        "project_id": "project-of-audit",
    }

    assert create_at_me(world, a_job()) == "PERMIT_OUT_OF_SCOPE"
    assert audit_at_me(world, spec, body) == ""
    assert audit_at_me(world, a_job(), {"project_id": "another"}) == "PERMIT_OUT_OF_SCOPE"

    change_application(world.me, general.number, expires_at=None)
    call_api(world.me, "POST", f"/applications/{theirs}/terminate", {})
    wait_for_status(world.peer, mine, "TERMINATED")


def audit_at_me(world, spec, changes):
    """Request the audit of a job of `PEER` at `ME`; return the refusal's reason, or ""."""
    peer = world.peer.protocol.peer(ME)
    body = world.peer.protocol.request(spec)
    audit = {
        "audit_id": audit_id_for(spec.job_id),
        "job_id": spec.job_id,
        **body,
        **changes,
    }
    permits = world.peer.trust.header(ME, spec)
    try:
        peer.ask("/v1/interconn/job/audit/apply", audit, permits=permits)
    except GatewayError as error:
        return error.reason
    return ""


# ---------------------------------------------------------------- models


def a_prediction(**changes):
    """Build a job of `PEER` that predicts with the model at `ME`."""
    roles = {
        "guest": (ME,),
        "host": (PEER,),
    }
    common = {
        "job_type": "predict",
        "model_id": MODEL,
        "model_version": VERSION,
    }
    [trees] = FLOW.nodes
    spec = a_job(flow_id="project-of-model")
    nodes = [*roles["guest"], *roles["host"]]
    return replace(
        spec,
        job_id=f"job-predict-{next(job_numbers)}",
        dag=Dag((replace(trees, outputs=()),)),
        parties=tuple(
            replace(party, node=node) for party, node in zip(spec.parties, nodes, strict=True)
        ),
        initiator_role="host",
        task_params={},
        job_params={"common": common},
        **changes,
    )


def apply_for_model(world, digest):
    """Apply for the model with a digest; return the numbers at `PEER` and at `ME`."""
    fields = {
        "apply_project_id": "project-of-model",
        "digest": digest,
    }
    mine = apply_for(
        world.peer,
        "model",
        world.me,
        MODEL,
        fields=fields,
    )
    return mine, newest_waiting(world.me)


def test_a_models_permit_is_for_the_digest_that_it_names(world):
    world.me.models.deploy(MODEL, VERSION)
    digest = world.me.models.digest(MODEL, VERSION)
    shown = call_api(world.me, "GET", f"/models/credit%20model/{VERSION}")
    assert shown["digest"] == digest
    assert create_at_me(world, a_prediction()) == "MODEL_NOT_AUTHORISED"

    _, theirs = apply_for_model(world, "0" * 64)
    refusal = call_api(world.me, "POST", f"/applications/{theirs}/approve", {}, 409)
    assert refusal["data"]["reason"] == "MODEL_DIGEST_DIFFERS"
    call_api(world.me, "POST", f"/applications/{theirs}/reject", {})

    mine, theirs = apply_for_model(world, f"sha256:{digest.upper()}")
    approve(world.me, theirs)
    wait_for_status(world.peer, mine, "APPROVED")
    spec = a_prediction()
    assert create_at_me(world, spec) == ""
    assert create_at_me(world, a_prediction()) == ""
    other_project = replace(a_prediction(), flow_id="another")
    assert create_at_me(world, other_project) == "PERMIT_OUT_OF_SCOPE"

    request = world.me.stored_applications.get(theirs).request
    change_application(world.me, theirs, request={**request, "digest": "0" * 64})
    assert create_at_me(world, a_prediction()) == "MODEL_DIGEST_DIFFERS"
    assert start_at_me(world, spec) == "MODEL_DIGEST_DIFFERS"

    terminate(world.me, theirs)
    assert create_at_me(world, a_prediction()) == "MODEL_NOT_AUTHORISED"
