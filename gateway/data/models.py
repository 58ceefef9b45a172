"""Use cases of models: permission to predict, inputs of tasks, deploy, delete, export, import.

A model's files stay at the place to which its training or an import wrote them, and never change.
The row in the database makes them a model.
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
_KEEPER_SECONDS = 1.0  # for which the addresses that models need are cached
_MAX_NAMED = 5  # jobs or damages named in an error


class Refusal(NamedTuple):
    """The refusal of a job because of the model version that it uses or makes."""

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
        """Return this node's refusal of a job because of its model (a MODEL_… reason), or None."""
        name = models.named(spec)
        if not name.predicts and not models.makes_model(spec):
            return None
        versions = self._kept.find(name.model_id, name.version)
        what = f"version {name.version} of model {name.model_id}"
        if not name.predicts:
            if any(version.model.job_id != spec.job_id for version in versions):
                text = f"{what} is another job's already"
                return _refusal("MODEL_VERSION_TAKEN", text, name.version)
            return None
        is_used = False
        for party in spec.parties_at(self._node):
            version = _of_party(versions, party)
            if version is None:
                text = f"node {self._node} has nothing of {what} for {party.label}"
                return _refusal("MODEL_UNKNOWN", text, name.model_id)
            parts = _parts_for(spec, version.model)
            refusal = self._party_refusal(spec, name, version, parts)
            if refusal is not None:
                return refusal
            if parts:
                is_used = True
        if not is_used:
            trained_tasks = {part.task for version in versions for part in version.model.parts}
            tasks = ", ".join(sorted(trained_tasks))
            text = f"no task of the flow is called, or has the component of, a task that trained {what}: {tasks}"
            return _refusal("MODEL_NOT_USED", text, [node.name for node in spec.dag.nodes][:20])
        return None

    def _party_refusal(
        self,
        spec: JobSpec,
        name: Named,
        version: Kept,
        parts: Sequence[ModelPart],
    ) -> Refusal | None:
        """Return the refusal of a predicting job because of one party's model."""
        what = f"version {name.version} of model {name.model_id}"
        unauthorised = models.not_allowed(spec, version.model, version.granted)
        if unauthorised:
            text = f"{', '.join(unauthorised)} may not use {what}: neither trained with it nor granted it here"
            return _refusal("MODEL_NOT_AUTHORISED", text, name.model_id)
        if version.deployed_at is None:
            text = f"{what} is not deployed at node {self._node}"
            return _refusal("MODEL_NOT_DEPLOYED", text, name.version)
        for part in parts:
            if not self._storage.exists(part.address):
                text = f"the file of task {part.task} in {what} is gone at node {self._node}"
                return _refusal("MODEL_DAMAGED", text, name.version)
        return None

    def inputs(
        self,
        spec: JobSpec,
        party: Party,
        node: DagNode,
        component: Component,
    ) -> dict[str, Address]:
        """Return the model's files for a task of a predicting job, by the names of its inputs.

        A file that matches no input has the name of the output that it was.
        """
        name = models.named(spec)
        if not name.predicts:
            return {}
        version = _of_party(self._kept.find(name.model_id, name.version), party)
        if version is None:
            return {}
        parts = {}
        for part in models.part_for(version.model, node):
            parts[f"{part.task}.{part.output}"] = part
        input_names = match_inputs([("model", label) for label in parts], component.inputs)
        inputs = {}
        for label, part in parts.items():
            inputs[input_names.get(label, part.output)] = part.address
        return inputs

    # ------------------------------------------------------------ for operators

    def all(self, model_id: str | None = None) -> list[Kept]:
        """Return all versions, newest first, one entry per party."""
        return self._kept.all(model_id)

    def get(self, model_id: str, version: str) -> list[Kept]:
        """Return a version here, one entry per party. Raises `NotFound`."""
        party_models = self._kept.find(model_id, version)
        if not party_models:
            text = f"no version {version} of a model {model_id} lies here"
            raise NotFound(text, reason="MODEL_UNKNOWN")
        return party_models

    def damaged(self, model_id: str, version: str) -> list[str]:
        """Compare the files with their checksums; describe each damage. Raises `NotFound`."""
        damages = []
        for kept in self.get(model_id, version):
            for part in kept.model.parts:
                damages += _damage(self._storage, part)
        return damages

    def deploy(
        self,
        model_id: str,
        version: str,
        nodes: Sequence[NodeId] | None = None,
    ) -> list[Kept]:
        """Let jobs of its parties and of ``nodes`` predict with a version.

        Raises `NotFound`, `Invalid`.
        """
        problems = []
        for index, node in enumerate(nodes or ()):
            rule = name_rule(node)
            if rule:
                problems.append(Problem(f"nodes[{index}]", rule, node))
        if problems:
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
        """Allow or forbid a node the versions of a model here. Raises `NotFound`."""
        versions = {kept.model.version: kept for kept in self.all(model_id)}
        if not versions:
            raise NotFound(f"no version of a model {model_id} lies here", reason="MODEL_UNKNOWN")
        for version, kept in versions.items():
            granted = {*kept.granted, node} if allowed else set(kept.granted) - {node}
            self._kept.deploy(model_id, version, kept.deployed_at, granted)

    def undeploy(self, model_id: str, version: str) -> list[Kept]:
        """Accept no further job that predicts with a version; running jobs continue.

        Raises `NotFound`.
        """
        self._kept.deploy(model_id, version, None, None)
        return self.get(model_id, version)

    def delete(self, model_id: str, version: str) -> list[Kept]:
        """Delete a version with its files. Raises `NotFound`; `Conflict` while deployed or in use."""
        party_models = self.get(model_id, version)
        what = f"version {version} of model {model_id}"
        if any(kept.deployed_at is not None for kept in party_models):
            raise Conflict(f"{what} is deployed: undeploy it first", reason="MODEL_DEPLOYED")
        prediction = Named(models.PREDICT, model_id, version)
        users = [spec.job_id for spec in self._unfinished() if models.named(spec) == prediction]
        if users:
            text = f"{what} is used by {', '.join(users[:_MAX_NAMED])}, not over yet"
            raise Conflict(text, reason="MODEL_IN_USE")
        if not self._kept.delete(model_id, version):
            raise Conflict(f"{what} was deployed meanwhile", reason="MODEL_DEPLOYED")
        needed = self._kept.addresses()
        for kept in party_models:
            for part in kept.model.parts:
                if part.address not in needed:
                    self._storage.delete(part.address)
        return party_models

    def keeper(self, address: Address) -> Sequence[str]:
        """Return the model that needs the files at an address; at most a second old."""
        now = time.monotonic()
        if self._needed is None or now - self._needed[0] > _KEEPER_SECONDS:
            self._needed = (now, self._kept.addresses())
        _, models_by_address = self._needed
        model = models_by_address.get(address)
        if model is None:
            return ()
        return (model,)

    def export(self, model_id: str, version: str) -> Iterator[bytes]:
        """Return a version's archive in pieces. Raises `NotFound`, `Conflict` if a file is damaged."""
        party_models = self.get(model_id, version)
        damages = self.damaged(model_id, version)
        if damages:
            raise Conflict("; ".join(damages[:_MAX_NAMED]), reason="MODEL_DAMAGED")
        return model_archive.write(self._storage, [kept.model for kept in party_models])

    def import_archive(self, archive: Path, most: int) -> list[Kept]:
        """Import an archive of at most ``most`` bytes unpacked.

        The parties' models that are here already stay; the new ones are deployed and granted alike.
        Raises `Invalid`, `Conflict`, `TooLarge`.
        """
        storage = self._storage.named("")
        imported = [_in_storage(model, storage) for model in model_archive.read(archive)]
        if sum(map(_size, imported)) > most:
            raise TooLarge(
                f"the model has more than {most} bytes unpacked, the setting data.max_upload_bytes"
            )
        model_id = imported[0].model_id
        version = imported[0].version
        present = self._kept.find(model_id, version)
        new = _missing(imported, present)
        deployed_at = present[0].deployed_at if present else None
        granted = present[0].granted if present else (self._node,)
        with model_archive.unpacked(archive, new, self._storage) as in_place:
            self._kept.add([Kept(model, deployed_at, granted) for model in new], inside=in_place)
        return self.get(model_id, version)


def _missing(imported: Sequence[PartyModel], present: Sequence[Kept]) -> list[PartyModel]:
    """Return the imported models whose parties have none here. Raises `Conflict` for other content."""
    by_party = {kept.model.party.label: kept.model for kept in present}
    missing = []
    for model in imported:
        present_model = by_party.get(model.party.label)
        if present_model is None:
            missing.append(model)
        elif present_model.fingerprint != model.fingerprint:
            text = f"{model.party.label} of {model.model_id} lies here with other content"
            raise Conflict(text, reason="MODEL_EXISTS")
    return missing


def _parts_for(spec: JobSpec, model: PartyModel) -> list[ModelPart]:
    """Return the parts of a model that the tasks of a predicting job get."""
    return [part for node in spec.dag.nodes for part in models.part_for(model, node)]


def _size(model: PartyModel) -> int:
    return sum(file.size for part in model.parts for file in part.files)


def _in_storage(model: PartyModel, storage: str) -> PartyModel:
    """Return a model whose parts lie in this storage."""
    parts = []
    for part in model.parts:
        address = replace(part.address, storage=storage)
        parts.append(replace(part, address=address))
    return replace(model, parts=tuple(parts))


def _refusal(
    reason: str,
    text: str,
    got: object,
) -> Refusal:
    key = "model_id"
    if reason in ("MODEL_VERSION_TAKEN", "MODEL_NOT_DEPLOYED"):
        key = "model_version"
    return Refusal(reason, Problem(f"{_AT}.{key}", f"{reason}: {text}", got))


def _of_party(versions: Sequence[Kept], party: Party) -> Kept | None:
    for kept in versions:
        if kept.model.party.label == party.label:
            return kept
    return None


def _damage(storage: Storages, part: ModelPart) -> list[str]:
    """Describe each file of a part that is missing or has changed."""
    where = part.address.dataset_id
    try:
        sums = {file.name: file for file in storage.sums(part.address)}
    except NotFound as error:
        return [f"{where}: {error.message}"]
    damages = []
    for file in part.files:
        if file.name not in sums:
            damages.append(f"{where}: {file.name} is gone")
        elif sums[file.name] != FileSum(file.name, file.size, file.sha256):
            damages.append(f"{where}: {file.name} has changed")
    return damages
