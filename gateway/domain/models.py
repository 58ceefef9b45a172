"""Models: the results of a training job at each party, which a predicting job uses.

``job_params.common.job_type`` is train (the default) or predict. A training job that ends
SUCCEEDED leaves one `PartyModel` per local party with an output that is a model. The model's id and
version are the same at every node. The id is set by ``model_id``, by default the flow's id, or
the job's id if the flow's cannot be part of a path. The version is by default the job's id.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput, group
from gateway.domain.job import Job, NodeJob
from gateway.domain.problems import LARGEST_NAME, Problem, name_rule
from gateway.domain.run import Address, FileSum, LocalJob, Run, latest_runs
from gateway.domain.spec import CallState, Ending, JobSpec, NodeId, Party, data_location
from gateway.domain.states import Outcome, RunStatus

TRAIN = "train"
PREDICT = "predict"
LONGEST_ID = 128  # characters of a model's id and of a version
# Longest time for which the end of a successful training waits for nodes that have not confirmed
# the stop, and so may not have saved the model.
SAVE_TIMEOUT = timedelta(seconds=30)
# Names of the settings about models, in the order of the values that `prediction` pairs with them.
_MODEL_SETTINGS = ("job_type", "model_id", "model_version")
# Parameters that locate a dataset.
_LOCATION_KEYS = ("dataset_id", "namespace", "name")


@dataclass(frozen=True)
class ModelPart:
    """One output of one task: a model, or a part of one."""

    task: str
    component: ComponentRef
    key: str  # the output's key in the flow that trained it
    output: str  # the output's name in the component's description
    address: Address
    files: tuple[FileSum, ...] = ()  # fingerprints of its files
    parameters: Mapping[str, Any] = field(default_factory=dict)  # those of the run that wrote it


@dataclass(frozen=True)
class PartyModel:
    """The model of one party, in one version: it consists of outputs of tasks. Never changes."""

    model_id: str
    version: str
    party: Party
    parties: tuple[Party, ...]  # all parties of the job that trained it
    job_id: str
    flow_id: str
    created_at: datetime
    parts: tuple[ModelPart, ...] = ()
    imported: bool = False  # whether it came from an archive, not from a job here

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """The values that are equal in two copies of a model.

        These are the parts with their components and files. Addresses and parameters do not count.
        """
        values = []
        for part in self.parts:
            values.append((part.task, part.key, part.output, str(part.component), part.files))
        return tuple(values)


@dataclass(frozen=True)
class Kept:
    """A `PartyModel` as it is stored here, with the decisions of operators."""

    model: PartyModel
    deployed_at: float | None = None  # seconds since the epoch; None: not deployed
    # nodes without a party in the training that may use the model, too
    granted: tuple[NodeId, ...] = ()


@dataclass(frozen=True)
class ModelVersion:
    """The version of a model that a job makes, or predicts with."""

    job_type: str
    model_id: str
    version: str

    @property
    def predicts(self) -> bool:
        """Whether the job predicts with a model; any other job trains.

        A job without a type trains.
        """
        return self.job_type == PREDICT


def model_version(spec: JobSpec) -> ModelVersion:
    """Return the version of a model that a job makes or uses.

    The docstring of this module has the defaults of absent settings.
    """
    settings = _model_settings(spec)
    default_id = spec.flow_id
    if id_rule(spec.flow_id) is not None:
        default_id = spec.job_id
    return ModelVersion(
        job_type=str(settings.get("job_type", TRAIN)),
        model_id=str(settings.get("model_id", default_id)),
        version=str(settings.get("model_version", spec.job_id)),
    )


def _model_settings(spec: JobSpec) -> dict[str, Any]:
    """Return a job's settings about models; null and an empty text count as absent."""
    settings = {}
    for key in _MODEL_SETTINGS:
        value = spec.common.get(key)
        if value not in (None, ""):
            settings[key] = value
    return settings


def id_rule(text: str) -> str | None:
    """Return the rule that a model's id or version violates; None for a valid one.

    Both are parts of paths, and have at most `LONGEST_ID` characters.
    """
    if len(text) > LONGEST_ID:
        return f"must not be longer than {LONGEST_ID} characters"
    return name_rule(text, LARGEST_NAME)


def makes_model(spec: JobSpec) -> bool:
    """Return whether the job leaves a model if it succeeds.

    It does if it trains, and one of its tasks has an output that is a model.
    """
    if model_version(spec).predicts:
        return False
    return any(model_keys(node) for node in spec.dag.nodes)


def model_keys(node: DagNode) -> tuple[str, ...]:
    """Return the keys of a task's outputs that are models.

    Empty for a task without a model, such as one that only writes tables.
    """
    return tuple(output.key for output in node.outputs if group(output.type) == "model")


# ---------------------------------------------------------------- from a training to a prediction


class Change(NamedTuple):
    """A difference of a prediction from its training, with its path in the job's body."""

    path: str
    before: Any
    after: Any


def prediction(
    training: JobSpec,
    model_id: str,
    version: str,
    datasets: Mapping[str, str],
) -> tuple[JobSpec, list[Change], list[Problem]]:
    """Return the job that predicts with a model, its differences from the training, and problems.

    The job has the training's flow without outputs of models, and the training's parameters, id and
    trace. ``datasets`` are the ids of the tables to predict on, by party such as guest.0.
    """
    settings = dict(zip(_MODEL_SETTINGS, (PREDICT, model_id, version), strict=True))
    changes: list[Change] = []
    for key, value in settings.items():
        path = f"config.job_params.common.{key}"
        changes.append(Change(path, training.common.get(key), value))
    dag, dag_changes = _without_models(training.dag)
    params, table_changes, problems = _with_datasets(training, datasets)
    spec = replace(
        training,
        dag=dag,
        job_params={**training.job_params, "common": {**training.common, **settings}},
        task_params=params,
        old_job_id="",
        unknown_fields=(),
        bundles={},  # signed for the training, not for this job
    )
    return spec, [*changes, *dag_changes, *table_changes], problems


def _without_models(dag: Dag) -> tuple[Dag, list[Change]]:
    """Return a flow without models, and the differences.

    Outputs that are models are left out, and the inputs that take them.
    """
    models: set[tuple[str, str]] = set()
    for node in dag.nodes:
        models.update((node.name, key) for key in model_keys(node))
    nodes = []
    changes: list[Change] = []
    for number, node in enumerate(dag.nodes):
        outputs = tuple(item for item in node.outputs if (node.name, item.key) not in models)
        inputs = tuple(item for item in node.inputs if (item.task, item.key) not in models)
        changed_node = replace(
            node,
            inputs=inputs,
            outputs=outputs,
        )
        changes += _node_changes(node, changed_node, f"dag.components[{number}]")
        nodes.append(changed_node)
    return replace(dag, nodes=tuple(nodes)), changes


def _node_changes(
    before: DagNode,
    after: DagNode,
    path: str,
) -> Iterator[Change]:
    """Yield the differences of a task's outputs and inputs, by their keys."""
    if after.outputs != before.outputs:
        yield Change(
            f"{path}.output",
            _keys(before.outputs),
            _keys(after.outputs),
        )
    if after.inputs != before.inputs:
        yield Change(
            f"{path}.input",
            _keys(before.inputs),
            _keys(after.inputs),
        )


def _keys(items: Sequence[DagInput | DagOutput]) -> list[str]:
    """Return the keys of inputs or outputs."""
    return [item.key for item in items]


def _with_datasets(
    training: JobSpec, datasets: Mapping[str, str]
) -> tuple[dict[str, Any], list[Change], list[Problem]]:
    """Return the training's parameters with other tables, the differences, and problems.

    ``datasets`` must have a table for each party that trained with one, and for no other party.
    """
    params = training.with_single_indices(training.task_params)
    changes = []
    problems = []
    labels = set()
    for party, task, location in _tables(training, params):
        labels.add(party.label)
        dataset_id = datasets.get(party.label)
        if dataset_id is None:
            rule = "is required: it trained with a table"
            problems.append(Problem(f"datasets.{party.label}", rule, dict(location)))
            continue
        path = f"config.task_params.{party.role}.{party.index}.{task}"
        changes.append(Change(path, dict(location), {"dataset_id": dataset_id}))
        _set_dataset(params, party, task, dataset_id)
    problems += _superfluous_datasets(datasets, labels)
    return params, changes, problems


def _set_dataset(
    params: dict[str, Any],
    party: Party,
    task: str,
    dataset_id: str,
) -> None:
    """Replace the table of a party's task by the dataset.

    ``params`` has one entry per index of a role. Objects inside it are copied and not changed, as
    the training shares them.
    """
    index = str(party.index)
    by_index = params[party.role]
    by_task = by_index[index]
    entry = _with_dataset(by_task[task], dataset_id)
    changed_tasks = {**by_task, task: entry}
    params[party.role] = {**by_index, index: changed_tasks}


def _superfluous_datasets(
    datasets: Iterable[str],
    labels: Collection[str],
) -> Iterator[Problem]:
    """Find datasets for parties that trained without a table.

    ``labels`` are the parties that trained with one.
    """
    names = ", ".join(sorted(labels))
    rule = f"names no party that trained with a table; those are {names}"
    for label in datasets:
        if label not in labels:
            yield Problem(f"datasets.{label}", rule)


def _tables(
    training: JobSpec, params: Mapping[str, Any]
) -> list[tuple[Party, str, Mapping[str, str]]]:
    """Return the tables of a training: party, task, and the table's id or names.

    ``params`` are the training's parameters with one entry per index.
    """
    tables = []
    for party in training.parties:
        for node in training.dag.nodes:
            location = data_location(params, party, node.name)
            if location is None:
                continue
            # false only for a role named ``common``: tasks, not indices, are the keys of that entry
            if str(party.index) in params[party.role]:
                tables.append((party, node.name, location))
    return tables


def _with_dataset(
    entry: Mapping[str, Any],
    dataset_id: str,
) -> dict[str, Any]:
    """Return a task's parameters with another table in place of the present one."""
    parameters = {key: value for key, value in entry.items() if key not in _LOCATION_KEYS}
    return {**parameters, "dataset_id": dataset_id}


# ---------------------------------------------------------------- at a participating node


def outputs_to_fingerprint(
    spec: JobSpec,
    node: DagNode,
    output_keys: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the outputs of a run that become part of a model; empty in a predicting job.

    The result has the outputs' names in the component's description; ``output_keys`` maps keys in
    the flow to these names.
    """
    if model_version(spec).predicts:
        return ()
    return tuple(output_keys[key] for key in model_keys(node) if key in output_keys)


def leaves_model(local: LocalJob, ending: Ending | None) -> bool:
    """Return whether the end of the job here is a success that leaves a model.

    ``ending`` is None if the scheduling node has reported none. Then the job counts as a success if
    all runs here succeeded and every last task of the flow ran here.
    """
    runs = local.runs_that_count()
    has_model = any(run.sealing.files for run in runs)
    if model_version(local.spec).predicts or not has_model:
        return False
    if ending is None:
        return _has_succeeded_here(local.spec.dag, runs)
    return ending.outcome is Outcome.SUCCEEDED


def _has_succeeded_here(dag: Dag, runs: Sequence[Run]) -> bool:
    """Return whether all latest runs succeeded, and the last tasks of the flow are among them.

    The last tasks are those whose outputs no other task takes.
    """
    if any(run.status is not RunStatus.SUCCESS for run in latest_runs(runs)):
        return False
    last_tasks = {node.name for node in dag.nodes}
    for node in dag.nodes:
        last_tasks -= node.upstream
    return last_tasks <= {run.task_name for run in runs}


def models_of(local: LocalJob) -> list[PartyModel]:
    """Return the models of a job that has succeeded here, one per party with a part of it.

    Outputs of tasks that were inherited from an earlier job are parts of this job's model, too.
    """
    name = model_version(local.spec)
    models = []
    for party in local.spec.parties_at(local.node):
        parts = _parts_of(local, party)
        if not parts:
            continue
        model = PartyModel(
            model_id=name.model_id,
            version=name.version,
            party=party,
            parties=local.spec.parties,
            job_id=local.id,
            flow_id=local.spec.flow_id,
            created_at=local.ended_at or local.created_at,
            parts=parts,
        )
        models.append(model)
    return models


def _parts_of(
    local: LocalJob,
    party: Party,
) -> tuple[ModelPart, ...]:
    """Return the parts of a party's model; of several successful runs of a task the last counts.

    Empty for a party without a model.
    """
    parts: dict[tuple[str, str], ModelPart] = {}
    for run in local.runs_that_count():
        if run.party != party or run.status is not RunStatus.SUCCESS:
            continue
        for part in _parts_in(run):
            parts[part.task, part.key] = part
    return tuple(parts.values())


def _parts_in(run: Run) -> Iterator[ModelPart]:
    """Yield the outputs of a run whose files were fingerprinted: the parts of its party's model."""
    data = run.data
    sealed_files = run.sealing.files
    for key, output in data.output_keys.items():
        # the part names its output, so its files need not
        files = tuple(replace(file, output="") for file in sealed_files if file.output == output)
        if files:
            yield ModelPart(
                task=run.task_name,
                component=run.software.component,
                key=key,
                output=output,
                address=data.outputs[output],
                files=files,
                parameters=dict(data.parameters),
            )


# ---------------------------------------------------------------- predicting


def parts_for(
    model: PartyModel,
    node: DagNode,
) -> tuple[ModelPart, ...]:
    """Return the parts of a model that a task of a predicting flow takes; empty if none fits.

    They come from the task with the same name, otherwise from the only task with the same component
    in any version.
    """
    by_name = []
    by_component = []
    for part in model.parts:
        if part.task == node.name:
            by_name.append(part)
        if _is_alike(part.component, node.component):
            by_component.append(part)
    tasks = {part.task for part in by_component}
    if by_name:
        return tuple(by_name)
    if len(tasks) == 1:
        return tuple(by_component)
    return ()


def _is_alike(left: ComponentRef, right: ComponentRef) -> bool:
    """Return whether two components are the same, apart from their version.

    They have the same provider and the same name.
    """
    return (left.provider, left.name) == (right.provider, right.name)


def not_allowed(
    spec: JobSpec,
    model: PartyModel,
    granted: Sequence[NodeId],
) -> list[NodeId]:
    """Return the nodes of a job that may not use a model; empty if all may.

    Allowed are the nodes of its training's parties, and those it was ``granted`` to. Initiator and
    scheduling node must both be allowed: the scheduling node names the initiator, and could name an
    allowed node that does not know of the job.
    """
    allowed = {party.node for party in model.parties}
    allowed.update(granted)
    involved = dict.fromkeys((spec.initiator, spec.scheduler, *spec.nodes))  # each node once
    return [node for node in involved if node not in allowed]


# ---------------------------------------------------------------- at the scheduling node


def may_conclude(job: Job, at: datetime) -> bool:
    """Return whether the end of a job may be reported.

    A successful training has to wait until every node has saved its model. A node saves the model
    before it confirms the stop. For nodes that do not confirm the stop, the training waits no
    longer than `SAVE_TIMEOUT`. The end of any other job may be reported.
    """
    ending = job.ending
    if ending is None or ending.outcome is not Outcome.SUCCEEDED:
        return True
    if at >= ending.at + SAVE_TIMEOUT or not makes_model(job.spec):
        return True
    return all(node.stop.completed for node in job.nodes.values() if _takes_part(node))


def _takes_part(node: NodeJob) -> bool:
    """Return whether the job was created at a node, and has not excluded that node since.

    A creation without a response counts, as the job may exist there.
    """
    is_uncreated = node.create.state in (CallState.IDLE, CallState.REFUSED)
    return node.excluded is None and not is_uncreated
