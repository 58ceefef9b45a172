"""Writes all that this node knows of a job as one zip file, piece by piece, however large it is.

What opens something is masked: the secrets of runs wherever they stand, and values whose
name says that they are secret.
"""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from engines import files
from gateway.data.model_archive import Sink
from gateway.errors import GatewayError

SUMS = "SHA256SUMS"
MASK = "***"
_CHUNK = 1024 * 1024
_MOST = 10_000
"""files and folders of a folder that are looked at"""
_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|(access|private|api)_?key$|authori[sz]ation",
    re.I,
)

_UNSAYABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""in the name of a file: line breaks and the like, and what is not UTF-8"""


@dataclass(frozen=True)
class Entry:
    """One file of an archive."""

    name: str
    content: Callable[[], Iterable[bytes]]
    """opened when its turn comes; may raise `OSError` or `GatewayError`, then the archive says so instead"""


def write(entries: Iterable[Entry], made_at: datetime) -> Iterator[bytes]:
    """Yield the zip file of the entries, and at last the sums of all of them."""
    sink = Sink()
    when = made_at.astimezone(UTC).timetuple()[:6]
    sums: list[str] = []
    missing: list[str] = []
    names: set[str] = set()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for entry in entries:
            digest, name = hashlib.sha256(), _sayable(entry.name, names)
            with _member(archive, name, when) as member:
                try:
                    for piece in entry.content():
                        digest.update(piece)
                        member.write(piece)
                        yield sink.take()
                except (OSError, GatewayError) as error:
                    missing.append(f"{name}: {_words(error)}\n")
            yield sink.take()
            sums.append(f"{digest.hexdigest()}  {name}\n")
        if missing:
            text = "".join(missing).encode()
            sums.append(f"{hashlib.sha256(text).hexdigest()}  INCOMPLETE\n")
        for name, lines in (("INCOMPLETE", missing), (SUMS, sums)):
            if lines:
                with _member(archive, name, when) as member:
                    member.write("".join(lines).encode())
        yield sink.take()
    yield sink.take()


def as_json(value: Any) -> bytes:
    """Return a value as indented JSON; what JSON has no form for, as its text."""
    return (
        json.dumps(
            value,
            ensure_ascii=False,
            indent=1,
            default=str,
        ).encode("utf-8", "replace")
        + b"\n"
    )


def without_secrets(
    value: Any,
    secrets: Sequence[str] = (),
    hidden: bool = False,
) -> Any:
    """Return plain data with masks for what its name calls secret, and for the given texts wherever they are.

    ``hidden``: the name of the value says so, or one above it.
    """
    if isinstance(value, Mapping):
        return {
            str(k): without_secrets(
                v, secrets, (hidden and k != "origin") or bool(_SECRET.search(str(k)))
            )
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(v, secrets, hidden) for v in value]
    if (
        hidden
        and isinstance(value, (str, int, float))
        and not isinstance(value, bool)
        and value != ""
    ):
        return MASK
    if isinstance(value, str):
        for secret in filter(None, secrets):
            value = value.replace(secret, MASK)
        value = re.sub(r"([?&](?:password|token)=)[^&\s]+", rf"\1{MASK}", value)
        return re.sub(r"(://[^/@\s:]*):[^/@\s]*@", rf"\1:{MASK}@", value)
    return value


def of_files(
    folder: Path,
    prefix: str,
    secrets: Iterable[str],
) -> Iterator[Entry]:
    """Yield the regular files of a folder and below it; links are not followed."""
    known = [secret.encode() for secret in secrets if secret]
    found = (
        Path(entry.path)
        for entry in files.walk(folder, _MOST)
        if entry.is_file(follow_symlinks=False)
    )
    for path in sorted(found):
        inside = "/".join((prefix, *path.relative_to(folder).parts))
        yield Entry(inside, lambda path=path: masked(_pieces(path), known))  # type: ignore[misc]


def masked(pieces: Iterable[bytes], secrets: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bytes with every secret masked, also one that lies across two pieces."""
    known = [secret for secret in secrets if secret]
    keep = max(map(len, known), default=1) - 1
    held = b""
    for piece in pieces:
        held += piece
        for secret in known:
            held = held.replace(secret, b"*" * len(secret))
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held


def _sayable(name: str, taken: set[str]) -> str:
    """Return a name that a zip and a line of the sums can hold, another one than those before it."""
    plain = _UNSAYABLE.sub("?", name)
    numbered = (f"{plain} ({number})" for number in count(2))
    shown = next(one for one in chain((plain,), numbered) if one not in taken)
    taken.add(shown)
    return shown


@contextmanager
def _member(
    archive: zipfile.ZipFile,
    name: str,
    when: Any,
) -> Iterator[Any]:
    info = zipfile.ZipInfo(name, when)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    with archive.open(info, "w", force_zip64=True) as member:
        yield member


def _pieces(path: Path) -> Iterator[bytes]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        while piece := file.read(_CHUNK):
            yield piece


def _words(error: Exception) -> str:
    if isinstance(error, GatewayError):
        return f"{error.reason} {error.message}"
    return getattr(error, "strerror", None) or type(error).__name__
