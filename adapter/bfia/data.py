"""``/v2/component/upload``: tables for this node's jobs.

A table is on the server's own disk, or comes with the request. Most keys are those of our first
users' interface. Our additions are ``overwrite`` (with ``drop`` as another name), ``description``
and ``storage``.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from adapter.bfia.channel.bodies import announced
from adapter.bfia.examples import UPLOAD
from adapter.bfia.requests import Incoming, Sender, run_blocking
from adapter.body import without_nulls
from gateway.data.datasets import Datasets
from gateway.data.reception import too_large
from gateway.data.table_format import BLOCK, ENCODINGS
from gateway.data.upload import (
    MAX_PARTITIONS,
    Upload,
    dataset_rule,
    delimiter_rule,
    encoding_rule,
    follows,
    meta_rule,
    namespace_rule,
    text_rule,
)
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import GatewayError, Invalid, TooLarge, problems_of
from gateway.http.streamed_bodies import READ, Rest
from gateway.runtime.context import new_trace_id, traced

FILE = "file"  # name of the part with the file
_LONGEST_FILENAME = 255  # characters
_LONGEST_VALUE = 200  # characters of a field in a problem
_BATCH = 512 * 1024  # bytes of the file that a thread gets at a time
_MOST_PARTS = 100  # the most fields of a form
_LARGEST_FIELDS = 1024 * 1024  # bytes of all fields of a form together
_LARGEST_BODY = 1024 * 1024  # bytes of a request without a file
_CONVERSIONS = 2  # received uploads that are converted at the same time; others wait
_RECEPTIONS = 16  # threads that receive uploads
_STREAMS = 4  # uploads that are stored while they arrive; others are received completely first


@dataclass
class Form:
    """The fields of a multipart form, the name of its file, and the problems of its parts."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None  # None: the form has no file
    problems: list[Problem] = field(default_factory=list)


def _receive_all_first(form: Form) -> bool:
    """Return False: the file is received before it is stored."""
    return False


def _ignore(part: "FilePart") -> None:
    """Do nothing: the rest of the file comes through the form's parser."""


async def receive(
    request: Request,
    write: Callable[[bytes], object],
    max_file: int,
    begin: Callable[[Form], bool] = _receive_all_first,
    follow: Callable[["FilePart"], object] = _ignore,
) -> Form:
    """Read the whole form.

    - ``write`` is called in worker threads with the bytes of the file
    - ``begin`` is called on the event loop when the file begins, with the fields before the file
      and the file's name; it returns whether ``follow`` may be called
    - ``follow`` may be called once, on the event loop, with the rest of the file, which it has
      another thread read; then ``write`` gets no more bytes

    Raises `Invalid` for a body that is not a form or breaks off, `TooLarge` for one that announces
    more than ``max_file`` bytes (and some for the fields), and the errors of ``write``.
    """
    boundary = _boundary(request)
    # The factor 2 leaves room for the headers of the form's parts.
    if (announced(request) or 0) > max_file + 2 * _LARGEST_FIELDS:
        raise too_large(max_file)

    def begin_with(items: Iterable[tuple[str, str | UploadFile]]) -> bool:
        return begin(_form(items))

    reader = _Reader(request, boundary, write, begin_with, follow)
    try:
        received = await reader.parse()
    except MultiPartException as error:
        raise Invalid([Problem("body", "must be a multipart form", error.message)]) from error
    except ClientDisconnect:
        raise Invalid([Problem("body", "must be sent to its end")], reason="BROKEN_OFF") from None
    if not reader.ended:
        raise Invalid(
            [Problem("body", "must end with the form's closing boundary")], reason="BROKEN_OFF"
        )
    return _form(received.multi_items())


def _boundary(request: Request) -> bytes:
    """Return the boundary between the parts of a form. Raises `Invalid` for any other body."""
    content_type = request.headers.get("content-type")
    media_type, options = parse_options_header(content_type)
    boundary: bytes = options.get(b"boundary", b"")
    if media_type != b"multipart/form-data" or not boundary:
        rule = "must be multipart/form-data with a boundary"
        raise Invalid([Problem("content-type", rule, content_type)])
    return boundary


def _form(items: Iterable[tuple[str, str | UploadFile]]) -> Form:
    """Return the form with these parts.

    Of several fields with one name, the first counts; the others are problems of the form.
    """
    form = Form()
    for name, value in items:
        if isinstance(value, UploadFile):
            printable = filter(str.isprintable, value.filename or "")
            form.filename = "".join(printable)[:_LONGEST_FILENAME]
        elif name == FILE:
            rule = (
                "must be a part with a filename; for a file that is on the server use "
                "/v2/component/upload"
            )
            form.problems.append(Problem(FILE, rule, value[:_LONGEST_VALUE]))
        elif name in form.fields:
            form.problems.append(Problem(name, "must be given once", value[:_LONGEST_VALUE]))
        else:
            form.fields[name] = value
    return form


class _Reader(MultiPartParser):
    """The framework's parser, but the file's bytes go to ``write`` instead of a temporary file."""

    def __init__(
        self,
        request: Request,
        boundary: bytes,
        write: Callable[[bytes], object],
        begin: Callable[[list[tuple[str, str | UploadFile]]], bool],
        follow: Callable[["FilePart"], object],
    ) -> None:
        super().__init__(request.headers, self._pieces(), max_files=1, max_fields=_MOST_PARTS)
        self._request = request
        self._mark = b"\r\n--" + boundary  # the boundary with the line break before it; ends a part
        self._write = write
        self._begin = begin
        self._follow = follow
        self._file_began = False
        # `follow` reads the rest of the file instead of this parser, which is bypassed then.
        self._may_bypass = False  # whether `follow` may read the rest of the file
        self._was_bypassed = False  # whether `follow` has read the rest of the file
        self._field_bytes = 0
        self.ended = False  # whether the closing boundary was received

    def on_headers_finished(self) -> None:
        """Parser callback: if the part has a file, have its bytes go to ``write``."""
        super().on_headers_finished()
        upload = self._current_part.file
        if upload is None:
            return
        if self._current_part.field_name != FILE:
            raise MultiPartException(f"the file must be in the part {FILE}")
        upload.file.close()  # the temporary file of the framework
        upload.file = _Sink(self._write)  # type: ignore[assignment]
        self._file_began = True
        self._may_bypass = self._begin([*self.items, (FILE, upload)])

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Parser callback: count the bytes of the fields.

        After ``follow`` has read the file up to the boundary, further bytes of the file are
        refused: they show that the boundary which ``follow`` found was part of the file.
        """
        if self._current_part.file is None:
            self._field_bytes += end - start
            if self._field_bytes > _LARGEST_FIELDS:
                raise TooLarge(f"the fields of the form have more than {_LARGEST_FIELDS} bytes")
        elif self._was_bypassed:
            raise MultiPartException(f"the part {FILE} must not hold its own boundary")
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        """Parser callback: the file, if the part has one, has ended."""
        self._may_bypass = False
        super().on_part_end()

    def on_end(self) -> None:
        """Parser callback: the form is complete."""
        self.ended = True

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces for the parser.

        The file's bytes are yielded in large pieces, as each piece costs a change of threads. If
        `follow` reads the rest of the file, only the body after the file is yielded.
        """
        buffer = bytearray()
        async for data in self._request.stream():
            buffer += data
            rest = self._rest()
            if rest is not None:
                yield await self._pass_file_on(rest, bytes(buffer))
                return
            if self._file_began and len(buffer) < _BATCH:
                continue
            # The start of a boundary is held back: `FilePart` may read on, and has to see the whole
            # boundary.
            size = len(buffer) - _mark_start_size(buffer, self._mark)
            yield bytes(buffer[:size])
            del buffer[:size]
        yield bytes(buffer)

    def _rest(self) -> Rest | None:
        """Return the rest of the body, to be read in a thread.

        None if the parser has to read it: while the file has not begun or has ended, if ``begin``
        did not allow `follow`, or if the server does not hand the body over.
        """
        if not self._may_bypass:
            return None
        read = self._request.scope.get("extensions", {}).get(READ)
        if read is None:
            return None
        rest: Rest | None = read()  # the server, too, may return None
        return rest

    async def _pass_file_on(self, rest: Rest, buffer: bytes) -> bytes:
        """Have ``follow`` read the rest of the file; return the body from the boundary on.

        ``buffer``: bytes that were received, but not yet yielded. Raises `ClientDisconnect`.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        rest.put_back(buffer)
        part = FilePart(rest, self._mark, partial(_call_in_loop, loop, ended.set))
        self._follow(part)
        await ended.wait()
        if part.broken:
            raise ClientDisconnect
        self._was_bypassed = True
        return part.after


def _call_in_loop(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[], object],
) -> None:
    """Call a function in the thread of the event loop; do not wait for it."""
    with suppress(RuntimeError):  # the loop is closed, as the node has ended
        loop.call_soon_threadsafe(work)


def _mark_start_size(data: bytearray, mark: bytes) -> int:
    """Return how many bytes at the end of ``data`` may be the start of ``mark``; 0 for none.

    The mark is the boundary with the line break before it, so it begins with CR.
    """
    end = data[max(0, len(data) - len(mark) + 1) :]
    position = end.rfind(b"\r")
    if position < 0 or not mark.startswith(end[position:]):
        return 0
    return len(end) - position


class _Sink:
    """Replaces the temporary file of the framework: hands the bytes to ``write``, stores none."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write

    def seek(self, position: int) -> None:
        """Do nothing when the parser rewinds the complete file."""


class FilePart:
    """The rest of the file in a form, up to the boundary, for a thread that reads it.

    After the end, ``after`` has the rest of the body, from the boundary on.
    """

    def __init__(
        self,
        rest: Rest,
        mark: bytes,
        on_end: Callable[[], object],
    ) -> None:
        """``mark``: the boundary with the line break before it.

        ``on_end`` is called once, at the end of the file or of the connection, by the reading
        thread.
        """
        self._rest = rest
        self._mark = mark
        self._on_end: Callable[[], object] | None = on_end  # None after the end
        self._block = bytearray(BLOCK)
        self._ready = memoryview(b"")  # bytes of the file for `readinto`
        self._held_back = b""  # bytes that begin with the mark, or may be its start
        self.after = b""
        self.broken = False  # the client left before the end

    def readinto(self, buffer: memoryview, /) -> int:
        """Wait for more bytes of the file, and return their number; 0 at the end of the file.

        Raises `GatewayError` (BROKEN_OFF).
        """
        while not self._ready and self._on_end is not None:
            self._fill()
        if self.broken:
            raise GatewayError("the upload was broken off", reason="BROKEN_OFF")
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _fill(self) -> None:
        """Read the next block; at the end of the file, also everything after the file."""
        assert self._on_end is not None
        try:
            ended = self._read_block()
            if ended:
                self.after = self._held_back + self._read_after_file()
        except OSError:
            ended = self.broken = True
        if ended:
            self._on_end()
            self._on_end = None

    def _read_block(self) -> bool:
        """Read once; return True at the end of the file or of the connection."""
        block = self._block
        start = len(self._held_back)
        block[:start] = self._held_back
        end = start + self._rest.readinto(memoryview(block)[start:])
        position = block.find(b"\r", 0, end)
        if position >= 0:  # the search for the single byte is much faster than the one for the mark
            position = block.find(self._mark, position, end)
        has_mark = position >= 0
        size = position  # bytes of the file in the block
        if not has_mark:
            tail = block[max(0, end - len(self._mark)) : end]
            size = end - _mark_start_size(tail, self._mark)
        self._held_back = bytes(block[size:end])
        self._ready = memoryview(block)[:size]
        # If nothing was read, the connection has ended: the parser will find no closing boundary,
        # and refuse the form.
        has_read_nothing = end == start
        return has_mark or has_read_nothing

    def _read_after_file(self) -> bytes:
        """Return the body after the file, as far as a form may have fields there."""
        after = b""
        while True:
            data = self._rest.read(_BATCH)
            if not data:
                return after
            # The rest is dropped: a form with this much after its file is refused anyway.
            after = (after + data)[: 2 * _LARGEST_FIELDS]

    def stop(self) -> None:
        """End the wait of the reading thread."""
        self._rest.stop()

    def close(self) -> None:
        """Close the duplicate of the client's socket from which the thread reads."""
        self._rest.close()


def _rule_error(rule: str) -> PydanticCustomError:
    """Return the error by which a validator of pydantic reports that a value breaks a rule."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def _read_meta(value: Any) -> Any:
    """Return the object in a JSON text, empty for a blank text; any other value unchanged."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise _rule_error("must be a JSON object, or the text of one") from None


class Meta(BaseModel):
    """The meaning of the columns. Further keys are stored with the dataset."""

    model_config = ConfigDict(extra="allow")

    delimiter: Annotated[str, follows(delimiter_rule)] = Field(
        default="",
        description="Character between the cells, in the storage a comma; recognised if not given.",
    )
    encoding: Annotated[str, follows(encoding_rule)] = Field(
        default="",
        description=(
            f"One of {', '.join(ENCODINGS)}, in the storage UTF-8; recognised if not given."
        ),
    )
    label_name: str = Field(
        default="", description="Column that holds the label, where there is one."
    )
    match_id_name: str = Field(
        default="",
        description=(
            "Column with the ids to match with other parties; each once, unless extend_sid."
        ),
    )

    _nulls = model_validator(mode="before")(without_nulls)

    @model_validator(mode="after")
    def _check_further_keys(self) -> Self:
        rule = meta_rule(self.model_extra or {})
        if rule:
            raise _rule_error(rule)
        return self


class UploadKeys(BaseModel):
    """What both ways of uploading have in common."""

    model_config = ConfigDict(extra="forbid")
    # Key of FATE's upload files, 1.x and 2.x -> key here; "" for a key without a counterpart.
    other_names: ClassVar[Mapping[str, str]] = {
        "table_name": "name",
        "partition": "partitions",
        "id_delimiter": "meta.delimiter",
        "delimiter": "meta.delimiter",
        "encoding": "meta.encoding",
        "label_name": "meta.label_name",
        "match_id_name": "meta.match_id_name",
        "auto_increasing_sid": "extend_sid",
        "destroy": "overwrite",
        "address": "",
        "backend": "",
        "engine": "",
        "storage_address": "",
        "storage_engine": "",
        "use_local_data": "",
        "with_meta": "",
        "work_mode": "",
    }

    head: bool = Field(
        default=True,
        description="The first line names the columns. If not, they are called x0, x1, …",
    )
    partitions: Annotated[int, BeforeValidator(str)] = Field(
        default=1,
        ge=1,
        le=MAX_PARTITIONS,
        description="Into how many files the table is divided, by match id.",
    )
    extend_sid: bool = Field(
        default=False, description="Put a column sid first, unique in every row; ids may repeat."
    )
    meta: Annotated[Meta, BeforeValidator(_read_meta, json_schema_input_type=Meta | str)] = Field(
        default=Meta(), description="What the columns mean; an object or its JSON text."
    )
    namespace: Annotated[str, follows(namespace_rule)] = Field(
        description="First part of the dataset's id."
    )
    name: Annotated[str, follows(dataset_rule)] = Field(
        description="Second part: the id is namespace#name."
    )
    overwrite: bool = Field(
        default=False, description="Replace a dataset of the same namespace and name."
    )
    drop: bool = Field(default=False, description="The same as overwrite.")
    description: Annotated[str, follows(text_rule)] = Field(
        default="",
        description="Free text.",
    )
    storage: str = Field(
        default="",
        description="Where it is stored: one of `storages`, `file` for the folder; else the first.",
    )

    _nulls = model_validator(mode="before")(without_nulls)

    def upload(self) -> Upload:
        """Return the upload that the keys describe."""
        return Upload(
            address=Address(self.namespace, self.name),
            head=self.head,
            partitions=self.partitions,
            extend_sid=self.extend_sid,
            delimiter=self.meta.delimiter,
            encoding=self.meta.encoding,
            label_name=self.meta.label_name,
            match_id_name=self.meta.match_id_name,
            extra=self.meta.model_extra or {},
            description=self.description,
            overwrite=self.overwrite or self.drop,
            storage=self.storage,
        )


class UploadBody(UploadKeys):
    """An upload of a file that is on the server."""

    file: str = Field(
        min_length=1,
        description="Path on the server, below a folder of the setting data.roots; relative to it.",
    )


class Stored(BaseModel):
    """What was stored."""

    namespace: str
    name: str
    dataset_id: str = Field(description="namespace#name, as jobs name the dataset.")
    count: int = Field(description="Rows.")
    columns: list[str] = Field(description="As in the storage: with sid, if it was asked for.")
    partitions: int
    checksum: str = Field(description="sha256 of the uploaded file, hex.")
    encoding: str = Field(description="In which the file was read.")
    delimiter: str = Field(description="With which the file was read.")
    warnings: list[str] = Field(
        default=[], description="What looks odd in it, with line and example."
    )


class UploadAnswer(BaseModel):
    """What an upload answers: what was stored, and where."""

    code: int
    message: str
    data: Stored


class Uploads:
    """Stores uploaded tables, a few at the same time, for every path that takes uploads."""

    def __init__(self, datasets: Datasets, max_upload: int) -> None:
        """``max_upload``: bytes of the largest file that may be sent."""
        self._datasets = datasets
        self._max_upload = max_upload
        self._converting = CapacityLimiter(_CONVERSIONS)
        self._receiving = CapacityLimiter(_RECEPTIONS)
        self._streams = threading.Semaphore(_STREAMS)

    async def store_from_path(self, sender: Incoming, body: UploadBody) -> Dataset:
        """Store a file of this server. Raises the errors of `Datasets.upload_from_path`."""
        work = partial(self._datasets.upload_from_path, body.upload(), body.file)
        return await run_blocking(self._converting, sender, work)

    async def store_from_form(self, sender: Incoming, request: Request) -> Dataset:
        """Store a file in a form, while it arrives if the fields before it suffice.

        Raises `Invalid`, `TooLarge` and the errors of `Datasets.upload_from_file`.
        """
        receive_file = partial(self._datasets.receive, self._max_upload)
        received = await run_blocking(self._receiving, sender, receive_file)
        # At most one: the upload that is stored while it arrives, and the fields before the file
        streams: list[tuple[Form, Upload]] = []

        def begin(form: Form) -> bool:
            # An error is not raised here, because missing fields may follow after the file. In this
            # case the file is received first.
            with suppress(GatewayError):
                upload = _upload_of(form)
                if self._streams.acquire(blocking=False):
                    streams.append((form, upload))
                    with traced(sender.trace_id or new_trace_id()):
                        self._datasets.store_while_received(upload, received, form.filename or "")
            return bool(streams)

        try:
            form = await receive(request, received.write, self._max_upload, begin, received.follow)
            if not streams:  # the file was received, but not stored
                store = partial(
                    self._datasets.upload_from_file, _upload_of(form), received, form.filename or ""
                )
                return await run_blocking(self._converting, sender, store)
            _check_late_fields(form, *streams[0])
            return await anyio.to_thread.run_sync(
                received.finish,
                limiter=self._receiving,
            )
        finally:
            with anyio.CancelScope(shield=True):  # also after the client has left
                await anyio.to_thread.run_sync(received.close)
            if streams:
                self._streams.release()


def _check_late_fields(form: Form, early_form: Form, upload: Upload) -> None:
    """Raise `Invalid` if fields after the file change the upload.

    ``form``: all fields; ``early_form``: those before the file, from which ``upload`` was made.
    """
    if form == early_form or _upload_of(form) == upload:
        return
    rule = f"must come before the part {FILE} of the form"
    late = [name for name in form.fields if name not in early_form.fields]
    raise Invalid([Problem(name, rule) for name in late])


def router(uploads: Uploads) -> APIRouter:
    """Return the upload paths."""
    router = APIRouter(tags=["data"])

    @router.post(
        "/v2/component/upload",
        summary="Upload a table from the server's disk",
        max_body_size=_LARGEST_BODY,
    )
    async def upload(
        sender: Sender, body: Annotated[UploadBody, Body(examples=[UPLOAD])]
    ) -> UploadAnswer:
        """The file must be on the server already.

        To send it along, use `/v2/component/upload/file`.
        """
        return _upload_answer(await uploads.store_from_path(sender, body))

    @router.post(
        "/v2/component/upload/file",
        summary="Upload a table",
        openapi_extra={"requestBody": _form_description()},
    )
    async def upload_file(request: Request, sender: Sender) -> UploadAnswer:
        """The same keys as form fields, `meta` as JSON text, and the part `file` with a
        filename.
        """
        return _upload_answer(await uploads.store_from_form(sender, request))

    return router


def _upload_of(form: Form) -> Upload:
    """Return the upload of a form; empty fields count as absent.

    Raises `Invalid` with every problem.
    """
    problems = list(form.problems)
    has_file_problem = any(problem.path == FILE for problem in problems)
    if form.filename is None and not has_file_problem:
        problems.append(Problem(FILE, "must be there, as a part with a filename"))
    fields = {name: value for name, value in form.fields.items() if value}
    try:
        keys = UploadKeys.model_validate(fields)
    except ValidationError as error:
        raise Invalid([*problems, *problems_of(error.errors(), UploadKeys)]) from error
    if problems:
        raise Invalid(problems)
    return keys.upload()


def _upload_answer(dataset: Dataset) -> UploadAnswer:
    """Return the response about a stored dataset."""
    fields = {**vars(dataset), **dataset.meta, "dataset_id": dataset.dataset_id}
    return UploadAnswer(
        code=0,
        message="success",
        data=Stored.model_validate(fields),
    )


def _form_description() -> dict[str, Any]:
    """Return the form's part of the interface description."""
    schema = UploadKeys.model_json_schema()
    schema.pop("$defs")
    properties = schema["properties"]
    properties["meta"] = {
        "type": "string",
        "description": properties["meta"]["description"],
    }
    properties[FILE] = {
        "type": "string",
        "format": "binary",
        "description": "The table, as CSV.",
    }
    schema["required"] = [*schema["required"], FILE]
    example = {
        **UPLOAD,
        "meta": json.dumps(UPLOAD["meta"]),
        FILE: "id,y,x0\n1,0,0.5\n2,1,0.25\n",
    }
    return {
        "required": True,
        "content": {"multipart/form-data": {"schema": schema, "example": example}},
    }
