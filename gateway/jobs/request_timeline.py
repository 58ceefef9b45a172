"""What users of this node request, as notes in the timelines of jobs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.domain.spec import Note
from gateway.ports import Clock
from gateway.runtime.context import by_user, collecting_exchanges
from gateway.runtime.shell import notes_of
from gateway.store.store import Store


class RequestTimeline:
    """Notes the requests of this node's users, and the calls to other nodes that follow."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def note_request(
        self,
        job_id: str,
        what: str,
        **detail: Any,
    ) -> None:
        """Note in the job's timeline which person requested what; nothing if the person is unknown.

        ``what`` is a noun, such as "stop".
        """
        person = by_user().get("user")
        if not person:
            return
        note = Note(self._clock(), f"{what} requested", person, detail)
        self._store.note(job_id, "operator", [note])

    def note_defaults(self, job_id: str, filled_in: Mapping[str, Any]) -> None:
        """Note in the job's timeline which settings are the node's defaults; nothing if none is."""
        if filled_in:
            note = Note(self._clock(), "defaults of this node", "", dict(filled_in))
            self._store.note(job_id, "operator", [note])

    @contextmanager
    def recorded_calls(self, job_id: str) -> Iterator[None]:
        """Note the calls made in this context in the job's timeline, whether they failed or not.

        The name of the user who caused the calls is noted as well, if it is known.
        """
        with collecting_exchanges() as calls:
            try:
                yield
            finally:
                notes = notes_of(calls, self._clock(), **by_user())
                self._store.note(job_id, "initiator", notes)
