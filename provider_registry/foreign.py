"""Recognises descriptions written for other platforms: FATE, SecretFlow and Kuscia.

They are refused with a problem for each field, which suggests the field's counterpart here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from provider_registry.model import ROOT, Problem, join, shorten

# The rules that a field of another platform breaks: one with a counterpart here, one without.
_HAS_COUNTERPART = "is written otherwise here"
_NO_COUNTERPART = "has no counterpart here: leave it out"
_REGISTRATION = (
    "{name, version, device, metadata: {image}, components_description: {<component>: {…}}}"
)
_PARAMETERS = "inputParam: [{name, type, optional, defaultValue, bindingData, …}]"
_INPUTS = "inputData: [{name, category, dataFormat}]"
_OUTPUTS = "outputData: [{name, category, dataFormat}]"
_FATE_OUTPUTS = f"{_OUTPUTS}; category dataset for data, model for model, report for metric"
_SECRETFLOW_OUTPUTS = (
    f"{_OUTPUTS}; category dataset for sf.table, model for sf.model, report for sf.report"
)

# Path of a field on another platform -> the field here that means the same, as a suggestion to the
# vendor; "" if no field here means the same.
Counterparts = Mapping[str, str]

_FATE_COMPONENT: Counterparts = {
    "name": "componentName, which is also its key below components_description",
    "provider": "name of the registration",
    "version": "version of the registration",
    "description": "description",
    "roles": "roleList",
    "parameters": _PARAMETERS,
    "input_artifacts": f"{_INPUTS}; category dataset for data, model for model",
    "output_artifacts": _FATE_OUTPUTS,
    "labels": "",
}
_SECRETFLOW_COMPONENT: Counterparts = {
    "name": "componentName, which is also its key below components_description",
    "desc": "description",
    "version": "version of the registration",
    "attrs": f"{_PARAMETERS}; allowedValues are its bindingData",
    "inputs": f"{_INPUTS}; category dataset for sf.table, model for sf.model",
    "outputs": _SECRETFLOW_OUTPUTS,
    "domain": "",
}
_APP_IMAGE: Counterparts = {
    "metadata.name": "name",
    "spec.image.tag": "version",
    "spec.deployTemplates[0].role": "roleList of each component",
    "spec.deployTemplates[0].spec.containers[0].command": "the image's own ENTRYPOINT",
    "spec.deployTemplates[0].spec.containers[0].ports": "",
    "spec.deployTemplates[0].replicas": "",
    "spec.configTemplates": "nothing: a container gets all that it needs as variables",
}


def registration_problems(body: Any) -> list[Problem]:
    """Return the changes that turn a description of another platform into a registration.

    ``body`` is the body of a request to register a provider. The list is empty for one in our own
    form or in an unknown form.
    """
    match body:
        case {"components_description": _}:  # our own form
            return []
        case {"component": _} if is_fate_component(body):
            return _fate_registration_problems(body)
        case {"comps": list(components)}:
            return _secretflow_registration_problems(components)
        case {"kind": "AppImage"}:
            return _app_image_problems(body)
    return []


def description_problems(document: Any, path: str) -> list[Problem]:
    """Return the changes that turn the description of one component into the standard's format.

    ``path`` is the description's path in a registration. The list is empty unless the description
    is one of FATE's or of SecretFlow's.
    """
    if is_fate_component(document):
        document = document["component"]
        path = join(path, "component")
    problem_path = path or ROOT
    match document:
        case {"inputParam": _}:  # our own form
            return []
        case {"input_artifacts": _} | {"output_artifacts": _}:
            problem = Problem(problem_path, "is a component description of FATE 2.x")
            return [problem, *_field_problems(document, _FATE_COMPONENT, path)]
        case {"attrs": list(), "inputs": _}:
            problem = Problem(problem_path, "is a component of SecretFlow")
            fields = _field_problems(document, _SECRETFLOW_COMPONENT, path)
            return [problem, *fields, _missing_roles(path)]
    return []


def is_fate_component(document: Any) -> bool:
    """Return whether a document is ``{component: …}``, as FATE 2.x describes a component."""
    match document:
        case {"component": {"input_artifacts": _} | {"roles": _}}:
            return True
    return False


# ------------------------------------------------------------ whole documents


def _fate_registration_problems(body: Mapping[str, Any]) -> list[Problem]:
    """Return the changes for the description of one component of FATE."""
    return [
        _form_problem("is a component description of FATE 2.x, not a registration"),
        *_field_problems(body["component"], _FATE_COMPONENT, "component"),
        _missing_image("FATE"),
    ]


def _secretflow_registration_problems(components: list[Any]) -> list[Problem]:
    """Return the changes for SecretFlow's list of components; its first one is the example."""
    example: Any = next(iter(components), {})
    return [
        _form_problem("is a component list of SecretFlow, not a registration"),
        *_field_problems(example, _SECRETFLOW_COMPONENT, "comps[0]"),
        _missing_roles("comps[0]"),
        _missing_image("SecretFlow"),
    ]


def _app_image_problems(body: Mapping[str, Any]) -> list[Problem]:
    """Return the changes for an AppImage of Kuscia."""
    rule = (
        "is missing: an AppImage describes no components, with their roles, parameters, "
        "inputs and outputs"
    )
    return [
        _form_problem("is an AppImage of Kuscia, not a registration"),
        *_field_problems(body, _APP_IMAGE, ""),
        *_app_image_reference(body),
        Problem("components_description", rule),
    ]


# ------------------------------------------------------------ single problems


def _form_problem(rule: str) -> Problem:
    """Return the problem of a whole body, with the form of a registration as the suggestion."""
    return Problem(ROOT, rule, suggestion=_REGISTRATION)


def _field_problems(
    document: Any,
    counterparts: Counterparts,
    path: str,
) -> Iterator[Problem]:
    """Yield a problem for each field of another platform that a document has.

    ``path`` is that of the document in the request; "" for the request itself.
    """
    for field, counterpart in counterparts.items():
        value = _value_at(document, field)
        if value is None:
            continue
        rule = _HAS_COUNTERPART if counterpart else _NO_COUNTERPART
        yield Problem(
            f"{path}.{field}".lstrip("."),  # an empty path leaves a dot in front
            rule,
            shorten(value),
            counterpart,
        )


def _value_at(document: Any, path: str) -> Any:
    """Return the value at a path such as ``spec.containers[0].ports``; None if there is none.

    ``[0]`` is the first entry of a list, the only one that such a path can name.
    """
    value = document
    for step in path.replace("[0]", ".0").split("."):
        if step == "0" and isinstance(value, list):
            value = next(iter(value), None)
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            return None
    return value


def _app_image_reference(body: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of an AppImage's image, which is one reference here: name and tag.

    Nothing for an image without a name, which gives no reference.
    """
    image = _value_at(body, "spec.image")
    if not isinstance(image, Mapping) or not isinstance(image.get("name"), str):
        return
    reference = image["name"]
    if isinstance(image.get("tag"), str):
        reference += f":{image['tag']}"
    yield Problem(
        "spec.image",
        _HAS_COUNTERPART,
        shorten(image),
        suggestion=f"metadata.image: {reference}",
    )


def _missing_image(platform: str) -> Problem:
    """Return the problem of a description that does not name the component's image."""
    rule = f"is missing: {platform} describes a component without its image"
    return Problem("metadata.image", rule)


def _missing_roles(path: str) -> Problem:
    """Return the problem of a component of SecretFlow, at a path, that does not name its roles."""
    rule = "is missing: SecretFlow describes a component without its roles"
    return Problem(join(path, "roleList"), rule, suggestion='["guest", "host"]')
