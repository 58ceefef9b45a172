"""The last lines of the runs that failed here, where a job is shown to a person."""

from collections.abc import Iterator, Mapping
from typing import Any

_LINES = 10
_RUNS = 3
_LONGEST = 300


def last_words(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the end of what each failed run here wrote, and where the whole is; nothing of a stopped job."""
    if job.get("outcome") == "STOPPED":
        return  # whoever stopped it does not ask why it ended
    failed = [run for run in job["runs"] if run.get("last_lines")][-_RUNS:]
    for run in failed:
        where = f"--task {run['task_name']} --party {run['party']}"
        yield f"last lines of {run['task_name']} as {run['party']} (all: job logs {job['job_id']} {where}):"
        for line in run["last_lines"][-_LINES:]:
            yield "  " + "".join(c if c.isprintable() else " " for c in line[:_LONGEST])
