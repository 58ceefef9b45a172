"""Documents meant to hurt: they are refused or read, and never more than that."""

import json
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provider_registry import description
from provider_registry.model import (
    MAX_DEPTH,
    MAX_VALUES,
    InvalidDescription,
    Problem,
    shorten,
    unfit,
)
from provider_registry.registration import from_document, provider_from_component, provider_from_request
from provider_registry.values import check
from tests.registry.builders import (
    a_component_request,
    a_description,
    a_parameter,
    a_request,
    places,
    refused,
    replaced,
)


def nested(depth, leaf=1):
    value = leaf
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_deep_nesting_is_refused(depth):
    rule = ("(document)", f"must not nest deeper than {MAX_DEPTH} levels")
    deep = nested(depth)
    assert refused(provider_from_request, a_request(metadata={"image": "a", "x": deep})) == [rule]
    assert refused(provider_from_component, a_component_request(result=deep)) == [rule]


def test_a_value_that_holds_itself_is_refused():
    loop = []
    loop.append(loop)
    assert unfit(loop).rule == f"must not nest deeper than {MAX_DEPTH} levels"


def test_too_many_values_are_refused():
    assert refused(provider_from_request, a_request(metadata={"image": "a", "x": [0] * MAX_VALUES})) == [
        ("(document)", f"must not hold more than {MAX_VALUES} values")
    ]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("\ud800", "must be text that UTF-8 can hold"),
        ({"\udfff": 1}, "must be text that UTF-8 can hold"),
        ([float("nan")], "must hold finite numbers only"),
        (float("inf"), "must hold finite numbers only"),
        (2**5000, "must not hold integers beyond 4096 bits"),
        ({1, 2}, "must hold JSON values only"),
        ([b"x"], "must hold JSON values only"),
    ],
)
def test_what_cannot_be_stored_as_json_is_refused(value, rule):
    assert refused(provider_from_request, a_request(metadata={"image": "a", "x": value})) == [("(document)", rule)]


def test_a_hundred_components_are_read_and_stored():
    parameters = [
        a_parameter(
            f"p{i}",
            bindingData=[{"label": str(k), "value": str(k)} for k in range(4)],
            defaultValue="1",
            validator="(0,10)",
        )
        for i in range(15)
    ]
    body = a_request(*(a_description(f"C{i}", inputParam=parameters) for i in range(100)))
    provider = provider_from_request(body)
    assert len(provider.components) == 100
    assert provider.warnings == ()
    assert from_document(json.loads(json.dumps(provider.document()))) == provider


def test_a_flood_of_problems_is_cut():
    many = {f"C{i}": {"x": 1} for i in range(400)}
    problems = refused(provider_from_request, a_request() | {"components_description": many})
    assert len(problems) == 201
    assert problems[-1] == ("(document)", "has more than the 200 problems listed here")


def test_blanks_without_end_do_not_slow_the_reading():
    spaces = " " * 200_000
    problems = refused(
        description.component,
        a_description(inputParam=[a_parameter(optional=spaces + "x", bindingData="x" * 99_999)]),
    )
    assert problems == [("inputParam[0].optional", "must be true or false, as a boolean or as text")]
    component, _ = description.component(
        a_description(
            inputParam=[
                a_parameter(validator="(" + spaces[:19_000] + ",", bindingData="call_function" + spaces[:90_000])
            ]
        )
    )
    assert component.parameters[0].validator is None


def test_a_job_with_hostile_values_is_judged():
    component, _ = description.component(
        a_description(
            inputParam=[
                a_parameter("i", type="int", bindingData=["1"], validator="(0,5)"),
                a_parameter("o", type="object", validator="regular:'a+'"),
                a_parameter("s", bindingData=["a"], validator="regular:'(a|b)+'"),
            ]
        )
    )
    deep = nested(2000)
    for value in (deep, "\ud800", 10**4299, -(10**5000), float("inf"), "9" * 100_000, {"a": deep}, [deep], b"x"):
        findings = check({"i": value, "o": value, "s": value, "\ud800": value}, component, "t", True)
        for problem in (*findings.errors, *findings.warnings):
            json.dumps([problem.path, problem.got], ensure_ascii=False).encode()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", " ", "true"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


FULL = a_request(
    a_description(
        inputParam=[
            a_parameter(
                bindingData=[{"label": "a", "value": "a"}],
                defaultValue="a",
                validator="(0,1)",
                dependsOn=["q.1"],
                groupTag=["g"],
                UIPattern="hidden",
                UIType="input",
                description="d",
            ),
            a_parameter("q", type="int", validator="regular:'x'", bindingData="call_function f()"),
        ],
    )
)
PLACES = list(places(FULL))


@given(st.sampled_from(PLACES), json_values)
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_anywhere_is_read_or_refused_with_its_reasons(path, value):
    body = replaced(FULL, path, value)
    try:
        provider = provider_from_request(body)
    except InvalidDescription as error:
        assert error.problems
        json.dumps(error.problems, allow_nan=False, ensure_ascii=False).encode()
    else:
        stored = json.dumps(provider.document(), allow_nan=False, ensure_ascii=False)
        stored.encode()
        assert from_document(json.loads(stored)) == provider
        for component in provider.components.values():
            findings = check({"p": value, "q": value}, component, "t")
            json.dumps(findings, allow_nan=False, ensure_ascii=False)


@given(json_values)
@settings(max_examples=300)
def test_any_value_at_all_is_refused_with_its_reasons(value):
    for read in (provider_from_request, provider_from_component, description.component):
        with suppress(InvalidDescription):
            read(value)
            raise AssertionError(f"{value!r} was accepted")
    with suppress(InvalidDescription):
        from_document(value)
        raise AssertionError(f"{value!r} was accepted")
    assert unfit(value) is None or isinstance(unfit(value), Problem)
    shown = shorten(value)
    assert unfit(shown) is None
    json.dumps(shown, allow_nan=False)


@pytest.mark.slow
def test_no_registration_takes_more_than_two_seconds_or_200_megabytes():
    command = [sys.executable, "-m", "tests.registry.hostile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]  # the last line names the text
    said = json.loads(done.stdout)
    assert "must not be longer than" in said["too long"] and "must not nest" in said["nothing but braces"]
    assert said["a form"] == "399"
    read = {name for name, found in said.items() if found == "read"}
    assert {"plain expressions, small", "catastrophic expressions, small", "metadata, small"} <= read
