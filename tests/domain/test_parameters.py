from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.spec import Party, data_location, effective
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
    "for others": (
        DEPTH | {"guest": {"0|1": {"a": {"depth": 5}}}},
        Party("guest", 2, "n4"),
        {"depth": 3},
        None,
    ),
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
        {
            "common": {"b": {"x": 1}},
            "guest": {"0": {"b": {"x": 2}}},
            "host": {"0": {"a": {"x": 3}}},
        },
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
    "both": (
        {"guest": {"0": {"a": {**TABLE, "dataset_id": 7}}}},
        GUEST_0,
        TABLE,
        {"dataset_id": "7"},
    ),
    "half": ({"guest": {"0": {"a": {"name": "table"}}}}, GUEST_0, {"name": "table"}, None),
    "common is no location": ({"common": {"a": TABLE}}, GUEST_0, TABLE, None),
}


@pytest.mark.parametrize(("params", "party", "values", "location"), VALUES.values(), ids=VALUES)
def test_what_a_task_gets_at_a_party(
    params: Any,
    party: Party,
    values: dict,
    location: dict | None,
):
    assert {name: found.value for name, found in effective(params, party, "a").items()} == values
    assert data_location(params, party, "a") == location


NAMES = st.sampled_from(["x", "y", "dataset_id", "namespace"])
BY_TASK = st.dictionaries(st.sampled_from(["a", "b"]), st.dictionaries(NAMES, st.integers()))
BY_INDEX = st.dictionaries(st.sampled_from(["0", "1", "0|1", "1|2"]), BY_TASK)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "common": BY_TASK,
        "guest": BY_INDEX,
        "host": BY_INDEX,
    },
)


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
def test_a_node_receives_its_own_entries_and_only_the_keys_of_the_others(params):
    spec = a_spec(
        "a", {"guest": ("n1", "n2"), "host": ("n3",)}, task_params=params, job_params=params
    )
    told = spec.for_node("n1")
    for mine in (told.task_params, told.job_params):
        assert mine.keys() == params.keys()
        assert mine.get("common") == params.get("common")
        for key, entry in mine.get("guest", {}).items():
            assert entry == (params["guest"][key] if "0" in key.split("|") else {})
        assert all(entry == {} for entry in mine.get("host", {}).values())
    assert effective(told.task_params, GUEST_0, "a") == effective(params, GUEST_0, "a")
    assert replace(told, task_params=params, job_params=params) == spec
