"""A job under admission, with the results of its checks so far."""

from dataclasses import dataclass, field

from gateway.domain.amounts import Pool
from gateway.domain.dry_run import Item
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError
from gateway.jobs.inheritance import InheritanceOffer
from gateway.jobs.readiness import JobImage


@dataclass
class Draft:
    """A job with the results of the admission's steps."""

    spec: JobSpec
    sender: NodeId
    # The job's record from an earlier creation or audit; None without one.
    existing: LocalJob | None
    dry_run: bool
    digest: str  # fingerprint of the job as submitted
    audited_project: str = ""  # project that the audit of the job names; empty without an audit
    items: list[Item] = field(default_factory=list)  # of the report of a dry run
    warnings: list[str] = field(default_factory=list)
    images: list[JobImage] = field(default_factory=list)  # of the job's tasks here
    # Paths, in the job, of datasets that the job may not use. Nothing else is reported about them.
    hidden: frozenset[str] = frozenset()
    # What the job can inherit here from an earlier job.
    offer: InheritanceOffer = field(default_factory=InheritanceOffer)
    pool: Pool | None = None  # amounts to reserve here; None if there are none, or not planned yet

    def refuse(self, error: GatewayError, *items: Item) -> None:
        """Raise the error, or in a dry run add the items to the report instead."""
        if not self.dry_run:
            raise error
        self.items += items
