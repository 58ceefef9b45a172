"""Looks whether this node has what a job needs before it takes the job: images, storage, the way to the channel.

Datasets are looked at with the job's body. All of this is cheap where everything is there, as it nearly always is.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engines.base import Engine, EngineDown, EngineError, ImageNotFound, NoSpace
from gateway.data.room import try_to_write
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError
from provider_registry.registry import Registry, Unknown

_AGE = 1.0
"""seconds for which a place that was fine is not looked at again"""

_PLACES = {
    "storage": "the storage cannot be written",
    "transport": "containers could not exchange messages through the channel",
}
STORAGE, TRANSPORT = "STORAGE_NOT_WRITABLE", "TRANSPORT_DOWN"


@dataclass(frozen=True)
class Lack:
    """Why this node cannot take any job just now, in words that another institution may read."""

    reason: str
    """STORAGE_NOT_WRITABLE, NO_SPACE or TRANSPORT_DOWN"""
    text: str


@dataclass(frozen=True)
class Looked:
    """What was found. Empty: everything is there."""

    checks: Mapping[str, str] = field(default_factory=dict)
    """image, storage, transport -> what is the matter with it"""
    to_fetch: Mapping[str, str] = field(default_factory=dict)
    """images that are not here and are to be fetched -> the engine that is to have them"""
    missing: tuple[Problem, ...] = ()
    """images that are not here and cannot be fetched"""
    lacks: tuple[Lack, ...] = ()
    """what keeps the node from taking the job: no task could begin, or none could end well"""


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
        storage: Callable[[], object],
        channel: Path,
        way: Callable[[], object],
        fetching: Fetching = Fetching(),
    ) -> None:
        """Take what is looked at.

        ``engine_for`` and ``engine_name`` find the engine of a provider's address. ``storage`` raises
        `OSError` where the storage cannot be written and `NoSpace` where it has too little room; ``channel`` is
        the folder in which the channel keeps its messages. ``way`` raises `GatewayError` where containers cannot
        reach this gateway.
        """
        self._node = node
        self._registry = registry
        self._engine_for = engine_for
        self._engine_name = engine_name
        self._storage = storage
        self._channel = channel
        self._way = way
        self._fetching = fetching
        self._fine_until: dict[str, float] = {}

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
            except EngineError as error:  # it may be back before the first task
                checks["image"] = f"{image}: {error.reason}"
        places, lacks = self.places()
        return Looked({**checks, **places}, to_fetch, tuple(missing), lacks)

    def places(self) -> tuple[dict[str, str], tuple[Lack, ...]]:
        """Look at the storage and the channel; return what is the matter, and what of it refuses every job.

        An engine that is away is told and refuses nothing: tasks wait for it, and it may be back by then.
        """
        checks: dict[str, str] = {}
        lacks: list[Lack] = []
        for name, reason, look in (
            ("storage", STORAGE, self._storage),
            ("transport", TRANSPORT, self._look_at_transport),
        ):
            if time.monotonic() < self._fine_until.get(name, 0.0):
                continue
            try:
                look()
            except OSError as error:  # its own text names the folder
                lacks.append(Lack(reason, f"{_PLACES[name]}: {error.strerror}"))
            except NoSpace as error:
                lacks.append(Lack(error.reason, f"the storage has too little room for tasks: {error}"))
            except GatewayError as error:
                if error.reason == EngineDown.reason:
                    checks[name] = error.reason
                    continue
                lacks.append(Lack(reason, f"{_PLACES[name]}: {error.reason}"))
            else:
                self._fine_until[name] = time.monotonic() + _AGE
                continue
            checks[name] = lacks[-1].text
        return checks, tuple(lacks)

    def _look_at_transport(self) -> None:
        try_to_write(self._channel)
        self._way()

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
