"""The transport sessions of this node's jobs: whose they are, whether they are open, and what their end brings."""

from collections.abc import Callable

from adapter.bfia.environment import session_id
from gateway.domain.model import LocalJob
from gateway.store.store import Store


class Sessions:
    """What the channel asks of jobs, and jobs of the channel."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._on_end: list[Callable[[str], None]] = []

    def on_end(self, end: Callable[[str], None]) -> None:
        """Name what is to happen on the event loop when a session ends."""
        self._on_end.append(end)

    def end(self, job_id: str) -> None:
        """End the session of a job."""
        for end in self._on_end:
            end(session_id(job_id))

    def run_of_token(self, token: str) -> str | None:
        """Return the name of the run that shows this token."""
        return self._store.name_of_token(token) if token else None

    def is_open(self, session: str) -> bool | None:
        """Say whether a session takes messages; None for one that is no job's here."""
        local = self._job_of(session)
        return None if local is None else not local.closed

    def home_of(self, session: str) -> str | None:
        """Return the gateway of this node that has the session; None for one that is no job's here."""
        local = self._job_of(session)
        return None if local is None else local.home

    def _job_of(self, session: str) -> LocalJob | None:
        prefix = session_id("")
        return self._store.local_jobs.find(session.removeprefix(prefix)) if session.startswith(prefix) else None
