"""Whether this node has all that a job needs to start: engines, images, storage and the channel."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engines.base import Engine, EngineDown, EngineError, ImageNotFound, NoSpace
from gateway.config.schema.engine import DockerEngineSettings
from gateway.domain.dry_run import Item, Standing, fine, problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError, StorageFailed
from provider_registry.model import Provider
from provider_registry.registry import Registry, Unknown

# Seconds during which a facility that worked is not checked again.
_RECHECK_SECONDS = 1.0


@dataclass(frozen=True)
class _Facility:
    """A facility that every job needs."""

    name: str
    reason: str  # code with which a job is refused while this facility fails
    failure: str  # how a refusal describes the failing facility
    good: str  # how a report describes the working facility
    remedy: str


_FACILITIES = (
    _Facility(
        name="storage",
        reason="STORAGE_NOT_WRITABLE",
        failure="the storage cannot be written",
        good="writable",
        remedy="check storage.url and the room there (bfia-gateway doctor)",
    ),
    _Facility(
        name="transport",
        reason="TRANSPORT_DOWN",
        failure="containers could not exchange messages through the channel",
        good="up",
        remedy="check listen.container and the state folder (bfia-gateway doctor)",
    ),
)


@dataclass(frozen=True)
class FacilityFailure:
    """The failure of a facility, in words that another institution may read."""

    # STORAGE_NOT_WRITABLE, NO_SPACE, TRANSPORT_DOWN, ENGINE_DOWN, or the reason of a failed remote
    # storage.
    reason: str
    text: str
    # Whether jobs are refused because of the failure. False for a silent engine, which may respond
    # again before the first task, and for a failed remote storage, which concerns only jobs with
    # data in that storage.
    refuses_jobs: bool = True


@dataclass(frozen=True)
class JobImage:
    """An image that a job needs here, with its state at its engine."""

    name: str
    provider: Provider
    path: str  # path in the job of the first task that needs the image
    engine: Engine
    engine_name: str
    digest: str = ""  # current digest at the engine; empty after an error
    error: EngineError | None = None  # why the engine returned no digest

    @property
    def missing(self) -> bool:
        """Whether the engine responds and does not have the image."""
        return isinstance(self.error, ImageNotFound)


class Readiness:
    """Checks whether this node has the images and facilities that a job needs."""

    def __init__(
        self,
        node: NodeId,
        registry: Registry,
        engine_of: Callable[[str], tuple[str, Engine] | None],
        checks: Mapping[str, Callable[[], object]],
        docker: DockerEngineSettings | None = None,
    ) -> None:
        """``engine_of`` takes the place at which a provider wants to run (`Provider.place`).

        It returns the name of the engine at that place and the engine itself; None if the settings
        do not allow the place. The place "" is that of the main engine.

        ``checks`` has a function for each facility, which raises if the facility fails. The one for
        ``storage`` raises `OSError`, `NoSpace` for too little room, or `StorageFailed` for a remote
        storage. The one for ``transport`` raises `OSError`, or `GatewayError` if containers cannot
        reach this gateway.

        ``docker``: the settings for pulls of images; None for a node without containers.
        """
        self._node = node
        self._registry = registry
        self._engine_of = engine_of
        self._checks = checks
        self._pulls = docker is not None and docker.pull == "missing"
        self._pull_seconds = docker.pull_seconds if docker else 0.0
        self._fine_until: dict[str, float] = {}  # facility -> monotonic time of its next check

    # -------------------------------------------------- facilities

    def failures(self) -> dict[str, FacilityFailure]:
        """Check the facilities; return the failures by the facility's name.

        A facility that has worked within the last `_RECHECK_SECONDS` counts as working, unchecked.
        """
        failures = {}
        for facility in _FACILITIES:
            if time.monotonic() < self._fine_until.get(facility.name, 0.0):
                continue
            failure = self._check(facility)
            if failure is None:
                self._fine_until[facility.name] = time.monotonic() + _RECHECK_SECONDS
            else:
                failures[facility.name] = failure
        return failures

    def _check(self, facility: _Facility) -> FacilityFailure | None:
        """Return the failure of a facility; None if it works."""
        reason = facility.reason
        words = facility.failure
        try:
            self._checks[facility.name]()
        except OSError as error:
            # Only the cause: the whole text would show a folder of this node.
            return FacilityFailure(reason, f"{words}: {error.strerror}")
        except NoSpace as error:
            text = f"the storage has too little room for tasks: {error}"
            return FacilityFailure(error.reason, text)
        except StorageFailed as error:
            return FacilityFailure(
                error.reason,
                error.message,
                refuses_jobs=False,
            )
        except GatewayError as error:
            # Only the reason: the message may show addresses of this node.
            if error.reason == EngineDown.reason:  # the engine provides the containers' network
                return FacilityFailure(
                    reason=error.reason,
                    text=error.reason,
                    refuses_jobs=False,
                )
            return FacilityFailure(reason, f"{words}: {error.reason}")
        return None

    def facility_items(self, images: Sequence[JobImage]) -> Iterator[Item]:
        """Report the state of the engines that a job needs, of the storage and of the channel."""
        main = self._engine_of("")
        assert main is not None, "every node has a main engine"
        main_name, main_engine = main
        engines = {main_name: main_engine}
        for image in images:
            engines[image.engine_name] = image.engine
        for name, engine in engines.items():
            yield self._engine_item(name, engine)
        failures = self.failures()
        for facility in _FACILITIES:
            failure = failures.get(facility.name)
            if failure is None:
                yield fine(facility.name, facility.good)
            elif failure.refuses_jobs:
                cause = f"{failure.reason}: {failure.text}"
                yield problem(facility.name, cause, f"at {self._node}: {facility.remedy}")
            else:
                yield Item(
                    facility.name,
                    Standing.UNKNOWN,
                    cause=failure.text,
                )

    def _engine_item(self, name: str, engine: Engine) -> Item:
        """Return whether an engine responds, as an item of a report."""
        try:
            engine.check()
        except EngineError as error:
            remedy = f"start the container engine of {self._node}"
            return problem("engine", f"{error.reason}: {error}", remedy, name)
        return fine("engine", engine.kind, name)

    # -------------------------------------------------- images

    def images(self, spec: JobSpec) -> list[JobImage]:
        """Return each image that the job needs here, once, with its state at its engine.

        Left out are tasks that are reported with the components: with an unknown component, a place
        that is not allowed, or images that do not run on the kind of engine there.
        """
        images: dict[tuple[str, str], JobImage] = {}
        roles_here = {party.role for party in spec.parties_at(self._node)}
        for number, node in enumerate(spec.dag.nodes):
            ref = node.component
            try:
                provider, component = self._registry.find(
                    ref.provider,
                    ref.version,
                    ref.name,
                )
            except Unknown:
                continue
            named_engine = self._engine_of(provider.place)
            image_name = provider.image_for(ref.name)
            key = (image_name, provider.place)
            runs_here = not roles_here.isdisjoint(component.roles)
            if named_engine is None or not runs_here or key in images:
                continue
            engine_name, engine = named_engine
            if not provider.runs_on(engine.kind):
                continue
            image = JobImage(
                name=image_name,
                provider=provider,
                path=f"dag.components[{number}]",
                engine=engine,
                engine_name=engine_name,
            )
            images[key] = _inspected(image)
        return list(images.values())

    def image_item(self, image: JobImage) -> Item:
        """Report whether a task could start from an image.

        The report has the standing UNKNOWN if the image is missing and will be pulled.
        """
        error = image.error
        if isinstance(error, ImageNotFound):
            if self._pulls:
                text = "is fetched before the start"
                return Item(
                    "image",
                    Standing.UNKNOWN,
                    text,
                    error.what,
                    about=image.name,
                )
            remedy = f"at {self._node}: {error.remedy}"
            return problem("image", f"{error.reason}: {error.what}", remedy, image.name)
        if error is not None:
            remedy = f"check the engine of {self._node}"
            return problem("image", f"{error.reason}: {error}", remedy, image.name)
        approved = image.provider.digests.get(image.name, "")
        if approved not in ("", image.digest):
            text = f"DIGEST_CHANGED: it is {image.digest} here, {approved} was approved"
            remedy = "register the provider again if the new image is wanted"
            return problem("image", text, remedy, image.name)
        return fine("image", image.digest, image.name)

    def to_fetch(
        self,
        images: Sequence[JobImage],
    ) -> dict[str, str]:
        """Return the missing images that the settings allow to pull: image -> its engine's name."""
        if not self._pulls:
            return {}
        return {image.name: image.engine_name for image in images if image.missing}

    def pull_timeout(self, image_count: int) -> float:
        """Return the longest time in seconds for pulling a number of images one after the other."""
        attempts = 2  # a stalled download is begun once more
        return attempts * self._pull_seconds * max(image_count, 1) + 60.0  # 60 s are slack


def _inspected(image: JobImage) -> JobImage:
    """Return an image with its digest at its engine, or with the engine's error."""
    try:
        return replace(
            image,
            digest=image.engine.image_digest(image.name),
        )
    except EngineError as error:
        return replace(image, error=error)
