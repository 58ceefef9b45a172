"""``/api/v1/jobs/…/archive``: one download with all that this node knows of a job."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi.responses import Response, StreamingResponse

from gateway.admin.answers import answering
from gateway.admin.jobs import job_in_full
from gateway.admin.parts import AdminParts
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError, NotFound
from gateway.http.paths import Paths
from gateway.jobs import archive
from gateway.jobs.archive import Entry, as_json, without_secrets
from gateway.run_tokens import RunTokens
from gateway.store.serialization import to_plain
from provider_registry.model import group_of

STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class ArchiveParts:
    """What the path is built of."""

    admin: AdminParts
    runs: Path
    """where the logs of runs lie"""
    request_of: Callable[[JobSpec], dict[str, Any]]
    """a job as its protocol's request"""
    environment_of: Callable[[LocalJob, Run], dict[str, str]]
    clock: Callable[[], datetime]
    tokens: RunTokens


def router(parts: ArchiveParts) -> Paths:
    """Return the path of the archive."""
    router = Paths(tags=["operators"])
    run = answering(parts.admin.limiters)

    @router.get(
        "/api/v1/jobs/{job_id}/archive",
        summary="All that this node knows of a job, as a zip file",
        response_class=Response,
        responses={200: {"content": {"application/zip": {}}}},
    )
    async def download(job_id: str) -> Any:
        """The job as it was submitted (as far as this node is told), its state and effective parameters, the
        masked environment and the logs of every attempt, the timeline, reports, and ``SHA256SUMS`` of all of them.

        A file that could not be read is named in ``INCOMPLETE``.
        """
        found = await run(lambda: _entries(parts, job_id))
        if isinstance(found, Response):
            return found
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in job_id)
        headers = {"content-disposition": f'attachment; filename="{plain}.zip"'}
        pieces = archive.write(found, parts.clock())
        return StreamingResponse(_bytes(parts, pieces), media_type="application/zip", headers=headers)

    return router


async def _bytes(parts: ArchiveParts, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the file piece by piece; no thread is held while the reader is slow."""

    def following() -> bytes | None:
        for piece in pieces:
            if piece:
                return piece
        return None

    try:
        while (piece := await anyio.to_thread.run_sync(following, limiter=parts.admin.limiters.rest)) is not None:
            yield piece
    finally:
        getattr(pieces, "close", lambda: None)()


def _entries(parts: ArchiveParts, job_id: str) -> Iterable[Entry]:
    """Return the files of a job's archive. Raises `NotFound`."""
    store = parts.admin.store
    local = store.local_jobs.find(job_id)
    job = store.jobs.find(job_id)
    record = job or local
    if record is None:
        raise NotFound(f"job {job_id} neither is scheduled nor runs here", reason="JOB_UNKNOWN")
    ids = [i for run in (local.runs if local else ()) for i in (run.run_id, run.token) if i]
    secrets = [*map(parts.tokens.issue, ids), *ids]
    try:
        state = without_secrets(job_in_full(parts.admin, job_id), secrets)
    except GatewayError as error:  # the node that schedules it has forgotten it, or says no
        state = {"reason": error.reason, "message": error.message}
    head = {
        "job_id": job_id,
        "node": parts.admin.node,
        "made_at": parts.clock().isoformat(),
        "sides": [side for side, one in (("scheduler", job), ("participant", local)) if one is not None],
        "job": state,
    }
    request = without_secrets(parts.request_of(record.spec), secrets)
    return _files(parts, job_id, local, secrets, [("job.json", request), ("state.json", head)])


def _files(
    parts: ArchiveParts,
    job_id: str,
    local: LocalJob | None,
    secrets: list[str],
    documents: list[tuple[str, Any]],
) -> Iterator[Entry]:
    for name, value in documents:
        yield _document(name, value)
    yield Entry("timeline.jsonl", lambda: _timeline(parts, job_id, secrets))
    for run in local.runs if local else ():
        assert local is not None
        place = f"runs/{run.party.label}/{run.task_name}/attempt-{run.attempt}"
        yield Entry(f"{place}/environment.json", lambda run=run: _environment(parts, local, run, secrets))  # type: ignore[misc]
        yield from _log(parts, run, f"{place}/log", secrets)
    yield from _reports(parts, local)


def _log(parts: ArchiveParts, run: Run, place: str, secrets: list[str]) -> Iterable[Entry]:
    """Return what a run wrote; where another gateway of this node has it, an entry that says so."""
    try:
        parts.admin.run_logs.check_here(run)
    except NotFound as error:
        words = error

        def elsewhere() -> Iterable[bytes]:
            raise words

        return [Entry(place, elsewhere)]
    return archive.of_files(parts.runs / run.name, place, secrets)


def _document(name: str, value: Any) -> Entry:
    return Entry(name, lambda: [as_json(value)])


def _timeline(parts: ArchiveParts, job_id: str, secrets: list[str]) -> Iterator[bytes]:
    for entry in parts.admin.store.timeline(job_id):
        shown = as_json(without_secrets(to_plain(entry), secrets))
        yield b" ".join(line.strip() for line in shown.splitlines()) + b"\n"


def _environment(parts: ArchiveParts, local: LocalJob, run: Run, secrets: list[str]) -> list[bytes]:
    return [as_json(without_secrets(parts.environment_of(local, run), secrets))]


def _reports(parts: ArchiveParts, local: LocalJob | None) -> Iterator[Entry]:
    for run in local.runs if local else ():
        assert local is not None
        node = local.spec.dag.get(run.task_name)
        types = {o.key: o.type for o in node.outputs} if node else {}
        for key, name in sorted(run.output_keys.items()):
            address = run.outputs[name]
            if group_of(types.get(key, "")) != "metric" or not parts.admin.storage.exists(address):
                continue
            place = f"reports/{run.party.label}/{run.task_name}/attempt-{run.attempt}/{key}"
            yield Entry(place, lambda address=address: parts.admin.storage.stream(address))  # type: ignore[misc]
