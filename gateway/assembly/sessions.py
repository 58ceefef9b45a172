"""The transport sessions of this node's jobs: whose they are, whether they are open, and what their end brings."""

from collections.abc import Callable

from adapter.bfia.environment import session_id
from gateway.domain.local_job import LocalJob
from gateway.domain.model import JobSpec
from gateway.store.store import Store


class Sessions:
    """What the channel asks of jobs, and jobs of the channel."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._on_end: list[Callable[[str], None]] = []
        self.per_task: Callable[[JobSpec], bool] = lambda spec: False
        """whether the containers of a job have a session for each of its tasks"""

    def on_end(self, end: Callable[[str], None]) -> None:
        """Name what is to happen on the event loop when a session ends."""
        self._on_end.append(end)

    def end(self, job_id: str) -> None:
        """End the session of a job, and where its tasks have some of their own, those."""
        local = self._store.local_jobs.find(job_id)
        tasks = (run.task_id for run in local.runs) if local and self.per_task(local.spec) else ()
        for session in dict.fromkeys(map(session_id, (job_id, *tasks))):
            for end in self._on_end:
                end(session)

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
        if not session.startswith(prefix):
            return None
        name = session.removeprefix(prefix)
        jobs = self._store.local_jobs
        found = jobs.find(name)
        if found is None and (job_id := self._store.local_job_of_task(name)) is not None:
            found = jobs.find(job_id)
            return found if found is not None and self.per_task(found.spec) else None
        return found
