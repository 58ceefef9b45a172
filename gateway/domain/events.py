"""The events of a job: their names, what they mean, and which entries of the timeline they stand for."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """An event's name and the timeline entries that it stands for."""

    name: str
    means: str
    entries: tuple[str, ...]


KINDS = (
    Kind(
        "created",
        "The job was taken in; nothing of it runs yet.",
        ("job PENDING", "job READY here"),
    ),
    Kind(
        "approval_asked",
        "The job waits for somebody to approve it, here or at another node.",
        ("approval asked", "waits for approval"),
    ),
    Kind("approved", "A node has approved the job.", ("approved",)),
    Kind("ready", "Every node has accepted the job.", ("job READY",)),
    Kind("started", "The job runs.", ("job RUNNING", "job RUNNING here")),
    Kind("task_started", "A task runs at some node.", ("task RUNNING",)),
    Kind(
        "task_ended",
        "A task is over at every node; `detail` tells the reason of a failure.",
        ("task SUCCESS", "task FAILED"),
    ),
    Kind("task_again", "A failed task is tried again, under another id.", ("next attempt",)),
    Kind(
        "task_inherited",
        "A task of an earlier job is taken over; it does not run.",
        ("task inherited",),
    ),
    Kind("run_started", "A container of this node is up.", ("run RUNNING",)),
    Kind(
        "run_ended",
        "A container of this node is over; `detail` tells the reason of a failure.",
        ("run SUCCESS", "run FAILED"),
    ),
    Kind("suspended", "No further task of the job starts.", ("suspended",)),
    Kind("resumed", "Tasks of the job start again.", ("resumed",)),
    Kind(
        "stopped",
        "Somebody stopped the job, or a task with what follows it; the end comes as `finished` or `rejected`.",
        ("ending as STOPPED", "task stop asked"),
    ),
    Kind(
        "model_saved",
        "The training's model is kept at this node; `detail` names it.",
        ("model saved",),
    ),
    Kind(
        "finished",
        "The job is over; `detail.outcome` is SUCCEEDED, FAILED or STOPPED.",
        ("job FINISHED", "job FINISHED here"),
    ),
    Kind("rejected", "The job never began.", ("job REJECTED", "job REJECTED here")),
    Kind(
        "run_again",
        "Another job runs this one again; `detail` names it.",
        ("run again as another job",),
    ),
    Kind(
        "deleted",
        "The job was deleted at this node; only its timeline's last line is left.",
        ("job deleted",),
    ),
    Kind(
        "cleaned",
        "Outputs or logs of the job were deleted at this node; by a partner, outputs only.",
        ("outputs deleted", "deleted by a partner"),
    ),
)
"""Every kind of event, in the order in which a job meets them."""

NAMES = tuple(kind.name for kind in KINDS)
NAME_OF = {entry: kind.name for kind in KINDS for entry in kind.entries}


def entries(names: Iterable[str] = ()) -> list[str]:
    """Return the timeline entries of these events; of all where none is named."""
    wanted = set(names) or set(NAMES)
    return [entry for kind in KINDS if kind.name in wanted for entry in kind.entries]
