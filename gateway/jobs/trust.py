"""Contracts and permits as conditions of jobs, according to the setting ``trust.level``.

A permit is bound to the partner that applied, to the dataset, to a scope, to a time and to a number
of jobs. A job is counted when it is created. Whether the job presented the permit is stored at that
time. Its start then needs no permit in the request, but the permit must still be in force and cover
the job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from gateway.auth import digest, origin
from gateway.data.sharing import NotShared, Sharing
from gateway.domain import approval, datasets, models, permits
from gateway.domain.applications import Application, Kind, Side
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.permit_scope import missing_scope
from gateway.domain.permits import Finding, Holding, JobPermits
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, NodeId, is_own
from gateway.errors import NotAllowed
from gateway.jobs.agreements import Agreements
from gateway.jobs.permit_holdings import DatasetUse, PermitHoldings
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

# The requirements for jobs with other nodes: see `gateway.config.schema.partners.TrustSettings`.
Level = Literal["open", "known", "contract", "permit"]

_JOB_LEVEL = 2  # level of a job's permit in the header, the same as a flow's
_MAX_TOKENS = 1000  # entries that are read of the header with tokens; further ones are ignored
_MISSING = "a valid permit of the requesting node is needed"
_EXPIRED = "the permit of the requesting node has expired"
_USED_UP = "its permit was used by as many jobs as it allows"
# Reasons of refusals in the order in which the first one names the refusal of a job.
_REASONS = {
    Finding.MISSING: "PERMIT_MISSING",
    Finding.OUT_OF_SCOPE: "PERMIT_OUT_OF_SCOPE",
    Finding.USED_UP: "PERMIT_USED_UP",
}


class Trust:
    """Contracts and permits of jobs."""

    def __init__(
        self,
        node: NodeId,
        applications: SqlApplications,
        holdings: PermitHoldings,
        sharing: Sharing,
        level: Level,
        roles_of: RolesOf,
        clock: Clock,
    ) -> None:
        self._node = node
        self._applications = applications
        self._level = level
        self._roles_of = roles_of
        self._clock = clock
        self._holdings = holdings
        self._sharing = sharing
        self._agreements = Agreements(node, applications, holdings, clock)

    def contract_refusal(self, spec: JobSpec) -> NotAllowed | None:
        """Return the refusal of a job for lack of a contract with one of its nodes.

        None if all contracts are in force, or the settings require none.
        """
        if self._level not in ("contract", "permit"):
            return None
        now = self._clock()
        partners = datasets.partners(spec, self._node)
        lacking = [node for node in partners if self._applications.contract(node, now) is None]
        if not lacking:
            return None
        text = f"no contract of {self._node} with {', '.join(lacking)} is in force"
        refusal = NotAllowed(text, reason="NO_CONTRACT")
        refusal.node = lacking[0]
        return refusal

    def agreement_refusal(
        self,
        spec: JobSpec,
        sender: NodeId,
        audited_project: str = "",
    ) -> NotAllowed | None:
        """Return the refusal of a job for a missing permit of its flow or project.

        None if no permit is missing, or if the settings require none. The arguments are as in
        `permit_refusal`.
        """
        if not self._requires_agreements(spec):
            return None
        return self._agreements.refusal(spec, self._permits_of(spec, sender), audited_project)

    def _requires_agreements(self, spec: JobSpec) -> bool:
        """Return whether a job needs permits for its flow and project.

        As for datasets, a job that this node both initiates and schedules needs none.
        """
        return self._level == "permit" and not is_own(spec, self._node)

    def permit_refusal(
        self,
        spec: JobSpec,
        sender: NodeId,
        audited_project: str = "",
    ) -> NotShared | None:
        """Return the refusal of a job whose permits do not open the datasets that it uses here.

        None if no permit is lacking. A permit counts if ``sender`` presents it in the current
        request, or if the job presented it at its creation. ``audited_project`` is the project in
        the audit of the job; empty without one.
        """
        uses = self._dataset_uses(spec, audited_project)
        if not uses:
            return None
        job = self._permits_of(spec, sender)
        problems: dict[Finding, list[Problem]] = {finding: [] for finding in _REASONS}
        for use in uses:
            decision = permits.decide(
                use.holdings,
                job,
                is_required=self._level == "permit",
            )
            if decision.finding is not Finding.ALLOWED:
                rule = self._rule(decision, use, sender)
                problems[decision.finding].append(self._problem(use, rule))
        return _refusal(problems)

    def _permits_of(self, spec: JobSpec, sender: NodeId) -> JobPermits:
        """Return the permits that a job presents, and those that count it already."""
        counted = self._applications.used_by(spec.job_id)
        return JobPermits(sender, origin().permits, counted)

    def _rule(
        self,
        decision: permits.Decision,
        use: DatasetUse,
        sender: NodeId,
    ) -> str:
        """Return the rule that a job breaks, for its refusal."""
        match decision.finding:
            case Finding.USED_UP:
                return _USED_UP
            case Finding.OUT_OF_SCOPE:
                assert decision.holding is not None
                return _scope_rule(decision.holding, sender)
        return self._why_missing(use, sender, self._clock())

    def _why_missing(
        self,
        use: DatasetUse,
        sender: NodeId,
        now: datetime,
    ) -> str:
        """Return the rule that a job without a permit for a dataset breaks.

        `_EXPIRED` if the newest permit of ``sender`` for the dataset has expired; else `_MISSING`.
        """
        dataset_id = use.dataset.dataset.dataset_id
        applications = self._applications.list(Side.THEIRS, Kind.DATASET, partner=sender)
        for application in reversed(applications):
            was_approved = application.digest != ""
            if application.subject == dataset_id and was_approved:
                return _EXPIRED if application.has_expired(now) else _MISSING
        return _MISSING

    def use(
        self,
        spec: JobSpec,
        sender: NodeId,
        audited_project: str = "",
    ) -> None:
        """Count a created job as a use of each partner's permits for its datasets and flow.

        A job that is counted already is not counted again. Raises `NotAllowed` if other jobs have
        used a permit up since it was checked. ``audited_project`` is as in `permit_refusal`.
        """
        if is_own(spec, self._node):  # needs no permit
            return
        job = self._permits_of(spec, sender)
        for use in self._dataset_uses(spec, audited_project):
            for holding in use.holdings:
                if not self._count(holding, spec.job_id, job):
                    raise NotShared("PERMIT_USED_UP", [self._problem(use, _USED_UP)])
        if self._requires_agreements(spec):
            self._agreements.use(spec, job, audited_project)

    def _count(
        self,
        holding: Holding,
        job_id: str,
        job: JobPermits,
    ) -> bool:
        """Count a job as a use of the permit in a holding that covers it; return whether it counts.

        False if the permit is used up, or has ended since the job was checked.
        """
        permit = permits.covering_permit(holding, job.counted)
        if permit is None:
            return False
        return self._applications.use(permit, job_id, permit=job.presents(permit))

    def audit_refusal(self, existing: LocalJob | None) -> NotAllowed | None:
        """Return the refusal of a creation that does not present the permit of the job's audit.

        ``existing`` is the record of the audit. None if the job was not audited, or created before,
        or if the settings require no permit.
        """
        if self._level != "permit" or existing is None:
            return None
        token = approval.issued_permit(existing)
        if not token or digest(token) in origin().permits:
            return None
        text = (
            f"job {existing.id} was audited at {self._node}: "
            "its creation has to present the permit of the approval"
        )
        return NotAllowed(text, reason="PERMIT_MISSING")

    def header(
        self,
        node: NodeId,
        spec: JobSpec,
        job_token: str = "",
    ) -> str:
        """Return the value of the header ``x-mprac-token-set`` for a job's requests to a node.

        ``node`` receives the requests. The header has the permits that ``node`` has issued to this
        node: for datasets in the job, for the job's flow and project, and ``job_token`` for the job
        itself. Empty without permits.
        """
        entries = [_entry(permit) for permit in self._permits_by(node, spec)]
        if job_token:
            entries.append(f"{quote(spec.job_id, safe='')}/{_JOB_LEVEL}/{job_token}")
        return ",".join(entries)

    def count_presented(self, node: NodeId, spec: JobSpec) -> None:
        """Count a job that a node has created as a use of this node's permits of that node.

        This only informs people here: the owner's own count decides. Of several permits for one
        subject, the newest that is not used up counts.
        """
        by_subject: dict[str, list[Application]] = {}
        for permit in self._permits_by(node, spec):
            by_subject.setdefault(permit.subject, []).append(permit)
        for permits_of_subject in by_subject.values():
            for permit in reversed(permits_of_subject):
                if self._applications.use(permit, spec.job_id, permit=True):
                    break

    def _permits_by(self, node: NodeId, spec: JobSpec) -> list[Application]:
        """Return the permits that a node has issued to this node for a job's datasets and flow."""
        now = self._clock()
        issued = []
        for application in self._applications.approved_by(node):
            if application.token and application.holds(now):
                issued.append(application)
        if not issued:
            return []
        roles = once_per_component(self._roles_of)
        subjects = {use.dataset.dataset_id for use in datasets.named_datasets(spec, node, roles)}
        subjects |= {
            spec.flow_id or spec.job_id,
            self._holdings.project_with(node, spec),
            models.model_version(spec).model_id,
        }
        return [permit for permit in issued if permit.subject in subjects]

    def _dataset_uses(
        self,
        spec: JobSpec,
        audited_project: str,
    ) -> Sequence[DatasetUse]:
        """Return the datasets of this node in a job with other nodes that permits decide on.

        Empty for a job that this node both initiates and schedules. Unless the settings require
        permits, a grant that a person has made opens the dataset by itself: the permits of that
        partner are left out.
        """
        if is_own(spec, self._node) or not datasets.partners(spec, self._node):
            return ()
        uses = self._holdings.of_datasets(spec, audited_project)
        if self._level == "permit":
            return uses
        return [self._without_personal_grants(use) for use in uses]

    def _without_personal_grants(self, use: DatasetUse) -> DatasetUse:
        """Return a use without the permits of partners that have a person's grant in force."""
        if not use.holdings:
            return use
        now = self._clock()
        granted = set()
        for grant in self._sharing.grants.of(use.dataset.dataset):
            if permits.is_personal(grant) and grant.holds(now):
                granted.add(grant.node)
        holdings = [holding for holding in use.holdings if holding.use.node not in granted]
        return replace(use, holdings=holdings)

    def _problem(self, use: DatasetUse, rule: str) -> Problem:
        """Return the problem that the use of a dataset in a job breaks a rule."""
        dataset = use.dataset.dataset.dataset_id
        text = f"dataset {dataset} at {self._node}: {rule}; apply for it there"
        return Problem(use.dataset.path, text, dataset)


def _scope_rule(holding: Holding, sender: NodeId) -> str:
    """Return the rule that a job outside the scope of a partner's permits breaks.

    Only the partner itself learns the scope of its permit; the newest one is named.
    """
    partner = holding.use.node
    if partner != sender:
        return f"the permit of {partner} does not cover this job"
    scope = holding.permits[-1].scope
    needed = missing_scope(scope, holding.use)
    return f"its permit is only for {scope}; this job needs one for {needed}"


def _refusal(problems: Mapping[Finding, Sequence[Problem]]) -> NotShared | None:
    """Return the refusal with all problems, named by the first finding that has any; or None."""
    all_problems = [problem for group in problems.values() for problem in group]
    for finding, group in problems.items():
        if group:
            return NotShared(_REASONS[finding], all_problems)
    return None


def _entry(permit: Application) -> str:
    """Return a permit as an entry of the header: ``<name>/<level>/<token>``."""
    return f"{quote(permit.subject, safe='')}/{permit.level}/{permit.token}"


def presented_digests(header: str) -> tuple[str, ...]:
    """Return the digests of the tokens in the header ``x-mprac-token-set``.

    Entries are separated by commas. Each is ``<name>/<level>/<token>``, and an entry of another
    form is ignored. The caller stores the digests in `RequestOrigin.permits`.
    """
    tokens = []
    for entry in header.split(",")[:_MAX_TOKENS]:
        parts = entry.strip().split("/", 2)
        if len(parts) == 3:
            tokens.append(digest(parts[2]))
    return tuple(tokens)
