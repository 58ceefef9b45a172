"""What the node has for jobs: what the engine and the storage tell, bounded by the settings."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from engines.host import this_machine
from gateway.config.limit_settings import LimitSettings, ResourceSettings
from gateway.data.folders import nearest
from gateway.domain.amounts import GIB, Amounts, Defaults
from gateway.domain.needs import Means, Room
from gateway.domain.spec import NodeId
from gateway.jobs.capacity import Cap, bounded


def defaults_of(limits: LimitSettings, resources: ResourceSettings) -> Defaults:
    """Return what tasks get that ask for nothing, by role where a role has something of its own."""
    roles = {
        role: Defaults(own.cpu, _bytes(own.memory_gib), limits.pids, _bytes(own.disk_gib))
        for role, own in resources.roles.items()
    }
    return Defaults(limits.cpu, _bytes(limits.memory_gib), limits.pids, _bytes(limits.disk_gib), roles or None)


def detecting(
    node: NodeId,
    rooms: Callable[[], Mapping[str, Room]],
    storage: Path,
    settings: ResourceSettings,
    defaults: Defaults,
    kind: str = "main",
) -> Callable[[], Means]:
    """Return what tells the node's means from what its engines have; ``kind`` is what the main one is called.

    Until the main engine has answered for the first time, this machine stands for it.
    """
    found: list[int] = []

    def disk() -> int:
        if not found:
            has = _disk(storage)
            found.append(min(has, _bytes(settings.disk_gib) or has))
        return found[0]

    def means() -> Means:
        further = dict(rooms())
        main = further.pop("")
        if main.total is None:
            has = this_machine()
            main = Room(bounded(has, Cap(settings.cpu, settings.memory_gib), settings), has.cpu)
        total = replace(main.total or Amounts(), disk=disk())
        return Means(node, total, main.cores, settings.job_share, defaults, further, kind)

    return means


def _disk(storage: Path) -> int:
    """Return the size of the file system in which the storage lies, or is to lie."""
    return shutil.disk_usage(nearest(storage)).total


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)
