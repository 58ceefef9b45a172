"""Approved flows: their tasks as approvers see them, and deviations of jobs from them."""

from gateway.domain.dag import Dag


def task_lines(dag: Dag) -> list[str]:
    """Return a line for each task: its name, its component and the tasks before it.

    Such as ``train: vendor:1.0.0/LR ← psi``.
    """
    lines = []
    for node in dag.nodes:
        before = ", ".join(sorted(node.upstream))
        parts = [f"{node.name}: {node.component}", before]
        lines.append(" ← ".join(filter(None, parts)))
    return lines


def deviating_tasks(dag: Dag, approved: Dag) -> list[str]:
    """Return the names of the tasks by which a job's flow deviates from the approved one, sorted.

    They are additional, missing or changed. The order of the tasks may differ. That of a task's
    inputs and outputs may not: a component tells those that it does not name by their positions.
    """
    tasks = set(dag.nodes) ^ set(approved.nodes)
    return sorted({task.name for task in tasks})
