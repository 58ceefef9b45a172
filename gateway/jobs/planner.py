"""What a job's tasks need at this node: components, parameters, data in and out, limits; and what is wrong."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from engines.base import run_name
from gateway.data.datasets import Datasets
from gateway.data.models import Models
from gateway.domain import checkpoints, models, parameters, resources, validation
from gateway.domain.dag import DagNode, once_per_component
from gateway.domain.datasets import same_family
from gateway.domain.problems import Problem
from gateway.domain.resources import Defaults, Seat
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import JobSpec, Party
from gateway.errors import GatewayError, Invalid, Refused
from gateway.ports import Outputs
from gateway.runtime.context import NodeContext
from provider_registry.matching import format_problem, match_inputs, match_outputs
from provider_registry.model import Component, Provider, join
from provider_registry.registry import Registry, Unknown
from provider_registry.values import check as check_values

TABLE_FORMAT = "csv"
"""how uploaded tables lie in the storage"""
STORAGE_KIND = "file"
"""what containers get their data from, in the words of ``storageEngine``"""


@dataclass(frozen=True)
class _Planned:
    """One local run as it will be started, or what is wrong with it."""

    party: Party
    component: Component
    provider: Provider
    parameters: Mapping[str, Any]
    inputs: Mapping[str, Address]
    outputs: Mapping[str, Address]
    output_keys: Mapping[str, str]
    limits: Mapping[str, float | None]
    limit_origins: Mapping[str, str]
    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = field(default=())


class TaskPlanner:
    """Turns tasks of a job into runs of this node."""

    def __init__(
        self,
        context: NodeContext,
        registry: Registry,
        datasets: Datasets,
        outputs: Outputs,
        models: Models,
        defaults: Defaults,
        engines: Mapping[str, str],
    ) -> None:
        """``engines``: which daemon a provider may name, and what the engine for it is called."""
        self.registry = registry
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._owner = context.owner
        self._datasets = datasets
        self._outputs = outputs
        self._models = models
        self._defaults = defaults
        self._engines = engines

    def check(self, spec: JobSpec) -> tuple[list[Problem], list[Problem]]:
        """Find what is wrong here with a job: (problems that refuse it, warnings)."""
        problems: list[Problem] = []
        warnings: list[Problem] = []
        elsewhere: dict[str, Problem] = {}
        for i, node in enumerate(spec.dag.nodes):
            try:
                provider, component = self._find(node)
            except Refused as error:
                problems.append(
                    Problem(f"dag.components[{i}]", f"{error.reason}: {error.message}", str(node.component))
                )
                continue
            for party in spec.parties_at(self._node):
                if party.role not in component.roles:
                    continue
                if warning := _storage_problem(node, component):
                    elsewhere.setdefault(str(node.component), warning)
                plan = self._plan(spec, node, "", party, provider, component)
                problems += plan.problems
                warnings += plan.warnings
                warnings += self._format_warnings(spec, node, party, component)
        return validation.applied(spec, _once(problems), _once([*elsewhere.values(), *warnings]))

    def _format_warnings(self, spec: JobSpec, node: DagNode, party: Party, component: Component) -> list[Problem]:
        inputs = {spec.name: spec for spec in component.inputs}
        if not node.inputs:
            own = parameters.data_location(spec.task_params, party, node.name)
            at = f"config.task_params.{party.label}.{node.name}"
            found = [format_problem(TABLE_FORMAT, component.inputs[0], at)] if own and component.inputs else []
            return [Problem(*p) for p in found if p]
        matched = match_inputs([(i.type, f"{i.task}.{i.key}") for i in node.inputs], component.inputs)
        warnings = []
        for wanted, name in matched.items():
            task, _, key = wanted.partition(".")
            upstream = spec.dag[task]
            try:
                _, source = self._find(upstream)
            except Refused:  # told as a problem of that task
                continue
            outputs = match_outputs([(o.type, o.key) for o in upstream.outputs], source.outputs)
            formats = next((o.formats for o in source.outputs if o.name == outputs.get(key)), ())
            if formats and (
                problem := format_problem(formats[0], inputs[name], f"dag.components.{node.name}.input")
            ):
                warnings.append(Problem(problem.path, f"{problem.rule}, from {wanted}", problem.got))
        return warnings

    def _find(self, node: DagNode, at: datetime | None = None) -> tuple[Provider, Component]:
        ref = node.component
        try:
            provider, component = self.registry.find(ref.provider, ref.version, ref.name, at=at)
        except Unknown as error:
            raise Refused(str(error), reason=error.reason) from error
        if provider.base_url not in self._engines:
            text = (
                f"{provider.key} is to run at {provider.base_url}, which the admin of node {self._node} has not "
                "allowed (engine.docker.daemons)"
            )
            raise Refused(text, reason="DAEMON_NOT_ALLOWED")
        return provider, component

    def runs(self, local: LocalJob, node: DagNode, task_id: str) -> tuple[Run, ...]:
        """Return the runs of a task here, one per party.

        Raises `Refused` (NO_ROLE_HERE, COMPONENT_UNKNOWN, …), `Invalid` (INPUT_MISSING).
        """
        provider, component = self._find(node, local.created_at)
        parties = [p for p in local.spec.parties_at(self._node) if p.role in component.roles]
        if not parties:
            raise Refused(
                f"{node.component} has roles {', '.join(component.roles)}, none of which node {self._node} plays",
                reason="NO_ROLE_HERE",
            )
        plans = [self._plan(local.spec, node, task_id, p, provider, component, local.standing()) for p in parties]
        if problems := [p for plan in plans for p in plan.problems]:
            raise Invalid(problems, reason="INPUT_MISSING")
        return tuple(self._run(local, node, task_id, plan) for plan in plans)

    def seats(self, spec: JobSpec) -> Mapping[str, Seat]:
        """Return at which engine each task runs here, and whose it is; what is not registered is not told."""

        def seat(node: DagNode) -> Seat | None:
            with suppress(Refused):
                provider, component = self._find(node)
                return Seat(self._engines[provider.base_url], frozenset(component.roles))
            return None

        ask = once_per_component(seat)
        found = {node.name: ask(node) for node in spec.dag.nodes}
        return {name: one for name, one in found.items() if one is not None}

    def sources(self, spec: JobSpec, node: DagNode) -> list[tuple[Party, str, dict[str, Address]]]:
        """Return each party's image for a task here, and what it reads beside the outputs of other tasks.

        Raises `Refused` where the component is not registered.
        """
        provider, component = self._find(node)
        found = []
        for party in spec.parties_at(self._node):
            if party.role in component.roles:
                plan = self._plan(spec, node, "", party, provider, component)
                found.append((party, provider.image_for(node.component.name), dict(plan.inputs)))
        return found

    def follows(self, spec: JobSpec) -> bool:
        """Tell whether a job may have the checkpoints of the earlier one that it names."""
        old = self._store.local_jobs.find(spec.old_job_id) if spec.old_job_id else None
        return old is not None and same_family(old.spec, spec)

    def _run(self, local: LocalJob, node: DagNode, task_id: str, plan: _Planned) -> Run:
        party = plan.party
        attempt = len({run.task_id for run in local.runs if run.task_name == node.name})
        return Run(
            run_id=uuid4().hex + uuid4().hex,
            token=uuid4().hex,
            name=run_name(self._node, local.id, task_id, party.role, party.index, attempt),
            attempt=attempt,
            task_id=task_id,
            task_name=node.name,
            party=party,
            component=node.component,
            image=plan.provider.image_for(node.component.name),
            engine=self._engines[plan.provider.base_url],
            created_at=self._clock(),
            parameters=plan.parameters,
            inputs=plan.inputs,
            outputs=plan.outputs,
            output_keys=plan.output_keys,
            checkpoint=checkpoints.place(local.spec, node.name, party),
            checkpoint_from=checkpoints.source(local.spec, node.name, party) if self.follows(local.spec) else None,
            limits=plan.limits,
            limit_origins=plan.limit_origins,
            roles=plan.component.roles,
            results={r.code: r.message for r in plan.component.results},
            owner=local.home or self._owner,
            expected_digest=plan.provider.digests.get(plan.provider.image_for(node.component.name), ""),
            to_seal=models.to_seal(local.spec, node, plan.output_keys),
        )

    def _plan(
        self,
        spec: JobSpec,
        node: DagNode,
        task_id: str,
        party: Party,
        provider: Provider,
        component: Component,
        runs: Sequence[Run] = (),
    ) -> _Planned:
        effective = parameters.effective(spec.task_params, party, node.name)
        values = {k: v.value for k, v in effective.items()}
        at = f"config.task_params.{party.label}.{node.name}"
        found = check_values(values, component, at)
        stands = {join(at, k): join(f"config.task_params.{v.origin}.{node.name}", k) for k, v in effective.items()}
        problems = [Problem(stands.get(p.path, p.path), *p[1:]) for p in found.errors]
        warnings = [Problem(stands.get(p.path, p.path), *p[1:]) for p in found.warnings]
        matched = match_outputs([(o.type, o.key) for o in node.outputs], component.outputs)
        prefix = f"{spec.job_id}-{party.role}-{party.index}"
        outputs = {name: Address(prefix, f"{task_id}-{key}") for key, name in matched.items()}
        inputs, missing = self._inputs(spec, node, party, component, runs, at)
        of_model = self._models.inputs(spec, party, node, component)
        warnings += _undeclared(node, component, of_model)
        inputs = {**of_model, **inputs}
        granted = resources.granted(spec, party, self._defaults)
        return _Planned(
            party,
            component,
            provider,
            values,
            inputs,
            outputs,
            dict(matched),
            {
                "cpu": granted.cpu,
                "memory": granted.memory,
                "disk": granted.disk,
                "pids": self._defaults.for_role(party.role)[0].pids,
            },
            granted.origins,
            [*problems, *missing],
            warnings,
        )

    def _inputs(
        self, spec: JobSpec, node: DagNode, party: Party, component: Component, runs: Sequence[Run], at: str
    ) -> tuple[dict[str, Address], list[Problem]]:
        if not node.inputs:
            return self._own_data(spec, node, party, component, at)
        found: dict[str, Address] = {}
        problems: list[Problem] = []
        matched = match_inputs([(i.type, f"{i.task}.{i.key}") for i in node.inputs], component.inputs)
        for wanted, name in matched.items():
            task, _, key = wanted.partition(".")
            run = next((r for r in reversed(runs) if r.task_name == task and r.party == party), None)
            if run is None or key not in run.output_keys:
                continue  # this party had no part in the upstream task
            address = run.outputs[run.output_keys[key]]
            if self._outputs.exists(address):
                found[name] = address
            else:
                rule = f"{party.label} has no output {key} of task {task}"
                problems.append(Problem(f"dag.components.{node.name}.input", rule, wanted))
        return found, problems

    def _own_data(
        self, spec: JobSpec, node: DagNode, party: Party, component: Component, at: str
    ) -> tuple[dict[str, Address], list[Problem]]:
        where = parameters.data_location(spec.task_params, party, node.name)
        if where is None or not component.inputs:
            return {}, []
        try:
            address = self._datasets.resolve(**where)
        except GatewayError as error:
            key = "dataset_id" if "dataset_id" in where else "name"
            return {}, [Problem(f"{at}.{key}", error.message, where.get(key))]
        return {component.inputs[0].name: address}, []


def _once(problems: Sequence[Problem]) -> list[Problem]:
    """Leave out what several parties share word for word, such as a problem of a common parameter."""
    return list({str(one): one for one in problems}.values())


def _undeclared(node: DagNode, component: Component, of_model: Mapping[str, Address]) -> list[Problem]:
    declared = {spec.name for spec in component.inputs}
    rule = "receives a model, but its description has no input of category model: an image that ignores it trains"
    return [Problem(f"dag.components.{node.name}", rule, name) for name in of_model if name not in declared]


def _storage_problem(node: DagNode, component: Component) -> Problem | None:
    if not component.storage_engines or STORAGE_KIND in map(str.lower, component.storage_engines):
        return None
    rule = f"the description's storageEngine does not list {STORAGE_KIND}, which is what this node has"
    return Problem(f"dag.components.{node.name}", rule, list(component.storage_engines))
