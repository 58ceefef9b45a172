"""Looks at the images of a registration: are they here, what is in them, do their labels say the same."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from engines.base import Engine, EngineError, ImageFacts
from provider_registry import image_labels
from provider_registry.limits import bounded
from provider_registry.model import Problem, Provider

NOT_PINNED = "the first job that starts it pins it, unless `bfia-gateway provider approve` comes first"


class _TooLong(Exception):
    """Fetching takes longer than somebody who registers is to wait."""


@dataclass(frozen=True)
class Looked:
    """What was found of one image. ``reason`` is empty if it is here."""

    image: str
    facts: ImageFacts = field(default_factory=ImageFacts)
    reason: str = ""
    message: str = ""

    @property
    def unsigned(self) -> bool:
        """It is here, and not signed as it has to be, or nobody can tell."""
        return self.reason.startswith("SIGNATURE_")


class Images:
    """Looks at images where they will run."""

    def __init__(
        self,
        engine_at: Callable[[str], Engine | None],
        seconds: float,
        signed: Callable[[str, str, Engine], str] = lambda provider, image, engine: "",
    ) -> None:
        """``engine_at`` returns the engine for a provider's base_url, None for one that the admin has not allowed.

        ``seconds`` bound the fetching of all images of one registration, where fetching is allowed at all.
        ``signed`` raises `EngineError` for an image that is not signed as it has to be.
        """
        self._engine_at = engine_at
        self._signed = signed
        self._seconds = seconds

    def look(self, images: Iterable[str], base_url: str = "", provider: str = "") -> tuple[Looked, ...]:
        """Look at each image of a provider, and fetch it if the engine's settings allow that. Raises nothing."""
        until = time.monotonic() + self._seconds
        try:
            engine = self._engine_at(base_url)
        except EngineError as error:
            return tuple(Looked(image, reason=error.reason, message=str(error)) for image in images)
        if engine is None:
            text = f"{base_url} is not among engine.docker.daemons"
            return tuple(Looked(image, reason="DAEMON_NOT_ALLOWED", message=text) for image in images)
        return tuple(self._one(engine, image, provider, until) for image in images)

    def _one(self, engine: Engine, image: str, provider: str, until: float) -> Looked:
        def told(progress: str) -> None:
            if time.monotonic() >= until:
                raise _TooLong(
                    f"{image} did not come within {self._seconds:g} s (providers.fetch_seconds); {progress}"
                )

        try:
            engine.ensure_image(image, told)
            self._signed(provider, image, engine)
            return Looked(image, engine.image_facts(image))
        except EngineError as error:
            return Looked(image, reason=error.reason, message=str(error))
        except _TooLong as error:
            return Looked(image, reason="PULL_TIMEOUT", message=str(error))


def pinned(provider: Provider, looked: Iterable[Looked]) -> Provider:
    """Return the provider with the digests of what was found, and a warning for each image that is odd."""
    digests: dict[str, str] = {}
    warnings: list[Problem] = []
    for one in looked:
        if one.reason:
            rule = f"cannot be looked at ({one.reason}: {one.message}); {NOT_PINNED}"
            warnings.append(Problem("metadata.image", rule, one.image))
            continue
        if one.facts.digest:
            digests[one.image] = one.facts.digest
        warnings += image_labels.differences(one.facts.labels, provider, one.image)
    return replace(provider, digests=digests, warnings=bounded([*warnings, *provider.warnings]))
