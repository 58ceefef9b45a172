"""Looks at the images of a registration: are they here, what is in them, do their labels say the same."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engines.base import Engine, EngineError, ImageFacts
from provider_registry import labels
from provider_registry.limits import bounded
from provider_registry.model import Problem, Provider

NOT_PINNED = "jobs start whatever it is then, until `bfia-gateway provider approve`"


class _TooLong(Exception):
    """Fetching takes longer than somebody who registers is to wait."""


@dataclass(frozen=True)
class Looked:
    """What was found of one image. ``reason`` is empty if it is here."""

    image: str
    facts: ImageFacts = field(default_factory=ImageFacts)
    reason: str = ""
    message: str = ""


class Images:
    """Looks at images by the node's engine."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        """``seconds`` bound the fetching of all images of one registration, where fetching is allowed at all."""
        self._engine = engine
        self._seconds = seconds

    def look(self, images: Iterable[str]) -> tuple[Looked, ...]:
        """Look at each image, and fetch it if the engine's settings allow that. Raises nothing."""
        until = time.monotonic() + self._seconds
        return tuple(self._one(image, until) for image in images)

    def _one(self, image: str, until: float) -> Looked:
        def told(progress: str) -> None:
            if time.monotonic() >= until:
                raise _TooLong(
                    f"{image} did not come within {self._seconds:g} s (providers.fetch_seconds); {progress}"
                )

        try:
            self._engine.ensure_image(image, told)
            return Looked(image, self._engine.image_facts(image))
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
        warnings += labels.differences(one.facts.labels, provider, one.image)
    return replace(provider, digests=digests, warnings=bounded([*warnings, *provider.warnings]))
