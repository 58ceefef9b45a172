"""The tasks of a job description, as this gateway's flows have them."""

from collections.abc import Iterator, Mapping

from adapter.fate.dag import wire
from adapter.fate.dag.components import Found
from adapter.fate.dag.dag_data import from_model_warehouse, from_reader, from_warehouse
from adapter.fate.dag.dag_settings import settings_of_task
from adapter.fate.dag.dag_work import Work, named
from gateway.domain.dag import ComponentRef, DagInput, DagNode, DagOutput

TYPE_OF: Mapping[str, str] = {"data": "dataset", "model": "model", "metric": "report"}
"""FATE's groups of artefacts -> the types that flows here have"""


def task_of(work: Work, name: str, readers: set[str]) -> DagNode:
    """Return a task of a FATE flow as one of ours; what is wrong with it is noted in ``work``."""
    task, at = work.dag.tasks[name], f"tasks.{name}"
    found = component_of(work, name)
    _runs_at(work, name, found)
    inputs = tuple(inputs_of(work, name, found, readers))
    fed_by = {i.task for i in inputs} | readers
    for i, other in enumerate(task.dependent_tasks):
        if other not in fed_by:
            rule = (
                "must be a task whose output is an input here: an order without data is not kept by this gateway"
            )
            work.wrong(f"{at}.dependent_tasks[{i}]", rule, other)
    if task.parameters:
        work.task_params.setdefault("common", {})[name] = task.parameters
    settings_of_task(work, name)
    ref = ComponentRef(found.provider, found.version, task.component_ref) if found else ComponentRef("", "", "")
    return DagNode(name, ref, inputs, tuple(outputs_of(work, name)))


def component_of(work: Work, name: str) -> Found | None:
    """Find the component of a task once; None where it is told as a problem."""
    if name not in work.found:
        task = work.dag.tasks[name]
        usual = work.dag.conf.task.provider
        said = task.conf.get("provider") or usual
        result = work.catalogue.find(task.component_ref, str(said or ""), str(task.conf.get("version") or ""))
        if isinstance(result, str):
            at = "component_ref" if not said else "conf.provider"
            work.wrong(f"tasks.{name}.{at}", result, said or task.component_ref)
        work.found[name] = None if isinstance(result, str) else result
    return work.found[name]


def _runs_at(work: Work, name: str, found: Found | None) -> None:
    """Refuse a task that is to run at fewer parties than its component would here."""
    task = work.dag.tasks[name]
    if task.parties is None:
        return
    at = named(work, task.parties, f"tasks.{name}.parties")
    if found is None or found.component is None:
        return
    left_out = [p.label for p in work.parties if p.role in found.component.roles and p not in at]
    if left_out:
        rule = f"must name {', '.join(left_out)} too: component {task.component_ref} runs at all of its roles"
        work.wrong(f"tasks.{name}.parties", rule)


def inputs_of(work: Work, name: str, found: Found | None, readers: set[str]) -> Iterator[DagInput]:
    """Yield the outputs that a task takes; datasets go to the parties' own entries.

    In the order of the component's description, by which inputs here are told apart.
    """
    task = work.dag.tasks[name]
    place = {spec.name: i for i, spec in enumerate(found.component.inputs)} if found and found.component else {}
    for group, artifacts in (("data", task.inputs.data), ("model", task.inputs.model)):
        for key in sorted(artifacts, key=lambda k: place.get(k, len(place))):
            sources, at = artifacts[key], f"tasks.{name}.inputs.{group}.{key}"
            for channel in sources.task_output_artifact:
                if channel.producer_task in readers:
                    from_reader(work, name, channel, at)
                else:
                    yield _channel(work, channel, group, f"{at}.task_output_artifact")
            for channel in sources.data_warehouse:
                from_warehouse(work, name, channel, f"{at}.data_warehouse")
            for channel in sources.model_warehouse:
                from_model_warehouse(work, channel, f"{at}.model_warehouse")


def _channel(work: Work, channel: wire.Channel, group: str, at: str) -> DagInput:
    for part in ("producer_task", "output_artifact_key"):
        if not getattr(channel, part):
            work.wrong(f"{at}.{part}", "is required")
    producer = work.dag.tasks.get(channel.producer_task)
    if channel.producer_task and producer is None:
        work.wrong(f"{at}.producer_task", "must be a task of the job", channel.producer_task)
    elif producer is not None:
        for output in outputs_of(work, channel.producer_task):
            if channel.output_artifact_key in (output.key, _name_of(producer, output.key)):
                return DagInput(output.type, channel.producer_task, output.key)
    type_ = _type(channel.output_artifact_type_alias, group)
    return DagInput(type_, channel.producer_task, channel.output_artifact_key)


def _name_of(task: wire.TaskSpec, key: str) -> str:
    """Return the component's own name of an output that the flow calls otherwise."""
    groups = (task.outputs.data, task.outputs.model, task.outputs.metric) if task.outputs else ()
    pairs = ((name, spec) for produced in groups for name, specs in produced.items() for spec in specs)
    return next((name for name, spec in pairs if (spec.output_artifact_key_alias or name) == key), key)


def outputs_of(work: Work, name: str) -> Iterator[DagOutput]:
    """Yield the outputs of a task: those that it names, else all that its component's description declares."""
    task, found = work.dag.tasks[name], component_of(work, name)
    declared = found.component.outputs if found and found.component else ()
    if task.outputs is None:
        yield from (DagOutput(TYPE_OF[spec.group], spec.name) for spec in declared)
        return
    place = {spec.name: i for i, spec in enumerate(declared)}
    named = [
        (place.get(key, len(place)), _type(spec.output_artifact_type_alias, group), spec, key)
        for group in wire.GROUPS
        for key, specs in getattr(task.outputs, group).items()
        for spec in specs
    ]
    for _, type_, spec, key in sorted(named, key=lambda entry: entry[0]):
        yield DagOutput(type_, spec.output_artifact_key_alias or key)


def _type(alias: str, group: str) -> str:
    return TYPE_OF.get(alias or group, alias)
