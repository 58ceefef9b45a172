"""Descriptions written for another platform: whose they are, and field by field what is written here instead."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provider_registry.model import ROOT, Problem, join, shorten

_ELSEWHERE = "is written otherwise here"
_NOWHERE = "has no counterpart here: leave it out"
_REGISTRATION = (
    "{name, version, device, metadata: {image}, components_description: {<component>: {…}}}"
)
_PARAMETERS = "inputParam: [{name, type, optional, defaultValue, bindingData, …}]"
_INPUTS = "inputData: [{name, category, dataFormat}]"
_OUTPUTS = "outputData: [{name, category, dataFormat}]"

Row = tuple[str, str]
"""a field of the other form, and what is written here instead; empty: nothing"""

_FATE_COMPONENT: Sequence[Row] = (
    ("name", "componentName, which is also its key below components_description"),
    ("provider", "name of the registration"),
    ("version", "version of the registration"),
    ("description", "description"),
    ("roles", "roleList"),
    ("parameters", _PARAMETERS),
    ("input_artifacts", f"{_INPUTS}; category dataset for data, model for model"),
    (
        "output_artifacts",
        f"{_OUTPUTS}; category dataset for data, model for model, report for metric",
    ),
    ("labels", ""),
)
_SECRETFLOW_COMPONENT: Sequence[Row] = (
    ("name", "componentName, which is also its key below components_description"),
    ("desc", "description"),
    ("version", "version of the registration"),
    ("attrs", f"{_PARAMETERS}; allowedValues are its bindingData"),
    ("inputs", f"{_INPUTS}; category dataset for sf.table, model for sf.model"),
    (
        "outputs",
        f"{_OUTPUTS}; category dataset for sf.table, model for sf.model, report for sf.report",
    ),
    ("domain", ""),
)
_APP_IMAGE: Sequence[Row] = (
    ("metadata.name", "name"),
    ("spec.image.tag", "version"),
    ("spec.deployTemplates[0].role", "roleList of each component"),
    ("spec.deployTemplates[0].spec.containers[0].command", "the image's own ENTRYPOINT"),
    ("spec.deployTemplates[0].spec.containers[0].ports", ""),
    ("spec.deployTemplates[0].replicas", ""),
    ("spec.configTemplates", "nothing: a container gets all that it needs as variables"),
)


def registration_problems(body: Any) -> list[Problem]:
    """Return what has to be written instead of a description of another platform; nothing for any other body."""
    if not isinstance(body, Mapping) or "components_description" in body:
        return []
    if is_fate_component(body):
        inner = [*_mapped(body["component"], _FATE_COMPONENT, "component"), _without_image("FATE")]
        return [_root("is a component description of FATE 2.x, not a registration"), *inner]
    components = body.get("comps")
    if isinstance(components, list):
        first = components[0] if components else {}
        inner = [*_mapped(first, _SECRETFLOW_COMPONENT, "comps[0]"), _without_roles("comps[0]")]
        inner.append(_without_image("SecretFlow"))
        return [_root("is a component list of SecretFlow, not a registration"), *inner]
    if body.get("kind") == "AppImage":
        inner = [*_mapped(body, _APP_IMAGE, ""), *_image_of(body), _without_components()]
        return [_root("is an AppImage of Kuscia, not a registration"), *inner]
    return []


def description_problems(document: Any, path: str) -> list[Problem]:
    """Do the same for one component's description, which stands at a path of a registration."""
    if is_fate_component(document):
        document, path = document["component"], join(path, "component")
    if not isinstance(document, Mapping) or "inputParam" in document:
        return []
    if "input_artifacts" in document or "output_artifacts" in document:
        problem = Problem(path or ROOT, "is a component description of FATE 2.x")
        return [problem, *_mapped(document, _FATE_COMPONENT, path)]
    if isinstance(document.get("attrs"), list) and "inputs" in document:
        problem = Problem(path or ROOT, "is a component of SecretFlow")
        return [problem, *_mapped(document, _SECRETFLOW_COMPONENT, path), _without_roles(path)]
    return []


def is_fate_component(document: Any) -> bool:
    """Tell whether a document is what FATE's components describe themselves by."""
    inner = document.get("component") if isinstance(document, Mapping) else None
    return isinstance(inner, Mapping) and ("input_artifacts" in inner or "roles" in inner)


def _root(rule: str) -> Problem:
    return Problem(ROOT, rule, None, _REGISTRATION)


def _mapped(
    document: Any,
    rows: Sequence[Row],
    path: str,
) -> Iterator[Problem]:
    """Yield a problem for each field of the other form that a document has."""
    for field, instead in rows:
        value = _at(document, field)
        if value is not None:
            at = f"{path}.{field}" if path else field
            yield Problem(at, _ELSEWHERE if instead else _NOWHERE, shorten(value), instead)


def _at(document: Any, field: str) -> Any:
    """Return what stands at a path such as ``spec.containers[0].ports``; None where there is nothing."""
    value = document
    for step in field.replace("[0]", ".0").split("."):
        if step == "0" and isinstance(value, list) and value:
            value = value[0]
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            return None
    return value


def _image_of(body: Mapping[str, Any]) -> Iterator[Problem]:
    image = _at(body, "spec.image")
    if isinstance(image, Mapping) and isinstance(image.get("name"), str):
        tag = f":{image['tag']}" if isinstance(image.get("tag"), str) else ""
        yield Problem(
            "spec.image", _ELSEWHERE, shorten(image), f"metadata.image: {image['name']}{tag}"
        )


def _without_image(platform: str) -> Problem:
    return Problem(
        "metadata.image", f"is missing: {platform} describes a component without its image"
    )


def _without_roles(path: str) -> Problem:
    rule = "is missing: SecretFlow describes a component without its roles"
    return Problem(join(path, "roleList"), rule, None, '["guest", "host"]')


def _without_components() -> Problem:
    rule = "is missing: an AppImage describes no components, with their roles, parameters, inputs and outputs"
    return Problem("components_description", rule)
