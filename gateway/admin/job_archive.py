"""The archive of everything that this node has about a job."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.admin.job_view import JobServices, job_in_full
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.errors import GatewayError, NotFound
from gateway.jobs import archive, bundle_document
from gateway.jobs.archive import Entry, as_json
from gateway.jobs.secret_masking import without_secrets
from gateway.store.serialization import to_plain
from provider_registry.model import group_of


def archive_pieces(services: JobServices, job_id: str) -> Iterator[bytes]:
    """Return a zip of everything this node has about a job, piece by piece. Raises `NotFound`."""
    local = services.store.local_jobs.find(job_id)
    job = services.store.jobs.find(job_id)
    record = job or local
    if record is None:
        raise NotFound(
            f"job {job_id} neither is scheduled nor runs here",
            reason="JOB_UNKNOWN",
        )
    made_at = services.clock()
    state = {
        "job_id": job_id,
        "node": services.node,
        "made_at": made_at.isoformat(),
        "sides": _sides(job, local),
        "job": _plain_job(services, job_id),
    }
    files = _ArchivedFiles(
        services,
        job_id,
        local,
        secrets=_secrets(services, local),
    )
    protocol = services.peers.adapter(record.spec.protocol)
    entries = files.entries(
        request=protocol.request(record.spec),
        state=state,
    )
    return archive.write(entries, made_at)


@dataclass(frozen=True)
class _ArchivedFiles:
    """The files of an archive. The content of each is read when it is written to the zip file."""

    services: JobServices
    job_id: str
    local: LocalJob | None  # this node's part of the job
    secrets: list[str]  # texts to mask

    def entries(
        self,
        request: Any,
        state: Any,
    ) -> Iterator[Entry]:
        """Yield all files.

        - ``request``: the job as it was submitted
        - ``state``: the job as it is now
        """
        yield Entry("job.json", partial(self._document, request))
        yield Entry("state.json", partial(self._document, state))
        yield Entry("timeline.jsonl", self._timeline)
        local = self.local
        if local is None:
            return
        yield Entry(
            bundle_document.FILE,
            partial(self._bundle, local),
        )
        for run in local.runs:
            folder = f"runs/{_folder_of(run)}"
            yield Entry(
                f"{folder}/environment.json",
                partial(self._environment, local, run),
            )
            yield from self._log_files(run, f"{folder}/log")
        yield from self._report_files(local)

    def _document(self, value: Any) -> list[bytes]:
        """Return the content of a JSON file, with the secrets masked."""
        return [as_json(without_secrets(value, self.secrets))]

    def _timeline(self) -> Iterator[bytes]:
        """Yield the timeline's entries, each as one line of JSON."""
        for entry in self.services.store.timeline(self.job_id):
            [text] = self._document(to_plain(entry))
            lines = [line.strip() for line in text.splitlines()]
            yield b" ".join(lines) + b"\n"

    def _bundle(self, local: LocalJob) -> list[bytes]:
        """Return the job's bundle, as `bfia-gateway job verify` reads it."""
        return self._document(bundle_document.document(local))

    def _environment(self, local: LocalJob, run: Run) -> list[bytes]:
        """Return the environment variables of a run's container."""
        variables = self.services.launching.environment(local, run)
        return self._document(variables)

    def _log_files(self, run: Run, folder: str) -> Iterable[Entry]:
        """Return the log files of a run, to be written to a folder of the archive.

        If another gateway of this node has them, return an entry that raises the error when it is
        read.
        """
        try:
            self.services.run_logs.check_here(run)
        except NotFound as error:
            entry = Entry(
                folder,
                partial(_raise_when_read, error),
            )
            return [entry]
        return archive.of_files(
            self.services.runs_folder / run.name,
            folder,
            self.secrets,
        )

    def _report_files(self, local: LocalJob) -> Iterator[Entry]:
        """Yield the stored reports of the job's runs here."""
        storage = self.services.storage
        for run in local.runs:
            folder = f"reports/{_folder_of(run)}"
            for key in _report_keys(local, run):
                address = run.data.output(key)
                if storage.exists(address):
                    yield Entry(
                        f"{folder}/{key}",
                        partial(storage.stream, address),
                    )


def _sides(job: Job | None, local: LocalJob | None) -> list[str]:
    """Return this node's parts in a job: scheduler, participant."""
    sides = []
    if job is not None:
        sides.append("scheduler")
    if local is not None:
        sides.append("participant")
    return sides


def _plain_job(services: JobServices, job_id: str) -> Any:
    """Return a job in full as plain data, or the error of the node that schedules it."""
    try:
        return to_plain(job_in_full(services, job_id))
    except GatewayError as error:
        return {
            "reason": error.reason,
            "message": error.message,
        }


def _secrets(services: JobServices, local: LocalJob | None) -> list[str]:
    """Return the texts to mask in an archive.

    These are the random ids (``run_id`` and ``token`` of each run), the complete tokens, which
    begin with these ids, and the secrets of storages.
    """
    ids: list[str] = []
    if local is not None:
        for run in local.runs:
            ids += filter(None, (run.run_id, run.token))
    tokens = map(services.run_tokens.issue, ids)
    return [
        *tokens,
        *ids,
        *services.storage.secrets,
    ]


def _folder_of(run: Run) -> str:
    """Return the folder of a run's files, below the folders of the archive."""
    return f"{run.party.label}/{run.task_name}/attempt-{run.attempt}"


def _raise_when_read(error: NotFound) -> Iterable[bytes]:
    """Raise the error, in place of the content of an entry."""
    raise error


def _report_keys(local: LocalJob, run: Run) -> list[str]:
    """Return the keys of a run's outputs that are reports, sorted."""
    keys = []
    for key in sorted(run.data.output_keys):
        output_type = local.spec.dag.type_of(run.task_name, key)
        if group_of(output_type) == "metric":
            keys.append(key)
    return keys
