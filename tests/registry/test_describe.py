"""Component descriptions: what is read, and in which spellings; single mistakes are in broken.json."""

import pytest

from provider_registry import description
from provider_registry.model import Problem, Validator, group_of
from tests.registry.builders import a_component, a_description, a_parameter

NAME = 'must be a name: not empty, without spaces, control characters or "="'


def warned(**changes):
    _, warnings = description.component(a_description(**changes))
    return [(w.path, w.rule) for w in warnings]


def parameter_warned(**changes):
    return warned(inputParam=[a_parameter(**changes)])


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
    assert component.description_version == "1.2.0"
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


@pytest.mark.parametrize(
    ("category", "group"),
    [("dataset", "data"), ("validate_set", "data"), ("Model", "model"), ("report", "metric"), ("other", "metric")],
)
def test_categories_fall_into_three_groups(category, group):
    assert group_of(category) == group


READINGS = {
    "optional": [(True, True), (False, False), ("true", True), ("FALSE", False), (" True ", True), (None, True)],
    "bindingData": [
        ([{"label": "a", "value": "1"}, {"value": 2}], ("1", "2")),
        ([{"value": True}, "x", 1.5], ("true", "x", "1.5")),
        ('[{"label": "a", "value": "1"}]', ("1",)),
        ('["a", "b"]', ("a", "b")),
        ([], None),
        (" ", None),
        (None, None),
    ],
    "dependsOn": [("", ()), ([], ()), (None, ()), (["p.a", "p"], ("p.a", "p")), ("p.a, p.b", ("p.a", "p.b"))],
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
ATTRIBUTES = {"bindingData": "binding", "dependsOn": "depends_on", "defaultValue": "default", "groupTag": "groups"}


@pytest.mark.parametrize(
    ("field", "spelled", "read"), [(field, *row) for field, rows in READINGS.items() for row in rows]
)
def test_every_spelling_of_a_field_is_read(field, spelled, read):
    parameter = a_component(a_parameter(**{field: spelled})).parameters[0]
    assert getattr(parameter, ATTRIBUTES.get(field, field)) == read


@pytest.mark.parametrize("spelled", ["call_function columns()", " call_function  columns ( ) "])
def test_a_callback_for_allowed_values_is_kept_by_name(spelled):
    parameter = a_component(a_parameter(bindingData=spelled)).parameters[0]
    assert (parameter.binding, parameter.binding_function) == (None, "columns")


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
    assert a_component(a_parameter(validator=spelled)).parameters[0].validator == validator
    assert parameter_warned(validator=spelled) == []


@pytest.mark.parametrize(
    ("spelled", "rule"),
    [
        ("between 1 and 2", "is neither regular:'<expression>' nor (lower,upper); nothing is checked"),
        ("(a,b)", "has a bound that is not a number; nothing is checked"),
        ("(5,1)", "has a lower bound above the upper one; nothing is checked"),
        ("regular:'" + "a" * 513 + "'", "is longer than 512 characters; nothing is checked"),
        (
            "regular:'('",
            "is not a regular expression that RE2 supports (missing ): (); nothing is checked",
        ),
    ],
)
def test_a_validator_that_cannot_be_read_checks_nothing_and_is_a_warning(spelled, rule):
    assert a_component(a_parameter(validator=spelled)).parameters[0].validator is None
    assert parameter_warned(validator=spelled) == [("inputParam[0].validator", rule)]


@pytest.mark.parametrize("name", ["title", "storageEngine", "result", "provider", "version"])
def test_what_is_only_shown_or_known_from_elsewhere_is_missed_with_a_warning(name):
    document = a_description()
    del document[name]
    _, warnings = description.component(document)
    assert warnings == (Problem(name, "is missing"),)


NEITHER = "is neither a list nor call_function <name>(); any value is allowed"
NO_VALUE = "has entries without a plain value, which are left out"


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        ({"type": "object", "defaultValue": "[1]"}, "defaultValue", "cannot be read as object"),
        ({"type": "list", "defaultValue": "{"}, "defaultValue", "cannot be read as list"),
        (
            {"defaultValue": "abc", "validator": "regular:'[0-9]+'"},
            "defaultValue",
            "does not match regular:'[0-9]+'",
        ),
        (
            {"type": "integer", "bindingData": ["5", "50"], "validator": "(0,10)"},
            "bindingData",
            "lists values outside (0,10): 50",
        ),
        ({"bindingData": "some"}, "bindingData", NEITHER),
        ({"bindingData": "[" * 5000}, "bindingData", NEITHER),
        ({"bindingData": '[{"label": 1}, "a"]'}, "bindingData", NO_VALUE),
        ({"bindingData": '["\\ud800", "a"]'}, "bindingData", NO_VALUE),
    ],
)
def test_what_is_unusual_in_a_parameter_is_a_warning(changes, path, rule):
    assert parameter_warned(**changes) == [(f"inputParam[0].{path}", rule)]


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "string", "defaultValue": '{"a": 1}'},
        {"type": "object", "defaultValue": '{"a": 1}'},
        {"type": "float", "defaultValue": "1e-4", "validator": "[0,1]"},
        {"type": "int", "defaultValue": "0", "validator": "(0,5)"},
        {"type": "int", "defaultValue": "5", "validator": "(0,5)"},
        {"type": "Boolean", "defaultValue": "True"},
        {"type": "number", "defaultValue": " "},
        {"type": "string", "defaultValue": "aa", "validator": "regular:'(a+)+$'"},
        {"description": None, "bindingData": None, "validator": None, "groupTag": None, "UIType": None},
    ],
)
def test_what_is_usual_is_no_warning(changes):
    assert parameter_warned(**changes) == []
