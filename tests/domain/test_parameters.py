"""The parameters of a task at a party, merged from the entries of a job."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.spec import Party, data_location, effective
from tests.builders import a_spec
from tests.domain.strategies import REPEATABLE

GUEST_0 = Party("guest", 0, "n1")
GUEST_1 = Party("guest", 1, "n2")
HOST_0 = Party("host", 0, "n3")

DEPTH = {"common": {"a": {"depth": 3}}}
TABLE = {"namespace": "space", "name": "table"}


@dataclass(frozen=True)
class ParameterCase:
    """A job's parameters, and what the task ``a`` gets of them at a party."""

    params: Any
    party: Party
    values: dict[str, Any]
    location: dict[str, str] | None = None  # of its data


VALUES: dict[str, ParameterCase] = {
    "common to all parties": ParameterCase(
        params=DEPTH,
        party=HOST_0,
        values={"depth": 3},
    ),
    "the party has its own": ParameterCase(
        params=DEPTH | {"guest": {"0": {"a": {"depth": 5}}}},
        party=GUEST_0,
        values={"depth": 5},
    ),
    "another party's index": ParameterCase(
        params=DEPTH | {"guest": {"0": {"a": {"depth": 5}}}},
        party=GUEST_1,
        values={"depth": 3},
    ),
    "an entry for several parties": ParameterCase(
        params=DEPTH | {"guest": {"0|1": {"a": {"depth": 5}}}},
        party=GUEST_1,
        values={"depth": 5},
    ),
    "an entry for several other parties": ParameterCase(
        params=DEPTH | {"guest": {"0|1": {"a": {"depth": 5}}}},
        party=Party("guest", 2, "n4"),
        values={"depth": 3},
    ),
    "an index is no prefix": ParameterCase(
        params={"guest": {"1": {"a": {"x": 1}}}},
        party=Party("guest", 11, "n"),
        values={},
    ),
    "nested objects are not merged": ParameterCase(
        params={
            "common": {"a": {"deep": {"x": 1, "y": 2}}},
            "guest": {"0": {"a": {"deep": {"x": 3}}}},
        },
        party=GUEST_0,
        values={"deep": {"x": 3}},
    ),
    "None and empty text are values": ParameterCase(
        params={
            "common": {"a": {"x": 1, "y": 2}},
            "guest": {"0": {"a": {"x": None, "y": ""}}},
        },
        party=GUEST_0,
        values={"x": None, "y": ""},
    ),
    "other tasks and roles": ParameterCase(
        params={
            "common": {"b": {"x": 1}},
            "guest": {"0": {"b": {"x": 2}}},
            "host": {"0": {"a": {"x": 3}}},
        },
        party=GUEST_0,
        values={},
    ),
    "no parameters": ParameterCase(
        params={},
        party=GUEST_0,
        values={},
    ),
    "roles that are no objects": ParameterCase(
        params={"common": None, "guest": []},
        party=GUEST_0,
        values={},
    ),
    "tasks that are no objects": ParameterCase(
        params={
            "common": {"a": 1},
            "guest": {"0": {"a": 2}},
        },
        party=GUEST_0,
        values={},
    ),
    "a dataset id is a location": ParameterCase(
        params={"guest": {"0": {"a": {"dataset_id": "space#table", "x": 1}}}},
        party=GUEST_0,
        values={"x": 1},
        location={"dataset_id": "space#table"},
    ),
    "namespace and name are a location": ParameterCase(
        params={"guest": {"0": {"a": TABLE}}},
        party=GUEST_0,
        values=TABLE,
        location=TABLE,
    ),
    "a dataset id goes before namespace and name": ParameterCase(
        params={"guest": {"0": {"a": {**TABLE, "dataset_id": 7}}}},
        party=GUEST_0,
        values=TABLE,
        location={"dataset_id": "7"},
    ),
    "a name alone is no location": ParameterCase(
        params={"guest": {"0": {"a": {"name": "table"}}}},
        party=GUEST_0,
        values={"name": "table"},
    ),
    "common entries are no location": ParameterCase(
        params={"common": {"a": TABLE}},
        party=GUEST_0,
        values=TABLE,
    ),
}


@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES)
def test_a_task_gets_the_nearest_parameters_and_its_data_location(case: ParameterCase):
    parameters = effective(case.params, case.party, "a")

    assert {name: parameter.value for name, parameter in parameters.items()} == case.values
    assert data_location(case.params, case.party, "a") == case.location


NAMES = st.sampled_from(["x", "y", "dataset_id", "namespace"])
BY_TASK = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(NAMES, st.integers()),
)
BY_INDEX = st.dictionaries(
    st.sampled_from(["0", "1", "0|1", "1|2"]),
    BY_TASK,
)
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
def test_every_value_names_the_entry_from_which_it_comes(params, party):
    parameters = effective(params, party, "a")

    common = params.get("common", {}).get("a", {})
    assert parameters.keys() >= common.keys()
    for name, parameter in parameters.items():
        if parameter.origin == "common":
            assert common[name] == parameter.value
        else:
            role, _, key = parameter.origin.partition(".")
            assert role == party.role
            assert str(party.index) in key.split("|")
            assert params[role][key]["a"][name] == parameter.value


@given(PARAMS)
@REPEATABLE
def test_a_node_gets_its_own_entries_and_only_the_keys_of_the_others(params):
    roles = {
        "guest": ("n1", "n2"),
        "host": ("n3",),
    }
    spec = a_spec(
        "a",
        roles,
        task_params=params,
        job_params=params,
    )

    spec_for_guest = spec.for_node("n1")

    for entries in (spec_for_guest.task_params, spec_for_guest.job_params):
        assert entries.keys() == params.keys()
        assert entries.get("common") == params.get("common")
        for key, entry in entries.get("guest", {}).items():
            is_for_guest_0 = "0" in key.split("|")
            assert entry == (params["guest"][key] if is_for_guest_0 else {})
        assert all(entry == {} for entry in entries.get("host", {}).values())
    assert effective(spec_for_guest.task_params, GUEST_0, "a") == effective(
        params,
        GUEST_0,
        "a",
    )
    assert replace(spec_for_guest, task_params=params, job_params=params) == spec
