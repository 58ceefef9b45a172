"""Checks of the engines, the isolation of runs, and the registered images."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from engines.base import (
    RULES_CREATED_AT_START,
    Capacity,
    CommandNotFound,
    Engine,
    EngineDown,
    EngineError,
    ImageNotFound,
)
from engines.multi import SeveralEngines
from gateway.bootstrap.engine_parts import engines_by_place, main_of
from gateway.diagnostics.installation import (
    Installation,
    Risk,
    causes_and_remedies,
    explained_step,
)
from gateway.domain.amounts import Amounts
from gateway.errors import counted
from gateway.http.listening_file import serving
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.providers import SqlProviders
from provider_registry.model import ENGINE_UNSUITABLE, Provider

_MAX_CONCURRENT_CHECKS = 16  # images checked at the same time
_REGISTRY_TIMEOUT = 10.0  # seconds for a registry's response about an image


def engine(node: Installation) -> Step:
    """Check that every engine responds, and has CPU and memory for runs.

    Fails if the main engine does not respond. Warns of further engines that do not respond, and of
    engines on which nothing can run.
    """
    kind = node.engine.kind
    try:
        node.engine.check()
        capacity = node.engine.capacity()
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", error.remedy or _engine_remedy(node))
    text = kind
    if capacity.gpu:
        text += f" with gpu {capacity.gpu}"
    risks = _capacity_risks(kind, capacity)
    further = further_engines(node.engine)
    if further:
        further_text, further_risks = _further_engines_state(further)
        text += f", and {further_text}"
        risks += further_risks
    if not risks:
        return trials.ok(text)
    causes, remedies = causes_and_remedies(risks)
    return trials.warning(f"nothing can run at {causes}", remedies, text)


def _further_engines_state(engines: Mapping[str, Engine]) -> tuple[str, list[Risk]]:
    """Ask further engines for their capacity.

    - ``engines``: by name, at least one

    Returns a text with their number and the capacity of each that responds, and the risks of those
    that cannot be used.
    """
    texts = []
    risks = []
    for name, further_engine in engines.items():
        try:
            capacity = further_engine.capacity()
        except EngineError as error:
            remedy = error.remedy or "start that engine, or check its entry and certificates"
            risks.append(Risk(f"{name}: {error.reason}: {error}", remedy))
            continue
        amounts = Amounts.of(capacity.cpu, capacity.memory, gpu=capacity.gpu).text()
        texts.append(f"{name} ({further_engine.kind}) has {amounts}")
        risks += _capacity_risks(name, capacity)
    text = counted(len(engines), "further engine")
    if texts:
        text += f": {'; '.join(texts)}"
    return text, risks


def _capacity_risks(engine_name: str, capacity: Capacity) -> list[Risk]:
    """Return the risk that nothing can run on an engine; empty if it has CPU and memory for runs.

    Without a GPU, tasks that need none can still run.
    """
    if min(capacity.cpu, capacity.memory) > 0:
        return []
    return [
        Risk(
            f"{engine_name}: it has no cpu or no memory for runs",
            "raise the ResourceQuota of its namespace, or have a machine take runs",
        )
    ]


def _engine_remedy(node: Installation) -> str:
    """Return what to do about a main engine that does not respond.

    Without a main engine in the settings, runs are processes, which need the state folder alone.
    """
    if node.settings.engine.main is None:
        return "check the state folder"
    if node.engine.kind == "kubernetes":
        return "check the API server, and engine.kubernetes.kubeconfig"
    return f"start the Docker daemon, or correct engine.{node.engine.kind}.base_url"


def isolation(node: Installation) -> Step:
    """Report whether tasks are isolated from each other, from the host and from outside.

    Fails if the engine cannot report its gaps, and warns of gaps. Skipped if the engine does not
    respond.
    """
    if not node.engine_up:
        return trials.skipped()
    try:
        gaps = node.engine.isolation().gaps
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", "check the container engine")
    if not gaps:
        return trials.ok("tasks are isolated from each other, from the host and from outside")
    return trials.warning("; ".join(gaps), _isolation_remedy(node, gaps))


def _isolation_remedy(node: Installation, gaps: Sequence[str]) -> str:
    """Return what to do about gaps of the isolation.

    Some gaps close when a node starts, because it then creates the rules of its network.
    """
    is_before_first_start = serving(node.settings.state_dir) is None
    close_by_themselves = all(gap.endswith(RULES_CREATED_AT_START) for gap in gaps)
    if is_before_first_start and close_by_themselves:
        return "nothing before the first start; afterwards close the gaps, or accept them"
    return "close the gaps, or accept them"


def images(node: Installation) -> Step:
    """Look for every registered image at its provider's engine, or else at its registry.

    Warns of images that changed after their approval, and of missing ones. Skipped without the
    engine, or without a database that has this version's schema.
    """
    if not (node.engine_up and node.database_ready):
        return trials.skipped()
    providers_by_image = _registered_images(node)
    if not providers_by_image:
        return trials.ok("no provider is in use: nothing to check")
    check_image = partial(_check_image, node)
    with ThreadPoolExecutor(_MAX_CONCURRENT_CHECKS) as pool:
        checks = list(
            pool.map(
                check_image,
                providers_by_image.keys(),
                providers_by_image.values(),
            )
        )
    return _images_step(checks)


def _images_step(checks: Sequence["_ImageCheck"]) -> Step:
    """Return the result of all images: a warning about changed ones, or about missing ones.

    Changed images come first: they may be a manipulation, and are not started.
    """
    total = f"{counted(len(checks), 'image')} registered"
    providers = ", ".join(chain.from_iterable(check.changed_for for check in checks))
    if providers:
        text = (
            f"another image than was approved, which is not started (DIGEST_CHANGED): {providers}"
        )
        remedy = (
            "bfia-gateway provider approve, if it is the right one; else restore the approved one"
        )
        return trials.warning(text, remedy, total)
    missing = list(filter(None, (check.missing for check in checks)))
    if missing:
        causes, remedies = causes_and_remedies(missing)
        return trials.warning(f"registered, but not here: {causes}", remedies, total)
    in_registries = sum(check.in_registry for check in checks)
    if in_registries:
        return trials.ok(f"{total}, {in_registries} of them with its registry, pulled when needed")
    return trials.ok(f"{total}, all here")


class _RegisteredImage(NamedTuple):
    """An image, and the engine that its provider names."""

    name: str
    place: str  # the engine, as in `Provider.place`; "" for the main one

    @property
    def label(self) -> str:
        """The image for a message.

        The engine is named unless it is the main one, which most nodes have alone.
        """
        if self.place:
            return f"{self.name} at {self.place}"
        return self.name


@dataclass(frozen=True)
class _ImageCheck:
    """The state of an image at its engine or its registry."""

    # Keys of the providers for which a digest is approved that the image no longer has
    changed_for: Sequence[str] = ()
    in_registry: bool = False  # not at the engine, which will pull it
    missing: Risk | None = None  # why the image is missing; None if it is not


def _registered_images(node: Installation) -> dict[_RegisteredImage, list[Provider]]:
    """Return the images of all providers that are not retired, each with the providers that use it.

    The images are sorted. An image that providers use at two engines is listed twice.
    """
    images: dict[_RegisteredImage, list[Provider]] = {}
    for provider in SqlProviders(node.store).list():
        if provider.retired:
            continue
        for name in provider.every_image():
            images.setdefault(_RegisteredImage(name, provider.place), []).append(provider)
    return {image: images[image] for image in sorted(images)}


def _check_image(
    node: Installation,
    image: _RegisteredImage,
    providers: Sequence[Provider],
) -> _ImageCheck:
    """Look for an image at its engine and, if the node pulls images, at its registry.

    - ``providers``: the providers that use the image at that engine; each has an approved digest of
      the image, unless the provider was registered without one
    """
    providers_text = f"for {', '.join(provider.key for provider in providers)}"
    image_engine = _engine_at(node, image.place)
    if image_engine is None:
        return _ImageCheck(
            missing=Risk(
                f"{image.label} (DAEMON_NOT_ALLOWED), {providers_text}",
                "add it to engines, or register the provider without it",
            )
        )
    unsuitable = [provider for provider in providers if not provider.runs_on(image_engine.kind)]
    if unsuitable:
        return _unsuitable(image, unsuitable)
    try:
        digest = image_engine.image_digest(image.name)
    except ImageNotFound as error:
        if _pulls(node):
            return _check_registry(image_engine, image, providers_text)
        return _missing(image, providers_text, error)
    except EngineError as error:
        return _missing(image, providers_text, error)
    # A provider without an approved digest accepts any.
    changed_for = [p.key for p in providers if p.digests.get(image.name, digest) != digest]
    return _ImageCheck(changed_for)


def _unsuitable(
    image: _RegisteredImage,
    providers: Sequence[Provider],
) -> _ImageCheck:
    """Return the result for an image that does not run on the kind of its engine.

    - ``providers``: the providers that say so
    """
    keys = ", ".join(provider.key for provider in providers)
    return _ImageCheck(
        missing=Risk(
            f"{image.label} ({ENGINE_UNSUITABLE}), for {keys}",
            explained_step(ENGINE_UNSUITABLE),
        )
    )


def _check_registry(
    image_engine: Engine,
    image: _RegisteredImage,
    providers_text: str,
) -> _ImageCheck:
    """Look for an image at its registry, because the engine does not have it.

    A failure is reported with its message, because a registry may refuse for many reasons.
    """
    try:
        image_engine.registry_digest(image.name, _REGISTRY_TIMEOUT)
    except EngineError as error:
        return _missing(
            image,
            providers_text,
            error,
            in_full=True,
        )
    return _ImageCheck(in_registry=True)


def _pulls(node: Installation) -> bool:
    """Return whether the node pulls missing images.

    False for a node that runs processes: these have no images.
    """
    settings = node.settings.engine
    return settings.main is not None and settings.docker.pull == "missing"


def _missing(
    image: _RegisteredImage,
    providers_text: str,
    error: EngineError,
    *,
    in_full: bool = False,
) -> _ImageCheck:
    """Return the result for a missing image.

    - ``providers_text``: the providers that use it, for the message
    - ``error``: why the engine or the registry did not return its digest
    - ``in_full``: add the error's message to its reason, as always for a missing command
    """
    cause = error.reason
    if in_full or isinstance(error, CommandNotFound):
        cause = f"{error.reason}: {error}"
    return _ImageCheck(
        missing=Risk(
            f"{image.label} ({cause}), {providers_text}",
            error.remedy or _image_remedy(error),
        )
    )


def _image_remedy(error: EngineError) -> str:
    """Return what to do about an image that an engine does not have.

    That is the next step of the error's reason, except for an engine that does not respond.
    """
    if isinstance(error, EngineDown):
        return "check the container engine"
    return explained_step(error.reason) or "check the container engine"


def _engine_at(
    node: Installation,
    place: str,
) -> Engine | None:
    """Return the engine of a provider's place; None for a place that the settings do not allow.

    - ``place``: the engine's name, its address or its device, as in `engines_by_place`; "" for the
      main engine
    """
    name = engines_by_place(node.settings).get(place, place)
    if not name:  # the main engine has an empty name
        return main_of(node.engine)
    return further_engines(node.engine).get(name)


def further_engines(engine: Engine) -> Mapping[str, Engine]:
    """Return the engines of a node except its main one, by name.

    Empty if the main engine is the only one.
    """
    if isinstance(engine, SeveralEngines):
        return engine.further
    return {}
