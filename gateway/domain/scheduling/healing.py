"""What is due at once when a node can be reached again: every call to it that got no answer.

When it is tried again by itself grows with the number of tries; a partition that is over need not be waited for.
"""

from dataclasses import fields, replace
from typing import Any, TypeVar

from gateway.domain.job import Job, NodeJob, NodeTask
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Call, CallState, NodeId

R = TypeVar("R", NodeJob, NodeTask)


def reached(job: Job, node: NodeId) -> Job:
    """Return the scheduling node's job with every unanswered call to a node due now."""
    known = job.nodes.get(node)
    if known is None:
        return job
    nodes, tasks = {**job.nodes, node: _hurried(known)}, dict(job.tasks)
    for name, task in job.tasks.items():
        part = task.nodes.get(node)
        if part is not None and (soon := _hurried(part)) is not part:
            tasks[name] = replace(task, nodes={**task.nodes, node: soon})
    if nodes[node] is known and all(tasks[name] is task for name, task in job.tasks.items()):
        return job
    return replace(job, nodes=nodes, tasks=tasks)


def heard_by(local: LocalJob, node: NodeId) -> LocalJob:
    """Return a participating node's job with every report that the scheduling node did not hear due now."""
    if local.spec.scheduler != node:
        return local
    runs = tuple(map(_telling, local.runs))
    return local if all(a is b for a, b in zip(runs, local.runs, strict=True)) else replace(local, runs=runs)


def _telling(run: Run) -> Run:
    call = _soon(run.told.call)
    return run if call is run.told.call else replace(run, told=replace(run.told, call=call))


def _hurried(record: R) -> R:
    changed: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Call) and (soon := _soon(value)) is not value:
            changed[field.name] = soon
    return replace(record, **changed) if changed else record


def _soon(call: Call) -> Call:
    """Return a call that was tried and got no answer as due now; any other as it is."""
    waits = call.state is CallState.LOST or (call.state is CallState.IDLE and call.tries > 0)
    return replace(call, due_at=None) if waits and call.due_at is not None else call
