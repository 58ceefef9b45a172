"""The components of this image: name -> role -> function."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from refvendor.contract import Component, Io, Log, Net, Task


def _of(module: str, *roles: str) -> Mapping[str, Component]:
    return {role: _later(module, role) for role in roles}


def _later(module: str, role: str) -> Component:
    """Return a role's function, whose module is imported when it runs: whoever matches ids waits for no numpy."""

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
    "Intersection": _of("intersection", "guest", "host"),
    "HeteroSecureBoost": _of("hetero_secureboost", "guest", "host"),
    "HeteroLR": _of("hetero_lr", "guest", "host", "arbiter"),
}
