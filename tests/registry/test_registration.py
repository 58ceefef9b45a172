"""Registrations of providers, as text and as a value, however hostile; and their stored form."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider_registry import description
from provider_registry.model import (
    MAX_DEPTH,
    MAX_VALUES,
    InvalidDescription,
    Problem,
    document_problem,
    shorten,
)
from provider_registry.registration import (
    MAX_BYTES,
    MAX_EXPRESSIONS,
    from_document,
    provider_from_component,
    provider_from_request,
    read,
    read_value,
)
from provider_registry.values import check
from tests.registry.builders import (
    a_component,
    a_component_request,
    a_data,
    a_description,
    a_parameter,
    a_provider,
    a_request,
    json_paths,
    problems_of,
    with_value_at,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME_RULE = "must be a name: not empty, without spaces or any of : @ * / \\"
IMAGE_RULE = "must be an image reference such as vendor:1.0.0"


# ------------------------------------------------------------ text


@pytest.mark.parametrize("trailer", [" ,\n}", ",}" + " " * 50_000], ids=["line end", "long text"])
def test_a_trailing_comma_is_a_warning(trailer):
    request = a_request(a_description(description='[1,] is no \\"list\\",}'))
    text = json.dumps(request)
    expected, _ = read(text.encode())

    provider, is_single_component = read((text[:-1] + trailer).encode())

    warning, *rest = provider.warnings
    assert warning.path == "(document)"
    assert "has a comma before a closing bracket" in warning.rule
    assert replace(provider, warnings=tuple(rest)) == expected
    assert is_single_component is False


HOSTILE_TEXTS = {
    "50 MB of brackets": (b"[" * (50 * 1024**2), f"must not be longer than {MAX_BYTES} bytes"),
    "2 MB of brackets": (b"[" * MAX_BYTES, f"must not hold more than {MAX_VALUES} values"),
    "100,000 brackets": (b"[" * 100_000, "must not nest so deeply"),
    # It would be no JSON if it were parsed.
    "2 MB of numbers that break off": (
        b"[" + b"1," * (MAX_BYTES // 2 - 1),
        f"must not hold more than {MAX_VALUES} values",
    ),
    "brackets inside a text": (b'["' + b"[" * 1_000_000 + b'"', "must be JSON"),
    "cut off": (b'{"name": "a"' + b" " * 70_000, "must be JSON: "),
    "cut off in a text": (b'{"name": "a,}', "must be JSON: "),
    "a comma too many and no value": (b'{"name": ,}', "must be JSON: "),
    "not UTF-8": (b'{"name": "\xff",}', "must be JSON: "),
    "an integer of many digits": (b'{"name": %s}' % (b"1" * 5000), "must be JSON: "),
    "many values": (
        json.dumps(a_request(metadata={"image": "a", "x": [0] * 200_000})).encode(),
        "must not hold",
    ),
}


@pytest.mark.parametrize(
    ("body", "rule"),
    HOSTILE_TEXTS.values(),
    ids=HOSTILE_TEXTS,
)
def test_a_hostile_text_is_refused(body, rule):
    with pytest.raises(InvalidDescription) as refusal:
        read(body)

    [problem] = refusal.value.problems
    assert problem.path == "(document)"
    assert problem.rule.startswith(rule)


# ------------------------------------------------------------ providers


def test_the_published_registration_is_accepted_with_these_warnings_only():
    published = json.loads((EXAMPLES / "register_unionpay.json").read_text("utf-8"))

    provider = provider_from_request(published)

    parameter = "components_description.HeteroLR.inputParam[6]"
    assert provider.warnings == (
        Problem(
            f"{parameter}.defaultValue",
            "lies outside (0,1000)",
            "2048",
        ),
        Problem(
            f"{parameter}.bindingData",
            "lists values that are not of type integer: all",
            ["all"],
        ),
        Problem(
            f"{parameter}.bindingData",
            "lists values outside (0,1000): 2048, 4096, 8192",
            ["2048", "4096", "8192"],
        ),
    )


def image_warnings(provider):
    """Return (path, suggestion) of the warnings about names of images."""
    warnings = [warning for warning in provider.warnings if "image name" in warning.rule]
    return [(warning.path, warning.suggestion) for warning in warnings]


@pytest.mark.parametrize(
    "image",
    [
        "acme:1",
        "10.0.0.9:5000/a/b-c__d:1.0@sha256:" + "0" * 64,
        "Acme.example.com/a",
    ],
    ids=["short", "full", "host in capitals"],
)
def test_the_name_of_an_image_is_accepted(image):
    provider = provider_from_request(a_request(metadata={"image": image, "base_url": ""}))
    component = provider_from_component(a_component_request(image=image))

    assert image_warnings(provider) == []
    assert image_warnings(component) == []


@pytest.mark.parametrize(
    ("image", "suggestion"),
    [("DTrial:1.0.0", "dtrial:1.0.0"), ("acme:1:2", "")],
    ids=["capitals", "two versions"],
)
def test_an_image_that_no_engine_can_have_is_a_warning(image, suggestion):
    provider = provider_from_request(a_request(metadata={"image": image, "base_url": ""}))
    component = provider_from_component(a_component_request(image=image))

    assert image_warnings(provider) == [("metadata.image", suggestion)]
    assert image_warnings(component) == [("imageUrl", suggestion)]


def metadata_with(**values):
    """Return the change of a request that adds values to its metadata."""
    return {"metadata": {**a_request()["metadata"], **values}}


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        ({"name": "a:b"}, "name", NAME_RULE),
        ({"name": "x" * 129}, "name", "must not be longer than 128 characters"),
        ({"version": None}, "version", "must be text"),
        ({"device": "*"}, "device", NAME_RULE),
        ({"metadata": None}, "metadata", "must be an object"),
        ({"metadata": {}}, "metadata.image", "is missing"),
        ({"metadata": {"image": ""}}, "metadata.image", IMAGE_RULE),
        ({"metadata": {"image": "-v /:/host"}}, "metadata.image", IMAGE_RULE),
        # A daemon would take it for a path of its interface.
        ({"metadata": {"image": "a/../../containers/b"}}, "metadata.image", IMAGE_RULE),
        (
            metadata_with(engine_kinds=["docker", "k8s"]),
            "metadata.engine_kinds[1]",
            "must be docker, swarm, kubernetes or process",
        ),
        (metadata_with(engine_kinds=[]), "metadata.engine_kinds", "must not be empty"),
        (metadata_with(engine_kinds="docker"), "metadata.engine_kinds", "must be a list"),
        (
            {"components_description": {"A": a_description("B")}},
            "components_description.A.componentName",
            "must equal its key, A",
        ),
        (
            {"components_description": {"a.b": a_description("a.b", roleList=[])}},
            'components_description["a.b"].roleList',
            "must not be empty",
        ),
        (
            {"components_description": {f"C{number}": {} for number in range(501)}},
            "components_description",
            "must not have more than 500 entries",
        ),
    ],
    ids=[
        "name",
        "long name",
        "version",
        "device",
        "no metadata",
        "no image",
        "empty image",
        "option as an image",
        "path as an image",
        "unknown kind of engine",
        "no kind of engine",
        "text as kinds of engines",
        "another key",
        "dot in a key",
        "too many components",
    ],
)
def test_a_broken_request_is_refused_with_one_problem_at_its_place(changes, path, rule):
    request = a_request() | changes

    assert problems_of(provider_from_request, request) == [(path, rule)]


def test_every_problem_of_all_components_is_reported():
    first = a_description("A", roleList=[])
    second = a_description("B", inputData=[a_data(category=1)])
    request = a_request(first, second, name="a b")
    request["components_description"]["C"] = a_description(
        "D",
        result=5,
    )

    assert problems_of(provider_from_request, request) == [
        ("name", NAME_RULE),
        ("components_description.A.roleList", "must not be empty"),
        ("components_description.B.inputData[0].category", "must be text"),
        ("components_description.C.componentName", "must equal its key, C"),
        ("components_description.C.result", "must be a list"),
    ]


def test_a_refusal_has_the_warnings_as_well():
    parameter = a_parameter(validator="0-9", defaultVal="1")
    document = a_description(
        "A",
        roleList=[],
        inputParam=[parameter],
    )

    with pytest.raises(InvalidDescription) as refusal:
        provider_from_request(a_request(document, devise="docker"))

    assert [warning.path for warning in refusal.value.warnings] == [
        "devise",
        "components_description.A.inputParam[0].defaultVal",
        "components_description.A.inputParam[0].validator",
    ]


def test_a_component_without_its_own_name_gets_its_key():
    document = a_description()
    del document["componentName"]

    provider = provider_from_request(a_request(components_description={"Algo": document}))

    assert provider.components["Algo"].name == "Algo"
    assert provider.warnings == (
        Problem("components_description.Algo.componentName", "is missing; its key is used"),
    )
    assert from_document(provider.document()) == provider


def test_the_outer_name_and_version_are_the_components():
    provider = a_provider(a_description(provider="other", version="3"))

    component = provider.components["Algo"]
    assert component.provider == "acme"
    assert component.version == "1.0.0"
    assert [warning.path for warning in provider.warnings] == [
        "components_description.Algo.provider",
        "components_description.Algo.version",
    ]
    assert from_document(provider.document()) == provider


def test_an_unusual_device_is_a_warning():
    [warning] = provider_from_request(a_request(device="local")).warnings

    assert str(warning) == (
        "device: is not docker, swarm, k8s: jobs that name this provider are refused here "
        "(PROVIDER_UNKNOWN) (got 'local')"
    )


def test_a_description_in_the_place_of_a_provider_is_recognised():
    problems = problems_of(provider_from_request, a_description("A"))

    path, rule = problems[0]
    assert path == "(document)"
    assert "description of one component" in rule
    assert {path for path, _ in problems} == {"(document)", "name", "device", "metadata"}


# ------------------------------------------------------------ one component


def test_one_component_is_read_into_a_provider_of_its_own():
    image = "registry.example:5000/acme/a:1"

    provider = provider_from_component(a_component_request("Algo", image=image))

    assert provider.key == "acme:1.0.0@docker"
    assert provider.image == image
    assert provider.protocol == "bfia"
    assert list(provider.components) == ["Algo"]
    assert provider.warnings == ()
    assert from_document(json.loads(json.dumps(provider.document()))) == provider


def without(body, key):
    return {name: value for name, value in body.items() if name != key}


def with_description(document):
    return a_component_request() | {"component_info": document}


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (without(a_component_request(), "imageUrl"), [("imageUrl", "is missing")]),
        (a_component_request() | {"imageUrl": " "}, [("imageUrl", IMAGE_RULE)]),
        (without(a_component_request(), "component_info"), [("component_info", "is missing")]),
        (with_description(1), [("component_info", "must be an object")]),
        (
            with_description(without(a_description(), "provider")),
            [("component_info.provider", "is missing")],
        ),
        (
            with_description(a_description(version="1:2")),
            [("component_info.version", NAME_RULE)],
        ),
        (
            with_description(a_description(version=1)),
            [("component_info.version", "must be text")],
        ),
        (
            with_description(a_description(roleList=[], provider="")),
            [
                ("component_info.provider", NAME_RULE),
                ("component_info.roleList", "must not be empty"),
            ],
        ),
    ],
    ids=[
        "no image",
        "blank image",
        "no description",
        "number as description",
        "no provider",
        "two versions",
        "number as version",
        "two problems",
    ],
)
def test_a_broken_component_request_is_refused(body, problems):
    assert problems_of(read_value, body) == problems


# ------------------------------------------------------------ hostile values


def nest(depth):
    """Return a value inside ``depth`` lists and objects."""
    value = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_deep_nesting_is_refused(depth):
    deep = nest(depth)
    problems = [("(document)", f"must not nest deeper than {MAX_DEPTH} levels")]

    request = a_request(metadata={"image": "a", "x": deep})
    assert problems_of(provider_from_request, request) == problems
    component_request = a_component_request(result=deep)
    assert problems_of(provider_from_component, component_request) == problems


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
    ids=[
        "half a character",
        "half a character in a key",
        "not a number",
        "infinity",
        "large integer",
        "set",
        "bytes",
    ],
)
def test_values_that_json_cannot_hold_are_refused(value, rule):
    request = a_request(metadata={"image": "a", "x": value})

    assert problems_of(provider_from_request, request) == [("(document)", rule)]


DEEP = nest(2000)
HOSTILE_VALUES = {
    "deep": DEEP,
    "half a character": "\ud800",
    "large": 10**4299,
    "very large": -(10**5000),
    "infinity": float("inf"),
    "long": "9" * 100_000,
    "deep in an object": {"a": DEEP},
    "deep in a list": [DEEP],
    "bytes": b"x",
}


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
def test_a_job_with_hostile_values_is_judged(value):
    component = a_component(
        a_parameter(
            "i",
            type="int",
            bindingData=["1"],
            validator="(0,5)",
        ),
        a_parameter("o", type="object", validator="regular:'a+'"),
        a_parameter(
            "s",
            bindingData=["a"],
            validator="regular:'(a|b)+'",
        ),
    )

    findings = check(
        dict.fromkeys(("i", "o", "s", "\ud800"), value),
        component,
        "t",
    )

    for problem in (*findings.errors, *findings.warnings):
        json.dumps([problem.path, problem.got], ensure_ascii=False).encode()


# ------------------------------------------------------------ any value


def lists_and_objects(values):
    texts = st.text(max_size=6)
    return st.lists(values, max_size=3) | st.dictionaries(
        texts,
        values,
        max_size=3,
    )


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", " ", "true"])
)
JSON_VALUES = st.recursive(SCALARS, lists_and_objects, max_leaves=6)
FULL_REQUEST = a_request(
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
            a_parameter(
                "q",
                type="int",
                validator="regular:'x'",
                bindingData="call_function f()",
            ),
        ],
    )
)
PATHS = list(json_paths(FULL_REQUEST))


@given(st.sampled_from(PATHS), JSON_VALUES)
@settings(max_examples=80)
def test_any_value_anywhere_is_read_or_refused_with_its_reasons(path, value):
    body = with_value_at(FULL_REQUEST, path, value)

    try:
        provider = provider_from_request(body)
    except InvalidDescription as error:
        assert error.problems
        json.dumps(error.problems, allow_nan=False, ensure_ascii=False).encode()
        return

    stored = json.dumps(
        provider.document(),
        allow_nan=False,
        ensure_ascii=False,
    )
    stored.encode()
    assert from_document(json.loads(stored)) == provider
    for component in provider.components.values():
        findings = check({"p": value, "q": value}, component, "t")
        json.dumps(findings, allow_nan=False, ensure_ascii=False)


READERS = [
    provider_from_request,
    provider_from_component,
    description.component,
    from_document,
]


@pytest.mark.parametrize("reader", READERS)
@given(value=JSON_VALUES)
@settings(max_examples=100)
def test_any_value_at_all_is_refused_with_its_reasons(reader, value):
    with pytest.raises(InvalidDescription):
        reader(value)


@given(JSON_VALUES)
@settings(max_examples=100)
def test_a_shortened_value_can_be_stored(value):
    shortened = shorten(value)

    assert document_problem(shortened) is None
    json.dumps(shortened, allow_nan=False)


# ------------------------------------------------------------ regular expressions


def with_expressions(count: int, parameters: int) -> list[dict[str, Any]]:
    """Return parameters with ``count`` different regular expressions, in turn."""
    return [
        a_parameter(f"p{number}", validator=f"regular:'a{number % count}'")
        for number in range(parameters)
    ]


def two_components(count: int) -> dict[str, Any]:
    """Build a registration of two components with ``count`` different regular expressions."""
    parameters = with_expressions(count, count)
    middle = count // 2
    return a_request(
        a_description("A", inputParam=parameters[:middle]),
        a_description("B", inputParam=parameters[middle:]),
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (two_components(MAX_EXPRESSIONS + 1), "components_description"),
        (
            a_component_request(
                inputParam=with_expressions(MAX_EXPRESSIONS + 1, MAX_EXPRESSIONS + 1)
            ),
            "component_info",
        ),
    ],
    ids=["provider", "component"],
)
def test_too_many_different_expressions_are_refused(body, path):
    with pytest.raises(InvalidDescription) as refusal:
        read_value(body)

    [problem] = refusal.value.problems
    assert problem.path == path
    assert problem.rule == "must not have more than 200 different regular expressions"
    assert problem.got == MAX_EXPRESSIONS + 1


def test_a_provider_may_repeat_its_expressions_in_every_component():
    parameters = with_expressions(MAX_EXPRESSIONS, 500)
    names = ["A", "B", "C"]
    descriptions = [a_description(name, inputParam=parameters) for name in names]

    provider, _ = read_value(a_request(*descriptions))

    assert list(provider.components) == names
