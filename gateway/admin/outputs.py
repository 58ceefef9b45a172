"""``/api/v1/jobs/…/outputs``: what this node's runs left in the storage: listed, looked into, downloaded."""

import base64
import codecs
import csv
import io
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gateway.admin.deps import AdminParts, Answer, refusal
from gateway.data.outputs import OutputFacts, Wanted
from gateway.data.reports import Report, names, picture, read_report
from gateway.data.storage import FileStorage
from gateway.domain.dag import group
from gateway.domain.problems import Problem, index_of
from gateway.domain.run import Address, LocalJob, Run
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.ports import Limiters
from gateway.store.serialization import to_plain
from provider_registry.model import group_of

MOST_ROWS = 100
MOST_BYTES = 1024 * 1024
"""how much of an output is read for a preview"""
DEEPEST = 100


@dataclass(frozen=True)
class Preview:
    """What can be shown; ``left_out`` says in words what is not, empty when everything is."""

    kind: str
    """table, json, or bytes: neither of them"""
    size: int
    """bytes of all parts together"""
    partitions: int
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    value: Any = None
    left_out: str = ""


def preview(storage: FileStorage, address: Address, most: int, *, table: bool) -> Preview:
    """Look at the beginning of an output. ``table``: the flow calls it data, so it is CSV rather than JSON.

    Raises `NotFound`.
    """
    parts = len(storage.partitions(address))
    heads, size, room = [], 0, MOST_BYTES
    for number in range(parts):
        with storage.open_partition(address, number) as file:
            head = file.read(room)
            room -= len(head)
            length = file.seek(0, io.SEEK_END)
        size += length
        heads.append((head, len(head) == length))
    if not table and (shown := _json(heads, size, parts)):
        return shown
    if shown := _table(heads, size, parts, most, least=1 if table else 2):
        return shown
    return (_json(heads, size, parts) if table else None) or Preview(
        "bytes", size, parts, left_out=f"all {size} bytes: neither CSV in UTF-8 nor JSON; the download has them"
    )


def showable(value: Any, depth: int = 0) -> Any:
    """Return a JSON value that every reader takes: without NaN, broken Unicode and bottomless nesting."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if not isinstance(value, (dict, list)):
        return value
    if depth == DEEPEST:
        return "(nested more deeply than is shown)"
    if isinstance(value, list):
        return [showable(v, depth + 1) for v in value]
    return {showable(k): showable(v, depth + 1) for k, v in value.items()}


def _json(heads: list[tuple[bytes, bool]], size: int, parts: int) -> Preview | None:
    """Return the value of a JSON file; only its kind where it is large. None for what is no JSON."""
    head, whole = heads[0]
    if not whole:
        text = f"all: {size} bytes are more than the {MOST_BYTES} of a preview; the download has them"
        return Preview("json", size, parts, left_out=text) if head.lstrip()[:1] in (b"{", b"[") else None
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return None
    left_out = "" if parts == 1 else f"all but the first of {parts} parts"
    return Preview("json", size, parts, value=showable(value), left_out=left_out)


def _table(heads: list[tuple[bytes, bool]], size: int, parts: int, most: int, least: int) -> Preview | None:
    """Return the first rows of a CSV table of at least so many columns; None for what is none."""
    columns: list[str] = []
    rows: list[list[str]] = []
    whole = True
    for head, complete in heads:
        found, whole = _records(head, complete, most + 2 - len(rows))
        if found is None or (not columns and (not found or len(found[0]) < least)):
            return None
        columns = columns or found[0]
        rows += found[1:] if found[:1] == [columns] else found
        if not whole or len(rows) > most:
            break
    left_out = ""
    if len(rows) > most:
        left_out = f"the rows after the first {most}"
    elif not whole:
        left_out = f"what comes after the first {MOST_BYTES} bytes of {size}"
    return Preview("table", size, parts, columns, rows[:most], left_out=left_out)


def _records(head: bytes, complete: bool, most: int) -> tuple[list[list[str]] | None, bool]:
    """Return the first records, and whether none is missing; None for what is no CSV in UTF-8."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=complete)
    except UnicodeDecodeError:
        return None, False
    found: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for record in reader:
            if len(found) == most:
                return found, False
            if record:
                found.append(record)
    except csv.Error:
        return (None, False) if complete or not found else (found, False)
    if not complete:
        del found[-1:]  # it may have been cut
    return found, complete


Range = Annotated[str, Header(alias="range", description="one range of bytes, to go on where it stopped")]
IfRange = Annotated[str, Header(description="the ETag of the beginning: if it changed, all of it comes")]


class Asked(NamedTuple):
    """The headers ``Range`` and ``If-Range`` of a request; empty: all."""

    range: str = ""
    if_range: str = ""


@dataclass(frozen=True)
class Download:
    """What will be sent: bytes ``start`` to ``start + length`` of all parts, one after the other."""

    address: Address
    headers: dict[str, str]
    status: int
    start: int
    length: int


def prepared(storage: FileStorage, address: Address, name: str, asked: Asked) -> Download | Response:
    """Find out what is to be sent, or the refusal of a range that is not there. Raises `NotFound`.

    The whole is read once before, for its checksum, so a thread should do this.
    """
    size, stamp = storage.stamp(address)
    etag = f'"{stamp}"'
    wanted = one_range(asked.range, size) if asked.if_range in ("", etag) else None
    if wanted == (0, 0) and asked.range:
        text = f"RANGE_NOT_THERE: it has {size} bytes"
        body = {"code": 416, "msg": text, "data": {"reason": "RANGE_NOT_THERE"}}
        return JSONResponse(body, status_code=416, headers={"content-range": f"bytes */{size}"})
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    headers = {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
        "accept-ranges": "bytes",
        "etag": etag,
    }
    if wanted is not None:
        start, length = wanted
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{size}"
        headers["content-length"] = str(length)
        return Download(address, headers, 206, start, length)
    digest = storage.checksum(address)
    encoded = base64.b64encode(bytes.fromhex(digest)).decode()
    headers |= {
        "x-checksum-sha256": digest,
        "repr-digest": f"sha-256=:{encoded}:",
        "content-length": str(size),
    }
    return Download(address, headers, 200, 0, size)


def sent(found: Download, storage: FileStorage, limiters: Limiters) -> StreamingResponse:
    """Return the answer that sends it piece by piece."""
    return StreamingResponse(
        _pieces(found, storage, limiters),
        status_code=found.status,
        media_type="application/octet-stream",
        headers=found.headers,
    )


def one_range(text: str, size: int) -> tuple[int, int] | None:
    """Read a ``Range`` header: (start, length), (0, 0) for one that is not there, None for what asks for all.

    Several ranges, and what is no range of bytes, ask for all (RFC 9110, 14.2).
    """
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", text.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        length = min(int(last), size)
        return (size - length, length) if length else (0, 0)
    start, end = int(first), min(int(last), size - 1) if last else size - 1
    if last and int(last) < start:
        return None
    return (start, end - start + 1) if start < size else (0, 0)


async def _pieces(found: Download, storage: FileStorage, limiters: Limiters) -> AsyncIterator[bytes]:
    """Yield the bytes; no thread is held while the reader is slow."""
    pieces = storage.stream(found.address, start=found.start, length=found.length)
    try:
        while piece := await anyio.to_thread.run_sync(_next, pieces, limiter=limiters.rest):
            yield piece
    finally:
        getattr(pieces, "close", lambda: None)()


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")


USUAL_ROWS = 20


@dataclass(frozen=True)
class Output:
    """An output that lies in the storage."""

    run: Run
    key: str
    type: str
    """what the flow calls it: dataset, model, report"""
    address: Address

    def as_dict(self) -> dict[str, Any]:
        """Return whose it is and where it lies, for JSON."""
        return {
            "task": self.run.task_name,
            "party": self.run.party.label,
            "key": self.key,
            "type": self.type,
            **self.address.as_dict(),
        }


def add_outputs(router: APIRouter, parts: AdminParts, answer: Answer) -> None:
    """Add the paths of outputs. ``answer`` runs work in a thread and turns refusals into answers."""

    @router.get(
        "/api/v1/jobs/{job_id}/outputs", summary="What the runs here left in the storage", response_model=None
    )
    async def outputs(job_id: str) -> Any:
        return await answer(lambda: {"outputs": _outputs(parts, job_id)})

    @router.get(
        "/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}",
        summary="The beginning of an output: a table's first rows, a report's value",
        response_model=None,
    )
    async def look(
        job_id: str,
        task: str,
        party: str,
        key: str,
        rows: str = Query(default=str(USUAL_ROWS), description=f"rows of a table, at most {MOST_ROWS}"),
    ) -> Any:
        """``task`` is a name in the flow or an id, ``party`` as in ``guest.0``; ``left_out``: what is not here."""
        return await answer(lambda: _look(parts, job_id, task, party, key, rows))

    @router.get(
        "/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}/download",
        summary="An output as it lies in the storage, with its sha256",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def download(
        job_id: str,
        task: str,
        party: str,
        key: str,
        range_: Range = "",
        if_range: IfRange = "",
    ) -> Any:
        """The bytes of all parts, one after the other; each part of a table begins with its header line.

        The whole comes with its sha256, a range (206) without.
        """
        asked = Asked(range_, if_range)
        found = await answer(lambda: _download(parts, job_id, task, party, key, asked))
        return found if isinstance(found, Response) else sent(found, parts.storage, parts.limiters)


def _outputs(parts: AdminParts, job_id: str) -> list[dict[str, Any]]:
    local = parts.store.local_jobs.get(job_id)
    found = []
    taken_over = [run for run in local.standing() if run.of_job]
    for run in (*taken_over, *local.runs):
        for key, name in run.output_keys.items():
            address = run.outputs[name]
            found.append(
                {
                    "task": run.task_name,
                    "party": run.party.label,
                    "key": key,
                    "task_id": run.task_id,
                    "attempt": run.attempt,
                    "inherited_from": run.of_job or None,
                    **address.as_dict(),
                    "output": name,
                    "there": parts.storage.exists(address),
                    "value": _small_json(parts, address),
                }
            )
    return found


def _small_json(parts: AdminParts, address: Address, limit: int = 256 * 1024) -> Any:
    """Return a report's content; None for what is missing, large, or no JSON."""
    try:
        return showable(parts.storage.read_json(address, limit))
    except GatewayError:
        return None


def _look(parts: AdminParts, job_id: str, task: str, party: str, key: str, rows: str) -> dict[str, Any]:
    number = index_of(rows)
    if number is None or number > MOST_ROWS:
        raise Invalid([Problem("rows", f"must be a whole number up to {MOST_ROWS}", rows)])
    found = find_output(parts, job_id, task, party, key)
    seen = preview(parts.storage, found.address, number, table=group_of(found.type) == "data")
    shown: dict[str, Any] = {"kind": seen.kind, "bytes": seen.size, "partitions": seen.partitions}
    if seen.kind == "table":
        shown |= {"columns": seen.columns, "rows": seen.rows}
    if seen.kind == "json":
        shown["value"] = seen.value
    return {**found.as_dict(), **shown, "left_out": seen.left_out}


def _download(
    parts: AdminParts, job_id: str, task: str, party: str, key: str, asked: Asked
) -> Download | Response:
    found = find_output(parts, job_id, task, party, key)
    name = f"{found.run.task_name}-{party}-{key}" + (".csv" if group_of(found.type) == "data" else "")
    return prepared(parts.storage, found.address, name, asked)


def find_output(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> Output:
    """Return an output that lies in the storage. Raises `NotFound`, saying which part of its name is unknown."""
    local: LocalJob = parts.store.local_jobs.get(job_id)
    by_id = next((run.task_name for run in local.runs if run.task_id == task), task)
    node = local.spec.dag.get(by_id)
    if node is None:
        raise NotFound(f"job {job_id} has no task {task}", reason="TASK_UNKNOWN")
    who = next((p for p in local.spec.parties if p.label == party), None)
    if who is None or who.node != local.node:
        where = f"plays at node {who.node}; its outputs are there" if who else f"is no party of job {job_id}"
        raise NotFound(f"{party} {where}", reason="PARTY_UNKNOWN")
    type_ = next((o.type for o in node.outputs if o.key == key), None)
    runs = [run for run in local.standing(node.name) if run.party == who]
    if type_ is None or (runs and key not in runs[-1].output_keys):
        raise NotFound(f"task {node.name} gives {party} no output {key}", reason="OUTPUT_UNKNOWN")
    if not runs:
        raise NotFound(f"task {node.name} has not begun at {party}", reason="OUTPUT_MISSING")
    run = runs[-1]
    address = run.outputs[run.output_keys[key]]
    if not parts.storage.exists(address):
        text = f"output {key} of task {node.name} at {party} is not there; its run is {run.status}"
        raise NotFound(text, reason="OUTPUT_MISSING")
    return Output(run, key, type_, address)


_PICTURE = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}
"""what is in a report is a vendor's: a browser that opens the picture runs and loads nothing"""
Named = Annotated[
    str | None,
    Query(
        max_length=1000, description="one of the report's `plots`; default: the first of them", examples=["loss"]
    ),
]


def add_reports(router: APIRouter, parts: AdminParts, answer: Answer) -> None:
    """Add the paths of reports."""

    @router.get(
        "/api/v1/jobs/{job_id}/reports", summary="Reports of the runs here, and what is odd", response_model=None
    )
    async def reports(job_id: str) -> Any:
        """``warnings``: outputs that were not written, are malformed, or that nobody declared, per run."""
        return await answer(lambda: _listed(parts, job_id))

    @router.get(
        "/api/v1/jobs/{job_id}/reports/{task}/{party}/{key}",
        summary="A report as numbers, and as tables for plots",
        response_model=None,
    )
    async def report(job_id: str, task: str, party: str, key: str) -> Any:
        """``values``: single values by their path; ``series``: tables, each with columns and points.

        ``problem`` says why a report cannot be read; then both are empty. ``plots``: what of it `/plot` draws.
        """
        return await answer(lambda: _read(parts, job_id, task, party, key))

    @router.get(
        "/api/v1/jobs/{job_id}/reports/{task}/{party}/{key}/plot",
        summary="A report as a picture (SVG)",
        response_class=Response,
        responses={200: {"content": {"image/svg+xml": {}}}},
    )
    async def plot(job_id: str, task: str, party: str, key: str, series: Named = None) -> Any:
        """A table with a rising first column as lines over it, any other as bars; single values as bars."""
        found = await answer(lambda: _plot(parts, job_id, task, party, key, series))
        if isinstance(found, Response):
            return found
        return Response(found, media_type="image/svg+xml", headers=_PICTURE)


def _listed(parts: AdminParts, job_id: str) -> dict[str, Any]:
    local = parts.store.local_jobs.get(job_id)
    found, warnings = [], []
    latest = {(run.task_name, run.party.label): run for run in local.runs}
    for run in latest.values():
        node = local.spec.dag.get(run.task_name)
        for output in node.outputs if node else ():
            if group(output.type) == "metric" and output.key in run.output_keys:
                found.append(_entry(parts, job_id, run, output.key))
        warnings += [{"task": run.task_name, "party": run.party.label, "warning": text} for text in run.warnings]
    return {"reports": found, "warnings": warnings}


def _entry(parts: AdminParts, job_id: str, run: Run, key: str) -> dict[str, Any]:
    name = run.output_keys[key]
    place = "/".join(quote(part, safe="") for part in (job_id, "reports", run.task_name, run.party.label, key))
    return {
        "task": run.task_name,
        "party": run.party.label,
        "key": key,
        "output": name,
        **run.outputs[name].as_dict(),
        "there": parts.storage.exists(run.outputs[name]),
        "url": f"/api/v1/jobs/{place}",
    }


def _read(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> dict[str, Any]:
    found, report = _found(parts, job_id, task, party, key)
    return {**found.as_dict(), **to_plain(report), "plots": list(names(report))}


def _plot(parts: AdminParts, job_id: str, task: str, party: str, key: str, series: str | None) -> bytes:
    _, report = _found(parts, job_id, task, party, key)
    return picture(report, f"{task} {party} {key}", series)


def _found(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> tuple[Output, Report]:
    found = find_output(parts, job_id, task, party, key)
    if group(found.type) != "metric":
        raise NotFound(f"output {key} of task {task} is a {found.type}, no report", reason="NO_REPORT")
    return found, read_report(parts.storage, found.address)


ALL = "/api/v1/jobs/{job_id}/metadata/{task}/{party}"
ONE = ALL + "/{key}"
Party = Annotated[str, Path(description="`host.0`, or `host` for all parties of the role", examples=["host.0"])]


def router(facts: OutputFacts, limiters: Limiters) -> APIRouter:
    """Return the paths."""
    router = APIRouter(tags=["operators"])

    async def answer(wanted: Wanted) -> Any:
        def work() -> dict[str, Any]:
            return {"outputs": [one.as_dict() for one in facts.known(wanted)]}

        try:
            return await anyio.to_thread.run_sync(work, limiter=limiters.peers)
        except GatewayError as error:
            return refusal(error)

    @router.get(ALL, summary="What a task's outputs are like, at this node or at a partner", response_model=None)
    async def of_task(job_id: str, task: str, party: Party) -> Any:
        """Columns, count and size, never a row. A partner tells of what it has granted: `data grant` there.

        ``outputs`` are those it has granted; where it has granted none it refuses (NOT_AUTHORISED).
        """
        return await answer(Wanted(job_id, task, party))

    @router.get(ONE, summary="What one output is like, at this node or at a partner", response_model=None)
    async def of_one(job_id: str, task: str, party: Party, key: str) -> Any:
        return await answer(Wanted(job_id, task, party, key))

    return router
