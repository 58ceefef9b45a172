"""The shell around `gateway.domain.scheduling`.

It stores the decisions, calls the nodes and records their responses. A call is queued in the lane
of its node once the write that claims it is stored.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from gateway.domain import quorum
from gateway.domain.job import Acceptance, Job
from gateway.domain.scheduling import machine, messages, reports
from gateway.domain.scheduling.agenda import call_of, is_claimed, max_deferred, quiet_polls
from gateway.domain.scheduling.responses import exclude_from_task
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import TASK, JobStatus, ended
from gateway.domain.timeouts import Timing
from gateway.errors import Busy, GatewayError, NotFound, PeerUnreachable
from gateway.ports import ParticipantApi
from gateway.runtime.context import Exchange, NodeContext, Peers, collecting_exchanges, traced
from gateway.runtime.lanes import NEW_JOB, Lanes
from gateway.runtime.shell import Shell, with_calls
from gateway.runtime.turns import RecordChange

log = structlog.get_logger(__name__)

# The longest time between the claim of a request and its sending; the rest of
# `Timing.call_deadline` is for the call itself.
_LONGEST_WAIT = timedelta(seconds=1)

# Seconds between two reads of a job that another process on this database may have changed.
_POLL_ANOTHER_PROCESS = 1.0

# Largest number of reports without consequences, per job, that may wait to be stored together.
_MAX_DEFERRED_REPORTS = 100

# Requests that are harmless however late they are sent. Every other request must not be sent after
# the job's end, as could happen if this process was suspended between the claim of the request and
# its sending: `_renew_claim` checks that.
_TIMELESS = messages.PollTaskAt | messages.StopAt


def _ignore_node(node: NodeId) -> None:
    """Ignore a silent node."""


def _ignore_side(side: str) -> None:
    """Ignore that a job cannot be advanced; ``side`` is ``scheduler``, as for all jobs here."""


@dataclass(frozen=True)
class Claimed:
    """Requests that a write has claimed, and the time of the claim."""

    requests: list[messages.Request]
    at: datetime


class Scheduler(Shell[Job, Claimed]):
    """The shell around the scheduling rules."""

    def __init__(
        self,
        context: NodeContext,
        peers: Peers,
        lanes: Lanes,
        timing: Timing = Timing(),
        silent: Callable[[NodeId], None] = _ignore_node,
        stuck: Callable[[str], None] = _ignore_side,
    ) -> None:
        """``silent`` is called with a node that a call did not reach.

        ``stuck`` is called with the text ``scheduler`` each time that a job cannot be advanced.
        """
        super().__init__(
            name="scheduler",
            side="scheduler",
            context=context,
            records=context.store.jobs,
            stuck=stuck,
        )
        self._peers = peers
        self._lanes = lanes
        self.timing = timing
        # Per waiting caller, by the queue that gets the job: the job's id and the condition.
        self._waiting: dict[SimpleQueue[Job], tuple[str, Callable[[Job], bool]]] = {}
        self._silent = silent
        # Nodes that push their reports. A pushed report adds its node. A poll that brings a task's
        # end removes it, as the node did not push that end.
        self._pushing: set[NodeId] = set()

    def begin(self, job: Job) -> bool:
        """Store a new job and begin its due steps; return False if its id exists already."""
        nodes = {}
        for name, node_job in job.nodes.items():
            nodes[name] = replace(
                node_job,
                pushes=name in self._pushing,
            )
        job, claimed = self._decide(replace(job, nodes=nodes))
        if not self._records.add(job, job.spec.flow_id):
            return False
        self._send(job, claimed)
        return True

    def wait(
        self,
        job_id: str,
        until: Callable[[Job], bool],
        timeout: float,
    ) -> Job:
        """Wait at most ``timeout`` seconds for the condition; return the job in any case.

        While a caller waits, older jobs get only one thread per lane, so that the calls of new jobs
        come first. Raises `NotFound`.
        """
        news: SimpleQueue[Job] = SimpleQueue()
        self._waiting[news] = job_id, until
        try:
            with self._lanes.submission():
                return self._wait(job_id, until, timeout, news)
        finally:
            del self._waiting[news]

    def _wait(
        self,
        job_id: str,
        until: Callable[[Job], bool],
        timeout: float,
        news: SimpleQueue[Job],
    ) -> Job:
        """Wait for the condition, and return the job.

        ``news`` gets the job once a write of this process fulfils the condition. The job is also
        read at intervals, to see the writes of other processes.
        """
        job = self._records.cached(job_id) or self._records.get(job_id)
        deadline = self._clock().timestamp() + timeout
        while not until(job):
            remaining = deadline - self._clock().timestamp()
            if remaining <= 0:
                break
            try:
                return news.get(timeout=min(remaining, _POLL_ANOTHER_PROCESS))
            except Empty:
                job = self._records.get(job_id)
        return job

    def record_report(
        self,
        job_id: str,
        event: messages.TaskReported,
        allowed: Callable[[Job], None],
    ) -> None:
        """Record a report of a task, which ``allowed`` raises to refuse.

        A report without consequences is written with a later event of the job, within a second. If
        this process ends before, a poll brings the state.
        """
        current = self._records.cached(job_id)
        if current is None or not reports.has_no_consequence(current, event):
            self.record(job_id, event, allowed=allowed)
            return
        allowed(current)
        self.record_response(
            job_id,
            self._change_by(event),
            _MAX_DEFERRED_REPORTS,
        )

    def _apply(self, job: Job, event: messages.Event) -> Job:
        """Return the job after an event; remember whether the node pushes its reports.

        New jobs at a node that pushes are polled rarely from the beginning.
        """
        if isinstance(event, messages.TaskReported):
            if event.pushed:
                self._pushing.add(event.node)
            elif ended(TASK, event.status):  # learned by polling only
                self._pushing.discard(event.node)
        return machine.apply(job, event, self.timing)

    def _mark_reached(self, job: Job, node: NodeId) -> Job:
        """Return the job with its unanswered calls to a node due now: it can be reached again."""
        return machine.retry_now(job, node)

    def _decide(self, job: Job) -> tuple[Job, Claimed]:
        """Return the job after its due decisions, and the requests that they claim."""
        now = self._clock()
        job, requests = machine.step(job, now, self.timing)
        return job, Claimed(requests, now)

    def _begin(self, job: Job, actions: Claimed) -> None:
        """Send the claimed requests, and wake the callers whose condition holds now."""
        self._send(job, actions)
        for news, (job_id, until) in self._waiting.copy().items():
            if job_id == job.id and until(job):
                news.put(job)

    def _send(self, job: Job, claimed: Claimed) -> None:
        """Queue requests in the lanes of their nodes.

        Those of a PENDING job come first, as a client waits for its submission.
        """
        priority = 0
        if job.status is JobStatus.PENDING:
            priority = NEW_JOB
        for request in claimed.requests:
            work = partial(self._perform, job, request, claimed.at)
            self._lanes.submit(request.node, work, job.id, priority)

    def _renew_claim(
        self,
        job: Job,
        request: messages.Request,
        claimed_at: datetime,
    ) -> bool:
        """Renew the claim of a request that waited long in its lane; False if it must not be sent.

        The deadline of a request counts from its claim. Without a renewal, the deadline of a start
        that waited in its lane would pass before the node has it: a poll would find the task
        unknown, and it would be started twice. And a late stop of one attempt would end the next
        attempt.
        """
        now = self._clock()
        while now - claimed_at > _LONGEST_WAIT:  # repeated if the renewal itself took too long
            delayed = messages.Delayed(request, claimed_at, now)
            job = self.change(job.id, self._change_by(delayed))
            if not is_claimed(job, request, now):
                return False
            claimed_at = now
            now = self._clock()
        return True

    def _perform(
        self,
        job: Job,
        request: messages.Request,
        claimed_at: datetime,
    ) -> None:
        """Send a request and record its outcome."""
        with traced(job.spec.trace_id), collecting_exchanges() as calls:
            succeeded = False
            try:
                is_timeless = isinstance(request, _TIMELESS)
                if not is_timeless and not self._renew_claim(job, request, claimed_at):
                    return
                changes = self._call(job, request)
                succeeded = True
            except (PeerUnreachable, Busy) as error:
                changes = self._lost(request, error)
            except GatewayError as error:
                changes = self._refused(request, claimed_at, error)
            except Exception:
                log.exception(
                    "unexpected error of a call",
                    job=job.id,
                    request=str(request),
                )
                failure = Failure("INTERNAL", "an error inside the gateway; its log has the trace")
                changes = self._change_by(messages.Refused(request, failure, self._clock()))
            with self._lanes.carrying_on():
                self._record_outcome(
                    job,
                    request,
                    changes,
                    calls,
                    succeeded=succeeded,
                )

    def _record_outcome(
        self,
        job: Job,
        request: messages.Request,
        changes: RecordChange[Job],
        calls: list[Exchange],
        *,
        succeeded: bool,
    ) -> None:
        """Record the changes that follow from a request, with notes of the calls that it took.

        Polls without news are not noted, but counted for a later note.
        """
        if isinstance(request, messages.PollTaskAt):
            changes = with_calls(
                changes,
                calls,
                self._clock(),
                quiet=partial(quiet_polls, request=request),
                is_final=succeeded,
            )
            self.record_response(job.id, changes, max_deferred=0)
            return
        changes = with_calls(
            changes,
            calls,
            self._clock(),
            tries=call_of(job, request).tries,
            is_final=succeeded,
        )
        # How many responses of the job may wait to be stored together. 0: this response is stored
        # now, as every failure is.
        most_deferred = 0
        current = self._records.cached(job.id)
        if succeeded and current is not None:
            most_deferred = max_deferred(current, request)
        self.record_response(job.id, changes, max_deferred=most_deferred)

    def _lost(
        self,
        request: messages.Request,
        error: PeerUnreachable | Busy,
    ) -> RecordChange[Job]:
        """Return the change for a request that got no response or found its node busy."""
        delivered = False
        reason = ""
        if isinstance(error, PeerUnreachable):
            self._silent(request.node)
            delivered = error.delivered
            reason = error.reason
        return self._change_by(
            messages.Lost(
                request,
                self._clock(),
                delivered=delivered,
                message=error.message,
                reason=reason,
            )
        )

    def _refused(
        self,
        request: messages.Request,
        claimed_at: datetime,
        error: GatewayError,
    ) -> RecordChange[Job]:
        """Return the change for a request that its node refused.

        Two reasons do not count as refusals: a polled node does not know the task, or a node has no
        role in a task that it was requested to start.
        """
        now = self._clock()
        if isinstance(request, messages.PollTaskAt) and error.reason == "TASK_UNKNOWN":
            unknown = messages.TaskUnknown(
                request,
                now,
                error.message,
                claimed_at,
            )
            return self._change_by(unknown)
        if isinstance(request, messages.StartTaskAt) and error.reason == "NO_ROLE_HERE":
            return partial(exclude_from_task, request=request, at=now)
        failure = Failure(error.reason, error.message, request.node)
        return self._change_by(messages.Refused(request, failure, now))

    def _call(
        self,
        job: Job,
        request: messages.Request,
    ) -> RecordChange[Job]:
        """Send a request to its node and return the change for its success.

        Raises the errors of `ParticipantApi`.
        """
        peer = self._peers.participant(request.node, job.spec.protocol)
        me = self._peers.node
        match request:
            case messages.CreateAt():
                acceptance = self._create(peer, job, request)
                accepted = messages.Accepted(request, self._clock(), acceptance)
                return self._change_by(accepted)
            case messages.ReserveAt():
                peer.hold(job.id, me)
            case messages.ReleaseAt():
                peer.give_back(job.id, me)
            case messages.StartAt():
                peer.start_job(job.id, me, without=quorum.excluded_parties(job))
            case messages.StartTaskAt():
                # An amendment's id is the id of the offer that the nodes accepted.
                offers_in_force = [amendment.id for amendment in job.amendments]
                peer.start_task(
                    job.id,
                    job.tasks[request.task].task_id,
                    request.task,
                    me,
                    offers_in_force=offers_in_force,
                )
            case messages.StopAt() if job.nodes[request.node].asked_only:
                # The node was asked to audit the job, and there is no created job to stop there.
                peer.withdraw(
                    job.id,
                    quorum.ending_for(job, request.node),
                    me,
                )
            case messages.StopAt():
                # An empty task name means the whole job.
                peer.stop_job(
                    job.id,
                    "",
                    quorum.ending_for(job, request.node),
                    me,
                )
            case messages.StopTaskAt():
                peer.stop_task(
                    job.id,
                    job.tasks[request.task].task_id,
                    request.task,
                    me,
                )
            case messages.PollTaskAt():
                events = self._poll(peer, job, request)
                return self._change_by(*events, messages.Accepted(request, self._clock()))
        return self._change_by(messages.Accepted(request, self._clock()))

    def _create(
        self,
        peer: ParticipantApi,
        job: Job,
        request: messages.CreateAt,
    ) -> Acceptance:
        """Create the job at a node, or have it audited there first if the node requires that."""
        spec = job.spec.for_node(request.node)
        # With a consent, the node was asked before, and has agreed.
        if job.nodes[request.node].consent is None:
            acceptance = peer.ask_first(spec, self._peers.node)
            if acceptance is not None:
                return acceptance
        return peer.create_job(spec, self._peers.node)

    def _poll(
        self, peer: ParticipantApi, job: Job, request: messages.PollTaskAt
    ) -> list[messages.Event]:
        """Ask a node for the state of a task at each of the request's roles.

        A role that the node does not play is an event; it is an error (`NotFound`) if no other role
        is asked for.
        """
        task_id = job.tasks[request.task].task_id
        events: list[messages.Event] = []
        for role in request.roles:
            try:
                news = peer.poll_task(task_id, role, self._peers.node)
            except NotFound as error:
                if error.reason != "ROLE_UNKNOWN" or len(request.roles) == 1:
                    raise
                events.append(messages.RoleNotPlayed(task_id, request.node, role, self._clock()))
                continue
            events.append(
                messages.TaskReported(
                    task_id,
                    request.node,
                    role,
                    news.status,
                    at=self._clock(),
                    failure=news.failure,
                )
            )
        return events
