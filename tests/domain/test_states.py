"""What jobs, tasks and runs are, for every mix of what their parts are: as tables, and through the rules."""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.bfia.translate import outcome_from_tasks, progress_from_tasks, status_from_tasks
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

PENDING, READY, RUNNING = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.RUNNING
SUCCESS, FAILED = TaskStatus.SUCCESS, TaskStatus.FAILED
MULTISETS = [m for n in range(5) for m in combinations_with_replacement(TaskStatus, n)]


LEGAL = {
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
ENDS = {"FINISHED", "REJECTED", "SUCCESS", "FAILED"}


@pytest.mark.parametrize("kind", LEGAL)
def test_a_table_has_exactly_these_moves(kind):
    table, moves = LEGAL[kind]
    legal = {tuple(pair.split("-")) for pair in moves.split()}
    assert {(old, new) for old, new in product(table, table) if may(table, old, new)} == legal
    for old, new in product(kind, kind):
        if (old, new) in legal:
            assert move(table, old, new) is new
        else:
            with pytest.raises(IllegalMove, match=f"{old} -> {new}"):
                move(table, old, new)
    assert {status for status in kind if ended(table, status)} == ENDS & set(kind)


def _expected(statuses: tuple[TaskStatus, ...]) -> TaskStatus:
    """The rule once more, written from the parties' point of view."""
    if FAILED in statuses:
        return FAILED
    open_ = [status for status in statuses if status is not SUCCESS]
    return max(open_, key=[PENDING, READY, RUNNING].index) if open_ else SUCCESS


@pytest.mark.parametrize("statuses", MULTISETS, ids=lambda m: "+".join(m) or "nobody")
def test_the_states_of_several_parties_merge_whatever_their_order(statuses):
    assert {merge(order) for order in permutations(statuses)} == {_expected(statuses)}


@given(st.lists(st.lists(st.sampled_from(TaskStatus), min_size=1), min_size=1))
@REPEATABLE
def test_it_does_not_matter_whether_roles_or_nodes_are_merged_first(parties):
    assert merge(map(merge, parties)) is merge(status for roles in parties for status in roles)


def test_the_reported_state_of_a_run_never_goes_back():
    assert set(TASK_OF_RUN) == set(RunStatus)
    for old, news in RUN.items():
        for new in news:
            before, following = TASK_OF_RUN[old], TASK_OF_RUN[new]
            assert before is following or may(TASK, before, following)
    for run, task in TASK_OF_RUN.items():
        assert ended(RUN, run) is ended(TASK, task)


# ---------------------------------------------------------------- a job and its tasks


def played(states: Sequence[TaskStatus], *, stops_answered: bool) -> Job:
    """Return a job of unrelated tasks that both nodes have told to be in these states."""
    names = [f"t{i}" for i in range(len(states))]
    spec = a_spec("; ".join(names) if names else Dag(()))
    job = play(a_job(spec=spec, status=JobStatus.RUNNING), AcceptAll(0))
    for name, status in zip(names, states, strict=True):
        job = told(job, name, dict.fromkeys(("n1", "n2"), status))
    return play(job, *([AcceptAll(3)] if stops_answered else [3]))


def told(
    job: Job,
    name: str,
    states: Mapping[str, TaskStatus],
) -> Job:
    """Return the job after nodes have told how a task is there, in this order; PENDING is not told."""
    return play(
        job, *(report_task(s, node, name, 2) for node, s in states.items() if s is not PENDING)
    )


def wanted(states: Sequence[TaskStatus]) -> tuple[JobStatus, Outcome | None]:
    """The rule once more, written from the user's point of view."""
    if FAILED in states:
        return JobStatus.FINISHED, Outcome.FAILED
    if states and all(s is SUCCESS for s in states):
        return JobStatus.FINISHED, Outcome.SUCCEEDED
    return JobStatus.RUNNING, None


@pytest.mark.parametrize("states", MULTISETS, ids=lambda m: "+".join(m) or "no task")
def test_what_a_job_is_follows_from_its_tasks(states: tuple[TaskStatus, ...]):
    status, outcome = wanted(states)
    orders = set(permutations(states)) if len(states) < 4 else {states, states[::-1]}
    for order in orders:
        job = played(order, stops_answered=True)
        assert (job.status, job.outcome) == (status, outcome)
        assert (job.progress == 100) is (outcome is Outcome.SUCCEEDED)
        if not ended(JOB, status):
            shown = [READY if s is PENDING else s for s in order]
            assert [t.status for t in job.tasks.values()] == shown
        else:
            assert all(ended(TASK, t.status) for t in job.tasks.values() if t.status is not READY)


@pytest.mark.parametrize("states", [m for m in MULTISETS if wanted(m)[1]], ids="+".join)
def test_the_end_and_full_progress_come_once_every_node_was_notified(
    states: tuple[TaskStatus, ...],
):
    job = played(states, stops_answered=False)
    assert job.ending is not None and not ended(JOB, job.status)
    assert job.outcome is None and job.progress < 100


PARTIES = ("n1", "n2", "n3")


@pytest.mark.parametrize("states", list(product(TaskStatus, repeat=3)), ids="+".join)
def test_a_tasks_state_follows_from_its_parties_in_any_report_order(
    states: tuple[TaskStatus, ...],
):
    merged = merge(states)
    expected = merged if may(TASK, READY, merged) else READY
    roles = {
        "guest": ("n1",),
        "host": ("n2",),
        "arbiter": ("n3",),
    }
    for order in permutations(zip(PARTIES, states, strict=True)):
        job = told(
            play(a_job(status=JobStatus.RUNNING, roles=roles), AcceptAll(0)), "a", dict(order)
        )
        task = job.tasks["a"]
        assert task.status is expected
        assert (task.failure is not None) is (expected is FAILED)
        assert [task.nodes[n].status for n in PARTIES] == list(states)


@pytest.mark.parametrize("states", MULTISETS, ids=lambda m: "+".join(m) or "no task")
def test_the_state_of_a_job_whose_peer_reports_tasks_only(states: tuple[TaskStatus, ...]):
    status = status_from_tasks(set(states))
    assert status is (JobStatus.PENDING if set(states) <= {PENDING} else wanted(states)[0])
    outcome = outcome_from_tasks(status, states)
    assert outcome is wanted(states)[1]
    progress = progress_from_tasks(outcome, states)
    assert (progress == 100) is (outcome is Outcome.SUCCEEDED) and 0 <= progress <= 100
