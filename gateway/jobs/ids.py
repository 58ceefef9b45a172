"""Ids of new jobs, and ids of jobs and tasks at a participating node."""

import hashlib
import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from secrets import randbelow
from typing import Protocol
from uuid import uuid4

from gateway.domain.spec import NodeId
from gateway.errors import Conflict
from gateway.store.store import Store

_TIMESTAMP_DIGITS = 21  # of an id in FATE's form


def check_id_unused(store: Store, new_id: str, job_id: str) -> None:
    """Raise `Conflict` if another job uses ``new_id`` here, for itself or for one of its tasks.

    ``new_id`` is the id of the job ``job_id`` itself, or of one of its tasks. Jobs and tasks share
    one name space, as sessions of the channel are named after both.
    """
    using_job = store.local_job_of(new_id)
    if using_job is None or using_job == job_id:
        return
    if new_id in (job_id, using_job):
        raise Conflict(f"{new_id} is the id of another job or task here", reason="JOB_ID_CONFLICT")
    raise Conflict(f"task id {new_id} belongs to another job here", reason="TASK_ID_CONFLICT")


def random_job_id() -> str:
    """Return ``job-`` with 32 random characters, which is also a name of Kubernetes (RFC 1123)."""
    return f"job-{uuid4().hex}"


class NewId(Protocol):
    """Makes the id of a job that is submitted here."""

    def __call__(self, nodes: Iterable[NodeId], repeat_key: str = "") -> str:
        """Return an id in a form that fits all of these nodes.

        ``repeat_key``: a key of the submission; the same key gets the same id. "": a new id.
        """


def id_of_key(repeat_key: str, *, digits: bool) -> str:
    """Return the id of the job that is submitted with a key, the same each time.

    It looks like `random_job_id`; with ``digits`` it has the length of an id of `TimestampIds`.
    """
    digest = hashlib.sha256(repeat_key.encode()).hexdigest()
    if digits:
        return f"{int(digest, 16) % 10**_TIMESTAMP_DIGITS:0{_TIMESTAMP_DIGITS}}"
    return f"job-{digest[:32]}"


class TimestampIds:
    """Makes job ids as FATE does: 21 digits, the time to the microsecond and one more digit.

    The time is that of the clock, which here is in UTC. A process uses each time once. The last
    digit is random, as several gateways of a node may make an id at the same time.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: datetime | None = None  # time in the last id; None: none was made

    def new(self) -> str:
        """Return a new id, which sorts after all earlier ones of this process."""
        with self._lock:
            time = self._clock()
            if self._last is not None:
                time = max(time, self._last + timedelta(microseconds=1))
            self._last = time
        return f"{time:%Y%m%d%H%M%S%f}{randbelow(10)}"
