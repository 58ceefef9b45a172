"""``/api/v1/jobs/…/outputs``, reports and metadata: previews and downloads of the outputs here."""

import base64
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from gateway.admin.deps import Reply, api_router, content, service
from gateway.admin.responses import data as responses
from gateway.auth import Role
from gateway.data import parquet
from gateway.data.combined_storage import Storages
from gateway.data.outputs import Output, OutputCatalog, OutputQuery, outputs_of
from gateway.data.reports import read_report
from gateway.data.storage import Storage
from gateway.domain.run import Address
from gateway.errors import GatewayError, Invalid, NotFound, TooLarge, envelope
from gateway.http.streamed_bodies import Body
from gateway.store.store import Store

MOST_ROWS = 100  # rows of a preview
MOST_BYTES = 1024 * 1024  # bytes of an output that are read for a preview
_MOST_CELL = 10_000  # characters of a cell in a preview of Parquet
_MOST_JSON = 256 * 1024  # bytes; the list of outputs shows only values up to this size
# Suffixes of downloaded files by the group of the output; other groups have no suffix.
_SUFFIXES = {"data": ".csv", "metric": ".json"}
_JOB = "/jobs/{job_id}"
_OUTPUT = "{task}/{party}/{key}"
Range = Annotated[
    str,
    Header(alias="range", description="one range of bytes, to continue an interrupted download"),
]
IfRange = Annotated[
    str,
    Header(
        description=(
            "the ETag that came with the part already received; if the data have changed since, "
            "everything is sent"
        )
    ),
]
WantDigest = Annotated[
    str,
    Header(
        alias="want-repr-digest",
        description=(
            "`sha-256=1`: a complete response names its sha256, even if all data must be read "
            "before to compute it"
        ),
    ),
]
# Options of a path whose response is a file.
DOWNLOAD: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": content("application/octet-stream", format="binary"),
}
_Party = Annotated[
    str, Path(description="`host.0`, or `host` for all parties of the role", examples=["host.0"])
]


def _query(
    job_id: str,
    task: str,
    party: str,
    key: str,
) -> OutputQuery:
    return OutputQuery(
        job_id=job_id,
        task=task,
        role=party,  # takes one party as well as all of a role
        key=key,
    )


# Only names an output. The handlers look the output up in their bodies, so that errors of other
# parameters are reported before an unknown output.
_Query = Annotated[OutputQuery, Depends(_query)]


class RangeNotThere(GatewayError):
    """A requested range begins after the end of the data."""

    reason = "RANGE_NOT_THERE"
    code = 416


@dataclass(frozen=True)
class OutputServices:
    """The services that the paths of outputs and reports use."""

    store: Store
    storage: Storages
    catalog: OutputCatalog  # metadata of outputs at this node and at partners
    limiter: CapacityLimiter  # threads of requests to partners


_Services = Annotated[OutputServices, Depends(service(OutputServices))]
router = api_router()


@router.get(
    f"{_JOB}/outputs",
    summary="What the runs here left in the storage",
    response_model=responses.Outputs,
    name="outputs",
)
def list_outputs(request: Request, services: _Services, job_id: str) -> Response:
    """``value``: only for readers who may read outputs."""
    local = services.store.local_jobs.get(job_id)
    inherited = [run for run in local.runs_that_count() if run.of_job]
    runs = [*inherited, *local.runs]
    outputs = [Output(local, run, key) for run in runs for key in run.data.output_keys]
    may_read = getattr(request.state, "role", "") not in (Role.VIEWER, Role.VENDOR)
    entries = [_entry(services.storage, output, may_read=may_read) for output in outputs]
    return Reply({"outputs": entries})


@router.get(
    f"{_JOB}/outputs/{_OUTPUT}",
    summary="The beginning of an output: a table's first rows, a report's value",
    response_model=responses.OutputPreview,
)
def preview_output(
    services: _Services,
    query: _Query,
    rows: Annotated[
        int,
        Query(ge=0, le=MOST_ROWS, description="rows of a table"),
    ] = 20,
) -> Response:
    """``task``: its name in the flow or its id; ``party``: such as ``guest.0``; ``left_out``:
    describes the part that is not shown.
    """
    output = _find(services, query)
    beginning = preview(
        services.storage,
        output.address,
        rows,
        is_declared_table=output.group == "data",
    )
    return Reply({**output.as_dict(), "type": output.type, **beginning})


@router.get(
    f"{_JOB}/outputs/{_OUTPUT}/download",
    summary="An output as it lies in the storage",
    **DOWNLOAD,
)
def download_output(
    services: _Services,
    query: _Query,
    range_: Range = "",
    if_range: IfRange = "",
    want: WantDigest = "",
) -> Response:
    """The bytes of all partitions, one after the other. The header line of a table comes only once,
    if the output's metadata says that it is a table.

    A complete response (200) has the sha256 in its headers if the request asks for it
    (``want-repr-digest``), a range (206) does not.
    """
    output = _find(services, query)
    name = f"{output.run.task_name}-{output.run.party.label}-{output.key}"
    name += _SUFFIXES.get(output.group, "")
    return download(
        services.storage,
        output.address,
        name,
        range_,
        if_range,
        want=want,
    )


@router.get(
    f"{_JOB}/reports",
    summary="Reports of the runs here, and warnings",
    response_model=responses.Reports,
    name="reports",
)
def list_reports(services: _Services, job_id: str) -> Response:
    """``warnings``: the missing, malformed and undeclared outputs of each run."""
    local = services.store.local_jobs.get(job_id)
    # The newest attempt comes last, so the dict keeps it.
    latest = {(run.task_name, run.party.label): run for run in local.runs}.values()
    warnings = []
    reports = []
    for run in latest:
        for text in run.warnings:
            warnings.append(
                {
                    "task": run.task_name,
                    "party": run.party.label,
                    "warning": text,
                }
            )
        for key in run.data.output_keys:
            output = Output(local, run, key)
            is_declared = bool(output.type)  # the flow names the output
            if is_declared and output.group == "metric":
                reports.append(_report_entry(services.storage, job_id, output))
    return Reply({"reports": reports, "warnings": warnings})


@router.get(
    f"{_JOB}/reports/{_OUTPUT}",
    summary="A report as numbers, and as tables for plots",
    response_model=responses.Report,
    name="report",
)
def get_report(services: _Services, query: _Query) -> Response:
    """``values``: single values by their path; ``series``: tables, each with columns and
    points.

    ``problem`` says why a report cannot be read; then both are empty.
    """
    output = _find(services, query)
    if output.group != "metric":
        task = output.run.task_name
        text = f"output {output.key} of task {task} is a {output.type}, not a report"
        raise NotFound(text, reason="NO_REPORT")
    report = read_report(services.storage, output.address)
    return Reply(
        {
            **output.as_dict(),
            "type": output.type,
            **vars(report),
        }
    )


@router.get(
    f"{_JOB}/metadata/{{task}}/{{party}}",
    summary="What a task's outputs are like, at this node or at a partner",
    response_model=responses.OutputsMetadata,
    name="of_task",
)
async def get_task_metadata(
    services: _Services,
    job_id: str,
    task: str,
    party: _Party,
) -> Response:
    """Columns, count and size, never a row. A partner answers only for datasets that it has
    granted to this node (with `data grant`), and refuses otherwise (NOT_AUTHORISED).
    """
    return await _metadata(services, OutputQuery(job_id, task, role=party))


@router.get(
    f"{_JOB}/metadata/{_OUTPUT}",
    summary="What one output is like, at this node or at a partner",
    response_model=responses.OutputsMetadata,
    name="of_one",
)
async def get_output_metadata(
    services: _Services,
    job_id: str,
    task: str,
    party: _Party,
    key: str,
) -> Response:
    return await _metadata(services, OutputQuery(job_id, task, role=party, key=key))


def _find(services: OutputServices, query: OutputQuery) -> Output:
    """Return an output in the storage. Raises `NotFound` with the unknown part of its name."""
    output = outputs_of(services.store.local_jobs.get(query.job_id), query)[0]
    if not services.storage.exists(output.address):
        text = f"output {output.key} of task {output.run.task_name} at {query.role} is not there"
        raise NotFound(f"{text}; its run is {output.run.status}", reason="OUTPUT_MISSING")
    return output


async def _metadata(services: OutputServices, query: OutputQuery) -> Response:
    """Reply with the metadata of outputs at this node or at a partner."""
    outputs = await anyio.to_thread.run_sync(
        services.catalog.for_operators, query, limiter=services.limiter
    )
    return Reply({"outputs": outputs})


def _entry(
    storage: Storage,
    output: Output,
    *,
    may_read: bool,
) -> dict[str, Any]:
    """Return an output as the list of outputs shows it.

    Its value is None unless the reader may read it (``may_read``) and it is a small JSON document.
    """
    run = output.run
    value = None
    if may_read:
        with suppress(GatewayError):  # missing, large, or not JSON
            value = showable(storage.read_json(output.address, _MOST_JSON))
    return {
        **output.as_dict(),
        "task_id": run.task_id,
        "attempt": run.attempt,
        "inherited_from": run.of_job or None,
        **_presence(storage, output),
        "value": value,
    }


def _report_entry(
    storage: Storage,
    job_id: str,
    output: Output,
) -> dict[str, Any]:
    """Return a report as the list of reports shows it."""
    names = (job_id, "reports", output.run.task_name, output.run.party.label, output.key)
    path = "/".join(quote(name, safe="") for name in names)
    return {
        **output.as_dict(),
        **_presence(storage, output),
        "url": f"/api/v1/jobs/{path}",
    }


def _presence(storage: Storage, output: Output) -> dict[str, Any]:
    """Return an output's name in the component's description, and whether it is in the storage."""
    name_in_description = output.run.data.output_keys[output.key]
    return {"output": name_in_description, "there": storage.exists(output.address)}


def preview(
    storage: Storage,
    address: Address,
    most_rows: int,
    *,
    is_declared_table: bool,
) -> dict[str, Any]:
    """Return the beginning of an output or dataset.

    ``is_declared_table``: it is a dataset, or the flow declares it as data, so that CSV is likelier
    than JSON.

    In the result, ``kind`` is table (with ``columns`` and ``rows``), json (with ``value``) or bytes
    (with neither). ``left_out`` describes the missing part, "" if there is none. Raises `NotFound`.
    """
    files = storage.partitions(address)
    size = sum(file.size for file in files)
    sizes = {"bytes": size, "partitions": len(files)}
    # Only a table registered in place is read as Parquet; other files come from containers.
    if is_declared_table and address.in_place and parquet.is_parquet(storage, address, files[0]):
        try:
            return {**sizes, **_parquet_preview(storage, address, files[0].name, most_rows)}
        except GatewayError as error:
            return {**sizes, **_bytes_preview(f"all {size} bytes: {error.message}")}
    # First the likelier of CSV and JSON, then the other one. Only a declared table may have a
    # single column: any text can be read as CSV of one column.
    for as_table in (is_declared_table, not is_declared_table):
        try:
            if not as_table:
                return {**sizes, **_json_preview(storage, address, size, len(files))}
            columns = storage.columns(address)
            if is_declared_table or len(columns) > 1:
                rows = storage.iter_rows(address)
                return {**sizes, **_table_preview(columns, rows, most_rows)}
        except (Invalid, TooLarge):
            continue
    left_out = f"all {size} bytes: neither CSV in UTF-8 nor JSON; the download has them"
    return {**sizes, **_bytes_preview(left_out)}


def _parquet_preview(
    storage: Storage,
    address: Address,
    first_file: str,
    most_rows: int,
) -> dict[str, Any]:
    with storage.open_file(address, first_file) as file:
        columns = list(parquet.schema(file, first_file).columns)
    # One row more than the preview shows whether there are further rows.
    rows = parquet.rows_of(storage, address, batch=most_rows + 1)
    short_rows = ([cell[:_MOST_CELL] for cell in row] for row in rows)
    return _table_preview(columns, short_rows, most_rows)


def _bytes_preview(left_out: str) -> dict[str, Any]:
    return {"kind": "bytes", "left_out": left_out}


def _table_preview(
    columns: list[str],
    source: Iterable[list[str]],
    most_rows: int,
) -> dict[str, Any]:
    rows: list[list[str]] = []
    left_out = ""
    size = 0
    for row in source:
        size += sum(map(len, row))
        if size > MOST_BYTES:
            left_out = f"what comes after {MOST_BYTES} bytes"
            break
        if len(rows) == most_rows:
            left_out = f"the rows after the first {most_rows}"
            break
        rows.append(row)
    return {
        "kind": "table",
        "columns": columns,
        "rows": rows,
        "left_out": left_out,
    }


def _json_preview(
    storage: Storage,
    address: Address,
    size: int,
    parts: int,
) -> dict[str, Any]:
    value = None
    left_out = ""
    if parts > 1:
        left_out = f"all but the first of {parts} parts"
    try:
        value = showable(storage.read_json(address, MOST_BYTES))
    except TooLarge:
        first_byte = next(storage.stream(address)).lstrip()[:1]
        looks_like_json = first_byte in (b"{", b"[")
        if not looks_like_json:
            raise  # `preview` then tries CSV, or shows no value
        left_out = (
            f"all: {size} bytes are more than the {MOST_BYTES} of a preview; the download has them"
        )
    return {
        "kind": "json",
        "value": value,
        "left_out": left_out,
    }


def showable(value: Any) -> Any:
    """Return a JSON value with NaN and the infinities as texts, since JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [showable(item) for item in value]
    if isinstance(value, dict):
        return {key: showable(item) for key, item in value.items()}
    return value


def attachment(name: str) -> dict[str, str]:
    """Return the headers with which a browser saves a file under a name, whatever its content."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    encoded = quote(name, safe="")
    return {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}",
        "x-content-type-options": "nosniff",
    }


def download(
    storage: Storage,
    address: Address,
    name: str,
    range_: str,
    if_range: str,
    digest: str = "",
    want: str = "",
) -> Response:
    """Return the response with the bytes of all partitions in a row, or a range of them.

    - ``name``: name of the file for the browser
    - ``range_``, ``if_range``, ``want``: the request's headers; "" for a missing one
    - ``digest``: sha256 of all bytes, hex; "" if it is not stored

    A complete response has the sha256 in its headers if it is stored, or requested by ``want``.
    Raises `NotFound`.
    """
    size, stamp = storage.stamp(address)
    etag = f'"{stamp}"'
    headers = {
        **attachment(name),
        "accept-ranges": "bytes",
        "etag": etag,
    }
    byte_range = None  # everything
    if if_range in ("", etag):
        byte_range = parse_range(range_, size)
    if byte_range is None:
        status = 200
        start = 0
        length = size
        if not digest and "sha-256" in want.lower():
            digest = storage.checksum(address)
        if digest:
            encoded = base64.b64encode(bytes.fromhex(digest)).decode()
            headers |= {"x-checksum-sha256": digest, "repr-digest": f"sha-256=:{encoded}:"}
    else:
        status = 206
        start, length = byte_range
        if length == 0:
            body = envelope(RangeNotThere(f"it has {size} bytes"))
            return Reply(body, 416, {"content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{size}"
    headers["content-length"] = str(length)
    pieces = storage.stream(address, start=start, length=length)
    return Body(pieces, status, headers)


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """Parse a ``Range`` header for data of ``size`` bytes; return its start and length.

    Returns (0, 0) for a range after the end. Returns None if the response has all data: without a
    header, and for several ranges, an invalid range or a unit other than bytes (RFC 9110, 14.2).
    """
    match = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", text.strip())
    if match is None:
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    if not first:  # the last bytes
        length = min(int(last), size)
        if length == 0:
            return (0, 0)
        return (size - length, length)
    start = int(first)
    end = size - 1
    if last:
        if int(last) < start:
            return None
        end = min(int(last), end)
    if start >= size:
        return (0, 0)
    return (start, end - start + 1)
