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

RUNNING, SUCCESS = TaskStatus.RUNNING, TaskStatus.SUCCESS


@given(
    st.lists(st.sampled_from(TaskStatus), min_size=1, max_size=6), st.sampled_from([None, *Outcome])
)
@REPEATABLE
def test_progress_is_the_share_of_successes_and_full_only_on_success(statuses, outcome):
    names = [f"t{i}" for i in range(len(statuses))]
    job = a_job("; ".join(names), JobStatus.RUNNING, **dict(zip(names, statuses, strict=True)))
    job = replace(job, outcome=outcome)
    done = statuses.count(SUCCESS)
    assert job.progress == (
        100 if outcome is Outcome.SUCCEEDED else min(99, 100 * done // len(statuses))
    )


def test_runs_are_found_by_task_role_and_index():
    guest, host, second = (Party("guest", 0, "n1"), Party("host", 0, "n1"), Party("host", 1, "n1"))
    local = a_local_job(
        *(a_run("a", party=p) for p in (guest, host, second)), a_run("b", party=guest)
    )
    assert len(local.runs_of("task_a")) == 3
    assert [r.party for r in local.runs_of("task_a", "host")] == [host, second]
    assert [r.party for r in local.runs_of("task_a", "host", 0)] == [host]
    assert local.runs_of("task_x") == ()


def test_a_problem_shows_what_was_found_but_not_without_end():
    assert str(Problem("a.b", "must be", "x")) == "a.b: must be (got 'x')"
    assert len(str(Problem("a.b", "must be", "x" * 10_000))) < 300


def test_local_success_counts_and_reported_progress_never_falls():
    spec = a_spec("a -> b -> c -> d")
    local = a_local_job(a_run("a", RunStatus.SUCCESS), a_run("b", RunStatus.RUNNING), spec=spec)
    assert run.of(local) == 25
    local = run.with_progress(local, 50.9)
    assert (local.progress, run.of(local)) == (50, 50)
    assert run.with_progress(local, 50) is local and run.with_progress(local, 12) is local
    more = a_local_job(*(a_run(name, RunStatus.SUCCESS) for name in "abc"), spec=spec, progress=50)
    assert run.of(more) == 75


@pytest.mark.parametrize("odd", [-1.0, 0.0, -math.inf, math.inf, math.nan])
def test_what_is_no_share_is_nothing(odd: float):
    local = a_local_job()
    assert run.with_progress(local, odd) is local


@pytest.mark.parametrize("outcome", [*Outcome, None])
def test_only_a_success_is_all_of_it(outcome: Outcome | None):
    ending = None if outcome is None else Ending(outcome, T0)
    local = run.with_progress(a_local_job(a_run("a", RunStatus.SUCCESS), ending=ending), 1e300)
    assert run.of(local) == (100 if outcome is Outcome.SUCCEEDED else 99)
