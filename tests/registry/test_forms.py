"""The schema of a component's parameters: it says what the description says, as the check does."""

import itertools
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provider_registry.forms import form
from provider_registry.registration import provider_from_request
from provider_registry.values import check
from tests.e2e.nodes import example
from tests.registry.builders import a_component, a_parameter

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
        ({"type": "object", "defaultValue": '{"a": NaN}'}, {"type": "object", "default": '{"a": NaN}'}),
        ({"type": "table", "defaultValue": " "}, {}),
        ({"type": "int", "validator": "(0,10)"}, {"type": "integer", "minimum": 0, "maximum": 10}),
        ({"type": "float", "validator": "(0,1.5]"}, {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}),
        ({"type": "int", "validator": "[1,sup)"}, {"type": "integer", "minimum": 1}),
        ({"type": "string", "validator": "(0,10)"}, {"type": "string"}),
        ({"validator": "regular:'[a-z]+'"}, {"type": "string", "pattern": "^(?:[a-z]+)$"}),
        ({"validator": "regular-正则项"}, {"type": "string"}),
        ({"type": "int", "bindingData": ["1", "2"]}, {"type": "integer", "enum": [1, 2]}),
        ({"type": "int", "bindingData": ["all", "2"], "validator": "(0,1)"}, {"enum": ["all", 2]}),
        ({"type": "boolean", "bindingData": '["true", "false"]'}, {"type": "boolean", "enum": [True, False]}),
        ({"type": "list", "bindingData": ["a", "5"]}, {"type": "array", "items": {"enum": ["a", "5", 5]}}),
        ({"type": "list", "bindingData": ["[]", '["a"]']}, {"type": "array", "enum": [[], ["a"]]}),
        ({"bindingData": "call_function tables()"}, {"type": "string"}),
    ],
)
def test_kinds_defaults_choices_and_checks_are_said_in_the_schemas_words(described: Any, said: Any):
    assert field(**described) == {"title": "p", **said}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(?i)abc"])
def test_an_expression_that_could_hold_up_a_form_is_not_in_its_schema(pattern: str):
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
def test_what_the_schema_lets_through_the_check_takes_without_a_word(kind: str, more: dict[str, Any]):
    component = a_component(a_parameter(type=kind, **more))
    schema = json.loads(json.dumps(form(component)))
    Draft202012Validator.check_schema(schema)
    checker = Draft202012Validator(schema)
    for value in POOL:
        spelled_so = kind == "int" and isinstance(value, float)  # 5.0 is a whole number for JSON Schema
        if checker.is_valid({"p": value}) and not spelled_so:
            findings = check({"p": value}, component, "t", strict=True)
            rules = [f.rule for f in (*findings.errors, *findings.warnings)]
            known = ("is empty", "cannot be read as") if "bindingData" in more else ("is empty",)
            assert [rule for rule in rules if not rule.startswith(known)] == [], value


def test_what_is_demanded_only_sometimes_is_demanded_by_the_schema_as_by_the_check():
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
        given = {name: value for name, value in zip(choices, values, strict=True) if value is not absent}
        refused = bool(check(given, component, "t").errors)
        assert checker.is_valid(given) is not refused, given
        seen.add(refused)
    assert seen == {True, False}


def test_the_published_and_our_own_descriptions_fit_their_forms():
    for file in ("register_unionpay.json", "reference_vendor/register_reference.json"):
        for component in provider_from_request(example(file)).components.values():
            schema = form(component)
            Draft202012Validator.check_schema(schema)
            assert list(schema["properties"]) == [p.name for p in component.parameters]
            given = {name: one["default"] for name, one in schema["properties"].items() if "default" in one}
            Draft202012Validator(schema).validate(given)
