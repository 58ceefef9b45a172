"""Use cases around who may use this node's datasets: grants to partner nodes, disabling, deleting.

A job is checked when it comes and again before anything of it starts, because grants end and are revoked.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.data.datasets import Datasets, used_by
from gateway.domain import datasets
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.datasets import Dataset, Default, Grant
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, NodeId, moment
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound
from gateway.ports import Clock
from gateway.store.repositories import SqlGrants
from route_table.model import NODE_ID, NODE_RULE


class NotShared(NotAllowed):
    """A job names datasets of this node that are disabled, or not granted to all its nodes; lists all of them."""

    def __init__(
        self,
        reason: str,
        problems: Sequence[Problem],
        why: str = "",
    ) -> None:
        """``why``: the text for this node's operators, where peers get less."""
        super().__init__("; ".join(map(str, problems)), reason=reason)
        self.problems = tuple(problems)
        self.why = why or self.message


class Sharing:
    """The datasets of this node as its admin and its partners see them."""

    def __init__(
        self,
        node: NodeId,
        datasets: Datasets,
        grants: SqlGrants,
        default: Default,
        roles_of: RolesOf,
        unfinished: Callable[[], Iterable[JobSpec]],
        clock: Clock,
    ) -> None:
        self._node = node
        self._datasets = datasets
        self.grants = grants
        self.default = default
        self._roles_of = roles_of
        self._unfinished = unfinished
        self._clock = clock

    # ------------------------------------------------------------ for jobs

    def refusal(self, spec: JobSpec) -> NotShared | None:
        """Return why a job may not use datasets here; without a grant a node does not learn which exist."""
        others = datasets.partners(spec, self._node)
        own = {spec.scheduler, spec.initiator} <= {self._node}
        now = self._clock()
        disabled, ungranted, whys = [], [], []
        for want in datasets.wanted(spec, self._node, once_per_component(self._roles_of)):
            if own and not self._datasets.exists(want.dataset):
                continue  # reported as a problem of the job
            if others and (why := self._not_granted(want.dataset, others, now)):
                seen_here = datasets.refused(want, self._node, why)
                ungranted.append(seen_here if own else datasets.not_here(want, self._node, others))
                whys.append(str(seen_here))
            elif self.disabled(want.dataset):
                disabled.append(datasets.closed(want, self._node))
        if not disabled and not ungranted:
            return None
        reason = datasets.NOT_GRANTED if ungranted else datasets.DISABLED
        return NotShared(reason, [*ungranted, *disabled], "; ".join([*whys, *map(str, disabled)]))

    def users(self, dataset: Address) -> list[str]:
        """Return the jobs here that are not over and name a dataset."""
        found = (
            spec.job_id
            for spec in self._unfinished()
            if any(
                want.dataset == dataset
                for want in datasets.wanted(spec, self._node, self._roles_of)
            )
        )
        return list(dict.fromkeys(found))

    # ------------------------------------------------------------ for operators

    def disabled(self, dataset: Address) -> bool:
        """Tell whether a dataset was disabled for jobs."""
        known = self._datasets.known(dataset)
        return known is not None and known.disabled

    def grant(
        self,
        dataset: Address,
        node: NodeId,
        by: str,
        reason: str = "",
        expires_at: datetime | None = None,
        unknown: Callable[[NodeId], str | None] = lambda _: None,
    ) -> tuple[Grant | None, Grant]:
        """Let jobs with a node use a dataset; return the grant before and now. Raises `NotFound`, `Invalid`."""
        known = self._datasets.get(dataset)
        now = self._clock()
        problems = []
        if not NODE_ID.fullmatch(node):
            problems.append(Problem("node", NODE_RULE, node))
        elif node == self._node:
            problems.append(Problem("node", "is this node itself, which needs no grant", node))
        elif rule := unknown(node):
            problems.append(Problem("node", rule, node))
        if expires_at is not None and expires_at <= now:
            problems.append(
                Problem("expires_at", f"must lie in the future; it is {moment(now)}", expires_at)
            )
        if problems:
            raise Invalid(problems)
        before = self._known(dataset, node)
        made = Grant(Address(known.namespace, known.name), node, now, by, reason, expires_at)
        self.grants.put(made)
        return before, made

    def revoke(
        self,
        dataset: Address,
        node: NodeId,
        by: str,
    ) -> tuple[Grant, Grant]:
        """End a grant: nothing further of a job with that node starts. Raises `NotFound` where there is none."""
        before = self._known(dataset, node)
        if before is None:
            raise NotFound(
                f"dataset {dataset.dataset_id} was never granted to {node}", reason="GRANT_UNKNOWN"
            )
        if before.revoked_at is not None:
            return before, before
        after = replace(before, revoked_at=self._clock(), revoked_by=by)
        self.grants.put(after)
        return before, after

    def delete(self, dataset: Address) -> Dataset:
        """Delete a dataset and its grants; return what it was.

        Raises `NotFound`, `Conflict` while jobs use it, `StorageFailed`; then it stays as it was.
        """
        before, _ = self._datasets.switch(
            dataset, disabled=True
        )  # so that no job begins to use it meanwhile
        try:
            if users := self.users(dataset):
                raise used_by(
                    before.dataset_id, users, "stop it, or disable the dataset until then"
                )
            self._datasets.delete(dataset)
        except GatewayError:
            self._datasets.switch(dataset, disabled=before.disabled)
            raise
        self.grants.forget(dataset)
        return before

    def _known(self, dataset: Address, node: NodeId) -> Grant | None:
        return next((g for g in self.grants.of(dataset) if g.node == node), None)

    def _not_granted(
        self,
        dataset: Address,
        others: Sequence[NodeId],
        now: datetime,
    ) -> list[tuple[NodeId, str]]:
        default = self.default if self._datasets.uploaded(dataset) else Default.LISTED
        return datasets.without_grant(self.grants.of(dataset), others, default, now)
