"""Running tasks: attempts, timeouts, stops, tolerable failures and suspension."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from gateway.domain import retries
from gateway.domain.job import Job
from gateway.domain.scheduling import reports
from gateway.domain.scheduling.messages import (
    Command,
    PollTaskAt,
    StartTaskAt,
    StopTaskAt,
    SuspendRequested,
    TaskStopRequested,
)
from gateway.domain.scheduling.responses import exclude_from_task
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.language.catalogue import groups
from tests.builders import a_job, at
from tests.domain.calls import A1, A2, B1, B2, S1, S2, X1, X2
from tests.domain.running_jobs import (
    BOTH_ENDED,
    BROKE,
    ONE_FAILS,
    SECOND_ATTEMPT,
    STOP_A1,
    STOP_A2,
    STOP_ACCEPTED,
    STOP_IGNORED,
    STOP_JOB,
    STOP_TASK_A,
    STOPPED_BY_N2,
    begun_job,
    both_report,
    due_without_polls_at_each,
    job_with,
    job_with_running_tasks,
    report_second_attempt,
)
from tests.domain.script import (
    AcceptAll,
    Step,
    accept,
    end_reason,
    lose_request,
    lose_response,
    play,
    refuse,
    report_task,
)

READY = TaskStatus.READY
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

EXIT_2 = Failure("EXIT_2")
CANCELED_AT_N2 = Failure("STOPPED", "canceled at n2")

# Commands and events.
START_D1 = StartTaskAt("n1", "d")
START_D2 = StartTaskAt("n2", "d")
RETRY_A = retries.TryAgain("a")
TIMEOUT_A = retries.TimeOut("a")
STOP_A_LATER = TaskStopRequested("a", "n2", at(3))
SUSPEND = SuspendRequested("n2", at(2))
RESUME = SuspendRequested(
    "n1",
    at(5),
    on=False,
)
D_FAILS = report_task(
    FAILED,
    "n2",
    "d",
    9,
    failure=EXIT_2,
)

# Jobs.
BEGUN = begun_job("a -> b; c")
ONE_RETRY = begun_job(auto_retries=1)
ONE_RETRY_BESIDE_C = begun_job("a; c", auto_retries=1)
DELAYED_RETRY = begun_job(auto_retries=1, auto_retry_delay=10)
DELAYED_RETRY_BESIDE_C = begun_job("a; c", auto_retries=1, auto_retry_delay=99)
TIMEOUT_AND_RETRY = begun_job(task_timeout=5, auto_retries=1)
TIMEOUT_OF_ONLY_TASK = begun_job("a", auto_retries=1, task_timeout=5)
TOLERANT = job_with("a; d", tolerable_tasks=["a"])
TWO_BRANCHES = job_with_running_tasks("a -> b; c -> d")
HALF_DONE = job_with_running_tasks(a={"n1": SUCCESS, "n2": RUNNING})
CREATED_JOB = a_job("a -> b; c", JobStatus.READY)
C_RUNS = a_job("a; c", JobStatus.RUNNING, c=RUNNING)

# Steps.
STARTS_NEVER_SENT: list[Step] = [
    0,
    STOP_TASK_A,
    lose_request(A1, 2),
    lose_request(A2, 2),
]
FIRST_TIMEOUT: list[Step] = [
    5,
    accept(STOP_A1, 6),
    accept(STOP_A2, 6),
    *both_report("a", 6, FAILED),
    8,
]
FIRST_TASKS_ENDED: list[Step] = [
    STOP_TASK_A,
    1,
    *both_report("a", 1, FAILED),
    *both_report("c", 1),
]
A_FAILS: list[Step] = [
    AcceptAll(5),
    report_task(FAILED, seconds=6, failure=BROKE),
]


@dataclass(frozen=True)
class TaskCase:
    """Steps of a job, the commands but polls due afterwards by second, and the state of task a.

    ``reason`` is that of the job's end; empty without an end.
    """

    job: Job
    steps: Sequence[Step]
    due: Mapping[float, Sequence[Command]]
    status: TaskStatus
    reason: str = ""


CASES: dict[str, TaskCase] = {
    # ---- the next attempt
    "a failed attempt waits for the other node": TaskCase(
        job=ONE_RETRY,
        steps=[*ONE_FAILS, 1, accept(STOP_A2, 1)],
        due={30: []},
        status=RUNNING,
    ),
    "the next attempt follows the end at every node": TaskCase(
        job=ONE_RETRY,
        steps=[*ONE_FAILS, 1, accept(STOP_A2, 1), report_task(FAILED, seconds=31)],
        due={31: [RETRY_A]},
        status=RUNNING,
    ),
    "the next attempt follows after its delay": TaskCase(
        job=DELAYED_RETRY,
        steps=BOTH_ENDED,
        due={
            10.9: [],
            11: [RETRY_A],
        },
        status=RUNNING,
    ),
    "the second attempt succeeds": TaskCase(
        job=ONE_RETRY,
        steps=[
            *SECOND_ATTEMPT,
            report_second_attempt(SUCCESS, "n1", 9),
            report_second_attempt(SUCCESS, "n2", 9),
        ],
        due={9: [B1, B2]},
        status=SUCCESS,
    ),
    "the last attempt fails": TaskCase(
        job=ONE_RETRY,
        steps=[*SECOND_ATTEMPT, report_second_attempt(FAILED, "n1", 3, EXIT_2)],
        due={3: [X1, X2]},
        status=FAILED,
        reason="EXIT_2",
    ),
    "the next attempt waits for a stop under way": TaskCase(
        job=ONE_RETRY,
        steps=[*ONE_FAILS, 1, report_task(FAILED, seconds=2)],
        due={
            12.9: [],
            13: [RETRY_A],
        },
        status=RUNNING,
    ),
    "the next attempt follows an accepted stop": TaskCase(
        job=ONE_RETRY,
        steps=[*ONE_FAILS, 1, report_task(FAILED, seconds=2), accept(STOP_A2, 2)],
        due={2: [RETRY_A]},
        status=RUNNING,
    ),
    "the next attempt waits for the first of two stops": TaskCase(
        job=ONE_RETRY,
        steps=[
            *ONE_FAILS,
            1,
            lose_response(STOP_A2, 2),
            3,
            accept(STOP_A2, 3),
            report_task(FAILED, seconds=3),
        ],
        due={
            14.9: [],
            15: [RETRY_A],
        },
        status=RUNNING,
    ),
    "a success after the timeout": TaskCase(
        job=TIMEOUT_OF_ONLY_TASK,
        steps=[5, *both_report("a", 6), 30],
        due={42: [X1, X2]},
        status=SUCCESS,
    ),
    "stopped between two attempts": TaskCase(
        job=DELAYED_RETRY_BESIDE_C,
        steps=[*BOTH_ENDED, STOP_A_LATER],
        due={200: [STOP_A1, STOP_A2]},
        status=FAILED,
    ),
    "the job is stopped between two attempts": TaskCase(
        job=ONE_RETRY_BESIDE_C,
        steps=[*BOTH_ENDED, STOP_JOB],
        due={200: [X1, X2]},
        status=RUNNING,
        reason="STOPPED",
    ),
    "stopped right after the second attempt began": TaskCase(
        job=ONE_RETRY_BESIDE_C,
        steps=[*SECOND_ATTEMPT, STOP_A_LATER],
        due={3: [StopTaskAt("n1", "a", 1), StopTaskAt("n2", "a", 1)]},
        status=RUNNING,
    ),
    # ---- timeouts
    "the timeout has not passed": TaskCase(
        job=begun_job(task_timeout=5),
        steps=[4.9],
        due={
            4.9: [],
            5: [TIMEOUT_A],
        },
        status=READY,
    ),
    "the timeout has passed": TaskCase(
        job=begun_job(task_timeout=5),
        steps=[report_task(RUNNING), 5],
        due={17: [X1, X2]},
        status=FAILED,
        reason="TIMEOUT",
    ),
    "each attempt has its timeout": TaskCase(
        job=TIMEOUT_AND_RETRY,
        steps=FIRST_TIMEOUT,
        due={
            12.9: [],
            13: [TIMEOUT_A],
        },
        status=READY,
    ),
    "the last attempt times out": TaskCase(
        job=TIMEOUT_AND_RETRY,
        steps=[*FIRST_TIMEOUT, 13],
        due={32: [X1, X2]},
        status=FAILED,
        reason="TIMEOUT",
    ),
    "a stopped part was not polled since the limit": TaskCase(
        job=ONE_RETRY,
        steps=[*STOP_ACCEPTED, 61.9],
        due={62: []},
        status=RUNNING,
    ),
    "a stopped part goes on": TaskCase(
        job=ONE_RETRY,
        steps=STOP_IGNORED,
        due={74: [X1, X2]},
        status=FAILED,
        reason="NOT_STOPPED",
    ),
    "the timeout of the job has not passed": TaskCase(
        job=begun_job(timeout=7),
        steps=[6.9],
        due={
            6.9: [],
            7: [retries.TimeOut()],
        },
        status=READY,
    ),
    "the timeout of the job has passed": TaskCase(
        job=begun_job(timeout=7),
        steps=[7],
        due={19: [X1, X2]},
        status=READY,
        reason="TIMEOUT",
    ),
    "the timeout of the job counts from its start": TaskCase(
        job=job_with(
            "a",
            JobStatus.READY,
            timeout=7,
        ),
        steps=[
            100,
            accept(S1, 100),
            accept(S2, 100),
        ],
        due={
            106.9: [A1, A2],
            107: [A1, A2, retries.TimeOut()],
        },
        status=READY,
    ),
    # ---- a task is stopped
    "a stop without a response is repeated": TaskCase(
        job=job_with_running_tasks(),
        steps=[STOP_TASK_A, 1],
        due={
            1: [],
            12.9: [],
            13: [STOP_A1, STOP_A2],
        },
        status=RUNNING,
    ),
    "a task that has not begun is stopped": TaskCase(
        job=job_with_running_tasks(a=READY),
        steps=[STOP_TASK_A],
        due={1: [], 10_000: []},
        status=READY,
    ),
    "a task that succeeded at one node is stopped": TaskCase(
        job=HALF_DONE,
        steps=[STOP_TASK_A],
        due={1: [STOP_A2]},
        status=RUNNING,
    ),
    "stopped while its start is under way": TaskCase(
        job=C_RUNS,
        steps=[0, STOP_TASK_A],
        due={
            11.9: [],
            12: [STOP_A1, STOP_A2],
        },
        status=READY,
    ),
    "stopped after its starts were lost": TaskCase(
        job=C_RUNS,
        steps=[
            0,
            STOP_TASK_A,
            lose_response(A1, 2),
            lose_response(A2, 2),
        ],
        due={
            11.9: [],
            12: [STOP_A1, STOP_A2],
        },
        status=READY,
    ),
    "stopped, and one node accepts the start": TaskCase(
        job=C_RUNS,
        steps=[
            0,
            STOP_TASK_A,
            accept(A2, 2),
        ],
        due={2: [STOP_A2]},
        status=READY,
    ),
    "stopped, and its starts were never sent": TaskCase(
        job=C_RUNS,
        steps=STARTS_NEVER_SENT,
        due={500: []},
        status=READY,
    ),
    "stopped, and a lost start is accepted after all": TaskCase(
        job=C_RUNS,
        steps=[*STARTS_NEVER_SENT, accept(A2, 3)],
        due={3: [STOP_A2]},
        status=FAILED,
    ),
    "stopped after it began at one node": TaskCase(
        job=job_with_running_tasks(a={"n1": RUNNING}),
        steps=[STOP_TASK_A],
        due={1: [STOP_A1]},
        status=FAILED,
    ),
    "stopped, and one node refuses the start": TaskCase(
        job=C_RUNS,
        steps=[
            0,
            STOP_TASK_A,
            refuse(A1, 2, Failure("INPUT_MISSING")),
        ],
        due={20: [STOP_A2]},
        status=FAILED,
    ),
    "a stop is refused": TaskCase(
        job=job_with_running_tasks(),
        steps=[
            STOP_TASK_A,
            1,
            refuse(STOP_A1, 2),
            accept(STOP_A2, 2),
        ],
        due={500: []},
        status=RUNNING,
    ),
    "it fails during the stop": TaskCase(
        job=job_with_running_tasks(),
        steps=[
            STOP_TASK_A,
            report_task(FAILED, "n1", failure=BROKE),
        ],
        due={1: [STOP_A1, STOP_A2]},
        status=FAILED,
    ),
    "other branches go on": TaskCase(
        job=TWO_BRANCHES,
        steps=FIRST_TASKS_ENDED,
        due={3: [START_D1, START_D2]},
        status=FAILED,
    ),
    "the job ends after its other branches": TaskCase(
        job=TWO_BRANCHES,
        steps=[*FIRST_TASKS_ENDED, 3, *both_report("d", 4)],
        due={4: [X1, X2]},
        status=FAILED,
        reason="STOPPED",
    ),
    "stopped before the job begins": TaskCase(
        job=CREATED_JOB,
        steps=[STOP_TASK_A],
        due={1: [S1, S2]},
        status=READY,
    ),
    "every task is stopped before the job begins": TaskCase(
        job=CREATED_JOB,
        steps=[
            STOP_TASK_A,
            TaskStopRequested("c", "n2", at(2)),
        ],
        due={2: [X1, X2]},
        status=READY,
        reason="STOPPED",
    ),
    "a party stops its part": TaskCase(
        job=job_with_running_tasks(),
        steps=[report_task(FAILED, failure=CANCELED_AT_N2)],
        due={1: [X1, X2]},
        status=FAILED,
        reason="STOPPED",
    ),
    # ---- tolerable failures
    "a failure of another task": TaskCase(
        job=TOLERANT,
        steps=[*A_FAILS, D_FAILS],
        due={9: [X1, X2]},
        status=FAILED,
        reason="EXIT_2",
    ),
    "a failure that is not tolerable": TaskCase(
        job=job_with("a; d"),
        steps=A_FAILS,
        due={7: [X1, X2]},
        status=FAILED,
        reason="EXIT_1",
    ),
    # ---- suspension
    "a suspended job starts no task": TaskCase(
        job=BEGUN,
        steps=[SUSPEND, *both_report("a", 3)],
        due={1000: []},
        status=SUCCESS,
    ),
    "a resumed job goes on": TaskCase(
        job=BEGUN,
        steps=[SUSPEND, *both_report("a", 3), RESUME],
        due={5: [B1, B2]},
        status=SUCCESS,
    ),
    "a suspended job completes a half-started task": TaskCase(
        job=job_with("a"),
        steps=[
            1,
            accept(A1, 1),
            lose_request(A2, 1),
            SUSPEND,
        ],
        due={5: [A2]},
        status=READY,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_commands_for_tasks_are_due_at_these_moments(case: TaskCase):
    job = play(case.job, *case.steps)

    assert due_without_polls_at_each(job, case.due) == case.due
    assert (job.tasks["a"].status, end_reason(job)) == (case.status, case.reason)


STOPPED_CASES = {
    name: case
    for name, case in CASES.items()
    if STOP_TASK_A in case.steps and case.status is FAILED
}


@pytest.mark.parametrize("case", STOPPED_CASES.values(), ids=STOPPED_CASES)
def test_a_stopped_task_fails_because_of_its_stop(case: TaskCase):
    job = play(case.job, *case.steps)

    assert job.tasks["a"].failure == STOPPED_BY_N2


# ---------------------------------------------------------------- attempts and timeouts


def test_the_next_attempt_has_another_id_and_the_last_one_is_kept():
    job = play(ONE_RETRY, *SECOND_ATTEMPT)

    task = job.tasks["a"]
    assert task.attempt == 1
    assert task.task_id not in ("", "task_a")
    assert task.failure is None
    [past] = task.attempts
    assert (past.number, past.task_id) == (0, "task_a")
    assert (past.failure.reason, past.failure.node) == ("EXIT_1", "n1")
    assert {note.event for note in job.notes} >= {"attempt failed, another follows", "next attempt"}


def test_the_id_of_an_attempt_does_not_depend_on_its_time():
    failed = play(ONE_RETRY, *BOTH_ENDED)

    earlier = retries.begin_again(failed, "a", at(2))
    later = retries.begin_again(failed, "a", at(3))

    task_id = play(ONE_RETRY, *SECOND_ATTEMPT).tasks["a"].task_id
    assert earlier.tasks["a"].task_id == task_id
    assert later.tasks["a"].task_id == task_id
    assert earlier.tasks["a"].nodes["n1"].start.state is CallState.IDLE


# Reasons for which another attempt may help.
MAY_HELP = """
    BUFFER_FULL CANNOT_SCHEDULE CHANNEL_LOST CREATE_FAILED ENGINE_DOWN ENGINE_FAILED EXIT_n
    FAILED FAILED_TO_RUN GONE NETWORK_LOST NO_CALLBACK NO_SPACE OOM_KILLED PARTS_MISSING
    POLL_REFUSED PORT_IN_USE PULL_FAILED PULL_TIMEOUT REPORTED_FAILED RESOURCES_BUSY
    SESSION_RELEASED SIGNATURE_UNCHECKED STORAGE_FAILED STORAGE_FULL STORAGE_NOT_WRITABLE
    STORAGE_SLOW STORAGE_UNREACHABLE TIMEOUT TRANSPORT_DOWN
"""

# Reasons of the groups below for which no task fails.
NO_TASKS = """
    ABNORMAL ALREADY_DECIDED APPROVAL_REJECTED APPROVAL_TIMEOUT APPROVAL_UNSUPPORTED
    AUDIT_ID_CONFLICT AUDIT_UNKNOWN AUDIT_UNUSED AUDIT_WITHDRAWN CLAUSE_UNKNOWN CODEC
    DATASET_EXISTS DATASET_IN_USE DATASET_NOT_UPLOADED DATA_BROKEN ENGINE_NOT_HERE
    FILE_NOT_FOUND FORMAT_MISMATCH GRANT_UNKNOWN GRPC_MISSING IMAGE_NOT_USABLE IMAGE_UNKNOWN
    INHERITANCE_FAILED INPUT_UNKNOWN JOB_AMBIGUOUS JOB_ID_CONFLICT JOB_NOT_ENDED
    JOB_NOT_RUNNING JOB_STARTED LOGS_UNREADABLE LOG_ELSEWHERE NAME_NOT_ALLOWED NOT_APPROVED
    NOT_A_PARTY NOT_ONE_FILE NOT_OWNER NOT_READY NOT_WAITING NO_REPORT OUTPUTS_IN_USE
    OUTPUT_UNKNOWN PARAMETER_UNKNOWN PARQUET_NOT_INSTALLED PARTY_UNKNOWN
    PATH_NOT_ALLOWED PROVIDER_AMBIGUOUS REPORT_INVALID REPORT_OF_ANOTHER_NODE
    REPORT_SIGNATURE_WRONG REPORT_UNKNOWN ROLE_UNKNOWN RUN_TOKEN_REQUIRED RUN_UNKNOWN
    SAME_PERSON SANDBOX_FAILED SCHEDULER_FORGOT SCHEDULER_UNREACHABLE SCHEMA_UNKNOWN
    SOURCE_UNUSABLE STATUS_UNKNOWN TASK_BEGUN TEMPLATE_UNKNOWN UPSTREAM_FAILED
"""

GROUPS_OF_TASKS = ("Jobs", "Containers", "Channel", "Data and outputs")


def test_every_reason_of_a_task_decides_on_another_attempt():
    """A new reason belongs in one of three sets.

    They are FINAL_REASONS of gateway/domain/retries.py, and MAY_HELP and NO_TASKS above.
    """
    reasons = {
        reason.name
        for group in groups()
        if group.title["en"] in GROUPS_OF_TASKS
        for reason in group.reasons
    }
    decided_sets = [
        set(MAY_HELP.split()),
        set(NO_TASKS.split()),
        set(retries.FINAL_REASONS),
    ]

    assert reasons.difference(*decided_sets) == set()
    assert sum(len(decided & reasons) for decided in decided_sets) == len(reasons)


@pytest.mark.parametrize("reason", sorted(retries.FINAL_REASONS))
def test_a_failure_that_would_only_repeat_is_not_retried(reason: str):
    failure = report_task(
        FAILED,
        "n1",
        failure=Failure(reason),
    )

    job = play(begun_job(auto_retries=5), report_task(RUNNING), failure)

    expected_outcome = Outcome.STOPPED if reason == "STOPPED" else Outcome.FAILED
    assert (job.ending.outcome, job.ending.failure.reason) == (expected_outcome, reason)


SECOND_ATTEMPT_BEGINS = play(ONE_RETRY, *BOTH_ENDED, 2)
LATE_NEWS = {
    "report": report_task(SUCCESS, seconds=3),
    "response to the start": accept(A1, 3),
    "response to a poll": accept(PollTaskAt("n1", "a", ("guest",)), 3),
    "refusal of the stop": refuse(STOP_A2, 3),
}


@pytest.mark.parametrize("event", LATE_NEWS.values(), ids=LATE_NEWS)
def test_news_of_an_earlier_attempt_is_noted_and_ignored(event):
    job = play(SECOND_ATTEMPT_BEGINS, event)

    assert job.tasks == SECOND_ATTEMPT_BEGINS.tasks
    assert job.nodes == SECOND_ATTEMPT_BEGINS.nodes
    assert "ignored" in job.notes[-1].event


def test_an_earlier_attempt_excludes_no_node():
    job = exclude_from_task(SECOND_ATTEMPT_BEGINS, A2, at(3))

    assert job.tasks == SECOND_ATTEMPT_BEGINS.tasks


@pytest.mark.parametrize(
    ("common", "steps", "words"),
    [
        (
            {"task_timeout": 5},
            [report_task(RUNNING), 5],
            ("n2 (RUNNING)", "5 s"),
        ),
        ({"timeout": 7}, [7], ("7 s", "a, b")),
        ({"auto_retries": 1}, STOP_IGNORED, ("EXIT_1", "at n2 (RUNNING)")),
    ],
    ids=["a task", "the job", "a stop"],
)
def test_a_failure_names_what_took_too_long(
    common: Mapping[str, int],
    steps: Sequence[Step],
    words: Sequence[str],
):
    job = play(begun_job(**common), *steps)

    for word in words:
        assert word in job.ending.failure.message


@pytest.mark.parametrize(
    ("task_status", "reported", "expected"),
    [
        (TaskStatus.READY, TaskStatus.RUNNING, False),
        (TaskStatus.RUNNING, TaskStatus.RUNNING, True),
        (TaskStatus.RUNNING, TaskStatus.SUCCESS, False),
        (TaskStatus.RUNNING, TaskStatus.FAILED, False),
    ],
    ids=["the first runs", "another runs", "succeeds", "fails"],
)
def test_only_the_report_that_another_node_runs_a_task_may_wait(task_status, reported, expected):
    job = a_job("a", JobStatus.RUNNING, a=task_status)
    report = report_task(reported, "n2")

    assert reports.has_no_consequence(job, report) is expected


def test_a_report_of_an_unknown_task_does_not_wait():
    job = a_job("a", JobStatus.RUNNING, a=TaskStatus.RUNNING)
    report = report_task(TaskStatus.RUNNING, "n2", "b")

    assert not reports.has_no_consequence(job, report)
