"""Approval of jobs by a person, as both nodes and the operators of both see it."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.approval import audit_id_for
from gateway.domain.approval_rules import Verdict
from gateway.domain.run import Audit
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import GatewayError, NotAllowed, Refused
from provider_registry.registration import provider_from_request
from route_table.editing import Change
from tests.builders import a_spec
from tests.contracts.apis import (
    IMAGE,
    THIRD,
    World,
    catch_refusal,
    job_audits,
    registration,
    two_nodes,
)
from tests.contracts.test_faults import unreachable
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, running
from tests.memory_engine import MemoryEngine, Script
from tests.world import write_routes

pytestmark = pytest.mark.xdist_group("approval")
ROLES = {
    "guest": (PEER,),
    "host": (ME,),
}
PERSON = {
    "mode": "person",
    "deadline_seconds": 600,
}
# `ME` asks a person; `PEER` schedules without approval.
SETTINGS = {"me": {"approval": PERSON}}
STATUS_PATH = "/v1/platform/schedule/job/status_all"

_job_numbers = count()


def a_job(scheduler: str = PEER) -> JobSpec:
    """Return a new job with `PEER` as guest and `ME` as host."""
    job_id = f"job-approval-{next(_job_numbers)}"
    return replace(
        a_spec("a", ROLES, job_id=job_id),
        scheduler=scheduler,
    )


@pytest.fixture
def spec(world: World) -> Iterator[JobSpec]:
    """A job that is stopped after the test if `PEER` has it."""
    spec = a_job()
    yield spec
    if world.peer.store.jobs.find(spec.job_id):
        world.stop(spec)


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[World]:
    """Two nodes without approval of jobs."""
    with two_nodes(tmp_path) as world:
        yield world


def decide(
    world: World,
    spec: JobSpec,
    decision: str,
) -> None:
    """Approve or reject a job at `ME` in the name of ``li``."""
    response = world.decide(
        spec,
        decision,
        by="li",
        reason="as agreed",
    )
    assert response.status_code == 200, response.text


def events_of(
    node: Gateway,
    spec: JobSpec,
) -> list[str]:
    """Return the events of a job's timeline at a node."""
    return [entry.event for entry in node.store.timeline(spec.job_id)]


def test_a_creation_that_waits_returns_the_deadline_of_the_approval(apis, world, spec):
    api = apis.participant(PEER)

    for _ in range(2):
        acceptance = api.create_job(spec, PEER)
        assert acceptance.waits
        assert acceptance.within is not None
        assert 300 < acceptance.within <= 600

    local = world.local(spec.job_id)
    assert local.status is JobStatus.PENDING
    refusal = catch_refusal(api.start_job, spec.job_id, PEER)
    assert refusal == ("NOT_APPROVED", 409)
    start_task = (spec.job_id, f"t-{spec.job_id}", "a", PEER)
    refusal = catch_refusal(api.start_task, *start_task)
    assert refusal == ("NOT_APPROVED", 409)

    decide(world, spec, "approve")
    assert api.create_job(spec, PEER).waits is False
    api.start_job(spec.job_id, PEER)
    local = world.local(spec.job_id)
    assert local.status is JobStatus.RUNNING
    api.stop_job(spec.job_id, "", None, PEER)


def test_a_waiting_job_is_listed_with_what_a_person_decides_on(world, spec):
    world.peer.coordinator.submit_job(spec, PEER)

    approvals = ask(world.me, "operator", "GET", "/api/v1/approvals").json()["approvals"]

    (approval,) = [entry for entry in approvals if entry["job_id"] == spec.job_id]
    assert approval["initiator"] == PEER
    assert approval["submitted_by"] == []
    assert approval["roles"] == ["host.0"]
    assert approval["components"] == ["vendor/Thing"]


def test_the_state_of_a_waiting_job_tells_the_node_that_has_to_decide(world, spec):
    world.peer.coordinator.submit_job(spec, PEER)

    response = ask(
        world.me,
        "operator",
        "GET",
        STATUS_PATH,
        params={"job_id": spec.job_id},
    )

    view = response.json()["data"]
    assert view["job_status"] == "PENDING"
    assert view["waiting"]["reason"] == "APPROVAL"
    assert ME in view["waiting"]["message"]
    assert view["waiting"]["next_check"]
    states = {party["party"]: party["state"] for party in view["parties"]}
    assert states == {
        "guest.0": "ok",
        "host.0": "unknown",
    }
    assert world.job_view(spec)["local_waiting"]["reason"] == "APPROVAL"


def test_a_job_waits_for_a_person_and_then_runs(world, spec):
    # The submission returns when every node has accepted the job or waits for approval.
    world.peer.coordinator.submit_job(spec, PEER)
    scheduled_job = world.scheduled(spec)
    assert scheduled_job.status is JobStatus.PENDING
    assert world.engine(world.peer).list() == []

    response = world.decide(
        spec,
        "approve",
        by="li",
        reason="fine",
    )
    assert response.status_code == 200
    assert response.json()["approval"]["decision"] == "READY"
    world.wait_status(
        spec.job_id,
        JobStatus.RUNNING,
        world.peer,
    )

    world.end_all(spec)
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.SUCCEEDED, 20, 0.01)
    events = events_of(world.peer, spec)
    assert "waits for approval" in events
    assert "approved" in events
    decisions = [
        entry.by for entry in world.me.store.timeline(spec.job_id) if entry.event == "approved"
    ]
    assert decisions == ["li"]  # the person who decided, not the node that asked


def test_the_first_decision_on_a_running_job_stands(world, spec):
    world.peer.coordinator.submit_job(spec, PEER)
    decide(world, spec, "approve")
    world.wait_status(
        spec.job_id,
        JobStatus.RUNNING,
        world.peer,
    )

    repeated = world.decide(
        spec,
        "approve",
        by="wang",
    )
    opposite = world.decide(spec, "reject")

    assert repeated.status_code == 200
    assert opposite.json()["data"]["reason"] == "ALREADY_DECIDED"
    local = world.local(spec.job_id)
    assert local.approval.by == "li"


def test_a_partners_job_in_this_nodes_name_needs_approval_too(world, spec):
    """Attack: a partner names this node as the initiator, whose own jobs need no approval."""
    world.peer.coordinator.submit_job(
        replace(
            spec,
            initiator=ME,
            initiator_role="host",
        ),
        PEER,
    )

    local = world.local(spec.job_id)
    assert local.status is JobStatus.PENDING


def test_one_rejection_rejects_the_job_everywhere_with_its_reason(world, spec):
    world.peer.coordinator.submit_job(spec, PEER)

    first = world.decide(spec, "reject", by="li", reason="not this data 数据").json()
    second = world.decide(spec, "reject", by="wu", reason="something else").json()

    assert first["repeated"] is False
    assert second["repeated"] is True
    assert second["approval"]["by"] == "li"
    world.wait_status(
        spec.job_id,
        JobStatus.REJECTED,
        world.peer,
    )
    failure = world.scheduled(spec).ending.failure
    assert failure.reason == "APPROVAL_REJECTED"
    assert failure.node == ME
    assert "li" in failure.message
    assert "not this data 数据" in failure.message

    peer_jobs = world.peer.store.local_jobs
    wait_for(lambda: peer_jobs.get(spec.job_id).status.value == "FINISHED", 20, 0.01)
    local = world.local(spec.job_id)
    assert local.status is JobStatus.REJECTED
    assert peer_jobs.get(spec.job_id).ending.failure == failure
    with pytest.raises(Refused, match="not this data"):
        world.peer.coordinator.submit_job(spec, PEER)


def check_refused_decision(
    response: Any,
    status: int,
    reason: str,
) -> None:
    """Fail unless a decision was refused."""
    assert response.status_code == status
    assert response.json()["data"]["reason"] == reason


def test_a_decision_on_an_unknown_job_is_refused(world, spec):
    check_refused_decision(world.decide(spec, "approve"), 404, "JOB_UNKNOWN")


def test_a_nodes_own_job_needs_no_decision(world, spec):
    parties = tuple(replace(party, node=ME) for party in spec.parties)
    my_job = replace(
        spec,
        parties=parties,
        initiator=ME,
        scheduler=ME,
    )

    world.me.coordinator.submit_job(my_job, ME)

    world.wait_status(spec.job_id, JobStatus.RUNNING)
    check_refused_decision(world.decide(my_job, "reject"), 409, "NOT_WAITING")
    world.me.coordinator.stop_job(
        spec.job_id,
        "",
        ME,
    )
    path = f"/api/v1/jobs/{spec.job_id}/approve"
    wrong_body = ask(
        world.me,
        "operator",
        "POST",
        path,
        json={"who": "li"},
    )
    assert wrong_body.status_code in (200, 400, 422)
    assert wrong_body.json()["code"] != 0


def test_a_node_without_a_party_in_a_job_decides_nothing_on_it(world, spec):
    """It only schedules the job."""
    parties = tuple(replace(party, node=PEER) for party in spec.parties)
    peers_job = replace(
        spec,
        parties=parties,
        scheduler=ME,
    )

    world.me.coordinator.submit_job(peers_job, PEER)

    check_refused_decision(world.decide(peers_job, "approve"), 409, "NOT_WAITING")


def test_silence_rejects_the_job_at_the_deadline(tmp_path):
    approval = {
        "mode": "person",
        "deadline_seconds": 0.2,
    }
    spec = a_job()
    with two_nodes(tmp_path, me={"approval": approval}) as world:
        world.peer.coordinator.submit_job(spec, PEER)

        world.wait_status(
            spec.job_id,
            JobStatus.REJECTED,
            world.peer,
        )
        failure = world.scheduled(spec).ending.failure
        assert failure.reason == "APPROVAL_TIMEOUT"
        assert failure.node == ME
        local = world.local(spec.job_id)
        assert local.status is JobStatus.REJECTED


def run_node(
    home: Path,
    node_id: str,
    port: int = 0,
    **settings: Any,
) -> AbstractContextManager[Node]:
    """Serve a node whose peers reach it at a port; 0 is any free port."""
    listen = {
        "container": {"bind": "127.0.0.1:0"},
        "operator": {"bind": "127.0.0.1:0"},
        "peer": {"bind": f"127.0.0.1:{port}"},
    }
    make_engine = MemoryEngine.making({IMAGE: Script(code=None)})
    return running(home / node_id, node_id, make_engine, listen=listen, **settings)


def port_of(node: Gateway) -> int:
    """Return the port at which peers reach a node."""
    _, _, port = node.addresses()["peer"].rpartition(":")
    return int(port)


def test_a_decision_survives_a_restart_and_is_reported_once(tmp_path):
    """The scheduling node is down when the person decides, and up after the restart."""
    spec = replace(
        a_spec("a", ROLES),
        scheduler=PEER,
    )
    with run_node(tmp_path, ME, approval=PERSON) as me:
        with run_node(tmp_path, PEER) as peer:
            for node, partner in ((me, peer), (peer, me)):
                node.registry.register(provider_from_request(registration()))
                route = {"url": partner.addresses()["peer"]}
                write_routes(
                    node.settings.route_table.file,
                    {partner.settings.node.id: route},
                )
                node.routes.reload()
            my_port = port_of(me)
            peer_port = port_of(peer)
            peer.coordinator.submit_job(spec, PEER)

        path = f"/api/v1/jobs/{spec.job_id}/approve"
        assert me.post(path, json={"by": "li"}).status_code == 200
        my_jobs = me.store.local_jobs
        wait_for(lambda: my_jobs.get(spec.job_id).approval.confirm.tries > 1, 30, 0.05)

    with (
        run_node(
            tmp_path,
            ME,
            my_port,
            approval=PERSON,
        ),
        run_node(tmp_path, PEER, peer_port) as peer,
    ):
        jobs = peer.store.jobs
        wait_for(lambda: jobs.get(spec.job_id).status is JobStatus.RUNNING, 60, 0.05, "it runs")
        peer.coordinator.stop_job(spec.job_id, "", "")
        wait_for(lambda: jobs.get(spec.job_id).ended_at is not None, 30, 0.05)


# ---------------------------------------------------------------- rules for partners


def allow_components(
    node: Gateway,
    components: str | None,
) -> None:
    """Set the components that jobs of `PEER` may use; None allows all."""
    change = Change(
        PEER,
        {"components": components},
        replaces=False,
    )
    node.routes.edit(change, "ann", "contract ended")


def check_start_refused(
    world: World,
    job_id: str,
    words: str,
) -> None:
    """Fail unless a start is refused with these words, in the timeline and the audit, too."""
    with pytest.raises(GatewayError, match=re.escape(words)) as caught:
        world.me.participant.start_job(job_id, PEER)

    assert caught.value.reason == "NOT_AUTHORISED"
    assert "start not allowed" in [entry.event for entry in world.me.store.timeline(job_id)]
    local = world.local(job_id)
    assert local.status is JobStatus.READY
    entries = [entry for entry in world.me.audit.list(who=PEER) if job_id in entry.action]
    (refused_start,) = entries
    assert words in refused_start.detail["message"]


def test_what_a_node_may_run_is_asked_again_at_the_start_and_written_down(open_world, monkeypatch):
    world = open_world
    api = world.me.participant
    allow_components(world.me, "other/*, vendor/Th*")
    assert api.create_job(a_spec("a", ROLES, job_id="job-may"), PEER).waits is False

    allow_components(world.me, "other/*")
    check_start_refused(world, "job-may", "allows other/*, not vendor/Thing")
    with pytest.raises(GatewayError, match="not vendor/Thing") as caught:
        api.create_job(
            a_spec(
                "a",
                ROLES,
                job_id="job-late",
            ),
            PEER,
        )
    assert caught.value.reason == "NOT_AUTHORISED"
    stored_job = world.me.store.local_jobs.find("job-late")
    assert stored_job is None

    allow_components(world.me, None)
    no_contract = NotAllowed("no contract is in force", reason="NO_CONTRACT")
    with monkeypatch.context() as patch:
        patch.setattr(world.me.trust, "contract_refusal", lambda spec: no_contract)
        refusal = catch_refusal(api.start_job, "job-may", PEER)
        assert refusal == ("NO_CONTRACT", 403)

    api.start_job("job-may", PEER)


def test_a_job_of_a_node_without_a_route_is_refused(open_world):
    with pytest.raises(GatewayError, match="no enabled route here: ask the admin of"):
        open_world.me.participant.create_job(
            a_spec(
                "a",
                ROLES,
                job_id="job-nobody",
            ),
            "JG404",
        )


@pytest.mark.parametrize(
    ("change", "senders"),
    [
        # a disabled partner must not send its jobs through another node either
        ({"enabled": False}, (PEER, THIRD)),
        (None, (PEER,)),
    ],
    ids=["disabled", "removed"],
)
def test_a_partner_that_is_locked_out_begins_no_job(open_world, change, senders):
    """Its running jobs go on."""
    api = open_world.me.participant
    running_job = a_job()
    api.create_job(running_job, PEER)
    api.start_job(running_job.job_id, PEER)
    audited_job = a_job()
    audit = Audit(f"q-{audited_job.job_id}")
    job_audits(open_world.me).apply(audited_job, audit, PEER)

    open_world.me.routes.edit(
        Change(
            PEER,
            change,
            replaces=False,
        ),
        "ann",
        "incident",
    )

    refusal = f"node {PEER} has no enabled route here"
    with pytest.raises(NotAllowed, match=refusal):
        api.create_job(audited_job, PEER)
    for sender in senders:
        with pytest.raises(NotAllowed, match=refusal):
            api.create_job(a_job(sender), sender)
    api.stop_job(running_job.job_id, "", None, PEER)


def a_job_by_third() -> JobSpec:
    """Return a job of `PEER` that `THIRD` schedules."""
    return replace(
        a_job(THIRD),
        initiator=PEER,
    )


def test_a_rule_against_the_initiator_holds_for_every_scheduling_node(tmp_path):
    rules = [{"decide": "reject", "source": PEER}]
    refusal = rf"approval.rules\[0\] says reject to .* for {PEER}"
    with two_nodes(tmp_path, me={"approval": {"mode": "off", "rules": rules}}) as world:
        spec = a_job_by_third()
        with pytest.raises(NotAllowed, match=refusal):
            world.me.participant.create_job(spec, THIRD)


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        (
            [
                {"decide": "ask", "source": PEER},
                {"decide": "approve", "source": THIRD},
            ],
            Verdict.ASK,
        ),
        ([{"decide": "approve", "source": THIRD}], Verdict.APPROVE),
    ],
)
def test_the_strictest_rule_for_initiator_and_scheduler_decides(tmp_path, rules, verdict):
    with two_nodes(tmp_path, me={"approval": {"mode": "rules", "rules": rules}}) as world:
        judged, reason = world.me.admission.judge(
            a_job_by_third(),
            THIRD,
        )

    assert judged is verdict
    if verdict is Verdict.APPROVE:
        assert reason == ""


def test_the_components_of_the_initiators_route_hold_for_every_scheduler(tmp_path):
    approval = {
        "mode": "rules",
        "rules": [{"decide": "approve", "source": THIRD}],
    }
    with two_nodes(tmp_path, me={"approval": approval}) as world:
        allow_components(world.me, "other/*")

        refusal = f"the route of {PEER} allows other/\\*, not vendor/Thing"
        with pytest.raises(NotAllowed, match=refusal):
            world.me.participant.create_job(a_job_by_third(), THIRD)


# ---------------------------------------------------------------- job audits


@pytest.fixture
def audited(
    world: World,
    spec: JobSpec,
) -> Iterator[JobSpec]:
    """A job for which `PEER` requests an audit from `ME` first.

    By the profile that `ME` has of `PEER`, `PEER` accepts no approval after the creation.
    """
    set_profiles(
        world,
        of_me="audited",
        of_peer="fate",
    )
    yield spec
    world.stop(spec)
    set_profiles(
        world,
        of_me="spec",
        of_peer="spec",
    )


def set_profiles(
    world: World,
    of_me: str,
    of_peer: str,
) -> None:
    """Set the profiles in the routes of the nodes to each other."""
    for node, partner, profile in ((world.peer, ME, of_me), (world.me, PEER, of_peer)):
        node.routes.edit(
            Change(
                partner,
                {"profile": profile},
                replaces=False,
            ),
            "ann",
        )
        node.routes.reload()


def ending_failure(world: World, spec: JobSpec) -> Failure:
    """Return the failure with which the job ended at `ME`, once its operators can see it."""
    (local,) = world.closed(spec.job_id)
    assert local.ending is not None
    assert local.ending.failure is not None
    view = world.job_view(spec)
    shown_failure = view.get("local_failure") or view["failed_by"]
    assert shown_failure["reason"] == local.ending.failure.reason
    return local.ending.failure


def audit_status(world: World, spec: JobSpec) -> str:
    """Return the state of the audit as `PEER` learns it."""
    response = ask(
        world.me,
        "peer",
        "GET",
        "/v1/interconn/job/audit/query",
        params={"audit_id": audit_id_for(spec.job_id)},
        headers={"x-source-node-id": PEER},
    )
    return str(response.json()["data"]["status"])


def test_a_job_is_created_and_runs_after_a_person_agreed(world, audited):
    world.peer.coordinator.submit_job(audited, PEER)
    scheduled_job = world.scheduled(audited)
    assert scheduled_job.status == JobStatus.PENDING
    assert audit_status(world, audited) == "APPLIED"
    local = world.local(audited.job_id)
    assert local.audit.created is False

    decide(world, audited, "approve")

    world.wait_status(
        audited.job_id,
        JobStatus.RUNNING,
        world.peer,
    )
    local = world.local(audited.job_id)
    assert local.audit.created
    assert audit_status(world, audited) == "APPROVED"
    world.end_all(audited)
    wait_for(lambda: world.scheduled(audited).outcome is Outcome.SUCCEEDED, 20, 0.01)
    events = events_of(world.me, audited)
    assert events.index("asked before creation") < events.index("approved")
    assert events.index("approved") < events.index("decision reported")


def test_a_repeated_audit_request_is_accepted_unless_its_id_changed(world, spec):
    apply = partial(
        job_audits(world.me).apply,
        sender=PEER,
    )

    for _ in range(2):
        apply(spec, Audit("q-1"))

    audit = world.local(spec.job_id).audit
    assert audit is not None
    assert audit.id == "q-1"
    refusal = catch_refusal(apply, spec, Audit("q-2"))
    assert refusal == ("JOB_ID_CONFLICT", 409)
    world.me.participant.withdraw(
        spec.job_id,
        None,
        PEER,
    )
    world.closed(spec.job_id)


def test_an_audit_request_for_a_job_that_has_ended_is_refused(world, spec):
    world.me.participant.create_job(spec, PEER)
    world.me.participant.stop_job(
        spec.job_id,
        "",
        None,
        PEER,
    )
    apply = partial(
        job_audits(world.me).apply,
        sender=PEER,
    )

    refusal = catch_refusal(apply, spec, Audit("q-3"))
    assert refusal == ("JOB_ENDED", 409)


def test_an_approved_job_that_ended_before_its_creation_ends_here(world, audited):
    """The scheduling node cannot reach this one to stop the job."""
    world.peer.coordinator.submit_job(audited, PEER)
    with unreachable(world.peer, world, world.me):
        world.peer.coordinator.stop_job(
            audited.job_id,
            "",
            PEER,
        )
        wait_for(lambda: world.scheduled(audited).ended_at is not None, 60, 0.01)

        decide(world, audited, "approve")

        assert ending_failure(world, audited).reason == "STOPPED"


def test_a_job_that_needs_an_audit_cannot_be_created_without_one(world, audited):
    with pytest.raises(Refused, match=r"approval\.rules") as caught:
        world.me.participant.create_job(audited, PEER)

    assert caught.value.reason == "APPROVAL_UNSUPPORTED"
    world.peer.coordinator.submit_job(audited, PEER)


def test_a_rejected_audit_rejects_the_job_with_its_reason(world, audited):
    world.peer.coordinator.submit_job(audited, PEER)

    decide(world, audited, "reject")

    world.wait_status(
        audited.job_id,
        JobStatus.REJECTED,
        world.peer,
    )
    failure = world.scheduled(audited).ending.failure
    assert failure.reason == "APPROVAL_REJECTED"
    assert failure.node == ME
    assert audit_status(world, audited) == "REJECTED"
    assert "li" in failure.message
    assert "as agreed" in failure.message
