"""Fetches the images that a job waits for before it is READY, and tells how far it has come."""

import time
from collections.abc import Callable

import structlog

from engines.base import Engine, EngineDown, EngineError
from gateway.domain import preparing
from gateway.domain.execution.commands import Prepare
from gateway.domain.execution.messages import Done, Event, Fetching, Prepared
from gateway.domain.outward import for_others
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure
from gateway.ports import Clock

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
        if preparing.to_fetch(self._find(job_id)) is None:
            raise NotWanted
        if not news:
            return
        log.info("an image is fetched", job=job_id, progress=progress)
        self._record(job_id, Fetching(progress, self._clock()))


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
