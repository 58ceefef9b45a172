"""Metadata of outputs, without anything of their content: read here, or requested from the node where they lie.

Its owner grants an output, as a dataset, to the partner that may know. Only the metadata that a task wrote beside
its data is read, and of that only the fields here: no row goes out, whatever a vendor's program leaves behind.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
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
from gateway.domain.spec import NodeId, is_outside
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
    """One output; None, "" or nothing where its task did not say."""

    task: str
    party: str
    key: str
    type: str
    """what the flow calls it: dataset, model, report"""
    namespace: str
    name: str
    there: bool
    """whether it lies in the storage of its node"""
    count: int | None = None
    """rows"""
    columns: Sequence[Column] = ()
    partitions: int = 0
    bytes: int = 0
    """of all parts together"""
    description: str = ""
    id_column: str = ""
    label_column: str = ""
    created_at: str = ""
    """ISO 8601, UTC"""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """Outputs of a task: of one role (``host``) or party (``host.0``); ``key`` empty: all of them."""

    job_id: str
    task: str
    role: str
    key: str = ""


@dataclass(frozen=True)
class Output:
    """An output of a run, there or not."""

    local: LocalJob
    run: Run
    key: str

    @property
    def address(self) -> Address:
        """Where it lies."""
        return self.run.outputs[self.run.output_keys[self.key]]

    @property
    def type(self) -> str:
        """What the flow calls it: dataset, model, report."""
        return self.local.spec.dag.type_of(self.run.task_name, self.key)

    @property
    def group(self) -> str:
        """Whether that is data, a model or a metric."""
        return group_of(self.type)

    def as_dict(self) -> dict[str, Any]:
        """Return for JSON which it is, and where."""
        place = {
            "task": self.run.task_name,
            "party": self.run.party.label,
            "key": self.key,
        }
        return {**place, **self.address.as_dict()}


def outputs_of(local: LocalJob, wanted: Wanted) -> list[Output]:
    """Return the requested outputs of a job at this node, there or not. Raises `NotFound`."""
    task = next((run.task_name for run in local.runs if run.task_id == wanted.task), wanted.task)
    if (node := local.spec.dag.get(task)) is None:
        raise _no_task(wanted, local)
    parties = [p for p in local.spec.parties if wanted.role in (p.role, p.label)]
    if all(p.node != local.node for p in parties):
        where = ", ".join(dict.fromkeys(p.node for p in parties))
        text = (
            f"plays at node {where}; its outputs are there"
            if where
            else f"is not a party of job {local.id}"
        )
        raise NotFound(f"{wanted.role} {text}", reason="PARTY_UNKNOWN")
    newest = {run.party: run for run in local.standing(task) if run.party in parties}
    found = [
        Output(local, run, key)
        for run in newest.values()
        for key in run.output_keys
        if wanted.key in ("", key)
    ]
    if not found and not newest and wanted.key in ("", *(output.key for output in node.outputs)):
        raise NotFound(f"task {task} has not begun at {wanted.role}", reason="OUTPUT_MISSING")
    if not found:
        what = f"output {wanted.key}" if wanted.key else "output"
        raise NotFound(f"task {task} gives {wanted.role} no {what}", reason="OUTPUT_UNKNOWN")
    return found


Ask = Callable[[NodeId, Wanted], Sequence[OutputMetadata]]
"""Requests metadata from the node where the outputs lie. Raises its refusal, `NotServed` without that endpoint."""
Note = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]


class OutputCatalog:
    """Metadata of outputs: of all for this node's operators, of those granted to it for a peer."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        storage: Storage,
        shared: Sharing,
        ask: Ask,
        note: Note,
        clock: Clock,
    ) -> None:
        self._node = node
        self._store = store
        self._storage = storage
        self._shared = shared
        self._ask = ask
        self._note = note
        self._clock = clock

    def for_peer(
        self,
        wanted: Wanted,
        sender: NodeId,
        action: str,
    ) -> list[OutputMetadata]:
        """Return what was granted to a peer, and write that into the audit. Raises `NotFound`, `NotAllowed`."""
        local = self._store.local_jobs.find(wanted.job_id)
        if local is None or is_outside(local.spec, sender):
            raise NotFound(f"no job {wanted.job_id} runs at {self._node}", reason="JOB_UNKNOWN")
        found = [(one, self._closed(one.address, sender)) for one in outputs_of(local, wanted)]
        facts = [self._metadata(one) for one, refusal in found if refusal is None]
        if not facts:
            raise next(refusal for _, refusal in found if refusal)
        shown = [f"{one.namespace}#{one.name}" for one in facts]
        detail = {
            "job_id": wanted.job_id,
            "task": wanted.task,
            "outputs": shown,
        }
        self._note(self._clock(), f"node {sender}", action, 200, 0, detail)
        return facts

    def for_operators(self, wanted: Wanted) -> list[OutputMetadata]:
        """Return metadata for operators, that of other parties' outputs from their nodes. Raises `NotFound`."""
        local, job = (
            self._store.local_jobs.find(wanted.job_id),
            self._store.jobs.find(wanted.job_id),
        )
        record = local or job
        if record is None:
            raise NotFound(
                f"no job {wanted.job_id} is scheduled or runs here", reason="JOB_UNKNOWN"
            )
        if record.spec.dag.get(wanted.task) is None:
            raise _no_task(wanted, record)
        parties = [p for p in record.spec.parties if wanted.role in (p.role, p.label)]
        nodes = list(dict.fromkeys(p.node for p in parties))
        if not nodes:
            raise NotFound(
                f"job {wanted.job_id} has no party {wanted.role}", reason="PARTY_UNKNOWN"
            )
        found: list[OutputMetadata] = []
        for node in nodes:
            if node != self._node:
                found += self._ask(node, wanted)
            elif local is not None:
                found += map(self._metadata, outputs_of(local, wanted))
        return found

    def _closed(self, address: Address, sender: NodeId) -> NotAllowed | None:
        """Return why a node may not know of an output; unlike for jobs, no grant means no access."""
        name = address.dataset_id
        if self._shared.disabled(address):
            return NotAllowed(
                f"output {name} is disabled at node {self._node}", reason=datasets.DISABLED
            )
        unknown = datasets.without_grant(
            self._shared.grants.of(address), [sender], Default.LISTED, self._clock()
        )
        if not unknown:
            return None
        ((node, text),) = unknown
        step = f"its admin grants it by: bfia-gateway data grant {shlex.quote(name)} {node}"
        return NotAllowed(
            f"output {name} of node {self._node}: {node} {text}; {step}",
            reason=datasets.NOT_GRANTED,
        )

    def _metadata(self, one: Output) -> OutputMetadata:
        address = one.address
        plain = OutputMetadata(
            one.run.task_name,
            one.run.party.label,
            one.key,
            one.type,
            address.namespace,
            address.name,
            False,
        )
        if not self._storage.exists(address):
            return plain
        try:
            files = [part.size for part in self._storage.partitions(address)]
            document = self._storage.metadata(address)
        except (Invalid, TooLarge):  # then only the size of the data is known
            document = {}
        except (GatewayError, OSError):  # broken, or deleted meanwhile: its download says which
            return plain
        known = dataset_of(address, document)
        return replace(
            plain,
            there=True,
            count=known.count if "count" in document else None,
            columns=[Column(*of) for of in zip(known.columns, known.types, strict=True)],
            partitions=len(files),
            bytes=sum(files),
            description=known.description,
            id_column=_text(document.get("id_column")),
            label_column=_text(document.get("label_column")),
            created_at=known.created_at.isoformat(timespec="seconds")
            if known.created_at.timestamp()
            else "",
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _no_task(wanted: Wanted, record: Job | LocalJob) -> NotFound:
    names = ", ".join(node.name for node in record.spec.dag.nodes[:20])
    return NotFound(
        f"job {wanted.job_id} has no task {wanted.task}; its tasks: {names}", reason="TASK_UNKNOWN"
    )
