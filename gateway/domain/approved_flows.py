"""Approved flows: their tasks as approvers see them, and deviations of jobs from them."""

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput


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

    They are additional, missing or changed. The order of the tasks, and that of a task's inputs and
    outputs, may differ.
    """
    tasks = set(map(_unordered, dag.nodes)) ^ set(map(_unordered, approved.nodes))
    return sorted({name for name, *_ in tasks})


def _unordered(node: DagNode) -> tuple[str, ComponentRef, frozenset[DagInput | DagOutput]]:
    """Return a task's name, its component, and its inputs and outputs in no order."""
    return node.name, node.component, frozenset((*node.inputs, *node.outputs))
