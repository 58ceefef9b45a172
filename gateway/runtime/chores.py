"""The regular work of a node that is seldom due: one loop for all of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.runtime.loop import Loop, utc_now


@dataclass(frozen=True)
class Chore:
    """Work that a node does again and again."""

    name: str
    work: Callable[[], object]
    every: float  # seconds between two turns
    is_due_at_start: bool = True  # False: first after ``every`` seconds


class Chores:
    """Does each chore when it is due, one after the other on one thread.

    A chore that fails is logged, and due again at its next turn.
    """

    def __init__(self, chores: Sequence[Chore]) -> None:
        """Prepare the chores; `start` begins them."""
        self._chores = {chore.name: chore for chore in chores}
        self._due_times: dict[str, datetime] = {}
        self._loop = Loop(
            "chores",
            self._do,
            self._overdue,
            every=min(chore.every for chore in chores),
            workers=1,
        )

    def start(self) -> None:
        """Begin the chores that are due at the start, and all others in their time."""
        now = utc_now()
        for chore in self._chores.values():
            first_turn = now
            if not chore.is_due_at_start:
                first_turn += timedelta(seconds=chore.every)
            self._set_due(chore, first_turn)
        self._loop.start()

    def stop(self) -> None:
        """Begin no chore, and wait until the running ones end, for a limited time."""
        self._loop.stop()

    def _do(self, name: str) -> None:
        """Do a chore, after its next turn has been set."""
        chore = self._chores[name]
        self._set_due(chore, utc_now() + timedelta(seconds=chore.every))
        chore.work()

    def _set_due(self, chore: Chore, due: datetime) -> None:
        """Set the time of a chore's next turn."""
        self._due_times[chore.name] = due
        self._loop.wake(chore.name, due)

    def _overdue(self, now: datetime) -> Iterable[str]:
        """Return the chores that are due: all those whose wake was lost."""
        return [name for name, due in self._due_times.items() if due <= now]
