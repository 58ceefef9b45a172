"""``/api/v1/models``: the models that trainings left at this node."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from gateway.admin.deps import (
    AfterText,
    Empty,
    Input,
    JobServices,
    Limit,
    Reply,
    api_router,
    record_change,
)
from gateway.admin.outputs import attachment
from gateway.admin.responses import data as responses
from gateway.data.combined_storage import Storages
from gateway.data.model_archive import part_as_dict
from gateway.data.models import Models
from gateway.data.reception import too_large
from gateway.domain import models as model_rules
from gateway.domain.models import Kept
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, NotFound
from gateway.http.pagination import page_of
from gateway.runtime.context import current_trace, new_trace_id

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


# ---------------------------------------------------------------- fields of a version
# A version is a list with one record per party that has a part at this node.


def _url_of(model_id: str, version: str) -> str:
    return f"/api/v1/models/{quote(model_id, safe='')}/{quote(version, safe='')}"


def version_fields(records: list[Kept]) -> dict[str, Any]:
    """Return a version in responses."""
    record = records[0]  # what is read from it is the same in all of them
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
        "bytes": sum(map(_bytes, records)),
        "url": _url_of(model.model_id, model.version),
    }


def _bytes(record: Kept) -> int:
    """Return the size of a party's part of a model."""
    total = 0
    for part in record.model.parts:
        total += sum(file.size for file in part.files)
    return total


# ---------------------------------------------------------------- bodies


class Deployment(Input):
    """Who may predict with a version."""

    nodes: list[str] | None = Field(
        default=None,
        max_length=1000,
        description="nodes beside the parties of its training; absent: as it was",
    )


class Prediction(Input):
    """What a prediction needs beyond its model."""

    datasets: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "party, such as guest.0 -> id of the table that takes the place of the one it "
            "trained with"
        ),
    )
    dry_run: bool = Field(default=False, description="only tell the differences; create no job")


_EXAMPLE = {
    "datasets": {"guest.0": "bank#september", "host.0": "shop#september"},
    "dry_run": True,
}


def router(
    models: Models,
    services: JobServices,
    limiter: CapacityLimiter,
) -> APIRouter:
    """Return the paths with small bodies; requests to partners run in threads of the limiter."""
    router = api_router()

    def change(
        request: Request,
        model_id: str,
        version: str,
        apply: Callable[[], list[Kept]],
    ) -> Response:
        """Apply a change of who may use a version, and note it for the audit log."""
        before = version_fields(models.get(model_id, version))
        after = version_fields(apply())
        record_change(request, _usage(before), _usage(after))
        return Reply(after)

    @router.get(
        "/models",
        summary="Models at this node, the newest version first",
        response_model=responses.ModelsPage,
    )
    def listed(
        model_id: Annotated[str | None, Query(description="only versions of this model")] = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Response:
        versions = _by_version(models.all(model_id))
        page = page_of(
            "models",
            versions,
            _page_key,
            after,
            limit,
            version_fields,
            newest_first=True,
        )
        return Reply(page)

    @router.get(
        _VERSION,
        summary="A version: its parties, and the files that lie here",
        response_model=responses.FullModel,
    )
    def one(
        model_id: str,
        version: str,
        verify: bool = False,
    ) -> Response:
        """``verify``: compare the files with their checksums; ``damage`` then lists missing and
        changed files.
        """
        content = _in_full(models.get(model_id, version))
        if verify:
            content["damage"] = models.damages(model_id, version)
        return Reply(content)

    @router.post(
        f"{_VERSION}/deploy",
        summary="Let jobs predict with a version",
        response_model=responses.Model,
    )
    def deploy(
        model_id: str,
        version: str,
        request: Request,
        body: Annotated[
            Deployment, Body(examples=[{"nodes": ["JG0100003300000030"]}])
        ] = Deployment(),
    ) -> Response:
        """The body is optional; its ``nodes`` may use the version like the parties of its
        training.
        """
        apply = partial(models.deploy, model_id, version, body.nodes)
        return change(request, model_id, version, apply)

    @router.post(
        f"{_VERSION}/undeploy",
        summary="Take no further predicting job with a version",
        response_model=responses.Model,
    )
    def undeploy(
        request: Request,
        model_id: str,
        version: str,
        body: Empty = None,
    ) -> Response:
        apply = partial(models.undeploy, model_id, version)
        return change(request, model_id, version, apply)

    @router.delete(
        _VERSION,
        summary="Delete a version and its files, unless deployed or in use",
        response_model=responses.DeletedModel,
    )
    def delete(
        request: Request,
        model_id: str,
        version: str,
    ) -> Response:
        deleted = version_fields(models.delete(model_id, version))
        record_change(request, deleted, None)
        return Reply({"deleted": deleted})

    @router.get(
        f"{_VERSION}/export",
        summary="A version as a zip: a manifest with checksums, then the files",
        response_class=StreamingResponse,
        responses=_ARCHIVE_RESPONSE,
    )
    def export(model_id: str, version: str) -> Response:
        archive = models.export(model_id, version)
        headers = attachment(f"{model_id}-{version}.zip")
        return StreamingResponse(archive, media_type="application/zip", headers=headers)

    @router.post(
        f"{_VERSION}/predict",
        summary="Predict with a version: its training again, with other tables",
        response_model=responses.PredictionJob,
    )
    async def prediction(
        model_id: str,
        version: str,
        body: Annotated[Prediction, Body(examples=[_EXAMPLE])],
    ) -> Response:
        """``differences``: what the job has that its training had not; ``job_id`` is empty for a
        dry run.
        """
        submit = partial(_predict, models, services, model_id, version, body)
        return Reply(await anyio.to_thread.run_sync(submit, limiter=limiter))

    return router


def import_router(
    models: Models,
    storage: Storages,
    largest: int,
) -> APIRouter:
    """Return the path for importing an archive of at most ``largest`` bytes, which it checks
    itself.
    """
    router = api_router()

    @router.post(
        "/models/import",
        summary="Add a version from an archive that another node exported",
        response_model=responses.Model,
        openapi_extra=_ARCHIVE_BODY,
    )
    async def take_in(request: Request) -> Response:
        """The body is the archive. Checksums and names are checked before anything is kept."""
        staging = await run_in_threadpool(storage.staging)
        try:
            file = staging.folder / "archive.zip"
            await save_body(request, file, largest)
            records = await run_in_threadpool(models.import_archive, file, largest)
            return Reply(version_fields(records))
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(staging.close)

    return router


async def save_body(
    request: Request,
    path: Path,
    largest: int,
) -> None:
    """Write the body of a request to a file. Raises `TooLarge` beyond ``largest`` bytes."""
    size = 0
    async with await anyio.open_file(path, "wb") as file:
        async for data in request.stream():
            size += len(data)
            if size > largest:
                raise too_large(largest)
            await file.write(data)


def _predict(
    models: Models,
    services: JobServices,
    model_id: str,
    version: str,
    body: Prediction,
) -> dict[str, Any]:
    """Submit the prediction, unless it is a dry run; return its id and its differences.

    Raises `NotFound` if this node did not initiate the training, `Invalid`.
    """
    training_id = models.get(model_id, version)[0].model.job_id
    training = services.store.jobs.find(training_id)
    if training is None or training.spec.initiator != services.peers.node:
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
    """Group records by model and version."""
    versions: dict[tuple[str, str], list[Kept]] = {}
    for record in records:
        key = (record.model.model_id, record.model.version)
        versions.setdefault(key, []).append(record)
    return versions.values()


def _page_key(records: list[Kept]) -> tuple[str, str, str]:
    model = records[0].model
    created_at = model.created_at.astimezone(UTC).isoformat(timespec="microseconds")
    return created_at, model.model_id, model.version


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
        **version_fields(records),
        "parties": records[0].model.parties,
        "models": models,
    }


def model_of(spec: JobSpec) -> dict[str, Any] | None:
    """Return the version that a job trains or predicts with; None for a job without model."""
    name = model_rules.named(spec)
    uses_model = name.predicts or model_rules.makes_model(spec)
    if not uses_model:
        return None
    return {
        "model_id": name.model_id,
        "version": name.version,
        "url": _url_of(name.model_id, name.version),
    }
