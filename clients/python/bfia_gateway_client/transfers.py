"""Files that are sent and received: whole or not at all, with their checksums."""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from bfia_gateway_client.errors import Damaged, Problem, invalid
from bfia_gateway_client.wire import File, Wire

Moved = Callable[[int, int | None], None]
"""gets the bytes that were moved since it was called last, and those of the whole, if known"""


def unseen(length: int, total: int | None) -> None:
    """Show nothing of a transfer."""


async def download(
    wire: Wire,
    path: str,
    target: Path,
    moved: Moved = unseen,
    query: Mapping[str, Any] | None = None,
) -> int:
    """Write a response's body into a file; return its length in bytes.

    The file appears only when it is whole and has the checksum that the node names.
    """
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    try:
        with part.open("wb") as file:

            def piece(content: bytes, total: int | None) -> None:
                file.write(content)
                digest.update(content)
                moved(len(content), total)

            headers = await wire.fetch(path, piece, query)
            size, wanted = file.tell(), headers.get("x-checksum-sha256", "")
        if wanted and wanted != digest.hexdigest():
            text = (
                f"received sha256 {digest.hexdigest()}, the node names {wanted}; nothing was kept"
            )
            raise Damaged(text)
        part.replace(target)
    except OSError as error:
        raise invalid(Problem(str(target), f"cannot be written: {error.strerror}")) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size


async def send_table(
    wire: Wire,
    sent_as: str,
    table: BinaryIO,
    fields: Mapping[str, Any],
    meta: Mapping[str, str],
) -> dict[str, Any]:
    """Send a table in pieces; return what the node stored."""
    given = json.dumps({key: value for key, value in meta.items() if value}, ensure_ascii=False)
    form = {**fields, "meta": given}
    path = "/v2/component/upload/file"
    found = await wire.call(
        "POST",
        path,
        form=form,
        file=File(sent_as, table),
        timeout=None,
    )
    return dict(found["data"])


class Watched:
    """A file that reports what is read of it."""

    def __init__(self, file: BinaryIO, moved: Moved) -> None:
        self._file, self._moved = file, moved
        self._total = file.seek(0, io.SEEK_END) - file.seek(0)

    def __getattr__(self, name: str) -> Any:
        """Be sought in, and have a length, as the file."""
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        """Return some bytes of it."""
        found = self._file.read(size)
        self._moved(len(found), self._total)
        return found


@contextmanager
def opened(file: str | Path | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    """Give an open file and its name; one that is opened here is closed afterwards. Raises `Invalid`."""
    if not isinstance(file, str | Path):
        yield file, Path(str(getattr(file, "name", "") or "table.csv")).name
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise invalid(Problem(str(file), f"cannot be read: {error.strerror}")) from error
    with source:
        yield source, Path(file).name
