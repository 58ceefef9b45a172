"""Reads an uploaded table row by row, with line numbers, and finds all that is wrong with it.

Memory is bounded whatever the file holds: no line, row or cell is read beyond a limit, and of each kind of problem
the first few are kept.
"""

import csv
from collections.abc import Callable, Iterator
from typing import Any

from gateway.data.storage import LARGEST_ROW
from gateway.data.table_format import OTHER_ENCODING, shown
from gateway.domain.problems import Problem
from gateway.errors import Invalid

SHOWN = 20
"""problems of one kind that are listed"""
_BOM = "\ufeff"


class Findings:
    """The problems of one table, by kind, in the order in which they were found."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[Problem]] = {}
        self._more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(self, kind: str, path: str, rule: str, got: Any = None) -> None:
        """Add a problem; beyond the first `SHOWN` of a kind it is only counted."""
        found = self._kinds.setdefault(kind, [])
        if len(found) < SHOWN:
            found.append(
                Problem(path, _printable(rule, 500), _printable(got, 120) if isinstance(got, str) else got)
            )
        else:
            self.more(kind, 1)

    def more(self, kind: str, count: int) -> None:
        """Count problems that are not listed one by one."""
        if count:
            self._more[kind] = self._more.get(kind, 0) + count

    def error(self) -> Invalid:
        """Return the refusal that lists them all."""
        problems = []
        for kind, found in self._kinds.items():
            problems += found
            if more := self._more.get(kind):
                problems.append(Problem("file", f"{more} more of this kind: {kind}"))
        return Invalid(problems)


class Lines:
    """The lines of a file as text, numbered from 1. NUL bytes and what does not decode become findings."""

    def __init__(
        self, readline: Callable[[int], bytes], encoding: str, findings: Findings, name: str = "file"
    ) -> None:
        self.name = name
        self._readline = readline
        self._encoding = encoding
        self._findings = findings
        self.number = 0
        self.bytes = 0
        """read here so far"""
        self.row_bytes = 0
        """bytes read since the reader of rows last set this to 0"""

    def __iter__(self) -> Iterator[str]:
        while raw := self._readline(LARGEST_ROW + 1):
            self.number += 1
            self.bytes += len(raw)
            self.row_bytes += len(raw)
            if self.row_bytes > LARGEST_ROW:
                rule = f"must have rows of at most {LARGEST_ROW} bytes; is a quote not closed, or is this not CSV?"
                self._findings.add("row size", f"{self.name}:{self.number}", rule)
                raise self._findings.error()
            if b"\0" in raw:
                self._findings.add("NUL bytes", f"{self.name}:{self.number}", "must not hold NUL bytes", raw[:80])
                raw = raw.replace(b"\0", b"")
            try:
                text = raw.decode(self._encoding)
            except UnicodeDecodeError as error:
                got = raw[max(0, error.start - 10) : error.start + 10]
                rule = f"must be {shown(self._encoding)} text, byte {error.start + 1} is not; {OTHER_ENCODING}"
                self._findings.add("encoding", f"{self.name}:{self.number}", rule, got)
                text = raw.decode(self._encoding, errors="replace")
            yield text.removeprefix(_BOM) if self.number == 1 else text


def rows(lines: Lines, delimiter: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """Yield every row with the number of the line it begins at; empty lines are skipped."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = lines.number + 1
        lines.row_bytes = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            findings.add("CSV syntax", f"{lines.name}:{line}", f"must be CSV: {_explained(error)}")
            continue
        if row:
            yield line, row


def _explained(error: csv.Error) -> str:
    text = str(error)
    if "field larger" in text:
        return f"a cell is longer than {csv.field_size_limit()} characters, or a quote is not closed"
    if "new-line character" in text:
        return "lines must end with LF or CR LF, this one has a lone CR outside quotes"
    if "unexpected end of data" in text:
        return "a quote is not closed"
    return text


def _printable(text: str, most: int) -> str:
    """Return the beginning of a text from an uploaded file, without control characters."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"
