"""A task held against a description: its values, the form, and which inputs and outputs it means."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provider_registry.forms import form
from provider_registry.model import DataSpec, Problem
from provider_registry.registration import provider_from_request
from provider_registry.values import check, format_problem, match_inputs, match_outputs
from tests.registry.builders import a_component, a_parameter

EXAMPLES = Path(__file__).parents[2] / "examples"
AT = "config.task_params.common.t"


def found(
    value,
    *,
    strict=False,
    **declared,
):
    """Return (paths and rules of errors, of warnings) for one parameter ``p`` with a value."""
    findings = check({"p": value}, a_component(a_parameter("p", **declared)), AT, strict=strict)
    for problem in (*findings.errors, *findings.warnings):
        assert problem.path == f"{AT}.p"
    return [p.rule for p in findings.errors], [p.rule for p in findings.warnings]


def published():
    provider = provider_from_request(
        json.loads((EXAMPLES / "register_unionpay.json").read_text("utf-8"))
    )
    job = json.loads((EXAMPLES / "create_all_psi_sbt.json").read_text("utf-8"))
    return provider, job


@pytest.mark.parametrize(
    ("task", "name", "warned"),
    [
        (
            "intersect_rsa_1",
            "Intersection",
            [("rsa_params", "is not a parameter of Intersection; passed on as it is")],
        ),
        (
            "hetero_secureboost_1",
            "HeteroSecureBoost",
            [
                ("id", "is not a parameter of HeteroSecureBoost; passed on as it is"),
                ("label", "is not a parameter of HeteroSecureBoost; passed on as it is"),
                ("objective_param", "is an object where string is declared"),
                ("objective_param", "is none of cross_entropy"),
                (
                    "n_iter_no_change",
                    "is text for a boolean, and neither true nor false as spelled in JSON",
                ),
                ("predict_param", "is an object where string is declared"),
                ("cv_param", "is an object where string is declared"),
                ("metrics", "is a list where string is declared"),
                (
                    "early_stopping_rounds",
                    "is not a parameter of HeteroSecureBoost; passed on as it is",
                ),
                ("tree_param", "is an object where string is declared"),
            ],
        ),
    ],
)
def test_the_published_job_has_these_warnings_and_no_error(
    task,
    name,
    warned,
):
    provider, job = published()
    params = job["config"]["task_params"]["common"]
    findings = check(params[task], provider.components[name], f"config.task_params.common.{task}")
    assert findings.errors == ()
    assert [(w.path, w.rule) for w in findings.warnings] == [
        (f"config.task_params.common.{task}.{parameter}", rule) for parameter, rule in warned
    ]


@pytest.mark.parametrize("kind", ["Integer", "double"])
@pytest.mark.parametrize(
    "value", ["abc", "1,5", "1_000", "0x10", "--1", "1 2", "None", "１２", "true"]
)
def test_text_that_is_no_number_refuses_the_job(kind, value):
    assert found(value, type=kind) == ([f"cannot be read as {kind}"], [])


LISTED = {"bindingData": ["a", "b", "2048", "true", "false"]}
NO_CHOICE = {"bindingData": ["a", "b"]}
OUTSIDE = "lies outside (0,1000)"
BEYOND = {"type": "int", "validator": "(0,1000)"}
NOT_JSON = "is text for a boolean, and neither true nor false as spelled in JSON"
PASSING: list[tuple[dict[str, Any], list[Any], list[str]]] = [
    ({"type": "int"}, [5, "5", " -5 ", "+5", "5.0", "9" * 5000], []),
    ({"type": "float"}, [5, 0.5, ".5", "1e-4", "inf"], []),
    ({"type": "boolean"}, [True, "false"], []),
    ({"type": "object"}, [{"a": 1}, '{"a": 1}'], []),
    ({"type": "list"}, [[1], "[1]"], []),
    ({"type": "string"}, ["x", "", 5, True], []),
    ({"type": "tensor"}, [{"a": 1}, "x"], []),
    # of another type
    ({"type": "int"}, [""], ["is empty where int is declared"]),
    ({"type": "float"}, [" "], ["is empty where float is declared"]),
    ({"type": "int"}, [5.5], ["is a number where int is declared"]),
    ({"type": "float"}, [{"a": 1}], ["is an object where float is declared"]),
    ({"type": "boolean"}, ["True"], [NOT_JSON]),
    ({"type": "boolean"}, ["yes"], ["cannot be read as boolean"]),
    ({"type": "boolean"}, [1], ["is a number where boolean is declared"]),
    ({"type": "object"}, ["x", "[" * 5000], ["cannot be read as object"]),
    ({"type": "string"}, [{"a": 1}], ["is an object where string is declared"]),
    # among the choices, which say nothing about values of another type
    ({"type": "string"} | LISTED, ["a", ""], []),
    ({"type": "string"} | LISTED, [["a", "b"]], ["is a list where string is declared"]),
    ({"type": "boolean"} | LISTED, [True], []),
    ({"type": "int"} | LISTED, ["2048"], []),
    ({"type": "float"} | LISTED, [2048.0], []),
    (NO_CHOICE, [{"a": 1}], ["is an object where string is declared", "is none of a, b"]),
    (NO_CHOICE, [["a", "c"]], ["is a list where string is declared", "is none of a, b"]),
    # what the description itself names
    ({"validator": "(0,1000)"}, [0, "1000", "all"], []),
    (BEYOND | {"defaultValue": "2048"}, [2048, "2048"], [OUTSIDE]),
    (BEYOND | {"bindingData": ["all", "2048"], "defaultValue": "all"}, [2048, "2048"], [OUTSIDE]),
    (
        {"type": "integer", "bindingData": [{"value": "all"}]},
        ["all"],
        ["cannot be read as integer"],
    ),
    ({"type": "int", "defaultValue": "auto"}, ["auto"], ["cannot be read as int"]),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("declared", "values", "warnings"), PASSING)
def test_what_refuses_no_job_is_passed_with_these_warnings(
    declared,
    values,
    warnings,
    strict,
):
    for value in values:
        assert found(value, strict=strict, **declared) == ([], warnings), value


@pytest.mark.parametrize(
    ("declared", "value", "rule"),
    [
        ({"validator": "(0,1000)"}, 1001, OUTSIDE),
        ({"validator": "(0,1000)"}, "-0.5", OUTSIDE),
        *((NO_CHOICE, value, "is none of a, b") for value in ("c", "A", 7, True)),
    ],
)
def test_an_unlisted_value_is_a_warning_and_with_strict_refuses_the_job(
    declared,
    value,
    rule,
):
    assert found(value, **declared) == ([], [rule])
    assert found(value, strict=True, **declared) == ([rule], [])


def test_what_was_meant_is_said_of_a_parameter_and_of_a_choice():
    component = a_component(
        a_parameter("num_trees", type="int"), a_parameter("method", bindingData=["rmsprop", "sgd"])
    )
    findings = check({"num_tree": 3, "method": "rmsprob"}, component, AT)
    meant = [(p.path, p.suggestion) for p in findings.warnings]
    assert meant == [(f"{AT}.num_tree", "num_trees"), (f"{AT}.method", "rmsprop")]
    given_already = check({"num_tree": 3, "num_trees": 3}, component, AT)
    assert [p.suggestion for p in given_already.warnings] == [""]


def test_a_missing_required_parameter_is_refused_even_with_a_default():
    component = a_component(
        a_parameter("a", optional="false"),
        a_parameter("b", optional=False, defaultValue="1"),
        a_parameter("c", optional="true"),
    )
    findings = check({"b": None}, component, AT)
    assert findings.errors == (
        Problem(f"{AT}.a", "is missing; Algo requires it"),
        Problem(f"{AT}.b", "is missing; Algo requires it"),
    )
    assert check({"a": "", "b": 0}, component, AT).errors == ()


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"optimizer": "sgd"}, True),
        ({"optimizer": "rmsprop"}, False),
        ({}, True),
        ({"optimizer": "rmsprop", "momentum": 1}, True),
    ],
)
def test_a_parameter_that_a_form_would_not_show_is_not_demanded(given, refused):
    component = a_component(
        a_parameter("optimizer", defaultValue="sgd"),
        a_parameter("momentum"),
        a_parameter("rate", optional="false", dependsOn=["optimizer.sgd", "momentum"]),
    )
    findings = check(given, component, AT)
    assert bool(findings.errors) is refused
    assert refused or findings.warnings == (
        Problem(f"{AT}.rate", "is missing; required where optimizer.sgd, momentum"),
    )


POOL: list[Any] = [
    *("", "a", "b", "A", "5", "5.0", "x", "true", "True", "[]", "{}", " "),
    *(True, False, 0, 1, 5, 5.0, 2.5, 10, 11, -1, 10**20),
    *([], ["a"], ["b", "a"], ["x"], [5], ["5"], {}, {"a": 1}, {"a": 2}),
]


def field(**changes: Any) -> dict[str, Any]:
    """Return what the form of a component with one parameter says of it, without the hints."""
    made = dict(form(a_component(a_parameter(**changes)))["properties"]["p"])
    made.pop("x-bfia")
    return made


def test_a_form_says_all_that_the_description_says():
    parameter = a_parameter(
        "method",
        title="Method",
        description="how",
        bindingData=[{"label": "plain", "value": "raw"}, {"label": "rsa", "value": "rsa"}],
        optional="false",
        defaultValue="raw",
        UIType="redio",
        UIPattern="readOnly",
        groupTag="高级分组-默认不显示",
    )
    made = form(a_component(parameter, title="Find", description="finds"))
    assert made == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Find",
        "description": "finds",
        "type": "object",
        "properties": {
            "method": {
                "title": "Method",
                "description": "how",
                "type": "string",
                "enum": ["raw", "rsa"],
                "default": "raw",
                "readOnly": True,
                "x-bfia": {
                    "variable": "runtime.component.parameter.method",
                    "type": "string",
                    "widget": "radio",
                    "pattern": "readOnly",
                    "groups": ["高级分组-默认不显示"],
                    "advanced": True,
                    "labels": {"raw": "plain"},
                },
            }
        },
        "required": ["method"],
        "x-bfia": {
            "provider": "acme",
            "version": "1.0.0",
            "componentName": "Algo",
            "roleList": ["guest", "host"],
        },
    }


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ({"type": "int", "defaultValue": "3"}, {"type": "integer", "default": 3}),
        ({"type": "float", "defaultValue": 0.5}, {"type": "number", "default": 0.5}),
        ({"type": "boolean", "defaultValue": "True"}, {"type": "boolean", "default": True}),
        ({"type": "object", "defaultValue": '{"a": 1}'}, {"type": "object", "default": {"a": 1}}),
        ({"type": "list", "defaultValue": "[1]"}, {"type": "array", "default": [1]}),
        ({"type": "int", "defaultValue": "all"}, {"type": "integer", "default": "all"}),
        (
            {"type": "object", "defaultValue": '{"a": NaN}'},
            {"type": "object", "default": '{"a": NaN}'},
        ),
        ({"type": "table", "defaultValue": " "}, {}),
        (
            {"type": "int", "validator": "(0,10)"},
            {
                "type": "integer",
                "minimum": 0,
                "maximum": 10,
            },
        ),
        (
            {"type": "float", "validator": "(0,1.5]"},
            {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1.5,
            },
        ),
        ({"type": "int", "validator": "[1,sup)"}, {"type": "integer", "minimum": 1}),
        ({"type": "string", "validator": "(0,10)"}, {"type": "string"}),
        ({"validator": "regular:'[a-z]+'"}, {"type": "string", "pattern": "^(?:[a-z]+)$"}),
        ({"validator": "regular-正则项"}, {"type": "string"}),
        ({"type": "int", "bindingData": ["1", "2"]}, {"type": "integer", "enum": [1, 2]}),
        (
            {
                "type": "int",
                "bindingData": ["all", "2"],
                "validator": "(0,1)",
            },
            {"enum": ["all", 2]},
        ),
        (
            {"type": "boolean", "bindingData": '["true", "false"]'},
            {"type": "boolean", "enum": [True, False]},
        ),
        (
            {"type": "list", "bindingData": ["a", "5"]},
            {"type": "array", "items": {"enum": ["a", "5", 5]}},
        ),
        ({"type": "list", "bindingData": ["[]", '["a"]']}, {"type": "array", "enum": [[], ["a"]]}),
        ({"bindingData": "call_function tables()"}, {"type": "string"}),
    ],
)
def test_types_defaults_choices_and_checks_are_expressed_in_json_schema(described: Any, said: Any):
    assert field(**described) == {"title": "p", **said}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(?i)abc"])
def test_an_expression_that_could_block_a_form_is_not_in_its_schema(pattern: str):
    made = form(a_component(a_parameter(validator=f"regular:'{pattern}'")))["properties"]["p"]
    assert "pattern" not in made
    assert made["x-bfia"]["validator"] == f"regular:'{pattern}'"


@pytest.mark.parametrize("kind", ["string", "int", "float", "boolean", "object", "list", "table"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"validator": "(0,10)"},
        {"validator": "[1,10)"},
        {"bindingData": ["a", "b"]},
        {"bindingData": ["5", "true"]},
        {"bindingData": ['{"a": 1}', "[]", '["a"]']},
    ],
)
def test_what_the_schema_accepts_the_check_accepts_without_a_warning(
    kind: str, more: dict[str, Any]
):
    component = a_component(a_parameter(type=kind, **more))
    schema = json.loads(json.dumps(form(component)))
    Draft202012Validator.check_schema(schema)
    checker = Draft202012Validator(schema)
    for value in POOL:
        spelled_so = kind == "int" and isinstance(
            value, float
        )  # 5.0 is a whole number for JSON Schema
        if checker.is_valid({"p": value}) and not spelled_so:
            findings = check({"p": value}, component, "t")
            rules = [f.rule for f in (*findings.errors, *findings.warnings)]
            known = ("is empty", "cannot be read as") if "bindingData" in more else ("is empty",)
            assert [rule for rule in rules if not rule.startswith(known)] == [], value


def test_schema_and_check_agree_on_conditional_requirements():
    component = a_component(
        a_parameter("mode", bindingData=["raw", "rsa"], defaultValue="raw"),
        a_parameter("deep", type="boolean"),
        a_parameter("salt", optional="false", dependsOn="mode.raw"),
        a_parameter("bits", optional="false", dependsOn=["mode.rsa", "deep.TRUE"]),
        a_parameter("free", optional="false", dependsOn="nobody.x"),
        a_parameter("seed", optional="false", dependsOn="deep"),
    )
    checker = Draft202012Validator(form(component))
    absent = object()
    choices = {
        "mode": (absent, "raw", "rsa"),
        "deep": (absent, True, False),
        **dict.fromkeys(("salt", "bits", "free", "seed"), (absent, "x")),
    }
    seen = set()
    for values in itertools.product(*choices.values()):
        given = {
            name: value for name, value in zip(choices, values, strict=True) if value is not absent
        }
        refused = bool(check(given, component, "t").errors)
        assert checker.is_valid(given) is not refused, given
        seen.add(refused)
    assert seen == {True, False}


def specs(*pairs):
    return [DataSpec(name, "", category, ("csv",)) for name, category in pairs]


def test_equal_names_come_before_position():
    described = specs(("loss", "report"), ("auc", "report"), ("ks", "metric"))
    found = match_outputs([("report", "first"), ("report", "loss"), ("metric", "third")], described)
    assert list(found.items()) == [("first", "auc"), ("loss", "loss"), ("third", "ks")]


def test_inputs_are_compared_by_the_key_behind_the_task():
    described = specs(("train_data", "training_set"), ("test_data", "test_set"), ("model", "model"))
    found = match_inputs(
        [
            ("dataset", "split_1.test_data"),
            ("dataset", "psi_1.train_data"),
            ("model", "lr_1.model0"),
        ],
        described,
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
    assert found.keys() <= {key for _, key in wanted}
    for key, name in found.items():
        assert groups[name] in {DataSpec("", "", kind).group for kind, k in wanted if k == key}
    left_groups = {group for name, group in groups.items() if name not in found.values()}
    for kind, key in wanted:
        if key not in found:
            assert DataSpec("", "", kind).group not in left_groups
