"""``/api/v1/jobs/…/reports``: what runs here report: listed, and read as numbers and tables for plots."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query
from fastapi.responses import Response

from gateway.admin.answers import Answer
from gateway.admin.outputs import Output, find_output
from gateway.admin.parts import AdminParts
from gateway.data.report_tables import Report, read_report
from gateway.data.reports import names, picture
from gateway.domain.dag import group
from gateway.domain.run import Run
from gateway.errors import NotFound
from gateway.http.paths import Paths
from gateway.store.serialization import to_plain

_PICTURE = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}
"""what is in a report is a vendor's: a browser that opens the picture runs and loads nothing"""
Named = Annotated[
    str | None,
    Query(
        max_length=1000, description="one of the report's `plots`; default: the first of them", examples=["loss"]
    ),
]


def add_reports(router: Paths, parts: AdminParts, answer: Answer) -> None:
    """Add the paths of reports."""

    @router.get(
        "/api/v1/jobs/{job_id}/reports", summary="Reports of the runs here, and what is odd", response_model=None
    )
    async def reports(job_id: str) -> Any:
        """``warnings``: outputs that were not written, are malformed, or that nobody declared, per run."""
        return await answer(lambda: _listed(parts, job_id))

    @router.get(
        "/api/v1/jobs/{job_id}/reports/{task}/{party}/{key}",
        summary="A report as numbers, and as tables for plots",
        response_model=None,
    )
    async def report(job_id: str, task: str, party: str, key: str) -> Any:
        """``values``: single values by their path; ``series``: tables, each with columns and points.

        ``problem`` says why a report cannot be read; then both are empty. ``plots``: what of it `/plot` draws.
        """
        return await answer(lambda: _read(parts, job_id, task, party, key))

    @router.get(
        "/api/v1/jobs/{job_id}/reports/{task}/{party}/{key}/plot",
        summary="A report as a picture (SVG)",
        response_class=Response,
        responses={200: {"content": {"image/svg+xml": {}}}},
    )
    async def plot(job_id: str, task: str, party: str, key: str, series: Named = None) -> Any:
        """A table with a rising first column as lines over it, any other as bars; single values as bars."""
        found = await answer(lambda: _plot(parts, job_id, task, party, key, series))
        if isinstance(found, Response):
            return found
        return Response(found, media_type="image/svg+xml", headers=_PICTURE)


def _listed(parts: AdminParts, job_id: str) -> dict[str, Any]:
    local = parts.store.local_jobs.get(job_id)
    found, warnings = [], []
    latest = {(run.task_name, run.party.label): run for run in local.runs}
    for run in latest.values():
        node = local.spec.dag.get(run.task_name)
        for output in node.outputs if node else ():
            if group(output.type) == "metric" and output.key in run.output_keys:
                found.append(_entry(parts, job_id, run, output.key))
        warnings += [{"task": run.task_name, "party": run.party.label, "warning": text} for text in run.warnings]
    return {"reports": found, "warnings": warnings}


def _entry(parts: AdminParts, job_id: str, run: Run, key: str) -> dict[str, Any]:
    name = run.output_keys[key]
    place = "/".join(quote(part, safe="") for part in (job_id, "reports", run.task_name, run.party.label, key))
    return {
        "task": run.task_name,
        "party": run.party.label,
        "key": key,
        "output": name,
        **run.outputs[name].as_dict(),
        "there": parts.storage.exists(run.outputs[name]),
        "url": f"/api/v1/jobs/{place}",
    }


def _read(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> dict[str, Any]:
    found, report = _found(parts, job_id, task, party, key)
    return {**found.as_dict(), **to_plain(report), "plots": list(names(report))}


def _plot(parts: AdminParts, job_id: str, task: str, party: str, key: str, series: str | None) -> bytes:
    _, report = _found(parts, job_id, task, party, key)
    return picture(report, f"{task} {party} {key}", series)


def _found(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> tuple[Output, Report]:
    found = find_output(parts, job_id, task, party, key)
    if group(found.type) != "metric":
        raise NotFound(f"output {key} of task {task} is a {found.type}, no report", reason="NO_REPORT")
    return found, read_report(parts.storage, found.address)
