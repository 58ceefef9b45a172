"""Says in the log what was written into the timelines: one line per note, under the job's trace id.

A run's token is the container's credential; wherever a text shows one, asterisks stand in its place.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from gateway.domain.spec import JobSpec, Note

log = structlog.get_logger(__name__)

TOLD = (
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
    "said",
    "seconds",
)
"""what of a note's detail a log line tells; the timeline has all of it"""
LONGEST_TEXT = 500
_TOKEN = re.compile(r"[0-9a-fA-F]{64,}|(?<![\w-])[0-9a-fA-F]{32}(?![\w-])")
"""both kinds of a run; ids of jobs, tasks and traces have a word before their digits"""


def announce(side: str, spec: JobSpec, notes: Iterable[Note]) -> None:
    """Log the notes of a job; whatever goes wrong with that is let go, for they are stored already."""
    for note in notes:
        try:
            told = {"job": spec.job_id, "side": side, "by": note.by, "trace_id": spec.trace_id}
            log.info(note.event, **_main(note.detail), **told)
        except Exception:  # a full disk or a closed stream must not undo what was decided
            return


def without_tokens(text: str) -> str:
    """Return the text with asterisks in place of whatever looks like a run's token."""
    return _TOKEN.sub("***", text)


def _main(detail: Mapping[str, Any]) -> dict[str, Any]:
    failure = detail.get("failure")
    fields = {**(failure if isinstance(failure, Mapping) else {}), **detail}
    return {name: _shown(fields[name]) for name in TOLD if fields.get(name) not in (None, "", ())}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = without_tokens(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
