"""Parties and tasks that a job can do without: optional settings in ``job_params.common``.

None of these settings is part of the standard:

- ``min_parties: {host: 2}``: two parties of that role are enough.
- ``required_parties: ["guest.0"]``: these parties are needed. Other parties of the same role are
  not, unless ``min_parties`` asks for more. If neither setting names a role or one of its
  parties, all parties of the role are needed. The initiator's node is always needed.
- ``tolerable_tasks: [names]``: if one of them fails, its downstream tasks never start, the other
  tasks go on, and the job may still succeed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.domain import redaction, rerun, retries
from gateway.domain.dag import downstream
from gateway.domain.job import Consent, Job, NodeJob, Task
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, NodeId, Party, moment
from gateway.domain.states import JobStatus, Outcome, TaskStatus

# ---------------------------------------------------------------- requirements


def can_spare(spec: JobSpec, nodes: Iterable[NodeId]) -> bool:
    """Return whether the job may run without these nodes, all of them together.

    It needs its initiator, the required parties, and the least number of parties of each role.
    """
    excluded = frozenset(nodes)
    if spec.initiator in excluded:
        return False
    parties = [party for party in spec.parties if party.node in excluded]
    labels = {party.label for party in parties}
    if not labels.isdisjoint(spec.settings.required_parties):
        return False
    roles = {party.role for party in parties}
    return all(_has_enough(spec, role, excluded) for role in roles)


def _has_enough(
    spec: JobSpec,
    role: str,
    excluded: frozenset[NodeId],
) -> bool:
    """Return whether a role has enough parties at nodes that are not excluded.

    The number of parties that is enough comes from `_least`.
    """
    parties = [party for party in spec.parties if party.role == role]
    remaining = [party for party in parties if party.node not in excluded]
    return len(remaining) >= _least(spec, role, parties)


def _least(
    spec: JobSpec,
    role: str,
    parties: list[Party],
) -> int:
    """Return how many of a role's parties the job needs; ``parties`` are all of them.

    The result is 0 for a role with required parties and no number in ``min_parties``: `can_spare`
    checks the required parties, and the job needs no others. A value that is not a whole number,
    which `gateway.domain.validation` rejects, counts as the number of all parties.
    """
    labels = {party.label for party in parties}
    has_required_party = not labels.isdisjoint(spec.settings.required_parties)
    default = 0 if has_required_party else len(parties)
    least = spec.settings.min_parties.get(role, default)
    if isinstance(least, int):
        return least
    return len(parties)


# ---------------------------------------------------------------- running with fewer parties


def excluded_parties(job: Job) -> tuple[str, ...]:
    """Return the labels of the parties that the job runs without, in the order of its parties."""
    excluded = _excluded_nodes(job)
    return tuple(party.label for party in job.spec.parties if party.node in excluded)


def _excluded_nodes(job: Job) -> list[NodeId]:
    """Return the nodes that the job runs without."""
    return [node.node for node in job.nodes.values() if node.excluded is not None]


def exclude(
    job: Job,
    node: NodeId,
    failure: Failure,
    at: datetime,
) -> Job | None:
    """Return the job without a node and its parts of all tasks; None if the job needs the node.

    A node can be excluded only before any task starts: the result is also None for a job that runs
    or ends. The start of the job, which names the excluded parties, is sent again to nodes that
    have had it.
    """
    if job.status is JobStatus.RUNNING or job.ending is not None:
        return None
    if not can_spare(job.spec, [*_excluded_nodes(job), node]):
        return None
    tasks = _tasks_without(job, node)
    if tasks is None:
        return None
    nodes = dict(job.nodes)
    for active in job.active:
        nodes[active.node] = replace(
            active,
            start=Call(),
        )
    # `job.nodes` has the node's record from before the loop: the node does not get the start again.
    nodes[node] = replace(
        job.nodes[node],
        excluded=failure,
    )
    job = replace(
        job,
        nodes=nodes,
        tasks=tasks,
    )
    return job.with_note(at, "continues without", node, **failure.as_dict())


def _tasks_without(
    job: Job,
    node: NodeId,
) -> dict[str, Task] | None:
    """Return the tasks by name, without a node's parts; None if a task would have no node left.

    A task in which the node has no part stays as it is.
    """
    tasks = {}
    for name, task in job.tasks.items():
        parts = dict(task.nodes)
        parts.pop(node, None)
        if not parts:
            return None
        tasks[name] = replace(
            task,
            nodes=parts,
        )
    return tasks


def ending_for(job: Job, node: NodeId) -> Ending | None:
    """Return the job's ending as it is reported with the stop of a node; None without an ending.

    An excluded node only learns why it was excluded. Any other node gets the job's ending, without
    the values in other nodes' entries: neither those submitted with the job nor the amended ones.
    """
    excluded = job.nodes[node].excluded
    if excluded is None:
        ending = redaction.for_node(job.spec, node, job.ending)
        amended_spec = rerun.with_amendments(job.spec, job.amendments)
        return redaction.for_node(amended_spec, node, ending)
    at = job.created_at  # the record of an excluded node has no time of its exclusion
    if job.ending is not None:
        at = job.ending.at
    failure = replace(excluded, message=f"left out: {excluded.message}")
    return Ending(Outcome.STOPPED, at, failure)


# ---------------------------------------------------------------- tolerated failures


def tolerate_failure(
    job: Job,
    task: Task,
    at: datetime,
) -> Job | None:
    """Return the job as it goes on after the failure of a task; None if the failure ends the job.

    The failure becomes the task's ending, and the tasks that need its output never start.
    """
    is_tolerable = task.name in job.spec.settings.tolerable_tasks
    if not is_tolerable or retries.is_ending(job, task):
        return None
    failure = task.known_failure
    ending = Ending(Outcome.FAILED, at, failure)
    upstream_failure = Failure(
        "UPSTREAM_FAILED",
        f"needs the output of {task.name}, which failed",
        task=task.name,
    )
    dependent_tasks = downstream(job.spec.dag, [task.name]) - {task.name}
    job = job.with_task(replace(task, ending=ending))
    job, _ = retries.with_endings(
        job,
        dependent_tasks,
        Ending(Outcome.FAILED, at, upstream_failure),
    )
    return job.with_note(
        at,
        "failure tolerated",
        task=task.name,
        tasks=sorted(dependent_tasks),
        reason=failure.reason,
    )


def tolerated_failures(job: Job) -> list[str]:
    """Return the names of the tasks whose failure the job has tolerated."""
    return [task.name for task in job.tasks.values() if _has_tolerated_failure(task)]


def _has_tolerated_failure(task: Task) -> bool:
    """Return whether a task has failed, and the job went on with the failure as the task's ending.

    False for a task downstream of a failed task: such a task has an ending too, but never starts,
    so that its status is not FAILED.
    """
    if task.status is not TaskStatus.FAILED or task.ending is None:
        return False
    return task.ending.outcome is Outcome.FAILED


# ---------------------------------------------------------------- the state of every party


@dataclass(frozen=True)
class PartyDetail:
    """The state of a party: ``ok``, ``error`` (it refused) or ``unknown`` (no response yet)."""

    party: str  # label, such as ``guest.0``
    node: NodeId
    state: str
    excluded: bool  # the job runs without it
    reason: str = ""
    message: str = ""
    tries: int = 0  # tries of the call that the state depends on
    next_try: datetime | None = None  # `Call.due_at` of that call


def details(job: Job) -> list[PartyDetail]:
    """Return the state of every party, in the order of the job's parties.

    A party of a node without a record in the job is left out.
    """
    party_details = []
    for party in job.spec.parties:
        node = job.nodes.get(party.node)
        if node is not None:
            party_details.append(_detail(party.label, node))
    return party_details


def in_words(job: Job) -> str:
    """Describe the state of every node in one sentence, with the cause unless the state is ok."""
    states = {detail.node: _node_in_words(detail) for detail in details(job)}
    return "; ".join(states.values())


def _node_in_words(detail: PartyDetail) -> str:
    """Describe the state of a node, which is the state of each of its parties."""
    text = f"{detail.node} {detail.state}"
    cause = " ".join(filter(None, (detail.reason, detail.message)))
    if detail.state == "ok" or not cause:
        return text
    return f"{text}: {cause}"


def _detail(label: str, node: NodeJob) -> PartyDetail:
    """Return the state of a party at a node, by the node's latest call."""
    call = _latest_call(node)
    state, reason, message = _state(node, call)
    if state == "unknown" and node.unreachable_since is not None and not reason:
        reason = "PEER_UNREACHABLE"
    return PartyDetail(
        label,
        node.node,
        state,
        excluded=node.excluded is not None,
        reason=reason,
        message=message,
        tries=call.tries,
        next_try=call.due_at,
    )


def _latest_call(node: NodeJob) -> Call:
    """Return the call that a node's state depends on: ``create``, ``request`` or ``start``.

    ``request`` asks for the reservation. In this order: ``request`` if it was refused, even after a
    start; ``start`` once it was made; ``request`` if it was made and is not granted; else
    ``create``.
    """
    reservation = node.reservation.request
    if reservation.state is CallState.REFUSED:
        return reservation
    if node.start.tries > 0 or node.start.completed:
        return node.start
    is_granted = reservation.state is CallState.OK
    if reservation.tries > 0 and not is_granted:
        return reservation
    return node.create


def _state(
    node: NodeJob,
    call: Call,
) -> tuple[str, str, str]:
    """Return state, reason and message of a node by its latest call and its approval.

    In this order: a refusal, the exclusion of the node, a call without a response, its approval. A
    node that was excluded without a refusal is ``unknown``, with the reason of the exclusion.
    """
    is_rejected = node.consent_status is JobStatus.REJECTED
    state = "unknown"
    if is_rejected or call.state is CallState.REFUSED:
        state = "error"
    elif node.excluded is not None:
        return state, node.excluded.reason, node.excluded.message
    elif call.state is CallState.OK:
        if node.pending_consent is not None:
            return _pending_state(node.pending_consent)
        state = "ok"
    return state, call.reason, call.message


def _pending_state(consent: Consent) -> tuple[str, str, str]:
    """Return state, reason and message of a node that has not decided on the job yet.

    A node that waits for its own preparations, such as images, has another reason than one that
    waits for a person's approval.
    """
    deadline = moment(consent.decides_by)
    if consent.waits_for:
        return "unknown", "PREPARING", f"{consent.waits_for}, by {deadline}"
    return "unknown", "APPROVAL", f"waits for its approval until {deadline}"
