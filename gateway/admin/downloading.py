"""Downloads of what lies in the storage: as it lies there, with its sha256, or one range of its bytes."""

import base64
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from urllib.parse import quote

import anyio.to_thread
from fastapi import Header
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gateway.data.storage import FileStorage
from gateway.domain.run import Address
from gateway.ports import Limiters

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
