"""Outputs and datasets as operators get them: their beginning, for people, and their bytes, whole or in ranges."""

import base64
import codecs
import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header
from fastapi.responses import Response, StreamingResponse

from gateway.admin.deps import Reply, content
from gateway.data import parquet
from gateway.data.storage import Storage, Stored
from gateway.domain.run import Address
from gateway.errors import GatewayError, envelope

MOST_ROWS = 100
MOST_BYTES = 1024 * 1024
"""how much of an output is read for a preview"""
_MOST_CELL = 10_000
"""characters of a cell of Parquet"""
_DEEPEST = 100
Range = Annotated[str, Header(alias="range", description="one range of bytes, to go on where it stopped")]
IfRange = Annotated[str, Header(description="the ETag of the beginning: if it changed, all of it comes")]
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


@dataclass(frozen=True)
class Preview:
    """What can be shown; ``left_out`` says in words what is not, empty when everything is."""

    kind: str
    """table, json, or bytes: neither of them"""
    bytes: int
    """of all parts together"""
    partitions: int
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    value: Any = None
    left_out: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON: columns and rows of a table only, a value of JSON only."""
        without = {"table": {"value"}, "json": {"columns", "rows"}}.get(self.kind, {"value", "columns", "rows"})
        return {name: value for name, value in vars(self).items() if name not in without}


def preview(storage: Storage, address: Address, most: int, *, table: bool) -> Preview:
    """Look at the beginning of an output. ``table``: the flow calls it data, so it is CSV rather than JSON.

    Raises `NotFound`.
    """
    files = storage.partitions(address)
    if table and parquet.is_parquet(storage, address, files[0]):
        return _parquet(storage, address, files, most)
    heads, room, parts, size = [], MOST_BYTES, len(files), sum(part.size for part in files)
    for part in files:
        with storage.open_file(address, part.name) as file:
            head = file.read(min(room, part.size))
        room -= len(head)
        heads.append((head, len(head) == part.size))
    if not table and (found := _json(heads, size)):
        return found
    if found := _table(heads, size, most, least=1 if table else 2):
        return found
    left_out = f"all {size} bytes: neither CSV in UTF-8 nor JSON; the download has them"
    return (_json(heads, size) if table else None) or Preview("bytes", size, parts, left_out=left_out)


def _parquet(storage: Storage, address: Address, files: Sequence[Stored], most: int) -> Preview:
    """Return the first rows of a table of Parquet, or why they cannot be shown."""
    size = sum(file.size for file in files)
    try:
        with storage.open_file(address, files[0].name) as file:
            columns = list(parquet.schema(file, files[0].name).columns)
        found = list(islice(parquet.rows_of(storage, address, batch=most + 1), most + 1))
    except GatewayError as error:
        return Preview("bytes", size, len(files), left_out=f"all {size} bytes: {error.message}")
    left_out = f"the rows after the first {most}" if len(found) > most else ""
    rows = [[cell[:_MOST_CELL] for cell in row] for row in found[:most]]
    return Preview("table", size, len(files), columns, rows, left_out=left_out)


def showable(value: Any, depth: int = 0) -> Any:
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
        return [showable(v, depth + 1) for v in value]
    return {showable(k): showable(v, depth + 1) for k, v in value.items()}


def _json(heads: list[tuple[bytes, bool]], size: int) -> Preview | None:
    """Return the value of a JSON file; only its kind where it is large. None for what is not JSON."""
    (head, whole), parts = heads[0], len(heads)
    if not whole:
        text = f"all: {size} bytes are more than the {MOST_BYTES} of a preview; the download has them"
        return Preview("json", size, parts, left_out=text) if head.lstrip()[:1] in (b"{", b"[") else None
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return None
    left_out = "" if parts == 1 else f"all but the first of {parts} parts"
    return Preview("json", size, parts, value=showable(value), left_out=left_out)


def _table(heads: list[tuple[bytes, bool]], size: int, most: int, least: int) -> Preview | None:
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
    return Preview("table", size, len(heads), columns, rows[:most], left_out=left_out)


def _records(head: bytes, complete: bool, most: int) -> tuple[list[list[str]] | None, bool]:
    """Return the first records, and whether none is missing; None for what is not CSV in UTF-8."""
    found: list[list[str]] = []
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=complete)
        for record in csv.reader(io.StringIO(text, newline=""), strict=True):
            if len(found) == most:
                return found, False
            if record:
                found.append(record)
    except UnicodeDecodeError:
        return None, False
    except csv.Error:
        return (None, False) if complete or not found else (found, False)
    if not complete:
        del found[-1:]  # it may have been cut
    return found, complete


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
    storage: Storage, address: Address, name: str, range_: str, if_range: str, digest: str = "", want: str = ""
) -> Response:
    """Return the bytes of all parts, one after the other, or the range of them that a request asks for.

    The whole comes with its sha256 where that is known (``digest``) or asked for (``want``). Raises `NotFound`.
    """
    size, stamp = storage.stamp(address)
    headers = {**attachment(name), "accept-ranges": "bytes", "etag": f'"{stamp}"'}
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
