"""Looks whether this node has what a job needs before it takes the job: images, storage, the way to the channel.

Datasets are looked at with the job's body. All of this is cheap where everything is there, as it nearly always is.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engines.base import Engine, EngineError, ImageNotFound
from gateway.domain.model import JobSpec, NodeId
from gateway.domain.problems import Problem
from gateway.errors import GatewayError
from provider_registry.registry import Registry, Unknown

_AGE = 5.0
"""seconds for which a good way to the channel is not looked at again"""


@dataclass(frozen=True)
class Looked:
    """What was found. Empty: everything is there."""

    checks: Mapping[str, str] = field(default_factory=dict)
    """image, storage, transport -> what is the matter with it"""
    to_fetch: Mapping[str, str] = field(default_factory=dict)
    """images that are not here and are to be fetched -> the engine that is to have them"""
    missing: tuple[Problem, ...] = ()
    """images that are not here and cannot be fetched"""


@dataclass(frozen=True)
class Fetching:
    """Whether images are fetched, and for how many seconds each at most."""

    allowed: bool = False
    seconds: float = 600.0


class Readiness:
    """The look, at one node."""

    def __init__(
        self,
        node: NodeId,
        registry: Registry,
        engine_for: Callable[[str], Engine | None],
        engine_name: Callable[[str], str],
        storage: Path,
        way: Callable[[], object],
        fetching: Fetching = Fetching(),
    ) -> None:
        """Take what is looked at.

        ``engine_for`` and ``engine_name`` find the engine of a provider's address; ``way`` raises `GatewayError`
        where containers cannot reach this gateway.
        """
        self._node = node
        self._registry = registry
        self._engine_for = engine_for
        self._engine_name = engine_name
        self._storage = storage
        self._way = way
        self._fetching = fetching
        self._fine_until = 0.0

    def look(self, spec: JobSpec) -> Looked:
        """Look at what the job's tasks here need."""
        checks: dict[str, str] = {}
        to_fetch: dict[str, str] = {}
        missing: list[Problem] = []
        for (image, base_url), at in self._images(spec).items():
            engine = self._engine_for(base_url)
            if engine is None:
                continue  # refused with the components
            try:
                engine.image_digest(image)
            except ImageNotFound as error:
                if self._fetching.allowed:
                    to_fetch[image] = self._engine_name(base_url)
                    checks["image"] = f"{image} is fetched"
                else:
                    missing.append(Problem(at, f"IMAGE_NOT_FOUND: {error}", image))
                    checks["image"] = f"{image} is missing"
            except EngineError as error:
                checks["image"] = f"{error.reason}: {error}"
        if not os.access(self._storage, os.W_OK):
            checks["storage"] = "cannot be written"
        if time.monotonic() >= self._fine_until:  # it asks the engine
            try:
                self._way()
                self._fine_until = time.monotonic() + _AGE
            except GatewayError as error:
                checks["transport"] = f"{error.reason}: {error.message}"
        return Looked(checks, to_fetch, tuple(missing))

    def patience(self, images: int) -> float:
        """Return the longest time in seconds that fetching so many images may take, one after the other."""
        return 2 * self._fetching.seconds * max(images, 1) + 60.0  # one that stands still is begun a second time

    def _images(self, spec: JobSpec) -> dict[tuple[str, str], str]:
        """Return each image that this node needs, with its engine's address, and the place that names it first."""
        found: dict[tuple[str, str], str] = {}
        for i, node in enumerate(spec.dag.nodes):
            ref = node.component
            with suppress(Unknown):
                provider, component = self._registry.find(ref.provider, ref.version, ref.name)
                if any(party.role in component.roles for party in spec.parties_at(self._node)):
                    key = (provider.image_for(ref.name), provider.base_url)
                    found.setdefault(key, f"dag.components[{i}]")
        return found
