"""Decides whether this node takes a job: one path for its creation, for the job audit and for a dry run.

Each step adds to a draft. For a creation the first step that refuses raises; a dry run reports what every step
found and stores nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from engines.base import EngineError
from gateway.data.models import Models
from gateway.data.sharing import NotShared, Sharing
from gateway.data.storage import FileStorage
from gateway.domain import approval, validation
from gateway.domain import dag as flow
from gateway.domain.approval import CREATE, START, Policy, Verdict
from gateway.domain.dry_run import Item, Standing, as_problems, as_warnings, fine, in_order, problem
from gateway.domain.resources import Pool
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, Refused
from gateway.jobs.inheritance import Inheritance, Offer
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.readiness import JobImage, Lack, Readiness, Ready
from gateway.jobs.resources import Resources
from gateway.jobs.submission import Intake, digest, roles_of
from gateway.providers.images import Signatures
from gateway.runtime.context import NodeContext


class Peers(Protocol):
    """The part of the route table that is asked."""

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route."""

    def barred(self, node: str, component: str) -> str:
        """Return why a node may not have a component run here; empty where it may."""

    def takes_confirm(self, node: str) -> bool:
        """Tell whether a node waits for what a person here decides."""


@dataclass(frozen=True)
class Rules:
    """What the admin of this node allows."""

    peers: Peers
    intake: Intake
    policy: Policy
    signatures: Signatures
    audit: Callable[[NodeId, str, Mapping[str, Any]], None]
    """records that a start was not allowed: who wanted it, of what, why"""
    require_images: bool = False
    """a job whose images are not here, and cannot be fetched, is refused instead of warned of"""


@dataclass(frozen=True)
class Access:
    """What a job may use of what this node has."""

    sharing: Sharing
    models: Models
    inheritance: Inheritance
    storage: FileStorage


@dataclass
class _Draft:
    """A job on its way through the steps."""

    spec: JobSpec
    sender: NodeId
    known: LocalJob | None
    dry_run: bool
    items: list[Item] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    images: list[JobImage] = field(default_factory=list)
    hidden: frozenset[str] = frozenset()
    """paths of datasets that the job may not use: nothing more is reported of them"""
    offer: Offer | None = None
    pool: Pool | None = None

    def refuse(self, error: GatewayError, *items: Item) -> None:
        """Raise where the job is to be created, else report why it would be refused."""
        if not self.dry_run:
            raise error
        self.items += items


class Admission:
    """Decides whether this node takes a job."""

    def __init__(
        self,
        context: NodeContext,
        planner: TaskPlanner,
        access: Access,
        resources: Resources,
        readiness: Readiness,
        rules: Rules,
    ) -> None:
        self._context = context
        self._planner = planner
        self._registry = planner.registry
        self._access = access
        self._resources = resources
        self._readiness = readiness
        self._rules = rules

    def validated(self, spec: JobSpec, sender: NodeId) -> LocalJob:
        """Return the record of a job that could run here; stored is only what it takes over of another.

        Raises `Invalid` with every problem, `NotAllowed`, `Refused`.
        """
        return self._record(self._validated(self._draft(spec, sender)))

    def admitted(self, spec: JobSpec, sender: NodeId) -> LocalJob:
        """Return the record of a job as it begins here: READY, or PENDING for a person or for images.

        Raises as `validated`, and where the node cannot take jobs now, or its policy says no.
        """
        draft = self._validated(self._draft(spec, sender))
        ready = Ready()
        if draft.known is None or approval.unused(draft.known):
            ready = self._ready(draft)
        local = self._approved(self._record(draft), sender, ready, known=draft.known is not None)
        timeout = self._readiness.timeout(len(ready.to_fetch))
        local = replace(local, checks=ready.checks)
        return approval.with_preparation(local, ready.to_fetch, timeout, self._context.clock())

    def dry_run(self, spec: JobSpec, sender: NodeId) -> tuple[Item, ...]:
        """Report what would happen to a job here; create nothing."""
        with self._registry.one_view():
            draft = self._draft(spec, sender, dry_run=True)
            if problems := validation.check(spec)[0]:
                return as_problems("job", problems, "correct the job")
            self._validated(draft)
            draft.items += [
                *self._signed(draft),
                *self._data(draft),
                *self._reserved(draft),
                *self._approval(spec, sender),
                *self._readiness.place_items(),
                *self._routes(spec),
            ]
        return in_order(draft.items)

    def judged(self, spec: JobSpec, sender: NodeId, command: str = CREATE) -> tuple[Verdict, str]:
        """Apply the policy. Who wants the job is the node that asks, or where that is this one, the initiator."""
        source = spec.initiator if sender in ("", self._context.node) else sender
        own = source == self._context.node
        wanted = list(
            approval.pieces(spec, self._context.node, source, flow.once_per_component(self.roles), command)
        )
        for piece in () if own else wanted:
            if words := self._rules.peers.barred(piece.source, piece.component):
                return Verdict.REJECT, words
        return approval.judge(self._rules.policy, wanted, own=own)

    def roles(self, task: flow.DagNode) -> tuple[str, ...] | None:
        """Return the roles that take part in a task; None where its component is not registered here."""
        return roles_of(self._registry, task)

    def check_start(self, local: LocalJob, sender: NodeId) -> None:
        """Apply the policy again before anything starts. Raises `NotAllowed`, `Conflict`."""
        node = self._context.node
        if approval.prepares(local) and not approval.asks_person(local):
            raise Conflict(f"images of job {local.id} are still fetched at {node}", reason="NOT_READY")
        if local.status is JobStatus.PENDING:
            raise Conflict(f"nobody at {node} has agreed to job {local.id} yet", reason="NOT_APPROVED")
        with self._registry.one_view():
            verdict, words = self.judged(local.spec, sender, START)
            closed = self._access.sharing.refusal(local.spec)
        if verdict is Verdict.REJECT:
            self._start_denied(local, sender, words)
            raise NotAllowed(f"node {node} does not take part any more: {words}")
        if closed is not None:
            self._start_denied(local, sender, closed.why)
            raise closed

    def lacks(self) -> Sequence[Lack]:
        """Return what keeps this node from taking any job just now."""
        return self._readiness.places()[1]

    def _start_denied(self, local: LocalJob, sender: NodeId, words: str) -> None:
        now = self._context.clock()
        self._context.store.local_jobs.update(
            local.id, lambda local: local.noted(now, "start not allowed", sender, message=words)
        )
        who = sender or self._context.node
        self._rules.audit(who, f"start of job {local.id} not allowed", {"message": words})

    # ------------------------------------------------------------ steps of a creation

    def _draft(self, spec: JobSpec, sender: NodeId, *, dry_run: bool = False) -> _Draft:
        node = self._context.node
        if sender not in ("", node) and not self._rules.peers.knows(sender):
            raise NotAllowed(f"node {sender} has no enabled route here: ask the admin of {node} for one")
        if not spec.parties_at(node):
            raise Refused(f"the job names no role of node {node}", reason="NOT_A_PARTY")
        return _Draft(spec, sender, self._context.store.local_jobs.find(spec.job_id), dry_run)

    def _validated(self, draft: _Draft) -> _Draft:
        self._check_intake(draft)
        if problems := validation.check(draft.spec)[0]:
            draft.refuse(Invalid(problems))
        self._check_components(draft)
        self._check_inherited(draft)
        self._check_resources(draft)
        draft.images = self._readiness.images(draft.spec)
        if not draft.dry_run:
            draft.warnings += [
                f"{item.check} {item.about}: {item.cause}; {item.remedy}"
                for item in self._readiness.items(draft.images)
                if item.standing is Standing.PROBLEM
            ]
        return draft

    def _check_intake(self, draft: _Draft) -> None:
        if draft.sender in ("", self._context.node) or draft.known is not None:
            return
        try:
            self._rules.intake.check(draft.sender)
        except GatewayError as error:
            remedy = f"ask {self._context.node} when it takes jobs again"
            draft.refuse(error, problem("takes jobs", error.message, remedy))

    def _check_components(self, draft: _Draft) -> None:
        """Check components, parameters, datasets and the model; whatever is wrong is reported together."""
        node = self._context.node
        problems, warnings = self._planner.check(draft.spec)
        draft.warnings += [str(w) for w in warnings]
        closed = self._access.sharing.refusal(draft.spec)
        if closed is not None:  # who may not use a dataset learns no more of it
            draft.hidden = frozenset(one.path for one in closed.problems)
            problems = [one for one in problems if one.path not in draft.hidden]
        draft.items += as_problems("components", problems, "correct the job, or register and upload what it names")
        draft.items += as_warnings("components", warnings)
        if not problems and not warnings:
            draft.items.append(fine("components", "fit the job"))
        if closed is not None:
            remedy = f"have an admin of {node} enable the dataset, or grant it to the job's nodes"
            error = NotShared(closed.reason, [*closed.problems, *problems], closed.why)
            draft.refuse(error, *as_problems("datasets", closed.problems, remedy))
        refused = self._access.models.refusal(draft.spec)
        if refused is not None:
            text, remedy = f"{refused.reason}: {refused.problem}", "name another version, or have it granted"
            draft.refuse(
                Invalid([refused.problem, *problems], reason=refused.reason), problem("model", text, remedy)
            )
        if problems:
            draft.refuse(Invalid(problems))

    def _check_inherited(self, draft: _Draft) -> None:
        if not draft.spec.old_job_id or draft.known is not None or draft.dry_run:
            return
        draft.offer = self._access.inheritance.offer(draft.spec)
        self._access.inheritance.keep(draft.spec, draft.offer)
        draft.warnings += [f"task {name} is not inherited: {why}" for name, why in draft.offer.lacking.items()]

    def _check_resources(self, draft: _Draft) -> None:
        try:
            draft.pool = self._resources.pool_for(draft.spec)
        except GatewayError as error:
            text = f"{error.reason}: {error.message}"
            draft.refuse(error, problem("resources", text, "ask for less in job_params"))
        except EngineError as error:
            if not draft.dry_run:
                raise
            draft.items.append(Item("resources", Standing.UNKNOWN, cause=str(error)))

    def _record(self, draft: _Draft) -> LocalJob:
        offer = draft.offer
        return LocalJob(
            draft.spec,
            self._context.node,
            JobStatus.READY,
            self._context.clock(),
            digest(draft.spec),
            warnings=tuple(draft.warnings),
            pool=draft.pool,
            inherited=tuple(offer.runs) if offer else (),
            can_inherit=tuple(offer.tasks) if offer else None,
            home=self._context.owner,
        )

    def _ready(self, draft: _Draft) -> Ready:
        ready = self._readiness.check(draft.images)
        if ready.lacks:
            words = "; ".join((*(lack.text for lack in ready.lacks), *map(str, ready.missing)))
            text = f"node {self._context.node} cannot take jobs now: {words}"
            raise Refused(text, reason=ready.lacks[0].reason)
        if ready.missing and self._rules.require_images:
            raise Invalid(ready.missing, reason="IMAGE_NOT_FOUND")
        waits = draft.known is None and self._takes_confirm(draft.spec.scheduler)
        return ready if waits else replace(ready, to_fetch={})  # else images are fetched before the launch

    def _approved(self, local: LocalJob, sender: NodeId, ready: Ready, *, known: bool) -> LocalJob:
        node, now = self._context.node, self._context.clock()
        verdict, words = self.judged(local.spec, sender)
        if verdict is Verdict.REJECT:
            raise NotAllowed(f"node {node} does not take part: {words}")
        if verdict is Verdict.APPROVE or known:
            detail = {"checks": dict(ready.checks)} if ready.checks else {}
            return local.noted(now, f"job {'PENDING' if ready.to_fetch else 'READY'} here", sender, **detail)
        if not self._takes_confirm(local.spec.scheduler):
            text = f"a person at {node} has to agree ({words}), which {local.spec.scheduler} does not wait for"
            raise Refused(f"{text}; a rule under approval.rules can agree", reason="APPROVAL_UNSUPPORTED")
        return approval.opened(local.noted(now, "job PENDING here", sender), self._rules.policy, words, now)

    def _takes_confirm(self, scheduler: NodeId) -> bool:
        return scheduler == self._context.node or self._rules.peers.takes_confirm(scheduler)

    # ------------------------------------------------------------ what only a dry run reports

    def _signed(self, draft: _Draft) -> Iterator[Item]:
        """Report each image, and of one that may start whether it is signed as it has to be."""
        for image, item in zip(draft.images, self._readiness.items(draft.images), strict=True):
            if item.standing is not Standing.OK:
                yield item
                continue
            try:
                signed = self._rules.signatures.check(image.provider.name, image.name, image.engine)
            except EngineError as error:
                remedy = f"have it signed with a key that engine.docker.signatures of {self._context.node} names"
                yield problem("image", f"{error.reason}: {error}", remedy, image.name)
            else:
                yield replace(item, found=f"{item.found}, signed") if signed else item

    def _data(self, draft: _Draft) -> Iterator[Item]:
        spec = draft.spec
        for node in spec.dag.nodes:
            with suppress(GatewayError):  # not registered, which was reported with the components
                for party, _, inputs in self._planner.sources(spec, node):
                    at = f"config.task_params.{party.label}.{node.name}."
                    if any(path.startswith(at) for path in draft.hidden):
                        continue
                    for address in inputs.values():
                        about = f"{address.namespace}#{address.name} for {party.label} of {node.name}"
                        try:
                            size, _ = self._access.storage.stamp(address)
                            yield fine("data", f"readable, {size} bytes", about)
                        except GatewayError as error:
                            yield problem("data", error.message, "upload it again", about)

    def _reserved(self, draft: _Draft) -> Iterator[Item]:
        if any(item.check == "resources" for item in draft.items):
            return
        pool = draft.pool
        reason = self._resources.would_wait_for(draft.spec, pool) if pool else ""
        if pool and reason:
            once = "that engine answers" if reason.startswith("ENGINE_DOWN") else "enough is free"
            yield Item("resources", Standing.WAITS, pool.portions.text(), reason, f"it starts once {once}")
        elif pool and pool.portions:
            yield fine("resources", f"{pool.portions.text()}, free now")
        else:
            yield fine("resources", "the job asks for none")

    def _approval(self, spec: JobSpec, sender: NodeId) -> Iterator[Item]:
        node = self._context.node
        verdict, words = self.judged(spec, sender)
        starts, never = self.judged(spec, sender, START)
        if Verdict.REJECT in (verdict, starts):
            text = words if verdict is Verdict.REJECT else f"it would be taken, and refused at its start: {never}"
            remedy = f"have an admin of {node} change approval.rules, or the route"
            yield problem("approval", f"NOT_AUTHORISED: {text}", remedy)
        elif verdict is Verdict.APPROVE:
            yield fine("approval", "nobody has to be asked")
        elif self._takes_confirm(sender or spec.scheduler):
            remedy = f"tell those who decide at {node}"
            yield Item("approval", Standing.WAITS, "a person has to agree", words, remedy)
        else:
            text = f"APPROVAL_UNSUPPORTED: a person has to agree ({words}), for which the other node does not wait"
            yield problem("approval", text, f"have an admin of {node} add a rule under approval.rules")

    def _routes(self, spec: JobSpec) -> Iterator[Item]:
        node = self._context.node
        others = sorted({n for n in (*spec.nodes, spec.scheduler) if n not in ("", node)})
        unknown = [n for n in others if not self._rules.peers.knows(n)]
        if unknown:
            text = f"{node} has no enabled route to {', '.join(unknown)}"
            yield problem("routes", text, f"have an admin of {node} add a route, or enable it")
        elif others:
            yield fine("routes", f"to {', '.join(others)}")
