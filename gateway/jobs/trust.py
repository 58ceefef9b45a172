"""What partners need before a job of theirs runs here, by ``trust.level``: contracts, permits for its datasets.

A permit is bound to the partner that applied, to the dataset, to a time and to a number of jobs. A job counts when
it is created; whether it came with the permit is kept, so that its start needs only that the permit still holds.
"""

from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import quote

from gateway.auth import digest, origin
from gateway.data.sharing import NotShared
from gateway.domain import datasets
from gateway.domain.applications import APPROVED, Application, Kind, Side
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.datasets import Wanted
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import NotAllowed
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

Level = Literal["open", "known", "contract", "permit"]


class Trust:
    """Contracts and permits of jobs."""

    def __init__(self, node: NodeId, kept: SqlApplications, level: Level, roles_of: RolesOf, clock: Clock) -> None:
        self._node = node
        self._kept = kept
        self._level = level
        self._roles_of = roles_of
        self._clock = clock

    def without_contract(self, spec: JobSpec) -> NotAllowed | None:
        """Return why a job may not run here: contracts with its other nodes are needed, and not in force."""
        if self._level not in ("contract", "permit"):
            return None
        now = self._clock()
        others = datasets.partners(spec, self._node)
        if lacking := [other for other in others if self._kept.contract(other, now) is None]:
            text = f"no contract of {self._node} with {', '.join(lacking)} is in force"
            return NotAllowed(text, reason="NO_CONTRACT")
        return None

    def without_permit(self, spec: JobSpec, sender: NodeId) -> NotShared | None:
        """Return why a job may not use datasets here: a permit is missing, expired, or used up."""
        missing, spent = [], []
        wanted = list(self._held(spec))
        used = self._kept.used_by(spec.job_id) if wanted else {}
        now = self._clock()
        for want, held in wanted:
            if any(one.number not in used and _spent(one) for one in held):
                spent.append(self._problem(want, "its permit was used by as many jobs as it allows"))
            elif self._level == "permit" and not any(
                one.holds(now) and (used.get(one.number) or _presented(one, sender)) for one in held
            ):
                missing.append(self._problem(want, "a valid permit of the node that asks is needed"))
        if not missing and not spent:
            return None
        return NotShared("PERMIT_MISSING" if missing else "PERMIT_USED_UP", [*missing, *spent])

    def use(self, spec: JobSpec, sender: NodeId) -> None:
        """Count a job that is created. Raises `NotShared` where others were faster."""
        now = self._clock()
        for want, held in self._held(spec):
            for one in held:
                permit = _presented(one, sender)
                if one.holds(now) and not self._kept.use(one, spec.job_id, permit=permit):
                    text = "its permit was used by as many jobs as it allows"
                    raise NotShared("PERMIT_USED_UP", [self._problem(want, text)])

    def header(self, node: NodeId, spec: JobSpec) -> str:
        """Return ``x-mprac-token-set`` for a job at a node: what it permitted this one of what the job names."""
        names = {
            want.dataset.dataset_id for want in datasets.wanted(spec, node, once_per_component(self._roles_of))
        }
        names |= {spec.job_id, spec.flow_id or spec.job_id}
        now = self._clock()
        held = self._kept.list(Side.MINE, None, APPROVED, node)
        sent = (one for one in held if one.token and one.holds(now) and one.subject in names)
        return ",".join(f"{quote(one.subject, safe='')}/{one.level}/{one.token}" for one in sent)

    def _held(self, spec: JobSpec) -> Iterator[tuple[Wanted, Sequence[Application]]]:
        """Yield the datasets here that a job of others names, with the newest approval for each of its nodes."""
        others = datasets.partners(spec, self._node)
        if not others or {spec.scheduler, spec.initiator} <= {self._node}:
            return
        wanted = list(datasets.wanted(spec, self._node, once_per_component(self._roles_of)))
        approved = self._kept.list(Side.THEIRS, Kind.DATASET, APPROVED) if wanted else ()
        held = {(one.subject, one.partner): one for one in approved if one.partner in others}
        if held or self._level == "permit":
            for want in wanted:
                yield want, [one for (subject, _), one in held.items() if subject == want.dataset.dataset_id]

    def _problem(self, want: Wanted, rule: str) -> Problem:
        dataset = want.dataset.dataset_id
        return Problem(want.path, f"dataset {dataset} at {self._node}: {rule}; apply for it there", dataset)


def _spent(one: Application) -> bool:
    return one.most_jobs is not None and one.jobs >= one.most_jobs


def _presented(one: Application, sender: NodeId) -> bool:
    return one.partner == sender and one.digest in origin().permits


def presented(header: str) -> tuple[str, ...]:
    """Return digests of the tokens in ``x-mprac-token-set``: ``<name>/<level>/<token>``, separated by commas."""
    parts = (part.strip().split("/", 2) for part in header.split(",")[:1000])
    return tuple(digest(part[2]) for part in parts if len(part) == 3)
