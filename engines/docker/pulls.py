"""Pulls an image through a Docker daemon, within a time limit and with reports of progress."""

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from docker import APIClient, auth
from docker.errors import APIError, DockerException
from docker.utils import parse_repository_tag
from requests import Response

from engines.base import EngineDown, PullTimeout
from engines.docker.client import check_response, message_of, url_of
from engines.error_texts import pull_error
from engines.records import object_in
from engines.registry.logins import Login, login_for
from engines.registry.names import PullRules

PROGRESS_INTERVAL = 1.0  # seconds between two reports of progress

# Seconds by which the timeout of a pull's request exceeds the pull's time limit. `follow` gives up
# at that limit, with a better message.
_REQUEST_GRACE = 30.0

# The daemon's events, followed by None, or by the exception that ended them
PullEvents = queue.SimpleQueue[Mapping[str, Any] | BaseException | None]


class _Stale(Exception):
    """The daemon has reported no progress for too long."""


def pull(
    client: Callable[[], APIClient],
    image: str,
    rules: PullRules,
    on_progress: Callable[[str], None],
) -> None:
    """Pull an image, and start again once if there is no progress.

    Raises `EngineError` and all exceptions of ``on_progress``.
    """
    registry = rules.allowed_name(image).registry
    deadline = time.monotonic() + rules.max_seconds  # for both attempts together
    for is_last in (False, True):
        try:
            with closing(_Fetch(client(), image, registry, rules.max_seconds)) as fetch:
                explanation = fetch.login.explanation
                follow(image, fetch.events, deadline, rules, on_progress, explanation)
                return
        except _Stale as error:
            if is_last:
                raise PullTimeout(f"{image} was given up twice: {error}") from error
            on_progress(f"{error}; starting again")


def follow(
    image: str,
    events: PullEvents,
    deadline: float,
    rules: PullRules,
    on_progress: Callable[[str], None],
    explanation: str = "",
) -> None:
    """Report the progress of a pull until it is complete.

    ``deadline``: on the monotonic clock; ``explanation`` is appended to a refusal. Raises as `pull`
    does, and `_Stale` if no event came for ``rules.stale`` seconds.
    """
    layers: dict[str, Mapping[str, Any]] = {}  # the last event of each layer
    next_report = 0.0
    last_event = time.monotonic()
    while True:
        now = time.monotonic()
        if now - last_event >= rules.stale:
            raise _Stale(f"no progress for {rules.stale:g} s, {_progress(layers)}")
        if now >= deadline:
            raise PullTimeout(
                f"{image} did not arrive within {rules.max_seconds:g} s "
                f"(engine.docker.pull_seconds); {_progress(layers)}"
            )
        if now >= next_report:
            on_progress(_progress(layers))
            next_report = now + PROGRESS_INTERVAL
        try:
            event = events.get(timeout=min(PROGRESS_INTERVAL, deadline - now))
        except queue.Empty:
            continue
        last_event = time.monotonic()
        if event is None:
            on_progress(_progress(layers))
            return
        report = _checked(event, image, explanation)
        is_about_layer = "id" in report and "progressDetail" in report
        if is_about_layer:
            layers[report["id"]] = report


def _checked(
    event: Mapping[str, Any] | BaseException, image: str, explanation: str
) -> Mapping[str, Any]:
    """Return an event of the daemon, unless it is an error.

    Raises the `EngineError` behind an exception of the request, or behind the daemon's own report
    of a failure; ``explanation`` is appended to the registry's refusal.
    """
    if isinstance(event, APIError):
        raise pull_error(image, message_of(event), explanation) from event
    if isinstance(event, BaseException):
        raise EngineDown(
            f"the container engine went away while it pulled {image}: {event}"
        ) from event
    if "error" in event:
        raise pull_error(image, str(event["error"]), explanation)
    return event


def _progress(layers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the progress of a pull in words; ``layers``: the last event of each layer."""
    if not layers:
        return "no progress yet"
    complete = 0
    size = 0
    for layer in layers.values():
        status = str(layer.get("status", "")).lower()
        if "complete" in status:
            complete += 1
        details = object_in(layer, "progressDetail")  # empty once a layer is complete
        size += details.get("current") or 0
    return f"{complete} of {len(layers)} layers, {size / 1e6:.1f} MB in progress"


def login_headers(login: Login) -> dict[str, str | bytes]:
    """Return the headers that pass a login to the daemon; none for an empty login."""
    if not login.values:
        return {}
    return {"X-Registry-Auth": auth.encode_header(dict(login.values))}


class _Fetch:
    """One request for a pull, read in a thread of its own, so that `follow` can give up in time."""

    def __init__(
        self,
        api: APIClient,
        image: str,
        registry: str,
        max_seconds: float,
    ) -> None:
        """Start the request, with the stored login of the ``registry``.

        ``max_seconds``: for the whole pull; after them, `follow` reads no events any more.
        """
        self._api = api
        self._image = image
        self._max_seconds = max_seconds
        self.login = login_for(registry)
        self.events: PullEvents = queue.SimpleQueue()
        self._response: Response | None = None
        self._closed = False
        threading.Thread(target=self._run, name="engine-pull", daemon=True).start()

    def close(self) -> None:
        """End the connection; the daemon then stops the pull."""
        self._closed = True
        if self._response is None:
            return
        # The reading thread closes the response; closing it here would wait for that thread.
        with suppress(ValueError, RuntimeError, OSError):  # the connection has ended already
            self._response.raw.shutdown()

    def _run(self) -> None:
        """Put the events of the pull into the queue, then None.

        An exception that ends the pull is put in place of None.
        """
        try:
            self._read_events()
            self.events.put(None)
        except (DockerException, OSError, ValueError, AttributeError) as error:
            # An AttributeError comes from a response that is closed during the read.
            self.events.put(error)

    def _read_events(self) -> None:
        """Request the pull and put its events into the queue.

        Raises APIError, OSError; ValueError or AttributeError after `close`.
        """
        name, tag = parse_repository_tag(self._image)
        response = self._api.post(
            url_of(self._api, "images/create"),
            params={"fromImage": name, "tag": tag or "latest"},
            headers=login_headers(self.login),
            stream=True,
            timeout=self._max_seconds + _REQUEST_GRACE,
        )
        self._response = response
        with closing(response):
            if self._closed:
                return
            check_response(response)
            for line in response.iter_lines():
                if line:
                    self.events.put(json.loads(line))
