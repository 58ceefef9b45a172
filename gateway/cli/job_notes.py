"""Lines about a job that are printed below the table of its tasks."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.cli.language import t
from gateway.cli.values import amount
from gateway.errors import counted

_TOPIC_LIMIT = 10  # topics with a line
_FAILED_RUN_LIMIT = 3  # failed attempts whose logs are shown
_LAST_LINE_LIMIT = 10  # lines of the log of one attempt
_LINE_LENGTH = 300  # characters of such a line


@dataclass(frozen=True)
class _Attempt:
    """One attempt of a task at a party."""

    run: Mapping[str, Any]  # the attempt's entry in the runs of the job
    is_last: bool  # no later attempt of the task at this party exists

    @property
    def label(self) -> str:
        """The task and its party."""
        return f"{self.run['task_name']} as {self.run['party']}"


def lineage(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the job that this one reruns or continues, and the tasks whose results it reuses.

    Nothing is yielded for a job that has no earlier job.
    """
    inherited = ""
    tasks = dict.fromkeys(run["task_name"] for run in job.get("inherited_runs", []))
    if tasks:
        inherited = f"; taken over: {', '.join(tasks)}"
    origin = job.get("origin")
    if origin:
        changed = ""
        if origin["changed"]:
            changed = f", other parameters for {', '.join(origin['changed'])}"
        yield f"reruns {origin['job_id']} from {origin['start']}{changed}{inherited}"
    elif job.get("old_job_id"):
        yield f"continues {job['old_job_id']}{inherited}"


def channel_lines(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the channel between containers.

    They show each topic's unread messages and waiting readers, the last refused request, and how
    much each session has received.
    """
    for topic in job.get("channel", [])[:_TOPIC_LIMIT]:
        yield f"channel, topic {topic['topic']}: " + "; ".join(_topic_facts(topic))
    refused = job.get("channel_refused")
    if refused:
        yield f"channel, last refused {refused}"
    for session in job.get("channel_received", []):
        received = f"{counted(session['messages'], 'message')}, {amount(session['bytes'])}"
        rate = amount(session["bytes_per_second"])
        yield f"channel, {session['session']}: {received} received, {rate}/s now"


def _topic_facts(topic: Mapping[str, Any]) -> Iterator[str]:
    """Yield the unread messages of a topic, its rate, and its waiting readers.

    A fact is left out if its number is 0, or if no reader waits.
    """
    if topic["messages"]:
        messages = counted(topic["messages"], "message")
        yield f"{messages}, {topic['bytes']} bytes, the oldest for {topic['oldest']:.0f} s"
    if topic["bytes_per_second"]:
        yield f"{amount(topic['bytes_per_second'])}/s now"
    if topic["readers"]:
        yield f"{', '.join(topic['readers'])} waiting"


def silent_engines(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each run at this node that waits for an engine which does not respond."""
    # "away_at": since when the engine of the run has not responded.
    silent_runs = [run for run in job["runs"] if run.get("away_at")]
    waiting_runs = [run for run in silent_runs if run.get("waiting")]
    for run in waiting_runs:
        yield f"{run['task_name']} as {run['party']}: {run['waiting']['message']}"


def last_lines(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the end of each failed attempt's log at this node, and the command that prints it all.

    Only the last `_FAILED_RUN_LIMIT` attempts with a log are shown, each with at most
    `_LAST_LINE_LIMIT` lines.
    """
    attempts = [attempt for attempt in _relevant_attempts(job) if attempt.run.get("last_lines")]
    for attempt in attempts[-_FAILED_RUN_LIMIT:]:
        # Translated by this function, not by its caller: the lines below are the run's own words.
        yield t(f"last lines of {attempt.label}{_log_source(attempt, job['job_id'])}:")
        for line in attempt.run["last_lines"][-_LAST_LINE_LIMIT:]:
            yield f"  {' '.join(line[:_LINE_LENGTH].splitlines())}"


def _log_source(attempt: _Attempt, job_id: str) -> str:
    """Return the command that prints an attempt's log, for the end of a heading.

    The command prints the log of the last attempt only. For an earlier attempt, the number of the
    attempt is returned instead.
    """
    run = attempt.run
    if not attempt.is_last:
        return f", attempt {run['attempt'] + 1}"
    words = [
        "bfia-gateway",
        "job",
        "logs",
        job_id,
        "--task",
        run["task_name"],
        "--party",
        run["party"],
    ]
    return f" (all: {shlex.join(words)})"


def warnings(job: Mapping[str, Any]) -> list[str]:
    """Return the warnings of the scheduling node, of this node and of its runs, each once.

    The warning of a run begins with its task and party.
    """
    texts = [*job.get("warnings", []), *job.get("local_warnings", [])]
    for attempt in _relevant_attempts(job):
        texts += [f"{attempt.label}: {text}" for text in attempt.run.get("warnings", [])]
    return list(dict.fromkeys(texts))


def warning_lines(
    warnings: Sequence[str],
    job_id: str,
    limit: int | None,
) -> list[str]:
    """Return the first warnings as lines, and the command that prints the others.

    All warnings are lines if ``limit`` is None, or not smaller than their number.
    """
    lines = [f"warning: {warning}" for warning in warnings[:limit]]
    hidden = len(warnings) - len(lines)
    if hidden:
        hidden_warnings = counted(hidden, "more warning")
        lines.append(f"{hidden_warnings}: bfia-gateway job show {shlex.quote(job_id)}")
    return lines


def _relevant_attempts(job: Mapping[str, Any]) -> list[_Attempt]:
    """Return the attempts at this node whose logs and warnings matter.

    These are all attempts of a task at a party, but only the last one if that one succeeded. None
    are returned for a stopped job.
    """
    if job.get("outcome") == "STOPPED":
        return []
    runs = job.get("runs", [])
    last_runs = {(run["task_name"], run["party"]): run for run in runs}
    attempts = []
    for run in runs:
        last_run = last_runs[run["task_name"], run["party"]]
        if run is last_run or last_run.get("status") != "SUCCESS":
            attempts.append(_Attempt(run, is_last=run is last_run))
    return attempts
