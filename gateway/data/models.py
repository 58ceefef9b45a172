"""Use cases around models: who may predict with one, what a task gets of it, deploy, delete, export, import.

A model's files lie where its training left them, or where an import put them; the row in the database is what
makes them a model. Nothing here changes a file.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gateway.data import model_archive
from gateway.data.combined_storage import Storages
from gateway.domain import models
from gateway.domain.dag import DagNode
from gateway.domain.models import Kept, ModelPart, Named, PartyModel
from gateway.domain.problems import Problem, name_rule
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.errors import Conflict, Invalid, NotFound, TooLarge
from gateway.ports import Clock
from gateway.store.models import SqlModels
from provider_registry.model import Component
from provider_registry.values import match_inputs

_AT = "config.job_params.common"


class Refusal(NamedTuple):
    """Why a job may not use, or make, the version of a model that it names."""

    reason: str
    problem: Problem


class Models:
    """The models at this node."""

    def __init__(
        self,
        node: NodeId,
        kept: SqlModels,
        storage: Storages,
        unfinished: Callable[[], Iterable[JobSpec]],
        clock: Clock,
    ) -> None:
        self._node = node
        self._kept = kept
        self._storage = storage
        self._unfinished = unfinished
        self._clock = clock
        self._needed: tuple[float, Mapping[Address, str]] | None = None

    # ------------------------------------------------------------ for jobs

    def refusal(self, spec: JobSpec) -> Refusal | None:
        """Return why this node rejects a job because of its model (a MODEL_… reason); None where it does not."""
        name = models.named(spec)
        if not name.predicts and not models.makes_model(spec):
            return None
        found = self._kept.find(name.model_id, name.version)
        what = f"version {name.version} of model {name.model_id}"
        if not name.predicts:
            if any(k.model.job_id != spec.job_id for k in found):
                return _refusal(
                    "MODEL_VERSION_TAKEN", f"{what} is another job's already", name.version
                )
            return None
        used = False
        for party in spec.parties_at(self._node):
            mine = _of(found, party)
            if mine is None:
                text = f"node {self._node} has nothing of {what} for {party.label}"
                return _refusal("MODEL_UNKNOWN", text, name.model_id)
            if unauthorised := models.not_allowed(spec, mine.model, mine.granted):
                text = f"{', '.join(unauthorised)} may not use {what}: neither trained with it nor granted it here"
                return _refusal("MODEL_NOT_AUTHORISED", text, name.model_id)
            if mine.deployed_at is None:
                return _refusal(
                    "MODEL_NOT_DEPLOYED",
                    f"{what} is not deployed at node {self._node}",
                    name.version,
                )
            parts = [part for node in spec.dag.nodes for part in models.part_for(mine.model, node)]
            if gone := [part for part in parts if not self._storage.exists(part.address)]:
                text = f"the file of task {gone[0].task} in {what} is gone at node {self._node}"
                return _refusal("MODEL_DAMAGED", text, name.version)
            used = used or bool(parts)
        if not used:
            tasks = ", ".join(sorted({part.task for k in found for part in k.model.parts}))
            text = f"no task of the flow is called, or has the component of, a task that trained {what}: {tasks}"
            return _refusal("MODEL_NOT_USED", text, [node.name for node in spec.dag.nodes][:20])
        return None

    def inputs(
        self,
        spec: JobSpec,
        party: Party,
        node: DagNode,
        component: Component,
    ) -> dict[str, Address]:
        """Return what a predicting job's task gets of the model, by the name of its input, else of the output."""
        name = models.named(spec)
        if not name.predicts:
            return {}
        mine = _of(self._kept.find(name.model_id, name.version), party)
        parts = models.part_for(mine.model, node) if mine else ()
        matched = match_inputs(
            [("model", f"{part.task}.{part.output}") for part in parts], component.inputs
        )
        return {
            matched.get(f"{part.task}.{part.output}", part.output): part.address for part in parts
        }

    # ------------------------------------------------------------ for operators

    def all(self, model_id: str | None = None) -> list[Kept]:
        """Return every party's part of every version, newest first."""
        return self._kept.all(model_id)

    def get(self, model_id: str, version: str) -> list[Kept]:
        """Return the parts of a version that lie here. Raises `NotFound`."""
        found = self._kept.find(model_id, version)
        if not found:
            raise NotFound(
                f"no version {version} of a model {model_id} lies here", reason="MODEL_UNKNOWN"
            )
        return found

    def damaged(self, model_id: str, version: str) -> list[str]:
        """Compare the files with their checksums; return what is gone or changed. Raises `NotFound`."""
        parts = [part for kept in self.get(model_id, version) for part in kept.model.parts]
        return [text for part in parts for text in _damage(self._storage, part)]

    def deploy(
        self,
        model_id: str,
        version: str,
        nodes: Sequence[NodeId] | None = None,
    ) -> list[Kept]:
        """Let jobs predict with a version; ``nodes`` may beside its parties. Raises `NotFound`, `Invalid`."""
        named = enumerate(nodes or ())
        if problems := [
            Problem(f"nodes[{i}]", rule, node) for i, node in named if (rule := name_rule(node))
        ]:
            raise Invalid(problems)
        granted = None if nodes is None else set(nodes)
        self._kept.deploy(model_id, version, self._clock().timestamp(), granted)
        return self.get(model_id, version)

    def grant(
        self,
        model_id: str,
        node: NodeId,
        *,
        allowed: bool,
    ) -> None:
        """Let a node use the versions of a model that lie here, or no longer. Raises `NotFound`."""
        versions = {kept.model.version: kept for kept in self.all(model_id)}
        if not versions:
            raise NotFound(f"no version of a model {model_id} lies here", reason="MODEL_UNKNOWN")
        for version, kept in versions.items():
            granted = {*kept.granted, node} if allowed else set(kept.granted) - {node}
            self._kept.deploy(model_id, version, kept.deployed_at, granted)

    def undeploy(self, model_id: str, version: str) -> list[Kept]:
        """Accept no further job that predicts with a version; those under way go on. Raises `NotFound`."""
        self._kept.deploy(model_id, version, None, None)
        return self.get(model_id, version)

    def delete(self, model_id: str, version: str) -> list[Kept]:
        """Delete a version with its files. Raises `NotFound`; `Conflict` while it is deployed or in use."""
        found = self.get(model_id, version)
        what = f"version {version} of model {model_id}"
        if any(kept.deployed_at is not None for kept in found):
            raise Conflict(f"{what} is deployed: undeploy it first", reason="MODEL_DEPLOYED")
        users = [
            spec.job_id
            for spec in self._unfinished()
            if models.named(spec) == Named(models.PREDICT, model_id, version)
        ]
        if users:
            raise Conflict(
                f"{what} is used by {', '.join(users[:5])}, not over yet", reason="MODEL_IN_USE"
            )
        if not self._kept.delete(model_id, version):
            raise Conflict(f"{what} was deployed meanwhile", reason="MODEL_DEPLOYED")
        needed = self._kept.addresses()
        for kept in found:
            for part in kept.model.parts:
                if part.address not in needed:
                    self._storage.delete(part.address)
        return found

    def keeper(self, address: Address) -> Sequence[str]:
        """Return which model needs what lies at an address, if any; cached for a second."""
        now = time.monotonic()
        if self._needed is None or now - self._needed[0] > 1.0:
            self._needed = now, self._kept.addresses()
        why = self._needed[1].get(address)
        return (why,) if why else ()

    def export(self, model_id: str, version: str) -> Iterator[bytes]:
        """Return a version's archive, piece by piece. Raises `NotFound`, `Conflict` if a file has changed."""
        found = self.get(model_id, version)
        if damage := self.damaged(model_id, version):
            raise Conflict("; ".join(damage[:5]), reason="MODEL_DAMAGED")
        return model_archive.write(self._storage, [kept.model for kept in found])

    def import_archive(self, archive: Path, most: int) -> list[Kept]:
        """Import an archive of at most so many bytes unpacked. Raises `Invalid`, `Conflict`, `TooLarge`."""
        wanted = [_at(model, self._storage.named("")) for model in model_archive.read(archive)]
        if sum(file.size for model in wanted for part in model.parts for file in part.files) > most:
            raise TooLarge(
                f"the model has more than {most} bytes unpacked, the setting data.max_upload_bytes"
            )
        new, others = self._new(wanted)
        deployed = others.deployed_at if others else None
        granted = others.granted if others else (self._node,)
        with model_archive.unpacked(archive, new, self._storage) as in_place:
            self._kept.add([Kept(model, deployed, granted) for model in new], inside=in_place)
        return self.get(wanted[0].model_id, wanted[0].version)

    def _new(self, wanted: Sequence[PartyModel]) -> tuple[list[PartyModel], Kept | None]:
        """Return what of an archive is not here, and some part of its version that is. Raises `Conflict`."""
        found = {
            k.model.party.label: k for k in self._kept.find(wanted[0].model_id, wanted[0].version)
        }
        for model in wanted:
            here = found.get(model.party.label)
            if here is not None and here.model.fingerprint != model.fingerprint:
                text = f"{model.party.label} of {model.model_id} lies here with other content"
                raise Conflict(text, reason="MODEL_EXISTS")
        new = [model for model in wanted if model.party.label not in found]
        return new, next(iter(found.values()), None)


def _at(model: PartyModel, storage: str) -> PartyModel:
    """Return a model whose parts lie in a storage, the one with the data that it is used on."""
    parts = (replace(part, address=replace(part.address, storage=storage)) for part in model.parts)
    return replace(model, parts=tuple(parts))


def _refusal(
    reason: str,
    text: str,
    got: object,
) -> Refusal:
    key = "model_version" if reason in ("MODEL_VERSION_TAKEN", "MODEL_NOT_DEPLOYED") else "model_id"
    return Refusal(reason, Problem(f"{_AT}.{key}", f"{reason}: {text}", got))


def _of(found: Sequence[Kept], party: Party) -> Kept | None:
    return next((k for k in found if k.model.party.label == party.label), None)


def _damage(storage: Storages, part: ModelPart) -> list[str]:
    where = part.address.dataset_id
    try:
        there = {file.name: file for file in storage.sums(part.address)}
    except NotFound as error:
        return [f"{where}: {error.message}"]
    return [
        f"{where}: {file.name} {'has changed' if file.name in there else 'is gone'}"
        for file in part.files
        if there.get(file.name) != FileSum(file.name, file.size, file.sha256)
    ]
