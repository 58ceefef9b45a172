"""What registers a provider, as text and as a value, however hostile; and the form in which it is stored."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider_registry import description
from provider_registry.model import (
    MAX_DEPTH,
    InvalidDescription,
    Problem,
    document_problem,
    shorten,
)
from provider_registry.registration import (
    MAX_BYTES,
    from_document,
    provider_from_component,
    provider_from_request,
    read,
    read_value,
)
from provider_registry.values import check
from tests.registry.builders import (
    a_component_request,
    a_data,
    a_description,
    a_parameter,
    a_provider,
    a_request,
    places,
    refused,
    replaced,
)


def test_a_trailing_comma_is_a_warning():
    said = json.dumps(a_request(a_description(description='[1,] is no \\"list\\",}')))
    plain = read(said.encode())[0]
    for text in (said[:-1] + " ,\n}", (said[:-1] + ",}").ljust(70_000)):
        provider, single = read(text.encode())
        warning, *others = provider.warnings
        assert (
            warning.path == "(document)" and "has a comma before a closing bracket" in warning.rule
        )
        assert (replace(provider, warnings=tuple(others)), single) == (plain, False)


HOSTILE = {
    "50 MB of brackets": (b"[" * (50 * 1024**2), f"must not be longer than {MAX_BYTES} bytes"),
    "2 MB of brackets": (b"[" * MAX_BYTES, "must not nest so deeply"),
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


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_text_is_refused(case: str):
    body, rule = HOSTILE[case]
    with pytest.raises(InvalidDescription) as refused:
        read(body)
    [problem] = refused.value.problems
    assert problem.path == "(document)" and problem.rule.startswith(rule)


EXAMPLES = Path(__file__).parents[2] / "examples"
PART = "must be a name: not empty, without spaces or any of : @ * / \\"
IMAGE = "must be an image reference such as vendor:1.0.0"


@pytest.fixture(scope="module")
def published():
    return json.loads((EXAMPLES / "register_unionpay.json").read_text("utf-8"))


def test_the_published_registration_is_accepted_with_these_warnings_only(published):
    provider = provider_from_request(published)
    at = "components_description.HeteroLR.inputParam[6]"
    assert provider.warnings == (
        Problem(f"{at}.defaultValue", "lies outside (0,1000)", "2048"),
        Problem(f"{at}.bindingData", "lists values that are not of type integer: all", ["all"]),
        Problem(
            f"{at}.bindingData",
            "lists values outside (0,1000): 2048, 4096, 8192",
            ["2048", "4096", "8192"],
        ),
    )


@pytest.mark.parametrize(
    ("image", "meant"),
    [
        ("acme:1", None),
        ("10.0.0.9:5000/a/b-c__d:1.0@sha256:" + "0" * 64, None),
        ("Acme.example.com/a", None),
        ("DTrial:1.0.0", "dtrial:1.0.0"),
        ("acme:1:2", ""),
    ],
)
def test_an_image_that_no_engine_can_have_is_a_warning(image: str, meant: str | None):
    described = {
        "imageUrl": image,
        "component_info": a_description(provider="acme", version="1.0.0"),
    }
    whole = provider_from_request(a_request(metadata={"image": image, "base_url": ""}))
    for provider, path in (
        (whole, "metadata.image"),
        (provider_from_component(described), "imageUrl"),
    ):
        found = [(w.path, w.suggestion) for w in provider.warnings if "image name" in w.rule]
        assert found == ([] if meant is None else [(path, meant)])


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        ({"name": "a:b"}, "name", PART),
        ({"name": "x" * 129}, "name", "must not be longer than 128 characters"),
        ({"version": None}, "version", "must be text"),
        ({"device": "*"}, "device", PART),
        ({"metadata": None}, "metadata", "must be an object"),
        ({"metadata": {}}, "metadata.image", "is missing"),
        ({"metadata": {"image": ""}}, "metadata.image", IMAGE),
        ({"metadata": {"image": "-v /:/host"}}, "metadata.image", IMAGE),
        (
            {"metadata": {"image": "a/../../containers/b"}},
            "metadata.image",
            IMAGE,
        ),  # a daemon would show that
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
            {"components_description": {f"C{i}": {} for i in range(501)}},
            "components_description",
            "must not have more than 500 entries",
        ),
    ],
)
def test_a_broken_request_is_refused_with_one_problem_at_its_place(
    changes,
    path,
    rule,
):
    assert refused(provider_from_request, a_request() | changes) == [(path, rule)]


def test_every_problem_of_all_components_is_reported_at_once():
    body = a_request(
        a_description("A", roleList=[]), a_description("B", inputData=[a_data(category=1)])
    )
    body["name"] = "a b"
    body["components_description"]["C"] = a_description("D", result=5)
    assert refused(provider_from_request, body) == [
        ("name", PART),
        ("components_description.A.roleList", "must not be empty"),
        ("components_description.B.inputData[0].category", "must be text"),
        ("components_description.C.componentName", "must equal its key, C"),
        ("components_description.C.result", "must be a list"),
    ]
    body = a_request(
        a_description("A", roleList=[], inputParam=[a_parameter(validator="0-9", defaultVal="1")])
    )
    with pytest.raises(InvalidDescription) as caught:
        provider_from_request(body | {"devise": "docker"})
    at = "components_description.A.inputParam[0]."
    assert [w.path for w in caught.value.warnings] == [
        "devise",
        f"{at}defaultVal",
        f"{at}validator",
    ]


def test_a_component_without_its_own_name_takes_its_key():
    document = a_description()
    del document["componentName"]
    provider = provider_from_request(a_request() | {"components_description": {"Algo": document}})
    assert provider.components["Algo"].name == "Algo"
    assert provider.warnings == (
        Problem("components_description.Algo.componentName", "is missing; its key is used"),
    )
    assert from_document(provider.document()) == provider


def test_the_outer_name_and_version_are_the_components():
    provider = a_provider(a_description(provider="other", version="3"))
    assert (provider.components["Algo"].provider, provider.components["Algo"].version) == (
        "acme",
        "1.0.0",
    )
    assert [w.path for w in provider.warnings] == [
        "components_description.Algo.provider",
        "components_description.Algo.version",
    ]
    assert from_document(provider.document()) == provider


def test_one_component_is_read_into_a_provider_of_its_own():
    provider = provider_from_component(
        a_component_request("Algo", image="registry.example:5000/acme/a:1")
    )
    assert provider.key == "acme:1.0.0@docker"
    assert (provider.image, provider.protocol) == ("registry.example:5000/acme/a:1", "bfia")
    assert list(provider.components) == ["Algo"]
    assert provider.warnings == ()
    assert from_document(json.loads(json.dumps(provider.document()))) == provider


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (lambda b: b.pop("imageUrl"), [("imageUrl", "is missing")]),
        (lambda b: b.update(imageUrl=" "), [("imageUrl", IMAGE)]),
        (lambda b: b.pop("component_info"), [("component_info", "is missing")]),
        (lambda b: b.update(component_info=1), [("component_info", "must be an object")]),
        (
            lambda b: b["component_info"].pop("provider"),
            [("component_info.provider", "is missing")],
        ),
        (lambda b: b["component_info"].update(version="1:2"), [("component_info.version", PART)]),
        (
            lambda b: b["component_info"].update(version=1),
            [("component_info.version", "must be text")],
        ),
        (
            lambda b: b["component_info"].update(roleList=[], provider=""),
            [("component_info.provider", PART), ("component_info.roleList", "must not be empty")],
        ),
    ],
)
def test_a_broken_component_request_is_refused(change, problems):
    body = a_component_request()
    change(body)
    assert refused(read_value, body) == problems


def test_a_device_that_no_job_is_started_on_is_warned_of():
    (warning,) = provider_from_request(a_request(device="local")).warnings
    assert str(warning) == (
        "device: is not docker, swarm, k8s: jobs that name this provider are refused here (PROVIDER_UNKNOWN) "
        "(got 'local')"
    )


def test_a_description_where_a_provider_is_wanted_is_reported_as_that():
    problems = refused(provider_from_request, a_description("A"))
    assert problems[0][0] == "(document)" and "description of one component" in problems[0][1]
    assert {path for path, _ in problems} == {"(document)", "name", "device", "metadata"}


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
    assert refused(provider_from_request, a_request(metadata={"image": "a", "x": value})) == [
        ("(document)", rule)
    ]


def test_a_job_with_hostile_values_is_judged():
    component, _ = description.component(
        a_description(
            inputParam=[
                a_parameter(
                    "i",
                    type="int",
                    bindingData=["1"],
                    validator="(0,5)",
                ),
                a_parameter("o", type="object", validator="regular:'a+'"),
                a_parameter("s", bindingData=["a"], validator="regular:'(a|b)+'"),
            ]
        )
    )
    deep = nested(2000)
    for value in (
        deep,
        "\ud800",
        10**4299,
        -(10**5000),
        float("inf"),
        "9" * 100_000,
        {"a": deep},
        [deep],
        b"x",
    ):
        findings = check(
            {
                "i": value,
                "o": value,
                "s": value,
                "\ud800": value,
            },
            component,
            "t",
        )
        for problem in (*findings.errors, *findings.warnings):
            json.dumps([problem.path, problem.got], ensure_ascii=False).encode()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", " ", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
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
            a_parameter(
                "q",
                type="int",
                validator="regular:'x'",
                bindingData="call_function f()",
            ),
        ],
    )
)

PLACES = list(places(FULL))


@given(st.sampled_from(PLACES), json_values)
@settings(max_examples=80)
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
@settings(max_examples=100)
def test_any_value_at_all_is_refused_with_its_reasons(value):
    for reader in (
        provider_from_request,
        provider_from_component,
        description.component,
        from_document,
    ):
        with pytest.raises(InvalidDescription):
            reader(value)
    shown = shorten(value)
    assert document_problem(shown) is None
    json.dumps(shown, allow_nan=False)
