"""``/v2/data/component/upload``: the paths by which FATE 2.2's client uploads tables.

FATE makes a job of an upload and its tools wait for it; here it is over when it is answered, and its ``job_id`` is
one that ``job/query`` knows as done.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol
from uuid import uuid4

from fastapi import Body, Request

from adapter.fate.codes import Code
from adapter.fate.envelope import FateRoute, coded, ok
from adapter.fate.tools.jobs import UPLOAD
from gateway.domain.dataset_model import Dataset
from gateway.http.paths import Paths

OTHERS_OF_FATE = ("role", "party_id", "destroy", "storage_engine", "address")
"""what FATE's clients may send beside the keys that mean something here"""

_TABLE = coded({"DATASET_EXISTS": Code.TABLE_EXISTS, "CONFLICT": Code.TABLE_EXISTS})
_LARGEST_BODY = 1024 * 1024
_EXAMPLE = {
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


def router(uploads: Uploads) -> Paths:
    """Return the upload paths of FATE's client."""
    router = Paths(tags=["fate client"], route_class=FateRoute)

    @router.post(
        "/v2/data/component/upload",
        summary="Store a table from the server's disk",
        openapi_extra=_TABLE,
        max_body_size=_LARGEST_BODY,
    )
    async def upload(body: Annotated[dict[str, Any], Body(examples=[_EXAMPLE])]) -> dict[str, Any]:
        return _answer(await uploads.from_path(_named(body)))

    @router.post(
        "/v2/data/component/upload/file",
        summary="Store a table that comes with the request",
        openapi_extra={
            **_TABLE,
            "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object"}}}},
        },
    )
    async def upload_file(request: Request) -> dict[str, Any]:
        return _answer(await uploads.from_form(request, _named))

    return router


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read here of what FATE's client sends; without a name the table gets one."""
    kept = {k: v for k, v in fields.items() if k not in OTHERS_OF_FATE}
    if not kept.get("namespace") and not kept.get("name"):
        kept |= {"namespace": "upload", "name": uuid4().hex}
    return kept


def _answer(dataset: Dataset) -> dict[str, Any]:
    data = {"namespace": dataset.namespace, "name": dataset.name, "dataset_id": dataset.dataset_id}
    return ok({**data, "count": dataset.count}, job_id=UPLOAD + dataset.dataset_id)
