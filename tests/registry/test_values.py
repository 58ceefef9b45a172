"""A job's parameters against a description: what refuses the job, and what is only a warning."""

import json
from pathlib import Path

import pytest
import yaml

from provider_registry.model import Problem
from provider_registry.registration import provider_from_request
from provider_registry.values import check
from tests.registry.builders import a_component, a_parameter

EXAMPLES = Path(__file__).parents[2] / "examples"
AT = "config.task_params.common.t"


def found(value, strict=False, **declared):
    """Return (paths and rules of errors, of warnings) for one parameter ``p`` with a value."""
    findings = check({"p": value}, a_component(a_parameter("p", **declared)), AT, strict)
    for problem in (*findings.errors, *findings.warnings):
        assert problem.path == f"{AT}.p"
    return [p.rule for p in findings.errors], [p.rule for p in findings.warnings]


def published():
    provider = provider_from_request(json.loads((EXAMPLES / "register_unionpay.json").read_text("utf-8")))
    job = json.loads((EXAMPLES / "create_all_psi_sbt.json").read_text("utf-8"))
    return provider, job["config"]["task_params"]["common"]


def test_our_own_example_of_a_job_fits_our_own_descriptions_without_a_warning():
    described = json.loads((EXAMPLES / "reference_vendor" / "register_reference.json").read_text("utf-8"))
    provider = provider_from_request(described)
    assert provider.warnings == ()
    job = yaml.safe_load((EXAMPLES / "job_with_a_partner.yml").read_text("utf-8"))
    for node in job["dag"]["components"]:
        values = job["config"]["task_params"]["common"][node["name"]]
        assert check(values, provider.components[node["componentName"]], AT) == ((), ())


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
                ("objective_param", "must be one of cross_entropy"),
                (
                    "n_iter_no_change",
                    "is text for a boolean, and neither true nor false as spelled in JSON",
                ),
                ("predict_param", "is an object where string is declared"),
                ("cv_param", "is an object where string is declared"),
                ("metrics", "is a list where string is declared"),
                ("early_stopping_rounds", "is not a parameter of HeteroSecureBoost; passed on as it is"),
                ("tree_param", "is an object where string is declared"),
            ],
        ),
    ],
)
def test_the_published_job_has_these_warnings_and_no_error(task, name, warned):
    provider, params = published()
    findings = check(params[task], provider.components[name], f"config.task_params.common.{task}")
    assert findings.errors == ()
    assert [(w.path, w.rule) for w in findings.warnings] == [
        (f"config.task_params.common.{task}.{parameter}", rule) for parameter, rule in warned
    ]


@pytest.mark.parametrize("kind", ["Integer", "double"])
@pytest.mark.parametrize("value", ["abc", "1,5", "1_000", "0x10", "--1", "1 2", "None", "１２", "true"])
def test_text_that_is_no_number_refuses_the_job(kind, value):
    assert found(value, type=kind) == ([f"cannot be read as {kind}"], [])


OF_ITS_TYPE = {
    "int": [5, "5", " -5 ", "+5", "9" * 5000],
    "float": [5, 0.5, ".5", "1e-4"],
    "boolean": [True, "false"],
    "object": [{"a": 1}, '{"a": 1}'],
    "list": [[1], "[1]"],
    "string": ["x", "", 5, True],
    "tensor": [{"a": 1}, "x"],
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in OF_ITS_TYPE for value in OF_ITS_TYPE[kind]])
def test_a_value_of_its_type_passes_without_a_warning(kind, value):
    assert found(value, type=kind) == ([], [])


@pytest.mark.parametrize(
    ("kind", "value", "rule"),
    [
        ("int", "", "is empty where int is declared"),
        ("float", " ", "is empty where float is declared"),
        ("int", "5.0", "is a whole number in the spelling of a fraction"),
        ("int", 5.5, "is a number where int is declared"),
        ("float", {"a": 1}, "is an object where float is declared"),
        ("float", "inf", "is not a finite number"),
        ("boolean", "True", "is text for a boolean, and neither true nor false as spelled in JSON"),
        ("boolean", "yes", "cannot be read as boolean"),
        ("boolean", 1, "is a number where boolean is declared"),
        ("object", "x", "cannot be read as object"),
        ("object", "[" * 5000, "cannot be read as object"),
        ("string", {"a": 1}, "is an object where string is declared"),
    ],
)
def test_any_other_value_of_another_type_is_a_warning(kind, value, rule):
    assert found(value, type=kind) == ([], [rule])


def test_what_the_description_itself_names_does_not_refuse_the_job():
    listed = [{"value": "all"}, {"value": "2048"}]
    assert found("all", type="integer", bindingData=listed) == ([], ["cannot be read as integer"])
    assert found("auto", type="int", defaultValue="auto") == ([], ["cannot be read as int"])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", "a"),
        ("string", ["a", "b"]),
        ("string", ""),
        ("boolean", True),
        ("int", "2048"),
        ("float", 2048.0),
    ],
)
def test_a_listed_value_is_allowed(kind, value):
    errors, warnings = found(value, type=kind, bindingData=["a", "b", "2048", "true", "false"], strict=True)
    assert errors == []
    assert not [w for w in warnings if w.startswith("must be one of")]


@pytest.mark.parametrize("value", ["c", "A", 7, {"a": 1}, ["a", "c"], True])
def test_an_unlisted_value_is_a_warning_or_with_strict_an_error(value):
    rule = "must be one of a, b"
    errors, warnings = found(value, bindingData=["a", "b"])
    assert errors == []
    assert rule in warnings
    errors, warnings = found(value, bindingData=["a", "b"], strict=True)
    assert errors == [rule]
    assert rule not in warnings


def test_a_long_enumeration_is_shown_in_part():
    [rule] = found("x", bindingData=[f"v{i}" for i in range(100)], strict=True)[0]
    assert rule.endswith("v19, … (100 in all)")


@pytest.mark.parametrize(
    ("value", "inside"), [(0, True), ("1000", True), (1001, False), ("-0.5", False), ("all", True)]
)
def test_a_value_outside_the_range_is_a_warning(value, inside):
    errors, warnings = found(value, validator="(0,1000)")
    assert (errors, warnings) == ([], [] if inside else ["must lie within (0,1000)"])


def test_a_missing_required_parameter_refuses_the_job_also_where_it_has_a_default():
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


def test_everything_is_reported_at_once():
    component = a_component(
        a_parameter("a", type="int"), a_parameter("b", type="float"), a_parameter("c", optional=False)
    )
    findings = check({"a": "x", "b": "y", "d": 1}, component, AT)
    assert [p.path for p in findings.errors] == [f"{AT}.a", f"{AT}.b", f"{AT}.c"]
    assert [p.path for p in findings.warnings] == [f"{AT}.d"]
