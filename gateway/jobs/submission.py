"""How a job that was submitted begins at the node that schedules it: what is checked, and its first record."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from uuid import uuid4

from gateway.domain import dag as flow
from gateway.domain import inheritance, retries, validation
from gateway.domain.dag import Dag, DagNode
from gateway.domain.job import Job, Lineage, NodeJob, NodeTask, Task
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, TaskStatus, ended
from gateway.errors import Invalid, Refused
from gateway.runtime.context import NodeContext, Peers, acting_user, by_user
from provider_registry.model import ANY
from provider_registry.registry import Registry, Unknown
from route_table.live import LiveRoutes
from route_table.model import UnknownNode


def open_versions(spec: JobSpec, registry: Registry) -> Iterator[Problem]:
    """Yield a problem for every task whose open version this node cannot fill in."""
    for node in _open(spec):
        try:
            _newest(node, registry)
        except Unknown as error:
            rule = f"stands for the newest version that the scheduling node has in use, but here {error.message}"
            yield Problem(f"dag.components.{node.name}.version", rule, ANY, "a version by its number")


def with_versions(spec: JobSpec, registry: Registry) -> tuple[JobSpec, list[str]]:
    """Return the job with the versions that its tasks use, and what was chosen, in words.

    Raises `Unknown` where there is nothing to choose from, which `open_versions` reports before.
    """
    chosen = {node.name: _newest(node, registry) for node in _open(spec)}
    if not chosen:
        return spec, []
    nodes = tuple(
        replace(node, component=replace(node.component, version=chosen.get(node.name, node.component.version)))
        for node in spec.dag.nodes
    )
    words = [
        f"task {node.name} uses {node.component}, the newest version in use when the job was created (asked for *)"
        for node in nodes
        if node.name in chosen
    ]
    return replace(spec, dag=Dag(nodes, spec.dag.version)), words


def _open(spec: JobSpec) -> Iterator[DagNode]:
    return (node for node in spec.dag.nodes if node.component.version == ANY)


def _newest(node: DagNode, registry: Registry) -> str:
    return registry.newest(node.component.provider, node.component.name)


def roles_of(registry: Registry, task: DagNode) -> tuple[str, ...] | None:
    """Return the roles that take part in a task; None where its component is not registered here."""
    ref = task.component
    try:
        return registry.find(ref.provider, ref.version, ref.name)[1].roles
    except Unknown:
        return None


@dataclass(frozen=True)
class Intake:
    """Whether new jobs are accepted just now."""

    draining: threading.Event
    """set while this node takes no new jobs"""
    quota: Callable[[NodeId], None]
    """raises `Busy` for a node that has as many unfinished jobs here as it may"""

    def check(self, sender: NodeId = "") -> None:
        """Raise `Refused` while this node is drained, `Busy` where the sender may have no further job here."""
        if self.draining.is_set():
            raise Refused("this node is being drained and takes no new jobs", reason="DRAINING")
        if sender:
            self.quota(sender)


class NewJobs:
    """Says whether a job can be scheduled here, and makes its record."""

    def __init__(self, context: NodeContext, peers: Peers, registry: Registry, routes: LiveRoutes) -> None:
        self._store = context.store
        self._clock = context.clock
        self._peers = peers
        self._registry = registry
        self._routes = routes

    def check(self, spec: JobSpec) -> list[str]:
        """Return warnings about a job as far as this node can tell. Raises `Invalid` with every problem."""
        problems, warnings = validation.check(spec, self._roles)
        for party in spec.parties:
            try:
                if party.node != self._peers.node:
                    self._routes.table.resolve(party.node)
            except UnknownNode as error:
                at = f"config.role.{party.role}[{party.index}]"
                problems.append(Problem(at, str(error), party.node))
        if spec.scheduler == self._peers.node:
            problems += open_versions(spec, self._registry)
        if problems:
            unknown_only = all(_names_a_party(p) for p in problems)
            raise Invalid(problems, reason="NODE_UNKNOWN" if unknown_only else None)
        return [str(w) for w in warnings]

    def made(self, spec: JobSpec) -> Job:
        """Return the record of a job that begins. Raises `Invalid` with every problem."""
        warnings, submitted = self.check(spec), digest(spec)
        try:
            spec, chosen = with_versions(spec, self._registry)
        except Unknown as error:  # it was retired since the check
            raise Refused(error.message, reason=error.reason) from error
        lineage, not_inherited = self._inherited(spec)
        numbered = self._peers.numbers_tasks(spec)
        tasks = {}
        roles_of = flow.once_per_component(self._roles)
        for name, roles in ((node.name, roles_of(node)) for node in spec.dag.nodes):
            here: dict[NodeId, dict[str, TaskStatus]] = {}
            for party in spec.parties:
                if roles is None or party.role in roles:
                    here.setdefault(party.node, {})[party.role] = TaskStatus.PENDING
            tasks[name] = Task(
                name,
                retries.telling(spec.job_id, name, 0) if numbered else f"task_{uuid4().hex}",
                TaskStatus.PENDING,
                {node: NodeTask(node, states) for node, states in here.items()},
                lineage=lineage.get(name),
            )
        idle = [name for name, task in tasks.items() if not task.nodes]
        if idle:
            raise Invalid(
                Problem(f"dag.components.{n}", "no node of the job has a role in this component", n) for n in idle
            )
        return Job(
            spec,
            JobStatus.PENDING,
            self._clock(),
            {n: NodeJob(n) for n in spec.nodes},
            tasks,
            warnings=(*chosen, *warnings, *not_inherited),
            digest=submitted,
            user=acting_user(),
        ).noted(self._clock(), "job PENDING", spec.initiator, **by_user())

    def _inherited(self, spec: JobSpec) -> tuple[dict[str, Lineage], list[str]]:
        """Return what the job may take over as far as this node knows, and why it may not take over more.

        Raises `Invalid` with INHERITANCE_FAILED where the job demands what it cannot have.
        """
        if not spec.old_job_id:
            return {}, []
        old = self._store.jobs.find(spec.old_job_id)
        if old is None or not ended(JOB, old.status):
            state = "no such job is scheduled here" if old is None else f"it is still {old.status}"
            raise Invalid([Problem("old_job_id", state, spec.old_job_id)], reason=inheritance.REASON)
        found, lacking = inheritance.candidates(old, spec)
        if lacking and inheritance.demanded(spec) is not None:
            at = "config.job_params.common.inherit"
            problems = [Problem(at, f"task {n} of job {old.id}: {why}", n) for n, why in lacking.items()]
            raise Invalid(problems, reason=inheritance.REASON)
        return found, [f"task {name} is not inherited: {why}" for name, why in lacking.items()]

    def _roles(self, task: DagNode) -> tuple[str, ...] | None:
        return roles_of(self._registry, task)


def _names_a_party(problem: Problem) -> bool:
    return problem.path.startswith("config.role.") and problem.path.endswith("]")


def digest(spec: JobSpec) -> str:
    """Return a fingerprint of what was submitted; without the trace id."""
    body = asdict(replace(spec, trace_id=""))
    body["dag"].pop("_by_name", None)
    body.pop("unknown_fields")  # no other node has it
    if not spec.old_job_id:
        body.pop("old_job_id")  # as it was before there was such a field
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
