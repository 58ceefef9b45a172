"""``/v2/output``: what the tasks of this node left, for FATE's tools: tables, models, metrics."""

import json
import tarfile
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, NamedTuple, Protocol
from uuid import uuid4

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import StreamingResponse

from adapter.fate.codes import Code
from adapter.fate.envelope import FateRoute, NotServedHere, coded, ok
from adapter.fate.tools import deps as wire
from adapter.fate.tools.deps import ClientParts, Entry, by, on, sight
from adapter.fate.tools.jobs import UPLOAD
from gateway.data.log_index import Level
from gateway.data.logs import STREAMS
from gateway.data.outputs import Wanted
from gateway.data.storage import FileStorage
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.domain.run import Address, LocalJob, Run
from gateway.errors import GatewayError, Invalid, NotFound
from provider_registry.model import group_of

# ``/v2/data/component/upload``: the paths by which FATE 2.2's client uploads tables.
#
# FATE makes a job of an upload and its tools wait for it; here it is over when it is answered, and its ``job_id``
# is one that ``job/query`` knows as done.

OTHERS_OF_FATE = ("role", "party_id", "destroy", "storage_engine", "address")
"""what FATE's clients may send beside the keys that mean something here"""

_CLIENT_UPLOADS_TABLE = coded({"DATASET_EXISTS": Code.TABLE_EXISTS, "CONFLICT": Code.TABLE_EXISTS})
_LARGEST_BODY = 1024 * 1024
_CLIENT_UPLOADS_EXAMPLE = {
    "file": "examples/data/breast_hetero_guest.csv",
    "head": True,
    "partitions": 16,
    "extend_sid": True,
    "meta": {"delimiter": ",", "label_name": "y", "match_id_name": "id"},
    "namespace": "experiment",
    "name": "breast_hetero_guest",
}


class Uploads(Protocol):
    """Takes tables in; whatever is wrong is raised as `gateway.errors.GatewayError`."""

    async def from_path(self, document: Mapping[str, Any]) -> Dataset:
        """Store a file that is on the server."""

    async def from_form(self, request: Request, change: Callable[[dict[str, str]], dict[str, str]]) -> Dataset:
        """Store a file that comes with the request; ``change`` is applied to the form's fields."""


def upload_router(uploads: Uploads) -> APIRouter:
    """Return the upload paths of FATE's client."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)

    @router.post(
        "/v2/data/component/upload",
        summary="Store a table from the server's disk",
        openapi_extra=_CLIENT_UPLOADS_TABLE,
        max_body_size=_LARGEST_BODY,
    )
    async def upload(body: Annotated[dict[str, Any], Body(examples=[_CLIENT_UPLOADS_EXAMPLE])]) -> dict[str, Any]:
        return _answer(await uploads.from_path(_named(body)))

    @router.post(
        "/v2/data/component/upload/file",
        summary="Store a table that comes with the request",
        openapi_extra={
            **_CLIENT_UPLOADS_TABLE,
            "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object"}}}},
        },
    )
    async def upload_file(request: Request) -> dict[str, Any]:
        return _answer(await uploads.from_form(request, _named))

    return router


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read here of what FATE's client sends; without a name the table gets one."""
    kept = {k: v for k, v in fields.items() if k not in OTHERS_OF_FATE}
    if not kept.get("namespace") and not kept.get("name"):
        kept |= {"namespace": "upload", "name": uuid4().hex}
    return kept


def _answer(dataset: Dataset) -> dict[str, Any]:
    data = {"namespace": dataset.namespace, "name": dataset.name, "dataset_id": dataset.dataset_id}
    return ok({**data, "count": dataset.count}, job_id=UPLOAD + dataset.dataset_id)


GZIP, TAR = "application/gzip", "application/x-tar"
"""by these content types FATE's client knows how to unpack"""
CHUNK = 256 * 1024
_GZIP_WINDOW = 31
_BLOCK = 512


class Member(NamedTuple):
    """A file of an archive. ``chunks`` are read before the next member is asked for."""

    name: str
    size: int
    chunks: Iterable[bytes]


def tarred(members: Iterable[Member], kind: str = GZIP) -> Iterator[bytes]:
    """Yield the bytes of an archive. Raises `ValueError` where a member is not as long as it was said to be."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW) if kind == GZIP else None
    for data in _plain_tarring(members):
        out = squeeze.compress(data) if squeeze else data
        if out:
            yield out
    if squeeze:
        yield squeeze.flush()


def _plain_tarring(members: Iterable[Member]) -> Iterator[bytes]:
    for member in members:
        info = tarfile.TarInfo(member.name)
        info.size, info.mtime = member.size, time.time()
        yield info.tobuf(tarfile.PAX_FORMAT)
        sent = 0
        for chunk in member.chunks:
            sent += len(chunk)
            yield chunk
        if sent != member.size:
            raise ValueError(f"{member.name} has {sent} bytes and not {member.size}: it changed while it was read")
        yield b"\0" * (-sent % _BLOCK)
    yield b"\0" * (2 * _BLOCK)


def archive_of(kind: str = GZIP) -> dict[str, Any]:
    """Return what a path that answers with `sent` says of itself."""
    return {"response_class": Response, "response_model": None, "responses": {200: {"content": {kind: {}}}}}


def sent(
    members: Iterable[Member], filename: str, limiter: CapacityLimiter, kind: str = GZIP
) -> StreamingResponse:
    """Return an answer that is an archive; no thread is held while the reader is slow."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in filename)
    headers = {
        "content-disposition": f'attachment; filename="{plain}"',
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(_pieces(tarred(members, kind), limiter), media_type=kind, headers=headers)


async def _pieces(pieces: Iterator[bytes], limiter: CapacityLimiter) -> AsyncIterator[bytes]:
    try:
        while piece := await anyio.to_thread.run_sync(next, pieces, b"", limiter=limiter):
            yield piece
    finally:
        getattr(pieces, "close", lambda: None)()


OF_TASKS: Mapping[str, Level] = {
    "task_debug": Level.DEBUG,
    "task_info": Level.INFO,
    "task_warning": Level.INFO,
    "task_error": Level.ERROR,
}
"""FATE's kinds of logs -> the least serious lines in it. Warnings are not told apart here."""
OF_JOB = ("schedule_info", "schedule_error")

_IN_MEMORY = 1024 * 1024
_NO_JOB = coded({"JOB_UNKNOWN": Code.JOB_NOT_FOUND})


def log_router(parts: ClientParts) -> APIRouter:
    """Return the paths of logs."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)
    rest = parts.limiters.rest
    download: dict[str, Any] = {**archive_of(), "openapi_extra": _NO_JOB}

    @router.get("/v2/log/count", summary="How many lines a log has by now")
    async def count(asked: Annotated[wire.LogQuery, Query()]) -> dict[str, Any]:
        return ok(await on(rest, lambda: len(_Log(parts, asked))))

    @router.get("/v2/log/query", summary="Lines of a log")
    async def query(asked: Annotated[wire.LogQuery, Query()]) -> dict[str, Any]:
        """Numbered from 1. ``next``: where to go on, if not all that were asked for fit into one answer."""

        def work() -> dict[str, Any]:
            log = _Log(parts, asked)
            first, last = max(asked.begin, 1), min(asked.end or len(log), len(log))
            lines = list(log.lines(first, last))
            more: dict[str, Any] = {"next": first + len(lines)} if first + len(lines) <= last else {}
            numbered = [{"line_num": n, "content": text} for n, text in enumerate(lines, first)]
            return ok(numbered) | more

        return await on(rest, work)

    @router.post("/v2/job/log/download", summary="All logs of a job that this node has, as tar.gz", **download)
    async def posted(body: Annotated[wire.JobIdRequest, Body(examples=[{"job_id": "job-1"}])]) -> Response:
        return await archive(body.job_id)

    @router.get("/v2/job/log/download", summary="The same, for a browser", **download)
    async def asked_for(asked: Annotated[wire.JobIdRequest, Query()]) -> Response:
        return await archive(asked.job_id)

    async def archive(job_id: str) -> Response:
        local = await on(rest, lambda: _known(parts, job_id))
        return sent(_members(parts, job_id, local), f"job_{job_id}_log.tar.gz", rest)

    return router


class _Log:
    """One log as FATE's tools name it."""

    def __init__(self, parts: ClientParts, asked: wire.LogQuery) -> None:
        """Raises `Invalid` for another kind of log, `NotFound`."""
        if asked.log_type not in (*OF_TASKS, *OF_JOB):
            kinds = ", ".join((*OF_TASKS, *OF_JOB))
            raise Invalid([Problem("log_type", f"must be one of {kinds}", asked.log_type)])
        self._parts = parts
        self._kind = asked.log_type
        self._job_id = asked.job_id
        local = _known(parts, asked.job_id)
        if asked.log_type in OF_JOB:
            self._schedule = _schedule(parts, asked.job_id, asked.log_type == "schedule_error")
            return
        lacking = [
            Problem(k, "is required for a task's log") for k in ("role", "party_id") if not getattr(asked, k)
        ]
        if lacking:
            raise Invalid(lacking)
        self._runs = _chosen(local, asked)
        level = OF_TASKS[asked.log_type]
        self._counts = [parts.run_logs.number(run.task_id, level, run.party.label).total for run in self._runs]

    def __len__(self) -> int:
        return len(self._schedule) if self._kind in OF_JOB else sum(self._counts)

    def lines(self, first: int, last: int) -> Iterator[str]:
        """Yield the lines of these numbers, from 1; fewer where they are too many for one answer."""
        if self._kind in OF_JOB:
            yield from self._schedule[first - 1 : last]
            return
        level, before = OF_TASKS[self._kind], 0
        for run, number in zip(self._runs, self._counts, strict=True):
            start, end = max(first - 1 - before, 0), min(last - before, number)
            before += number
            if start >= end:
                continue
            found = self._parts.run_logs.read(run.task_id, level, start, end - start, run.party.label)
            yield from (line.text for line in found.lines)
            if found.left_out:
                return


def _known(parts: ClientParts, job_id: str) -> LocalJob | None:
    """Return the job's part here; None where this node only schedules it. Raises `NotFound`."""
    local = parts.kept.local_jobs.find(job_id)
    if local is None and parts.kept.jobs.find(job_id) is None:
        raise NotFound(f"no job {job_id} is scheduled or runs here", reason="JOB_UNKNOWN")
    return local


def _chosen(local: LocalJob | None, asked: wire.LogQuery) -> list[Run]:
    """Return the runs of a party, of one task or of all, each task's newest attempt."""
    runs = [
        run
        for run in (local.runs if local else ())
        if (run.party.role, run.party.node) == (asked.role, asked.party_id)
        and asked.task_name in ("", run.task_name, run.task_id)
    ]
    if not runs:
        what = f"task {asked.task_name}" if asked.task_name else "task"
        text = f"{asked.role} {asked.party_id} has no {what} in job {asked.job_id} here"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return list({(run.task_name, run.party.label): run for run in runs}.values())


def _schedule(parts: ClientParts, job_id: str, errors: bool) -> list[str]:
    return [_line(e) for e in parts.kept.timeline(job_id) if not errors or _is_error(e)]


def _is_error(entry: Entry) -> bool:
    return any(entry.detail.get(key) for key in ("failure", "reason", "error"))


def _line(entry: Entry) -> str:
    said = json.dumps(entry.detail, ensure_ascii=False, default=str) if entry.detail else ""
    return " ".join(filter(None, (entry.at.isoformat(), entry.side, entry.event, entry.by, said)))


# ---------------------------------------------------------------- archives


def _members(parts: ClientParts, job_id: str, local: LocalJob | None) -> Iterator[Member]:
    """Yield ``schedule.log`` and ``<role>/<party>/<task>/<attempt>/<stream>.log``."""
    text = "".join(f"{line}\n" for line in _schedule(parts, job_id, errors=False)).encode()
    yield Member("schedule.log", len(text), (text,))
    for run in local.runs if local else ():
        for stream in STREAMS:
            place = (run.party.role, run.party.node, run.task_name, str(run.attempt), f"{stream}.log")
            yield from _member(parts, job_id, run, stream, "/".join(map(_plain, place)))


def _member(parts: ClientParts, job_id: str, run: Run, stream: str, name: str) -> Iterator[Member]:
    """Yield one run's stream; how long it is is known when it was written to a file once."""
    with SpooledTemporaryFile(_IN_MEMORY) as file:
        start, more = 0, True
        while more:
            try:
                found = parts.run_logs.read_run(job_id, run, (stream,), start, None)
            except NotFound as error:  # another gateway has it
                file.write(f"[{error.reason}: {error.message}]\n".encode())
                break
            file.write("".join(f"{line.text}\n" for line in found.lines).encode())
            start, more = found.next, bool(found.lines) and found.left_out > 0
        size = file.tell()
        file.seek(0)
        yield Member(name, size, iter(lambda: file.read(CHUNK), b""))


def _plain(part: str) -> str:
    """Return a part of a path that stays where it is."""
    return part.replace("/", "_") if part not in (".", "..") else "_"


_LONGEST_HEADER = 1024 * 1024


def members(storage: FileStorage, address: Address, folder: str, *, header: bool = True) -> Iterator[Member]:
    """Yield ``<folder>/0.csv`` and ``<folder>/0.meta`` of a table. Raises `NotFound`."""
    skips: list[int] = []
    first, size = b"", 0
    for number in range(len(storage.partitions(address))):
        with storage.open_partition(address, number) as file:
            line = file.readline(_LONGEST_HEADER)
            first = first if number else line
            skips.append(len(line) if (number or not header) and line == first else 0)
            size += file.seek(0, 2) - skips[-1]
    yield Member(f"{folder}/0.csv", size, _chunks(storage, address, skips))
    meta = json.dumps({"header": _columns(storage, address)}).encode()
    yield Member(f"{folder}/0.meta", len(meta), (meta,))


def _chunks(storage: FileStorage, address: Address, skips: Sequence[int]) -> Iterator[bytes]:
    """Yield all parts, each without so many bytes at its beginning."""
    for number, skip in enumerate(skips):
        with storage.open_partition(address, number) as file:
            file.seek(skip)
            while data := file.read(CHUNK):
                yield data


def _columns(storage: FileStorage, address: Address) -> list[str]:
    try:
        return storage.columns(address)
    except GatewayError:
        return []


MOST_ROWS = 100
LARGEST_JSON = 1024 * 1024
"""bytes of a report or a model that an answer holds; the download has them all"""

_TABLE = coded({"OUTPUT_MISSING": Code.TABLE_NOT_FOUND})
_MODEL = coded({"OUTPUT_MISSING": Code.NO_FOUND_MODEL_OUTPUT})

OfTask = Annotated[wire.OfTask, Query()]
_EXAMPLE = {"job_id": "job-1", "role": "guest", "party_id": "JG0100001100000010", "task_name": "intersect_rsa_1"}
Delete = Annotated[wire.DeleteOutput, Body(examples=[_EXAMPLE])]


def router(parts: ClientParts) -> APIRouter:
    """Return the paths of outputs."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)
    rest = parts.limiters.rest

    @router.get("/v2/output/data/table", summary="Where a task's tables lie", openapi_extra=_TABLE)
    async def data_table(asked: OfTask) -> dict[str, Any]:
        """Under ``data`` as FATE's documents say, and beside ``code`` as FATE 2.2 answers.

        Another party's node is asked, which tells of what it has granted: columns and count too, never rows.
        """
        limiter = rest if asked.party_id == parts.node else parts.limiters.peers
        tables = await on(limiter, lambda: _tables_of(parts, asked))
        return {**tables, **ok(tables)}

    @router.get("/v2/output/data/display", summary="The first rows of a task's tables", openapi_extra=_TABLE)
    async def data_display(asked: OfTask) -> dict[str, Any]:
        found = await on(rest, lambda: {k: [_shown(parts, a)] for k, a in _of(parts, asked, "data").items()})
        return {**found, **ok(found)}

    @router.get(
        "/v2/output/data/download",
        summary="A task's tables, as a tar.gz of CSV",
        openapi_extra=_TABLE,
        **archive_of(),
    )
    async def data_download(asked: Annotated[wire.OutputOfTask, Query()]) -> Response:
        found = await on(rest, lambda: _there(parts, _of(parts, asked, "data", asked.output_key)))
        name = f"{asked.job_id}_{asked.role}_{asked.party_id}_{asked.task_name}.tar.gz"
        return sent(_tables(parts, found), name, rest)

    @router.get("/v2/output/model/query", summary="A task's models, where they are JSON", openapi_extra=_MODEL)
    async def model_query(asked: OfTask) -> dict[str, Any]:
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
    async def model_delete(request: Request, body: Delete) -> dict[str, Any]:
        return ok(await on(rest, lambda: _deleted(parts, body, "models", by(request))))

    @router.get("/v2/output/metric/key/query", summary="Which metrics a task has")
    async def metric_keys(asked: OfTask) -> dict[str, Any]:
        return ok(await on(rest, lambda: [_metric(key) for key in _of(parts, asked, "metric")]))

    @router.get("/v2/output/metric/query", summary="A task's metrics: what its reports say")
    async def metrics(asked: OfTask) -> dict[str, Any]:
        def work() -> list[dict[str, Any]]:
            found = _of(parts, asked, "metric").items()
            return [{**_metric(key), "data": _value(parts, address)} for key, address in found]

        return ok(await on(rest, work))

    @router.post("/v2/output/metric/delete", summary="Delete a task's metrics")
    async def metric_delete(request: Request, body: Delete) -> dict[str, Any]:
        return ok(await on(rest, lambda: _deleted(parts, body, "metrics", by(request))))

    return router


def _tables_of(parts: ClientParts, asked: wire.OfTask) -> dict[str, Any]:
    if asked.party_id == parts.node:
        return {key: [address.as_dict()] for key, address in _of(parts, asked, "data").items()}
    seen = sight(parts, asked.job_id, ask=False, notes=False).spec.parties
    if not any((p.role, p.node) == (asked.role, asked.party_id) for p in seen):
        have = ", ".join(f"{p.role} {p.node}" for p in seen)
        text = f"{asked.role} {asked.party_id} is no party of job {asked.job_id}; its parties: {have}"
        raise NotFound(text, reason="JOB_UNKNOWN")
    labels = [p.label for p in seen if (p.role, p.node) == (asked.role, asked.party_id)]
    tables: dict[str, Any] = {}
    for one in (f for label in labels for f in parts.facts_of(Wanted(asked.job_id, asked.task_name, label))):
        if one.there and group_of(one.type) == "data":
            columns = [{"name": c.name, "type": c.type} for c in one.columns]
            known = {"count": one.count, "columns": columns, "description": one.description}
            tables.setdefault(one.key, []).append({"namespace": one.namespace, "name": one.name, **known})
    return tables


def run_of(parts: ClientParts, asked: wire.OfTask) -> Run:
    """Return the run whose outputs stand for a party's part of a task. Raises `NotFound`."""
    local = parts.kept.local_jobs.find(asked.job_id)
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
    return runs[-1]


def _of(parts: ClientParts, asked: wire.OfTask, group: str, only: str = "") -> dict[str, Address]:
    """Return a task's outputs of one group that lie in the storage: key in the flow -> address."""
    run = run_of(parts, asked)
    local = parts.kept.local_jobs.find(asked.job_id)
    node = local.spec.dag.get(run.task_name) if local else None
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
    """Return what a report says: its JSON, or the rows of a table."""
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


def _deleted(parts: ClientParts, body: wire.DeleteOutput, content: str, who: str) -> dict[str, Any]:
    party = run_of(parts, body).party.label
    items = parts.tidy.clean_task(body.job_id, body.task_name, content, by=who, dry_run=body.dry_run, party=party)
    return {"dry_run": body.dry_run, "items": [item.as_dict() for item in items]}


_CLIENT_DATA_TABLE = coded({"DATASET_UNKNOWN": Code.TABLE_NOT_FOUND, "DATA_MISSING": Code.TABLE_NOT_FOUND})
_CLIENT_DATA_EXAMPLE = {"namespace": "experiment", "name": "breast_hetero_guest"}


def data_router(parts: ClientParts) -> APIRouter:
    """Return the paths of tables."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)
    rest = parts.limiters.rest

    @router.get("/v2/table/query", summary="What is known of a table", openapi_extra=_CLIENT_DATA_TABLE)
    async def query(asked: Annotated[wire.TableQuery, Query()]) -> dict[str, Any]:
        return ok(await on(rest, lambda: _described(parts, asked)))

    @router.post("/v2/table/delete", summary="Delete a table", openapi_extra=_CLIENT_DATA_TABLE)
    async def delete(body: Annotated[wire.TableRequest, Body(examples=[_CLIENT_DATA_EXAMPLE])]) -> dict[str, Any]:
        await on(rest, lambda: parts.drop_table(Address(body.namespace, body.name)))
        return ok()

    @router.get(
        "/v2/data/download",
        summary="A table, as a tar.gz of CSV",
        openapi_extra=_CLIENT_DATA_TABLE,
        **archive_of(),
    )
    async def download(asked: Annotated[wire.TableDownload, Query()]) -> Response:
        return await _archive(parts, asked, asked.header.lower() not in ("false", "0", "no"))

    for path in ("/v2/component/download", "/v2/data/component/download"):

        @router.post(
            path,
            summary="A table, as a tar.gz of CSV; with a path of the server it is not served",
            openapi_extra=_CLIENT_DATA_TABLE,
            **archive_of(),
        )
        async def component_download(
            body: Annotated[wire.ComponentDownload, Body(examples=[_CLIENT_DATA_EXAMPLE])],
        ) -> Response:
            if body.path:
                text = "nothing is written to a path of this server: leave it out, or use flow data download"
                raise NotServedHere(f"a download to {body.path} is not served here: {text}")
            return await _archive(parts, body, True)

    return router


async def _archive(parts: ClientParts, asked: wire.TableRequest, header: bool) -> Response:
    def found() -> Address:
        address = parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
        parts.storage.partitions(address)
        return address

    address = await on(parts.limiters.rest, found)
    name = f"download_data_{asked.namespace}_{asked.name}.tar.gz"
    return sent(members(parts.storage, address, "data", header=header), name, parts.limiters.rest)


def _described(parts: ClientParts, asked: wire.TableQuery) -> dict[str, Any]:
    dataset: Dataset = parts.datasets.get(namespace=asked.namespace, name=asked.name)
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
        address = parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
        found["display"] = list(islice(parts.storage.iter_rows(address), MOST_ROWS))
    return found
