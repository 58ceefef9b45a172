"""Component descriptions: what is read in which spellings, and each mistake at its place with what was meant."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provider_registry import description, schema
from provider_registry.model import InvalidDescription, Validator
from provider_registry.values import MAX_PATTERN, MAX_VALUE, flaw, full_match
from tests.registry.builders import (
    a_component,
    a_component_request,
    a_description,
    a_parameter,
    a_request,
    places,
    replaced,
)

DATA = json.loads(Path(__file__).with_name("broken.json").read_text("utf-8"))
ABSENT = "<absent>"


def changed(document: Any, change: dict[str, Any]) -> Any:
    made = copy.deepcopy(document)
    for path, value in change.items():
        *way, last = [int(s) if s.isdigit() else s for s in re.findall(r"[^.\[\]]+", path)]
        place = made
        for step in way:
            place = place[step]
        if value == ABSENT:
            del place[last]
        else:
            place[last] = value
    return made


def found_in(document: Any) -> tuple[str, list[tuple[str, str, str]]]:
    try:
        _, found = description.component(document, provider="acme", version="1.0.0")
        kind = "warned"
    except InvalidDescription as error:
        found, kind = error.problems, "refused"
    return kind, [(p.path, p.rule, p.suggestion) for p in found]


def test_the_description_without_a_mistake_is_silent():
    assert found_in(DATA["good"]) == ("warned", [])


@pytest.mark.parametrize("case", DATA["broken"], ids=lambda case: case["mistake"])
def test_a_mistake_is_reported_at_its_place(case: dict[str, Any]):
    kind, found = found_in(changed(DATA["good"], case["change"]))
    expected = (case["path"], case["rule"], case["suggestion"])
    assert expected in found and kind == case["kind"]
    others = {path for path, _, _ in found} - {case["path"]}
    assert not others - set(case["change"]), "nothing else is wrong"


@pytest.mark.parametrize(
    ("validator", "inside", "outside"),
    [
        ("(0,5)", ["0", "5"], ["-1", "6"]),
        ("[0,5)", ["0", "4.9"], ["5"]),
        ("(0,5]", ["5"], ["0"]),
        ("[0,inf)", ["0", "1e9"], ["-1"]),
    ],
)
def test_bounds_are_open_only_where_the_vendor_does(
    validator: str,
    inside: list[str],
    outside: list[str],
):
    for default in (*inside, *outside):
        change = {"inputParam[0].validator": validator, "inputParam[0].defaultValue": default}
        _, found = found_in(changed(DATA["good"], change))
        assert bool(found) is (default in outside), (validator, default)


def test_a_description_is_read_into_a_component():
    document = a_description(
        "HeteroLR",
        description="regression",
        inputParam=[
            a_parameter(
                "penalty",
                description="which",
                bindingData=[{"label": "one", "value": "L1"}, {"label": "two", "value": "L2"}],
                defaultValue="L2",
                dependsOn="",
                groupTag="basic",
                UIPattern="editeable",
                UIType="redio",
            )
        ],
    )
    component, warnings = description.component(document)
    assert warnings == ()
    assert (component.name, component.provider, component.version) == ("HeteroLR", "acme", "1.0.0")
    assert component.description == "regression"
    assert component.roles == ("guest", "host")
    assert component.storage_engines == ("s3",)
    assert component.results == {"0": "ok"}
    assert component.document == document
    [penalty] = component.parameters
    assert penalty.binding == ("L1", "L2")
    assert (penalty.default, penalty.depends_on, penalty.groups) == ("L2", (), ("basic",))
    assert (penalty.ui_pattern, penalty.ui_type) == ("editable", "radio")
    assert [(d.name, d.group, d.formats) for d in component.outputs] == [
        ("train_data", "data", ("csv",)),
        ("model", "model", ("csv",)),
    ]


READINGS = {
    "optional": [
        (True, True),
        (False, False),
        ("true", True),
        ("FALSE", False),
        (" True ", True),
        (None, True),
    ],
    "bindingData": [
        ([{"label": "a", "value": "1"}, {"value": 2}], ("1", "2")),
        ([{"value": True}, "x", 1.5], ("true", "x", "1.5")),
        ('[{"label": "a", "value": "1"}]', ("1",)),
        ('["a", "b"]', ("a", "b")),
        ([], None),
        (" ", None),
        (None, None),
    ],
    "dependsOn": [
        ("", ()),
        ([], ()),
        (None, ()),
        (["p.a", "p"], ("p.a", "p")),
        ("p.a, p.b", ("p.a", "p.b")),
    ],
    "defaultValue": [
        (None, None),
        (" ", ""),
        ("x", "x"),
        (5, "5"),
        (True, "true"),
        ({"a": [1]}, '{"a": [1]}'),
    ],
    "groupTag": [("a", ("a",)), (["a", "b"], ("a", "b")), ("", ()), (None, ())],
}

ATTRIBUTES = {
    "bindingData": "binding",
    "dependsOn": "depends_on",
    "defaultValue": "default",
    "groupTag": "groups",
}


@pytest.mark.parametrize(
    ("field", "spelled", "read"),
    [(field, *row) for field, rows in READINGS.items() for row in rows],
)
def test_every_spelling_of_a_field_is_read(
    field,
    spelled,
    read,
):
    parameter = a_component(a_parameter(**{field: spelled})).parameters[0]
    assert getattr(parameter, ATTRIBUTES.get(field, field)) == read


@pytest.mark.parametrize(
    ("spelled", "validator"),
    [
        ("(0,1000)", Validator("(0,1000)", 0, 1000)),
        ("[0, 1.5)", Validator("[0, 1.5)", 0, 1.5, upper_open=True)),
        ("（-1，1）", Validator("（-1，1）", -1, 1)),
        ("(0,inf)", Validator("(0,inf)", 0, None)),
        ("(-inf,1e3)", Validator("(-inf,1e3)", None, 1000)),
        ("(,5)", Validator("(,5)", None, 5)),
        ("regular:'^[a-z]+$'", Validator("regular:'^[a-z]+$'", pattern="^[a-z]+$")),
        ('regular-"a|b"', Validator('regular-"a|b"', pattern="a|b")),
        ("regular：[一-龥]+", Validator("regular：[一-龥]+", pattern="[一-龥]+")),
        ("regular-正则项", None),
        ("regular:'正则项'", None),
        ("regular:", None),
        ("regular:''", None),
        ("(inf,sup)", None),
        ("", None),
        (" ", None),
        (None, None),
    ],
)
def test_validators_are_ranges_expressions_or_placeholders(spelled, validator):
    component, warnings = description.component(
        a_description(inputParam=[a_parameter(validator=spelled)])
    )
    assert component.parameters[0].validator == validator and warnings == ()


@pytest.mark.parametrize(
    ("pattern", "value", "matches"),
    [
        ("[a-z]+", "abc", True),
        ("[a-z]+", "abc1", False),
        (r"(\w+)@(\w+)\.(com|org)", "a@b.org", True),
        ("(?i)abc", "ABC", True),
        ("[一-龥]+", "中文", True),
        ("a|ab", "ab", True),
        ("a*b*", "a" * MAX_VALUE, True),
        ("a", "a\n", False),
        ("(a+)+$", "a" * (MAX_VALUE - 1) + "!", False),  # what backtracks never ends with these
        ("(a|a)*b", "a" * MAX_VALUE, False),
        ("(.*a){25}", "a" * 24 + "b" * 4000, False),
        ("a?" * 40 + "a" * 40 + "b", "a" * 60, False),
    ],
)
def test_the_whole_value_has_to_match(
    pattern,
    value,
    matches,
):
    assert flaw(pattern) is None
    assert full_match(pattern, value) is matches


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        ("(", "missing )"),
        ("(?=a)b", "(?="),
        (r"(a)\1", r"\1"),
        ("(?P<n>a)(?P=n)", "(?P"),
        ("((((a{9}){9}){9}){9}){9}", "{9}"),
        (r"\pL{1000}", "too large"),
        ("a" * (MAX_PATTERN + 1), "longer than"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_cause(pattern, cause):
    assert cause in (flaw(pattern) or "")
    assert full_match(pattern, "a") is None


@given(st.text("ab|*+?(){}[]^$\\.1,-:= 龥", max_size=30), st.text("ab1\n龥", max_size=600))
@settings(max_examples=300)
def test_any_expression_is_either_matched_or_refused(pattern, value):
    assert (full_match(pattern, value) is None) is (flaw(pattern) is not None)


ODD: list[Any] = [
    None,
    True,
    0,
    1.5,
    10**30,
    "",
    "a",
    "a b",
    "TRUE",
    "x" * 30_000,
    [],
    ["a"],
    [None],
    {},
    {"x": 1},
]

GOOD = {
    "description-1.json": a_description(
        inputParam=[
            a_parameter(
                bindingData=[{"label": "a", "value": 1}, "b"],
                dependsOn=["a"],
                groupTag="x",
            )
        ]
    ),
    "registration.json": a_request(),
    "component-registration.json": a_component_request(),
}


@pytest.mark.parametrize("name", schema.FILES)
@given(data=st.data())
def test_a_document_has_problems_exactly_where_the_schema_finds_them(
    name: str, data: st.DataObject
):
    document: Any = GOOD[name]
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, path, data.draw(st.sampled_from(ODD)))
    shipped = Draft202012Validator(dict(schema.FILES[name].document))
    assert bool(schema.FILES[name].problems(document)) is not shipped.is_valid(document)
