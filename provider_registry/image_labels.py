"""Compares an image's labels with the registered descriptions of its components.

Read are the numbered names of the standard, ``component.1.name``, ``component.1.parameter.2.type``, …, as far as
they go. Labels never refuse a registration.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from provider_registry.model import Problem, Provider, as_text, bounded, join, shorten, texts
from provider_registry.registry import parts
from provider_registry.values import json_of

_MOST_LABELS = 20_000
_NUMBERED = re.compile(
    r"component\.(\d{1,4})\.(?:(parameter|input|output)\.(\d{1,4})\.)?([A-Za-z_]{1,64})"
)
_LISTS = {
    "parameter": "inputParam",
    "input": "inputData",
    "output": "outputData",
}
_TOP = {"name": "componentName", "module_name": "componentName"}
_LABEL = "component.*"
_SPELLED_LISTS = ("roleList", "storageEngine", "dataFormat", "groupTag", "dependsOn")
"""fields that a label can only give as one text, with commas or as JSON"""


def differences(
    labels: Mapping[str, str],
    provider: Provider,
    image: str,
) -> tuple[Problem, ...]:
    """Return a warning for each place where an image's labels differ from what is registered."""
    return bounded(_differences(labels, provider, image))


def _differences(
    labels: Mapping[str, str],
    provider: Provider,
    image: str,
) -> Iterator[Problem]:
    here = {name: c for name, c in provider.components.items() if provider.image_for(name) == image}
    labelled = _numbered(labels)
    for name in here.keys() - labelled.keys() if labelled else ():
        rule = f"is registered for {image}, whose label {_LABEL} does not name it"
        yield Problem(join("components_description", name), rule, name)
    for name, document in labelled.items():
        path = join("components_description", name)
        if name in here:
            yield from _compared(path, document, here[name].document, image)
        else:
            yield Problem(
                path, f"is not registered, though the label {_LABEL} of {image} names it", None
            )


def _compared(
    path: str,
    labelled: Any,
    registered: Any,
    image: str,
) -> Iterator[Problem]:
    """Compare what a label gives; what it leaves out is not compared, except entries of a list."""
    there, here = parts(labelled), parts(registered)
    if there is not None and here is not None:
        listed = isinstance(registered, list)
        for name, value in there.items():
            if listed and name not in here:
                rule = (
                    f"has no entry {shorten(name)}, which the label {_LABEL} of {image} describes"
                )
                yield Problem(path, rule, None)
            else:
                at = f"{path}[{name}]" if listed else join(path, name)
                yield from _compared(at, value, here.get(name), image)
        if listed and (missing := [name for name in here if name not in there]):
            yield Problem(
                path, f"lists what the label {_LABEL} of {image} does not describe", missing
            )
        return
    if path.rpartition(".")[2] in _SPELLED_LISTS:
        labelled, registered = _texts(labelled), _texts(registered)
    if _plain(labelled) != _plain(registered):
        label, own = (as_text(shorten(value)) for value in (labelled, registered))
        rule = f"is {own} as registered and {label} in the label {_LABEL} of {image}"
        yield Problem(path, rule, registered)


def _numbered(labels: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Read the standard's numbered names into descriptions; entries without a name are left out."""
    tops: dict[str, dict[str, Any]] = {}
    parts: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for label, value in list(labels.items())[:_MOST_LABELS]:
        match = _NUMBERED.fullmatch(label)
        if match is None:
            continue
        component, kind, part, entry = match.groups()
        top = tops.setdefault(component, {})
        if kind is None:
            top[_TOP.get(entry, entry)] = value
        else:
            parts.setdefault((component, _LISTS[kind]), {}).setdefault(part, {})[entry] = value
    for (component, field), entries in parts.items():
        tops[component][field] = [
            entry
            for _, entry in sorted(entries.items(), key=lambda e: int(e[0]))
            if "name" in entry
        ]
    return {top["componentName"]: top for top in tops.values() if "componentName" in top}


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = json_of(value) if isinstance(json_of(value), list) else value.split(",")
    return texts([v for v in value or () if isinstance(v, str)])


def _plain(value: Any) -> str:
    """Return a value as labels spell it, so that true and "true" are the same."""
    return "" if value is None else as_text(value).strip()
