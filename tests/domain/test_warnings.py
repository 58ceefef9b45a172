"""Warnings about a submitted job: unused names, idle roles, likely spelling errors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.domain import job_setting_checks
from gateway.domain.dag import DagNode
from gateway.domain.spec import JobSpec
from gateway.domain.validation import MOST_WARNINGS, check, idle_roles
from tests.builders import a_spec
from tests.domain.submissions import (
    TASK_PARAMETERS,
    UNKNOWN_FIELD,
    roles_of_every_task,
    spec_with_common,
)

UNUSED_PARAMETERS = {
    "common": {"x": {}},
    "guest": {
        "0": {"y": {}},
        "1": {},
        "0|7": {},
        "z": {},
    },
    "arbiter": {"0": {"a": {}}},
}
UNUSED_PATHS = ("common.x", "guest.1", "guest.0|7", "guest.z", "guest.0.y", "arbiter")

MISTYPED_SETTINGS = {
    "common": {
        "tiemout": 5,
        "prority": 2,
        "auto_retry": 3,
        "site": "x",
        "sync_type": "callbak",
    },
    "guest": {"0": {"resource": {"cpu": 1}, "resources": {"cpus": 1, "memory": 2}}},
    "comon": {"timeout": 3},
}
# The suggestion for each mistyped setting; empty without a likely one.
SUGGESTIONS = {
    "common.tiemout": "timeout",
    "common.prority": "priority",
    "common.auto_retry": "auto_retries",
    "common.site": "",
    "common.sync_type": "",
    "guest.0.resource": "resources",
    "guest.0.resources.cpus": "cpu",
    "comon": "common",
}

KNOWN_SETTINGS = dict.fromkeys(job_setting_checks.COMMON - {"sync_type"}) | {
    "engine": {},
    "computing_engine": "x",
    "y_run": {},
}
LONG_ROLE = "host" * 11

# A job, and the suggestion by the path of each warning.
WARNED: dict[str, tuple[JobSpec, Mapping[str, str]]] = {
    "parameters of unknown tasks and parties": (
        a_spec("a", task_params=UNUSED_PARAMETERS),
        {f"{TASK_PARAMETERS}{path}": "" for path in UNUSED_PATHS},
    ),
    "mistyped settings": (
        a_spec(job_params=MISTYPED_SETTINGS),
        {f"config.job_params.{path}": name for path, name in SUGGESTIONS.items()},
    ),
    "an unknown field": (
        a_spec(unknown_fields=(UNKNOWN_FIELD,)),
        {UNKNOWN_FIELD.path: "job_params"},
    ),
    "settings are no tasks": (
        a_spec(job_params={"common": {"sync_type": "poll"}, "guest": {"0": {"resources": {}}}}),
        {},
    ),
    "a name too long for a suggestion": (
        a_spec(task_params={LONG_ROLE: {}}),
        {f"{TASK_PARAMETERS}{LONG_ROLE}": ""},
    ),
    "known settings": (
        a_spec(job_params={"common": KNOWN_SETTINGS}),
        {},
    ),
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    WARNED.values(),
    ids=WARNED,
)
def test_unused_names_are_warned_of_with_the_likely_one(spec: JobSpec, expected: Mapping[str, str]):
    _, warnings = check(spec)

    assert {warning.path: warning.suggestion for warning in warnings} == expected


FLOOD_OF_TASKS = {f"trianing{number}": {} for number in range(2 * MOST_WARNINGS)}
FLOOD_OF_SETTINGS = {f"setting{number}" * 3: number for number in range(100_000)}


@pytest.mark.parametrize(
    "spec",
    [
        a_spec(
            "training",
            task_params={
                "common": FLOOD_OF_TASKS,
                "guest": {"0": FLOOD_OF_TASKS},
            },
        ),
        spec_with_common(**FLOOD_OF_SETTINGS),
    ],
    ids=["tasks", "settings"],
)
def test_a_flood_of_unknown_names_is_cut(spec: JobSpec):
    """Anybody may send a million of them, and each takes a while."""
    _, warnings = check(spec)

    assert len(warnings) == MOST_WARNINGS


def test_every_setting_that_the_rules_read_is_known():
    sources = Path(job_setting_checks.__file__).parent.rglob("*.py")
    read_settings: set[str] = set()
    for source in sources:
        text = source.read_text(encoding="utf-8")
        read_settings.update(re.findall(r'(?:common\.get|_or_default)\("(\w+)"', text))

    assert {"timeout", "priority", "inherit"} <= read_settings <= job_setting_checks.COMMON


# ---------------------------------------------------------------- idle roles

IDLE_ROLES: dict[str, tuple[str, tuple[str, ...] | None, Mapping[str, str], list[str]]] = {
    "a role without a party": (
        "arbiter",
        ("guest", "host", "arbiter"),
        {},
        ["config.role.host"],
    ),
    "a mistyped role": (
        "hots",
        ("guest", "host"),
        {"config.role.hots": "host"},
        [],
    ),
    "a role that no component has": (
        "arbiter",
        ("guest",),
        {},
        ["config.role.arbiter"],
    ),
    "unknown components": ("hots", None, {}, []),
}


@pytest.mark.parametrize(
    ("role", "component_roles", "problem_suggestions", "warning_paths"),
    IDLE_ROLES.values(),
    ids=IDLE_ROLES,
)
def test_a_role_that_no_component_has_is_a_problem_or_a_warning(
    role: str,
    component_roles: tuple[str, ...] | None,
    problem_suggestions: Mapping[str, str],
    warning_paths: list[str],
):
    def roles_of(_task: DagNode) -> tuple[str, ...] | None:
        return component_roles

    spec = a_spec(
        "a -> b",
        {
            "guest": ("n1",),
            role: ("n2",),
        },
    )

    problems, warnings = idle_roles(spec, roles_of)

    assert {problem.path: problem.suggestion for problem in problems} == problem_suggestions
    assert [warning.path for warning in warnings] == warning_paths


def guest_and_host(_task: DagNode) -> tuple[str, ...]:
    return ("guest", "host")


def test_a_role_beside_its_likely_spelling_is_a_warning():
    roles = {
        "guest": ("n1",),
        "host": ("n2",),
        "hosts": ("n3",),
    }

    _, warnings = idle_roles(a_spec("a", roles), guest_and_host)

    assert [warning.path for warning in warnings] == ["config.role.hosts"]


MISTYPED_TASKS: dict[str, Any] = {
    "common": {"tranin": {}},
    "host": {"0": {"a": {}, "trian": {"x": 1}}},
}


def test_unused_parameters_are_refused_at_submission():
    spec = a_spec("a -> train", task_params=MISTYPED_TASKS)

    problems, warnings = check(spec, roles_of_every_task)

    assert [(problem.path, problem.suggestion) for problem in problems] == [
        (f"{TASK_PARAMETERS}common.tranin", "train"),
        (f"{TASK_PARAMETERS}host.0.trian", "train"),
    ]
    assert [warning.path for warning in warnings] == ["config.role.arbiter"]


def test_unused_parameters_are_warned_of_at_every_other_node():
    spec = a_spec("a -> train", task_params=MISTYPED_TASKS)
    submission_problems, _ = check(spec, roles_of_every_task)

    problems, warnings = check(spec)

    assert problems == []
    assert warnings == submission_problems
