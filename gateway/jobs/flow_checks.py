"""Checks of a job's tasks against the descriptions of their components.

The checks concern inputs and outputs, datasets, models and formats. Whether a finding is a problem
or a warning is decided by the caller, `gateway.jobs.planner`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.data.registration import CSV
from gateway.domain.dag import order
from gateway.domain.problems import Problem
from gateway.domain.run import Run
from gateway.domain.spec import JobSpec, overlay
from gateway.jobs.party_task import FlowInput, PartyTask
from provider_registry.model import DataSpec
from provider_registry.values import format_problem


@dataclass(frozen=True)
class Plan:
    """A task at a party, and the run planned for it."""

    task: PartyTask
    run: Run


Plans = Mapping[tuple[str, str], Plan]  # by the task's name and the party's label


def in_flow_order(spec: JobSpec, plans: Plans) -> list[Plan]:
    """Return plans in the order of the flow: each task after the tasks whose outputs it reads."""
    rank = {name: number for number, name in enumerate(order(spec.dag))}

    def rank_of(plan: Plan) -> int:
        return rank[plan.task.node.name]

    return sorted(plans.values(), key=rank_of)


def unconnected_inputs_and_outputs(task: PartyTask, path: str) -> Iterator[Problem]:
    """Yield a problem for each input and output that the component's description does not have.

    The container would not receive them. ``path`` is the path of the task by its number, such as
    ``dag.components[0]``.
    """
    inputs = []
    for flow_input in task.inputs:
        edge = flow_input.edge
        inputs.append((f"{edge.type} {edge.task}.{edge.key}", flow_input.name))
    outputs = []
    for output in task.node.outputs:
        outputs.append((f"{output.type} {output.key}", task.outputs.get(output.key)))
    yield from _without_counterpart(task, path, "input", inputs, task.component.inputs)
    yield from _without_counterpart(task, path, "output", outputs, task.component.outputs)


def _without_counterpart(
    task: PartyTask,
    path: str,
    side: str,
    items: Iterable[tuple[str, str | None]],
    described: Sequence[DataSpec],
) -> Iterator[Problem]:
    """Yield a problem for each input or output without a name in the description.

    Each item has the text for messages, and the name in the description (None or "" without one).
    ``side`` is "input" or "output".
    """
    names = ", ".join(f"{spec.name} ({spec.category})" for spec in described) or "none"
    rule = f"has no counterpart among the {side}s that {task.component.name} describes, {names}"
    remedy = "take it out of the flow, or have the description name it"
    for number, (text, name) in enumerate(items):
        if not name:
            yield Problem(f"{path}.{side}[{number}]", f"{rule}: {remedy}", text)


def unused_or_missing_dataset(task: PartyTask) -> Iterator[Problem]:
    """Yield a problem for a dataset that no container receives, and for a missing dataset.

    Descriptions cannot mark an input as required. A dataset counts as required if the component's
    first input is a table and the task reads no other task, except for an arbiter, which has no
    data of its own.
    """
    first = _first_input(task)
    yield from _unused_dataset(task, first)
    if first is None or task.node.inputs or task.dataset:
        return
    reads_table = first.group == "data" and first.category != "cache"
    if reads_table and task.party.role != "arbiter":
        name = task.component.name
        rule = f"is missing: {name} reads {first.name} and would start without it; name a dataset"
        remedy = f"name a dataset of {task.party.node}"
        yield Problem(f"{task.parameters_path}.dataset_id", rule, remedy=remedy)


def _unused_dataset(
    task: PartyTask,
    first: DataSpec | None,
) -> Iterator[Problem]:
    """Yield a problem for a dataset of a task that reads other tasks' outputs or has no input.

    ``first`` is the first input of the component, None for none.
    """
    node = task.node
    parameters = overlay(task.spec.task_params, task.party, node.name)
    dataset = parameters.get("dataset_id")
    if dataset is None:
        return
    path = f"config.task_params.{dataset.origin}.{node.name}.dataset_id"
    if node.inputs:
        upstream = ", ".join(sorted(node.upstream))
        rule = f"is ignored, as the task reads {upstream}: leave one of the two out"
        remedy = f"leave the dataset out, or the input from {upstream}"
        yield Problem(path, rule, dataset.value, remedy=remedy)
    elif first is None and dataset.value:
        rule = f"is ignored, as {task.component.name} describes no input: leave it out"
        remedy = "leave the dataset out"
        yield Problem(path, rule, dataset.value, remedy=remedy)


def _first_input(task: PartyTask) -> DataSpec | None:
    """Return the first input that the component describes; None if it describes none."""
    return next(iter(task.component.inputs), None)


def undescribed_models(
    task: PartyTask,
    models: Iterable[str],
) -> list[Problem]:
    """Return a problem for each model for which the component's description has no input.

    ``models`` are the input names under which the models of a prediction are passed to the task.
    """
    described = {spec.name for spec in task.component.inputs}
    rule = (
        "receives a model, but its description has no input of category model: "
        "an image that ignores it trains"
    )
    remedy = "ask the vendor whether the component predicts, and for a description that says so"
    missing = [name for name in models if name not in described]
    return [Problem(task.path, rule, name, remedy=remedy) for name in missing]


def unreadable_format(task: PartyTask, format_name: str) -> Problem | None:
    """Return the problem of a dataset in a format that the task cannot be expected to read.

    None for CSV, which every component of the standard reads, and for a format that the task's
    first input lists. The component must describe at least one input. `dataset_format_problem`
    also finds CSV that the input does not list.
    """
    spec = task.component.inputs[0]
    formats = [name.lower() for name in spec.formats]
    if format_name == CSV or format_name in formats:
        return None
    listed = f"lists {', '.join(spec.formats)}" if spec.formats else "lists nothing"
    rule = (
        f"the table is {format_name}; dataFormat of input {spec.name} {listed}: "
        f"have it list {format_name}, or upload the table as CSV"
    )
    return Problem(task.dataset_path, rule, reason="FORMAT_MISMATCH")


def dataset_format_problem(task: PartyTask, format_name: str) -> Problem | None:
    """Return the problem of a dataset whose format the task's first input does not list.

    None if the input lists the format or no format at all, or if the component describes no input.
    """
    if not task.component.inputs:
        return None
    return format_problem(format_name, task.component.inputs[0], task.parameters_path)


def upstream_format_problems(task: PartyTask, plans: Plans) -> list[Problem]:
    """Return a problem for each input that does not list the format of the output it receives."""
    inputs = {spec.name: spec for spec in task.component.inputs}
    problems = []
    for flow_input in task.inputs:
        formats = _formats_upstream(task, flow_input, plans)
        if not formats:
            continue
        edge = flow_input.edge
        # The first format of an output is its default.
        problem = format_problem(formats[0], inputs[flow_input.name], f"{task.path}.input")
        if problem is not None:
            rule = f"{problem.rule}, from {edge.task}.{edge.key}"
            problems.append(problem._replace(rule=rule))
    return problems


def _formats_upstream(
    task: PartyTask,
    flow_input: FlowInput,
    plans: Plans,
) -> Sequence[str]:
    """Return the formats of the output that an input of a task receives at the same party.

    Empty if the description of the upstream component lists none, if the party has no part in the
    upstream task, or if the description of this task's component has no such input.
    """
    source = plans.get((flow_input.edge.task, task.party.label))
    if source is None or not flow_input.name:
        return ()
    return _output_formats(source.task, flow_input.edge.key)


def _output_formats(task: PartyTask, key: str) -> Sequence[str]:
    """Return the formats of an output, by its key in the flow; empty if they are not described."""
    name = task.outputs.get(key)
    for spec in task.component.outputs:
        if spec.name == name:
            return spec.formats
    return ()
