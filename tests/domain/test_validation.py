"""What is wrong with a job, and what is warned of: limits, unknown settings, foreign engines, idle roles."""

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.domain import validation
from gateway.domain.spec import JobSpec, Limits, TaskLimits
from gateway.domain.validation import idle_roles
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


DOMAIN = Path(validation.__file__).parent


def warned(**job_params: Any) -> dict[str, str]:
    """Return what is warned of by its path: what was probably meant."""
    _, warnings = validation.check(a_spec("a", job_params=job_params))
    return {w.path.removeprefix("config.job_params."): w.suggestion for w in warnings}


def test_a_mistyped_setting_is_told_with_what_was_meant_wherever_it_stands():
    common = {"tiemout": 5, "prority": 2, "auto_retry": 3, "site": "x"}
    own = {"0": {"resource": {"cpu": 1}, "resources": {"cpus": 1, "memory": 2}}}
    assert warned(common=common, guest=own) == {
        "common.tiemout": "timeout",
        "common.prority": "priority",
        "common.auto_retry": "auto_retries",
        "common.site": "",
        "guest.0.resource": "resources",
        "guest.0.resources.cpus": "cpu",
    }


def test_a_sync_type_that_is_none_is_taken_as_poll_and_told():
    assert warned(common={"sync_type": "callback"}) == warned(common={"sync_type": "poll"}) == {}
    assert list(warned(common={"sync_type": "callbak"})) == ["common.sync_type"]


def test_what_is_known_and_what_chooses_another_platforms_engine_is_not_remarked():
    common = dict.fromkeys(validation.COMMON - {"sync_type"}) | {
        "engine": {},
        "computing_engine": "x",
        "y_run": {},
    }
    _, warnings = validation.check(a_spec("a", job_params={"common": common}))
    assert [w for w in warnings if "job_params" in w.path] == []


def test_a_flood_of_settings_is_cut_and_a_strict_job_is_refused_for_one():
    assert len(warned(common={f"setting{i}" * 3: i for i in range(100_000)})) == validation.MOST_WARNINGS
    problems, warnings = validation.check(a_spec("a", job_params={"common": {"strict": True, "tiemout": 5}}))
    assert ([p.path for p in problems], warnings) == (["config.job_params.common.tiemout"], [])


def test_every_setting_that_the_rules_read_is_known():
    texts = [file.read_text(encoding="utf-8") for file in DOMAIN.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'(?:common|asked)\.get\("(\w+)"', text)}
    assert {"timeout", "priority", "inherit"} <= read <= validation.COMMON


PATH = "config.job_params"


@pytest.mark.parametrize(
    ("job_params", "path", "name"),
    [
        ({"common": {"computing_engine": "eggroll"}}, "common.computing_engine", "Eggroll"),
        ({"common": {"computing": "SPARK"}}, "common.computing", "Spark"),
        ({"common": {"backend": "linkis_spark"}}, "common.backend", "Linkis"),
        ({"common": {"engine": "linkis-hive"}}, "common.engine", "Linkis"),
        ({"common": {"engines": {"computing": "spark", "storage": "file"}}}, "common.engines.computing", "Spark"),
        ({"common": {"federation_engine": "pulsar"}}, "common.federation_engine", "Pulsar"),
        ({"common": {"eggroll_run": {"cores": 4}}}, "common.eggroll_run", "Eggroll"),
        ({"host": {"0": {"spark_run": {}}}}, "host.0.spark_run", "Spark"),
        ({"guest": {"0": {"backend": "rabbitmq"}}}, "guest.0.backend", "RabbitMQ"),
    ],
)
def test_an_engine_of_another_platform_is_refused_by_name(job_params, path, name):
    (problem,) = validation.check(a_spec(job_params=job_params))[0]
    assert problem.path == f"{PATH}.{path}"
    assert name in problem.rule and "ENGINE_NOT_HERE" in problem.rule and "vendor" in problem.rule


def test_all_of_them_are_told_at_once():
    asked = {"common": {"computing_engine": "eggroll", "spark_run": {}}, "host": {"0": {"engine": "hive"}}}
    assert len(validation.check(a_spec(job_params=asked))[0]) == 3


@pytest.mark.parametrize(
    "job_params",
    [
        {},
        {"common": {"sync_type": "poll"}},
        {"common": {"computing_engine": "standalone", "engine": None, "backend": 0, "run": {}, "dry_run": True}},
        {"common": {"note": "as good as spark"}},
        {"common": {"engines": ["spark"]}},
        {"guest": {"0": {"resources": {"cpu": -1}}}},
        {"guest": {"0": "spark"}, "common": {}},
    ],
)
def test_whatever_does_not_ask_for_one_is_left_alone(job_params):
    assert validation.check(a_spec(job_params=job_params))[0] == []


HAVE = ("guest", "host")


def test_a_role_that_some_component_has_is_fine():
    spec = a_spec("a -> b", {"guest": ("n1",), "arbiter": ("n2",)})
    assert idle_roles(spec, lambda _: (*HAVE, "arbiter")) == ([], [])


def test_a_slip_of_the_pen_is_refused_and_says_what_was_meant():
    [problem], warnings = idle_roles(a_spec("a", {"guest": ("n1",), "hots": ("n2",)}), lambda _: HAVE)
    assert (problem.path, problem.suggestion, warnings) == ("config.role.hots", "host", [])
    assert "guest, host" in problem.rule


@pytest.mark.parametrize("role", ["arbiter", "hosts"])
def test_a_role_without_any_task_beside_all_that_are_needed_is_warned_of(role: str):
    problems, [warning] = idle_roles(
        a_spec("a", {"guest": ("n1",), "host": ("n2",), role: ("n3",)}), lambda _: HAVE
    )
    assert problems == [] and warning.path == f"config.role.{role}"


def test_nothing_is_said_where_a_component_is_not_known_here():
    spec = a_spec("a -> b", {"guest": ("n1",), "hots": ("n2",)})
    assert idle_roles(spec, lambda _: None) == ([], [])
