"""A node's decision on a job: by rules or a person, before the creation, after the image pull."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.domain import approval, local_waiting
from gateway.domain.approval import AuditStatus
from gateway.domain.approval_rules import (
    CREATE,
    START,
    Mode,
    Piece,
    Policy,
    Rule,
    Verdict,
    ineffective_rules,
    judge,
    pieces,
)
from gateway.domain.execution.contact import silence_matters
from gateway.domain.execution.messages import (
    Close,
    Command,
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
from tests.domain.script import due_commands, end_reason, play

PENDING = JobStatus.PENDING
READY = JobStatus.READY
REJECTED = JobStatus.REJECTED
FINISHED = JobStatus.FINISHED
APPROVE = Verdict.APPROVE
REJECT = Verdict.REJECT
ASK = Verdict.ASK

SPEC = a_spec(
    "a",
    {
        "guest": ("n9",),
        "host": ("n1",),
    },
    scheduler="n9",
)
NEW_JOB = LocalJob(
    SPEC,
    "n1",
    READY,
    at(0),
    "digest",
    home="one",
)
PERSON_DECIDES = Policy(Mode.PERSON, 60.0)
IMAGES = {"vendor:1": ""}

# Events.
APPROVED = Decided(True, "li", "", at(10))
REFUSED = Decided(False, "wu", "not this", at(11))
PULL_DENIED = Failure("PULL_DENIED", "the registry says no")
IMAGES_PRESENT = Prepared(None, at(9))
STOPPED = StopRequested(at(5), None, None, "n9")

# Jobs that wait for a decision or for images.
PERSON_ASKED = approval.await_person(NEW_JOB, PERSON_DECIDES, "a person decides", at(0))
PULLING_IMAGES = approval.await_images(NEW_JOB, IMAGES, 50, at(0))
PERSON_AND_IMAGES = approval.await_images(PERSON_ASKED, IMAGES, 50, at(0))
AUDITED = approval.open_audit(
    NEW_JOB,
    Audit("q-1"),
    PERSON_DECIDES,
    ASK,
    "a rule",
    at(0),
)
CREATED = approval.record_creation(
    play(AUDITED, APPROVED),
    at(20),
    "n9",
)


@dataclass(frozen=True)
class ApprovalCase:
    """Steps of a local job, its state afterwards, and the commands due at second 100.

    ``reason`` is that of the refusal or of the end; empty without either.
    """

    local: LocalJob
    steps: Sequence[Event | float]
    status: JobStatus
    reason: str = ""
    due: Sequence[Command] = ()


CASES: dict[str, ApprovalCase] = {
    "a report is under way": ApprovalCase(
        local=PERSON_ASKED,
        steps=[APPROVED, 99.8],
        status=READY,
    ),
    "a failed report is repeated": ApprovalCase(
        local=PERSON_ASKED,
        steps=[
            APPROVED,
            90,
            Done(
                Confirm(),
                at(91),
                final=False,
            ),
        ],
        status=READY,
        due=[Confirm()],
    ),
    "a report is repeated after a restart": ApprovalCase(
        local=PERSON_ASKED,
        steps=[APPROVED, 99, Restarted(at(99.5))],
        status=READY,
        due=[Confirm()],
    ),
    "a reported decision is not repeated": ApprovalCase(
        local=PERSON_ASKED,
        steps=[
            APPROVED,
            90,
            Done(Confirm(), at(91)),
        ],
        status=READY,
    ),
    "a refusal after an approval is ignored": ApprovalCase(
        local=PERSON_ASKED,
        steps=[APPROVED, REFUSED],
        status=READY,
        due=[Confirm()],
    ),
    "an approval after a refusal is ignored": ApprovalCase(
        local=PERSON_ASKED,
        steps=[REFUSED, APPROVED],
        status=REJECTED,
        reason="APPROVAL_REJECTED",
        due=[Confirm()],
    ),
    "nobody has decided yet": ApprovalCase(
        local=PERSON_ASKED,
        steps=[59.9],
        status=PENDING,
        due=[Expire()],
    ),
    "nobody decides in time": ApprovalCase(
        local=PERSON_ASKED,
        steps=[60],
        status=REJECTED,
        reason="APPROVAL_TIMEOUT",
        due=[Confirm()],
    ),
    "a decision comes too late": ApprovalCase(
        local=PERSON_ASKED,
        steps=[60, APPROVED],
        status=REJECTED,
        reason="APPROVAL_TIMEOUT",
        due=[Confirm()],
    ),
    "the job is stopped before the decision": ApprovalCase(
        local=PERSON_ASKED,
        steps=[STOPPED, APPROVED],
        status=REJECTED,
    ),
    "an audit is approved": ApprovalCase(
        local=AUDITED,
        steps=[APPROVED, 69.9],
        status=READY,
        due=[Confirm(), Expire()],
    ),
    "an approved audit is not used": ApprovalCase(
        local=AUDITED,
        steps=[APPROVED, 70],
        status=FINISHED,
        reason="AUDIT_UNUSED",
    ),
    "a failure after the images are present is ignored": ApprovalCase(
        local=PULLING_IMAGES,
        steps=[
            1,
            IMAGES_PRESENT,
            Prepared(PULL_DENIED, at(10)),
        ],
        status=READY,
        due=[Confirm()],
    ),
    "the images cannot be pulled": ApprovalCase(
        local=PULLING_IMAGES,
        steps=[
            1,
            Prepared(PULL_DENIED, at(9)),
        ],
        status=REJECTED,
        reason="PULL_DENIED",
        due=[Confirm()],
    ),
    "the images come too late": ApprovalCase(
        local=PULLING_IMAGES,
        steps=[
            1,
            50,
            Prepared(None, at(51)),
        ],
        status=REJECTED,
        reason="PULL_TIMEOUT",
        due=[Confirm()],
    ),
    "the images are present, then approved": ApprovalCase(
        local=PERSON_AND_IMAGES,
        steps=[1, IMAGES_PRESENT, APPROVED],
        status=READY,
        due=[Confirm()],
    ),
    "approved, the images are missing": ApprovalCase(
        local=PERSON_AND_IMAGES,
        steps=[1, APPROVED, REFUSED],
        status=PENDING,
        due=[Expire()],
    ),
    "approved, then the images are present": ApprovalCase(
        local=PERSON_AND_IMAGES,
        steps=[1, APPROVED, IMAGES_PRESENT],
        status=READY,
        due=[Confirm()],
    ),
    "refused while the images are pulled": ApprovalCase(
        local=PERSON_AND_IMAGES,
        steps=[1, REFUSED],
        status=REJECTED,
        reason="APPROVAL_REJECTED",
        due=[Confirm()],
    ),
}


def refusal_reason(local: LocalJob) -> str:
    """Return the reason of a refusal; empty without one."""
    if local.approval is None or local.approval.failure is None:
        return ""
    return local.approval.failure.reason


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_node_takes_part_once_every_condition_is_met(case: ApprovalCase):
    local = play(case.local, *case.steps)

    assert local.status is case.status
    assert (refusal_reason(local) or end_reason(local)) == case.reason
    due = [
        command
        for command in due_commands(local, 100)
        if not isinstance(command, Close | QueryScheduler)
    ]
    assert sorted(map(str, due)) == sorted(map(str, case.due))


def test_a_pull_under_way_is_not_repeated():
    local = play(PULLING_IMAGES, 1)

    assert Prepare() not in due_commands(local, 49)


@pytest.mark.parametrize(
    ("event", "seconds"),
    [
        (
            Done(
                Prepare(),
                at(2),
                final=False,
                message="the engine is away",
            ),
            12,
        ),
        (Restarted(at(2)), 2),
        (OwnerLost("one", "two", at(2)), 2),
    ],
    ids=["engine unreachable", "gateway restarted", "gateway lost"],
)
def test_an_interrupted_pull_is_repeated(event: Event, seconds: float):
    local = play(PULLING_IMAGES, 1, event)

    assert Prepare() in due_commands(local, seconds)


def test_the_progress_of_a_pull_is_shown():
    local = play(PULLING_IMAGES, 1, Fetching("1 of 2 layers", at(3)))

    wait = local_waiting.of_local(local, RunTiming())

    assert wait is not None
    assert (wait.reason, wait.next_check) == ("PREPARING", at(50))
    assert "vendor:1" in wait.message
    assert "1 of 2 layers" in wait.message


def test_a_pull_that_fails_shows_its_progress():
    local = play(
        PULLING_IMAGES,
        1,
        Fetching("1 of 2 layers", at(3)),
        50,
    )

    assert "1 of 2 layers" in local.approval.failure.message


def test_a_job_with_its_images_still_waits_for_the_person():
    local = play(PERSON_AND_IMAGES, 1, IMAGES_PRESENT)

    wait = local_waiting.of_local(local, RunTiming())

    assert wait is not None
    assert wait.reason == "APPROVAL"


def test_a_missing_decision_is_noted_as_such_when_the_images_are_present():
    local = play(PERSON_AND_IMAGES, 1, IMAGES_PRESENT, 100)

    assert refusal_reason(local) == "APPROVAL_TIMEOUT"
    events = [note.event for note in local.notes]
    assert "approval timed out" in events
    assert "not ready to take part" not in events


def test_a_job_without_missing_images_does_not_wait_for_them():
    assert approval.await_images(NEW_JOB, {}, 100, at(0)) == NEW_JOB


# ---------------------------------------------------------------- before the job is created


@pytest.mark.parametrize(
    ("verdict", "status", "audit_status"),
    [
        (ASK, PENDING, AuditStatus.APPLIED),
        (APPROVE, READY, AuditStatus.APPROVED),
        (REJECT, REJECTED, AuditStatus.REJECTED),
    ],
)
def test_a_decision_of_the_rules_is_reported_like_a_persons(
    verdict: Verdict,
    status: JobStatus,
    audit_status: AuditStatus,
):
    local = approval.open_audit(
        NEW_JOB,
        Audit("q-1"),
        PERSON_DECIDES,
        verdict,
        "a rule",
        at(0),
    )

    assert (local.status, approval.audit_status(local)) == (status, audit_status)
    is_decided = verdict is not ASK
    assert (Confirm() in due_commands(local, 0)) is is_decided


def test_a_rejection_by_the_rules_names_the_rule():
    local = approval.open_audit(
        NEW_JOB,
        Audit("q-1"),
        PERSON_DECIDES,
        REJECT,
        "a rule",
        at(0),
    )

    assert local.approval.failure.reason == "NOT_AUTHORISED"
    assert "a rule" in local.approval.failure.message


def test_an_approved_audit_is_used_by_the_creation_of_its_job():
    assert approval.audit_status(CREATED) is AuditStatus.APPROVED
    assert silence_matters(CREATED)
    assert not silence_matters(play(AUDITED, APPROVED)), (
        "before its creation a job is not supervised"
    )


def test_an_approved_audit_expires():
    expired = play(AUDITED, APPROVED, 70)

    assert approval.audit_status(expired) is AuditStatus.TERMINATED
    assert approval.record_creation(expired, at(71), "n9") == expired


def test_an_audit_may_be_withdrawn():
    withdrawal = StopRequested(
        at(5),
        None,
        approval.withdrawal("n9", at(5)),
        "n9",
    )

    assert approval.audit_status(play(AUDITED, withdrawal)) is AuditStatus.TERMINATED


def test_only_an_audit_may_show_the_entries_of_other_nodes():
    entries = {"guest": {"0": {"a": {"secret": 1}}}}
    audited_spec = replace(SPEC, trace_id="later", task_params=entries)
    created_spec = replace(
        audited_spec,
        task_params={"guest": {"0": {}}},
    )

    assert approval.is_same(replace(AUDITED, spec=audited_spec), created_spec)


def test_a_job_that_differs_from_its_audit_is_another_one():
    assert not approval.is_same(AUDITED, replace(SPEC, version="9"))


def test_an_audit_of_a_job_that_the_node_has_approved_is_answered():
    local = approval.audit_existing(NEW_JOB, Audit("q-1"), at(3))

    assert Confirm() in due_commands(local, 3)
    assert approval.audit_status(local) is AuditStatus.APPROVED


def test_an_audit_of_a_job_with_an_open_decision_waits_for_it():
    local = approval.audit_existing(PERSON_ASKED, Audit("q-1"), at(3))

    assert local.status is PENDING
    assert approval.audit_status(local) is AuditStatus.APPLIED


# ---------------------------------------------------------------- rules

REQUESTED_PIECES = (
    Piece("n9", "unionpay/Intersection", "bank#2024", "host"),
    Piece("n9", "unionpay/LR", "", "host"),
)


@dataclass(frozen=True)
class RuleCase:
    """The rules of a node, the verdict on the pieces above, and the number of the deciding rule.

    ``number`` is None where several rules or none of them decide.
    """

    rules: tuple[Rule, ...]
    verdict: Verdict
    number: int | None = None


RULES: dict[str, RuleCase] = {
    "no rule": RuleCase((), ASK),
    "a rule for everything": RuleCase((Rule(APPROVE),), APPROVE),
    "a rule for all components": RuleCase((Rule(APPROVE, component="unionpay/*"),), APPROVE),
    "no rule for the task without data": RuleCase((Rule(APPROVE, dataset="bank#*"),), ASK),
    "one piece rejected": RuleCase(
        (
            Rule(REJECT, dataset="bank#*"),
            Rule(APPROVE),
        ),
        REJECT,
        0,
    ),
    "the first rule for a role": RuleCase(
        (
            Rule(APPROVE, role="host"),
            Rule(REJECT),
        ),
        APPROVE,
    ),
    "a rule for another node": RuleCase(
        (
            Rule(APPROVE, source="n8"),
            Rule(REJECT, component="*/LR"),
        ),
        REJECT,
        1,
    ),
    "one piece for a person": RuleCase(
        (
            Rule(ASK, component="*/LR"),
            Rule(APPROVE),
        ),
        ASK,
        0,
    ),
    "a rule for the start": RuleCase(
        (
            Rule(REJECT, command="start"),
            Rule(APPROVE),
        ),
        APPROVE,
    ),
    "a rule for the creation": RuleCase(
        (
            Rule(REJECT, command="create"),
            Rule(APPROVE),
        ),
        REJECT,
        0,
    ),
}


@pytest.mark.parametrize("case", RULES.values(), ids=RULES)
def test_the_first_rule_that_matches_a_piece_decides_on_it(case: RuleCase):
    verdict, words = judge(
        Policy(Mode.RULES, rules=case.rules),
        REQUESTED_PIECES,
    )

    assert verdict is case.verdict
    names_rule = case.number is not None
    assert (f"approval.rules[{case.number}]" in words) is names_rule


@pytest.mark.parametrize(
    ("mode", "person_only_by_rule", "expected"),
    [
        (Mode.OFF, False, APPROVE),
        (Mode.RULES, False, ASK),
        (Mode.PERSON, False, ASK),
        (Mode.RULES, True, APPROVE),
        (Mode.PERSON, True, APPROVE),
    ],
)
def test_the_mode_decides_without_a_rule_and_a_rejecting_rule_in_any_mode(
    mode: Mode,
    person_only_by_rule: bool,
    expected: Verdict,
):
    without_rule, _ = judge(
        Policy(mode),
        REQUESTED_PIECES,
        person_only_by_rule=person_only_by_rule,
    )
    rejecting = Policy(
        mode,
        rules=(Rule(REJECT, component="*/LR"),),
    )
    with_rule, _ = judge(rejecting, REQUESTED_PIECES, person_only_by_rule=person_only_by_rule)

    assert without_rule is expected
    assert with_rule is REJECT


HOST_OF_N1 = Rule(APPROVE, source="n1", role="host")

INEFFECTIVE: dict[str, tuple[Mode, tuple[Rule, ...], list[int]]] = {
    "no rule": (Mode.RULES, (), []),
    "a special rule first": (
        Mode.RULES,
        (Rule(APPROVE, component="v/*"), Rule(REJECT)),
        [],
    ),
    "a general rule first": (
        Mode.RULES,
        (Rule(REJECT), Rule(APPROVE, component="v/*")),
        [1],
    ),
    "a rule within an earlier one": (
        Mode.RULES,
        (Rule(ASK, source="n1"), HOST_OF_N1, Rule(APPROVE)),
        [1],
    ),
    "a rule after one for everything": (
        Mode.OFF,
        (
            Rule(APPROVE, source="n1"),
            Rule(REJECT),
            Rule(ASK, role="x"),
        ),
        [2],
    ),
    "no rejection in mode off": (
        Mode.OFF,
        (Rule(ASK, role="host"), Rule(APPROVE, source="n1")),
        [0, 1],
    ),
    "a question about a start": (
        Mode.RULES,
        (Rule(REJECT, command=CREATE), Rule(ASK, command=START)),
        [1],
    ),
    "an approval of a start before a rejection": (
        Mode.PERSON,
        (
            Rule(APPROVE, command=START, role="host"),
            Rule(REJECT, command=START),
        ),
        [],
    ),
}


@pytest.mark.parametrize(
    ("mode", "rules", "numbers"),
    INEFFECTIVE.values(),
    ids=INEFFECTIVE,
)
def test_rules_that_can_never_count_are_listed_with_a_remedy(
    mode: Mode,
    rules: tuple[Rule, ...],
    numbers: list[int],
):
    ineffective = list(ineffective_rules(Policy(mode, rules=rules)))

    assert [number for number, *_ in ineffective] == numbers
    for _, cause, remedy in ineffective:
        assert ("about a start" in cause) == ("decide: reject" in remedy)


def roles_of_task(task: Any) -> tuple[str, ...] | None:
    """Return the roles of a task; None for a, whose component is not known."""
    return None if task.name == "a" else ("guest",)


def test_a_job_requests_pieces_by_component_dataset_and_role():
    params = {
        "host": {"0|1": {"a": {"dataset_id": "d-1"}}},
        "guest": {"0": {"a": {"namespace": "n", "name": "x"}}},
    }
    roles = {
        "guest": ("n1",),
        "host": ("n2", "n1"),
    }
    spec = a_spec("a -> b", roles, task_params=params)

    assert list(pieces(spec, "n1", "n9", roles_of_task)) == [
        Piece("n9", "vendor/Thing", "n#x", "guest"),
        Piece("n9", "vendor/Thing", "d-1", "host"),
        Piece("n9", "vendor/Thing", "", "guest"),
    ]
