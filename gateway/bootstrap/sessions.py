"""The transport sessions of this node's jobs: whose they are, whether they are open, and what their end brings."""

from collections.abc import Callable

from adapter.bfia.channel.sessions import Claim, Member
from adapter.bfia.environment import session_id, session_of
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, JobSpec, NodeId
from gateway.errors import NotAllowed
from gateway.run_tokens import RunTokens
from gateway.store.store import Store


class Sessions:
    """What the channel asks of jobs, and jobs of the channel."""

    def __init__(self, store: Store, tokens: RunTokens) -> None:
        self._store = store
        self._tokens = tokens
        self._on_end: list[Callable[[str], None]] = []
        self.per_task: Callable[[JobSpec], bool] = lambda spec: False
        """whether the containers of a job have a session for each of its tasks"""
        self.address_of: Callable[[Run], str] = lambda run: ""
        """from which address a run's requests come; empty where that does not tell"""

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

    def run_of(self, claim: Claim) -> Member:
        """Return the run that a request comes from. Raises `NotAllowed`, also for the session of another run."""
        found = self._by_token(claim.token) if claim.token else self._by_address(claim)
        if found is None:
            wrong = "x-ptp-token is no token of a run here" if claim.token else "x-ptp-token is missing"
            raise NotAllowed(
                f"RUN_TOKEN_REQUIRED: {wrong}: send the value of config.token", reason="RUN_TOKEN_REQUIRED"
            )
        local, run = found
        if claim.session != self._session_of(local, run):
            raise NotAllowed("x-ptp-session-id is not this run's session: send the value of config.session_id")
        return Member(run.name, frozenset(local.spec.nodes))

    def _by_token(self, token: str) -> tuple[LocalJob, Run] | None:
        known = self._tokens.id_of(token)
        found = self._store.run_of_token(known) if known is not None else None
        local = self._store.local_jobs.find(found[0]) if found is not None else None
        if found is None or local is None:
            return None
        return next(((local, run) for run in local.runs if run.run_id == found[1]), None)

    def _by_address(self, claim: Claim) -> tuple[LocalJob, Run] | None:
        """Return the run of the session whose container, which is still there, has the address."""
        local = self._job_of(claim.session)
        if local is None or not claim.address:
            return None
        for run in local.runs:
            own = run.collect.state is not CallState.OK and self._session_of(local, run) == claim.session
            if own and self.address_of(run) == claim.address:
                return local, run
        return None

    def _session_of(self, local: LocalJob, run: Run) -> str:
        return session_of(local.id, run.task_id, self.per_task(local.spec))

    def is_open(self, session: str) -> bool | None:
        """Say whether a session takes messages; None for one that is no job's here."""
        local = self._job_of(session)
        return None if local is None else not local.closed

    def home_of(self, session: str) -> str | None:
        """Return the gateway of this node that has the session; None for one that is no job's here."""
        local = self._job_of(session)
        return None if local is None else local.home

    def has_party(self, session: str, node: NodeId) -> bool | None:
        """Say whether a node takes part in the job of a session; None where that is no job's here."""
        local = self._job_of(session)
        return None if local is None else node in local.spec.nodes

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
