"""Nodes with their capacity, and the pools of resources that jobs claim there."""

from dataclasses import replace
from typing import Any

from gateway.domain.amounts import GIB, Amounts, Pool
from gateway.domain.resources import EngineCapacity, NodeCapacity
from gateway.domain.run import LocalJob, Run
from tests.builders import a_local_job

FAR_ENGINE = "ssh://far"


def a_capacity(
    cpu: float = 8,
    memory: float = 64,
    disk: float = 100,
    far: float = 0,
    **fields: Any,
) -> NodeCapacity:
    """Build the capacity of n1 in cores and GiB; ``far``: cores of a further engine, 0 for none."""
    further = {}
    if far:
        further[FAR_ENGINE] = EngineCapacity(Amounts.of(far, 64 * GIB), far)
    total = Amounts.of(cpu, memory * GIB, disk * GIB)
    return replace(NodeCapacity("n1", total, cpu, further=further), **fields)


def a_pool(
    tasks_at_once: int,
    cpu: float = 0,
    memory: float = 0,
    far: float | None = None,
) -> Pool:
    """Build a pool in cores and GiB; ``far``: cores of the further engine, None without a part."""
    further = {} if far is None else {FAR_ENGINE: Amounts.of(far)}
    return Pool(Amounts.of(cpu, memory * GIB), tasks_at_once, further)


def job_with_pool(
    *runs: Run,
    cpu: float,
    **fields: Any,
) -> LocalJob:
    """Build a local job whose pool has ``cpu`` cores."""
    return a_local_job(*runs, pool=Pool(Amounts.of(cpu), 1), **fields)
