"""Reads an uploaded table row by row, with line numbers, and finds all that is wrong with it.

Memory is bounded whatever the file holds: no line, row or cell is read beyond a limit, and of each kind of problem
the first few are kept.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from gateway.data.dataset_upload import SID, Upload
from gateway.domain.problems import Problem
from gateway.errors import Invalid

LARGEST_ROW = 4 * 1024 * 1024
"""bytes, line ends inside quotes included"""
MOST_COLUMNS = 100_000
SHOWN = 20
"""problems of one kind that are told in full"""
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Findings:
    """The problems of one table, by kind, in the order in which they were found."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[Problem]] = {}
        self._more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(self, kind: str, path: str, rule: str, got: Any = None) -> None:
        """Take in a problem; beyond the first `SHOWN` of a kind it is only counted."""
        found = self._kinds.setdefault(kind, [])
        if len(found) < SHOWN:
            found.append(Problem(path, _short(rule, 500), _short(got, 120) if isinstance(got, str) else got))
        else:
            self.more(kind, 1)

    def more(self, kind: str, count: int) -> None:
        """Count problems that are not told one by one."""
        if count:
            self._more[kind] = self._more.get(kind, 0) + count

    def error(self) -> Invalid:
        """Return the refusal that tells them all."""
        problems = []
        for kind, found in self._kinds.items():
            problems += found
            if more := self._more.get(kind):
                problems.append(Problem("file", f"{more} more of this kind: {kind}"))
        return Invalid(problems)


def _short(text: str, most: int) -> str:
    """Return what may be shown of a text out of somebody's file: printable, and of a bounded length."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


class Lines:
    """The lines of a file as text, numbered from 1. NUL bytes and what is not UTF-8 are found on the way."""

    def __init__(self, file: BinaryIO, findings: Findings) -> None:
        self._file = file
        self._findings = findings
        self.number = 0
        self.row_bytes = 0
        """bytes read since the reader of rows last set this to 0"""

    def __iter__(self) -> Iterator[str]:
        while raw := self._file.readline(LARGEST_ROW + 1):
            if self.number == 0:
                if raw.startswith(_UTF16):
                    self._findings.add(
                        "encoding",
                        "file:1",
                        "must be UTF-8 text, this looks like UTF-16",
                        raw[:8],
                    )
                    raise self._findings.error()
                raw = raw.removeprefix(_BOM)
            self.number += 1
            self.row_bytes += len(raw)
            if self.row_bytes > LARGEST_ROW:
                rule = f"must have rows of at most {LARGEST_ROW} bytes; is a quote not closed, or is this no CSV?"
                self._findings.add("row size", f"file:{self.number}", rule)
                raise self._findings.error()
            if b"\0" in raw:
                self._findings.add("NUL bytes", f"file:{self.number}", "must not hold NUL bytes", raw[:80])
                raw = raw.replace(b"\0", b"")
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                got = raw[max(0, error.start - 10) : error.start + 10]
                rule = f"must be UTF-8 text, byte {error.start + 1} is not{_probably(raw)}"
                self._findings.add("encoding", f"file:{self.number}", rule, got)
                text = raw.decode(errors="replace")
            yield text


def _probably(raw: bytes) -> str:
    """Say in which other encoding a line can be read, and how to change it; empty where that is not clear."""
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return ""
    return "; it can be read as GBK: iconv -f GB18030 -t UTF-8 OLD.csv > NEW.csv"


def rows(lines: Lines, delimiter: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """Yield every row with the number of the line it begins at; empty lines are none."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = lines.number + 1
        lines.row_bytes = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            findings.add("CSV syntax", f"file:{line}", f"must be CSV: {_said(error)}")
            continue
        if row:
            yield line, row


def check_header(columns: Sequence[str], upload: Upload, findings: Findings) -> None:
    """Find what is wrong with the names of the columns, and names in ``meta`` that are not among them."""
    if len(columns) > MOST_COLUMNS:
        findings.add("header", "file:1", f"must have at most {MOST_COLUMNS} columns", len(columns))
        raise findings.error()
    seen: set[str] = set()
    for at, name in enumerate(columns, 1):
        if not name.strip() or not name.isprintable():
            findings.add("header", "file:1", f"column {at} must have a printable name", name)
        elif name in seen:
            findings.add("header", "file:1", f"column {at} must not have the name of another column", name)
        seen.add(name)
    shown = shortened(columns)
    for key, name in (("label_name", upload.label_name), ("match_id_name", upload.match_id_name)):
        if name and name not in seen:
            findings.add("meta", f"meta.{key}", f"must name a column of the file; its columns are {shown}", name)
    if upload.label_name and upload.label_name == upload.match_id_name:
        findings.add("meta", "meta.label_name", "must not be the column of match_id_name", upload.label_name)
    if upload.extend_sid and SID in seen:
        findings.add("meta", "extend_sid", f"must be false for a file that has a column {SID} already", True)


def shortened(names: Iterable[str], limit: int = 1000) -> str:
    """Return names as text, cut where it grows too long."""
    text = ", ".join(names)
    return text if len(text) <= limit else text[:limit] + "…"


def _said(error: csv.Error) -> str:
    text = str(error)
    if "field larger" in text:
        return f"a cell is longer than {csv.field_size_limit()} characters, or a quote is not closed"
    if "new-line character" in text:
        return "lines must end with LF or CR LF, this one has a lone CR outside quotes"
    if "unexpected end of data" in text:
        return "a quote is not closed"
    return text
