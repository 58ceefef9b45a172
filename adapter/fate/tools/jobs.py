"""``/v2/job``: FATE's tools hand in jobs, look at them, stop them, run them again, tidy up after them."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Body, Query, Request

from adapter.fate.codes import Code
from adapter.fate.dag.write import dependencies
from adapter.fate.envelope import FateRoute, coded, ok
from adapter.fate.tools import client_wire as wire
from adapter.fate.tools.client_rows import job_rows, task_rows, upload_row
from adapter.fate.tools.client_submit import submitted
from adapter.fate.tools.deps import NOTED, ClientParts, Sight, base_of, by, on, sight
from adapter.fate.tools.examples import SUBMIT
from gateway.domain.parameters import data_location
from gateway.domain.problems import Problem
from gateway.domain.spec import Note
from gateway.domain.states import JOB, ended
from gateway.errors import Conflict, Invalid, NotFound
from gateway.http.paths import Paths

UPLOAD = "upload-"
"""before a dataset's id: the id by which FATE's tools wait for an upload"""
LONGEST_LIST = 1000

_SUBMIT = coded(
    {"INVALID": Code.JOB_PARAMS_ERROR, "NODE_UNKNOWN": Code.JOB_PARAMS_ERROR, "": Code.CREATE_JOB_FAILED}
)
_STOP = coded({"": Code.KILL_JOB_FAILED})
_CHANGE = coded({"": Code.UPDATE_JOB_FAILED, "INVALID": Code.UPDATE_JOB_FAILED})
_JOB_ID = {"job_id": "job-0123456789abcdef0123456789abcdef"}
_PARTY = {**_JOB_ID, "role": "guest", "party_id": "JG0100001100000010"}


def router(parts: ClientParts) -> Paths:
    """Return the paths of jobs and of their tasks."""
    router = Paths(tags=["fate client"], route_class=FateRoute)
    rest, peers = parts.limiters.rest, parts.limiters.peers

    @router.post("/v2/job/submit", summary="Submit a job in FATE's description", openapi_extra=_SUBMIT)
    async def submit(
        request: Request, body: Annotated[wire.Submit, Body(openapi_examples=SUBMIT)]
    ) -> dict[str, Any]:
        """Kinds ``fate`` and ``bfia``, and FATE 1's dsl with runtime_conf. All that is wrong is told at once.

        ``data.warnings`` is there where parts of the description mean nothing here.
        """
        return await on(peers, lambda: submitted(parts, body, base_of(request)))

    @router.get("/v2/job/query", summary="Jobs of this node, a row for each of its parties")
    async def query(request: Request, asked: Annotated[wire.JobQuery, Query()]) -> dict[str, Any]:
        return ok(await on(peers, lambda: _queried(parts, asked, base_of(request))))

    @router.get("/v2/job/list/query", summary="Jobs of this node, by pages, the newest first")
    async def listed(request: Request, asked: Annotated[wire.JobListQuery, Query()]) -> dict[str, Any]:
        return ok(await on(rest, lambda: _listed(parts, asked, base_of(request))))

    @router.post("/v2/job/stop", summary="Stop a job at every node", openapi_extra=_STOP)
    async def stop(body: Annotated[wire.JobId, Body(examples=[_JOB_ID])]) -> dict[str, Any]:
        await on(peers, lambda: parts.jobs.stop(body.job_id))
        return ok(job_id=body.job_id)

    @router.post("/v2/job/rerun", summary="Run an ended job again, as a new job", openapi_extra=_CHANGE)
    async def rerun(body: Annotated[wire.JobId, Body(examples=[_JOB_ID])]) -> dict[str, Any]:
        """From the first task that has not succeeded. ``job_id`` of the answer is the new job's: a job keeps its
        history here, where FATE begins the same one again."""
        made = await on(peers, lambda: parts.jobs.rerun(body.job_id, "", {}))
        data = {"job_id": made.job_id, "rerun_of": body.job_id, "from": made.start}
        return ok({**data, "runs": list(made.runs), "inherits": list(made.inherits)}, job_id=made.job_id)

    @router.get("/v2/job/task/query", summary="Tasks, a row for each party that this node plays")
    async def tasks(request: Request, asked: Annotated[wire.TaskQuery, Query()]) -> dict[str, Any]:
        return ok(await on(peers, lambda: _tasks(parts, asked, base_of(request))))

    @router.get("/v2/job/task/list/query", summary="Tasks of a job with all their versions, by pages")
    async def task_list(request: Request, asked: Annotated[wire.TaskListQuery, Query()]) -> dict[str, Any]:
        return ok(await on(peers, lambda: _task_list(parts, asked, base_of(request))))

    @router.post("/v2/job/clean", summary="Delete an ended job, its logs and outputs, here", openapi_extra=_STOP)
    async def clean(request: Request, body: Annotated[wire.CleanJob, Body(examples=[_JOB_ID])]) -> dict[str, Any]:
        """A job that goes on is stopped, and its deletion refused until it has ended."""
        return ok(await on(peers, lambda: _clean(parts, body, by(request))))

    @router.post("/v2/job/queue/clean", summary="Cancel the jobs scheduled here of which nothing runs yet")
    async def clean_queue(
        body: Annotated[wire.CleanQueue | None, Body(examples=[{"dry_run": True}])] = None,
    ) -> Any:
        dry = bool(body and body.dry_run)
        cancelled = await on(rest, lambda: parts.cancel_waiting(dry))
        return ok(dict.fromkeys(cancelled, "waiting" if dry else "canceled"))

    @router.get("/v2/job/dag/dependency", summary="Which task of a party needs whose output")
    async def dependency(asked: Annotated[wire.OfParty, Query()]) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            seen = _of_party(parts, asked)
            rows = task_rows(seen, "", "")
            return dependencies(seen.spec, {r["task_name"] for r in rows if r["role"] == asked.role})

        return ok(await on(peers, work))

    @router.get("/v2/job/data/view", summary="The datasets of a job, as far as this node may know them")
    async def data_view(asked: Annotated[wire.OfParty, Query()]) -> dict[str, Any]:
        return ok(await on(rest, lambda: _data_view(parts, asked)))

    @router.post(
        "/v2/job/notes/add", summary="Write something down about a job, for this node", openapi_extra=_CHANGE
    )
    async def add_notes(
        request: Request, body: Annotated[wire.AddNotes, Body(examples=[{**_PARTY, "notes": "a first try"}])]
    ) -> dict[str, Any]:
        """Later notes stand for earlier ones; all are in the job's timeline."""

        def work() -> None:
            _of_party(parts, body, ask=False)
            note = Note(parts.clock(), NOTED, by(request), {"text": body.notes})
            parts.kept.note(body.job_id, "operator", [note])

        await on(rest, work)
        return ok()

    return router


# ---------------------------------------------------------------- jobs


def _queried(parts: ClientParts, asked: wire.JobQuery, base: str) -> list[dict[str, Any]]:
    if asked.job_id.startswith(UPLOAD):
        dataset = parts.datasets.get(asked.job_id.removeprefix(UPLOAD))
        return [upload_row(asked.job_id, parts.node, dataset.created_at)]
    ids = [asked.job_id] if asked.job_id else _newest(parts)
    rows = [row for job_id in ids for row in _rows(parts, job_id, base, ask=bool(asked.job_id))]
    wanted = {"role": asked.role, "party_id": asked.party_id, "status": asked.status}
    found = [row for row in rows if all(word in ("", row[key]) for key, word in wanted.items())]
    if not found:
        said = ", ".join(f"{k} {v}" for k, v in {"job_id": asked.job_id, **wanted}.items() if v)
        raise NotFound(f"no job here has {said}" if said else "there is no job here", reason="JOB_UNKNOWN")
    return found


def _rows(
    parts: ClientParts, job_id: str, base: str, *, ask: bool = False, notes: bool = False
) -> list[dict[str, Any]]:
    try:
        seen = sight(parts, job_id, ask=ask, notes=ask or notes)
    except NotFound:
        if ask:
            raise
        return []  # deleted meanwhile
    return job_rows(seen, base, seen.spec.protocol)


def _newest(parts: ClientParts) -> list[str]:
    """Return the jobs of this node, the newest first."""
    found: dict[str, Any] = {}
    for records in (parts.kept.jobs, parts.kept.local_jobs):
        for one in records.list(limit=LONGEST_LIST):
            found.setdefault(one.job_id, one.created_at)
    return sorted(found, key=lambda job_id: found[job_id], reverse=True)[:LONGEST_LIST]


def _listed(parts: ClientParts, asked: wire.JobListQuery, base: str) -> dict[str, Any]:
    ids = [job_id for job_id in _newest(parts) if asked.job_id in job_id]
    rows = [row for job_id in ids for row in _rows(parts, job_id, base, notes=bool(asked.description))]
    for row in rows:
        others = {node for party in row["parties"] for node in party["party_id"]} - {row["party_id"]}
        row["partners"] = sorted(others)
    chosen = [
        row
        for row in rows
        if (not asked.role or row["role"] in asked.role)
        and (not asked.status or row["status"] in asked.status)
        and asked.party_id in row["party_id"]
        and asked.description in row["description"]
        and (not asked.partner or asked.partner in row["partners"])
    ]
    return {"count": len(chosen), "data": _page(chosen, asked)}


def _page(rows: list[dict[str, Any]], asked: wire.JobListQuery | wire.TaskListQuery) -> list[dict[str, Any]]:
    """Return a page of the rows in the order asked for. Raises `Invalid` for a column that cannot be sorted by."""
    key = asked.order_by or "create_time"
    if rows and not all(isinstance(row.get(key), str | int | None) and key in row for row in rows):
        raise Invalid([Problem("order_by", "must be a column with times, numbers or texts", key)])
    if asked.order not in ("", "asc", "desc"):
        raise Invalid([Problem("order", "must be asc or desc", asked.order)])
    filled = [row for row in rows if row[key] is not None]
    ordered = sorted(filled, key=lambda row: row[key], reverse=asked.order != "asc")
    ordered += [row for row in rows if row[key] is None]
    limit = asked.limit or LONGEST_LIST
    start = limit * (max(asked.page, 1) - 1)
    return ordered[start : start + limit]


def _of_party(parts: ClientParts, asked: wire.OfParty, *, ask: bool = True) -> Sight:
    """Return a job of which this node plays the party. Raises `NotFound`."""
    seen = sight(parts, asked.job_id, ask=ask)
    if not any((p.role, p.node) == (asked.role, asked.party_id) for p in seen.parties):
        have = ", ".join(f"{p.role} {p.node}" for p in seen.parties)
        text = f"{asked.role} {asked.party_id} is no party of job {asked.job_id} here, but {have}"
        raise NotFound(text, reason="JOB_UNKNOWN")
    return seen


def _clean(parts: ClientParts, body: wire.CleanJob, who: str) -> dict[str, Any]:
    local, job = parts.kept.local_jobs.find(body.job_id), parts.kept.jobs.find(body.job_id)
    goes_on = [record for record in (local, job) if record is not None and not ended(JOB, record.status)]
    if goes_on and not body.dry_run:
        parts.jobs.stop(body.job_id)
        text = f"job {body.job_id} goes on: it is being stopped; ask again when it has ended"
        raise Conflict(text, reason="JOB_NOT_ENDED")
    return parts.tidy.delete(body.job_id, by=who, here=True, dry_run=body.dry_run).as_dict()


def _data_view(parts: ClientParts, asked: wire.OfParty) -> dict[str, Any]:
    seen = _of_party(parts, asked, ask=False)
    view: dict[str, dict[str, Any]] = {}
    for party in seen.spec.parties:
        view.setdefault(party.role, {}).setdefault(party.node, [])
        for node in seen.spec.dag.nodes:
            where = data_location(seen.spec.task_params, party, node.name)
            if where:
                namespace, _, name = where.get("dataset_id", "").partition("#")
                found = {"namespace": where.get("namespace", namespace), "name": where.get("name", name)}
                view[party.role][party.node].append({"task_name": node.name, **found})
    return {"role": asked.role, "party_id": asked.party_id, "data_view": view}


# ---------------------------------------------------------------- tasks


def _tasks(parts: ClientParts, asked: wire.TaskQuery, base: str) -> list[dict[str, Any]]:
    past = asked.task_version is not None or bool(asked.task_id)
    ids = [asked.job_id] if asked.job_id else _newest(parts)
    wanted: dict[str, Any] = {
        "role": asked.role,
        "party_id": asked.party_id,
        "status": asked.status,
        "task_name": asked.task_name,
        "task_id": asked.task_id,
        "task_version": "" if asked.task_version is None else asked.task_version,
    }
    rows = [row for job_id in ids for row in _task_rows_of(parts, job_id, base, bool(asked.job_id), past)]
    found = [row for row in rows if all(word in ("", row[key]) for key, word in wanted.items())]
    if not found:
        said = ", ".join(f"{k} {v}" for k, v in {"job_id": asked.job_id, **wanted}.items() if v != "")
        raise NotFound(f"no task here has {said}" if said else "there is no task here", reason="TASK_UNKNOWN")
    return found


def _task_rows_of(parts: ClientParts, job_id: str, base: str, ask: bool, past: bool) -> Iterator[dict[str, Any]]:
    try:
        seen = sight(parts, job_id, ask=ask, notes=False)
    except NotFound:
        if ask:
            raise
        return
    yield from task_rows(seen, base, seen.spec.protocol, all_attempts=past)


def _task_list(parts: ClientParts, asked: wire.TaskListQuery, base: str) -> dict[str, Any]:
    wanted = {"role": asked.role, "party_id": asked.party_id, "task_name": asked.task_name}
    rows = [
        row
        for row in _task_rows_of(parts, asked.job_id, base, True, True)
        if all(word in ("", row[key]) for key, word in wanted.items())
    ]
    return {"count": len(rows), "data": _page(rows, asked)}
