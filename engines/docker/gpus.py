"""Assigns the GPUs of a daemon to containers."""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engines.base import CreateFailed
from engines.docker.client import Connection
from engines.records import list_in, object_in

# Label with the names of a container's devices. By these labels, every gateway that uses the daemon
# knows the free devices.
GPUS = "bfia.gpu"
GPU = "NVIDIA-GPU"  # kind of the daemon's resources that are GPUs
# The most seconds before another choice if two gateways chose the same device
MAX_GPU_PAUSE = 0.5

_STATUSES_WITH_GPU = ["created", "running", "paused", "restarting"]


class Gpus:
    """Assigns a daemon's devices to containers."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._lock = threading.Lock()

    @contextmanager
    def choose(
        self,
        run: str,
        count: int,
    ) -> Iterator[Sequence[str]]:
        """Choose free devices for a run; other threads wait until its container is created.

        Yields an empty sequence for a ``count`` of 0. Raises APIError, and `CreateFailed` with the
        numbers of requested and free devices if too few are free.
        """
        if not count:
            yield ()
            return
        with self._lock:
            devices = device_names(self._client().info())
            devices_by_run = self._devices_by_run()
            devices_by_run.pop(run, None)  # the devices of an earlier attempt to start this run
            in_use = set().union(*devices_by_run.values())
            free = [device for device in devices if device not in in_use]
            if len(free) < count:
                holders = ""
                if devices_by_run:
                    holders = f", held by {', '.join(sorted(devices_by_run))}"
                raise CreateFailed(
                    f"needs gpu {count}, free {len(free)} of the daemon's {len(devices)}{holders}"
                )
            yield free[:count]

    def is_contested(self, run: str) -> bool:
        """Whether another gateway assigned one of the run's devices to a run of its own.

        If so, the answer comes after a random pause, so that the two gateways do not collide again.
        """
        devices_by_run = self._devices_by_run()
        devices = devices_by_run.pop(run, set())
        in_use = set().union(*devices_by_run.values())
        if not devices & in_use:
            return False
        time.sleep(random.uniform(0, MAX_GPU_PAUSE))
        return True

    def _devices_by_run(self) -> dict[str, set[str]]:
        """Return the devices of all containers that have not exited, by the container's name."""
        filters = {"label": [GPUS], "status": _STATUSES_WITH_GPU}
        containers = self._client().containers(all=True, filters=filters)
        devices_by_run = {}
        for container in containers:
            if container["Names"]:  # none while it is being removed
                devices_by_run[name_of(container)] = set(container["Labels"][GPUS].split(","))
        return devices_by_run


def device_names(info: Mapping[str, Any]) -> list[str]:
    """Return the GPUs in a daemon's description of itself, by the names that its admin gave them.

    Resources that are only counted have no names, and are omitted.
    """
    names = []
    for resource in list_in(info, "GenericResources"):
        spec = object_in(resource, "NamedResourceSpec")
        if spec.get("Kind") == GPU:
            names.append(str(spec["Value"]))
    return names


def name_of(container: Mapping[str, Any]) -> str:
    """Return the name of a container in the daemon's list."""
    return str(container["Names"][0].lstrip("/"))
