"""Settings of what jobs may take of this node, how long it waits, and how long things are kept."""

from typing import Literal

from pydantic import Field

from gateway.config.engine_settings import Section


class LimitSettings(Section):
    """What jobs may take of this node, and how long it waits for what."""

    cpu: float | None = Field(
        default=None,
        gt=0,
        description="Cores of a task that asks for none; null: holds none, may use all of the node's.",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory in GiB of a task that asks for none; null: holds none, may use 3/4 of the node's.",
    )
    disk_gib: float | None = Field(
        default=None,
        gt=0,
        description="Disk in GiB of a task that asks for none; null: holds none, may use 3/4 of the node's.",
    )
    files: int = Field(
        default=250_000, gt=0, description="Files and folders that a container may make, whatever it asks for."
    )
    pids: int | None = Field(default=512, gt=0, description="Processes and threads of a container.")
    body_bytes: int = Field(default=32 * 1024**2, gt=0, description="Largest body of a control request, in bytes.")
    message_bytes: int = Field(default=256 * 1024**2, gt=0, description="Largest channel message, in bytes.")
    session_bytes: int = Field(default=2 * 1024**3, gt=0, description="Unread bytes of one job's channel.")
    partner_jobs: int = Field(
        default=5000, gt=0, description="Jobs of one partner node that have not ended; a further one is refused."
    )
    partner_requests_per_minute: int = Field(
        default=60_000, gt=0, description="Requests of one partner node in a minute; further ones are refused."
    )
    lost_gateway_seconds: float = Field(
        default=60.0,
        ge=1,
        description="Tasks of a gateway that is silent for this long fail, where several share a database.",
    )
    unreachable_seconds: float = Field(
        default=600.0, gt=0, description="A running job whose node is silent for this long fails."
    )
    orphan_seconds: float | None = Field(
        default=None,
        gt=0,
        description="A job ends here when its scheduler is silent for so long; null: unreachable_seconds + 60.",
    )
    ageing_seconds: float = Field(
        default=600.0,
        gt=0,
        description="A job that waited this long for resources goes before all younger ones, and keeps what one "
        "node granted while it waits for another.",
    )
    schedule_attempts: int = Field(
        default=0, ge=0, description="A job ends when one node had too little free so many times; 0: it waits on."
    )
    schedule_pause_seconds: float = Field(
        default=0.5, gt=0, description="First pause before such a node is asked again; it doubles each time."
    )
    schedule_longest_pause_seconds: float = Field(
        default=30.0,
        gt=0,
        description="The longest such pause; nodes of ours say by themselves when something is free. "
        "A job that has not asked here for three times as long loses its place.",
    )
    engine_down_seconds: float = Field(
        default=60.0, gt=0, description="A container whose engine does not answer for this long counts as failed."
    )
    exit_without_report: Literal["succeeds", "fails"] = Field(
        default="succeeds",
        description="What a container comes to that ends with code 0 and all outputs, and never reported success.",
    )
    run_log_bytes: int = Field(
        default=32 * 1024**2,
        ge=65536,
        description="Largest saved log of a container and stream; of a longer one both ends are kept. "
        "A file that a container writes to its log folder, or a process prints to, keeps that much of each end "
        "while it runs.",
    )
    disk_check_seconds: float = Field(
        default=10.0, gt=0, description="How often the disk is measured that a running container's job has taken."
    )
    storage_reserve_bytes: int = Field(
        default=256 * 1024**2, ge=0, description="No container is started with less than this free on the storage."
    )


class RoleDefaults(Section):
    """What a task of one role needs, where the job does not say."""

    cpu: float | None = Field(default=None, gt=0, description="Cores of a task.")
    memory_gib: float | None = Field(default=None, gt=0, description="Memory of a task in GiB.")
    disk_gib: float | None = Field(default=None, gt=0, description="Disk of a task in GiB.")


class ResourceSettings(Section):
    """What this node has for jobs. Detected; the settings can only make it less, but for the overcommit."""

    cpu: float | None = Field(default=None, gt=0, description="Cores for jobs; null: all that the engine has.")
    memory_gib: float | None = Field(
        default=None, gt=0, description="Memory for jobs in GiB; null: all that the engine has."
    )
    disk_gib: float | None = Field(
        default=None, gt=0, description="Disk for jobs in GiB; null: the whole file system of the storage."
    )
    cpu_overcommit: float = Field(default=1.0, gt=0, le=1000, description="Jobs may hold so many times the cores.")
    memory_overcommit: float = Field(
        default=1.0, gt=0, le=1000, description="Jobs may hold so many times the memory."
    )
    job_share: float = Field(default=1.0, gt=0, le=1, description="Part of all this that one job may hold.")
    roles: dict[str, RoleDefaults] = Field(
        default_factory=dict,
        description="Role, such as arbiter -> what its tasks get that ask for nothing, instead of limits.",
    )


class Retention(Section):
    """What is kept of a job after its end, and for how long; null: for ever."""

    workspace_seconds: float = Field(
        default=60.0,
        ge=0,
        description="Containers, run folders, mailboxes and uploads that outlived their end go after this.",
    )
    logs_seconds: float | None = Field(
        default=30 * 86400.0, ge=0, description="Logs of runs, after the end of their job."
    )
    outputs_seconds: float | None = Field(
        default=None, ge=0, description="Tables, models and reports of a job; what others refer to stays."
    )
    jobs_seconds: float | None = Field(
        default=None, ge=0, description="The job itself with its logs and outputs; a line that it was there stays."
    )
    every_seconds: float = Field(default=60.0, gt=0, description="Pause between two cleanings.")
