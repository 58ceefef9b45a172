"""Dry run: the report of every node of a job on its creation, without creating anything."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from gateway.domain.dry_run import (
    Item,
    JobPlan,
    NodePlan,
    Standing,
    as_problems,
    as_warnings,
    fine,
    in_order,
    problem,
)
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError, Invalid, NotServed
from gateway.jobs.job_defaults import CompletedJob, JobDefaults
from gateway.jobs.new_jobs import is_missing_route, with_versions
from gateway.runtime.context import Peers, traced
from gateway.runtime.trials import Result, Step
from provider_registry.registry import Registry

_NODES_AT_A_TIME = 8  # nodes asked in parallel

# Steps of a route test that are rows of their own in a dry run; all others count as the route.
_OWN_ROWS = ("profile", "way back")
_SIGNATURE = "signature"

# The standing in the report by the result of a route test's step. It is UNKNOWN for a WARNING, as
# these steps warn that the peer does not have the tested function.
_STANDING = {
    Result.OK: Standing.OK,
    Result.FAILED: Standing.PROBLEM,
    Result.WARNING: Standing.UNKNOWN,
    Result.SKIPPED: Standing.UNKNOWN,
}


class DryRun:
    """Asks every node of a job whether it would accept it."""

    def __init__(
        self,
        peers: Peers,
        registry: Registry,
        check: Callable[[JobSpec], Sequence[Problem]],
        try_route: Callable[[NodeId], Sequence[Step]],
        defaults: JobDefaults,
    ) -> None:
        """``check`` returns this node's warnings about a job submitted here, or raises `Invalid`.

        ``try_route`` tests the route to a node and returns the steps of the test.
        """
        self._peers = peers
        self._registry = registry
        self._check = check
        self._try_route = try_route
        self._defaults = defaults

    def plan(self, spec: JobSpec) -> JobPlan:
        """Return the reports of all nodes; of a silent node, the problem that its call timed out.

        The job gets the node's defaults, as at its submission.
        If this node only submits the job, its checks of the submission are added in front.
        """
        completed = self._defaults.complete(spec)
        spec, _, _ = with_versions(completed.spec, self._registry)
        completed = replace(completed, spec=spec)
        nodes = list(dict.fromkeys((*spec.nodes, spec.scheduler)))
        with ThreadPoolExecutor(min(len(nodes), _NODES_AT_A_TIME)) as pool:
            plans = tuple(pool.map(partial(self._plan_at, completed), nodes))
        if self._peers.node in nodes:
            return JobPlan(_without_refused(plans))
        this_node = NodePlan(
            self._peers.node,
            (),
            tuple(self._submission(completed)),
        )
        return JobPlan(_without_refused((this_node, *plans)))

    def _plan_at(self, job: CompletedJob, node: NodeId) -> NodePlan:
        """Return the checks of one node: first those of the route to it, then its own report.

        For this node, the checks of the submission come first. A node is not asked for a report if
        its route has a problem, or if it plays no party.
        """
        spec = job.spec
        labels = tuple(party.label for party in spec.parties_at(node))
        with traced(spec.trace_id):
            if node == self._peers.node:
                items = list(self._submission(job))
            else:
                items = list(self._route(node))
            if labels and not _has_route_problem(items):
                items += self._reported_items(spec, node)
        # The submission and the report of this node may have equal items.
        return NodePlan(node, labels, in_order(dict.fromkeys(items)))

    def _submission(self, job: CompletedJob) -> Iterator[Item]:
        """Yield the checks that this node makes when the job is submitted, and its defaults."""
        if job.filled_in:
            settings = ", ".join(f"{name} {value}" for name, value in job.filled_in.items())
            yield fine("job", f"defaults of this node: {settings}")
        try:
            warnings = self._check(job.spec)
        except Invalid as error:
            for job_problem in error.problems:
                remedy = "correct the job"
                if is_missing_route(job_problem):
                    remedy = "correct the job, or add the route"
                yield from as_problems("job", [job_problem], remedy)
            return
        yield from as_warnings("job", warnings)

    def _route(self, node: NodeId) -> Iterator[Item]:
        """Yield the test of the route to a node: the route itself, and the steps with own rows.

        Steps that were skipped because another one failed are left out.
        """
        steps = self._try_route(node)
        route_steps = [step for step in steps if not _has_own_row(step)]
        further_steps = [step for step in steps if _has_own_row(step)]
        failed = [step for step in route_steps if step.result is Result.FAILED]
        for step in failed:
            yield problem("route", f"{step.name}: {step.cause}", step.remedy)
        if not failed:
            yield fine("route", _route_summary(route_steps))
        has_fault = any(step.result is Result.FAILED for step in steps)
        for step in further_steps:
            is_left_out = has_fault and step.result is Result.SKIPPED
            if not is_left_out:
                yield _item_of_step(step)

    def _reported_items(
        self,
        spec: JobSpec,
        node: NodeId,
    ) -> Iterable[Item]:
        """Return a node's own report; a single item says why there is none.

        That item is a problem if the call failed, and unknown if the node has no dry run.
        """
        peer = self._peers.participant(node, spec.protocol)
        try:
            items = peer.dry_run(
                spec.for_node(node),
                self._peers.node,
            )
        except NotServed as error:
            cause = f"not reported by this node: {error.message}"
            return [Item("reported", Standing.UNKNOWN, cause=cause)]
        except GatewayError as error:
            remedy = f"ask the admin of {node}"
            if node == self._peers.node:
                remedy = "bfia-gateway doctor"
            return [problem("reported", f"{error.reason}: {error.message}", remedy)]
        if not items:
            return [Item("reported", Standing.UNKNOWN, cause="not reported by this node")]
        return items


def _without_refused(plans: Iterable[NodePlan]) -> tuple[NodePlan, ...]:
    """Leave out the warnings about paths in the job that the check of the submission refuses.

    Without this, a plan would call one parameter refused and "passed on as it is".
    """
    plans = tuple(plans)
    refused = {
        item.about
        for plan in plans
        for item in plan.items
        if item.check == "job" and item.standing is Standing.PROBLEM and item.about
    }
    shortened = []
    for plan in plans:
        items = tuple(item for item in plan.items if not _warns_of(item, refused))
        shortened.append(replace(plan, items=items))
    return tuple(shortened)


def _warns_of(item: Item, paths: Set[str]) -> bool:
    """Return whether an item is a warning about one of these paths."""
    return item.standing is Standing.WARNING and item.about in paths


def _has_own_row(step: Step) -> bool:
    """Return whether a step of a route test is a row of its own.

    The step ``signature`` is one if the requests of a node are unproven.
    """
    if step.name == _SIGNATURE:
        return step.result in (Result.FAILED, Result.WARNING)
    return step.name in _OWN_ROWS


def _has_route_problem(items: Iterable[Item]) -> bool:
    """Return whether the test of a route has failed."""
    return any(item.check == "route" and item.standing is Standing.PROBLEM for item in items)


def _route_summary(steps: Iterable[Step]) -> str:
    """Return the address and latency of a route, as far as its test has them."""
    parts = []
    for step in steps:
        if step.name in ("route", "latency") and step.found:
            parts.append(f"{step.name} {step.found}")
    return ", ".join(parts)


def _item_of_step(step: Step) -> Item:
    """Return a step of a route test as an item of the report."""
    standing = _STANDING[step.result]
    is_open_route = step.name == _SIGNATURE and step.result is Result.WARNING
    if is_open_route:
        standing = Standing.WARNING
    cause = step.cause
    if not cause and standing is Standing.UNKNOWN:
        cause = "this node does not report it"
    return Item(
        step.name,
        standing,
        step.found,
        cause,
        step.remedy,
    )
