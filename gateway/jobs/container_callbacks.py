"""Callbacks of containers at a participating node."""

from gateway.domain.execution.messages import Misreported, Reported
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import TaskStatus
from gateway.errors import NotAllowed, NotFound
from gateway.jobs.executor import Executor
from gateway.jobs.job_access import JobAccess, runs_of_role
from gateway.ports import Callback
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import wait_for_database


class ContainerCallbacks:
    """Records the reports of containers as events of their runs."""

    def __init__(
        self,
        context: NodeContext,
        access: JobAccess,
        executor: Executor,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._access = access
        self._executor = executor

    def record(self, report: Callback) -> None:
        """Record a container's report. Raises `NotFound` for an unknown run.

        A container reports once, and may fail if it gets no response. Therefore the report waits
        while the database does not respond.
        """

        def record_event() -> None:
            self._record_event(report)

        wait_for_database(record_event)

    def _record_event(self, report: Callback) -> None:
        """Record a container's report as an event of its run."""
        job_id, run_id = self._find_run(report)
        if report.status is None:  # `report.word` is not a known status
            self._executor.record(
                job_id,
                Misreported(run_id, report.word, self._clock()),
            )
            return
        message = report.result_message
        cause = None
        has_failed = report.status is TaskStatus.FAILED
        if has_failed or (report.result_code and not message):
            run = _run_with_id(self._store.local_jobs.get(job_id), run_id)
            message = message or run.software.results.get(report.result_code, "")
            if has_failed:
                cause = self._executor.probes.storage_failure(run, message)
        event = Reported(
            run=run_id,
            status=report.status,
            at=self._clock(),
            result_code=report.result_code,
            result_message=message,
            cause=cause,
        )
        self._executor.record(job_id, event)

    def _find_run(self, report: Callback) -> tuple[str, str]:
        """Return the ids of a report's job and run.

        The URL to which a container reports has the run's token, which the router has turned into
        the run's id (`Callback.run_id`). A container that reports to a URL without a token is
        recognised by its IP address. Raises `NotFound` for an
        unknown token or task, and `NotAllowed` unless exactly one run has the address.
        """
        if report.run_id:
            job_id = self._store.job_of_run(report.run_id)
            if not job_id:
                raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
            return job_id, report.run_id
        local = self._access.job_of_task(report.task_id)
        runs = self._runs_at(local, report)
        if len(runs) != 1:
            raise NotAllowed(
                f"{report.address or 'an unknown address'} is not the address of one run of "
                f"{report.role or 'any role'} in task {report.task_id}: "
                "use system.callback unchanged, with ?run="
            )
        return local.id, runs[0].run_id

    def _runs_at(
        self,
        local: LocalJob,
        report: Callback,
    ) -> list[Run]:
        """Return the runs of a report's task and role whose container has the sender's address."""
        if not report.address:
            return []
        matching = []
        for run in runs_of_role(local, report.task_id, report.role):
            if self._executor.address_of(run) == report.address:
                matching.append(run)
        return matching


def _run_with_id(local: LocalJob, run_id: str) -> Run:
    """Return the job's run with this id, which must exist."""
    run = local.run(run_id)
    assert run is not None
    return run
