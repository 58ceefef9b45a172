"""Signed bundles of jobs: signed for each node of a job, and checked when a job arrives.

A bundle is the signed envelope of a statement (`gateway.jobs.bundle_statement`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from cryptography.exceptions import UnsupportedAlgorithm

from gateway.domain.run import Agreement, LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import NotAllowed
from gateway.identity.statement_keys import StatementKeys
from gateway.identity.statements import Envelope, UnknownKey, read_unverified, sign_statement
from gateway.jobs.bundle_statement import (
    KIND,
    Statement,
    accepted_statement,
    different_parts,
    digests,
    open_statement,
    parts,
)
from gateway.ports import Clock
from provider_registry.model import ANY
from provider_registry.registry import Registry, Unknown
from route_table.certificates import public_key
from route_table.model import Route

VALID_DAYS = 30  # days from the signature during which a job may begin
_DAY = 86_400  # seconds
_MAX_CLOCK_LEAD = 300 / _DAY  # days by which the signer's clock may be ahead


class Bundles:
    """Signs the bundles of jobs, and checks them."""

    def __init__(
        self,
        node: NodeId,
        registry: Registry,
        keys: StatementKeys,
        route_of: Callable[[NodeId], Route | None],
        clock: Clock,
    ) -> None:
        self._node = node
        self._registry = registry
        self._keys = keys
        self._route_of = route_of
        self._clock = clock

    def bundles_for(
        self,
        spec: JobSpec,
        nodes: Sequence[NodeId],
    ) -> dict[NodeId, Envelope]:
        """Return the bundles of a job for these nodes.

        If the job came with bundles of its initiator, the result has these. Otherwise this node
        signs new ones; without a key the result is empty. Raises `SigningFailed`.
        """
        signer = self._keys.signing
        if spec.bundles or signer is None:
            return {node: spec.bundles[node] for node in nodes if node in spec.bundles}
        common = {
            "job_id": spec.job_id,
            "signer": self._node,
            "created": int(self._clock().timestamp()),
            "images": self._approved_images(spec),
            "open": [task.name for task in spec.dag.nodes if task.component.version == ANY],
            "keys": self._keys_of_partners(spec),
        }
        bundles = {}
        for node in nodes:
            content = {**common, "for": node, "parts": digests(parts(spec, node))}
            bundles[node] = sign_statement(signer, KIND, content)
        return bundles

    def accept(self, spec: JobSpec, sender: NodeId) -> Agreement | None:
        """Check a job's bundle and return the agreement; None for a job without a checked bundle.

        A bundle is required if the route of the initiator or the scheduling node says so. Raises
        `NotAllowed` if a required bundle is missing, or if the bundle is not valid or is about
        another job, and `SigningFailed` if this node cannot sign a job of its own.
        """
        is_own_request = sender in ("", self._node)  # "": this node, as in `Coordinator`
        if is_own_request and spec.initiator == self._node:
            return self._own_agreement(spec)
        routes = {node: self._route_of(node) for node in (spec.initiator, spec.scheduler)}
        requiring = [
            node for node, route in routes.items() if route and route.bundles == "required"
        ]
        envelope = spec.bundles.get(self._node)
        if envelope is None:
            if requiring:
                text = f"the job has no signed bundle, which the route of {requiring[0]} requires"
                raise NotAllowed(text, reason="BUNDLE_MISSING")
            return None
        signer = _signer(envelope, routes)
        keys = self._keys_of(signer, routes[signer])
        if not keys and not requiring:
            return None  # not required, and without a key it cannot be checked
        statement, key = _open_bundle(envelope, keys, signer)
        if spec.initiator in requiring and signer != spec.initiator:
            text = (
                f"the job is signed by {signer}; "
                f"the route of {spec.initiator}, its initiator, requires its own"
            )
            raise NotAllowed(text, reason="BUNDLE_MISSING")
        self._check_statement(statement, spec)
        return Agreement(envelope, key, self._approved_images(spec))

    def check_start(self, local: LocalJob, sender: NodeId) -> None:
        """Check the bundle of an accepted job again with the current keys. Raises `NotAllowed`.

        A job whose bundle was not checked at the creation counts as a job without a bundle.
        """
        is_own_request = sender in ("", self._node)
        if is_own_request and local.spec.initiator == self._node:
            return
        bundles = {}  # the record keeps the bundle in the agreement only
        if local.agreement is not None:
            bundles[self._node] = local.agreement.bundle
        self.accept(replace(local.spec, bundles=bundles), sender)

    def vouched_keys(
        self,
        envelope: Envelope,
        initiator: NodeId,
        scheduler: NodeId,
        node: NodeId,
    ) -> tuple[str, ...]:
        """Return the public keys of ``node`` as the signer of a job's bundle states them.

        Only the job's initiator or scheduling node is believed, and not about its own keys. Empty
        for any other signer, and for an invalid signature.
        """
        with suppress(ValueError, UnsupportedAlgorithm):
            signer = read_unverified(envelope, KIND)[0].get("signer")
            if signer not in (initiator, scheduler) or signer == node:
                return ()
            keys = self._keys_of(signer, self._route_of(signer))
            statement, _ = open_statement(envelope, keys)
            stated = statement.keys.get(node)
            if isinstance(stated, list):
                return tuple(key for key in stated if _is_public_key(key))
        return ()

    def _own_agreement(self, spec: JobSpec) -> Agreement | None:
        """Return the agreement about a job of this node's own; None without a key."""
        signer = self._keys.signing
        bundle = self.bundles_for(spec, [self._node]).get(self._node)
        if signer is None or not bundle:
            return None
        return Agreement(bundle, signer.public, self._approved_images(spec))

    def _keys_of_partners(
        self,
        spec: JobSpec,
    ) -> dict[NodeId, list[str]]:
        """Return the keys of the job's other nodes, for nodes that have no route to each other."""
        keys = {}
        for node in dict.fromkeys((*spec.nodes, spec.scheduler)):
            route = self._route_of(node)
            if node != self._node and route is not None and route.keys:
                keys[node] = list(route.keys)
        return keys

    def _keys_of(
        self,
        signer: NodeId,
        route: Route | None,
    ) -> tuple[str, ...]:
        """Return the public keys of a signer: this node's own, or those in its route."""
        if signer == self._node:
            return tuple(self._keys.for_partners)
        if route is None:
            return ()
        return route.keys

    def _check_statement(self, statement: Statement, spec: JobSpec) -> None:
        """Raise `NotAllowed` for an expired statement, or one about a different job."""
        age = (self._clock().timestamp() - statement.created) / _DAY
        if not -_MAX_CLOCK_LEAD <= age <= VALID_DAYS:
            text = f"the job's bundle was signed {age:.1f} days ago; it is valid for {VALID_DAYS}"
            raise NotAllowed(text, reason="BUNDLE_EXPIRED")
        different = []
        if statement.job_id != spec.job_id:
            different.append("job_id")
        if statement.node != self._node:
            different.append("for")
        different += different_parts(
            statement,
            parts(spec, self._node, statement.open_tasks),
        )
        # The signed part ``flow`` is made of `spec.dag_at(this node)`, in which tasks have the
        # providers that the parties here name. It does not prove `spec.dag` unless both are equal.
        if spec.dag != spec.dag_at(self._node):
            different.append("flow")
        if different:
            text = f"this is not what {statement.signer} signed: {', '.join(different)}"
            raise NotAllowed(text, reason="BUNDLE_WRONG")

    def _approved_images(self, spec: JobSpec) -> dict[str, str]:
        """Return the digests of the images approved here, by component.

        Components that are not registered, and images without a digest, are left out.
        """
        images = {}
        with self._registry.one_view():
            for ref in dict.fromkeys(node.component for node in spec.dag.nodes):
                with suppress(Unknown):
                    provider, _ = self._registry.find(
                        ref.provider,
                        ref.version,
                        ref.name,
                    )
                    digest = provider.digests.get(provider.image_for(ref.name))
                    if digest:
                        images[str(ref)] = digest
        return images


def _open_bundle(
    envelope: Envelope,
    keys: Sequence[str],
    signer: NodeId,
) -> tuple[Statement, str]:
    """Return the statement in a bundle and the key that signed it. Raises `NotAllowed`."""
    try:
        return open_statement(envelope, keys)
    except UnknownKey as error:
        text = f"the job's bundle: {error}, which the route of {signer} does not have"
        raise NotAllowed(text, reason="BUNDLE_KEY_UNKNOWN") from error
    except ValueError as error:
        raise NotAllowed(f"the job's bundle: {error}", reason="BUNDLE_WRONG") from error


def _signer(
    envelope: Envelope,
    routes: Mapping[NodeId, Route | None],
) -> NodeId:
    """Return the node that claims to have signed a bundle.

    It must be the initiator or the scheduling node, which ``routes`` has; raises `NotAllowed`.
    """
    try:
        signer = read_unverified(envelope, KIND)[0].get("signer")
        for node in routes:  # not `signer in routes`: the signer may be any value of JSON
            if node == signer:
                return node
        raise ValueError("neither its initiator nor its scheduling node has signed it")
    except ValueError as error:
        raise NotAllowed(f"the job's bundle: {error}", reason="BUNDLE_WRONG") from error


def _is_public_key(key: object) -> bool:
    """Return whether a value is a public key in the form of routes."""
    if not isinstance(key, str):
        return False
    try:
        public_key(key)
    except ValueError:
        return False
    return True


def image_differences(agreement: Agreement | None) -> list[str]:
    """Return a warning for each image that this node and the signer have approved differently.

    Empty without an agreement.
    """
    if agreement is None:
        return []
    signed_images = accepted_statement(agreement.bundle).images
    warnings = []
    for component, digest in agreement.images.items():
        # An image that the signer does not state does not count as different.
        signed_digest = signed_images.get(component, digest)
        if signed_digest != digest:
            warnings.append(f"{component}: its image here is {digest}, signed is {signed_digest}")
    return warnings
