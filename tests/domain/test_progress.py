"""How far a job is, as a participating node shows it by itself."""

import math

import pytest

from gateway.domain import run
from gateway.domain.spec import Ending
from gateway.domain.states import Outcome, RunStatus
from tests.builders import T0, a_local_job, a_run, a_spec

SUCCESS, RUNNING = RunStatus.SUCCESS, RunStatus.RUNNING


def test_what_succeeded_here_counts_and_what_was_told_never_falls():
    spec = a_spec("a -> b -> c -> d")
    local = a_local_job(a_run("a", SUCCESS), a_run("b", RUNNING), spec=spec)
    assert run.of(local) == 25
    local = run.with_progress(local, 50.9)
    assert (local.progress, run.of(local)) == (50, 50)
    assert run.with_progress(local, 50) is local and run.with_progress(local, 12) is local
    more = a_local_job(*(a_run(name, SUCCESS) for name in "abc"), spec=spec, progress=50)
    assert run.of(more) == 75


@pytest.mark.parametrize("odd", [-1.0, 0.0, -math.inf, math.inf, math.nan])
def test_what_is_no_share_is_nothing(odd: float):
    local = a_local_job()
    assert run.with_progress(local, odd) is local


@pytest.mark.parametrize("outcome", [*Outcome, None])
def test_only_a_success_is_all_of_it(outcome: Outcome | None):
    ending = None if outcome is None else Ending(outcome, T0)
    local = run.with_progress(a_local_job(a_run("a", SUCCESS), ending=ending), 1e300)
    assert run.of(local) == (100 if outcome is Outcome.SUCCEEDED else 99)
