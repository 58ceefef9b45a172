"""Tells what would happen to a job, and creates nothing: a node's own side, and the question to all nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from engines.base import Engine, EngineError, ImageNotFound
from gateway.data.models import Models
from gateway.data.storage import FileStorage
from gateway.domain import dag as flow
from gateway.domain import validation
from gateway.domain.approval import CREATE, START, Verdict
from gateway.domain.dry_run import Item, JobPlan, NodePlan, Standing, fine, in_order, problem
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError, Invalid, NotServed
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.readiness import Lack
from gateway.jobs.resources import Resources
from gateway.runtime.checks import Result, Step
from gateway.runtime.context import traced
from gateway.runtime.peers import Peers
from provider_registry.registry import Registry, Unknown

_AT_ONCE = 8
"""nodes that are asked at the same time"""
_LINK = {"profile": "profile", "way back": "way back"}
"""steps of a route's trial that are rows of their own; all others are the route"""
_PLACES = (
    ("storage", "writable", "look at storage.url and at the room there (bfia-gateway doctor)"),
    ("transport", "up", "look at listen.container and at the state folder (bfia-gateway doctor)"),
)
_MOST_ODD = 50
_AS_IT_IS = "correct it unless it is meant so; it is passed on as it is"


@dataclass(frozen=True)
class Foresight:
    """What a node's own rules say of a job."""

    admit: Callable[[], None]
    """raises `GatewayError` while no job is taken"""
    judged: Callable[[JobSpec, NodeId, str], tuple[Verdict, str]]
    """what the rules say of a command, `CREATE` or `START`"""
    not_shared: Callable[[JobSpec], GatewayError | None]
    takes_word: Callable[[NodeId], bool]
    knows: Callable[[NodeId], bool]
    fetches: bool
    """an image that is not here may be fetched before the launch"""
    engine_at: Callable[[str], Engine | None]
    """the engine for a provider's base_url; None for one that the admin has not allowed"""
    signed: Callable[[str, str, Engine], str]
    """raises `EngineError` for a provider's image that is not signed as it has to be; may ask the registry"""


class OwnSide:
    """What would happen to a job at this node."""

    def __init__(
        self,
        node: NodeId,
        planner: TaskPlanner,
        registry: Registry,
        engine: Engine,
        storage: FileStorage,
        resources: Resources,
        models: Models,
        rules: Foresight,
    ) -> None:
        self._node = node
        self._planner = planner
        self._registry = registry
        self._engine = engine
        self._storage = storage
        self._resources = resources
        self._models = models
        self._rules = rules
        self.places: Callable[[], tuple[Mapping[str, str], Sequence[Lack]]] = lambda: ({}, ())
        """what is the matter with storage and transport, and what of it refuses every job"""

    def tell(self, spec: JobSpec, sender: NodeId) -> tuple[Item, ...]:
        """Look at everything that the job needs here; what is wrong in one place hides nothing elsewhere."""
        wrong, _ = validation.check(spec)
        if wrong:
            return tuple(_wrong("job", wrong, "correct the job"))
        return in_order(
            [
                *self._takes(sender),
                *self._components(spec),
                *self._images_and_data(spec),
                *self._needs(spec),
                *self._approval(spec, sender),
                *self._machine(),
                *self._routes(spec),
            ]
        )

    def oddities(self, spec: JobSpec) -> tuple[str, ...]:
        """Return what is to be mended before the job's tasks can start here, in words; cheap."""
        images: dict[str, flow.DagNode] = {}
        for node in spec.dag.nodes:
            ref = node.component
            with suppress(Unknown):
                provider, component = self._registry.find(ref.provider, ref.version, ref.name)
                if any(party.role in component.roles for party in spec.parties_at(self._node)):
                    images.setdefault(provider.image_for(ref.name), node)
        found = [self._image(image, node) for image, node in images.items()]  # its signature takes a look outside
        return tuple(
            f"{item.check} {item.about}: {item.cause}; {item.remedy}"
            for item in found
            if item.standing is Standing.PROBLEM
        )

    def _takes(self, sender: NodeId) -> Iterator[Item]:
        if sender in ("", self._node):
            return
        try:
            self._rules.admit()
        except GatewayError as error:
            yield problem("takes jobs", str(error.message), f"ask {self._node} when it takes jobs again")

    def _components(self, spec: JobSpec) -> Iterator[Item]:
        problems, warnings = self._planner.check(spec)
        closed = self._rules.not_shared(spec)
        hidden = {one.path for one in closed.problems} if closed else set()
        problems = [one for one in problems if one.path not in hidden]  # who may not use a dataset learns no more
        yield from _wrong("components", problems, "correct the job, or register and upload what it names")
        yield from _odd("components", warnings)
        if not problems and not warnings:
            yield fine("components", "fit the job")
        if closed is not None:
            remedy = f"have an admin of {self._node} enable the dataset, or grant it to the job's nodes"
            yield from _wrong("datasets", closed.problems, remedy)
        refused = self._models.refusal(spec)
        if refused is not None:
            yield problem(
                "model", f"{refused.reason}: {refused.problem}", "name another version, or have it granted"
            )

    def _images_and_data(self, spec: JobSpec) -> Iterator[Item]:
        images: set[str] = set()
        closed = self._rules.not_shared(spec)
        hidden = tuple(one.path for one in closed.problems) if closed else ()
        for node in spec.dag.nodes:
            with suppress(GatewayError):  # not registered, which was told above
                for party, image, inputs in self._planner.sources(spec, node):
                    if image not in images:
                        images.add(image)
                        yield self._image(image, node, signed=True)
                    at = f"config.task_params.{party.label}.{node.name}."
                    for address in () if any(path.startswith(at) for path in hidden) else inputs.values():
                        about = f"{address.namespace}#{address.name} for {party.label} of {node.name}"
                        try:
                            size, _ = self._storage.stamp(address)
                            yield fine("data", f"readable, {size} bytes", about)
                        except GatewayError as error:
                            yield problem("data", error.message, "upload it again", about)

    def _image(self, image: str, node: flow.DagNode, *, signed: bool = False) -> Item:
        ref, provider = node.component, None
        with suppress(Unknown):
            provider, _ = self._registry.find(ref.provider, ref.version, ref.name)
        base_url = provider.base_url if provider else ""
        try:
            # one that is not allowed is told with the components
            engine = self._rules.engine_at(base_url) or self._engine
            digest = engine.image_digest(image)
        except ImageNotFound as error:
            if self._rules.fetches:
                return Item("image", Standing.UNKNOWN, "is fetched before the start", error.what, about=image)
            return problem("image", f"{error.reason}: {error.what}", f"at {self._node}: {error.remedy}", image)
        except EngineError as error:
            return problem("image", f"{error.reason}: {error}", f"look at the engine of {self._node}", image)
        approved = provider.digests.get(image, "") if provider else ""
        if approved not in ("", digest):
            text = f"DIGEST_CHANGED: it is {digest} here, {approved} was approved"
            return problem("image", text, "register the provider again if the new image is wanted", image)
        try:
            checked = self._rules.signed(ref.provider, image, engine) if signed else ""
        except EngineError as error:
            remedy = f"have it signed with a key that engine.docker.signatures of {self._node} names"
            return problem("image", f"{error.reason}: {error}", remedy, image)
        return fine("image", f"{digest}, signed" if checked else digest, image)

    def _needs(self, spec: JobSpec) -> Iterator[Item]:
        try:
            pool, reason = self._resources.foretold(spec)
        except GatewayError as error:
            yield problem("resources", f"{error.reason}: {error.message}", "ask for less in job_params")
            return
        except EngineError as error:
            yield Item("resources", Standing.UNKNOWN, cause=str(error))
            return
        if pool is None:
            yield fine("resources", "the job asks for none")
        elif reason:
            once = "that engine answers" if reason.startswith("ENGINE_DOWN") else "enough is free"
            yield Item("resources", Standing.WAITS, pool.portions.text(), reason, f"it starts once {once}")
        else:
            yield fine(
                "resources", f"{pool.portions.text()}, free now" if pool.portions else "the job asks for none"
            )

    def _approval(self, spec: JobSpec, sender: NodeId) -> Iterator[Item]:
        verdict, words = self._rules.judged(spec, sender, CREATE)
        starts, never = self._rules.judged(spec, sender, START)
        if Verdict.REJECT in (verdict, starts):
            text = words if verdict is Verdict.REJECT else f"it would be taken, and refused at its start: {never}"
            yield problem(
                "approval",
                f"NOT_AUTHORISED: {text}",
                f"have an admin of {self._node} change approval.rules, or the route",
            )
        elif verdict is Verdict.APPROVE:
            yield fine("approval", "nobody has to be asked")
        elif self._rules.takes_word(sender or spec.scheduler):
            yield Item(
                "approval",
                Standing.WAITS,
                "a person has to agree",
                words,
                f"tell those who decide at {self._node}",
            )
        else:
            text = f"APPROVAL_UNSUPPORTED: a person has to agree ({words}), for which the other node does not wait"
            yield problem("approval", text, f"have an admin of {self._node} add a rule under approval.rules")

    def _machine(self) -> Iterator[Item]:
        try:
            self._engine.check()
            yield fine("engine", self._engine.kind)
        except EngineError as error:
            yield problem("engine", f"{error.reason}: {error}", f"start the container engine of {self._node}")
        checks, lacks = self.places()
        reasons = {lack.text: lack.reason for lack in lacks}
        for name, good, remedy in _PLACES:
            said = checks.get(name, "")
            if said in reasons:
                yield problem(name, f"{reasons[said]}: {said}", f"at {self._node}: {remedy}")
            elif said:
                yield Item(name, Standing.UNKNOWN, cause=said)
            else:
                yield fine(name, good)

    def _routes(self, spec: JobSpec) -> Iterator[Item]:
        others = [n for n in (*spec.nodes, spec.scheduler) if n not in ("", self._node)]
        unknown = sorted({n for n in others if not self._rules.knows(n)})
        if unknown:
            text = f"{self._node} has no enabled route to {', '.join(unknown)}"
            yield problem("routes", text, f"have an admin of {self._node} add a route, or enable it")
        elif others:
            yield fine("routes", f"to {', '.join(sorted(set(others)))}")


class Foretelling:
    """Asks every node of a job what would happen."""

    def __init__(
        self,
        node: NodeId,
        peers: Peers,
        check: Callable[[JobSpec], Sequence[str]],
        try_route: Callable[[NodeId], Sequence[Step]],
        settled: Callable[[JobSpec], JobSpec] = lambda spec: spec,
    ) -> None:
        """``check`` returns what is odd about a job as the node that takes it in sees it; raises `Invalid`.

        ``settled`` fills in what the job leaves open, as far as this node can.
        """
        self._settled = settled
        self._node = node
        self._peers = peers
        self._check = check
        self._try_route = try_route

    def plan(self, spec: JobSpec) -> JobPlan:
        """Return what every node says. Creates nothing; a node that is silent is waited for as any call is."""
        spec = self._settled(spec)
        nodes = list(dict.fromkeys((*spec.nodes, spec.scheduler)))
        with ThreadPoolExecutor(min(len(nodes), _AT_ONCE)) as pool:
            found = list(pool.map(partial(self._asked, spec), nodes))
        return JobPlan((self._own(spec), *found) if self._node not in nodes else tuple(found))

    def _own(self, spec: JobSpec) -> NodePlan:
        return NodePlan(self._node, (), tuple(self._job(spec)))

    def _asked(self, spec: JobSpec, node: NodeId) -> NodePlan:
        with traced(spec.trace_id):
            return self._heard(spec, node)

    def _heard(self, spec: JobSpec, node: NodeId) -> NodePlan:
        labels = tuple(party.label for party in spec.parties_at(node))
        items = list(self._job(spec)) if node == self._node else list(self._link(node))
        reached = all(item.standing is not Standing.PROBLEM for item in items if item.check == "route")
        if labels and reached:
            items += self._told(spec, node)
        return NodePlan(node, labels, in_order(dict.fromkeys(items)))

    def _job(self, spec: JobSpec) -> Iterator[Item]:
        try:
            odd = self._check(spec)
        except Invalid as error:
            for one in error.problems:  # in the words in which the node's own side tells of the same
                route = one.path.startswith("config.role.") and one.path.endswith("]")  # a party, not a role
                yield from _wrong(
                    "job", [one], "correct the job, or add the route" if route else "correct the job"
                )
        else:
            for text in odd[:_MOST_ODD]:
                yield Item("job", Standing.WARNING, cause=text, remedy=_AS_IT_IS)

    def _link(self, node: NodeId) -> Iterator[Item]:
        steps = self._try_route(node)
        link = [s for s in steps if s.name not in _LINK]
        bad = [s for s in link if s.result is Result.FAILED]
        if bad:
            yield from (problem("route", f"{s.name}: {s.cause}", s.remedy) for s in bad)
        else:
            yield fine(
                "route",
                ", ".join(f"{s.name} {s.found}" for s in link if s.name in ("route", "latency") and s.found),
            )
        for step in steps:
            if step.name in _LINK and not (bad and step.result is Result.SKIPPED):
                standing = {
                    Result.OK: Standing.OK,
                    Result.FAILED: Standing.PROBLEM,
                    Result.WARNING: Standing.UNKNOWN,
                    Result.SKIPPED: Standing.UNKNOWN,
                }[step.result]
                cause = step.cause or ("this node does not tell" if standing is Standing.UNKNOWN else "")
                yield Item(_LINK[step.name], standing, step.found, cause, step.remedy)

    def _told(self, spec: JobSpec, node: NodeId) -> Iterable[Item]:
        try:
            told = self._peers.participant(node, spec.protocol).foretell(spec.for_node(node), self._node)
        except NotServed as error:
            return [Item("told", Standing.UNKNOWN, cause=f"not told by this node: {error.message}")]
        except GatewayError as error:
            return [problem("told", f"{error.reason}: {error.message}", f"ask the admin of {node}")]
        return told or [Item("told", Standing.UNKNOWN, cause="not told by this node")]


def _wrong(check: str, problems: Iterable[Problem], remedy: str) -> Iterator[Item]:
    for one in problems:
        yield problem(check, one.said, remedy, one.path)


def _odd(check: str, warnings: Sequence[Problem]) -> Iterator[Item]:
    for one in warnings[:_MOST_ODD]:
        yield Item(check, Standing.WARNING, cause=one.said, remedy=_AS_IT_IS, about=one.path)
