"""A job before its start: approval by its nodes, reservations, parties that it can spare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.domain.approval import DEADLINE, why_too_late
from gateway.domain.job import GRACE, Acceptance, Job
from gateway.domain.scheduling.messages import (
    Command,
    Expire,
    Freed,
    StopRequested,
)
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus
from tests.builders import a_job, at
from tests.domain.calls import A1, A2, A3, C1, C2, C3, C4, S1, S2, S3, S4, X1, X2, X3, X4
from tests.domain.new_jobs import (
    BUSY,
    NEEDS_RESERVATION,
    REFUSED_BY_PERSON,
    RELEASE_1,
    RESERVE_1,
    RESERVE_2,
    RESERVE_3,
    START_UNDER_WAY,
    THREE_CREATED,
    grant,
    job_with_optional_host,
    job_with_reservations,
)
from tests.domain.script import (
    Step,
    accept,
    due_at_each,
    due_commands,
    end_reason,
    lose_request,
    lose_response,
    play,
    refuse,
    report_approval,
)

PENDING = JobStatus.PENDING
READY = JobStatus.READY
RUNNING = JobStatus.RUNNING
REJECTED = JobStatus.REJECTED

# Second at which the decision of ``WAITS_FOR_PERSON``, accepted at second 1, counts as missing.
DECISION_END = 61 + GRACE

REFUSED_REASON = "APPROVAL_REJECTED"
TIMEOUT_REASON = "APPROVAL_TIMEOUT"
JOB_UNKNOWN = Failure("JOB_UNKNOWN")
WAITS_FOR_PERSON = Acceptance(waits=True, within=60.0)
WAITS_WITHOUT_LIMIT = Acceptance(waits=True)
ONLY_ASKED = Acceptance(waits=True, asked_only=True)

# Jobs.
NEW_JOB = a_job()
READY_JOB = a_job(status=READY)
OPTIONAL_HOST = job_with_optional_host()
ALL_NEED = job_with_reservations("n3", "n1", "n2")
TWO_NEED = job_with_reservations("n1", "n2")
ONE_NEEDS = job_with_reservations("n1")

# Steps of approvals.
ONE_ASKED: list[Step] = [
    0,
    accept(C1, 0),
    accept(C2, 1, WAITS_FOR_PERSON),
]
ONE_AUDITED: list[Step] = [
    0,
    accept(C1, 0),
    accept(C2, 1, ONLY_ASKED),
]
AGREED_IN_AUDIT: list[Step] = [
    0,
    accept(C2, 1, ONLY_ASKED),
    report_approval("n2", 2),
]
DECIDED_EARLY: list[Step] = [
    0,
    accept(C1, 0),
    report_approval("n2", 1),
]
APPROVES = report_approval("n2", 50)
REFUSES = report_approval("n2", 5, REFUSED_BY_PERSON)
STOP_JOB = StopRequested("n1", at(3))

# Steps of reservations.
SECOND_BUSY: list[Step] = [*grant(RESERVE_1), 2, refuse(RESERVE_2, 3, BUSY)]
FIRST_RELEASED: list[Step] = [*SECOND_BUSY, 3, accept(RELEASE_1, 3.2)]
RELEASED_TWICE: list[Step] = [
    *SECOND_BUSY,
    3,
    lose_response(RELEASE_1, 4),
    5,
    accept(RELEASE_1, 5.1),
]
BUSY_AFTER_LONG_WAIT: list[Step] = [
    *FIRST_RELEASED,
    *grant(RESERVE_1, begin=600),
    602,
    refuse(RESERVE_2, 603, BUSY),
    603.9,
]
FREED_EARLY = Freed("n1", at(0.1))

EVERY_START = [S3, S1, S2]
EVERY_STOP = [X3, X1, X2]


@dataclass(frozen=True)
class BeforeStartCase:
    """Steps of a job before its tasks, the commands due afterwards by second, and its state.

    ``reason`` is that of the job's end; empty without an end.
    """

    job: Job
    status: JobStatus
    steps: Sequence[Step] = ()
    due: Mapping[float, Sequence[Command]] = field(default_factory=dict)
    reason: str = ""


CASES: dict[str, BeforeStartCase] = {
    # ---- approval
    "a person decides until the deadline": BeforeStartCase(
        job=NEW_JOB,
        steps=ONE_ASKED,
        due={
            50: [],
            DECISION_END - 0.1: [],
            DECISION_END: [Expire("n2")],
        },
        status=PENDING,
    ),
    "a person approves twice": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_ASKED, APPROVES, report_approval("n2", 51)],
        due={51: [S1, S2]},
        status=READY,
    ),
    "a refusal stops the other nodes": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_ASKED, REFUSES, 5, accept(X1, 6)],
        due={99: []},
        status=REJECTED,
        reason=REFUSED_REASON,
    ),
    "nobody decides": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_ASKED, DECISION_END],
        due={
            DECISION_END: [],
            DECISION_END + 12: [X1, X2],
        },
        status=PENDING,
        reason=TIMEOUT_REASON,
    ),
    "no deadline is given": BeforeStartCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 0),
            accept(C2, 1, WAITS_WITHOUT_LIMIT),
        ],
        due={
            DEADLINE + GRACE: [],
            1 + DEADLINE + GRACE: [Expire("n2")],
        },
        status=PENDING,
    ),
    "an approval overtakes the response": BeforeStartCase(
        job=NEW_JOB,
        steps=[*DECIDED_EARLY, accept(C2, 2, WAITS_FOR_PERSON)],
        due={2: [S1, S2]},
        status=READY,
    ),
    "an approval overtakes a response without conditions": BeforeStartCase(
        job=NEW_JOB,
        steps=[*DECIDED_EARLY, accept(C2, 2)],
        due={2: [S1, S2]},
        status=READY,
    ),
    "an approval overtakes a lost response": BeforeStartCase(
        job=NEW_JOB,
        steps=[*DECIDED_EARLY, lose_response(C2, 2)],
        due={3: [C2]},
        status=PENDING,
    ),
    "stopped before the decision": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_ASKED, STOP_JOB, report_approval("n2", 4)],
        due={4: [X1, X2]},
        status=PENDING,
        reason="STOPPED",
    ),
    "a refusal of a ready job": BeforeStartCase(
        job=READY_JOB,
        steps=[report_approval("n2", 1, REFUSED_BY_PERSON)],
        due={1: [S1, S2]},
        status=READY,
    ),
    # ---- audits: approval before the creation
    "approved in an audit, then created": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_AUDITED, APPROVES, 50, accept(C2, 51)],
        due={51: [S1, S2]},
        status=READY,
    ),
    "an approval overtakes the response to an audit": BeforeStartCase(
        job=NEW_JOB,
        steps=[*DECIDED_EARLY, accept(C2, 2, ONLY_ASKED), 3],
        due={15: [C2]},
        status=PENDING,
    ),
    "an approval overtakes the response to an audit, created": BeforeStartCase(
        job=NEW_JOB,
        steps=[*DECIDED_EARLY, accept(C2, 2, ONLY_ASKED), 3, accept(C2, 4)],
        due={4: [S1, S2]},
        status=READY,
    ),
    "an audit without a decision": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_AUDITED, 86_460],
        due={86_472: [X1, X2]},
        status=PENDING,
        reason=TIMEOUT_REASON,
    ),
    "refused in an audit": BeforeStartCase(
        job=NEW_JOB,
        steps=[*ONE_AUDITED, REFUSES],
        due={50: [X1]},
        status=PENDING,
        reason=REFUSED_REASON,
    ),
    "another node refuses before the creation": BeforeStartCase(
        job=NEW_JOB,
        steps=[*AGREED_IN_AUDIT, refuse(C1, 4)],
        due={80: [X2]},
        status=PENDING,
        reason="BECAUSE",
    ),
    "another node refuses after an undelivered creation": BeforeStartCase(
        job=NEW_JOB,
        steps=[*AGREED_IN_AUDIT, 2, lose_request(C2, 3), refuse(C1, 4)],
        due={80: [X2]},
        status=REJECTED,
        reason="BECAUSE",
    ),
    "another node refuses after a lost creation": BeforeStartCase(
        job=NEW_JOB,
        steps=[*AGREED_IN_AUDIT, 2, lose_response(C2, 3), refuse(C1, 4)],
        due={80: [X2]},
        status=REJECTED,
        reason="BECAUSE",
    ),
    "another node refuses after a refused creation": BeforeStartCase(
        job=NEW_JOB,
        steps=[*AGREED_IN_AUDIT, 2, refuse(C2, 3, REFUSED_BY_PERSON), refuse(C1, 4)],
        due={80: [X2]},
        status=PENDING,
        reason=REFUSED_REASON,
    ),
    # ---- reservations: at all nodes or at none, in one order for every job
    "no reservation is needed": BeforeStartCase(
        job=job_with_reservations(),
        due={0: EVERY_START},
        status=READY,
    ),
    "every node grants its reservation": BeforeStartCase(
        job=ALL_NEED,
        steps=grant(RESERVE_1, RESERVE_2, RESERVE_3),
        due={9: EVERY_START},
        status=READY,
    ),
    "the acceptance demands a reservation": BeforeStartCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 1),
            accept(C2, 1, NEEDS_RESERVATION),
        ],
        due={1: [RESERVE_2]},
        status=READY,
    ),
    "a busy node makes the others release": BeforeStartCase(
        job=ALL_NEED,
        steps=SECOND_BUSY,
        due={3: [RELEASE_1]},
        status=READY,
    ),
    "a released job applies again after a pause": BeforeStartCase(
        job=ALL_NEED,
        steps=FIRST_RELEASED,
        due={
            3.4: [],
            3.5: [RESERVE_1],
        },
        status=READY,
    ),
    "a refused release counts as done": BeforeStartCase(
        job=TWO_NEED,
        steps=[*SECOND_BUSY, 3, refuse(RELEASE_1, 3.2)],
        due={
            3.4: [],
            3.5: [RESERVE_1],
        },
        status=READY,
    ),
    "a released job gets every reservation": BeforeStartCase(
        job=ALL_NEED,
        steps=[*FIRST_RELEASED, *grant(RESERVE_1, RESERVE_2, RESERVE_3, begin=4)],
        due={9: EVERY_START},
        status=READY,
    ),
    "another node has room": BeforeStartCase(
        job=TWO_NEED,
        steps=[
            0,
            refuse(RESERVE_1, 1, BUSY),
            Freed("n2", at(1.1)),
        ],
        due={1.1: []},
        status=READY,
    ),
    "the busy node has room": BeforeStartCase(
        job=TWO_NEED,
        steps=[
            0,
            refuse(RESERVE_1, 1, BUSY),
            Freed("n1", at(1.1)),
        ],
        due={1.1: [RESERVE_1]},
        status=READY,
    ),
    "room before the refusal arrived": BeforeStartCase(
        job=ONE_NEEDS,
        steps=[
            0,
            FREED_EARLY,
            refuse(RESERVE_1, 0.2, BUSY),
        ],
        due={0.2: [RESERVE_1]},
        status=READY,
    ),
    "room before the refusal arrived, taken since": BeforeStartCase(
        job=ONE_NEEDS,
        steps=[
            0,
            FREED_EARLY,
            refuse(RESERVE_1, 0.2, BUSY),
            0.2,
            refuse(RESERVE_1, 0.3, BUSY),
        ],
        due={0.3: []},
        status=READY,
    ),
    "a lost reservation makes the others release": BeforeStartCase(
        job=TWO_NEED,
        steps=[*grant(RESERVE_1), 2, lose_response(RESERVE_2, 3)],
        due={3: [RELEASE_1]},
        status=READY,
    ),
    "a reservation after a long wait is kept": BeforeStartCase(
        job=TWO_NEED,
        steps=BUSY_AFTER_LONG_WAIT,
        due={
            603.95: [],
            604: [RESERVE_1],
        },
        status=READY,
    ),
    "a late grant of an earlier request": BeforeStartCase(
        job=ONE_NEEDS,
        steps=[
            0,
            20,
            accept(RESERVE_1, 10),
        ],
        due={
            31.9: [],
            32: [RESERVE_1],
        },
        status=READY,
    ),
    "a late refusal of an earlier request": BeforeStartCase(
        job=ONE_NEEDS,
        steps=[
            0,
            20,
            refuse(RESERVE_1, 10, BUSY),
        ],
        due={
            31.9: [],
            32: [RESERVE_1],
        },
        status=READY,
    ),
    "a release that may still arrive": BeforeStartCase(
        job=TWO_NEED,
        steps=RELEASED_TWICE,
        due={
            16.9: [],
            17: [RESERVE_1],
        },
        status=READY,
    ),
    "a reservation is refused for good": BeforeStartCase(
        job=ONE_NEEDS,
        steps=[
            0,
            refuse(RESERVE_1, 1, JOB_UNKNOWN),
        ],
        due={1: EVERY_STOP},
        status=READY,
        reason="FAILED_TO_RUN",
    ),
    "stopped while it waits for resources": BeforeStartCase(
        job=TWO_NEED,
        steps=[*grant(RESERVE_1), STOP_JOB],
        due={3: EVERY_STOP},
        status=READY,
        reason="STOPPED",
    ),
    # ---- parties that the job can spare
    "an optional party refuses": BeforeStartCase(
        job=OPTIONAL_HOST,
        steps=[*THREE_CREATED, refuse(C4, 1)],
        due={1: [S1, S2, S3]},
        status=READY,
    ),
    "an optional party is silent": BeforeStartCase(
        job=OPTIONAL_HOST,
        steps=[*THREE_CREATED, lose_response(C4, 3), 11],
        due={40: [X4, S1, S2, S3]},
        status=READY,
    ),
    "a spared party accepts after all": BeforeStartCase(
        job=OPTIONAL_HOST,
        steps=[*THREE_CREATED, lose_request(C4, 3), 11, accept(C4, 12)],
        due={22: [X4]},
        status=READY,
    ),
    "one party too many refuses": BeforeStartCase(
        job=OPTIONAL_HOST,
        steps=[
            0,
            accept(C1, 1),
            accept(C2, 1),
            refuse(C4, 1),
            refuse(C3, 1),
        ],
        status=PENDING,
        reason="BECAUSE",
    ),
    "an optional party refuses the start": BeforeStartCase(
        job=OPTIONAL_HOST,
        steps=[*START_UNDER_WAY, refuse(S4, 2)],
        due={2: [X4, S1, S2, S3]},
        status=READY,
    ),
    "the remaining parties start again": BeforeStartCase(
        job=OPTIONAL_HOST,
        steps=[
            *START_UNDER_WAY,
            refuse(S4, 2),
            2,
            accept(S3, 2),
            accept(S1, 3),
            accept(S2, 3),
            accept(S3, 3),
        ],
        due={3: [A1, A2, A3]},
        status=RUNNING,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_job_starts_once_every_node_is_ready_for_it(case: BeforeStartCase):
    job = play(case.job, *case.steps)

    assert due_at_each(job, case.due) == case.due
    assert (job.status, end_reason(job)) == (case.status, case.reason)


# ---------------------------------------------------------------- approval


@pytest.mark.parametrize(
    "first",
    [None, REFUSED_BY_PERSON],
    ids=["yes", "no"],
)
@pytest.mark.parametrize(
    "second",
    [None, REFUSED_BY_PERSON],
    ids=["yes", "no"],
)
def test_only_the_first_decision_of_a_node_counts(first: Failure | None, second: Failure | None):
    job = play(NEW_JOB, *ONE_ASKED, report_approval("n2", 5, first))
    decision = report_approval("n2", 6, second)

    repeated = play(job, decision)

    assert bool(why_too_late(job, decision)) is (first is not second)
    assert repeated.status == job.status
    assert repeated.ending == job.ending
    assert repeated.nodes == job.nodes


@pytest.mark.parametrize("status", [READY, RUNNING])
def test_an_approval_of_a_ready_job_contradicts_nothing(status: JobStatus):
    assert why_too_late(a_job(status=status), report_approval("n2", 1)) == ""


@pytest.mark.parametrize("status", [READY, RUNNING])
def test_a_refusal_that_comes_too_late_says_so(status: JobStatus):
    refusal = report_approval("n2", 1, REFUSED_BY_PERSON)

    assert "already" in why_too_late(a_job(status=status), refusal)


def test_a_decision_on_an_ended_job_says_so():
    job = play(NEW_JOB, *ONE_ASKED, STOP_JOB)

    assert "ended" in why_too_late(job, report_approval("n2", 4))


def test_a_node_that_asks_a_person_after_the_end_of_the_job_is_stopped():
    stopped = play(
        NEW_JOB,
        0,
        accept(C1, 0),
        STOP_JOB,
        20,
        accept(X1, 20),
        lose_response(X2, 21),
    )

    job = play(stopped, accept(C2, 22, WAITS_FOR_PERSON))

    assert job.status is REJECTED
    assert job.nodes["n2"].consent is None
    assert X2 in due_commands(job, 60)
