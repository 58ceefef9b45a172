"""The flow of a job is compared with the approved one."""

from dataclasses import replace

from gateway.domain.approved_flows import deviating_tasks, task_lines
from gateway.domain.dag import ComponentRef, Dag
from tests.builders import a_dag, a_node

APPROVED = a_dag("psi -> train -> evaluate; psi -> evaluate")


def with_node(dag, name, **changes):
    """Return a flow with one task changed."""
    nodes = [replace(node, **changes) if node.name == name else node for node in dag.nodes]
    return Dag(tuple(nodes))


def test_the_order_of_tasks_does_not_matter():
    assert deviating_tasks(Dag(APPROVED.nodes[::-1]), APPROVED) == []


def test_swapped_and_repeated_inputs_deviate():
    """A component may tell its inputs, such as training and test data, by their positions."""
    inputs = APPROVED["evaluate"].inputs
    swapped = with_node(APPROVED, "evaluate", inputs=inputs[::-1])
    repeated = with_node(APPROVED, "evaluate", inputs=(*inputs, inputs[0]))

    assert deviating_tasks(swapped, APPROVED) == ["evaluate"]
    assert deviating_tasks(repeated, APPROVED) == ["evaluate"]


def test_tasks_that_are_added_missing_or_changed_deviate():
    other = ComponentRef("vendor", "2.0.0", "Thing")
    dag = with_node(APPROVED, "psi", component=other)
    dag = with_node(dag, "evaluate", inputs=())
    nodes = [node for node in dag.nodes if node.name != "train"]

    deviating = deviating_tasks(Dag((*nodes, a_node("extra"))), APPROVED)

    assert deviating == ["evaluate", "extra", "psi", "train"]


def test_a_task_with_a_further_output_deviates():
    dag = with_node(APPROVED, "psi", outputs=a_node("psi", outputs=("out", "ids")).outputs)
    assert deviating_tasks(dag, APPROVED) == ["psi"]


def test_a_line_names_a_task_its_component_and_the_tasks_before():
    assert task_lines(APPROVED) == [
        "psi: vendor:1.0.0/Thing",
        "train: vendor:1.0.0/Thing ← psi",
        "evaluate: vendor:1.0.0/Thing ← psi, train",
    ]
