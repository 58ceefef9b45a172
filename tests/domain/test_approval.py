"""Whether a node takes part in a job: by rule, by a person, before it is created, once its images are there."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.domain import approval, waiting
from gateway.domain.approval import (
    CREATE,
    START,
    AuditStatus,
    Mode,
    Piece,
    Policy,
    Rule,
    Verdict,
    ineffective_rules,
    judge,
    pieces,
)
from gateway.domain.execution import machine
from gateway.domain.execution.contact import watched
from gateway.domain.execution.messages import (
    Close,
    Confirm,
    Decided,
    Done,
    Event,
    Expire,
    Fetching,
    OwnerLost,
    Prepare,
    Prepared,
    QueryScheduler,
    Restarted,
    StopRequested,
)
from gateway.domain.run import Audit, LocalJob
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import a_spec, at
from tests.domain.script import due_commands, play

PENDING, READY, REJECTED, FINISHED = (
    JobStatus.PENDING,
    JobStatus.READY,
    JobStatus.REJECTED,
    JobStatus.FINISHED,
)
APPROVE, REJECT, ASK = Verdict
SPEC = a_spec("a", {"guest": ("n9",), "host": ("n1",)}, scheduler="n9")
NEW = LocalJob(SPEC, "n1", READY, at(0), "digest", home="one")
PERSON = Policy(Mode.PERSON, 60.0)
IMAGES = {"vendor:1": ""}
ASKED = approval.await_person(NEW, PERSON, "a person decides", at(0))
PULLING = approval.await_images(NEW, IMAGES, 50, at(0))
BOTH = approval.await_images(ASKED, IMAGES, 50, at(0))
AUDITED = approval.open_audit(NEW, Audit("q-1"), PERSON, ASK, "a rule", at(0))
CREATED = approval.record_creation(
    machine.apply(AUDITED, Decided(True, "li", "", at(10))), at(20), "n9"
)
YES, NO = Decided(True, "li", "", at(10)), Decided(False, "wu", "not this", at(11))
DENIED = Failure("PULL_DENIED", "the registry says no")
STOP = StopRequested(at(5), None, None, "n9")
EXPIRE = Expire()
HERE = Prepared(None, at(9))

CASES: dict[str, tuple[LocalJob, Sequence[Event | float], JobStatus, str, list]] = {
    "told once": (ASKED, [YES, 99.8], READY, "", []),
    "told in vain": (
        ASKED,
        [YES, 90, Done(Confirm(), at(91), final=False)],
        READY,
        "",
        [Confirm()],
    ),
    "told by a gateway that restarts": (
        ASKED,
        [YES, 99, Restarted(at(99.5))],
        READY,
        "",
        [Confirm()],
    ),
    "told": (ASKED, [YES, 90, Done(Confirm(), at(91))], READY, "", []),
    "approved, and refused": (ASKED, [YES, NO], READY, "", [Confirm()]),
    "refused, and approved": (ASKED, [NO, YES], REJECTED, "APPROVAL_REJECTED", [Confirm()]),
    "not yet decided": (ASKED, [59.9], PENDING, "", [EXPIRE]),
    "nobody decides": (ASKED, [60], REJECTED, "APPROVAL_TIMEOUT", [Confirm()]),
    "and somebody does, too late": (ASKED, [60, YES], REJECTED, "APPROVAL_TIMEOUT", [Confirm()]),
    "stopped meanwhile": (ASKED, [STOP, YES], REJECTED, "", []),
    "audited, approved": (AUDITED, [YES, 69.9], READY, "", [Confirm(), EXPIRE]),
    "and not used": (AUDITED, [YES, 70], FINISHED, "AUDIT_UNUSED", []),
    "pulled once": (PULLING, [1, HERE, Prepared(DENIED, at(10))], READY, "", [Confirm()]),
    "not to be had": (PULLING, [1, Prepared(DENIED, at(9))], REJECTED, "PULL_DENIED", [Confirm()]),
    "not in time": (
        PULLING,
        [1, 50, Prepared(None, at(51))],
        REJECTED,
        "PULL_TIMEOUT",
        [Confirm()],
    ),
    "pulled and approved": (BOTH, [1, HERE, YES], READY, "", [Confirm()]),
    "approved, not pulled": (BOTH, [1, YES, NO], PENDING, "", [EXPIRE]),
    "approved and pulled": (BOTH, [1, YES, HERE], READY, "", [Confirm()]),
    "pulled and refused": (BOTH, [1, NO], REJECTED, "APPROVAL_REJECTED", [Confirm()]),
}


@pytest.mark.parametrize(("job", "steps", "status", "reason", "dues"), CASES.values(), ids=CASES)
def test_whether_a_node_takes_part(
    job: LocalJob,
    steps: Sequence[Event | float],
    status: JobStatus,
    reason: str,
    dues: list,
):
    job = play(job, *steps)
    failure = (job.approval and job.approval.failure) or (job.ending and job.ending.failure)
    assert (job.status, failure.reason if failure else "") == (status, reason)
    shown = [c for c in due_commands(job, 100) if not isinstance(c, Close | QueryScheduler)]
    assert sorted(map(str, shown)) == sorted(map(str, dues))


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([Done(Prepare(), at(2), final=False, message="the engine is away")], 12),
        ([Restarted(at(2))], 2),
        ([OwnerLost("one", "two", at(2))], 2),
    ],
)
def test_an_unreachable_engine_and_a_restarted_gateway_are_retried(steps, seconds):
    job = play(PULLING, 1, *steps)
    assert Prepare() in due_commands(job, seconds) and Prepare() not in due_commands(
        play(PULLING, 1), 49
    )


def test_the_progress_of_a_pull_is_shown_also_when_it_fails():
    job = play(PULLING, 1, Fetching("1 of 2 layers", at(3)))
    said = waiting.of_local(job, RunTiming())
    assert said is not None and (said.reason, said.next_check) == ("PREPARING", at(50))
    assert "vendor:1" in said.message and "1 of 2 layers" in said.message
    assert "1 of 2 layers" in play(job, 50).approval.failure.message
    both = waiting.of_local(play(BOTH, 1, HERE), RunTiming())
    assert both is not None and both.reason == "APPROVAL"
    assert approval.await_images(NEW, {}, 100, at(0)) == NEW


# ---------------------------------------------------------------- before the job is created


@pytest.mark.parametrize(
    ("verdict", "status", "word"),
    [
        (ASK, PENDING, AuditStatus.APPLIED),
        (APPROVE, READY, AuditStatus.APPROVED),
        (REJECT, REJECTED, AuditStatus.REJECTED),
    ],
)
def test_a_decision_of_the_rules_is_reported_like_a_persons(
    verdict,
    status,
    word,
):
    job = approval.open_audit(NEW, Audit("q-1"), PERSON, verdict, "a rule", at(0))
    assert (job.status, approval.audit_status(job)) == (status, word)
    assert (Confirm() in due_commands(job, 0)) is (verdict is not ASK)
    if verdict is REJECT:
        assert (
            job.approval.failure.reason == "NOT_AUTHORISED"
            and "a rule" in job.approval.failure.message
        )


def test_an_audited_job_is_used_withdrawn_or_expires():
    assert approval.audit_status(play(AUDITED, YES, 70)) is AuditStatus.TERMINATED
    assert approval.record_creation(play(AUDITED, YES, 70), at(71), "n9") == play(AUDITED, YES, 70)
    assert approval.audit_status(CREATED) is AuditStatus.APPROVED
    assert watched(CREATED) and not watched(play(AUDITED, YES))
    withdrawn = StopRequested(at(5), None, approval.withdrawal("n9", at(5)), "n9")
    assert approval.audit_status(play(AUDITED, withdrawn)) is AuditStatus.TERMINATED


def test_entries_of_other_nodes_may_be_shown_in_the_audit_request_only():
    told = replace(SPEC, trace_id="later", task_params={"guest": {"0": {"a": {"secret": 1}}}})
    assert approval.is_same(
        replace(AUDITED, spec=told), replace(told, task_params={"guest": {"0": {}}})
    )
    assert not approval.is_same(AUDITED, replace(SPEC, version="9"))


def test_a_node_that_knew_the_job_before_the_audit_answers_it_too():
    job = approval.audit_existing(NEW, Audit("q-1"), at(3))
    assert Confirm() in due_commands(job, 3) and approval.audit_status(job) is AuditStatus.APPROVED
    waits = approval.audit_existing(ASKED, Audit("q-1"), at(3))
    assert waits.status is PENDING and approval.audit_status(waits) is AuditStatus.APPLIED


# ---------------------------------------------------------------- the rules

WANTED = (
    Piece("n9", "unionpay/Intersection", "bank#2024", "host"),
    Piece("n9", "unionpay/LR", "", "host"),
)


@pytest.mark.parametrize(
    ("rules", "verdict", "number"),
    [
        ((), ASK, None),
        ((Rule(APPROVE),), APPROVE, None),
        ((Rule(APPROVE, component="unionpay/*"),), APPROVE, None),
        ((Rule(APPROVE, dataset="bank#*"),), ASK, None),  # the other task has no data
        ((Rule(REJECT, dataset="bank#*"), Rule(APPROVE)), REJECT, 0),
        ((Rule(APPROVE, role="host"), Rule(REJECT)), APPROVE, None),
        ((Rule(APPROVE, source="n8"), Rule(REJECT, component="*/LR")), REJECT, 1),
        ((Rule(ASK, component="*/LR"), Rule(APPROVE)), ASK, 0),
        ((Rule(REJECT, command="start"), Rule(APPROVE)), APPROVE, None),
        ((Rule(REJECT, command="create"), Rule(APPROVE)), REJECT, 0),
    ],
)
def test_the_first_rule_that_matches_a_piece_decides_on_it(
    rules,
    verdict,
    number,
):
    found, words = judge(Policy(Mode.RULES, rules=rules), WANTED)
    assert found is verdict
    assert (f"approval.rules[{number}]" in words) is (number is not None)


@pytest.mark.parametrize(
    ("mode", "own", "verdict"),
    [
        (Mode.OFF, False, APPROVE),
        (Mode.RULES, False, ASK),
        (Mode.PERSON, False, ASK),
        (Mode.RULES, True, APPROVE),
        (Mode.PERSON, True, APPROVE),
    ],
)
def test_what_holds_without_a_rule(
    mode: Mode,
    own: bool,
    verdict: Verdict,
):
    assert judge(Policy(mode), WANTED, is_own=own)[0] is verdict
    forbidden = Policy(mode, rules=(Rule(REJECT, component="*/LR"),))
    assert judge(forbidden, WANTED, is_own=own)[0] is REJECT


@pytest.mark.parametrize(
    ("mode", "rules", "numbers"),
    [
        (Mode.RULES, (), []),
        (Mode.RULES, (Rule(APPROVE, component="v/*"), Rule(REJECT)), []),
        (Mode.RULES, (Rule(REJECT), Rule(APPROVE, component="v/*")), [1]),
        (
            Mode.RULES,
            (Rule(ASK, source="n1"), Rule(APPROVE, source="n1", role="host"), Rule(APPROVE)),
            [1],
        ),
        (Mode.OFF, (Rule(APPROVE, source="n1"), Rule(REJECT), Rule(ASK, role="x")), [2]),
        (Mode.OFF, (Rule(ASK, role="host"), Rule(APPROVE, source="n1")), [0, 1]),
        (Mode.RULES, (Rule(REJECT, command=CREATE), Rule(ASK, command=START)), [1]),
        (Mode.PERSON, (Rule(APPROVE, command=START, role="host"), Rule(REJECT, command=START)), []),
    ],
)
def test_rules_that_can_never_count_are_found(
    mode: Mode,
    rules: tuple[Rule, ...],
    numbers: list[int],
):
    found = list(ineffective_rules(Policy(mode, rules=rules)))
    assert [number for number, *_ in found] == numbers
    assert all(("about a start" in why) == ("decide: reject" in remedy) for _, why, remedy in found)


def test_what_a_job_wants_of_a_node():
    params = {
        "host": {"0|1": {"a": {"dataset_id": "d-1"}}},
        "guest": {"0": {"a": {"namespace": "n", "name": "x"}}},
    }
    spec = a_spec("a -> b", {"guest": ("n1",), "host": ("n2", "n1")}, task_params=params)
    assert list(
        pieces(spec, "n1", "n9", lambda task: None if task.name == "a" else ("guest",))
    ) == [
        Piece("n9", "vendor/Thing", "n#x", "guest"),
        Piece("n9", "vendor/Thing", "d-1", "host"),
        Piece("n9", "vendor/Thing", "", "guest"),
    ]
