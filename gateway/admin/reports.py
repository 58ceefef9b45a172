"""``/api/v1/jobs/…/reports``: what runs here report: listed, and read as numbers and tables for plots."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter

from gateway.admin.answers import Answer
from gateway.admin.outputs import find_output
from gateway.admin.parts import AdminParts
from gateway.domain.dag import group
from gateway.domain.model import Run
from gateway.errors import NotFound
from gateway.reports import read_report
from gateway.store.store import to_plain


def add_reports(router: APIRouter, parts: AdminParts, answer: Answer) -> None:
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

        ``problem`` says why a report cannot be read; then both are empty.
        """
        return await answer(lambda: _read(parts, job_id, task, party, key))


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
    found = find_output(parts, job_id, task, party, key)
    if group(found.type) != "metric":
        raise NotFound(f"output {key} of task {task} is a {found.type}, no report", reason="NO_REPORT")
    return {**found.as_dict(), **to_plain(read_report(parts.storage, found.address))}
