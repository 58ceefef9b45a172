"""Pulls images from the registries that the admin allows: explicitly, and within a deadline."""

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

_PROGRESS_EVERY = 1.0
"""seconds between two reports of progress"""
_GRACE = 30.0
"""seconds after the deadline when the request itself gives up; its reader does so before, and says why"""
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


_Events = queue.SimpleQueue[Mapping[str, Any] | BaseException | None]


class _Stale(Exception):
    """The daemon has reported nothing for too long."""


@dataclass(frozen=True)
class PullRules:
    """What may be fetched: nothing, unless registries are named."""

    registries: frozenset[str] = frozenset()
    """``host[:port]`` as in image names, and ``docker.io`` for names without a host"""
    deadline: float = 600.0
    """seconds for one image"""
    stale: float = 120.0
    """seconds without progress after which the pull is started again, once"""


class Puller:
    """Pulls images."""

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
        """Return the lock that is held while an image is pulled."""
        with self._guard:
            return self._locks.setdefault(image, threading.Lock())

    def pull(self, image: str, on_progress: Callable[[str], None]) -> None:
        """Pull the image. Raises what `engines.base.Engine.ensure_image` says, and what ``on_progress`` raises."""
        registry = self._registry_of(image)
        until = time.monotonic() + self._rules.deadline
        try:
            self._fetch(image, registry, until, on_progress)
        except _Stale as error:
            on_progress(f"{error}; starting again")
            try:
                self._fetch(image, registry, until, on_progress)
            except _Stale as again:
                raise PullTimeout(f"{image} was given up twice: {again}") from again

    def offered(self, image: str, seconds: float) -> str:
        """Return the digest of what `pull` would fetch; raises what it raises."""
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
            raise PullTimeout(f"{registry} did not respond about {image} within {seconds:g} s") from error
        except (DockerException, OSError) as error:
            raise EngineDown(f"the container engine went away during the request for {image}: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise PullFailed(f"{registry} gave no valid response about {image}") from error

    def _registry_of(self, image: str) -> str:
        try:
            registry, _ = auth.resolve_repository_name(parse_repository_tag(image)[0])
        except InvalidRepository as error:
            raise ImageNotFound(f"{image} is not a valid image name", str(error)) from error
        if registry not in self._rules.registries:
            raise PullDenied(
                f"the container engine has no image {image}, and its registry {registry} is not among "
                f"engine.docker.registries ({', '.join(sorted(self._rules.registries))})"
            )
        return str(registry)

    def _fetch(self, image: str, registry: str, until: float, on_progress: Callable[[str], None]) -> None:
        fetch = _Fetch(self._client(), image, registry, self._rules.deadline)
        with closing(fetch):
            self._follow(image, fetch.events, until, on_progress)

    def _follow(self, image: str, events: _Events, until: float, on_progress: Callable[[str], None]) -> None:
        layers: dict[str, Mapping[str, Any]] = {}
        report_at, last_at = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now - last_at >= self._rules.stale:
                raise _Stale(f"no progress for {self._rules.stale:g} s, {_progress(layers)}")
            if now >= until:
                raise PullTimeout(
                    f"{image} did not arrive within {self._rules.deadline:g} s (engine.docker.pull_seconds); "
                    f"{_progress(layers)}"
                )
            if now >= report_at:
                on_progress(_progress(layers))
                report_at = now + _PROGRESS_EVERY
            try:
                event = events.get(timeout=max(0.0, min(_PROGRESS_EVERY, until - now)))
            except queue.Empty:
                continue
            last_at = time.monotonic()
            if event is None:
                on_progress(_progress(layers))
                return
            if isinstance(event, APIError):
                raise _refusal(image, words(event)) from event
            if isinstance(event, BaseException):
                raise EngineDown(f"the container engine went away while it pulled {image}: {event}") from event
            if "error" in event:
                raise _refusal(image, str(event["error"]))
            if "id" in event and "progressDetail" in event:
                layers[event["id"]] = event


class _Fetch:
    """One request to the daemon, read in a thread of its own, because neither side has a deadline."""

    def __init__(self, api: APIClient, image: str, registry: str, deadline: float) -> None:
        self._api = api
        self._image = image
        self._registry = registry
        self._deadline = deadline
        self.events: _Events = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._response: Response | None = None
        self._closed = False
        threading.Thread(target=self._run, name="engine-pull", daemon=True).start()

    def close(self) -> None:
        """Give up: the daemon stops when its caller is gone."""
        with self._lock:
            self._closed = True
            response = self._response
        if response is not None:  # its reader closes it; closing it here would wait for the reader
            with suppress(ValueError, RuntimeError, OSError):  # it is over already
                response.raw.shutdown()

    def _run(self) -> None:
        try:
            for event in self._read():
                self.events.put(event)
            self.events.put(None)
        except (DockerException, OSError, ValueError, AttributeError) as error:  # the last: closed meanwhile
            self.events.put(error)

    def _read(self) -> Iterator[Mapping[str, Any]]:
        name, tag = parse_repository_tag(self._image)
        response = self._api.post(
            f"{self._api.base_url}/v{self._api.api_version}/images/create",
            params={"fromImage": name, "tag": tag or "latest"},
            headers=_authorised(self._api, self._registry),
            stream=True,
            timeout=self._deadline + _GRACE,
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
    """Return the headers with the credentials that `docker login` has stored for a registry."""
    header = auth.get_config_header(api, registry)
    return {"X-Registry-Auth": header} if header else {}


def _refusal(image: str, text: str) -> EngineError:
    """Return the error that a message of the daemon or the registry stands for."""
    lower = text.lower()
    full = f"{image} cannot be pulled: {text}"
    if "no space left" in lower:
        return NoSpace(full)
    if any(word in lower for word in _DENIED):
        return PullDenied(full)
    if any(word in lower for word in _UNKNOWN):
        return ImageNotFound(full, "push it there, or correct its name in the registration")
    if any(word in lower for word in _LATE):
        return PullTimeout(full)
    return PullFailed(full)


def _progress(layers: Mapping[str, Mapping[str, Any]]) -> str:
    if not layers:
        return "no progress yet"
    done = sum("complete" in str(layer.get("status", "")).lower() for layer in layers.values())
    got = sum((layer.get("progressDetail") or {}).get("current") or 0 for layer in layers.values())
    return f"{done} of {len(layers)} layers, {got / 1e6:.1f} MB in progress"
