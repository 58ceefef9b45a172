"""A run in a Swarm: a service of one task that never restarts, and the managers' view of the task.

To end a task, its service is changed to a task that fits on no machine. Swarm then ends the running
task and keeps its exit code and its logs, which it does not if the service is removed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from docker.types import (
    ContainerSpec,
    DriverConfig,
    LogConfig,
    NetworkAttachmentConfig,
    Resources,
    RestartPolicy,
    TaskTemplate,
)
from docker.types import Mount as DockerMount

from engines.base import (
    HOME,
    SHARED_MEMORY,
    TEMPORARY,
    ClusterOptions,
    Exited,
    LaunchSpec,
    Probe,
    Running,
    signal_of,
)
from engines.docker.daemon import DaemonOptions
from engines.docker.images import NO_CHECK
from engines.image import Image
from engines.records import list_in, object_in, text_in

RUN = "bfia.run"  # label of a task with the run's name
NOWHERE = "node.id==none"  # a placement that fits no machine
# The change to a service by which Swarm ends the service's task
ENDING = {"Placement": {"Constraints": [NOWHERE]}}

NANO = 10**9  # Swarm counts billionths of a core, and nanoseconds
OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned"})  # states of a task

# Beginning of the error of a failed task whose program had started
_PROGRAM_FAILED = "task: non-zero exit"


@dataclass(frozen=True)
class SwarmOptions(ClusterOptions, DaemonOptions):
    """Which Swarm to use, and how to run containers there."""

    gpu: str = "NVIDIA-GPU"  # as in `ClusterOptions`
    constraints: tuple[str, ...] = ()  # on machines, as of `docker service create --constraint`
    log_size: int = 10 * 1024 * 1024  # bytes of one log file; a container has at most three


class Task:
    """A task as the manager describes it."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        """``record``: an element of the manager's list of tasks."""
        spec = record["Spec"]
        labels = object_in(spec["ContainerSpec"], "Labels")
        self.id = str(record["ID"])
        self.name = str(labels.get(RUN, ""))  # the run's; empty if the task is not that of a run
        self.machine = text_in(record, "NodeID")  # empty: not placed yet
        self.desired_state = str(record["DesiredState"])
        self.created = datetime.fromisoformat(record["CreatedAt"])
        self.only_ends_run = _fits_nowhere(spec)  # made by a service's change to `ENDING`

        status = record["Status"]
        self.state = str(status["State"])
        self.error = text_in(status, "Err") or text_in(status, "Message")
        # When the state last changed
        self._updated = datetime.fromisoformat(status["Timestamp"])

        container = object_in(status, "ContainerStatus")
        self._has_container = bool(container.get("ContainerID"))
        self._exit_code = int(container.get("ExitCode") or 0)

    @property
    def is_over(self) -> bool:
        """Whether the task does not run now, and will not run later."""
        return self.state in OVER

    @property
    def has_started(self) -> bool:
        """Whether the task's program was started."""
        has_started_by_state = {
            "running": True,
            "complete": True,
            "failed": self.error.startswith(_PROGRAM_FAILED),
            # When Swarm ends a task, in whatever state, the task gets this state.
            "shutdown": self._has_container,
        }
        return has_started_by_state.get(self.state, False)

    @property
    def may_be_lost(self) -> bool:
        """Whether its machine may be gone: Swarm wants the task to end, and it has not ended."""
        if self.is_over or not self.machine:
            return False
        return self.desired_state in ("shutdown", "remove")

    def probe(self) -> Probe:
        """Return the state of the run of a task whose program was started.

        Swarm records no start of the program, so the creation of the task counts as the start.
        """
        if not self.is_over:
            return Running(self.created)
        return Exited(
            code=self._exit_code,
            signal=signal_of(self._exit_code),
            started_at=self.created,
            finished_at=max(self._updated, self.created),
        )


def is_ending(service: Mapping[str, Any]) -> bool:
    """Whether a service was changed to end its run."""
    return _fits_nowhere(service["Spec"]["TaskTemplate"])


def _fits_nowhere(task_template: Mapping[str, Any]) -> bool:
    """Whether a task's placement fits no machine."""
    placement = object_in(task_template, "Placement")
    return NOWHERE in list_in(placement, "Constraints")


def first_tasks(records: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return the task of each run.

    By its restart policy, a run has one task; if it has more nevertheless, the oldest counts. Tasks
    that only end a run, and tasks of other services, are omitted.
    """
    tasks = [Task(record) for record in records]
    by_run: dict[str, Task] = {}
    for task in sorted(tasks, key=_age):
        is_of_run = bool(task.name) and not task.only_ends_run
        if is_of_run:
            by_run.setdefault(task.name, task)
    return list(by_run.values())


def _age(task: Task) -> datetime:
    """Return when a task was created, by which the oldest one sorts first."""
    return task.created


def run_template(
    spec: LaunchSpec,
    reference: str,
    image: Image,
    mounts: Sequence[DockerMount],
    network: str,
    cores: float,
    options: SwarmOptions,
) -> TaskTemplate:
    """Return the task of a run, as its service describes it.

    ``reference`` names the image; ``cores``: the cores of the smallest machine.
    """
    log_config = {"max-size": str(options.log_size), "max-file": "3"}
    task = TaskTemplate(
        _container(spec, reference, image, mounts, options),
        resources=Resources(),
        restart_policy=RestartPolicy(condition="none"),
        log_driver=DriverConfig(LogConfig.types.JSON, log_config),
        networks=[NetworkAttachmentConfig(network)],
    )
    task["Resources"] = _resources(spec, cores, options.gpu)
    task["Placement"] = {"Constraints": list(options.constraints)}
    return task


def _container(
    spec: LaunchSpec,
    reference: str,
    image: Image,
    mounts: Sequence[DockerMount],
    options: SwarmOptions,
) -> ContainerSpec:
    """Return the container of a run's task."""
    variables = []
    for name, value in image.variables_for(spec, TEMPORARY).items():
        variables.append(_escaped(f"{name}={value}"))
    arguments = None
    if spec.command is not None:
        arguments = list(spec.command)
    user = None
    if image.runs_as_root:
        user = options.user
    return ContainerSpec(
        reference,
        args=arguments,
        env=variables,
        workdir=image.working_directory(TEMPORARY),
        labels={**spec.labels, RUN: spec.name},
        user=user,
        mounts=[*map(_literal_mount, mounts), *_private_folders(spec, options)],
        stop_grace_period=round(options.grace * NANO),
        init=True,
        healthcheck=NO_CHECK,
        cap_drop=["ALL"],
        cap_add=list(spec.capabilities) or None,
        read_only=options.read_only_root or None,
    )


def _literal_mount(mount: DockerMount) -> DockerMount:
    """Return a mount whose paths Swarm takes literally."""
    return DockerMount(
        _escaped(mount["Target"]),
        _escaped(mount["Source"]),
        type="bind",
        read_only=mount["ReadOnly"],
    )


def _private_folders(spec: LaunchSpec, options: SwarmOptions) -> list[DockerMount]:
    """Return a run's folders in memory.

    The home folder and shared memory may be as large as the run's memory limit; with a read-only
    root, the home folder has the size of a private folder.
    """
    small = options.room
    large = spec.limits.memory or small
    sizes = dict.fromkeys(spec.private_folders, small)
    sizes[HOME] = large
    sizes[SHARED_MEMORY] = large
    if options.read_only_root:
        sizes[TEMPORARY] = small
        sizes[HOME] = small
    mounts = []
    for path, size in sizes.items():
        mounts.append(DockerMount(path, "", type="tmpfs", tmpfs_mode=0o1777, tmpfs_size=size))
    return mounts


def _resources(
    spec: LaunchSpec,
    cores: float,
    gpu: str,
) -> dict[str, Any]:
    """Return the limits and reservations of a run.

    Without a reservation, Swarm may place the run on its smallest machine, which refuses a limit
    above its cores. The limit is then reduced to ``cores``.
    """
    limits = spec.limits
    reserved = spec.reserved
    cpu = limits.cpu
    if cpu is not None and reserved.cpu is None:
        cpu = min(cpu, cores)
    gpus = None
    if limits.gpu:
        gpus = [{"DiscreteResourceSpec": {"Kind": gpu, "Value": limits.gpu}}]
    return {
        "Limits": _amounts(
            cpu,
            MemoryBytes=limits.memory,
            Pids=limits.pids,
        ),
        "Reservations": _amounts(
            reserved.cpu,
            MemoryBytes=reserved.memory,
            GenericResources=gpus,
        ),
    }


def _amounts(cpu: float | None, **amounts: Any) -> dict[str, Any]:
    """Return the amounts in Swarm's form; an amount that is None is omitted. ``cpu``: cores."""
    all_amounts = dict(amounts)
    if cpu is not None:
        all_amounts["NanoCPUs"] = round(cpu * NANO)
    return {name: value for name, value in all_amounts.items() if value is not None}


def devices(resources: Mapping[str, Any], kind: str) -> int:
    """Return how many devices of a kind a machine has; Swarm lists them by name or as a number."""
    count = 0
    for resource in list_in(resources, "GenericResources"):
        by_name = object_in(resource, "NamedResourceSpec")
        if by_name.get("Kind") == kind:
            count += 1
        by_number = object_in(resource, "DiscreteResourceSpec")
        if by_number.get("Kind") == kind:
            count += int(by_number["Value"])
    return count


def _escaped(text: str) -> str:
    """Return a text that Swarm takes literally in variables and mounts.

    Each ``{{``, which would begin one of Swarm's placeholders, becomes a placeholder for ``{{``.
    """
    return re.sub(r"\{\{", '{{"{{"}}', text)
