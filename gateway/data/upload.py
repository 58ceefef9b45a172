"""Turns an uploaded file into the partitions that components read.

Rows keep their cells to the letter; only the form is normalised: UTF-8, comma, ``\\n``, quotes where needed. Each
partition begins with the header. A row goes to ``crc32(match id) % partitions``, without a match id to
``crc32(row number) % partitions``, so the same id of two parties' equally partitioned tables has the same number.
"""

import contextvars
import csv
import fcntl
import hashlib
import json
import os
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BufferedReader, FileIO
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from pydantic import AfterValidator, BaseModel, Field

from gateway.data.file_storage import Staging
from gateway.data.storage import CHUNK, Parts
from gateway.data.table_reader import (
    BLOCK,
    ENCODINGS,
    Findings,
    IdCheck,
    Lines,
    Table,
    recognised,
    rows,
    separator_line,
)
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem, name_rule
from gateway.domain.run import Address
from gateway.errors import GatewayError, Invalid, TooLarge, shorten
from gateway.ports import Clock

MAX_PARTITIONS = 1024
MOST_COLUMNS = 100_000
LARGEST_NAMESPACE = 128
"""bytes; names may have what a file name may have"""
SID = "sid"
"""name of the column that ``extend_sid`` adds"""
_SEVERAL_ROWS = "; if an id may have several rows, set extend_sid: true (--extend-sid): each row then gets a sid"


def follows(rule: Callable[[Any], str | None]) -> AfterValidator:
    """Return what checks a field of a request by one of the rules below."""

    def check(value: Any) -> Any:
        if broken := rule(value):
            raise ValueError(broken)
        return value

    return AfterValidator(check)


def namespace_rule(text: str) -> str | None:
    """Return the rule that a dataset's namespace breaks, None where it is fine."""
    return dataset_rule(text) or name_rule(text, LARGEST_NAMESPACE)


def dataset_rule(text: str) -> str | None:
    """Return the rule that the name of a new dataset breaks, None where it is fine."""
    if "#" in text:
        return "must not hold #, which separates namespace and name in a dataset id"
    return name_rule(text)


def delimiter_rule(text: str) -> str | None:
    """Return the rule that a delimiter breaks, None where it is fine; empty stands for what is recognised."""
    if not text:
        return None
    if len(text) != 1:
        return "must be one character"
    if text in '"\r\n\0\ufeff' or "\ud800" <= text <= "\udfff":
        return "must not be a quote, a line end or a character that no text holds"
    return None


def encoding_rule(text: str) -> str | None:
    """Return the rule that the name of an encoding breaks, None where it is fine."""
    return (
        None if not text or text.lower() in ENCODINGS else f"must be one of {', '.join(ENCODINGS)}"
    )


def meta_rule(meta: Mapping[str, Any]) -> str | None:
    """Return the rule that free metadata breaks, None where it can be kept as JSON."""
    try:
        size = len(json.dumps(meta, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return "must not hold broken Unicode"
    except (ValueError, TypeError, RecursionError):
        return "must be a JSON object without NaN, not nested too deeply"
    return None if size <= 65536 else "must not be longer than 65536 bytes as JSON"


def text_rule(text: str) -> str | None:
    """Return the rule that free text breaks, None where it can be kept."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "must not hold broken Unicode"
    return None if len(text) <= 65536 else "must not be longer than 65536 characters"


NAMED = ("label_name", "match_id_name")
READ_AS = ("delimiter", "encoding")


def with_names(
    meta: Mapping[str, Any],
    label_name: str,
    match_id_name: str,
) -> dict[str, Any]:
    """Return the metadata of a table with the names of its columns that mean something; empty: none does."""
    named = zip(NAMED, (label_name, match_id_name), strict=True)
    return {**meta, **{key: name for key, name in named if name}}


@dataclass(frozen=True)
class Upload:
    """A table to be stored."""

    address: Address
    head: bool = True
    """the first line names the columns; without it they are called x0, x1, …"""
    partitions: int = 1
    extend_sid: bool = False
    delimiter: str = ""
    """empty: what the first line shows"""
    encoding: str = ""
    """empty: what the beginning of the file shows"""
    label_name: str = ""
    match_id_name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """further keys of ``meta``, kept as they are"""
    description: str = ""
    overwrite: bool = False
    storage: str = ""
    """the name of one of the node's storages; empty: the first"""

    @property
    def meta(self) -> dict[str, Any]:
        """Return the metadata as it was asked for."""
        return with_names(self.extra, self.label_name, self.match_id_name)


class Edit(BaseModel):
    """A change of a table's meta."""

    description: str | None = Field(default=None, description="Free text.")
    label_name: str | None = Field(
        default=None, description="Column that holds the label; empty: none."
    )
    match_id_name: str | None = Field(
        default=None,
        description="Column that holds the ids; empty: none. Stays where the table is divided by it.",
    )
    meta: dict[str, Any] | None = Field(
        default=None, description="Free keys to set; null deletes one."
    )

    def of(self, dataset: Dataset) -> Dataset:
        """Return a dataset as it is after the change. Raises `Invalid` with every problem."""
        given = {key: getattr(self, key) for key in NAMED}
        named = {
            key: dataset.meta.get(key, "") if name is None else name for key, name in given.items()
        }
        free = {**free_meta(dataset), **(self.meta or {})}
        free = {key: value for key, value in free.items() if value is not None}
        description = dataset.description if self.description is None else self.description
        checks = [
            ("description", text_rule(description), description),
            ("meta", meta_rule(free), free),
        ]
        for key, value in (self.meta or {}).items():
            if key in (*NAMED, *READ_AS):
                rule = "must stay" if key in READ_AS else f"must be given as {key}, not in meta"
                checks.append((f"meta.{key}", rule, value))
        columns = [name for name in dataset.columns if name != dataset.sid]
        for key, name in given.items():
            if name and name not in columns:
                rule = (
                    f"must name a column of the table; they are {shorten(', '.join(columns), 1000)}"
                )
                checks.append((key, rule, name))
        if named["label_name"] and named["label_name"] == named["match_id_name"]:
            checks.append(
                ("label_name", "must not be the column of match_id_name", named["label_name"])
            )
        match_id = named["match_id_name"]
        if (
            match_id
            and match_id != dataset.meta.get("match_id_name")
            and dataset.partitions > 1
            and not dataset.in_place
        ):
            rule = f"must stay: the {dataset.partitions} partitions are divided by it; upload the table again"
            checks.append(("match_id_name", rule, match_id))
        if wrong := [Problem(path, rule, got) for path, rule, got in checks if rule]:
            raise Invalid(wrong)
        kept = {key: dataset.meta[key] for key in READ_AS if key in dataset.meta}
        types = dict(zip(dataset.columns, dataset.types, strict=True)) | (
            {match_id: "string"} if match_id else {}
        )
        return replace(
            dataset,
            description=description,
            meta={
                **free,
                **kept,
                **{key: name for key, name in named.items() if name},
            },
            types=tuple(types.values()),
        )


def free_meta(dataset: Dataset) -> dict[str, Any]:
    """Return the keys of a table's meta that mean nothing here."""
    return {key: value for key, value in dataset.meta.items() if key not in (*NAMED, *READ_AS)}


def write_table(
    file: "BufferedReader[Any]",
    upload: Upload,
    parts: Parts,
    scratch: Path,
    origin: str,
    clock: Clock,
) -> Dataset:
    """Write the partitions; return what was found. Raises `Invalid`.

    The file is read once, in blocks of its buffer. A block that is plain, as nearly all are, is stored as it is.
    Generated sids are ``<sid>-<row number>``; the first half follows from the dataset's id and the first block.
    """
    findings, sums = Findings(), Sums()
    first_block = hashlib.sha256(file.peek()[:BLOCK]).hexdigest()
    sid = hashlib.sha256(f"{upload.address.dataset_id}\n{first_block}".encode()).hexdigest()[:16]
    form = recognised(file, ENCODINGS.get(upload.encoding.lower(), ""), upload.delimiter)
    lines = Lines(file, form.encoding, findings, keep=True)
    warnings = []
    if named := separator_line(file, form.encoding):
        next(iter(lines))
        warnings.append(f"line 1, sep={named}, names the delimiter for Excel: it is not stored")
    source = rows(lines, form.delimiter, findings)
    first = next(source, None)
    if first is None:
        if not findings:
            findings.add("empty", "file", "must not be empty")
        raise findings.error()
    if upload.head:
        columns = first[1]
    else:
        columns = [f"x{i}" for i in range(len(first[1]))]
        source = chain([first], source)
    check_header(columns, upload.meta, findings, sid=upload.extend_sid)
    table = Table(columns, form, upload.match_id_name, findings)
    ids = IdCheck(scratch, _SEVERAL_ROWS)
    divided = upload.partitions > 1 or upload.extend_sid
    out = Partitions(parts, upload.partitions, [SID, *columns] if upload.extend_sid else columns)
    sums.see(lines.taken(), out.header)

    count = 0
    for block in table.blocks(file, lines, source):
        cut = divided and block.plain
        stored = block.plain.split(b"\n")[:-1] if cut else list(map(out.stored, block.rows))
        following = range(count + 1, count + 1 + len(stored))
        if table.id_at is not None:
            if block.rows:
                ids.refuse_blank(block.keys, block.lines, findings)
            if upload.extend_sid:  # the sid tells rows apart, so an id may repeat
                crcs = list(map(zlib.crc32, block.keys))
            else:
                crcs = ids.see(block.keys, block.lines)
        else:
            crcs = (
                [zlib.crc32(str(number).encode()) for number in following]
                if upload.partitions > 1
                else []
            )
        if not findings:
            if upload.extend_sid:
                stored = [
                    f"{sid}-{number},".encode() + row
                    for number, row in zip(following, stored, strict=True)
                ]
            if divided:
                written = out.add(crcs, stored)
            else:
                written = block.plain or b"\n".join([*stored, b""])
                parts.add(0, written)
            sums.see(block.sent, written)
        count += block.seen
    if count == 0:
        findings.add("empty", "file", "must have at least one row after the header")
    ids.finish(findings)
    if findings:
        raise findings.error()
    kinds = table.kinds
    if table.id_at is not None:
        kinds[table.id_at] = "string"  # an id is a name: as a number 007 would lose its zeros
    warnings += table.warnings.texts(table.kinds, has_header=upload.head)
    if upload.extend_sid:
        columns, kinds = [SID, *columns], ["string", *kinds]
    return Dataset(
        namespace=upload.address.namespace,
        name=upload.address.name,
        columns=tuple(columns),
        types=tuple(kind or "string" for kind in kinds),
        count=count,
        partitions=upload.partitions,
        meta={**upload.meta, **form._asdict()},
        checksum=sums.sent.hexdigest(),
        stored=sums.stored.hexdigest() if upload.partitions == 1 else "",
        size=lines.bytes,
        created_at=clock(),
        origin=origin.encode(errors="replace").decode(),
        sid=SID if upload.extend_sid else "",
        description=upload.description,
        warnings=tuple(warnings),
    )


def check_header(
    columns: Sequence[str],
    meta: Mapping[str, Any],
    findings: Findings,
    *,
    sid: bool = False,
) -> None:
    """Find what is wrong with the names of the columns, and names in ``meta`` that are not among them."""
    if len(columns) > MOST_COLUMNS:
        findings.add("header", "file:1", f"must have at most {MOST_COLUMNS} columns", len(columns))
        raise findings.error()
    seen: set[str] = set()
    for at, name in enumerate(columns, 1):
        if not name.strip() or not name.isprintable():
            findings.add("header", "file:1", f"column {at} must have a printable name", name)
        elif name in seen:
            findings.add(
                "header", "file:1", f"column {at} must not have the name of another column", name
            )
        seen.add(name)
    shown = shorten(", ".join(columns), 1000)
    for key in NAMED:
        if (named := meta.get(key)) and named not in seen:
            findings.add(
                "meta",
                f"meta.{key}",
                f"must name a column of the file; its columns are {shown}",
                named,
            )
    if "label_name" in meta and meta["label_name"] == meta.get("match_id_name"):
        findings.add(
            "meta", "meta.label_name", "must not be the column of match_id_name", meta["label_name"]
        )
    if sid and SID in seen:
        findings.add(
            "meta", "extend_sid", f"must be false for a file that has a column {SID} already", True
        )


class Partitions:
    """The files ``data_0`` … of one table, each with the header."""

    def __init__(
        self,
        parts: Parts,
        count: int,
        header: Sequence[str],
    ) -> None:
        self._parts = parts
        self._count = count
        self._plain = csv.writer(_Returned(), lineterminator="\n")
        self._quoted = csv.writer(_Returned(), lineterminator="\n", quoting=csv.QUOTE_ALL)
        self.header = self.stored(header) + b"\n"
        for number in range(count):
            parts.add(number, self.header)

    def add(self, crcs: Iterable[int], stored: Sequence[bytes]) -> bytes:
        """Append rows, each to the partition that follows from a checksum; return what one partition got."""
        divided: defaultdict[int, list[bytes]] = defaultdict(list)
        if self._count == 1:
            divided[0] = [*stored]
        else:
            for crc, row in zip(crcs, stored, strict=True):
                divided[crc % self._count].append(row)
        data = b""
        for number, some in divided.items():
            data = b"\n".join([*some, b""])
            self._parts.add(number, data)
        return data

    def stored(self, row: Sequence[str]) -> bytes:
        """Return a row as it is stored, without its line end."""
        text: str = self._plain.writerow(row)
        if "\r" in text:  # the library does not see that this needs quotes
            text = self._quoted.writerow(row)
        return text[:-1].encode()


class Sums:
    """The sha256 of a file and of the table that it becomes, computed once while these do not differ."""

    def __init__(self) -> None:
        self.sent = self.stored = hashlib.sha256()

    def see(self, sent: bytes, stored: bytes) -> None:
        """Take in what was sent next, and what became of it."""
        if self.stored is self.sent and sent != stored:
            self.stored = self.sent.copy()
        self.sent.update(sent)
        if self.stored is not self.sent:
            self.stored.update(stored)


class _Returned:
    """A file whose `write` returns the text, which makes `csv.writer.writerow` return it."""

    def write(self, text: str) -> str:
        return text


class Following(Protocol):
    """The rest of a file that is being received, where it is read past its reception."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Wait for more, 0: it is at its end. Raises `GatewayError`."""

    def stop(self) -> None:
        """End the wait."""

    def close(self) -> None:
        """Give back what it reads from."""


class Source(FileIO):
    """The bytes of an upload, counted. Raises `GatewayError` where they break off, `TooLarge`."""

    size = 0

    def __init__(
        self,
        file: int | Path,
        most: int | None = None,
        more: Callable[[], Following | None] = lambda: None,
        whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """``more`` waits for what follows the file, None: nothing; then ``whole`` says whether it is all."""
        super().__init__(file)
        self._most = most
        self._more = more
        self._whole = whole
        self._read: Callable[[memoryview], int] | None = super().readinto

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer unless the end comes first."""
        view, filled = memoryview(buffer), 0
        while filled < len(view) and self._read is not None:
            count = self._read(view[filled:])
            filled += count
            if not count:
                self._go_on()
        self.size += filled
        if self._most is not None and self.size > self._most:
            raise too_large(self._most)
        if filled < len(view) and not self._whole():
            raise GatewayError("the upload was broken off", reason="BROKEN_OFF")
        return filled

    def _go_on(self) -> None:
        following = self._more()
        self._read = following.readinto if following is not None else None

    def skip(self) -> None:
        """Read what follows the file to its end: its sender reads no answer before."""
        room = memoryview(bytearray(CHUNK))
        with suppress(GatewayError):
            if self.closed and self._read == super().readinto:
                self._go_on()
            while self._read is not None:
                if not self._read(room):
                    self._go_on()


class Reception:
    """A file being received. Closing it deletes what was received and not stored."""

    def __init__(self, staging: Staging, max_bytes: int | None = None) -> None:
        self.staging = staging
        self._path = staging.folder / "upload"
        self._file = FileIO(self._path, "wb")
        self._max = max_bytes
        self._size = 0
        self._whole = False
        self._more: SimpleQueue[Following | None] = SimpleQueue()
        self._following: Following | None = None
        self._storing: threading.Thread | None = None
        self._stored: Future[Dataset] = Future()

    def begin(self, store: Callable[[Source], Dataset]) -> None:
        """Store what is written from now on while it comes, in a thread of its own."""
        out, into = os.pipe()
        with suppress(OSError):  # where a user's pipes have no more room
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, CHUNK)
        self._file.close()
        self._file = FileIO(into, "wb")
        sent = Source(out, self._max, self._more.get, lambda: self._whole)

        def work() -> None:
            try:
                with sent:  # once it is closed, what is written goes nowhere
                    stored = store(sent)
                self._stored.set_result(stored)
            except BaseException as error:  # whoever waits for the end gets it
                self._stored.set_exception(error)
            sent.skip()

        self._storing = threading.Thread(
            target=contextvars.copy_context().run,
            args=(work,),
            daemon=True,
        )
        self._storing.start()

    def write(self, data: bytes) -> None:
        """Take more bytes. Raises `TooLarge`, and `GatewayError` (STORAGE_FAILED) when the disk is full."""
        self._size += len(data)
        if self._max is not None and self._size > self._max:
            raise too_large(self._max)
        view = memoryview(data)
        with storage_errors(), suppress(BrokenPipeError):
            while view:
                view = view[self._file.write(view) :]

    def follow(self, rest: Following) -> None:
        """Have what is stored while it comes go on with what ``rest`` reads."""
        self._following = rest
        self._more.put(rest)
        self._file.close()

    def finish(self) -> Dataset:
        """Return what was stored of a file that has come to its end. Raises what storing it raised."""
        self._whole = True
        self._end()
        return self._stored.result()

    def _end(self) -> None:
        self._more.put(None)
        with suppress(OSError):
            self._file.close()

    def opened(self) -> Source:
        """Return what was received, for reading. Raises `GatewayError` (STORAGE_FAILED)."""
        with storage_errors():
            self._file.close()
            return Source(self._path)

    def close(self) -> None:
        """Delete what was received; after it was stored there is nothing left to delete."""
        self._end()
        if self._following is not None:
            self._following.stop()
        if self._storing is not None:
            self._storing.join()
        if self._following is not None:
            self._following.close()
        self.staging.close()


def too_large(most: int) -> TooLarge:
    """Return the refusal of a file."""
    return TooLarge(f"the file is larger than {most} bytes, the setting data.max_upload_bytes")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Name what the disk refuses. Raises `GatewayError` (STORAGE_FAILED)."""
    try:
        yield
    except OSError as error:
        text = f"the storage cannot be used: {error.strerror or error}"
        raise GatewayError(text, reason="STORAGE_FAILED") from error
