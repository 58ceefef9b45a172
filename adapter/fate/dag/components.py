"""Which registered component a task of FATE's means: FATE may name a provider, a version, both or neither."""

from typing import NamedTuple

from gateway.plain_words import near
from provider_registry.model import Component
from provider_registry.registry import Registry, Unknown
from provider_registry.versions import ANY

_SHOWN = 10


class Found(NamedTuple):
    """The component that a task means."""

    provider: str
    version: str
    component: Component | None
    """its description; None where it is not registered here: whoever schedules the job may know it"""


class Catalogue:
    """The registered providers, asked in FATE's way."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def find(self, component: str, provider: str = "", version: str = "") -> Found | str:
        """Return the component, or in words what is wrong with its name.

        ``provider`` may be ``name``, ``name:version`` or ``name:version@device``. Without a version, and without a
        provider, there has to be exactly one that has the component.
        """
        name, _, rest = provider.partition("@")[0].partition(":")
        version = version or rest
        if name and version == ANY:  # the node that schedules fills it in
            return Found(name, version, self._newest(name, component))
        if name and version:
            return self._exactly(name, version, component)
        have = [
            (p.name, p.version, p.components[component])
            for p in self._registry.query(name=name or None, version=version or None)
            if component in p.components and not p.retired
        ]
        if len({(p, v) for p, v, _ in have}) == 1:
            return Found(*have[0])
        whose = f"of provider {name} " if name else ""
        if not have:
            meant = self._meant(name, component)
            hint = f"did you mean {meant}? Else register it" if meant else "register it"
            return f"no component {component} {whose}is registered here: {hint}, or name provider and version"
        known = ", ".join(f"{p}:{v}" for p, v, _ in have[:_SHOWN])
        return f"several providers have component {component}: name one of them ({known}) as conf.provider"

    def _meant(self, name: str, component: str) -> str:
        """Return what was probably meant by a component of a provider; empty where that is not clear."""
        there = [p for p in self._registry.query() if not p.retired]
        provider = name if any(p.name == name for p in there) else near(name, [p.name for p in there])
        mine = [p for p in there if p.name == provider] or there
        found = near(component, [word for p in mine for word in p.components])
        owner = next((p for p in mine if found in p.components), None)
        return f"{found} of provider {owner.name}:{owner.version}" if owner else ""

    def _newest(self, name: str, component: str) -> Component | None:
        try:
            return self._registry.find(name, self._registry.newest(name, component), component)[1]
        except Unknown:
            return None

    def _exactly(self, name: str, version: str, component: str) -> Found:
        try:
            return Found(name, version, self._registry.find(name, version, component)[1])
        except Unknown:
            return Found(name, version, None)
