"""New parameters for the tasks of a job, as offered to a participating node.

An offer is stored when it arrives, and comes into force when the start of a task names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.domain import rerun
from gateway.domain.dag import DagNode
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob
from gateway.domain.spec import Amendment, NodeId
from gateway.domain.states import JOB, ended
from gateway.errors import Conflict, Invalid, Refused, TooLarge
from gateway.jobs.admission import Admission
from gateway.jobs.fingerprint import MAX_JOB_SIZE
from gateway.runtime.context import NodeContext
from gateway.store.serialization import dumps

# How many offers of a job that are not in force stay when a further one is stored: the newest ones.
_MAX_PENDING_OFFERS = 8


class ParameterOffers:
    """Checks and stores the offers of the scheduling node."""

    def __init__(self, context: NodeContext, admission: Admission) -> None:
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._admission = admission

    def offer(
        self,
        local: LocalJob,
        offered: Amendment,
        offers_in_force: Sequence[str],
        sender: NodeId,
    ) -> None:
        """Check the job with new parameters as at its creation, and store them.

        ``offers_in_force`` are the ids of earlier offers. Raises `Refused` if one of them was never
        offered, `Conflict` for a job that has ended, and `Invalid`.
        """
        local = with_offers_in_force(local, offers_in_force)
        if ended(JOB, local.status):
            raise Conflict(f"job {local.id} has ended here", reason="JOB_ENDED")
        spec_before = rerun.in_force(local)
        begun_tasks = {run.task_name for run in local.runs_that_count()}
        problems = rerun.amendment_problems(
            spec_before, offered.parameters, begun_tasks, local.spec.scheduler
        )
        if problems:
            raise Invalid(problems)
        bundles = {}
        if offered.bundle:
            bundles[self._node] = offered.bundle
        spec_after = replace(
            rerun.with_amendments(spec_before, [offered]),
            bundles=bundles,
        )
        warnings = self._admission.check_amended(spec_after, sender)

        def add_offer(local: LocalJob) -> LocalJob:
            return self._add_offer(local, offered, warnings)

        self._store.local_jobs.update(local.id, add_offer)

    def _add_offer(
        self,
        local: LocalJob,
        offer: Amendment,
        warnings: Sequence[str],
    ) -> LocalJob:
        """Return the job with one more offer; unchanged if it has the offer already.

        Raises `Invalid` if all offers together are too large to be stored with the job.
        """
        if any(earlier.id == offer.id for earlier in local.offered):
            return local
        offers = [*_lasting_offers(local), offer]
        size = len(dumps(tuple(offers)))
        if size > MAX_JOB_SIZE:
            rule = f"must not have more than {MAX_JOB_SIZE} characters with earlier ones"
            raise Invalid(
                [Problem("parameters", rule, size)],
                reason=TooLarge.reason,
            )
        new_warnings = [text for text in warnings if text not in local.warnings]
        local = replace(local, offered=tuple(offers), warnings=(*local.warnings, *new_warnings))
        return local.with_note(
            self._clock(),
            "new parameters offered",
            offer.by,
            tasks=offer.tasks,
            reason=offer.reason,
        )


def with_offers_in_force(local: LocalJob, ids: Sequence[str]) -> LocalJob:
    """Return the job with exactly the offers of these ids in force.

    Raises `Refused` if one of them was never offered.
    """
    unknown = set(ids) - {offer.id for offer in local.offered}
    if unknown:
        raise Refused(
            f"job {local.id}: no parameters {', '.join(sorted(unknown))} were offered here"
        )
    return replace(local, amendments=tuple(ids))


def check_parameters(
    local: LocalJob,
    task: DagNode,
    offers_in_force: Sequence[str],
) -> None:
    """Raise `Conflict` if the start of a task would contradict the starts of earlier tasks.

    This happens if the start does not name an offer for this task that was in force before, or if
    it names a new offer for a task that has begun already. ``offers_in_force`` are the ids of the
    offers that the start names.
    """
    begun_tasks = {run.task_name for run in local.runs}
    changed = _changed_tasks(local, offers_in_force)
    if task.name in changed.dropped or changed.added & begun_tasks:
        text = (
            f"task {task.name} would begin with other parameters "
            "than were agreed for the tasks that have begun"
        )
        raise Conflict(f"job {local.id}: {text}", reason="PARAMETERS_CHANGED")


@dataclass(frozen=True)
class _ChangedTasks:
    """The tasks whose parameters a task start changes, compared with the starts before it."""

    added: set[str]  # tasks of offers that the start is the first to name
    dropped: set[str]  # tasks of offers in force that the start does not name


def _changed_tasks(local: LocalJob, offers_in_force: Sequence[str]) -> _ChangedTasks:
    """Return the tasks whose parameters a start changes that names the offers of these ids."""
    added: set[str] = set()
    dropped: set[str] = set()
    for offer in local.offered:
        was_in_force = offer.id in local.amendments
        is_in_force = offer.id in offers_in_force
        if is_in_force and not was_in_force:
            added.update(offer.tasks)
        elif was_in_force and not is_in_force:
            dropped.update(offer.tasks)
    return _ChangedTasks(added, dropped)


def _lasting_offers(local: LocalJob) -> list[Amendment]:
    """Return the offers that stay when a further one comes.

    These are all offers in force, and the newest `_MAX_PENDING_OFFERS` of the others. The further
    offer is not among them.
    """
    pending = [offer for offer in local.offered if offer.id not in local.amendments]
    outdated = pending[:-_MAX_PENDING_OFFERS]
    return [offer for offer in local.offered if offer not in outdated]
