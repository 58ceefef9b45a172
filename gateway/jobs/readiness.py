"""Looks whether this node has what a job needs before it takes the job: images, storage, the way to the channel.

Datasets are looked at with the job's body. All of this is cheap where everything is there, as it nearly always is.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from engines.base import Engine, EngineDown, EngineError, ImageNotFound, NoSpace
from gateway.data.files import try_to_write
from gateway.domain import approval
from gateway.domain.execution.messages import Done, Event, Prepare, Prepared
from gateway.domain.execution.messages import Fetching as FetchingSeen
from gateway.domain.problems import Problem
from gateway.domain.redaction import for_others
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure, JobSpec, NodeId
from gateway.errors import GatewayError
from gateway.ports import Clock
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


log = structlog.get_logger(__name__)

_EVERY = 2.0
"""seconds between two words of progress in the job's record"""


class NotWanted(Exception):
    """The job does not wait for its images any more."""


class Prefetch:
    """Fetches the images of one job, one after the other."""

    def __init__(
        self,
        engine_at: Callable[[str], Engine],
        find: Callable[[str], LocalJob],
        record: Callable[[str, Event], object],
        clock: Clock,
    ) -> None:
        self._engine_at = engine_at
        self._find = find
        self._record = record
        self._clock = clock

    def fetch(self, local: LocalJob, action: Prepare) -> Event:
        """Have every image here; return what that came to. An engine that is away is asked again later."""
        images = dict(local.preparation.images) if local.preparation else {}
        for number, (image, engine) in enumerate(images.items(), 1):
            said = _Said(self, local.id, f"{number} of {len(images)}, {image}: ")
            try:
                self._engine_at(engine).ensure_image(image, said)
            except NotWanted:
                return Done(action, self._clock(), final=False, message="not wanted any more")
            except EngineDown as error:
                return Done(action, self._clock(), final=False, message=str(error))
            except EngineError as error:
                return Prepared(Failure(error.reason, for_others(str(error))), self._clock())
        return Prepared(None, self._clock())

    def tell(self, job_id: str, progress: str, *, news: bool) -> None:
        """Write down how far it has come, where that is news. Raises `NotWanted`."""
        if approval.to_fetch(self._find(job_id)) is None:
            raise NotWanted
        if not news:
            return
        log.info("an image is fetched", job=job_id, progress=progress)
        self._record(job_id, FetchingSeen(progress, self._clock()))


class _Said:
    """Hears an engine's words about one image, and passes on new ones now and then."""

    def __init__(self, prefetch: Prefetch, job_id: str, prefix: str) -> None:
        self._prefetch = prefetch
        self._job_id = job_id
        self._prefix = prefix
        self._at = 0.0
        self._last = ""

    def __call__(self, progress: str) -> None:
        now = time.monotonic()
        if now - self._at >= _EVERY:
            self._prefetch.tell(self._job_id, self._prefix + progress, news=progress != self._last)
            self._at, self._last = now, progress
