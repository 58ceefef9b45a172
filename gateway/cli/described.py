"""Descriptions of components, for commands: from a node, or from a registration's file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, connect, read_object
from gateway.cli.providers import path_of

if TYPE_CHECKING:
    from provider_registry.model import Component

Components = Mapping[str, "Component"]
"""by name"""


def components_of(name: str, config: Path, url: str) -> Components:
    """Return the components of a provider by its name, perhaps in part, or of a registration's file.

    Raises `CallFailed`.
    """
    if os.path.isfile(name):  # False, too, for what is too long to be a file's name
        return from_file(Path(name))
    with connect(config, url) as node:
        return from_node(node, name)


def from_file(file: Path) -> Components:
    """Read a registration from a file. Raises `CallFailed` with every problem of it."""
    from provider_registry.model import InvalidDescription
    from provider_registry.registration import provider_from_component, provider_from_request

    body = read_object(file)
    try:
        return (provider_from_component(body) if "imageUrl" in body else provider_from_request(body)).components
    except InvalidDescription as error:
        text = "\n".join([f"{file} would be refused:", *(f"  {p}" for p in error.problems)])
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID") from None


def from_node(node: Client, name: str) -> Components:
    """Read what a node has registered. Raises `CallFailed` where the name does not stand for one provider."""
    from provider_registry import describe

    found = node.get(path_of(node, name))
    return {
        key: describe.component(document, provider=found["name"], version=found["version"])[0]
        for key, document in found["components_description"].items()
    }


def chosen(components: Components, component: str, provider: str) -> "Component":
    """Return the component of that name; where none is named, the only one. Raises `CallFailed`."""
    if component in components:
        return components[component]
    if not component and len(components) == 1:
        return next(iter(components.values()))
    there = ", ".join(components) or "none"
    text = f"{provider} has no component {component}" if component else f"say which component of {provider}"
    raise CallFailed(f"{text}; there are: {there}", EXIT_BAD_INPUT, "COMPONENT_UNKNOWN")
