"""The components of this image, by name and role."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from refvendor.contract import Component, Io, Log, Net, Task


def _lazy_roles(module: str, *roles: str) -> Mapping[str, Component]:
    """Return the functions of a component's module by role."""
    return {role: _lazy(module, role) for role in roles}


def _lazy(module: str, role: str) -> Component:
    """Return a component that imports its module when it runs, so that Intersection does not load
    numpy.
    """

    def run(
        task: Task,
        io: Io,
        net: Net,
        log: Log,
    ) -> None:
        component: Component = getattr(import_module(f"refvendor.components.{module}"), role)
        component(task, io, net, log)

    return run


REGISTRY: Mapping[str, Mapping[str, Component]] = {
    "Intersection": _lazy_roles("intersection", "guest", "host"),
    "HeteroSecureBoost": _lazy_roles("hetero_secureboost", "guest", "host"),
    "HeteroLR": _lazy_roles("hetero_lr", "guest", "host", "arbiter"),
}
