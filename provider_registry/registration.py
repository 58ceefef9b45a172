"""Reads registration requests and stored providers into a `Provider`.

Two requests exist: for a provider with all its components, and for one component with its image.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from provider_registry import description, foreign, lint, schema
from provider_registry.model import (
    DEVICES,
    MAX_COMPONENTS,
    MAX_PROBLEMS,
    MAX_VALUES,
    ROOT,
    Component,
    InvalidDescription,
    Problem,
    Provider,
    bounded,
    document_problem,
    join,
    shorten,
)

DEVICE = DEVICES[0]  # the device of a component that is registered alone, with its image
PROTOCOL = "bfia"  # the protocol of a registration that names none
PROTOCOLS = (PROTOCOL, "fate")
MAX_KEY = 255  # characters of a provider's key: name, version and device with their separators
# Different regular expressions in a registration; compiling one takes up to 12 ms. The published
# providers have less than twenty.
MAX_EXPRESSIONS = 200
# Bytes of a body; a hundred components with parameters take half a megabyte.
MAX_BYTES = 2 * 1024**2

# Values of a body that is parsed at all: parsing keeps other threads from running. Twice what
# `document_problem` allows, as empty lists and objects are counted twice here.
_MAX_PARSED_VALUES = 2 * MAX_VALUES
_MAX_CAUSE = 200  # characters of the parser's message that a problem repeats
_MAX_QUOTED_KEY = 64  # characters of a component's key that a problem repeats

_REQUEST_FIELDS = schema.REGISTRATION.fields()

# A string, or a comma before a closing bracket. An unclosed string runs to the end, so that
# matching is linear.
_STRING_OR_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,(?=\s*+[\]}])', re.DOTALL)

_BEFORE_VALUES = (
    b",",
    b":",
    b"[",
    b"{",
)
# The character before a value and, if the value is a text, all of the text: no character inside a
# text is counted.
_BEGIN_OF_VALUE = re.compile(rb'[\[{,:]\s*+(?:"(?:[^"\\]++|\\.)*+")?+', re.DOTALL)


def read(
    text: bytes,
    single: bool = False,
) -> tuple[Provider, bool]:
    """Read the body of a request.

    Returns the provider, and whether the request was for a single component.

    ``single`` says whether to read a single component if the body itself does not show which of the
    two forms it has. A trailing comma, as in the standard's samples, is a warning. Raises
    `InvalidDescription`.
    """
    body, trailing_comma = _parse(text)
    provider, single = read_value(body, single)
    if trailing_comma:
        rule = "has a comma before a closing bracket, which JSON does not allow; ignored"
        warnings = bounded([Problem(ROOT, rule), *provider.warnings])
        provider = replace(provider, warnings=warnings)
    return provider, single


def _parse(text: bytes) -> tuple[Any, bool]:
    """Parse JSON, also with trailing commas; return the value, and whether there were such commas.

    Raises `InvalidDescription`.
    """
    if len(text) > MAX_BYTES:
        raise _invalid(f"must not be longer than {MAX_BYTES} bytes")
    if _has_too_many_values(text):
        raise _invalid(f"must not hold more than {MAX_VALUES} values")
    try:
        try:
            return json.loads(text), False
        except ValueError:
            without_commas = _STRING_OR_COMMA.sub(_drop_comma, text.decode())
            return json.loads(without_commas), True
    except RecursionError:
        raise _invalid("must not nest so deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or integers of thousands of digits
        raise _invalid(f"must be JSON: {str(error)[:_MAX_CAUSE]}") from None


def _has_too_many_values(text: bytes) -> bool:
    """Return whether a JSON text has more values than are parsed."""
    characters = 0  # that may begin a value, though some may be inside texts
    for character in _BEFORE_VALUES:
        characters += text.count(character)
    if characters <= _MAX_PARSED_VALUES:
        return False
    # Counting, unlike parsing, gives way to other threads.
    values = enumerate(_BEGIN_OF_VALUE.finditer(text), 1)
    return any(number > _MAX_PARSED_VALUES for number, _ in values)


def _drop_comma(match: re.Match[str]) -> str:
    """Return a string unchanged, and nothing in place of a comma; see `_STRING_OR_COMMA`."""
    return match[0].removeprefix(",")


def read_value(
    body: Any,
    single: bool = False,
) -> tuple[Provider, bool]:
    """Read a body that is already parsed; arguments and result are those of `read`.

    Trailing commas are gone from a parsed body, so nothing warns of them. Raises
    `InvalidDescription`.
    """
    if _is_single(body, single):
        return provider_from_component(body), True
    return provider_from_request(body), False


def _is_single(body: Any, otherwise: bool) -> bool:
    """Return whether a body registers one component.

    Returns ``otherwise`` if the fields of the body do not show the answer.
    """
    match body:
        case {"imageUrl": _} | {"component_info": _}:
            return True
        case {"metadata": _}:
            return False
    return otherwise


def _invalid(rule: str) -> InvalidDescription:
    """Return the error of a body that breaks a rule as a whole."""
    return InvalidDescription((Problem(ROOT, rule),))


# ------------------------------------------------------------ a provider with its components


def provider_from_request(body: Any) -> Provider:
    """Read ``{name, version, device, metadata, protocol, components_description}``.

    The request's name and version are the provider and version of its components. Raises
    `InvalidDescription` with every problem of the body and of all descriptions in it.
    """
    oversized = document_problem(body)
    if oversized:
        raise InvalidDescription((oversized,))
    foreign_problems = foreign.registration_problems(body)
    if foreign_problems:
        raise InvalidDescription(bounded(foreign_problems))
    _check_expressions(_descriptions(body), "components_description")
    schema_problems = schema.REGISTRATION.problems(body)
    problems = [
        *_single_component_problems(body),
        *schema_problems,
        *_key_problems(body),
        *_missing_image(body),
    ]
    warnings: list[Problem] = []
    if not schema_problems:
        warnings += _request_warnings(body)
    components: dict[str, Component] = {}
    if isinstance(body, Mapping):
        components = _read_components(body, problems, warnings)
    if problems:
        raise InvalidDescription(bounded(problems), bounded(warnings))
    return _provider(body, components, bounded(warnings))


def _descriptions(body: Any) -> Iterable[Any]:
    """Return the descriptions in a request for a provider, which may break its schema."""
    match body:
        case {"components_description": {**components}}:
            return components.values()
    return ()


def _check_expressions(described: Iterable[Any], path: str) -> None:
    """Raise `InvalidDescription` for descriptions with too many different regular expressions.

    Nothing else is checked then, as that would compile them all.
    """
    expressions: set[str] = set()
    for document in described:
        expressions |= description.expressions(document)
    if len(expressions) > MAX_EXPRESSIONS:
        rule = f"must not have more than {MAX_EXPRESSIONS} different regular expressions"
        raise InvalidDescription((Problem(path, rule, len(expressions)),))


def _read_components(
    body: Mapping[str, Any],
    problems: list[Problem],
    warnings: list[Problem],
) -> dict[str, Component]:
    """Read the descriptions of a request; return the valid components by name.

    Problems and warnings of the descriptions are added to the two lists.
    """
    described = body.get("components_description")
    if not isinstance(described, Mapping) or len(described) > MAX_COMPONENTS:
        return {}
    registered = {}
    for field, value in (("provider", body.get("name")), ("version", body.get("version"))):
        if isinstance(value, str):
            registered[field] = value
    components = {}
    for key, document in described.items():
        if not isinstance(document, Mapping):
            continue
        if len(problems) > MAX_PROBLEMS:  # `bounded` leaves out all further ones
            break
        try:
            components[key], component_warnings = _read_component(key, document, registered)
            warnings += component_warnings
        except InvalidDescription as error:
            problems += error.problems
            warnings += error.warnings
    return components


def _read_component(
    key: str,
    document: Mapping[str, Any],
    registered: Mapping[str, str],
) -> tuple[Component, tuple[Problem, ...]]:
    """Read the description of one component; return it with its warnings.

    ``key`` is its key in the request, which its name has to equal; ``registered`` has the provider
    and version of the request. Raises `InvalidDescription`.
    """
    path = join("components_description", key)
    name_path = join(path, "componentName")
    name = document.get("componentName")
    name_problems: tuple[Problem, ...] = ()
    name_warnings: tuple[Problem, ...] = ()
    if name is None:
        document = {**document, "componentName": key}
        name_warnings = (Problem(name_path, "is missing; its key is used"),)
    elif name != key:
        name_problems = (Problem(name_path, f"must equal its key, {key[:_MAX_QUOTED_KEY]}", name),)
    try:
        component, warnings = description.component(document, path, **registered)
    except InvalidDescription as error:
        raise InvalidDescription((*name_problems, *error.problems), error.warnings) from None
    if name_problems:
        raise InvalidDescription(name_problems, warnings)
    return component, (*name_warnings, *warnings)


def _single_component_problems(body: Any) -> Iterator[Problem]:
    """Yield the problem of a request that is the description of one component.

    Nothing for any other request, nor for a value that is not an object.
    """
    rule = (
        "is the description of one component, without a provider's name, version and image "
        "around it"
    )
    form = (
        '{"imageUrl": …, "component_info": <this>}, '
        "or under components_description by its componentName"
    )
    match body:
        case {"components_description": _}:
            return
        case {"roleList": _}:
            yield Problem(ROOT, rule, suggestion=form)


def _missing_image(body: Any) -> Iterator[Problem]:
    """Yield a problem for a provider that names no image though it is for one of our devices.

    A request without valid metadata is left to the schema.
    """
    match body:
        case {"metadata": {"image": _}}:
            return
        # The pattern {} matches every object.
        case {"metadata": {}, "device": device} if device in DEVICES:
            yield Problem("metadata.image", "is missing")


def _key_problems(
    body: Any,
    path: str = "name",
) -> Iterator[Problem]:
    """Yield a problem if name, version and device are too long to be stored as the provider's key.

    ``path`` leads to the name in the request.
    """
    if not isinstance(body, Mapping):
        return
    name_field = path.rpartition(".")[2]
    parts = (
        body.get(name_field),
        body.get("version"),
        body.get("device", DEVICE),
    )
    separators = 2  # the characters : and @ of the key
    length = sum(len(part) for part in parts if isinstance(part, str)) + separators
    if length > MAX_KEY:
        rule = f"must not be longer than {MAX_KEY} characters with version and device"
        yield Problem(path, rule, length)


def _request_warnings(body: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the warnings about a request for a provider, not those about its descriptions."""
    yield from lint.unknown_fields(body, _REQUEST_FIELDS, "")
    rule = "is not {}: jobs that name this provider are refused here (PROVIDER_UNKNOWN)"
    yield from lint.unusual_value(body["device"], DEVICES, "device", rule)
    yield from lint.unusual_value(body.get("protocol") or PROTOCOL, PROTOCOLS, "protocol")
    yield from lint.image_name_problems(body["metadata"].get("image"), "metadata.image")
    if not body.get("components_description"):
        yield Problem("components_description", "describes no component")


# ------------------------------------------------------------ one component with its image


def provider_from_component(body: Any) -> Provider:
    """Read ``{imageUrl, component_info}`` into a provider that has this one component.

    `Registry.register_component` adds it to the provider's other components. Raises
    `InvalidDescription`. The paths of its problems, and of the warning about the image, are those
    of the body. The warnings about the description have the paths of the provider's document, with
    which they are stored.
    """
    oversized = document_problem(body)
    if oversized:
        raise InvalidDescription((oversized,))
    component_info = body.get("component_info") if isinstance(body, Mapping) else None
    _check_expressions([component_info], "component_info")
    problems = [
        *schema.COMPONENT_REGISTRATION.problems(body),
        *_key_problems(component_info, "component_info.provider"),
    ]
    if isinstance(component_info, Mapping):
        try:
            component, warnings = description.component(component_info, "component_info")
        except InvalidDescription as error:
            # The schema of the request has checked a part of the description already.
            reported = {(problem.path, problem.rule) for problem in problems}
            for problem in error.problems:
                if (problem.path, problem.rule) not in reported:
                    problems.append(problem)
    if problems:
        raise InvalidDescription(bounded(problems))
    # ``component`` and ``warnings`` are set: a body that could not be read has problems.
    image = body["imageUrl"]
    request = {
        "name": component.provider,
        "version": component.version,
        "device": DEVICE,
        "metadata": {"image": image, "base_url": ""},
    }
    all_warnings = [*lint.image_name_problems(image, "imageUrl")]
    component_path = join("components_description", component.name)
    for warning in warnings:
        path = component_path + warning.path.removeprefix("component_info")
        all_warnings.append(warning._replace(path=path))
    return _provider(
        request,
        {component.name: component},
        tuple(all_warnings),
    )


# ------------------------------------------------------------ a stored provider


def from_document(document: Mapping[str, Any]) -> Provider:
    """Read a stored provider, the result of `Provider.document`, without checking it again.

    Raises `InvalidDescription` if the value is not such a document.
    """
    try:
        name = document["name"]
        version = document["version"]
        components = {}
        for key, described in document["components_description"].items():
            component, _ = description.from_valid(
                described,
                provider=name,
                version=version,
            )
            components[key] = component
        warnings = tuple(Problem(*warning) for warning in document["warnings"])
        return replace(
            _provider(document, components, warnings),
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
    """Return the provider of a valid request or stored document, with its components.

    The images of single components, approved digests and retirement are left at their defaults.
    """
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
