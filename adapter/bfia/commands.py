"""Every command between nodes with its path: the standard's, and this gateway's extensions.

``docs/between-nodes.md`` has them as a table, which `tools.docs` makes from this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from adapter.bfia.paths import JOB_AUDIT

EXTENSION = "extension"  # origin of a path that only this gateway has
ONE_PEER = "one peer"  # origin of a path that only one kind of peer has
_WITHDRAWAL = f"{JOB_AUDIT}/terminate"  # the one path of the standard that peers may lack


@dataclass(frozen=True)
class Command:
    """Something that a node asks of another one."""

    purpose: str
    path: str  # below `SCHEDULE`, or in full
    origin: str  # section of the standard that describes it, `EXTENSION`, or `ONE_PEER`
    # What happens at a peer that lacks the path, or fields of it; "" if every peer has them.
    without: str = ""


COMMANDS = (
    Command(
        "submit a job to the node that schedules it",
        "/job/create_all",
        "3.1",
    ),
    Command("create a job at a party", "/job/create", "3.2"),
    Command(
        "check components, data and parameters at a party",
        "/job/create",
        "3.2",
    ),
    Command(
        "align a job's settings between parties",
        "/job/create",
        "3.2",
    ),
    Command(
        "report what a party reserves for a job",
        "/job/create",
        "3.2",
        without=(
            "the field `resources` of its response is absent: it is not asked to reserve anything"
        ),
    ),
    Command(
        "report whether a node takes part, after a person has approved or images have been pulled",
        "/job/audit_confirm",
        "3.10 of 1.0",
        without=(
            "a node that needs a person's approval refuses jobs scheduled by such a peer "
            "(APPROVAL_UNSUPPORTED)"
        ),
    ),
    Command(
        "ask whether a node would take part in a job, before it is created",
        f"{JOB_AUDIT}/apply",
        "management 8",
        without="sent only to peers of profile `audited`, which requires the question",
    ),
    Command(
        "report the decision on such a question",
        f"{JOB_AUDIT}/confirm",
        "management 8",
        without=(
            "the peer asked, so it has the path; otherwise it learns the decision when it creates "
            "the job"
        ),
    ),
    Command(
        "withdraw such a question",
        f"{JOB_AUDIT}/terminate",
        "management 8",
        without=(
            "the withdrawal is not reported to it; its request for approval ends at its own "
            "deadline"
        ),
    ),
    Command(
        "report the job's outcome and its cause with the withdrawal",
        f"{JOB_AUDIT}/terminate",
        "management 8",
        without="the fields `outcome` and `failed_by` may be ignored",
    ),
    Command("start a job", "/job/start", "3.3"),
    Command(
        "start a job without an optional party",
        "/job/start",
        "3.3",
        without=(
            "the field `without` is ignored: its containers learn of a party that does not take "
            "part"
        ),
    ),
    Command("start a task", "/task/start", "3.4"),
    Command(
        "stop a job, requested at a party",
        "/job/stop_all",
        "3.5",
    ),
    Command(
        "stop a task and its successors, requested at a party",
        "/job/stop_all",
        "3.5",
    ),
    Command("stop a job at a party", "/job/stop", "3.6"),
    Command(
        "report the job's outcome and its cause to a party",
        "/job/stop",
        "3.6",
        without=(
            "the fields `outcome` and `failed_by` are ignored; without them, the node's own runs "
            "decide, and `/job/status_all` is queried"
        ),
    ),
    Command(
        "have a party keep the models of a successful training",
        "/job/stop",
        "3.6",
        without="without `outcome`, a party keeps them if all its tasks have succeeded",
    ),
    Command("stop a task at a party", "/job/stop", "3.6"),
    Command(
        "stop a task at a party, by its id",
        "/task/stop",
        ONE_PEER,
        without="sent only to peers of profile `kuscia`, which have it",
    ),
    Command("get a job's state", "/job/status_all", "3.7"),
    Command(
        "get a job's progress and outcome",
        "/job/status_all",
        "3.7",
        without="the fields are absent: both are derived from the tasks' states",
    ),
    Command("collect a task's state", "/task/poll", "3.8"),
    Command(
        "report a task's state",
        "/task/callback",
        "3.9",
        without=(
            "not sent to peers of profile `kuscia`; a peer that refuses it learns the state by "
            "polling"
        ),
    ),
    Command(
        "have a party reserve a job's resources before it starts",
        "/job/resource/apply",
        EXTENSION,
        without=(
            "it is not asked; only a party whose response to `/job/create` has `resources` is asked"
        ),
    ),
    Command(
        "have a party release the reservation, because another party has too few free resources",
        "/job/resource/return",
        EXTENSION,
        without="it is not asked: it reserves nothing",
    ),
    Command(
        "report to the scheduling node that a waiting job fits now",
        "/job/resource/free",
        EXTENSION,
        without="not needed: whoever schedules tries again by itself",
    ),
    Command(
        "test a route in both directions",
        "/node/hello",
        EXTENSION,
        without=(
            "identity, clock, body size, latency and the way back cannot be tested; everything "
            "else is tested"
        ),
    ),
    Command(
        "rerun an ended job from a task on, requested at a party",
        "/job/rerun",
        EXTENSION,
        without=(
            "it cannot be asked for there, only at the node that schedules the job "
            "(`NOT_SERVED_THERE`)"
        ),
    ),
    Command(
        "take over finished tasks of an earlier job",
        "/job/create",
        "3.2",
        without=(
            "without `inherited` in its response, a job that needs it is refused with "
            "`INHERITANCE_FAILED`"
        ),
    ),
    Command(
        "delete an ended job at another of its nodes",
        "/job/delete",
        EXTENSION,
        without="the job stays there; the answer of the deletion says so (`NOT_SERVED_THERE`)",
    ),
    Command(
        "delete the outputs or the metrics of a task of an ended job at another of its nodes",
        "/task/clean",
        EXTENSION,
        without=("the outputs stay there; the answer of the cleaning says so (`NOT_SERVED_THERE`)"),
    ),
    Command(
        "dry run of a job at a party",
        "/job/plan",
        EXTENSION,
        without=(
            "its side of the plan is `unknown` (`NOT_SERVED_THERE`); the route to it is tried all "
            "the same"
        ),
    ),
    Command(
        "start no further task of a job, requested at a party",
        "/job/suspend",
        EXTENSION,
        without="refused with NOT_SERVED_THERE; nothing changes",
    ),
    Command(
        "resume a suspended job, requested at a party",
        "/job/resume",
        EXTENSION,
        without="refused with NOT_SERVED_THERE; nothing changes",
    ),
    Command(
        "change the parameters of tasks that have not started, requested at a party",
        "/job/parameters",
        EXTENSION,
        without="refused with NOT_SERVED_THERE; nothing changes",
    ),
    Command(
        (
            "have a party accept changed parameters before they take effect; `amendments` of "
            "`/task/start` lists those in effect"
        ),
        "/job/parameters/offer",
        EXTENSION,
        without="the change is refused with NOT_SERVED_THERE at every node",
    ),
    Command(
        "describe an output of a task at a party: columns and count, never rows",
        "/output/metadata",
        EXTENSION,
        without="refused with NOT_SERVED_THERE; its own people see it there",
    ),
)


def _is_optional(command: Command) -> bool:
    """True for a command whose path a peer may lack."""
    return command.origin == EXTENSION or command.path == _WITHDRAWAL


def _first_effects() -> dict[str, str]:
    """Return the paths that a peer may lack, each with the effect in its first command."""
    effects: dict[str, str] = {}
    for command in COMMANDS:
        if _is_optional(command):
            effects.setdefault(command.path, command.without)
    return effects


# Path that a peer may lack -> the effect of that
OPTIONAL: Mapping[str, str] = _first_effects()
