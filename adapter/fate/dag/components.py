"""Finds the component that a task of FATE's job description names.

A description may omit a component's provider or version if only one is registered here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import near
from provider_registry.model import ANY, Component
from provider_registry.registry import Registry, Unknown

_MOST_LISTED = 10  # providers in a message


@dataclass(frozen=True)
class ResolvedComponent:
    """The component that a task runs."""

    provider: str
    version: str
    # None if the component is not registered here; the scheduling node may know it.
    description: Component | None


class UnresolvedComponent(Exception):
    """A task's component is unknown or ambiguous; the message says what to do."""


def resolve_component(
    registry: Registry,
    component: str,
    provider: str,
    version: str,
) -> ResolvedComponent:
    """Return the component that a task names.

    ``provider`` may be ``name``, ``name:version`` or ``name:version@device``. If the provider's
    name or version is missing, exactly one version of one registered provider must have the
    component; otherwise `UnresolvedComponent` is raised.
    """
    name_and_version, _, _ = provider.partition("@")  # a device has no meaning here
    name, _, version_of_provider = name_and_version.partition(":")
    version = version or version_of_provider
    is_complete = bool(name) and bool(version)
    if is_complete:
        description = _description(registry, name, version, component)
        return ResolvedComponent(name, version, description)
    candidates = _candidates(registry, component, name, version)
    if not candidates:
        raise UnresolvedComponent(_not_registered(registry, component, name))
    versions = {(candidate.provider, candidate.version) for candidate in candidates}
    if len(versions) > 1:
        raise UnresolvedComponent(_ambiguous(component, candidates))
    return candidates[0]


def _candidates(
    registry: Registry, component: str, provider: str, version: str
) -> list[ResolvedComponent]:
    """Return the registered components with this name, for each provider, version and device.

    An empty ``provider`` or ``version`` matches all. Retired providers are omitted.
    """
    candidates = []
    for registered in registry.query(name=provider or None, version=version or None):
        description = registered.components.get(component)
        if description is not None and not registered.retired:
            candidates.append(ResolvedComponent(registered.name, registered.version, description))
    return candidates


def _description(
    registry: Registry,
    provider: str,
    version: str,
    component: str,
) -> Component | None:
    """Return the description of a component of a named provider; None if it is not registered.

    The version ANY means the newest one.
    """
    try:
        if version == ANY:
            version = registry.newest_version(provider, component)
        return registry.find(provider, version, component)[1]
    except Unknown:
        return None


def _ambiguous(component: str, candidates: Sequence[ResolvedComponent]) -> str:
    """Return the message about a component that several providers have."""
    choices = [f"{candidate.provider}:{candidate.version}" for candidate in candidates]
    names = ", ".join(choices[:_MOST_LISTED])
    return (
        f"several providers have component {component}: name one of them ({names}) as conf.provider"
    )


def _not_registered(registry: Registry, component: str, provider: str) -> str:
    """Return the message about a component that no provider has, with one of a similar name."""
    names: list[str] = []
    for registered in registry.query():
        if not registered.retired:
            names += registered.components
    similar_name = near(component, names)
    # The test of the translations reads the variants of a text from conditional expressions, so
    # these two are not `if` statements.
    hint = f"did you mean {similar_name}? Else register it" if similar_name else "register it"
    of_provider = f"of provider {provider} " if provider else ""
    return (
        f"no component {component} {of_provider}is registered here: {hint}, "
        "or name provider and version"
    )
