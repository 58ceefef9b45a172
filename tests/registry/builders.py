"""Descriptions and registrations with defaults, so that a test names only what matters to it."""

from collections.abc import Iterator
from copy import copy
from typing import Any

from provider_registry import description, registration
from provider_registry.model import Component, InvalidDescription, Provider


def a_parameter(name: str = "p", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "type": "string",
        "optional": "true",
    } | changes


def a_data(name: str = "train_data", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "category": "dataset",
        "dataFormat": ["csv"],
    } | changes


def a_description(name: str = "Algo", **changes: Any) -> dict[str, Any]:
    return {
        "componentName": name,
        "title": name,
        "provider": "acme",
        "version": "1.0.0",
        "roleList": ["guest", "host"],
        "desVersion": "1.2.0",
        "storageEngine": ["s3"],
        "inputParam": [a_parameter()],
        "inputData": [a_data()],
        "outputData": [a_data(), a_data("model", category="model")],
        "result": [{"resultCode": "0", "resultMessage": "ok"}],
    } | changes


def a_request(*descriptions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "name": "acme",
        "device": "docker",
        "version": "1.0.0",
        "metadata": {"base_url": "", "image": "acme:1.0.0"},
        "protocol": "bfia",
        "components_description": {
            d["componentName"]: d for d in descriptions or (a_description(),)
        },
    } | changes


def a_component_request(
    name: str = "Algo",
    image: str = "acme:1.0.0",
    **changes: Any,
) -> dict[str, Any]:
    return {"imageUrl": image, "component_info": a_description(name, **changes)}


def a_component(*parameters: dict[str, Any], **changes: Any) -> Component:
    document = a_description(**changes)
    if parameters:
        document["inputParam"] = list(parameters)
    return description.component(document)[0]


def a_provider(*descriptions: dict[str, Any], **changes: Any) -> Provider:
    return registration.provider_from_request(a_request(*descriptions, **changes))


def refused(read: Any, body: Any) -> list[tuple[str, str]]:
    """Return path and rule of every problem that a reader refuses a body for; none if it does not."""
    try:
        read(body)
    except InvalidDescription as error:
        return [(p.path, p.rule) for p in error.problems]
    return []


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a JSON value, as the steps that lead to it."""
    yield path
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, child in children:
        yield from places(child, (*path, step))


def replaced(
    value: Any,
    path: tuple[Any, ...],
    new: Any,
) -> Any:
    """Return a JSON value with something else in one place."""
    if not path:
        return new
    made = copy(value)
    made[path[0]] = replaced(value[path[0]], path[1:], new)
    return made
