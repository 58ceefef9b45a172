"""Decides whether this node takes a job: one path for its creation, for the job audit and for a dry run.

Each step adds to a draft. For a creation the first step that refuses raises; a dry run reports what every step
found and stores nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any, Protocol

from engines.base import Engine, EngineDown, EngineError, ImageNotFound, NoSpace
from gateway.config.engine import DockerEngineSettings
from gateway.data.sharing import NotShared, Sharing
from gateway.domain import approval, rerun, validation
from gateway.domain import dag as flow
from gateway.domain.approval import CREATE, START, Policy, Verdict
from gateway.domain.dry_run import Item, Standing, as_problems, as_warnings, fine, in_order, problem
from gateway.domain.problems import Problem
from gateway.domain.resources import Pool
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, Refused, StorageFailed
from gateway.jobs.bundles import Bundles, other_images
from gateway.jobs.digest import digest
from gateway.jobs.inheritance import Inheritance, Offer
from gateway.jobs.intake import Intake
from gateway.jobs.new_jobs import roles_of
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.resources import Resources
from gateway.jobs.trust import Trust
from gateway.providers.images import Signatures
from gateway.runtime.context import NodeContext
from provider_registry.model import Provider
from provider_registry.registry import Registry, Unknown

_RECHECK = 1.0
"""seconds for which a place that was fine is not checked again"""

_REMEDY = {
    False: "correct the job, or register and upload what it names",
    True: "upload the data with --storage into one that the component lists, or use a component for where it lies",
}
"""of a problem of the components; whether the storage of the data is what does not fit"""

_PLACES = (
    (
        "storage",
        "STORAGE_NOT_WRITABLE",
        "the storage cannot be written",
        "writable",
        "check storage.url and the room there (bfia-gateway doctor)",
    ),
    (
        "transport",
        "TRANSPORT_DOWN",
        "containers could not exchange messages through the channel",
        "up",
        "check listen.container and the state folder (bfia-gateway doctor)",
    ),
)
"""what every job needs: its name, the reason of a refusal and its words, how it should be, what to do otherwise"""


@dataclass(frozen=True)
class Lack:
    """What is the matter with a place that every job needs, in words that another institution may read."""

    reason: str
    """STORAGE_NOT_WRITABLE, NO_SPACE, TRANSPORT_DOWN, ENGINE_DOWN, or that of a storage elsewhere"""
    text: str
    refuses: bool = True
    """whether no task could begin, or none end well: not where an engine, which may be back by then, or a storage
    elsewhere is away, as jobs whose data lies there are refused for that"""


@dataclass(frozen=True)
class JobImage:
    """An image that a job needs here, as its engine has it."""

    name: str
    provider: Provider
    path: str
    """the place in the job that names it first"""
    engine: Engine
    engine_name: str
    digest: str = ""
    error: EngineError | None = None

    @property
    def missing(self) -> bool:
        """Whether the engine answers and does not have it."""
        return isinstance(self.error, ImageNotFound)


class Readiness:
    """Checks whether this node has what a job needs: images, and the places that every job needs."""

    def __init__(
        self,
        node: NodeId,
        registry: Registry,
        engine_of: Callable[[str], tuple[str, Engine] | None],
        places: Mapping[str, Callable[[], object]],
        docker: DockerEngineSettings | None = None,
    ) -> None:
        """``engine_of`` finds the engine of a provider's place, with its name.

        ``places``: what checks the storage (raises `OSError`, or `NoSpace` for too little room) and the transport
        (`OSError`, or `GatewayError` where containers cannot reach this gateway).
        """
        self._node = node
        self._registry = registry
        self._engine_of = engine_of
        self._checks = places
        self._fetches = docker is not None and docker.pull == "missing"
        self._seconds = docker.pull_seconds if docker else 0.0
        self._fine_until: dict[str, float] = {}

    def places(self) -> dict[str, Lack]:
        """Check the places; return what is the matter with those that are not as they should be."""
        found: dict[str, Lack] = {}
        for name, reason, words, _, _ in _PLACES:
            if time.monotonic() < self._fine_until.get(name, 0.0):
                continue
            try:
                self._checks[name]()
            except OSError as error:  # its own text names the folder
                found[name] = Lack(reason, f"{words}: {error.strerror}")
            except NoSpace as error:
                found[name] = Lack(
                    error.reason, f"the storage has too little room for tasks: {error}"
                )
            except StorageFailed as error:
                found[name] = Lack(error.reason, error.message, refuses=False)
            except GatewayError as error:
                found[name] = Lack(reason, f"{words}: {error.reason}")
                if error.reason == EngineDown.reason:
                    found[name] = Lack(error.reason, error.reason, refuses=False)
            else:
                self._fine_until[name] = time.monotonic() + _RECHECK
        return found

    def place_items(self, images: Sequence[JobImage]) -> Iterator[Item]:
        """Say whether the engines answer, the storage can be written and containers reach the channel."""
        main = self._engine_of("")
        assert main is not None
        for name, engine in dict(
            [main, *((image.engine_name, image.engine) for image in images)]
        ).items():
            try:
                engine.check()
                yield fine("engine", engine.kind, name)
            except EngineError as error:
                remedy = f"start the container engine of {self._node}"
                yield problem("engine", f"{error.reason}: {error}", remedy, name)
        lacks = self.places()
        for name, _, _, good, remedy in _PLACES:
            lack = lacks.get(name)
            if lack is None:
                yield fine(name, good)
            elif lack.refuses:
                yield problem(name, f"{lack.reason}: {lack.text}", f"at {self._node}: {remedy}")
            else:
                yield Item(name, Standing.UNKNOWN, cause=lack.text)

    def images(self, spec: JobSpec) -> list[JobImage]:
        """Return each image that the job needs here."""
        found: dict[tuple[str, str], JobImage] = {}
        for i, node in enumerate(spec.dag.nodes):
            ref = node.component
            with suppress(Unknown):
                provider, component = self._registry.find(ref.provider, ref.version, ref.name)
                at = self._engine_of(provider.place)  # None is refused with the components
                key = (provider.image_for(ref.name), provider.place)
                here = any(party.role in component.roles for party in spec.parties_at(self._node))
                if at is not None and here and key not in found:
                    image = JobImage(key[0], provider, f"dag.components[{i}]", at[1], at[0])
                    try:
                        found[key] = replace(image, digest=image.engine.image_digest(image.name))
                    except EngineError as error:
                        found[key] = replace(image, error=error)
        return list(found.values())

    def image_item(self, image: JobImage) -> Item:
        """Say whether a task could start from an image."""
        error, approved = image.error, image.provider.digests.get(image.name, "")
        if isinstance(error, ImageNotFound):
            if self._fetches:
                return Item(
                    "image",
                    Standing.UNKNOWN,
                    "is fetched before the start",
                    error.what,
                    about=image.name,
                )
            remedy = f"at {self._node}: {error.remedy}"
            return problem("image", f"{error.reason}: {error.what}", remedy, image.name)
        if error is not None:
            return problem(
                "image", f"{error.reason}: {error}", f"check the engine of {self._node}", image.name
            )
        if approved not in ("", image.digest):
            text = f"DIGEST_CHANGED: it is {image.digest} here, {approved} was approved"
            return problem(
                "image", text, "register the provider again if the new image is wanted", image.name
            )
        return fine("image", image.digest, image.name)

    def to_fetch(self, images: Sequence[JobImage]) -> dict[str, str]:
        """Return the images that are not here and are to be fetched, each with the engine that is to have it."""
        return (
            {image.name: image.engine_name for image in images if image.missing}
            if self._fetches
            else {}
        )

    def timeout(self, images: int) -> float:
        """Return the longest time in seconds that fetching so many images may take, one after the other."""
        return (
            2 * self._seconds * max(images, 1) + 60.0
        )  # a stalled download is begun a second time


class Peers(Protocol):
    """The part of the route table that is asked."""

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route, or had one and takes part in a job under way."""

    def may_begin(self, node: str, *, asks: bool) -> bool:
        """Tell whether a new job may be one with a node: its entry is enabled, and there where it is what asks."""

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
    bundles: Bundles
    trust: Trust
    audit: Callable[[NodeId, str, Mapping[str, Any]], None]
    """records that a start was not allowed: who wanted it, of what, why"""
    require_images: bool = False
    """a job whose images are not here, and cannot be fetched, is refused instead of warned of"""


@dataclass
class _Draft:
    """A job on its way through the steps."""

    spec: JobSpec
    sender: NodeId
    known: LocalJob | None
    dry_run: bool
    digest: str
    items: list[Item] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    images: list[JobImage] = field(default_factory=list)
    hidden: frozenset[str] = frozenset()
    """paths of datasets that the job may not use: nothing more is reported of them"""
    offer: Offer = field(default_factory=Offer)
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
        inheritance: Inheritance,
        sharing: Sharing,
        resources: Resources,
        readiness: Readiness,
        rules: Rules,
    ) -> None:
        self._node = context.node
        self._context = context
        self._planner = planner
        self._registry = planner.registry
        self._inheritance = inheritance
        self._sharing = sharing
        self._resources = resources
        self._readiness = readiness
        self._rules = rules

    def validated(self, spec: JobSpec, sender: NodeId) -> LocalJob:
        """Return the record of a job that could run here; stored is only what it takes over of another."""
        return self._record(self._validated(self._draft(spec, sender)))

    def admitted(self, spec: JobSpec, sender: NodeId) -> LocalJob:
        """Return the record of a job as it begins here: READY, or PENDING for a person or for images."""
        draft = self._draft(spec, sender)
        agreement = self._rules.bundles.accepted(spec, sender)
        try:
            self._validated(draft)
        except StorageFailed as error:  # else the scheduling node would think that we are away
            raise Refused(error.message, reason=error.reason) from error
        draft.warnings += other_images(agreement)
        checks: dict[str, str] = {}
        if draft.known is None or approval.is_unused(draft.known):
            checks = self._check_readiness(draft)
        # else, and where nobody waits for it, images are fetched before the launch
        waits = draft.known is None and self._takes_confirm(spec.scheduler)
        fetch = self._readiness.to_fetch(draft.images) if waits else {}
        local = self._approved(self._record(draft), draft, checks, "PENDING" if fetch else "READY")
        timeout = self._readiness.timeout(len(fetch))
        local = replace(
            local,
            checks=checks,
            agreement=agreement,
            spec=replace(spec, bundles={}),
        )
        local = approval.await_images(local, fetch, timeout, self._context.clock())
        self._rules.trust.use(spec, sender)
        return local

    def check_amended(self, spec: JobSpec, sender: NodeId) -> Sequence[str]:
        """Check a job here with other parameters, as at its creation; return its warnings.

        Raises `NotAllowed`, also where a person would have to agree to it.
        """
        self._rules.bundles.accepted(spec, sender)
        with self._registry.one_view():
            warnings = self.validated(spec, sender).warnings
        verdict, words = self.judged(spec, sender)
        if verdict is not Verdict.APPROVE:
            raise NotAllowed(
                f"the job was agreed to at {self._node} with its own parameters ({words})"
            )
        self._rules.trust.use(spec, sender)
        return warnings

    def dry_run(self, spec: JobSpec, sender: NodeId) -> tuple[Item, ...]:
        """Report what would happen to a job here; create nothing."""
        with self._registry.one_view():
            draft = self._draft(spec, sender, dry_run=True)
            if problems := validation.check(spec)[0]:
                return as_problems("job", problems, "correct the job")
            self._validated(draft)
            draft.items += [
                *map(self._signed, draft.images),
                *self._data(draft),
                *self._reserved(draft),
                self._approval(spec, sender),
                *self._readiness.place_items(draft.images),
                *self._routes(spec),
            ]
        return in_order(draft.items)

    def judged(
        self,
        spec: JobSpec,
        sender: NodeId,
        command: str = CREATE,
    ) -> tuple[Verdict, str]:
        """Apply the policy to who wants the job: the node that asks, unless that is this one, and the initiator.

        Of an initiator that has another node ask, rules that match decide too; where none does, the asking node's
        verdict stands.
        """
        asks = spec.initiator if sender in ("", self._node) else sender
        roles = flow.once_per_component(lambda task: roles_of(self._registry, task))
        verdict, words = Verdict.APPROVE, ""
        for source in dict.fromkeys((asks, spec.initiator or asks)):
            own = source == self._node
            wanted = list(approval.pieces(spec, self._node, source, roles, command))
            for piece in () if own else wanted:
                if barred := self._rules.peers.barred(piece.source, piece.component):
                    return Verdict.REJECT, barred
            found, text = approval.judge(self._rules.policy, wanted, is_own=own or source != asks)
            if found is Verdict.REJECT:
                return found, text
            if found is Verdict.ASK and verdict is Verdict.APPROVE:
                verdict, words = found, text
        return verdict, words

    def check_start(self, local: LocalJob, sender: NodeId) -> None:
        """Apply the policy again before anything starts. Raises `NotAllowed`, `Conflict`."""
        if approval.pending_preparation(local) and not approval.awaits_person(local):
            raise Conflict(
                f"images of job {local.id} are still fetched at {self._node}", reason="NOT_READY"
            )
        if local.status is JobStatus.PENDING:
            raise Conflict(
                f"job {local.id} is not approved at {self._node} yet", reason="NOT_APPROVED"
            )
        trust = self._rules.trust
        spec = rerun.in_force(local)
        with self._registry.one_view():
            verdict, words = self.judged(spec, sender, START)
            closed = self._sharing.refusal(spec) or trust.without_permit(spec, sender)
        error: GatewayError | None = closed
        if verdict is Verdict.REJECT:
            error = NotAllowed(f"node {self._node} does not take part any more: {words}")
        elif closed is not None:
            words = closed.why
        elif (apart := trust.without_contract(spec)) is not None:
            error, words = apart, apart.message
        elif local.status is JobStatus.READY:
            try:
                self._rules.bundles.check_start(local, sender)
            except NotAllowed as refused:
                error, words = refused, refused.message
        if error is None:
            return
        now = self._context.clock()
        self._context.store.local_jobs.update(
            local.id, lambda local: local.noted(now, "start not allowed", sender, message=words)
        )
        detail = {"reason": error.reason, "message": words}
        self._rules.audit(sender or self._node, f"start of job {local.id} not allowed", detail)
        raise error

    def lacks(self) -> Sequence[Lack]:
        """Return what keeps this node from taking any job just now, or those with data in some storage."""
        return [
            lack for lack in self._readiness.places().values() if lack.reason != EngineDown.reason
        ]

    # ------------------------------------------------------------ steps of a creation

    def _draft(
        self,
        spec: JobSpec,
        sender: NodeId,
        *,
        dry_run: bool = False,
    ) -> _Draft:
        known = self._context.store.local_jobs.find(spec.job_id)
        new = known is None or approval.is_unused(
            known
        )  # one that was only asked about before its creation
        for node in (sender, spec.initiator, *spec.nodes) if new else ():
            if node not in ("", self._node) and not self._rules.peers.may_begin(
                node, asks=node == sender
            ):
                raise NotAllowed(
                    f"node {node} has no enabled route here: ask the admin of {self._node} for one"
                )
        if not spec.parties_at(self._node):
            raise Refused(f"the job names no role of node {self._node}", reason="NOT_A_PARTY")
        return _Draft(spec, sender, known, dry_run, digest(spec))

    def _validated(self, draft: _Draft) -> _Draft:
        spec = draft.spec
        if draft.sender not in ("", self._node) and draft.known is None:
            try:
                self._rules.intake.check(draft.sender)
            except GatewayError as error:
                remedy = f"ask {self._node} when it takes jobs again"
                draft.refuse(error, problem("takes jobs", error.message, remedy))
        if problems := validation.check(spec)[0]:
            draft.refuse(Invalid(problems))
        if (apart := self._rules.trust.without_contract(spec)) is not None:
            text = f"{apart.reason}: {apart.message}"
            remedy = (
                f"bfia-gateway partner apply contract {quote(apart.node)}, with its address (--to)"
            )
            draft.refuse(apart, problem("contract", text, remedy))
        self._check_components(draft)
        if spec.old_job_id and draft.known is None and not draft.dry_run:
            draft.offer = self._inheritance.offer(spec)
            self._inheritance.keep(spec, draft.offer)
            draft.warnings += [
                f"task {name} is not inherited: {why}" for name, why in draft.offer.lacking.items()
            ]
        try:
            draft.pool = self._resources.pool_for(spec)
        except GatewayError as error:
            text = f"{error.reason}: {error.message}"
            draft.refuse(error, problem("resources", text, "ask for less in job_params"))
        except EngineError as error:
            if not draft.dry_run:
                raise
            draft.items.append(Item("resources", Standing.UNKNOWN, cause=str(error)))
        draft.images = self._readiness.images(spec)
        if not draft.dry_run:
            draft.warnings += [
                f"{item.check} {item.about}: {item.cause}; {item.remedy}"
                for item in map(self._readiness.image_item, draft.images)
                if item.standing is Standing.PROBLEM
            ]
        return draft

    def _check_components(self, draft: _Draft) -> None:
        """Check components, parameters, datasets and the model; whatever is wrong is reported together."""
        closed = self._sharing.refusal(draft.spec) or self._rules.trust.without_permit(
            draft.spec, draft.sender
        )
        if closed is not None:  # who may not use a dataset learns no more of it
            draft.hidden = frozenset(one.path for one in closed.problems)
        problems, warnings = self._planner.check(draft.spec, draft.hidden)
        draft.warnings += [str(w) for w in warnings]
        for one in problems:
            check = "datasets" if one.rule.startswith("DATASET_") else "components"
            draft.items += as_problems(
                check, [one], _REMEDY[one.rule.startswith("STORAGE_MISMATCH")]
            )
        draft.items += as_warnings("components", warnings)
        if not problems and not warnings:
            draft.items.append(fine("components", "fit the job"))
        if closed is not None:
            remedy = (
                f"have an admin of {self._node} enable the dataset, or grant it to the job's nodes"
            )
            error = NotShared(closed.reason, [*closed.problems, *problems], closed.why)
            draft.refuse(error, *as_problems("datasets", closed.problems, remedy))
        refused = self._planner.models.refusal(draft.spec)
        if refused is not None:
            text, remedy = (
                f"{refused.reason}: {refused.problem}",
                "name another version, or have it granted",
            )
            draft.refuse(
                Invalid([refused.problem, *problems], reason=refused.reason),
                problem("model", text, remedy),
            )
        if problems:
            draft.refuse(Invalid(problems))

    def _record(self, draft: _Draft) -> LocalJob:
        offered = bool(draft.spec.old_job_id) and draft.known is None
        return LocalJob(
            draft.spec,
            self._node,
            JobStatus.READY,
            self._context.clock(),
            draft.digest,
            warnings=tuple(draft.warnings),
            pool=draft.pool,
            inherited=tuple(draft.offer.runs),
            can_inherit=tuple(draft.offer.tasks) if offered else None,
            home=self._context.owner,
        )

    def _check_readiness(self, draft: _Draft) -> dict[str, str]:
        """Return what is the matter with images and places; raise where that refuses the job."""
        places, fetched = self._readiness.places(), self._readiness.to_fetch(draft.images)
        checks: dict[str, str] = {}
        missing: list[Problem] = []
        for image in draft.images:
            if image.name in fetched:
                checks["image"] = f"{image.name} is fetched"
            elif image.missing:
                missing.append(Problem(image.path, f"IMAGE_NOT_FOUND: {image.error}", image.name))
                checks["image"] = f"{image.name} is missing"
            elif image.error is not None:  # it may be back before the first task
                checks["image"] = f"{image.name}: {image.error.reason}"
        if lacks := [lack for lack in places.values() if lack.refuses]:
            words = "; ".join((*(lack.text for lack in lacks), *map(str, missing)))
            raise Refused(
                f"node {self._node} cannot take jobs now: {words}", reason=lacks[0].reason
            )
        if missing and self._rules.require_images:
            raise Invalid(missing, reason="IMAGE_NOT_FOUND")
        return checks | {name: lack.text for name, lack in places.items()}

    def _approved(
        self,
        local: LocalJob,
        draft: _Draft,
        checks: Mapping[str, str],
        status: str,
    ) -> LocalJob:
        node, now, scheduler = self._node, self._context.clock(), local.spec.scheduler
        verdict, words = self.judged(local.spec, draft.sender)
        if verdict is Verdict.REJECT:
            raise NotAllowed(f"node {node} does not take part: {words}")
        if verdict is Verdict.APPROVE or draft.known is not None:
            detail = {"checks": dict(checks)} if checks else {}
            return local.noted(now, f"job {status} here", draft.sender, **detail)
        if not self._takes_confirm(scheduler):
            text = f"a person at {node} has to agree ({words}), which {scheduler} does not wait for"
            raise Refused(
                f"{text}; a rule under approval.rules can agree", reason="APPROVAL_UNSUPPORTED"
            )
        return approval.await_person(
            local.noted(now, "job PENDING here", draft.sender), self._rules.policy, words, now
        )

    def _takes_confirm(self, scheduler: NodeId) -> bool:
        return scheduler == self._node or self._rules.peers.takes_confirm(scheduler)

    # ------------------------------------------------------------ what only a dry run reports

    def _signed(self, image: JobImage) -> Item:
        """Report an image, and if it may start whether it is signed as it has to be."""
        item = self._readiness.image_item(image)
        if item.standing is not Standing.OK:
            return item
        try:
            signed = self._rules.signatures.check(image.provider.name, image.name, image.engine)
        except EngineError as error:
            remedy = (
                f"have it signed with a key that engine.docker.signatures of {self._node} names"
            )
            return problem("image", f"{error.reason}: {error}", remedy, image.name)
        return replace(item, found=f"{item.found}, signed") if signed else item

    def _data(self, draft: _Draft) -> Iterator[Item]:
        for node in draft.spec.dag.nodes:
            with suppress(GatewayError):  # not registered, which was reported with the components
                for run in self._planner.first_runs(draft.spec, node):
                    at = f"config.task_params.{run.party.label}.{node.name}."
                    if any(path.startswith(at) for path in draft.hidden):
                        continue
                    for address in run.inputs.values():
                        about = f"{address.dataset_id} for {run.party.label} of {node.name}"
                        try:
                            size, _ = self._planner.storage.stamp(address)
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
            yield Item(
                "resources", Standing.WAITS, pool.portions.text(), reason, f"it starts once {once}"
            )
        elif pool and pool.portions:
            yield fine("resources", f"{pool.portions.text()}, free now")
        else:
            yield fine("resources", "the job asks for none")

    def _approval(self, spec: JobSpec, sender: NodeId) -> Item:
        node = self._node
        verdict, words = self.judged(spec, sender)
        starts, never = self.judged(spec, sender, START)
        if Verdict.REJECT in (verdict, starts):
            text = (
                words
                if verdict is Verdict.REJECT
                else f"it would be taken, and refused at its start: {never}"
            )
            remedy = f"have an admin of {node} change approval.rules, or the route"
            return problem("approval", f"NOT_AUTHORISED: {text}", remedy)
        if verdict is Verdict.APPROVE:
            return fine("approval", "no approval is needed")
        if self._takes_confirm(sender or spec.scheduler):
            remedy = f"tell those who decide at {node}"
            return Item("approval", Standing.WAITS, "a person has to agree", words, remedy)
        text = f"APPROVAL_UNSUPPORTED: a person has to agree ({words}), for which the other node does not wait"
        return problem("approval", text, f"have an admin of {node} add a rule under approval.rules")

    def _routes(self, spec: JobSpec) -> Iterator[Item]:
        others = sorted({n for n in (*spec.nodes, spec.scheduler) if n not in ("", self._node)})
        unknown = [n for n in others if not self._rules.peers.knows(n)]
        if unknown:
            text = f"{self._node} has no enabled route to {', '.join(unknown)}"
            yield problem(
                "routes", text, f"have an admin of {self._node} add a route, or enable it"
            )
        elif others:
            yield fine("routes", f"enabled: {', '.join(others)}")
