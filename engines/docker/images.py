"""Fetches images from the registries that the admin allows: explicitly, within a deadline, and only when asked."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from docker import APIClient, auth
from docker.errors import APIError, DockerException, InvalidRepository
from docker.utils import parse_repository_tag
from requests import Response, Timeout

from engines.base import EngineDown, EngineError, ImageNotFound, NoSpace, PullDenied, PullFailed, PullTimeout
from engines.docker.errors import check_answer, words

_EVERY = 1.0
"""seconds between two words of progress"""
_LATER = 30.0
"""seconds after which the request itself gives up; who follows it does so first, and says why"""
_DENIED = (
    "pull access denied",
    "unauthorized",
    "authentication required",
    "no basic auth",
    "denied:",
    "forbidden",
)
_UNKNOWN = ("manifest unknown", "not found", "name unknown", "does not exist", "invalid reference", "name must")
_LATE = ("timeout", "deadline exceeded", "timed out", "client.timeout")


_News = queue.SimpleQueue[Mapping[str, Any] | BaseException | None]


class _Stale(Exception):
    """Neither bytes nor words have come for too long."""


@dataclass(frozen=True)
class PullRules:
    """What may be fetched: nothing, unless registries are named."""

    registries: frozenset[str] = frozenset()
    """``host[:port]`` as in image names, and ``docker.io`` for names without a host"""
    deadline: float = 600.0
    """seconds for one image"""
    stale: float = 120.0
    """seconds without any news after which it is given up and begun anew, once"""


class Puller:
    """Fetches one image at a time and name."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules) -> None:
        self._client = client
        self._rules = rules
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @property
    def allowed(self) -> bool:
        """Whether the admin allows any registry at all."""
        return bool(self._rules.registries)

    def busy(self, image: str) -> threading.Lock:
        """Return the lock that is held while an image is fetched."""
        with self._guard:
            return self._locks.setdefault(image, threading.Lock())

    def pull(self, image: str, told: Callable[[str], None]) -> None:
        """Fetch the image. Raises what `engines.base.Engine.ensure_image` names, and what ``told`` raises."""
        registry = self._registry_of(image)
        until = time.monotonic() + self._rules.deadline
        try:
            self._fetch(image, registry, until, told)
        except _Stale as error:
            told(f"{error}; it is begun anew")
            try:
                self._fetch(image, registry, until, told)
            except _Stale as again:
                raise PullTimeout(f"{image} was given up twice: {again}") from again

    def offered(self, image: str, seconds: float) -> str:
        """Return the digest of what `pull` would fetch: the daemon asks the registry for its manifest only.

        Raises what `pull` raises.
        """
        registry = self._registry_of(image)
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/distribution/{image}/json"
        try:
            answer = api.get(url, headers=_authorised(api, registry), timeout=seconds)
            check_answer(answer)
            return str(answer.json()["Descriptor"]["digest"])
        except APIError as error:
            raise _refusal(image, words(error)) from error
        except Timeout as error:
            raise PullTimeout(f"{registry} did not tell of {image} within {seconds:g} s") from error
        except (DockerException, OSError) as error:
            raise EngineDown(f"the container engine went away while it asked for {image}: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise PullFailed(f"{registry} tells nothing of {image} that can be read") from error

    def _registry_of(self, image: str) -> str:
        try:
            registry, _ = auth.resolve_repository_name(parse_repository_tag(image)[0])
        except InvalidRepository as error:
            raise ImageNotFound(f"{image} is no name of an image", str(error)) from error
        if registry not in self._rules.registries:
            raise PullDenied(
                f"the container engine has no image {image}, and its registry {registry} is not among "
                f"engine.docker.registries ({', '.join(sorted(self._rules.registries))})"
            )
        return str(registry)

    def _fetch(self, image: str, registry: str, until: float, told: Callable[[str], None]) -> None:
        news: _News = queue.SimpleQueue()
        fetch = _Fetch(self._client(), image, registry, self._rules.deadline, news.put)
        with closing(fetch):
            self._follow(image, news, until, told)

    def _follow(self, image: str, news: _News, until: float, told: Callable[[str], None]) -> None:
        layers: dict[str, Mapping[str, Any]] = {}
        tell_at, heard_at = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now - heard_at >= self._rules.stale:
                raise _Stale(f"nothing has come for {self._rules.stale:g} s, {_progress(layers)}")
            if now >= until:
                raise PullTimeout(
                    f"{image} did not come within {self._rules.deadline:g} s (engine.docker.pull_seconds); "
                    f"{_progress(layers)}"
                )
            if now >= tell_at:
                told(_progress(layers))
                tell_at = now + _EVERY
            try:
                said = news.get(timeout=max(0.0, min(_EVERY, until - now)))
            except queue.Empty:
                continue
            heard_at = time.monotonic()
            if said is None:
                told(_progress(layers))
                return
            if isinstance(said, APIError):
                raise _refusal(image, words(said)) from said
            if isinstance(said, BaseException):
                raise EngineDown(f"the container engine went away while it fetched {image}: {said}") from said
            if "error" in said:
                raise _refusal(image, str(said["error"]))
            if "id" in said and "progressDetail" in said:
                layers[said["id"]] = said


class _Fetch:
    """One request to the daemon, read in a thread of its own, because neither side keeps a deadline."""

    def __init__(
        self,
        api: APIClient,
        image: str,
        registry: str,
        deadline: float,
        put: Callable[[Mapping[str, Any] | BaseException | None], None],
    ) -> None:
        self._api = api
        self._image = image
        self._registry = registry
        self._deadline = deadline
        self._put = put
        self._lock = threading.Lock()
        self._response: Response | None = None
        self._closed = False
        threading.Thread(target=self._run, name="engine-pull", daemon=True).start()

    def close(self) -> None:
        """Give up: the daemon stops to fetch when its caller is gone."""
        with self._lock:
            self._closed = True
            response = self._response
        if response is not None:  # its reader closes it; to close it here would wait for what the reader waits for
            with suppress(ValueError, RuntimeError, OSError):  # it is over already
                response.raw.shutdown()

    def _run(self) -> None:
        try:
            for said in self._said():
                self._put(said)
            self._put(None)
        except (
            DockerException,
            OSError,
            ValueError,
            AttributeError,
        ) as error:  # closed while it is read: the last
            self._put(error)

    def _said(self) -> Iterator[Mapping[str, Any]]:
        name, tag = parse_repository_tag(self._image)
        response = self._api.post(
            f"{self._api.base_url}/v{self._api.api_version}/images/create",
            params={"fromImage": name, "tag": tag or "latest"},
            headers=_authorised(self._api, self._registry),
            stream=True,
            timeout=self._deadline + _LATER,
        )
        with self._lock:
            self._response = response
            closed = self._closed
        with closing(response):
            if closed:
                return
            check_answer(response)
            for line in response.iter_lines():
                if line:
                    with suppress(ValueError):
                        yield json.loads(line)


def _authorised(api: APIClient, registry: str) -> dict[str, str | bytes]:
    """Return the headers that carry what `docker login` of the gateway's user has kept for a registry."""
    header = auth.get_config_header(api, registry)
    return {"X-Registry-Auth": header} if header else {}


def _refusal(image: str, text: str) -> EngineError:
    """Say what the daemon's or the registry's words mean."""
    said = text.lower()
    full = f"{image} cannot be fetched: {text}"
    if "no space left" in said:
        return NoSpace(full)
    if any(word in said for word in _DENIED):
        return PullDenied(full)
    if any(word in said for word in _UNKNOWN):
        return ImageNotFound(full, "push it there, or correct its name in the registration")
    if any(word in said for word in _LATE):
        return PullTimeout(full)
    return PullFailed(full)


def _progress(layers: Mapping[str, Mapping[str, Any]]) -> str:
    if not layers:
        return "nothing has come yet"
    done = sum("complete" in str(layer.get("status", "")).lower() for layer in layers.values())
    got = sum((layer.get("progressDetail") or {}).get("current") or 0 for layer in layers.values())
    return f"{done} of {len(layers)} layers, {got / 1e6:.1f} MB under way"
