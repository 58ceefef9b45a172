"""What a participating node tells the scheduling node of a job, and asks it; an answer becomes events here."""

from collections.abc import Callable

from gateway.domain import orphans
from gateway.domain.execution.commands import AskScheduler, Confirm, Tell
from gateway.domain.execution.messages import Done, Event, StopAsked
from gateway.domain.execution.transitions import merge_runs
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import UNTOLD, Ending, Failure, NodeId
from gateway.domain.states import JOB, Outcome, ended
from gateway.errors import Busy, GatewayError, NotFound, PeerUnreachable
from gateway.ports import Clock, TaskReport
from gateway.runtime.peers import Peers

_TOO_LATE = ("ALREADY_DECIDED", "AUDIT_UNKNOWN")
"""with what a scheduling node refuses a decision on a job that has ended there, or is gone"""


class Telling:
    """Calls the nodes that schedule the jobs here, whatever the protocol."""

    def __init__(self, peers: Peers, clock: Clock, heard: Callable[[LocalJob], None]) -> None:
        """``heard`` is told of the job whose scheduling node has answered."""
        self._peers = peers
        self._clock = clock
        self._heard = heard
        self.silent: Callable[[NodeId], None] = lambda node: None
        """told of every node that a call did not reach"""

    def tell(self, local: LocalJob, run: Run, action: Tell) -> Event:
        """Tell how a task is at the role of a run."""
        status = merge_runs(local.runs_of(run.task_id, run.party.role))
        report = TaskReport(run.task_id, run.party.role, status, run.failure, local.id, run.told.call.tries)
        try:
            self._peers.scheduler(local.spec.scheduler, local.spec.protocol).report_task(report, local.node)
        except (PeerUnreachable, Busy) as error:
            if isinstance(error, PeerUnreachable):
                self.silent(local.spec.scheduler)
            return Done(action, self._clock(), final=False, message=error.message)
        except GatewayError as error:  # it does not want to know: it will ask
            return Done(action, self._clock(), message=f"{error.reason} {error.message}")
        self._heard(local)
        return Done(action, self._clock())

    def confirm(self, local: LocalJob, action: Confirm) -> list[Event]:
        """Tell what was decided here on a job that waited for somebody, and hear whether that still counts."""
        failure = local.approval.failure if local.approval else None
        scheduler = self._peers.scheduler(local.spec.scheduler, local.spec.protocol)
        try:
            scheduler.confirm_job(local.id, failure, local.node, local.audit.id if local.audit else "")
        except (PeerUnreachable, Busy) as error:
            return [Done(action, self._clock(), final=False, message=error.message)]
        except GatewayError as error:
            final = error.reason not in UNTOLD
            told = Done(action, self._clock(), final, message=f"{error.reason} {error.message}")
            if failure is not None or error.reason not in _TOO_LATE:
                return [told]
            # the job has ended there, and the stop that says so may have been lost, or be long on its way
            return [told, *(e for e in self.ask(local, AskScheduler()) if isinstance(e, StopAsked))]
        return [Done(action, self._clock())]

    def ask(self, local: LocalJob, action: AskScheduler) -> list[Event]:
        """Ask the scheduling node whether the job still exists there, and do as it says."""
        scheduler, now = local.spec.scheduler, self._clock
        try:
            view = self._peers.scheduler(scheduler, local.spec.protocol).job_status(local.id, local.node)
        except NotFound as error:
            text = f"the scheduling node {scheduler} does not know the job any more: {error.message}"
            failure = Failure(orphans.FORGOT, text, local.node)
            ending = Ending(Outcome.STOPPED, now(), failure, local.node)
            return [StopAsked(now(), None, ending, local.node)]
        except (PeerUnreachable, Busy) as error:
            return [Done(action, now(), final=False, message=error.message)]
        except GatewayError as error:  # no route to it is no way to ask; a refusal of its own is an answer
            final = error.reason not in ("NODE_UNKNOWN", *UNTOLD)
            return [Done(action, now(), final, message=f"{error.reason} {error.message}")]
        if ended(JOB, view.status):  # and its stop was lost
            ending = Ending(view.outcome or Outcome.STOPPED, now(), view.failure, scheduler)
            return [Done(action, now()), StopAsked(now(), None, ending, scheduler)]
        return [Done(action, now())]
