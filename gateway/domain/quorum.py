"""Which parties and tasks a job can do without: optional settings in ``job_params.common``, none in the standard.

``min_parties: {host: 2}``: so many of that role are enough. ``required_parties: ["guest.0"]``: these are needed;
of a role that it names, only those, unless ``min_parties`` asks for more. A role that neither names is needed
whole, and so is whatever the initiator's node plays. ``tolerable_tasks: [names]``: when one fails, what follows it
never starts, the rest goes on, and the job may still succeed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.domain import redaction, rerun, retries
from gateway.domain.dag import downstream
from gateway.domain.job import Job, NodeJob, Task
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, NodeId, moment
from gateway.domain.states import JobStatus, Outcome, TaskStatus

# ---------------------------------------------------------------- what was asked


def can_spare(spec: JobSpec, nodes: Iterable[NodeId]) -> bool:
    """Say whether the job may run without all of these nodes."""
    gone = set(nodes)
    least = spec.common.get("min_parties") or {}
    required = frozenset(spec.common.get("required_parties") or ())
    if spec.initiator in gone or any(p.label in required for p in spec.parties if p.node in gone):
        return False
    for role in {p.role for p in spec.parties if p.node in gone}:
        all_of_it = [p for p in spec.parties if p.role == role]
        left = sum(p.node not in gone for p in all_of_it)
        named = any(p.label in required for p in all_of_it)
        needed = least.get(role, 0 if named else len(all_of_it))
        if left < (needed if isinstance(needed, int) else len(all_of_it)):
            return False
    return True


# ---------------------------------------------------------------- running with fewer


def left_out(job: Job) -> tuple[str, ...]:
    """Return the parties without which the job runs."""
    return tuple(
        p.label for p in job.spec.parties if p.node in job.nodes and job.nodes[p.node].excluded
    )


def exclude(
    job: Job,
    node: NodeId,
    failure: Failure,
    at: datetime,
) -> Job | None:
    """Return the job without a node and its parts of all tasks; None where the job cannot do without it.

    Only before any task starts. Nodes that got a start get another one, which names who is left out.
    """
    gone = [n.node for n in job.nodes.values() if n.excluded] + [node]
    if job.status is JobStatus.RUNNING or job.ending is not None or not can_spare(job.spec, gone):
        return None
    tasks = {}
    for name, task in job.tasks.items():
        parts = {n: part for n, part in task.nodes.items() if n != node}
        if not parts:
            return None
        tasks[name] = replace(task, nodes=parts)
    others = {one.node: replace(one, start=Call()) for one in job.active}
    nodes = {
        **job.nodes,
        **others,
        node: replace(job.nodes[node], excluded=failure),
    }
    return replace(job, nodes=nodes, tasks=tasks).noted(
        at, "continues without", node, **failure.as_dict()
    )


def ending_for(job: Job, node: NodeId) -> Ending | None:
    """Return the job's end as reported to a node that is stopped."""
    excluded = job.nodes[node].excluded
    if excluded is None:
        ending = redaction.for_node(job.spec, node, job.ending)
        return redaction.for_node(rerun.amended(job.spec, job.amendments), node, ending)
    at = job.ending.at if job.ending else job.created_at
    return Ending(Outcome.STOPPED, at, replace(excluded, message=f"left out: {excluded.message}"))


# ---------------------------------------------------------------- failures that are borne


def tolerated(
    job: Job,
    task: Task,
    at: datetime,
) -> Job | None:
    """Return the job as it goes on after a task has failed; None where it cannot."""
    if (
        task.name not in (job.spec.common.get("tolerable_tasks") or ())
        or task.ending is not None
        or job.ending is not None
    ):
        return None
    failure = task.failure or Failure("FAILED", task=task.name)
    skipped = Failure(
        "UPSTREAM_FAILED", f"needs the output of {task.name}, which failed", task=task.name
    )
    along = downstream(job.spec.dag, [task.name]) - {task.name}
    job = job.with_task(replace(task, ending=Ending(Outcome.FAILED, at, failure)))
    job, _ = retries.with_endings(job, along, Ending(Outcome.FAILED, at, skipped))
    return job.noted(
        at,
        "failure tolerated",
        task=task.name,
        tasks=sorted(along),
        reason=failure.reason,
    )


# ---------------------------------------------------------------- telling


@dataclass(frozen=True)
class PartyDetail:
    """How a party stands to the job: ``ok``, ``error`` (it said no) or ``unknown`` (it has not said anything)."""

    party: str
    node: NodeId
    state: str
    excluded: bool
    reason: str = ""
    message: str = ""
    tries: int = 0  # of the call that is, or was last, to be answered
    next_try: datetime | None = None


def details(job: Job) -> list[PartyDetail]:
    """Return how every party stands to the job. A reply that is missing is unknown, and so not ok."""
    return [
        _detail(job, p.label, job.nodes[p.node]) for p in job.spec.parties if p.node in job.nodes
    ]


def _detail(
    job: Job,
    label: str,
    node: NodeJob,
) -> PartyDetail:
    asked_to_start = node.start.tries > 0 or node.start.completed
    call = node.start if asked_to_start else node.create
    hold = node.reservation.apply
    asked_to_hold = hold.tries > 0 and hold.state is not CallState.OK and not asked_to_start
    if hold.state is CallState.REFUSED or asked_to_hold:
        call = hold
    consent = node.consent
    state, reason, message = "unknown", call.reason, call.message
    if call.state is CallState.OK:
        state = "ok"
    if call.state is CallState.REFUSED or (
        consent is not None and consent.status is JobStatus.REJECTED
    ):
        state = "error"
    if state == "ok" and consent is not None and consent.status is JobStatus.PENDING:
        by = moment(consent.decides_by)
        state, reason, message = ("unknown", "APPROVAL", f"waits for its approval until {by}")
        if consent.waits_for:
            reason, message = "PREPARING", f"{consent.waits_for}, by {by}"
    if state != "error" and node.excluded is not None:
        state, reason, message = "unknown", node.excluded.reason, node.excluded.message
    if state == "unknown" and node.unreachable_since is not None and not reason:
        reason = "PEER_UNREACHABLE"
    return PartyDetail(
        label, node.node, state, node.excluded is not None, reason, message, call.tries, call.due_at
    )


def in_words(job: Job) -> str:
    """Return in one sentence how every node stands to the job."""
    states = dict[NodeId, str]()
    for d in details(job):
        why = " ".join(filter(None, (d.reason, d.message)))
        states[d.node] = f"{d.node} {d.state}" + (f": {why}" if why and d.state != "ok" else "")
    return "; ".join(states.values())


def failed_tasks(job: Job) -> list[str]:
    """Return the tasks that have failed although the job may succeed."""
    return [
        t.name
        for t in job.tasks.values()
        if t.status is TaskStatus.FAILED
        and t.ending is not None
        and t.ending.outcome is Outcome.FAILED
    ]
