"""The request that registers this image with a platform: the descriptions of its components."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def registration() -> dict[str, Any]:
    """Return the body of ``POST /v2/provider/register``."""
    text = files("refvendor").joinpath("registration.json").read_text(encoding="utf-8")
    body: dict[str, Any] = json.loads(text)
    return body


def description(name: str) -> dict[str, Any]:
    """Return the description of a component. Raises `KeyError` if this image does not have it."""
    value: dict[str, Any] = registration()["components_description"][name]
    return value


def as_text(value: Any) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
