"""Models: what a job that trains leaves at each party, and what a job that predicts asks for.

A job says by ``job_params.common.job_type`` which of the two it is; absent is train. A job that trains and ends
SUCCEEDED leaves one `PartyModel` per local party with an output of category model: named by ``model_id`` (given,
else the flow's id, else the job's) and a version (given, else the job's id), alike at every node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gateway.domain.dag import ComponentRef, Dag, DagNode, group
from gateway.domain.job import Job, NodeJob
from gateway.domain.problems import LARGEST_NAME, Problem, name_rule
from gateway.domain.run import Address, FileSum, LocalJob, Run
from gateway.domain.spec import CallState, Ending, JobSpec, NodeId, Party, data_location
from gateway.domain.states import Outcome, RunStatus

TRAIN, PREDICT = "train", "predict"
LONGEST_ID = 128
"""characters of a model's id and of a version"""
HOLD = timedelta(seconds=30)
"""how long the end of a successful training waits for nodes that have not confirmed, and so not saved, yet"""


@dataclass(frozen=True)
class ModelPart:
    """One output of category model of one task."""

    task: str
    component: ComponentRef
    key: str  # in the flow that trained it
    output: str  # in the component's description
    address: Address
    files: tuple[FileSum, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartyModel:
    """One party's part of a version of a model. Never changes."""

    model_id: str
    version: str
    party: Party
    parties: tuple[Party, ...]  # all parties of the job that trained it
    job_id: str
    flow_id: str
    created_at: datetime
    parts: tuple[ModelPart, ...] = ()
    imported: bool = False

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """What two copies of a model must have in common."""
        return tuple((p.task, p.key, p.output, str(p.component), p.files) for p in self.parts)


@dataclass(frozen=True)
class Kept:
    """A party's part of a model, and what operators have said of it."""

    model: PartyModel
    deployed_at: float | None = None  # seconds since the epoch
    granted: tuple[
        NodeId, ...
    ] = ()  # nodes that may use it though they were no party of its training


@dataclass(frozen=True)
class Named:
    """What a job says of models: the version that it makes, or predicts with."""

    job_type: str
    model_id: str
    version: str

    @property
    def predicts(self) -> bool:
        """Whether the job uses a model; else it trains one."""
        return self.job_type == PREDICT


def named(spec: JobSpec) -> Named:
    """Return which version a job makes or uses."""
    asked = _asked(spec)
    given = asked.get("model_id")
    fallback = spec.flow_id if not id_rule(spec.flow_id) else spec.job_id
    return Named(
        str(asked.get("job_type", TRAIN)),
        str(fallback if given is None else given),
        str(asked.get("model_version", spec.job_id)),
    )


def _asked(spec: JobSpec) -> dict[str, Any]:
    """Return what a job says of models; null and an empty text say nothing."""
    keys = ("job_type", "model_id", "model_version")
    return {key: spec.common[key] for key in keys if spec.common.get(key) not in (None, "")}


def id_rule(text: str) -> str | None:
    """Return the rule that a model's id or version breaks; it is part of paths."""
    if len(text) > LONGEST_ID:
        return f"must not be longer than {LONGEST_ID} characters"
    return name_rule(text, LARGEST_NAME)


def makes_model(spec: JobSpec) -> bool:
    """Whether the job leaves a model if it succeeds."""
    return not named(spec).predicts and any(model_keys(node) for node in spec.dag.nodes)


def model_keys(node: DagNode) -> tuple[str, ...]:
    """Return the keys of a task's outputs that are models."""
    return tuple(output.key for output in node.outputs if group(output.type) == "model")


# ---------------------------------------------------------------- from a training to a prediction


class Change(NamedTuple):
    """What a prediction has that differs from its training: a path of the job's body, before and now."""

    path: str
    before: Any
    after: Any


def prediction(
    training: JobSpec,
    model_id: str,
    version: str,
    datasets: Mapping[str, str],
) -> tuple[JobSpec, list[Change], list[Problem]]:
    """Return the job that predicts with what a training left: its flow and parameters without outputs of models.

    ``datasets``: party such as guest.0 -> id of the table that takes the place of the one it trained with. Id and
    trace are still those of the training.
    """
    changes: list[Change] = []
    common = {
        **training.common,
        "job_type": PREDICT,
        "model_id": model_id,
        "model_version": version,
    }
    for key in ("job_type", "model_id", "model_version"):
        changes.append(
            Change(f"config.job_params.common.{key}", training.common.get(key), common[key])
        )
    dag, outputs = _without_models(training.dag)
    params, tables, problems = _with_datasets(training, datasets)
    spec = replace(
        training,
        dag=dag,
        job_params={**training.job_params, "common": common},
        task_params=params,
        old_job_id="",
        unknown_fields=(),
        bundles={},
    )
    return spec, [*changes, *outputs, *tables], problems


def _without_models(dag: Dag) -> tuple[Dag, list[Change]]:
    gone = {(node.name, key) for node in dag.nodes for key in model_keys(node)}
    nodes, changes = [], []
    for at, node in enumerate(dag.nodes):
        outputs = tuple(o for o in node.outputs if (node.name, o.key) not in gone)
        inputs = tuple(i for i in node.inputs if (i.task, i.key) not in gone)
        for what, before, after in (
            ("output", node.outputs, outputs),
            ("input", node.inputs, inputs),
        ):
            if before != after:
                keys = [[one.key for one in some] for some in (before, after)]
                changes.append(Change(f"dag.components[{at}].{what}", *keys))
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    return replace(dag, nodes=tuple(nodes)), changes


def _with_datasets(
    training: JobSpec, datasets: Mapping[str, str]
) -> tuple[dict[str, Any], list[Change], list[Problem]]:
    """Put other tables where the training's parties had theirs."""
    params = training.one_by_one(training.task_params)
    changes, problems, known = [], [], set()
    for party in training.parties:
        role, index = params.get(party.role), str(party.index)
        own = role.get(index) if isinstance(role, Mapping) else None
        for node in training.dag.nodes:
            if (old := data_location(params, party, node.name)) is None or not isinstance(
                own, Mapping
            ):
                continue
            known.add(party.label)
            if (new := datasets.get(party.label)) is None:
                problems.append(
                    Problem(
                        f"datasets.{party.label}", "is required: it trained with a table", dict(old)
                    )
                )
                continue
            path = f"config.task_params.{party.role}.{index}.{node.name}"
            changes.append(Change(path, dict(old), {"dataset_id": new}))
            kept = {
                k: v
                for k, v in own[node.name].items()
                if k not in ("dataset_id", "namespace", "name")
            }
            own = {**own, node.name: {**kept, "dataset_id": new}}
            params[party.role] = {**params[party.role], index: own}
    for label in datasets:
        if label not in known:
            rule = f"names no party that trained with a table; those are {', '.join(sorted(known))}"
            problems.append(Problem(f"datasets.{label}", rule))
    return params, changes, problems


# ---------------------------------------------------------------- at a participating node


def to_seal(
    spec: JobSpec,
    node: DagNode,
    output_keys: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the outputs of a run, by their names in the description, that become part of a model."""
    if named(spec).predicts:
        return ()
    return tuple(output_keys[key] for key in model_keys(node) if key in output_keys)


def saves(local: LocalJob, ending: Ending | None) -> bool:
    """Whether the end of the job here is a success that leaves a model.

    Where the scheduling node does not say how the job ended: if all runs here succeeded, and every task that
    nothing follows ran here.
    """
    if named(local.spec).predicts or not any(run.files for run in local.standing()):
        return False
    if ending is not None:
        return ending.outcome is Outcome.SUCCEEDED
    latest = {(run.task_name, run.party.label): run for run in local.standing()}
    ran = {run.task_name for run in local.standing()}
    return (
        all(run.status is RunStatus.SUCCESS for run in latest.values())
        and _last(local.spec.dag) <= ran
    )


def _last(dag: Dag) -> set[str]:
    needed = {i.task for node in dag.nodes for i in node.inputs}
    return {node.name for node in dag.nodes} - needed


def left_by(local: LocalJob) -> list[PartyModel]:
    """Return the models of a job that has succeeded here, one per party that has a part of it.

    What a task left that was taken over from an older job is a part of this one's model too.
    """
    name = named(local.spec)
    found = []
    for party in local.spec.parties_at(local.node):
        parts: dict[tuple[str, str], ModelPart] = {}
        for run in local.standing():
            if run.party == party and run.status is RunStatus.SUCCESS:
                parts |= {(run.task_name, part.key): part for part in _parts(run)}
        if parts:
            found.append(
                PartyModel(
                    name.model_id,
                    name.version,
                    party,
                    local.spec.parties,
                    local.id,
                    local.spec.flow_id,
                    local.ended_at or local.created_at,
                    tuple(parts.values()),
                )
            )
    return found


def _parts(run: Run) -> list[ModelPart]:
    found = []
    for key, output in run.output_keys.items():
        files = tuple(replace(f, output="") for f in run.files if f.output == output)
        if files:
            found.append(
                ModelPart(
                    run.task_name,
                    run.component,
                    key,
                    output,
                    run.outputs[output],
                    files,
                    dict(run.parameters),
                )
            )
    return found


# ---------------------------------------------------------------- predicting


def part_for(model: PartyModel, node: DagNode) -> tuple[ModelPart, ...]:
    """Return the parts that a task of a predicting flow takes.

    Those of the task of the same name; else those of the one task that has the same component.
    """
    same = tuple(p for p in model.parts if p.task == node.name)
    if same:
        return same
    ref = node.component
    alike = [
        p
        for p in model.parts
        if (p.component.provider, p.component.name) == (ref.provider, ref.name)
    ]
    return tuple(alike) if len({p.task for p in alike}) == 1 else ()


def not_allowed(
    spec: JobSpec,
    model: PartyModel,
    granted: Sequence[NodeId],
) -> list[NodeId]:
    """Return who submitted, schedules or takes part in a job and may not use a model: no party, not granted it.

    The scheduling node counts: that another one is the initiator is only its word.
    """
    may = {p.node for p in model.parties} | set(granted)
    return [
        node
        for node in dict.fromkeys((spec.initiator, spec.scheduler, *spec.nodes))
        if node not in may
    ]


# ---------------------------------------------------------------- at the scheduling node


def may_conclude(job: Job, at: datetime) -> bool:
    """Whether a job's end may be reported: a successful training only once every node has saved its model.

    A node saves it before it confirms the stop. One that does not answer is waited for no longer than `HOLD`.
    """
    ending = job.ending
    if ending is None or ending.outcome is not Outcome.SUCCEEDED or not makes_model(job.spec):
        return True
    return at >= ending.at + HOLD or all(
        node.stop.completed or not _has_it(node) for node in job.nodes.values()
    )


def _has_it(node: NodeJob) -> bool:
    """Whether a node takes part: the job was created there, and does not run without it."""
    return node.excluded is None and node.create.state not in (CallState.IDLE, CallState.REFUSED)
