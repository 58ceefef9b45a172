"""The results of an earlier job that a new job inherits at this node.

This node decides at the creation of the new job which tasks it can take over. Whether the new job
inherits them is decided by the scheduling node, once every node has reported its tasks.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from engines.base import EngineError
from gateway.domain import rerun
from gateway.domain.dag import DagNode, order
from gateway.domain.run import Address, LocalJob, Run, job_of
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus, RunStatus
from gateway.errors import EngineFailed, Refused
from gateway.jobs.planner import TaskPlanner
from gateway.store.store import Store

_Digests = dict[tuple[str, str], str]  # (engine, image) -> current digest of the image there


@dataclass
class InheritanceOffer:
    """The tasks that this node can take over from an earlier job, and the obstacles to others."""

    # In the order of the flow, including tasks in which this node has no role.
    tasks: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # earlier runs of these tasks, one per party here
    lacking: dict[str, str] = field(default_factory=dict)  # task -> why it cannot be taken over


class Inheritance:
    """Compares this node's part of a new job with its part of the earlier job."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        planner: TaskPlanner,
        digest_of: Callable[[Run], str],
    ) -> None:
        """``digest_of`` returns the current digest of a run's image at its engine.

        It raises `EngineError` or `EngineFailed` if the engine does not report the digest.
        """
        self._node = node
        self._store = store
        self._planner = planner
        self._digest_of = digest_of

    def offer(self, spec: JobSpec) -> InheritanceOffer:
        """Return the tasks of a job that can be taken over here, of those that the job demands.

        A job that demands no particular tasks gets every task that can be taken over. Raises
        `Refused` if the job demands a task that cannot be taken over.
        """
        offer = InheritanceOffer()
        demanded = spec.settings.inherit
        old = self._store.local_jobs.find(spec.old_job_id)
        digests: _Digests = {}
        for name in order(spec.dag):
            if demanded is not None and name not in demanded:
                continue
            obstacle, runs = self._obstacle_or_runs(
                spec,
                old,
                spec.dag[name],
                offer.tasks,
                digests,
            )
            if obstacle:
                offer.lacking[name] = obstacle
            else:
                offer.tasks.append(name)
                offer.runs += runs
        if demanded is not None and offer.lacking:
            obstacles = [
                f"task {name} of job {spec.old_job_id}: {obstacle}"
                for name, obstacle in offer.lacking.items()
            ]
            raise Refused(f"cannot inherit {'; '.join(obstacles)}", reason=rerun.INHERITANCE_FAILED)
        return offer

    def _obstacle_or_runs(
        self,
        spec: JobSpec,
        old: LocalJob | None,
        node: DagNode,
        inherited: Collection[str],
        digests: _Digests,
    ) -> tuple[str, list[Run]]:
        """Return why a task cannot be inherited and no runs, or "" and the runs to inherit.

        ``inherited`` are the tasks earlier in the flow that can be inherited.
        """
        # A scheduling node outside the old job must not learn that the old job exists.
        if old is None or spec.scheduler not in (*old.spec.nodes, old.spec.scheduler):
            return f"this node {self._node} has no such job", []
        if old.spec.scheduler != spec.scheduler:
            return "another node scheduled it", []
        parties = spec.parties_at(self._node)
        # Of the old job's parameters, those count that were in force at its end.
        difference = rerun.difference(
            rerun.in_force(old),
            spec,
            node.name,
            parties,
        )
        obstacle = difference or rerun.lost_upstream(spec, node.name, inherited)
        if obstacle:
            return obstacle, []
        return self._obstacle_or_old_runs(spec, old, node, digests)

    def _obstacle_or_old_runs(
        self,
        spec: JobSpec,
        old: LocalJob,
        node: DagNode,
        digests: _Digests,
    ) -> tuple[str, list[Run]]:
        """Return why a task's old runs cannot be inherited and no runs, or "" and these runs.

        The text and the runs are both empty for a task in which this node has no role.
        """
        runs = []
        for new in self._planner.tentative_runs(spec, node):
            run = _last_run(old, node.name, new)
            if run is None or run.status is not RunStatus.SUCCESS:
                return f"{new.party.label} has not finished it here", []
            difference = self.difference(run, new, node, digests)
            if difference:
                return difference, []
            # A run that the old job had itself inherited still belongs to its first job.
            runs.append(replace(run, of_job=run.of_job or old.id))
        return "", runs

    def difference(
        self,
        run: Run,
        new: Run,
        node: DagNode,
        digests: _Digests,
    ) -> str:
        """Return why an earlier run cannot stand in for a new one; empty if it can.

        ``new`` is planned for comparison (`TaskPlanner.tentative_runs`), without inputs from other
        tasks. ``digests`` caches the engines' responses.
        """
        label = run.party.label
        for name, address in new.data.inputs.items():
            if run.data.inputs.get(name) != address:
                return f"the inputs of {label} differ"
        for key, address in run.data.outputs_by_key().items():
            if not self._planner.storage.exists(address):
                return f"output {key} of {label} is gone ({address.dataset_id})"
        for output in node.outputs:
            if output.key not in run.data.output_keys:
                return f"{label} has no output {output.key}"
        return self._image_difference(run, new, digests)

    def _image_difference(
        self,
        run: Run,
        new: Run,
        digests: _Digests,
    ) -> str:
        """Return the difference between the images of two runs; empty for none."""
        image = new.software.image
        key = (new.engine, image)
        try:
            if key not in digests:
                digests[key] = self._digest_of(new)
        except (EngineError, EngineFailed) as error:
            return f"image {image} cannot be looked at ({error.reason})"
        digest = digests[key]
        earlier_digest = run.software.digest
        # ``earlier_digest`` is empty if the engine of the earlier run has no digests of images.
        if earlier_digest and digest != earlier_digest:
            return f"the image digest differs: {image} is {digest} now and was {earlier_digest}"
        return ""

    def keep(self, spec: JobSpec, offer: InheritanceOffer) -> None:
        """Record the new job in the earlier jobs, so that the cleaner keeps the earlier outputs."""

        def add_job(local: LocalJob) -> LocalJob:
            if spec.job_id in local.inheriting_jobs:
                return local
            return replace(local, inheriting_jobs=(*local.inheriting_jobs, spec.job_id))

        for job_id in dict.fromkeys(run.of_job for run in offer.runs):
            self._store.local_jobs.update(job_id, add_job)

    def reasons_to_keep(self, address: Address) -> Sequence[str]:
        """Return why the data at an address is needed: a text for each job here that inherited it.

        Empty if no job here inherited it. This is a `Keeper` of `gateway.jobs.retention`.
        """
        local = self._store.local_jobs.find(job_of(address))
        if local is None:
            return ()
        needing = [job_id for job_id in local.inheriting_jobs if self._needs(job_id, address)]
        return [f"inherited by job {job_id}" for job_id in needing]

    def _needs(self, job_id: str, address: Address) -> bool:
        """Return whether a job has an inherited run with an output at an address.

        A rejected job needs nothing.
        """
        local = self._store.local_jobs.find(job_id)
        if local is None or local.status is JobStatus.REJECTED:
            return False
        inherited = [run for run in local.runs_that_count() if run.of_job]
        return any(address in run.data.outputs.values() for run in inherited)


def _last_run(
    old: LocalJob,
    task: str,
    new: Run,
) -> Run | None:
    """Return the old job's last run of a task at the new run's party; None without such a run."""
    for run in reversed(old.runs_that_count(task)):
        if run.party == new.party:
            return run
    return None
