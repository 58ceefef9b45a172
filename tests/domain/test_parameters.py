from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.spec import Party, UnknownField, data_location, effective
from gateway.domain.validation import MOST_WARNINGS, check
from tests.builders import a_spec
from tests.domain.strategies import REPEATABLE

GUEST_0, GUEST_1, HOST_0 = Party("guest", 0, "n1"), Party("guest", 1, "n2"), Party("host", 0, "n3")


DEPTH = {"common": {"a": {"depth": 3}}}
TABLE = {"namespace": "space", "name": "table"}
VALUES: dict[str, tuple[Any, Party, dict[str, Any], dict[str, str] | None]] = {
    "common": (DEPTH, HOST_0, {"depth": 3}, None),
    "its own": (DEPTH | {"guest": {"0": {"a": {"depth": 5}}}}, GUEST_0, {"depth": 5}, None),
    "another's": (DEPTH | {"guest": {"0": {"a": {"depth": 5}}}}, GUEST_1, {"depth": 3}, None),
    "for several": (DEPTH | {"guest": {"0|1": {"a": {"depth": 5}}}}, GUEST_1, {"depth": 5}, None),
    "for others": (DEPTH | {"guest": {"0|1": {"a": {"depth": 5}}}}, Party("guest", 2, "n4"), {"depth": 3}, None),
    "no prefix": ({"guest": {"1": {"a": {"x": 1}}}}, Party("guest", 11, "n"), {}, None),
    "not merged": (
        {"common": {"a": {"deep": {"x": 1, "y": 2}}}, "guest": {"0": {"a": {"deep": {"x": 3}}}}},
        GUEST_0,
        {"deep": {"x": 3}},
        None,
    ),
    "empty": (
        {"common": {"a": {"x": 1, "y": 2}}, "guest": {"0": {"a": {"x": None, "y": ""}}}},
        GUEST_0,
        {"x": None, "y": ""},
        None,
    ),
    "other tasks and roles": (
        {"common": {"b": {"x": 1}}, "guest": {"0": {"b": {"x": 2}}}, "host": {"0": {"a": {"x": 3}}}},
        GUEST_0,
        {},
        None,
    ),
    "nothing": ({}, GUEST_0, {}, None),
    "not objects": ({"common": None, "guest": []}, GUEST_0, {}, None),
    "not objects below": ({"common": {"a": 1}, "guest": {"0": {"a": 2}}}, GUEST_0, {}, None),
    "a dataset": (
        {"guest": {"0": {"a": {"dataset_id": "space#table", "x": 1}}}},
        GUEST_0,
        {"x": 1},
        {"dataset_id": "space#table"},
    ),
    "a table": ({"guest": {"0": {"a": TABLE}}}, GUEST_0, TABLE, TABLE),
    "both": ({"guest": {"0": {"a": {**TABLE, "dataset_id": 7}}}}, GUEST_0, TABLE, {"dataset_id": "7"}),
    "half": ({"guest": {"0": {"a": {"name": "table"}}}}, GUEST_0, {"name": "table"}, None),
    "common is no location": ({"common": {"a": TABLE}}, GUEST_0, TABLE, None),
}


@pytest.mark.parametrize(("params", "party", "values", "location"), VALUES.values(), ids=VALUES)
def test_what_a_task_gets_at_a_party(params: Any, party: Party, values: dict, location: dict | None):
    assert {name: found.value for name, found in effective(params, party, "a").items()} == values
    assert data_location(params, party, "a") == location


NAMES = st.sampled_from(["x", "y", "dataset_id", "namespace"])
BY_TASK = st.dictionaries(st.sampled_from(["a", "b"]), st.dictionaries(NAMES, st.integers()))
BY_INDEX = st.dictionaries(st.sampled_from(["0", "1", "0|1", "1|2"]), BY_TASK)
PARAMS = st.fixed_dictionaries({}, optional={"common": BY_TASK, "guest": BY_INDEX, "host": BY_INDEX})


@given(PARAMS, st.sampled_from([GUEST_0, GUEST_1, HOST_0]))
@REPEATABLE
def test_every_value_is_the_one_of_the_entry_it_names(params, party):
    found = effective(params, party, "a")
    common = params.get("common", {}).get("a", {})
    for name, value in found.items():
        if value.origin == "common":
            assert common[name] == value.value
        else:
            role, _, key = value.origin.partition(".")
            assert role == party.role
            assert str(party.index) in key.split("|")
            assert params[role][key]["a"][name] == value.value
    assert found.keys() >= common.keys()


@given(PARAMS)
@REPEATABLE
def test_a_node_is_told_its_own_entries_and_the_empty_shell_of_the_others(params):
    spec = a_spec("a", {"guest": ("n1", "n2"), "host": ("n3",)}, task_params=params, job_params=params)
    told = spec.for_node("n1")
    for mine in (told.task_params, told.job_params):
        assert mine.keys() == params.keys()
        assert mine.get("common") == params.get("common")
        for key, entry in mine.get("guest", {}).items():
            assert entry == (params["guest"][key] if "0" in key.split("|") else {})
        assert all(entry == {} for entry in mine.get("host", {}).values())
    assert effective(told.task_params, GUEST_0, "a") == effective(params, GUEST_0, "a")
    assert replace(told, task_params=params, job_params=params) == spec


# ---------------------------------------------------------------- check


def test_a_job_needs_a_party():
    [problem], _ = check(a_spec("a", {}))
    assert problem.path == "config.role"


def test_the_initiator_must_hold_the_role_it_claims():
    [problem], _ = check(a_spec(initiator_role="host"))
    assert (problem.path, problem.got) == ("config.initiator.node_id", "n1")
    assert "config.role.host" in problem.rule


def test_parameters_of_what_the_job_does_not_have_are_warned_of_each_with_its_path():
    params = {
        "common": {"x": {}},
        "guest": {"0": {"y": {}}, "1": {}, "0|7": {}, "z": {}},
        "arbiter": {"0": {"a": {}}},
    }
    problems, warnings = check(a_spec("a", task_params=params))
    assert problems == []
    assert [w.path for w in warnings] == [
        "config.task_params.common.x",
        "config.task_params.guest.1",
        "config.task_params.guest.0|7",
        "config.task_params.guest.z",
        "config.task_params.guest.0.y",
        "config.task_params.arbiter",
    ]


def test_what_was_probably_meant_is_said():
    params = {"comon": {"timeout": 3}, "gest": {"0": {}}}
    _, warnings = check(a_spec("train", job_params=params, task_params={"common": {"trian": {}}}))
    meant = {w.path.removeprefix("config."): w.suggestion for w in warnings}
    assert meant["job_params.comon"] == "common" and meant["job_params.gest"] == "guest"
    assert meant["task_params.common.trian"] == "train"
    assert all("not a role of this job" in w.rule for w in warnings if "job_params" in w.path)


def test_a_flood_of_unknown_names_is_cut():
    """Anybody may send a million of them, and each takes a while."""
    names = {f"trianing{number}": {} for number in range(2 * MOST_WARNINGS)}
    _, warnings = check(a_spec("training", task_params={"common": names, "guest": {"0": names}}))
    assert len(warnings) == MOST_WARNINGS


def test_keys_that_nobody_reads_are_warned_of_and_refuse_a_strict_job():
    key = UnknownField("config.job_parms", "is not read", "an object", "job_params")
    assert check(a_spec(unknown_fields=(key,))) == ([], [key.problem])
    assert check(a_spec(unknown_fields=(key,), job_params={"common": {"strict": True}})) == ([key.problem], [])


def test_what_must_be_an_object_is_refused_where_it_is_none():
    problems, _ = check(a_spec(job_params={"guest": [1]}, task_params={"common": "x"}))
    assert [(p.path, p.rule) for p in problems] == [
        ("config.job_params.guest", "must be an object"),
        ("config.task_params.common", "must be an object"),
    ]


def test_settings_of_the_job_are_not_taken_for_tasks():
    assert check(a_spec(job_params={"common": {"sync_type": "poll"}, "guest": {"0": {"resources": {}}}})) == (
        [],
        [],
    )


@pytest.mark.parametrize("word", [True, "true"])
def test_a_strict_job_is_refused_for_what_is_else_a_warning(word):
    odd = {"common": {"nobody": {}}, "guest": {"9": {}}}
    lenient = check(a_spec(task_params=odd, job_params={"common": {"strict": False}}))
    refused, left = check(a_spec(task_params=odd, job_params={"common": {"strict": word}}))
    assert not lenient[0] and left == [] and refused == lenient[1] and len(refused) == 2
    (wrong,) = check(a_spec(job_params={"common": {"strict": "very"}}))[0]
    assert wrong.path == "config.job_params.common.strict"
