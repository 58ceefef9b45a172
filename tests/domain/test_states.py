"""The states of jobs, tasks and runs for every mix of their parts: by tables and by the rules."""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.bfia.views import outcome_from_tasks, progress_from_tasks, status_from_tasks
from gateway.domain.dag import Dag
from gateway.domain.job import Job
from gateway.domain.states import (
    JOB,
    RUN,
    TASK,
    TASK_OF_RUN,
    IllegalMove,
    JobStatus,
    Outcome,
    RunStatus,
    TaskStatus,
    ended,
    may,
    merge,
    move,
)
from tests.builders import a_job, a_spec
from tests.domain.script import AcceptAll, play, report_task
from tests.domain.strategies import REPEATABLE

PENDING = TaskStatus.PENDING
READY = TaskStatus.READY
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

# Every mix of at most four states, regardless of their order.
MIXES = [mix for size in range(5) for mix in combinations_with_replacement(TaskStatus, size)]

# The legal moves of each table.
LEGAL_MOVES = {
    JobStatus: (
        JOB,
        "PENDING-READY PENDING-REJECTED READY-RUNNING READY-FINISHED RUNNING-FINISHED",
    ),
    TaskStatus: (
        TASK,
        "PENDING-READY PENDING-RUNNING PENDING-SUCCESS PENDING-FAILED "
        "READY-RUNNING READY-SUCCESS READY-FAILED RUNNING-SUCCESS RUNNING-FAILED",
    ),
    RunStatus: (
        RUN,
        "WAITING-LAUNCHING WAITING-FAILED LAUNCHING-RUNNING LAUNCHING-STOPPING LAUNCHING-FAILED "
        "RUNNING-SUCCESS RUNNING-FAILED RUNNING-STOPPING STOPPING-FAILED",
    ),
}
FINAL_STATES = {"FINISHED", "REJECTED", "SUCCESS", "FAILED"}


def mix_id(mix: Sequence[TaskStatus]) -> str:
    """Return the readable id of a mix."""
    return "+".join(mix) or "no task"


@pytest.mark.parametrize("kind", LEGAL_MOVES)
def test_a_table_has_exactly_these_moves(kind):
    table, text = LEGAL_MOVES[kind]
    legal = {tuple(pair.split("-")) for pair in text.split()}

    assert {(old, new) for old, new in product(table, table) if may(table, old, new)} == legal
    assert {status for status in kind if ended(table, status)} == FINAL_STATES & set(kind)


@pytest.mark.parametrize("kind", LEGAL_MOVES)
def test_a_move_beside_the_table_is_refused(kind):
    table, text = LEGAL_MOVES[kind]
    legal = {tuple(pair.split("-")) for pair in text.split()}

    for old, new in product(kind, kind):
        if (old, new) in legal:
            assert move(table, old, new) is new
            continue
        with pytest.raises(IllegalMove, match=f"{old} -> {new}"):
            move(table, old, new)


def expected_merge(statuses: Sequence[TaskStatus]) -> TaskStatus:
    """Return the merged state, by the rule from the parties' point of view."""
    if FAILED in statuses:
        return FAILED
    unfinished = [status for status in statuses if status is not SUCCESS]
    if not unfinished:
        return SUCCESS
    return max(
        unfinished,
        key=[PENDING, READY, RUNNING].index,
    )


@pytest.mark.parametrize("statuses", MIXES, ids=mix_id)
def test_the_states_of_several_parties_merge_whatever_their_order(statuses):
    assert {merge(order) for order in permutations(statuses)} == {expected_merge(statuses)}


@given(st.lists(st.lists(st.sampled_from(TaskStatus), min_size=1), min_size=1))
@REPEATABLE
def test_merging_roles_before_nodes_changes_nothing(parties):
    all_statuses = [status for roles in parties for status in roles]

    assert merge(map(merge, parties)) is merge(all_statuses)


def test_the_reported_state_of_a_run_never_goes_back():
    assert set(TASK_OF_RUN) == set(RunStatus)
    for old, followers in RUN.items():
        for new in followers:
            old_report = TASK_OF_RUN[old]
            new_report = TASK_OF_RUN[new]
            assert old_report is new_report or may(TASK, old_report, new_report)


@pytest.mark.parametrize("status", RunStatus)
def test_a_run_has_ended_exactly_if_its_reported_state_is_final(status: RunStatus):
    assert ended(RUN, status) is ended(TASK, TASK_OF_RUN[status])


# ---------------------------------------------------------------- a job and its tasks


def job_with_reports(statuses: Sequence[TaskStatus], *, stops_accepted: bool) -> Job:
    """Return a job of unrelated tasks after both nodes have reported these states."""
    names = [f"t{number}" for number in range(len(statuses))]
    dag = "; ".join(names) if names else Dag(())
    job = play(
        a_job(
            spec=a_spec(dag),
            status=JobStatus.RUNNING,
        ),
        AcceptAll(0),
    )
    for name, status in zip(names, statuses, strict=True):
        job = report(job, name, {"n1": status, "n2": status})
    return play(job, AcceptAll(3) if stops_accepted else 3)


def report(
    job: Job,
    task: str,
    statuses: Mapping[str, TaskStatus],
) -> Job:
    """Return the job after the nodes' reports of a task, in this order; PENDING is not reported."""
    reports = [
        report_task(status, node, task, 2)
        for node, status in statuses.items()
        if status is not PENDING
    ]
    return play(job, *reports)


def expected_end(statuses: Sequence[TaskStatus]) -> tuple[JobStatus, Outcome | None]:
    """Return state and outcome of a job, by the rule from the user's point of view."""
    if FAILED in statuses:
        return JobStatus.FINISHED, Outcome.FAILED
    if statuses and set(statuses) == {SUCCESS}:
        return JobStatus.FINISHED, Outcome.SUCCEEDED
    return JobStatus.RUNNING, None


def some_orders(statuses: tuple[TaskStatus, ...]) -> set[tuple[TaskStatus, ...]]:
    """Return every order of up to three states, and two orders of more."""
    if len(statuses) < 4:
        return set(permutations(statuses))
    return {statuses, statuses[::-1]}


@pytest.mark.parametrize("statuses", MIXES, ids=mix_id)
def test_the_state_of_a_job_follows_from_its_tasks(statuses: tuple[TaskStatus, ...]):
    status, outcome = expected_end(statuses)
    for order in some_orders(statuses):
        job = job_with_reports(order, stops_accepted=True)

        assert (job.status, job.outcome) == (status, outcome)
        assert (job.progress == 100) is (outcome is Outcome.SUCCEEDED)
        task_statuses = [task.status for task in job.tasks.values()]
        if ended(JOB, status):
            assert all(ended(TASK, s) for s in task_statuses if s is not READY)
        else:
            assert task_statuses == [READY if s is PENDING else s for s in order]


ENDING_MIXES = [mix for mix in MIXES if expected_end(mix)[1] is not None]


@pytest.mark.parametrize("statuses", ENDING_MIXES, ids=mix_id)
def test_the_end_and_full_progress_wait_for_the_scheduling_nodes_stop(
    statuses: tuple[TaskStatus, ...],
):
    job = job_with_reports(statuses, stops_accepted=False)

    assert job.ending is not None
    assert not ended(JOB, job.status)
    assert job.outcome is None
    assert job.progress < 100


NODES = ("n1", "n2", "n3")
ROLES = {
    "guest": ("n1",),
    "host": ("n2",),
    "arbiter": ("n3",),
}


@pytest.mark.parametrize(
    "statuses",
    list(product(TaskStatus, repeat=3)),
    ids=mix_id,
)
def test_a_tasks_state_follows_from_its_parties_in_any_report_order(
    statuses: tuple[TaskStatus, ...],
):
    merged = merge(statuses)
    expected = merged if may(TASK, READY, merged) else READY
    new_job = play(
        a_job(status=JobStatus.RUNNING, roles=ROLES),
        AcceptAll(0),
    )

    for order in permutations(zip(NODES, statuses, strict=True)):
        task = report(new_job, "a", dict(order)).tasks["a"]

        assert task.status is expected
        assert (task.failure is not None) is (expected is FAILED)
        assert [task.nodes[node].status for node in NODES] == list(statuses)


@pytest.mark.parametrize("statuses", MIXES, ids=mix_id)
def test_the_state_of_a_job_whose_peer_reports_tasks_only(statuses: tuple[TaskStatus, ...]):
    expected_status, expected_outcome = expected_end(statuses)
    if set(statuses) <= {PENDING}:
        expected_status = JobStatus.PENDING

    status = status_from_tasks(set(statuses))
    outcome = outcome_from_tasks(status, statuses)
    progress = progress_from_tasks(outcome, statuses)

    assert status is expected_status
    assert outcome is expected_outcome
    assert (progress == 100) is (outcome is Outcome.SUCCEEDED)
    assert 0 <= progress <= 100
