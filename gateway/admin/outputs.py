"""``/api/v1/jobs/…/outputs``, reports and metadata: what this node's runs left in the storage."""

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import Reply, api_router, content, shape
from gateway.admin.files import DOWNLOAD, MOST_ROWS, IfRange, Range, WantDigest, download, preview, showable
from gateway.auth import Role
from gateway.data.outputs import OutputCatalog, OutputMetadata, Wanted
from gateway.data.plots import names, picture
from gateway.data.reports import Series, read_report
from gateway.data.storage import Storage
from gateway.domain.run import Address, LocalJob, Run
from gateway.errors import GatewayError, NotFound
from gateway.ports import Limiters
from gateway.store.store import Store
from provider_registry.model import group_of

_MOST_JSON = 256 * 1024
"""bytes of a report that a list shows"""
_JOB = "/jobs/{job_id}"
_ONE = "{task}/{party}/{key}"
_PICTURE = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}
"""what is in a report is a vendor's: a browser that opens the picture runs and loads nothing"""
_LOCATION: dict[str, Any] = dict.fromkeys(("task", "party", "key", "namespace", "name"), str)
_THERE = Annotated[bool, Field(description="it is in this node's storage")]
_OUTPUT = shape(
    "Output",
    **_LOCATION,
    task_id=str,
    attempt=int,
    inherited_from=str | None,
    output=str,
    there=_THERE,
    value=Annotated[Any, Field(description="content of a small report")],
)
_PREVIEW = shape(
    "OutputPreview", **_LOCATION, type=str, kind=str, bytes=int, partitions=int, columns=(list[str], [])
)
_REPORT_LINE = shape("ReportLine", **_LOCATION, output=str, there=_THERE, url=str)
_WARNING = shape("RunWarning", task=str, party=str, warning=str)
_REPORTS = shape("Reports", reports=[_REPORT_LINE], warnings=[_WARNING])
_REPORT = shape(
    "Report",
    **_LOCATION,
    format=str,
    values=dict[str, Any],
    series=[Series],
    problem=str,
    plots=Annotated[list[str], Field(description="what can be drawn: names of tables, and `values`")],
)
_METADATA = shape("OutputsMetadata", outputs=[OutputMetadata])
_Party = Annotated[str, Path(description="`host.0`, or `host` for all parties of the role", examples=["host.0"])]
_Plot = Annotated[
    str | None,
    Query(
        max_length=1000, description="one of the report's `plots`; default: the first of them", examples=["loss"]
    ),
]


def _wanted(job_id: str, task: str, party: str, key: str) -> Wanted:
    return Wanted(job_id, task, party, key)


_Wanted = Annotated[Wanted, Depends(_wanted)]
"""looked up by the path itself, so that wrong parameters are named first"""


@dataclass(frozen=True)
class _Output:
    """An output of a run, there or not; ``type`` is what the flow calls it: dataset, model, report."""

    local: LocalJob
    run: Run
    key: str

    @property
    def address(self) -> Address:
        return self.run.outputs[self.run.output_keys[self.key]]

    @property
    def type(self) -> str:
        return self.local.spec.dag.type_of(self.run.task_name, self.key)

    @property
    def group(self) -> str:
        return group_of(self.type)

    def as_dict(self) -> dict[str, Any]:
        place = {"task": self.run.task_name, "party": self.run.party.label, "key": self.key}
        return {**place, **self.address.as_dict()}


def router(store: Store, storage: Storage) -> APIRouter:
    """Return the paths of the outputs and reports at this node."""
    router = api_router()

    def find_report(wanted: Wanted) -> _Output:
        found = _find(store, storage, wanted)
        if found.group != "metric":
            text = f"output {found.key} of task {found.run.task_name} is a {found.type}, not a report"
            raise NotFound(text, reason="NO_REPORT")
        return found

    @router.get(
        f"{_JOB}/outputs",
        summary="What the runs here left in the storage",
        response_model=shape("Outputs", outputs=[_OUTPUT]),
    )
    def outputs(request: Request, job_id: str) -> Response:
        """``value``: for those only who may read outputs."""
        local = store.local_jobs.get(job_id)
        runs = [*(run for run in local.standing() if run.of_job), *local.runs]
        reads = getattr(request.state, "role", "") not in (Role.VIEWER, Role.VENDOR)
        found = [_Output(local, run, key) for run in runs for key in run.output_keys]
        return Reply({"outputs": [_line(storage, one, reads=reads) for one in found]})

    @router.get(
        f"{_JOB}/outputs/{_ONE}",
        summary="The beginning of an output: a table's first rows, a report's value",
        response_model=_PREVIEW,
    )
    def preview_output(
        wanted: _Wanted, rows: Annotated[int, Query(ge=0, le=MOST_ROWS, description="rows of a table")] = 20
    ) -> Response:
        """``task`` is a name in the flow or an id, ``party`` as in ``guest.0``; ``left_out``: what is not here."""
        found = _find(store, storage, wanted)
        seen = preview(storage, found.address, rows, table=found.group == "data")
        return Reply({**found.as_dict(), "type": found.type, **seen.as_dict()})

    @router.get(
        f"{_JOB}/outputs/{_ONE}/download",
        summary="An output as it lies in the storage",
        **DOWNLOAD,
    )
    def download_output(
        wanted: _Wanted, range_: Range = "", if_range: IfRange = "", want: WantDigest = ""
    ) -> Response:
        """The bytes of all parts, one after the other; a table whose metadata says that it is one has one header.

        The whole comes with its sha256 where the request asks for it.
        """
        found = _find(store, storage, wanted)
        name = f"{found.run.task_name}-{found.run.party.label}-{found.key}"
        name += ".csv" if found.group == "data" else ""
        return download(storage, found.address, name, range_, if_range, want=want)

    @router.get(f"{_JOB}/reports", summary="Reports of the runs here, and warnings", response_model=_REPORTS)
    def reports(job_id: str) -> Response:
        """``warnings``: outputs that were not written, are malformed, or that nobody declared, per run."""
        local = store.local_jobs.get(job_id)
        latest = {(run.task_name, run.party.label): run for run in local.runs}.values()
        found = [_Output(local, run, key) for run in latest for key in run.output_keys]
        warnings = [
            {"task": run.task_name, "party": run.party.label, "warning": text}
            for run in latest
            for text in run.warnings
        ]
        lines = [_report_line(storage, job_id, one) for one in found if one.type and one.group == "metric"]
        return Reply({"reports": lines, "warnings": warnings})

    @router.get(
        f"{_JOB}/reports/{_ONE}", summary="A report as numbers, and as tables for plots", response_model=_REPORT
    )
    def report(wanted: _Wanted) -> Response:
        """``values``: single values by their path; ``series``: tables, each with columns and points.

        ``problem`` says why a report cannot be read; then both are empty. ``plots``: what of it `/plot` draws.
        """
        found = find_report(wanted)
        content = read_report(storage, found.address)
        return Reply({**found.as_dict(), "type": found.type, **vars(content), "plots": list(names(content))})

    @router.get(
        f"{_JOB}/reports/{_ONE}/plot",
        summary="A report as a picture (SVG)",
        response_class=Response,
        responses=content("image/svg+xml"),
    )
    def plot(wanted: _Wanted, series: _Plot = None) -> Response:
        """A table with a rising first column as lines over it, any other as bars; single values as bars."""
        found = find_report(wanted)
        title = f"{found.run.task_name} {found.run.party.label} {found.key}"
        image = picture(read_report(storage, found.address), title, series)
        return Response(image, media_type="image/svg+xml", headers=_PICTURE)

    return router


def metadata_router(facts: OutputCatalog, limiters: Limiters) -> APIRouter:
    """Return the paths of metadata, which other nodes may have to be requested for."""
    router = api_router()

    async def known(wanted: Wanted) -> Response:
        found = await anyio.to_thread.run_sync(facts.for_operators, wanted, limiter=limiters.peers)
        return Reply({"outputs": found})

    @router.get(
        f"{_JOB}/metadata/{{task}}/{{party}}",
        summary="What a task's outputs are like, at this node or at a partner",
        response_model=_METADATA,
    )
    async def of_task(job_id: str, task: str, party: _Party) -> Response:
        """Columns, count and size, never a row, of what a partner has granted: `data grant` there.

        Where it has granted nothing it refuses (NOT_AUTHORISED).
        """
        return await known(Wanted(job_id, task, party))

    @router.get(
        f"{_JOB}/metadata/{_ONE}",
        summary="What one output is like, at this node or at a partner",
        response_model=_METADATA,
    )
    async def of_one(job_id: str, task: str, party: _Party, key: str) -> Response:
        return await known(Wanted(job_id, task, party, key))

    return router


def _line(storage: Storage, found: _Output, *, reads: bool) -> dict[str, Any]:
    run = found.run
    try:
        value = showable(storage.read_json(found.address, _MOST_JSON)) if reads else None
    except GatewayError:  # it is missing, large, or not JSON
        value = None
    about = {"task_id": run.task_id, "attempt": run.attempt, "inherited_from": run.of_job or None}
    return {**found.as_dict(), **about, **_there(storage, found), "value": value}


def _report_line(storage: Storage, job_id: str, found: _Output) -> dict[str, Any]:
    place = (job_id, "reports", found.run.task_name, found.run.party.label, found.key)
    url = "/api/v1/jobs/" + "/".join(quote(part, safe="") for part in place)
    return {**found.as_dict(), **_there(storage, found), "url": url}


def _there(storage: Storage, found: _Output) -> dict[str, Any]:
    return {"output": found.run.output_keys[found.key], "there": storage.exists(found.address)}


def _find(store: Store, storage: Storage, wanted: Wanted) -> _Output:
    """Return an output that lies in the storage. Raises `NotFound`, saying which part of its name is unknown."""
    job_id, task, party, key = wanted.job_id, wanted.task, wanted.role, wanted.key
    local = store.local_jobs.get(job_id)
    by_id = next((run.task_name for run in local.runs if run.task_id == task), task)
    node = local.spec.dag.get(by_id)
    if node is None:
        raise NotFound(f"job {job_id} has no task {task}", reason="TASK_UNKNOWN")
    who = next((p for p in local.spec.parties if p.label == party), None)
    if who is None or who.node != local.node:
        where = f"plays at node {who.node}; its outputs are there" if who else f"is not a party of job {job_id}"
        raise NotFound(f"{party} {where}", reason="PARTY_UNKNOWN")
    runs = [run for run in local.standing(node.name) if run.party == who]
    if all(o.key != key for o in node.outputs) or (runs and key not in runs[-1].output_keys):
        raise NotFound(f"task {node.name} gives {party} no output {key}", reason="OUTPUT_UNKNOWN")
    if not runs:
        raise NotFound(f"task {node.name} has not begun at {party}", reason="OUTPUT_MISSING")
    found = _Output(local, runs[-1], key)
    if not storage.exists(found.address):
        text = f"output {key} of task {node.name} at {party} is not there; its run is {runs[-1].status}"
        raise NotFound(text, reason="OUTPUT_MISSING")
    return found
