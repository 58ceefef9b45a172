"""Calls of a participating node to the nodes that schedule its jobs, whatever the protocol."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from gateway.domain import approval
from gateway.domain.execution import contact, messages
from gateway.domain.execution.runs import merge_runs
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import UNCERTAIN, Ending, Failure, NodeId
from gateway.domain.states import JOB, Outcome, ended
from gateway.errors import Busy, GatewayError, NotFound, PeerUnreachable
from gateway.ports import Clock, JobView, SchedulerApi, TaskReport
from gateway.runtime.context import Peers

# Reasons with which a scheduling node refuses this node's decision after the job has ended there.
_TOO_LATE = ("ALREADY_DECIDED", "AUDIT_UNKNOWN")

# Reasons after which a refused request to the scheduling node is repeated. NODE_UNKNOWN: there is
# no route to the node now.
_ASK_AGAIN = ("NODE_UNKNOWN", *UNCERTAIN)

SchedulerCall = (
    messages.Tell
    | messages.Confirm
    | messages.QueryScheduler
    | messages.AskStop
    | messages.QueryEnding
)


@dataclass(frozen=True)
class SchedulerCalls:
    """Makes the calls; each method returns the events that follow for the job here."""

    peers: Peers
    clock: Clock
    reported: Callable[[LocalJob], None]  # called with a job after a report about it was accepted
    silent: Callable[[NodeId], None]  # called with a scheduling node that a report did not reach

    def tell(
        self,
        local: LocalJob,
        run: Run,
        action: messages.Tell,
    ) -> messages.Event:
        """Report the status of a task at the role of a run.

        The reported status is that of all runs of the role together. ``action.status``, the status
        of the one run, only identifies the report in the resulting event.
        """
        status = merge_runs(local.runs_of(run.task_id, run.party.role))
        report = TaskReport(
            task_id=run.task_id,
            role=run.party.role,
            status=status,
            failure=run.failure,
            job_id=local.id,
            tries=run.reporting.call.tries,
        )
        try:
            self._scheduler(local).report_task(report, local.node)
        except GatewayError as error:
            if isinstance(error, PeerUnreachable):
                self.silent(local.spec.scheduler)
            # A refused report is not repeated: the scheduling node can still poll the status.
            return self._failed(action, error)
        self.reported(local)
        return messages.Done(action, self.clock())

    def confirm(
        self,
        local: LocalJob,
        action: messages.Confirm,
    ) -> list[messages.Event]:
        """Report the decision on a job that waited for one, and learn whether it still counts.

        A refusal is final, except for `_ASK_AGAIN`. If an approval comes too late, the job has
        ended at the scheduling node. That node is then asked for the job's status, as the stop that
        it has sent may be lost or delayed. After a late rejection it is not asked, as the job has
        ended here anyway.
        """
        failure = None  # why the job was rejected here; None: it was approved
        if local.approval is not None:
            failure = local.approval.failure
        audit_id = ""
        permit = ""
        if local.audit is not None:
            audit_id = local.audit.id
            permit = approval.issued_permit(local)
        try:
            self._scheduler(local).confirm_job(local.id, failure, local.node, audit_id, permit)
        except GatewayError as error:
            done = self._failed(action, error, _ASK_AGAIN)
            if failure is not None or error.reason not in _TOO_LATE:
                return [done]
            events = self.ask(local, messages.QueryScheduler())
            stops = [event for event in events if isinstance(event, messages.StopRequested)]
            return [done, *stops]
        return [messages.Done(action, self.clock())]

    def ask(
        self,
        local: LocalJob,
        action: messages.QueryScheduler,
    ) -> list[messages.Event]:
        """Ask the scheduling node whether it still has the job.

        If that node does not know the job, or has ended it, the events have the stop of the job
        here.
        """
        scheduler = local.spec.scheduler
        try:
            view = self._scheduler(local).job_status(local.id, local.node)
        except NotFound as error:
            text = (
                f"the scheduling node {scheduler} does not know the job any more: {error.message}"
            )
            now = self.clock()
            failure = Failure(contact.FORGOT, text, local.node)
            ending = Ending(Outcome.STOPPED, now, failure, local.node)
            return [messages.StopRequested(now, None, ending, local.node)]
        except GatewayError as error:
            return [self._failed(action, error, _ASK_AGAIN)]
        now = self.clock()
        return [messages.Done(action, now), *missed_stop(local, view, now)]

    def ask_ending(
        self,
        local: LocalJob,
        action: messages.QueryEnding,
    ) -> list[messages.Event]:
        """Ask the scheduling node how the job ended; again later if the job goes on there."""
        scheduler = local.spec.scheduler
        try:
            view = self._scheduler(local).job_status(local.id, local.node)
        except GatewayError as error:
            return [self._failed(action, error, _ASK_AGAIN)]
        now = self.clock()
        if not ended(JOB, view.status):
            text = f"{scheduler} says {view.status}"
            return [messages.Done(action, now, final=False, message=text)]
        # The stop comes first, as the end of the query has the models kept according to the ending.
        return [*missed_stop(local, view, now), messages.Done(action, now)]

    def stop(
        self,
        local: LocalJob,
        action: messages.AskStop,
    ) -> messages.Event:
        """Have the scheduling node stop the job at every node.

        A refusal is final, except for `_ASK_AGAIN`: a node that does not know the job has nothing
        to stop.
        """
        try:
            self._scheduler(local).stop_job(local.id, "", local.node)  # "": all tasks
        except GatewayError as error:
            return self._failed(action, error, _ASK_AGAIN)
        return messages.Done(action, self.clock())

    def _scheduler(self, local: LocalJob) -> SchedulerApi:
        """Return a client of the job's scheduling node."""
        return self.peers.scheduler(
            local.spec.scheduler,
            local.spec.protocol,
        )

    def _failed(
        self,
        action: SchedulerCall,
        error: GatewayError,
        repeated: Collection[str] = (),
    ) -> messages.Done:
        """Return the event of a failed call.

        The call is made again later if it got no response, or was refused for one of the reasons in
        ``repeated``.
        """
        if isinstance(error, (PeerUnreachable, Busy)):
            return messages.Done(
                action,
                self.clock(),
                final=False,
                message=error.message,
            )
        return messages.Done(
            action,
            self.clock(),
            final=error.reason not in repeated,
            message=f"{error.reason} {error.message}",
        )


def missed_stop(
    local: LocalJob,
    view: JobView,
    now: datetime,
) -> list[messages.StopRequested]:
    """Return the stop that this node has missed, if the view shows that the job has ended.

    The list has one stop at most; it is empty for a job that goes on. Some nodes report only tasks,
    and each task only from its start on, so that their jobs seem to have succeeded too early: a
    success counts only once all tasks are reported. An ended job without an outcome counts as
    stopped.
    """
    has_all_tasks = len(view.tasks) >= len(local.spec.dag.nodes)
    if not ended(JOB, view.status):
        return []
    if view.outcome is Outcome.SUCCEEDED and not has_all_tasks:
        return []
    outcome = view.outcome or Outcome.STOPPED
    by = local.spec.scheduler
    failure = view.failure or _unreported_failure(local, outcome)
    ending = Ending(outcome, now, failure, by)
    return [messages.StopRequested(now, None, ending, by, is_inferred=view.is_inferred)]


def _unreported_failure(local: LocalJob, outcome: Outcome) -> Failure | None:
    """Return the failure of a job whose scheduling node reports an outcome and no cause.

    None unless the job has failed or was stopped.
    """
    by = local.spec.scheduler
    match outcome:
        case Outcome.FAILED:
            text = f"{by} says that the job has failed, and not why"
            return local.own_failure or Failure("FAILED", text, by)
        case Outcome.STOPPED:
            return Failure("STOPPED", f"stopped by {by}, which did not say why", by)
        case _:
            return None
