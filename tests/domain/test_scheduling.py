"""The decisions of the scheduling node, rule by rule. `test_world` plays the rules at large."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.job import Job
from gateway.domain.scheduling.agenda import max_deferred
from gateway.domain.scheduling.messages import (
    Accepted,
    Command,
    CreateAt,
    Delayed,
    Event,
    Lost,
    PollTaskAt,
    Refused,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    TaskReported,
    TaskUnknown,
)
from gateway.domain.scheduling.responses import exclude_from_task
from gateway.domain.spec import Failure
from gateway.domain.states import JOB, TASK, TaskStatus, ended, may
from tests.builders import a_job, at
from tests.domain.calls import (
    A1,
    A2,
    B1,
    B2,
    C1,
    C2,
    C3,
    POLL_1,
    POLL_2,
    S1,
    S2,
    X1,
    X2,
    X3,
)
from tests.domain.scheduled_jobs import (
    A_RUNS_BEFORE_B,
    BEGUN,
    BOTH_RUN,
    NEW_JOB,
    NEW_JOB_OF_THREE,
    ONLY_N1,
    STOP_JOB,
    TASK_UNKNOWN,
    ready_job,
    running_job,
)
from tests.domain.script import (
    GUEST_AND_TWO_HOSTS,
    ONE_GUEST,
    REFUSAL,
    AcceptAll,
    Step,
    accept,
    due_at_each,
    lose_request,
    lose_response,
    play,
    refuse,
    report_task,
)
from tests.domain.strategies import REPEATABLE, plots

READY = TaskStatus.READY
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

INTERNAL_ERROR = Failure("INTERNAL", "", "n2")


@dataclass(frozen=True)
class DueCase:
    """Steps of a job, and the requests that are due afterwards, by second."""

    job: Job
    due: Mapping[float, Sequence[Command]]
    steps: Sequence[Step] = ()


DUE: dict[str, DueCase] = {
    # ---- creating
    "every node is asked once to create the job": DueCase(
        job=a_job(roles={"guest": ("n1", "n2"), "host": ("n2", "n3")}),
        due={0: [C1, C2, C3]},
    ),
    "a create without a response is repeated": DueCase(
        job=a_job(roles=ONE_GUEST),
        steps=[0],
        due={
            0: [],
            11.9: [],
            12: [C1],
        },
    ),
    "a job accepted everywhere starts": DueCase(
        job=NEW_JOB,
        steps=[AcceptAll(0)],
        due={0: [S1, S2]},
    ),
    "one node refuses, another has not answered": DueCase(
        job=NEW_JOB_OF_THREE,
        steps=[
            0,
            accept(C1, 1),
            refuse(C2, 1),
        ],
        due={1: [X1]},
    ),
    "one node refuses": DueCase(
        job=NEW_JOB_OF_THREE,
        steps=[
            0,
            accept(C1, 1),
            refuse(C2, 1),
            accept(C3, 2),
        ],
        due={2: [X1, X3]},
    ),
    "a node refuses after a lost try": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 1),
            lose_response(C2, 1),
            2,
            refuse(C2, 3),
        ],
        due={60: [X1, X2]},
    ),
    "an internal error may have created the job": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 1),
            refuse(C2, 1, INTERNAL_ERROR),
        ],
        due={60: [X1, X2]},
    ),
    "a foreign answer may have created the job": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 1),
            refuse(C2, 1, Failure("NO_ENVELOPE")),
        ],
        due={60: [X1, X2]},
    ),
    "a stop that fails with an internal error is repeated": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 1),
            refuse(C2, 1, INTERNAL_ERROR),
            60,
            accept(X1, 60),
            refuse(X2, 60, INTERNAL_ERROR),
        ],
        due={70: [X2]},
    ),
    "a node is unreachable, the others are stopped later": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 0),
            lose_request(C2, 9.95),
            10,
        ],
        due={
            10: [],
            22: [X1],
        },
    ),
    "a node with a create under way is stopped later": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 0),
            lose_request(C2, 1),
            9,
            10,
        ],
        due={
            20.9: [],
            21: [X2],
        },
    ),
    "a create may have arrived": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            lose_response(C2, 1),
            refuse(C1, 1),
        ],
        due={12: [X2]},
    ),
    "no create has arrived": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            lose_request(C2, 1),
            refuse(C1, 1),
        ],
        due={12: []},
    ),
    "only the second create has not arrived": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            lose_response(C2, 1),
            2,
            lose_request(C2, 2),
            refuse(C1, 2),
        ],
        due={14: [X2]},
    ),
    "a create is accepted after all": DueCase(
        job=NEW_JOB,
        steps=[
            0,
            lose_request(C2, 0),
            refuse(C1, 1),
            accept(C2, 2),
        ],
        due={2: [X2]},
    ),
    # ---- starting
    "a ready job starts at every node": DueCase(
        job=ready_job(),
        due={0: [S1, S2]},
    ),
    "a start is repeated at no node": DueCase(
        job=ready_job(),
        steps=[0, accept(S1, 1)],
        due={1: []},
    ),
    # ---- tasks
    "tasks start after their upstream": DueCase(
        job=running_job(
            "a -> b",
            a={"n1": SUCCESS, "n2": RUNNING},
        ),
        steps=[report_task(SUCCESS)],
        due={1: [B1, B2]},
    ),
    "tasks start at the nodes with a role": DueCase(
        job=running_job(
            "a; b",
            roles=GUEST_AND_TWO_HOSTS,
            task_roles={
                "a": ["guest"],
                "b": ["host"],
            },
        ),
        due={0: [A1, B2, StartTaskAt("n3", "b")]},
    ),
    "a start without a response is followed by a poll": DueCase(
        job=ONLY_N1,
        steps=[0],
        due={
            11.9: [],
            12: [POLL_1],
        },
    ),
    "a lost start is followed by a poll soon": DueCase(
        job=ONLY_N1,
        steps=[0, lose_response(A1, 1)],
        due={
            1.1: [],
            1.2: [POLL_1],
        },
    ),
    "a lost start that may still arrive is not repeated": DueCase(
        job=ONLY_N1,
        steps=[
            0,
            lose_response(A1, 1),
            2,
            replace(TASK_UNKNOWN, at=at(2.1)),
        ],
        due={
            11.9: [],
            12: [POLL_1],
        },
    ),
    "a lost start that cannot arrive any more is repeated": DueCase(
        job=ONLY_N1,
        steps=[
            0,
            lose_response(A1, 1),
            2,
            replace(TASK_UNKNOWN, at=at(2.1)),
            12,
            TASK_UNKNOWN,
        ],
        due={13: [A1]},
    ),
    "a start that was never sent is repeated": DueCase(
        job=ONLY_N1,
        steps=[0, lose_request(A1, 1)],
        due={1.2: [A1]},
    ),
    "a start unknown to its node is repeated": DueCase(
        job=ONLY_N1,
        steps=[0, 12, TASK_UNKNOWN],
        due={13: [A1]},
    ),
    "a start known to its node is not repeated": DueCase(
        job=ONLY_N1,
        steps=[
            0,
            12,
            accept(POLL_1, 13),
        ],
        due={1000: [POLL_1]},
    ),
    "a start whose task is ready is not repeated": DueCase(
        job=ONLY_N1,
        steps=[
            0,
            12,
            report_task(READY, "n1"),
            accept(POLL_1, 13),
        ],
        due={1000: [POLL_1]},
    ),
    "a start whose task already runs is not repeated": DueCase(
        job=ONLY_N1,
        steps=[
            0,
            12,
            TASK_UNKNOWN,
            report_task(RUNNING, "n1", seconds=13.1),
        ],
        due={1000: [POLL_1]},
    ),
    "a node that pushes is polled less often": DueCase(
        job=BEGUN,
        steps=[
            AcceptAll(0),
            report_task(RUNNING, pushed=True),
        ],
        due={
            2.9: [POLL_1],
            3: [POLL_1, POLL_2],
        },
    ),
    # ---- the end
    "a failure stops every node": DueCase(
        job=running_job(
            "a -> b",
            roles=GUEST_AND_TWO_HOSTS,
            a=RUNNING,
        ),
        steps=[report_task(FAILED, "n3")],
        due={1: [X1, X2, X3]},
    ),
    "stopped before any request": DueCase(
        job=NEW_JOB,
        steps=[STOP_JOB],
        due={1: [], 1000: []},
    ),
    "stopped with a start under way": DueCase(
        job=BEGUN,
        steps=[0, STOP_JOB],
        due={
            11.9: [],
            12: [X1, X2],
        },
    ),
    "stopped with a lost start": DueCase(
        job=BEGUN,
        steps=[
            0,
            STOP_JOB,
            lose_response(A1, 2),
            lose_response(A2, 2),
        ],
        due={
            11.9: [],
            12: [X1, X2],
        },
    ),
    "a stop that was never sent is repeated": DueCase(
        job=BOTH_RUN,
        steps=[
            STOP_JOB,
            1,
            accept(X1, 2),
            lose_request(X2, 2),
        ],
        due={3: [X2]},
    ),
    "a refused stop is not repeated": DueCase(
        job=BOTH_RUN,
        steps=[
            STOP_JOB,
            1,
            accept(X1, 2),
            refuse(X2, 2),
        ],
        due={10_000: []},
    ),
}


@pytest.mark.parametrize("case", DUE.values(), ids=DUE)
def test_requests_to_nodes_are_due_at_these_moments(case: DueCase):
    job = play(case.job, *case.steps)

    assert due_at_each(job, case.due) == case.due


STARTS_SENT = play(BEGUN, 0)
STARTS_ACCEPTED = play(
    STARTS_SENT,
    accept(A1, 1),
    accept(A2, 1),
)
WITHOUT_N2 = exclude_from_task(STARTS_SENT, A2, at(1))

UNREQUESTED_RESPONSES: list[Event] = [TASK_UNKNOWN]
for request in (C1, S1, A1, POLL_1, X1):
    UNREQUESTED_RESPONSES += [
        accept(request, 1),
        refuse(request, 1),
        lose_request(request, 1),
    ]

UNCHANGED: dict[str, tuple[Job, Sequence[Event]]] = {
    "reports after the end of a part": (
        play(A_RUNS_BEFORE_B, report_task(SUCCESS)),
        [report_task(status, seconds=2) for status in TaskStatus],
    ),
    "unrequested reports": (
        A_RUNS_BEFORE_B,
        [
            TaskReported("task_x", "n2", "", FAILED, at(1)),
            report_task(FAILED, "n9"),
            report_task(FAILED, role="arbiter"),
            report_task(SUCCESS, task="b"),
            report_task(FAILED, task="b"),
        ],
    ),
    "second responses": (
        STARTS_ACCEPTED,
        [
            lose_response(A2, 2),
            lose_request(A2, 2),
            refuse(A2, 2),
            refuse(S2, 2),
            refuse(C2, 2),
            lose_request(C2, 2),
        ],
    ),
    "responses without a request": (NEW_JOB, UNREQUESTED_RESPONSES),
    "an unknown task without a poll": (
        play(ONLY_N1, 0),
        [TASK_UNKNOWN],
    ),
    "a response to an earlier try": (
        play(ONLY_N1, 0, 12, TASK_UNKNOWN, 13),
        [lose_request(A1, 1)],
    ),
    "a poll before the last start": (
        play(ONLY_N1, 0, 12, lose_request(A1, 12.5), 13),
        [replace(TASK_UNKNOWN, at=at(12.6))],
    ),
    "an unknown task by a poll that was repeated since": (
        play(ONLY_N1, 0, 12),
        [replace(TASK_UNKNOWN, claimed=at(11))],
    ),
    "responses of an excluded node": (
        WITHOUT_N2,
        [
            accept(A2, 2),
            refuse(A2, 2),
            lose_response(A2, 2),
            accept(POLL_2, 2),
            TaskUnknown(POLL_2, at(2)),
        ],
    ),
    "a start overtaken by another claim": (
        STARTS_SENT,
        [Delayed(A2, at(-20), at(1.5))],
    ),
}


@pytest.mark.parametrize(
    ("job", "events"),
    UNCHANGED.values(),
    ids=UNCHANGED,
)
def test_late_and_foreign_news_changes_nothing_but_the_timeline(job: Job, events: Sequence[Event]):
    for event in events:
        assert play(job, event) == job, event


def test_a_late_report_is_noted():
    job = play(
        BOTH_RUN,
        report_task(SUCCESS),
        report_task(FAILED, seconds=2),
    )

    assert job.notes[-1].event == "late report ignored"


# ---------------------------------------------------------------- at large

REPORTED_ROLES = st.sampled_from(["", "guest", "guest.0", "host", "arbiter", "nobody"])


@st.composite
def events(
    draw: st.DrawFn,
    job: Job,
    seconds: float,
) -> Event:
    """Draw any event of a job, also an unexpected one."""
    now = at(seconds)
    node = draw(st.sampled_from(job.spec.nodes))
    task = draw(st.sampled_from(sorted(job.tasks)))
    status = draw(st.sampled_from(TaskStatus))
    role = draw(REPORTED_ROLES)
    flag = draw(st.booleans())
    poll = PollTaskAt(node, task, ("guest",))
    requests = (
        CreateAt(node),
        StartAt(node),
        StartTaskAt(node, task),
        poll,
        StopAt(node),
    )
    request = draw(st.sampled_from(requests))
    candidates: list[Event] = [
        Accepted(request, now),
        Accepted(request, now),
        Refused(request, REFUSAL, now),
        Lost(request, now, delivered=flag),
        TaskUnknown(poll, now),
        TaskReported(
            f"task_{task}",
            node,
            role,
            status,
            now,
            pushed=flag,
        ),
        TaskReported("task_x", "n9", "", status, now),
        StopRequested("n1", now),
    ]
    return draw(st.sampled_from(candidates))


@given(plots(calm=True), st.data())
@REPEATABLE
def test_no_news_breaks_a_job_or_moves_it_beside_the_tables(plot, data):
    job = plot.job()
    now = 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 700.0)))
        old = job
        if data.draw(st.booleans()):
            job = play(job, now)
        else:
            job = play(job, data.draw(events(job, now)))

        check_move(old, job)


def check_move(old: Job, new: Job) -> None:
    """Compare a job before and after one step."""
    assert old.status is new.status or may(JOB, old.status, new.status)
    for name, task in new.tasks.items():
        old_status = old.tasks[name].status
        assert old_status is task.status or may(TASK, old_status, task.status)
    assert new.progress >= old.progress
    assert old.ending in (None, new.ending)
    if ended(JOB, old.status):
        assert (new.status, new.outcome, new.ended_at) == (
            old.status,
            old.outcome,
            old.ended_at,
        )


# ---------------------------------------------------------------- deferred responses

REPORTS_BY_ITSELF = STARTS_SENT.with_node(replace(STARTS_SENT.nodes["n2"], pushes=True))


@pytest.mark.parametrize(
    ("job", "command", "deferred"),
    [
        (play(NEW_JOB, 0), C1, 1),
        (STARTS_SENT, A1, 1),
        (REPORTS_BY_ITSELF, A1, 2),
    ],
    ids=[
        "the last response makes the job ready",
        "the last response begins the polls",
        "no response matters",
    ],
)
def test_responses_without_consequences_are_deferred(job: Job, command, deferred: int):
    assert max_deferred(job, command) == deferred
