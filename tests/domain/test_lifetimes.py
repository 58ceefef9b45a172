"""Timeouts and retries as a job asks for them."""

import pytest

from gateway.domain import parameters, spec
from gateway.domain.spec import Lifetime, Lifetimes
from tests.builders import a_spec


def test_a_job_that_asks_for_nothing_has_no_limits_and_no_retries():
    for common in (None, {}, {"sync_type": "poll"}, {"timeout": None, "auto_retries": None, "tasks": None}):
        assert spec.read(common) == Lifetimes() and spec.read(common).none
        assert spec.check(common, ["a"]) == []


def test_a_task_has_what_the_job_says_of_all_tasks_unless_it_is_named():
    common = {
        "timeout": 3600,
        "task_timeout": 60.5,
        "auto_retries": 2,
        "auto_retry_delay": 3,
        "tasks": {"a": {"timeout": 5, "auto_retries": 0}, "b": {"auto_retry_delay": 0}},
    }
    found = spec.read(common)
    assert spec.check(common, ["a", "b", "c"]) == []
    assert found.job_timeout == 3600
    assert found.of("a") == Lifetime(5, 0, 3)
    assert found.of("b") == Lifetime(60.5, 2, 0)
    assert found.of("c") == Lifetime(60.5, 2, 3)


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), float("inf"), 1e10, [], {}])
def test_what_is_no_time_is_refused_by_its_path_and_counts_as_absent(value):
    common = {"timeout": value, "task_timeout": value, "tasks": {"a": {"timeout": value}}}
    paths = [p.path.removeprefix("config.job_params.common.") for p in spec.check(common, ["a"])]
    assert paths == ["timeout", "task_timeout", "tasks.a.timeout"]
    assert spec.read(common).job_timeout is None and spec.read(common).of("a").timeout is None


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 101])
def test_what_is_no_number_of_retries_is_refused(value):
    (problem,) = spec.check({"auto_retries": value}, [])
    assert (problem.path, problem.got) == ("config.job_params.common.auto_retries", value)
    assert spec.read({"auto_retries": value}).usual.retries == 0


def test_every_problem_is_told_at_once_when_a_job_comes_in():
    common = {"auto_retry_delay": -1, "tasks": {"a": {"time_out": 5}, "b": 7, "x": {}}}
    spec = a_spec("a -> b", job_params={"common": common})
    problems, _ = parameters.check(spec)
    assert {p.path.removeprefix("config.job_params.common.") for p in problems} == {
        "auto_retry_delay",
        "tasks.a.time_out",
        "tasks.b",
        "tasks.x",
    }
    problems, _ = parameters.check(a_spec(job_params={"common": {"tasks": []}}))
    assert [p.path for p in problems] == ["config.job_params.common.tasks"]
