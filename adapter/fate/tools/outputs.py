"""``/v2/output``, ``/v2/table``, ``/v2/data``: what tasks of this node left, and its tables.

FATE makes a job of an upload and its tools wait for it; here it is complete with the response, and ``job/query``
reports its ``job_id`` as successful.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Body, Request, Response

from adapter.fate.envelope import Code, Envelope, FateRoute, coded, ok
from adapter.fate.tools import schemas
from adapter.fate.tools.deps import CHUNK, GZIP, TAG, TAR, Call, ClientParts, Member, Paths, sent
from adapter.fate.tools.jobs import UPLOAD
from adapter.fate.tools.rows import records_of
from gateway.data.outputs import Wanted
from gateway.data.storage import Storage
from gateway.domain.dag import DagNode
from gateway.domain.datasets import Dataset
from gateway.domain.run import Address, Run
from gateway.errors import GatewayError, NotFound
from provider_registry.model import group_of

MOST_ROWS = 100
LARGEST_JSON = 1024 * 1024
"""bytes of a report or a model that an answer holds; the download has them all"""
_LARGEST_BODY = 1024 * 1024
_LONGEST_HEADER = 1024 * 1024
_OTHERS_OF_FATE = ("role", "party_id", "destroy", "storage_engine", "address")
"""what FATE's clients may send beside the keys that mean something here"""

_LEFT_TABLE = {"OUTPUT_MISSING": Code.TABLE_NOT_FOUND}
_LEFT_MODEL = {"OUTPUT_MISSING": Code.NO_FOUND_MODEL_OUTPUT}
_TABLE = {"DATASET_UNKNOWN": Code.TABLE_NOT_FOUND, "DATA_MISSING": Code.TABLE_NOT_FOUND}
_UPLOADED = coded({"DATASET_EXISTS": Code.TABLE_EXISTS, "CONFLICT": Code.TABLE_EXISTS})
_NAMED = {"namespace": "experiment", "name": "breast_hetero_guest"}
_UPLOAD = {
    "file": "examples/data/breast_hetero_guest.csv",
    "head": True,
    "partitions": 16,
    "extend_sid": True,
    "meta": {"delimiter": ",", "label_name": "y", "match_id_name": "id"},
    **_NAMED,
}
_TASK = {"job_id": "job-1", "role": "guest", "party_id": "JG0100001100000010", "task_name": "intersect_rsa_1"}
Delete = Annotated[schemas.DeleteOutput, Body(examples=[_TASK])]
paths = Paths()


@paths("GET", "/v2/output/data/table", "Where a task's tables lie", codes=_LEFT_TABLE, peers=True)
def _data_table(call: Call, asked: schemas.OfTask) -> Envelope:
    """Under ``data`` as FATE's documents say, and beside ``code`` as FATE 2.2 responds.

    Another party's node reports what it has granted: columns and count too, never rows.
    """
    tables = _tables_of(call.parts, asked)
    return ok(tables, extra=tables)


@paths("GET", "/v2/output/data/display", "The first rows of a task's tables", codes=_LEFT_TABLE)
def _data_display(call: Call, asked: schemas.OfTask) -> Envelope:
    found = {key: [_shown(call.parts, address)] for key, address in _addresses(call.parts, asked, "data").items()}
    return ok(found, extra=found)


@paths("GET", "/v2/output/data/download", "A task's tables, as a tar.gz of CSV", codes=_LEFT_TABLE, archive=GZIP)
def _data_download(call: Call, asked: schemas.OutputOfTask) -> Response:
    found = _there(_addresses(call.parts, asked, "data", asked.output_key))
    tables = (m for key, address in found.items() for m in _table(call.parts.storage, address, key))
    return sent(tables, f"{asked.job_id}_{asked.role}_{asked.party_id}_{asked.task_name}.tar.gz")


@paths("GET", "/v2/output/model/query", "A task's models, where they are JSON", codes=_LEFT_MODEL)
def _model_query(call: Call, asked: schemas.OfTask) -> dict[str, Any]:
    return {key: _json(call.parts, address) for key, address in _addresses(call.parts, asked, "model").items()}


@paths(
    "GET",
    "/v2/output/model/download",
    "A task's models, as a tar of the files that it wrote",
    codes=_LEFT_MODEL,
    archive=TAR,
)
def _model_download(call: Call, asked: schemas.OfTask) -> Response:
    files = _files(call.parts.storage, _there(_addresses(call.parts, asked, "model")))
    return sent(files, f"{asked.job_id}_{asked.task_name}_model.tar", TAR)


@paths("POST", "/v2/output/model/delete", "Delete a task's models", codes=_LEFT_MODEL)
def _model_delete(call: Call, asked: Delete) -> dict[str, Any]:
    return _deleted(call, asked, "models")


@paths("GET", "/v2/output/metric/key/query", "Which metrics a task has")
def _metric_keys(call: Call, asked: schemas.OfTask) -> list[dict[str, Any]]:
    return [_metric(key) for key in _addresses(call.parts, asked, "metric")]


@paths("GET", "/v2/output/metric/query", "A task's metrics: what its reports say")
def _metrics(call: Call, asked: schemas.OfTask) -> list[dict[str, Any]]:
    found = []
    for key, address in _addresses(call.parts, asked, "metric").items():
        value = _json(call.parts, address)
        found.append({**_metric(key), "data": _shown(call.parts, address) if value is None else value})
    return found


@paths("POST", "/v2/output/metric/delete", "Delete a task's metrics")
def _metric_delete(call: Call, asked: Delete) -> dict[str, Any]:
    return _deleted(call, asked, "metrics")


@paths("GET", "/v2/table/query", "What is known of a table", codes=_TABLE)
def _table_query(call: Call, asked: schemas.TableQuery) -> dict[str, Any]:
    dataset: Dataset = call.parts.datasets.get(Address(asked.namespace, asked.name))
    kind, _, place = dataset.origin.partition(":")
    found: dict[str, Any] = {
        "namespace": dataset.namespace,
        "name": dataset.name,
        "dataset_id": dataset.dataset_id,
        "count": dataset.count,
        "meta": {**dataset.meta, "header": list(dataset.columns), "types": list(dataset.types)},
        "engine": "file",
        "path": "",
        "source": {"kind": kind, "name": place.rpartition("/")[2]},
        "data_type": "table",
        "partitions": dataset.partitions,
        "disabled": dataset.disabled,
    }
    if asked.display:
        address = call.parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
        found["display"] = list(islice(call.parts.storage.iter_rows(address), MOST_ROWS))
    return found


@paths("POST", "/v2/table/delete", "Delete a table", codes=_TABLE)
def _table_delete(call: Call, asked: Annotated[schemas.TableRequest, Body(examples=[_NAMED])]) -> None:
    call.parts.sharing.delete(Address(asked.namespace, asked.name))


@paths("GET", "/v2/data/download", "A table, as a tar.gz of CSV", codes=_TABLE, archive=GZIP)
def _download(call: Call, asked: schemas.TableDownload) -> Response:
    address = call.parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
    call.parts.storage.partitions(address)
    header = asked.header.lower() not in ("false", "0", "no")
    members = _table(call.parts.storage, address, "data", header=header)
    return sent(members, f"download_data_{asked.namespace}_{asked.name}.tar.gz")


def _tables_of(parts: ClientParts, asked: schemas.OfTask) -> dict[str, Any]:
    if asked.party_id == parts.settings.node.id:
        return {key: [address.as_dict()] for key, address in _addresses(parts, asked, "data").items()}
    parties = records_of(parts, asked.job_id, ask=False, notes=False).spec.parties
    labels = [p.label for p in parties if (p.role, p.node) == (asked.role, asked.party_id)]
    if not labels:
        have = ", ".join(f"{p.role} {p.node}" for p in parties)
        text = f"job {asked.job_id} has no party {asked.role} {asked.party_id}; its parties: {have}"
        raise NotFound(text, reason="JOB_UNKNOWN")
    tables: dict[str, Any] = {}
    wanted = (Wanted(asked.job_id, asked.task_name, label) for label in labels)
    for one in chain.from_iterable(map(parts.outputs.for_operators, wanted)):
        if one.there and group_of(one.type) == "data":
            columns = [{"name": c.name, "type": c.type} for c in one.columns]
            known = {"count": one.count, "columns": columns, "description": one.description}
            tables.setdefault(one.key, []).append({"namespace": one.namespace, "name": one.name, **known})
    return tables


def _run(parts: ClientParts, asked: schemas.OfTask) -> tuple[Run, DagNode | None]:
    """Return the run whose outputs stand for a party's part of a task, and the task. Raises `NotFound`."""
    local = parts.store.local_jobs.find(asked.job_id)
    if local is None:
        raise NotFound(f"node {parts.settings.node.id} has no part in a job {asked.job_id}", reason="JOB_UNKNOWN")
    who = f"{asked.role} {asked.party_id}"
    if asked.party_id != parts.settings.node.id:
        raise NotFound(f"outputs of {who} lie at its own node: ask there", reason="TASK_UNKNOWN")
    runs = [r for r in local.standing(asked.task_name) if r.party.role == asked.role]
    if not runs:
        names = ", ".join(n.name for n in local.spec.dag.nodes[:20])
        text = f"{who} has no run of a task {asked.task_name} in job {asked.job_id}; its tasks: {names}"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return runs[-1], local.spec.dag.get(runs[-1].task_name)


def _addresses(parts: ClientParts, asked: schemas.OfTask, group: str, only: str = "") -> dict[str, Address]:
    """Return a task's outputs of one group that lie in the storage: key in the flow -> address."""
    run, node = _run(parts, asked)
    types = {o.key: group_of(o.type) for o in node.outputs} if node else {}
    found = {
        key: run.outputs[name]
        for key, name in run.output_keys.items()
        if types.get(key) == group and only in ("", key, name)
    }
    return {key: address for key, address in found.items() if parts.storage.exists(address)}


def _there(found: dict[str, Address]) -> dict[str, Address]:
    if not found:
        raise NotFound("the task has left nothing of that kind here, or it was deleted", reason="OUTPUT_MISSING")
    return found


def _shown(parts: ClientParts, address: Address) -> dict[str, Any]:
    rows, columns, total = list[list[str]](), list[str](), None
    with suppress(GatewayError):  # no table: there is nothing to show, and the download has it
        total = parts.storage.metadata(address).get("count")
        rows = list(islice(parts.storage.iter_rows(address), MOST_ROWS))
        columns = parts.storage.columns(address)
    return {"data": rows, "metadata": {"header": columns}, "total": total if isinstance(total, int) else None}


def _json(parts: ClientParts, address: Address) -> Any:
    with suppress(GatewayError):  # large, or no JSON
        return parts.storage.read_json(address, LARGEST_JSON)
    return None


def _metric(key: str) -> dict[str, Any]:
    return {"name": key, "type": "report", "groups": [], "step_axis": None}


def _files(storage: Storage, found: Mapping[str, Address]) -> Iterator[Member]:
    for key, address in found.items():
        for part in storage.partitions(address):
            with storage.open_file(address, part.name) as file:
                yield Member(f"{key}/{part.name}", part.size, iter(partial(file.read, CHUNK), b""))


def _deleted(call: Call, asked: schemas.DeleteOutput, content: str) -> dict[str, Any]:
    party = _run(call.parts, asked)[0].party.label
    items = call.parts.deleting.clean_task(
        asked.job_id, asked.task_name, content, by=call.by, dry_run=asked.dry_run, party=party
    )
    return {"dry_run": asked.dry_run, "items": [asdict(item) for item in items]}


def _table(storage: Storage, address: Address, folder: str, *, header: bool = True) -> Iterator[Member]:
    """Yield ``<folder>/0.csv`` and ``<folder>/0.meta`` of a table. Raises `NotFound`."""
    skipped, columns = 0, list[str]()
    if not header:
        with storage.open_file(address, storage.partitions(address)[0].name) as file:
            skipped = len(file.readline(_LONGEST_HEADER))
    with suppress(GatewayError):  # no CSV
        columns = storage.columns(address)
    yield Member(f"{folder}/0.csv", storage.stamp(address)[0] - skipped, storage.stream(address, skipped))
    meta = json.dumps({"header": columns}).encode()
    yield Member(f"{folder}/0.meta", len(meta), (meta,))


Change = Callable[[dict[str, str]], dict[str, str]]


def upload_router(
    from_path: Callable[[Mapping[str, Any]], Awaitable[Dataset]],
    from_form: Callable[[Request, Change], Awaitable[Dataset]],
) -> APIRouter:
    """Return the upload paths of FATE's client.

    ``from_path`` stores a file that is on the server, ``from_form`` one that comes with a request, whose fields it
    has changed before.
    """
    router = APIRouter(tags=[TAG], route_class=FateRoute)

    @router.post(
        "/v2/data/component/upload",
        summary="Store a table from the server's disk",
        openapi_extra=_UPLOADED,
        max_body_size=_LARGEST_BODY,
    )
    async def upload(
        body: Annotated[dict[str, Any], Body(examples=[_UPLOAD])],
    ) -> Envelope:
        return _answer(await from_path(_named(body)))

    @router.post(
        "/v2/data/component/upload/file",
        summary="Store a table that comes with the request",
        openapi_extra={
            **_UPLOADED,
            "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object"}}}},
        },
    )
    async def upload_file(request: Request) -> Envelope:
        return _answer(await from_form(request, _named))

    return router


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read here of what FATE's client sends; without a name the table gets one."""
    kept = {k: v for k, v in fields.items() if k not in _OTHERS_OF_FATE}
    if not kept.get("namespace") and not kept.get("name"):
        kept |= {"namespace": "upload", "name": uuid4().hex}
    return kept


def _answer(dataset: Dataset) -> Envelope:
    data = {"namespace": dataset.namespace, "name": dataset.name, "dataset_id": dataset.dataset_id}
    return ok({**data, "count": dataset.count}, job_id=UPLOAD + dataset.dataset_id)
