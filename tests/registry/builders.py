"""Descriptions and registrations with defaults, so that a test names only its own subject."""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from provider_registry import description, registration
from provider_registry.model import Component, InvalidDescription, Provider

JsonPath = tuple[str | int, ...]  # the keys and indexes that lead to a value


def a_parameter(name: str = "p", **changes: Any) -> dict[str, Any]:
    parameter = {
        "name": name,
        "title": name,
        "type": "string",
        "optional": "true",
    }
    return parameter | changes


def a_data(name: str = "train_data", **changes: Any) -> dict[str, Any]:
    data = {
        "name": name,
        "category": "dataset",
        "dataFormat": ["csv"],
    }
    return data | changes


def a_description(name: str = "Algo", **changes: Any) -> dict[str, Any]:
    document = {
        "componentName": name,
        "title": name,
        "provider": "acme",
        "version": "1.0.0",
        "roleList": ["guest", "host"],
        "desVersion": "1.2.0",
        "storageEngine": ["s3"],
        "inputParam": [a_parameter()],
        "inputData": [a_data()],
        "outputData": [
            a_data(),
            a_data("model", category="model"),
        ],
        "result": [{"resultCode": "0", "resultMessage": "ok"}],
    }
    return document | changes


def a_request(*descriptions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Build the registration of a provider, by default with one component."""
    components = {}
    for document in descriptions or (a_description(),):
        components[document["componentName"]] = document
    request = {
        "name": "acme",
        "device": "docker",
        "version": "1.0.0",
        "metadata": {"base_url": "", "image": "acme:1.0.0"},
        "protocol": "bfia",
        "components_description": components,
    }
    return request | changes


def a_component_request(
    name: str = "Algo",
    image: str = "acme:1.0.0",
    **changes: Any,
) -> dict[str, Any]:
    """Build the registration of one component; ``changes`` apply to its description."""
    return {"imageUrl": image, "component_info": a_description(name, **changes)}


def a_component(*parameters: dict[str, Any], **changes: Any) -> Component:
    document = a_description(**changes)
    if parameters:
        document["inputParam"] = list(parameters)
    component, _ = description.component(document)
    return component


def a_provider(*descriptions: dict[str, Any], **changes: Any) -> Provider:
    return registration.provider_from_request(a_request(*descriptions, **changes))


def problems_of(
    read: Callable[[Any], object],
    body: Any,
) -> list[tuple[str, str]]:
    """Return (path, rule) of the problems for which a reader refuses a body; [] if it does not."""
    try:
        read(body)
    except InvalidDescription as error:
        return [(problem.path, problem.rule) for problem in error.problems]
    return []


def json_paths(
    value: Any,
    path: JsonPath = (),
) -> Iterator[JsonPath]:
    """Yield the path of a JSON value and the paths of all values in it."""
    yield path
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for step, child in children:
        yield from json_paths(child, (*path, step))


def with_value_at(value: Any, path: JsonPath, new: Any) -> Any:
    """Return a JSON value with another one at a path."""
    if not path:
        return new
    step, *rest = path
    changed = copy(value)
    changed[step] = with_value_at(value[step], tuple(rest), new)
    return changed
