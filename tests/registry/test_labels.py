"""What an image's labels say, held against the registration."""

import json

import pytest

from provider_registry.image_labels import differences
from tests.registry.builders import a_data, a_description, a_parameter, a_provider

IMAGE = "acme:1.0.0"


def compared(labels, *descriptions):
    return [(p.path, p.rule) for p in differences(labels, a_provider(*descriptions), IMAGE)]


def test_an_image_without_labels_says_nothing():
    assert compared({}) == compared({"maintainer": "x", "component.x.name": "y"}) == []


def test_labels_that_say_the_same_are_silent():
    description = a_description(inputParam=[a_parameter("n", type="int", optional=True)])
    numbered = {
        "component.1.name": "Algo",
        "component.1.roleList": "guest, host",
        "component.1.parameter.1.name": "n",
        "component.1.parameter.1.optional": "true",
        "component.1.input.1.name": "train_data",
        "component.1.input.1.dataFormat": '["csv"]',
    }
    assert compared(numbered, description) == []
    assert compared({"bfia.description": json.dumps(description)}, description) == []
    assert compared({"bfia.description": json.dumps({"Algo": description})}, description) == []
    assert (
        compared({"bfia.provider": "acme", "bfia.version": "1.0.0", "bfia.components": "Algo"}, description) == []
    )


def test_each_difference_names_both_sides():
    description = a_description(inputParam=[a_parameter("n", type="int"), a_parameter("m")])
    numbered = {
        "bfia.version": "2.0.0",
        "component.1.name": "Algo",
        "component.1.version": "1.0.0",
        "component.1.parameter.1.name": "n",
        "component.1.parameter.1.type": "string",
        "component.1.parameter.2.name": "z",
        "component.2.name": "Other",
    }
    found = compared(numbered, description)
    at = "components_description.Algo.inputParam"
    assert found == [
        ("version", f"is 1.0.0 as registered and 2.0.0 in the label bfia.version of {IMAGE}"),
        (f"{at}[0].type", f"is int as registered and string in the label component.* of {IMAGE}"),
        (at, f"has no entry z, which the label component.* of {IMAGE} describes"),
        (at, f"lists what the label component.* of {IMAGE} does not describe"),
        ("components_description.Other", f"is not registered, though the label component.* of {IMAGE} names it"),
    ]


def test_a_component_that_the_label_does_not_name_is_reported():
    [(path, rule)] = compared({"bfia.components": "A"}, a_description("A"), a_description("B"))
    assert path == "components_description.B" and "bfia.components does not name it" in rule


@pytest.mark.parametrize("text", ["{", "[" * 50_000, "[1]", '{"a": 1}', '{"a": ' * 40 + "1" + "}" * 40])
def test_a_label_that_cannot_be_read_is_a_warning(text):
    [(path, rule)] = compared({"bfia.description": text})
    assert path == "metadata.image" and rule.startswith("has a label bfia.description that is n")


def test_only_the_components_of_that_image_are_compared():
    provider = a_provider(a_description("A", inputData=[a_data()]))
    assert differences({"bfia.components": "A"}, provider, IMAGE) == ()
    assert [p.path for p in differences({"bfia.components": "A"}, provider, "other:1")] == [
        "components_description.A"
    ]
