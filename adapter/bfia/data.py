"""``/v2/component/upload``: tables for this node's jobs, from the server's own disk or with the request.

The keys are those the first users of this gateway have; ``overwrite`` and ``description`` are ours, ``drop`` is a
second word for ``overwrite``.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from adapter.bfia.requests import Incoming, Sender, on
from adapter.body import without_nulls
from gateway.data.datasets import Datasets
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
    too_large,
)
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import GatewayError, Invalid, TooLarge, problems_of
from gateway.http.streamed_bodies import READ, Rest
from gateway.runtime.context import new_trace_id, traced

FILE = "file"
_BATCH = 512 * 1024
_MOST_PARTS = 100
_LARGEST_FIELDS = 1024 * 1024


@dataclass
class Form:
    """What a form holds besides the bytes of its file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    """None where there was no file"""
    problems: list[Problem] = field(default_factory=list)


async def receive(
    request: Request,
    write: Callable[[bytes], object],
    max_file: int,
    begin: Callable[[Form], bool] = lambda form: False,
    follow: Callable[["FilePart"], object] = lambda part: None,
) -> Form:
    """Read the whole form; ``write`` gets the file's bytes, on a worker thread.

    ``begin`` gets what was sent before the file, once the file begins. Where it returns True, ``follow`` may get
    what is left of the file then, to be read by a thread of its own.

    Raises `Invalid` for what is not a form or breaks off, `TooLarge` for a body that announces more than
    ``max_file`` bytes and some for the fields, and whatever ``write`` raises.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        got = request.headers.get("content-type")
        raise Invalid([Problem("content-type", "must be multipart/form-data with a boundary", got)])
    if (announced(request) or 0) > max_file + 2 * _LARGEST_FIELDS:
        raise too_large(max_file)
    reader = _Reader(
        request, options[b"boundary"], write, lambda items: begin(_form(items)), follow
    )
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


def _form(items: Iterable[tuple[str, str | UploadFile]]) -> Form:
    form = Form()
    for name, value in items:
        if isinstance(value, UploadFile):
            form.filename = "".join(c for c in value.filename or "" if c.isprintable())[:255]
        elif name == FILE:
            rule = "must be a part with a filename; for a file that is on the server use /v2/component/upload"
            form.problems.append(Problem(FILE, rule, value[:200]))
        elif name in form.fields:
            form.problems.append(Problem(name, "must be given once", value[:200]))
        else:
            form.fields[name] = value
    return form


class _Reader(MultiPartParser):
    """The framework's parser, but the file's bytes go to ``write`` and not to a temporary file."""

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
        self._mark = b"\r\n--" + boundary
        self._write = write
        self._begin = begin
        self._follow = follow
        self._begun = self._storing = self._ends = False
        self._field_bytes = 0
        self.ended = False

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        upload = self._current_part.file
        if upload is None:
            return
        if self._current_part.field_name != FILE:
            raise MultiPartException(f"the file must be in the part {FILE}")
        upload.file.close()
        upload.file = _Sink(self._write)  # type: ignore[assignment]
        self._begun, self._storing = True, self._begin([*self.items, (FILE, upload)])

    def on_part_data(
        self,
        data: bytes,
        start: int,
        end: int,
    ) -> None:
        if self._current_part.file is None:
            self._field_bytes += end - start
            if self._field_bytes > _LARGEST_FIELDS:
                raise TooLarge(f"the fields of the form have more than {_LARGEST_FIELDS} bytes")
        elif self._ends:
            raise MultiPartException(f"the part {FILE} must not hold its own boundary")
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        self._storing = False
        super().on_part_end()

    def on_end(self) -> None:
        self.ended = True

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body, the file in larger pieces, as each costs a change of threads, or past this parser."""
        held = bytearray()
        take = self._request.scope.get("extensions", {}).get(READ)
        async for data in self._request.stream():
            held += data
            if self._storing and take is not None and (rest := take()) is not None:
                loop, over = asyncio.get_running_loop(), asyncio.Event()
                rest.put_back(bytes(held))
                part = FilePart(rest, self._mark, partial(_call, loop, over.set))
                self._follow(part)
                await over.wait()
                if part.broken:
                    raise ClientDisconnect
                self._ends = True
                yield part.after
                return
            if len(held) >= (_BATCH if self._begun else 1):
                kept = _begins(held, self._mark)
                yield bytes(held[: len(held) - kept])
                del held[: len(held) - kept]
        yield bytes(held)


def _call(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the node has ended
        loop.call_soon_threadsafe(work)


def _begins(data: bytearray, mark: bytes) -> int:
    """Return how many bytes at the end of some data may be the beginning of a mark, which begins with CR."""
    end = data[max(0, len(data) - len(mark) + 1) :]
    at = end.rfind(b"\r")
    return len(end) - at if at >= 0 and mark.startswith(end[at:]) else 0


class _Sink:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write

    def seek(self, position: int) -> None:
        """The parser rewinds a file when it is complete."""


class FilePart:
    """What is left of the file in a form, up to the boundary; what is behind its content is ``after``."""

    def __init__(
        self,
        rest: Rest,
        mark: bytes,
        over: Callable[[], object],
    ) -> None:
        """``over`` is called when the end is reached."""
        self._rest = rest
        self._mark = mark
        self._over: Callable[[], object] | None = over
        self._room = bytearray(BLOCK)
        self._ready = memoryview(b"")
        self._held = b""
        """may be the beginning of the mark"""
        self.after = b""
        self.broken = False
        """whether the client left before"""

    def readinto(self, buffer: memoryview, /) -> int:
        """Wait for more, 0: it is at its end. Raises `GatewayError` (BROKEN_OFF)."""
        while not self._ready and self._over is not None:
            self._fill()
        if self.broken:
            raise GatewayError("the upload was broken off", reason="BROKEN_OFF")
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _fill(self) -> None:
        assert self._over is not None
        begun, room = len(self._held), self._room
        room[:begun] = self._held
        try:
            end = begun + self._rest.readinto(memoryview(room)[begun:])
            at = room.find(b"\r", 0, end)
            at = (
                at if at < 0 else room.find(self._mark, at, end)
            )  # a single byte is found much faster
            over = at >= 0 or end == begun
            kept = (
                end - at
                if at >= 0
                else _begins(room[max(0, end - len(self._mark)) : end], self._mark)
            )
            self._held, self._ready = bytes(room[end - kept : end]), memoryview(room)[: end - kept]
            if over:
                self.after = self._held + self._behind()
        except OSError:
            over = self.broken = True
        if over:
            self._over()
            self._over = None

    def _behind(self) -> bytes:
        found = b""
        while data := self._rest.read(_BATCH):
            found = (found + data)[: 2 * _LARGEST_FIELDS]  # more is refused
        return found

    def stop(self) -> None:
        """End the wait."""
        self._rest.stop()

    def close(self) -> None:
        """Give the client's socket back."""
        self._rest.close()


_LARGEST_BODY = 1024 * 1024
_AT_ONCE = 2
"""uploads that are converted at the same time after they were received; others wait"""
_STREAMS = 4
"""uploads that are stored while they are received; others are received first"""


def _wrong(rule: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def _read_meta(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else {}
    except (ValueError, RecursionError):
        raise _wrong("must be a JSON object, or the text of one") from None


class Meta(BaseModel):
    """What the columns mean. Further keys are kept beside the data."""

    model_config = ConfigDict(extra="allow")

    delimiter: Annotated[str, follows(delimiter_rule)] = Field(
        default="",
        description="Character between the cells, in the storage a comma; recognised if not given.",
    )
    encoding: Annotated[str, follows(encoding_rule)] = Field(
        default="",
        description=f"One of {', '.join(ENCODINGS)}, in the storage UTF-8; recognised if not given.",
    )
    label_name: str = Field(
        default="", description="Column that holds the label, where there is one."
    )
    match_id_name: str = Field(
        default="",
        description="Column with the ids to match with other parties; each once, unless extend_sid.",
    )

    _nulls = model_validator(mode="before")(without_nulls)

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if broken := meta_rule(self.model_extra or {}):
            raise _wrong(broken)
        return self


class UploadKeys(BaseModel):
    """What both ways of uploading have in common."""

    model_config = ConfigDict(extra="forbid")
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
    """keys of FATE's upload files, 1.x and 2.x, each with the one here"""

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
    description: Annotated[str, follows(text_rule)] = Field(default="", description="Free text.")
    storage: str = Field(
        default="",
        description="Where it is stored: one of `storages`, `file` for the folder; else the first.",
    )

    _nulls = model_validator(mode="before")(without_nulls)

    def upload(self) -> Upload:
        """Return the same as the core has it."""
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
    """An upload of a file that lies on the server."""

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
    """Stores tables, a few at the same time, for every path that takes them."""

    def __init__(self, datasets: Datasets, max_upload: int) -> None:
        """``max_upload``: bytes of the largest file that may be sent."""
        self._datasets = datasets
        self._max_upload = max_upload
        self._converting = CapacityLimiter(_AT_ONCE)
        self._receiving = CapacityLimiter(16)
        self._streams = threading.Semaphore(_STREAMS)

    async def from_path(self, sender: Incoming, document: Mapping[str, Any]) -> Dataset:
        """Store a file of this server; ``document`` has the keys of `UploadBody`. Raises `Invalid` and others."""
        try:
            body = UploadBody.model_validate(document)
        except ValidationError as error:
            raise Invalid(problems_of(error.errors(), UploadBody)) from error
        return await self.stored(sender, body)

    async def stored(self, sender: Incoming, body: UploadBody) -> Dataset:
        """Take in a file that lies on this server. Raises what `Datasets.upload_from_path` raises."""
        wanted = body.upload()
        return await on(
            self._converting, sender, lambda: self._datasets.upload_from_path(wanted, body.file)
        )

    async def from_form(
        self,
        sender: Incoming,
        request: Request,
        change: Callable[[dict[str, str]], dict[str, str]] = dict,
    ) -> Dataset:
        """Store a file that comes as a form; ``change`` is applied to its fields. Raises `Invalid` and more.

        It is stored while it comes where the fields before it say all that is needed.
        """
        received = await on(
            self._receiving, sender, lambda: self._datasets.receive(self._max_upload)
        )
        begun: list[tuple[Form, Upload]] = []

        def wanted(form: Form) -> Upload:
            return _upload_of(replace(form, fields=change(form.fields)))

        def begin(form: Form) -> bool:
            with suppress(GatewayError):  # what is missing may come behind the file
                upload = wanted(form)
                if self._streams.acquire(blocking=False):
                    begun.append((form, upload))
                    with traced(sender.trace_id or new_trace_id()):
                        self._datasets.store_while_received(upload, received, form.filename or "")
            return bool(begun)

        try:
            form = await receive(request, received.write, self._max_upload, begin, received.follow)
            if not begun:
                store = partial(
                    self._datasets.upload_from_file, wanted(form), received, form.filename or ""
                )
                return await on(self._converting, sender, store)
            early, upload = begun[0]
            if form != early and wanted(form) != upload:
                late = [name for name in form.fields if name not in early.fields]
                raise Invalid(
                    [
                        Problem(name, f"must come before the part {FILE} of the form")
                        for name in late
                    ]
                )
            return await anyio.to_thread.run_sync(received.finish, limiter=self._receiving)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(received.close)
            if begun:
                self._streams.release()


def router(uploads: Uploads) -> APIRouter:
    """Return the upload paths."""
    router = APIRouter(tags=["data"])

    @router.post(
        "/v2/component/upload",
        summary="Store a table from the server's disk",
        max_body_size=_LARGEST_BODY,
    )
    async def upload(
        sender: Sender, body: Annotated[UploadBody, Body(examples=[UPLOAD])]
    ) -> UploadAnswer:
        """The file must be on the server already. To send it along, use `/v2/component/upload/file`."""
        return _answer(await uploads.stored(sender, body))

    @router.post(
        "/v2/component/upload/file",
        summary="Store a table that comes with the request",
        openapi_extra={"requestBody": _form_described()},
    )
    async def upload_file(request: Request, sender: Sender) -> UploadAnswer:
        """The same keys as form fields, `meta` as JSON text, and the part `file` with a filename."""
        return _answer(await uploads.from_form(sender, request))

    return router


def _upload_of(form: Form) -> Upload:
    """Return what a form asks for; an empty field is an absent one. Raises `Invalid` with every problem."""
    problems = list(form.problems)
    if form.filename is None and not any(p.path == FILE for p in problems):
        problems.append(Problem(FILE, "must be there, as a part with a filename"))
    try:
        keys = UploadKeys.model_validate({k: v for k, v in form.fields.items() if v})
    except ValidationError as error:
        raise Invalid([*problems, *problems_of(error.errors(), UploadKeys)]) from error
    if problems:
        raise Invalid(problems)
    return keys.upload()


def _answer(dataset: Dataset) -> UploadAnswer:
    stored = {
        **vars(dataset),
        **dataset.meta,
        "dataset_id": dataset.dataset_id,
    }
    return UploadAnswer(
        code=0,
        message="success",
        data=Stored.model_validate(stored),
    )


def _form_described() -> dict[str, Any]:
    schema = UploadKeys.model_json_schema()
    schema.pop("$defs")
    properties = schema["properties"]
    properties["meta"] = {"type": "string", "description": properties["meta"]["description"]}
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
