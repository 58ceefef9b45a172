"""What a job's tasks need at this node: components, parameters, data in and out, limits; and what is wrong.

Also what this node has left of an earlier job that a new one can take over, compared when the new one is created.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple
from uuid import uuid4

from engines.base import EngineError, run_name
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.models import Models
from gateway.data.registration import CSV
from gateway.domain import models, rerun, resources, validation
from gateway.domain.dag import DagInput, DagNode, once_per_component, order
from gateway.domain.problems import Problem
from gateway.domain.resources import Defaults, Seat
from gateway.domain.run import Address, LocalJob, Run, job_of
from gateway.domain.spec import JobSpec, NodeId, Party, data_location, effective, overlay
from gateway.domain.states import JobStatus, RunStatus
from gateway.errors import Conflict, EngineFailed, GatewayError, Invalid, Refused, StorageFailed
from gateway.runtime.context import NodeContext
from gateway.store.store import Store
from provider_registry.model import Component, Provider, join
from provider_registry.registry import Registry, Unknown
from provider_registry.values import check as check_values
from provider_registry.values import format_problem, match_inputs, match_outputs

DECLARED = ("control_port", "n_threads", "chunk_size")
"""what a registration's metadata may say of its containers"""


class _Part(NamedTuple):
    """A task as one of this node's parties runs it."""

    spec: JobSpec
    node: DagNode
    party: Party
    provider: Provider
    component: Component

    @property
    def path(self) -> str:
        return f"dag.components.{self.node.name}"

    @property
    def own_path(self) -> str:
        return f"config.task_params.{self.party.label}.{self.node.name}"

    @property
    def own_data(self) -> Mapping[str, str] | None:
        """Where its data lies, if that is not another task's output."""
        return (
            None
            if self.node.inputs
            else data_location(self.spec.task_params, self.party, self.node.name)
        )

    @property
    def address_parameters(self) -> set[str]:
        """The names under which its parameters only say where its data lies: ``namespace`` and ``name``."""
        address = {"namespace", "name"}.intersection(self.own_data or ())
        return address - {parameter.name for parameter in self.component.parameters}

    @property
    def own_data_path(self) -> str:
        """Where the job names it."""
        key = "dataset_id" if "dataset_id" in (self.own_data or {}) else "name"
        return f"{self.own_path}.{key}"

    @property
    def inputs(self) -> list[tuple[DagInput, str]]:
        """What it reads in the flow, each with the input of the description that gets it; empty for none."""
        edges = {f"{n}.{edge.key}": edge for n, edge in enumerate(self.node.inputs)}
        matched = match_inputs(
            [(edge.type, key) for key, edge in edges.items()], self.component.inputs
        )
        return [(edge, matched.get(key, "")) for key, edge in edges.items()]

    @property
    def outputs(self) -> dict[str, str]:
        return match_outputs([(o.type, o.key) for o in self.node.outputs], self.component.outputs)


@dataclass(frozen=True)
class Places:
    """Where a provider's tasks may run."""

    engines: Mapping[str, str]
    """what a provider may name, and what the engine for it is called"""
    apart: frozenset[str] = frozenset()
    """engines that do not see this node's folder"""


_Plans = Mapping[tuple[str, Party], tuple[_Part, Run]]
"""by the names of tasks and by parties"""


class _Planned(NamedTuple):
    """One local run as it will be started, without ids of its own, and what is wrong with it."""

    run: Run
    problems: Sequence[Problem]
    warnings: Sequence[Problem]
    missing: Sequence[Problem]
    """outputs of earlier tasks that are not there; only the component knows whether it needs them"""


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
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._owner = context.owner
        self._datasets = datasets
        self.storage = storage
        self.models = models
        self._defaults = defaults
        self._engines, self._apart = places.engines, places.apart

    def check(
        self, spec: JobSpec, hidden: Collection[str] = ()
    ) -> tuple[list[Problem], list[Problem]]:
        """Find what is wrong here with a job: (problems that refuse it, warnings).

        ``hidden``: paths of datasets that the job may not use. Whether they exist, and where, changes nothing.
        """
        problems: list[Problem] = []
        warnings: list[Problem] = []
        plans: dict[tuple[str, Party], tuple[_Part, Run]] = {}
        for i, node in enumerate(spec.dag.nodes):
            at = f"dag.components[{i}]"
            try:
                parts = self._parts(spec, node)
            except Refused as error:
                problems.append(
                    Problem(at, f"{error.reason}: {error.message}", str(node.component))
                )
                continue
            for part in parts:
                plan = self._plan(part, hidden=hidden)
                plans[node.name, part.party] = part, plan.run
                problems += [*_without_effect(part, at), *plan.problems]
                warnings += [*plan.warnings, *_unused_or_forgotten(part)]
        problems += self._mismatches(spec, plans)
        for part, _ in plans.values():
            warnings += self._other_formats(part, plans, hidden)
        return validation.applied(spec, _once(problems), _once(warnings))

    def _mismatches(self, spec: JobSpec, plans: _Plans) -> Iterator[Problem]:
        """Find the tasks whose component does not work with the storage where its data will lie."""
        places: dict[tuple[str, Party], str] = {}
        rank = {name: n for n, name in enumerate(order(spec.dag))}
        for (name, party), (part, run) in sorted(plans.items(), key=lambda plan: rank[plan[0][0]]):
            lies = [places[i.task, party] for i in part.node.inputs if (i.task, party) in places]
            lies += [address.storage for address in run.inputs.values()]
            storage = self._storage_for(part.component, lies, run.engine)
            places[name, party] = storage or ""
            if storage is None:
                kinds = sorted(
                    {self.storage.kind(one) for one in lies} or set(self.storage.kinds())
                )
                listed = part.component.storage_engines
                if run.engine in self._apart and self._storage_for(part.component, lies) == "":
                    where = f"engine {run.engine}" if run.engine else "the engine"
                    rule = (
                        f"STORAGE_MISMATCH: {where} of node {self._node} does not see the node's folder, "
                        f"where the data of {party.label} lies: use data at one of storages"
                    )
                    yield Problem(part.path, rule)
                    continue
                have = ", ".join(kinds)
                there = (
                    f"the data of {party.label} lies in: {have}"
                    if lies
                    else f"node {self._node} has: {have}"
                )
                rule = f"STORAGE_MISMATCH: the description's storageEngine lists {', '.join(listed)}, and {there}"
                yield Problem(part.path, rule)

    def _storage_for(
        self,
        component: Component,
        lies: Sequence[str],
        engine: str | None = None,
    ) -> str | None:
        """Return where a task reads and writes: where its data lies; None where that is impossible."""
        serving = self.storage.serving(component.storage_engines)
        serving = [one for one in serving if one or engine not in self._apart]
        if not lies:
            return serving[0] if serving else None
        return lies[0] if len(set(lies)) == 1 and lies[0] in serving else None

    def _find(self, node: DagNode, at: datetime | None = None) -> tuple[Provider, Component]:
        ref = node.component
        try:
            provider, component = self.registry.find(ref.provider, ref.version, ref.name, at=at)
        except Unknown as error:
            raise Refused(str(error), reason=error.reason) from error
        if provider.place not in self._engines:
            text = (
                f"{provider.key} is to run at {provider.place}, which the admin of node {self._node} has not "
                "allowed (engines)"
            )
            raise Refused(text, reason="DAEMON_NOT_ALLOWED")
        return provider, component

    def _parts(
        self,
        spec: JobSpec,
        node: DagNode,
        at: datetime | None = None,
    ) -> list[_Part]:
        """Return a task at each party here that has a role in it. Raises `Refused` for an unknown component."""
        provider, component = self._find(node, at)
        parties = [party for party in spec.parties_at(self._node) if party.role in component.roles]
        return [_Part(spec, node, party, provider, component) for party in parties]

    def runs(
        self,
        local: LocalJob,
        node: DagNode,
        task_id: str,
    ) -> tuple[Run, ...]:
        """Return the runs of a task here, one per party."""
        parts = self._parts(local.spec, node, local.created_at)
        if not parts:
            roles = ", ".join(self._find(node, local.created_at)[1].roles)
            text = f"{node.component} has roles {roles}, none of which node {self._node} plays"
            raise Refused(text, reason="NO_ROLE_HERE")
        plans = [self._plan(part, task_id, local.standing()) for part in parts]
        problems = [p for plan in plans for p in plan.problems]
        if problems := validation.applied(
            local.spec, problems, [p for plan in plans for p in plan.missing]
        )[0]:
            raise Invalid(problems, reason="INPUT_MISSING")
        attempt = len({run.task_id for run in local.runs if run.task_name == node.name})
        places = [place for plan in plans for place in plan.run.outputs.values()]
        places += [plan.run.checkpoint for plan in plans if plan.run.checkpoint and not attempt]
        if any(
            not place.storage and self.storage.taken(place) for place in places
        ):  # whoever schedules names them
            text = f"outputs of task {task_id} would replace data of node {self._node}: choose another task id"
            raise Conflict(text, reason="TASK_ID_CONFLICT")
        return tuple(
            replace(
                run,
                run_id=uuid4().hex + uuid4().hex,
                token=uuid4().hex,
                name=run_name(
                    self._node, local.id, task_id, run.party.role, run.party.index, attempt
                ),
                attempt=attempt,
                created_at=self._clock(),
                checkpoint_from=run.checkpoint_from
                if self._goes_on(local.spec, node.name)
                else None,
                owner=local.home or self._owner,
                warnings=tuple(map(str, missing)),
            )
            for run, _, _, missing in plans
        )

    def seats(self, spec: JobSpec) -> Mapping[str, Seat]:
        """Return at which engine each task runs here, and whose it is; what is not registered is not told."""

        def seat(node: DagNode) -> Seat | None:
            with suppress(Refused):
                provider, component = self._find(node)
                return Seat(self._engines[provider.place], frozenset(component.roles))
            return None

        ask = once_per_component(seat)
        found = {node.name: ask(node) for node in spec.dag.nodes}
        return {name: one for name, one in found.items() if one is not None}

    def first_runs(self, spec: JobSpec, node: DagNode) -> list[Run]:
        """Return each party's run of a task here as it would be without the outputs of other tasks."""
        return [self._plan(part).run for part in self._parts(spec, node)]

    def _goes_on(self, spec: JobSpec, task: str) -> bool:
        old = self._store.local_jobs.find(spec.old_job_id) if spec.old_job_id else None
        return old is not None and rerun.may_go_on(
            old.spec, spec, task, spec.parties_at(self._node)
        )

    def _plan(
        self,
        part: _Part,
        task_id: str = "",
        runs: Sequence[Run] = (),
        hidden: Collection[str] = (),
    ) -> _Planned:
        spec, node, party, provider, component = part
        given = effective(spec.task_params, party, node.name)
        values = {k: v.value for k, v in given.items()}
        at = part.own_path
        described = {
            name: value for name, value in values.items() if name not in part.address_parameters
        }
        found = check_values(described, component, at, strict=provider.strict_values)
        stands = {
            join(at, k): join(f"config.task_params.{v.origin}.{node.name}", k)
            for k, v in given.items()
        }
        problems = [Problem(stands.get(p.path, p.path), *p[1:]) for p in found.errors]
        warnings = [Problem(stands.get(p.path, p.path), *p[1:]) for p in found.warnings]
        matched = part.outputs
        prefix = f"{spec.job_id}-{party.role}-{party.index}"
        inputs, wrong, missing = self._inputs(part, runs, hidden)
        of_model = self.models.inputs(spec, party, node, component)
        declared = {one.name for one in component.inputs}
        rule = "receives a model, but its description has no input of category model: an image that ignores it trains"
        warnings += [Problem(part.path, rule, name) for name in of_model if name not in declared]
        inputs = {**of_model, **inputs}
        engine = self._engines[provider.place]
        storage = (
            self._storage_for(component, [one.storage for one in inputs.values()], engine) or ""
        )
        outputs = {
            name: Address(prefix, f"{task_id}-{key}", storage) for key, name in matched.items()
        }
        granted = resources.granted(spec, party, self._defaults)
        image = provider.image_for(node.component.name)
        at = storage if engine in self._apart else ""
        checkpoint, checkpoint_from = rerun.checkpoints(spec, node.name, party, at)
        run = Run(
            run_id="",
            name="",
            task_id=task_id,
            task_name=node.name,
            party=party,
            component=node.component,
            image=image,
            image_profile=provider.metadata.get("profile") or "",
            declared={
                name: provider.metadata[name] for name in DECLARED if provider.metadata.get(name)
            },
            created_at=self._clock(),
            engine=engine,
            parameters=values,
            inputs=inputs,
            outputs=outputs,
            output_keys=matched,
            checkpoint=checkpoint,
            checkpoint_from=checkpoint_from,
            limits={
                "cpu": granted.cpu,
                "memory": granted.memory,
                "disk": granted.disk,
                "pids": self._defaults.for_role(party.role)[0].pids,
                **({"gpu": granted.gpu} if granted.gpu else {}),
            },
            limit_origins=granted.origins,
            roles=component.roles,
            results=component.results,
            expected_digest=provider.digests.get(image, ""),
            to_seal=models.to_seal(spec, node, matched),
        )
        return _Planned(run, [*problems, *wrong], warnings, missing)

    def _unreadable(self, part: _Part, where: Mapping[str, str]) -> Iterator[Problem]:
        """Find a table of Parquet whose input does not list that: the standard's components read CSV."""
        form, spec = self._datasets.format(**where), part.component.inputs[0]
        if form != CSV and form not in (one.lower() for one in spec.formats):
            listed = f"lists {', '.join(spec.formats)}" if spec.formats else "lists nothing"
            rule = f"FORMAT_MISMATCH: the table is {form}; dataFormat of input {spec.name} {listed}"
            yield Problem(
                part.own_data_path, f"{rule}: have it list {form}, or upload the table as CSV"
            )

    def _other_formats(
        self,
        part: _Part,
        plans: _Plans,
        hidden: Collection[str],
    ) -> Iterator[Problem]:
        """Find inputs that do not list the format of what feeds them."""
        component = part.component
        inputs = {one.name: one for one in component.inputs}
        where = part.own_data
        is_csv = (
            where and part.own_data_path not in hidden and self._datasets.format(**where) == CSV
        )
        if is_csv and inputs and (found := format_problem(CSV, component.inputs[0], part.own_path)):
            yield found
        for edge, name in part.inputs:
            if name and (source := plans.get((edge.task, part.party))):
                output = source[0].outputs.get(edge.key)
                written = next(
                    (o.formats for o in source[0].component.outputs if o.name == output), ()
                )
                if written and (
                    found := format_problem(written[0], inputs[name], f"{part.path}.input")
                ):
                    yield Problem(
                        found.path, f"{found.rule}, from {edge.task}.{edge.key}", found.got
                    )

    def _inputs(
        self,
        part: _Part,
        runs: Sequence[Run],
        hidden: Collection[str],
    ) -> tuple[dict[str, Address], list[Problem], list[Problem]]:
        """Return a task's inputs, what is wrong with its own data, and which outputs before it are not there."""
        found: dict[str, Address] = {}
        wrong: list[Problem] = []
        missing: list[Problem] = []
        where = part.own_data
        if where and part.component.inputs and part.own_data_path not in hidden:
            try:
                found[part.component.inputs[0].name] = self._datasets.resolve(**where)
                wrong += self._unreadable(part, where)
            except StorageFailed:  # later it may be there
                raise
            except GatewayError as error:
                key = "dataset_id" if "dataset_id" in where else "name"
                rule = f"{error.reason}: {error.message}"
                wrong.append(Problem(part.own_data_path, rule, where.get(key)))
        for edge, name in part.inputs:
            run = next(
                (r for r in reversed(runs) if r.task_name == edge.task and r.party == part.party),
                None,
            )
            if not name or run is None or edge.key not in run.output_keys:
                continue  # this party had no part in the upstream task
            found[name] = run.outputs[run.output_keys[edge.key]]
            if not self.storage.exists(found[name]):
                rule = f"{part.party.label} has no output {edge.key} of task {edge.task}"
                missing.append(Problem(f"{part.path}.input", rule, f"{edge.task}.{edge.key}"))
        return found, wrong, missing


def _once(problems: Sequence[Problem]) -> list[Problem]:
    """Leave out what several parties share word for word, such as a problem of a common parameter."""
    return list({str(one): one for one in problems}.values())


def _without_effect(part: _Part, at: str) -> Iterator[Problem]:
    """Find inputs and outputs of the flow that the description has no counterpart for: no container gets them."""
    inputs = [(f"{edge.type} {edge.task}.{edge.key}", name) for edge, name in part.inputs]
    outputs = [(f"{one.type} {one.key}", part.outputs.get(one.key)) for one in part.node.outputs]
    for side, found, specs in (
        ("input", inputs, part.component.inputs),
        ("output", outputs, part.component.outputs),
    ):
        described = ", ".join(f"{spec.name} ({spec.category})" for spec in specs) or "none"
        for j, (what, name) in enumerate(found):
            if not name:
                rule = f"has no counterpart among the {side}s that {part.component.name} describes, {described}"
                remedy = "take it out of the flow, or have the description name it"
                yield Problem(f"{at}.{side}[{j}]", f"{rule}: {remedy}", what)


def _unused_or_forgotten(part: _Part) -> Iterator[Problem]:
    """Find a dataset that no container gets, and a task that begins without one.

    The format of descriptions cannot say which inputs are required; an arbiter has no data of its own.
    """
    node = part.node
    own = overlay(part.spec.task_params, part.party, node.name).get("dataset_id")
    if node.inputs and own:
        rule = f"is ignored, as the task reads {', '.join(sorted(node.upstream))}: leave one of the two out"
        yield Problem(f"config.task_params.{own.origin}.{node.name}.dataset_id", rule, own.value)
    first = next(iter(part.component.inputs), None)
    if own and own.value and not node.inputs and first is None:
        rule = f"is ignored, as {part.component.name} describes no input: leave it out"
        yield Problem(f"config.task_params.{own.origin}.{node.name}.dataset_id", rule, own.value)
    given = node.inputs or part.own_data
    if (
        first
        and first.group == "data"
        and first.category != "cache"
        and part.party.role != "arbiter"
        and not given
    ):
        rule = f"is missing: {part.component.name} reads {first.name} and would start without it; name a dataset"
        yield Problem(f"{part.own_path}.dataset_id", rule)


@dataclass
class Offer:
    """What this node can take over for a job, and why not the rest."""

    tasks: list[str] = field(default_factory=list)
    """in the order of the flow; with those in which this node has no role"""
    runs: list[Run] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)


class Inheritance:
    """Compares a party's side of two jobs."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        planner: TaskPlanner,
        digest_of: Callable[[Run], str],
    ) -> None:
        """``digest_of`` returns the digest of a run's image at its engine now; it may raise an engine's errors."""
        self._node = node
        self._store = store
        self._planner = planner
        self._digest_of = digest_of

    def offer(self, spec: JobSpec) -> Offer:
        """Return what can be taken over here. Raises `Refused` where the job demands what cannot."""
        offer = Offer()
        wanted = spec.settings.inherit
        old = self._store.local_jobs.find(spec.old_job_id)
        digests: dict[tuple[str, str], str] = {}
        for name in order(spec.dag):
            if wanted is not None and name not in wanted:
                continue
            why, runs = self._look(spec, old, spec.dag[name], offer, digests)
            if why:
                offer.lacking[name] = why
            else:
                offer.tasks.append(name)
                offer.runs += runs
        if wanted is not None and offer.lacking:
            text = "; ".join(
                f"task {name} of job {spec.old_job_id}: {why}"
                for name, why in offer.lacking.items()
            )
            raise Refused(f"cannot inherit {text}", reason=rerun.REASON)
        return offer

    def _look(
        self,
        spec: JobSpec,
        old: LocalJob | None,
        node: DagNode,
        offer: Offer,
        digests: dict[tuple[str, str], str],
    ) -> tuple[str, list[Run]]:
        if old is None or spec.scheduler not in (*old.spec.nodes, old.spec.scheduler):
            return f"this node {self._node} has no such job", []
        if old.spec.scheduler != spec.scheduler:
            return "another node scheduled it", []
        mine = spec.parties_at(self._node)
        why = rerun.difference(rerun.in_force(old), spec, node.name, mine)
        if why := why or rerun.lost_upstream(spec, node.name, offer.tasks):
            return why, []
        runs = []
        for new in self._planner.first_runs(spec, node):
            run = next((r for r in reversed(old.standing(node.name)) if r.party == new.party), None)
            if run is None or run.status is not RunStatus.SUCCESS:
                return f"{new.party.label} has not finished it here", []
            if why := self._changed(run, new, node, digests):
                return why, []
            runs.append(replace(run, of_job=run.of_job or old.id))
        return "", runs

    def _changed(
        self,
        run: Run,
        new: Run,
        node: DagNode,
        digests: dict[tuple[str, str], str],
    ) -> str:
        who, image, at = run.party.label, new.image, (new.engine, new.image)
        if any(run.inputs.get(name) != address for name, address in new.inputs.items()):
            return f"the inputs of {who} differ"
        for key, name in run.output_keys.items():
            address = run.outputs[name]
            if not self._planner.storage.exists(address):
                return f"output {key} of {who} is gone ({address.dataset_id})"
        if missing := [o.key for o in node.outputs if o.key not in run.output_keys]:
            return f"{who} has no output {missing[0]}"
        try:
            if at not in digests:
                digests[at] = self._digest_of(new)
        except (EngineError, EngineFailed) as error:
            return f"image {image} cannot be looked at ({error.reason})"
        if run.image_digest and digests[at] != run.image_digest:
            return (
                f"the image digest differs: {image} is {digests[at]} now and was {run.image_digest}"
            )
        return ""

    def keep(self, spec: JobSpec, offer: Offer) -> None:
        """Write into the earlier jobs who needs their outputs, so that cleaning leaves them."""

        def kept(local: LocalJob) -> LocalJob:
            return (
                local
                if spec.job_id in local.heirs
                else replace(local, heirs=(*local.heirs, spec.job_id))
            )

        for job_id in dict.fromkeys(run.of_job for run in offer.runs):
            self._store.local_jobs.update(job_id, kept)

    def keeper(self, address: Address) -> Sequence[str]:
        """Say which jobs here took over what lies at an address, and count on it."""
        try:
            local = self._store.local_jobs.get(job_of(address))
        except GatewayError:
            return ()
        return [
            f"inherited by job {heir}" for heir in local.heirs if self._counts_on(heir, address)
        ]

    def _counts_on(self, heir: str, address: Address) -> bool:
        later = self._store.local_jobs.find(heir)
        if later is None or later.status is JobStatus.REJECTED:
            return False
        return any(address in run.outputs.values() for run in later.standing() if run.of_job)
