"""Recognises the encoding and the delimiter of an uploaded table by its beginning, where there is no doubt."""

import codecs
import re
from io import BufferedReader
from typing import Any, NamedTuple

from gateway.domain.problems import Problem
from gateway.errors import Invalid

PARQUET_MAGIC = b"PAR1"
"""with which a file of Parquet begins and ends"""
UTF8, GB18030 = "utf-8", "gb18030"
UTF8_BOM = "utf-8-sig"
ENCODINGS = {
    UTF8: UTF8,
    GB18030: GB18030,
    "gbk": GB18030,
    "gb2312": GB18030,
    "big5": "big5",
    "windows-1252": "cp1252",
}
"""by the names that an upload may give; none has a line end inside a character"""
OTHER_ENCODING = (
    f"if it is in another encoding, name it: data upload --encoding (meta.encoding), one of {', '.join(ENCODINGS)}"
)
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
BLOCK = 256 * 1024
"""bytes of a table that are looked at in one piece; by the first of them the encoding is recognised"""
_HEADER = 64 * 1024
"""bytes in which the first line is looked for"""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DOUBLE = re.compile(rb"[\x81-\xfe]([\x40-\x7e\x80-\xfe])")
_QUOTED = re.compile('"[^"]*"')


class Format(NamedTuple):
    """The form of a file of CSV."""

    encoding: str
    """as Python calls it"""
    delimiter: str


def recognised(file: "BufferedReader[Any]", encoding: str = "", delimiter: str = "") -> Format:
    """Return the form of an unread file; what is given stands. Raises `Invalid` where it is unclear."""
    start = file.peek()[:BLOCK]
    if start.startswith(_UTF16):
        rule = f"must be UTF-8 text, this looks like UTF-16; {OTHER_ENCODING}"
        raise Invalid([Problem("file:1", rule, start[:8])])
    if start.startswith(PARQUET_MAGIC):
        rule = (
            "must be CSV, this is Parquet: put it into one of the node's storages, then bfia-gateway data register"
        )
        raise Invalid([Problem("file", rule)])
    encoding = encoding or _encoding(start)
    return Format(encoding, delimiter or _delimiter(start[:_HEADER].decode(encoding, "replace")))


def shown(encoding: str) -> str:
    """Return an encoding as people call it."""
    return {UTF8_BOM: "UTF-8 with a byte order mark", "cp1252": "Windows-1252"}.get(encoding, encoding.upper())


def _encoding(start: bytes) -> str:
    """Return the encoding of text; UTF-8 where it is none that is known."""
    if start.startswith(codecs.BOM_UTF8):
        return UTF8_BOM
    if not _decodes(start, UTF8) and _decodes(start, GB18030) and _is_chinese(start):
        return GB18030
    return UTF8


def _decodes(start: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(start, len(start) < BLOCK)
    except UnicodeDecodeError:
        return False
    return True


def _is_chinese(start: bytes) -> bool:
    """Tell GB18030 from Western text, where a letter with an accent mostly has a plain one behind it."""
    seconds: list[bytes] = _DOUBLE.findall(start)
    return 2 * sum(second >= b"\x80" for second in seconds) > len(seconds)


def _delimiter(text: str) -> str:
    """Return what divides the first line; a comma where nothing does. Raises `Invalid` where it is unclear."""
    plain = _QUOTED.sub("", text).removeprefix("\ufeff").lstrip("\r\n")
    header = plain.partition("\n")[0]
    found = [delimiter for delimiter in _DELIMITERS if delimiter in header]
    if len(found) > 1:
        names = " and ".join(_DELIMITERS[one] for one in found)
        rule = f"must be named (--delimiter): the first line has {names}, and each may divide it"
        raise Invalid([Problem("meta.delimiter", rule)])
    return found[0] if found else ","
