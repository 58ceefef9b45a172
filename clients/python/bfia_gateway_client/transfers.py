"""Uploads, and downloads that leave either a complete file with the right checksum or nothing."""

import hashlib
import io
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from bfia_gateway_client.calls import Json
from bfia_gateway_client.errors import Damaged, Problem, invalid
from bfia_gateway_client.wire import File, Wire

UPLOAD_PATH = "/v2/component/upload/file"

# Receives the bytes moved since the last report, and the total in bytes if known.
ProgressReport = Callable[[int, int | None], None]


def no_report(length: int, total: int | None) -> None:
    """Ignore the progress of a transfer."""


async def download(
    wire: Wire,
    path: str,
    target: Path,
    report: ProgressReport = no_report,
    query: Json | None = None,
) -> int:
    """Write a response's body into a file; return its length in bytes.

    The target changes only after the download is complete and its checksum matches, if the
    node names one. Raises `Damaged` if the checksum differs, and `Invalid` if the file cannot be
    written.
    """
    # A name of its own for each download: another one to the same target may be under way.
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        size = await _download_part(wire, path, part, report, query)
        part.replace(target)
    except OSError as error:
        raise invalid(Problem(str(target), f"cannot be written: {error.strerror}")) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size


async def _download_part(
    wire: Wire,
    path: str,
    part: Path,
    report: ProgressReport,
    query: Json | None,
) -> int:
    """Write a response's body into a file and check it; return its length. Raises `Damaged`."""
    digest = hashlib.sha256()
    with part.open("xb") as file:

        def receive(chunk: bytes, total: int | None) -> None:
            file.write(chunk)
            digest.update(chunk)
            report(len(chunk), total)

        headers = await wire.fetch(path, receive, query)
        size = file.tell()
    expected = headers.get("x-checksum-sha256", "")
    actual = digest.hexdigest()
    if expected and expected != actual:
        text = f"received sha256 {actual}, the node names {expected}; nothing was kept"
        raise Damaged(text)
    return size


async def send_table(
    wire: Wire,
    file_name: str,
    table: BinaryIO,
    fields: Json,
    meta: Mapping[str, str],
) -> dict[str, Any]:
    """Send a table as a form; return the node's description of the dataset.

    ``fields``: the form's fields. ``meta``: how to read the table; empty values are left out.
    """
    present = {key: value for key, value in meta.items() if value}
    form = {**fields, "meta": json.dumps(present, ensure_ascii=False)}
    response = await wire.call(
        "POST",
        UPLOAD_PATH,
        form=form,
        file=File(file_name, table),
        timeout=None,
    )
    return dict(response["data"])


class ReportingFile:
    """A file that reports each read."""

    def __init__(self, file: BinaryIO, report: ProgressReport) -> None:
        self._file = file
        self._report = report
        self._total = file.seek(0, io.SEEK_END)
        file.seek(0)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else, such as ``seek``, to the file."""
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        """Read bytes from the file and report their number, 0 at the end of the file."""
        content = self._file.read(size)
        self._report(len(content), self._total)
        return content


@contextmanager
def open_for_upload(file: str | Path | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    """Give an open file and its name.

    Closes only a file that was given by its path. Raises `Invalid`.
    """
    if not isinstance(file, str | Path):
        path = str(getattr(file, "name", "") or "table.csv")
        yield file, Path(path).name
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise invalid(Problem(str(file), f"cannot be read: {error.strerror}")) from error
    with source:
        yield source, Path(file).name
