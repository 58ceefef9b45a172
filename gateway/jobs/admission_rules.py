"""The rules by which this node takes jobs, and the policy's verdict on a job."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from gateway.domain import approval_rules
from gateway.domain import dag as flow
from gateway.domain.approval_rules import Piece, Policy, Verdict
from gateway.domain.spec import JobSpec, NodeId
from gateway.jobs.bundles import Bundles
from gateway.jobs.intake import Intake
from gateway.jobs.model_permits import ModelPermits
from gateway.jobs.new_jobs import roles_of
from gateway.jobs.tee_policies import TeePolicies
from gateway.jobs.trust import Trust
from gateway.providers.images import SignaturePolicy
from provider_registry.registry import Registry


class RouteRules(Protocol):
    """The conditions that the route table sets for other nodes."""

    def knows(self, node: str) -> bool:
        """Whether a node has an enabled route, or had one and takes part in an unfinished job."""

    def may_begin(self, node: str, *, asks: bool) -> bool:
        """Whether a new job may involve a node.

        ``asks``: the node requests the job, so it needs an enabled route of its own. Any other node
        needs none, but must not have a disabled one.
        """

    def why_barred(self, node: str, component: str) -> str:
        """Return why a node may not run a component (``provider/name``) here; empty if it may."""

    def waits_for_decision(self, node: str) -> bool:
        """Whether a node waits for the decision of a person here."""


@dataclass(frozen=True)
class Rules:
    """The rules of this node's admin for jobs."""

    routes: RouteRules
    intake: Intake
    policy: Policy  # of approval
    signatures: SignaturePolicy  # of images
    bundles: Bundles
    trust: Trust  # contracts and permits
    tee_policies: TeePolicies  # of the attestation reports of runs
    model_permits: ModelPermits
    # Writes a refused start into the audit log. Takes the node that requested the start, the text
    # of the event, and details.
    audit: Callable[[NodeId, str, Mapping[str, Any]], None]
    # Whether a job is refused, and not just accepted with a warning, if an image is missing and
    # cannot be pulled.
    require_images: bool = False


def judge(
    spec: JobSpec,
    sender: NodeId,
    command: str,
    node: NodeId,
    rules: Rules,
    registry: Registry,
) -> tuple[Verdict, str]:
    """Return the policy's verdict on a job for its requester and its initiator, with the reason.

    ``sender`` sends the command; empty for this node, which is ``node``. The requester is the
    sender, or the initiator if this node itself sends the command. If the requester is not the
    initiator, the job is judged for both. Unless a rule rejects the job or requires a person,
    neither this node needs an approval, nor an initiator other than the requester.
    """
    requester = sender
    if sender in ("", node):
        requester = spec.initiator
    sources = dict.fromkeys((requester, spec.initiator or requester))  # one if they are the same
    roles = flow.once_per_component(partial(roles_of, registry))
    verdict = Verdict.APPROVE
    reason = ""
    for source in sources:
        is_own = source == node
        pieces = list(approval_rules.pieces(spec, node, source, roles, command))
        if not is_own:
            refusal = _why_barred(pieces, rules.routes)
            if refusal:
                return Verdict.REJECT, refusal
        source_verdict, text = approval_rules.judge(
            rules.policy, pieces, person_only_by_rule=is_own or source != requester
        )
        if source_verdict is Verdict.REJECT:
            return source_verdict, text
        if source_verdict is Verdict.ASK and verdict is Verdict.APPROVE:
            verdict = source_verdict
            reason = text
    return verdict, reason


def _why_barred(pieces: Iterable[Piece], routes: RouteRules) -> str:
    """Return why a piece of a job may not run here for its source; empty if all may."""
    for piece in pieces:
        refusal = routes.why_barred(piece.source, piece.component)
        if refusal:
            return refusal
    return ""
