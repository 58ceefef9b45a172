"""The checks that only a dry run reports: signatures, data, resources, approval and routes."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from engines.base import EngineError
from gateway.domain.approval_rules import CREATE, START, Verdict
from gateway.domain.dry_run import Item, Standing, fine, problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError
from gateway.jobs.admission_rules import Rules
from gateway.jobs.drafts import Draft
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.readiness import JobImage, Readiness
from gateway.jobs.resources import Resources

# Takes a job, its sender and a command (`CREATE` or `START`); returns the verdict and the reason.
Judge = Callable[[JobSpec, NodeId, str], tuple[Verdict, str]]


class AdmissionReport:
    """Makes the items that a dry run adds to the report of a job's validation."""

    def __init__(
        self,
        node: NodeId,
        planner: TaskPlanner,
        resources: Resources,
        readiness: Readiness,
        judge: Judge,
    ) -> None:
        self._node = node
        self._planner = planner
        self._resources = resources
        self._readiness = readiness
        self._judge = judge

    def items(self, draft: Draft, rules: Rules) -> list[Item]:
        """Return the results of all checks."""
        images = [self._image(image, rules) for image in draft.images]
        return [
            *images,
            *self._data(draft),
            *self._reservation(draft),
            self._approval(draft, rules),
            *self._readiness.facility_items(draft.images),
            *self._routes(draft.spec, rules),
        ]

    def _image(self, image: JobImage, rules: Rules) -> Item:
        """Report an image, and its signature if the settings require one."""
        item = self._readiness.image_item(image)
        if item.standing is not Standing.OK:
            return item
        try:
            signed_digest = rules.signatures.check(
                image.provider.name,
                image.name,
                image.engine,
            )
        except EngineError as error:
            remedy = (
                f"have it signed with a key that engine.docker.signatures of {self._node} names"
            )
            return problem("image", f"{error.reason}: {error}", remedy, image.name)
        if not signed_digest:  # no signature is required
            return item
        return replace(item, found=f"{item.found}, signed")

    def _data(self, draft: Draft) -> Iterator[Item]:
        """Yield whether each dataset that the job reads here can be read.

        Outputs of its own tasks do not exist yet. Datasets that the job may not use are left out:
        nothing further is reported about them.
        """
        for node in draft.spec.dag.nodes:
            with suppress(GatewayError):  # an unregistered component was reported before
                for run in self._planner.tentative_runs(draft.spec, node):
                    label = run.party.label
                    prefix = f"config.task_params.{label}.{node.name}."
                    if any(path.startswith(prefix) for path in draft.hidden):
                        continue
                    for address in run.data.inputs.values():
                        about = f"{address.dataset_id} for {label} of {node.name}"
                        yield self._dataset(address, about)

    def _dataset(self, address: Address, about: str) -> Item:
        """Return the item on whether a dataset can be read, with its size.

        ``about`` names the dataset and the task at a party that reads it.
        """
        try:
            size, _ = self._planner.storage.stamp(address)
        except GatewayError as error:
            return problem("data", error.message, "upload it again", about)
        return fine("data", f"readable, {size} bytes", about)

    def _reservation(self, draft: Draft) -> Iterator[Item]:
        """Yield whether the job's resources are free now, unless a problem was reported.

        Nothing is reserved.
        """
        if any(item.check == "resources" for item in draft.items):
            return
        pool = draft.pool
        if pool is None:
            yield fine("resources", "the job asks for none")
            return
        reason = self._resources.would_wait_for(draft.spec, pool)
        if reason:
            condition = "enough is free"
            if reason.startswith("ENGINE_DOWN"):
                condition = "that engine answers"
            remedy = f"it starts once {condition}"
            yield Item(
                "resources",
                Standing.WAITS,
                pool.by_engine.text(),
                reason,
                remedy,
            )
        elif pool.by_engine:
            yield fine("resources", f"{pool.by_engine.text()}, free now")
        else:
            yield fine("resources", "the job asks for none")

    def _approval(self, draft: Draft, rules: Rules) -> Item:
        """Return the verdicts on the job's creation and its start, as one item."""
        spec = draft.spec
        sender = draft.sender
        verdict, words = self._judge(spec, sender, CREATE)
        start_verdict, start_words = self._judge(spec, sender, START)
        if verdict is Verdict.REJECT:
            return self._rejection(words)
        if start_verdict is Verdict.REJECT:
            return self._rejection(f"it would be taken, and refused at its start: {start_words}")
        if verdict is Verdict.APPROVE:
            return fine("approval", "no approval is needed")
        # A person can decide only if the job's scheduling node waits. In a dry run for another
        # node, the job's scheduling node is the node that asks.
        if spec.scheduler == self._node or rules.routes.waits_for_decision(spec.scheduler):
            remedy = f"tell those who decide at {self._node}"
            return Item("approval", Standing.WAITS, "a person has to agree", words, remedy)
        text = (
            f"APPROVAL_UNSUPPORTED: a person has to agree ({words}), "
            "for which the other node does not wait"
        )
        remedy = f"have an admin of {self._node} add a rule under approval.rules"
        return problem("approval", text, remedy)

    def _rejection(self, text: str) -> Item:
        """Return the item of a job that the policy rejects."""
        remedy = f"have an admin of {self._node} change approval.rules, or the route"
        return problem("approval", f"NOT_AUTHORISED: {text}", remedy)

    def _routes(
        self,
        spec: JobSpec,
        rules: Rules,
    ) -> Iterator[Item]:
        """Report the routes to the other nodes of the job."""
        nodes = {*spec.nodes, spec.scheduler} - {"", self._node}
        unknown = sorted(node for node in nodes if not rules.routes.knows(node))
        if unknown:
            text = f"{self._node} has no enabled route to {', '.join(unknown)}"
            remedy = f"have an admin of {self._node} add a route, or enable it"
            yield problem("routes", text, remedy)
        elif nodes:
            yield fine("routes", f"enabled: {', '.join(sorted(nodes))}")
