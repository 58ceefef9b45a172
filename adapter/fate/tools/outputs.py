"""``/v2/output``: what the tasks of this node left: tables, models, metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from adapter.fate.envelope import Code, Envelope, FateRoute, coded, ok
from adapter.fate.tools import schemas
from adapter.fate.tools.archives import CHUNK, TAR, Member, archive_of, sent
from adapter.fate.tools.deps import ClientParts, by, on, sight
from adapter.fate.tools.tables import MOST_ROWS, members
from gateway.data.outputs import Wanted
from gateway.domain.dag import DagNode
from gateway.domain.run import Address, Run
from gateway.errors import GatewayError, NotFound
from provider_registry.model import group_of

LARGEST_JSON = 1024 * 1024
"""bytes of a report or a model that an answer holds; the download has them all"""

_TABLE = coded({"OUTPUT_MISSING": Code.TABLE_NOT_FOUND})
_MODEL = coded({"OUTPUT_MISSING": Code.NO_FOUND_MODEL_OUTPUT})

OfTask = Annotated[schemas.OfTask, Query()]
_EXAMPLE = {"job_id": "job-1", "role": "guest", "party_id": "JG0100001100000010", "task_name": "intersect_rsa_1"}
Delete = Annotated[schemas.DeleteOutput, Body(examples=[_EXAMPLE])]


def router(parts: ClientParts) -> APIRouter:
    """Return the paths of outputs."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)
    rest = parts.limiters.rest

    @router.get("/v2/output/data/table", summary="Where a task's tables lie", openapi_extra=_TABLE)
    async def data_table(asked: OfTask) -> Envelope[dict[str, list[dict[str, Any]]]]:
        """Under ``data`` as FATE's documents say, and beside ``code`` as FATE 2.2 responds.

        Another party's node reports what it has granted: columns and count too, never rows.
        """
        limiter = rest if asked.party_id == parts.node else parts.limiters.peers
        tables = await on(limiter, lambda: _tables_of(parts, asked))
        return ok(tables, extra=tables)

    @router.get("/v2/output/data/display", summary="The first rows of a task's tables", openapi_extra=_TABLE)
    async def data_display(asked: OfTask) -> Envelope[dict[str, list[dict[str, Any]]]]:
        found = await on(rest, lambda: {k: [_shown(parts, a)] for k, a in _of(parts, asked, "data").items()})
        return ok(found, extra=found)

    @router.get(
        "/v2/output/data/download",
        summary="A task's tables, as a tar.gz of CSV",
        openapi_extra=_TABLE,
        **archive_of(),
    )
    async def data_download(asked: Annotated[schemas.OutputOfTask, Query()]) -> Response:
        found = await on(rest, lambda: _there(parts, _of(parts, asked, "data", asked.output_key)))
        name = f"{asked.job_id}_{asked.role}_{asked.party_id}_{asked.task_name}.tar.gz"
        return sent(_tables(parts, found), name, rest)

    @router.get("/v2/output/model/query", summary="A task's models, where they are JSON", openapi_extra=_MODEL)
    async def model_query(asked: OfTask) -> Envelope[dict[str, Any]]:
        return ok(await on(rest, lambda: {k: _json(parts, a) for k, a in _of(parts, asked, "model").items()}))

    @router.get(
        "/v2/output/model/download",
        summary="A task's models, as a tar of the files that it wrote",
        openapi_extra=_MODEL,
        **archive_of(TAR),
    )
    async def model_download(asked: OfTask) -> Response:
        found = await on(rest, lambda: _there(parts, _of(parts, asked, "model")))
        return sent(_files(parts, found), f"{asked.job_id}_{asked.task_name}_model.tar", rest, TAR)

    @router.post("/v2/output/model/delete", summary="Delete a task's models", openapi_extra=_MODEL)
    async def model_delete(request: Request, body: Delete) -> Envelope[dict[str, Any]]:
        return ok(await on(rest, lambda: _deleted(parts, body, "models", by(request))))

    @router.get("/v2/output/metric/key/query", summary="Which metrics a task has")
    async def metric_keys(asked: OfTask) -> Envelope[list[dict[str, Any]]]:
        return ok(await on(rest, lambda: [_metric(key) for key in _of(parts, asked, "metric")]))

    @router.get("/v2/output/metric/query", summary="A task's metrics: what its reports say")
    async def metrics(asked: OfTask) -> Envelope[list[dict[str, Any]]]:
        def work() -> list[dict[str, Any]]:
            found = _of(parts, asked, "metric").items()
            return [{**_metric(key), "data": _value(parts, address)} for key, address in found]

        return ok(await on(rest, work))

    @router.post("/v2/output/metric/delete", summary="Delete a task's metrics")
    async def metric_delete(request: Request, body: Delete) -> Envelope[dict[str, Any]]:
        return ok(await on(rest, lambda: _deleted(parts, body, "metrics", by(request))))

    return router


def _tables_of(parts: ClientParts, asked: schemas.OfTask) -> dict[str, Any]:
    if asked.party_id == parts.node:
        return {key: [address.as_dict()] for key, address in _of(parts, asked, "data").items()}
    parties = sight(parts, asked.job_id, ask=False, notes=False).spec.parties
    labels = [p.label for p in parties if (p.role, p.node) == (asked.role, asked.party_id)]
    if not labels:
        have = ", ".join(f"{p.role} {p.node}" for p in parties)
        text = f"job {asked.job_id} has no party {asked.role} {asked.party_id}; its parties: {have}"
        raise NotFound(text, reason="JOB_UNKNOWN")
    tables: dict[str, Any] = {}
    for one in (f for label in labels for f in parts.facts_of(Wanted(asked.job_id, asked.task_name, label))):
        if one.there and group_of(one.type) == "data":
            columns = [{"name": c.name, "type": c.type} for c in one.columns]
            known = {"count": one.count, "columns": columns, "description": one.description}
            tables.setdefault(one.key, []).append({"namespace": one.namespace, "name": one.name, **known})
    return tables


def _run(parts: ClientParts, asked: schemas.OfTask) -> tuple[Run, DagNode | None]:
    """Return the run whose outputs stand for a party's part of a task, and the task. Raises `NotFound`."""
    local = parts.store.local_jobs.find(asked.job_id)
    if local is None:
        raise NotFound(f"node {parts.node} has no part in a job {asked.job_id}", reason="JOB_UNKNOWN")
    who = f"{asked.role} {asked.party_id}"
    if asked.party_id != parts.node:
        raise NotFound(f"outputs of {who} lie at its own node: ask there", reason="TASK_UNKNOWN")
    runs = [r for r in local.standing(asked.task_name) if r.party.role == asked.role]
    if not runs:
        names = ", ".join(n.name for n in local.spec.dag.nodes[:20])
        text = f"{who} has no run of a task {asked.task_name} in job {asked.job_id}; its tasks: {names}"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return runs[-1], local.spec.dag.get(runs[-1].task_name)


def _of(parts: ClientParts, asked: schemas.OfTask, group: str, only: str = "") -> dict[str, Address]:
    """Return a task's outputs of one group that lie in the storage: key in the flow -> address."""
    run, node = _run(parts, asked)
    types = {o.key: group_of(o.type) for o in node.outputs} if node else {}
    found = {
        key: run.outputs[name]
        for key, name in run.output_keys.items()
        if types.get(key) == group and only in ("", key, name)
    }
    return {key: address for key, address in found.items() if parts.storage.exists(address)}


def _there(parts: ClientParts, found: dict[str, Address]) -> dict[str, Address]:
    if not found:
        raise NotFound("the task has left nothing of that kind here, or it was deleted", reason="OUTPUT_MISSING")
    return found


def _shown(parts: ClientParts, address: Address) -> dict[str, Any]:
    rows: list[list[str]] = []
    metadata: Mapping[str, Any] = {}
    try:
        metadata = parts.storage.metadata(address)
        rows = list(islice(parts.storage.iter_rows(address), MOST_ROWS))
        columns = parts.storage.columns(address)
    except GatewayError:  # no table: there is nothing to show, and the download has it
        columns = []
    total = metadata.get("count")
    return {"data": rows, "metadata": {"header": columns}, "total": total if isinstance(total, int) else None}


def _json(parts: ClientParts, address: Address) -> Any:
    try:
        return parts.storage.read_json(address, LARGEST_JSON)
    except GatewayError:  # large, or no JSON
        return None


def _value(parts: ClientParts, address: Address) -> Any:
    value = _json(parts, address)
    return _shown(parts, address) if value is None else value


def _metric(key: str) -> dict[str, Any]:
    return {"name": key, "type": "report", "groups": [], "step_axis": None}


def _tables(parts: ClientParts, found: Mapping[str, Address]) -> Iterator[Member]:
    for key, address in found.items():
        yield from members(parts.storage, address, key)


def _files(parts: ClientParts, found: Mapping[str, Address]) -> Iterator[Member]:
    for key, address in found.items():
        for number in range(len(parts.storage.partitions(address))):
            with parts.storage.open_partition(address, number) as file:
                size = file.seek(0, 2)
                file.seek(0)
                yield Member(f"{key}/data_{number}", size, iter(lambda file=file: file.read(CHUNK), b""))  # type: ignore[misc]


def _deleted(parts: ClientParts, body: schemas.DeleteOutput, content: str, who: str) -> dict[str, Any]:
    party = _run(parts, body)[0].party.label
    items = parts.deleting.clean_task(
        body.job_id, body.task_name, content, by=who, dry_run=body.dry_run, party=party
    )
    return {"dry_run": body.dry_run, "items": [asdict(item) for item in items]}
