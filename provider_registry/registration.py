"""The bodies that register something, read into a `Provider`; and the form a provider is stored in.

Two requests exist: one provider with all its components, and one component with its image.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from provider_registry import description, foreign, lint, schema
from provider_registry.model import (
    DEVICES,
    MAX_COMPONENTS,
    MAX_PROBLEMS,
    ROOT,
    Component,
    InvalidDescription,
    Problem,
    Provider,
    bounded,
    join,
    shorten,
    unfit,
)

DEVICE = DEVICES[0]
PROTOCOL = "bfia"
PROTOCOLS = (PROTOCOL, "fate")
MAX_KEY = 255
MAX_BYTES = 2 * 1024**2
"""of a body: a hundred components with their parameters take half a megabyte"""

_REQUEST_FIELDS = schema.REGISTRATION.fields()
_STRING_OR_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,(?=\s*+[\]}])', re.DOTALL)
"""an unclosed text runs to the end, so that matching is linear"""


def read(text: bytes, single: bool = False) -> tuple[Provider, bool]:
    """Read a body of either form: (provider, whether it was one component with its image).

    ``single``: it was one where it does not show which of the two it is.

    A trailing comma is a warning, as the standard's samples have it. Raises InvalidDescription.
    """
    if len(text) > MAX_BYTES:
        raise _refused(f"must not be longer than {MAX_BYTES} bytes")
    trailing = False
    try:
        try:
            body = json.loads(text)
        except ValueError:  # a trailing comma, or something else
            trailing = True
            cleaned = _STRING_OR_COMMA.sub(lambda found: found[0].removeprefix(","), text.decode())
            body = json.loads(cleaned)
    except RecursionError:
        raise _refused("must not nest so deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or integers of thousands of digits
        raise _refused(f"must be JSON: {str(error)[:200]}") from None
    provider, single = read_value(body, single)
    if trailing:
        warning = Problem(
            ROOT, "has a comma before a closing bracket, which JSON does not allow; ignored"
        )
        provider = replace(provider, warnings=bounded([warning, *provider.warnings]))
    return provider, single


def read_value(body: Any, single: bool = False) -> tuple[Provider, bool]:
    """Do as `read` with a body that is parsed already."""
    keys = body.keys() if isinstance(body, Mapping) else frozenset()
    single = not keys.isdisjoint(("imageUrl", "component_info")) or (
        single and "metadata" not in keys
    )
    return (provider_from_component if single else provider_from_request)(body), single


def _refused(rule: str) -> InvalidDescription:
    return InvalidDescription((Problem(ROOT, rule),))


def provider_from_request(body: Any) -> Provider:
    """Read ``{name, version, device, metadata, protocol, components_description}``.

    The outer name and version are the components' provider and version. Raises InvalidDescription with every
    problem of the body and of all descriptions in it.
    """
    if problem := unfit(body):
        raise InvalidDescription((problem,))
    if of_another_platform := foreign.registration_problems(body):
        raise InvalidDescription(bounded(of_another_platform))
    wrong = schema.REGISTRATION.problems(body)
    problems = [*_of_another_form(body), *wrong, *_too_long(body)]
    components: dict[str, Component] = {}
    warnings = [] if wrong else [*_request_warnings(body)]
    if isinstance(body, Mapping):
        metadata, described = body.get("metadata"), body.get("components_description")
        if (
            isinstance(metadata, Mapping)
            and "image" not in metadata
            and body.get("device") in DEVICES
        ):
            problems.append(Problem("metadata.image", "is missing"))
        names = {"provider": body.get("name"), "version": body.get("version")}
        outer = {field: name for field, name in names.items() if isinstance(name, str)}
        few = isinstance(described, Mapping) and len(described) <= MAX_COMPONENTS
        for key, document in (described or {}).items() if few else ():
            if (
                isinstance(document, Mapping) and len(problems) <= MAX_PROBLEMS
            ):  # no more are reported
                try:
                    components[key], found = _component(key, document, outer)
                    warnings += found
                except InvalidDescription as error:
                    problems += error.problems
                    warnings += error.warnings
    if problems:
        raise InvalidDescription(bounded(problems), bounded(warnings))
    return _provider(body, components, bounded(warnings))


def provider_from_component(body: Any) -> Provider:
    """Read ``{imageUrl, component_info}`` into a provider that has this one component.

    `Registry.register_component` adds it to what the provider already has; the paths of the warnings are those
    of the component in its provider's document. Raises InvalidDescription, with paths of the body.
    """
    if problem := unfit(body):
        raise InvalidDescription((problem,))
    info = body.get("component_info") if isinstance(body, Mapping) else None
    problems = [
        *schema.COMPONENT_REGISTRATION.problems(body),
        *_too_long(info, "component_info.provider"),
    ]
    if isinstance(info, Mapping):
        try:
            read, warnings = description.component(info, "component_info")
        except InvalidDescription as error:
            known = {(p.path, p.rule) for p in problems}
            problems += [p for p in error.problems if (p.path, p.rule) not in known]
    if problems:
        raise InvalidDescription(bounded(problems))
    place = join("components_description", read.name)
    return _provider(
        {
            "name": read.provider,
            "version": read.version,
            "device": DEVICE,
            "metadata": {"image": body["imageUrl"], "base_url": ""},
        },
        {read.name: read},
        (
            *lint.image_name_problems(body["imageUrl"], "imageUrl"),
            *(w._replace(path=place + w.path.removeprefix("component_info")) for w in warnings),
        ),
    )


def from_document(document: Mapping[str, Any]) -> Provider:
    """Read a stored provider, `Provider.document`, without checking it again.

    Raises InvalidDescription if the value is not such a document.
    """
    try:
        name, version = document["name"], document["version"]
        components = {
            key: description.from_valid(described, provider=name, version=version)[0]
            for key, described in document["components_description"].items()
        }
        return replace(
            _provider(
                document, components, tuple(Problem(*warning) for warning in document["warnings"])
            ),
            images=dict(document["images"]),
            digests=dict(document.get("digests") or {}),
            retired=bool(document.get("retired")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = Problem(ROOT, f"is not a stored provider: {error!r}", shorten(document))
        raise InvalidDescription((problem,)) from error


def _provider(
    body: Mapping[str, Any],
    components: Mapping[str, Component],
    warnings: tuple[Problem, ...],
) -> Provider:
    metadata = body["metadata"]
    return Provider(
        name=body["name"],
        version=body["version"],
        device=body["device"],
        protocol=body.get("protocol") or PROTOCOL,
        image=metadata.get("image") or "",
        base_url=metadata.get("base_url") or "",
        metadata=dict(metadata),
        components=components,
        warnings=warnings,
    )


def _component(
    key: str,
    document: Mapping[str, Any],
    outer: Mapping[str, str],
) -> tuple[Component, tuple[Problem, ...]]:
    """Read the description under a key, which has to be its component's name."""
    path = join("components_description", key)
    at, name = join(path, "componentName"), document.get("componentName")
    wrong = () if name in (None, key) else (Problem(at, f"must equal its key, {key[:64]}", name),)
    try:
        named = {**document, "componentName": key if name is None else name}
        read, found = description.component(named, path, **outer)
    except InvalidDescription as error:
        raise InvalidDescription((*wrong, *error.problems), error.warnings) from None
    if wrong:
        raise InvalidDescription(wrong, found)
    return read, found if name is not None else (Problem(at, "is missing; its key is used"), *found)


def _of_another_form(body: Any) -> Iterator[Problem]:
    """Recognise one component's description where a provider is to be registered."""
    if isinstance(body, Mapping) and "components_description" not in body and "roleList" in body:
        rule = "is the description of one component, without a provider's name, version and image around it"
        form = '{"imageUrl": …, "component_info": <this>}, or under components_description by its componentName'
        yield Problem(ROOT, rule, None, form)


def _too_long(body: Any, name: str = "name") -> Iterator[Problem]:
    """Bound the full name of a provider, which it is kept by."""
    if isinstance(body, Mapping):
        parts = (body.get(name.rpartition(".")[2]), body.get("version"), body.get("device", DEVICE))
        length = sum(len(part) for part in parts if isinstance(part, str)) + 2
        if length > MAX_KEY:
            yield Problem(
                name,
                f"must not be longer than {MAX_KEY} characters with version and device",
                length,
            )


def _request_warnings(body: Mapping[str, Any]) -> Iterator[Problem]:
    yield from lint.unknown_fields(body, _REQUEST_FIELDS, "")
    rule = "is not {}: jobs that name this provider are refused here (PROVIDER_UNKNOWN)"
    yield from lint.unusual_value(body["device"], DEVICES, "device", rule)
    yield from lint.unusual_value(body.get("protocol") or PROTOCOL, PROTOCOLS, "protocol")
    yield from lint.image_name_problems(body["metadata"].get("image") or "", "metadata.image")
    if not body.get("components_description"):
        yield Problem("components_description", "describes no component")
