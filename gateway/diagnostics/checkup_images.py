"""The step of the look at a node that is about images: is what registered providers need here, or to be had?"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from engines.base import Engine, EngineError, ImageNotFound
from engines.multi import SeveralEngines
from gateway.config.schema import Settings
from gateway.runtime.checks import Result, Step
from gateway.store.repositories import SqlProviders
from gateway.store.store import Store
from gateway.text import counted
from provider_registry.model import Provider

_ASKING_SECONDS = 10.0
"""for a registry to tell of an image"""
_AT_ONCE = 8


class _Needed(NamedTuple):
    """An image at the daemon where it has to be, and who needs it."""

    image: str
    base_url: str
    by: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.image} at {self.base_url}" if self.base_url else self.image


class _Wrong(NamedTuple):
    reason: str
    words: str
    remedy: str


def images_of(engine: Engine, store: Store, settings: Settings) -> Step:
    """Look for every registered image at the daemon that its provider names.

    Of one that is not there yet, and that a start would fetch, the registry is asked, as the fetching would be.
    """
    providers = [p for p in SqlProviders(store).list() if not p.retired]
    needed = _needed(providers)
    if not needed:
        return Step("images", Result.OK, "no provider is registered: nothing can be tried")
    moved: list[str] = []
    absent: list[tuple[_Needed, Engine]] = []
    wrong: list[tuple[_Needed, _Wrong]] = []
    for one in needed:
        runs = _engine_of(engine, one.base_url, settings)
        if runs is None:
            remedy = "add the address to engine.docker.daemons, or register the provider without it"
            wrong.append((one, _Wrong("DAEMON_NOT_ALLOWED", "", remedy)))
            continue
        try:
            found = runs.image_digest(one.image)
        except ImageNotFound as error:
            if settings.engine.kind == "docker" and settings.engine.docker.pull == "missing":
                absent.append((one, runs))
            else:
                wrong.append((one, _wrong(error, "")))
        except EngineError as error:
            wrong.append((one, _wrong(error, "")))
        else:
            moved += [p.key for p in providers if _is_moved(p, one, found)]
    wrong += _not_offered(absent)
    total = counted(len(needed), "image")
    if moved:
        text = f"another image than was approved, which is not started (DIGEST_CHANGED): {', '.join(moved)}"
        remedy = "bfia-gateway provider approve, if it is the right one; else bring the approved one back"
        return Step("images", Result.WARNING, f"{total} registered", text, remedy)
    if wrong:
        text = f"registered, but not here: {'; '.join(_told(*pair) for pair in wrong)}"
        remedies = "; ".join(dict.fromkeys(one.remedy for _, one in wrong))
        return Step("images", Result.WARNING, f"{total} registered", text, remedies)
    if absent:
        there = f"{len(absent)} of them with its registry, fetched when wanted"
        return Step("images", Result.OK, f"{total} registered, {there}")
    return Step("images", Result.OK, f"{total} registered, all here")


def further(engine: Engine) -> Mapping[str, Engine]:
    """Return the daemons beside the main one, by their addresses."""
    return engine.others if isinstance(engine, SeveralEngines) else {}


def _engine_of(engine: Engine, base_url: str, settings: Settings) -> Engine | None:
    """Return the engine that a provider names; None for one that the admin has not allowed."""
    if settings.engine.kind != "docker":
        return None if base_url else engine
    if base_url in ("", settings.engine.docker.base_url):
        return engine.main if isinstance(engine, SeveralEngines) else engine
    return further(engine).get(base_url)


def _needed(providers: Iterable[Provider]) -> list[_Needed]:
    by: dict[tuple[str, str], list[str]] = {}
    for provider in providers:
        for image in provider.every_image():
            by.setdefault((image, provider.base_url), []).append(provider.key)
    return [_Needed(image, base_url, tuple(keys)) for (image, base_url), keys in sorted(by.items())]


def _is_moved(provider: Provider, one: _Needed, found: str) -> bool:
    return provider.base_url == one.base_url and provider.digests.get(one.image, found) != found


def _not_offered(absent: Sequence[tuple[_Needed, Engine]]) -> list[tuple[_Needed, _Wrong]]:
    """Ask the registries for what is not here yet; return what cannot be had from there."""
    if not absent:
        return []

    def ask(pair: tuple[_Needed, Engine]) -> _Wrong | None:
        one, runs = pair
        try:
            runs.offered(one.image, _ASKING_SECONDS)
        except EngineError as error:
            return _wrong(error, str(error))
        return None

    with ThreadPoolExecutor(min(len(absent), _AT_ONCE)) as pool:
        answers = list(pool.map(ask, absent))
    return [(one, wrong) for (one, _), wrong in zip(absent, answers, strict=True) if wrong]


def _wrong(error: EngineError, words: str) -> _Wrong:
    return _Wrong(error.reason, words, _REMEDIES.get(error.reason) or getattr(error, "remedy", "") or _LOOK)


_LOOK = "look at the container engine"
_REMEDIES = {
    "PULL_DENIED": "log the gateway's user in (docker login), or name the registry in engine.docker.registries",
    "PULL_TIMEOUT": "look at the way from the container engine to the registry",
    "PULL_FAILED": "look at the way from the container engine to the registry",
}


def _told(one: _Needed, wrong: _Wrong) -> str:
    more = f": {wrong.words}" if wrong.words else ""
    return f"{one.name} ({wrong.reason}{more}), for {', '.join(one.by)}"
