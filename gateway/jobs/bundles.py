"""What a job's initiator signs of it for each of its nodes, what those check, and what is left of it years later.

A statement holds digests of the parts of the job that its node gets, and of the images that are approved at the
signer, so that a difference has a name and no node learns the entries of another one.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm

from gateway.domain.run import Agreement, LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import NotAllowed
from gateway.identity.keys import Keyring
from gateway.identity.statements import Envelope, UnknownKey, canonical, opened, signed, unproven
from gateway.jobs.archive import MASK
from gateway.ports import Clock, as_mapping
from provider_registry.model import ANY
from provider_registry.registry import Registry, Unknown
from route_table.certificates import public_key
from route_table.model import Route

_MEMBERS = {
    "job_id": str,
    "for": str,
    "signer": str,
    "created": int,
    "open": list,
    "parts": dict,
    "images": dict,
}
"""of a statement"""
FILE = "bundle.json"
"""of an archive: a `document`"""
KIND = "application/vnd.bfia-gateway.job-bundle.v1+json"
VALID_DAYS = 30
"""how long after its signature a job may begin"""
_DAY = 86_400
_CLOCKS = 300 / _DAY
"""how far the signer's clock may be ahead, in days"""


class Bundles:
    """Signs the jobs that go out from here, and checks those that come in."""

    def __init__(
        self,
        node: NodeId,
        registry: Registry,
        keyring: Keyring,
        route_of: Callable[[NodeId], Route | None],
        clock: Clock,
    ) -> None:
        self._node = node
        self._registry = registry
        self._keyring = keyring
        self._route_of = route_of
        self._clock = clock

    def of(self, spec: JobSpec, nodes: Sequence[NodeId]) -> dict[NodeId, Envelope]:
        """Return the bundles for these nodes: the initiator's where there are some, else signed here and now."""
        if spec.bundles or (pair := self._keyring.signing) is None:
            return {node: spec.bundles[node] for node in nodes if node in spec.bundles}
        images, now = self._images(spec), int(self._clock().timestamp())
        open_ = [node.name for node in spec.dag.nodes if node.component.version == ANY]
        common = {
            "job_id": spec.job_id,
            "signer": self._node,
            "created": now,
            "images": images,
            "open": open_,
            "keys": self._keys_in(spec),
        }
        return {
            node: signed(
                pair,
                KIND,
                {
                    **common,
                    "for": node,
                    "parts": _digests(parts(spec, node)),
                },
            )
            for node in nodes
        }

    def accepted(self, spec: JobSpec, sender: NodeId) -> Agreement | None:
        """Return what is kept of a job's bundle, None where it needs none. Raises `NotAllowed`."""
        own = sender in ("", self._node)
        if own and spec.initiator == self._node:
            pair = self._keyring.signing
            bundle = self.of(spec, [self._node]).get(self._node)
            return Agreement(bundle, pair.public, self._images(spec)) if pair and bundle else None
        routes = {node: self._route_of(node) for node in (spec.initiator, spec.scheduler)}
        demand = [node for node, route in routes.items() if route and route.bundles == "required"]
        envelope = spec.bundles.get(self._node)
        if envelope is None:
            if demand:
                text = f"the job has no signed bundle, which the route of {demand[0]} requires"
                raise NotAllowed(text, reason="BUNDLE_MISSING")
            return None
        try:
            signer = unproven(envelope, KIND)[0].get("signer")
            if signer not in (spec.initiator, spec.scheduler):
                raise ValueError("neither its initiator nor its scheduling node has signed it")
            keys = self._keys_of(signer, routes[signer])
            if not keys and not demand:
                return None  # nothing is known by which to check it
            content, key = _opened(envelope, keys)
        except UnknownKey as error:
            text = f"the job's bundle: {error}, which the route of {signer} does not have"
            raise NotAllowed(text, reason="BUNDLE_KEY_UNKNOWN") from error
        except ValueError as error:
            raise NotAllowed(f"the job's bundle: {error}", reason="BUNDLE_WRONG") from error
        if spec.initiator in demand and signer != spec.initiator:
            text = f"the job is signed by {signer}; the route of {spec.initiator}, its initiator, requires its own"
            raise NotAllowed(text, reason="BUNDLE_MISSING")
        self._check_content(content, spec)
        return Agreement(envelope, key, self._images(spec))

    def check_start(self, local: LocalJob, sender: NodeId) -> None:
        """Check again what was accepted, by the keys of now. Raises `NotAllowed`."""
        agreed = local.agreement
        if not (sender in ("", self._node) and local.spec.initiator == self._node):
            self.accepted(
                replace(local.spec, bundles={self._node: agreed.bundle} if agreed else {}), sender
            )

    def vouched(
        self,
        envelope: Envelope,
        initiator: NodeId,
        scheduler: NodeId,
        node: NodeId,
    ) -> tuple[str, ...]:
        """Return a node's public keys by a signed job; none where the signature does not hold, or names none.

        Neither the initiator nor the scheduling node vouches for itself.
        """
        with suppress(ValueError, UnsupportedAlgorithm):
            signer = unproven(envelope, KIND)[0].get("signer")
            if signer not in (initiator, scheduler) or signer == node:
                return ()
            content, _ = _opened(envelope, self._keys_of(signer, self._route_of(signer)))
            stated = as_mapping(content.get("keys")).get(node)
            keys = stated if isinstance(stated, list) else []
            return tuple(key for key in keys if isinstance(key, str) and _is_public_key(key))
        return ()

    def _keys_in(self, spec: JobSpec) -> dict[NodeId, list[str]]:
        """Return the public keys of the job's other nodes, by which those know each other without a route."""
        keys = {}
        for node in dict.fromkeys((*spec.nodes, spec.scheduler)):
            route = self._route_of(node)
            if node != self._node and route is not None and route.keys:
                keys[node] = list(route.keys)
        return keys

    def _keys_of(self, signer: NodeId, route: Route | None) -> tuple[str, ...]:
        if signer == self._node:
            return tuple(pair.public for pair in self._keyring.pairs.values())
        return route.keys if route else ()

    def _check_content(self, content: Mapping[str, Any], spec: JobSpec) -> None:
        age = (self._clock().timestamp() - content["created"]) / _DAY
        if not -_CLOCKS <= age <= VALID_DAYS:
            text = f"the job's bundle was signed {age:.1f} days ago; it is valid for {VALID_DAYS}"
            raise NotAllowed(text, reason="BUNDLE_EXPIRED")
        found = {"job_id": spec.job_id, "for": self._node}
        wrong = [name for name in found if content.get(name) != found[name]]
        wrong += differing(content, parts(spec, self._node, content["open"]))
        if spec.dag != spec.dag_at(
            self._node
        ):  # the statement is about the providers of the parties here
            wrong.append("flow")
        if wrong:
            text = f"this is not what {content['signer']} signed: {', '.join(wrong)}"
            raise NotAllowed(text, reason="BUNDLE_WRONG")

    def _images(self, spec: JobSpec) -> dict[str, str]:
        """Return the digests that are approved here, by component."""
        found: dict[str, str] = {}
        with self._registry.one_view():
            for ref in dict.fromkeys(node.component for node in spec.dag.nodes):
                with suppress(Unknown):
                    provider = self._registry.find(ref.provider, ref.version, ref.name)[0]
                    if digest := provider.digests.get(provider.image_for(ref.name)):
                        found[str(ref)] = digest
        return found


def _is_public_key(text: str) -> bool:
    try:
        public_key(text)
    except ValueError:
        return False
    return True


def parts(
    spec: JobSpec,
    node: NodeId,
    open_: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a job as a node gets it, in parts. ``open_``: tasks whose version the scheduling node chooses.

    However the job was spelled on its way, its parts are the same.
    """
    params = [spec.one_by_one(one) for one in (spec.job_params, spec.task_params)]
    roles: dict[str, list[NodeId]] = {}
    for party in spec.parties:
        roles.setdefault(party.role, []).append(party.node)
    job, tasks = (
        {k: v for k, v in p.items() if k == "common" or not isinstance(v, Mapping)} for p in params
    )
    sync = {"sync_type": "callback" if spec.settings.by_callback else "poll"}
    return {
        "flow": {
            "flow_id": spec.flow_id,
            "version": spec.dag.version,
            "tasks": [
                {
                    "name": task.name,
                    "component": str(
                        replace(task.component, version=ANY)
                        if task.name in open_
                        else task.component
                    ),
                    "input": [[i.type, i.task, i.key] for i in task.inputs],
                    "output": [[o.type, o.key] for o in task.outputs],
                }
                for task in spec.dag_at(node).nodes
            ],
        },
        "parties": {
            "roles": roles,
            "initiator": [spec.initiator_role, spec.initiator],
            "scheduler": spec.scheduler,
            "version": spec.version,
            "old_job_id": spec.old_job_id,
        },
        "common": {
            "job": {**job, "common": sync | dict(as_mapping(job.get("common")))},
            "tasks": tasks,
        },
        **{
            party.label: [_entry(p, party.role, party.index) for p in params]
            for party in spec.parties_at(node)
        },
    }


def _entry(
    params: Mapping[str, Any],
    role: str,
    index: int,
) -> Any:
    entry = as_mapping(params.get(role)).get(str(index), {})
    return {k: v for k, v in entry.items() if v != {}} if isinstance(entry, Mapping) else entry


def _digests(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: hashlib.sha256(canonical(part)).hexdigest() for name, part in found.items()}


def _opened(envelope: Any, keys: Sequence[str]) -> tuple[dict[str, Any], str]:
    content, key = opened(envelope, KIND, keys)
    if any(not isinstance(content.get(name), kind) for name, kind in _MEMBERS.items()):
        raise ValueError("it is not a statement about a job")
    return content, key


def differing(content: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the parts of a job that are not as a statement says."""
    stated, ours = content["parts"], _digests(found)
    return [name for name in dict.fromkeys((*stated, *ours)) if stated.get(name) != ours.get(name)]


def other_images(agreed: Agreement | None) -> list[str]:
    """Return warnings about images that are others at the signer."""
    signers = unproven(agreed.bundle, KIND)[0]["images"] if agreed else {}
    own = agreed.images if agreed else {}
    return [
        f"{ref}: its image here is {own[ref]}, signed is {signers[ref]}"
        for ref in own
        if signers.get(ref, own[ref]) != own[ref]
    ]


# ---------------------------------------------------------------- what is left of it


@dataclass(frozen=True)
class Finding:
    """One thing that was compared."""

    check: str
    good: bool | None
    """None: it cannot be told, or is only worth knowing"""
    text: str


def document(local: LocalJob) -> dict[str, Any]:
    """Return what this node agreed to and what ran here, for `verified` to compare without this node."""
    agreed = local.agreement
    open_ = unproven(agreed.bundle, KIND)[0]["open"] if agreed else ()
    return {
        "job_id": local.id,
        "node": local.node,
        "bundle": agreed.bundle if agreed else None,
        "public_key": agreed.key if agreed else "",
        "images": dict(agreed.images) if agreed else {},
        "parts": parts(local.spec, local.node, open_),
        "runs": [
            {
                "run": f"{run.party.label} of {run.task_name}, attempt {run.attempt + 1}",
                "component": str(run.component),
                "digest": run.image_digest,
            }
            for run in local.runs
            if run.image_digest
        ],
    }


def verified(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare a `document`, which may come from an archive, with what it says that was signed."""
    if not found.get("bundle"):
        yield Finding("signature", False, "the job came without a signed bundle")
        return
    try:
        content, _ = _opened(found["bundle"], [found["public_key"]])
    except (ValueError, UnsupportedAlgorithm) as error:
        yield Finding("signature", False, str(error))
        return
    at = datetime.fromtimestamp(content["created"], UTC)
    key = found["bundle"]["signatures"][0]["keyid"]
    yield Finding(
        "signature",
        True,
        f"{content['signer']} signed it on {at:%Y-%m-%d %H:%M} UTC with the key {key}",
    )
    for name in ("job_id", "node"):
        stated = content["for" if name == "node" else name]
        yield Finding(name, stated == found[name], f"{stated} was signed")
    wrong = differing(content, found["parts"])
    for name in dict.fromkeys((*content["parts"], *found["parts"])):
        if name not in wrong:
            yield Finding(name, True, "as signed")
        elif MASK in canonical(found["parts"].get(name)).decode():
            yield Finding(name, None, "has masked values, and cannot be compared")
        else:
            yield Finding(name, False, "differs from what was signed")
    for run in found["runs"]:
        signers, own = (of.get(run["component"], "") for of in (content["images"], found["images"]))
        text = f"{run['component']}: ran {run['digest']}, signed {signers or 'none'}, approved here {own or 'none'}"
        good = (
            True
            if run["digest"] == signers
            else None
            if run["digest"] == own or not (signers or own)
            else False
        )
        yield Finding(run["run"], good, text)
