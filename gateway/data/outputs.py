"""What an output is like, without anything of what is in it: read here, or asked of the node where it lies.

Its owner grants it, as a dataset, to the partner that may know. Only the metadata that a task wrote beside its
data is read, and of that only what is named here: no row goes out, whatever a vendor's program leaves behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from gateway.data.datasets import Datasets, dataset_of
from gateway.data.sharing import Sharing
from gateway.data.storage import FileStorage
from gateway.domain import datasets
from gateway.domain.datasets import Default
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import NodeId, Party
from gateway.errors import GatewayError, NotAllowed, NotFound, TooLarge
from gateway.ports import Clock
from gateway.store.store import Store

MOST_COLUMNS = 10_000
_LONGEST = 1000
_MOST_ROWS = 2**63 - 1
"""what a partner reads as a number"""
_LARGEST = 4 * 1024**2
"""bytes of metadata that are read for a partner"""
"""characters of a text of the metadata"""


@dataclass(frozen=True)
class Column:
    """A column of a table: its name and type, as its task wrote them."""

    name: str
    type: str


@dataclass(frozen=True)
class Facts:
    """One output; None, "" or nothing where its task wrote no word of it."""

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
    more_columns: int = 0
    """columns beyond `MOST_COLUMNS`, which are not named"""
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
        return asdict(self) | {"columns": [asdict(c) for c in self.columns]}


@dataclass(frozen=True)
class Wanted:
    """Outputs of a task: of one role (``host``) or party (``host.0``); ``key`` empty: all of them."""

    job_id: str
    task: str
    role: str
    key: str = ""


Ask = Callable[[NodeId, Wanted], Sequence[Facts]]
"""Asks the node where the outputs lie. Raises what it answers, `NotServed` where it does not know the question."""
Note = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]


class OutputFacts:
    """Tells what outputs are like: this node's people of all, other nodes of what was granted to them."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        storage: FileStorage,
        datasets: Datasets,
        shared: Sharing,
        ask: Ask,
        note: Note,
        clock: Clock,
    ) -> None:
        self._node = node
        self._store = store
        self._storage = storage
        self._datasets = datasets
        self._shared = shared
        self._ask = ask
        self._note = note
        self._clock = clock

    def told(self, wanted: Wanted, sender: NodeId, action: str) -> list[Facts]:
        """Answer another node; what it is told is written into the audit under ``action``.

        Without a key: what was granted of the task. Raises `NotFound`, and `NotAllowed` for a node without a part
        in the job and where nothing that is asked for was granted to it (NOT_AUTHORISED) or it is disabled.
        """
        local = self._store.local_jobs.find(wanted.job_id)
        if local is None:
            raise NotFound(f"no job {wanted.job_id} runs at {self._node}", reason="JOB_UNKNOWN")
        if sender not in (*local.spec.nodes, local.spec.scheduler, local.spec.initiator):
            raise NotAllowed(f"node {sender} has no part in job {wanted.job_id}")
        found = self._outputs(local, wanted)
        why = {(run.party, key): self._closed(address, sender) for run, key, address in found}
        if all(why.values()):
            raise next(error for error in why.values() if error)
        facts = [self._facts(local, run, key, at) for run, key, at in found if not why[run.party, key]]
        shown = [f"{one.namespace}#{one.name}" for one in facts]
        detail = {"job_id": wanted.job_id, "task": wanted.task, "outputs": shown}
        self._note(self._clock(), f"node {sender}", action, 200, 0, detail)
        return facts

    def known(self, wanted: Wanted) -> list[Facts]:
        """Tell this node's own people; of other parties' outputs their nodes are asked.

        Raises `NotFound`, and what the other nodes answer.
        """
        local, job = self._store.local_jobs.find(wanted.job_id), self._store.jobs.find(wanted.job_id)
        record = local or job
        if record is None:
            raise NotFound(f"no job {wanted.job_id} is scheduled or runs here", reason="JOB_UNKNOWN")
        if record.spec.dag.get(wanted.task) is None:
            raise _no_task(wanted, record)
        parties = [p for p in record.spec.parties if wanted.role in (p.role, p.label)]
        nodes = list(dict.fromkeys(p.node for p in parties))
        if not nodes:
            raise NotFound(f"job {wanted.job_id} has no party {wanted.role}", reason="PARTY_UNKNOWN")
        found: list[Facts] = []
        for node in nodes:
            if node != self._node:
                found += self._ask(node, wanted)
            elif local is not None:
                found += [self._facts(local, *one) for one in self._outputs(local, wanted)]
        return found

    def _outputs(self, local: LocalJob, wanted: Wanted) -> list[tuple[Run, str, Address]]:
        """Return the outputs that are asked for, there or not. Raises `NotFound`."""
        if local.spec.dag.get(wanted.task) is None:
            raise _no_task(wanted, local)
        mine = [p for p in local.spec.parties_at(self._node) if wanted.role in (p.role, p.label)]
        if not mine:
            text = f"node {self._node} plays no {wanted.role} in job {wanted.job_id}"
            raise NotFound(text, reason="PARTY_UNKNOWN")
        newest: dict[Party, Run] = {r.party: r for r in local.standing(wanted.task) if r.party in mine}
        if not newest:
            raise NotFound(f"task {wanted.task} has not begun at {wanted.role}", reason="OUTPUT_MISSING")
        found = [
            (run, key, run.outputs[name])
            for run in newest.values()
            for key, name in run.output_keys.items()
            if wanted.key in ("", key)
        ]
        if not found:
            what = f"output {wanted.key}" if wanted.key else "output"
            raise NotFound(f"task {wanted.task} gives {wanted.role} no {what}", reason="OUTPUT_UNKNOWN")
        return found

    def _closed(self, address: Address, sender: NodeId) -> NotAllowed | None:
        """Say why a node may not know of an output; unlike for jobs, what was never granted is open to nobody."""
        name = f"{address.namespace}#{address.name}"
        if self._datasets.disabled(address):
            return NotAllowed(f"output {name} is disabled at node {self._node}", reason=datasets.DISABLED)
        strangers = datasets.strangers(self._shared.grants(address), [sender], Default.LISTED, self._clock())
        if not strangers:
            return None
        ((node, text),) = strangers
        step = f"its admin grants it by: bfia-gateway data grant '{name}' {node}"
        return NotAllowed(
            f"output {name} of node {self._node}: {node} {text}; {step}", reason=datasets.NOT_GRANTED
        )

    def _document(self, address: Address) -> dict[str, Any]:
        try:
            return self._storage.metadata(address, _LARGEST)
        except TooLarge:  # then only what lies beside it is told
            return {}

    def _facts(self, local: LocalJob, run: Run, key: str, address: Address) -> Facts:
        node = local.spec.dag.get(run.task_name)
        kinds = {o.key: o.type for o in node.outputs} if node else {}
        plain = Facts(
            run.task_name, run.party.label, key, kinds.get(key, ""), address.namespace, address.name, False
        )
        if not self._storage.exists(address):
            return plain
        try:
            files = [path.stat().st_size for path in self._storage.partitions(address)]
            document = self._document(address)
        except (GatewayError, OSError):  # broken, or deleted meanwhile: its download says which
            return plain
        known = dataset_of(address, document)
        named = zip(known.columns, known.types, strict=True)
        columns = [Column(_text(name), _text(kind)) for name, kind in named]
        return replace(
            plain,
            there=True,
            count=known.count if "count" in document and known.count <= _MOST_ROWS else None,
            columns=tuple(columns[:MOST_COLUMNS]),
            more_columns=max(0, len(columns) - MOST_COLUMNS),
            partitions=len(files),
            bytes=sum(files),
            description=_text(known.description),
            id_column=_text(document.get("id_column")),
            label_column=_text(document.get("label_column")),
            created_at=known.created_at.isoformat(timespec="seconds") if known.created_at.timestamp() else "",
        )


def _text(value: Any) -> str:
    """Return text that every reader of JSON takes: a vendor may have written half of a surrogate pair."""
    return value[:_LONGEST].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _no_task(wanted: Wanted, record: Job | LocalJob) -> NotFound:
    names = ", ".join(node.name for node in record.spec.dag.nodes[:20])
    return NotFound(f"job {wanted.job_id} has no task {wanted.task}; its tasks: {names}", reason="TASK_UNKNOWN")
