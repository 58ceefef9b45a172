"""FATE's job description -> what this gateway runs, and where the description says what a problem is about.

The two say the same in different ways; where FATE can say more (a task at fewer parties than its component has
roles, an order without data) the job is refused rather than run otherwise. Readers are no component here:
whoever takes a reader's output takes the dataset that the reader names.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from adapter.fate.dag import wire
from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.errors import Invalid, near
from provider_registry.model import ANY, Component
from provider_registry.registry import Registry, Unknown

ROOT = "dag_schema.dag"
READER = "reader"
"""component of FATE that stands for a dataset"""
TYPE_OF: Mapping[str, str] = {
    "data": "dataset",
    "model": "model",
    "metric": "report",
}
"""FATE's groups of artefacts -> the types that flows here have"""
KEPT = ("sync_type", "priority", "auto_retries", "auto_retry_delay", "task_parallelism", "engine")
"""settings of a job that mean the same here; ``engine`` so that a foreign one is refused explicitly"""
STAGES = ("train", "predict", "default", "cross_validation")
"""FATE's; only predict means anything here. A typo would train instead of predicting"""
UNUSED = (
    "cores",
    "computing_partitions",
    "federated_status_collect_type",
    "engine_run",
    "launcher_name",
)
"""settings of a job or a task that steer FATE's own engines; reported as warnings"""
_TASK_SETTINGS = ("timeout", "auto_retries", "auto_retry_delay")
_SHOWN = 10


class Found(NamedTuple):
    """The component that a task means."""

    provider: str
    version: str
    component: Component | None
    """its description; None where it is not registered here: the scheduling node may know it"""


def find(
    registry: Registry,
    component: str,
    provider: str,
    version: str,
) -> Found | str:
    """Return the component, or in words what is wrong with its name.

    ``provider`` may be ``name``, ``name:version`` or ``name:version@device``. Without a version, and without a
    provider, there has to be exactly one that has the component.
    """
    name, _, rest = provider.partition("@")[0].partition(":")
    version = version or rest
    if name and version:
        try:  # for any version the node that schedules fills one in
            at = registry.newest(name, component) if version == ANY else version
            return Found(name, version, registry.find(name, at, component)[1])
        except Unknown:
            return Found(name, version, None)
    known = [p for p in registry.query(name=name or None, version=version or None) if not p.retired]
    have = [
        (p.name, p.version, p.components[component]) for p in known if component in p.components
    ]
    if len({(p, v) for p, v, _ in have}) == 1:
        return Found(*have[0])
    if have:
        names = ", ".join(f"{p}:{v}" for p, v, _ in have[:_SHOWN])
        return f"several providers have component {component}: name one of them ({names}) as conf.provider"
    meant = near(
        component, [word for p in registry.query() if not p.retired for word in p.components]
    )
    hint = f"did you mean {meant}? Else register it" if meant else "register it"
    whose = f"of provider {name} " if name else ""
    return (
        f"no component {component} {whose}is registered here: {hint}, or name provider and version"
    )


def job_spec(
    schema: wire.DagSchema,
    registry: Registry,
    job_id: str,
    node: NodeId,
    scheduler: NodeId,
    trace_id: str,
) -> tuple[JobSpec, list[str]]:
    """Return the job that a description asks of this node, and what is ignored in it. Raises `Invalid`.

    ``scheduler``: where it names none. Its kind is the protocol that runs it.
    """
    dag, reading = schema.dag, _Reading(schema.dag, registry)
    nodes = tuple(reading.task(name) for name in dag.tasks if name not in reading.readers)
    job_params = reading.job_params()
    if reading.problems:
        raise Invalid(
            {str(p): p for p in reading.problems}.values()
        )  # what two tasks refer to is reported once
    who, inherit = dag.conf.extra.initiator, dag.conf.inheritance
    initiator = who.party_id if who else dag.conf.initiator_party_id or node
    spec = JobSpec(
        job_id=job_id,
        flow_id=dag.conf.extra.flow_id,
        dag=Dag(nodes),
        parties=reading.parties,
        initiator=initiator,
        initiator_role=who.role
        if who
        else next((p.role for p in reading.parties if p.node == initiator), ""),
        scheduler=dag.conf.scheduler_party_id or scheduler,
        protocol=schema.kind,
        trace_id=trace_id,
        job_params=job_params,
        task_params=reading.task_params,
        old_job_id=inherit.job_id if inherit else dag.conf.extra.old_job_id,
    )
    return spec, reading.warnings


class _Reading:
    """A translation under way, with all that is wrong so far."""

    def __init__(self, dag: wire.DagSpec, registry: Registry) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.parties = tuple(
            numbered((spec.role, node) for spec in dag.parties for node in spec.party_id)
        )
        self.readers = {name for name, task in dag.tasks.items() if task.component_ref == READER}
        self.task_params: dict[str, Any] = {}
        self._common: dict[str, Any] = {}
        """settings of the job for all"""
        self._dag = dag
        self._found = {
            name: self._component(registry, name) for name in dag.tasks if name not in self.readers
        }

    def task(self, name: str) -> DagNode:
        """Return a task with its inputs and outputs; its settings and parameters go to those of the job."""
        task, at, found = self._dag.tasks[name], f"tasks.{name}", self._found[name]
        runs_at = self._named(task.parties, f"{at}.parties")
        if found is not None and found.component is not None:
            roles = found.component.roles
            if left_out := [p.label for p in self.parties if p.role in roles and p not in runs_at]:
                rule = f"must name {', '.join(left_out)} too: component {task.component_ref} runs at all of its roles"
                self._wrong(f"{at}.parties", rule)
        inputs = tuple(self._inputs(name, found))
        fed_by = {i.task for i in inputs} | self.readers
        for i, other in enumerate(task.dependent_tasks):
            if other not in fed_by:
                rule = "must be a task whose output is an input here: this gateway keeps no order without data"
                self._wrong(f"{at}.dependent_tasks[{i}]", rule, other)
        if task.parameters:
            self.task_params.setdefault("common", {})[name] = task.parameters
        if own := {key: task.conf[key] for key in _TASK_SETTINGS if task.conf.get(key) is not None}:
            self._common.setdefault("tasks", {})[name] = own
        self._unused(task.conf, f"{at}.conf")
        self._stage(f"{at}.stage", task.stage)
        ref = (
            ComponentRef(found.provider, found.version, task.component_ref)
            if found
            else ComponentRef("", "", "")
        )
        return DagNode(name, ref, inputs, tuple(self._outputs(name)))

    def job_params(self) -> dict[str, Any]:
        """Return the job's settings: for all, and for single parties."""
        conf, common = self._dag.conf, self._common
        given = conf.model_extra or {}
        common |= {key: given[key] for key in KEPT if given.get(key) is not None}
        if conf.task.timeout is not None:
            common["task_timeout"] = conf.task.timeout
        if conf.inheritance and conf.inheritance.task_list:
            common["inherit"] = conf.inheritance.task_list
        if warehouse := conf.model_warehouse:
            self._predict_with(warehouse.model_id, warehouse.model_version, "conf.model_warehouse")
        else:
            for key, value in (("model_id", conf.model_id), ("model_version", conf.model_version)):
                if value:
                    common.setdefault(key, value)
        self._stage("stage", self._dag.stage)
        if self._dag.stage == "predict":
            common.setdefault("job_type", "predict")
        self._unused(given, "conf")
        self._unused(conf.task.model_extra or {}, "conf.task")
        params: dict[str, Any] = {"common": common}
        for site, own in self._dag.party_tasks.items():
            settings = {key: value for key, value in own.conf.items() if value is not None}
            for party in self._named(own.parties, f"party_tasks.{site}.parties"):
                if settings:
                    params.setdefault(party.role, {}).setdefault(str(party.index), {}).update(
                        settings
                    )
                for name, task in own.tasks.items():
                    if name not in self._dag.tasks:
                        self._wrong(
                            f"party_tasks.{site}.tasks.{name}", "must be a task of the job", name
                        )
                    elif name not in self.readers and task.parameters:
                        self._own(party, name).update(task.parameters)
        return params

    def _component(self, registry: Registry, name: str) -> Found | None:
        task = self._dag.tasks[name]
        given = str(task.conf.get("provider") or self._dag.conf.task.provider or "")
        result = find(registry, task.component_ref, given, str(task.conf.get("version") or ""))
        if isinstance(result, Found):
            return result
        at = "conf.provider" if given else "component_ref"
        self._wrong(f"tasks.{name}.{at}", result, given or task.component_ref)
        return None

    def _inputs(self, name: str, found: Found | None) -> Iterator[DagInput]:
        """Yield the outputs that a task takes; datasets go to the parties' own entries.

        In the order of the component's description, by which inputs here are distinguished.
        """
        inputs = self._dag.tasks[name].inputs
        place = (
            {spec.name: i for i, spec in enumerate(found.component.inputs)}
            if found and found.component
            else {}
        )
        for group, artifacts in (("data", inputs.data), ("model", inputs.model)):
            for key in sorted(artifacts, key=lambda k: place.get(k, len(place))):
                sources, at = artifacts[key], f"tasks.{name}.inputs.{group}.{key}"
                for channel in sources.task_output_artifact:
                    if channel.producer_task in self.readers:
                        self._from_reader(name, channel, at)
                    else:
                        yield self._channel(channel, group, f"{at}.task_output_artifact")
                for channel in sources.data_warehouse:
                    self._from_warehouse(name, channel, f"{at}.data_warehouse")
                for channel in sources.model_warehouse:
                    usual = self._dag.conf.model_warehouse
                    model_id = channel.model_id or (usual.model_id if usual else "")
                    version = channel.model_version or (usual.model_version if usual else "")
                    self._predict_with(model_id, version, f"{at}.model_warehouse")

    def _channel(
        self,
        channel: wire.Channel,
        group: str,
        at: str,
    ) -> DagInput:
        for part in ("producer_task", "output_artifact_key"):
            if not getattr(channel, part):
                self._wrong(f"{at}.{part}", "is required")
        name, wanted = channel.producer_task, channel.output_artifact_key
        if name and name not in self._dag.tasks:
            self._wrong(f"{at}.producer_task", "must be a task of the job", name)
        elif name:
            own_names = self._own_names(name)
            for output in self._outputs(name):
                if wanted in (output.key, own_names.get(output.key)):
                    return DagInput(output.type, name, output.key)
        return DagInput(_type(channel.output_artifact_type_alias, group), name, wanted)

    def _own_names(self, name: str) -> dict[str, str]:
        """Return the component's own names of a task's outputs, by how the flow calls them."""
        outputs = self._dag.tasks[name].outputs
        groups = (outputs.data, outputs.model, outputs.metric) if outputs else ()
        pairs = [
            (own, spec) for produced in groups for own, specs in produced.items() for spec in specs
        ]
        return {spec.output_artifact_key_alias or own: own for own, spec in reversed(pairs)}

    def _outputs(self, name: str) -> Iterator[DagOutput]:
        """Yield the outputs of a task: those that it names, else all that its component's description declares."""
        task, found = self._dag.tasks[name], self._found.get(name)
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

    def _from_reader(
        self,
        name: str,
        channel: wire.Channel,
        at: str,
    ) -> None:
        reader = self._dag.tasks[channel.producer_task]
        for party in self._named(channel.parties or reader.parties, f"{at}.parties"):
            params = dict(reader.parameters)
            for site, own in self._dag.party_tasks.items():
                there = own.tasks.get(channel.producer_task)
                if there and party in self._named(own.parties, f"party_tasks.{site}.parties"):
                    params |= there.parameters
            if params.get("namespace") and params.get("name"):
                self._give(name, party, f"{params['namespace']}#{params['name']}", at)
            elif party.role != "arbiter":
                rule = f"must have namespace and name for {party.label}: the dataset that it reads"
                self._wrong(f"tasks.{channel.producer_task}.parameters", rule, params)

    def _from_warehouse(
        self,
        name: str,
        channel: wire.Channel,
        at: str,
    ) -> None:
        """Give each party of a task the dataset that an input names; all of them where it names no party."""
        named = f"{channel.namespace}#{channel.name}" if channel.namespace and channel.name else ""
        dataset = channel.dataset_id or named
        if not dataset:
            self._wrong(at, "must have dataset_id, or namespace and name")
            return
        for party in self._named(channel.parties or self._dag.tasks[name].parties, f"{at}.parties"):
            self._give(name, party, dataset, at)

    def _give(
        self,
        name: str,
        party: Party,
        dataset: str,
        at: str,
    ) -> None:
        entry = self._own(party, name)
        if entry.setdefault("dataset_id", dataset) != dataset:
            rule = f"must be the only dataset of {party.label}: a task takes one of each party"
            self._wrong(at, rule, [entry["dataset_id"], dataset])

    def _predict_with(
        self,
        model_id: str,
        version: str,
        at: str,
    ) -> None:
        """Have the job predict with a model; a job uses one, so another one named elsewhere is a problem."""
        if not model_id or not version:
            self._wrong(at, "must have model_id and model_version, here or in conf.model_warehouse")
            return
        wanted = {
            "job_type": "predict",
            "model_id": model_id,
            "model_version": version,
        }
        if any(self._common.setdefault(key, value) != value for key, value in wanted.items()):
            self._wrong(
                at, "must be the model that the rest of the job uses", f"{model_id} {version}"
            )

    def _named(self, specs: wire.Parties | None, at: str) -> tuple[Party, ...]:
        """Return the parties that are named; all of the job's where none are."""
        if specs is None:
            return self.parties
        found: list[Party] = []
        for i, spec in enumerate(specs):
            for node in spec.party_id:
                same = [p for p in self.parties if (p.role, p.node) == (spec.role, node)]
                if not same:
                    self._wrong(f"{at}[{i}]", "must name a party of the job", f"{spec.role} {node}")
                found += same
        return tuple(dict.fromkeys(found))

    def _own(self, party: Party, task: str) -> dict[str, Any]:
        entry = self.task_params.setdefault(party.role, {}).setdefault(str(party.index), {})
        found: dict[str, Any] = entry.setdefault(task, {})
        return found

    def _stage(self, at: str, given: str) -> None:
        if given and given not in STAGES:
            self._wrong(at, f"must be one of {', '.join(STAGES)}, or absent", given)

    def _unused(self, given: Mapping[str, Any], at: str) -> None:
        for key in UNUSED:
            if given.get(key) not in (None, {}, "", "default"):
                text = "is not used here; amounts are set by party_tasks.….conf.resources"
                self.warnings.append(f"{ROOT}.{at}.{key}: steers FATE's own engines and {text}")

    def _wrong(
        self,
        at: str,
        rule: str,
        got: Any = None,
    ) -> None:
        self.problems.append(Problem(f"{ROOT}.{at}", rule, got))


def numbered(players: Iterable[tuple[str, NodeId]]) -> Iterator[Party]:
    """Yield the parties of roles and nodes, numbered within each role."""
    numbers: Counter[str] = Counter()
    for role, node in players:
        yield Party(role, numbers[role], node)
        numbers[role] += 1


def _type(alias: str, group: str) -> str:
    return TYPE_OF.get(alias or group, alias)
