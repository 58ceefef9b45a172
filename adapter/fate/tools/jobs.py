"""``/v2/job``: FATE's tools submit jobs, list, stop, rerun and clean them.

Jobs and tasks are rows with the columns that FATE's tools print, null for those without a meaning here. Columns
of our own say how a job ended, what each run used, and the addresses of logs and results at this gateway.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Query, Request
from pydantic import ValidationError

from adapter.fate.dag import dsl_v1
from adapter.fate.dag import wire as dag_wire
from adapter.fate.dag.places import Places
from adapter.fate.dag.read import Catalogue, Place, Translated, job_spec
from adapter.fate.dag.write import dag_schema, dependencies, parties_of
from adapter.fate.envelope import Code, Envelope, FateRoute, coded, ok
from adapter.fate.states import job_word, task_word
from adapter.fate.tools import schemas
from adapter.fate.tools.deps import NOTED, ClientParts, Sight, base_of, by, on, sight
from gateway.domain.models import named
from gateway.domain.problems import Problem
from gateway.domain.run import Run
from gateway.domain.spec import Failure, Note, Party, data_location, effective
from gateway.domain.states import JOB, TASK_OF_RUN, JobStatus, Outcome, ended
from gateway.errors import Conflict, Invalid, NotFound, Refused, problems_of
from gateway.ports import TaskView
from gateway.runtime.context import current_trace

Row = dict[str, Any]

UPLOAD = "upload-"
"""before a dataset's id: the id by which FATE's tools wait for an upload"""
LOCAL = "local"
"""role of an upload, which FATE's tools wait for as for a job"""
LONGEST_LIST = 1000

_JOB_NULLS = ("apply_resource_time", "return_resource_time", "engine_name", "status_code")
_TASK_NULLS = ("cmd", "run_ip", "run_port", "run_pid", "engine_conf", "status_code", "task_run")
_SUBMIT = coded(
    {"INVALID": Code.JOB_PARAMS_ERROR, "NODE_UNKNOWN": Code.JOB_PARAMS_ERROR, "": Code.CREATE_JOB_FAILED}
)
_STOP = coded({"": Code.KILL_JOB_FAILED})
_CHANGE = coded({"": Code.UPDATE_JOB_FAILED, "INVALID": Code.UPDATE_JOB_FAILED})
_JOB_ID = {"job_id": "job-0123456789abcdef0123456789abcdef"}
_NOTE = {**_JOB_ID, "role": "guest", "party_id": "JG0100001100000010", "notes": "a first try"}

OneJob = Annotated[schemas.JobIdRequest, Body(examples=[_JOB_ID])]


def router(parts: ClientParts) -> APIRouter:
    """Return the paths of jobs and of their tasks."""
    router = APIRouter(tags=["fate client"], route_class=FateRoute)
    rest, peers = parts.limiters.rest, parts.limiters.peers

    @router.post("/v2/job/submit", summary="Submit a job in FATE's description", openapi_extra=_SUBMIT)
    async def submit(
        request: Request, body: Annotated[schemas.Submit, Body(openapi_examples=schemas.SUBMIT)]
    ) -> Envelope[schemas.Submitted]:
        """Kinds ``fate`` and ``bfia``, and FATE 1's dsl with runtime_conf. All problems are reported together.

        ``data.warnings`` is there where parts of the description mean nothing here.
        """
        response = await on(peers, lambda: submitted(parts, body, base_of(request)))
        request.state.answered = {"job_id": getattr(response, "job_id", "")}
        return response

    @router.get("/v2/job/query", summary="Jobs of this node, a row for each of its parties")
    async def query(
        request: Request, asked: Annotated[schemas.JobQuery, Query()]
    ) -> Envelope[list[schemas.JobRow]]:
        return ok(await on(peers, lambda: _queried(parts, asked, base_of(request))))

    @router.get("/v2/job/list/query", summary="Jobs of this node, by pages, the newest first")
    async def listed(request: Request, asked: Annotated[schemas.JobListQuery, Query()]) -> Envelope[schemas.Jobs]:
        return ok(await on(rest, lambda: _listed(parts, asked, base_of(request))))

    @router.post("/v2/job/stop", summary="Stop a job at every node", openapi_extra=_STOP)
    async def stop(body: OneJob) -> Envelope[Any]:
        await on(peers, lambda: parts.jobs.stop(body.job_id))
        return ok(job_id=body.job_id)

    @router.post("/v2/job/rerun", summary="Run an ended job again, as a new job", openapi_extra=_CHANGE)
    async def rerun(body: OneJob) -> Envelope[dict[str, Any]]:
        """From the first task that has not succeeded. ``job_id`` of the response is the new job's: a job keeps its
        history here, where FATE begins the same one again."""
        made = await on(peers, lambda: parts.jobs.rerun(body.job_id, "", {}))
        data = {"job_id": made.job_id, "rerun_of": body.job_id, "from": made.start}
        return ok({**data, "runs": list(made.runs), "inherits": list(made.inherits)}, job_id=made.job_id)

    @router.get("/v2/job/task/query", summary="Tasks, a row for each party that this node plays")
    async def tasks(
        request: Request, asked: Annotated[schemas.TaskQuery, Query()]
    ) -> Envelope[list[schemas.TaskRow]]:
        return ok(await on(peers, lambda: _tasks(parts, asked, base_of(request))))

    @router.get("/v2/job/task/list/query", summary="Tasks of a job with all their versions, by pages")
    async def task_list(
        request: Request, asked: Annotated[schemas.TaskListQuery, Query()]
    ) -> Envelope[schemas.Tasks]:
        return ok(await on(peers, lambda: _task_list(parts, asked, base_of(request))))

    @router.post("/v2/job/clean", summary="Delete an ended job, its logs and outputs, here", openapi_extra=_STOP)
    async def clean(
        request: Request, body: Annotated[schemas.CleanJob, Body(examples=[_JOB_ID])]
    ) -> Envelope[dict[str, Any]]:
        """A job that goes on is stopped, and its deletion refused until it has ended."""
        return ok(await on(peers, lambda: _clean(parts, body, by(request))))

    @router.post("/v2/job/queue/clean", summary="Cancel the jobs scheduled here of which nothing runs yet")
    async def clean_queue(
        body: Annotated[schemas.CleanQueue | None, Body(examples=[{"dry_run": True}])] = None,
    ) -> Envelope[dict[str, str]]:
        dry = bool(body and body.dry_run)
        cancelled = await on(rest, lambda: parts.cancel_waiting(dry))
        return ok(dict.fromkeys(cancelled, "waiting" if dry else "canceled"))

    @router.get("/v2/job/dag/dependency", summary="Which task of a party needs whose output")
    async def dependency(asked: Annotated[schemas.OfParty, Query()]) -> Envelope[dict[str, Any]]:
        def work() -> dict[str, Any]:
            seen = _of_party(parts, asked)
            return dependencies(seen.spec, {r["task_name"] for r in task_rows(seen) if r["role"] == asked.role})

        return ok(await on(peers, work))

    @router.get("/v2/job/data/view", summary="The datasets of a job, as far as this node may know them")
    async def data_view(asked: Annotated[schemas.OfParty, Query()]) -> Envelope[dict[str, Any]]:
        return ok(await on(rest, lambda: _data_view(parts, asked)))

    @router.post(
        "/v2/job/notes/add", summary="Write something down about a job, for this node", openapi_extra=_CHANGE
    )
    async def add_notes(
        request: Request, body: Annotated[schemas.AddNotes, Body(examples=[_NOTE])]
    ) -> Envelope[Any]:
        """Later notes stand for earlier ones; all are in the job's timeline."""

        def work() -> None:
            _of_party(parts, body, ask=False)
            note = Note(parts.clock(), NOTED, by(request), {"text": body.notes})
            parts.store.note(body.job_id, "operator", [note])

        await on(rest, work)
        return ok()

    return router


# ---------------------------------------------------------------- submission


def submitted(parts: ClientParts, body: schemas.Submit, base: str) -> Envelope[Any]:
    """Submit a job. Raises `Invalid` with every problem, `Refused`, `PeerUnreachable`."""
    translated, places = translated_job(parts, body)
    spec = translated.spec
    try:
        job_id = parts.jobs.submit(spec)
    except Invalid as error:
        raise Invalid([places.problem(p, spec) for p in error.problems], reason=error.reason) from error
    except Refused as error:  # by this node or another one
        raise Refused(places.words(error.message, spec), reason=error.reason) from error
    model, place = named(spec), quote(job_id, safe="")
    data: dict[str, Any] = {
        "model_id": model.model_id,
        "model_version": model.version,
        "board_url": f"{base}/api/v1/jobs/{place}",
        "log_url": f"{base}/v2/job/log/download?job_id={place}",
    }
    if translated.warnings:
        data["warnings"] = list(translated.warnings)
    return ok(data, job_id=job_id)


def translated_job(parts: ClientParts, body: schemas.Submit) -> tuple[Translated, Places]:
    """Return the job that a request describes, and where its description says what. Raises `Invalid`."""
    document, warnings = _document(body)
    try:
        schema = dag_wire.DagSchema.model_validate(document)
    except ValidationError as error:
        found = problems_of(error.errors())
        raise Invalid([p._replace(path=f"dag_schema.{p.path}") for p in found]) from error
    nodes = {node for party in schema.dag.parties for node in party.party_id}
    place = Place(parts.new_job_id(nodes), parts.node, parts.coordinator_node, current_trace(), parts.protocols)
    made = job_spec(schema, place, Catalogue(parts.registry))
    return Translated(made.spec, (*warnings, *made.warnings)), Places(schema.dag)


def _document(body: schemas.Submit) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return FATE 2's description, translated if the older form was sent, in either of its places."""
    old = {k: v for k, v in (("dsl", body.dsl), ("runtime_conf", body.runtime_conf)) if v is not None}
    if dsl_v1.is_old(body.dag_schema):
        old = dict(body.dag_schema)
    if old:
        return dsl_v1.modern(old), (dsl_v1.WARNING,)
    if not body.dag_schema:
        rule = "is required: FATE 2's description of the job, or dsl and runtime_conf of FATE 1"
        raise Invalid([Problem("dag_schema", rule)])
    return body.dag_schema, ()


# ---------------------------------------------------------------- rows


def job_rows(seen: Sight, base: str) -> list[Row]:
    """Return one row for each party of the job that this node plays; ``base``: this gateway's address."""
    view, spec = seen.view, seen.spec
    model, record = named(spec), seen.local or seen.job
    runs = seen.local.runs if seen.local else ()
    started = seen.job.started_at if seen.job else min((r.started_at for r in runs if r.started_at), default=None)
    job_id = quote(spec.job_id, safe="")
    shared: Row = {
        "protocol": spec.protocol,
        "flow_id": spec.flow_id,
        "job_id": spec.job_id,
        "description": seen.notes,
        "tag": "job_end" if view.status in (JobStatus.FINISHED, JobStatus.REJECTED) else "",
        "dag": dag_schema(spec, spec.protocol),
        "parties": parties_of(spec.parties),
        "initiator_party_id": spec.initiator,
        "scheduler_party_id": spec.scheduler,
        "status": job_word(view.status, view.outcome, view.failure),
        "inheritance": {"job_id": spec.old_job_id} if spec.old_job_id else None,
        "progress": 100 if view.outcome is Outcome.SUCCEEDED else view.progress,
        "model_id": model.model_id,
        "model_version": model.version,
        **dict.fromkeys(("cores", "memory", "remaining_cores", "remaining_memory"), 0),
        "user_name": seen.user or None,
        "resource_in_use": bool(seen.local and seen.local.pool and not seen.local.closed),
        **dict.fromkeys(_JOB_NULLS),
        **_times(seen.created_at, started, record.ended_at if record else None),
        "outcome": view.outcome,
        "failed_by": view.failure.as_dict() if view.failure else None,
        "warnings": list(view.warnings),
        "log_url": f"{base}/v2/job/log/download?job_id={job_id}",
        "ui_url": f"{base}/api/v1/jobs/{job_id}",
    }
    if seen.begun_again:
        shared["begun_again"] = seen.begun_again
    return [{**shared, "role": p.role, "party_id": p.node} for p in seen.parties]


def upload_row(job_id: str, node: str, at: datetime) -> Row:
    """Return an upload as the job that FATE's tools wait for, which had ended with the response."""
    done = {"status": "success", "progress": 100, "role": LOCAL, "party_id": "0", "job_id": job_id}
    parties = [{"role": LOCAL, "party_id": ["0"]}]
    return {**done, "protocol": "fate", "parties": parties, "scheduler_party_id": node, **_times(at, at, at)}


def task_rows(seen: Sight, base: str = "", *, all_attempts: bool = False) -> list[Row]:
    """Return one row for each task and party that this node plays; ``all_attempts``: earlier ones before it."""
    rows = []
    for task in seen.view.tasks:
        for party in _players(seen, task):
            if all_attempts:
                rows += [_past(seen, task, party, base, i) for i in range(len(task.attempts))]
            rows.append(_newest_attempt(seen, task, party, base))
    return rows


def _players(seen: Sight, task: TaskView) -> Iterator[Party]:
    """Yield the parties of a task; if the scheduling node does not say which, those with a run of it here."""
    for party in seen.parties:
        roles = task.nodes.get(party.node)
        listed = any(role.partition(".")[0] == party.role for role in roles or ())
        if listed or (not roles and _run(seen, task.task_id, party) is not None):
            yield party


def _run(seen: Sight, task_id: str, party: Party) -> Run | None:
    runs = (*seen.local.inherited, *seen.local.runs) if seen.local else ()
    return next((r for r in reversed(runs) if r.task_id == task_id and r.party == party), None)


def _newest_attempt(seen: Sight, task: TaskView, party: Party, base: str) -> Row:
    run = _run(seen, task.task_id, party)
    if run is None and seen.local and task.inherited:
        run = next((r for r in reversed(seen.local.standing(task.name)) if r.party == party), None)
    states = task.nodes.get(party.node, {}).items()
    status = next((s for role, s in states if role in (party.role, party.label)), task.status)
    failure = (run.failure if run else None) or task.failure
    times = (run.created_at, run.started_at, run.ended_at) if run else (seen.created_at, None, None)
    return {
        **_row(seen, task.name, party, run, base, task.name),
        "task_id": task.task_id,
        "task_version": task.attempt,
        "status": task_word(task.status, task.failure),
        "party_status": task_word(TASK_OF_RUN[run.status] if run else status, failure),
        "error_report": _cause(failure, task.failure),
        **_times(*times),
    }


def _past(seen: Sight, task: TaskView, party: Party, base: str, index: int) -> Row:
    past = task.attempts[index]
    run = _run(seen, past.task_id, party)
    return {
        **_row(seen, task.name, party, run, base, past.task_id),
        "task_id": past.task_id,
        "task_version": past.number,
        "status": "failed",
        "party_status": task_word(TASK_OF_RUN[run.status], run.failure) if run else "failed",
        "error_report": _cause(past.failure),
        **_times(past.started_at or seen.created_at, past.started_at, past.ended_at),
    }


def _row(seen: Sight, name: str, party: Party, run: Run | None, base: str, log_of: str) -> Row:
    """Return what each attempt's row has; ``log_of``: the name by which the log of its run is found."""
    node, spec = seen.spec.dag.get(name), seen.spec
    ref = node.component if node else None
    limits = run.limits if run else {}
    memory = limits.get("memory")
    inherited = run if run and run.of_job else None
    place = f"{base}/api/v1/jobs/{quote(inherited.of_job if inherited else spec.job_id, safe='')}"
    log = f"{place}/runs/{party.label}/{quote(inherited.task_id if inherited else log_of, safe='')}/log"
    return {
        "protocol": spec.protocol,
        "job_id": spec.job_id,
        "role": party.role,
        "party_id": party.node,
        "task_name": name,
        "component": ref.name if ref else None,
        "provider_name": f"{ref.provider}:{ref.version}@docker" if ref else None,
        "scheduler_party_id": spec.scheduler,
        "component_parameters": {k: v.value for k, v in effective(spec.task_params, party, name).items()},
        "task_parameters": {},
        "task_cores": limits.get("cpu") or 0,
        "memory": int(memory / 1024 / 1024) if memory else 0,
        "resource_in_use": bool(run and run.started_at and not run.over),
        "execution_id": run.name if run else None,
        "worker_id": run.name if run else None,
        "kill_status": bool(run and run.stop_at),
        "sync_type": "callback" if spec.by_callback else "poll",
        "timeout": spec.time_limits.of(name).timeout,
        "launcher_name": "default",
        **dict.fromkeys(_TASK_NULLS),
        "image": run.image if run else None,
        "image_digest": run.image_digest if run else None,
        "exit_code": run.exit.code if run and run.exit else None,
        "inherited_from": {"job_id": inherited.of_job} if inherited else None,
        "log_url": log if run else None,
        "ui_url": place,
    }


def _times(created: datetime, started: datetime | None, ended: datetime | None) -> Row:
    changed = ended or started or created
    begin, end = _ms(started), _ms(ended)
    return {
        "create_time": _ms(created),
        "create_date": f"{created:%Y-%m-%d %H:%M:%S}",
        "update_time": _ms(changed),
        "update_date": f"{changed:%Y-%m-%d %H:%M:%S}",
        "start_time": begin,
        "end_time": end,
        "elapsed": end - begin if begin is not None and end is not None else None,
    }


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _cause(failure: Failure | None, of_task: Failure | None = None) -> str:
    """Return why a party's part failed; if it was only stopped, also why the whole task failed."""
    if failure is None:
        return ""
    words = f"{failure.reason}: {failure.message}"
    if failure.reason != "STOPPED" or of_task is None or of_task.reason == "STOPPED":
        return words
    where = " ".join(part for part in (of_task.role, of_task.node) if part)
    return f"{words}; the task failed at {where or 'another party'} of {of_task.reason}: {of_task.message}"


# ---------------------------------------------------------------- queries


def _queried(parts: ClientParts, asked: schemas.JobQuery, base: str) -> list[Row]:
    if asked.job_id.startswith(UPLOAD):
        dataset = parts.datasets.get(asked.job_id.removeprefix(UPLOAD))
        return [upload_row(asked.job_id, parts.node, dataset.created_at)]
    ids = [asked.job_id] if asked.job_id else _newest(parts)
    asks = bool(asked.job_id)
    rows = [row for job_id in ids for row in _rows(parts, job_id, base, ask=asks, notes=asks)]
    return _matching(rows, asked, "job", ("role", "party_id", "status"))


def _matching(rows: list[Row], asked: schemas.JobQuery, thing: str, columns: tuple[str, ...]) -> list[Row]:
    wanted = {key: value for key in columns if (value := getattr(asked, key)) not in ("", None)}
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not found:
        wanted = ({"job_id": asked.job_id} if asked.job_id else {}) | wanted
        criteria = ", ".join(f"{key} {value}" for key, value in wanted.items())
        text = f"no {thing} here has {criteria}" if criteria else f"there is no {thing} here"
        raise NotFound(text, reason=f"{thing.upper()}_UNKNOWN")
    return found


def _rows(parts: ClientParts, job_id: str, base: str, *, ask: bool = False, notes: bool = False) -> list[Row]:
    try:
        return job_rows(sight(parts, job_id, ask=ask, notes=notes), base)
    except NotFound:
        if ask:
            raise
        return []  # deleted meanwhile


def _newest(parts: ClientParts) -> list[str]:
    found: dict[str, Any] = {}
    for records in (parts.store.jobs, parts.store.local_jobs):
        for one in records.list(limit=LONGEST_LIST):
            found.setdefault(one.job_id, one.created_at)
    return sorted(found, key=lambda job_id: found[job_id], reverse=True)[:LONGEST_LIST]


def _listed(parts: ClientParts, asked: schemas.JobListQuery, base: str) -> dict[str, Any]:
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


def _page(rows: list[Row], asked: schemas.Paged) -> list[Row]:
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


def _tasks(parts: ClientParts, asked: schemas.TaskQuery, base: str) -> list[Row]:
    past = asked.task_version is not None or bool(asked.task_id)
    ids = [asked.job_id] if asked.job_id else _newest(parts)
    rows = [row for job_id in ids for row in _task_rows_of(parts, job_id, base, bool(asked.job_id), past)]
    columns = ("role", "party_id", "status", "task_name", "task_id", "task_version")
    return _matching(rows, asked, "task", columns)


def _task_rows_of(parts: ClientParts, job_id: str, base: str, ask: bool, past: bool) -> list[Row]:
    try:
        return task_rows(sight(parts, job_id, ask=ask, notes=False), base, all_attempts=past)
    except NotFound:
        if ask:
            raise
        return []


def _task_list(parts: ClientParts, asked: schemas.TaskListQuery, base: str) -> dict[str, Any]:
    wanted = {"role": asked.role, "party_id": asked.party_id, "task_name": asked.task_name}
    rows = _task_rows_of(parts, asked.job_id, base, True, True)
    chosen = [row for row in rows if all(word in ("", row[key]) for key, word in wanted.items())]
    return {"count": len(chosen), "data": _page(chosen, asked)}


# ---------------------------------------------------------------- one job


def _of_party(parts: ClientParts, asked: schemas.OfParty, *, ask: bool = True) -> Sight:
    seen = sight(parts, asked.job_id, ask=ask)
    if not any((p.role, p.node) == (asked.role, asked.party_id) for p in seen.parties):
        have = ", ".join(f"{p.role} {p.node}" for p in seen.parties)
        text = f"job {asked.job_id} has no party {asked.role} {asked.party_id} here, but {have}"
        raise NotFound(text, reason="JOB_UNKNOWN")
    return seen


def _clean(parts: ClientParts, body: schemas.CleanJob, who: str) -> dict[str, Any]:
    local, job = parts.store.local_jobs.find(body.job_id), parts.store.jobs.find(body.job_id)
    goes_on = [record for record in (local, job) if record is not None and not ended(JOB, record.status)]
    if goes_on and not body.dry_run:
        parts.jobs.stop(body.job_id)
        text = f"job {body.job_id} goes on: it is being stopped; try again when it has ended"
        raise Conflict(text, reason="JOB_NOT_ENDED")
    return parts.deleting.delete(body.job_id, by=who, here=True, dry_run=body.dry_run).as_dict()


def _data_view(parts: ClientParts, asked: schemas.OfParty) -> dict[str, Any]:
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
