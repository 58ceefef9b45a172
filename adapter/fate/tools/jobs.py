"""``/v2/job``, ``/v2/log``: FATE's tools submit, list, stop, rerun and clean jobs, and read logs; ``/v2/site``."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlsplit

from fastapi import Body, Response

from adapter.fate.dag.description import dependencies
from adapter.fate.dag.read import in_fates_paths, job_spec
from adapter.fate.envelope import Code, Envelope, ok
from adapter.fate.tools import schemas
from adapter.fate.tools.deps import CHUNK, GZIP, JOB_EXAMPLE, Call, ClientParts, Member, Paths, sent
from adapter.fate.tools.rows import (
    NOTED,
    JobRecords,
    Row,
    job_rows,
    records_of,
    task_rows,
    unknown_job,
    upload_row,
)
from engines.logs import STREAMS
from gateway.data.log_levels import Level
from gateway.domain.models import named
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Note
from gateway.domain.states import JOB, ended
from gateway.errors import Conflict, Invalid, NotFound, Refused
from gateway.runtime.context import current_trace
from gateway.store.queries import newest
from gateway.store.timeline import TimelineEntry
from gateway.version import VERSION

UPLOAD = "upload-"
"""before a dataset's id: the id by which FATE's tools wait for an upload"""

OF_TASKS: Mapping[str, Level] = {
    "task_debug": Level.DEBUG,
    "task_info": Level.INFO,
    "task_warning": Level.INFO,
    "task_error": Level.ERROR,
}
"""FATE's kinds of logs of tasks -> the least serious lines in it. Warnings are not distinguished here."""
_IN_MEMORY = 1024 * 1024

_SUBMIT = {"INVALID": Code.JOB_PARAMS_ERROR, "NODE_UNKNOWN": Code.JOB_PARAMS_ERROR, "": Code.CREATE_JOB_FAILED}
_STOP = {"": Code.KILL_JOB_FAILED}
_CHANGE = {"": Code.UPDATE_JOB_FAILED, "INVALID": Code.UPDATE_JOB_FAILED}
_NOTE = {**JOB_EXAMPLE, "role": "guest", "party_id": "JG0100001100000010", "notes": "a first try"}

OneJob = Annotated[schemas.JobIdRequest, Body(examples=[JOB_EXAMPLE])]
paths = Paths()


@paths("POST", "/v2/job/submit", "Submit a job in FATE's description", codes=_SUBMIT, peers=True)
def _submit(call: Call, asked: Annotated[schemas.Submit, Body(openapi_examples=schemas.SUBMIT)]) -> Envelope:
    """All problems are reported together; ``data.warnings`` names what means nothing here."""
    parts, dag = call.parts, asked.dag_schema.dag
    node = parts.settings.node
    nodes = {name for party in dag.parties for name in party.party_id}
    new_id, schema = parts.coordinator.new_id(nodes), asked.dag_schema
    spec, warnings = job_spec(schema, parts.registry, new_id, node.id, node.scheduler, current_trace())
    try:
        job_id = parts.coordinator.submit(spec)
    except Invalid as error:
        problems = [p._replace(path=in_fates_paths(p.path, spec)) for p in error.problems]
        raise Invalid(problems, reason=error.reason) from error
    except Refused as error:  # by this node or another one
        raise Refused(in_fates_paths(error.message, spec), reason=error.reason) from error
    model, place = named(spec), quote(job_id, safe="")
    data: dict[str, Any] = {
        "model_id": model.model_id,
        "model_version": model.version,
        "board_url": f"{call.base}/api/v1/jobs/{place}",
        "log_url": f"{call.base}/v2/job/log/download?job_id={place}",
    }
    if warnings:
        data["warnings"] = warnings
    call.request.state.answered = {"job_id": job_id}
    return ok(data, job_id=job_id)


@paths("GET", "/v2/job/query", "Jobs of this node, a row for each of its parties", peers=True)
def _query(call: Call, asked: schemas.JobQuery) -> list[Row]:
    if asked.job_id.startswith(UPLOAD):
        dataset = call.parts.datasets.get(asked.job_id.removeprefix(UPLOAD))
        return [upload_row(asked.job_id, call.parts.settings.node.id, dataset.created_at)]
    rows = [
        row for seen in _seen(call, asked.job_id, notes=bool(asked.job_id)) for row in job_rows(seen, call.base)
    ]
    return _matching(rows, asked, "job", ("role", "party_id", "status"))


@paths("GET", "/v2/job/list/query", "Jobs of this node, by pages, the newest first")
def _list(call: Call, asked: schemas.JobListQuery) -> dict[str, Any]:
    chosen = []
    for seen in _seen(call, notes=bool(asked.description)):
        for row in job_rows(seen, call.base) if asked.job_id in seen.spec.job_id else ():
            partners = {party.node for party in seen.spec.parties} - {row["party_id"]}
            if (
                (not asked.role or row["role"] in asked.role)
                and (not asked.status or row["status"] in asked.status)
                and asked.party_id in row["party_id"]
                and asked.description in row["description"]
                and (not asked.partner or asked.partner in partners)
            ):
                chosen.append({**row, "partners": sorted(partners)})
    return {"count": len(chosen), "data": _page(chosen, asked)}


@paths("GET", "/v2/job/task/query", "Tasks, a row for each party that this node plays", peers=True)
def _tasks(call: Call, asked: schemas.TaskQuery) -> list[Row]:
    past = asked.task_version is not None or bool(asked.task_id)
    rows = [r for seen in _seen(call, asked.job_id) for r in task_rows(seen, call.base, all_attempts=past)]
    columns = ("role", "party_id", "status", "task_name", "task_id", "task_version")
    return _matching(rows, asked, "task", columns)


@paths("GET", "/v2/job/task/list/query", "Tasks of a job with all their versions, by pages", peers=True)
def _task_list(call: Call, asked: schemas.TaskListQuery) -> dict[str, Any]:
    wanted = {"role": asked.role, "party_id": asked.party_id, "task_name": asked.task_name}
    rows = task_rows(records_of(call.parts, asked.job_id, notes=False), call.base, all_attempts=True)
    chosen = [row for row in rows if all(word in ("", row[key]) for key, word in wanted.items())]
    return {"count": len(chosen), "data": _page(chosen, asked)}


def _seen(call: Call, job_id: str = "", *, notes: bool = False) -> Iterator[JobRecords]:
    """Yield one job, its state requested where another node schedules it, or the newest with a record here."""
    if job_id:
        yield records_of(call.parts, job_id, notes=notes)
        return
    for one_id in newest(call.parts.store, schemas.MOST_LISTED):
        with suppress(NotFound):  # deleted meanwhile
            yield records_of(call.parts, one_id, ask=False, notes=notes)


def _matching(rows: list[Row], asked: schemas.JobQuery, thing: str, columns: tuple[str, ...]) -> list[Row]:
    wanted = {key: value for key in columns if (value := getattr(asked, key)) not in ("", None)}
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not found:
        wanted = ({"job_id": asked.job_id} if asked.job_id else {}) | wanted
        criteria = ", ".join(f"{key} {value}" for key, value in wanted.items())
        text = f"no {thing} here has {criteria}" if criteria else f"there is no {thing} here"
        raise NotFound(text, reason=f"{thing.upper()}_UNKNOWN")
    return found


def _page(rows: list[Row], asked: schemas.Paged) -> list[Row]:
    """Return a page of the rows in the order asked for. Raises `Invalid` for a column that cannot be sorted by."""
    key = asked.order_by or "create_time"
    if rows and not all(isinstance(row.get(key), str | int | None) and key in row for row in rows):
        raise Invalid([Problem("order_by", "must be a column with times, numbers or texts", key)])
    filled = [row for row in rows if row[key] is not None]
    ordered = sorted(filled, key=lambda row: row[key], reverse=asked.order != "asc")
    ordered += [row for row in rows if row[key] is None]
    limit = asked.limit or schemas.MOST_LISTED
    start = limit * (max(asked.page, 1) - 1)
    return ordered[start : start + limit]


@paths("POST", "/v2/job/stop", "Stop a job at every node", codes=_STOP, peers=True)
def _stop(call: Call, asked: OneJob) -> Envelope:
    call.parts.coordinator.stop(asked.job_id)
    return ok(job_id=asked.job_id)


@paths("POST", "/v2/job/rerun", "Run an ended job again, as a new job", codes=_CHANGE, peers=True)
def _rerun(call: Call, asked: OneJob) -> Envelope:
    """From the first task that has not succeeded. ``job_id`` of the response is the new job's: a job keeps its
    history here, where FATE begins the same one again."""
    made = call.parts.coordinator.rerun(asked.job_id, "", {})
    data = {"job_id": made.job_id, "rerun_of": asked.job_id, "from": made.start}
    return ok({**data, "runs": list(made.runs), "inherits": list(made.inherits)}, job_id=made.job_id)


@paths(
    "POST",
    "/v2/job/clean",
    "Delete an ended job, its logs and outputs, here",
    codes=_STOP,
    peers=True,
)
def _clean(call: Call, asked: Annotated[schemas.CleanJob, Body(examples=[JOB_EXAMPLE])]) -> dict[str, Any]:
    """A job that has not ended is stopped, and its deletion refused until it has."""
    store = call.parts.store
    records = (store.local_jobs.find(asked.job_id), store.jobs.find(asked.job_id))
    if not asked.dry_run and any(record is not None and not ended(JOB, record.status) for record in records):
        call.parts.coordinator.stop(asked.job_id)
        text = f"job {asked.job_id} has not ended: it is being stopped; try again once it has"
        raise Conflict(text, reason="JOB_NOT_ENDED")
    return call.parts.deleting.delete(asked.job_id, by=call.by, here=True, dry_run=asked.dry_run).as_dict()


@paths("POST", "/v2/job/queue/clean", "Cancel the jobs scheduled here of which nothing runs yet")
def _clean_queue(
    call: Call, asked: Annotated[schemas.CleanQueue | None, Body(examples=[{"dry_run": True}])] = None
) -> dict[str, str]:
    dry = bool(asked and asked.dry_run)
    jobs = call.parts.coordinator.cancel_waiting(call.parts.settings.node.id, dry)
    return dict.fromkeys(jobs, "waiting" if dry else "canceled")


@paths("GET", "/v2/job/dag/dependency", "Which task of a party needs whose output", peers=True)
def _dependency(call: Call, asked: schemas.OfParty) -> dict[str, Any]:
    seen = _of_party(call, asked, ask=True)
    return dependencies(seen.spec, {row["task_name"] for row in task_rows(seen) if row["role"] == asked.role})


@paths("POST", "/v2/job/notes/add", "Write something down about a job, for this node", codes=_CHANGE)
def _add_notes(call: Call, asked: Annotated[schemas.AddNotes, Body(examples=[_NOTE])]) -> None:
    """Later notes stand for earlier ones; all are in the job's timeline."""
    _of_party(call, asked)
    note = Note(call.parts.clock(), NOTED, call.by, {"text": asked.notes})
    call.parts.store.note(asked.job_id, "operator", [note])


def _of_party(call: Call, asked: schemas.OfParty, *, ask: bool = False) -> JobRecords:
    seen = records_of(call.parts, asked.job_id, ask=ask)
    if not any((p.role, p.node) == (asked.role, asked.party_id) for p in seen.parties):
        have = ", ".join(f"{p.role} {p.node}" for p in seen.parties)
        text = f"job {asked.job_id} has no party {asked.role} {asked.party_id} here, but {have}"
        raise NotFound(text, reason="JOB_UNKNOWN")
    return seen


@paths("GET", "/v2/log/count", "How many lines a log has by now")
def _log_count(call: Call, asked: schemas.LogQuery) -> int:
    return sum(part.length for part in _log(call.parts, asked))


@paths("GET", "/v2/log/query", "Lines of a log")
def _log_query(call: Call, asked: schemas.LogQuery) -> Envelope:
    """Numbered from 1. ``next``: where to go on, if not all that were asked for fit into one response."""
    log = _log(call.parts, asked)
    count = sum(part.length for part in log)
    first, last = max(asked.begin, 1), min(asked.end or count, count)
    lines = _lines(log, first, last)
    more: dict[str, Any] = {"next": first + len(lines)} if first + len(lines) <= last else {}
    return ok([{"line_num": n, "content": text} for n, text in enumerate(lines, first)], extra=more)


@paths("POST", "/v2/job/log/download", "All logs of a job that this node has, as tar.gz", archive=GZIP)
def _log_download(call: Call, asked: OneJob) -> Response:
    local = _known(call.parts, asked.job_id)
    return sent(_members(call.parts, asked.job_id, local), f"job_{asked.job_id}_log.tar.gz")


@paths("GET", "/v2/job/log/download", "The same, for a browser", archive=GZIP)
def _log_download_by_browser(call: Call, asked: schemas.JobIdRequest) -> Response:
    return _log_download(call, asked)  # type: ignore[no-any-return]


class _Part(NamedTuple):
    """A part of a log: how many lines it has, and what reads them from a number on, and whether that is all."""

    length: int
    read: Callable[[int, int], tuple[list[str], bool]]


def _log(parts: ClientParts, asked: schemas.LogQuery) -> list[_Part]:
    """Return the parts of a log, one after the other. Raises `Invalid`, `NotFound`."""
    local, level = _known(parts, asked.job_id), OF_TASKS.get(asked.log_type)
    if level is None:
        lines = _schedule(parts, asked.job_id, asked.log_type == "schedule_error")
        return [_Part(len(lines), lambda start, number: (lines[start : start + number], True))]
    lacking = [Problem(k, "is required for a task's log") for k in ("role", "party_id") if not getattr(asked, k)]
    if lacking:
        raise Invalid(lacking)
    return [_part(parts, run, level) for run in _chosen(local, asked)]


def _part(parts: ClientParts, run: Run, level: Level) -> _Part:
    def read(start: int, number: int) -> tuple[list[str], bool]:
        found = parts.run_logs.read(run.task_id, level, start, number, run.party.label)
        return [line.text for line in found.lines], not found.left_out

    return _Part(parts.run_logs.read(run.task_id, level, 0, 0, run.party.label).total, read)


def _lines(log: list[_Part], first: int, last: int) -> list[str]:
    """Return the lines of these numbers, from 1; fewer where they are too many for one response."""
    lines: list[str] = []
    before = 0
    for part in log:
        start, end = max(first - 1 - before, 0), min(last - before, part.length)
        before += part.length
        if start < end:
            found, complete = part.read(start, end - start)
            lines += found
            if not complete:
                break
    return lines


def _known(parts: ClientParts, job_id: str) -> LocalJob | None:
    local = parts.store.local_jobs.find(job_id)
    if local is None and parts.store.jobs.find(job_id) is None:
        raise unknown_job(job_id)
    return local


def _chosen(local: LocalJob | None, asked: schemas.LogQuery) -> list[Run]:
    """Return the runs of a party, of one task or of all, each task's newest attempt."""
    runs = [
        run
        for run in (local.runs if local else ())
        if (run.party.role, run.party.node) == (asked.role, asked.party_id)
        and asked.task_name in ("", run.task_name, run.task_id)
    ]
    if not runs:
        what = f"task {asked.task_name}" if asked.task_name else "task"
        text = f"{asked.role} {asked.party_id} has no {what} in job {asked.job_id} here"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return list({(run.task_name, run.party.label): run for run in runs}.values())


def _schedule(parts: ClientParts, job_id: str, errors: bool = False) -> list[str]:
    entries = parts.store.timeline(job_id)
    causes = ("failure", "reason", "error")
    return [_line(e) for e in entries if not errors or any(e.detail.get(key) for key in causes)]


def _line(entry: TimelineEntry) -> str:
    text = json.dumps(entry.detail, ensure_ascii=False, default=str) if entry.detail else ""
    return " ".join(filter(None, (entry.at.isoformat(), entry.side, entry.event, entry.by, text)))


def _members(parts: ClientParts, job_id: str, local: LocalJob | None) -> Iterator[Member]:
    """Yield ``schedule.log`` and ``<role>/<party>/<task>/<attempt>/<stream>.log``."""
    text = "".join(f"{line}\n" for line in _schedule(parts, job_id)).encode()
    yield Member("schedule.log", len(text), (text,))
    for run in local.runs if local else ():
        for stream in STREAMS:
            place = (run.party.role, run.party.node, run.task_name, str(run.attempt), f"{stream}.log")
            yield from _member(parts, job_id, run, stream, "/".join(map(_plain, place)))


def _member(parts: ClientParts, job_id: str, run: Run, stream: str, name: str) -> Iterator[Member]:
    """Yield one run's stream; how long it is is known when it was written to a file once."""
    with SpooledTemporaryFile(_IN_MEMORY) as file:
        start, more = 0, True
        while more:
            try:
                found = parts.run_logs.read_run(job_id, run, (stream,), start, None)
            except NotFound as error:  # another gateway has it
                file.write(f"[{error.reason}: {error.message}]\n".encode())
                break
            file.write("".join(f"{line.text}\n" for line in found.lines).encode())
            start, more = found.next, bool(found.lines) and found.left_out > 0
        size = file.tell()
        file.seek(0)
        yield Member(name, size, iter(lambda: file.read(CHUNK), b""))


def _plain(part: str) -> str:
    return part.replace("/", "_") if part not in (".", "..") else "_"


@paths("GET", "/v2/site/info/query", "This node's id, FATE's party id")
def _site(call: Call) -> dict[str, str]:
    return {"party_id": call.parts.settings.node.id}


@paths("GET", "/v2/server/fateflow", "This gateway, where FATE lists its servers")
def _server(call: Call) -> list[dict[str, Any]]:
    place = urlsplit(call.base)
    about = {
        "instance_id": call.parts.owner,
        "host": place.hostname,
        "http_port": place.port,
        "grpc_port": None,
        "version": VERSION,
        "timestamp": int(call.parts.clock().timestamp() * 1000),
    }
    return [about]
