"""Lines of the jobs' timelines: as rows of the database, and as log lines under the job's trace id.

A run's token is the container's credential; wherever a log line would show one, asterisks stand in its place.
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

LOGGED = (
    *("task", "tasks", "task_id", "role", "status", "attempt", "outcome", "reason"),
    *("exit_code", "node", "message", "path", "code", "seconds"),
)
"""the fields of a note's detail that a log line shows; the timeline has all of them"""
LONGEST_TEXT = 500
_INSERT = Prepared(
    schema.timeline.insert().inline(), ("job_id", "side", "at", "event", "actor", "detail")
)
_TOKEN = re.compile(r"(?<!sha256:)[0-9a-fA-F]{64,}|(?<![\w-])[0-9a-fA-F]{32}(?![\w-])")
"""both kinds of a run; ids of jobs, tasks and traces have a word before their digits, those of keys ``sha256:``"""
_SHORTEST = 32
"""characters of a token"""


@dataclass(frozen=True)
class TimelineEntry:
    """One written line of a job's timeline."""

    at: datetime
    side: str
    event: str
    by: str
    detail: Mapping[str, Any]


def add_notes(
    connection: sa.Connection,
    job_id: str,
    side: str,
    notes: Iterable[Note],
) -> None:
    """Append notes to a job's timeline; texts are cut to the columns."""
    rows = [
        {
            "job_id": job_id,
            "side": side,
            "at": note.at.timestamp() if note.at.year > 1 else 0.0,
            "event": note.event[:255],
            "actor": note.by[:255],
            "detail": dumps(note.detail),
        }
        for note in notes
    ]
    if rows:
        _INSERT.run(connection, rows)


def log_notes(
    side: str,
    spec: JobSpec,
    notes: Iterable[Note],
) -> None:
    """Log the notes of a job; a failure is ignored, for they are stored already."""
    for note in notes:
        try:
            about = {
                "job": spec.job_id,
                "side": side,
                "by": note.by,
                "trace_id": spec.trace_id,
            }
            log.info(note.event, **_logged(note.detail), **about)
        except Exception:  # a full disk or a closed stream must not undo what was decided
            return


def without_tokens(text: str) -> str:
    """Return the text with asterisks in place of whatever looks like a run's token."""
    return text if len(text) < _SHORTEST else _TOKEN.sub("***", text)


def _logged(detail: Mapping[str, Any]) -> dict[str, Any]:
    failure = detail.get("failure")
    fields = {**(failure if isinstance(failure, Mapping) else {}), **detail}
    return {name: _value(fields[name]) for name in LOGGED if fields.get(name) not in (None, "", ())}


def _value(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    text = without_tokens(
        ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    )
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
