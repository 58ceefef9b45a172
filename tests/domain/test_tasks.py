"""Attempts, timeouts, stops, tolerable failures and suspension: (given, events, expected), and races at large."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import quorum, retries
from gateway.domain.dag import downstream
from gateway.domain.job import Job
from gateway.domain.scheduling.messages import (
    ParametersAgreed,
    PollTaskAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    StopTaskAt,
    SuspendRequested,
    TaskReported,
    TaskStopRequested,
    TaskUnknown,
)
from gateway.domain.scheduling.responses import exclude
from gateway.domain.spec import Amendment, CallState, Failure
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended
from gateway.language.catalogue import groups
from tests.builders import IDLE, a_job, a_spec, at, sent
from tests.domain.calls import A1, A2, B1, B2, POLL_2, S1, S2, X1, X2
from tests.domain.plot import Fate, Outage, Plot
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
from tests.domain.script import due_commands as all_due
from tests.domain.strategies import REPEATABLE, SEEDS, plots, some_of
from tests.domain.world import World

READY, RUNNING, SUCCESS, FAILED = (
    TaskStatus.READY,
    TaskStatus.RUNNING,
    TaskStatus.SUCCESS,
    TaskStatus.FAILED,
)
D1, D2 = StartTaskAt("n1", "d"), StartTaskAt("n2", "d")
AGAIN_1, AGAIN_2 = StartTaskAt("n1", "a", 1), StartTaskAt("n2", "a", 1)
T1, T2 = StopTaskAt("n1", "a"), StopTaskAt("n2", "a")
STOP_AGAIN = StopTaskAt("n1", "a", 1), StopTaskAt("n2", "a", 1)
OTHER = Failure("EXIT_2")
BROKE, CANCELED = Failure("EXIT_1", "it broke"), Failure("STOPPED", "canceled at n2")
WHY = Failure("STOPPED", "stopped by n2", task="a")
STOP_A_LATER = TaskStopRequested("a", "n2", at(3))
STOP_C = TaskStopRequested("c", "n2", at(2))
STOP_A, STOP = TaskStopRequested("a", "n2", at(1)), StopRequested("n1", at(3))
SUSPEND, RESUME = SuspendRequested("n2", at(2)), SuspendRequested("n1", at(5), on=False)


def due(job: Job, seconds: float) -> list:
    return [c for c in all_due(job, seconds) if not isinstance(c, PollTaskAt)]


def running(dag: str = "a -> b; c", **tasks) -> Job:
    return a_job(dag, JobStatus.RUNNING, **({"a": RUNNING, "c": RUNNING} | tasks))


def job_with(
    dag: str = "a -> b",
    status: JobStatus = JobStatus.RUNNING,
    **common,
) -> Job:
    return replace(
        a_job(status=status, spec=a_spec(dag, job_params={"common": common})), started_at=at(0)
    )


def begun(dag: str = "a -> b", **common) -> Job:
    """Return a job whose first tasks were just started at both nodes."""
    return play(job_with(dag, **common), AcceptAll(0))


def done(
    task: str,
    seconds: float,
    status: TaskStatus = SUCCESS,
) -> list[Step]:
    return [report_task(status, node, task, seconds) for node in ("n1", "n2")]


def again(
    status: TaskStatus,
    node: str,
    seconds: float,
    failure: Failure | None = None,
) -> TaskReported:
    """Return a report of the second attempt."""
    return TaskReported(
        retries.following("job-1", "a", 1, "task_a"), node, "", status, at(seconds), failure
    )


RETRY, RETRY_C = begun(auto_retries=1), begun("a; c", auto_retries=1)
LIMITED, BEGUN = begun(task_timeout=5, auto_retries=1), begun("a -> b; c")
TWO_BRANCHES = running("a -> b; c -> d")
AGAIN, TIMEOUT = retries.TryAgain("a"), retries.TimeOut("a")
DELAYED, DELAYED_C = (
    begun(auto_retries=1, auto_retry_delay=10),
    begun("a; c", auto_retries=1, auto_retry_delay=99),
)
LIMITED_A, TOLERANT = (
    begun("a", auto_retries=1, task_timeout=5),
    job_with("a; d", tolerable_tasks=["a"]),
)
D_FAILS = report_task(FAILED, "n2", "d", 9, failure=OTHER)
HALF_DONE = running(a={"n1": SUCCESS, "n2": RUNNING})
ACCEPTED = a_job("a -> b; c", JobStatus.READY)
BEGINS = a_job("a; c", JobStatus.RUNNING, c=RUNNING)
NEVER_LEFT: list[Step] = [0, STOP_A, lose_request(A1, 2), lose_request(A2, 2)]
FAIL: list[Step] = [report_task(RUNNING), report_task(FAILED, "n1", failure=BROKE)]
OVER: list[Step] = [*FAIL, report_task(FAILED, seconds=2, failure=Failure("STOPPED"))]
NEXT: list[Step] = [*OVER, 2, accept(AGAIN_1, 2), accept(AGAIN_2, 2)]
TIMED_OUT: list[Step] = [5, accept(T1, 6), accept(T2, 6), *done("a", 6, FAILED), 8]
STOPS_PART: list[Step] = [*FAIL, 1, accept(T2, 1), 60, accept(POLL_2, 60)]
GOES_ON: list[Step] = [*STOPS_PART, 62, accept(POLL_2, 62), 62]
BRANCHES: list[Step] = [STOP_A, 1, *done("a", 1, FAILED), *done("c", 1)]
TOLERATED: list[Step] = [AcceptAll(5), report_task(FAILED, seconds=6, failure=BROKE)]

CASES: dict[str, tuple[Job, Sequence[Step], Mapping[float, list], TaskStatus, str]] = {
    # the next attempt
    "the rest is waited for": (RETRY, [*FAIL, 1, accept(T2, 1)], {30: []}, RUNNING, ""),
    "then the next": (
        RETRY,
        [*FAIL, 1, accept(T2, 1), report_task(FAILED, seconds=31)],
        {31: [AGAIN]},
        RUNNING,
        "",
    ),
    "after its delay": (DELAYED, OVER, {10.9: [], 11: [AGAIN]}, RUNNING, ""),
    "and succeeds": (
        RETRY,
        [*NEXT, again(SUCCESS, "n1", 9), again(SUCCESS, "n2", 9)],
        {9: [B1, B2]},
        SUCCESS,
        "",
    ),
    "and is the last": (
        RETRY,
        [*NEXT, again(FAILED, "n1", 3, OTHER)],
        {3: [X1, X2]},
        FAILED,
        "EXIT_2",
    ),
    "a stop on its way": (
        RETRY,
        [*FAIL, 1, report_task(FAILED, seconds=2)],
        {12.9: [], 13: [AGAIN]},
        RUNNING,
        "",
    ),
    "a stop that arrived": (
        RETRY,
        [*FAIL, 1, report_task(FAILED, seconds=2), accept(T2, 2)],
        {2: [AGAIN]},
        RUNNING,
        "",
    ),
    "a stop made twice": (
        RETRY,
        [*FAIL, 1, lose_response(T2, 2), 3, accept(T2, 3), report_task(FAILED, seconds=3)],
        {14.9: [], 15: [AGAIN]},
        RUNNING,
        "",
    ),
    "a success after all": (LIMITED_A, [5, *done("a", 6), 30], {42: [X1, X2]}, SUCCESS, ""),
    "stopped while it waits": (DELAYED_C, [*OVER, STOP_A_LATER], {200: [T1, T2]}, FAILED, ""),
    "stopped with its job": (RETRY_C, [*OVER, STOP], {200: [X1, X2]}, RUNNING, "STOPPED"),
    "stopped when just begun": (RETRY_C, [*NEXT, STOP_A_LATER], {3: [*STOP_AGAIN]}, RUNNING, ""),
    # timeouts
    "not too long yet": (begun(task_timeout=5), [4.9], {4.9: [], 5: [TIMEOUT]}, READY, ""),
    "too long": (
        begun(task_timeout=5),
        [report_task(RUNNING), 5],
        {17: [X1, X2]},
        FAILED,
        "TIMEOUT",
    ),
    "each attempt": (LIMITED, TIMED_OUT, {12.9: [], 13: [TIMEOUT]}, READY, ""),
    "and the last": (LIMITED, [*TIMED_OUT, 13], {32: [X1, X2]}, FAILED, "TIMEOUT"),
    "nobody has asked since": (RETRY, [*STOPS_PART, 61.9], {62: []}, RUNNING, ""),
    "it goes on": (RETRY, GOES_ON, {74: [X1, X2]}, FAILED, "NOT_STOPPED"),
    "the job not yet": (begun(timeout=7), [6.9], {6.9: [], 7: [retries.TimeOut()]}, READY, ""),
    "the job": (begun(timeout=7), [7], {19: [X1, X2]}, READY, "TIMEOUT"),
    "from its start": (
        job_with("a", JobStatus.READY, timeout=7),
        [100, accept(S1, 100), accept(S2, 100)],
        {106.9: [A1, A2], 107: [A1, A2, retries.TimeOut()]},
        READY,
        "",
    ),
    # a task is stopped
    "claimed once": (
        running(),
        [STOP_A, 1],
        {
            1: [],
            12.9: [],
            13: [T1, T2],
        },
        RUNNING,
        "",
    ),
    "not begun": (running(a=READY), [STOP_A], {1: [], 10_000: []}, READY, ""),
    "done at one node": (HALF_DONE, [STOP_A], {1: [T2]}, RUNNING, ""),
    "a start on its way": (BEGINS, [0, STOP_A], {11.9: [], 12: [T1, T2]}, READY, ""),
    "lost starts": (
        BEGINS,
        [0, STOP_A, lose_response(A1, 2), lose_response(A2, 2)],
        {11.9: [], 12: [T1, T2]},
        READY,
        "",
    ),
    "accepted at one node": (BEGINS, [0, STOP_A, accept(A2, 2)], {2: [T2]}, READY, ""),
    "starts that never left": (BEGINS, NEVER_LEFT, {500: []}, READY, ""),
    "accepted after all": (BEGINS, [*NEVER_LEFT, accept(A2, 3)], {3: [T2]}, FAILED, ""),
    "begun at one node": (running(a={"n1": RUNNING}), [STOP_A], {1: [T1]}, FAILED, ""),
    "a start refused then": (
        BEGINS,
        [0, STOP_A, refuse(A1, 2, Failure("INPUT_MISSING"))],
        {20: [T2]},
        FAILED,
        "",
    ),
    "a refused stop": (
        running(),
        [STOP_A, 1, refuse(T1, 2), accept(T2, 2)],
        {500: []},
        RUNNING,
        "",
    ),
    "it fails meanwhile": (
        running(),
        [STOP_A, report_task(FAILED, "n1", failure=BROKE)],
        {1: [T1, T2]},
        FAILED,
        "",
    ),
    "other branches go on": (TWO_BRANCHES, BRANCHES, {3: [D1, D2]}, FAILED, ""),
    "and then it is stopped": (
        TWO_BRANCHES,
        [*BRANCHES, 3, *done("d", 4)],
        {4: [X1, X2]},
        FAILED,
        "STOPPED",
    ),
    "before the job begins": (ACCEPTED, [STOP_A], {1: [S1, S2]}, READY, ""),
    "all of it": (
        ACCEPTED,
        [STOP_A, TaskStopRequested("c", "n2", at(2))],
        {2: [X1, X2]},
        READY,
        "STOPPED",
    ),
    "a party stops its part": (
        running(),
        [report_task(FAILED, failure=CANCELED)],
        {1: [X1, X2]},
        FAILED,
        "STOPPED",
    ),
    # tolerable failures
    "another failure": (TOLERANT, [*TOLERATED, D_FAILS], {9: [X1, X2]}, FAILED, "EXIT_2"),
    "not tolerable": (job_with("a; d"), TOLERATED, {7: [X1, X2]}, FAILED, "EXIT_1"),
    # suspended
    "none starts": (BEGUN, [SUSPEND, *done("a", 3)], {1000: []}, SUCCESS, ""),
    "resumed": (BEGUN, [SUSPEND, *done("a", 3), RESUME], {5: [B1, B2]}, SUCCESS, ""),
    "one part has started": (
        job_with("a"),
        [1, accept(A1, 1), lose_request(A2, 1), SUSPEND],
        {5: [A2]},
        READY,
        "",
    ),
}


@pytest.mark.parametrize(("job", "steps", "dues", "status", "why"), CASES.values(), ids=CASES)
def test_what_is_due_while_a_job_runs(
    job: Job,
    steps: Sequence[Step],
    dues: Mapping[float, list],
    status: TaskStatus,
    why: str,
):
    job = play(job, *steps)
    assert {seconds: due(job, seconds) for seconds in dues} == dues
    assert (job.tasks["a"].status, end_reason(job)) == (status, why)
    if STOP_A in steps and status is FAILED:
        assert job.tasks["a"].failure == WHY


# ---------------------------------------------------------------- attempts and timeouts


def test_the_next_attempt_has_another_id_and_the_last_one_is_kept():
    job = play(RETRY, *NEXT)
    task = job.tasks["a"]
    assert task.attempt == 1 and task.task_id not in ("", "task_a") and task.failure is None
    (past,) = task.attempts
    assert (past.number, past.task_id, past.failure.reason, past.failure.node) == (
        0,
        "task_a",
        "EXIT_1",
        "n1",
    )
    assert {note.event for note in job.notes} >= {"attempt failed, another follows", "next attempt"}
    failed = play(RETRY, *OVER)
    one, two = retries.begin_again(failed, "a", at(2)), retries.begin_again(failed, "a", at(3))
    assert one.tasks["a"].task_id == two.tasks["a"].task_id == task.task_id
    assert one.tasks["a"].nodes["n1"].start.state is CallState.IDLE


MAY_HELP = """
    BUFFER_FULL CANNOT_SCHEDULE CHANNEL_LOST CREATE_FAILED ENGINE_DOWN ENGINE_FAILED EXIT_n FAILED
    FAILED_TO_RUN GONE NETWORK_LOST NO_CALLBACK NO_SPACE OOM_KILLED PARTS_MISSING POLL_REFUSED PORT_IN_USE
    PULL_FAILED PULL_TIMEOUT REPORTED_FAILED RESOURCES_BUSY SESSION_RELEASED SIGNATURE_UNCHECKED
    STORAGE_FAILED STORAGE_FULL STORAGE_NOT_WRITABLE STORAGE_SLOW STORAGE_UNREACHABLE TIMEOUT TRANSPORT_DOWN
"""
NO_TASKS = """
    ABNORMAL ALREADY_DECIDED APPROVAL_REJECTED APPROVAL_TIMEOUT APPROVAL_UNSUPPORTED AUDIT_ID_CONFLICT
    AUDIT_UNKNOWN AUDIT_UNUSED AUDIT_WITHDRAWN CLAUSE_UNKNOWN CODEC DATASET_EXISTS DATASET_IN_USE
    DATASET_NOT_UPLOADED DATA_BROKEN ENGINE_NOT_HERE FILE_NOT_FOUND FORMAT_MISMATCH GRANT_UNKNOWN GRPC_MISSING
    IMAGE_NOT_USABLE IMAGE_UNKNOWN INHERITANCE_FAILED INPUT_UNKNOWN JOB_AMBIGUOUS JOB_ID_CONFLICT
    JOB_NOT_ENDED JOB_NOT_RUNNING JOB_STARTED LOGS_UNREADABLE LOG_ELSEWHERE NAME_NOT_ALLOWED NOT_APPROVED
    NOT_A_PARTY NOT_ONE_FILE NOT_OWNER NOT_READY NOT_WAITING NO_REPORT OUTPUTS_IN_USE OUTPUT_MISSING
    OUTPUT_UNKNOWN PARAMETER_UNKNOWN PARQUET_NOT_INSTALLED PARTY_UNKNOWN PATH_NOT_ALLOWED PROVIDER_AMBIGUOUS
    ROLE_UNKNOWN RUN_TOKEN_REQUIRED RUN_UNKNOWN SAME_PERSON SANDBOX_FAILED SCHEDULER_FORGOT
    SCHEDULER_UNREACHABLE SCHEMA_UNKNOWN SOURCE_UNUSABLE STATUS_UNKNOWN TASK_BEGUN TEMPLATE_UNKNOWN
    UPSTREAM_FAILED
"""
"""reasons of those groups for which no task fails"""


def test_every_reason_of_a_task_decides_on_another_attempt():
    titles = ("Jobs", "Containers", "Channel", "Data and outputs")
    found = {one.name for group in groups() if group.title["en"] in titles for one in group.reasons}
    decided = [{*MAY_HELP.split()}, {*NO_TASKS.split()}, retries.NOT_WORTH_IT]
    undecided = found.difference(*decided)
    assert undecided == set(), (
        "to NOT_WORTH_IT of gateway/domain/retries.py, or MAY_HELP or NO_TASKS here"
    )
    assert sum(len(names & found) for names in decided) == len(found)


@pytest.mark.parametrize("reason", sorted(retries.NOT_WORTH_IT))
def test_what_would_only_happen_again_is_not_tried_again(reason):
    job = play(
        begun(auto_retries=5),
        report_task(RUNNING),
        report_task(FAILED, "n1", failure=Failure(reason)),
    )
    outcome = Outcome.STOPPED if reason == "STOPPED" else Outcome.FAILED
    assert (job.ending.outcome, job.ending.failure.reason) == (outcome, reason)


def test_reports_and_responses_of_an_earlier_attempt_change_nothing():
    job = play(RETRY, *OVER, 2)
    late = [
        report_task(SUCCESS, seconds=3),
        accept(A1, 3),
        accept(PollTaskAt("n1", "a", ("guest",)), 3),
        refuse(T2, 3),
    ]
    for news in late:
        later = play(job, news)
        assert later.tasks == job.tasks and later.nodes == job.nodes
        assert "ignored" in later.notes[-1].event
    assert exclude(job, A2, at(3)).tasks == job.tasks


@pytest.mark.parametrize(
    ("common", "steps", "words"),
    [
        ({"task_timeout": 5}, [report_task(RUNNING), 5], ("n2 (RUNNING)", "5 s")),
        ({"timeout": 7}, [7], ("7 s", "a, b")),
        ({"auto_retries": 1}, GOES_ON, ("EXIT_1", "at n2 (RUNNING)")),
    ],
)
def test_what_takes_too_long_is_named(
    common,
    steps,
    words,
):
    message = play(begun(**common), *steps).ending.failure.message
    assert all(word in message for word in words), message


# ---------------------------------------------------------------- stops


def test_what_has_ended_or_is_stopped_before_stays_as_it_is():
    job = running("a -> b; c", a=SUCCESS, b=RUNNING)
    assert play(job, STOP_A) is job
    job = play(running(), STOP_A)
    for later in (STOP_A, TaskStopRequested("b", "n2", at(9))):
        assert play(job, later) is job
    ending = play(job, STOP_C)
    for later in (STOP_A, StopRequested("n1", at(9)), SuspendRequested("n1", at(9))):
        assert play(ending, later) is ending
    over = play(ending, 3, accept(X1, 4), accept(X2, 4), 20, accept(X1, 21), accept(X2, 21))
    assert (over.outcome, over.ending.by) == (Outcome.STOPPED, "n2") and play(
        over, STOP, STOP_A
    ) is over
    first = play(running(), TaskStopRequested("b", "n2", at(1)))
    job = play(first, TaskStopRequested("a", "n2", at(5)))
    assert job.tasks["b"].ending == first.tasks["b"].ending and job.tasks["a"].ending.at == at(5)


def test_new_parameters_hold_unless_others_came_first_or_a_task_has_begun():
    def agreed(
        name: str,
        task: str,
        after_: int,
    ) -> ParametersAgreed:
        return ParametersAgreed(
            Amendment(name, {"common": {task: {"x": 1}}}, "n2", "", at(2)), after_
        )

    job = play(running(), agreed("one", "b", 0))
    assert [one.id for one in job.amendments] == ["one"]
    for late in (agreed("two", "b", 0), agreed("two", "a", 1)):
        assert play(job, late).amendments == job.amendments
    assert [one.id for one in play(job, agreed("two", "b", 1)).amendments] == ["one", "two"]
    assert play(play(running(), STOP), agreed("one", "b", 0)).amendments == ()


@pytest.mark.parametrize(("start", "status"), [(CallState.LOST, READY), (CallState.OK, FAILED)])
def test_a_task_that_its_only_node_forgot_after_acceptance_has_failed(start, status):
    job = a_job(
        "a; c",
        JobStatus.RUNNING,
        roles={"guest": ("n1",)},
        a=READY,
        c=RUNNING,
    )
    part = replace(job.tasks["a"].nodes["n1"], start=replace(sent(), state=start))
    job = replace(job, tasks={**job.tasks, "a": replace(job.tasks["a"], nodes={"n1": part})})
    job = play(job, STOP_A, 20, TaskUnknown(PollTaskAt("n1", "a", ("guest",)), at(21)))
    assert (job.tasks["a"].status, job.ending) == (status, None)
    assert [c for c in due(job, 500) if isinstance(c, StartTaskAt)] == []


def test_nodes_without_a_role_leave_a_stopping_task_without_failure():
    job = play(BEGINS, 0, STOP_A)
    for node in ("n1", "n2"):
        job = exclude(job, StartTaskAt(node, "a"), at(2))
    assert (job.ending, job.tasks["a"].status, job.tasks["a"].failure) == (None, FAILED, WHY)
    assert due(job, 500) == []


def test_an_unanswered_stop_of_a_task_is_repeated_for_a_while():
    job, now, asked = play(running(), STOP_A, 1, accept(T2, 1)), 1.0, 1
    while T1 in due(job := play(job, refuse(T1, now, Failure("NO_ENVELOPE", "<html>"))), now + 20):
        now += 20
        job, asked = play(job, now), asked + 1
    assert asked == 10 and job.ending is None


def test_no_part_of_a_task_is_left_running_by_the_end_of_its_job():
    job = a_job(
        "a -> b; c",
        JobStatus.RUNNING,
        a={"n1": RUNNING, "n2": SUCCESS},
        c={"n1": FAILED, "n2": RUNNING},
    )
    job = play(job, StopRequested("n1", at(1)), AcceptAll(1))
    assert {name: task.status for name, task in job.tasks.items()} == {
        "a": FAILED,
        "b": READY,
        "c": FAILED,
    }
    parts = {
        (name, n): p.status
        for name, task in job.tasks.items()
        for n, p in task.nodes.items()
        if name != "b"
    }
    assert parts == {
        ("a", "n1"): FAILED,
        ("a", "n2"): SUCCESS,
        ("c", "n1"): FAILED,
        ("c", "n2"): FAILED,
    }
    job = a_job("a", JobStatus.RUNNING, a=RUNNING, roles={"guest": ("n1",)})
    forgotten = {"n1": replace(job.tasks["a"].nodes["n1"], start=IDLE)}
    job = replace(job, tasks={"a": replace(job.tasks["a"], nodes=forgotten)})
    assert play(job, StopRequested("n1", at(1)), AcceptAll(1)).tasks["a"].status is FAILED


def test_a_job_succeeds_in_spite_of_a_tolerable_failure():
    job = play(job_with("a -> b -> c; d", tolerable_tasks=["a"]), *TOLERATED, 7, *done("d", 8))
    assert (job.ending.outcome, job.ending.failure) == (Outcome.SUCCEEDED, None)
    assert quorum.failed_tasks(job) == ["a"]
    assert (
        job.tasks["b"].status is READY and job.tasks["b"].ending.failure.reason == "UPSTREAM_FAILED"
    )
    job = play(job, AcceptAll(30))
    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)


@given(st.data())
@settings(REPEATABLE, max_examples=40)
def test_which_tasks_a_stop_ends_follows_from_the_flow(data):
    plot = data.draw(plots(calm=True))
    names = [n.name for n in plot.spec.dag.nodes]
    open_ = downstream(plot.spec.dag, data.draw(st.frozensets(st.sampled_from(names), min_size=1)))
    finished = set(names) - open_
    job = a_job(
        spec=plot.spec,
        status=JobStatus.RUNNING,
        **dict.fromkeys(finished, SUCCESS),
    )
    asked = data.draw(st.sampled_from(names))
    job = play(job, TaskStopRequested(asked, "n2", at(1)))
    expected = set() if asked in finished else set(downstream(plot.spec.dag, [asked]))
    assert {name for name, task in job.tasks.items() if task.ending is not None} == expected
    assert (job.ending is not None) is (bool(expected) and expected | finished == set(names))


# ---------------------------------------------------------------- racing with starts

RACE = Plot(a_spec("a -> b; c", {"guest": ("n1",), "host": ("n2",)}), pushes=frozenset({"n1"}))
PLACES = [(task, node, role) for task in "abc" for node, role in (("n1", "guest"), ("n2", "host"))]


def moments(plot: Plot, task: str) -> tuple[float, float]:
    """Return when the first start of the task is called and when the last of them has arrived, without a stop."""
    world = World(plot)
    world.run()
    starts = [str(StartTaskAt(node, task)) for node in plot.spec.nodes]
    times = [
        float(line.split()[0])
        for line in world.clockwork.log_lines
        if any(start in line for start in starts)
    ]
    return min(times), max(times)


def agree(world: World) -> None:
    """Check that whatever began has ended, and that the scheduling node and the others say the same of it."""
    for name, task in world.job.tasks.items():
        there = [s for node in world.nodes.values() for s in node.tasks.get(name, {}).values()]
        assert all(ended(TASK, status) for status in there), world.clockwork.log_text()
        if there:
            assert task.status in (SUCCESS, FAILED), (name, task.status, there)
        if task.status is SUCCESS:
            assert set(there) == {SUCCESS}
        if FAILED in there:
            assert task.status is FAILED and task.failure.reason == "STOPPED"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("task", "whole"), [("a", True), ("b", True), ("a", False), ("b", False), ("c", False)]
)
def test_a_stop_racing_a_start(
    seed,
    task,
    whole,
):
    """``whole``: the job is stopped, else the task. No task succeeds before that."""
    times = Random(seed)
    fates = {place: Fate(times.uniform(0.0, 1.0), times.uniform(15.0, 40.0)) for place in PLACES}
    plot = replace(
        RACE,
        seed=seed,
        planners=1 + seed % 2,
        fates=fates,
    )
    first, last = moments(plot, task)
    when = Random(seed).uniform(first - 0.05, last + 0.05)
    world = World(
        replace(plot, stop_at=when) if whole else replace(plot, stop_tasks=((when, task),))
    )
    job = world.run()
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.STOPPED), (
        world.clockwork.log_text()
    )
    rest = set() if whole else {"a", "b", "c"} - downstream(plot.spec.dag, [task])
    assert all(job.tasks[name].status is SUCCESS for name in rest)
    agree(world)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_task_is_stopped_at_a_node_when_it_is_back(hangs):
    fates = {place: Fate(ends_after=200 if place[0] == "a" else 100) for place in PLACES}
    world = World(
        replace(
            RACE,
            fates=fates,
            outages=(Outage("n2", 10, 60, hangs),),
            stop_tasks=((20.0, "a"),),
        )
    )
    job = world.run()
    assert job.outcome is Outcome.STOPPED and job.tasks["c"].status is SUCCESS
    assert world.nodes["n2"].failures["a.host"].reason == "STOPPED"
    arrived = [
        line
        for line in world.clockwork.log_lines
        if "StopTaskAt(node='n1', task='a', attempt=0) arrives" in line
    ]
    assert float(arrived[0].split()[0]) < 22, "the node that answers is stopped at once"


@given(plots(calm=True), SEEDS, st.data())
@settings(REPEATABLE, max_examples=30)
def test_where_nothing_goes_wrong_each_stop_is_sent_once(
    plot,
    seed,
    data,
):
    names = [n.name for n in plot.spec.dag.nodes]
    times = Random(seed)
    asked = [(times.uniform(0.0, 30.0), task) for task in sorted(data.draw(some_of(names, 2)))]
    world = World(replace(plot, stop_tasks=tuple(asked)))
    job = world.run()
    assert job.outcome in (Outcome.SUCCEEDED, Outcome.STOPPED)
    assert all(
        n == 1 for request, n in world.calls.items() if isinstance(request, StopTaskAt | StopAt)
    )
    assert all(r.task in world.stopped_tasks for r in world.calls if isinstance(r, StopTaskAt))


def test_a_planner_may_die_at_every_single_pause_of_a_stop():
    plot = replace(RACE, fates=dict.fromkeys(PLACES, Fate(ends_after=5)), stop_tasks=((1.5, "a"),))
    pauses, lives = 0, 2
    while lives > 1:
        pauses += 1
        world = World(replace(plot, dies_at=pauses, seed=pauses))
        job = world.run()
        assert job.outcome is Outcome.STOPPED and job.tasks["c"].status is SUCCESS, (
            world.clockwork.log_text()
        )
        agree(world)
        lives = world.lives
    assert pauses > 30
