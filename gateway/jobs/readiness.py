"""Checks whether this node has what a job needs before it takes it: images, storage, the way to the channel."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engines.base import Engine, EngineDown, EngineError, ImageNotFound, NoSpace
from gateway.data.files import try_to_write
from gateway.domain.dry_run import Item, Standing, fine, problem
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError
from provider_registry.model import Provider
from provider_registry.registry import Registry, Unknown

_RECHECK = 1.0
"""seconds for which a place that was fine is not checked again"""

_PLACES = {
    "storage": "the storage cannot be written",
    "transport": "containers could not exchange messages through the channel",
}
_PLACE_ITEMS = (
    ("storage", "writable", "check storage.url and the room there (bfia-gateway doctor)"),
    ("transport", "up", "check listen.container and the state folder (bfia-gateway doctor)"),
)
STORAGE, TRANSPORT = "STORAGE_NOT_WRITABLE", "TRANSPORT_DOWN"


@dataclass(frozen=True)
class Lack:
    """Why this node cannot take any job just now, in words that another institution may read."""

    reason: str
    """STORAGE_NOT_WRITABLE, NO_SPACE or TRANSPORT_DOWN"""
    text: str


@dataclass(frozen=True)
class Ready:
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


@dataclass(frozen=True)
class JobImage:
    """An image that a job needs here, as its engine has it."""

    name: str
    provider: Provider
    path: str
    """the place in the job that names it first"""
    engine: Engine
    engine_name: str
    digest: str = ""
    error: EngineError | None = None

    @property
    def missing(self) -> bool:
        """Whether the engine answers and does not have it."""
        return isinstance(self.error, ImageNotFound)

    @property
    def approved(self) -> str:
        """The digest that was approved; empty for none."""
        return self.provider.digests.get(self.name, "")


class Readiness:
    """Checks images and places at one node."""

    def __init__(
        self,
        node: NodeId,
        registry: Registry,
        engine_of: Callable[[str], tuple[str, Engine] | None],
        storage: Callable[[], object],
        channel: Path,
        way: Callable[[], object],
        fetching: Fetching = Fetching(),
    ) -> None:
        """Take what is checked.

        ``engine_of`` finds the engine of a provider's address, with its name. ``storage`` raises `OSError` where
        the storage cannot be written and `NoSpace` where it has too little room; ``channel`` is the folder of the
        channel's messages. ``way`` raises `GatewayError` where containers cannot reach this gateway.
        """
        self._node = node
        self._registry = registry
        self._engine_of = engine_of
        self._storage = storage
        self._channel = channel
        self._way = way
        self._fetching = fetching
        self._fine_until: dict[str, float] = {}

    def check(self, images: Iterable[JobImage]) -> Ready:
        """Say what is missing of a job's images and of the places that every job needs."""
        checks: dict[str, str] = {}
        to_fetch: dict[str, str] = {}
        missing: list[Problem] = []
        for image in images:
            if image.missing and self._fetching.allowed:
                to_fetch[image.name] = image.engine_name
                checks["image"] = f"{image.name} is fetched"
            elif image.missing:
                missing.append(Problem(image.path, f"IMAGE_NOT_FOUND: {image.error}", image.name))
                checks["image"] = f"{image.name} is missing"
            elif image.error is not None:  # it may be back before the first task
                checks["image"] = f"{image.name}: {image.error.reason}"
        places, lacks = self.places()
        return Ready({**checks, **places}, to_fetch, tuple(missing), lacks)

    def places(self) -> tuple[dict[str, str], tuple[Lack, ...]]:
        """Check storage and channel; return what is the matter, and what of it refuses every job.

        An engine that is away refuses nothing: tasks wait for it, and it may be back by then.
        """
        checks: dict[str, str] = {}
        lacks: list[Lack] = []
        for name, reason, check in (
            ("storage", STORAGE, self._storage),
            ("transport", TRANSPORT, self._check_transport),
        ):
            if time.monotonic() < self._fine_until.get(name, 0.0):
                continue
            try:
                check()
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
                self._fine_until[name] = time.monotonic() + _RECHECK
                continue
            checks[name] = lacks[-1].text
        return checks, tuple(lacks)

    def timeout(self, images: int) -> float:
        """Return the longest time in seconds that fetching so many images may take, one after the other."""
        return 2 * self._fetching.seconds * max(images, 1) + 60.0  # a stalled download is begun a second time

    def images(self, spec: JobSpec) -> list[JobImage]:
        """Return each image that the job needs here."""
        found: dict[tuple[str, str], JobImage] = {}
        for i, node in enumerate(spec.dag.nodes):
            ref = node.component
            with suppress(Unknown):
                provider, component = self._registry.find(ref.provider, ref.version, ref.name)
                engine = self._engine_of(provider.base_url)  # None is refused with the components
                key = (provider.image_for(ref.name), provider.base_url)
                here = any(party.role in component.roles for party in spec.parties_at(self._node))
                if engine is not None and here and key not in found:
                    found[key] = _image(key[0], provider, f"dag.components[{i}]", *engine)
        return list(found.values())

    def items(self, images: Iterable[JobImage]) -> Iterator[Item]:
        """Say of each image whether a task could start from it."""
        for image in images:
            error = image.error
            if isinstance(error, ImageNotFound) and self._fetching.allowed:
                yield Item("image", Standing.UNKNOWN, "is fetched before the start", error.what, about=image.name)
            elif isinstance(error, ImageNotFound):
                remedy = f"at {self._node}: {error.remedy}"
                yield problem("image", f"{error.reason}: {error.what}", remedy, image.name)
            elif error is not None:
                yield problem("image", f"{error.reason}: {error}", f"check the engine of {self._node}", image.name)
            elif image.approved not in ("", image.digest):
                text = f"DIGEST_CHANGED: it is {image.digest} here, {image.approved} was approved"
                remedy = "register the provider again if the new image is wanted"
                yield problem("image", text, remedy, image.name)
            else:
                yield fine("image", image.digest, image.name)

    def place_items(self) -> Iterator[Item]:
        """Say whether the engine answers, the storage can be written and containers reach the channel."""
        found = self._engine_of("")
        assert found is not None
        try:
            found[1].check()
            yield fine("engine", found[1].kind)
        except EngineError as error:
            yield problem("engine", f"{error.reason}: {error}", f"start the container engine of {self._node}")
        checks, lacks = self.places()
        reasons = {lack.text: lack.reason for lack in lacks}
        for name, good, remedy in _PLACE_ITEMS:
            cause = checks.get(name, "")
            if cause in reasons:
                yield problem(name, f"{reasons[cause]}: {cause}", f"at {self._node}: {remedy}")
            elif cause:
                yield Item(name, Standing.UNKNOWN, cause=cause)
            else:
                yield fine(name, good)

    def _check_transport(self) -> None:
        try_to_write(self._channel)
        self._way()


def _image(name: str, provider: Provider, path: str, engine_name: str, engine: Engine) -> JobImage:
    try:
        return JobImage(name, provider, path, engine, engine_name, engine.image_digest(name))
    except EngineError as error:
        return JobImage(name, provider, path, engine, engine_name, error=error)
