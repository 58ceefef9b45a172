"""Every parameter of the two training components does something, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.components import hetero_lr, hetero_secureboost
from refvendor.components.training import LossReport
from refvendor.contract import BadParameters, StorageFailed, Table
from refvendor.memory import MemoryIo, TaskRun, run_parties
from refvendor.registration import description
from training_data import EXAMPLES, SMALL_KEY, a_task, no_log, random_tables

TREES, REGRESSION = "HeteroSecureBoost", "HeteroLR"
MODULES: dict[str, Any] = {
    TREES: hetero_secureboost,
    REGRESSION: hetero_lr,
}
BASE: dict[str, dict[str, Any]] = {
    TREES: {
        "num_trees": 2,
        "learning_rate": 0.4,
        "encrypt_param": SMALL_KEY,
    },
    REGRESSION: {
        "max_iter": 3,
        "encrypt_param": SMALL_KEY,
    },
}

WITH: dict[str, dict[str, Any]] = {
    "n_iter_no_change": {"tol": 5},
    "early_stop": {"tol": 0.3},
}
"""What must be set for a parameter to matter at all."""

EFFECTIVE: dict[str, list[dict[str, Any]]] = {
    TREES: [
        {"id": "number"},
        {"label": "other"},
        {"learning_rate": 0.5},
        {"num_trees": 1},
        {"subsample_feature_rate": 0.4},
        {"n_iter_no_change": False},
        {"tol": 5},
        {"bin_num": 3},
        {"predict_param": {"threshold": 0.9}},
        {"metrics": ["auc"]},
        {"metrics": ["ks"]},
        {"early_stop": "weight_diff"},
        {"tree_param": {"max_depth": 1}},
        {"tree_param": {"min_sample_split": 20}},
        {"tree_param": {"min_leaf_node": 8}},
        {"tree_param": {"min_impurity_split": 3}},
        {"tree_param": {"criterion_params": [5, 0]}},
        {"tree_param": {"criterion_params": [0.1, 2]}},
        {"encrypt_param": {"key_length": 1152}},
        {"report_local_baseline": "True"},
    ],
    REGRESSION: [
        {"id": "number"},
        {"label": "other"},
        {"penalty": "L1"},
        {"tol": 50},
        {"alpha": 0.5},
        *({"optimizer": name} for name in ("sgd", "adam", "adagrad", "nesterov_momentum_sgd")),
        {"batch_size": 10},
        {"learning_rate": 0.3},
        *({"init_param": name} for name in ("ones", "random_normal", "random_uniform")),
        {"init_param": {"fit_intercept": False}},
        {"max_iter": 2},
        {"early_stop": "diff"},
        {"predict_param": {"threshold": 0.9}},
        {"metrics": ["auc"]},
        {"metrics": []},
        {"encrypt_param": {"key_length": 1152}},
        {"report_local_baseline": True},
    ],
}

REFUSED: dict[str, list[tuple[str, Any]]] = {
    "both": [
        ("cv_param.need_cv", {"cv_param": {"need_cv": True, "n_splits": 3}}),
        ("cv_param.need_cv", {"cv_param": '{"need_cv": "true"}'}),
        ("cv_param", {"cv_param": "five"}),
        ("encrypt_param.method", {"encrypt_param": {"method": "IterativeAffine"}}),
        ("encrypt_param.method", {"encrypt_param": "ckks"}),
        ("encrypt_param.key_length", {"encrypt_param": {"key_length": 512}}),
        ("encrypt_param.key_length", {"encrypt_param": {"key_length": 1025}}),
        ("predict_param.threshold", {"predict_param": {"threshold": 2}}),
        ("metrics", {"metrics": ["accuracy"]}),
        ("metrics", {"metrics": 7}),
        ("learning_rate", {"learning_rate": 0}),
        ("learning_rate", {"learning_rate": "fast"}),
        ("learning_rate", {"learning_rate": True}),
        ("learning_rate", {"learning_rate": float("nan")}),
        ("tol", {"tol": -1}),
        ("early_stop", {"early_stop": "abs"}),
        ("report_local_baseline", {"report_local_baseline": "maybe"}),
        ("id", {"id": ["a", "b"]}),
        ("label", {"label": {"name": "y"}}),
    ],
    TREES: [
        ("objective_param.objective", {"objective_param": {"objective": "lse"}}),
        ("objective_param.objective", {"objective_param": "tweedie"}),
        ("objective_param", {"objective_param": 5}),
        ("early_stopping_rounds", {"early_stopping_rounds": 3}),
        ("early_stopping_rounds", {"early_stopping_rounds": "3"}),
        ("num_trees", {"num_trees": 0}),
        ("num_trees", {"num_trees": 1.5}),
        ("subsample_feature_rate", {"subsample_feature_rate": 0}),
        ("subsample_feature_rate", {"subsample_feature_rate": 1.01}),
        ("n_iter_no_change", {"n_iter_no_change": "sometimes"}),
        ("bin_num", {"bin_num": 1}),
        ("bin_num", {"bin_num": 257}),
        ("tree_param", {"tree_param": "deep"}),
        ("tree_param.max_depth", {"tree_param": {"max_depth": 21}}),
        ("tree_param.criterion_method", {"tree_param": {"criterion_method": "gini"}}),
        ("tree_param.criterion_params", {"tree_param": {"criterion_params": [-1, 0]}}),
        ("tree_param.criterion_params", {"tree_param": {"criterion_params": "heavy"}}),
        ("tree_param.min_leaf_node", {"tree_param": {"min_leaf_node": 0}}),
        ("tree_param.min_sample_split", {"tree_param": {"min_sample_split": 1}}),
        ("tree_param.min_impurity_split", {"tree_param": {"min_impurity_split": -1}}),
    ],
    REGRESSION: [
        ("optimizer", {"optimizer": "sqn"}),
        ("penalty", {"penalty": "L3"}),
        ("alpha", {"alpha": -0.1}),
        ("batch_size", {"batch_size": 0}),
        ("batch_size", {"batch_size": "some"}),
        ("batch_size", {"batch_size": -2}),
        ("init_param.init_method", {"init_param": "guess"}),
        ("init_param.fit_intercept", {"init_param": {"fit_intercept": "perhaps"}}),
        ("max_iter", {"max_iter": 0}),
        ("max_iter", {"max_iter": 1001}),
    ],
}

SPELLINGS: dict[str, list[list[dict[str, Any]]]] = {
    TREES: [
        [
            {"objective_param": value}
            for value in (
                {"objective": "cross_entropy"},
                '{"objective": "cross_entropy"}',
                '"{\\"objective\\": \\"cross_entropy\\"}"',
                "cross_entropy",
                "",
                None,
            )
        ],
        [{"n_iter_no_change": value} for value in ("False", "false", False, 0, "no")],
        [{"n_iter_no_change": value} for value in ("True", "true", True, 1, "", None)],
        [{"early_stopping_rounds": value} for value in ("", None, "  ")],
        [
            {"tree_param": value}
            for value in ({"max_depth": 5}, '{"max_depth": 5}', {"max_depth": "5"})
        ],
        [{"num_trees": value} for value in (3, "3", 3.0)],
        [{"subsample_feature_rate": value} for value in (1, "1", 1.0, "1.0")],
        [{"cv_param": value} for value in ({"need_cv": False}, '{"need_cv": "False"}', "", {})],
        [
            {"metrics": value}
            for value in (["auc", "ks"], '["auc", "ks"]', "auc,ks", ["AUC", "KS", "auc"], None)
        ],
        [
            {"encrypt_param": value}
            for value in ("paillier", {"method": "PAILLIER"}, '{"key_length": 2048}')
        ],
    ],
    REGRESSION: [
        [{"batch_size": value} for value in ("all", -1, "-1", "ALL", "", None)],
        [{"batch_size": value} for value in (64, "64", 64.0)],
        [
            {"init_param": value}
            for value in ("zeros", {"init_method": "zeros"}, '{"init_method": "zeros"}', {})
        ],
        [{"penalty": value} for value in ("L2", "l2", "")],
        [
            {"predict_param": value}
            for value in ({"threshold": 0.5}, '{"threshold": 0.5}', {"threshold": "0.5"})
        ],
    ],
}


def tables() -> tuple[Table, Table]:
    """Forty rows with a second id and a second label."""
    guest, host = random_tables(40, 2, 4)
    for table in (guest, host):
        table.header.append("number")
        for place, row in enumerate(table.rows):
            row.append(f"no-{place:03d}")
    guest.header.append("other")
    for place, row in enumerate(guest.rows):
        row.append(str(place % 2))
    return guest, host


def train(
    component: str,
    parameters: Mapping[str, Any],
) -> TaskRun:
    guest, host = tables()
    inputs: dict[str, dict[str, Table]] = {
        "guest.0": {"train_data": guest},
        "host.0": {"train_data": host},
    }
    if component == REGRESSION:
        inputs["arbiter.0"] = {}
    return run_parties(component, MODULES[component].ROLES, inputs, parameters)


def seen(run: TaskRun) -> dict[str, Any]:
    """All outputs, and per way the number of messages and the longest; nothing that differs by
    chance.
    """
    run.require_success()
    messages: dict[tuple[str, str, str], tuple[int, int]] = {}
    for message in run.channel.sent:
        way = (message.source, message.to, message.name)
        count, longest = messages.get(way, (0, 0))
        messages[way] = (
            count + 1,
            max(longest, len(message.payload)),
        )
    outputs = {party: (ran.io.tables, ran.io.values) for party, ran in run.parties.items()}
    return {"outputs": outputs, "messages": messages}


def read(
    component: str,
    parameters: Mapping[str, Any],
) -> Any:
    arbiter = ("arbiter",) if component == REGRESSION else ()
    return MODULES[component].read_parameters(a_task(parameters, "guest", *arbiter), no_log)


@pytest.fixture(scope="module")
def base() -> dict[str, dict[str, Any]]:
    return {component: seen(train(component, values)) for component, values in BASE.items()}


@pytest.mark.parametrize(
    ("component", "change"),
    [(name, change) for name, changes in EFFECTIVE.items() for change in changes],
    ids=str,
)
def test_a_changed_parameter_changes_outputs_or_messages(component, change, base):
    (name,) = change
    setting = {**BASE[component], **WITH.get(name, {})}
    before = seen(train(component, setting)) if name in WITH else base[component]
    assert seen(train(component, {**setting, **change})) != before


@pytest.mark.parametrize("component", [TREES, REGRESSION])
def test_the_same_parameters_change_nothing(component, base):
    assert seen(train(component, BASE[component])) == base[component]


@pytest.mark.parametrize(
    ("component", "name", "values"),
    [
        (component, *case)
        for component in (TREES, REGRESSION)
        for case in [*REFUSED["both"], *REFUSED[component]]
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_by_name_before_any_message(component, name, values):
    run = train(component, values)
    assert run.channel.sent == []
    for party in run.parties.values():
        assert isinstance(party.error, BadParameters)
        assert party.error.exit_code == 2
        assert str(party.error).startswith(f"{name}: ")
        assert not party.io.tables
        assert not party.io.values


@pytest.mark.parametrize("component", [TREES, REGRESSION])
def test_every_described_parameter_is_in_a_test_above(component):
    described = {parameter["name"] for parameter in description(component)["inputParam"]}
    changed = {name for change in EFFECTIVE[component] for name in change}
    refused = {name.partition(".")[0] for name, _ in [*REFUSED["both"], *REFUSED[component]]}
    assert described == changed | refused


@pytest.mark.parametrize("component", [TREES, REGRESSION])
def test_the_description_agrees_with_the_component(component):
    described = description(component)
    assert sorted(described["roleList"]) == sorted(MODULES[component].ROLES)
    defaults: dict[str, Any] = {}
    for parameter in described["inputParam"]:
        assert parameter["optional"] is True
        for choice in parameter.get("bindingData", []):
            read(component, {parameter["name"]: choice["value"]})
        defaults[parameter["name"]] = parameter["defaultValue"]
    assert read(component, defaults) == read(component, {})
    run = train(component, BASE[component]).require_success()
    outputs = {output["name"] for output in described["outputData"]}
    for party in run.parties.values():
        assert {*party.io.tables, *party.io.values} == outputs


@pytest.mark.parametrize(
    ("component", "same"),
    [(name, same) for name, groups in SPELLINGS.items() for same in groups],
    ids=str,
)
def test_all_spellings_of_a_value_mean_the_same(component, same):
    parsed = [read(component, values) for values in same]
    assert all(parameters == parsed[0] for parameters in parsed)


def test_the_users_parameters_are_understood_without_a_warning():
    job = json.loads((EXAMPLES / "create_all_psi_sbt.json").read_text())
    values = job["config"]["task_params"]["common"]["hetero_secureboost_1"]
    lines: list[str] = []
    parsed = hetero_secureboost.read_parameters(
        a_task(values), lambda level, message, **fields: lines.append(level)
    )
    assert lines == []
    assert parsed.plan.num_trees == 2
    assert parsed.plan.max_depth == 5
    assert parsed.plan.learning_rate == 0.5
    assert parsed.plan.stop_early is True
    assert parsed.common.key_length == 2048


@pytest.mark.parametrize("component", [TREES, REGRESSION])
def test_the_users_own_descriptions_choices_are_understood_but_for_sqn(component):
    registered = json.loads((EXAMPLES / "register_unionpay.json").read_text())
    for parameter in registered["components_description"][component]["inputParam"]:
        for value in [
            parameter["defaultValue"],
            *(c["value"] for c in parameter.get("bindingData", [])),
        ]:
            if value == "sqn":
                with pytest.raises(BadParameters, match=r"^optimizer: .*sqn"):
                    read(component, {parameter["name"]: value})
            else:
                read(component, {parameter["name"]: value})


@pytest.mark.parametrize("component", [TREES, REGRESSION])
def test_unknown_parameters_are_warned_of_once_each_and_ignored(component, base):
    extra = {
        "colour": "red",
        "encrypt_param": {**SMALL_KEY, "speed": 9},
        "dataset_id": "a#b",
    }
    run = train(component, {**BASE[component], **extra})
    assert seen(run)["outputs"] == base[component]["outputs"]
    for party in run.parties.values():
        warned = [
            (level, fields["parameter"]) for level, text, fields in party.lines if "unknown" in text
        ]
        assert warned == [
            ("warning", "colour"),
            ("warning", "encrypt_param.speed"),
        ]


def test_all_problems_are_named_at_once():
    wrong = {
        "num_trees": "x",
        "tree_param": {"max_depth": 0},
        "metrics": ["f1"],
        "early_stopping_rounds": 5,
    }
    with pytest.raises(BadParameters) as caught:
        read(TREES, wrong)
    for name in ("num_trees", "tree_param.max_depth", "metrics", "early_stopping_rounds"):
        assert f"{name}: " in str(caught.value)


@pytest.mark.parametrize(
    "parties",
    [
        {"guest": ["a"]},
        {
            "guest": ["a"],
            "host": ["b", "c"],
            "arbiter": ["d"],
        },
    ],
)
def test_regression_needs_one_party_of_each_role(parties):
    task = a_task({})
    changed = type(task)(
        "HeteroLR",
        "t",
        "guest",
        0,
        parties,
    )
    with pytest.raises(BadParameters, match="host: exactly one host must take part"):
        hetero_lr.read_parameters(changed, no_log)


def test_trees_need_a_host():
    task = type(a_task({}))(
        "HeteroSecureBoost",
        "t",
        "guest",
        0,
        {"guest": ["a"]},
    )
    with pytest.raises(BadParameters, match="host: "):
        hetero_secureboost.read_parameters(task, no_log)


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=12),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.text(max_size=6),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("component", [TREES, REGRESSION])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_is_either_understood_or_refused_by_name(component, data):
    names = [parameter["name"] for parameter in description(component)["inputParam"]]
    values = data.draw(st.dictionaries(st.sampled_from(names), anything, max_size=4))
    try:
        read(component, values)
    except BadParameters as refused:
        assert any(str(refused).startswith(name) for name in values)


class BusyIo(MemoryIo):
    """A storage that is away for the first write."""

    writes = 0

    def write_json(self, name: str, value: Any) -> None:
        self.writes += 1
        if self.writes == 1:
            raise StorageFailed("away")
        super().write_json(name, value)


def test_losses_are_written_while_training_runs_once_a_second_at_most():
    io = BusyIo()
    now = 100.0
    warnings: list[str] = []

    def clock() -> float:
        return now

    def log(
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        warnings.append(message)

    report = LossReport(io, "train-loss", "tree", log, clock)
    for number in range(30):
        report.add(1.0 / (number + 1))
        now += 0.25
    assert warnings == ["losses not written yet"]
    assert io.writes == 8
    losses = io.values["train-loss"]["loss"]
    assert losses[:2] == [
        {"tree": 1, "loss": 1.0},
        {"tree": 2, "loss": 0.5},
    ]
    assert len(losses) == 29
