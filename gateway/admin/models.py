"""``/api/v1/models``: the models that trainings left at this node."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
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
    AdminParts,
    AfterText,
    Empty,
    Input,
    Limit,
    Object,
    Paths,
    Reply,
    View,
    noted,
    paged,
    shape,
)
from gateway.admin.outputs import attachment
from gateway.data.combined_storage import Storages
from gateway.data.model_archive import part_as_dict
from gateway.data.models import Models
from gateway.data.upload import too_large
from gateway.domain import models as model_rules
from gateway.domain.models import Kept
from gateway.domain.spec import JobSpec, Party
from gateway.errors import Invalid, NotFound
from gateway.http.pagination import page_of
from gateway.runtime.context import current_trace, new_trace_id

ONE = "/models/{model_id}/{version}"
_ARCHIVE = {
    "type": "string",
    "format": "binary",
    "example": "(the bytes of the archive)",
}
_ARCHIVE_BODY = {
    "requestBody": {"required": True, "content": {"application/zip": {"schema": _ARCHIVE}}}
}


def _url(model_id: str, version: str) -> str:
    return f"/api/v1/models/{quote(model_id, safe='')}/{quote(version, safe='')}"


def _deployed_at(kept: list[Kept]) -> datetime | None:
    at = kept[0].deployed_at
    return None if at is None else datetime.fromtimestamp(at, UTC)


_GRANTED = Annotated[
    list[str], Field(description="nodes that may use it beside its training's parties")
]
_HERE = Annotated[list[str], Field(description="the parties whose parts are at this node")]
brief = View(
    "Model",
    model_id=(str, lambda kept: kept[0].model.model_id),
    version=(str, lambda kept: kept[0].model.version),
    deployed=(bool, lambda kept: kept[0].deployed_at is not None),
    deployed_at=(datetime | None, _deployed_at),
    granted=(_GRANTED, lambda kept: list(kept[0].granted)),
    here=(_HERE, lambda kept: [one.model.party.label for one in kept]),
    imported=(bool, lambda kept: kept[0].model.imported),
    job_id=(str, lambda kept: kept[0].model.job_id),
    flow_id=(str, lambda kept: kept[0].model.flow_id),
    created_at=(datetime, lambda kept: kept[0].model.created_at),
    bytes=(
        int,
        lambda kept: sum(f.size for one in kept for part in one.model.parts for f in part.files),
    ),
    url=(str, lambda kept: _url(kept[0].model.model_id, kept[0].model.version)),
)
"""how a version is shown, which is a list of its parties' parts here"""
_FULL = shape(
    "FullModel",
    **brief.types,
    parties=[Party],
    models=[Object],
)


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
        description="party, such as guest.0 -> id of the table that takes the place of the one it trained with",
    )
    dry_run: bool = Field(default=False, description="only tell the differences; create no job")


_EXAMPLE = {"datasets": {"guest.0": "bank#september", "host.0": "shop#september"}, "dry_run": True}
_PREDICTION = shape(
    "PredictionJob",
    job_id=str,
    differences=[
        shape(
            "Difference",
            path=str,
            before=Any,
            after=Any,
        )
    ],
)


def router(
    models: Models,
    parts: AdminParts,
    limiter: CapacityLimiter,
) -> APIRouter:
    """Return the paths whose bodies are small; requests to partners are made in threads of the limiter."""
    paths = Paths()

    def changed(
        request: Request,
        model_id: str,
        version: str,
        change: Callable[[], list[Kept]],
    ) -> Response:
        before, after = brief(models.get(model_id, version)), brief(change())
        keys = ("deployed", "granted")
        noted(request, {key: before[key] for key in keys}, {key: after[key] for key in keys})
        return Reply(after)

    @paths(
        "GET",
        "/models",
        "Models at this node, the newest version first",
        paged("models", brief.model),
    )
    def listed(
        model_id: Annotated[str | None, Query(description="only versions of this model")] = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Response:
        versions: dict[tuple[str, str], list[Kept]] = {}
        for one in models.all(model_id):
            versions.setdefault((one.model.model_id, one.model.version), []).append(one)
        return Reply(
            page_of("models", versions.values(), _place, after, limit, brief, newest_first=True)
        )

    @paths("GET", ONE, "A version: its parties, and the files that lie here", _FULL)
    def one(
        model_id: str,
        version: str,
        verify: bool = False,
    ) -> Response:
        """``verify``: compare the files with their checksums; ``damage`` then lists what is gone or changed."""
        kept = models.get(model_id, version)
        parts = {
            one.model.party.label: [
                part_as_dict(part) | part.address.as_dict() for part in one.model.parts
            ]
            for one in kept
        }
        shown = {
            **brief(kept),
            "parties": kept[0].model.parties,
            "models": [{"party": party, "parts": own} for party, own in parts.items()],
        }
        return Reply({**shown, "damage": models.damaged(model_id, version)} if verify else shown)

    @paths("POST", f"{ONE}/deploy", "Let jobs predict with a version", brief.model)
    def deploy(
        model_id: str,
        version: str,
        request: Request,
        body: Annotated[
            Deployment, Body(examples=[{"nodes": ["JG0100003300000030"]}])
        ] = Deployment(),
    ) -> Response:
        """The body is optional: ``nodes`` may use it beside the parties of its training."""
        return changed(
            request, model_id, version, lambda: models.deploy(model_id, version, body.nodes)
        )

    @paths("POST", f"{ONE}/undeploy", "Take no further predicting job with a version", brief.model)
    def undeploy(
        request: Request,
        model_id: str,
        version: str,
        body: Empty = None,
    ) -> Response:
        return changed(request, model_id, version, lambda: models.undeploy(model_id, version))

    @paths(
        "DELETE",
        ONE,
        "Delete a version and its files, unless deployed or in use",
        shape("DeletedModel", deleted=brief.model),
    )
    def delete(
        request: Request,
        model_id: str,
        version: str,
    ) -> Response:
        deleted = brief(models.delete(model_id, version))
        noted(request, deleted, None)
        return Reply({"deleted": deleted})

    @paths(
        "GET",
        f"{ONE}/export",
        "A version as a zip: a manifest with checksums, then the files",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/zip": {"schema": _ARCHIVE}}}},
    )
    def export(model_id: str, version: str) -> Response:
        headers = attachment(f"{model_id}-{version}.zip")
        return StreamingResponse(
            models.export(model_id, version), media_type="application/zip", headers=headers
        )

    def predict(
        model_id: str,
        version: str,
        body: Prediction,
    ) -> dict[str, Any]:
        trained_by = models.get(model_id, version)[0].model.job_id
        job = parts.store.jobs.find(trained_by)
        if job is None or job.spec.initiator != parts.peers.node:
            text = f"this node has no record of {trained_by} as its initiator and scheduling node"
            raise NotFound(text, reason="TRAINING_UNKNOWN")
        spec, changes, problems = model_rules.prediction(job.spec, model_id, version, body.datasets)
        if problems:
            raise Invalid(problems)
        job_id = ""
        if not body.dry_run:
            new_id = parts.coordinator.new_id(spec.nodes)
            job_id = parts.coordinator.submit(
                replace(spec, job_id=new_id, trace_id=current_trace() or new_trace_id())
            )
        return {"job_id": job_id, "differences": [one._asdict() for one in changes]}

    @paths(
        "POST",
        f"{ONE}/predict",
        "Predict with a version: its training again, with other tables",
        _PREDICTION,
    )
    async def prediction(
        model_id: str,
        version: str,
        body: Annotated[Prediction, Body(examples=[_EXAMPLE])],
    ) -> Response:
        """``differences``: what the job has that its training had not; ``job_id`` is empty for a dry run."""
        made = await anyio.to_thread.run_sync(
            lambda: predict(model_id, version, body), limiter=limiter
        )
        return Reply(made)

    return paths.router


def import_router(
    models: Models,
    storage: Storages,
    largest: int,
) -> APIRouter:
    """Return the path that takes an archive of at most so many bytes; it limits its body itself."""
    paths = Paths()

    @paths(
        "POST",
        "/models/import",
        "Add a version from an archive that another node exported",
        brief.model,
        openapi_extra=_ARCHIVE_BODY,
    )
    async def take_in(request: Request) -> Response:
        """The body is the archive. Checksums and names are checked before anything is kept."""
        staging = await run_in_threadpool(storage.staging)
        try:
            file = staging.folder / "archive.zip"
            await _save(request, file, largest)
            return Reply(brief(await run_in_threadpool(models.import_archive, file, largest)))
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(staging.close)

    return paths.router


async def _save(
    request: Request,
    path: Path,
    largest: int,
) -> None:
    """Write the body into a file. Raises `TooLarge`."""
    size = 0
    async with await anyio.open_file(path, "wb") as file:
        async for data in request.stream():
            size += len(data)
            if size > largest:
                raise too_large(largest)
            await file.write(data)


def _place(kept: list[Kept]) -> tuple[str, str, str]:
    first = kept[0].model
    return (
        first.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        first.model_id,
        first.version,
    )


def model_of(spec: JobSpec) -> dict[str, Any] | None:
    """Return which version a job trains or predicts with; None where it concerns no model."""
    name = model_rules.named(spec)
    if not name.predicts and not model_rules.makes_model(spec):
        return None
    return {
        "model_id": name.model_id,
        "version": name.version,
        "url": _url(name.model_id, name.version),
    }
