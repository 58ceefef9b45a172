"""The rules that hold in every simulated world. Each check raises `Broken`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.domain import quorum
from gateway.domain.job import Job, Task
from gateway.domain.scheduling import messages
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, TASK, Outcome, TaskStatus, ended, may
from tests.domain.clockwork import Broken

if TYPE_CHECKING:
    from tests.domain.world import World

# Seconds by which an outage may be shorter than the limit and still fail the job: a call may already
# have been silent before it, or be answered late after it.
OUTAGE_SLACK = 30.0


# ---------------------------------------------------------------- every write


def check_move(old: Job, new: Job) -> None:
    """Compare the record before and after a write."""
    if old.status is not new.status and not may(JOB, old.status, new.status):
        raise Broken(f"the job goes from {old.status} to {new.status}")
    for name, task in new.tasks.items():
        _check_task_move(old.tasks[name], task, new.spec.settings.time_limits.of(name).retries)
    if new.progress < old.progress:
        raise Broken(f"progress falls from {old.progress} to {new.progress}")
    if (new.progress == 100) is not (new.outcome is Outcome.SUCCEEDED):
        raise Broken(f"progress is {new.progress} and the outcome {new.outcome}")
    if (new.outcome is not None) is not ended(JOB, new.status):
        raise Broken(f"{new.status} with outcome {new.outcome}")
    if old.ending is not None and new.ending != old.ending:
        raise Broken("the end of the job is decided twice")
    if ended(JOB, old.status):
        _check_ended_job(old, new)


def _check_task_move(
    old: Task,
    new: Task,
    retries: int,
) -> None:
    if old.status is not new.status and not may(TASK, old.status, new.status):
        raise Broken(f"{new.name} goes from {old.status} to {new.status}")
    if new.attempt != old.attempt:
        _check_next_attempt(old, new, retries)
        return
    for node, part in new.nodes.items():
        for role, status in part.roles.items():
            before = old.nodes[node].roles[role]
            if before is not status and not may(TASK, before, status):
                raise Broken(f"{new.name} of {role} at {node} goes from {before} to {status}")


def _check_next_attempt(
    old: Task,
    new: Task,
    retries: int,
) -> None:
    if new.attempt != old.attempt + 1 or new.attempt > retries:
        raise Broken(f"attempt {new.attempt} of {new.name} follows {old.attempt}")
    past_numbers = [attempt.number for attempt in new.attempts]
    if past_numbers != list(range(new.attempt)) or new.task_id == old.task_id:
        raise Broken(f"{new.name} forgets its past attempts: {new.attempts}")


def _check_ended_job(old: Job, new: Job) -> None:
    if (new.status, new.outcome, new.ended_at) != (old.status, old.outcome, old.ended_at):
        raise Broken("the job changes after its end")
    if _task_statuses(new) != _task_statuses(old):
        raise Broken("a task changes after the end of its job")


def _task_statuses(job: Job) -> dict[str, TaskStatus]:
    return {name: task.status for name, task in job.tasks.items()}


# ---------------------------------------------------------------- the end


def check_end(world: "World") -> None:
    """Check a world in which nothing is left to do."""
    job = world.job
    if not ended(JOB, job.status) or job.outcome is None or job.ending is None:
        raise Broken(f"nothing is left to do and the job is {job.status}")
    _check_nodes(world)
    excluded = [node.node for node in job.nodes.values() if node.excluded]
    if excluded and not quorum.can_spare(world.plot.spec, excluded):
        raise Broken(f"the job went on without {excluded}")
    _check_outcome(world, job.outcome, job.ending.failure)
    for task in job.tasks.values():
        _check_task(world, task)
    _check_calls(world, excluded)


def _check_nodes(world: "World") -> None:
    for node in world.nodes.values():
        if node.created and not node.ended:
            raise Broken(f"{node.node} still holds the job")
        if node.holds_resources:
            raise Broken(f"{node.node} still holds what the job needed")
        for attempt, starts in node.starts.items():
            if starts > 1 + node.forgotten[attempt]:
                raise Broken(f"{attempt} was started {starts} times at {node.node}")


def _check_calls(world: "World", excluded: list[NodeId]) -> None:
    """Check that no call was useless: none to a node without a role, and no repeat without trouble."""
    plot = world.plot
    task_requests = [call for call in world.calls if isinstance(call, messages.TaskRequest)]
    for request in task_requests:
        roles = plot.assumed_roles(request.task, request.node)
        if not roles:
            raise Broken(f"{request} although the node has no role in {request.task}")
    if _anything_may_fail(world):
        return
    repeatable: tuple[type, ...] = (messages.StartTaskAt, messages.PollTaskAt)
    if plot.busy:
        repeatable += (messages.ReserveAt, messages.ReleaseAt)
    if excluded:
        # The other nodes are told to start once more.
        repeatable += (messages.StartAt,)
    repeated = [
        request
        for request, calls in world.calls.items()
        if calls > 1 and not isinstance(request, repeatable)
    ]
    if repeated:
        raise Broken(f"called more than once although nothing went wrong: {repeated}")


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


def has_succeeded(world: "World", task: str) -> bool:
    """True if the task has succeeded in every role at every node of the job."""
    return all(
        node.tasks.get(task, {}).get(role) is TaskStatus.SUCCESS
        for node in world.participating_nodes()
        for role in world.plot.played_roles(task, node.node)
    )


def _check_task(world: "World", task: Task) -> None:
    """Compare a task of an ended job with its nodes: none of its roles runs or is believed to run."""
    if task.status is TaskStatus.RUNNING:
        raise Broken(f"{task.name} is RUNNING for ever")
    has_failed = task.status is TaskStatus.FAILED
    if has_failed and task.failure is None:
        raise Broken(f"{task.name} has failed for no reason")
    if has_failed and task.ending is not None and task.failure != task.ending.failure:
        raise Broken(f"{task.name} was stopped, and has failed because of {task.failure}")
    for node, part in task.nodes.items():
        statuses_there = world.nodes[node].tasks.get(task.name, {})
        for role, status in part.roles.items():
            at_node = statuses_there.get(role)
            if status is TaskStatus.SUCCESS and at_node is not TaskStatus.SUCCESS:
                raise Broken(f"{task.name} of {role} is {status}, and {at_node} at {node}")
            if has_failed and not ended(TASK, status):
                raise Broken(f"{task.name} has failed, and is {status} of {role} at {node}")
        running = [role for role, status in statuses_there.items() if not ended(TASK, status)]
        if running:
            raise Broken(f"{task.name} of {running} still runs at {node}")


# ---------------------------------------------------------------- the outcome and its cause


def _check_outcome(
    world: "World",
    outcome: Outcome,
    failure: Failure | None,
) -> None:
    """Compare the end of the job with the events at its nodes."""
    if outcome is Outcome.SUCCEEDED:
        names = [node.name for node in world.plot.spec.dag.nodes]
        all_succeeded = all(has_succeeded(world, name) for name in names)
        if failure is not None or not all_succeeded:
            raise Broken(f"a success, but {failure or 'not every task succeeded at its node'}")
        return
    if failure is None:
        raise Broken(f"{outcome} for no reason")
    if failure.task in world.stopped_tasks:
        _check_stopped_tasks(world, outcome, failure)
        return
    happened = CAUSES.get((outcome, failure.reason))
    if happened is None or not happened(world, failure):
        raise Broken(f"{outcome} because of {failure}, which did not happen")


def _check_stopped_tasks(
    world: "World",
    outcome: Outcome,
    failure: Failure,
) -> None:
    """A job ends for its stopped tasks only as STOPPED, and only once no other task can go on."""
    if outcome is not Outcome.STOPPED:
        raise Broken(f"{outcome} because of {failure}, whose task was stopped")
    unfinished = [
        node.name
        for node in world.plot.spec.dag.nodes
        if node.name not in world.stopped_tasks and not has_succeeded(world, node.name)
    ]
    if unfinished:
        raise Broken(f"the job was stopped for its stopped tasks while {unfinished} could go on")


def _job_was_stopped(world: "World", failure: Failure) -> bool:
    return world.plot.stop_at is not None


def _nobody_played_a_role(world: "World", failure: Failure) -> bool:
    """True if the scheduling node did not know the roles, and every node with a role was excluded."""
    nodes_with_role = [
        node
        for node in world.participating_nodes()
        if world.plot.played_roles(failure.task, node.node)
    ]
    return failure.task in world.plot.unknown_roles and not nodes_with_role


def _node_refused_the_job(world: "World", failure: Failure) -> bool:
    return failure.node in world.plot.refuses_create


def _person_refused_the_job(world: "World", failure: Failure) -> bool:
    _, decision = world.plot.approvals.get(failure.node, (0.0, None))
    return decision is False


def _person_was_asked(world: "World", failure: Failure) -> bool:
    return failure.node in world.plot.approvals


def _creation_was_disturbed(world: "World", failure: Failure) -> bool:
    return messages.CreateAt in world.troubled_requests


def _start_was_refused_or_disturbed(world: "World", failure: Failure) -> bool:
    if failure.node in world.plot.refuses_start:
        return True
    return bool({messages.StartAt, messages.ReserveAt} & world.troubled_requests)


def _node_refused_the_task(world: "World", failure: Failure) -> bool:
    return (failure.task, failure.node) in world.plot.refuses_task


def _last_attempt_broke(world: "World", failure: Failure) -> bool:
    node = world.nodes.get(failure.node)
    if node is None or node.failures.get(f"{failure.task}.{failure.role}") != failure:
        return False
    limits = world.plot.spec.settings.time_limits.of(failure.task)
    return world.job.tasks[failure.task].attempt == limits.retries


def _timeout_was_set(world: "World", failure: Failure) -> bool:
    limits = world.plot.spec.settings.time_limits
    if failure.task:
        return limits.of(failure.task).timeout is not None
    return limits.job_timeout is not None


def _node_was_out_for_long(world: "World", failure: Failure) -> bool:
    limit = world.timing.unreachable_limit - OUTAGE_SLACK
    return any(
        outage.node == failure.node and outage.ends - outage.begins > limit
        for outage in world.plot.outages
    )


# Every end of a job other than success, with the condition under which it is right.
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
