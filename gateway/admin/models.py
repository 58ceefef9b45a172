"""``/api/v1/models``: the models that trainings left at this node.

A version of a model is a list of records, one for each party that has a part of it at this node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Body, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from gateway.admin.deps import (
    AfterText,
    Empty,
    Input,
    Limit,
    Reply,
    api_router,
    record_change,
    service,
)
from gateway.admin.outputs import attachment
from gateway.admin.responses import data as responses
from gateway.data.combined_storage import Storages
from gateway.data.model_archive import part_as_dict
from gateway.data.models import Models
from gateway.data.reception import storage_errors, too_large
from gateway.domain import models as model_rules
from gateway.domain.model_permits import model_digest
from gateway.domain.models import Kept
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import Invalid, NotFound
from gateway.http.pagination import page_of
from gateway.jobs.job_requests import JobRequests
from gateway.runtime.context import current_trace, new_trace_id
from gateway.store.store import Store

_VERSION = "/models/{model_id}/{version}"
_ARCHIVE = {
    "type": "string",
    "format": "binary",
    "example": "(the bytes of the archive)",
}
_ARCHIVE_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/zip": {"schema": _ARCHIVE}}}
}
_ARCHIVE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": _ARCHIVE}},
    }
}


class Deployment(Input):
    """Who may predict with a version."""

    nodes: list[str] | None = Field(
        default=None,
        max_length=1000,
        description="nodes besides the parties of its training; absent: as it was",
    )


class Prediction(Input):
    """What a prediction needs beyond its model."""

    datasets: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "party, such as guest.0 -> id of the dataset that replaces the one that it trained with"
        ),
    )
    dry_run: bool = Field(default=False, description="only tell the differences; create no job")


_PREDICTION_EXAMPLE = {
    "datasets": {"guest.0": "bank#september", "host.0": "shop#september"},
    "dry_run": True,
}


@dataclass(frozen=True)
class ModelServices:
    """The services that the paths of models use."""

    node: NodeId  # this node
    models: Models
    storage: Storages
    store: Store
    job_requests: JobRequests
    max_archive: int  # largest size of an imported archive in bytes
    limiter: CapacityLimiter  # threads of requests to partners


_Services = Annotated[ModelServices, Depends(service(ModelServices))]
# The ``name`` of a path is the beginning of its published operation id, where that differs from the
# name of the handler.
router = api_router()
# A separate router, mounted without a limit for bodies: `import_version` limits the archive.
import_router = api_router()


@router.get(
    "/models",
    summary="Models at this node, the newest version first",
    response_model=responses.ModelsPage,
    name="listed",
)
def list_models(
    services: _Services,
    model_id: Annotated[str | None, Query(description="only versions of this model")] = None,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    versions = _by_version(services.models.all(model_id))
    page = page_of(
        "models",
        versions,
        _sort_key,
        after,
        limit,
        _version_fields,
        newest_first=True,
    )
    return Reply(page)


@router.get(
    _VERSION,
    summary="A version: its parties, and the files that lie here",
    response_model=responses.FullModel,
    name="one",
)
def get_version(
    services: _Services,
    model_id: str,
    version: str,
    verify: bool = False,
) -> Response:
    """``verify``: compare the files with their checksums; ``damage`` then lists missing and
    changed files.
    """
    content = _in_full(services.models.get(model_id, version))
    if verify:
        content["damage"] = services.models.damages(model_id, version)
    return Reply(content)


@router.post(
    f"{_VERSION}/deploy",
    summary="Deploy a model version for predictions",
    response_model=responses.Model,
)
def deploy(
    request: Request,
    services: _Services,
    model_id: str,
    version: str,
    body: Annotated[Deployment, Body(examples=[{"nodes": ["JG0100003300000030"]}])] = Deployment(),
) -> Response:
    """The body is optional; its ``nodes`` may use the version like the parties of its
    training.
    """
    before = services.models.get(model_id, version)
    after = services.models.deploy(model_id, version, body.nodes)
    return _record_and_reply(request, before, after)


@router.post(
    f"{_VERSION}/undeploy",
    summary="Withdraw a model version: no further job predicts with it",
    response_model=responses.Model,
)
def undeploy(
    request: Request,
    services: _Services,
    model_id: str,
    version: str,
    body: Empty = None,
) -> Response:
    before = services.models.get(model_id, version)
    after = services.models.undeploy(model_id, version)
    return _record_and_reply(request, before, after)


@router.delete(
    _VERSION,
    summary="Delete a model version and its files, unless deployed or in use",
    response_model=responses.DeletedModel,
)
def delete(
    request: Request,
    services: _Services,
    model_id: str,
    version: str,
) -> Response:
    deleted = _version_fields(services.models.delete(model_id, version))
    record_change(request, deleted, None)
    return Reply({"deleted": deleted})


@router.get(
    f"{_VERSION}/export",
    summary="A version as a zip: a manifest with checksums, then the files",
    response_class=StreamingResponse,
    responses=_ARCHIVE_RESPONSE,
)
def export(services: _Services, model_id: str, version: str) -> Response:
    archive = services.models.export(model_id, version)
    headers = attachment(f"{model_id}-{version}.zip")
    return StreamingResponse(archive, media_type="application/zip", headers=headers)


@router.post(
    f"{_VERSION}/predict",
    summary="Predict with a model version: its training's flow with other tables",
    response_model=responses.PredictionJob,
    name="prediction",
)
async def predict(
    services: _Services,
    model_id: str,
    version: str,
    body: Annotated[Prediction, Body(examples=[_PREDICTION_EXAMPLE])],
) -> Response:
    """``differences``: values of the job that differ from its training's; ``job_id`` is empty for
    a dry run.
    """
    job = await anyio.to_thread.run_sync(
        _submit_prediction,
        services,
        model_id,
        version,
        body,
        limiter=services.limiter,
    )
    return Reply(job)


@import_router.post(
    "/models/import",
    summary="Import a model version from another node's archive",
    response_model=responses.Model,
    openapi_extra=_ARCHIVE_BODY,
    name="take_in",
)
async def import_version(request: Request, services: _Services) -> Response:
    """The body is the archive. Checksums and names are checked before anything is kept."""
    staging = await run_in_threadpool(services.storage.staging)
    try:
        file = staging.folder / "archive.zip"
        await save_body(request, file, services.max_archive)
        records = await run_in_threadpool(
            services.models.import_archive, file, services.max_archive
        )
        return Reply(_version_fields(records))
    finally:
        # Shielded, so that the folder is deleted even if the request is cancelled.
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(staging.close)


async def save_body(
    request: Request,
    path: Path,
    largest: int,
) -> None:
    """Write the body of a request to a file.

    Raises `TooLarge` beyond ``largest`` bytes, and `GatewayError` (STORAGE_FAILED) if the disk does
    not take them.
    """
    size = 0
    with storage_errors():
        async with await anyio.open_file(path, "wb") as file:
            async for data in request.stream():
                size += len(data)
                if size > largest:
                    raise too_large(largest)
                await file.write(data)


def _submit_prediction(
    services: ModelServices,
    model_id: str,
    version: str,
    body: Prediction,
) -> dict[str, Any]:
    """Submit the prediction, unless it is a dry run; return the job's id and its differences.

    Raises `NotFound` unless this node both initiated and scheduled the training, and `Invalid` for
    datasets that the training's parties cannot take.
    """
    training_id = services.models.get(model_id, version)[0].model.job_id
    training = services.store.jobs.find(training_id)  # None for a job that another node scheduled
    if training is None or training.spec.initiator != services.node:
        text = f"this node has no record of {training_id} as its initiator and scheduling node"
        raise NotFound(text, reason="TRAINING_UNKNOWN")
    spec, changes, problems = model_rules.prediction(
        training.spec, model_id, version, body.datasets
    )
    if problems:
        raise Invalid(problems)
    job_id = ""
    if not body.dry_run:
        new_id = services.job_requests.new_id(spec.nodes)
        trace_id = current_trace() or new_trace_id()
        job_id = services.job_requests.submit(replace(spec, job_id=new_id, trace_id=trace_id))
    return {
        "job_id": job_id,
        "differences": [change._asdict() for change in changes],
    }


def _by_version(records: Iterable[Kept]) -> Iterable[list[Kept]]:
    """Group records by model and version; each group is a version of a model."""
    versions: dict[tuple[str, str], list[Kept]] = {}
    for record in records:
        key = (record.model.model_id, record.model.version)
        versions.setdefault(key, []).append(record)
    return versions.values()


def _sort_key(records: list[Kept]) -> tuple[str, str, str]:
    model = records[0].model
    created_at = model.created_at.astimezone(UTC).isoformat(timespec="microseconds")
    return created_at, model.model_id, model.version


def _record_and_reply(
    request: Request,
    before: list[Kept],
    after: list[Kept],
) -> Response:
    """Record for the audit log who may use a version, and reply with the changed version."""
    fields_before = _version_fields(before)
    fields_after = _version_fields(after)
    record_change(request, _usage(fields_before), _usage(fields_after))
    return Reply(fields_after)


def _usage(version: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a version that say who may use it."""
    return {
        "deployed": version["deployed"],
        "granted": version["granted"],
    }


def _in_full(records: list[Kept]) -> dict[str, Any]:
    """Return a version with its parties, and the parts and files at this node."""
    models = []
    for record in records:
        parts = [part_as_dict(part) | part.address.as_dict() for part in record.model.parts]
        models.append({"party": record.model.party.label, "parts": parts})
    return {
        **_version_fields(records),
        "digest": model_digest(record.model for record in records),
        "parties": records[0].model.parties,
        "models": models,
    }


def model_of(spec: JobSpec) -> dict[str, Any] | None:
    """Return the version that a job trains or predicts with; None for a job without model."""
    model = model_rules.model_version(spec)
    uses_model = model.predicts or model_rules.makes_model(spec)
    if not uses_model:
        return None
    return {
        "model_id": model.model_id,
        "version": model.version,
        "url": _url_of(model.model_id, model.version),
    }


def _version_fields(records: list[Kept]) -> dict[str, Any]:
    """Return a version as responses show it."""
    record = records[0]  # all records of a version are equal in the fields that are read below
    model = record.model
    deployed_at = None
    if record.deployed_at is not None:
        deployed_at = datetime.fromtimestamp(record.deployed_at, UTC)
    return {
        "model_id": model.model_id,
        "version": model.version,
        "deployed": record.deployed_at is not None,
        "deployed_at": deployed_at,
        "granted": list(record.granted),
        "here": [record.model.party.label for record in records],
        "imported": model.imported,
        "job_id": model.job_id,
        "flow_id": model.flow_id,
        "created_at": model.created_at,
        "bytes": sum(map(_size, records)),
        "url": _url_of(model.model_id, model.version),
    }


def _size(record: Kept) -> int:
    """Return the bytes of all files of a party's model."""
    total = 0
    for part in record.model.parts:
        total += sum(file.size for file in part.files)
    return total


def _url_of(model_id: str, version: str) -> str:
    return f"/api/v1/models/{quote(model_id, safe='')}/{quote(version, safe='')}"
