"""Checks of the engines, the isolation of runs, and the registered images."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from gateway.diagnostics.installation import Installation, Risk, explained_step
from gateway.domain.amounts import Amounts
from gateway.errors import counted
from gateway.http.server import serving
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.repositories import SqlProviders
from provider_registry.model import Provider

_MAX_CONNECTIONS = 16  # images checked at the same time
_PULL_TIMEOUT = 10.0  # seconds for a registry's answer about an image


def engine(node: Installation) -> Step:
    """Check that every engine responds, and has CPU and memory for runs."""
    kind = node.engine.kind
    try:
        node.engine.check()
        capacity = node.engine.capacity()
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", error.remedy or _engine_remedy(node))
    text = kind
    if capacity.gpu:
        text += f" with gpu {capacity.gpu}"
    risks: list[Risk] = []
    further = further_engines(node.engine)
    if further:
        further_text, risks = _further_engines_state(further)
        text += f", and {further_text}"
    if not _has_capacity(capacity):
        risks.insert(0, _no_capacity(kind))
    if not risks:
        return trials.ok(text)
    causes = "; ".join(risk.cause for risk in risks)
    remedies = dict.fromkeys(risk.remedy for risk in risks)
    return trials.warning(
        f"nothing can run at {causes}",
        "; ".join(remedies),
        text,
    )


def _further_engines_state(engines: Mapping[str, Engine]) -> tuple[str, list[Risk]]:
    """Return a text with the capacities of further engines, and the risks of unusable ones."""
    texts = []
    risks = []
    for name, further_engine in engines.items():
        try:
            capacity = further_engine.capacity()
        except EngineError as error:
            remedy = error.remedy or "start that engine, or check its entry and certificates"
            risks.append(Risk(f"{name}: {error.reason}: {error}", remedy))
            continue
        texts.append(f"{name} ({further_engine.kind}) has {_amounts(capacity)}")
        if not _has_capacity(capacity):
            risks.append(_no_capacity(name))
    text = counted(len(engines), "further engine")
    if texts:
        text += f": {'; '.join(texts)}"
    return text, risks


def _has_capacity(capacity: Capacity) -> bool:
    """Return whether an engine has CPU and memory for any run."""
    return min(capacity.cpu, capacity.memory) > 0


def _no_capacity(engine_name: str) -> Risk:
    """Return the risk of an engine that can run nothing."""
    return Risk(
        f"{engine_name}: it has no cpu or no memory for runs",
        "raise the ResourceQuota of its namespace, or have a machine take runs",
    )


def _engine_remedy(node: Installation) -> str:
    """Return what to do about an engine that does not respond."""
    if node.settings.engine.main is None:
        return "check the state folder"
    if node.engine.kind == "kubernetes":
        return "check the API server, and engine.kubernetes.kubeconfig"
    return f"start the Docker daemon, or correct engine.{node.engine.kind}.base_url"


def _amounts(capacity: Capacity) -> str:
    """Return a capacity in words."""
    return Amounts.of(capacity.cpu, capacity.memory, gpu=capacity.gpu).text()


def isolation(node: Installation) -> Step:
    """Report whether tasks are isolated from each other, from the host and from outside."""
    if not node.engine_up:
        return trials.skipped()
    try:
        gaps = node.engine.isolation().gaps
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", "check the container engine")
    if not gaps:
        return trials.ok("tasks are isolated from each other, from the host and from outside")
    remedy = "close the gaps, or accept them"
    is_before_first_start = serving(node.settings.state_dir) is None
    close_by_themselves = all(gap.endswith(RULES_CREATED_AT_START) for gap in gaps)
    if is_before_first_start and close_by_themselves:
        remedy = "nothing before the first start; afterwards close the gaps, or accept them"
    return trials.warning("; ".join(gaps), remedy)


def images(node: Installation) -> Step:
    """Look for every registered image at its provider's engine, or else at its registry."""
    if not (node.engine_up and node.database_ready):
        return trials.skipped()
    providers_by_image = _registered_images(node)
    if not providers_by_image:
        return trials.ok("no provider is in use: nothing to check")

    def check_image(image: _RegisteredImage) -> _ImageCheck:
        return _check_image(node, image, providers_by_image[image])

    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        checks = list(pool.map(check_image, sorted(providers_by_image)))
    return _images_step(checks)


def _images_step(checks: Sequence["_ImageCheck"]) -> Step:
    """Return the result of all images: a warning about moved ones, or about missing ones."""
    total = f"{counted(len(checks), 'image')} registered"
    moved = ", ".join(provider for check in checks for provider in check.moved)
    if moved:
        text = f"another image than was approved, which is not started (DIGEST_CHANGED): {moved}"
        remedy = (
            "bfia-gateway provider approve, if it is the right one; else restore the approved one"
        )
        return trials.warning(text, remedy, total)
    missing = [check for check in checks if check.remedy]
    if missing:
        causes = "; ".join(check.cause for check in missing)
        remedies = "; ".join(dict.fromkeys(check.remedy for check in missing))
        return trials.warning(f"registered, but not here: {causes}", remedies, total)
    in_registries = sum(check.in_registry for check in checks)
    if in_registries:
        return trials.ok(f"{total}, {in_registries} of them with its registry, pulled when needed")
    return trials.ok(f"{total}, all here")


class _RegisteredImage(NamedTuple):
    """An image, and the engine that its provider names."""

    name: str
    engine: str  # "" for the main one

    @property
    def label(self) -> str:
        """The image for a message."""
        if self.engine:
            return f"{self.name} at {self.engine}"
        return self.name


@dataclass(frozen=True)
class _ImageCheck:
    """The state of an image at its engine or its registry."""

    # Keys of the providers that have approved another digest than the image has now
    moved: Sequence[str] = ()
    in_registry: bool = False  # not at the engine, which will pull it
    cause: str = ""  # why it is missing; "" if it is not
    remedy: str = ""  # "" if it is not missing


def _registered_images(node: Installation) -> dict[_RegisteredImage, list[Provider]]:
    """Return the images of all providers in use, each with its providers."""
    in_use = [provider for provider in SqlProviders(node.store).list() if not provider.retired]
    images: dict[_RegisteredImage, list[Provider]] = {}
    for provider in in_use:
        for name in provider.every_image():
            images.setdefault(_RegisteredImage(name, provider.place), []).append(provider)
    return images


def _check_image(
    node: Installation,
    image: _RegisteredImage,
    providers: Sequence[Provider],
) -> _ImageCheck:
    """Look for an image at its engine and, if the node pulls images, at its registry."""
    providers_text = f"for {', '.join(provider.key for provider in providers)}"
    image_engine = _engine_at(node, image.engine)
    if image_engine is None:
        remedy = "add it to engines, or register the provider without it"
        cause = f"{image.label} (DAEMON_NOT_ALLOWED), {providers_text}"
        return _ImageCheck(
            cause=cause,
            remedy=remedy,
        )
    try:
        digest = image_engine.image_digest(image.name)
    except ImageNotFound as error:
        if not _pulls(node):
            return _missing(image, providers_text, error)
        try:
            image_engine.registry_digest(image.name, _PULL_TIMEOUT)
        except EngineError as registry_error:
            return _missing(
                image,
                providers_text,
                registry_error,
                in_full=True,
            )
        return _ImageCheck(in_registry=True)
    except EngineError as error:
        return _missing(image, providers_text, error)
    moved = [p.key for p in providers if p.digests.get(image.name, digest) != digest]
    return _ImageCheck(moved)


def _pulls(node: Installation) -> bool:
    """Return whether the node pulls missing images."""
    settings = node.settings.engine
    return settings.main is not None and settings.docker.pull == "missing"


def _missing(
    image: _RegisteredImage,
    providers_text: str,
    error: EngineError,
    *,
    in_full: bool = False,
) -> _ImageCheck:
    """Return the check of a missing image.

    ``in_full``: with the error's message, not only its reason.
    """
    cause = error.reason
    if in_full or isinstance(error, CommandNotFound):
        cause = f"{error.reason}: {error}"
    remedy = error.remedy or _image_remedy(error)
    return _ImageCheck(
        cause=f"{image.label} ({cause}), {providers_text}",
        remedy=remedy,
    )


def _image_remedy(error: EngineError) -> str:
    """Return what to do about an image that an engine does not have."""
    step = ""
    if not isinstance(error, EngineDown):
        step = explained_step(error.reason)
    return step or "check the container engine"


def _engine_at(
    node: Installation,
    place: str,
) -> Engine | None:
    """Return the engine of a provider's place; None for a place that the settings do not allow."""
    name = engines_by_place(node.settings).get(place)
    if name is None:  # the settings have no such place
        return further_engines(node.engine).get(place)
    if not name:  # the main engine has an empty name
        return main_of(node.engine)
    return further_engines(node.engine).get(name)


def further_engines(engine: Engine) -> Mapping[str, Engine]:
    """Return the engines of a node except its main one, by name."""
    if isinstance(engine, SeveralEngines):
        return engine.others
    return {}
