"""The sections ``jobs``, ``limits``, ``resources``, ``retention`` and ``approval``."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.values import (
    Rate,
    Section,
    Switch,
)


class LimitSettings(Section):
    """Limits of jobs at this node, and its time limits."""

    cpu: float | None = Field(
        default=None,
        gt=0,
        description="Cores of a task that requests none; null: reserves none, may use all of the "
        "node's.",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory in GiB of a task that requests none; null: reserves none, may use 3/4 "
        "of the node's.",
    )
    disk_gib: float | None = Field(
        default=None,
        gt=0,
        description="Disk in GiB of a task that requests none; null: reserves none, may use 3/4 of "
        "the node's.",
    )
    pids: int | None = Field(
        default=512,
        gt=0,
        description="Processes and threads of a container.",
    )
    body_bytes: int = Field(
        default=32 * 1024**2,
        gt=0,
        description="Largest body of a control request, in bytes.",
    )
    message_bytes: int = Field(
        default=256 * 1024**2,
        gt=0,
        description="Largest channel message, in bytes.",
    )
    session_bytes: int = Field(
        default=2 * 1024**3,
        gt=0,
        description="Largest total of unread messages in one job's channel, in bytes.",
    )
    partner_jobs: int = Field(
        default=5000,
        gt=0,
        description="Jobs of one partner node that have not ended; a further one is refused.",
    )
    partner_job_seconds: float | None = Field(
        default=7 * 86_400.0,
        gt=0,
        description="Maximum run time of a partner's job here, after which it ends with TIMEOUT; "
        "null: no limit.",
    )
    partner_requests_per_minute: int = Field(
        default=60_000,
        gt=0,
        description="Requests of one partner node in a minute; further ones are refused.",
    )
    partner_bandwidth: Rate | None = Field(
        default=None,
        description="Bytes per second exchanged with one partner node, in each direction and by "
        "each gateway, shared fairly between jobs: a whole number, or a text such as 20MB; null: "
        "no limit. `bandwidth` in a route takes precedence.",
        examples=["20MB"],
    )
    unreachable_seconds: float = Field(
        default=600.0,
        gt=0,
        description="A running job fails if a node of it is silent for this long; a minute later "
        "if that node schedules it.",
    )
    ageing_seconds: float = Field(
        default=600.0,
        gt=0,
        description="A job that waited this long for resources goes before all younger ones, and "
        "keeps one node's reservation while it waits for another.",
    )
    schedule_attempts: int = Field(
        default=0,
        ge=0,
        description="A job ends after this many attempts at which a node had too few free "
        "resources; 0: it keeps waiting.",
    )
    schedule_pause_seconds: float = Field(
        default=0.5,
        gt=0,
        description="First pause before a retry at a node with too few free resources; it doubles "
        "each time.",
    )
    schedule_longest_pause_seconds: float = Field(
        default=30.0,
        gt=0,
        description="Longest pause before a retry; nodes with this gateway report when resources "
        "become free. A job that has not asked here for three times as long loses its place.",
    )
    exit_without_report: Literal["succeeds", "fails"] = Field(
        default="succeeds",
        description="Result of a container that ends with code 0 and all outputs, but never "
        "reported success.",
    )
    run_log_bytes: int = Field(
        default=32 * 1024**2,
        ge=65536,
        description="Largest saved log of a container and stream; of a longer one both ends are "
        "kept. A file that a container writes to its log folder, or a process prints to, keeps "
        "that much of each end while it runs.",
    )
    storage_reserve_bytes: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="No container is started with less than this free on the storage.",
    )


class RoleDefaults(Section):
    """Resources of a task of one role that requests none."""

    cpu: float | None = Field(
        default=None,
        gt=0,
        description="Cores of a task.",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory of a task in GiB.",
    )
    disk_gib: float | None = Field(
        default=None,
        gt=0,
        description="Disk of a task in GiB.",
    )


class ResourceSettings(Section):
    """Resources of this node for jobs.

    Detected; except for the overcommit, settings can only lower them.
    """

    cpu: float | None = Field(
        default=None,
        gt=0,
        description="Cores for jobs; null: all that the engine has.",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory for jobs in GiB; null: all that the engine has.",
    )
    disk_gib: float | None = Field(
        default=None,
        gt=0,
        description="Disk for jobs in GiB; null: the whole file system of the storage.",
    )
    cpu_overcommit: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Multiple of the cores that jobs may hold together.",
    )
    memory_overcommit: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Multiple of the memory that jobs may hold together.",
    )
    job_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of all these resources that one job may reserve.",
    )
    partner_share: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="Share of the cores for a task of a partner's job that requests none.",
    )
    roles: dict[str, RoleDefaults] = Field(
        default_factory=dict,
        description="Role, such as arbiter -> resources of its tasks that request none, instead "
        "of limits.",
    )


class JobDefaultSettings(Section):
    """Settings of jobs submitted here that leave them out; null: no default.

    The names and their meaning are those of ``job_params.common``.
    """

    task_parallelism: int | None = Field(
        default=None,
        ge=1,
        description="Tasks of a job that may be under way at the same time.",
    )
    auto_retries: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="How often a failed task is retried.",
    )
    auto_retry_delay: float | None = Field(
        default=None,
        ge=0,
        le=1e9,
        description="Seconds between a failure and the next attempt.",
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Time limit of a job in seconds.",
    )
    task_timeout: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Time limit of each attempt of a task in seconds.",
    )


class JobsSettings(Section):
    """Jobs submitted at this node."""

    defaults: JobDefaultSettings = Field(
        default=JobDefaultSettings(),
        description="Settings of jobs that leave them out; a job's own values count first.",
    )


class Retention(Section):
    """Retention of a job's data after its end; null: forever."""

    logs_seconds: float | None = Field(
        default=30 * 86400.0,
        ge=0,
        description="Logs of runs, after the end of their job.",
    )
    outputs_seconds: float | None = Field(
        default=None,
        ge=0,
        description="Tables, models and reports of a job; those with references from elsewhere "
        "stay.",
    )
    checkpoints: int | None = Field(
        default=3,
        ge=1,
        description="Newest checkpoints of a task that stay, during and after its job; null: all.",
    )
    jobs_seconds: float | None = Field(
        default=None,
        ge=0,
        description="The job itself with its logs and outputs; one line of its timeline stays.",
    )


class ApprovalRule(Section):
    """The decision on a task at a party here that matches all patterns; ``*`` matches anything."""

    source: str = Field(default="*", description="The node that wants the job.")
    component: str = Field(default="*", description="provider/name of the task's component.")
    dataset: str = Field(
        default="*", description="Id of the task's own data here, or <namespace>#<name>."
    )
    role: str = Field(default="*", description="The role that this node plays.")
    command: Literal["*", "create", "start"] = Field(
        default="*",
        description="create: acceptance of the job; start: its start, for which only a rule with "
        "reject counts.",
    )
    decide: Literal["approve", "reject", "ask"] = Field(
        description="approve, reject, or ask a person."
    )


class ApprovalSettings(Section):
    """Who has to agree before this node takes part in a job of another one."""

    mode: Annotated[Literal["off", "rules", "person"], Switch] = Field(
        default="off",
        description="off: no approval; rules: they decide, else a person; person: always a person.",
    )
    deadline_seconds: float = Field(
        default=86_400.0,
        gt=0,
        le=31_536_000,
        description="A job without a decision after this time is refused.",
    )
    rules: list[ApprovalRule] = Field(
        default_factory=list,
        description="The first rule that matches a task decides; reject applies in every mode.",
    )
