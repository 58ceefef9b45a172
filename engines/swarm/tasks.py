"""What a run is in a Swarm: a service of one task that is never started again, and what its tasks say of it.

A task that is to end is replaced by one that fits on no machine: Swarm then ends the first and keeps its exit code
and its logs, which it does not if the service is removed.
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

RUN = "bfia.run"
"""Label of a task with the run's name."""
NOWHERE = "node.id==none"
"""Placement that no machine fits."""
ENDING = {"Placement": {"Constraints": [NOWHERE]}}
"""The change of a service in whose favour Swarm ends the task that runs."""

_NANO = 10**9
OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned"})
_OWN_EXIT = "task: non-zero exit"
"""how the error of a task begins whose program has ended; others never began"""


@dataclass(frozen=True)
class SwarmOptions(ClusterOptions, DaemonOptions):
    """Which Swarm to use, and how to run there."""

    gpu: str = "NVIDIA-GPU"
    constraints: tuple[str, ...] = ()
    """where runs may be placed, as of `docker service create --constraint`"""
    log_size: int = 10 * 1024 * 1024
    """bytes of one log file, of which a container has three at most"""


class Task:
    """One task as the manager describes it."""

    def __init__(self, seen: Mapping[str, Any]) -> None:
        self.id = str(seen["ID"])
        self.machine = str(seen.get("NodeID") or "")
        self.state = str(seen["Status"]["State"])
        self.wanted = str(seen["DesiredState"])
        self.error = str(seen["Status"].get("Err") or seen["Status"].get("Message") or "")
        self.created = datetime.fromisoformat(seen["CreatedAt"])
        self._at = datetime.fromisoformat(seen["Status"]["Timestamp"])
        container = seen["Status"].get("ContainerStatus") or {}
        self._has_container = bool(container.get("ContainerID"))
        self._code = int(container.get("ExitCode") or 0)
        spec = seen["Spec"]
        self.name = str((spec["ContainerSpec"].get("Labels") or {}).get(RUN, ""))
        self.replaces = _fits_nowhere(spec)
        """whether it only ends the run"""

    @property
    def over(self) -> bool:
        """Whether it does not run and never will."""
        return self.state in OVER

    @property
    def begun(self) -> bool:
        """Whether its program was started."""
        if self.state == "failed":
            return self.error.startswith(_OWN_EXIT)
        if self.state == "shutdown":  # in which a task of any state ends once Swarm wants it to
            return self._has_container
        return self.state in ("running", "complete")

    @property
    def perhaps_lost(self) -> bool:
        """Whether it may be on a machine that is gone: Swarm wants it to end, and it has not."""
        return not self.over and self.wanted in ("shutdown", "remove") and bool(self.machine)

    def probe(self) -> Probe:
        """Return the state of a task whose program was started."""
        if not self.over:
            return Running(self.created)
        return Exited(
            self._code, signal_of(self._code), False, self.created, max(self._at, self.created)
        )


def ends(service: Mapping[str, Any]) -> bool:
    """Whether a service was changed so that its run ends."""
    return _fits_nowhere(service["Spec"]["TaskTemplate"])


def _fits_nowhere(template: Mapping[str, Any]) -> bool:
    return NOWHERE in ((template.get("Placement") or {}).get("Constraints") or ())


def newest(seen: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return each run's own task. Swarm started none a second time; what replaced it to end it is left out."""
    found: dict[str, Task] = {}
    for task in sorted(map(Task, seen), key=lambda task: task.created):
        if task.name and not task.replaces:
            found.setdefault(task.name, task)
    return list(found.values())


def template(
    spec: LaunchSpec,
    reference: str,
    image: Image,
    mounts: Sequence[DockerMount],
    network: str,
    cores: float,
    options: SwarmOptions,
) -> TaskTemplate:
    """Return the task of a run by the reference of its image; ``cores`` are those of the smallest machine."""
    small, large = options.room, spec.limits.memory or options.room
    folders = dict.fromkeys(spec.private_folders, small)
    folders[HOME], folders[SHARED_MEMORY] = large, large
    if options.read_only_root:
        folders[TEMPORARY], folders[HOME] = small, small
    own = [
        DockerMount(
            path,
            "",
            type="tmpfs",
            tmpfs_mode=0o1777,
            tmpfs_size=size,
        )
        for path, size in folders.items()
    ]
    binds = [
        DockerMount(
            _plain(one["Target"]), _plain(one["Source"]), type="bind", read_only=one["ReadOnly"]
        )
        for one in mounts
    ]
    variables = image.variables_for(spec, TEMPORARY)
    container = ContainerSpec(
        reference,
        args=None if spec.command is None else [*spec.command],
        env=[_plain(f"{name}={value}") for name, value in variables.items()],
        workdir=image.working_directory(TEMPORARY),
        labels={**spec.labels, RUN: spec.name},
        user=options.user if image.runs_as_root else None,
        mounts=[*binds, *own],
        stop_grace_period=round(options.grace * _NANO),
        init=True,
        healthcheck=NO_CHECK,
        cap_drop=["ALL"],
        cap_add=list(spec.capabilities) or None,
        read_only=options.read_only_root or None,
    )
    made = TaskTemplate(
        container,
        resources=Resources(),
        restart_policy=RestartPolicy(condition="none"),
        log_driver=DriverConfig(
            LogConfig.types.JSON, {"max-size": str(options.log_size), "max-file": "3"}
        ),
        networks=[NetworkAttachmentConfig(network)],
    )
    made["Resources"] = _resources(spec, cores, options.gpu)
    made["Placement"] = {"Constraints": [*options.constraints]}
    return made


def _resources(
    spec: LaunchSpec,
    cores: float,
    gpu: str,
) -> dict[str, Any]:
    limits, kept = spec.limits, spec.reserved
    cpu = limits.cpu if limits.cpu is None or kept.cpu is not None else min(limits.cpu, cores)
    gpus = [{"DiscreteResourceSpec": {"Kind": gpu, "Value": limits.gpu}}] if limits.gpu else None

    def amounts(cpu: float | None, **more: Any) -> dict[str, Any]:
        all_of_them = {"NanoCPUs": None if cpu is None else round(cpu * _NANO), **more}
        return {name: value for name, value in all_of_them.items() if value is not None}

    return {
        "Limits": amounts(cpu, MemoryBytes=limits.memory, Pids=limits.pids),
        "Reservations": amounts(kept.cpu, MemoryBytes=kept.memory, GenericResources=gpus),
    }


def devices(has: Mapping[str, Any], kind: str) -> int:
    """Return how many of a generic resource a machine has: each by its name, or a number of them."""
    generic = has.get("GenericResources") or ()
    names = [one for one in generic if (one.get("NamedResourceSpec") or {}).get("Kind") == kind]
    counts = [one.get("DiscreteResourceSpec") or {} for one in generic]
    return len(names) + sum(int(one["Value"]) for one in counts if one.get("Kind") == kind)


def _plain(text: str) -> str:
    """Return what Swarm, which fills in templates in variables and mounts, hands on as this text."""
    return re.sub(r"\{\{", '{{"{{"}}', text)
