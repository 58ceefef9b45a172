"""What one node asks of another: each command, its path, and what happens where a peer lacks that path.

A path is the standard's, one peer's, or an extension of ours. An extension is always asked for by `Peer.ask`, as
``peer.ask(EXTENSIONS["/job/…"], body)``: that tells a peer without it (`NotServed`) from a peer that says no.
Whoever adds a path adds its row here; the table in ``docs/between-nodes.md``, and the contract test against a peer
that keeps to the standard, are made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

EXTENSION = "extension"
JOB_AUDIT = "/v1/interconn/job/audit"


@dataclass(frozen=True)
class Command:
    """One command to another node. Several may go to one path."""

    name: str
    path: str
    """below ``/v1/interconn/schedule``, or the whole of one that lies elsewhere"""
    source: str
    """where the path comes from: a section of the control layer, a peer, or `EXTENSION`"""
    without: str = ""
    """what happens at a peer that does not serve the path, or does not read what is ours in it"""

    @property
    def is_extension(self) -> bool:
        """Whether the path is ours, so that a peer may well not have it."""
        return self.source == EXTENSION


COMMANDS = (
    Command("submit a job to the node that schedules it", "/job/create_all", "3.1"),
    Command("create a job at a party", "/job/create", "3.2"),
    Command("check components, data and parameters at a party", "/job/create", "3.2"),
    Command("align a job's settings between parties", "/job/create", "3.2"),
    Command(
        "report what a party reserves for a job",
        "/job/create",
        "3.2",
        "the field `resources` of the answer is absent: it is not asked to reserve anything",
    ),
    Command(
        "report whether a node takes part, where somebody there has to agree, or images come, first",
        "/job/audit_confirm",
        "3.10 of 1.0",
        "a node that has to ask a person refuses jobs that such a peer schedules (APPROVAL_UNSUPPORTED)",
    ),
    Command(
        "ask whether a node would take part in a job, before it is created",
        f"{JOB_AUDIT}/apply",
        "management 8",
        "sent to profile `audited` only, which wants to be asked",
    ),
    Command(
        "report what was decided on such a question",
        f"{JOB_AUDIT}/confirm",
        "management 8",
        "it asked, so it has the path; else the decision is seen when it creates the job",
    ),
    Command(
        "withdraw such a question",
        f"{JOB_AUDIT}/terminate",
        "management 8",
        "it is not informed; the question ends with that node's own deadline; "
        "`outcome` and `failed_by` may be ignored",
    ),
    Command("start a job", "/job/start", "3.3"),
    Command(
        "start a job without an optional party",
        "/job/start",
        "3.3",
        "the field `without` is ignored: its containers get a party that does not take part",
    ),
    Command("start a task", "/task/start", "3.4"),
    Command("stop a job, asked at a party", "/job/stop_all", "3.5"),
    Command("stop a task and what follows it, asked at a party", "/job/stop_all", "3.5"),
    Command("stop a job at a party", "/job/stop", "3.6"),
    Command(
        "report to a party how the job ended, and why",
        "/job/stop",
        "3.6",
        "the fields `outcome` and `failed_by` are ignored; without them, the runs of the node decide",
    ),
    Command(
        "have a party keep the models of a training that succeeded",
        "/job/stop",
        "3.6",
        "without `outcome`, a party all of whose tasks have succeeded keeps them",
    ),
    Command("stop a task at a party", "/job/stop", "3.6"),
    Command(
        "stop a task at a party, by its id",
        "/task/stop",
        "one peer",
        "sent to profile `kuscia` only, which has it",
    ),
    Command("get a job's state", "/job/status_all", "3.7"),
    Command(
        "get a job's progress and outcome",
        "/job/status_all",
        "3.7",
        "the fields are absent: both are counted from the tasks' states",
    ),
    Command("collect a task's state", "/task/poll", "3.8"),
    Command(
        "report a task's state",
        "/task/callback",
        "3.9",
        "not sent to profile `kuscia`; a peer that refuses it learns the state by polls",
    ),
    Command(
        "have a party reserve what a job needs before it starts",
        "/job/resource/apply",
        EXTENSION,
        "it is not asked: only a party that tells of `resources` at `/job/create` is",
    ),
    Command(
        "have a party take that back, because another one has too little free",
        "/job/resource/return",
        EXTENSION,
        "it is not asked: it reserves nothing",
    ),
    Command(
        "report to the scheduling node that a waiting job fits now",
        "/job/resource/free",
        EXTENSION,
        "not needed: whoever schedules tries again by itself",
    ),
    Command(
        "try a route in both directions",
        "/node/hello",
        EXTENSION,
        "identity, clock, body size, latency and the way back cannot be tried; all else is",
    ),
    Command(
        "have an ended job run again from a task on, asked at a party",
        "/job/rerun",
        EXTENSION,
        "it cannot be asked for there, only at the node that schedules the job (`NOT_SERVED_THERE`)",
    ),
    Command(
        "take over finished tasks of an earlier job",
        "/job/create",
        "3.2",
        "without `inherited` in its response, a job that needs it is refused with `INHERITANCE_FAILED`",
    ),
    Command(
        "have an ended job deleted at another node of it",
        "/job/delete",
        EXTENSION,
        "the job stays there; the answer of the deletion says so (`NOT_SERVED_THERE`)",
    ),
    Command(
        "dry run of a job at a party",
        "/job/plan",
        EXTENSION,
        "its side of the plan is `unknown` (`NOT_SERVED_THERE`); the route to it is tried all the same",
    ),
    Command(
        "start no further task of a job, asked at a party",
        "/job/suspend",
        EXTENSION,
        "refused with NOT_SERVED_THERE; nothing changes",
    ),
    Command(
        "go on with a suspended job, asked at a party",
        "/job/resume",
        EXTENSION,
        "refused with NOT_SERVED_THERE; nothing changes",
    ),
    Command(
        "describe an output of a task there: columns, count, never rows",
        "/output/metadata",
        EXTENSION,
        "refused with NOT_SERVED_THERE; its own people see it there",
    ),
)
"""Every command, in the order of the control layer; extensions at the end."""


BY_PATH: Mapping[str, Command] = {c.path: c for c in COMMANDS}
"""The last command of each path."""

EXTENSIONS: Mapping[str, Command] = {c.path: c for c in COMMANDS if c.is_extension}
"""The extensions by their path."""
