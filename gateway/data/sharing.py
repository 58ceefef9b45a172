"""Access to this node's datasets: grants to partner nodes, disabling, deleting.

A job is checked when it arrives and again before its start, since grants expire and are revoked.
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
    """The refusal of a job because datasets at this node are disabled or not granted."""

    def __init__(
        self,
        reason: str,
        problems: Sequence[Problem],
        why: str = "",
    ) -> None:
        """Take a reason and a problem for each dataset.

        ``why`` is the text for this node's operators, if it says more than peers may know; "": the
        problems are the text for both.
        """
        super().__init__("; ".join(map(str, problems)), reason=reason)
        self.problems = tuple(problems)
        self.why = why or self.message


class Sharing:
    """Decides which jobs and partners may use the datasets of this node."""

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
        """Decide on the datasets of a node.

        - ``default``: who may use an uploaded dataset without any grant
        - ``roles_of``: returns the roles that take part in a task
        - ``unfinished``: returns the specifications of the jobs here that have not ended
        """
        self._node = node
        self._datasets = datasets
        self.grants = grants
        self.default = default
        self._roles_of = roles_of
        self._unfinished = unfinished
        self._clock = clock

    # ------------------------------------------------------------ for jobs

    def refusal(self, spec: JobSpec) -> NotShared | None:
        """Return the refusal of a job for its datasets here; None if it may use them all.

        A dataset may be disabled, or not granted to one of the job's nodes. To other nodes, the
        refusal does not reveal whether an ungranted dataset exists.
        """
        partners = datasets.partners(spec, self._node)
        # A job submitted and scheduled here: only people of this node read its refusal.
        is_own = spec.scheduler == spec.initiator == self._node
        now = self._clock()
        ungranted = []
        disabled = []
        operator_texts = []
        for use in self._uses(spec, is_own=is_own):
            lacking = self._lacking_grants(use.dataset, partners, now)
            if not lacking:
                # Only to nodes with a grant do we reveal that a disabled dataset exists.
                if self.is_disabled(use.dataset):
                    disabled.append(datasets.disabled(use, self._node))
                continue
            full_problem = datasets.not_granted(use, self._node, lacking)
            operator_texts.append(str(full_problem))
            if is_own:
                ungranted.append(full_problem)
            else:
                # This text names all partners. Naming only those without a grant would reveal that
                # the dataset exists.
                ungranted.append(datasets.missing_or_not_granted(use, self._node, partners))
        if not disabled and not ungranted:
            return None
        reason = datasets.NOT_GRANTED if ungranted else datasets.DISABLED
        operator_texts += [str(problem) for problem in disabled]
        return NotShared(reason, [*ungranted, *disabled], "; ".join(operator_texts))

    def _uses(
        self,
        spec: JobSpec,
        *,
        is_own: bool,
    ) -> list[datasets.NamedDataset]:
        """Return the job's uses of datasets at this node.

        - ``is_own``: the job was submitted and is scheduled here. Its missing datasets are left
          out, as they are reported as problems of the job itself.
        """
        uses = datasets.named_datasets(
            spec,
            self._node,
            once_per_component(self._roles_of),
        )
        if not is_own:
            return list(uses)
        return [use for use in uses if self._datasets.exists(use.dataset)]

    def _lacking_grants(
        self,
        dataset: Address,
        partners: Sequence[NodeId],
        now: datetime,
    ) -> list[tuple[NodeId, str]]:
        """Return the partners that may not use a dataset, each with the cause; empty if all may."""
        if not partners:
            return []
        # Outputs of jobs always need a grant, and so does a dataset that is missing here.
        default = self.default if self._datasets.is_uploaded(dataset) else Default.LISTED
        return datasets.without_grant(
            self.grants.of(dataset),
            partners,
            default,
            now,
        )

    def jobs_using(self, dataset: Address) -> list[str]:
        """Return the ids of the unfinished jobs here that use a dataset."""
        job_ids = []
        for spec in self._unfinished():
            uses = datasets.named_datasets(spec, self._node, self._roles_of)
            if any(use.dataset == dataset for use in uses):
                job_ids.append(spec.job_id)
        # A job with an offered amendment has several specifications, but its id is returned once.
        return list(dict.fromkeys(job_ids))

    # ------------------------------------------------------------ for operators

    def is_disabled(self, dataset: Address) -> bool:
        """Return whether a dataset is disabled for jobs; False for one without a record."""
        record = self._datasets.record_of(dataset)
        return record is not None and record.disabled

    def grant(
        self,
        dataset: Address,
        node: NodeId,
        by: str,
        reason: str = "",
        expires_at: datetime | None = None,
        refusal: str = "",
    ) -> tuple[Grant | None, Grant]:
        """Let jobs with a node use a dataset; return the node's grant before and after.

        The grant before is None if the node never had one.

        - ``by``: the user who grants it
        - ``reason``: free text for the record of the grant
        - ``expires_at``: the end of the grant; None: it never expires
        - ``refusal``: the caller's reason against a grant to this node; "" if it has none

        Raises `NotFound` for an unknown dataset, and `Invalid` with all reasons against the grant.
        """
        record = self._datasets.get(dataset)
        now = self._clock()
        problems = []
        rule = self._node_rule(node) or refusal
        if rule:
            problems.append(Problem("node", rule, node))
        if expires_at is not None and expires_at <= now:
            problems.append(
                Problem("expires_at", f"must lie in the future; it is {moment(now)}", expires_at)
            )
        if problems:
            raise Invalid(problems)
        before = self._find_grant(dataset, node)
        address = Address(record.namespace, record.name)
        grant = Grant(address, node, now, by, reason, expires_at)
        self.grants.put(grant)
        return before, grant

    def _node_rule(self, node: NodeId) -> str:
        """Return the rule for nodes with grants that a node breaks; "" if it breaks none."""
        if not NODE_ID.fullmatch(node):
            return NODE_RULE
        if node == self._node:
            return "is this node itself, which needs no grant"
        return ""

    def revoke(
        self,
        dataset: Address,
        node: NodeId,
        by: str,
    ) -> tuple[Grant, Grant]:
        """End a node's grant; return it before and after.

        No further task with that node then starts. A grant that was revoked earlier stays
        unchanged. Raises `NotFound` if the node never had one.
        """
        before = self._find_grant(dataset, node)
        if before is None:
            text = f"dataset {dataset.dataset_id} was never granted to {node}"
            raise NotFound(text, reason="GRANT_UNKNOWN")
        if before.revoked_at is not None:
            return before, before
        after = replace(
            before,
            revoked_at=self._clock(),
            revoked_by=by,
        )
        self.grants.put(after)
        return before, after

    def delete(self, dataset: Address) -> Dataset:
        """Delete a dataset and its grants; return its last state.

        Raises `NotFound`, `StorageFailed`, and `Conflict` while jobs use the dataset. After an
        error the dataset is as it was before.
        """
        # Disabled first, so that no new job can use it while it is deleted.
        before, _ = self._datasets.switch(
            dataset,
            disabled=True,
        )
        try:
            job_ids = self.jobs_using(dataset)
            if job_ids:
                remedy = "stop it, or disable the dataset until then"
                raise used_by(before.dataset_id, job_ids, remedy)
            self._datasets.delete(dataset)
        except GatewayError:
            self._datasets.switch(
                dataset,
                disabled=before.disabled,
            )
            raise
        self.grants.forget(dataset)
        return before

    def _find_grant(self, dataset: Address, node: NodeId) -> Grant | None:
        """Return a node's grant of a dataset, also a revoked or expired one; None without any."""
        for grant in self.grants.of(dataset):
            if grant.node == node:
                return grant
        return None
