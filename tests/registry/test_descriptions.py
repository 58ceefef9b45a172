"""Component descriptions: every spelling that is read, and each mistake with its path and fix."""

import copy
import json
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provider_registry import description, schema
from provider_registry.model import InvalidDescription, Validator
from provider_registry.values import (
    MATCHES_PER_PAUSE,
    MAX_PATTERN,
    MAX_VALUE,
    flaw,
    full_match,
)
from tests.registry.builders import (
    a_component,
    a_component_request,
    a_description,
    a_parameter,
    a_request,
    json_paths,
    with_value_at,
)

# A description without mistakes, and changes that each make one.
CASES = json.loads(Path(__file__).with_name("broken.json").read_text("utf-8"))
ABSENT = "<absent>"


def change_document(document, changes):
    """Return a document with other values at some paths, such as ``inputParam[0].type``."""
    changed = copy.deepcopy(document)
    for path, value in changes.items():
        *steps, last = [to_step(word) for word in re.findall(r"[^.\[\]]+", path)]
        parent = changed
        for step in steps:
            parent = parent[step]
        if value == ABSENT:
            del parent[last]
        else:
            parent[last] = value
    return changed


def to_step(word):
    return int(word) if word.isdigit() else word


def judge(document):
    """Return whether a description is refused or not, and its problems or warnings."""
    try:
        _, warnings = description.component(
            document,
            provider="acme",
            version="1.0.0",
        )
    except InvalidDescription as error:
        return "refused", error.problems
    return "warned", warnings


def test_the_description_without_a_mistake_is_silent():
    kind, warnings = judge(CASES["good"])

    assert kind == "warned"
    assert list(warnings) == []


@pytest.mark.parametrize("case", CASES["broken"], ids=[case["mistake"] for case in CASES["broken"]])
def test_a_mistake_is_reported_at_its_place(case):
    kind, problems = judge(change_document(CASES["good"], case["change"]))

    reports = [(problem.path, problem.rule, problem.suggestion) for problem in problems]
    assert kind == case["kind"]
    assert (case["path"], case["rule"], case["suggestion"]) in reports
    other_paths = {problem.path for problem in problems} - {case["path"]}
    assert other_paths <= set(case["change"]), "nothing else is wrong"


@pytest.mark.parametrize(
    ("validator", "inside", "outside"),
    [
        ("(0,5)", ["0", "5"], ["-1", "6"]),
        ("[0,5)", ["0", "4.9"], ["5"]),
        ("(0,5]", ["5"], ["0"]),
        ("[0,inf)", ["0", "1e9"], ["-1"]),
    ],
)
def test_bounds_are_open_only_where_the_vendor_writes_so(validator, inside, outside):
    for default in (*inside, *outside):
        change = {
            "inputParam[0].validator": validator,
            "inputParam[0].defaultValue": default,
        }
        _, problems = judge(change_document(CASES["good"], change))
        assert bool(problems) is (default in outside), default


def test_a_description_is_read_into_a_component():
    document = a_description(
        "HeteroLR",
        description="regression",
        inputParam=[
            a_parameter(
                "penalty",
                description="which",
                bindingData=[
                    {"label": "one", "value": "L1"},
                    {"label": "two", "value": "L2"},
                ],
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
    assert component.name == "HeteroLR"
    assert component.provider == "acme"
    assert component.version == "1.0.0"
    assert component.description == "regression"
    assert component.roles == ("guest", "host")
    assert component.storage_engines == ("s3",)
    assert component.results == {"0": "ok"}
    assert component.document == document
    [penalty] = component.parameters
    assert penalty.binding == ("L1", "L2")
    assert penalty.default == "L2"
    assert penalty.depends_on == ()
    assert penalty.groups == ("basic",)
    assert penalty.ui_pattern == "editable"
    assert penalty.ui_type == "radio"
    table, model = component.outputs
    assert (table.name, table.group, table.formats) == (
        "train_data",
        "data",
        ("csv",),
    )
    assert (model.name, model.group, model.formats) == (
        "model",
        "model",
        ("csv",),
    )


# For each field of a parameter: the attribute it is read into, and its values by spellings.
SPELLINGS = [
    (
        "optional",
        "optional",
        [
            (True, True),
            (False, False),
            ("true", True),
            ("FALSE", False),
            (" True ", True),
            (None, True),
        ],
    ),
    (
        "bindingData",
        "binding",
        [
            (
                [{"label": "a", "value": "1"}, {"value": 2}],
                ("1", "2"),
            ),
            ([{"value": True}, "x", 1.5], ("true", "x", "1.5")),
            ('[{"label": "a", "value": "1"}]', ("1",)),
            ('["a", "b"]', ("a", "b")),
            ([], None),
            (" ", None),
            (None, None),
        ],
    ),
    (
        "dependsOn",
        "depends_on",
        [
            ("", ()),
            ([], ()),
            (None, ()),
            (["p.a", "p"], ("p.a", "p")),
            ("p.a, p.b", ("p.a", "p.b")),
        ],
    ),
    (
        "defaultValue",
        "default",
        [
            (None, None),
            (" ", ""),
            ("x", "x"),
            (5, "5"),
            (True, "true"),
            ({"a": [1]}, '{"a": [1]}'),
        ],
    ),
    (
        "groupTag",
        "groups",
        [
            ("a", ("a",)),
            (["a", "b"], ("a", "b")),
            ("", ()),
            (None, ()),
        ],
    ),
]


@pytest.mark.parametrize(
    ("field", "attribute", "spellings"), SPELLINGS, ids=[row[0] for row in SPELLINGS]
)
def test_every_spelling_of_a_field_is_read(field, attribute, spellings):
    for spelling, value in spellings:
        [parameter] = a_component(a_parameter(**{field: spelling})).parameters
        assert getattr(parameter, attribute) == value, spelling


@pytest.mark.parametrize(
    ("spelling", "validator"),
    [
        ("(0,1000)", Validator("(0,1000)", 0, 1000)),
        ("[0, 1.5)", Validator("[0, 1.5)", 0, 1.5, upper_open=True)),
        ("（-1，1）", Validator("（-1，1）", -1, 1)),
        ("(0,inf)", Validator("(0,inf)", lower=0)),
        ("(-inf,1e3)", Validator("(-inf,1e3)", upper=1000)),
        ("(,5)", Validator("(,5)", upper=5)),
        ("regular:'^[a-z]+$'", Validator("regular:'^[a-z]+$'", pattern="^[a-z]+$")),
        ('regular-"a|b"', Validator('regular-"a|b"', pattern="a|b")),
        ("regular：[一-龥]+", Validator("regular：[一-龥]+", pattern="[一-龥]+")),
        ("regular-正则项", Validator()),
        ("regular:'正则项'", Validator()),
        ("regular:", Validator()),
        ("regular:''", Validator()),
        ("(inf,sup)", Validator()),
        ("", Validator()),
        (" ", Validator()),
        (None, Validator()),
    ],
)
def test_validators_are_ranges_expressions_or_placeholders(spelling, validator):
    document = a_description(inputParam=[a_parameter(validator=spelling)])

    component, warnings = description.component(document)

    assert component.parameters[0].validator == validator
    assert warnings == ()


# ------------------------------------------------------------ regular expressions


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
        # A matcher that backtracks never ends with the following ones.
        ("(a+)+$", "a" * (MAX_VALUE - 1) + "!", False),
        ("(a|a)*b", "a" * MAX_VALUE, False),
        ("(.*a){25}", "a" * 24 + "b" * 4000, False),
        ("a?" * 40 + "a" * 40 + "b", "a" * 60, False),
    ],
    ids=[
        "letters",
        "not a letter",
        "address",
        "letter case",
        "Chinese",
        "longer alternative",
        "longest value",
        "line end",
        "nested repetition",
        "equal alternatives",
        "counted repetition",
        "optional letters",
    ],
)
def test_the_whole_value_has_to_match(pattern, value, matches):
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
    ids=[
        "open bracket",
        "look-ahead",
        "reference",
        "named reference",
        "nested counts",
        "too large",
        "too long",
        "half a character",
    ],
)
def test_an_unusable_expression_is_refused_with_its_cause(pattern, cause):
    assert cause in (flaw(pattern) or "")
    assert full_match(pattern, "a") is None


def voluntary_pauses():
    """Return how often this thread has given up the processor on its own."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def test_a_thread_with_many_matches_pauses_for_other_threads():
    before = voluntary_pauses()

    for _ in range(100 * MATCHES_PER_PAUSE):
        full_match("(a+)+$", "aaaa!")

    assert voluntary_pauses() - before >= 100


@given(
    st.text("ab|*+?(){}[]^$\\.1,-:= 龥", max_size=30),
    st.text("ab1\n龥", max_size=600),
)
@settings(max_examples=300)
def test_any_expression_is_either_matched_or_refused(pattern, value):
    is_refused = flaw(pattern) is not None

    assert (full_match(pattern, value) is None) is is_refused


def test_parameters_beyond_the_limit_are_not_checked_one_by_one():
    parameters = [a_parameter(f"p{number}") for number in range(499)]
    contradiction = {"type": "int", "defaultValue": "many"}
    for name in ("last_allowed", "first_beyond"):
        parameters.append(a_parameter(name, **contradiction))

    outcome, problems = judge(a_description(inputParam=parameters))

    assert outcome == "refused"
    paths = [problem.path for problem in problems]
    assert paths == ["inputParam", "inputParam[499].defaultValue"]


# ------------------------------------------------------------ the published schemas

ODD_VALUES = [
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
GOOD_DOCUMENTS = {
    "description-1.json": a_description(
        inputParam=[
            a_parameter(
                bindingData=[
                    {"label": "a", "value": 1},
                    "b",
                ],
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
def test_a_document_has_problems_exactly_where_the_schema_finds_them(name, data):
    document = GOOD_DOCUMENTS[name]
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from(list(json_paths(document))))
        document = with_value_at(
            document,
            path,
            data.draw(st.sampled_from(ODD_VALUES)),
        )

    published = Draft202012Validator(dict(schema.FILES[name].document))
    problems = schema.FILES[name].problems(document)

    assert bool(problems) is not published.is_valid(document)
