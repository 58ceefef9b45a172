"""A node that asks a person before it takes part: over real nodes, at both ends, and what operators see and do."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
import yaml

from gateway.bootstrap.node import Gateway
from gateway.domain.approval import Mode, Rule, Verdict, id_for
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
)
from tests.contracts.test_faults import away
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, serving, settings
from tests.memory_engine import MemoryEngine, Script

pytestmark = pytest.mark.xdist_group("approval")
ROLES = {"guest": (PEER,), "host": (ME,)}
PERSON = {"mode": "person", "deadline_seconds": 600}
SETTINGS = {"me": {"approval": PERSON}}
"""`ME` asks a person; `PEER` schedules, and is asked nothing"""

_numbers = count()


@pytest.fixture
def spec(world: World) -> Iterator[JobSpec]:
    spec = replace(a_spec("a", ROLES, job_id=f"job-approval-{next(_numbers)}"), scheduler=PEER)
    yield spec
    if world.peer.store.jobs.find(spec.job_id):
        world.stop(spec)


def test_a_creation_that_waits_returns_the_deadline_of_the_approval(apis, world, spec):
    api = apis.participant(PEER)
    for _ in range(2):
        accepted = api.create_job(spec, PEER)
        assert accepted.waits
        assert accepted.within is not None
        assert 300 < accepted.within <= 600
    assert world.local(spec.job_id).status is JobStatus.PENDING
    assert catch_refusal(api.start_job, spec.job_id, PEER) == ("NOT_APPROVED", 409)
    assert catch_refusal(api.start_task, spec.job_id, f"t-{spec.job_id}", "a", PEER) == (
        "NOT_APPROVED",
        409,
    )
    assert world.decide(spec, "approve").status_code == 200
    assert api.create_job(spec, PEER).waits is False
    api.start_job(spec.job_id, PEER)
    assert world.local(spec.job_id).status is JobStatus.RUNNING
    api.stop_job(spec.job_id, "", None, PEER)


def test_a_job_waits_for_a_person_and_then_runs(world, spec):
    world.peer.coordinator.submit_job(
        spec, PEER
    )  # answers at once: every node has accepted or waits
    assert world.scheduled(spec).status is JobStatus.PENDING
    (waiting,) = [
        a
        for a in ask(world.me, "operator", "GET", "/api/v1/approvals").json()["approvals"]
        if a["job_id"] == spec.job_id
    ]
    assert waiting["initiator"] == PEER
    assert waiting["roles"] == ["host.0"]
    assert waiting["components"] == ["vendor/Thing"]
    status = ask(
        world.me,
        "operator",
        "GET",
        "/v1/platform/schedule/job/status_all",
        params={"job_id": spec.job_id},
    )
    data = status.json()["data"]
    assert data["job_status"] == "PENDING"
    assert data["waiting"]["reason"] == "APPROVAL"
    assert ME in data["waiting"]["message"]
    assert data["waiting"]["next_check"]
    assert {p["party"]: p["state"] for p in data["parties"]} == {
        "guest.0": "ok",
        "host.0": "unknown",
    }
    assert world.job_view(spec)["local_waiting"]["reason"] == "APPROVAL"
    assert world.engine(world.peer).list() == []

    answer = world.decide(spec, "approve", by="li", reason="fine")
    assert answer.status_code == 200
    assert answer.json()["approval"]["decision"] == "READY"
    world.wait_status(spec.job_id, JobStatus.RUNNING, world.peer)
    assert world.decide(spec, "approve", by="wang").status_code == 200  # again, and nothing changes
    assert world.decide(spec, "reject").json()["data"]["reason"] == "ALREADY_DECIDED"
    assert world.local(spec.job_id).approval.by == "li"
    world.end_all(spec)
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.SUCCEEDED, 20, 0.01)
    events = [e.event for e in world.peer.store.timeline(spec.job_id)]
    assert "waits for approval" in events
    assert "approved" in events


def test_a_partners_job_in_this_nodes_name_is_asked_about_all_the_same(world, spec):
    world.peer.coordinator.submit_job(replace(spec, initiator=ME, initiator_role="host"), PEER)
    assert world.local(spec.job_id).status is JobStatus.PENDING


def test_one_rejection_rejects_the_job_everywhere_with_its_reason(world, spec):
    world.peer.coordinator.submit_job(spec, PEER)
    assert (
        world.decide(spec, "reject", by="li", reason="not this data 数据").json()["repeated"]
        is False
    )
    again = world.decide(spec, "reject", by="wu", reason="something else").json()
    assert again["repeated"] is True
    assert again["approval"]["by"] == "li"  # the first word stands, and this tells it
    world.wait_status(spec.job_id, JobStatus.REJECTED, world.peer)
    failure = world.scheduled(spec).ending.failure
    assert failure.reason == "APPROVAL_REJECTED"
    assert failure.node == ME
    assert "li" in failure.message
    assert "not this data 数据" in failure.message
    wait_for(
        lambda: world.peer.store.local_jobs.get(spec.job_id).status.value == "FINISHED", 20, 0.01
    )
    assert world.local(spec.job_id).status is JobStatus.REJECTED
    assert world.peer.store.local_jobs.get(spec.job_id).ending.failure == failure
    with pytest.raises(Refused, match="not this data"):
        world.peer.coordinator.submit_job(spec, PEER)


def test_decisions_on_what_does_not_wait(world, spec):
    answer = world.decide(spec, "approve")
    assert answer.status_code == 404
    assert answer.json()["data"]["reason"] == "JOB_UNKNOWN"
    own = replace(
        spec,
        parties=tuple(replace(p, node=ME) for p in spec.parties),
        initiator=ME,
        scheduler=ME,
    )
    world.me.coordinator.submit_job(own, ME)  # nobody is asked about one's own job
    wait_for(lambda: world.me.store.jobs.get(spec.job_id).status is JobStatus.RUNNING, 20, 0.01)
    answer = world.decide(own, "reject")
    assert answer.status_code == 409
    assert answer.json()["data"]["reason"] == "NOT_WAITING"
    world.me.coordinator.stop_job(spec.job_id, "", ME)
    away = replace(spec, job_id=f"{spec.job_id}-away", scheduler=ME)  # it is only scheduled here
    away = replace(away, parties=tuple(replace(p, node=PEER) for p in spec.parties))
    world.me.coordinator.submit_job(away, PEER)
    answer = world.decide(away, "approve")
    assert answer.status_code == 409
    assert answer.json()["data"]["reason"] == "NOT_WAITING"
    wrong = ask(
        world.me, "operator", "POST", f"/api/v1/jobs/{spec.job_id}/approve", json={"who": "li"}
    )
    assert wrong.status_code in (200, 400, 422)
    assert wrong.json()["code"] != 0


Policy = Callable[..., None]


@pytest.fixture
def policy(world: World, monkeypatch: pytest.MonkeyPatch) -> Policy:
    """Return what changes the policy of `ME`, as a restart with other settings does."""

    def change(**changes: Any) -> None:
        rules = world.me.admission._rules
        changed = replace(rules, policy=replace(rules.policy, **changes))
        monkeypatch.setattr(world.me.admission, "_rules", changed)

    return change


def test_silence_rejects_the_job_at_the_deadline(world, spec, policy):
    policy(deadline=0.2)
    world.peer.coordinator.submit_job(spec, PEER)
    world.wait_status(spec.job_id, JobStatus.REJECTED, world.peer)
    failure = world.scheduled(spec).ending.failure
    assert failure.reason == "APPROVAL_TIMEOUT"
    assert failure.node == ME
    assert world.local(spec.job_id).status is JobStatus.REJECTED


def test_a_decision_survives_a_restart_and_is_reported_once(tmp_path):
    """The scheduling node is away when the person decides; the other is restarted before it is back."""

    def node(
        name: str,
        port: int = 0,
        **over: Any,
    ) -> Gateway:
        engine = MemoryEngine.making({IMAGE: Script(code=None)})
        listen = {part: {"bind": "127.0.0.1:0"} for part in ("container", "operator")}
        listen["peer"] = {"bind": f"127.0.0.1:{port}"}
        gateway = Node(settings(tmp_path / name, name, listen=listen, **over), engine=engine)
        if port == 0:
            gateway.registry.register(provider_from_request(registration()))
        return gateway

    def meet(one: Gateway, other: Gateway) -> None:
        for a, b in ((one, other), (other, one)):
            entry = {b.settings.node.id: {"url": b.addresses()["peer"]}}
            (tmp_path / a.settings.node.id / "routes.yml").write_text(yaml.safe_dump(entry))
            a.routes.reload()

    spec = replace(a_spec("a", ROLES), scheduler=PEER)
    me, peer = node(ME, approval=PERSON), node(PEER)
    ports = [int(g.addresses()["peer"].rpartition(":")[2]) for g in (me, peer)]
    meet(me, peer)
    with serving(me):
        with serving(peer):
            peer.coordinator.submit_job(spec, PEER)
        approve = f"/api/v1/jobs/{spec.job_id}/approve"
        assert ask(me, "operator", "POST", approve, json={"by": "li"}).status_code == 200
        wait_for(lambda: me.store.local_jobs.get(spec.job_id).approval.confirm.tries > 1, 30, 0.05)
    me, peer = node(ME, ports[0], approval=PERSON), node(PEER, ports[1])
    with serving(me), serving(peer):
        wait_for(
            lambda: peer.store.jobs.get(spec.job_id).status is JobStatus.RUNNING,
            60,
            0.05,
            "it runs",
        )
        peer.coordinator.stop_job(spec.job_id, "", "")
        wait_for(lambda: peer.store.jobs.get(spec.job_id).ended_at is not None, 30, 0.05)


def not_started(
    world: World,
    job_id: str,
    words: str,
) -> None:
    """Check that a start is refused with these words, and that the timeline and the audit have it."""
    with pytest.raises(GatewayError, match=re.escape(words)) as caught:
        world.me.participant.start_job(job_id, PEER)
    assert caught.value.reason == "NOT_AUTHORISED"
    assert "start not allowed" in [e.event for e in world.me.store.timeline(job_id)]
    assert world.local(job_id).status is JobStatus.READY
    (entry,) = [one for one in world.me.audit.list(who=PEER) if job_id in one.action]
    assert words in entry.detail["message"]


def test_what_a_node_may_run_is_asked_again_at_the_start_and_written_down(
    world, policy, monkeypatch
):
    policy(mode=Mode.OFF)
    api, routes = world.me.participant, world.me.routes
    routes.edit(Change(PEER, {"components": "other/*, vendor/Th*"}, replaces=False), "ann")
    assert api.create_job(a_spec("a", ROLES, job_id="job-may"), PEER).waits is False
    routes.edit(Change(PEER, {"components": "other/*"}, replaces=False), "ann", "contract ended")
    not_started(world, "job-may", "allows other/*, not vendor/Thing")
    with pytest.raises(GatewayError, match="not vendor/Thing") as caught:
        api.create_job(a_spec("a", ROLES, job_id="job-late"), PEER)
    assert caught.value.reason == "NOT_AUTHORISED"
    assert world.me.store.local_jobs.find("job-late") is None
    routes.edit(Change(PEER, {"components": None}, replaces=False), "ann")
    apart = NotAllowed("no contract is in force", reason="NO_CONTRACT")
    with monkeypatch.context() as patch:
        patch.setattr(world.me.trust, "without_contract", lambda spec: apart)
        assert catch_refusal(api.start_job, "job-may", PEER) == ("NO_CONTRACT", 403)
    api.start_job("job-may", PEER)
    with pytest.raises(GatewayError, match="no enabled route here: ask the admin of"):
        api.create_job(a_spec("a", ROLES, job_id="job-nobody"), "JG404")


@pytest.mark.parametrize("change", [{"enabled": False}, None], ids=["disabled", "removed"])
def test_who_is_locked_out_begins_no_job_while_another_of_its_goes_on(world, policy, change):
    policy(mode=Mode.OFF)
    api, routes, before = world.me.participant, world.me.routes, world.me.routes.table.version
    running = a_spec("a", ROLES, job_id=f"job-runs-{next(_numbers)}", scheduler=PEER)
    api.create_job(running, PEER)
    api.start_job(running.job_id, PEER)
    new = replace(running, job_id=f"{running.job_id}-new")
    audited = replace(running, job_id=f"{running.job_id}-audited")
    job_audits(world.me).apply(audited, Audit(f"q-{running.job_id}"), PEER)
    routes.edit(Change(PEER, change, replaces=False), "ann", "incident")
    try:
        with pytest.raises(NotAllowed, match=f"node {PEER} has no enabled route here"):
            api.create_job(audited, PEER)
        for sender in (
            (PEER, THIRD) if change else (PEER,)
        ):  # or by way of another node that means no harm
            with pytest.raises(NotAllowed, match=f"node {PEER} has no enabled route here"):
                api.create_job(replace(new, scheduler=sender), sender)
        api.stop_job(running.job_id, "", None, PEER)  # what is under way goes on as it began
    finally:
        routes.rollback(before, "ann")


def test_an_initiator_is_bound_by_its_own_rules_whoever_asks(world, policy):
    spec = a_spec(
        "a",
        ROLES,
        job_id=f"job-for-another-{next(_numbers)}",
        scheduler=THIRD,
        initiator=PEER,
    )
    api, routes = world.me.participant, world.me.routes
    policy(mode=Mode.OFF, rules=(Rule(Verdict.REJECT, source=PEER),))
    with pytest.raises(NotAllowed, match=rf"approval.rules\[0\] says reject to .* for {PEER}"):
        api.create_job(spec, THIRD)
    policy(
        mode=Mode.RULES, rules=(Rule(Verdict.ASK, source=PEER), Rule(Verdict.APPROVE, source=THIRD))
    )
    assert world.me.admission.judge(spec, THIRD)[0] is Verdict.ASK
    policy(mode=Mode.RULES, rules=(Rule(Verdict.APPROVE, source=THIRD),))
    assert world.me.admission.judge(spec, THIRD) == (Verdict.APPROVE, "")
    routes.edit(Change(PEER, {"components": "other/*"}, replaces=False), "ann")
    try:
        with pytest.raises(
            NotAllowed, match=f"the route of {PEER} allows other/\\*, not vendor/Thing"
        ):
            api.create_job(spec, THIRD)
    finally:
        routes.edit(Change(PEER, {"components": None}, replaces=False), "ann")


# ---------------------------------------------------------------- asked before the creation: the job audit


@pytest.fixture
def audited(world: World, spec: JobSpec) -> Iterator[JobSpec]:
    """Have `ME` be asked first by `PEER`, which by `ME`'s profile of it takes no late word; return a job."""

    def profiles(of_me: str, of_peer: str) -> None:
        for node, other, profile in ((world.peer, ME, of_me), (world.me, PEER, of_peer)):
            node.routes.edit(Change(other, {"profile": profile}, replaces=False), "ann")
            node.routes.reload()

    profiles("audited", "fate")
    yield spec
    world.stop(spec)
    profiles("spec", "spec")


def ended_here(world: World, spec: JobSpec) -> Failure:
    """Return why the job ended at `ME`, once it has."""
    (local,) = world.closed(spec.job_id)
    ending = local.ending
    assert ending is not None
    assert ending.failure is not None
    shown = world.job_view(spec)
    told = shown.get("local_failure") or shown["failed_by"]
    assert told["reason"] == ending.failure.reason  # and the people here can see it
    return ending.failure


def decide(
    world: World,
    spec: JobSpec,
    word: str,
) -> None:
    said = world.decide(spec, word, by="li", reason="as agreed")
    assert said.status_code == 200, said.text


def status(world: World, spec: JobSpec) -> str:
    path, headers = "/v1/interconn/job/audit/query", {"x-source-node-id": PEER}
    said = ask(
        world.me, "peer", "GET", path, params={"audit_id": id_for(spec.job_id)}, headers=headers
    )
    return str(said.json()["data"]["status"])


def test_a_job_is_created_and_runs_after_a_person_agreed(world, audited):
    world.peer.coordinator.submit_job(audited, PEER)
    assert world.scheduled(audited).status == JobStatus.PENDING
    assert status(world, audited) == "APPLIED"
    assert world.local(audited.job_id).audit.created is False
    decide(world, audited, "approve")
    world.wait_status(audited.job_id, JobStatus.RUNNING, world.peer)
    assert world.local(audited.job_id).audit.created
    assert status(world, audited) == "APPROVED"
    world.end_all(audited)
    wait_for(lambda: world.scheduled(audited).outcome is Outcome.SUCCEEDED, 20, 0.01)
    events = [e.event for e in world.me.store.timeline(audited.job_id)]
    for before, then in (("asked before creation", "approved"), ("approved", "decision reported")):
        assert events.index(before) < events.index(then)


def test_a_repeated_question_is_the_same_unless_changed_or_too_late(world, spec):
    audits = job_audits(world.me)
    apply = partial(audits.apply, sender=PEER)
    for audit in ("q-1", "q-1"):
        apply(spec, Audit(audit))
    known = world.local(spec.job_id)
    assert known.audit is not None
    assert known.audit.id == "q-1"
    assert catch_refusal(apply, spec, Audit("q-2")) == ("JOB_ID_CONFLICT", 409)
    over = replace(spec, job_id=f"{spec.job_id}-over")
    world.me.participant.create_job(over, PEER)
    world.me.participant.stop_job(over.job_id, "", None, PEER)
    assert catch_refusal(apply, over, Audit("q-3")) == ("JOB_ENDED", 409)
    world.me.participant.withdraw(spec.job_id, None, PEER)
    world.closed(spec.job_id)


def test_approving_a_job_that_has_ended_meanwhile_is_refused_immediately(world, audited):
    world.peer.coordinator.submit_job(audited, PEER)
    with away(world.peer, world, world.me):
        world.peer.coordinator.stop_job(audited.job_id, "", PEER)
        wait_for(lambda: world.scheduled(audited).ended_at is not None, 60, 0.01)
        decide(world, audited, "approve")
        assert ended_here(world, audited).reason == "STOPPED"  # although no stop can come here


def test_a_rejection_rejects_the_job_with_its_reason(world, audited):
    with pytest.raises(
        Refused, match=r"approval\.rules"
    ) as caught:  # without the request that it needs
        world.me.participant.create_job(audited, PEER)
    assert caught.value.reason == "APPROVAL_UNSUPPORTED"
    world.peer.coordinator.submit_job(audited, PEER)
    decide(world, audited, "reject")
    world.wait_status(audited.job_id, JobStatus.REJECTED, world.peer)
    failure = world.scheduled(audited).ending.failure
    assert failure.reason == "APPROVAL_REJECTED"
    assert failure.node == ME
    assert status(world, audited) == "REJECTED"
    assert "li" in failure.message
    assert "as agreed" in failure.message
