"""``/api/v1/models``: the models that trainings left at this node. Real HTTP statuses."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gateway.admin.deps import AfterText, Answer, Limit, answering, noted
from gateway.data.model_archive import part_as_dict
from gateway.data.models import Models
from gateway.data.storage import FileStorage
from gateway.domain import models
from gateway.domain.models import Kept
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, TooLarge
from gateway.http.duplicate_keys import keys_once
from gateway.http.pagination import page_of
from gateway.ports import Limiters

ONE = "/api/v1/models/{model_id}/{version}"
_DEPLOY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "nodes": {
            "type": "array",
            "items": {"type": "string"},
            "description": "who may predict with it beside the parties of its training; absent: as it was",
        }
    },
    "example": {"nodes": ["JG0100003300000030"]},
}
_ARCHIVE = {"type": "string", "format": "binary", "example": "(the bytes of the archive)"}
_EMPTY: dict[str, Any] = {"type": "object", "description": "nothing is read of it", "example": {}}


@dataclass(frozen=True)
class ModelParts:
    """What the paths are built of."""

    models: Models
    storage: FileStorage
    limiters: Limiters
    largest: int
    """bytes of an archive"""


def router(parts: ModelParts) -> APIRouter:
    """Return the paths of models whose bodies are small."""
    router = APIRouter(tags=["operators"])
    run = answering(parts.limiters)
    models = parts.models

    @router.get("/api/v1/models", summary="Models at this node, the newest version first", response_model=None)
    async def listed(
        model_id: Annotated[str | None, Query(description="only versions of this model")] = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``next``: what to send as ``after`` for the next page; null on the last one."""

        def work() -> dict[str, Any]:
            page = page_of(_versions(models.all(model_id)), _place, after, limit, newest_first=True)
            return {"models": [brief(found) for found in page.entries], "total": page.total, "next": page.next}

        return await run(work)

    @router.get(ONE, summary="A version: its parties, and the files that lie here", response_model=None)
    async def show(model_id: str, version: str, verify: bool = False) -> Any:
        """``verify``: compare the files with their checksums; ``damage`` then lists what is gone or changed."""

        def work() -> dict[str, Any]:
            shown = full(models.get(model_id, version))
            return {**shown, "damage": models.damaged(model_id, version)} if verify else shown

        return await run(work)

    @router.post(
        f"{ONE}/deploy",
        summary="Let jobs predict with a version",
        response_model=None,
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": _DEPLOY}}}},
    )
    async def deploy(model_id: str, version: str, request: Request) -> Any:
        """The body is optional: ``nodes`` may use it beside the parties of its training."""
        data = await request.body()
        await keys_once(data)
        return await run(
            lambda: _changed(
                request, models, model_id, version, lambda: models.deploy(model_id, version, _nodes(data))
            )
        )

    @router.post(
        f"{ONE}/undeploy",
        summary="Take no further predicting job with a version",
        response_model=None,
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": _EMPTY}}}},
    )
    async def undeploy(request: Request, model_id: str, version: str) -> Any:
        return await run(
            lambda: _changed(request, models, model_id, version, lambda: models.undeploy(model_id, version))
        )

    @router.delete(ONE, summary="Delete a version and its files, unless deployed or in use", response_model=None)
    async def delete(request: Request, model_id: str, version: str) -> Any:
        def work() -> dict[str, Any]:
            gone = brief(models.delete(model_id, version))
            noted(request, gone, None)
            return {"deleted": gone}

        return await run(work)

    @router.get(
        f"{ONE}/export",
        summary="A version as a zip: a manifest with checksums, then the files",
        response_class=Response,
        responses={200: {"content": {"application/zip": {}}}},
    )
    async def export(model_id: str, version: str) -> Any:
        found = await run(lambda: models.export(model_id, version))
        if isinstance(found, Response):
            return found
        name = quote(f"{model_id}-{version}.zip", safe="")
        headers = {
            "content-disposition": f"attachment; filename=\"model.zip\"; filename*=UTF-8''{name}",
            "x-content-type-options": "nosniff",
        }
        return StreamingResponse(_pieces(found, parts), media_type="application/zip", headers=headers)

    return router


def import_router(parts: ModelParts) -> APIRouter:
    """Return the path that takes an archive; it bounds its body itself."""
    router = APIRouter(tags=["operators"])
    run = answering(parts.limiters)

    @router.post(
        "/api/v1/models/import",
        summary="Add a version from an archive that another node exported",
        response_model=None,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/zip": {"schema": _ARCHIVE}},
            }
        },
    )
    async def take_in(request: Request) -> Any:
        """The body is the archive. Checksums and names are checked before anything is kept."""
        return await _take_in(parts, request, run)

    return router


async def _take_in(parts: ModelParts, request: Request, run: Answer) -> Any:
    staging = await anyio.to_thread.run_sync(parts.storage.staging, limiter=parts.limiters.rest)
    try:
        file = staging.folder / "archive.zip"
        too_large = await _saved(request, file, parts)
        if too_large is not None:
            return too_large
        return await run(lambda: brief(parts.models.take_in(file)))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(staging.close, limiter=parts.limiters.rest)


async def _saved(request: Request, file: Path, parts: ModelParts) -> JSONResponse | None:
    """Write the body into a file; return the refusal of one that is too large."""
    size = 0
    out = await anyio.to_thread.run_sync(lambda: file.open("wb"), limiter=parts.limiters.rest)
    try:
        async for data in request.stream():
            size += len(data)
            if size > parts.largest:
                error = TooLarge(f"the archive has more than {parts.largest} bytes (data.max_upload_bytes)")
                body = {"code": error.code, "msg": f"{error.reason}: {error.message}"}
                return JSONResponse({**body, "data": {"reason": error.reason}}, status_code=error.code)
            await anyio.to_thread.run_sync(out.write, data, limiter=parts.limiters.rest)
    finally:
        await anyio.to_thread.run_sync(out.close, limiter=parts.limiters.rest)
    return None


def _changed(
    request: Request, models: Models, model_id: str, version: str, change: Callable[[], list[Kept]]
) -> dict[str, Any]:
    before, after = brief(models.get(model_id, version)), brief(change())
    keys = ("deployed", "granted")
    noted(request, {key: before[key] for key in keys}, {key: after[key] for key in keys})
    return after


def _versions(kept: list[Kept]) -> list[list[Kept]]:
    found: dict[tuple[str, str], list[Kept]] = {}
    for one in kept:
        found.setdefault((one.model.model_id, one.model.version), []).append(one)
    return list(found.values())


def _place(kept: list[Kept]) -> tuple[str, str, str]:
    first = kept[0].model
    return first.created_at.astimezone(UTC).isoformat(timespec="microseconds"), first.model_id, first.version


def brief(kept: list[Kept]) -> dict[str, Any]:
    """Return a version as lists show it."""
    first = kept[0].model
    deployed = kept[0].deployed_at
    files = [file for one in kept for part in one.model.parts for file in part.files]
    return {
        "model_id": first.model_id,
        "version": first.version,
        "deployed": deployed is not None,
        "deployed_at": None if deployed is None else datetime.fromtimestamp(deployed, UTC).isoformat(),
        "granted": list(kept[0].granted),
        "here": [one.model.party.label for one in kept],
        "imported": first.imported,
        "job_id": first.job_id,
        "flow_id": first.flow_id,
        "created_at": first.created_at.isoformat(),
        "bytes": sum(file.size for file in files),
        "url": _url(first.model_id, first.version),
    }


def full(kept: list[Kept]) -> dict[str, Any]:
    """Return a version with its parties and files."""
    return {
        **brief(kept),
        "parties": [{"role": p.role, "index": p.index, "node": p.node} for p in kept[0].model.parties],
        "models": [
            {
                "party": one.model.party.label,
                "parts": [{**part_as_dict(part), **part.address.as_dict()} for part in one.model.parts],
            }
            for one in kept
        ],
    }


def model_of(spec: JobSpec) -> dict[str, Any] | None:
    """Return which version a job makes or predicts with; None where it is about no model."""
    name = models.named(spec)
    if not name.predicts and not models.makes_model(spec):
        return None
    return {"model_id": name.model_id, "version": name.version, "url": _url(name.model_id, name.version)}


def _url(model_id: str, version: str) -> str:
    return f"/api/v1/models/{quote(model_id, safe='')}/{quote(version, safe='')}"


def _nodes(data: bytes) -> list[str] | None:
    if not data.strip():
        return None
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid([Problem("(body)", "must be empty or a JSON object", str(error))]) from error
    if not isinstance(body, dict):
        raise Invalid([Problem("(body)", "must be empty or a JSON object", type(body).__name__)])
    problems = [Problem(key, "is no key that is known here: nodes") for key in list(body)[:20] if key != "nodes"]
    nodes = body.get("nodes")
    if nodes is not None and not (isinstance(nodes, list) and all(isinstance(n, str) for n in nodes)):
        problems.append(Problem("nodes", "must be a list of node ids", nodes))
    if problems:
        raise Invalid(problems)
    return nodes


async def _pieces(pieces: Iterator[bytes], parts: ModelParts) -> AsyncIterator[bytes]:
    """Yield an archive piece by piece; no thread is held while the reader is slow."""
    while (piece := await anyio.to_thread.run_sync(next, pieces, None, limiter=parts.limiters.rest)) is not None:
        if piece:
            yield piece
