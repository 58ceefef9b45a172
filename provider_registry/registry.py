"""The providers that are registered here, and how a job's component is found among them."""

from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from typing import Protocol

from provider_registry.limits import bounded, join, shorten
from provider_registry.model import Component, InvalidDescription, Problem, Provider
from provider_registry.registration import DEVICE

PROVIDER_UNKNOWN = "PROVIDER_UNKNOWN"
VERSION_UNKNOWN = "VERSION_UNKNOWN"
COMPONENT_UNKNOWN = "COMPONENT_UNKNOWN"

_SHOWN = 10
"""how many known names a message lists"""


class Unknown(Exception):
    """No such component is registered. ``reason`` is stable and says which part of its key is unknown."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Repository(Protocol):
    """Where providers are kept, by `Provider.key`. Safe to use from several threads."""

    def get(self, key: str) -> Provider | None: ...

    def put(self, provider: Provider) -> bool:
        """Store a provider in place of any of the same key; True if there was none."""
        ...

    def delete(self, key: str) -> bool:
        """Remove a provider; False if there is none."""
        ...

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        ...


class MemoryRepository:
    """A repository that forgets."""

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}
        self._lock = Lock()

    def get(self, key: str) -> Provider | None:
        return self._providers.get(key)

    def put(self, provider: Provider) -> bool:
        with self._lock:
            created = provider.key not in self._providers
            self._providers[provider.key] = provider
            return created

    def delete(self, key: str) -> bool:
        with self._lock:
            return self._providers.pop(key, None) is not None

    def list(self) -> list[Provider]:
        with self._lock:
            return [self._providers[key] for key in sorted(self._providers)]


class Registry:
    """Registers, finds, lists and removes providers.

    ``provider_name`` in a query is ``name``, ``name:version``, ``name@device`` or the full key; ``*`` stands for
    any part. Names that are not given do not restrict.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._merging = Lock()

    def register(self, provider: Provider) -> bool:
        """Store a provider; one of the same key is replaced. True if there was none."""
        return self._repository.put(provider)

    def register_component(self, provider: Provider) -> bool:
        """Add the components of ``provider`` to the registered one of its key; True if any of them is new there.

        A component keeps the image it was registered with, also where that is not the provider's.
        """
        with self._merging:
            known = self._repository.get(provider.key)
            self._repository.put(provider if known is None else _merged(known, provider))
        return known is None or not provider.components.keys() <= known.components.keys()

    def find(self, provider: str, version: str, name: str, device: str = DEVICE) -> tuple[Provider, Component]:
        """Return the component and the provider that has it; raises Unknown."""
        found = self._repository.get(f"{provider}:{version}@{device}")
        if found is None:
            raise self._unknown_provider(provider, version, device)
        component = found.components.get(name)
        if component is None:
            raise Unknown(
                COMPONENT_UNKNOWN,
                f"provider {found.key} has no component {shorten(name)}; it has {_some(found.components)}",
            )
        return found, component

    def query(
        self,
        name: str | None = None,
        device: str | None = None,
        version: str | None = None,
        provider_name: str | None = None,
    ) -> list[Provider]:
        """Return the providers that have all the given parts."""
        wanted = [(name, version, device), _parts(provider_name)]
        return [
            p
            for p in self._repository.list()
            if all(
                part in (None, "", "*", own)
                for parts in wanted
                for part, own in zip(parts, (p.name, p.version, p.device), strict=True)
            )
        ]

    def delete(
        self,
        name: str | None = None,
        device: str | None = None,
        version: str | None = None,
        provider_name: str | None = None,
    ) -> int:
        """Remove the providers that have all the given parts; returns how many.

        Raises InvalidDescription if no part is given: that would remove every vendor's.
        """
        if not any((name, device, version, provider_name)):
            rule = "must be given, or device, version or provider_name"
            raise InvalidDescription((Problem("name", rule, name),))
        found = self.query(name, device, version, provider_name)
        return sum(self._repository.delete(p.key) for p in found)

    def _unknown_provider(self, provider: str, version: str, device: str) -> Unknown:
        same_name = self.query(name=provider) if provider and provider != "*" else []
        here = [p.version for p in same_name if p.device == device]
        if here:
            return Unknown(
                VERSION_UNKNOWN,
                f"provider {shorten(provider)} on {device} has no version {shorten(version)}; "
                f"it has {_some(here)}",
            )
        elsewhere = f"; it is registered as {_some(p.key for p in same_name)}" if same_name else ""
        return Unknown(PROVIDER_UNKNOWN, f"no provider {shorten(provider)} is registered on {device}{elsewhere}")


def _merged(known: Provider, added: Provider) -> Provider:
    replaced = tuple(join("components_description", name) for name in added.components)
    images = {name: image for name, image in known.images.items() if name not in added.components}
    if added.image != known.image:
        images |= dict.fromkeys(added.components, added.image)
    return replace(
        known,
        components={**known.components, **added.components},
        images=images,
        warnings=bounded([w for w in known.warnings if not _below(w.path, replaced)] + list(added.warnings)),
    )


def _below(path: str, places: tuple[str, ...]) -> bool:
    return any(path.startswith((f"{place}.", f"{place}[")) for place in places)


def _parts(provider_name: str | None) -> tuple[str, str, str]:
    """Split ``name:version@device`` into its parts; a part that is not there is empty."""
    rest, _, device = (provider_name or "").partition("@")
    name, _, version = rest.partition(":")
    return name, version, device


def _some(names: Iterable[str]) -> str:
    every = list(names)
    shown = ", ".join(every[:_SHOWN]) or "none"
    return f"{shown}, …" if len(every) > _SHOWN else shown
