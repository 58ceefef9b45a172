"""Translates FATE's job description into a job of this gateway, or reports every problem.

FATE can express jobs that this gateway cannot run: with a task at fewer parties than its component
has roles, or with an order of tasks without data. Such a job is refused rather than run
differently. FATE's component ``reader``, which stands for a dataset, does not become a task here:
tasks that take a reader's output get the dataset that the reader names.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from adapter.body import without_nulls
from adapter.fate.dag import wire
from adapter.fate.dag.components import ResolvedComponent, UnresolvedComponent, resolve_component
from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.errors import Invalid
from provider_registry.model import DataSpec
from provider_registry.registry import Registry

ROOT = "dag_schema.dag"
READER = "reader"  # component of FATE that stands for a dataset
# FATE's groups of artefacts -> types of inputs and outputs here.
TYPE_OF: Mapping[str, str] = {
    "data": "dataset",
    "model": "model",
    "metric": "report",
}
# Settings of a job with the same name and meaning here. ``engine`` is among them so that a request
# for an engine of FATE's is refused explicitly.
SAME_SETTINGS = (
    "sync_type",
    "priority",
    "auto_retries",
    "auto_retry_delay",
    "task_parallelism",
    "engine",
)
# FATE's stages. Only predict has a meaning here. All are listed so that any other word is refused:
# if it was accepted, a job with a misspelt predict would train.
STAGES = ("train", "predict", "default", "cross_validation")
# Settings of a job or a task that steer FATE's own engines; reported as warnings.
UNUSED_SETTINGS = (
    "cores",
    "computing_partitions",
    "federated_status_collect_type",
    "engine_run",
    "launcher_name",
)
# Values of a setting that mean the same as its absence
_NOT_SET: tuple[Any, ...] = (
    None,
    {},
    "",
    "default",
)
# Settings of a single task with the same name and meaning here
_TASK_SETTINGS = ("timeout", "auto_retries", "auto_retry_delay")


def job_spec(
    schema: wire.DagSchema,
    registry: Registry,
    job_id: str,
    node: NodeId,
    scheduler: NodeId,
    trace_id: str,
) -> tuple[JobSpec, list[str]]:
    """Return the described job and warnings about ignored settings.

    The initiator is ``node`` unless the description names one, and the scheduling node is
    ``scheduler`` unless the description names one. The description's kind is the protocol that runs
    the job. Raises `Invalid` with every problem.
    """
    conf = schema.dag.conf
    translation = _Translation(schema.dag, registry)
    nodes = translation.tasks()
    job_params = translation.job_params()
    if translation.problems:
        # Several tasks may refer to the same place, which is reported only the first time.
        raise Invalid({str(problem): problem for problem in translation.problems}.values())
    initiator, initiator_role = _initiator(conf, translation.parties, node)
    old_job_id = conf.extra.old_job_id
    if conf.inheritance:
        old_job_id = conf.inheritance.job_id
    spec = JobSpec(
        job_id=job_id,
        flow_id=conf.extra.flow_id,
        dag=Dag(nodes),
        parties=translation.parties,
        initiator=initiator,
        initiator_role=initiator_role,
        scheduler=conf.scheduler_party_id or scheduler,
        protocol=schema.kind,
        trace_id=trace_id,
        job_params=job_params,
        task_params=translation.task_params,
        old_job_id=old_job_id,
    )
    return spec, translation.warnings


def _initiator(
    conf: wire.JobConf,
    parties: Iterable[Party],
    node: NodeId,
) -> tuple[NodeId, str]:
    """Return the job's initiator and its role.

    If the description names no role, it is the role of the initiator's first party, or empty if
    the initiator has none.
    """
    initiator = conf.extra.initiator
    if initiator:
        return initiator.party_id, initiator.role
    node = conf.initiator_party_id or node
    roles = (party.role for party in parties if party.node == node)
    return node, next(roles, "")


class _Translation:
    """A translation in progress, with the parameters, problems and warnings collected so far.

    Methods named ``_take_…`` add to the job's parameters. ``path`` is the place of a part of the
    description below `ROOT`, for problems.
    """

    def __init__(self, dag: wire.DagSpec, registry: Registry) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.parties = tuple(_numbered_parties(dag.parties))
        # Role (or "common") -> index of a party -> task -> parameters; "common" has no index.
        self.task_params: dict[str, Any] = {}
        self._common: dict[str, Any] = {}  # settings of the job for all parties
        self._dag = dag
        self._registry = registry
        self._readers = {name for name, task in dag.tasks.items() if task.component_ref == READER}
        self._names = [name for name in dag.tasks if name not in self._readers]
        self._components = {name: self._component(name) for name in self._names}

    def tasks(self) -> tuple[DagNode, ...]:
        """Return the tasks; their settings and parameters are added to the job's."""
        return tuple(self._task(name) for name in self._names)

    def job_params(self) -> dict[str, Any]:
        """Return the job's settings: for all parties, and for single parties."""
        conf = self._dag.conf
        further = conf.model_extra or {}  # settings that `wire.JobConf` has no field for
        self._common |= _present(further, SAME_SETTINGS)
        if conf.task.timeout is not None:
            self._common["task_timeout"] = conf.task.timeout
        if conf.inheritance and conf.inheritance.task_list:
            self._common["inherit"] = conf.inheritance.task_list
        self._take_model(conf)
        self._take_stage(self._dag.stage)
        self._warn_of_unused(further, "conf")
        self._warn_of_unused(conf.task.model_extra or {}, "conf.task")
        params: dict[str, Any] = {"common": self._common}
        for site, party_tasks in self._dag.party_tasks.items():
            self._take_party_tasks(params, party_tasks, f"party_tasks.{site}")
        return params

    def _take_stage(self, stage: str) -> None:
        """Make the job predict in the stage predict; report an unknown stage."""
        self._check_stage("stage", stage)
        if stage == "predict":
            self._common.setdefault("job_type", "predict")

    def _take_model(self, conf: wire.JobConf) -> None:
        """Make the job predict with the model that ``model_warehouse`` names.

        Without that setting, take the id and the version of the model that the job trains.
        """
        warehouse = conf.model_warehouse
        if warehouse:
            self._predict_with(warehouse.model_id, warehouse.model_version, "conf.model_warehouse")
            return
        if conf.model_id:
            self._common.setdefault("model_id", conf.model_id)
        if conf.model_version:
            self._common.setdefault("model_version", conf.model_version)

    def _take_party_tasks(
        self,
        params: dict[str, Any],
        party_tasks: wire.PartyTasks,
        path: str,
    ) -> None:
        """Add the settings and parameters that only some parties get."""
        parties = self._parties_of(party_tasks.parties, f"{path}.parties")
        if parties:  # otherwise the entry adds nothing, whatever tasks it names
            self._check_tasks_exist(party_tasks, path)
        settings = without_nulls(party_tasks.conf)
        for party in parties:
            if settings:
                of_role = params.setdefault(party.role, {})
                of_role.setdefault(str(party.index), {}).update(settings)
            self._take_params_at(party, party_tasks)

    def _take_params_at(self, party: Party, party_tasks: wire.PartyTasks) -> None:
        """Add the tasks' parameters at one party.

        Readers are no tasks of the job; `_reader_params` reads their parameters.
        """
        for name, task in party_tasks.tasks.items():
            if name in self._names and task.parameters:
                self._params_of(party, name).update(task.parameters)

    def _check_tasks_exist(self, party_tasks: wire.PartyTasks, path: str) -> None:
        """Report each entry of ``party_tasks`` for a task that the job does not have."""
        for name in party_tasks.tasks:
            if name not in self._dag.tasks:
                self._add_problem(f"{path}.tasks.{name}", "must be a task of the job", name)

    def _component(self, name: str) -> ResolvedComponent | None:
        """Return a task's component; None, with a problem, if it cannot be resolved."""
        task = self._dag.tasks[name]
        provider = str(task.conf.get("provider") or self._dag.conf.task.provider or "")
        version = str(task.conf.get("version") or "")
        try:
            return resolve_component(self._registry, task.component_ref, provider, version)
        except UnresolvedComponent as error:
            place = "component_ref"
            value = task.component_ref
            if provider:
                place = "conf.provider"
                value = provider
            self._add_problem(f"tasks.{name}.{place}", str(error), value)
            return None

    def _task(self, name: str) -> DagNode:
        """Return a task; its settings and parameters are added to the job's."""
        task = self._dag.tasks[name]
        path = f"tasks.{name}"
        component = self._components[name]
        self._check_parties(task, component, f"{path}.parties")
        inputs = self._inputs(name, component)
        self._check_dependencies(task, inputs, path)
        self._take_task_params(name, task)
        self._warn_of_unused(task.conf, f"{path}.conf")
        self._check_stage(f"{path}.stage", task.stage)
        ref = ComponentRef("", "", "")  # of an unresolved component: the job is refused
        if component is not None:
            ref = ComponentRef(component.provider, component.version, task.component_ref)
        return DagNode(
            name,
            ref,
            tuple(inputs),
            tuple(self._outputs(name)),
        )

    def _check_parties(
        self,
        task: wire.TaskSpec,
        component: ResolvedComponent | None,
        path: str,
    ) -> None:
        """Report parties of the component's roles at which the task does not run."""
        runs_at = self._parties_of(task.parties, path)  # also reports parties not in the job
        if component is None or component.description is None:
            return
        roles = component.description.roles
        missing = []
        for party in self.parties:
            if party.role in roles and party not in runs_at:
                missing.append(party.label)
        if missing:
            rule = (
                f"must name {', '.join(missing)} too: component {task.component_ref} runs at all "
                "of its roles"
            )
            self._add_problem(path, rule)

    def _check_dependencies(
        self,
        task: wire.TaskSpec,
        inputs: Iterable[DagInput],
        path: str,
    ) -> None:
        """Report predecessors from which the task takes no data, except for readers."""
        sources = {task_input.task for task_input in inputs} | self._readers
        for i, predecessor in enumerate(task.dependent_tasks):
            if predecessor not in sources:
                rule = (
                    "must be a task whose output is an input here: this gateway keeps no order "
                    "without data"
                )
                self._add_problem(f"{path}.dependent_tasks[{i}]", rule, predecessor)

    def _take_task_params(self, name: str, task: wire.TaskSpec) -> None:
        """Add a task's parameters and settings to the job's."""
        if task.parameters:
            self.task_params.setdefault("common", {})[name] = task.parameters
        settings = _present(task.conf, _TASK_SETTINGS)
        if settings:
            self._common.setdefault("tasks", {})[name] = settings

    def _inputs(
        self,
        name: str,
        component: ResolvedComponent | None,
    ) -> list[DagInput]:
        """Return the outputs of other tasks that a task takes.

        They are in the order of the component's description: this order distinguishes several
        inputs that come from the same task. Datasets are added to the parties' parameters instead.
        """
        position: dict[str, int] = {}
        if component and component.description:
            for i, spec in enumerate(component.description.inputs):
                position[spec.name] = i

        def by_position(key: str) -> int:
            return position.get(key, len(position))

        sources = self._dag.tasks[name].inputs
        artifacts_by_group = {
            "data": sources.data,
            "model": sources.model,
        }
        inputs = []
        for group, artifacts in artifacts_by_group.items():
            for key in sorted(artifacts, key=by_position):
                path = f"tasks.{name}.inputs.{group}.{key}"
                inputs += self._inputs_of_artifact(name, group, artifacts[key], path)
        return inputs

    def _inputs_of_artifact(
        self,
        name: str,
        group: str,
        sources: wire.Sources,
        path: str,
    ) -> list[DagInput]:
        """Return the outputs of other tasks that one input takes.

        The input's datasets and stored models are added to the job's parameters instead.
        """
        inputs = []
        for channel in sources.task_output_artifact:
            if channel.producer_task in self._readers:
                self._take_reader(name, channel, path)
            else:
                inputs.append(self._input(channel, group, f"{path}.task_output_artifact"))
        for channel in sources.data_warehouse:
            self._take_dataset(name, channel, f"{path}.data_warehouse")
        for channel in sources.model_warehouse:
            self._take_stored_model(channel, f"{path}.model_warehouse")
        return inputs

    def _input(
        self,
        channel: wire.Channel,
        group: str,
        path: str,
    ) -> DagInput:
        """Return the output that a channel takes.

        The channel may name the output by its alias in the flow or by the component's name for it.
        An output that does not exist is returned as it is named; the check of the flow reports it.
        """
        producer = channel.producer_task
        key = channel.output_artifact_key
        self._check_channel(channel, path)
        if producer in self._dag.tasks:
            component_names = self._component_names(producer)
            for output in self._outputs(producer):
                if key in (output.key, component_names.get(output.key)):
                    return DagInput(output.type, producer, output.key)
        return DagInput(_type(channel.output_artifact_type_alias, group), producer, key)

    def _check_channel(self, channel: wire.Channel, path: str) -> None:
        """Report a channel without a task of the job, or without an output."""
        producer = channel.producer_task
        if not producer:
            self._add_problem(f"{path}.producer_task", "is required")
        if not channel.output_artifact_key:
            self._add_problem(f"{path}.output_artifact_key", "is required")
        if producer and producer not in self._dag.tasks:
            self._add_problem(f"{path}.producer_task", "must be a task of the job", producer)

    def _component_names(self, name: str) -> dict[str, str]:
        """Return, for each output's name in the flow, the component's name of the same output."""
        names: dict[str, str] = {}
        outputs = self._dag.tasks[name].outputs
        if outputs is None:
            return names
        for _, component_name, spec in _specs_of(outputs):
            flow_name = spec.output_artifact_key_alias or component_name
            names.setdefault(flow_name, component_name)
        return names

    def _outputs(self, name: str) -> list[DagOutput]:
        """Return a task's outputs in the order of its component's description.

        A task without a list of outputs has all outputs of its component.
        """
        declared = self._declared_outputs(name)
        outputs = self._dag.tasks[name].outputs
        if outputs is None:
            return [DagOutput(TYPE_OF[spec.group], spec.name) for spec in declared]
        position = {spec.name: i for i, spec in enumerate(declared)}
        positioned = []
        for group, key, spec in _specs_of(outputs):
            type_ = _type(spec.output_artifact_type_alias, group)
            output = DagOutput(type_, spec.output_artifact_key_alias or key)
            positioned.append((position.get(key, len(position)), output))
        positioned.sort(key=itemgetter(0))
        return [output for _, output in positioned]

    def _declared_outputs(self, name: str) -> Sequence[DataSpec]:
        """Return the outputs in the description of a task's component; empty if it is unknown."""
        component = self._components.get(name)
        if component is None or component.description is None:
            return ()
        return component.description.outputs

    def _take_reader(
        self,
        name: str,
        channel: wire.Channel,
        path: str,
    ) -> None:
        """Give a task, at each party of a reader, the dataset that the reader names for the party.

        Only the arbiter may have no dataset.
        """
        reader_name = channel.producer_task
        reader = self._dag.tasks[reader_name]
        for party in self._parties_of(channel.parties or reader.parties, f"{path}.parties"):
            params = self._reader_params(reader_name, party)
            has_address = bool(params.get("namespace")) and bool(params.get("name"))
            if has_address:
                self._give_dataset(name, party, f"{params['namespace']}#{params['name']}", path)
            elif party.role != "arbiter":
                rule = f"must have namespace and name for {party.label}: the dataset that it reads"
                self._add_problem(f"tasks.{reader_name}.parameters", rule, params)

    def _reader_params(
        self,
        reader_name: str,
        party: Party,
    ) -> dict[str, Any]:
        """Return the parameters of a reader at one party."""
        params = dict(self._dag.tasks[reader_name].parameters)
        for site, party_tasks in self._dag.party_tasks.items():
            reader = party_tasks.tasks.get(reader_name)
            if reader is None:
                continue
            path = f"party_tasks.{site}.parties"
            if party in self._parties_of(party_tasks.parties, path):
                params |= reader.parameters
        return params

    def _take_dataset(
        self,
        name: str,
        channel: wire.Channel,
        path: str,
    ) -> None:
        """Give a task the dataset of an input, at the parties that the input names.

        An input without parties means all parties of the task.
        """
        dataset = _dataset_of(channel)
        if not dataset:
            self._add_problem(path, "must have dataset_id, or namespace and name")
            return
        specs = channel.parties or self._dag.tasks[name].parties
        for party in self._parties_of(specs, f"{path}.parties"):
            self._give_dataset(name, party, dataset, path)

    def _give_dataset(
        self,
        name: str,
        party: Party,
        dataset: str,
        path: str,
    ) -> None:
        """Give a task a dataset at one party; a second dataset is a problem."""
        params = self._params_of(party, name)
        if params.setdefault("dataset_id", dataset) != dataset:
            rule = f"must be the only dataset of {party.label}: a task takes one of each party"
            self._add_problem(path, rule, [params["dataset_id"], dataset])

    def _take_stored_model(self, channel: wire.Channel, path: str) -> None:
        """Make the job predict with the model that an input names.

        The job's model warehouse provides the id or the version that the input lacks.
        """
        model_id = channel.model_id
        version = channel.model_version
        default = self._dag.conf.model_warehouse
        if default:
            model_id = model_id or default.model_id
            version = version or default.model_version
        self._predict_with(model_id, version, path)

    def _predict_with(
        self,
        model_id: str,
        version: str,
        path: str,
    ) -> None:
        """Make the job predict with a model.

        A job uses one model: a second one is a problem, as is a model without id or version.
        """
        is_complete = bool(model_id) and bool(version)
        if not is_complete:
            rule = "must have model_id and model_version, here or in conf.model_warehouse"
            self._add_problem(path, rule)
            return
        settings = {
            "job_type": "predict",
            "model_id": model_id,
            "model_version": version,
        }
        for key, value in settings.items():
            if self._common.setdefault(key, value) != value:
                rule = "must be the model that the rest of the job uses"
                self._add_problem(path, rule, f"{model_id} {version}")
                return

    def _parties_of(
        self,
        specs: wire.Parties | None,
        path: str,
    ) -> tuple[Party, ...]:
        """Return the named parties without repetitions; all parties of the job for None.

        A party that is not in the job is a problem.
        """
        if specs is None:
            return self.parties
        parties: dict[Party, None] = {}  # an ordered set
        for i, spec in enumerate(specs):
            for node in spec.party_id:
                matching = self._parties_at(spec.role, node)
                if not matching:
                    rule = "must name a party of the job"
                    self._add_problem(f"{path}[{i}]", rule, f"{spec.role} {node}")
                parties |= dict.fromkeys(matching)
        return tuple(parties)

    def _parties_at(self, role: str, node: NodeId) -> list[Party]:
        """Return the parties of a role at a node, in the order of the job; empty if none match."""
        return [party for party in self.parties if (party.role, party.node) == (role, node)]

    def _params_of(
        self,
        party: Party,
        task: str,
    ) -> dict[str, Any]:
        """Return the parameters of a task at one party, for the caller to fill."""
        of_role = self.task_params.setdefault(party.role, {})
        of_party = of_role.setdefault(str(party.index), {})
        params: dict[str, Any] = of_party.setdefault(task, {})
        return params

    def _check_stage(self, path: str, stage: str) -> None:
        """Report an unknown stage; an empty one means none."""
        if stage and stage not in STAGES:
            self._add_problem(path, f"must be one of {', '.join(STAGES)}, or absent", stage)

    def _warn_of_unused(
        self,
        settings: Mapping[str, Any],
        path: str,
    ) -> None:
        """Add a warning for each setting that steers FATE's own engines."""
        for key in UNUSED_SETTINGS:
            if settings.get(key) not in _NOT_SET:
                text = "is not used here; amounts are set by party_tasks.….conf.resources"
                self.warnings.append(f"{ROOT}.{path}.{key}: steers FATE's own engines and {text}")

    def _add_problem(
        self,
        path: str,
        rule: str,
        value: Any = None,
    ) -> None:
        """Add a problem; ``path``: its place below `ROOT`."""
        self.problems.append(Problem(f"{ROOT}.{path}", rule, value))


def _present(
    settings: Mapping[str, Any],
    keys: Iterable[str],
) -> dict[str, Any]:
    """Return the settings of these names that are not null, in the order of the names."""
    return {key: settings[key] for key in keys if settings.get(key) is not None}


def _numbered_parties(specs: wire.Parties) -> Iterator[Party]:
    """Yield the parties, numbered within each role."""
    numbers: Counter[str] = Counter()
    for spec in specs:
        for node in spec.party_id:
            yield Party(spec.role, numbers[spec.role], node)
            numbers[spec.role] += 1


def _specs_of(outputs: wire.Outputs) -> Iterator[tuple[str, str, wire.OutputSpec]]:
    """Yield a task's outputs: FATE's group, the component's name for the output, its description.

    The groups are in the order of `wire.GROUPS`.
    """
    for group in wire.GROUPS:
        for key, specs in getattr(outputs, group).items():
            for spec in specs:
                yield group, key, spec


def _type(alias: str, group: str) -> str:
    """Return the type of an input or output in this gateway's words.

    ``alias`` names one of FATE's groups, or a type of ours, which is returned unchanged. If it is
    empty, ``group`` decides.
    """
    return TYPE_OF.get(alias or group, alias)


def _dataset_of(channel: wire.Channel) -> str:
    """Return the id of a channel's dataset; empty without one."""
    if channel.dataset_id:
        return channel.dataset_id
    if channel.namespace and channel.name:
        return f"{channel.namespace}#{channel.name}"
    return ""
