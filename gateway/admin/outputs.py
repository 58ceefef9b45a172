"""``/api/v1/jobs/…/outputs``: what this node's runs left in the storage: listed, looked into, downloaded."""

from dataclasses import dataclass
from typing import Any

from fastapi import Query
from fastapi.responses import Response

from gateway.admin.answers import Answer
from gateway.admin.downloading import Asked, Download, IfRange, Range, prepared, sent
from gateway.admin.parts import AdminParts
from gateway.admin.preview import MOST_ROWS, preview, showable
from gateway.domain.names import index_of
from gateway.domain.problems import Problem
from gateway.domain.run import Address, LocalJob, Run
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.http.paths import Paths
from provider_registry.model import group_of

USUAL_ROWS = 20


@dataclass(frozen=True)
class Output:
    """An output that lies in the storage."""

    run: Run
    key: str
    type: str
    """what the flow calls it: dataset, model, report"""
    address: Address

    def as_dict(self) -> dict[str, Any]:
        """Return whose it is and where it lies, for JSON."""
        return {
            "task": self.run.task_name,
            "party": self.run.party.label,
            "key": self.key,
            "type": self.type,
            **self.address.as_dict(),
        }


def add_outputs(router: Paths, parts: AdminParts, answer: Answer) -> None:
    """Add the paths of outputs. ``answer`` runs work in a thread and turns refusals into answers."""

    @router.get(
        "/api/v1/jobs/{job_id}/outputs", summary="What the runs here left in the storage", response_model=None
    )
    async def outputs(job_id: str) -> Any:
        return await answer(lambda: {"outputs": _outputs(parts, job_id)})

    @router.get(
        "/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}",
        summary="The beginning of an output: a table's first rows, a report's value",
        response_model=None,
    )
    async def look(
        job_id: str,
        task: str,
        party: str,
        key: str,
        rows: str = Query(default=str(USUAL_ROWS), description=f"rows of a table, at most {MOST_ROWS}"),
    ) -> Any:
        """``task`` is a name in the flow or an id, ``party`` as in ``guest.0``; ``left_out``: what is not here."""
        return await answer(lambda: _look(parts, job_id, task, party, key, rows))

    @router.get(
        "/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}/download",
        summary="An output as it lies in the storage, with its sha256",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def download(
        job_id: str,
        task: str,
        party: str,
        key: str,
        range_: Range = "",
        if_range: IfRange = "",
    ) -> Any:
        """The bytes of all parts, one after the other; each part of a table begins with its header line.

        The whole comes with its sha256, a range (206) without.
        """
        asked = Asked(range_, if_range)
        found = await answer(lambda: _download(parts, job_id, task, party, key, asked))
        return found if isinstance(found, Response) else sent(found, parts.storage, parts.limiters)


def _outputs(parts: AdminParts, job_id: str) -> list[dict[str, Any]]:
    local = parts.store.local_jobs.get(job_id)
    found = []
    taken_over = [run for run in local.standing() if run.of_job]
    for run in (*taken_over, *local.runs):
        for key, name in run.output_keys.items():
            address = run.outputs[name]
            found.append(
                {
                    "task": run.task_name,
                    "party": run.party.label,
                    "key": key,
                    "task_id": run.task_id,
                    "attempt": run.attempt,
                    "inherited_from": run.of_job or None,
                    **address.as_dict(),
                    "output": name,
                    "there": parts.storage.exists(address),
                    "value": _small_json(parts, address),
                }
            )
    return found


def _small_json(parts: AdminParts, address: Address, limit: int = 256 * 1024) -> Any:
    """Return a report's content; None for what is missing, large, or no JSON."""
    try:
        return showable(parts.storage.read_json(address, limit))
    except GatewayError:
        return None


def _look(parts: AdminParts, job_id: str, task: str, party: str, key: str, rows: str) -> dict[str, Any]:
    number = index_of(rows)
    if number is None or number > MOST_ROWS:
        raise Invalid([Problem("rows", f"must be a whole number up to {MOST_ROWS}", rows)])
    found = find_output(parts, job_id, task, party, key)
    seen = preview(parts.storage, found.address, number, table=group_of(found.type) == "data")
    shown: dict[str, Any] = {"kind": seen.kind, "bytes": seen.size, "partitions": seen.partitions}
    if seen.kind == "table":
        shown |= {"columns": seen.columns, "rows": seen.rows}
    if seen.kind == "json":
        shown["value"] = seen.value
    return {**found.as_dict(), **shown, "left_out": seen.left_out}


def _download(
    parts: AdminParts, job_id: str, task: str, party: str, key: str, asked: Asked
) -> Download | Response:
    found = find_output(parts, job_id, task, party, key)
    name = f"{found.run.task_name}-{party}-{key}" + (".csv" if group_of(found.type) == "data" else "")
    return prepared(parts.storage, found.address, name, asked)


def find_output(parts: AdminParts, job_id: str, task: str, party: str, key: str) -> Output:
    """Return an output that lies in the storage. Raises `NotFound`, saying which part of its name is unknown."""
    local: LocalJob = parts.store.local_jobs.get(job_id)
    by_id = next((run.task_name for run in local.runs if run.task_id == task), task)
    node = local.spec.dag.get(by_id)
    if node is None:
        raise NotFound(f"job {job_id} has no task {task}", reason="TASK_UNKNOWN")
    who = next((p for p in local.spec.parties if p.label == party), None)
    if who is None or who.node != local.node:
        where = f"plays at node {who.node}; its outputs are there" if who else f"is no party of job {job_id}"
        raise NotFound(f"{party} {where}", reason="PARTY_UNKNOWN")
    type_ = next((o.type for o in node.outputs if o.key == key), None)
    runs = [run for run in local.standing(node.name) if run.party == who]
    if type_ is None or (runs and key not in runs[-1].output_keys):
        raise NotFound(f"task {node.name} gives {party} no output {key}", reason="OUTPUT_UNKNOWN")
    if not runs:
        raise NotFound(f"task {node.name} has not begun at {party}", reason="OUTPUT_MISSING")
    run = runs[-1]
    address = run.outputs[run.output_keys[key]]
    if not parts.storage.exists(address):
        text = f"output {key} of task {node.name} at {party} is not there; its run is {run.status}"
        raise NotFound(text, reason="OUTPUT_MISSING")
    return Output(run, key, type_, address)
