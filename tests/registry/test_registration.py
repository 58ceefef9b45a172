"""The two bodies that register something, and the form in which a provider is stored."""

import json
from pathlib import Path

import pytest

from provider_registry.model import Problem
from provider_registry.registration import from_document, provider_from_component, provider_from_request
from tests.registry.builders import (
    a_component_request,
    a_data,
    a_description,
    a_provider,
    a_request,
    refused,
)

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
def test_a_broken_request_is_refused_with_one_problem_at_its_place(changes, path, rule):
    assert refused(provider_from_request, a_request() | changes) == [(path, rule)]


def test_every_problem_of_all_components_is_reported_at_once():
    body = a_request(a_description("A", roleList=[]), a_description("B", inputData=[a_data(category=1)]))
    body["name"] = "a b"
    body["components_description"]["C"] = a_description("D", result=5)
    assert refused(provider_from_request, body) == [
        ("name", PART),
        ("components_description.A.roleList", "must not be empty"),
        ("components_description.B.inputData[0].category", "must be text"),
        ("components_description.C.componentName", "must equal its key, C"),
        ("components_description.C.result", "must be a list"),
    ]


@pytest.mark.parametrize(
    ("changes", "path", "rule"),
    [
        (
            {"device": "local", "metadata": {}},
            "device",
            "is none of docker, k8s; jobs look for providers on docker",
        ),
        ({"components_description": None}, "components_description", "describes no component"),
        ({"meta": 1}, "meta", "is not a field of the format"),
    ],
)
def test_what_is_unusual_in_a_request_is_remarked(changes, path, rule):
    assert [(w.path, w.rule) for w in a_provider(**changes).warnings] == [(path, rule)]


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
    assert (provider.components["Algo"].provider, provider.components["Algo"].version) == ("acme", "1.0.0")
    assert [w.path for w in provider.warnings] == [
        "components_description.Algo.provider",
        "components_description.Algo.version",
    ]
    assert from_document(provider.document()) == provider


def test_one_component_is_read_into_a_provider_of_its_own():
    provider = provider_from_component(a_component_request("Algo", image="registry.example:5000/acme/a:1"))
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
        (lambda b: b["component_info"].pop("provider"), [("component_info.provider", "is missing")]),
        (lambda b: b["component_info"].update(version="1:2"), [("component_info.version", PART)]),
        (lambda b: b["component_info"].update(version=1), [("component_info.version", "must be text")]),
        (
            lambda b: b["component_info"].update(roleList=[], provider=""),
            [("component_info.provider", PART), ("component_info.roleList", "must not be empty")],
        ),
    ],
)
def test_a_broken_component_request_is_refused(change, problems):
    body = a_component_request()
    change(body)
    assert refused(provider_from_component, body) == problems


def test_a_description_where_a_provider_is_wanted_is_reported_as_that():
    problems = refused(provider_from_request, a_description("A"))
    assert problems[0][0] == "(document)" and "description of one component" in problems[0][1]
    assert {path for path, _ in problems} == {"(document)", "name", "device", "metadata"}


def test_a_protocol_that_nobody_speaks_warns():
    (warning,) = provider_from_request(a_request(a_description("A"), protocol="bfai")).warnings
    assert (warning.path, warning.suggestion) == ("protocol", "bfia")
    assert provider_from_request(a_request(a_description("A"), protocol="fate")).warnings == ()
