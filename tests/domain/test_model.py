"""Progress, runs and problems as values."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import run
from gateway.domain.problems import Problem
from gateway.domain.spec import Ending, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.builders import T0, a_job, a_local_job, a_run, a_spec
from tests.domain.strategies import REPEATABLE


def expected_progress(statuses: list[TaskStatus], outcome: Outcome | None) -> int:
    """Return the share of successes in per cent, which is full only for a job that succeeded."""
    if outcome is Outcome.SUCCEEDED:
        return 100
    successes = statuses.count(TaskStatus.SUCCESS)
    return min(99, 100 * successes // len(statuses))


@given(
    st.lists(
        st.sampled_from(TaskStatus),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, *Outcome]),
)
@REPEATABLE
def test_progress_is_the_share_of_successes_and_full_only_on_success(statuses, outcome):
    names = [f"t{number}" for number in range(len(statuses))]
    status_by_task = dict(zip(names, statuses, strict=True))
    job = a_job("; ".join(names), JobStatus.RUNNING, **status_by_task)

    job = replace(job, outcome=outcome)

    assert job.progress == expected_progress(statuses, outcome)


def test_runs_are_listed_by_task_role_and_index():
    guest = Party("guest", 0, "n1")
    first_host = Party("host", 0, "n1")
    second_host = Party("host", 1, "n1")
    runs_of_a = [a_run("a", party=party) for party in (guest, first_host, second_host)]
    local = a_local_job(*runs_of_a, a_run("b", party=guest))

    assert len(local.runs_of("task_a")) == 3
    assert [r.party for r in local.runs_of("task_a", "host")] == [first_host, second_host]
    assert [r.party for r in local.runs_of("task_a", "host", 0)] == [first_host]
    assert local.runs_of("task_x") == ()


def test_a_problem_shows_the_refused_value():
    assert str(Problem("a.b", "must be", "x")) == "a.b: must be (got 'x')"


def test_a_problem_shows_a_long_value_in_part():
    assert len(str(Problem("a.b", "must be", "x" * 10_000))) < 300


SPEC_OF_FOUR = a_spec("a -> b -> c -> d")


def test_reported_progress_never_falls():
    runs = [
        a_run("a", RunStatus.SUCCESS),
        a_run("b", RunStatus.RUNNING),
    ]
    local = a_local_job(*runs, spec=SPEC_OF_FOUR)
    assert run.progress_of(local) == 25

    local = run.with_progress(local, 50.9)

    assert local.progress == 50
    assert run.progress_of(local) == 50
    assert run.with_progress(local, 50) is local
    assert run.with_progress(local, 12) is local


def test_successes_beyond_the_reported_progress_count():
    runs = [a_run(task, RunStatus.SUCCESS) for task in "abc"]

    assert run.progress_of(a_local_job(*runs, spec=SPEC_OF_FOUR, progress=50)) == 75


@pytest.mark.parametrize(
    "progress",
    [-1.0, 0.0, -math.inf, math.inf, math.nan],
)
def test_a_progress_that_is_no_percentage_is_ignored(progress: float):
    local = a_local_job()

    assert run.with_progress(local, progress) is local


@pytest.mark.parametrize("outcome", [*Outcome, None])
def test_only_a_success_has_full_progress(outcome: Outcome | None):
    ending = None if outcome is None else Ending(outcome, T0)
    local = a_local_job(
        a_run("a", RunStatus.SUCCESS),
        ending=ending,
    )

    local = run.with_progress(local, 1e300)

    assert run.progress_of(local) == (100 if outcome is Outcome.SUCCEEDED else 99)
