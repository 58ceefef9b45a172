"""Roles that no component of the flow has."""

import pytest

from gateway.domain.validation import idle_roles
from tests.builders import a_spec

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
