"""``/v2/table``, ``/v2/data``: tables of this node, as FATE's tools upload, look up and download them.

FATE makes a job of an upload and its tools wait for it; here it is complete with the response, and ``job/query``
reports its ``job_id`` as successful.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Protocol
from uuid import uuid4

from fastapi import APIRouter, Body, Query, Request, Response

from adapter.fate.envelope import Code, Envelope, FateRoute, NotServedHere, coded, ok
from adapter.fate.tools import schemas
from adapter.fate.tools.archives import CHUNK, Member, archive_of, sent
from adapter.fate.tools.deps import ClientParts, on
from adapter.fate.tools.jobs import UPLOAD
from gateway.data.storage import FileStorage
from gateway.domain.datasets import Dataset
from gateway.domain.run import Address
from gateway.errors import GatewayError

OTHERS_OF_FATE = ("role", "party_id", "destroy", "storage_engine", "address")
"""what FATE's clients may send beside the keys that mean something here"""

_CLIENT_UPLOADS_TABLE = coded({"DATASET_EXISTS": Code.TABLE_EXISTS, "CONFLICT": Code.TABLE_EXISTS})
_LARGEST_BODY = 1024 * 1024
_CLIENT_UPLOADS_EXAMPLE = {
    "file": "examples/data/breast_hetero_guest.csv",
    "head": True,
    "partitions": 16,
    "extend_sid": True,
    "meta": {"delimiter": ",", "label_name": "y", "match_id_name": "id"},
    "namespace": "experiment",
    "name": "breast_hetero_guest",
}


class Uploads(Protocol):
    """Takes tables in; whatever is wrong is raised as `gateway.errors.GatewayError`."""

    async def from_path(self, document: Mapping[str, Any]) -> Dataset:
        """Store a file that is on the server."""

    async def from_form(self, request: Request, change: Callable[[dict[str, str]], dict[str, str]]) -> Dataset:
        """Store a file that comes with the request; ``change`` is applied to the form's fields."""


def upload_router(uploads: Uploads) -> APIRouter:
    """Return the upload paths of FATE's client."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)

    @router.post(
        "/v2/data/component/upload",
        summary="Store a table from the server's disk",
        openapi_extra=_CLIENT_UPLOADS_TABLE,
        max_body_size=_LARGEST_BODY,
    )
    async def upload(
        body: Annotated[dict[str, Any], Body(examples=[_CLIENT_UPLOADS_EXAMPLE])],
    ) -> Envelope[schemas.Table]:
        return _answer(await uploads.from_path(_named(body)))

    @router.post(
        "/v2/data/component/upload/file",
        summary="Store a table that comes with the request",
        openapi_extra={
            **_CLIENT_UPLOADS_TABLE,
            "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object"}}}},
        },
    )
    async def upload_file(request: Request) -> Envelope[schemas.Table]:
        return _answer(await uploads.from_form(request, _named))

    return router


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read here of what FATE's client sends; without a name the table gets one."""
    kept = {k: v for k, v in fields.items() if k not in OTHERS_OF_FATE}
    if not kept.get("namespace") and not kept.get("name"):
        kept |= {"namespace": "upload", "name": uuid4().hex}
    return kept


def _answer(dataset: Dataset) -> Envelope[Any]:
    data = {"namespace": dataset.namespace, "name": dataset.name, "dataset_id": dataset.dataset_id}
    return ok({**data, "count": dataset.count}, job_id=UPLOAD + dataset.dataset_id)


_TABLE = coded({"DATASET_UNKNOWN": Code.TABLE_NOT_FOUND, "DATA_MISSING": Code.TABLE_NOT_FOUND})
_EXAMPLE = {"namespace": "experiment", "name": "breast_hetero_guest"}


def router(parts: ClientParts) -> APIRouter:
    """Return the paths of tables."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)
    rest = parts.limiters.rest

    @router.get("/v2/table/query", summary="What is known of a table", openapi_extra=_TABLE)
    async def query(asked: Annotated[schemas.TableQuery, Query()]) -> Envelope[schemas.Table]:
        return ok(await on(rest, lambda: _described(parts, asked)))

    @router.post("/v2/table/delete", summary="Delete a table", openapi_extra=_TABLE)
    async def delete(body: Annotated[schemas.TableRequest, Body(examples=[_EXAMPLE])]) -> Envelope[Any]:
        await on(rest, lambda: parts.drop_table(Address(body.namespace, body.name)))
        return ok()

    @router.get("/v2/data/download", summary="A table, as a tar.gz of CSV", openapi_extra=_TABLE, **archive_of())
    async def download(asked: Annotated[schemas.TableDownload, Query()]) -> Response:
        return await _archive(parts, asked, asked.header.lower() not in ("false", "0", "no"))

    for path in ("/v2/component/download", "/v2/data/component/download"):

        @router.post(
            path,
            summary="A table, as a tar.gz of CSV; with a path of the server it is not served",
            openapi_extra=_TABLE,
            **archive_of(),
        )
        async def component_download(
            body: Annotated[schemas.ComponentDownload, Body(examples=[_EXAMPLE])],
        ) -> Response:
            if body.path:
                text = "nothing is written to a path of this server: leave it out, or use flow data download"
                raise NotServedHere(f"a download to {body.path} is not served here: {text}")
            return await _archive(parts, body, True)

    return router


async def _archive(parts: ClientParts, asked: schemas.TableRequest, header: bool) -> Response:
    def found() -> Address:
        address = parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
        parts.storage.partitions(address)
        return address

    address = await on(parts.limiters.rest, found)
    name = f"download_data_{asked.namespace}_{asked.name}.tar.gz"
    return sent(members(parts.storage, address, "data", header=header), name, parts.limiters.rest)


def _described(parts: ClientParts, asked: schemas.TableQuery) -> dict[str, Any]:
    dataset: Dataset = parts.datasets.get(namespace=asked.namespace, name=asked.name)
    kind, _, place = dataset.origin.partition(":")
    found: dict[str, Any] = {
        "namespace": dataset.namespace,
        "name": dataset.name,
        "dataset_id": dataset.dataset_id,
        "count": dataset.count,
        "meta": {**dataset.meta, "header": list(dataset.columns), "types": list(dataset.types)},
        "engine": "file",
        "path": "",
        "source": {"kind": kind, "name": place.rpartition("/")[2]},
        "data_type": "table",
        "partitions": dataset.partitions,
        "disabled": dataset.disabled,
    }
    if asked.display:
        address = parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
        found["display"] = list(islice(parts.storage.iter_rows(address), MOST_ROWS))
    return found


MOST_ROWS = 100
_LONGEST_HEADER = 1024 * 1024


def members(storage: FileStorage, address: Address, folder: str, *, header: bool = True) -> Iterator[Member]:
    """Yield ``<folder>/0.csv`` and ``<folder>/0.meta`` of a table. Raises `NotFound`."""
    skips: list[int] = []
    first, size = b"", 0
    for number in range(len(storage.partitions(address))):
        with storage.open_partition(address, number) as file:
            line = file.readline(_LONGEST_HEADER)
            first = first if number else line
            skips.append(len(line) if (number or not header) and line == first else 0)
            size += file.seek(0, 2) - skips[-1]
    yield Member(f"{folder}/0.csv", size, _chunks(storage, address, skips))
    meta = json.dumps({"header": _columns(storage, address)}).encode()
    yield Member(f"{folder}/0.meta", len(meta), (meta,))


def _chunks(storage: FileStorage, address: Address, skips: Sequence[int]) -> Iterator[bytes]:
    for number, skip in enumerate(skips):
        with storage.open_partition(address, number) as file:
            file.seek(skip)
            while data := file.read(CHUNK):
                yield data


def _columns(storage: FileStorage, address: Address) -> list[str]:
    try:
        return storage.columns(address)
    except GatewayError:
        return []
