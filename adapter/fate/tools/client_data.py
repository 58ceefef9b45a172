"""``/v2/table``, ``/v2/data``, ``/v2/component/download``: uploaded tables, for FATE's tools."""

from itertools import islice
from typing import Annotated, Any

from fastapi import Body, Query, Response

from adapter.fate.codes import Code
from adapter.fate.envelope import FateRoute, NotServedHere, coded, ok
from adapter.fate.tools import client_wire as wire
from adapter.fate.tools.deps import ClientParts, on
from adapter.fate.tools.tables import members
from adapter.fate.tools.tarring import archive_of, sent
from gateway.domain.dataset_model import Dataset
from gateway.domain.run import Address
from gateway.http.paths import Paths

MOST_ROWS = 100

_TABLE = coded({"DATASET_UNKNOWN": Code.TABLE_NOT_FOUND, "DATA_MISSING": Code.TABLE_NOT_FOUND})
_EXAMPLE = {"namespace": "experiment", "name": "breast_hetero_guest"}


def router(parts: ClientParts) -> Paths:
    """Return the paths of tables."""
    router = Paths(tags=["fate client"], route_class=FateRoute)
    rest = parts.limiters.rest

    @router.get("/v2/table/query", summary="What is known of a table", openapi_extra=_TABLE)
    async def query(asked: Annotated[wire.TableQuery, Query()]) -> dict[str, Any]:
        return ok(await on(rest, lambda: _described(parts, asked)))

    @router.post("/v2/table/delete", summary="Delete a table", openapi_extra=_TABLE)
    async def delete(body: Annotated[wire.Table, Body(examples=[_EXAMPLE])]) -> dict[str, Any]:
        await on(rest, lambda: parts.drop_table(Address(body.namespace, body.name)))
        return ok()

    @router.get(
        "/v2/data/download",
        summary="A table, as a tar.gz of CSV",
        openapi_extra=_TABLE,
        **archive_of(),
    )
    async def download(asked: Annotated[wire.TableDownload, Query()]) -> Response:
        return await _archive(parts, asked, asked.header.lower() not in ("false", "0", "no"))

    for path in ("/v2/component/download", "/v2/data/component/download"):

        @router.post(
            path,
            summary="A table, as a tar.gz of CSV; with a path of the server it is not served",
            openapi_extra=_TABLE,
            **archive_of(),
        )
        async def component_download(
            body: Annotated[wire.ComponentDownload, Body(examples=[_EXAMPLE])],
        ) -> Response:
            if body.path:
                text = "nothing is written to a path of this server: leave it out, or use flow data download"
                raise NotServedHere(f"a download to {body.path} is not served here: {text}")
            return await _archive(parts, body, True)

    return router


async def _archive(parts: ClientParts, asked: wire.Table, header: bool) -> Response:
    def found() -> Address:
        address = parts.datasets.resolve(namespace=asked.namespace, name=asked.name)
        parts.storage.partitions(address)
        return address

    address = await on(parts.limiters.rest, found)
    name = f"download_data_{asked.namespace}_{asked.name}.tar.gz"
    return sent(members(parts.storage, address, "data", header=header), name, parts.limiters.rest)


def _described(parts: ClientParts, asked: wire.TableQuery) -> dict[str, Any]:
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
