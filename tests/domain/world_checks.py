"""The rules that hold in every simulated world. Each check raises `Broken`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.domain import quorum
from gateway.domain.job import Job, NodeTask, Task
from gateway.domain.scheduling import messages
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, TASK, Outcome, TaskStatus, ended, may
from gateway.domain.task_index import index_of
from tests.domain.clockwork import require

if TYPE_CHECKING:
    from tests.domain.node_sim import SimulatedNode
    from tests.domain.world import World

# Seconds by which an outage may be shorter than the limit and still fail the job: the node may have
# missed a call before the outage, or answer one late after it.
OUTAGE_SLACK = 30.0


# ---------------------------------------------------------------- every write


def check_move(old: Job, new: Job) -> None:
    """Compare the record before and after a write."""
    check_status_move(JOB, "the job", old.status, new.status)
    for name, task in new.tasks.items():
        _check_task_move(
            old.tasks[name],
            task,
            new.spec.settings.time_limits.of(name).retries,
        )
    require(
        new.task_index == index_of(new.spec.dag, new.tasks),
        "the index of the tasks is not that of the tasks",
    )
    require(new.progress >= old.progress, f"progress falls from {old.progress} to {new.progress}")
    require(
        (new.progress == 100) is (new.outcome is Outcome.SUCCEEDED),
        f"progress is {new.progress} and the outcome {new.outcome}",
    )
    require(
        (new.outcome is not None) is ended(JOB, new.status),
        f"{new.status} with outcome {new.outcome}",
    )
    if old.ending is not None:
        require(new.ending == old.ending, "the end of the job is decided twice")
    if ended(JOB, old.status):
        _check_ended_job(old, new)


def check_status_move(
    table: Mapping[Any, Any],
    subject: str,
    old: Any,
    new: Any,
) -> None:
    """Check that a status stays, or that its table has the move."""
    is_legal = old is new or may(table, old, new)
    require(is_legal, f"{subject} goes from {old} to {new}")


def _check_task_move(
    old: Task,
    new: Task,
    retries: int,
) -> None:
    """Compare a task before and after a write."""
    check_status_move(TASK, new.name, old.status, new.status)
    if new.attempt != old.attempt:
        _check_next_attempt(old, new, retries)
        return
    for node, part in new.nodes.items():
        for role, status in part.roles.items():
            old_status = old.nodes[node].roles[role]
            check_status_move(TASK, f"{new.name} of {role} at {node}", old_status, status)


def _check_next_attempt(
    old: Task,
    new: Task,
    retries: int,
) -> None:
    """Check that attempts follow one by one, up to the number of retries, with an id each."""
    is_next = new.attempt == old.attempt + 1
    require(is_next and new.attempt <= retries, f"attempt {new.attempt} follows {old.attempt}")
    past_numbers = [attempt.number for attempt in new.attempts]
    require(
        past_numbers == list(range(new.attempt)),
        f"{new.name} forgets its past attempts: {new.attempts}",
    )
    require(new.task_id != old.task_id, f"two attempts of {new.name} have the same id")


def _check_ended_job(old: Job, new: Job) -> None:
    """Check that a write changes nothing of an ended job."""
    require(
        (new.status, new.outcome, new.ended_at) == (old.status, old.outcome, old.ended_at),
        "the job changes after its end",
    )
    require(
        _task_statuses(new) == _task_statuses(old),
        "a task changes after the end of its job",
    )


def _task_statuses(job: Job) -> dict[str, TaskStatus]:
    """Return the states of the tasks by name."""
    return {name: task.status for name, task in job.tasks.items()}


# ---------------------------------------------------------------- the end


def check_end(world: "World") -> None:
    """Check a world in which nothing is left to do."""
    job = world.job
    require(ended(JOB, job.status), f"nothing is left to do and the job is {job.status}")
    require(job.outcome is not None, "the job ended without an outcome")
    require(job.ending is not None, "the job ended without a decision on its end")
    for node in world.nodes.values():
        _check_node(node)
    excluded = [node.node for node in job.nodes.values() if node.excluded]
    if excluded:
        can_spare = quorum.can_spare(world.plot.spec, excluded)
        require(can_spare, f"the job went on without {excluded}")
    _check_outcome(world)
    for task in job.tasks.values():
        _check_task(world, task)
    _check_calls(world, excluded)


def _check_node(node: "SimulatedNode") -> None:
    """Check that a node holds nothing of an ended job and started each attempt once."""
    require(node.ended or not node.created, f"{node.node} still holds the job")
    require(not node.holds_resources, f"{node.node} still holds what the job needed")
    for attempt, starts in node.starts.items():
        most_starts = 1 + node.forgotten[attempt]
        require(starts <= most_starts, f"{attempt} was started {starts} times at {node.node}")


def _check_calls(world: "World", excluded: list[NodeId]) -> None:
    """Check that no call was useless: to a node without a role, or a repeat without trouble."""
    task_requests = [call for call in world.calls if isinstance(call, messages.TaskRequest)]
    for request in task_requests:
        roles = world.plot.assumed_roles(request.task, request.node)
        require(roles, f"{request} although the node has no role in {request.task}")
    if not _anything_may_fail(world):
        repeatable = _repeatable_requests(world, excluded)
        calls = world.calls.items()
        repeated = [
            request for request, n in calls if n > 1 and not isinstance(request, repeatable)
        ]
        require(not repeated, f"called more than once although nothing went wrong: {repeated}")


def _anything_may_fail(world: "World") -> bool:
    """True if the plot has any trouble with the network or the planners."""
    plot = world.plot
    troubles = (
        plot.trouble_chance,
        plot.crash_chance,
        plot.stall_chance,
        plot.outages,
        plot.dies_at,
    )
    return any(troubles)


def _repeatable_requests(
    world: "World",
    excluded: list[NodeId],
) -> tuple[type, ...]:
    """Return the types of the requests that are repeated in a world without trouble."""
    repeatable: tuple[type, ...] = (messages.StartTaskAt, messages.PollTaskAt)
    if world.plot.busy:
        repeatable += (messages.ReserveAt, messages.ReleaseAt)
    if excluded:
        # The remaining nodes are told to start once more.
        repeatable += (messages.StartAt,)
    return repeatable


def has_succeeded(world: "World", task: str) -> bool:
    """True if the task has succeeded in every role at every node of the job."""
    for node in world.participating_nodes():
        statuses = node.tasks.get(task, {})
        roles = world.plot.played_roles(task, node.node)
        if any(statuses.get(role) is not TaskStatus.SUCCESS for role in roles):
            return False
    return True


def _check_task(world: "World", task: Task) -> None:
    """Compare a task of an ended job with its nodes: no role of it runs or counts as running."""
    require(task.status is not TaskStatus.RUNNING, f"{task.name} is RUNNING for ever")
    if task.status is TaskStatus.FAILED:
        require(task.failure is not None, f"{task.name} has failed for no reason")
        if task.ending is not None:
            require(
                task.failure == task.ending.failure,
                f"{task.name} was stopped, and has failed because of {task.failure}",
            )
    for node, part in task.nodes.items():
        statuses_at_node = world.nodes[node].tasks.get(
            task.name,
            {},
        )
        _check_part(task, part, statuses_at_node)


def _check_part(
    task: Task,
    part: NodeTask,
    statuses_at_node: Mapping[str, TaskStatus],
) -> None:
    """Compare the recorded states of a task at a node with the states at the node itself."""
    for role, status in part.roles.items():
        at_node = statuses_at_node.get(role)
        subject = f"{task.name} of {role} at {part.node}"
        if status is TaskStatus.SUCCESS:
            require(
                at_node is TaskStatus.SUCCESS, f"{subject} counts as {status}, and is {at_node}"
            )
        if task.status is TaskStatus.FAILED:
            require(ended(TASK, status), f"{subject} is {status} though the task has failed")
    for role, status in statuses_at_node.items():
        require(ended(TASK, status), f"{task.name} of {role} still runs at {part.node}")


# ---------------------------------------------------------------- the outcome and its cause


def _check_outcome(world: "World") -> None:
    """Compare the end of the job with the events at its nodes."""
    outcome = world.job.outcome
    failure = world.job.ending.failure
    if outcome is Outcome.SUCCEEDED:
        require(failure is None, f"a success, but {failure}")
        for node in world.plot.spec.dag.nodes:
            require(has_succeeded(world, node.name), f"a success, but {node.name} did not succeed")
        return
    require(failure is not None, f"{outcome} for no reason")
    if failure.task in world.stopped_tasks:
        _check_stopped_tasks(world, outcome, failure)
        return
    require((outcome, failure.reason) in CAUSES, f"{outcome} because of {failure}")
    happened = CAUSES[outcome, failure.reason]
    require(happened(world, failure), f"{outcome} because of {failure}, which did not happen")


def _check_stopped_tasks(
    world: "World",
    outcome: Outcome,
    failure: Failure,
) -> None:
    """A job ends for its stopped tasks only as STOPPED, and only once no other task can go on."""
    is_stopped = outcome is Outcome.STOPPED
    require(is_stopped, f"{outcome} because of {failure}, whose task was stopped")
    for node in world.plot.spec.dag.nodes:
        is_over = node.name in world.stopped_tasks or has_succeeded(world, node.name)
        require(is_over, f"the job was stopped for its stopped tasks while {node.name} could go on")


def _job_was_stopped(world: "World", failure: Failure) -> bool:
    """True if a user stops the job."""
    return world.plot.stop_at is not None


def _nobody_played_a_role(world: "World", failure: Failure) -> bool:
    """True if the scheduling node did not know the roles and excluded every node with a role."""
    task = failure.task
    nodes = world.participating_nodes()
    nodes_with_role = [node for node in nodes if world.plot.played_roles(task, node.node)]
    return task in world.plot.unknown_roles and not nodes_with_role


def _node_refused_the_job(world: "World", failure: Failure) -> bool:
    """True if the node refuses every creation."""
    return failure.node in world.plot.refuses_create


def _person_refused_the_job(world: "World", failure: Failure) -> bool:
    """True if a person of the node decides against the job."""
    _, decision = world.plot.approvals.get(
        failure.node,
        (0.0, None),
    )
    return decision is False


def _person_was_asked(world: "World", failure: Failure) -> bool:
    """True if a person of the node decides; the decision may come too late in any plot."""
    return failure.node in world.plot.approvals


def _creation_was_disturbed(world: "World", failure: Failure) -> bool:
    """True if the network disturbed a creation."""
    return messages.CreateAt in world.troubled_requests


def _start_was_refused_or_disturbed(world: "World", failure: Failure) -> bool:
    """True if the node refuses the start, or the network disturbed a start or a reservation."""
    disturbed = {messages.StartAt, messages.ReserveAt} & world.troubled_requests
    return bool(disturbed) or failure.node in world.plot.refuses_start


def _node_refused_the_task(world: "World", failure: Failure) -> bool:
    """True if the node refuses the start of the task."""
    return (failure.task, failure.node) in world.plot.refuses_task


def _last_attempt_broke(world: "World", failure: Failure) -> bool:
    """True if the node has this failure of the task's last attempt."""
    node = world.nodes.get(failure.node)
    failures = node.failures if node is not None else {}
    is_known = failures.get(f"{failure.task}.{failure.role}") == failure
    retries = world.plot.spec.settings.time_limits.of(failure.task).retries
    return is_known and world.job.tasks[failure.task].attempt == retries


def _timeout_was_set(world: "World", failure: Failure) -> bool:
    """True if the task, or the job for a failure without a task, has a timeout."""
    limits = world.plot.spec.settings.time_limits
    if failure.task:
        return limits.of(failure.task).timeout is not None
    return limits.job_timeout is not None


def _node_was_out_for_long(world: "World", failure: Failure) -> bool:
    """True if an outage of the node lasts about as long as the limit for silent nodes."""
    limit = world.timing.unreachable_limit - OUTAGE_SLACK
    lengths = [o.ends - o.begins for o in world.plot.outages if o.node == failure.node]
    return any(length > limit for length in lengths)


# Every end of a job except success, with the condition under which it is right.
CAUSES: Mapping[tuple[Outcome, str], Callable[["World", Failure], bool]] = {
    (Outcome.STOPPED, "STOPPED"): _job_was_stopped,
    (Outcome.REJECTED, "COMPONENT_UNKNOWN"): _node_refused_the_job,
    (Outcome.REJECTED, "APPROVAL_REJECTED"): _person_refused_the_job,
    (Outcome.REJECTED, "APPROVAL_TIMEOUT"): _person_was_asked,
    (Outcome.REJECTED, "PEER_UNREACHABLE"): _creation_was_disturbed,
    (Outcome.FAILED, "FAILED_TO_RUN"): _start_was_refused_or_disturbed,
    (Outcome.FAILED, "NO_ROLE_HERE"): _nobody_played_a_role,
    (Outcome.FAILED, "INPUT_MISSING"): _node_refused_the_task,
    (Outcome.FAILED, "BROKE"): _last_attempt_broke,
    (Outcome.FAILED, "TIMEOUT"): _timeout_was_set,
    (Outcome.FAILED, "UNREACHABLE"): _node_was_out_for_long,
}
