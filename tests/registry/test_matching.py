"""How a flow's inputs and outputs meet those of a description."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider_registry.model import DataSpec, Problem
from provider_registry.registration import provider_from_request
from provider_registry.values import format_problem, match_inputs, match_outputs

EXAMPLES = Path(__file__).parents[2] / "examples"


def specs(*pairs):
    return [DataSpec(name, "", category, ("csv",)) for name, category in pairs]


@pytest.mark.parametrize(
    ("task", "name", "names"),
    [
        (0, "Intersection", {"train_data": "train_data", "report0": "train-intersection"}),
        (
            1,
            "HeteroSecureBoost",
            {
                "data0": "train_data",
                "model0": "model",
                "report0": "train-loss",
                "report1": "train-auc",
                "report2": "train-ks",
            },
        ),
    ],
)
def test_the_published_flow_finds_all_its_outputs(task, name, names):
    provider = provider_from_request(json.loads((EXAMPLES / "register_unionpay.json").read_text("utf-8")))
    job = json.loads((EXAMPLES / "create_all_psi_sbt.json").read_text("utf-8"))
    node = job["dag"]["components"][task]
    outputs = match_outputs([(o["type"], o["key"]) for o in node["output"]], provider.components[name].outputs)
    assert outputs == names
    assert (outputs.keys_left, outputs.specs_left) == ((), ())
    inputs = match_inputs([(i["type"], i["key"]) for i in node["input"]], provider.components[name].inputs)
    assert inputs == ({} if task == 0 else {"intersect_rsa_1.train_data": "train_data"})


def test_equal_names_come_before_position():
    described = specs(("loss", "report"), ("auc", "report"), ("ks", "metric"))
    found = match_outputs([("report", "first"), ("report", "loss"), ("metric", "third")], described)
    assert list(found.items()) == [("first", "auc"), ("loss", "loss"), ("third", "ks")]


def test_an_equal_name_of_another_group_is_no_match():
    found = match_outputs([("dataset", "model")], specs(("model", "model"), ("data", "dataset")))
    assert dict(found) == {"model": "data"}
    assert found.specs_left == ("model",)


def test_what_finds_no_partner_is_reported_on_both_sides():
    found = match_outputs(
        [("dataset", "a"), ("dataset", "b"), ("report", "c")], specs(("d", "dataset"), ("m", "model"))
    )
    assert dict(found) == {"a": "d"}
    assert found.keys_left == ("b", "c")
    assert found.specs_left == ("m",)


def test_inputs_are_compared_by_the_key_behind_the_task():
    described = specs(("train_data", "training_set"), ("test_data", "test_set"), ("model", "model"))
    found = match_inputs(
        [("dataset", "split_1.test_data"), ("dataset", "psi_1.train_data"), ("model", "lr_1.model0")], described
    )
    assert dict(found) == {
        "split_1.test_data": "test_data",
        "psi_1.train_data": "train_data",
        "lr_1.model0": "model",
    }


def test_a_format_that_an_input_does_not_list_is_reported_with_both():
    spec = DataSpec("train_data", "", "dataset", ("csv", "yaml"))
    assert format_problem("csv", spec, "x") is None
    assert format_problem("CSV", spec, "x") is None
    assert format_problem("json", DataSpec("d", "", "dataset"), "x") is None
    assert format_problem("json", spec, "dag.x") == Problem(
        "dag.x", "is json; input train_data reads csv, yaml", "json"
    )


types = st.sampled_from(["dataset", "training_set", "model", "report", "metric", "other"])
names = st.text("abc", min_size=1, max_size=2)


@given(
    st.lists(st.tuples(types, names), max_size=8),
    st.lists(st.tuples(names, types), max_size=8, unique_by=lambda s: s[0]),
)
def test_every_key_and_every_name_is_used_once_or_left(wanted, described):
    declared = specs(*described)
    found = match_outputs(wanted, declared)
    groups = {s.name: s.group for s in declared}
    assert len(set(found.values())) == len(found)
    assert sorted([*found.values(), *found.specs_left]) == sorted(groups)
    assert sorted([*found, *found.keys_left]) == sorted(key for _, key in wanted)
    for key, name in found.items():
        assert groups[name] in {DataSpec("", "", kind).group for kind, k in wanted if k == key}
    left_groups = {groups[name] for name in found.specs_left}
    for kind, key in wanted:
        if key in found.keys_left and key not in found:
            assert DataSpec("", "", kind).group not in left_groups
