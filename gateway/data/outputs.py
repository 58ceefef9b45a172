"""The metadata of jobs' outputs, from this node or requested from the node that has them.

A partner needs a grant of the output, as of a dataset. Only the metadata file that a task wrote is
read, and only the fields of `OutputMetadata` are taken from it: no row leaves the node, whatever a
vendor's program writes into the file.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from gateway.data.metadata import dataset_of
from gateway.data.sharing import Sharing
from gateway.data.storage import Storage
from gateway.domain import datasets
from gateway.domain.datasets import Default
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import NodeId, Party, data_location, is_outside
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, TooLarge
from gateway.ports import Clock
from gateway.store.store import Store
from provider_registry.model import group_of


@dataclass(frozen=True)
class Column:
    """A column of a table: its name and type, as its task wrote them."""

    name: str
    type: str


@dataclass(frozen=True)
class OutputMetadata:
    """Metadata of one output; fields that its task did not write are empty."""

    task: str  # its name
    party: str  # role.index
    key: str  # the output's, in the flow
    type: str  # as the flow declares it: dataset, model, report
    namespace: str
    name: str
    there: bool  # whether the storage of its node has the output
    count: int | None = None  # rows
    columns: Sequence[Column] = ()
    partitions: int = 0
    bytes: int = 0  # of all partitions together
    description: str = ""
    id_column: str = ""
    label_column: str = ""
    created_at: str = ""  # ISO 8601, UTC

    def as_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class OutputQuery:
    """A request for the metadata of a task's outputs."""

    job_id: str
    task: str  # its name, or its id if it has run at the node that gets the request
    role: str  # all parties of a role (``host``) or one party (``host.0``)
    key: str = ""  # one output; "": all


@dataclass(frozen=True)
class Output:
    """An output of a run; the run may not have written it yet."""

    local: LocalJob
    run: Run
    key: str  # in the flow

    @property
    def address(self) -> Address:
        """The address of the output in the storage.

        The run has the addresses by the outputs' names in the component's description, and these
        names by the keys of the flow.
        """
        return self.run.data.output(self.key)

    @property
    def type(self) -> str:
        """The type in the flow: dataset, model, report."""
        return self.local.spec.dag.type_of(
            self.run.task_name,
            self.key,
        )

    @property
    def group(self) -> str:
        """The group of the type: data, model or metric."""
        return group_of(self.type)

    def as_dict(self) -> dict[str, Any]:
        """Return task, party, key and address for JSON."""
        place = {
            "task": self.run.task_name,
            "party": self.run.party.label,
            "key": self.key,
        }
        return {**place, **self.address.as_dict()}


def outputs_of(local: LocalJob, query: OutputQuery) -> list[Output]:
    """Return the requested outputs of a job at this node, written or not; at least one.

    Raises `NotFound`, whose reason says which part of the request does not exist.
    """
    task = _task_name(local, query.task)
    node = local.spec.dag.get(task)
    if node is None:
        raise _no_task(query, local)
    parties = [party for party in local.spec.parties if query.role in (party.role, party.label)]
    if all(party.node != local.node for party in parties):  # also without such parties
        raise _not_played_here(query, local, parties)
    # The runs of this job or, if it did not run the task, those inherited from an earlier job. The
    # oldest attempt of a party comes first, so the dict keeps the newest.
    newest_runs = {run.party: run for run in local.runs_that_count(task) if run.party in parties}
    outputs = _outputs_of_runs(local, newest_runs.values(), query.key)
    if outputs:
        return outputs
    # The key "" requests all outputs.
    defined_keys = ["", *(output.key for output in node.outputs)]
    if not newest_runs and query.key in defined_keys:
        raise NotFound(f"task {task} has not begun at {query.role}", reason="OUTPUT_MISSING")
    what = f"output {query.key}" if query.key else "output"
    raise NotFound(f"task {task} gives {query.role} no {what}", reason="OUTPUT_UNKNOWN")


def _outputs_of_runs(
    local: LocalJob,
    runs: Iterable[Run],
    key: str,
) -> list[Output]:
    """Return the outputs of some runs: those with a key, or all for the key ""."""
    outputs = [Output(local, run, run_key) for run in runs for run_key in run.data.output_keys]
    if not key:
        return outputs
    return [output for output in outputs if output.key == key]


def _not_played_here(
    query: OutputQuery,
    local: LocalJob,
    parties: Sequence[Party],
) -> NotFound:
    """Return the error for a role or party that this node does not play.

    ``parties`` are the requested parties, at other nodes; empty if the job has no such party.
    """
    text = f"is not a party of job {local.id}"
    if parties:
        where = ", ".join(dict.fromkeys(party.node for party in parties))
        text = f"plays at node {where}; its outputs are there"
    return NotFound(f"{query.role} {text}", reason="PARTY_UNKNOWN")


def _task_name(local: LocalJob, task: str) -> str:
    """Return the name of a task that is given by its name, or by its id if it has run here."""
    for run in local.runs:
        if run.task_id == task:
            return run.task_name
    return task


# Requests metadata from another node. Raises that node's refusal, and `NotServed` if that node
# lacks the endpoint.
Ask = Callable[[NodeId, OutputQuery], Sequence[OutputMetadata]]
# Returns the columns of ids of a dataset at this node, given by its id or by namespace and name.
IdColumns = Callable[[Mapping[str, str]], Sequence[str]]
# Writes an entry of the audit log: time, user, action, HTTP status, error code, detail.
Note = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]


class OutputCatalog:
    """Metadata of outputs: all for this node's operators, the granted ones for a peer."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        storage: Storage,
        shared: Sharing,
        ask: Ask,
        note: Note,
        id_columns: IdColumns,
        clock: Clock,
    ) -> None:
        """Take this node's id, data and clock.

        ``ask`` requests metadata, ``note`` writes the audit log, and ``id_columns`` returns the
        columns of ids that a dataset declares.
        """
        self._node = node
        self._store = store
        self._storage = storage
        self._shared = shared
        self._ask = ask
        self._note = note
        self._id_columns = id_columns
        self._clock = clock

    def for_peer(
        self,
        query: OutputQuery,
        sender: NodeId,
        action: str,
    ) -> list[OutputMetadata]:
        """Return the metadata of the requested outputs that are granted to a peer.

        The request is written into the audit log, under the name ``action``. Raises `NotFound`, and
        `NotAllowed`, the refusal of the first output, if none is granted.
        """
        local = self._store.local_jobs.find(query.job_id)
        # A node outside of a job gets the error of an unknown job.
        if local is None or is_outside(local.spec, sender):
            raise NotFound(f"no job {query.job_id} runs at {self._node}", reason="JOB_UNKNOWN")
        granted = []
        refusals = []
        for output in outputs_of(local, query):
            refusal = self._refusal(output.address, sender)
            if refusal is None:
                granted.append(self._metadata(output))
            else:
                refusals.append(refusal)
        if not granted:
            raise refusals[0]
        detail = {
            "job_id": query.job_id,
            "task": query.task,
            "outputs": [f"{metadata.namespace}#{metadata.name}" for metadata in granted],
        }
        self._note(
            self._clock(),
            f"node {sender}",
            action,
            200,  # HTTP status
            0,  # error code
            detail,
        )
        return granted

    def for_operators(self, query: OutputQuery) -> list[OutputMetadata]:
        """Return the metadata of the requested outputs at all nodes, for this node's operators.

        The metadata of outputs at other nodes is requested from these nodes. If a task here did not
        write which column has the ids, the datasets of its party tell it. Raises `NotFound`, and
        the refusal of another node.
        """
        local = self._store.local_jobs.find(query.job_id)
        metadata: list[OutputMetadata] = []
        for node in self._nodes_with(query, local):
            if node != self._node:
                metadata += self._ask(node, query)
            elif local is not None:  # otherwise nothing of the job has run here
                for output in outputs_of(local, query):
                    metadata.append(self._with_id_column(self._metadata(output), output))
        return metadata

    def _with_id_column(
        self,
        metadata: OutputMetadata,
        output: Output,
    ) -> OutputMetadata:
        """Return the metadata of a table with the column of ids, if its party's datasets tell it.

        Metadata that names that column already is returned unchanged.
        """
        if metadata.id_column or output.group != "data":
            return metadata
        names = [column.name for column in metadata.columns]
        spec = output.local.spec
        for task in spec.dag.nodes:
            location = data_location(spec.task_params, output.run.party, task.name)
            if location is None:
                continue
            for id_column in self._id_columns(location):
                if id_column in names:
                    return replace(metadata, id_column=id_column)
        return metadata

    def _nodes_with(
        self,
        query: OutputQuery,
        local: LocalJob | None,
    ) -> list[NodeId]:
        """Return the nodes of the requested parties, at least one. Raises `NotFound`.

        ``local`` is the job's record as a party; None if this node at most schedules the job.
        """
        record = local or self._store.jobs.find(query.job_id)
        if record is None:
            raise NotFound(f"no job {query.job_id} is scheduled or runs here", reason="JOB_UNKNOWN")
        task = query.task
        if local is not None:
            task = _task_name(local, task)
        if record.spec.dag.get(task) is None:
            raise _no_task(query, record)
        parties = [
            party for party in record.spec.parties if query.role in (party.role, party.label)
        ]
        if not parties:
            labels = ", ".join(party.label for party in record.spec.parties)
            text = f"job {query.job_id} has no party {query.role}; its parties: {labels}"
            raise NotFound(text, reason="PARTY_UNKNOWN")
        return list(dict.fromkeys(party.node for party in parties))

    def _refusal(self, address: Address, sender: NodeId) -> NotAllowed | None:
        """Return why a peer may not read an output's metadata; None if it may.

        Later tasks of the same job use an output without a grant, but reading its metadata always
        needs one.
        """
        name = address.dataset_id
        if self._shared.is_disabled(address):
            return NotAllowed(
                f"output {name} is disabled at node {self._node}", reason=datasets.DISABLED
            )
        # LISTED: an output without any grant is closed to all peers.
        refusals = datasets.without_grant(
            self._shared.grants.of(address), [sender], Default.LISTED, self._clock()
        )
        if not refusals:
            return None
        ((node, text),) = refusals  # only the sender was checked
        step = f"its admin grants it by: bfia-gateway data grant {shlex.quote(name)} {node}"
        return NotAllowed(
            f"output {name} of node {self._node}: {node} {text}; {step}",
            reason=datasets.NOT_GRANTED,
        )

    def _metadata(self, output: Output) -> OutputMetadata:
        """Return the metadata of an output.

        For an output that is missing or cannot be read, only the fields known from the job are set.
        """
        address = output.address
        plain = OutputMetadata(
            task=output.run.task_name,
            party=output.run.party.label,
            key=output.key,
            type=output.type,
            namespace=address.namespace,
            name=address.name,
            there=False,
        )
        if not self._storage.exists(address):
            return plain
        try:
            sizes = [part.size for part in self._storage.partitions(address)]
            document = self._document(address)
        except (GatewayError, OSError):
            # Broken, or deleted since the check above; a download would report the cause.
            return plain
        return _with_document(plain, sizes, address, document)

    def _document(self, address: Address) -> Mapping[str, Any]:
        """Return the content of an output's metadata file; empty if it is invalid or too large."""
        try:
            return self._storage.metadata(address)
        except (Invalid, TooLarge):
            return {}


def _with_document(
    plain: OutputMetadata, sizes: Sequence[int], address: Address, document: Mapping[str, Any]
) -> OutputMetadata:
    """Return metadata completed from ``document``, the content of the output's metadata file.

    ``sizes``: bytes of each partition of the output.
    """
    dataset = dataset_of(address, document)
    columns = zip(dataset.columns, dataset.types, strict=True)
    created_at = ""
    # For a missing or invalid time `dataset_of` gives the epoch.
    is_time_known = dataset.created_at.timestamp() != 0
    if is_time_known:
        created_at = dataset.created_at.isoformat(timespec="seconds")
    return replace(
        plain,
        there=True,
        # For a missing count `dataset_of` gives 0.
        count=dataset.count if "count" in document else None,
        columns=[Column(name, column_type) for name, column_type in columns],
        partitions=len(sizes),
        bytes=sum(sizes),
        description=dataset.description,
        id_column=_text(document.get("id_column")),
        label_column=_text(document.get("label_column")),
        created_at=created_at,
    )


def _text(value: Any) -> str:
    """Return a text of a metadata file; "" for a value of another type."""
    return value if isinstance(value, str) else ""


def _no_task(query: OutputQuery, record: Job | LocalJob) -> NotFound:
    """Return the error for a task that a job does not have; its text names tasks of the job."""
    names = ", ".join(node.name for node in record.spec.dag.nodes[:20])
    return NotFound(
        f"job {query.job_id} has no task {query.task}; its tasks: {names}", reason="TASK_UNKNOWN"
    )
