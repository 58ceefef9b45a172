"""Component descriptions: what is read, which spellings are understood, what is refused and what is remarked."""

import json

import pytest

from provider_registry import description
from provider_registry.model import InvalidDescription, Problem, ResultCode, Validator, group_of
from tests.registry.builders import a_component, a_data, a_description, a_parameter, refused

NAME = 'must be a name: not empty, without spaces, control characters or "="'


def remarks(**changes):
    _, warnings = description.component(a_description(**changes))
    return [(w.path, w.rule) for w in warnings]


def parameter_remarks(**changes):
    return remarks(inputParam=[a_parameter(**changes)])


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
    assert component.results == (ResultCode("0", "ok"),)
    assert component.document == document
    [penalty] = component.parameters
    assert penalty.binding == ("L1", "L2")
    assert (penalty.default, penalty.depends_on, penalty.groups) == ("L2", (), ("basic",))
    assert (penalty.ui_pattern, penalty.ui_type) == ("editable", "radio")
    assert [(d.name, d.group, d.formats) for d in component.outputs] == [
        ("train_data", "data", ("csv",)),
        ("model", "model", ("csv",)),
    ]


def test_parameters_and_results_are_found_by_name():
    component = a_component(a_parameter("x"), result=[{"resultCode": "4444", "resultMessage": "failed"}])
    assert component.parameter("x").name == "x"
    assert component.parameter("y") is None
    assert component.result_message("4444") == "failed"
    assert component.result_message("0") is None


@pytest.mark.parametrize(
    ("category", "group"),
    [
        ("dataset", "data"),
        ("training_set", "data"),
        ("test_set", "data"),
        ("validate_set", "data"),
        ("datasets", "data"),
        ("data", "data"),
        ("Model", "model"),
        ("report", "metric"),
        ("metric", "metric"),
        ("other", "metric"),
    ],
)
def test_categories_fall_into_three_groups(category, group):
    assert group_of(category) == group


@pytest.mark.parametrize(
    ("spelled", "optional"),
    [(True, True), (False, False), ("true", True), ("FALSE", False), (" True ", True), (None, True), ("", True)],
)
def test_optional_is_a_boolean_or_its_text(spelled, optional):
    assert a_component(a_parameter(optional=spelled)).parameters[0].optional is optional


def test_a_parameter_without_optional_may_be_omitted_and_that_is_remarked():
    parameter = a_parameter()
    del parameter["optional"]
    assert a_component(parameter).parameters[0].optional
    assert remarks(inputParam=[parameter]) == [("inputParam[0].optional", "is missing; read as true")]


@pytest.mark.parametrize(
    ("spelled", "values"),
    [
        ([{"label": "a", "value": "1"}, {"value": 2}], ("1", "2")),
        ([{"value": True}, "x", 1.5], ("true", "x", "1.5")),
        ('[{"label": "a", "value": "1"}]', ("1",)),
        ('["a", "b"]', ("a", "b")),
        ([], None),
        ("", None),
        (" ", None),
        (None, None),
    ],
)
def test_allowed_values_are_a_list_or_its_json(spelled, values):
    parameter = a_component(a_parameter(bindingData=spelled)).parameters[0]
    assert (parameter.binding, parameter.binding_function) == (values, None)


@pytest.mark.parametrize(
    "spelled", ["call_function columns()", " call_function  columns ( ) ", "call_function columns"]
)
def test_a_callback_for_allowed_values_is_kept_by_name(spelled):
    parameter = a_component(a_parameter(bindingData=spelled)).parameters[0]
    assert (parameter.binding, parameter.binding_function) == (None, "columns")
    assert parameter_remarks(bindingData=spelled) == []


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
    assert parameter_remarks(validator=spelled) == []


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
def test_a_validator_that_cannot_be_read_checks_nothing_and_is_remarked(spelled, rule):
    assert a_component(a_parameter(validator=spelled)).parameters[0].validator is None
    assert parameter_remarks(validator=spelled) == [("inputParam[0].validator", rule)]


@pytest.mark.parametrize(
    ("spelled", "conditions"),
    [("", ()), ([], ()), (None, ()), (["p.a", "p"], ("p.a", "p")), ("p.a, p.b", ("p.a", "p.b"))],
)
def test_conditions_are_a_list_or_a_text(spelled, conditions):
    assert a_component(a_parameter(dependsOn=spelled)).parameters[0].depends_on == conditions


@pytest.mark.parametrize(
    ("spelled", "default"),
    [
        (None, None),
        (" ", ""),
        ("", ""),
        ("x", "x"),
        (5, "5"),
        (0.5, "0.5"),
        (True, "true"),
        ({"a": [1]}, '{"a": [1]}'),
        ([], "[]"),
    ],
)
def test_a_default_is_kept_as_text(spelled, default):
    assert a_component(a_parameter(defaultValue=spelled)).parameters[0].default == default


@pytest.mark.parametrize(("spelled", "groups"), [("a", ("a",)), (["a", "b"], ("a", "b")), ("", ()), (None, ())])
def test_a_group_tag_is_a_text_or_a_list(spelled, groups):
    assert a_component(a_parameter(groupTag=spelled)).parameters[0].groups == groups


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        ({"componentName": ""}, "componentName", NAME),
        ({"componentName": "a b"}, "componentName", NAME),
        ({"componentName": "a\n"}, "componentName", NAME),
        ({"componentName": 3}, "componentName", "must be text"),
        ({"componentName": "x" * 129}, "componentName", "must not be longer than 128 characters"),
        ({"title": ["a"]}, "title", "must be text"),
        ({"description": "x" * 20_001}, "description", "must not be longer than 20000 characters"),
        ({"version": 2.0}, "version", "must be text"),
        ({"roleList": []}, "roleList", "must not be empty"),
        ({"roleList": "guest"}, "roleList", "must be a list"),
        ({"roleList": ["guest", 1]}, "roleList[1]", "must be text"),
        ({"storageEngine": "s3"}, "storageEngine", "must be a list"),
        ({"inputParam": {}}, "inputParam", "must be a list"),
        ({"inputParam": None}, "inputParam", "must be a list"),
        (
            {"inputParam": [a_parameter(f"p{i}") for i in range(501)]},
            "inputParam",
            "must not list more than 500 entries",
        ),
        ({"inputParam": ["p"]}, "inputParam[0]", "must be an object"),
        ({"inputParam": [{"name": "p"}]}, "inputParam[0].type", "is missing"),
        ({"inputParam": [{"type": "int"}]}, "inputParam[0].name", "is missing"),
        ({"inputParam": [a_parameter("a=b")]}, "inputParam[0].name", NAME),
        ({"inputParam": [a_parameter(), a_parameter("q", type=5)]}, "inputParam[1].type", "must be text"),
        (
            {"inputParam": [a_parameter(), a_parameter("q"), a_parameter()]},
            "inputParam[2].name",
            "repeats the name of inputParam[0]",
        ),
        (
            {"inputParam": [a_parameter(optional="maybe")]},
            "inputParam[0].optional",
            "must be true or false, as a boolean or as text",
        ),
        ({"inputParam": [a_parameter(optional=1)]}, "inputParam[0].optional", "must be true or false or text"),
        (
            {"inputParam": [a_parameter(bindingData={"a": 1})]},
            "inputParam[0].bindingData",
            "must be a list or text",
        ),
        (
            {"inputParam": [a_parameter(bindingData=[{"label": "a"}])]},
            "inputParam[0].bindingData[0].value",
            "is missing",
        ),
        (
            {"inputParam": [a_parameter(bindingData=[{"value": {}}])]},
            "inputParam[0].bindingData[0].value",
            "must be text or a number or true or false",
        ),
        ({"inputParam": [a_parameter(validator=5)]}, "inputParam[0].validator", "must be text"),
        ({"inputParam": [a_parameter(dependsOn=[1])]}, "inputParam[0].dependsOn[0]", "must be text"),
        ({"inputParam": [a_parameter(groupTag={})]}, "inputParam[0].groupTag", "must be a list or text"),
        ({"inputData": "train"}, "inputData", "must be a list"),
        ({"inputData": [{"name": "d"}]}, "inputData[0].category", "is missing"),
        ({"inputData": [a_data(dataFormat=[1])]}, "inputData[0].dataFormat[0]", "must be text"),
        ({"inputData": [a_data(), a_data()]}, "inputData[1].name", "repeats the name of inputData[0]"),
        ({"outputData": [a_data(category=None)]}, "outputData[0].category", "must be text"),
        ({"outputData": [a_data(), a_data()]}, "outputData[1].name", "repeats the name of outputData[0]"),
        ({"result": {}}, "result", "must be a list"),
        ({"result": [{"resultMessage": "x"}]}, "result[0].resultCode", "is missing"),
    ],
)
def test_a_broken_description_is_refused_with_one_problem_at_its_place(changes, path, rule):
    assert refused(description.component, a_description(**changes)) == [(path, rule)]


@pytest.mark.parametrize("name", ["componentName", "roleList", "inputParam", "inputData", "outputData"])
def test_what_the_gateway_needs_to_run_a_component_is_required(name):
    document = a_description()
    del document[name]
    assert refused(description.component, document) == [(name, "is missing")]


@pytest.mark.parametrize("name", ["title", "storageEngine", "result", "provider", "version"])
def test_what_is_only_shown_or_known_from_elsewhere_is_missed_with_a_remark(name):
    document = a_description()
    del document[name]
    _, warnings = description.component(document)
    assert warnings == (Problem(name, "is missing"),)


def test_every_problem_is_told_at_once_below_the_given_path():
    document = a_description(roleList=[], inputParam=[{"name": ""}, a_parameter("x"), a_parameter("x")])
    del document["outputData"]
    problems = refused(lambda d: description.component(d, "components_description.Algo"), document)
    assert sorted(problems) == [
        ("components_description.Algo.inputParam[0].name", NAME),
        ("components_description.Algo.inputParam[0].type", "is missing"),
        ("components_description.Algo.inputParam[2].name", "repeats the name of inputParam[1]"),
        ("components_description.Algo.outputData", "is missing"),
        ("components_description.Algo.roleList", "must not be empty"),
    ]


@pytest.mark.parametrize("document", [None, 1, "x", [], [[]], True])
def test_what_is_no_object_is_refused(document):
    assert refused(description.component, document) == [("(document)", "must be an object")]


def test_what_was_found_is_repeated_only_in_part():
    with pytest.raises(InvalidDescription) as raised:
        description.component(a_description(title=["x" * 5000], roleList="x" * 5000))
    found = {p.path: p.got for p in raised.value.problems}
    assert found == {"title": "a list of 1 values", "roleList": "x" * 200 + "…"}


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        ({"desVersion": "2.0"}, "desVersion", "is not a version 1.x; read as if it were"),
        ({"roleList": ["guest", "boss"]}, "roleList[1]", "is none of the usual guest, host, arbiter, local"),
        ({"roleList": ["guest", "guest"]}, "roleList", "lists more than once: guest"),
        ({"inputParams": []}, "inputParams", "is not a field of the format"),
        ({"q": 1}, "q", "is not a field of the format"),
        (
            {"inputData": [a_data(category="report")]},
            "inputData[0].category",
            "is none of model, dataset, training_set, test_set, validate_set, … (6 in all); treated as metric",
        ),
        (
            {"outputData": [a_data(category="oddity")]},
            "outputData[0].category",
            "is none of model, dataset, training_set, test_set, report, … (6 in all); treated as metric",
        ),
        (
            {"outputData": [a_data(dataFormat="parquet")]},
            "outputData[0].dataFormat",
            "is none of csv, pmml, json, yaml, zip",
        ),
        ({"outputData": [a_data(dataFormat=None)]}, "outputData[0].dataFormat", "is missing"),
        (
            {"result": [{"resultCode": "0", "resultMessage": ""}] * 2},
            "result",
            "lists more than once: 0",
        ),
        (
            {"result": [{"resultCode": "0", "resultMessage": "", "msg": ""}]},
            "result[0].msg",
            "is not a field of the format",
        ),
    ],
)
def test_what_is_unusual_in_a_component_is_remarked(changes, path, rule):
    assert remarks(**changes) == [(path, rule)]


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        ({"title": None}, "title", "is missing"),
        ({"type": "tensor"}, "type", "is a type whose values are not checked"),
        ({"type": "int", "defaultValue": "many"}, "defaultValue", "cannot be read as int"),
        ({"type": "boolean", "defaultValue": "1"}, "defaultValue", "cannot be read as boolean"),
        ({"type": "object", "defaultValue": "[1]"}, "defaultValue", "cannot be read as object"),
        ({"type": "list", "defaultValue": "{"}, "defaultValue", "cannot be read as list"),
        ({"type": "int", "defaultValue": "7", "validator": "(1,5)"}, "defaultValue", "lies outside (1,5)"),
        (
            {"defaultValue": "abc", "validator": "regular:'[0-9]+'"},
            "defaultValue",
            "does not match regular:'[0-9]+'",
        ),
        ({"defaultValue": "c", "bindingData": ["a", "b"]}, "defaultValue", "is none of a, b"),
        ({"bindingData": ["a", "a"]}, "bindingData", "lists more than once: a"),
        (
            {"type": "integer", "bindingData": ["all", "5"]},
            "bindingData",
            "lists values that are not of type integer: all",
        ),
        (
            {"type": "integer", "bindingData": ["5", "50"], "validator": "(0,10)"},
            "bindingData",
            "lists values outside (0,10): 50",
        ),
        (
            {"bindingData": "some"},
            "bindingData",
            "is neither a list nor call_function <name>(); any value is allowed",
        ),
        (
            {"bindingData": "[" * 5000},
            "bindingData",
            "is neither a list nor call_function <name>(); any value is allowed",
        ),
        (
            {"bindingData": '[{"label": 1}, "a"]'},
            "bindingData",
            "has entries without a plain value, which are left out",
        ),
        (
            {"bindingData": '["\\ud800", "a"]'},
            "bindingData",
            "has entries without a plain value, which are left out",
        ),
        ({"dependsOn": ["other.1"]}, "dependsOn[0]", "names a parameter that is not described"),
        ({"dependsOn": "p.c", "bindingData": ["a"]}, "dependsOn[0]", "depends on the parameter itself"),
        ({"UIPattern": "secret"}, "UIPattern", "is none of editeable, editable, readOnly, hidden"),
        (
            {"UIType": "dial"},
            "UIType",
            "is none of input, textArea, numberPicker, checkbox, redio, … (9 in all)",
        ),
        ({"defaultvalue": "1"}, "defaultvalue", "is not a field of the format"),
    ],
)
def test_what_is_unusual_in_a_parameter_is_remarked(changes, path, rule):
    assert parameter_remarks(**changes) == [(f"inputParam[0].{path}", rule)]


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
def test_what_is_usual_is_not_remarked(changes):
    assert parameter_remarks(**changes) == []


def test_the_outer_provider_and_version_win_and_a_difference_is_remarked():
    component, warnings = description.component(
        a_description(provider="inner", version="0.9"), "c", provider="acme", version="1.0.0"
    )
    assert (component.provider, component.version) == ("acme", "1.0.0")
    assert warnings == (
        Problem("c.provider", "differs from the provider it is registered under, acme", "inner", "acme"),
        Problem("c.version", "differs from the version it is registered under, 1.0.0", "0.9", "1.0.0"),
    )


def test_the_number_of_remarks_is_bounded():
    odd = [a_parameter(f"p{i}", type="tensor") for i in range(400)]
    found = remarks(inputParam=odd)
    assert len(found) == 201
    assert found[-1] == ("(document)", "has more than the 200 problems listed here")


def test_problems_and_remarks_can_be_sent_as_json():
    document = a_description(title={"a": 10**400}, version=["\x00"])
    with pytest.raises(InvalidDescription) as raised:
        description.component(document)
    assert json.loads(json.dumps(raised.value.problems)) == [
        ["title", "must be text", "an object with 1 fields", ""],
        ["version", "must be text", ["\x00"], ""],
    ]


def test_a_problem_shows_its_parts():
    assert str(Problem("a.b", "must be text", 5)) == "a.b: must be text (got 5)"
    assert len(str(Problem("a", "must be short", "x" * 500))) < 250
