"""Makes seen that a job cannot be gone on with because of an error inside the gateway."""

from collections.abc import Callable

from gateway.domain.model import Note
from gateway.errors import DatabaseAway
from gateway.ports import Clock
from gateway.store.store import Store

EVENT = "cannot go on"
_MOST = 1000
"""jobs that are remembered"""


def telling(
    store: Store, side: str, clock: Clock, count: Callable[[str], None]
) -> Callable[[str, Exception, int], None]:
    """Return what a loop of this side tells of a failure. ``side``: ``scheduler`` or ``participant``.

    A database that is away is no error of the job; of failures in a row the first is written into its timeline.
    """
    told: dict[str, int] = {}
    """job -> which failure in a row the last one was"""

    def failed(job_id: str, error: Exception, times: int) -> None:
        if isinstance(error, DatabaseAway):
            return
        count(side)
        in_a_row = times > told.pop(job_id, times)
        told[job_id] = times
        if len(told) > _MOST:
            del told[next(iter(told))]
        if not in_a_row:
            name = type(error).__name__
            text = f"{name} inside the gateway; it is tried again every second, and the gateway's log tells more"
            store.note(job_id, side, [Note(clock(), EVENT, "", {"reason": "INTERNAL", "message": text})])

    return failed
