"""The descriptions of this image's components, and the request that registers them with a platform."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from refvendor import IMAGE, PROVIDER, VERSION

COMPONENTS = ("Intersection", "HeteroLR", "HeteroSecureBoost")


def description(name: str) -> dict[str, Any]:
    """The self-description of a component. Raises `KeyError` for an unknown one."""
    if name not in COMPONENTS:
        raise KeyError(name)
    text = files("refvendor").joinpath("descriptors", f"{name}.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def registration() -> dict[str, Any]:
    """The body of ``POST /v2/provider/register``."""
    return {
        "name": PROVIDER,
        "device": "docker",
        "version": VERSION,
        "metadata": {"base_url": "", "image": IMAGE},
        "protocol": "bfia",
        "components_description": {name: description(name) for name in COMPONENTS},
    }


def as_text(value: Any) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
