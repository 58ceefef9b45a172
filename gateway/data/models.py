"""Use cases of models: refusal of jobs, inputs of tasks, deploy, grant, delete, export, import.

A model's files stay at the address to which its training or an import wrote them, and never change.
They are a model as long as the database has a record of it.
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
from gateway.domain.model_permits import model_digest
from gateway.domain.models import Kept, ModelPart, ModelVersion, PartyModel
from gateway.domain.problems import Problem, name_rule
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.errors import Conflict, Invalid, NotFound, TooLarge
from gateway.ports import Clock
from gateway.store.models import SqlModels
from provider_registry.model import Component
from provider_registry.values import match_inputs

_COMMON = "config.job_params.common"  # path of the problems in a job
_CACHE_SECONDS = 1.0  # lifetime of the cached addresses of models' files
# The field of a job to which a refusal points, by its reason; ``model_id`` for all other reasons
_FIELD_OF = {
    "MODEL_VERSION_TAKEN": "model_version",
    "MODEL_NOT_DEPLOYED": "model_version",
    "MODEL_DAMAGED": "model_version",
}
_MAX_NAMED = 5  # jobs or damages named in an error
_MAX_TASKS = 20  # tasks named in an error


class Refusal(NamedTuple):
    """The refusal of a job because of the model version that it uses or trains."""

    reason: str
    problem: Problem


class Models:
    """The models at this node, for jobs that train or use them, and for operators."""

    def __init__(
        self,
        node: NodeId,
        records: SqlModels,
        storage: Storages,
        unfinished: Callable[[], Iterable[JobSpec]],
        clock: Clock,
    ) -> None:
        """Take a node's records of models and its storages.

        ``unfinished`` returns the specifications of the jobs at this node that have not ended.
        """
        self._node = node
        self._records = records
        self._storage = storage
        self._unfinished = unfinished
        self._clock = clock
        # Monotonic time of reading, and the addresses of all models' files, each with the name of
        # its model
        self._cache: tuple[float, Mapping[Address, str]] | None = None

    # ------------------------------------------------------------ for jobs

    def refusal(self, spec: JobSpec) -> Refusal | None:
        """Return this node's refusal of a job because of its model (a MODEL_… reason), or None.

        None for a job that neither predicts with a model nor trains one.
        """
        if models.model_version(spec).predicts:
            return self._prediction_refusal(spec)
        if models.makes_model(spec):
            return self._training_refusal(spec)
        return None

    def _training_refusal(self, spec: JobSpec) -> Refusal | None:
        """Return the refusal of a training whose model version another job has made, or None.

        If the job itself has made that version, it was submitted again, and is not refused.
        """
        name = models.model_version(spec)
        what = f"version {name.version} of model {name.model_id}"
        for record in self._records.find(name.model_id, name.version):
            if record.model.job_id != spec.job_id:
                text = f"{what} is another job's already"
                return _refusal("MODEL_VERSION_TAKEN", text, name.version)
        return None

    def _prediction_refusal(self, spec: JobSpec) -> Refusal | None:
        """Return the refusal of a prediction because of its parties' models at this node, or None.

        Every party here needs a model that the job may use, and at least one task must get a part
        of one.
        """
        name = models.model_version(spec)
        what = f"version {name.version} of model {name.model_id}"
        records = self._records.find(name.model_id, name.version)
        used_parts: list[ModelPart] = []
        for party in spec.parties_at(self._node):
            record = _of_party(records, party)
            if record is None:
                text = f"node {self._node} has nothing of {what} for {party.label}"
                return _refusal("MODEL_UNKNOWN", text, name.model_id)
            parts = _parts_for(spec, record.model)
            refusal = self._party_refusal(spec, name, record, parts)
            if refusal is not None:
                return refusal
            used_parts += parts
        if used_parts:
            return None
        return _not_used(spec, what, records)

    def _party_refusal(
        self,
        spec: JobSpec,
        name: ModelVersion,
        record: Kept,
        parts: Sequence[ModelPart],
    ) -> Refusal | None:
        """Return the refusal of a prediction because of one party's model, or None.

        - ``record``: the party's record of the version
        - ``parts``: the parts of the model that the job's tasks get
        """
        what = f"version {name.version} of model {name.model_id}"
        unauthorised = models.not_allowed(spec, record.model, record.granted)
        if unauthorised:
            text = (
                f"{', '.join(unauthorised)} may not use {what}: "
                "neither trained with it nor granted it here"
            )
            return _refusal("MODEL_NOT_AUTHORISED", text, name.model_id)
        if record.deployed_at is None:
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

        A part that matches no input of the component gets the name of the output that the training
        wrote. Empty for a job that does not predict.
        """
        name = models.model_version(spec)
        if not name.predicts:
            return {}
        record = _of_party(
            self._records.find(name.model_id, name.version),
            party,
        )
        if record is None:
            return {}
        parts = {}
        for part in models.parts_for(record.model, node):
            parts[f"{part.task}.{part.output}"] = part
        categories = [("model", label) for label in parts]
        input_names = match_inputs(categories, component.inputs)
        inputs = {}
        for label, part in parts.items():
            inputs[input_names.get(label, part.output)] = part.address
        return inputs

    # ------------------------------------------------------------ for operators

    def all(self, model_id: str | None = None) -> list[Kept]:
        """Return all versions of a model, or of all models for None; one entry per party.

        The newest comes first.
        """
        return self._records.all(model_id)

    def get(self, model_id: str, version: str) -> list[Kept]:
        """Return a version at this node, one entry per party. Raises `NotFound`."""
        records = self._records.find(model_id, version)
        if not records:
            text = f"no version {version} of a model {model_id} lies here"
            raise NotFound(text, reason="MODEL_UNKNOWN")
        return records

    def trainers(self, model_id: str, version: str) -> set[NodeId]:
        """Return the nodes of the parties that trained a version; empty if it is not here."""
        records = self._records.find(model_id, version)
        return {party.node for record in records for party in record.model.parties}

    def digest(self, model_id: str, version: str) -> str:
        """Return the digest of a version at this node; empty if it is not here or has no files."""
        records = self._records.find(model_id, version)
        return model_digest(record.model for record in records)

    def damages(
        self,
        model_id: str,
        version: str,
    ) -> list[str]:
        """Compare a version's files with their checksums; return a text for each damage.

        Raises `NotFound`.
        """
        damages = []
        for record in self.get(model_id, version):
            for part in record.model.parts:
                damages += _damage(self._storage, part)
        return damages

    def deploy(
        self,
        model_id: str,
        version: str,
        nodes: Sequence[NodeId] | None = None,
    ) -> list[Kept]:
        """Let new jobs predict with a version: jobs of its parties, and of ``nodes``.

        ``nodes`` of None leaves the granted nodes as they are. Raises `NotFound`, `Invalid`.
        """
        problems = []
        for index, node in enumerate(nodes or ()):
            rule = name_rule(node)
            if rule:
                problems.append(Problem(f"nodes[{index}]", rule, node))
        if problems:
            raise Invalid(problems)
        granted = None if nodes is None else set(nodes)
        self._records.deploy(
            model_id,
            version,
            self._clock().timestamp(),
            granted,
        )
        return self.get(model_id, version)

    def grant(
        self,
        model_id: str,
        node: NodeId,
        *,
        allowed: bool,
        digest: str = "",
    ) -> None:
        """Allow a node to use the versions of a model here, or forbid it.

        ``digest``: only versions with this digest; empty: all. Raises `NotFound` if no version is
        here, and `Conflict` if none has the digest.
        """
        versions = {record.model.version: record for record in self.all(model_id)}
        if not versions:
            raise NotFound(f"no version of a model {model_id} lies here", reason="MODEL_UNKNOWN")
        matching = []
        for version in versions:
            if digest in ("", self.digest(model_id, version)):
                matching.append(version)
        if not matching:
            text = f"no version of model {model_id} here has the digest {digest}"
            raise Conflict(text, reason="MODEL_DIGEST_DIFFERS")
        for version in matching:
            # One record per version is enough: the records of all parties have the same grants.
            record = versions[version]
            granted = set(record.granted)
            if allowed:
                granted.add(node)
            else:
                granted.discard(node)
            self._records.deploy(model_id, version, record.deployed_at, granted)

    def undeploy(
        self,
        model_id: str,
        version: str,
    ) -> list[Kept]:
        """Accept no further job that predicts with a version; running jobs continue.

        Raises `NotFound`.
        """
        # No time of deployment: not deployed. The granted nodes stay.
        self._records.deploy(model_id, version, None, None)
        return self.get(model_id, version)

    def delete(
        self,
        model_id: str,
        version: str,
    ) -> list[Kept]:
        """Delete a version with its files; return its records.

        Raises `NotFound`, and `Conflict` while it is deployed or in use.
        """
        records = self.get(model_id, version)
        what = f"version {version} of model {model_id}"
        if any(record.deployed_at is not None for record in records):
            raise Conflict(f"{what} is deployed: undeploy it first", reason="MODEL_DEPLOYED")
        prediction = ModelVersion(models.PREDICT, model_id, version)
        users = []
        for spec in self._unfinished():
            if models.model_version(spec) == prediction:
                users.append(spec.job_id)
        if users:
            text = f"{what} is used by {', '.join(users[:_MAX_NAMED])}, not over yet"
            raise Conflict(text, reason="MODEL_IN_USE")
        if not self._records.delete(model_id, version):  # it was deployed after the check above
            raise Conflict(f"{what} was deployed meanwhile", reason="MODEL_DEPLOYED")
        self._delete_files(records)
        return records

    def _delete_files(self, records: Sequence[Kept]) -> None:
        """Delete the files of deleted models, except files that another model needs.

        Raises `StorageFailed`.
        """
        needed = self._records.addresses()
        for record in records:
            for part in record.model.parts:
                if part.address not in needed:
                    self._storage.delete(part.address)

    def reasons_to_keep(self, address: Address) -> Sequence[str]:
        """Return the reason not to delete the files at an address: the name of their model.

        Empty if they belong to no model. The result may be a second old.
        """
        model = self._model_by_address().get(address)
        if model is None:
            return ()
        return (model,)

    def _model_by_address(self) -> Mapping[Address, str]:
        """Return the addresses of all models' files, each with its model's name.

        The result is cached for `_CACHE_SECONDS`.
        """
        now = time.monotonic()
        if self._cache is None or now - self._cache[0] > _CACHE_SECONDS:
            self._cache = (now, self._records.addresses())
        _, model_by_address = self._cache
        return model_by_address

    def export(
        self,
        model_id: str,
        version: str,
    ) -> Iterator[bytes]:
        """Return the archive of a version in pieces.

        Raises `NotFound`, and `Conflict` if a file is damaged.
        """
        records = self.get(model_id, version)
        damages = self.damages(model_id, version)
        if damages:
            raise Conflict(
                "; ".join(damages[:_MAX_NAMED]),
                reason="MODEL_DAMAGED",
            )
        return model_archive.write(self._storage, [record.model for record in records])

    def import_archive(
        self,
        archive: Path,
        max_bytes: int,
    ) -> list[Kept]:
        """Import an archive of at most ``max_bytes`` unpacked.

        Returns all parties' records of the version at this node. If some parties' models of this
        version are here already, they stay, and the imported ones are deployed and granted as they
        are. Raises `Invalid`, `Conflict`, `TooLarge`.
        """
        storage = self._storage.storage_for_upload("")  # "": the default one for uploads
        imported = [_in_storage(model, storage) for model in model_archive.read(archive)]
        if sum(map(_size, imported)) > max_bytes:
            raise TooLarge(
                f"the model has more than {max_bytes} bytes unpacked, "
                "the setting data.max_upload_bytes"
            )
        model_id = imported[0].model_id
        version = imported[0].version
        present = self._records.find(model_id, version)
        missing = _missing(imported, present)
        # A version that is new here is not deployed yet, and granted to this node.
        deployed_at = None
        granted: tuple[NodeId, ...] = (self._node,)
        if present:
            deployed_at = present[0].deployed_at
            granted = present[0].granted
        with model_archive.unpack(archive, missing, self._storage) as publish:
            records = [Kept(model, deployed_at, granted) for model in missing]
            # The files are published inside the transaction: neither stays without the other.
            self._records.add(records, inside=publish)
        return self.get(model_id, version)


def _missing(
    imported: Sequence[PartyModel],
    present: Sequence[Kept],
) -> list[PartyModel]:
    """Return the imported models of parties without a model here.

    Raises `Conflict` for a party whose model here has other content.
    """
    by_party = {record.model.party.label: record.model for record in present}
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
    """Return the parts of a model that the tasks of a predicting job get.

    A part may occur several times.
    """
    return [part for node in spec.dag.nodes for part in models.parts_for(model, node)]


def _not_used(
    spec: JobSpec,
    what: str,
    records: Sequence[Kept],
) -> Refusal:
    """Return the refusal of a prediction whose flow has no task for any part of the model.

    Its text names the tasks that trained the model; its value is the tasks of the prediction.
    """
    trained_tasks = {part.task for record in records for part in record.model.parts}
    tasks = ", ".join(sorted(trained_tasks))
    text = (
        "no task of the flow is called, or has the component of, "
        f"a task that trained {what}: {tasks}"
    )
    task_names = [node.name for node in spec.dag.nodes]
    return _refusal("MODEL_NOT_USED", text, task_names[:_MAX_TASKS])


def _size(model: PartyModel) -> int:
    """Return the bytes of all files of a model, as its manifest or record says."""
    return sum(file.size for part in model.parts for file in part.files)


def _in_storage(model: PartyModel, storage: str) -> PartyModel:
    """Return a model whose parts have addresses in a storage; "" is the node's folder."""
    parts = []
    for part in model.parts:
        address = replace(part.address, storage=storage)
        parts.append(replace(part, address=address))
    return replace(model, parts=tuple(parts))


def _refusal(reason: str, text: str, got: object) -> Refusal:
    """Return a refusal whose problem points to the job's ``model_id`` or ``model_version``.

    ``got`` is the value of that field, or another value that is wrong.
    """
    path = f"{_COMMON}.{_FIELD_OF.get(reason, 'model_id')}"
    return Refusal(reason, Problem(path, text, got, reason=reason))


def _of_party(
    records: Sequence[Kept],
    party: Party,
) -> Kept | None:
    """Return a party's record among those of a version; None without one."""
    for record in records:
        if record.model.party.label == party.label:
            return record
    return None


def _damage(storage: Storages, part: ModelPart) -> list[str]:
    """Return a text for each file of a part that is missing or has changed."""
    where = part.address.dataset_id
    try:
        sums = {file.name: file for file in storage.sums(part.address)}
    except NotFound as error:
        return [f"{where}: {error.message}"]
    damages = []
    for file in part.files:
        if file.name not in sums:
            damages.append(f"{where}: {file.name} is gone")
        # The sums of a storage lack the output's name (`FileSum.output`): it is left out here, too.
        elif sums[file.name] != FileSum(file.name, file.size, file.sha256):
            damages.append(f"{where}: {file.name} has changed")
    return damages
