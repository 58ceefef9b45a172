"""The status of jobs that this node submitted, schedules or takes part in."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, Queue

from gateway.domain import run
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId
from gateway.domain.states import JOB, JobStatus, ended
from gateway.errors import GatewayError, PeerUnreachable
from gateway.jobs.executor import Executor
from gateway.jobs.scheduling_node import scheduler_api, trace_of
from gateway.jobs.views import unanswered_view, view, with_local
from gateway.ports import JobSelection, JobView
from gateway.runtime.context import NodeContext, Peers, traced
from gateway.runtime.lanes import Lanes
from gateway.store import queries

LIST_WITHIN = 5.0  # seconds that a list of jobs waits for the status from other nodes


class JobStatuses:
    """Answers this node's users, from its records and from the scheduling nodes of the jobs."""

    def __init__(
        self,
        context: NodeContext,
        peers: Peers,
        executor: Executor,
    ) -> None:
        self._store = context.store
        self._peers = peers
        self._executor = executor

    def status_here(self, job_id: str) -> JobView | None:
        """Return the status of a job scheduled here; None for any other. Calls no other node."""
        job = self._store.jobs.find(job_id)
        if job is None:
            return None
        return view(job, self._store.timing)

    def warnings(self, job_id: str, of_scheduler: Sequence[str] = ()) -> list[str]:
        """Return all warnings about a job that this node knows, each once.

        Those of the scheduling node come first (``of_scheduler``, or this node's own record), then
        this node's, then those of its runs, which begin with task and party.
        """
        texts = list(of_scheduler)
        job = self._store.jobs.find(job_id)
        if job is not None:
            texts += job.warnings
        local = self._store.local_jobs.find(job_id)
        if local is not None:
            texts += local.warnings
            for each in local.runs:
                label = f"{each.task_name} as {each.party.label}"
                texts += [f"{label}: {text}" for text in each.warnings]
        return list(dict.fromkeys(texts))

    def status(self, job_id: str) -> JobView:
        """Return the status of a job, whichever node schedules it. Raises `NotFound`.

        If the scheduling node does not respond, has no route any more or has deleted the job, the
        status comes from this node's own record.
        """
        record = self._store.record(job_id)
        if isinstance(record, Job):
            return view(record, self._store.timing)
        scheduler = scheduler_api(self._store, self._peers, job_id, record)
        start = time.monotonic()
        try:
            with traced(trace_of(record)):
                reported = scheduler.job_status(job_id, self._peers.node)
        except GatewayError as error:
            if record is None:
                raise
            return unanswered_view(record, error, self._store.run_timing)
        if record is None:
            return reported
        local = self._executor.learn_ending(record, reported)
        self._keep_progress(local, reported)
        return with_local(
            reported,
            local,
            seconds_since_asked=time.monotonic() - start,
        )

    def _keep_progress(self, local: LocalJob, reported: JobView) -> None:
        """Store the progress of a job under way, to show it while its scheduling node is silent.

        A failure to store is ignored: the caller has the status, which it can return anyway.
        """
        if ended(JOB, reported.status) or reported.progress <= local.progress:
            return

        def add_progress(local: LocalJob) -> LocalJob:
            return run.with_progress(local, reported.progress)

        with suppress(GatewayError):
            self._store.local_jobs.update(local.id, add_progress)

    def jobs(self, selection: JobSelection = JobSelection()) -> Mapping[str, JobStatus]:
        """Return the state of selected jobs that this node submitted, schedules or takes part in.

        The newest come first, but jobs without a record here, which were only submitted to other
        nodes, follow after all others. A limit counts both.
        """
        statuses = queries.statuses(self._store, selection)
        if selection.limit is not None:
            selection = replace(selection, limit=selection.limit - len(statuses))
        submitted = queries.submitted(self._store, selection)
        return statuses | self._statuses_elsewhere(submitted)

    def _statuses_elsewhere(
        self,
        jobs: Sequence[tuple[str, NodeId]],
    ) -> dict[str, JobStatus]:
        """Ask the scheduling nodes of these jobs in parallel, for at most `LIST_WITHIN` seconds.

        ``jobs`` are ids with the scheduling nodes. A job whose node refuses, or does not respond in
        time, is PENDING. After a node has not responded, it is not asked for its further jobs.
        """
        statuses = {job_id: JobStatus.PENDING for job_id, _ in jobs}
        silent_nodes: set[NodeId] = set()
        responses: Queue[tuple[str, JobStatus]] = Queue()

        def ask(job_id: str, node: NodeId) -> None:
            status = JobStatus.PENDING
            try:
                if node not in silent_nodes:
                    status = self.status(job_id).status
            except PeerUnreachable:
                silent_nodes.add(node)
            except GatewayError:
                pass
            finally:
                responses.put((job_id, status))

        lanes = Lanes()
        for job_id, node in jobs:
            lanes.submit(node, partial(ask, job_id, node), job_id)
        deadline = time.monotonic() + LIST_WITHIN
        with suppress(Empty):  # raised at the deadline: the remaining jobs stay PENDING
            for _ in jobs:
                remaining = max(deadline - time.monotonic(), 0)
                job_id, status = responses.get(timeout=remaining)
                statuses[job_id] = status
        lanes.close(wait=False)  # late calls end in the background
        return statuses
