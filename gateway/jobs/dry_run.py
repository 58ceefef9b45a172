"""A dry run: every node of a job reports what would happen to it, and nothing is created."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gateway.domain.dry_run import (
    REPORTED_WARNINGS,
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
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError, Invalid, NotServed
from gateway.jobs.submission import with_versions
from gateway.runtime.checks import Result, Step
from gateway.runtime.context import Peers, traced
from provider_registry.registry import Registry, Unknown

_NODES_AT_A_TIME = 8
_LINK = ("profile", "way back")
"""steps of a route test that are rows of their own; all others are the route"""
_STANDING = {
    Result.OK: Standing.OK,
    Result.FAILED: Standing.PROBLEM,
    Result.WARNING: Standing.UNKNOWN,
    Result.SKIPPED: Standing.UNKNOWN,
}


class DryRun:
    """Asks every node of a job what would happen."""

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
        with suppress(Unknown):  # reported as a problem of the job
            spec, _ = with_versions(spec, self._registry)
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
                names_party = one.path.startswith("config.role.") and one.path.endswith("]")
                remedy = "correct the job, or add the route" if names_party else "correct the job"
                yield from as_problems("job", [one], remedy)
        else:
            yield from (warning("job", text) for text in warnings[:REPORTED_WARNINGS])

    def _link(self, node: NodeId) -> Iterator[Item]:
        steps = self._try_route(node)
        link = [s for s in steps if s.name not in _LINK]
        bad = [s for s in link if s.result is Result.FAILED]
        if bad:
            yield from (problem("route", f"{s.name}: {s.cause}", s.remedy) for s in bad)
        else:
            shown = [f"{s.name} {s.found}" for s in link if s.name in ("route", "latency") and s.found]
            yield fine("route", ", ".join(shown))
        for step in steps:
            if step.name in _LINK and not (bad and step.result is Result.SKIPPED):
                standing = _STANDING[step.result]
                cause = step.cause or ("this node does not report it" if standing is Standing.UNKNOWN else "")
                yield Item(step.name, standing, step.found, cause, step.remedy)

    def _reported(self, spec: JobSpec, node: NodeId) -> Iterable[Item]:
        peer = self._peers.participant(node, spec.protocol)
        try:
            items = peer.dry_run(spec.for_node(node), self._peers.node)
        except NotServed as error:
            return [Item("told", Standing.UNKNOWN, cause=f"not reported by this node: {error.message}")]
        except GatewayError as error:
            return [problem("told", f"{error.reason}: {error.message}", f"ask the admin of {node}")]
        return items or [Item("told", Standing.UNKNOWN, cause="not reported by this node")]
