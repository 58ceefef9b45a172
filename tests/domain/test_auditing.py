"""A job that is asked about before it is created: at the node that decides, and at the one that asks."""

from dataclasses import replace

import pytest

from gateway.domain import approval
from gateway.domain.approval import ApprovalReported, AuditStatus, Mode, Policy, Verdict
from gateway.domain.execution import machine
from gateway.domain.execution.machine import watched
from gateway.domain.execution.messages import Confirm, Decided, StopRequested
from gateway.domain.job import Acceptance, Job
from gateway.domain.run import Audit, LocalJob
from gateway.domain.scheduling.machine import apply, plan
from gateway.domain.scheduling.messages import Accepted, CreateAt, Lost, Refused, StartAt, StopAt
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JobStatus
from tests.builders import a_job, a_spec, at
from tests.domain.scheduled import after, claimed

PENDING, READY, REJECTED = JobStatus.PENDING, JobStatus.READY, JobStatus.REJECTED
NO = Failure("APPROVAL_REJECTED", "li at n2 refused: not this data", "n2")
ASKED = Acceptance(waits=True, asked_only=True)

# ---------------------------------------------------------------- the node that decides


def asked(verdict: Verdict = Verdict.ASK, seconds: float = 60.0) -> LocalJob:
    spec = a_spec("a", {"guest": ("n9",), "host": ("n1",)}, scheduler="n9")
    new = LocalJob(spec, "n1", READY, at(0), "digest")
    return approval.asked(new, Audit("q-1"), Policy(Mode.PERSON, seconds), verdict, "a rule", at(0))


@pytest.mark.parametrize(
    ("verdict", "status", "word"),
    [
        (Verdict.ASK, PENDING, AuditStatus.APPLIED),
        (Verdict.APPROVE, READY, AuditStatus.APPROVED),
        (Verdict.REJECT, REJECTED, AuditStatus.REJECTED),
    ],
)
def test_what_the_rules_decide_is_told_as_a_persons_decision_is(
    verdict: Verdict, status: JobStatus, word: AuditStatus
):
    job = asked(verdict)
    assert (job.status, approval.status(job)) == (status, word)
    assert (Confirm() in machine.plan(job, at(0))) is (verdict is not Verdict.ASK)
    if verdict is Verdict.REJECT:
        assert job.approval.failure.reason == "NOT_AUTHORISED" and "a rule" in job.approval.failure.message


def test_an_approval_that_is_not_used_ends_and_one_that_is_does_not():
    job = machine.apply(asked(), Decided(True, "li", "", at(10)))
    assert machine.step(job, at(69.9))[0].status is READY
    over, _ = machine.step(job, at(70))
    assert (over.status, over.ending.failure.reason) == (JobStatus.FINISHED, "AUDIT_UNUSED")
    assert approval.status(over) is AuditStatus.TERMINATED
    assert approval.created(over, at(71), "n9") == over
    used = approval.created(job, at(20), "n9")
    assert machine.step(used, at(1000))[0].status is READY
    assert approval.status(used) is AuditStatus.APPROVED


def test_nobody_is_asked_whether_it_still_has_a_job_that_it_has_not_created():
    job = machine.apply(asked(), Decided(True, "li", "", at(10)))
    assert not watched(job)
    assert watched(approval.created(job, at(20), "n9"))


def test_a_question_taken_back_needs_no_decision():
    job = machine.apply(asked(), StopRequested(at(5), None, approval.withdrawal("n9", at(5)), "n9"))
    assert (job.status, approval.status(job)) == (REJECTED, AuditStatus.TERMINATED)
    assert machine.apply(job, Decided(True, "li", "", at(6))) == job
    assert Confirm() not in machine.plan(job, at(1000))


def test_what_is_meant_for_other_nodes_may_be_shown_with_the_question_only():
    job = asked()
    told = replace(job.spec, trace_id="later", task_params={"guest": {"0": {"a": {"secret": 1}}}})
    assert approval.is_same(replace(job, spec=told), replace(told, task_params={"guest": {"0": {}}}))
    assert not approval.is_same(job, replace(job.spec, version="9"))


def test_who_was_told_of_a_job_before_it_was_asked_about_answers_as_well():
    spec = asked().spec
    job = approval.asked_late(LocalJob(spec, "n1", READY, at(0), "digest"), Audit("q-1"), at(3))
    assert Confirm() in machine.plan(job, at(3)) and approval.status(job) is AuditStatus.APPROVED
    waits = approval.opened(LocalJob(spec, "n1", READY, at(0), "digest"), Policy(Mode.PERSON), "", at(0))
    waits = approval.asked_late(waits, Audit("q-1"), at(3))
    assert waits.status is PENDING and approval.status(waits) is AuditStatus.APPLIED


# ---------------------------------------------------------------- the node that asks


def asking() -> Job:
    """Return a job that n1 has accepted, and n2 was asked about."""
    return after(claimed(a_job()), Accepted(CreateAt("n1"), at(0)), Accepted(CreateAt("n2"), at(1), ASKED))


def test_the_job_is_created_once_the_node_agrees():
    job = asking()
    assert job.status is PENDING and plan(job, at(50)) == []
    job = apply(job, ApprovalReported("n2", at(50)))
    assert job.status is PENDING and plan(job, at(50)) == [CreateAt("n2")]
    job = after(claimed(job, 50), Accepted(CreateAt("n2"), at(51)))
    assert job.status is READY and plan(job, at(51)) == [StartAt("n1"), StartAt("n2")]


@pytest.mark.parametrize("lost", [False, True])
def test_an_answer_may_overtake_that_to_the_question(lost: bool):
    job = after(claimed(a_job()), Accepted(CreateAt("n1"), at(0)), ApprovalReported("n2", at(1)))
    late = Lost(CreateAt("n2"), at(2), delivered=True) if lost else Accepted(CreateAt("n2"), at(2), ASKED)
    job = apply(job, late)
    assert job.status is PENDING and CreateAt("n2") in plan(job, at(3))
    job = after(claimed(job, 3), Accepted(CreateAt("n2"), at(4)))
    assert job.status is READY


def test_a_node_that_never_answers_is_told_that_it_is_not_asked_any_more():
    job = claimed(asking(), 86_400 + 60)
    assert job.ending.failure.reason == "APPROVAL_TIMEOUT"
    assert job.nodes["n2"].stop.state is CallState.SENT and job.nodes["n2"].consent.asked_only


@pytest.mark.parametrize("create", ["never sent", "not delivered", "lost", "refused", "taken"])
@pytest.mark.parametrize("agreed_first", [True, False])
def test_who_agreed_is_told_that_another_refused_whatever_became_of_the_creation(create: str, agreed_first: bool):
    refused = Refused(CreateAt("n1"), Failure("BECAUSE", "of something", "n1"), at(4))
    job = after(claimed(a_job()), Accepted(CreateAt("n2"), at(1), ASKED))
    if not agreed_first:
        job = after(job, refused, ApprovalReported("n2", at(5)))
    elif create == "never sent":
        job = after(job, ApprovalReported("n2", at(2)), refused)
    else:
        job = claimed(apply(job, ApprovalReported("n2", at(2))), 2)
        news = {
            "not delivered": Lost(CreateAt("n2"), at(3), delivered=False),
            "lost": Lost(CreateAt("n2"), at(3), delivered=True),
            "refused": Refused(CreateAt("n2"), NO, at(3)),
            "taken": Accepted(CreateAt("n2"), at(3)),
        }
        job = after(job, news[create], refused)
    assert job.ending is not None and StopAt("n2") in plan(job, at(80))
    away = after(claimed(job, 80), Lost(StopAt("n2"), at(81), delivered=False))
    assert away.status is REJECTED and StopAt("n2") in plan(away, at(100))  # until it is heard
    told = after(claimed(away, 100), Accepted(StopAt("n2"), at(101)))
    assert told.nodes["n2"].stop.completed and StopAt("n2") not in plan(told, at(200))


def test_who_was_only_asked_and_said_no_is_told_nothing():
    job = apply(asking(), ApprovalReported("n2", at(5), NO))
    assert plan(job, at(50)) == [StopAt("n1")]
