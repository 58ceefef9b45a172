"""Somebody has to agree to a job: at the node that asks, and at the node that schedules it."""

from dataclasses import replace

import pytest

from gateway.domain import approval, waiting
from gateway.domain.approval import (
    CREATE,
    DEADLINE,
    START,
    ApprovalReported,
    Mode,
    Piece,
    Policy,
    Rule,
    Verdict,
    contradicts,
    idle,
    judge,
    pieces,
)
from gateway.domain.execution import machine
from gateway.domain.execution.messages import Confirm, Decided, Done, Restarted
from gateway.domain.execution.messages import StopRequested as StopAskedHere
from gateway.domain.job import GRACE, Acceptance, Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling.machine import apply, next_due, plan
from gateway.domain.scheduling.messages import Accepted, CreateAt, Lost, StartAt, StopAt, StopRequested
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JobStatus, Outcome
from tests.builders import a_job, a_spec, at
from tests.domain.scheduled import after, claimed

PENDING, READY, REJECTED = JobStatus.PENDING, JobStatus.READY, JobStatus.REJECTED
NO = Failure("APPROVAL_REJECTED", "li at n2 refused: not this data", "n2")

# ---------------------------------------------------------------- the node that schedules


def asked(within: float | None = 60.0) -> Job:
    """Return a job that n1 has accepted, and to which somebody at n2 has to agree."""
    job = claimed(a_job())
    return after(
        job,
        Accepted(CreateAt("n1"), at(0)),
        Accepted(CreateAt("n2"), at(1), Acceptance(waits=True, within=within)),
    )


def test_a_job_waits_until_everybody_has_agreed():
    job = asked()
    assert job.status is PENDING and plan(job, at(50)) == []
    job = apply(job, ApprovalReported("n2", at(50)))
    assert job.status is READY and plan(job, at(50)) == [StartAt("n1"), StartAt("n2")]
    assert apply(job, ApprovalReported("n2", at(51))) == job


def test_one_refusal_rejects_the_job_with_its_words_and_stops_the_others():
    job = apply(asked(), ApprovalReported("n2", at(5), NO))
    assert (job.ending.outcome, job.ending.failure) == (Outcome.REJECTED, NO)
    assert plan(job, at(5)) == [StopAt("n1")]  # n2 holds nothing: it refused
    job = after(claimed(job, 5), Accepted(StopAt("n1"), at(6)))
    assert (job.status, job.outcome) == (REJECTED, Outcome.REJECTED)


def test_silence_is_a_refusal_at_the_deadline_and_the_silent_node_is_stopped_too():
    job = asked(60.0)
    assert next_due(job) == at(61 + GRACE)
    job = claimed(job, 61 + GRACE)
    assert (job.ending.outcome, job.ending.failure.reason) == (Outcome.REJECTED, "APPROVAL_TIMEOUT")
    assert job.ending.failure.node == "n2" and job.nodes["n2"].stop.state is CallState.SENT


def test_what_is_told_of_a_node_that_asks_is_the_time_that_it_set_itself():
    told = waiting.of_job(asked(60.0))
    assert told is not None and told.message == f"somebody has to agree: n2 until {at(61).isoformat()}"
    noted = [note for note in asked(60.0).notes if note.event == "waits for approval"]
    assert [note.detail["until"] for note in noted] == [at(61).isoformat()]


def test_a_node_that_does_not_say_how_long_it_asks_has_a_day():
    assert next_due(asked(None)) == at(1 + DEADLINE + GRACE)


def test_an_answer_may_overtake_that_of_the_creation():
    job = after(claimed(a_job()), Accepted(CreateAt("n1"), at(0)), ApprovalReported("n2", at(1)))
    assert job.status is PENDING
    for late in (
        Accepted(CreateAt("n2"), at(2), Acceptance(waits=True, within=60.0)),
        Accepted(CreateAt("n2"), at(2)),
    ):
        assert apply(job, late).status is READY
    lost = after(job, Lost(CreateAt("n2"), at(2), delivered=True))
    assert lost.status is PENDING  # the creation is repeated, and its answer decides


@pytest.mark.parametrize("first", [None, NO])
@pytest.mark.parametrize("then", [None, NO])
def test_only_the_first_answer_counts(first: Failure | None, then: Failure | None):
    job = apply(asked(), ApprovalReported("n2", at(5), first))
    again = ApprovalReported("n2", at(6), then)
    assert bool(contradicts(job, again)) is (first is not then)
    after_it = apply(job, again)
    assert (after_it.status, after_it.ending, after_it.nodes["n2"].consent) == (
        job.status,
        job.ending,
        job.nodes["n2"].consent,
    )


def test_answers_that_come_too_late_say_so():
    for job in (a_job(status=JobStatus.READY), a_job(status=JobStatus.RUNNING)):
        assert contradicts(job, ApprovalReported("n2", at(1))) == ""  # it was ready anyway
        assert "already" in contradicts(job, ApprovalReported("n2", at(1), NO))
        assert apply(job, ApprovalReported("n2", at(1), NO)).ending is None
    stopped = apply(asked(), StopRequested("n1", at(3)))
    assert "ended" in contradicts(stopped, ApprovalReported("n2", at(4)))
    assert apply(stopped, ApprovalReported("n2", at(4))).status is PENDING


# ---------------------------------------------------------------- the node that asks


def local(seconds: float = 60.0) -> LocalJob:
    spec = a_spec("a", {"guest": ("n9",), "host": ("n1",)})
    new = LocalJob(spec, "n1", READY, at(0), "digest")
    return approval.opened(new, Policy(Mode.PERSON, seconds), "a person decides", at(0))


def test_a_decision_is_told_until_it_is_heard():
    job = machine.apply(local(), Decided(True, "li", "fine", at(10)))
    assert (job.status, job.approval.by) == (READY, "li")
    job, actions = machine.step(job, at(10))
    assert actions == [Confirm()] and machine.plan(job, at(10)) == []
    job = machine.apply(job, Done(Confirm(), at(11), final=False, message="no answer"))
    assert Confirm() in machine.plan(job, at(30))
    job = machine.apply(machine.step(job, at(30))[0], Restarted(at(31)))
    assert Confirm() in machine.plan(job, at(31))
    job = machine.apply(machine.step(job, at(31))[0], Done(Confirm(), at(32)))
    assert Confirm() not in machine.plan(job, at(100))


@pytest.mark.parametrize("first", [True, False])
def test_a_person_decides_once(first: bool):
    job = machine.apply(local(), Decided(first, "li", "", at(10)))
    for later in (Decided(not first, "wang", "", at(11)), Decided(first, "wang", "", at(11))):
        assert machine.apply(job, later) == job
    assert job.status is (READY if first else REJECTED)


def test_nobody_decides_in_time():
    job, actions = machine.step(local(60.0), at(59.9))
    assert job.status is PENDING and actions == []
    job, _ = machine.step(local(60.0), at(60))
    assert (job.status, job.approval.failure.reason) == (REJECTED, "APPROVAL_TIMEOUT")
    assert Confirm() in machine.plan(job, at(60))
    assert machine.apply(job, Decided(True, "li", "", at(61))) == job


def test_a_job_that_is_stopped_meanwhile_needs_no_decision():
    job = machine.apply(local(), StopAskedHere(at(5), None, None, "n9"))
    assert job.status is REJECTED
    assert machine.apply(job, Decided(True, "li", "", at(6))) == job
    assert Confirm() not in machine.plan(job, at(1000))


# ---------------------------------------------------------------- the rules

WANTED = (Piece("n9", "unionpay/Intersection", "bank#2024", "host"), Piece("n9", "unionpay/LR", "", "host"))


@pytest.mark.parametrize(
    ("rules", "verdict", "number"),
    [
        ((), Verdict.ASK, None),
        ((Rule(Verdict.APPROVE),), Verdict.APPROVE, None),
        ((Rule(Verdict.APPROVE, component="unionpay/*"),), Verdict.APPROVE, None),
        ((Rule(Verdict.APPROVE, dataset="bank#*"),), Verdict.ASK, None),  # the other task has no data
        ((Rule(Verdict.REJECT, dataset="bank#*"), Rule(Verdict.APPROVE)), Verdict.REJECT, 0),
        ((Rule(Verdict.APPROVE, role="host"), Rule(Verdict.REJECT)), Verdict.APPROVE, None),
        ((Rule(Verdict.APPROVE, source="n8"), Rule(Verdict.REJECT, component="*/LR")), Verdict.REJECT, 1),
        ((Rule(Verdict.ASK, component="*/LR"), Rule(Verdict.APPROVE)), Verdict.ASK, 0),
        ((Rule(Verdict.REJECT, command="start"), Rule(Verdict.APPROVE)), Verdict.APPROVE, None),
        ((Rule(Verdict.REJECT, command="create"), Rule(Verdict.APPROVE)), Verdict.REJECT, 0),
    ],
)
def test_the_first_rule_that_matches_a_piece_decides_on_it(
    rules: tuple[Rule, ...], verdict: Verdict, number: int | None
):
    found, words = judge(Policy(Mode.RULES, rules=rules), WANTED)
    assert found is verdict
    assert (f"approval.rules[{number}]" in words) is (number is not None)


@pytest.mark.parametrize(
    ("mode", "own", "verdict"),
    [
        (Mode.OFF, False, Verdict.APPROVE),
        (Mode.RULES, False, Verdict.ASK),
        (Mode.PERSON, False, Verdict.ASK),
        (Mode.RULES, True, Verdict.APPROVE),
        (Mode.PERSON, True, Verdict.APPROVE),
    ],
)
def test_what_holds_without_a_rule(mode: Mode, own: bool, verdict: Verdict):
    assert judge(Policy(mode), WANTED, own=own)[0] is verdict
    forbidden = Policy(mode, rules=(Rule(Verdict.REJECT, component="*/LR"),))
    assert judge(forbidden, WANTED, own=own)[0] is Verdict.REJECT


APPROVE, REJECT, ASK = Verdict


@pytest.mark.parametrize(
    ("mode", "rules", "numbers"),
    [
        (Mode.RULES, (), []),
        (Mode.RULES, (Rule(APPROVE, component="v/*"), Rule(REJECT)), []),
        (Mode.RULES, (Rule(REJECT), Rule(APPROVE, component="v/*")), [1]),
        (Mode.RULES, (Rule(ASK, source="n1"), Rule(APPROVE, source="n1", role="host"), Rule(APPROVE)), [1]),
        (Mode.OFF, (Rule(APPROVE, source="n1"), Rule(REJECT), Rule(ASK, role="x")), [2]),
        (Mode.OFF, (Rule(ASK, role="host"), Rule(APPROVE, source="n1")), [0, 1]),
        (Mode.RULES, (Rule(ASK, command=START), Rule(REJECT, command=CREATE)), []),
        (Mode.RULES, (Rule(REJECT, command=CREATE), Rule(ASK, command=START)), [1]),
        (Mode.PERSON, (Rule(APPROVE, command=START, role="host"), Rule(REJECT, command=START)), []),
    ],
)
def test_rules_that_can_never_count_are_found(mode: Mode, rules: tuple[Rule, ...], numbers: list[int]):
    found = dict(idle(Policy(mode, rules=rules)))
    assert list(found) == numbers and all(found.values())


def test_what_a_job_wants_of_a_node():
    spec = a_spec("a -> b", {"guest": ("n1",), "host": ("n2", "n1")})
    spec = replace(
        spec,
        task_params={
            "host": {"0|1": {"a": {"dataset_id": "d-1"}}},
            "guest": {"0": {"a": {"namespace": "n", "name": "x"}}},
        },
    )
    found = list(pieces(spec, "n1", "n9", lambda task: None if task.name == "a" else ("guest",)))
    assert found == [
        Piece("n9", "vendor/Thing", "n#x", "guest"),
        Piece("n9", "vendor/Thing", "d-1", "host"),
        Piece("n9", "vendor/Thing", "", "guest"),
    ]
