"""Makes seen that a job cannot be gone on with because of an error inside the gateway."""

from collections.abc import Callable

from gateway.domain.spec import Note
from gateway.ports import Clock
from gateway.store.store import Store

EVENT = "cannot go on"


def telling(
    store: Store, side: str, clock: Clock, count: Callable[[str], None]
) -> Callable[[str, Exception, int], None]:
    """Return what a loop of this side tells of a failure. ``side``: ``scheduler`` or ``participant``.

    Of failures in a row the first is written into the job's timeline.
    """

    def failed(job_id: str, error: Exception, times: int) -> None:
        count(side)
        if times == 1:
            name = type(error).__name__
            text = f"{name} inside the gateway; it is tried again every second, and the gateway's log tells more"
            store.note(job_id, side, [Note(clock(), EVENT, "", {"reason": "INTERNAL", "message": text})])

    return failed
