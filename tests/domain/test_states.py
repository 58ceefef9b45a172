from itertools import combinations_with_replacement, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.states import (
    JOB,
    RUN,
    TASK,
    TASK_OF_RUN,
    IllegalMove,
    JobStatus,
    RunStatus,
    TaskStatus,
    ended,
    may,
    merge,
    move,
)
from tests.domain.strategies import REPEATABLE

LEGAL = {
    JobStatus: (JOB, "PENDING-READY PENDING-REJECTED READY-RUNNING READY-FINISHED RUNNING-FINISHED"),
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
    if TaskStatus.FAILED in statuses:
        return TaskStatus.FAILED
    if all(status is TaskStatus.SUCCESS for status in statuses):
        return TaskStatus.SUCCESS
    open_ = [status for status in statuses if status is not TaskStatus.SUCCESS]
    ahead = [TaskStatus.PENDING, TaskStatus.READY, TaskStatus.RUNNING]
    return max(open_, key=ahead.index)


MULTISETS = [m for n in range(5) for m in combinations_with_replacement(TaskStatus, n)]


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
            before, after = TASK_OF_RUN[old], TASK_OF_RUN[new]
            assert before is after or may(TASK, before, after)
    for run, task in TASK_OF_RUN.items():
        assert ended(RUN, run) is ended(TASK, task)
