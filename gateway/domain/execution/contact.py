"""The contact of a participating node with the job's scheduling node.

After ``RunTiming.orphan`` seconds without a request or a response, and after its own restart, the
participating node asks the scheduling node whether it still has the job. A query without a response
is repeated after a tenth of ``RunTiming.orphan``. If the scheduling node has the job, the job goes
on. The job ends here if the scheduling node does not know it or has ended it, or does not respond
to `MAX_QUERIES` queries.
"""

from datetime import datetime, timedelta

from gateway.domain.execution import messages
from gateway.domain.records import replace
from gateway.domain.run import LocalJob
from gateway.domain.spec import Call, CallState, NodeId, changed
from gateway.domain.states import JOB, ended
from gateway.domain.timeouts import RunTiming

# Reasons of a job that ended here without its scheduling node.
UNREACHABLE = "SCHEDULER_UNREACHABLE"
FORGOT = "SCHEDULER_FORGOT"

MAX_QUERIES = 2  # queries without a response after which the scheduling node counts as gone


def silence_matters(local: LocalJob) -> bool:
    """Return whether the silence of the scheduling node matters to the job here.

    It does not matter before the job is created, after the job has ended, and if this node
    schedules the job.
    """
    is_created = local.audit is None or local.audit.created
    is_under_way = is_created and not ended(JOB, local.status)
    return is_under_way and local.spec.scheduler != local.node


def silence_limit(timing: RunTiming) -> timedelta:
    """Return the silence after which the scheduling node is asked whether it still has the job.

    The limit is 10 % above ``orphan``, as the time of a contact is stored only if the stored time
    is older than a tenth of ``orphan`` (`worth_noting`).
    """
    return timedelta(seconds=timing.orphan * 1.1)


def last_contact(local: LocalJob) -> datetime:
    """Return when the scheduling node last sent anything.

    Until it has sent anything, that is the time when the job was created here.
    """
    return local.last_contact or local.created_at


def worth_noting(
    local: LocalJob,
    now: datetime,
    limit: float,
) -> bool:
    """Return whether a contact of the scheduling node at ``now`` has to be stored.

    The time of the last contact is stored only if the stored time is older than a tenth of
    ``limit`` (seconds), which saves a write for each request. A contact that ends a silence is
    always stored.
    """
    if not silence_matters(local):
        return False
    silence = now - last_contact(local)
    return local.ask.tries > 0 or silence > timedelta(seconds=limit / 10)


def record_contact(local: LocalJob, at: datetime) -> LocalJob:
    """Return the job after a sign of life of the scheduling node, which ends its silence."""
    # the scheduling node is not silent while its response to the first query is awaited
    was_silent = bool(local.ask.message) or local.ask.tries > 1
    query = replace(
        local.ask,
        state=CallState.IDLE,
        due_at=None,
        tries=0,
        message="",
    )
    local = replace(
        local,
        last_contact=at,
        ask=query,
    )
    if not was_silent:
        return local
    return local.with_note(at, "scheduling node responds", local.spec.scheduler)


def record_query(
    local: LocalJob,
    event: messages.Done,
    timing: RunTiming,
) -> LocalJob:
    """Return the job after a query to the scheduling node.

    With ``Done.final`` the scheduling node has responded. Without it the query had no response: the
    next query is then due after a tenth of ``orphan`` seconds at the earliest, as the scheduling
    node may be restarting.
    """
    if not silence_matters(local):
        return local
    if event.final:
        return record_contact(local, event.at)
    pause = timing.retry(
        local.ask.tries - 1,
        local.id,
        event.action,
    )
    shortest_pause = timedelta(seconds=timing.orphan / 10)
    due = event.at + max(pause, shortest_pause)
    local = replace(
        local,
        ask=_lost_query(local, event, timing, due),
    )
    return local.with_note(
        event.at,
        "scheduling node does not respond",
        local.spec.scheduler,
        message=event.message,
    )


def _lost_query(
    local: LocalJob,
    event: messages.Done,
    timing: RunTiming,
    due: datetime,
) -> Call:
    """Return the call of a query without a response.

    The query counts towards `MAX_QUERIES` only if the permitted silence is over by now. If it is
    not, the query was sent because this node had restarted, and the tries begin at 0 again.
    """
    was_early = event.at < last_contact(local) + silence_limit(timing)
    if was_early:
        return Call(due_at=due)
    return replace(
        local.ask,
        state=CallState.LOST,
        due_at=due,
        message=event.message,
    )


def retry_reports(local: LocalJob, node: NodeId) -> LocalJob:
    """Return the job with all undelivered reports to a node due now, as it is reachable again.

    The same object is returned if the node does not schedule the job, or no report is undelivered.
    """
    if local.spec.scheduler != node:
        return local
    local = changed(local, "stop_call", Call.hurried)
    local = changed(local, "inquiry", Call.hurried)
    has_hurried_run = False
    hurried_runs = []
    for run in local.runs:
        hurried_run = changed(run, "reporting.call", Call.hurried)
        has_hurried_run |= hurried_run is not run
        hurried_runs.append(hurried_run)
    if not has_hurried_run:
        return local
    return replace(local, runs=tuple(hurried_runs))
