"""What the node has for jobs: what the engine and the storage tell, bounded by the settings."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from engines.base import Capacity, Engine, EngineError
from engines.machine import this_machine
from gateway.domain.amounts import GIB, Amounts, Defaults
from gateway.domain.model import NodeId
from gateway.domain.needs import Means, Room
from gateway.folders import nearest
from gateway.limit_settings import LimitSettings, ResourceSettings

log = structlog.get_logger(__name__)


def defaults_of(limits: LimitSettings, resources: ResourceSettings) -> Defaults:
    """Return what tasks get that ask for nothing, by role where a role has something of its own."""
    roles = {
        role: Defaults(own.cpu, _bytes(own.memory_gib), limits.pids, _bytes(own.disk_gib))
        for role, own in resources.roles.items()
    }
    return Defaults(limits.cpu, _bytes(limits.memory_gib), limits.pids, _bytes(limits.disk_gib), roles or None)


def detecting(
    node: NodeId,
    engine: Engine,
    storage: Path,
    settings: ResourceSettings,
    defaults: Defaults,
    further: Callable[[], Mapping[str, Room]] = dict,
) -> Callable[[], Means]:
    """Return what tells the node's means; while the main engine does not answer, this machine stands for it.

    ``further`` tells what the engines beside it have.
    """
    found: list[Means] = []

    def means() -> Means:
        if found:
            return replace(found[0], further=further())
        try:
            capacity, known = engine.capacity(), True
        except EngineError as error:
            log.warning("the engine does not tell what it has; this machine stands for it", cause=str(error))
            capacity, known = this_machine(), False
        told = replace(_means(node, capacity, _disk(storage), settings, defaults), engine=engine.kind)
        if known:
            found.append(told)
        return replace(told, further=further())

    return means


def _means(node: NodeId, capacity: Capacity, disk: int, settings: ResourceSettings, defaults: Defaults) -> Means:
    total = Amounts.of(
        min(capacity.cpu, settings.cpu or capacity.cpu) * settings.cpu_overcommit,
        min(capacity.memory, _bytes(settings.memory_gib) or capacity.memory) * settings.memory_overcommit,
        min(disk, _bytes(settings.disk_gib) or disk),
    )
    return Means(node, total, capacity.cpu, settings.job_share, defaults)


def _disk(storage: Path) -> int:
    """Return the size of the file system in which the storage lies, or is to lie."""
    return shutil.disk_usage(nearest(storage)).total


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)
