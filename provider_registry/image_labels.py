"""Compares an image's labels with the registered descriptions of its components.

The labels have the numbered names of the standard: ``component.1.name``,
``component.1.parameter.2.type``, … Differences are warnings and never prevent a registration.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from provider_registry.model import Problem, Provider, as_text, bounded, join, shorten, texts
from provider_registry.revisions import parts_by_name
from provider_registry.values import json_of

MAX_LABELS = 20_000  # labels of one image that are read; further ones are ignored

_LABEL = "component.*"  # the name of the labels in messages
_NUMBERED = re.compile(
    r"component\.(\d{1,4})\.(?:(parameter|input|output)\.(\d{1,4})\.)?([A-Za-z_]{1,64})"
)
_FIELD_OF_KIND = {
    "parameter": "inputParam",
    "input": "inputData",
    "output": "outputData",
}
_FIELD_OF_LABEL = {"name": "componentName", "module_name": "componentName"}
# Fields with a list, which a label can only give as one text: with commas or as JSON.
_LISTS_AS_TEXT = ("roleList", "storageEngine", "dataFormat", "groupTag", "dependsOn")


def differences(
    labels: Mapping[str, str],
    provider: Provider,
    image: str,
) -> tuple[Problem, ...]:
    """Return a warning for each difference between an image's labels and the registration.

    ``image`` is the name of the image in the registration. The result is empty if no label names
    a component.
    """
    return bounded(_differences(labels, provider, image))


# ------------------------------------------------------------ labels -> descriptions


def _read_descriptions(labels: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Read numbered labels into descriptions by component name.

    Components and entries of lists without a name are left out.
    """
    documents: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    # (component's number, field) -> entry's number -> entry
    lists: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for label, value in list(labels.items())[:MAX_LABELS]:
        match = _NUMBERED.fullmatch(label)
        if match is None:
            continue
        component, kind, entry, field = match.groups()
        if kind is None:
            documents[component][_FIELD_OF_LABEL.get(field, field)] = value
        else:
            entries = lists.setdefault(
                (component, _FIELD_OF_KIND[kind]),
                {},
            )
            entries.setdefault(entry, {})[field] = value
    for (component, list_field), entries in lists.items():
        documents[component][list_field] = _named_entries(entries)
    return {
        document["componentName"]: document
        for document in documents.values()
        if "componentName" in document
    }


def _named_entries(entries: Mapping[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return the entries that have a name, in the order of their numbers."""
    numbers = sorted(entries, key=int)
    return [entries[number] for number in numbers if "name" in entries[number]]


# ------------------------------------------------------------ comparison


def _differences(
    labels: Mapping[str, str],
    provider: Provider,
    image: str,
) -> Iterator[Problem]:
    """Yield the warnings of `differences`, first those about components without labels."""
    labelled = _read_descriptions(labels)
    if not labelled:
        return
    registered = {
        name: component.document
        for name, component in provider.components.items()
        if provider.image_for(name) == image
    }
    yield from _unlabelled_components(labelled, registered, image)
    for name, document in labelled.items():
        path = join("components_description", name)
        if name in registered:
            yield from _compare(path, document, registered[name], image)
        else:
            rule = f"is not registered, though the label {_LABEL} of {image} names it"
            yield Problem(path, rule)


def _unlabelled_components(
    labelled: Mapping[str, Any], registered: Mapping[str, Any], image: str
) -> Iterator[Problem]:
    """Yield a warning for each registered component of the image that its labels do not name."""
    for name in registered:
        if name not in labelled:
            rule = f"is registered for {image}, whose label {_LABEL} does not name it"
            yield Problem(join("components_description", name), rule, name)


def _compare(
    path: str,
    labelled: Any,
    registered: Any,
    image: str,
) -> Iterator[Problem]:
    """Compare a labelled with a registered value, both at a path of the registration.

    Of an object, only the fields that a label gives are compared. Of a list, entries that the
    labels leave out are reported, too.
    """
    labelled_parts = parts_by_name(labelled)
    registered_parts = parts_by_name(registered)
    if labelled_parts is None or registered_parts is None:
        yield from _compare_values(path, labelled, registered, image)
    elif isinstance(registered, list):
        yield from _compare_entries(path, labelled_parts, registered_parts, image)
    else:
        for name, value in labelled_parts.items():
            yield from _compare(
                join(path, name),
                value,
                registered_parts.get(name),
                image,
            )


def _compare_entries(
    path: str,
    labelled: Mapping[str, Any],
    registered: Mapping[str, Any],
    image: str,
) -> Iterator[Problem]:
    """Compare the entries of a list by their names.

    Registered entries without a label are reported in a single problem.
    """
    for name, value in labelled.items():
        if name in registered:
            yield from _compare(f"{path}[{name}]", value, registered[name], image)
        else:
            rule = f"has no entry {shorten(name)}, which the label {_LABEL} of {image} describes"
            yield Problem(path, rule)
    missing = [name for name in registered if name not in labelled]
    if missing:
        rule = f"lists what the label {_LABEL} of {image} does not describe"
        yield Problem(path, rule, missing)


def _compare_values(
    path: str,
    labelled: Any,
    registered: Any,
    image: str,
) -> Iterator[Problem]:
    """Compare two values as texts, since a label can hold nothing else.

    At least one of the values has no parts that could be compared one by one.
    """
    field = path.rpartition(".")[2]
    if field in _LISTS_AS_TEXT:
        labelled = _list_of_texts(labelled)
        registered = _list_of_texts(registered)
    if _label_spelling(labelled) == _label_spelling(registered):
        return
    label_text = as_text(shorten(labelled))
    registered_text = as_text(shorten(registered))
    rule = f"is {registered_text} as registered and {label_text} in the label {_LABEL} of {image}"
    yield Problem(path, rule, registered)


def _list_of_texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a list, of its JSON text, or of a text with commas.

    Entries that are no texts are left out; empty without a value.
    """
    if isinstance(value, str):
        parsed = json_of(value)
        value = parsed if isinstance(parsed, list) else value.split(",")
    return texts([entry for entry in value or () if isinstance(entry, str)])


def _label_spelling(value: Any) -> str:
    """Return a value as a label would spell it, so that true equals "true"; "" for no value."""
    if value is None:
        return ""
    return as_text(value).strip()
