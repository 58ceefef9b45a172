"""The GPUs of a daemon: those that its ``node-generic-resources`` names, and which of them its containers hold.

A container keeps the names of its devices in a label, so that every gateway of the daemon sees which are free.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from docker import APIClient
from docker.types import DeviceRequest

from engines.base import CreateFailed

KIND = "NVIDIA-GPU"
LABEL = "bfia.gpu"
_HOLDING = ["created", "running", "paused", "restarting"]
_PAUSE = 0.5
"""the longest, in seconds, before a device is chosen again that two gateways have chosen"""


def named(info: Mapping[str, Any]) -> list[str]:
    """Return the devices in a daemon's description of itself."""
    specs = [one.get("NamedResourceSpec") or {} for one in info.get("GenericResources") or ()]
    return [str(spec["Value"]) for spec in specs if spec.get("Kind") == KIND]


class Gpus:
    """Which device goes to which container."""

    def __init__(self, client: Callable[[], APIClient]) -> None:
        self._client = client
        self._lock = threading.Lock()

    @contextmanager
    def chosen(self, run: str, count: int) -> Iterator[Sequence[str]]:
        """Give free devices for a run; while its container is made, other threads wait.

        Raises `CreateFailed` with the numbers, APIError.
        """
        if not count:
            yield ()
            return
        with self._lock:
            devices, holders = named(self._client().info()), self._holders()
            holders.pop(run, None)
            free = [one for one in devices if not any(one in held for held in holders.values())]
            if len(free) < count:
                by = f", held by {', '.join(sorted(holders))}" if holders else ""
                raise CreateFailed(f"needs gpu {count}, free {len(free)} of the daemon's {len(devices)}{by}")
            yield free[:count]

    def contested(self, run: str) -> bool:
        """Tell whether another gateway has also given away one of the run's devices; wait a moment if so."""
        holders = self._holders()
        own = holders.pop(run, set())
        if not any(own & held for held in holders.values()):
            return False
        time.sleep(random.uniform(0, _PAUSE))
        return True

    def _holders(self) -> dict[str, set[str]]:
        """Return the containers that hold devices, each with theirs."""
        found = self._client().containers(all=True, filters={"label": [LABEL], "status": _HOLDING})
        return {one["Names"][0].lstrip("/"): {*one["Labels"][LABEL].split(",")} for one in found if one["Names"]}


def request(devices: Sequence[str]) -> list[DeviceRequest]:
    """Return what a daemon is to hand to a container."""
    return [DeviceRequest(device_ids=[*devices], capabilities=[["gpu"]])] if devices else []
