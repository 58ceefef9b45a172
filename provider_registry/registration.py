"""The bodies that register something, read into a `Provider`; and the form a provider is stored in.

Two requests exist: one provider with all its components, and one component with its image.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from provider_registry import description, lint, schema
from provider_registry.model import (
    MAX_COMPONENTS,
    MAX_PROBLEMS,
    ROOT,
    Component,
    InvalidDescription,
    Problem,
    Provider,
    bounded,
    join,
    refuse_unfit,
    shorten,
)

DEVICE = "docker"
PROTOCOL = "bfia"
PROTOCOLS = (PROTOCOL, "fate")
MAX_KEY = 255
CONTAINER_DEVICES = ("docker", "k8s")
"""devices that start an image, so that a registration for them has to name one"""

MAX_BYTES = 2 * 1024**2
"""of a body: a hundred components with their parameters take half a megabyte"""
MAX_COMMAS = 250_000
"""of a body: the parser blocks every other thread, for a time that goes with the number of values"""
MAX_DUPLICATES = 50

_REQUEST_FIELDS = schema.REGISTRATION.fields()
_STRING_OR_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,(?=\s*+[\]}])', re.DOTALL)
"""an unclosed text runs to the end, so that matching is linear"""


def read(text: bytes) -> tuple[Provider, bool]:
    """Read a body of either form: (provider, whether it was one component with its image).

    A trailing comma is a warning, as the standard's samples have it; a duplicate key is an error. Raises
    InvalidDescription.
    """
    if len(text) > MAX_BYTES:
        raise _refused(f"must not be longer than {MAX_BYTES} bytes")
    if text.count(b",") > MAX_COMMAS:
        raise _refused(f"must not hold more than {MAX_COMMAS} commas")
    commas = 0
    try:
        try:
            body = json.loads(text, object_pairs_hook=_each_once)
        except ValueError:  # a trailing comma, a duplicate key, or something else
            cleaned, commas = without_trailing_commas(text.decode())
            if duplicates := duplicate_keys(cleaned):
                raise InvalidDescription(tuple(duplicates)) from None
            body = json.loads(cleaned)
    except RecursionError:
        raise _refused("must not nest so deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or integers of thousands of digits
        raise _refused(f"must be JSON: {str(error)[:200]}") from None
    provider, single = read_value(body)
    if commas:
        many = f"{commas} commas" if commas > 1 else "a comma"
        warning = Problem(ROOT, f"has {many} before a closing bracket, which JSON does not allow; ignored")
        provider = replace(provider, warnings=bounded([warning, *provider.warnings]))
    return provider, single


def read_value(body: Any) -> tuple[Provider, bool]:
    """Do as `read` with a body that is parsed already."""
    single = isinstance(body, Mapping) and ("imageUrl" in body or "component_info" in body)
    return (provider_from_component if single else provider_from_request)(body), single


def without_trailing_commas(text: str) -> tuple[str, int]:
    """Return JSON without the commas before a closing bracket, and how many there were."""
    commas = 0

    def kept(found: re.Match[str]) -> str:
        nonlocal commas
        if found[0] != ",":
            return found[0]
        commas += 1
        return ""

    return _STRING_OR_COMMA.sub(kept, text), commas


def duplicate_keys(text: bytes | str) -> list[Problem]:
    """Return the duplicate keys in JSON, each with its path; a text that is not JSON has none."""
    try:
        document = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return []
    found: list[Problem] = []
    stack: list[tuple[str, Any]] = [("", document)]
    while stack and len(found) < MAX_DUPLICATES:
        path, value = stack.pop()
        if isinstance(value, _Pairs):
            seen: set[str] = set()
            for key, inner in value:
                if key in seen:
                    found.append(Problem(join(path, key), "duplicate key"))
                seen.add(key)
                stack.append((join(path, key), inner))
        elif isinstance(value, list):
            stack += [(join(path, number), inner) for number, inner in enumerate(value)]
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object as it is written."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


def _refused(rule: str) -> InvalidDescription:
    return InvalidDescription((Problem(ROOT, rule),))


def provider_from_request(body: Any) -> Provider:
    """Read ``{name, version, device, metadata, protocol, components_description}``.

    The outer name and version are the components' provider and version. Raises InvalidDescription with every
    problem of the body and of all descriptions in it.
    """
    refuse_unfit(body)
    problems = [
        *_of_another_form(body),
        *map(_by_name, schema.REGISTRATION.problems(body)),
        *_image_problems(body),
        *_too_long(body),
    ]
    described = body.get("components_description") if isinstance(body, Mapping) else None
    components: dict[str, Component] = {}
    warnings: list[Problem] = []
    if isinstance(described, Mapping) and len(described) <= MAX_COMPONENTS:
        outer = {part: body[part] for part in ("name", "version") if isinstance(body.get(part), str)}
        for key, document in described.items():
            if not isinstance(document, Mapping):
                continue
            if len(problems) > MAX_PROBLEMS:  # no more are reported
                break
            path = join("components_description", key)
            try:
                components[key], found = _component(key, document, path, outer)
                warnings += found
            except InvalidDescription as error:
                problems += error.problems
    if problems:
        raise InvalidDescription(bounded(problems))
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
        warnings=bounded([*_request_warnings(body), *warnings]),
    )


def provider_from_component(body: Any) -> Provider:
    """Read ``{imageUrl, component_info}`` into a provider that has this one component.

    `Registry.register_component` adds it to what the provider already has; the paths of the warnings are those
    of the component in its provider's document. Raises InvalidDescription, with paths of the body.
    """
    refuse_unfit(body)
    warnings: tuple[Problem, ...] = ()
    problems = [
        *schema.COMPONENT_REGISTRATION.problems(body),
        *_too_long(body.get("component_info") if isinstance(body, Mapping) else None, "provider"),
    ]
    read: Component | None = None
    info = body.get("component_info") if isinstance(body, Mapping) else None
    if isinstance(info, Mapping):
        try:
            read, warnings = description.component(info, "component_info")
        except InvalidDescription as error:
            known = {(p.path, p.rule) for p in problems}
            problems += [p for p in error.problems if (p.path, p.rule) not in known]
    if problems or read is None:
        raise InvalidDescription(bounded(problems))
    image, place = body["imageUrl"], join("components_description", read.name)
    return Provider(
        name=read.provider,
        version=read.version,
        device=DEVICE,
        protocol=PROTOCOL,
        image=image,
        base_url="",
        metadata={"image": image, "base_url": ""},
        components={read.name: read},
        warnings=tuple(w._replace(path=place + w.path.removeprefix("component_info")) for w in warnings),
    )


def from_document(document: Mapping[str, Any]) -> Provider:
    """Read a stored provider, `Provider.document`, without checking it again.

    Raises InvalidDescription if the value is not such a document.
    """
    try:
        name, version, metadata = document["name"], document["version"], document["metadata"]
        return Provider(
            name=name,
            version=version,
            device=document["device"],
            protocol=document["protocol"],
            image=metadata.get("image") or "",
            base_url=metadata.get("base_url") or "",
            metadata=dict(metadata),
            components={
                key: description.from_valid(described, provider=name, version=version)[0]
                for key, described in document["components_description"].items()
            },
            warnings=tuple(Problem(*warning) for warning in document["warnings"]),
            images=dict(document["images"]),
            digests=dict(document.get("digests") or {}),
            retired=bool(document.get("retired")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = Problem(ROOT, f"is not a stored provider: {error!r}", shorten(document))
        raise InvalidDescription((problem,)) from error


def _component(
    key: str, document: Mapping[str, Any], path: str, outer: Mapping[str, str]
) -> tuple[Component, tuple[Problem, ...]]:
    """Read the description under a key, which has to be its component's name."""
    warnings: tuple[Problem, ...] = ()
    if document.get("componentName") is None:
        warnings = (Problem(join(path, "componentName"), "is missing; its key is used"),)
        document = {**document, "componentName": key}
    elif document["componentName"] != key:
        wrong = Problem(join(path, "componentName"), f"must equal its key, {key[:64]}", document["componentName"])
        try:
            description.component(document, path)
        except InvalidDescription as error:
            raise InvalidDescription((wrong, *error.problems)) from None
        raise InvalidDescription((wrong,))
    read, found = description.component(document, path, provider=outer.get("name"), version=outer.get("version"))
    return read, (*warnings, *found)


def _of_another_form(body: Any) -> Iterator[Problem]:
    """Recognise one component's description where a provider is to be registered."""
    if isinstance(body, Mapping) and "components_description" not in body and "roleList" in body:
        rule = "is the description of one component, without a provider's name, version and image around it"
        form = '{"imageUrl": …, "component_info": <this>}, or under components_description by its componentName'
        yield Problem(ROOT, rule, None, form)


def _by_name(problem: Problem) -> Problem:
    """Show the form of ``components_description`` where it is of another shape, such as a list."""
    if problem.path != "components_description" or problem.suggestion:
        return problem
    return problem._replace(suggestion='{"<componentName>": {…}}')


def _image_problems(body: Any) -> Iterator[Problem]:
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    if not isinstance(metadata, Mapping) or "image" in metadata:
        return
    if body.get("device") in CONTAINER_DEVICES:
        yield Problem("metadata.image", "is missing")


def _too_long(body: Any, name: str = "name") -> Iterator[Problem]:
    """Bound the full name of a provider, which it is kept by."""
    if isinstance(body, Mapping):
        parts = (body.get(name), body.get("version"), body.get("device", DEVICE))
        length = sum(len(part) for part in parts if isinstance(part, str)) + 2
        if length > MAX_KEY:
            rule = f"must not be longer than {MAX_KEY} characters with version and device"
            yield Problem(name if name == "name" else join("component_info", name), rule, length)


def _request_warnings(body: Mapping[str, Any]) -> Iterator[Problem]:
    yield from lint.unknown_fields(body, _REQUEST_FIELDS, "")
    rule = "is none of {}; jobs look for providers on docker"
    yield from lint.none_of(body["device"], CONTAINER_DEVICES, "device", rule)
    yield from lint.none_of(body.get("protocol") or PROTOCOL, PROTOCOLS, "protocol")
    if not body.get("components_description"):
        yield Problem("components_description", "describes no component")
