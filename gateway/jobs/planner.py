"""Turns tasks of a job into runs of this node, and finds the problems of a job beforehand.

A planned run has a component, parameters, inputs, outputs and limits, but no ids yet.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import uuid4

from engines.base import run_name
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.models import Models
from gateway.data.registration import CSV
from gateway.domain import models, rerun, resources, validation
from gateway.domain.attestation import STORAGE_RULE
from gateway.domain.dag import DagNode, once_per_component
from gateway.domain.problems import Problem
from gateway.domain.resources import Defaults, RunLimits, TaskPlacement
from gateway.domain.run import NODE_FOLDER, Address, LocalJob, Run, RunData, Sealing, Software
from gateway.domain.spec import JobSpec, effective
from gateway.errors import Conflict, GatewayError, Invalid, Refused, StorageFailed
from gateway.jobs import flow_checks
from gateway.jobs.flow_checks import Plan, Plans
from gateway.jobs.id_tables import lost_columns
from gateway.jobs.party_task import FlowInput, PartyTask
from gateway.runtime.context import NodeContext
from provider_registry.model import ENGINE_UNSUITABLE, Component, Provider, join
from provider_registry.registry import Registry, Unknown
from provider_registry.values import check as check_values

_STORAGE_MISMATCH = "STORAGE_MISMATCH"  # reason of a component that cannot read its data's storage
# Keys of a provider's metadata, with numbers that describe the containers of the provider.
DECLARED = ("control_port", "n_threads", "chunk_size")


@dataclass(frozen=True)
class Places:
    """The engines at which tasks of a provider may run."""

    # Place named by a provider (`Provider.place`) -> the engine's name; "" is the main engine's.
    engines: Mapping[str, str]
    kinds: Mapping[str, str]  # engine's name -> its kind, as `Provider.engine_kinds` names it
    without_node_folder: frozenset[str] = frozenset()  # engines that do not see this node's folder


@dataclass(frozen=True)
class _PlannedRun:
    """A run without its ids, and the problems with its parameters and inputs."""

    run: Run
    problems: Sequence[Problem]
    warnings: Sequence[Problem]
    # Outputs of earlier tasks that do not exist; only the component knows whether it needs them.
    missing: Sequence[Problem]


@dataclass
class _Inputs:
    """Inputs of a run, and the problems with them."""

    # name in the component's description -> address
    addresses: dict[str, Address] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)  # as in `_PlannedRun`


class TaskPlanner:
    """Turns tasks of a job into runs of this node."""

    def __init__(
        self,
        context: NodeContext,
        registry: Registry,
        datasets: Datasets,
        storage: Storages,
        models: Models,
        defaults: Defaults,
        places: Places,
    ) -> None:
        self.registry = registry
        self.storage = storage
        self.models = models
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._owner = context.owner
        self._datasets = datasets
        self._defaults = defaults
        self._engines = places.engines
        self._engine_kinds = places.kinds
        self._without_node_folder = places.without_node_folder

    # -------------------------------------------------- before a job is accepted

    def check(
        self,
        spec: JobSpec,
        hidden: Collection[str] = (),
        attested: Collection[str] = (),
    ) -> tuple[list[Problem], list[Problem]]:
        """Return the problems that reject a job at this node, and the warnings.

        ``hidden`` are the paths in the job that name datasets which the job may not use. Whether
        such a dataset exists, and in which storage, makes no difference to the result, so that a
        partner cannot probe for it. ``attested`` are the providers whose runs have to prove their
        TEE.
        """
        problems: list[Problem] = []
        warnings: list[Problem] = []
        # By the task's name and the party's label, as `Plans`.
        plans: dict[tuple[str, str], Plan] = {}
        for number, dag_node in enumerate(spec.dag.nodes):
            path = f"dag.components[{number}]"
            try:
                tasks = self._party_tasks(spec, dag_node)
            except Refused as error:
                component = str(dag_node.component)
                problems.append(Problem(path, error.message, component, reason=error.reason))
                continue
            for task in tasks:
                planned = self._plan(task, hidden=hidden)
                plans[dag_node.name, task.party.label] = Plan(
                    task,
                    planned.run,
                )
                problems += flow_checks.unconnected_inputs_and_outputs(task, path)
                problems += planned.problems
                warnings += planned.warnings
                warnings += flow_checks.unused_or_missing_dataset(task)
        problems += self._storage_problems(spec, plans, attested)
        for plan in plans.values():
            warnings += self._format_warnings(plan, plans, hidden)
        warnings += lost_columns(spec, plans)
        return validation.with_strictness(
            spec, _without_repetitions(problems), _without_repetitions(warnings)
        )

    def placements(self, spec: JobSpec) -> Mapping[str, TaskPlacement]:
        """Return the engine and the roles of each task here.

        Tasks whose component is not registered, or may not run here, are left out.
        """

        def find_placement(dag_node: DagNode) -> TaskPlacement | None:
            with suppress(Refused):
                provider, component = self._find(dag_node)
                return TaskPlacement(
                    self._engines[provider.place],
                    frozenset(component.roles),
                )
            return None

        placement_of = once_per_component(find_placement)
        placements = {}
        for dag_node in spec.dag.nodes:
            placement = placement_of(dag_node)
            if placement is not None:
                placements[dag_node.name] = placement
        return placements

    def tentative_runs(
        self,
        spec: JobSpec,
        dag_node: DagNode,
    ) -> list[Run]:
        """Return the run of a task at each party here, without ids.

        The runs are never started: they are compared with those of another job, or only reported.
        Inputs that are outputs of other tasks are left out.
        """
        return [self._plan(task).run for task in self._party_tasks(spec, dag_node)]

    def _storage_problems(
        self,
        spec: JobSpec,
        plans: Plans,
        attested: Collection[str],
    ) -> Iterator[Problem]:
        """Yield a problem for each task whose component cannot use the storage of its data.

        Other problems are a storage whose key is not for runs and, for providers in ``attested``,
        one that would give a run its inputs without a report. The storage of a task is that of its
        data, which may be the output of an earlier task.
        """
        storage_of: dict[tuple[str, str], str] = {}  # task and party's label -> storage
        for plan in flow_checks.in_flow_order(spec, plans):
            task = plan.task
            label = task.party.label
            data_storages = []
            for edge in task.node.inputs:
                if (edge.task, label) in storage_of:
                    data_storages.append(storage_of[edge.task, label])
            data_storages += [address.storage for address in plan.run.data.inputs.values()]
            storage = self._storage_for(task.component, data_storages, plan.run.engine)
            # After a mismatch the node's folder, so that the tasks that follow can be checked.
            storage_of[task.node.name, label] = storage or NODE_FOLDER
            if storage is None:
                yield self._storage_mismatch(plan, data_storages)
                continue
            rule = self.storage.refusal_of_runs(storage)
            if rule:
                yield Problem(task.path, rule, reason="STORAGE_KEY_NOT_SHARED")
            elif task.provider.name in attested and not self.storage.limits_runs(storage):
                yield Problem(task.path, STORAGE_RULE, reason="TEE_STORAGE")

    def _storage_mismatch(
        self,
        plan: Plan,
        data_storages: Sequence[str],
    ) -> Problem:
        """Return the problem of a task whose component cannot use the storage of its data.

        ``data_storages`` are the storages of the task's inputs; empty for a task without inputs.
        """
        task = plan.task
        label = task.party.label
        engine = plan.run.engine
        storage = self._storage_for(task.component, data_storages)  # without regard to the engine
        if storage == NODE_FOLDER and engine in self._without_node_folder:
            where = "the engine"
            if engine:
                where = f"engine {engine}"
            rule = (
                f"on node {self._node}, {where} does not see the node's folder, "
                f"where the data of {label} lies: use data at one of storages"
            )
            return Problem(task.path, rule, reason=_STORAGE_MISMATCH)
        kinds = {self.storage.kind(storage) for storage in data_storages}
        have = ", ".join(sorted(kinds or set(self.storage.kinds())))
        engines = ", ".join(task.component.storage_engines)
        if data_storages:
            rule = (
                f"the description's storageEngine lists {engines}, "
                f"and the data of {label} lies in: {have}"
            )
        else:
            rule = (
                f"the description's storageEngine lists {engines}, "
                f"and node {self._node} has: {have}"
            )
        return Problem(task.path, rule, reason=_STORAGE_MISMATCH)

    def _format_warnings(
        self,
        plan: Plan,
        plans: Plans,
        hidden: Collection[str],
    ) -> list[Problem]:
        """Return warnings about inputs whose description does not list the format of their data."""
        task = plan.task
        dataset_format = ""
        if task.dataset and task.dataset_path not in hidden:
            dataset_format = self._datasets.format(**task.dataset)
        warnings = []
        if dataset_format == CSV:  # `_add_dataset` has checked datasets in any other format
            problem = flow_checks.dataset_format_problem(task, dataset_format)
            if problem is not None:
                warnings.append(problem)
        return warnings + flow_checks.upstream_format_problems(task, plans)

    # -------------------------------------------------- the runs of a task

    def runs(
        self,
        local: LocalJob,
        dag_node: DagNode,
        task_id: str,
    ) -> tuple[Run, ...]:
        """Return the runs of a task here, one per party.

        Raises `Refused` if no party here has a role in the task, `Invalid` for missing inputs and
        `Conflict` for a task id whose outputs exist already.
        """
        tasks = self._party_tasks(local.spec, dag_node, local.created_at)
        if not tasks:
            _, component = self._find(dag_node, local.created_at)
            roles = ", ".join(component.roles)
            text = f"{dag_node.component} has roles {roles}, none of which node {self._node} plays"
            raise Refused(text, reason="NO_ROLE_HERE")
        runs = local.runs_that_count()
        planned_runs = [self._plan(task, task_id=task_id, runs=runs) for task in tasks]
        # Missing outputs refuse the task only if the job is strict. Otherwise they become warnings
        # of the run (`_with_ids`).
        problems = [problem for planned in planned_runs for problem in planned.problems]
        missing = [problem for planned in planned_runs for problem in planned.missing]
        errors, _ = validation.with_strictness(local.spec, problems, missing)
        if errors:
            raise Invalid(errors, reason="INPUT_MISSING")
        # Each attempt of a task has an id of its own.
        earlier_ids = {run.task_id for run in local.runs if run.task_name == dag_node.name}
        self._check_outputs_are_new(planned_runs, task_id, is_first_attempt=not earlier_ids)
        attempt = len(earlier_ids)
        continues = self._may_continue(local.spec, dag_node.name)
        return tuple(
            self._with_ids(planned, local, task_id, attempt, continues) for planned in planned_runs
        )

    def _check_outputs_are_new(
        self,
        planned_runs: Iterable[_PlannedRun],
        task_id: str,
        is_first_attempt: bool,
    ) -> None:
        """Raise `Conflict` if an output would replace data in this node's folder.

        This can happen because the scheduling node chooses the task id. The folder for checkpoints
        has to be new for the first attempt only: later attempts continue with its files.
        """
        for planned in planned_runs:
            data = planned.run.data
            addresses = list(data.outputs.values())
            if is_first_attempt and data.checkpoint:
                addresses.append(data.checkpoint)
            for address in addresses:
                # `taken` counts any files, also those that `exists` takes for incomplete data.
                if address.storage == NODE_FOLDER and self.storage.taken(address):
                    text = (
                        f"outputs of task {task_id} would replace data of node {self._node}: "
                        "choose another task id"
                    )
                    raise Conflict(text, reason="TASK_ID_CONFLICT")

    def _with_ids(
        self,
        planned: _PlannedRun,
        local: LocalJob,
        task_id: str,
        attempt: int,
        continues: bool,
    ) -> Run:
        """Return a planned run with its ids and its owner.

        ``attempt`` is the number of earlier attempts of the task here. ``continues``: whether the
        run begins with the checkpoints of the same task in the old job, if there are any.
        """
        run = planned.run
        party = run.party
        needed_keys = self._keys_with_readers(local.spec, run)
        data = replace(
            run.data,
            needed_outputs=tuple(run.data.output_keys[key] for key in needed_keys),
        )
        if not continues:
            data = replace(data, checkpoint_from=None)
        return replace(
            run,
            run_id=uuid4().hex + uuid4().hex,  # long: the token of callbacks begins with it
            token=uuid4().hex,
            name=run_name(
                self._node,
                local.id,
                task_id,
                party.role,
                party.index,
                attempt,
            ),
            attempt=attempt,
            created_at=self._clock(),
            data=data,
            # The gateway that has the job's channel also runs the job's containers. If none has it,
            # this gateway runs them.
            owner=local.home or self._owner,
            warnings=tuple(str(problem) for problem in planned.missing),
        )

    def _keys_with_readers(self, spec: JobSpec, run: Run) -> list[str]:
        """Return the keys of a run's outputs that later tasks of the same party read."""
        keys = set()
        for dag_node in spec.dag.nodes:
            if run.task_name not in dag_node.upstream:
                continue
            if run.party.takes_part(self._roles(dag_node)):
                keys |= {edge.key for edge in dag_node.inputs if edge.task == run.task_name}
        return [key for key in run.data.output_keys if key in keys]

    def _roles(self, dag_node: DagNode) -> Sequence[str] | None:
        """Return the roles of a task's component; None if it may not run here."""
        try:
            _, component = self._find(dag_node)
        except Refused:
            return None
        return component.roles

    def _may_continue(self, spec: JobSpec, task: str) -> bool:
        """Return whether a task may begin with the checkpoints of the job's old job, if any."""
        if not spec.old_job_id:
            return False
        old = self._store.local_jobs.find(spec.old_job_id)
        if old is None:
            return False
        return rerun.may_take_checkpoints(
            old.spec,
            spec,
            task,
            spec.parties_at(self._node),
        )

    def _find(
        self,
        dag_node: DagNode,
        at: datetime | None = None,
    ) -> tuple[Provider, Component]:
        """Return a task's provider and component, as they were registered at a time (None: now).

        Raises `Refused` for an unknown component, for a place that the settings do not allow, and
        for images that do not run on the kind of engine there.
        """
        ref = dag_node.component
        try:
            provider, component = self.registry.find(
                ref.provider,
                ref.version,
                ref.name,
                at=at,
            )
        except Unknown as error:
            raise Refused(str(error), reason=error.reason) from error
        if provider.place not in self._engines:
            text = (
                f"{provider.key} is to run at {provider.place}, "
                f"which the admin of node {self._node} has not allowed (engines)"
            )
            raise Refused(text, reason="DAEMON_NOT_ALLOWED")
        self._check_engine_kind(provider)
        return provider, component

    def _check_engine_kind(self, provider: Provider) -> None:
        """Raise `Refused` if a provider's images do not run on the kind of its engine here."""
        name = self._engines[provider.place]
        kind = self._engine_kinds[name]
        if provider.runs_on(kind):
            return
        engine = f"engine {name}" if name else "the engine"
        text = (
            f"images of {provider.key} run on engines of kind {', '.join(provider.engine_kinds)}, "
            f"and {engine} of node {self._node} is of kind {kind}"
        )
        raise Refused(text, reason=ENGINE_UNSUITABLE)

    def _party_tasks(
        self,
        spec: JobSpec,
        dag_node: DagNode,
        at: datetime | None = None,
    ) -> list[PartyTask]:
        """Return a task as each party here with a role in the task runs it.

        ``at`` is the time for which the component is looked up. Raises `Refused` as `_find` does.
        """
        provider, component = self._find(dag_node, at)
        tasks = []
        for party in spec.parties_at(self._node):
            if party.role in component.roles:
                tasks.append(PartyTask(spec, dag_node, party, provider, component))
        return tasks

    # -------------------------------------------------- one run

    def _plan(
        self,
        task: PartyTask,
        task_id: str = "",
        runs: Sequence[Run] = (),
        hidden: Collection[str] = (),
    ) -> _PlannedRun:
        """Plan a party's run of a task, without ids.

        ``runs`` are the job's runs, whose outputs the planned run may read. ``task_id`` is empty if
        the run is not started. ``hidden`` are paths of datasets, as in `check`.
        """
        spec = task.spec
        dag_node = task.node
        party = task.party
        provider = task.provider
        parameters = effective(spec.task_params, party, dag_node.name)
        values = {name: parameter.value for name, parameter in parameters.items()}
        problems, warnings = _check_parameters(task)
        inputs = self._inputs(task, runs, hidden)
        model_inputs = self.models.inputs(spec, party, dag_node, task.component)
        warnings += flow_checks.undescribed_models(task, model_inputs)
        addresses = {**model_inputs, **inputs.addresses}
        engine = self._engines[provider.place]
        data_storages = [address.storage for address in addresses.values()]
        # If no storage fits, `_storage_problems` reports the problem.
        storage = self._storage_for(task.component, data_storages, engine) or NODE_FOLDER
        run_limits = resources.run_limits(spec, party, self._defaults)
        # Checkpoints are in the node's folder, unless the engine does not see that folder.
        checkpoint_storage = NODE_FOLDER
        if engine in self._without_node_folder:
            checkpoint_storage = storage
        checkpoint, old_checkpoint = rerun.checkpoints(
            spec, dag_node.name, party, checkpoint_storage
        )
        output_names = task.outputs
        data = RunData(
            parameters=values,
            inputs=addresses,
            outputs=_output_addresses(task, task_id, storage),
            output_keys=output_names,
            checkpoint=checkpoint,
            checkpoint_from=old_checkpoint,
        )
        run = Run(
            run_id="",
            name="",
            task_id=task_id,
            task_name=dag_node.name,
            party=party,
            software=_software(task),
            created_at=self._clock(),
            data=data,
            limits=self._limits(run_limits, party.role),
            limit_origins=run_limits.origins,
            engine=engine,
            sealing=Sealing(models.outputs_to_fingerprint(spec, dag_node, output_names)),
        )
        return _PlannedRun(
            run,
            problems=[*problems, *inputs.problems],
            warnings=warnings,
            missing=inputs.missing,
        )

    def _limits(
        self,
        run_limits: RunLimits,
        role: str,
    ) -> dict[str, float | None]:
        """Return the limits of a run at a role.

        For cpu, memory and disk, None means that the node's own limit applies (see
        `EngineCapacities.ceilings`); for pids, that there is no limit.
        """
        defaults, _ = self._defaults.for_role(role)
        limits: dict[str, float | None] = {
            "cpu": run_limits.cpu,
            "memory": run_limits.memory,
            "disk": run_limits.disk,
            "pids": defaults.pids,
        }
        if run_limits.gpu:
            limits["gpu"] = run_limits.gpu
        return limits

    def _storage_for(
        self,
        component: Component,
        data_storages: Sequence[str],
        engine: str | None = None,
    ) -> str | None:
        """Return the storage that a task reads and writes: the one with its inputs.

        ``data_storages`` are the storages of the inputs; if it is empty, the first usable storage
        is returned. Usable are storages that both the component and the engine can use. None if no
        storage is usable, or if the inputs are in several storages or in one that is not usable.
        ``engine``: the engine's name, "" for the main one; None: an engine that sees every storage.
        """
        usable = []
        for storage in self.storage.serving(component.storage_engines):
            if storage != NODE_FOLDER or engine not in self._without_node_folder:
                usable.append(storage)
        if not data_storages:
            return next(iter(usable), None)
        storage = data_storages[0]
        in_one_storage = len(set(data_storages)) == 1
        if in_one_storage and storage in usable:
            return storage
        return None

    def _inputs(
        self,
        task: PartyTask,
        runs: Sequence[Run],
        hidden: Collection[str],
    ) -> _Inputs:
        """Return the addresses of a task's inputs, and the problems with them.

        An input from an upstream task without a run in ``runs`` is left out: this party had no part
        in that task, or the job is only checked and ``runs`` is empty.
        """
        inputs = _Inputs()
        if task.dataset and task.component.inputs and task.dataset_path not in hidden:
            self._add_dataset(inputs, task, task.dataset)
        for flow_input in task.inputs:
            run = _last_run_of(task, flow_input.edge.task, runs)
            if flow_input.name and run is not None:
                self._add_output(inputs, task, flow_input, run)
        return inputs

    def _add_output(
        self,
        inputs: _Inputs,
        task: PartyTask,
        flow_input: FlowInput,
        run: Run,
    ) -> None:
        """Add an output of an upstream task's run to ``inputs``.

        If the output does not exist in the storage, a problem is added to ``inputs.missing``, too.
        Nothing is added if the description of the upstream component has no such output.
        """
        edge = flow_input.edge
        if edge.key not in run.data.output_keys:
            return
        address = run.data.output(edge.key)
        inputs.addresses[flow_input.name] = address
        if not self.storage.exists(address):
            rule = f"{task.party.label} has no output {edge.key} of task {edge.task}"
            problem = Problem(f"{task.path}.input", rule, f"{edge.task}.{edge.key}")
            inputs.missing.append(problem)

    def _add_dataset(
        self,
        inputs: _Inputs,
        task: PartyTask,
        location: Mapping[str, str],
    ) -> None:
        """Add the party's dataset to ``inputs``, as the component's first input.

        ``location`` has the dataset's id, or its namespace and name. A problem with the dataset is
        added to ``inputs.problems``. Raises `StorageFailed`.
        """
        try:
            address = self._datasets.resolve(**location)
            inputs.addresses[task.component.inputs[0].name] = address
            format_name = self._datasets.format(**location)
        except StorageFailed:
            # The failure is not a problem of the job: the storage may work later.
            raise
        except GatewayError as error:
            value = location.get("dataset_id", location.get("name"))
            inputs.problems.append(
                Problem(task.dataset_path, error.message, value, reason=error.reason)
            )
            return
        problem = flow_checks.unreadable_format(task, format_name)
        if problem is not None:
            inputs.problems.append(problem)


def _last_run_of(
    task: PartyTask,
    upstream: str,
    runs: Sequence[Run],
) -> Run | None:
    """Return the newest run of an upstream task at the same party; None without one."""
    for run in reversed(runs):
        if run.task_name == upstream and run.party == task.party:
            return run
    return None


def _check_parameters(task: PartyTask) -> tuple[list[Problem], list[Problem]]:
    """Return the problems and the warnings about a task's parameters.

    The path of each is that of the entry in the job from which the parameter was taken: a common
    one or the party's own.
    """
    name = task.node.name
    parameters = effective(task.spec.task_params, task.party, name)
    described = {}
    origins = {}
    for key, parameter in parameters.items():
        origin = f"config.task_params.{parameter.origin}.{name}"
        origins[join(task.parameters_path, key)] = join(origin, key)
        if key not in task.address_parameters:
            described[key] = parameter.value
    findings = check_values(
        described,
        task.component,
        task.parameters_path,
        strict=task.provider.strict_values,
    )

    def at_origin(problem: Problem) -> Problem:
        return problem._replace(path=origins.get(problem.path, problem.path))

    errors = [at_origin(problem) for problem in findings.errors]
    warnings = [at_origin(problem) for problem in findings.warnings]
    return errors, warnings


def _software(task: PartyTask) -> Software:
    """Return the component of a task and its image, as the provider is registered."""
    provider = task.provider
    ref = task.node.component
    image = provider.image_for(ref.name)
    return Software(
        component=ref,
        image=image,
        profile=provider.metadata.get("profile") or "",
        declared=_declared(provider),
        roles=task.component.roles,
        results=task.component.results,
        expected_digest=provider.digests.get(image, ""),
    )


def _declared(provider: Provider) -> dict[str, int]:
    """Return those of the `DECLARED` numbers that a provider's registration has."""
    declared = {}
    for name in DECLARED:
        value = provider.metadata.get(name)
        if value:
            declared[name] = value
    return declared


def _output_addresses(
    task: PartyTask,
    task_id: str,
    storage: str,
) -> dict[str, Address]:
    """Return the addresses of a run's outputs by their names in the component's description."""
    namespace = f"{task.spec.job_id}-{task.party.role}-{task.party.index}"
    return {
        name: Address(namespace, f"{task_id}-{key}", storage) for key, name in task.outputs.items()
    }


def _without_repetitions(problems: Iterable[Problem]) -> list[Problem]:
    """Return each problem once: several parties share the problem of a common parameter."""
    return list({str(problem): problem for problem in problems}.values())
