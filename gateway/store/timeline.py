"""Lines of the jobs' timelines: rows of the database, and log lines with the job's trace id.

In log lines, asterisks replace run tokens, as a run token is its container's credential.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
import structlog

from gateway.domain.spec import JobSpec, Note
from gateway.store import schema
from gateway.store.database import Prepared
from gateway.store.serialization import dumps

log = structlog.get_logger(__name__)

# Fields of a note's detail in its log line; the timeline has all fields.
LOGGED = (
    "task",
    "tasks",
    "task_id",
    "role",
    "status",
    "attempt",
    "outcome",
    "reason",
    "exit_code",
    "node",
    "message",
    "path",
    "code",
    "seconds",
)
LONGEST_TEXT = 500  # characters of a field in a log line; longer texts are cut
_INSERT = Prepared(
    schema.timeline.insert().inline(), ("job_id", "side", "at", "event", "actor", "detail")
)
# Matches both kinds of run tokens: 64 or more hexadecimal digits, or exactly 32. Ids of jobs, tasks
# and traces do not match, as a word precedes their digits; nor do ids of keys, after ``sha256:``.
_TOKEN = re.compile(r"(?<!sha256:)[0-9a-fA-F]{64,}|(?<![\w-])[0-9a-fA-F]{32}(?![\w-])")
_SHORTEST_TOKEN = 32  # characters


@dataclass(frozen=True)
class TimelineEntry:
    """A stored line of a job's timeline."""

    at: datetime
    side: str
    event: str
    by: str  # a node or a user; the column ``actor``
    detail: Mapping[str, Any]


def add_notes(
    connection: sa.Connection,
    job_id: str,
    side: str,
    notes: Iterable[Note],
) -> None:
    """Append notes to a job's timeline; name and author are cut to the width of the columns."""
    rows = [_row(job_id, side, note) for note in notes]
    if rows:
        _INSERT.run(connection, rows)


def _row(
    job_id: str,
    side: str,
    note: Note,
) -> dict[str, Any]:
    """Return the row of a note in the timeline."""
    seconds = 0.0
    if note.at.year > 1:  # `datetime.min`, an unknown time, has no timestamp
        seconds = note.at.timestamp()
    return {
        "job_id": job_id,
        "side": side,
        "at": seconds,
        "event": note.event[:255],
        "actor": note.by[:255],
        "detail": dumps(note.detail),
    }


def log_notes(
    side: str,
    spec: JobSpec,
    notes: Iterable[Note],
) -> None:
    """Log the notes of a job, which are stored already. A failure to log is ignored."""
    for note in notes:
        try:
            about = {
                "job": spec.job_id,
                "side": side,
                "by": note.by,
                "trace_id": spec.trace_id,
            }
            log.info(note.event, **_logged(note.detail), **about)
        except Exception:  # a full disk or a closed stream must not undo a decision
            return


def without_tokens(text: str) -> str:
    """Return the text with asterisks in place of anything that looks like a run token."""
    if len(text) < _SHORTEST_TOKEN:
        return text
    return _TOKEN.sub("***", text)


def _logged(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a log line for a note's detail.

    The fields of the object ``failure`` in the detail are moved up, next to the other fields.
    """
    fields = dict(detail)
    failure = detail.get("failure")
    if isinstance(failure, Mapping):
        fields = {**failure, **detail}
    logged = {}
    for name in LOGGED:
        value = fields.get(name)
        if value not in (None, "", ()):
            logged[name] = _loggable(value)
    return logged


def _loggable(value: Any) -> Any:
    """Return a value for a log line: numbers unchanged, anything else as one text."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(str, value))
    else:
        text = str(value)
    text = without_tokens(text)
    if len(text) > LONGEST_TEXT:
        return text[:LONGEST_TEXT] + "…"
    return text
