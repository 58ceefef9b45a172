"""Reads a form with one file in it as it arrives: the file goes to disk in pieces, memory stays flat."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio.to_thread
from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from gateway.domain.problems import Problem
from gateway.errors import Invalid, TooLarge

FILE = "file"
_BATCH = 512 * 1024
_MOST_PARTS = 100
_LARGEST_FIELDS = 1024 * 1024


@dataclass
class Form:
    """What a form held besides the bytes of its file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    """None where there was no file"""
    problems: list[Problem] = field(default_factory=list)


async def receive(request: Request, write: Callable[[bytes], None], max_file: int) -> Form:
    """Read the whole form; ``write`` gets the file's bytes, on a worker thread.

    Raises `Invalid` for what is no form or breaks off, `TooLarge` for a body that announces more than ``max_file``
    bytes and some for the fields, and whatever ``write`` raises.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        got = request.headers.get("content-type")
        raise Invalid([Problem("content-type", "must be multipart/form-data with a boundary", got)])
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_file + 2 * _LARGEST_FIELDS:
        raise TooLarge(f"the body has {announced} bytes; a file may have {max_file}")
    reader = _Reader(boundary, write)
    held = bytearray()
    try:
        async for data in request.stream():
            held += data
            if len(held) >= _BATCH:
                await anyio.to_thread.run_sync(reader.feed, bytes(held))
                held.clear()
    except ClientDisconnect:
        raise Invalid([Problem("body", "must be sent to its end")], reason="BROKEN_OFF") from None
    await anyio.to_thread.run_sync(functools.partial(reader.feed, bytes(held)))
    return reader.finish()


class _Reader:
    def __init__(self, boundary: bytes, write: Callable[[bytes], None]) -> None:
        self._form = Form()
        self._write = write
        self._ended = False
        self._parts = 0
        self._field_bytes = 0
        self._header: dict[bytes, bytes] = {}
        self._header_name = b""
        self._header_value = b""
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_part,
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._data,
                    "on_part_end": self._part_ends,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _unreadable(error) from error

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _unreadable(error) from error

    def finish(self) -> Form:
        if not self._ended:
            raise Invalid([Problem("body", "must end with the form's closing boundary")], reason="BROKEN_OFF")
        return self._form

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise Invalid([Problem("body", f"must have at most {_MOST_PARTS} parts")])
        self._header = {}
        self._value = bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_part(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_ends(self) -> None:
        self._header[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._header.get(b"content-disposition", b"").decode("latin-1"))
        name = options.get(b"name")
        if name is None:
            raise Invalid([Problem("body", f"part {self._parts} must have a name in its Content-Disposition")])
        self._name = name.decode(errors="replace")
        self._is_file = self._name == FILE and b"filename" in options
        if not self._is_file:
            return
        if self._form.filename is not None:
            raise Invalid([Problem(FILE, "must be one file")])
        filename = options[b"filename"].decode(errors="replace")
        self._form.filename = "".join(c for c in filename if c.isprintable())[:255]

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._write(data[start:end])
            return
        self._field_bytes += end - start
        if self._field_bytes > _LARGEST_FIELDS:
            raise TooLarge(f"the fields of the form have more than {_LARGEST_FIELDS} bytes")
        self._value += data[start:end]

    def _part_ends(self) -> None:
        if self._is_file:
            return
        try:
            value = self._value.decode()
        except UnicodeDecodeError:
            self._form.problems.append(Problem(self._name, "must be UTF-8 text", bytes(self._value[:200])))
            return
        if self._name == FILE:
            rule = "must be a part with a filename; for a file that is on the server use /v2/component/upload"
            self._form.problems.append(Problem(FILE, rule, value[:200]))
        elif self._name in self._form.fields:
            self._form.problems.append(Problem(self._name, "must be given once", value[:200]))
        else:
            self._form.fields[self._name] = value

    def _end(self) -> None:
        self._ended = True


def _unreadable(error: FormParserError) -> Invalid:
    return Invalid([Problem("body", "must be a multipart form", str(error))])
