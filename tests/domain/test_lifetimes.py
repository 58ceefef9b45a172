"""Timeouts and retries as a job asks for them."""

from typing import Any

import pytest

from gateway.domain import validation
from gateway.domain.spec import JobSpec, Limits, TaskLimits
from tests.builders import a_spec


def asking(common: Any) -> JobSpec:
    return a_spec("a; b; c", job_params={"common": common})


def wrong(common: Any) -> list[str]:
    problems, _ = validation.check(asking(common))
    return [p.path.removeprefix("config.job_params.common.") for p in problems]


def test_a_job_that_asks_for_nothing_has_no_limits_and_no_retries():
    for common in ({}, {"sync_type": "poll"}, {"timeout": None, "auto_retries": None, "tasks": None}):
        found = asking(common).time_limits
        assert found == Limits() and found.none and not wrong(common)


def test_a_task_has_what_the_job_says_of_all_tasks_unless_it_is_named():
    common = {
        "timeout": 3600,
        "task_timeout": 60.5,
        "auto_retries": 2,
        "auto_retry_delay": 3,
        "tasks": {"a": {"timeout": 5, "auto_retries": 0}, "b": {"auto_retry_delay": 0}},
    }
    found = asking(common).time_limits
    assert not wrong(common)
    assert found.job_timeout == 3600
    assert found.of("a") == TaskLimits(5, 0, 3)
    assert found.of("b") == TaskLimits(60.5, 2, 0)
    assert found.of("c") == TaskLimits(60.5, 2, 3)


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), float("inf"), 1e10, [], {}])
def test_what_is_no_time_is_refused_by_its_path(value):
    common = {"timeout": value, "task_timeout": value, "tasks": {"a": {"timeout": value}}}
    assert wrong(common) == ["timeout", "task_timeout", "tasks.a.timeout"]


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 101])
def test_what_is_no_number_of_retries_is_refused(value):
    assert wrong({"auto_retries": value}) == ["auto_retries"]


def test_every_problem_is_told_at_once_when_a_job_comes_in():
    common = {"auto_retry_delay": -1, "tasks": {"a": {"time_out": 5}, "b": 7, "x": {}}}
    assert wrong(common) == ["auto_retry_delay", "tasks.a.time_out", "tasks.b", "tasks.x"]
    assert wrong({"tasks": []}) == ["tasks"]
