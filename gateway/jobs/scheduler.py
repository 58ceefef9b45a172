"""Carries out what `gateway.domain.scheduling` decides: records, calls the nodes, records what came back.

Calls are handed to the lane of each node once the write that claims them is stored.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from gateway.domain import quorum
from gateway.domain.job import Job
from gateway.domain.scheduling import machine, messages
from gateway.domain.scheduling.agenda import call_of, is_claimed, may_wait, quiet_polls
from gateway.domain.scheduling.responses import exclude
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import TASK, JobStatus, ended
from gateway.domain.timeouts import Timing
from gateway.errors import Busy, GatewayError, NotFound, PeerUnreachable
from gateway.runtime.context import NodeContext, Peers, listening, traced
from gateway.runtime.lanes import FIRST, Lanes
from gateway.runtime.loop import Change, Shell, with_calls

log = structlog.get_logger(__name__)

_LONGEST_WAIT = timedelta(seconds=1)
"""between the claim of a task start and its sending; the rest of `Timing.call_deadline` is the call's own"""

_TIMELESS = messages.PollTaskAt | messages.StopAt
"""requests that may come late; others do harm after the job's end: from a process that was frozen, say"""


class Scheduler(Shell[Job, tuple[list[messages.Request], datetime]]):
    """The shell around the scheduling rules."""

    def __init__(
        self,
        context: NodeContext,
        peers: Peers,
        lanes: Lanes,
        timing: Timing = Timing(),
        silent: Callable[[NodeId], None] = lambda node: None,
        stuck: Callable[[str], None] = lambda side: None,
    ) -> None:
        """``silent`` is called with a node that a call did not reach, ``stuck`` when a job cannot be advanced."""
        super().__init__("scheduler", "scheduler", context, context.store.jobs, stuck)
        self._peers = peers
        self._lanes = lanes
        self._timing = timing
        self._waiting: dict[SimpleQueue[Job], tuple[str, Callable[[Job], bool]]] = {}
        """who waits for which job to become what"""
        self._silent = silent
        self._pushing: set[NodeId] = set()
        """nodes whose last task here ended with a report that they sent by themselves"""

    def begin(self, job: Job) -> bool:
        """Store a new job and do what is due. Returns False, and does nothing, when its id is taken."""
        nodes = {n: replace(node, pushes=n in self._pushing) for n, node in job.nodes.items()}
        job, decided = self._decide(replace(job, nodes=nodes))
        if not self._records.add(job, job.spec.flow_id):
            return False
        self._send(job, *decided)
        return True

    def wait(
        self,
        job_id: str,
        until: Callable[[Job], bool],
        timeout: float,
    ) -> Job:
        """Wait at most ``timeout`` seconds for the condition, and return the job. Other work gives way to this."""
        news: SimpleQueue[Job] = SimpleQueue()
        self._waiting[news] = job_id, until
        try:
            with self._lanes.taking_in():
                job = self._records.known(job_id) or self._records.get(job_id)
                end = self._clock().timestamp() + timeout
                while not until(job) and (left := end - self._clock().timestamp()) > 0:
                    try:
                        return news.get(timeout=min(left, 1.0))
                    except Empty:  # another process on this database may have moved it
                        job = self._store.jobs.get(job_id)
                return job
        finally:
            del self._waiting[news]

    def _apply(self, job: Job, event: messages.Event) -> Job:
        if isinstance(event, messages.TaskReported):
            if event.pushed:
                self._pushing.add(event.node)
            elif ended(TASK, event.status):  # only asking brought it
                self._pushing.discard(event.node)
        return machine.apply(job, event, self._timing)

    def _reached(self, job: Job, node: NodeId) -> Job:
        return machine.reached(job, node)

    def _decide(self, job: Job) -> tuple[Job, tuple[list[messages.Request], datetime]]:
        now = self._clock()
        job, requests = machine.step(job, now, self._timing)
        return job, (requests, now)

    def _begin(self, job: Job, decided: tuple[list[messages.Request], datetime]) -> None:
        self._send(job, *decided)
        for news, (job_id, until) in self._waiting.copy().items():
            if job_id == job.id and until(job):
                news.put(replace(job, notes=()))

    def _send(
        self,
        job: Job,
        requests: list[messages.Request],
        claimed: datetime,
    ) -> None:
        for request in requests:
            work = partial(self._perform, job, request, claimed)
            first = (
                job.status is JobStatus.PENDING
            )  # a client waits for it, also where it is refused
            self._lanes.submit(request.node, work, job.id, FIRST if first else 0)

    def _still_mine(
        self,
        job: Job,
        request: messages.Request,
        claimed: datetime,
    ) -> bool:
        """Renew the claim of a request that waited long in its lane; False where it is not to be sent any more.

        Its deadline is counted from the claim: asking after a task's start too early would start the task twice,
        and a late stop of one attempt would reach the next.
        """
        while (now := self._clock()) - claimed > _LONGEST_WAIT:
            job = self.change(job.id, self._applied(messages.Delayed(request, claimed, now)))
            if not is_claimed(job, request, now):
                return False
            claimed = now
        return True

    def _perform(
        self,
        job: Job,
        request: messages.Request,
        claimed: datetime,
    ) -> None:
        with traced(job.spec.trace_id), listening() as calls:
            answered = False
            try:
                if not isinstance(request, _TIMELESS) and not self._still_mine(
                    job, request, claimed
                ):
                    return
                changes, answered = self._call(job, request), True
            except (PeerUnreachable, Busy) as error:
                if isinstance(error, PeerUnreachable):
                    self._silent(request.node)
                delivered = isinstance(error, PeerUnreachable) and error.delivered
                reason = error.reason if isinstance(error, PeerUnreachable) else ""
                changes = self._applied(
                    messages.Lost(request, self._clock(), delivered, error.message, reason)
                )
            except GatewayError as error:
                changes = self._refused(request, error)
            except Exception:
                log.exception("unexpected error of a call", job=job.id, request=str(request))
                failure = Failure("INTERNAL", "an error inside the gateway; its log has the trace")
                changes = self._applied(messages.Refused(request, failure, self._clock()))
            quiet = (
                partial(quiet_polls, request=request)
                if isinstance(request, messages.PollTaskAt)
                else None
            )
            tries = 1 if quiet else call_of(job, request).tries
            changes = with_calls(changes, calls, self._clock(), tries, quiet, answered=answered)
            known = self._records.known(job.id) if answered and not quiet else None
            self.record_answer(
                job.id, changes, may_wait(known, request) if known is not None else 0
            )

    def _refused(self, request: messages.Request, error: GatewayError) -> Change[Job]:
        now = self._clock()
        if isinstance(request, messages.PollTaskAt) and error.reason == "TASK_UNKNOWN":
            return self._applied(messages.TaskUnknown(request, now, error.message))
        if isinstance(request, messages.StartTaskAt) and error.reason == "NO_ROLE_HERE":
            return lambda job: exclude(job, request, now)
        failure = Failure(error.reason, error.message, request.node)
        return self._applied(messages.Refused(request, failure, now))

    def _call(self, job: Job, request: messages.Request) -> Change[Job]:
        peer = self._peers.participant(request.node, job.spec.protocol)
        me = self._peers.node
        match request:
            case messages.CreateAt():
                spec = job.spec.for_node(request.node)
                asked = job.nodes[request.node].consent is not None
                acceptance = None if asked else peer.ask_first(spec, me)
                acceptance = acceptance or peer.create_job(spec, me)
                return self._applied(messages.Accepted(request, self._clock(), acceptance))
            case messages.ReserveAt():
                peer.hold(job.id, me)
            case messages.ReleaseAt():
                peer.give_back(job.id, me)
            case messages.StartAt():
                peer.start_job(job.id, me, quorum.left_out(job))
            case messages.StartTaskAt():
                amendments = [one.id for one in job.amendments]
                peer.start_task(
                    job.id, job.tasks[request.task].task_id, request.task, me, amendments
                )
            case messages.StopAt() if job.nodes[request.node].asked_only:
                peer.withdraw(job.id, quorum.ending_for(job, request.node), me)
            case messages.StopAt():
                peer.stop_job(job.id, "", quorum.ending_for(job, request.node), me)
            case messages.StopTaskAt():
                peer.stop_task(job.id, job.tasks[request.task].task_id, request.task, me)
            case messages.PollTaskAt():
                task_id = job.tasks[request.task].task_id
                events: list[messages.Event] = []
                for role in request.roles:
                    try:
                        news = peer.poll_task(task_id, role, me)
                    except NotFound as error:
                        if error.reason != "ROLE_UNKNOWN" or len(request.roles) == 1:
                            raise
                        events.append(
                            messages.RoleNotPlayed(task_id, request.node, role, self._clock())
                        )
                        continue
                    now = self._clock()
                    events.append(
                        messages.TaskReported(
                            task_id, request.node, role, news.status, now, news.failure
                        )
                    )
                return self._applied(*events, messages.Accepted(request, self._clock()))
        return self._applied(messages.Accepted(request, self._clock()))
