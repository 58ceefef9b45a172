"""Archives that are written while they are sent, in the forms that FATE's client unpacks."""

import tarfile
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Response
from fastapi.responses import StreamingResponse

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
    return {
        "response_class": Response,
        "response_model": None,
        "responses": {200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}}}}},
    }


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
