"""A task compared with a description: its values, the form, and its inputs and outputs."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provider_registry.forms import form
from provider_registry.model import DataSpec, Problem
from provider_registry.registration import provider_from_request
from provider_registry.values import check, format_problem, match_inputs, match_outputs
from tests.registry.builders import a_component, a_data, a_description, a_parameter, a_provider

EXAMPLES = Path(__file__).parents[2] / "examples"
AT = "config.task_params.common.t"


def judge(value, *, strict=False, **description):
    """Return (rules of the errors, of the warnings) for a value of the only parameter, ``p``."""
    component = a_component(a_parameter("p", **description))
    findings = check({"p": value}, component, AT, strict=strict)
    for problem in (*findings.errors, *findings.warnings):
        assert problem.path == f"{AT}.p"
    return rules_of(findings.errors), rules_of(findings.warnings)


def rules_of(problems):
    return [problem.rule for problem in problems]


def read_example(name):
    return json.loads((EXAMPLES / name).read_text("utf-8"))


@pytest.mark.parametrize(
    ("task", "name", "warnings"),
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
                (
                    "n_iter_no_change",
                    "is text for a boolean, and not in lower case as in JSON (true, false)",
                ),
                (
                    "early_stopping_rounds",
                    "is not a parameter of HeteroSecureBoost; passed on as it is",
                ),
            ],
        ),
    ],
)
def test_the_published_job_has_these_warnings_and_no_error(task, name, warnings):
    provider = provider_from_request(read_example("register_unionpay.json"))
    params = read_example("create_all_psi_sbt.json")["config"]["task_params"]["common"]
    path = f"config.task_params.common.{task}"

    findings = check(params[task], provider.components[name], path)

    assert findings.errors == ()
    reported = [(warning.path, warning.rule) for warning in findings.warnings]
    assert reported == [(f"{path}.{parameter}", rule) for parameter, rule in warnings]


@pytest.mark.parametrize("kind", ["Integer", "double"])
@pytest.mark.parametrize(
    "value", ["abc", "1,5", "1_000", "0x10", "--1", "1 2", "None", "１２", "true"]
)
def test_text_that_is_no_number_refuses_the_job(kind, value):
    errors, warnings = judge(value, type=kind)

    assert errors == [f"cannot be read as {kind}"]
    assert warnings == []


LISTED = {"bindingData": ["a", "b", "2048", "true", "false"]}
NO_CHOICE = {"bindingData": ["a", "b"]}
OUTSIDE = "lies outside (0,1000)"
BEYOND = {"type": "int", "validator": "(0,1000)"}
NOT_JSON = "is text for a boolean, and not in lower case as in JSON (true, false)"
# Parameters with values that refuse no job, and the warnings about each value.
PASSING = [
    ({"type": "int"}, [5, "5", " -5 ", "+5", "5.0", "9" * 5000], []),
    (
        {"type": "float"},
        [5, 0.5, ".5", "1e-4", "inf"],
        [],
    ),
    ({"type": "boolean"}, [True, "false"], []),
    ({"type": "object"}, [{"a": 1}, '{"a": 1}'], []),
    ({"type": "list"}, [[1], "[1]"], []),
    ({"type": "string"}, ["x", "", 5, True], []),
    ({"type": "tensor"}, [{"a": 1}, "x"], []),
    # Values of another type.
    ({"type": "int"}, [""], ["is empty where int is declared"]),
    ({"type": "float"}, [" "], ["is empty where float is declared"]),
    ({"type": "int"}, [5.5], ["is a number where int is declared"]),
    ({"type": "float"}, [{"a": 1}], ["is an object where float is declared"]),
    ({"type": "boolean"}, ["True"], [NOT_JSON]),
    ({"type": "boolean"}, ["yes"], ["cannot be read as boolean"]),
    ({"type": "boolean"}, [1], ["is a number where boolean is declared"]),
    ({"type": "object"}, ["x", "[" * 5000], ["cannot be read as object"]),
    ({"type": "string"}, [{"a": 1}], ["is an object where string is declared"]),
    # Values among the choices, which do not bind values of another type.
    ({"type": "string"} | LISTED, ["a", ""], []),
    ({"type": "string"} | LISTED, [["a", "b"]], ["is a list where string is declared"]),
    ({"type": "boolean"} | LISTED, [True], []),
    ({"type": "int"} | LISTED, ["2048"], []),
    ({"type": "float"} | LISTED, [2048.0], []),
    (NO_CHOICE, [{"a": 1}], ["is an object where string is declared"]),
    (NO_CHOICE, [["a", "c"]], ["is a list where string is declared"]),
    # An object or a list, where the default or a choice spells one.
    ({"defaultValue": '{"depth": 3}'}, [{"depth": 5}], []),
    ({"defaultValue": '["auc"]'}, [["auc", "ks"]], []),
    ({"defaultValue": '["auc"]'}, [{"a": 1}], ["is an object where string is declared"]),
    # Values that the description itself names.
    ({"validator": "(0,1000)"}, [0, "1000", "all"], []),
    (BEYOND | {"defaultValue": "2048"}, [2048, "2048"], [OUTSIDE]),
    (
        BEYOND
        | {
            "bindingData": ["all", "2048"],
            "defaultValue": "all",
        },
        [2048, "2048"],
        [OUTSIDE],
    ),
    (
        {
            "type": "integer",
            "bindingData": [{"value": "all"}],
        },
        ["all"],
        ["cannot be read as integer"],
    ),
    ({"type": "int", "defaultValue": "auto"}, ["auto"], ["cannot be read as int"]),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("description", "values", "warnings"), PASSING)
def test_values_that_refuse_no_job_have_these_warnings(description, values, warnings, strict):
    for value in values:
        assert judge(value, strict=strict, **description) == ([], warnings), value


@pytest.mark.parametrize(
    ("description", "value", "rule"),
    [
        ({"validator": "(0,1000)"}, 1001, OUTSIDE),
        ({"validator": "(0,1000)"}, "-0.5", OUTSIDE),
        (NO_CHOICE, "c", "is none of a, b"),
        (NO_CHOICE, "A", "is none of a, b"),
        (NO_CHOICE, 7, "is none of a, b"),
        (NO_CHOICE, True, "is none of a, b"),
    ],
)
def test_an_unlisted_value_is_a_warning_and_with_strict_refuses_the_job(description, value, rule):
    assert judge(value, **description) == ([], [rule])
    assert judge(value, strict=True, **description) == ([rule], [])


@pytest.fixture
def component_with_choice():
    return a_component(
        a_parameter("num_trees", type="int"),
        a_parameter("method", bindingData=["rmsprop", "sgd"]),
    )


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("depth", 3, "leave it out, unless {component} is known to read it"),
        ("num_tree", 3, "write num_trees, if it is meant"),
        ("num_trees", {}, "write a whole number"),
        ("method", "rmsprob", "write rmsprop, if it is meant"),
        ("method", "zzz", "write one of these values"),
    ],
)
def test_each_warning_has_advice_of_its_own(component_with_choice, name, value, remedy):
    [warning] = check({name: value}, component_with_choice, AT).warnings
    assert warning.remedy == remedy.format(component=component_with_choice.name)


def test_a_similar_parameter_or_choice_is_suggested(component_with_choice):
    findings = check({"num_tree": 3, "method": "rmsprob"}, component_with_choice, AT)

    suggestions = {warning.path: warning.suggestion for warning in findings.warnings}
    assert suggestions == {
        f"{AT}.num_tree": "num_trees",
        f"{AT}.method": "rmsprop",
    }


def test_a_parameter_that_has_a_value_is_not_suggested(component_with_choice):
    [warning] = check({"num_tree": 3, "num_trees": 3}, component_with_choice, AT).warnings

    assert warning.suggestion == ""


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


@pytest.fixture
def component_with_dependency():
    """A component that requires ``rate`` for the optimizer sgd or with a momentum."""
    return a_component(
        a_parameter("optimizer", defaultValue="sgd"),
        a_parameter("momentum"),
        a_parameter(
            "rate",
            optional="false",
            dependsOn=["optimizer.sgd", "momentum"],
        ),
    )


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "sgd"},
        {},
        {"optimizer": "rmsprop", "momentum": 1},
    ],
    ids=["value", "default", "second condition"],
)
def test_a_parameter_that_a_form_would_show_is_required(component_with_dependency, values):
    assert check(values, component_with_dependency, AT).errors != ()


def test_a_parameter_that_a_form_would_not_show_is_not_required(component_with_dependency):
    findings = check({"optimizer": "rmsprop"}, component_with_dependency, AT)

    assert findings.errors == ()
    assert findings.warnings == (
        Problem(
            f"{AT}.rate",
            "is missing; required where optimizer.sgd, momentum",
            remedy="give it a value if one of these holds",
        ),
    )


# ------------------------------------------------------------ forms


TEXT_VALUES = ["", "a", "b", "A", "5", "5.0", "x", "true", "True", "[]", "{}", " "]
NUMBER_VALUES = [True, False, 0, 1, 5, 5.0, 2.5, 10, 11, -1, 10**20]
STRUCTURED_VALUES = [
    [],
    ["a"],
    ["b", "a"],
    ["x"],
    [5],
    ["5"],
    {},
    {"a": 1},
    {"a": 2},
]
POOL = [*TEXT_VALUES, *NUMBER_VALUES, *STRUCTURED_VALUES]


def property_of_form(**description):
    """Return the schema of the only parameter in the form of a component."""
    return form(a_component(a_parameter(**description)))["properties"]["p"]


def test_a_form_says_all_that_the_description_says():
    parameter = a_parameter(
        "method",
        title="Method",
        description="how",
        bindingData=[
            {"label": "plain", "value": "raw"},
            {"label": "rsa", "value": "rsa"},
        ],
        optional="false",
        defaultValue="raw",
        UIType="redio",
        UIPattern="readOnly",
        groupTag="高级分组-默认不显示",
    )

    schema = form(a_component(parameter, title="Find", description="finds"))

    assert schema == {
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
    ("description", "expected"),
    [
        ({"type": "int", "defaultValue": "3"}, {"type": "integer", "default": 3}),
        ({"type": "float", "defaultValue": 0.5}, {"type": "number", "default": 0.5}),
        ({"type": "boolean", "defaultValue": "True"}, {"type": "boolean", "default": True}),
        (
            {"type": "object", "defaultValue": '{"a": 1}'},
            {"type": "object", "default": {"a": 1}},
        ),
        (
            {"type": "list", "defaultValue": "[1]"},
            {"type": "array", "default": [1]},
        ),
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
        (
            {"type": "int", "bindingData": ["1", "2"]},
            {"type": "integer", "enum": [1, 2]},
        ),
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
            {
                "type": "array",
                "items": {"enum": ["a", "5", 5]},
            },
        ),
        (
            {"type": "list", "bindingData": ["[]", '["a"]']},
            {
                "type": "array",
                "enum": [[], ["a"]],
            },
        ),
        ({"bindingData": "call_function tables()"}, {"type": "string"}),
    ],
)
def test_types_defaults_choices_and_checks_are_expressed_in_json_schema(description, expected):
    schema = dict(property_of_form(**description))
    schema.pop("x-bfia")  # the hints for a user interface

    assert schema == {"title": "p", **expected}


def test_texts_in_further_languages_are_hints_of_a_form():
    choice = {
        "label": "是",
        "label_en": "yes",
        "value": "true",
    }
    parameter = a_parameter(
        title_en="Share",
        description_zh="共享",
        bindingData=[choice],
    )
    document = a_description(
        title_en="Match",
        description_en="matches ids",
        inputParam=[parameter],
        inputData=[a_data(description_en="ids")],
    )
    provider = a_provider(document)

    warnings = str(provider.warnings)
    assert "_en" not in warnings
    assert "_zh" not in warnings
    schema = form(provider.components["Algo"])["properties"]["p"]
    assert schema["title"] == "p"
    assert schema["x-bfia"]["translations"] == {
        "en": {
            "title": "Share",
            "labels": {"true": "yes"},
        },
        "zh": {"description": "共享"},
    }


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(?i)abc"])
def test_an_expression_that_could_block_a_form_is_not_in_its_schema(pattern):
    schema = property_of_form(validator=f"regular:'{pattern}'")

    assert "pattern" not in schema
    assert schema["x-bfia"]["validator"] == f"regular:'{pattern}'"


@pytest.mark.parametrize(
    "kind",
    ["string", "int", "float", "boolean", "object", "list", "table"],
)
@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"validator": "(0,10)"},
        {"validator": "[1,10)"},
        {"bindingData": ["a", "b"]},
        {"bindingData": ["5", "true"]},
        {"bindingData": ['{"a": 1}', "[]", '["a"]']},
    ],
)
def test_a_value_that_the_schema_accepts_has_no_unusual_warning(kind, bounds):
    component = a_component(a_parameter(type=kind, **bounds))
    schema = json.loads(json.dumps(form(component)))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    usual_rules = ("is empty",)
    if "bindingData" in bounds:  # a choice of another type is listed all the same
        usual_rules = ("is empty", "cannot be read as")

    for value in POOL:
        is_whole_float = kind == "int" and isinstance(value, float)  # an integer for JSON Schema
        if is_whole_float or not validator.is_valid({"p": value}):
            continue
        findings = check({"p": value}, component, "t")
        for rule in rules_of([*findings.errors, *findings.warnings]):
            assert rule.startswith(usual_rules), value


def test_schema_and_check_agree_on_conditional_requirements():
    component = a_component(
        a_parameter(
            "mode",
            bindingData=["raw", "rsa"],
            defaultValue="raw",
        ),
        a_parameter("deep", type="boolean"),
        a_parameter("salt", optional="false", dependsOn="mode.raw"),
        a_parameter(
            "bits",
            optional="false",
            dependsOn=["mode.rsa", "deep.TRUE"],
        ),
        a_parameter("free", optional="false", dependsOn="nobody.x"),
        a_parameter("seed", optional="false", dependsOn="deep"),
    )
    validator = Draft202012Validator(form(component))
    absent = object()
    choices = {
        "mode": (absent, "raw", "rsa"),
        "deep": (absent, True, False),
        "salt": (absent, "x"),
        "bits": (absent, "x"),
        "free": (absent, "x"),
        "seed": (absent, "x"),
    }

    verdicts = set()
    for values in itertools.product(*choices.values()):
        pairs = zip(choices, values, strict=True)
        parameters = {name: value for name, value in pairs if value is not absent}
        is_refused = bool(check(parameters, component, "t").errors)
        assert validator.is_valid(parameters) is not is_refused, parameters
        verdicts.add(is_refused)
    assert verdicts == {True, False}


# ------------------------------------------------------------ inputs and outputs


def data_specs(*pairs):
    return [DataSpec(name, "", category, ("csv",)) for name, category in pairs]


def test_equal_names_come_before_position():
    described = data_specs(
        ("loss", "report"),
        ("auc", "report"),
        ("ks", "metric"),
    )
    keys = [
        ("report", "first"),
        ("report", "loss"),
        ("metric", "third"),
    ]

    names = match_outputs(keys, described)

    assert list(names.items()) == [
        ("first", "auc"),
        ("loss", "loss"),
        ("third", "ks"),
    ]


def test_inputs_are_compared_by_the_key_behind_the_task():
    described = data_specs(
        ("train_data", "training_set"),
        ("test_data", "test_set"),
        ("model", "model"),
    )
    keys = [
        ("dataset", "split_1.test_data"),
        ("dataset", "psi_1.train_data"),
        ("model", "lr_1.model0"),
    ]

    names = match_inputs(keys, described)

    assert dict(names) == {
        "split_1.test_data": "test_data",
        "psi_1.train_data": "train_data",
        "lr_1.model0": "model",
    }


def test_a_format_that_an_input_does_not_list_is_reported_with_both():
    csv_or_yaml = DataSpec("train_data", "", "dataset", ("csv", "yaml"))
    any_format = DataSpec("d", "", "dataset")

    assert format_problem("csv", csv_or_yaml, "x") is None
    assert format_problem("CSV", csv_or_yaml, "x") is None
    assert format_problem("json", any_format, "x") is None
    problem = format_problem("json", csv_or_yaml, "dag.x")
    assert problem is not None
    assert str(problem) == "dag.x: is json; input train_data reads csv, yaml (got 'json')"


KINDS = st.sampled_from(["dataset", "training_set", "model", "report", "metric", "other"])
NAMES = st.text("abc", min_size=1, max_size=2)
OUTPUTS_OF_FLOW = st.lists(st.tuples(KINDS, NAMES), max_size=8)
DESCRIBED_OUTPUTS = st.dictionaries(NAMES, KINDS, max_size=8)


def group_of(kind):
    return DataSpec("", "", kind).group


@given(OUTPUTS_OF_FLOW, DESCRIBED_OUTPUTS)
def test_every_key_and_every_name_is_used_once_or_left(outputs, described):
    specs = data_specs(*described.items())
    groups = {spec.name: spec.group for spec in specs}

    names = match_outputs(outputs, specs)

    assert len(set(names.values())) == len(names)
    assert names.keys() <= {key for _, key in outputs}
    for key, name in names.items():
        groups_of_key = {group_of(kind) for kind, output in outputs if output == key}
        assert groups[name] in groups_of_key
    unused_groups = {groups[name] for name in groups.keys() - set(names.values())}
    for kind, key in outputs:
        if key not in names:
            assert group_of(kind) not in unused_groups
