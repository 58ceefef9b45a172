"""Decides whether this node accepts a job: in a creation, an audit or a dry run.

An audit, in the words of the standard, is the request of another node for approval of a job before
its creation. It leaves a record of the job here, as a creation does.

Each step adds to a draft. In a creation or an audit the first refusal raises; a dry run reports all
refusals and stores nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from engines.base import EngineDown, EngineError
from gateway.attestation.verifiers import NOT_VERIFIABLE
from gateway.data.sharing import NotShared, Sharing
from gateway.domain import approval, rerun, validation
from gateway.domain.approval_rules import CREATE, START, Verdict
from gateway.domain.dry_run import (
    Item,
    Standing,
    as_problems,
    as_warnings,
    fine,
    in_order,
    problem,
)
from gateway.domain.problems import Problem
from gateway.domain.run import Audit, LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, Refused, StorageFailed
from gateway.jobs import admission_rules
from gateway.jobs.admission_report import AdmissionReport
from gateway.jobs.admission_rules import Rules
from gateway.jobs.bundles import image_differences
from gateway.jobs.drafts import Draft
from gateway.jobs.fingerprint import digest
from gateway.jobs.inheritance import Inheritance
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.readiness import FacilityFailure, JobImage, Readiness
from gateway.jobs.resources import Resources
from gateway.language.catalogue import ENGLISH, next_step
from gateway.runtime.context import NodeContext

# Remedies for problems of a job's components and their datasets.
_COMPONENT_REMEDY = "correct the job, or register and upload what it names"  # without a reason
_STORAGE_REMEDY = (  # for a dataset in a storage from which the component does not read
    "upload the data with --storage into one that the component lists, "
    "or use a component for where it lies"
)


@dataclass(frozen=True)
class _StartRefusal:
    """The refusal of a start."""

    error: NotAllowed  # for the node that has requested the start
    words: str  # the reason for the operators of this node, who may know more than other nodes


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
        self._report = AdmissionReport(
            context.node,
            planner,
            resources,
            readiness,
            self.judge,
        )

    # -------------------------------------------------- use cases

    def validate(
        self,
        spec: JobSpec,
        sender: NodeId,
        audit: Audit | None = None,
    ) -> LocalJob:
        """Return the record of a job that could run here; raise for a job that could not.

        The record is not stored, but the records of earlier jobs are changed, so that results that
        this job inherits from them are not deleted. ``audit`` is the audit that the check belongs
        to; None: the audit in the job's record, if there is one.
        """
        draft = self._draft(spec, sender, audit=audit)
        self._validate(draft)
        return self._record(draft)

    def admit(self, spec: JobSpec, sender: NodeId) -> LocalJob:
        """Return the record of a created job: READY, or PENDING if a person or images are awaited.

        Raises for a job that this node does not accept.
        """
        draft = self._draft(spec, sender)
        not_presented = self._rules.trust.audit_refusal(draft.existing)
        if not_presented is not None:
            raise not_presented
        agreement = self._rules.bundles.accept(spec, sender)
        try:
            self._validate(draft)
        except StorageFailed as error:
            # A refusal instead of the original error, after which the scheduling node would count
            # this node as unreachable.
            raise Refused(error.message, reason=error.reason) from error
        draft.warnings += image_differences(agreement)
        checks: dict[str, str] = {}
        if _is_new(draft.existing):
            checks = self._check_readiness(draft)
        images = self._images_to_fetch(draft)
        status = "READY"  # for the timeline
        if images:
            status = "PENDING"
        local = self._approved(
            self._record(draft),
            draft,
            checks,
            status,
        )
        local = replace(
            local,
            checks=checks,
            agreement=agreement,
            spec=replace(spec, bundles={}),  # ``agreement`` has the bundle that was checked
        )
        timeout = self._readiness.pull_timeout(len(images))
        local = approval.await_images(
            local,
            images,
            timeout,
            self._context.clock(),
        )
        # Counts the job as a use of its datasets' approvals; raises if they are used up.
        self._rules.trust.use(spec, sender, draft.audited_project)
        return local

    def check_amended(
        self,
        spec: JobSpec,
        sender: NodeId,
    ) -> Sequence[str]:
        """Check a job with new parameters as at its creation here; return its warnings.

        Raises as a creation does, and `NotAllowed` unless the policy approves the parameters
        without a person.
        """
        self._rules.bundles.accept(spec, sender)
        with self._registry.one_view():
            warnings = self.validate(spec, sender).warnings
        verdict, words = self.judge(spec, sender)
        if verdict is not Verdict.APPROVE:
            raise NotAllowed(
                f"the job was agreed to at {self._node} with its own parameters ({words})"
            )
        existing = self._context.store.local_jobs.find(spec.job_id)
        self._rules.trust.use(spec, sender, _audited_project(existing))  # as in `admit`
        return warnings

    def dry_run(
        self,
        spec: JobSpec,
        sender: NodeId,
    ) -> tuple[Item, ...]:
        """Report all checks of whether this node would accept a job; create nothing."""
        with self._registry.one_view():
            draft = self._draft(spec, sender, dry_run=True)
            problems, _ = validation.check(spec)
            if problems:
                return as_problems("job", problems, "correct the job")
            self._validate(draft)
            draft.items += self._report.items(draft, self._rules)
        return in_order(draft.items)

    def judge(
        self,
        spec: JobSpec,
        sender: NodeId,
        command: str = CREATE,
    ) -> tuple[Verdict, str]:
        """Return the policy's verdict on a job, with the reason.

        ``command`` is `CREATE` or `START`.
        """
        return admission_rules.judge(
            spec,
            sender,
            command,
            self._node,
            self._rules,
            self._registry,
        )

    def check_start(self, local: LocalJob, sender: NodeId) -> None:
        """Check again, before anything starts, whether the job may run here.

        Raises `Conflict` for a job that is not approved or not prepared yet, and `NotAllowed` for a
        job whose start is forbidden now, see `_start_refusal`.
        """
        if approval.pending_preparation(local) and not approval.awaits_person(local):
            raise Conflict(
                f"images of job {local.id} are still being fetched at {self._node}",
                reason="NOT_READY",
            )
        if local.status is JobStatus.PENDING:
            raise Conflict(
                f"job {local.id} is not approved at {self._node} yet", reason="NOT_APPROVED"
            )
        refusal = self._start_refusal(local, sender)
        if refusal is not None:
            self._record_refused_start(local, sender, refusal)
            raise refusal.error

    def failures(self) -> Sequence[FacilityFailure]:
        """Return why this node accepts no jobs now, or no jobs with data in some storage.

        An engine that does not respond is left out: jobs wait for it.
        """
        failures = self._readiness.failures().values()
        return [failure for failure in failures if failure.reason != EngineDown.reason]

    # -------------------------------------------------- the start of a job

    def _start_refusal(self, local: LocalJob, sender: NodeId) -> _StartRefusal | None:
        """Return why policy, grants, permits, contracts or the bundle forbid the start now.

        None if the job may start. The bundle is checked only before the job's first start here.
        """
        trust = self._rules.trust
        spec = rerun.in_force(local)
        with self._registry.one_view():
            verdict, words = self.judge(spec, sender, START)
            not_shared = self._sharing.refusal(spec) or trust.permit_refusal(
                spec, sender, _audited_project(local)
            )
        # No person decides on a start, so only a rejection counts.
        if verdict is Verdict.REJECT:
            text = f"node {self._node} does not take part any more: {words}"
            return _StartRefusal(NotAllowed(text), words)
        if not_shared is not None:
            return _StartRefusal(not_shared, not_shared.why)
        not_agreed = trust.contract_refusal(spec) or trust.agreement_refusal(
            spec, sender, _audited_project(local)
        )
        if not_agreed is not None:
            return _StartRefusal(not_agreed, not_agreed.message)
        other_model = self._rules.model_permits.refusal(spec, _audited_project(local))
        if other_model is not None:
            error = NotAllowed(str(other_model.problem), reason=other_model.reason)
            return _StartRefusal(error, error.message)
        if local.status is JobStatus.READY:
            return self._bundle_refusal(local, sender)
        return None

    def _bundle_refusal(self, local: LocalJob, sender: NodeId) -> _StartRefusal | None:
        """Return why the job's bundle forbids the start now; None if it does not."""
        try:
            self._rules.bundles.check_start(local, sender)
        except NotAllowed as error:
            return _StartRefusal(error, error.message)
        return None

    def _record_refused_start(
        self,
        local: LocalJob,
        sender: NodeId,
        refusal: _StartRefusal,
    ) -> None:
        """Note a refused start in the job's timeline and in the audit log."""
        now = self._context.clock()

        def add_note(current: LocalJob) -> LocalJob:
            return current.with_note(
                now,
                "start not allowed",
                sender,
                message=refusal.words,
            )

        self._context.store.local_jobs.update(local.id, add_note)
        detail = {
            "reason": refusal.error.reason,
            "message": refusal.words,
        }
        self._rules.audit(sender or self._node, f"start of job {local.id} not allowed", detail)

    # -------------------------------------------------- steps of a creation

    def _draft(
        self,
        spec: JobSpec,
        sender: NodeId,
        *,
        dry_run: bool = False,
        audit: Audit | None = None,
    ) -> Draft:
        """Return a draft of a job; ``audit`` is as in `validate`.

        Raises `NotAllowed` for a new job if the routes here forbid one of its nodes, and `Refused`
        for a job without a party at this node.
        """
        existing = self._context.store.local_jobs.find(spec.job_id)
        if _is_new(existing):
            self._check_routes(spec, sender)
        if not spec.parties_at(self._node):
            raise Refused(f"the job names no role of node {self._node}", reason="NOT_A_PARTY")
        project = audit.project_id if audit else _audited_project(existing)
        return Draft(spec, sender, existing, dry_run, digest(spec), project)

    def _check_routes(self, spec: JobSpec, sender: NodeId) -> None:
        """Raise `NotAllowed` if the routes here forbid the sender or another node of a new job.

        The sender needs an enabled route. The job's other nodes need none, but a disabled route of
        one of them is a refusal.
        """
        for node in (sender, spec.initiator, *spec.nodes):
            if node in ("", self._node):
                continue
            if not self._rules.routes.may_begin(node, asks=node == sender):
                raise NotAllowed(
                    f"node {node} has no enabled route here: ask the admin of {self._node} for one"
                )

    def _validate(self, draft: Draft) -> None:
        """Check a job and complete its draft.

        The steps refuse it by `Draft.refuse`, which raises the first refusal, except in a dry run.
        """
        spec = draft.spec
        self._check_intake(draft)
        problems, _ = validation.check(spec)
        if problems:
            draft.refuse(Invalid(problems))  # never in a dry run: `dry_run` has reported them
        self._check_contract(draft)
        self._check_reports(draft)
        self._check_components(draft)
        if spec.old_job_id and draft.existing is None and not draft.dry_run:
            self._inherit(draft)
        self._plan_reservation(draft)
        draft.images = self._readiness.images(spec)
        if not draft.dry_run:
            draft.warnings += self._image_warnings(draft)

    def _check_intake(self, draft: Draft) -> None:
        """Refuse a new job of another node while this node accepts no jobs from that node.

        A job with a record here passes: its audit or its creation has checked this.
        """
        if draft.sender in ("", self._node) or draft.existing is not None:
            return
        try:
            self._rules.intake.check(draft.sender)
        except GatewayError as error:
            remedy = f"ask {self._node} when it takes jobs again"
            draft.refuse(error, problem("takes jobs", error.message, remedy))

    def _check_contract(self, draft: Draft) -> None:
        """Refuse a job for lack of a contract or permit that the settings require.

        The contract is that with one of the job's nodes, the permit that of the flow or project.
        """
        trust = self._rules.trust
        refusal = trust.contract_refusal(draft.spec)
        if refusal is None:
            self._check_agreements(draft)
            return
        text = f"{refusal.reason}: {refusal.message}"
        remedy = (
            f"bfia-gateway partner apply contract {quote(refusal.node)}, with its address (--to)"
        )
        draft.refuse(refusal, problem("contract", text, remedy))

    def _check_agreements(self, draft: Draft) -> None:
        """Refuse a job for lack of the permit of its flow or project."""
        refusal = self._rules.trust.agreement_refusal(
            draft.spec, draft.sender, draft.audited_project
        )
        if refusal is None:
            return
        text = f"{refusal.reason}: {refusal.message}"
        remedy = f"have {refusal.node} apply: bfia-gateway partner apply flow, or project"
        draft.refuse(refusal, problem("contract", text, remedy))

    def _check_reports(self, draft: Draft) -> None:
        """Refuse a job whose runs here could bring no report that all policies accept.

        None is accepted either if this node cannot verify it.
        """
        refusal = self._rules.tee_policies.refusal(draft.spec)
        if refusal is None:
            return
        remedy = "have the contract or tee.providers changed, so that one report suits both"
        if refusal.reason == NOT_VERIFIABLE:
            remedy = next_step(refusal.reason, ENGLISH).rstrip(".")
        draft.refuse(refusal, *as_problems("contract", refusal.problems, remedy))

    def _check_components(self, draft: Draft) -> None:
        """Check components, parameters, datasets and the model; report all problems together."""
        spec = draft.spec
        trust = self._rules.trust
        not_shared = self._sharing.refusal(spec) or trust.permit_refusal(
            spec, draft.sender, draft.audited_project
        )
        if not_shared is not None:
            # Nodes that may not use a dataset learn nothing further about it.
            draft.hidden = frozenset(entry.path for entry in not_shared.problems)
        attested = self._rules.tee_policies.providers_with_reports(spec)
        problems, warnings = self._planner.check(spec, draft.hidden, attested)
        draft.warnings += [str(warning) for warning in warnings]
        draft.items += _component_items(problems, warnings)
        if not_shared is not None:
            self._refuse_not_shared(draft, not_shared, problems)
        self._check_model(draft, problems)
        if problems:
            # Without items for the dry run's report: `_component_items` has already made them.
            draft.refuse(Invalid(problems))

    def _refuse_not_shared(
        self,
        draft: Draft,
        not_shared: NotShared,
        problems: Sequence[Problem],
    ) -> None:
        """Refuse a job for a dataset that it may not use, together with its other problems."""
        remedy = f"have an admin of {self._node} enable the dataset, or grant it to the job's nodes"
        if not_shared.reason.startswith("PERMIT_"):  # a grant alone would not help
            remedy = next_step(not_shared.reason, ENGLISH).rstrip(".")
        error = NotShared(not_shared.reason, [*not_shared.problems, *problems], not_shared.why)
        draft.refuse(error, *as_problems("datasets", not_shared.problems, remedy))

    def _check_model(
        self,
        draft: Draft,
        problems: Sequence[Problem],
    ) -> None:
        """Refuse a job whose model is not usable for it.

        The refusal also has the ``problems`` of the job's components.
        """
        # Before the grants, as the permit's digest explains why another version is not granted.
        refusal = self._rules.model_permits.refusal(draft.spec, draft.audited_project)
        refusal = refusal or self._planner.models.refusal(draft.spec)
        if refusal is None:
            return
        text = str(refusal.problem)
        remedy = "name another version, or have it granted"
        error = Invalid([refusal.problem, *problems], reason=refusal.reason)
        draft.refuse(error, problem("model", text, remedy))

    def _inherit(self, draft: Draft) -> None:
        """Determine which results of an earlier job this node offers the new one.

        The earlier jobs' records are changed, so that these results are kept.
        """
        draft.offer = self._inheritance.offer(draft.spec)
        self._inheritance.keep(draft.spec, draft.offer)
        for name, obstacle in draft.offer.lacking.items():
            draft.warnings.append(f"task {name} is not inherited: {obstacle}")

    def _plan_reservation(self, draft: Draft) -> None:
        """Determine the resources that the job will have to reserve here; reserve nothing yet."""
        try:
            draft.pool = self._resources.pool_for(draft.spec)
        except GatewayError as error:
            text = f"{error.reason}: {error.message}"
            draft.refuse(error, problem("resources", text, "ask for less in job_params"))
        except EngineError as error:
            if not draft.dry_run:
                raise
            draft.items.append(Item("resources", Standing.UNKNOWN, cause=str(error)))

    def _image_warnings(self, draft: Draft) -> list[str]:
        """Return the problems of the job's images as warnings."""
        warnings = []
        for image in draft.images:
            item = self._readiness.image_item(image)
            if item.standing is Standing.PROBLEM:
                warnings.append(f"{item.check} {item.about}: {item.cause}; {item.remedy}")
        return warnings

    def _images_to_fetch(self, draft: Draft) -> dict[str, str]:
        """Return the images to pull before the job is READY, each with its engine.

        Empty for a job with a record here, even if that is only the record of an audit, and for a
        scheduling node that does not wait for a decision after the creation: the images of such
        jobs are pulled at the launch.
        """
        can_wait = draft.existing is None and self._waits_for_decision(draft.spec.scheduler)
        if not can_wait:
            return {}
        return self._readiness.to_fetch(draft.images)

    def _record(self, draft: Draft) -> LocalJob:
        """Return the record of the drafted job, as READY."""
        # None: nothing is inherited, or the stored record has the names already.
        can_inherit = None
        if draft.spec.old_job_id and draft.existing is None:
            can_inherit = tuple(draft.offer.tasks)
        return LocalJob(
            spec=draft.spec,
            node=self._node,
            status=JobStatus.READY,
            created_at=self._context.clock(),
            digest=draft.digest,
            warnings=tuple(draft.warnings),
            pool=draft.pool,
            inherited=tuple(draft.offer.runs),  # runs of earlier jobs
            can_inherit=can_inherit,  # names of tasks
            home=self._context.owner,
        )

    def _check_readiness(self, draft: Draft) -> dict[str, str]:
        """Return the states of images and facilities that are not ready, by the names of checks.

        Raises `Refused` if a facility makes this node refuse jobs, and `Invalid` for missing images
        if the settings demand them.
        """
        failures = self._readiness.failures()
        to_fetch = self._readiness.to_fetch(draft.images)
        missing = _missing_images(draft.images, to_fetch)
        refusing = [failure for failure in failures.values() if failure.refuses_jobs]
        if refusing:
            texts = [failure.text for failure in refusing]
            texts += [str(image_problem) for image_problem in missing]
            words = "; ".join(texts)
            raise Refused(
                f"node {self._node} cannot take jobs now: {words}", reason=refusing[0].reason
            )
        if missing and self._rules.require_images:
            raise Invalid(missing, reason="IMAGE_NOT_FOUND")
        checks = _image_checks(draft.images, to_fetch)
        for name, failure in failures.items():
            checks[name] = failure.text
        return checks

    def _approved(
        self,
        local: LocalJob,
        draft: Draft,
        checks: Mapping[str, str],
        status: str,
    ) -> LocalJob:
        """Return a job as the policy approves it, or as waiting for a person.

        A job that is here already is returned as approved: its stored record has the decision.
        Raises `NotAllowed` if the policy rejects the job, and `Refused` if a person has to decide
        and the scheduling node does not wait for a decision. ``status`` is noted in the timeline
        for an approved job.
        """
        node = self._node
        now = self._context.clock()
        scheduler = local.spec.scheduler
        verdict, words = self.judge(local.spec, draft.sender)
        if verdict is Verdict.REJECT:
            raise NotAllowed(f"node {node} does not take part: {words}")
        if verdict is Verdict.APPROVE or draft.existing is not None:
            detail = {}
            if checks:
                detail["checks"] = dict(checks)
            return local.with_note(now, f"job {status} here", draft.sender, **detail)
        if not self._waits_for_decision(scheduler):
            text = f"a person at {node} has to agree ({words}), which {scheduler} does not wait for"
            raise Refused(
                f"{text}; a rule under approval.rules can agree", reason="APPROVAL_UNSUPPORTED"
            )
        pending = local.with_note(now, "job PENDING here", draft.sender)
        return approval.await_person(pending, self._rules.policy, words, now)

    def _waits_for_decision(self, scheduler: NodeId) -> bool:
        """Return whether the scheduling node waits for the decision of a person here."""
        return scheduler == self._node or self._rules.routes.waits_for_decision(scheduler)


def _audited_project(existing: LocalJob | None) -> str:
    """Return the project that the audit of a job names; empty without a record or an audit."""
    if existing is None or existing.audit is None:
        return ""
    return existing.audit.project_id


def _is_new(existing: LocalJob | None) -> bool:
    """Return whether a job has not been created here yet.

    It has no record then (``existing`` is None), or only the record of its audit.
    """
    return existing is None or approval.is_unused(existing)


def _missing_images(
    images: Iterable[JobImage],
    to_fetch: Collection[str],
) -> list[Problem]:
    """Return a problem for each missing image that cannot be pulled.

    ``to_fetch`` are the images that can be pulled before the job is READY.
    """
    problems = []
    for image in images:
        if image.missing and image.name not in to_fetch:
            rule = str(image.error)
            problems.append(Problem(image.path, rule, image.name, reason="IMAGE_NOT_FOUND"))
    return problems


def _image_checks(
    images: Iterable[JobImage],
    to_fetch: Collection[str],
) -> dict[str, str]:
    """Return the check ``image`` with the state of the last image that is not ready; else {}.

    ``to_fetch`` are the images that can be pulled before the job is READY. The check also covers an
    image whose engine does not respond. That refuses no job, as the engine may work again before
    the first task.
    """
    checks: dict[str, str] = {}
    for image in images:
        if image.name in to_fetch:
            checks["image"] = f"{image.name} is being fetched"
        elif image.missing:
            checks["image"] = f"{image.name} is missing"
        elif image.error is not None:
            checks["image"] = f"{image.name}: {image.error.reason}"
    return checks


def _component_items(
    problems: Sequence[Problem],
    warnings: Sequence[Problem],
) -> list[Item]:
    """Return the items for problems and warnings of components.

    One item for a passed check is returned if there are neither problems nor warnings.
    """
    if not problems and not warnings:
        return [fine("components", "fit the job")]
    items: list[Item] = []
    for component_problem in problems:
        items += _problem_items(component_problem)
    items += as_warnings("components", warnings)
    return items


def _problem_items(component_problem: Problem) -> Sequence[Item]:
    """Return the items of a report for a problem of the components or their datasets."""
    reason = component_problem.reason
    check = "components"
    if reason.startswith("DATASET_"):
        check = "datasets"
    # A reason's next step is a sentence of its own; remedies are without the full stop.
    remedy = next_step(reason, ENGLISH).rstrip(".") or component_problem.remedy
    if reason == "STORAGE_MISMATCH":
        remedy = _STORAGE_REMEDY
    return as_problems(check, [component_problem], remedy or _COMPONENT_REMEDY)
