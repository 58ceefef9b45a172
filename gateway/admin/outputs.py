"""``/api/v1/jobs/…/outputs``, reports and metadata: what runs left here. Previews and downloads."""

import base64
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from gateway.admin.deps import Paths, Reply, content, shape
from gateway.auth import Role
from gateway.data import parquet
from gateway.data.outputs import Output, OutputCatalog, OutputMetadata, Wanted, outputs_of
from gateway.data.plots import names, picture
from gateway.data.reports import Series, read_report
from gateway.data.storage import Storage
from gateway.domain.run import Address
from gateway.errors import GatewayError, Invalid, NotFound, TooLarge, envelope
from gateway.http.streamed_bodies import Body
from gateway.ports import Limiters
from gateway.store.store import Store

MOST_ROWS = 100
MOST_BYTES = 1024 * 1024
"""how much of an output is read for a preview"""
_MOST_CELL = 10_000
"""characters of a cell of Parquet"""
Range = Annotated[
    str, Header(alias="range", description="one range of bytes, to go on where it stopped")
]
IfRange = Annotated[
    str, Header(description="the ETag of the beginning: if it changed, all of it comes")
]
WantDigest = Annotated[
    str,
    Header(
        alias="want-repr-digest",
        description="`sha-256=1`: the response names its sha256 even where all has to be read for it before.",
    ),
]
DOWNLOAD: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": content("application/octet-stream", format="binary"),
}
"""how a path that sends bytes is declared"""


def preview(
    storage: Storage,
    address: Address,
    most: int,
    *,
    table: bool,
) -> dict[str, Any]:
    """Return the beginning of an output. ``table``: the flow calls it data, so it is CSV rather than JSON.

    ``kind`` is table (with ``columns`` and ``rows``), json (with ``value``), or bytes: neither of them.
    ``left_out`` describes what is not shown, empty when everything is. Raises `NotFound`.
    """
    files = storage.partitions(address)
    size = sum(part.size for part in files)
    about = {"bytes": size, "partitions": len(files)}
    if (
        table and address.in_place and parquet.is_parquet(storage, address, files[0])
    ):  # others are a container's
        try:
            with storage.open_file(address, files[0].name) as file:
                columns = list(parquet.schema(file, files[0].name).columns)
            rows = parquet.rows_of(storage, address, batch=most + 1)
            return {
                **about,
                **_table(columns, ([cell[:_MOST_CELL] for cell in row] for row in rows), most),
            }
        except GatewayError as error:
            return {
                **about,
                "kind": "bytes",
                "left_out": f"all {size} bytes: {error.message}",
            }
    for as_table in (table, not table):
        try:
            if not as_table:
                return {**about, **_json(storage, address, size, len(files))}
            columns = storage.columns(address)
            if table or len(columns) > 1:
                return {**about, **_table(columns, storage.iter_rows(address), most)}
        except (Invalid, TooLarge):
            continue
    left_out = f"all {size} bytes: neither CSV in UTF-8 nor JSON; the download has them"
    return {
        **about,
        "kind": "bytes",
        "left_out": left_out,
    }


def _table(
    columns: list[str],
    source: Iterable[list[str]],
    most: int,
) -> dict[str, Any]:
    rows, left_out, room = list[list[str]](), "", MOST_BYTES
    for row in source:
        room -= sum(map(len, row))
        if len(rows) == most or room < 0:
            left_out = (
                f"the rows after the first {most}"
                if room >= 0
                else f"what comes after {MOST_BYTES} bytes"
            )
            break
        rows.append(row)
    return {
        "kind": "table",
        "columns": columns,
        "rows": rows,
        "left_out": left_out,
    }


def _json(
    storage: Storage,
    address: Address,
    size: int,
    parts: int,
) -> dict[str, Any]:
    value, left_out = None, f"all but the first of {parts} parts" if parts > 1 else ""
    try:
        value = showable(storage.read_json(address, MOST_BYTES))
    except TooLarge:
        if next(storage.stream(address)).lstrip()[:1] not in (b"{", b"["):
            raise
        left_out = (
            f"all: {size} bytes are more than the {MOST_BYTES} of a preview; the download has them"
        )
    return {
        "kind": "json",
        "value": value,
        "left_out": left_out,
    }


def showable(value: Any) -> Any:
    """Return a JSON value that every reader takes: NaN and the infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return list(map(showable, value))
    return (
        {key: showable(inner) for key, inner in value.items()} if isinstance(value, dict) else value
    )


class RangeNotThere(GatewayError):
    """A range begins behind the end."""

    reason = "RANGE_NOT_THERE"
    code = 416


def attachment(name: str) -> dict[str, str]:
    """Return the headers of a file that a browser saves under a name, whatever is in it."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
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
    """Return the bytes of all parts, one after the other, or the range of them that a request asks for.

    The whole comes with its sha256 where that is known (``digest``) or asked for (``want``). Raises `NotFound`.
    """
    size, stamp = storage.stamp(address)
    headers = {
        **attachment(name),
        "accept-ranges": "bytes",
        "etag": f'"{stamp}"',
    }
    wanted = one_range(range_, size) if if_range in ("", headers["etag"]) else None
    if wanted is None:
        start, length, status = 0, size, 200
        if not digest and "sha-256" in want.lower():
            digest = storage.checksum(address)
        if digest:
            encoded = base64.b64encode(bytes.fromhex(digest)).decode()
            headers |= {"x-checksum-sha256": digest, "repr-digest": f"sha-256=:{encoded}:"}
    else:
        start, length = wanted
        status = 206
        if not length:
            refused = envelope(RangeNotThere(f"it has {size} bytes"))
            return Reply(refused, 416, {"content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{size}"
    headers["content-length"] = str(length)
    pieces = storage.stream(address, start=start, length=length)
    return Body(pieces, status, headers)


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


_MOST_JSON = 256 * 1024
"""bytes of a report that a list shows"""
_JOB = "/jobs/{job_id}"
_ONE = "{task}/{party}/{key}"
_PICTURE = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}
"""what is in a report is a vendor's: a browser that opens the picture runs and loads nothing"""
_LOCATION: dict[str, Any] = dict.fromkeys(("task", "party", "key", "namespace", "name"), str)
_THERE = Annotated[bool, Field(description="it is in this node's storage")]
_OUTPUT = shape(
    "Output",
    **_LOCATION,
    task_id=str,
    attempt=int,
    inherited_from=str | None,
    output=str,
    there=_THERE,
    value=Annotated[Any, Field(description="content of a small report")],
)
_PREVIEW = shape(
    "OutputPreview",
    **_LOCATION,
    type=str,
    kind=str,
    bytes=int,
    partitions=int,
    columns=(list[str], []),
)
_REPORT_LINE = shape(
    "ReportLine",
    **_LOCATION,
    output=str,
    there=_THERE,
    url=str,
)
_WARNING = shape(
    "RunWarning",
    task=str,
    party=str,
    warning=str,
)
_REPORTS = shape("Reports", reports=[_REPORT_LINE], warnings=[_WARNING])
_REPORT = shape(
    "Report",
    **_LOCATION,
    format=str,
    values=dict[str, Any],
    series=[Series],
    problem=str,
    plots=Annotated[
        list[str], Field(description="what can be drawn: names of tables, and `values`")
    ],
)
_METADATA = shape("OutputsMetadata", outputs=[OutputMetadata])
_Party = Annotated[
    str, Path(description="`host.0`, or `host` for all parties of the role", examples=["host.0"])
]
_Plot = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="one of the report's `plots`; default: the first of them",
        examples=["loss"],
    ),
]


def _wanted(
    job_id: str,
    task: str,
    party: str,
    key: str,
) -> Wanted:
    return Wanted(job_id, task, party, key)


_Wanted = Annotated[Wanted, Depends(_wanted)]
"""looked up by the path itself, so that wrong parameters are named first"""


def router(
    store: Store,
    storage: Storage,
    catalog: OutputCatalog,
    limiters: Limiters,
) -> APIRouter:
    """Return the paths of the outputs and reports at this node, and of metadata, also of other nodes' outputs."""
    paths = Paths()

    def find_report(wanted: Wanted) -> Output:
        found = _find(store, storage, wanted)
        if found.group != "metric":
            text = (
                f"output {found.key} of task {found.run.task_name} is a {found.type}, not a report"
            )
            raise NotFound(text, reason="NO_REPORT")
        return found

    @paths(
        "GET",
        f"{_JOB}/outputs",
        "What the runs here left in the storage",
        shape("Outputs", outputs=[_OUTPUT]),
    )
    def outputs(request: Request, job_id: str) -> Response:
        """``value``: for those only who may read outputs."""
        local = store.local_jobs.get(job_id)
        runs = [*(run for run in local.standing() if run.of_job), *local.runs]
        reads = getattr(request.state, "role", "") not in (Role.VIEWER, Role.VENDOR)
        found = [Output(local, run, key) for run in runs for key in run.output_keys]
        return Reply({"outputs": [_line(storage, one, reads=reads) for one in found]})

    @paths(
        "GET",
        f"{_JOB}/outputs/{_ONE}",
        "The beginning of an output: a table's first rows, a report's value",
        _PREVIEW,
    )
    def preview_output(
        wanted: _Wanted,
        rows: Annotated[
            int,
            Query(
                ge=0,
                le=MOST_ROWS,
                description="rows of a table",
            ),
        ] = 20,
    ) -> Response:
        """``task`` is a name in the flow or an id, ``party`` as in ``guest.0``; ``left_out``: what is not here."""
        found = _find(store, storage, wanted)
        seen = preview(storage, found.address, rows, table=found.group == "data")
        return Reply(
            {
                **found.as_dict(),
                "type": found.type,
                **seen,
            }
        )

    @paths(
        "GET", f"{_JOB}/outputs/{_ONE}/download", "An output as it lies in the storage", **DOWNLOAD
    )
    def download_output(
        wanted: _Wanted,
        range_: Range = "",
        if_range: IfRange = "",
        want: WantDigest = "",
    ) -> Response:
        """The bytes of all parts, one after the other; a table whose metadata says that it is one has one header.

        The whole comes with its sha256 where the request asks for it.
        """
        found = _find(store, storage, wanted)
        name = f"{found.run.task_name}-{found.run.party.label}-{found.key}"
        name += {"data": ".csv", "metric": ".json"}.get(found.group, "")
        return download(storage, found.address, name, range_, if_range, want=want)

    @paths("GET", f"{_JOB}/reports", "Reports of the runs here, and warnings", _REPORTS)
    def reports(job_id: str) -> Response:
        """``warnings``: outputs that were not written, are malformed, or that nobody declared, per run."""
        local = store.local_jobs.get(job_id)
        latest = {(run.task_name, run.party.label): run for run in local.runs}.values()
        found = [Output(local, run, key) for run in latest for key in run.output_keys]
        warnings = [
            {
                "task": run.task_name,
                "party": run.party.label,
                "warning": text,
            }
            for run in latest
            for text in run.warnings
        ]
        lines = [
            _report_line(storage, job_id, one)
            for one in found
            if one.type and one.group == "metric"
        ]
        return Reply({"reports": lines, "warnings": warnings})

    @paths("GET", f"{_JOB}/reports/{_ONE}", "A report as numbers, and as tables for plots", _REPORT)
    def report(wanted: _Wanted) -> Response:
        """``values``: single values by their path; ``series``: tables, each with columns and points.

        ``problem`` says why a report cannot be read; then both are empty. ``plots``: what of it `/plot` draws.
        """
        found = find_report(wanted)
        content = read_report(storage, found.address)
        return Reply(
            {
                **found.as_dict(),
                "type": found.type,
                **vars(content),
                "plots": list(names(content)),
            }
        )

    @paths(
        "GET",
        f"{_JOB}/reports/{_ONE}/plot",
        "A report as a picture (SVG)",
        response_class=Response,
        responses=content("image/svg+xml"),
    )
    def plot(wanted: _Wanted, series: _Plot = None) -> Response:
        """A table with a sorted first column as lines over it, any other as bars; single values as bars."""
        found = find_report(wanted)
        title = f"{found.run.task_name} {found.run.party.label} {found.key}"
        image = picture(read_report(storage, found.address), title, series)
        return Response(image, media_type="image/svg+xml", headers=_PICTURE)

    async def known(wanted: Wanted) -> Response:
        found = await anyio.to_thread.run_sync(
            catalog.for_operators, wanted, limiter=limiters.peers
        )
        return Reply({"outputs": found})

    @paths(
        "GET",
        f"{_JOB}/metadata/{{task}}/{{party}}",
        "What a task's outputs are like, at this node or at a partner",
        _METADATA,
    )
    async def of_task(
        job_id: str,
        task: str,
        party: _Party,
    ) -> Response:
        """Columns, count and size, never a row, of what a partner has granted: `data grant` there.

        Where it has granted nothing it refuses (NOT_AUTHORISED).
        """
        return await known(Wanted(job_id, task, party))

    @paths(
        "GET",
        f"{_JOB}/metadata/{_ONE}",
        "What one output is like, at this node or at a partner",
        _METADATA,
    )
    async def of_one(
        job_id: str,
        task: str,
        party: _Party,
        key: str,
    ) -> Response:
        return await known(Wanted(job_id, task, party, key))

    return paths.router


def _line(
    storage: Storage,
    found: Output,
    *,
    reads: bool,
) -> dict[str, Any]:
    run = found.run
    try:
        value = showable(storage.read_json(found.address, _MOST_JSON)) if reads else None
    except GatewayError:  # it is missing, large, or not JSON
        value = None
    about = {
        "task_id": run.task_id,
        "attempt": run.attempt,
        "inherited_from": run.of_job or None,
    }
    return {
        **found.as_dict(),
        **about,
        **_there(storage, found),
        "value": value,
    }


def _report_line(
    storage: Storage,
    job_id: str,
    found: Output,
) -> dict[str, Any]:
    place = (job_id, "reports", found.run.task_name, found.run.party.label, found.key)
    url = "/api/v1/jobs/" + "/".join(quote(part, safe="") for part in place)
    return {
        **found.as_dict(),
        **_there(storage, found),
        "url": url,
    }


def _there(storage: Storage, found: Output) -> dict[str, Any]:
    return {"output": found.run.output_keys[found.key], "there": storage.exists(found.address)}


def _find(
    store: Store,
    storage: Storage,
    wanted: Wanted,
) -> Output:
    """Return an output that lies in the storage. Raises `NotFound`, saying which part of its name is unknown."""
    found = outputs_of(store.local_jobs.get(wanted.job_id), wanted)[0]
    if not storage.exists(found.address):
        text = f"output {found.key} of task {found.run.task_name} at {wanted.role} is not there"
        raise NotFound(f"{text}; its run is {found.run.status}", reason="OUTPUT_MISSING")
    return found
