"""FATE's job description -> what this gateway runs.

The two say the same in different ways; where FATE can say more (a task at fewer parties than its component has
roles, an order without data) the job is refused rather than run otherwise. Readers are no component here:
whoever takes a reader's output takes the dataset that the reader names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
TYPE_OF: Mapping[str, str] = {"data": "dataset", "model": "model", "metric": "report"}
"""FATE's groups of artefacts -> the types that flows here have"""
KEPT = ("sync_type", "priority", "auto_retries", "auto_retry_delay", "task_parallelism", "engine")
"""settings of a job that mean the same here; ``engine`` so that a foreign one is refused explicitly"""
STAGES = ("train", "predict", "default", "cross_validation")
"""FATE's; only predict means anything here. A typo would train where somebody wanted to predict"""
UNUSED = ("cores", "computing_partitions", "federated_status_collect_type", "engine_run", "launcher_name")
"""settings of a job or a task that steer FATE's own engines; reported as warnings"""
_SHOWN = 10


class Found(NamedTuple):
    """The component that a task means."""

    provider: str
    version: str
    component: Component | None
    """its description; None where it is not registered here: whoever schedules the job may know it"""


class Catalogue:
    """The registered providers, asked in FATE's way."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def find(self, component: str, provider: str = "", version: str = "") -> Found | str:
        """Return the component, or in words what is wrong with its name.

        ``provider`` may be ``name``, ``name:version`` or ``name:version@device``. Without a version, and without a
        provider, there has to be exactly one that has the component.
        """
        name, _, rest = provider.partition("@")[0].partition(":")
        version = version or rest
        if name and version == ANY:  # the node that schedules fills it in
            return Found(name, version, self._newest(name, component))
        if name and version:
            return self._exactly(name, version, component)
        have = [
            (p.name, p.version, p.components[component])
            for p in self._registry.query(name=name or None, version=version or None)
            if component in p.components and not p.retired
        ]
        if len({(p, v) for p, v, _ in have}) == 1:
            return Found(*have[0])
        whose = f"of provider {name} " if name else ""
        if not have:
            meant = self._meant(name, component)
            hint = f"did you mean {meant}? Else register it" if meant else "register it"
            return f"no component {component} {whose}is registered here: {hint}, or name provider and version"
        known = ", ".join(f"{p}:{v}" for p, v, _ in have[:_SHOWN])
        return f"several providers have component {component}: name one of them ({known}) as conf.provider"

    def _meant(self, name: str, component: str) -> str:
        """Return what was probably meant by a component of a provider; empty where that is not clear."""
        there = [p for p in self._registry.query() if not p.retired]
        provider = name if any(p.name == name for p in there) else near(name, [p.name for p in there])
        mine = [p for p in there if p.name == provider] or there
        found = near(component, [word for p in mine for word in p.components])
        owner = next((p for p in mine if found in p.components), None)
        return f"{found} of provider {owner.name}:{owner.version}" if owner else ""

    def _newest(self, name: str, component: str) -> Component | None:
        try:
            return self._registry.find(name, self._registry.newest(name, component), component)[1]
        except Unknown:
            return None

    def _exactly(self, name: str, version: str, component: str) -> Found:
        try:
            return Found(name, version, self._registry.find(name, version, component)[1])
        except Unknown:
            return Found(name, version, None)


class Place(NamedTuple):
    """Where a job comes in."""

    job_id: str
    node: NodeId
    scheduler: NodeId
    trace_id: str
    protocols: Mapping[str, str]
    """which protocol runs jobs of each kind"""


@dataclass(frozen=True)
class Translated:
    """The job, and the paths of what the description says in vain."""

    spec: JobSpec
    warnings: tuple[str, ...]


def job_spec(schema: wire.DagSchema, place: Place, catalogue: Catalogue) -> Translated:
    """Return the job that a description asks for. Raises `Invalid` with every problem."""
    dag = schema.dag
    parties = tuple(_numbered(dag.parties))
    work = _Work(dag, catalogue, parties)
    readers = {name for name, task in dag.tasks.items() if task.component_ref == READER}
    nodes = tuple(_task(work, name, readers) for name in dag.tasks if name not in readers)
    job_params = _job_params(work)
    if work.problems:
        raise Invalid({str(p): p for p in work.problems}.values())  # what two tasks refer to is reported once
    who = dag.conf.extra.initiator
    initiator = who.party_id if who else dag.conf.initiator_party_id or place.node
    role = who.role if who else next((p.role for p in parties if p.node == initiator), "")
    inherit = dag.conf.inheritance
    spec = JobSpec(
        job_id=place.job_id,
        flow_id=dag.conf.extra.flow_id,
        dag=Dag(nodes),
        parties=parties,
        initiator=initiator,
        initiator_role=role,
        scheduler=dag.conf.scheduler_party_id or place.scheduler,
        protocol=place.protocols[schema.kind],
        trace_id=place.trace_id,
        job_params=job_params,
        task_params=work.task_params,
        old_job_id=inherit.job_id if inherit else dag.conf.extra.old_job_id,
    )
    return Translated(spec, tuple(work.warnings))


@dataclass
class _Work:
    """A translation under way, with all that is wrong so far."""

    dag: wire.DagSpec
    catalogue: Catalogue
    parties: tuple[Party, ...]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    common: dict[str, Any] = field(default_factory=dict)
    """settings of the job for all"""
    task_params: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Found | None] = field(default_factory=dict)

    def wrong(self, at: str, rule: str, got: Any = None) -> None:
        self.problems.append(Problem(f"{ROOT}.{at}", rule, got))

    def own(self, party: Party, task: str) -> dict[str, Any]:
        entry = self.task_params.setdefault(party.role, {}).setdefault(str(party.index), {})
        found: dict[str, Any] = entry.setdefault(task, {})
        return found


def _numbered(specs: wire.Parties) -> Iterator[Party]:
    numbers: dict[str, int] = {}
    for spec in specs:
        for node in spec.party_id:
            index = numbers.get(spec.role, 0)
            numbers[spec.role] = index + 1
            yield Party(spec.role, index, node)


def _parties_named(work: _Work, specs: wire.Parties | None, at: str) -> tuple[Party, ...]:
    if specs is None:
        return work.parties
    found: list[Party] = []
    for i, spec in enumerate(specs):
        for node in spec.party_id:
            same = [p for p in work.parties if (p.role, p.node) == (spec.role, node)]
            if not same:
                work.wrong(f"{at}[{i}]", "must name a party of the job", f"{spec.role} {node}")
            found += same
    return tuple(dict.fromkeys(found))


def _from_reader(work: _Work, name: str, channel: wire.Channel, at: str) -> None:
    reader = work.dag.tasks[channel.producer_task]
    for party in _parties_named(work, channel.parties or reader.parties, f"{at}.parties"):
        params = {**reader.parameters, **_own_parameters(work, party, channel.producer_task)}
        if params.get("namespace") and params.get("name"):
            _give(work, name, party, f"{params['namespace']}#{params['name']}", at)
        elif party.role != "arbiter":
            rule = f"must have namespace and name for {party.label}: the dataset that it reads"
            work.wrong(f"tasks.{channel.producer_task}.parameters", rule, params)


def _from_warehouse(work: _Work, name: str, channel: wire.Channel, at: str) -> None:
    """Give each party of a task the dataset that an input names; all of them where it names no party."""
    dataset = channel.dataset_id or (
        f"{channel.namespace}#{channel.name}" if channel.namespace and channel.name else ""
    )
    if not dataset:
        work.wrong(at, "must have dataset_id, or namespace and name")
        return
    for party in _parties_named(work, channel.parties or work.dag.tasks[name].parties, f"{at}.parties"):
        _give(work, name, party, dataset, at)


def _give(work: _Work, name: str, party: Party, dataset: str, at: str) -> None:
    entry = work.own(party, name)
    if entry.setdefault("dataset_id", dataset) != dataset:
        rule = f"must be the only dataset of {party.label}: a task takes one of each party"
        work.wrong(at, rule, [entry["dataset_id"], dataset])


def _predicting(work: _Work, model_id: str, version: str, at: str) -> None:
    """Have the job predict with a model; a job uses one, so another one named elsewhere is a problem."""
    if not model_id or not version:
        work.wrong(at, "must have model_id and model_version, here or in conf.model_warehouse")
        return
    wanted = {"job_type": "predict", "model_id": model_id, "model_version": version}
    known = {key: work.common.setdefault(key, value) for key, value in wanted.items()}
    if known != wanted:
        work.wrong(at, "must be the model that the rest of the job uses", f"{model_id} {version}")


def _own_parameters(work: _Work, party: Party, task: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for site, own in work.dag.party_tasks.items():
        if task in own.tasks and party in _parties_named(work, own.parties, f"party_tasks.{site}.parties"):
            found |= own.tasks[task].parameters
    return found


def _job_params(work: _Work) -> dict[str, Any]:
    conf = work.dag.conf
    given = conf.model_extra or {}
    work.common.update({key: given[key] for key in KEPT if given.get(key) is not None})
    if conf.task.timeout is not None:
        work.common["task_timeout"] = conf.task.timeout
    if conf.inheritance and conf.inheritance.task_list:
        work.common["inherit"] = conf.inheritance.task_list
    if warehouse := conf.model_warehouse:
        _predicting(work, warehouse.model_id, warehouse.model_version, "conf.model_warehouse")
    else:
        names = {"model_id": conf.model_id, "model_version": conf.model_version}
        work.common = {key: value for key, value in names.items() if value} | work.common
    _stage(work, "stage", work.dag.stage)
    if work.dag.stage == "predict":
        work.common.setdefault("job_type", "predict")
    _unused(work, given, "conf")
    _unused(work, conf.task.model_extra or {}, "conf.task")
    params: dict[str, Any] = {"common": work.common}
    for site, own in work.dag.party_tasks.items():
        for party in _parties_named(work, own.parties, f"party_tasks.{site}.parties"):
            settings = {key: value for key, value in own.conf.items() if value is not None}
            if settings:
                entry = params.setdefault(party.role, {}).setdefault(str(party.index), {})
                entry.update(settings)
            for name, task in own.tasks.items():
                if name not in work.dag.tasks:
                    work.wrong(f"party_tasks.{site}.tasks.{name}", "must be a task of the job", name)
                elif work.dag.tasks[name].component_ref != READER and task.parameters:
                    work.own(party, name).update(task.parameters)
    return params


def _stage(work: _Work, at: str, given: str) -> None:
    if given and given not in STAGES:
        meant = near(given, STAGES)
        hint = f": did you mean {meant}?" if meant else ""
        work.wrong(at, f"must be one of {', '.join(STAGES)}, or absent{hint}", given)


def _unused(work: _Work, given: Mapping[str, Any], at: str) -> None:
    for key in UNUSED:
        if given.get(key) not in (None, {}, "", "default"):
            text = "is not used here; amounts are set by party_tasks.….conf.resources"
            work.warnings.append(f"{ROOT}.{at}.{key}: steers FATE's own engines and {text}")


def _task(work: _Work, name: str, readers: set[str]) -> DagNode:
    task, at = work.dag.tasks[name], f"tasks.{name}"
    found = _component(work, name)
    _runs_at(work, name, found)
    inputs = tuple(_inputs(work, name, found, readers))
    fed_by = {i.task for i in inputs} | readers
    for i, other in enumerate(task.dependent_tasks):
        if other not in fed_by:
            rule = "must be a task whose output is an input here: this gateway keeps no order without data"
            work.wrong(f"{at}.dependent_tasks[{i}]", rule, other)
    if task.parameters:
        work.task_params.setdefault("common", {})[name] = task.parameters
    own = {
        k: task.conf[k] for k in ("timeout", "auto_retries", "auto_retry_delay") if task.conf.get(k) is not None
    }
    if own:
        work.common.setdefault("tasks", {})[name] = own
    _unused(work, task.conf, f"{at}.conf")
    _stage(work, f"{at}.stage", task.stage)
    ref = ComponentRef(found.provider, found.version, task.component_ref) if found else ComponentRef("", "", "")
    return DagNode(name, ref, inputs, tuple(_outputs(work, name)))


def _component(work: _Work, name: str) -> Found | None:
    if name not in work.found:
        task = work.dag.tasks[name]
        usual = work.dag.conf.task.provider
        given = task.conf.get("provider") or usual
        result = work.catalogue.find(task.component_ref, str(given or ""), str(task.conf.get("version") or ""))
        if isinstance(result, str):
            at = "component_ref" if not given else "conf.provider"
            work.wrong(f"tasks.{name}.{at}", result, given or task.component_ref)
        work.found[name] = None if isinstance(result, str) else result
    return work.found[name]


def _runs_at(work: _Work, name: str, found: Found | None) -> None:
    task = work.dag.tasks[name]
    at = _parties_named(work, task.parties, f"tasks.{name}.parties")
    if task.parties is None or found is None or found.component is None:
        return
    left_out = [p.label for p in work.parties if p.role in found.component.roles and p not in at]
    if left_out:
        rule = f"must name {', '.join(left_out)} too: component {task.component_ref} runs at all of its roles"
        work.wrong(f"tasks.{name}.parties", rule)


def _inputs(work: _Work, name: str, found: Found | None, readers: set[str]) -> Iterator[DagInput]:
    """Yield the outputs that a task takes; datasets go to the parties' own entries.

    In the order of the component's description, by which inputs here are distinguished.
    """
    task = work.dag.tasks[name]
    place = {spec.name: i for i, spec in enumerate(found.component.inputs)} if found and found.component else {}
    for group, artifacts in (("data", task.inputs.data), ("model", task.inputs.model)):
        for key in sorted(artifacts, key=lambda k: place.get(k, len(place))):
            sources, at = artifacts[key], f"tasks.{name}.inputs.{group}.{key}"
            for channel in sources.task_output_artifact:
                if channel.producer_task in readers:
                    _from_reader(work, name, channel, at)
                else:
                    yield _channel(work, channel, group, f"{at}.task_output_artifact")
            for channel in sources.data_warehouse:
                _from_warehouse(work, name, channel, f"{at}.data_warehouse")
            for channel in sources.model_warehouse:
                usual = work.dag.conf.model_warehouse or wire.ModelWarehouse(model_id="", model_version="")
                model_id, version = (
                    channel.model_id or usual.model_id,
                    channel.model_version or usual.model_version,
                )
                _predicting(work, model_id, version, f"{at}.model_warehouse")


def _channel(work: _Work, channel: wire.Channel, group: str, at: str) -> DagInput:
    for part in ("producer_task", "output_artifact_key"):
        if not getattr(channel, part):
            work.wrong(f"{at}.{part}", "is required")
    producer = work.dag.tasks.get(channel.producer_task)
    if channel.producer_task and producer is None:
        work.wrong(f"{at}.producer_task", "must be a task of the job", channel.producer_task)
    elif producer is not None:
        for output in _outputs(work, channel.producer_task):
            if channel.output_artifact_key in (output.key, _name_of(producer, output.key)):
                return DagInput(output.type, channel.producer_task, output.key)
    type_ = _type(channel.output_artifact_type_alias, group)
    return DagInput(type_, channel.producer_task, channel.output_artifact_key)


def _name_of(task: wire.TaskSpec, key: str) -> str:
    """Return the component's own name of an output that the flow calls otherwise."""
    groups = (task.outputs.data, task.outputs.model, task.outputs.metric) if task.outputs else ()
    pairs = ((name, spec) for produced in groups for name, specs in produced.items() for spec in specs)
    return next((name for name, spec in pairs if (spec.output_artifact_key_alias or name) == key), key)


def _outputs(work: _Work, name: str) -> Iterator[DagOutput]:
    """Yield the outputs of a task: those that it names, else all that its component's description declares."""
    task, found = work.dag.tasks[name], _component(work, name)
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
