r"""Turns an uploaded file into a table in the form that components read.

Cells keep their content exactly; the form is normalised: UTF-8, commas, ``\n``, quotes only where
needed. `gateway.data.partitions` divides the rows among the table's files.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import AfterValidator, BaseModel, Field

from gateway.data.id_check import IdCheck
from gateway.data.partitions import Partitions
from gateway.data.storage import Parts
from gateway.data.table_format import BLOCK, ENCODINGS, excel_delimiter, recognise_format
from gateway.data.table_reader import Block, Findings, Lines, Table, rows
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem, name_rule
from gateway.domain.run import Address
from gateway.errors import Invalid, shorten
from gateway.ports import Clock

MAX_PARTITIONS = 1024
MOST_COLUMNS = 100_000
LARGEST_NAMESPACE = 128  # bytes; the name of a dataset may be as long as that of a file
LARGEST_META = 65536  # bytes of free metadata as JSON
LONGEST_TEXT = 65536  # characters of free text
SID = "sid"  # name of the column that ``extend_sid`` adds
# The end of the message about a repeated id.
_SEVERAL_ROWS = (
    "each id may occur once; if an id may have several rows, set extend_sid: true (--extend-sid): "
    "each row then gets a sid"
)

NAMED = ("label_name", "match_id_name")  # keys of a table's meta that name columns
READ_AS = ("delimiter", "encoding")  # keys of a table's meta that describe the uploaded file


def follows(rule: Callable[[Any], str | None]) -> AfterValidator:
    """Return a validator for a field of a request.

    ``rule`` is one of the functions below: it returns the rule that a value breaks, or None.
    """

    def check(value: Any) -> Any:
        broken_rule = rule(value)
        if broken_rule:
            raise ValueError(broken_rule)
        return value

    return AfterValidator(check)


def namespace_rule(text: str) -> str | None:
    """Return the rule that a dataset's namespace breaks, or None.

    The rules for names apply, with a limit of `LARGEST_NAMESPACE` bytes.
    """
    return dataset_rule(text) or name_rule(text, LARGEST_NAMESPACE)


def dataset_rule(text: str) -> str | None:
    """Return the rule that the name of a new dataset breaks, or None."""
    if "#" in text:
        return "must not hold #, which separates namespace and name in a dataset id"
    return name_rule(text)


def delimiter_rule(text: str) -> str | None:
    """Return the rule that a delimiter breaks, or None.

    "" breaks none: the delimiter is then recognised in the file.
    """
    if not text:
        return None
    if len(text) != 1:
        return "must be one character"
    if text in '"\r\n\0\ufeff' or _is_surrogate(text):
        return "must not be a quote, a line end or a character that no text holds"
    return None


def _is_surrogate(character: str) -> bool:
    """Return whether a character is half of a surrogate pair.

    JSON can escape such a half, but UTF-8 cannot hold it.
    """
    return "\ud800" <= character <= "\udfff"


def encoding_rule(text: str) -> str | None:
    """Return the rule that the name of an encoding breaks, or None.

    "" breaks none: the encoding is then recognised in the file.
    """
    if not text or text.lower() in ENCODINGS:
        return None
    return f"must be one of {', '.join(ENCODINGS)}"


def meta_rule(meta: Mapping[str, Any]) -> str | None:
    """Return the rule that free metadata breaks, or None.

    It must be a JSON object of at most `LARGEST_META` bytes.
    """
    try:
        size = len(json.dumps(meta, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return "must not hold broken Unicode"
    except (ValueError, TypeError, RecursionError):
        return "must be a JSON object without NaN, not nested too deeply"
    if size > LARGEST_META:
        return "must not be longer than 65536 bytes as JSON"
    return None


def text_rule(text: str) -> str | None:
    """Return the rule that free text breaks, or None."""
    if any(_is_surrogate(character) for character in text):
        return "must not hold broken Unicode"
    if len(text) > LONGEST_TEXT:
        return "must not be longer than 65536 characters"
    return None


def with_names(
    meta: Mapping[str, Any],
    label_name: str,
    match_id_name: str,
) -> dict[str, Any]:
    """Return a copy of ``meta`` with the names of a table's label and id columns.

    A name of "" means that the table has no such column, and is not added.
    """
    merged = dict(meta)
    if label_name:
        merged["label_name"] = label_name
    if match_id_name:
        merged["match_id_name"] = match_id_name
    return merged


def free_meta(dataset: Dataset) -> dict[str, Any]:
    """Return the part of a table's meta that means nothing to the gateway."""
    reserved = (*NAMED, *READ_AS)
    return {key: value for key, value in dataset.meta.items() if key not in reserved}


# ---------------------------------------------------------------- requests


@dataclass(frozen=True)
class Upload:
    """A request to store a table."""

    address: Address
    head: bool = True  # the first line names the columns, which are else called x0, x1, …
    partitions: int = 1
    extend_sid: bool = False
    delimiter: str = ""  # empty: recognised by the first line
    encoding: str = ""  # empty: recognised by the beginning of the file
    label_name: str = ""
    match_id_name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)  # free keys of ``meta``
    description: str = ""
    overwrite: bool = False
    storage: str = ""  # name of one of the node's storages; empty: the one for uploads

    @property
    def meta(self) -> dict[str, Any]:
        """The requested metadata: free keys, and the names of label and match id."""
        return with_names(self.extra, self.label_name, self.match_id_name)


class Edit(BaseModel):
    """A change of a table's meta."""

    description: str | None = Field(
        default=None,
        description="Free text.",
    )
    label_name: str | None = Field(
        default=None, description="Column that holds the label; empty: none."
    )
    match_id_name: str | None = Field(
        default=None,
        description="Column that holds the ids; empty: none. Stays where the table is divided by "
        "it.",
    )
    meta: dict[str, Any] | None = Field(
        default=None, description="Free keys to set; null deletes one."
    )

    def apply_to(self, dataset: Dataset) -> Dataset:
        """Return the changed dataset. Raises `Invalid` with every problem."""
        description = self.description
        if description is None:
            description = dataset.description
        free = self._changed_free_meta(dataset)
        label_name = self._column_name("label_name", dataset)
        match_id_name = self._column_name("match_id_name", dataset)
        problems = [
            *_problems("description", text_rule(description), description),
            *_problems("meta", meta_rule(free), free),
            *self._reserved_keys(),
            *self._unknown_columns(dataset),
            *_column_problems(dataset, label_name, match_id_name),
        ]
        if problems:
            raise Invalid(problems)
        read_as = {key: dataset.meta[key] for key in READ_AS if key in dataset.meta}
        meta = with_names({**free, **read_as}, label_name, match_id_name)
        types = dict(zip(dataset.columns, dataset.types, strict=True))
        if match_id_name:
            types[match_id_name] = "string"
        return replace(
            dataset,
            description=description,
            meta=meta,
            types=tuple(types.values()),
        )

    def _changed_free_meta(self, dataset: Dataset) -> dict[str, Any]:
        """Return the free part of the meta after the change.

        A key that the change sets to null is deleted.
        """
        changed = {**free_meta(dataset), **(self.meta or {})}
        return {key: value for key, value in changed.items() if value is not None}

    def _column_name(self, key: str, dataset: Dataset) -> Any:
        """Return the column that the change names under a key, or else the present one.

        "" means that the table has no such column.
        """
        name = getattr(self, key)
        if name is None:
            return dataset.meta.get(key, "")
        return name

    def _reserved_keys(self) -> list[Problem]:
        """Return a problem for each key of ``meta`` that is not free."""
        changed = self.meta or {}
        read_as = dict.fromkeys(READ_AS, "must stay")
        named = {key: f"must be given as {key}, not in meta" for key in NAMED}
        rules = read_as | named
        return [
            Problem(f"meta.{key}", rules[key], value)
            for key, value in changed.items()
            if key in rules
        ]

    def _unknown_columns(self, dataset: Dataset) -> list[Problem]:
        """Return a problem for each named column that the table does not have.

        The generated sid cannot be named.
        """
        columns = [name for name in dataset.columns if name != dataset.sid]
        problems = []
        for key in NAMED:
            name = getattr(self, key)
            if name and name not in columns:
                names = shorten(", ".join(columns), 1000)
                rule = f"must name a column of the table; they are {names}"
                problems.append(Problem(key, rule, name))
        return problems


def _column_problems(
    dataset: Dataset,
    label_name: str,
    match_id_name: str,
) -> Iterator[Problem]:
    """Yield the problems that a table would have with these columns as its label and match id.

    "" means none. An uploaded table with several partitions cannot get another match id, because
    that determines the partition of each row. A table registered in place can: other programs have
    divided it.
    """
    if label_name and label_name == match_id_name:
        rule = "must not be the column of match_id_name"
        yield Problem("label_name", rule, label_name)
    is_divided = dataset.partitions > 1 and not dataset.in_place
    is_changed = match_id_name != dataset.meta.get("match_id_name")
    if match_id_name and is_changed and is_divided:
        rule = (
            f"must stay: the {dataset.partitions} partitions are divided by it; "
            "upload the table again"
        )
        yield Problem("match_id_name", rule, match_id_name)


def _problems(
    path: str,
    rule: str | None,
    got: Any,
) -> list[Problem]:
    """Return the problem of a value that breaks ``rule``; empty if it breaks none."""
    if not rule:
        return []
    return [Problem(path, rule, got)]


# ---------------------------------------------------------------- writing


def write_table(
    file: "BufferedReader[Any]",
    upload: Upload,
    parts: Parts,
    scratch: Path,
    origin: str,
    clock: Clock,
) -> Dataset:
    """Write the partitions of an upload; return the dataset. Raises `Invalid` with every problem.

    - ``scratch``: path of a temporary file for the match ids of a large table
    - ``origin``: where the uploaded file comes from, as ``file:<name>`` or ``path:<path>``

    The file is read once, block by block. Most blocks are plain, and are stored as they are.
    """
    sid_prefix = _sid_prefix(file, upload)  # before any line of the first block is read
    findings = Findings()
    encoding = ENCODINGS.get(upload.encoding.lower(), "")
    form = recognise_format(file, encoding, upload.delimiter)
    lines = Lines(
        file,
        form.encoding,
        findings,
        keep=True,  # for `take`, below
    )
    warnings = []
    delimiter = excel_delimiter(file, form.encoding)
    if delimiter:
        next(iter(lines))  # skips line 1, which names the delimiter
        warnings.append(f"line 1, sep={delimiter}, names the delimiter for Excel: it is not stored")
    source = rows(lines, form.delimiter, findings)
    columns, source = _read_header(
        source,
        findings,
        has_header=upload.head,
    )
    check_header(
        columns,
        upload.meta,
        findings,
        sid=upload.extend_sid,
    )

    table = Table(columns, form, upload.match_id_name, findings)
    out = Partitions(parts, upload.partitions, _stored_columns(columns, upload))
    writer = _TableWriter(
        upload,
        out,
        IdCheck(scratch, _SEVERAL_ROWS),
        findings,
        sid_prefix,
    )
    # The lines read so far: the line for Excel, if any, and the header or else the first row.
    writer.sums.add(lines.take(), out.header)
    for block in table.blocks(file, lines, source):
        writer.write(block, has_ids=table.id_at is not None)
    count = writer.finish()

    types = _column_types(table)
    warnings += table.warnings.texts(
        types,
        has_header=upload.head,
    )
    return Dataset(
        namespace=upload.address.namespace,
        name=upload.address.name,
        columns=tuple(_stored_columns(columns, upload)),
        types=tuple(_stored_types(types, upload)),
        count=count,
        partitions=upload.partitions,
        meta={**upload.meta, **form._asdict()},
        checksum=writer.sums.sent.hexdigest(),
        # Of several partitions, `Partitions.add` does not return all bytes that it has stored.
        stored=writer.sums.stored.hexdigest() if upload.partitions == 1 else "",
        size=lines.bytes,
        created_at=clock(),
        # Characters of a file's name that UTF-8 cannot hold become question marks.
        origin=origin.encode(errors="replace").decode(),
        sid=SID if upload.extend_sid else "",
        description=upload.description,
        warnings=tuple(warnings),
    )


def _sid_prefix(file: "BufferedReader[Any]", upload: Upload) -> str:
    """Return the beginning of all generated sids; ``-<row number>`` follows it.

    It depends on the dataset's id and on the file's first block, which stays in the buffer.
    """
    block_digest = hashlib.sha256(file.peek()[:BLOCK]).hexdigest()
    source = f"{upload.address.dataset_id}\n{block_digest}"
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _column_types(table: Table) -> list[str]:
    """Return the types of a table's columns after all rows were read.

    A column without any value is text.
    """
    types = [kind or "string" for kind in table.kinds]
    if table.id_at is not None:
        types[table.id_at] = "string"  # an id is a name: as a number 007 would lose its zeros
    return types


def _stored_columns(
    columns: Sequence[str],
    upload: Upload,
) -> Sequence[str]:
    """Return the columns of the stored table.

    A requested sid comes first.
    """
    if upload.extend_sid:
        return [SID, *columns]
    return columns


def _stored_types(
    types: Sequence[str],
    upload: Upload,
) -> Sequence[str]:
    """Return the types of the columns of `_stored_columns`.

    A sid is text.
    """
    if upload.extend_sid:
        return ["string", *types]
    return types


def _read_header(
    source: Iterator[tuple[int, list[str]]],
    findings: Findings,
    *,
    has_header: bool,
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the columns' names, and an iterator over the rows of data.

    For a file without header, names are generated. Raises `Invalid` for an empty file.
    """
    first = next(source, None)
    if first is None:
        if not findings:
            findings.add("empty", "file", "must not be empty")
        raise findings.error()
    _, cells = first
    if has_header:
        return cells, source
    return [f"x{index}" for index in range(len(cells))], chain([first], source)


def check_header(
    columns: Sequence[str],
    meta: Mapping[str, Any],
    findings: Findings,
    *,
    sid: bool = False,
) -> None:
    """Report problems of the columns' names, and of the columns that ``meta`` names.

    ``sid``: a column called `SID` will be added. Raises `Invalid` only for too many columns.
    """
    if len(columns) > MOST_COLUMNS:
        findings.add("header", "file:1", f"must have at most {MOST_COLUMNS} columns", len(columns))
        raise findings.error()
    names = _check_names(columns, findings)
    _check_named_columns(columns, meta, findings)
    if sid and SID in names:
        rule = f"must be false for a file that has a column {SID} already"
        findings.add("meta", "extend_sid", rule, True)


def _check_names(
    columns: Sequence[str],
    findings: Findings,
) -> set[str]:
    """Report blank, unprintable and repeated names of columns; return all names.

    Columns are numbered from 1.
    """
    names: set[str] = set()
    for number, name in enumerate(columns, 1):
        is_printable = name.strip() and name.isprintable()
        if not is_printable:
            findings.add("header", "file:1", f"column {number} must have a printable name", name)
        elif name in names:
            rule = f"column {number} must not have the name of another column"
            findings.add("header", "file:1", rule, name)
        names.add(name)
    return names


def _check_named_columns(
    columns: Sequence[str], meta: Mapping[str, Any], findings: Findings
) -> None:
    """Report a label or match id in ``meta`` that is not a column, or the same column for both.

    ``meta`` has the names under the keys of `NAMED`.
    """
    for key in NAMED:
        column = meta.get(key)
        if column and column not in columns:
            listed = shorten(", ".join(columns), 1000)
            rule = f"must name a column of the file; its columns are {listed}"
            findings.add("meta", f"meta.{key}", rule, column)
    if "label_name" in meta and meta["label_name"] == meta.get("match_id_name"):
        rule = "must not be the column of match_id_name"
        findings.add("meta", "meta.label_name", rule, meta["label_name"])


class _TableWriter:
    """Writes the blocks of one upload; after the first problem it only checks them.

    Its `sums` are complete after the last block.
    """

    def __init__(
        self,
        upload: Upload,
        out: Partitions,
        ids: IdCheck,
        findings: Findings,
        sid_prefix: str,
    ) -> None:
        """Begin a table.

        - ``out``: the partitions to write to
        - ``ids``: collects the match ids of all blocks
        - ``findings``: gets the problems of ids and, at the end, of an empty table
        - ``sid_prefix``: see `_sid_prefix`
        """
        self.sums = Sums()
        self._out = out
        self._ids = ids
        self._findings = findings
        self._sid_prefix = sid_prefix
        self._has_sids = upload.extend_sid
        self._is_divided = upload.partitions > 1
        self._count = 0

    def write(self, block: Block, *, has_ids: bool) -> None:
        """Check the ids of a block and write its rows.

        ``has_ids``: the table has a match id.
        """
        if self._is_divided or self._has_sids:
            self._write_rows(block, has_ids=has_ids)
        else:
            self._write_whole(block, has_ids=has_ids)
        self._count += block.row_count

    def _write_whole(self, block: Block, *, has_ids: bool) -> None:
        """Write a block to the only partition in one piece.

        A plain block is in stored form already.
        """
        if has_ids:
            self._check_ids(block)
        stored = block.plain or b"\n".join([*map(self._out.stored, block.rows), b""])
        if not self._findings:
            self._out.add_whole(stored)
            self.sums.add(block.sent, stored)

    def _write_rows(self, block: Block, *, has_ids: bool) -> None:
        """Write each row of a block to its partition, with its sid if requested.

        The match id determines the partition; in a table without a match id, the row's number does.
        """
        if block.plain:
            stored = block.plain.split(b"\n")[:-1]
        else:
            stored = list(map(self._out.stored, block.rows))
        first = self._count + 1
        numbers = range(first, first + len(stored))
        crcs: list[int] = []  # they determine the partitions; a single partition needs none
        if has_ids:
            crcs = self._check_ids(block)
        elif self._is_divided:
            crcs = [zlib.crc32(str(number).encode()) for number in numbers]
        if self._findings:
            return
        if self._has_sids:
            stored = self._with_sids(numbers, stored)
        written = self._out.add(crcs, stored)
        self.sums.add(block.sent, written)

    def _with_sids(
        self,
        numbers: Sequence[int],
        stored: Sequence[bytes],
    ) -> list[bytes]:
        """Return rows with their sids, which end with the rows' numbers in the table."""
        numbered = zip(numbers, stored, strict=True)
        return [f"{self._sid_prefix}-{number},".encode() + row for number, row in numbered]

    def _check_ids(self, block: Block) -> list[int]:
        """Report blank ids of a block; return the crc32 of each id.

        The ids are also recorded, so that `finish` reports repeated ones. They are not recorded for
        a table with sids: these tell the rows apart, so that ids may repeat.
        """
        if block.rows:  # plain blocks have no blank ids
            self._ids.report_blank(block.ids, block.lines, self._findings)
        if self._has_sids:
            return list(map(zlib.crc32, block.ids))
        return self._ids.see(block.ids, block.lines)

    def finish(self) -> int:
        """Return the number of rows of the table. Raises `Invalid` with all its problems."""
        if self._count == 0:
            rule = "must have at least one row after the header"
            self._findings.add("empty", "file", rule)
        self._ids.finish(self._findings)
        if self._findings:
            raise self._findings.error()
        return self._count


class Sums:
    """The sha256 of the uploaded file and of the stored table.

    One computation serves for both until the first bytes that differ: then it is copied.
    """

    def __init__(self) -> None:
        self.sent = hashlib.sha256()
        self.stored = self.sent

    def add(self, sent: bytes, stored: bytes) -> None:
        """Add the next bytes of the file and their stored form."""
        if self.stored is self.sent and sent != stored:
            self.stored = self.sent.copy()
        self.sent.update(sent)
        if self.stored is not self.sent:
            self.stored.update(stored)
