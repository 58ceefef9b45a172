"""How a job begins: whether this node takes new ones, what is checked of one, its first record, its dry run."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import structlog

from gateway.domain import dag as flow
from gateway.domain import dry_run, rerun, retries, validation
from gateway.domain.dag import Dag, DagNode
from gateway.domain.dry_run import (
    Item,
    JobPlan,
    NodePlan,
    Standing,
    as_problems,
    fine,
    in_order,
    problem,
    warning,
)
from gateway.domain.job import Job, Lineage, NodeJob, NodeTask, Task
from gateway.domain.problems import Problem
from gateway.domain.spec import PROVIDERS, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, TaskStatus, ended
from gateway.errors import GatewayError, Invalid, NotAllowed, NotServed, Refused, TooLarge
from gateway.ports import Clock
from gateway.runtime.context import NodeContext, Peers, acting_user, by_user, traced
from gateway.runtime.loop import Loop
from gateway.runtime.trials import Result, Step
from gateway.store import queries
from gateway.store.store import Store
from provider_registry.model import ANY, differing
from provider_registry.registry import Registry, Unknown
from route_table.live import LiveRoutes
from route_table.model import UnknownNode

log = structlog.get_logger(__name__)

STOP_AGAIN = 5.0
"""seconds between two requests to stop what does not end"""
LARGEST = 8_000_000
"""characters of a stored job; 1000 tasks with twenty parameters each take about a million"""
_NODES_AT_A_TIME = 8
_LINK = ("profile", "way back")
"""steps of a route test that are rows of their own in a dry run; all others are the route"""
_STANDING = {
    Result.OK: Standing.OK,
    Result.FAILED: Standing.PROBLEM,
    Result.WARNING: Standing.UNKNOWN,
    Result.SKIPPED: Standing.UNKNOWN,
}


@dataclass(frozen=True)
class Intake:
    """Whether new jobs are accepted just now."""

    draining: threading.Event
    """set while this node takes no new jobs"""
    quota: Callable[[NodeId], None]
    """raises `Busy` for a node that has as many unfinished jobs here as it may"""
    may_begin: Callable[[NodeId], bool]
    """whether a node has an enabled route of its own"""

    def check(self, sender: NodeId = "") -> None:
        """Raise `Refused` while this node is drained, `Busy` where the sender may have no further job here.

        `NotAllowed`: the sender has no enabled route.
        """
        if self.draining.is_set():
            raise Refused("this node is being drained and takes no new jobs", reason="DRAINING")
        if sender:
            if not self.may_begin(sender):
                raise NotAllowed(
                    f"node {sender} has no enabled route here: ask the admin of this node for one"
                )
            self.quota(sender)


@dataclass(frozen=True)
class _Order:
    since: datetime
    stop: bool
    """jobs are stopped"""
    leave: bool
    """the process ends afterwards"""


class Drain:
    """Empties a node: no new job is taken, those under way end or are stopped, then the process leaves.

    It is an order to this process alone and is not stored: a gateway that is started again takes jobs again.
    """

    def __init__(
        self,
        store: Store,
        stop_job: Callable[[str], None],
        clock: Clock,
        look_every: float = 0.5,
    ) -> None:
        """``stop_job`` has a job stopped at every node."""
        self.draining = threading.Event()
        """set while no new job is taken"""
        self._store = store
        self._stop_job = stop_job
        self._clock = clock
        self._order: _Order | None = None
        self._stopped_at: datetime | None = None
        self._leave: Callable[[], None] = lambda: None
        self._loop = Loop("drain", self._look, lambda _: ["drain"], every=look_every, workers=1)
        self._alone = threading.Lock()
        self._begun = False

    def on_empty(self, leave: Callable[[], None]) -> None:
        """Name what ends the process once nothing is under way."""
        self._leave = leave

    def begin(self, *, stop: bool, leave: bool) -> dict[str, Any]:
        """Take no new jobs from now on; a second order takes the place of the first."""
        with self._alone:
            since = self._order.since if self._order else self._clock()
            self._order = _Order(since, stop, leave)
            self.draining.set()
            if not self._begun:
                self._begun = True
                self._loop.start()
        self._loop.wake("drain")
        log.info("draining", stop=stop, leave=leave)
        return self.state()

    def undo(self) -> dict[str, Any]:
        """Take jobs again. What was stopped stays stopped."""
        with self._alone:
            undone, self._order = self._order, None
            self.draining.clear()
        if undone:
            log.info("draining was called off")
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return what was ordered and what is still under way."""
        order, left = self._order, queries.under_way(self._store)
        return {
            "draining": order is not None,
            "since": order.since.isoformat() if order else None,
            "running": None if order is None else "stop" if order.stop else "wait",
            "exit": bool(order and order.leave),
            "jobs": [{"job_id": job_id, "status": status} for job_id, status in left],
        }

    def close(self) -> None:
        """End the wait, without the process leaving; for one that ends in another way."""
        self._loop.stop()

    def _look(self, _: str) -> None:
        order, now = self._order, self._clock()
        if order is None:
            return
        left = queries.under_way(self._store)
        stopped_at = self._stopped_at
        if order.stop and (stopped_at is None or (now - stopped_at).total_seconds() >= STOP_AGAIN):
            self._stopped_at = now
            for job_id, _status in left:
                self._stop(job_id)
        if order.leave and not left and order is self._order:
            log.info("nothing is under way any more: leaving")
            leave, self._leave = self._leave, lambda: None  # once
            leave()

    def _stop(self, job_id: str) -> None:
        try:
            self._stop_job(job_id)
        except GatewayError as error:  # the node that schedules it may not answer just now
            log.warning(
                "not stopped",
                job=job_id,
                reason=error.reason,
                cause=error.message,
            )


class NewJobs:
    """Says whether a job can be scheduled here, and makes its record."""

    def __init__(
        self,
        context: NodeContext,
        peers: Peers,
        registry: Registry,
        routes: LiveRoutes,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._peers = peers
        self._registry = registry
        self._routes = routes

    def check(self, spec: JobSpec) -> list[str]:
        """Return warnings about a job as far as this node can tell. Raises `Invalid` with every problem."""
        return self._checked(spec)[1]

    def _checked(self, spec: JobSpec) -> tuple[JobSpec, list[str], list[str], str]:
        """Return the job with its versions, warnings, what versions were chosen, and its fingerprint."""
        submitted = digest(spec)
        problems, warnings = validation.check(spec, self._roles)
        for party in spec.parties:
            try:
                if party.node != self._peers.node:
                    self._routes.table.resolve(party.node)
            except UnknownNode as error:
                at = f"config.role.{party.role}[{party.index}]"
                problems.append(Problem(at, str(error), party.node))
        filled, chosen, open_ = with_versions(spec, self._registry)
        unlike, not_compared = self._other_providers(filled)
        problems += unlike
        warnings += not_compared
        if spec.scheduler == self._peers.node:
            problems += open_
        if problems:
            raise Invalid(
                problems, reason="NODE_UNKNOWN" if all(map(_names_a_party, problems)) else None
            )
        return filled, [str(w) for w in warnings], chosen, submitted

    def _other_providers(self, spec: JobSpec) -> tuple[list[Problem], list[Problem]]:
        """Compare the components that parties have in place of the flow's with those: (problems, warnings)."""
        problems, warnings = [], []
        for party in spec.parties:
            for task, ref in spec.providers_of(party).items():
                at = f"config.job_params.{party.role}.{party.index}.{PROVIDERS}.{task}"
                both = (spec.dag[task].component, ref)
                try:
                    usual, own = (
                        self._registry.find(one.provider, one.version, one.name)[1] for one in both
                    )
                except Unknown as error:
                    rule = f"is not compared with {both[0]} here: {error.message}"
                    warnings.append(Problem(at, rule, str(ref)))
                    continue
                if parts := differing(usual, own):
                    rule = f"differs from {both[0]} in {', '.join(parts)}: the parties could not work together"
                    problems.append(Problem(at, rule, str(ref)))
        return problems, warnings

    def made(self, spec: JobSpec) -> Job:
        """Return the record of a job that begins. Raises `Invalid` with every problem."""
        spec, warnings, chosen, submitted = self._checked(spec)
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
                retries.numbered_id(spec.job_id, name, 0) if numbered else f"task_{uuid4().hex}",
                TaskStatus.PENDING,
                {node: NodeTask(node, states) for node, states in here.items()},
                lineage=lineage.get(name),
            )
        idle = [name for name, task in tasks.items() if not task.nodes]
        if idle:
            raise Invalid(
                Problem(f"dag.components.{n}", "no node of the job has a role in this component", n)
                for n in idle
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
        """Return what the job may take over as far as this node knows, and why it may not take over more."""
        if not spec.old_job_id:
            return {}, []
        old = self._store.jobs.find(spec.old_job_id)
        if old is None or not ended(JOB, old.status):
            state = "no such job is scheduled here" if old is None else f"it is still {old.status}"
            raise Invalid([Problem("old_job_id", state, spec.old_job_id)], reason=rerun.REASON)
        found, lacking = rerun.candidates(old, spec)
        if lacking and spec.settings.inherit is not None:
            at = "config.job_params.common.inherit"
            problems = [
                Problem(at, f"task {n} of job {old.id}: {why}", n) for n, why in lacking.items()
            ]
            raise Invalid(problems, reason=rerun.REASON)
        return found, [f"task {name} is not inherited: {why}" for name, why in lacking.items()]

    def _roles(self, task: DagNode) -> tuple[str, ...] | None:
        return roles_of(self._registry, task)


class DryRun:
    """Asks every node of a job what would happen to it; nothing is created."""

    def __init__(
        self,
        peers: Peers,
        registry: Registry,
        check: Callable[[JobSpec], Sequence[str]],
        try_route: Callable[[NodeId], Sequence[Step]],
    ) -> None:
        """``check`` returns the warnings of the node that a job is submitted to; raises `Invalid`."""
        self._peers = peers
        self._registry = registry
        self._check = check
        self._try_route = try_route

    def plan(self, spec: JobSpec) -> JobPlan:
        """Return what every node reports. Creates nothing; a node that is silent is waited for as any call is."""
        spec = with_versions(spec, self._registry)[0]
        nodes = list(dict.fromkeys((*spec.nodes, spec.scheduler)))
        with ThreadPoolExecutor(min(len(nodes), _NODES_AT_A_TIME)) as pool:
            found = tuple(pool.map(lambda node: self._at(spec, node), nodes))
        if self._peers.node in nodes:
            return JobPlan(found)
        return JobPlan((NodePlan(self._peers.node, (), tuple(self._job(spec))), *found))

    def _at(self, spec: JobSpec, node: NodeId) -> NodePlan:
        labels = tuple(party.label for party in spec.parties_at(node))
        with traced(spec.trace_id):
            items = list(self._job(spec) if node == self._peers.node else self._link(node))
            reached = not any(i.check == "route" and i.standing is Standing.PROBLEM for i in items)
            if labels and reached:
                items += self._reported(spec, node)
        return NodePlan(node, labels, in_order(dict.fromkeys(items)))

    def _job(self, spec: JobSpec) -> Iterator[Item]:
        try:
            warnings = self._check(spec)
        except Invalid as error:
            for one in error.problems:
                remedy = (
                    "correct the job, or add the route"
                    if _names_a_party(one)
                    else "correct the job"
                )
                yield from as_problems("job", [one], remedy)
        else:
            yield from (warning("job", text) for text in warnings[: dry_run.REPORTED_WARNINGS])

    def _link(self, node: NodeId) -> Iterator[Item]:
        steps = self._try_route(node)
        link = [s for s in steps if s.name not in _LINK]
        bad = [s for s in link if s.result is Result.FAILED]
        if bad:
            yield from (problem("route", f"{s.name}: {s.cause}", s.remedy) for s in bad)
        else:
            shown = [
                f"{s.name} {s.found}" for s in link if s.name in ("route", "latency") and s.found
            ]
            yield fine("route", ", ".join(shown))
        for step in steps:
            if step.name in _LINK and not (bad and step.result is Result.SKIPPED):
                standing = _STANDING[step.result]
                cause = step.cause or (
                    "this node does not report it" if standing is Standing.UNKNOWN else ""
                )
                yield Item(step.name, standing, step.found, cause, step.remedy)

    def _reported(self, spec: JobSpec, node: NodeId) -> Iterable[Item]:
        peer = self._peers.participant(node, spec.protocol)
        try:
            items = peer.dry_run(spec.for_node(node), self._peers.node)
        except NotServed as error:
            return [
                Item(
                    "reported",
                    Standing.UNKNOWN,
                    cause=f"not reported by this node: {error.message}",
                )
            ]
        except GatewayError as error:
            remedy = (
                "bfia-gateway doctor" if node == self._peers.node else f"ask the admin of {node}"
            )
            return [problem("reported", f"{error.reason}: {error.message}", remedy)]
        return items or [Item("reported", Standing.UNKNOWN, cause="not reported by this node")]


def with_versions(spec: JobSpec, registry: Registry) -> tuple[JobSpec, list[str], list[Problem]]:
    """Fill in the versions that tasks leave open: the newest in use here.

    Return the job, what was chosen in words, and a problem for each task that has nothing to choose from.
    """
    nodes: list[DagNode] = []
    chosen: list[str] = []
    problems: list[Problem] = []
    for node in spec.dag.nodes:
        if node.component.version == ANY:
            try:
                newest = registry.newest(node.component.provider, node.component.name)
            except Unknown as error:
                rule = (
                    "stands for the newest version that the scheduling node has in use, but here "
                )
                rule += error.message
                at = f"dag.components.{node.name}.version"
                problems.append(Problem(at, rule, ANY, "a version by its number"))
            else:
                node = replace(node, component=replace(node.component, version=newest))
                text = "the newest version in use when the job was created (asked for *)"
                chosen.append(f"task {node.name} uses {node.component}, {text}")
        nodes.append(node)
    filled = replace(spec, dag=Dag(tuple(nodes), spec.dag.version)) if chosen else spec
    return filled, chosen, problems


def roles_of(registry: Registry, task: DagNode) -> tuple[str, ...] | None:
    """Return the roles that take part in a task; None where its component is not registered here."""
    ref = task.component
    try:
        return registry.find(ref.provider, ref.version, ref.name)[1].roles
    except Unknown:
        return None


def _names_a_party(problem: Problem) -> bool:
    return problem.path.startswith("config.role.") and problem.path.endswith("]")


def digest(spec: JobSpec) -> str:
    """Return a fingerprint of what was submitted; without the trace id. Raises `Invalid` where it is too large."""
    body = {**vars(spec), "trace_id": ""}
    del body["unknown_fields"], body["bundles"]  # no other node has the former
    if not spec.old_job_id:
        del body["old_job_id"]  # as it was before there was such a field
    text = json.dumps(
        body,
        default=_fields,
        sort_keys=True,
        ensure_ascii=False,
    )
    if (size := len(text) + len(json.dumps(spec.bundles))) > LARGEST:
        rule = f"must not have more than {LARGEST} characters with its signed bundles"
        raise Invalid([Problem("(document)", rule, size)], reason=TooLarge.reason)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _fields(value: Any) -> dict[str, Any]:
    return {name: one for name, one in vars(value).items() if not name.startswith("_")}
