"""Assigns the GPUs of a daemon to containers."""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engines.base import CreateFailed
from engines.docker.client import Connection

# Label with the names of a container's devices, by which every gateway of the daemon sees the free ones.
GPUS = "bfia.gpu"
GPU = "NVIDIA-GPU"  # the daemon's kind of resource that stands for GPUs
MAX_GPU_PAUSE = 0.5  # seconds; before another choice if two gateways chose the same device

_STATUSES_WITH_GPU = ["created", "running", "paused", "restarting"]


class Gpus:
    """Assigns a daemon's devices to containers."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._lock = threading.Lock()

    @contextmanager
    def choose(self, run: str, count: int) -> Iterator[Sequence[str]]:
        """Choose free devices for a run; other threads wait until its container is created.

        Raises `CreateFailed` with the numbers, APIError.
        """
        if not count:
            yield ()
            return
        with self._lock:
            devices = device_names(self._client().info())
            devices_by_run = self._devices_by_run()
            devices_by_run.pop(run, None)
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
        """Return whether another gateway assigned one of the run's devices, too; if so, after a pause."""
        devices_by_run = self._devices_by_run()
        devices = devices_by_run.pop(run, set())
        in_use = set().union(*devices_by_run.values())
        if not devices & in_use:
            return False
        time.sleep(random.uniform(0, MAX_GPU_PAUSE))
        return True

    def _devices_by_run(self) -> dict[str, set[str]]:
        filters = {"label": [GPUS], "status": _STATUSES_WITH_GPU}
        containers = self._client().containers(all=True, filters=filters)
        return {
            name_of(container): set(container["Labels"][GPUS].split(","))
            for container in containers
            if container["Names"]
        }


def device_names(info: Mapping[str, Any]) -> list[str]:
    """Return the GPUs in a daemon's description of itself."""
    names = []
    for resource in info.get("GenericResources") or ():
        spec = resource.get("NamedResourceSpec") or {}
        if spec.get("Kind") == GPU:
            names.append(str(spec["Value"]))
    return names


def name_of(container: Mapping[str, Any]) -> str:
    """Return the name of a container in the daemon's list."""
    return str(container["Names"][0].lstrip("/"))
