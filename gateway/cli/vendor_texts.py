"""Texts of vendors in the language in use, where a description has them in several languages."""

from collections.abc import Mapping
from typing import Any

from gateway.cli.language import language_in_use


def described(document: Mapping[str, Any], name: str) -> str:
    """Return a text of a description, such as ``title_en`` for its ``title``; "" without one."""
    return str(document.get(f"{name}_{language_in_use()}") or document.get(name) or "")


def of_field(field: Mapping[str, Any], name: str) -> str:
    """Return the ``title`` or ``description`` of a parameter; "" without one.

    ``field``: the parameter in the JSON Schema of its component.
    """
    return str(_translations(field).get(name) or field.get(name) or "")


def labels_of(field: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of a parameter's choices, by the choice; empty without any."""
    labels: Mapping[str, str] = field["x-bfia"].get("labels", {})
    translated_labels: Mapping[str, str] = _translations(field).get("labels", {})
    return {**labels, **translated_labels}


def _translations(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter's texts in the language in use; empty without any."""
    by_language: Mapping[str, Any] = field["x-bfia"].get("translations", {})
    texts: Mapping[str, Any] = by_language.get(language_in_use(), {})
    return texts
