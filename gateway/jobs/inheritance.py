"""What a node has left of an earlier job that a new one can take over: looked at when the new one is created."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engines.base import EngineError
from gateway.domain import inheritance
from gateway.domain.dag import DagNode, order
from gateway.domain.run import Address, LocalJob, Run, job_of
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.domain.states import JobStatus, RunStatus
from gateway.errors import EngineFailed, GatewayError, Refused
from gateway.jobs.planner import TaskPlanner
from gateway.ports import Outputs
from gateway.store.store import Store


@dataclass
class Offer:
    """What this node can take over for a job, and why not the rest."""

    tasks: list[str] = field(default_factory=list)
    """in the order of the flow; with those in which this node has no role"""
    runs: list[Run] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)


class Inheritance:
    """Compares a party's side of two jobs."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        planner: TaskPlanner,
        outputs: Outputs,
        digest_of: Callable[[str], str],
    ) -> None:
        """``digest_of`` returns the digest of an image as it is now; it may raise an engine's errors."""
        self._node = node
        self._store = store
        self._planner = planner
        self._outputs = outputs
        self._digest_of = digest_of

    def offer(self, spec: JobSpec) -> Offer:
        """Return what can be taken over here. Raises `Refused` where the job demands what cannot."""
        offer = Offer()
        wanted = inheritance.demanded(spec)
        old = self._store.local_jobs.find(spec.old_job_id)
        digests: dict[str, str] = {}
        for name in order(spec.dag):
            if wanted is not None and name not in wanted:
                continue
            why, runs = self._look(spec, old, spec.dag[name], offer, digests)
            if why:
                offer.lacking[name] = why
            else:
                offer.tasks.append(name)
                offer.runs += runs
        if wanted is not None and offer.lacking:
            text = "; ".join(f"task {name} of job {spec.old_job_id}: {why}" for name, why in offer.lacking.items())
            raise Refused(f"cannot inherit {text}", reason=inheritance.REASON)
        return offer

    def _look(
        self, spec: JobSpec, old: LocalJob | None, node: DagNode, offer: Offer, digests: dict[str, str]
    ) -> tuple[str, list[Run]]:
        if old is None:
            return f"this node {self._node} has no such job", []
        if old.spec.scheduler != spec.scheduler:
            return "another node scheduled it", []
        mine = spec.parties_at(self._node)
        why = inheritance.difference(old.spec, spec, node.name, mine)
        if why := why or inheritance.lost_upstream(spec, node.name, offer.tasks):
            return why, []
        runs = []
        for party, image, inputs in self._planner.sources(spec, node):
            run = _finished(old, node.name, party)
            if run is None:
                return f"{party.label} has not finished it here", []
            if why := self._changed(run, image, inputs, node, digests):
                return why, []
            runs.append(replace(run, of_job=run.of_job or old.id))
        return "", runs

    def _changed(
        self, run: Run, image: str, inputs: dict[str, Address], node: DagNode, digests: dict[str, str]
    ) -> str:
        who = run.party.label
        if any(run.inputs.get(name) != address for name, address in inputs.items()):
            return f"the inputs of {who} differ"
        for key, name in run.output_keys.items():
            address = run.outputs[name]
            if not self._outputs.exists(address):
                return f"output {key} of {who} is gone ({address.namespace}#{address.name})"
        if missing := [o.key for o in node.outputs if o.key not in run.output_keys]:
            return f"{who} has no output {missing[0]}"
        try:
            if image not in digests:
                digests[image] = self._digest_of(image)
        except (EngineError, EngineFailed) as error:
            return f"image {image} cannot be looked at ({error.reason})"
        if run.image_digest and digests[image] != run.image_digest:
            return f"the image digest differs: {image} is {digests[image]} now and was {run.image_digest}"
        return ""

    def keep(self, spec: JobSpec, offer: Offer) -> None:
        """Write into the earlier jobs who needs their outputs, so that cleaning leaves them."""
        for job_id in dict.fromkeys(run.of_job for run in offer.runs):
            self._store.local_jobs.update(job_id, lambda local: _with_heir(local, spec.job_id))

    def keeper(self, address: Address) -> Sequence[str]:
        """Say which jobs here took over what lies at an address, and count on it."""
        try:
            local = self._store.local_jobs.get(job_of(address))
        except GatewayError:
            return ()
        return [f"inherited by job {heir}" for heir in local.heirs if self._counts_on(heir, address)]

    def _counts_on(self, heir: str, address: Address) -> bool:
        later = self._store.local_jobs.find(heir)
        if later is None or later.status is JobStatus.REJECTED:
            return False
        return any(address in run.outputs.values() for run in later.standing() if run.of_job)


def _finished(old: LocalJob, task: str, party: Party) -> Run | None:
    runs = [run for run in old.standing(task) if run.party == party]
    return runs[-1] if runs and runs[-1].status is RunStatus.SUCCESS else None


def _with_heir(local: LocalJob, heir: str) -> LocalJob:
    return local if heir in local.heirs else replace(local, heirs=(*local.heirs, heir))
