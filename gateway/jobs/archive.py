"""Archives of jobs: records and files as a zip file, written piece by piece.

An archive is never in memory as a whole. Its secrets are masked: `gateway.jobs.secret_masking`.
"""

import errno
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from engines import files
from gateway.data.model_archive import Sink
from gateway.errors import GatewayError
from gateway.jobs.secret_masking import masked

SUMS = "SHA256SUMS"  # name of the last file: the digests of all others
INCOMPLETE = "INCOMPLETE"  # name of the file that lists the files that could not be read
_CHUNK = 1024 * 1024  # bytes read from a file at a time
_MAX_ENTRIES = 10_000  # most files and folders visited below one folder
# Control characters, such as line breaks, and surrogates, which cannot be encoded.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Entry:
    """A file of an archive."""

    name: str
    # Returns the pieces of the file. It is called when the file is written. An `OSError` or
    # `GatewayError` ends the file, and is noted in the archive (`INCOMPLETE`).
    content: Callable[[], Iterable[bytes]]


class _Archive:
    """A zip file under construction, with the digests of its files and the errors."""

    def __init__(self, sink: Sink, made_at: datetime) -> None:
        self._file = zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED)  # type: ignore[call-overload]
        self._time = made_at.astimezone(UTC).timetuple()[:6]
        self._names: set[str] = set()
        self._sums: list[str] = []
        self._errors: list[str] = []

    def add(self, entry: Entry) -> Iterator[None]:
        """Write a file; yields None after every piece, so that the bytes so far can be sent."""
        name = _printable_name(entry.name, self._names)
        self._names.add(name)
        digest = hashlib.sha256()
        with self._member(name) as member:
            try:
                for piece in entry.content():
                    digest.update(piece)
                    member.write(piece)
                    yield
            except (OSError, GatewayError) as error:
                self._errors.append(f"{name}: {_error_text(error)}\n")
        yield  # closing the member has written more bytes
        self._sums.append(f"{digest.hexdigest()}  {name}\n")

    def close(self) -> None:
        """Write the list of errors (if any) and the digests (if any), and finish the zip file."""
        if self._errors:
            errors = "".join(self._errors).encode()
            self._write(INCOMPLETE, errors)
            self._sums.append(f"{hashlib.sha256(errors).hexdigest()}  {INCOMPLETE}\n")
        if self._sums:
            self._write(SUMS, "".join(self._sums).encode())
        self._file.close()

    def _write(self, name: str, content: bytes) -> None:
        """Write a file with this content; the caller adds its digest to the digests."""
        with self._member(name) as member:
            member.write(content)

    @contextmanager
    def _member(self, name: str) -> Iterator[Any]:
        """Yield a file of the archive to write to, compressed and readable for everybody."""
        info = zipfile.ZipInfo(name, self._time)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o644 << 16  # the upper 16 bits are the mode of Unix
        # Zip64, as the size is not known beforehand and may exceed 4 GiB.
        with self._file.open(info, "w", force_zip64=True) as member:
            yield member


def write(
    entries: Iterable[Entry],
    made_at: datetime,
) -> Iterator[bytes]:
    """Yield the bytes of a zip file with the entries, in pieces.

    A piece may be empty. The last file in the zip file has the digests of all others.
    """
    sink = Sink()
    archive = _Archive(sink, made_at)
    for entry in entries:
        for _ in archive.add(entry):
            yield sink.take()
    archive.close()
    yield sink.take()


def as_json(value: Any) -> bytes:
    """Return a value as indented JSON in UTF-8; a value of a type unknown to JSON becomes text."""
    text = json.dumps(
        value,
        ensure_ascii=False,
        indent=1,
        default=str,
    )
    return text.encode("utf-8", "replace") + b"\n"


def of_files(
    folder: Path,
    prefix: str,
    secrets: Iterable[str],
) -> Iterator[Entry]:
    """Yield an entry for each regular file in a folder and its subfolders, with ``secrets`` masked.

    Links are not followed. ``prefix`` is the folder in the archive that receives the files. If the
    folder has more than `_MAX_ENTRIES` files and folders, the archive notes that some are missing.
    """
    encoded = [secret.encode() for secret in secrets if secret]
    paths = []
    entries = list(files.walk(folder, _MAX_ENTRIES + 1))
    for entry in entries[:_MAX_ENTRIES]:
        if entry.is_file(follow_symlinks=False):
            paths.append(Path(entry.path))
    for path in sorted(paths):
        name = "/".join((prefix, *path.relative_to(folder).parts))
        yield Entry(name, partial(_masked_file, path, encoded))
    if len(entries) > _MAX_ENTRIES:
        yield Entry(f"{prefix}/{INCOMPLETE}", _raise_too_many_files)


def _raise_too_many_files() -> Iterator[bytes]:
    """Raise the error by which an archive notes that files of a folder are missing."""
    text = f"only the first {_MAX_ENTRIES} files and folders are in the archive"
    raise OSError(errno.EFBIG, text)


def _masked_file(
    path: Path,
    secrets: Iterable[bytes],
) -> Iterator[bytes]:
    """Yield a file in pieces, with these secrets masked."""
    return masked(_pieces(path), secrets)


def _printable_name(name: str, used: Collection[str]) -> str:
    """Return an unused name that fits into a zip file and into a line of the digests."""
    plain = _UNPRINTABLE.sub("?", name)
    unique = plain
    number = 2
    while unique in used:
        unique = f"{plain} ({number})"
        number += 1
    return unique


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces.

    A container may have replaced the file since: opening fails for a link, and does not wait for
    the writer of a pipe.
    """
    handle = os.open(
        path,
        os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
    )
    with os.fdopen(handle, "rb") as file:
        piece = file.read(_CHUNK)
        while piece:
            yield piece
            piece = file.read(_CHUNK)


def _error_text(error: Exception) -> str:
    """Return the text of an error for the archive.

    It is reason and message, or for an `OSError` only the operating system's text for its number:
    its full text contains paths of this machine.
    """
    if isinstance(error, GatewayError):
        return f"{error.reason} {error.message}"
    return getattr(error, "strerror", None) or type(error).__name__
