"""``/api/v1/jobs/…/outputs``, reports and metadata: what this node's runs left in the storage."""

import base64
import codecs
import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from gateway.admin.deps import AdminParts, api_router
from gateway.admin.schemas import Model, Object
from gateway.data.outputs import OutputCatalog, OutputMetadata, Wanted
from gateway.data.plots import names, picture
from gateway.data.reports import Report, Series, read_report
from gateway.data.storage import FileStorage
from gateway.domain.dag import group
from gateway.domain.run import Address, LocalJob, Run
from gateway.errors import GatewayError, NotFound, envelope
from gateway.ports import Limiters
from gateway.store.serialization import to_plain
from provider_registry.model import group_of

MOST_ROWS = 100
MOST_BYTES = 1024 * 1024
"""how much of an output is read for a preview"""
_MOST_JSON = 256 * 1024
"""bytes of a report that a list shows"""
_DEEPEST = 100
_JOB = "/jobs/{job_id}"
_ONE = "{task}/{party}/{key}"
DOWNLOAD: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": {
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
}
"""how a path that sends bytes is declared"""
_PICTURE = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}
"""what is in a report is a vendor's: a browser that opens the picture runs and loads nothing"""


class Location(Model):
    """Whose output it is, and where it is stored."""

    task: str
    party: str = Field(examples=["guest.0"])
    key: str
    namespace: str
    name: str


class OutputLine(Location):
    """An output in a list."""

    task_id: str
    attempt: int
    inherited_from: str | None
    output: str
    there: bool = Field(description="it is in this node's storage")
    value: Any = Field(description="content of a small report")


class Outputs(Model):
    """What the runs of this node left of a job."""

    outputs: list[OutputLine]


class OutputsMetadata(Model):
    """Metadata of a task's outputs, at any party."""

    outputs: list[OutputMetadata]


class OutputPreview(Location):
    """The beginning of an output."""

    type: str
    kind: str = Field(description="table, json or bytes")
    bytes: int
    partitions: int
    left_out: str = Field(description="what is not shown")


class ReportLine(Location):
    """A report in a list."""

    output: str
    there: bool
    url: str


class RunWarning(Model):
    """A warning of a run that succeeded."""

    task: str
    party: str
    warning: str


class Reports(Model):
    """The reports of a job, and the warnings of its runs."""

    reports: list[ReportLine]
    warnings: list[RunWarning]


class FullReport(Location):
    """A report as values and tables."""

    format: str = Field(examples=["json"])
    values: Object
    series: list[Series]
    problem: str = Field(description="why it could not be read")
    plots: list[str] = Field(description="what can be drawn: names of tables, and `values`")


Range = Annotated[str, Header(alias="range", description="one range of bytes, to go on where it stopped")]
IfRange = Annotated[str, Header(description="the ETag of the beginning: if it changed, all of it comes")]
Party = Annotated[str, Path(description="`host.0`, or `host` for all parties of the role", examples=["host.0"])]
Named = Annotated[
    str | None,
    Query(
        max_length=1000, description="one of the report's `plots`; default: the first of them", examples=["loss"]
    ),
]


def router(parts: AdminParts) -> APIRouter:
    """Return the paths of the outputs and reports at this node."""
    router = api_router()
    storage = parts.storage

    @router.get(f"{_JOB}/outputs", summary="What the runs here left in the storage", response_model=Outputs)
    def outputs(job_id: str) -> Any:
        local = parts.store.local_jobs.get(job_id)
        inherited = [run for run in local.standing() if run.of_job]
        runs = (*inherited, *local.runs)
        return {"outputs": [_line(storage, run, key) for run in runs for key in run.output_keys]}

    @router.get(
        f"{_JOB}/outputs/{_ONE}",
        summary="The beginning of an output: a table's first rows, a report's value",
        response_model=OutputPreview,
    )
    def preview_output(
        job_id: str,
        task: str,
        party: str,
        key: str,
        rows: Annotated[int, Query(ge=0, le=MOST_ROWS, description="rows of a table")] = 20,
    ) -> Any:
        """``task`` is a name in the flow or an id, ``party`` as in ``guest.0``; ``left_out``: what is not here."""
        found = _find(parts, job_id, task, party, key)
        shown = preview(storage, found.address, rows, table=group_of(found.type) == "data")
        table = {"columns": shown.columns, "rows": shown.rows} if shown.kind == "table" else {}
        value = {"value": shown.value} if shown.kind == "json" else {}
        about = {"kind": shown.kind, "bytes": shown.size, "partitions": shown.partitions}
        return {**found.as_dict(), **about, **table, **value, "left_out": shown.left_out}

    @router.get(
        f"{_JOB}/outputs/{_ONE}/download",
        summary="An output as it lies in the storage, with its sha256",
        **DOWNLOAD,
    )
    def download_output(
        job_id: str, task: str, party: str, key: str, range_: Range = "", if_range: IfRange = ""
    ) -> Any:
        """The bytes of all parts, one after the other; each part of a table begins with its header line.

        The whole comes with its sha256, a range (206) without.
        """
        found = _find(parts, job_id, task, party, key)
        name = f"{found.run.task_name}-{party}-{key}" + (".csv" if group_of(found.type) == "data" else "")
        return download(storage, found.address, name, range_, if_range)

    @router.get(f"{_JOB}/reports", summary="Reports of the runs here, and warnings", response_model=Reports)
    def reports(job_id: str) -> Any:
        """``warnings``: outputs that were not written, are malformed, or that nobody declared, per run."""
        local = parts.store.local_jobs.get(job_id)
        latest = {(run.task_name, run.party.label): run for run in local.runs}.values()
        return {
            "reports": [
                _report_line(storage, job_id, run, key) for run in latest for key in _reports_of(local, run)
            ],
            "warnings": [
                {"task": run.task_name, "party": run.party.label, "warning": text}
                for run in latest
                for text in run.warnings
            ],
        }

    @router.get(
        f"{_JOB}/reports/{_ONE}", summary="A report as numbers, and as tables for plots", response_model=FullReport
    )
    def report(job_id: str, task: str, party: str, key: str) -> Any:
        """``values``: single values by their path; ``series``: tables, each with columns and points.

        ``problem`` says why a report cannot be read; then both are empty. ``plots``: what of it `/plot` draws.
        """
        found, content = _report(parts, job_id, task, party, key)
        return {**found.as_dict(), **to_plain(content), "plots": list(names(content))}

    @router.get(
        f"{_JOB}/reports/{_ONE}/plot",
        summary="A report as a picture (SVG)",
        response_class=Response,
        responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
    )
    def plot(job_id: str, task: str, party: str, key: str, series: Named = None) -> Any:
        """A table with a rising first column as lines over it, any other as bars; single values as bars."""
        _, content = _report(parts, job_id, task, party, key)
        image = picture(content, f"{task} {party} {key}", series)
        return Response(image, media_type="image/svg+xml", headers=_PICTURE)

    return router


def metadata_router(facts: OutputCatalog, limiters: Limiters) -> APIRouter:
    """Return the paths of metadata, which other nodes may have to be requested for."""
    router = api_router()

    async def known(wanted: Wanted) -> Any:
        return {"outputs": await anyio.to_thread.run_sync(facts.for_operators, wanted, limiter=limiters.peers)}

    @router.get(
        f"{_JOB}/metadata/{{task}}/{{party}}",
        summary="What a task's outputs are like, at this node or at a partner",
        response_model=OutputsMetadata,
    )
    async def of_task(job_id: str, task: str, party: Party) -> Any:
        """Columns, count and size, never a row, of what a partner has granted: `data grant` there.

        Where it has granted nothing it refuses (NOT_AUTHORISED).
        """
        return await known(Wanted(job_id, task, party))

    @router.get(
        f"{_JOB}/metadata/{_ONE}",
        summary="What one output is like, at this node or at a partner",
        response_model=OutputsMetadata,
    )
    async def of_one(job_id: str, task: str, party: Party, key: str) -> Any:
        return await known(Wanted(job_id, task, party, key))

    return router


@dataclass(frozen=True)
class Output:
    """An output that is in the storage."""

    run: Run
    key: str
    type: str
    """what the flow calls it: dataset, model, report"""
    address: Address

    def as_dict(self) -> dict[str, Any]:
        """Return whose it is and where it lies, for JSON."""
        return {**_location(self.run, self.key), "type": self.type}


def _location(run: Run, key: str) -> dict[str, str]:
    address = run.outputs[run.output_keys[key]]
    return {"task": run.task_name, "party": run.party.label, "key": key, **address.as_dict()}


def _line(storage: FileStorage, run: Run, key: str) -> dict[str, Any]:
    name = run.output_keys[key]
    address = run.outputs[name]
    return {
        **_location(run, key),
        "task_id": run.task_id,
        "attempt": run.attempt,
        "inherited_from": run.of_job or None,
        "output": name,
        "there": storage.exists(address),
        "value": _small_json(storage, address),
    }


def _small_json(storage: FileStorage, address: Address) -> Any:
    """Return a report's content; None for what is missing, large, or not JSON."""
    try:
        return _showable(storage.read_json(address, _MOST_JSON))
    except GatewayError:
        return None


def _find(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> Output:
    """Return an output that lies in the storage. Raises `NotFound`, saying which part of its name is unknown."""
    local: LocalJob = parts.store.local_jobs.get(job_id)
    by_id = next((run.task_name for run in local.runs if run.task_id == task), task)
    node = local.spec.dag.get(by_id)
    if node is None:
        raise NotFound(f"job {job_id} has no task {task}", reason="TASK_UNKNOWN")
    who = next((p for p in local.spec.parties if p.label == party), None)
    if who is None or who.node != local.node:
        where = f"plays at node {who.node}; its outputs are there" if who else f"is not a party of job {job_id}"
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


def _reports_of(local: LocalJob, run: Run) -> Iterator[str]:
    node = local.spec.dag.get(run.task_name)
    for output in node.outputs if node else ():
        if group(output.type) == "metric" and output.key in run.output_keys:
            yield output.key


def _report_line(storage: FileStorage, job_id: str, run: Run, key: str) -> dict[str, Any]:
    name = run.output_keys[key]
    place = "/".join(quote(part, safe="") for part in (job_id, "reports", run.task_name, run.party.label, key))
    return {
        **_location(run, key),
        "output": name,
        "there": storage.exists(run.outputs[name]),
        "url": f"/api/v1/jobs/{place}",
    }


def _report(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> tuple[Output, Report]:
    found = _find(parts, job_id, task, party, key)
    if group(found.type) != "metric":
        raise NotFound(f"output {key} of task {task} is a {found.type}, not a report", reason="NO_REPORT")
    return found, read_report(parts.storage, found.address)


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


def _showable(value: Any, depth: int = 0) -> Any:
    """Return a JSON value that every reader takes: without NaN, broken Unicode and bottomless nesting."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if not isinstance(value, (dict, list)):
        return value
    if depth == _DEEPEST:
        return "(nested more deeply than is shown)"
    if isinstance(value, list):
        return [_showable(v, depth + 1) for v in value]
    return {_showable(k): _showable(v, depth + 1) for k, v in value.items()}


def _json(heads: list[tuple[bytes, bool]], size: int, parts: int) -> Preview | None:
    """Return the value of a JSON file; only its kind where it is large. None for what is not JSON."""
    head, whole = heads[0]
    if not whole:
        text = f"all: {size} bytes are more than the {MOST_BYTES} of a preview; the download has them"
        return Preview("json", size, parts, left_out=text) if head.lstrip()[:1] in (b"{", b"[") else None
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return None
    left_out = "" if parts == 1 else f"all but the first of {parts} parts"
    return Preview("json", size, parts, value=_showable(value), left_out=left_out)


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
    """Return the first records, and whether none is missing; None for what is not CSV in UTF-8."""
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


class RangeNotThere(GatewayError):
    """A range begins behind the end."""

    reason = "RANGE_NOT_THERE"
    code = 416


def download(storage: FileStorage, address: Address, name: str, range_: str, if_range: str) -> Response:
    """Return the bytes of all parts, one after the other, or the range of them that a request asks for.

    The whole is read once before, for its checksum. Raises `NotFound`.
    """
    size, stamp = storage.stamp(address)
    etag = f'"{stamp}"'
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    headers = {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
        "accept-ranges": "bytes",
        "etag": etag,
    }
    wanted = one_range(range_, size) if if_range in ("", etag) else None
    if wanted is None:
        start, length, status = 0, size, 200
        digest = storage.checksum(address)
        encoded = base64.b64encode(bytes.fromhex(digest)).decode()
        headers |= {"x-checksum-sha256": digest, "repr-digest": f"sha-256=:{encoded}:"}
    else:
        start, length = wanted
        status = 206
        if not length:
            refused = envelope(RangeNotThere(f"it has {size} bytes"))
            return JSONResponse(refused, 416, {"content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{size}"
    headers["content-length"] = str(length)
    pieces = storage.stream(address, start=start, length=length)
    return StreamingResponse(pieces, status, headers, media_type="application/octet-stream")


def one_range(text: str, size: int) -> tuple[int, int] | None:
    """Read a ``Range`` header: (start, length), (0, 0) for one that is not there, None for what asks for all.

    Several ranges, and what is not a range of bytes, request all (RFC 9110, 14.2).
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
