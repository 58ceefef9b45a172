"""Recognises the encoding and the delimiter of a table by the first block of its file."""

import codecs
import re
from io import BufferedReader
from typing import Any, NamedTuple

from gateway.domain.problems import Problem
from gateway.errors import Invalid

# Bytes of a table that are processed as one piece; the first piece shows the encoding.
BLOCK = 256 * 1024
_HEADER = 64 * 1024  # bytes of the beginning, in which the first line has to end

PARQUET_MAGIC = b"PAR1"  # first and last bytes of a Parquet file
_ZIP = b"PK\x03\x04"
_EXCEL = "an Excel workbook: save its sheet as CSV there (CSV UTF-8), then upload that file"
# The first bytes of files that are not CSV -> the format and the remedy, for a message.
_OTHER_FORMATS = {
    PARQUET_MAGIC: (
        "Parquet: put it into one of the node's storages, then bfia-gateway data register"
    ),
    _ZIP: _EXCEL,
    b"\xd0\xcf\x11\xe0": _EXCEL,
    b"\x1f\x8b": "compressed (gzip): unpack it, then upload what is in it",
}

UTF8 = "utf-8"
GB18030 = "gb18030"
UTF8_BOM = "utf-8-sig"  # with a byte order mark
# Python's names of encodings by their names in uploads. In none of them does a character contain
# the byte of a line end.
ENCODINGS = {
    UTF8: UTF8,
    GB18030: GB18030,
    "gbk": GB18030,
    "gb2312": GB18030,
    "big5": "big5",
    "windows-1252": "cp1252",
}
OTHER_ENCODING = (
    "if it is in another encoding, name it: data upload --encoding (meta.encoding), "
    f"one of {', '.join(ENCODINGS)}"
)
_ENCODING_NAMES = {UTF8_BOM: "UTF-8 with a byte order mark", "cp1252": "Windows-1252"}
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
# A GBK character of two bytes; the group is the second one.
_DOUBLE_BYTE = re.compile(rb"[\x81-\xfe]([\x40-\x7e\x80-\xfe])")

_DELIMITERS = {
    ",": "comma",
    ";": "semicolon",
    "\t": "tab",
    "|": "bar",
}
_QUOTED = re.compile('"[^"]*"')  # a quoted cell, whose content shows no delimiter
# A line such as ``sep=;`` before the header, by which Excel names the delimiter.
_SEPARATOR_LINE = re.compile('\ufeff?"?sep=([^\r\n"])"?\r?\n', re.IGNORECASE)


class Format(NamedTuple):
    """The encoding, as Python calls it, and the delimiter of a CSV file."""

    encoding: str
    delimiter: str


def recognise_format(
    file: "BufferedReader[Any]",
    encoding: str = "",
    delimiter: str = "",
) -> Format:
    """Return the format of a file, whose position stays at its beginning.

    The buffer of the file must have `BLOCK` bytes, because only the buffer is examined. A given
    encoding (Python's name) or delimiter is not checked; "" means unknown. Raises `Invalid` if the
    file is not CSV, or its delimiter is unclear.
    """
    start = file.peek()[:BLOCK]
    _refuse_other_formats(start)
    encoding = encoding or _recognise_encoding(start)
    delimiter = delimiter or excel_delimiter(file, encoding)
    if not delimiter:
        delimiter = _recognise_delimiter(start[:_HEADER].decode(encoding, "replace"))
    return Format(encoding, delimiter)


def _refuse_other_formats(start: bytes) -> None:
    """Raise `Invalid` for the first bytes of UTF-16 text, or of a file that is not CSV.

    A table whose text begins with PK has the first bytes of a zip archive, so a zip archive is
    refused only if it is Excel's.
    """
    if start.startswith(_UTF16_BOMS):
        rule = f"must be UTF-8 text, this looks like UTF-16; {OTHER_ENCODING}"
        raise Invalid([Problem("file:1", rule, start[:8])])
    is_excel = b"xl/" in start or b"[Content_Types]" in start
    if start.startswith(_ZIP) and not is_excel:
        return
    for magic, format_and_remedy in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise Invalid([Problem("file", f"must be CSV, this is {format_and_remedy}")])


def excel_delimiter(file: "BufferedReader[Any]", encoding: str) -> str:
    """Return the delimiter that a line ``sep=;`` before the header names (Excel's convention).

    Returns "" without such a line. The position of the file stays.
    """
    match = _SEPARATOR_LINE.match(file.peek()[:_HEADER].decode(encoding, "replace"))
    if match is None:
        return ""
    return match[1]


def encoding_name(encoding: str) -> str:
    """Return the name of an encoding for messages.

    ``encoding`` is Python's name of it.
    """
    return _ENCODING_NAMES.get(encoding, encoding.upper())


def _recognise_encoding(start: bytes) -> str:
    """Return the encoding that the first bytes of a text show.

    UTF-8 is the default: its errors are then reported with the line.
    """
    if start.startswith(codecs.BOM_UTF8):
        return UTF8_BOM
    if _decodes(start, UTF8):
        return UTF8
    if _decodes(start, GB18030) and _is_chinese(start):
        return GB18030
    return UTF8


def _decodes(start: bytes, encoding: str) -> bool:
    """Return whether the first bytes of a text are valid in an encoding.

    If there are more bytes than these, the last character may be incomplete.
    """
    is_whole_file = len(start) < BLOCK
    try:
        codecs.getincrementaldecoder(encoding)().decode(start, is_whole_file)
    except UnicodeDecodeError:
        return False
    return True


def _is_chinese(start: bytes) -> bool:
    """Return whether bytes that are valid in GB18030 are Chinese rather than Western text.

    In Western text, a plain letter mostly follows an accented one, and the two look like one
    character of GB18030; in Chinese text, the second byte of most characters is above ASCII.
    """
    second_bytes: list[bytes] = _DOUBLE_BYTE.findall(start)
    high = [byte for byte in second_bytes if byte >= b"\x80"]
    return 2 * len(high) > len(second_bytes)


def _recognise_delimiter(text: str) -> str:
    """Return the delimiter of the first line; a comma if it has none.

    ``text`` is the beginning of the file. Raises `Invalid` if several delimiters occur outside of
    quotes.
    """
    unquoted = _QUOTED.sub("", text).removeprefix("\ufeff").lstrip("\r\n")
    header = unquoted.partition("\n")[0]
    candidates = [delimiter for delimiter in _DELIMITERS if delimiter in header]
    if not candidates:
        return ","
    if len(candidates) > 1:
        names = " and ".join(_DELIMITERS[delimiter] for delimiter in candidates)
        rule = f"must be named (--delimiter): the first line has {names}, and each may divide it"
        raise Invalid([Problem("meta.delimiter", rule)])
    return candidates[0]
