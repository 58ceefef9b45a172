"""The events of a job as users see them, and the timeline entries that each event covers."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class EventKind:
    """An event for users, and the timeline entries that it covers."""

    name: str
    means: str  # its meaning in a sentence, for users
    entries: tuple[str, ...]  # names of the timeline entries


# In the order in which they usually happen to a job.
KINDS = (
    EventKind(
        "created",
        "The job was accepted; no part of it runs yet.",
        ("job PENDING", "job READY here"),
    ),
    EventKind(
        "approval_asked",
        "The job waits for an approval, here or at another node.",
        ("approval asked", "waits for approval"),
    ),
    EventKind("approved", "A node has approved the job.", ("approved",)),
    EventKind("ready", "Every node has accepted the job.", ("job READY",)),
    EventKind("started", "The job runs.", ("job RUNNING", "job RUNNING here")),
    EventKind("task_started", "A task runs at some node.", ("task RUNNING",)),
    EventKind(
        "task_ended",
        "A task has ended at every node; `detail` contains the reason of a failure.",
        ("task SUCCESS", "task FAILED"),
    ),
    EventKind("task_again", "A failed task is retried under another id.", ("next attempt",)),
    EventKind(
        "task_inherited",
        "A task of an earlier job is inherited; it does not run.",
        ("task inherited",),
    ),
    EventKind("run_started", "A container of this node is up.", ("run RUNNING",)),
    EventKind(
        "run_ended",
        "A container of this node has ended; `detail` contains the reason of a failure.",
        ("run SUCCESS", "run FAILED"),
    ),
    EventKind("suspended", "No further task of the job starts.", ("suspended",)),
    EventKind("resumed", "Tasks of the job start again.", ("resumed",)),
    EventKind(
        "stopped",
        "The job, or a task and its successors, was stopped; the end follows as `finished` or "
        "`rejected`.",
        ("ending as STOPPED", "task stop asked"),
    ),
    EventKind(
        "model_saved",
        "The training's model is kept at this node; `detail` names it.",
        ("model saved",),
    ),
    EventKind(
        "finished",
        "The job is over; `detail.outcome` is SUCCEEDED, FAILED or STOPPED.",
        ("job FINISHED", "job FINISHED here"),
    ),
    EventKind("rejected", "The job never began.", ("job REJECTED", "job REJECTED here")),
    EventKind(
        "run_again",
        "Another job runs this one again; `detail` names it.",
        ("run again as another job",),
    ),
    EventKind(
        "deleted",
        "The job was deleted at this node; only its timeline's last line is left.",
        ("job deleted",),
    ),
    EventKind(
        "cleaned",
        "Outputs or logs of the job were deleted at this node; by a partner, outputs only.",
        ("outputs deleted", "deleted by a partner"),
    ),
)

NAMES = tuple(kind.name for kind in KINDS)
# Timeline entry -> name of its event.
NAME_OF = {entry: kind.name for kind in KINDS for entry in kind.entries}


def entry_names(names: Collection[str] = ()) -> list[str]:
    """Return the names of the timeline entries of the named events, in the order of `KINDS`.

    ``names`` are names of `NAMES`; unknown ones are ignored. Without any name, the entries of all
    events are returned.
    """
    if not names:
        return list(NAME_OF)
    return [entry for entry, name in NAME_OF.items() if name in names]
