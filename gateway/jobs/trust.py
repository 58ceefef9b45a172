"""Contracts and permits as conditions of jobs, according to the setting ``trust.level``.

A permit is bound to the partner that applied, to the dataset, to a time and to a number of jobs. A
job is counted when it is created. Whether the job presented the permit is stored at that time. Its
start then needs no permit in the request, but the permit must still be in force.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from gateway.auth import digest, origin
from gateway.data.sharing import NotShared
from gateway.domain import datasets
from gateway.domain.applications import APPROVED, Application, Kind, Side
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.datasets import NamedDataset
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import NotAllowed
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

# The requirements for jobs with other nodes: see ``TrustSettings`` in `gateway.config.schema`.
Level = Literal["open", "known", "contract", "permit"]

_MAX_TOKENS = 1000  # entries that are read of the header with tokens; further ones are ignored
_MISSING = "a valid permit of the requesting node is needed"
_EXPIRED = "the permit of the requesting node has expired"
_USED_UP = "its permit was used by as many jobs as it allows"


@dataclass(frozen=True)
class _DatasetUse:
    """A dataset of this node in a job, with its newest approval for each partner of the job.

    An approval is an approved application of a partner; its permit is the token that the approval
    issued. A partner without an approval for the dataset is left out. An approval may have expired.
    """

    dataset: NamedDataset
    approvals: Sequence[Application]


class Trust:
    """Contracts and permits of jobs."""

    def __init__(
        self,
        node: NodeId,
        applications: SqlApplications,
        level: Level,
        roles_of: RolesOf,
        clock: Clock,
    ) -> None:
        self._node = node
        self._applications = applications
        self._level = level
        self._roles_of = roles_of
        self._clock = clock

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

    def permit_refusal(self, spec: JobSpec, sender: NodeId) -> NotShared | None:
        """Return the refusal of a job for a missing, expired or used-up permit.

        None if no permit is lacking. Two kinds of permits count: those in the current request,
        which ``sender`` has sent, and those that the job presented at its creation.
        """
        uses = list(self._dataset_uses(spec))
        if not uses:
            return None
        # Approvals that count this job already: the approval's number -> whether the job presented
        # the approval's permit when the job was counted.
        used = self._applications.used_by(spec.job_id)
        now = self._clock()
        missing = []
        used_up = []
        for use in uses:
            # The job counts at the approval of each partner, so each must have room. Of the
            # permits, one is enough.
            if any(_is_used_up(approval, used) for approval in use.approvals):
                used_up.append(self._problem(use, _USED_UP))
            elif self._level == "permit" and not _has_permit(use, used, sender, now):
                missing.append(self._problem(use, self._why_missing(use, sender, now)))
        if missing:
            return NotShared("PERMIT_MISSING", [*missing, *used_up])
        if used_up:
            return NotShared("PERMIT_USED_UP", used_up)
        return None

    def _why_missing(
        self,
        use: _DatasetUse,
        sender: NodeId,
        now: datetime,
    ) -> str:
        """Return the rule that a job without a permit for a dataset breaks.

        It is `_EXPIRED` if the newest permit of ``sender`` for the dataset has expired. It is
        `_MISSING` if that permit was terminated or is not in the request, or if there is none.
        """
        dataset_id = use.dataset.dataset.dataset_id
        applications = self._applications.list(Side.THEIRS, Kind.DATASET, partner=sender)
        for application in reversed(applications):
            was_approved = application.digest != ""
            if application.subject == dataset_id and was_approved:
                return _EXPIRED if application.has_expired(now) else _MISSING
        return _MISSING

    def use(self, spec: JobSpec, sender: NodeId) -> None:
        """Count a created job as a use of each valid approval of its datasets.

        A job that is counted already is not counted again. Raises `NotShared` if other jobs have
        used an approval up since it was checked.
        """
        now = self._clock()
        for use in self._dataset_uses(spec):
            for approval in use.approvals:
                if not approval.holds(now):
                    continue
                permit = _is_presented(approval, sender)
                if not self._applications.use(approval, spec.job_id, permit=permit):
                    raise NotShared("PERMIT_USED_UP", [self._problem(use, _USED_UP)])

    def header(self, node: NodeId, spec: JobSpec) -> str:
        """Return the value of the header ``x-mprac-token-set`` for a job's requests to a node.

        ``node`` receives the requests. The header has the permits that ``node`` has issued to this
        node: for datasets in the job, for the job's flow and for the job itself. Empty without
        permits.
        """
        now = self._clock()
        permits = []
        for application in self._applications.approved_by(node):
            if application.token and application.holds(now):
                permits.append(application)
        if not permits:
            return ""
        roles = once_per_component(self._roles_of)
        subjects = {use.dataset.dataset_id for use in datasets.named_datasets(spec, node, roles)}
        subjects |= {spec.job_id, spec.flow_id or spec.job_id}
        return ",".join(_token(permit) for permit in permits if permit.subject in subjects)

    def _dataset_uses(self, spec: JobSpec) -> Iterator[_DatasetUse]:
        """Yield the datasets of this node that a job with other nodes uses.

        Nothing is yielded for a job that this node both initiates and schedules. Nor is anything
        yielded if the settings require no permits and no partner has an approval.
        """
        partners = datasets.partners(spec, self._node)
        is_own_job = spec.scheduler == self._node and spec.initiator == self._node
        if not partners or is_own_job:
            return
        roles = once_per_component(self._roles_of)
        named = list(datasets.named_datasets(spec, self._node, roles))
        if not named:
            return
        newest = self._newest_approvals(partners)
        if not newest and self._level != "permit":
            return
        for dataset in named:
            dataset_id = dataset.dataset.dataset_id  # `NamedDataset.dataset` is the address
            approvals = [
                approval for (subject, _), approval in newest.items() if subject == dataset_id
            ]
            yield _DatasetUse(dataset, approvals)

    def _newest_approvals(
        self, partners: Collection[NodeId]
    ) -> dict[tuple[str, NodeId], Application]:
        """Return the newest approved application of each of these partners for each dataset.

        The keys are the dataset's id and the partner.
        """
        newest = {}
        # The list is in the order of age, the oldest first, so the newest replaces the others.
        for application in self._applications.list(Side.THEIRS, Kind.DATASET, APPROVED):
            if application.partner in partners:
                newest[application.subject, application.partner] = application
        return newest

    def _problem(self, use: _DatasetUse, rule: str) -> Problem:
        """Return the problem that the use of a dataset in a job breaks a rule."""
        dataset = use.dataset.dataset.dataset_id
        text = f"dataset {dataset} at {self._node}: {rule}; apply for it there"
        return Problem(use.dataset.path, text, dataset)


def _is_used_up(
    approval: Application,
    used: Mapping[int, bool],
) -> bool:
    """Return whether no further job may use an approval.

    False for an approval at which this job is counted already: its number is a key of ``used``.
    """
    if approval.number in used or approval.most_jobs is None:
        return False
    return approval.jobs >= approval.most_jobs


def _has_permit(
    use: _DatasetUse,
    used: Mapping[int, bool],
    sender: NodeId,
    now: datetime,
) -> bool:
    """Return whether the job presents a permit for a dataset, or has presented one at its creation.

    ``used`` tells for each approval, by its number, whether the job presented the permit then.
    """
    for approval in use.approvals:
        was_presented = used.get(approval.number, False)
        if approval.holds(now) and (was_presented or _is_presented(approval, sender)):
            return True
    return False


def _is_presented(approval: Application, sender: NodeId) -> bool:
    """Return whether the current request has the permit of an approval.

    It must come from the partner to which the permit was issued.
    """
    return approval.partner == sender and approval.digest in origin().permits


def _token(permit: Application) -> str:
    """Return a permit as an entry of the header: ``<name>/<level>/<token>``."""
    return f"{quote(permit.subject, safe='')}/{permit.level}/{permit.token}"


def presented(header: str) -> tuple[str, ...]:
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
