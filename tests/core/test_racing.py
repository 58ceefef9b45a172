"""Many threads, of two gateways on one database, end a job at once: one does, and what follows is done once."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.domain.job import Job
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.messages import CreateAt, StopRequested, TaskReported
from gateway.domain.spec import CallState
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.jobs.scheduler import Scheduler
from gateway.runtime.context import NodeContext, Peers
from gateway.runtime.loop import Lanes
from gateway.store.database import connect, migrate
from gateway.store.store import Store
from tests.builders import T0, a_job
from tests.e2e.nodes import wait_for

THREADS = 32


class Told:
    """Every node of the job; counts what it is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stops: Counter[str] = Counter()

    def participant(self, node: str) -> Any:
        told = self

        class Node:
            def stop_job(self, *_: Any) -> None:
                with told._lock:
                    told.stops[node] += 1

            def __getattr__(self, name: str) -> Any:
                raise AssertionError(f"{node} is asked to {name}")

        return Node()


@pytest.fixture
def gateways(database_url: str) -> Iterator[tuple[list[Scheduler], list[Store], Told]]:
    told = Told()
    stores = [Store(connect(database_url)) for _ in range(2)]
    migrate(connect(database_url))
    lanes = [Lanes() for _ in stores]
    schedulers = [
        Scheduler(NodeContext("n0", store, lambda: datetime.now(UTC)), Peers("n0", {"bfia": told}), lane)  # type: ignore[dict-item]
        for store, lane in zip(stores, lanes, strict=True)
    ]
    yield schedulers, stores, told
    for lane, store in zip(lanes, stores, strict=True):
        lane.close()
        store.close()


@pytest.mark.parametrize("words", [("SUCCESS",), ("SUCCESS", "FAILED")], ids=["alike", "contrary"])
def test_a_job_is_ended_by_one_of_many_threads(
    gateways: tuple[list[Scheduler], list[Store], Told], words: tuple[str, ...]
):
    schedulers, stores, told = gateways
    job = a_job("a", JobStatus.RUNNING, a={"n1": TaskStatus.SUCCESS, "n2": TaskStatus.RUNNING})
    assert stores[0].jobs.add(job, "flow")
    gate, raised = threading.Barrier(THREADS), list[BaseException]()

    def tell(i: int) -> None:
        gate.wait(30)
        try:
            status = TaskStatus(words[i % len(words)])
            schedulers[i % 2].record(job.id, TaskReported("task_a", "n2", "host", status, datetime.now(UTC)))
        except BaseException as error:  # the test looks at it
            raised.append(error)

    threads = [threading.Thread(target=tell, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert raised == []
    wait_for(lambda: stores[1].jobs.get(job.id).status is JobStatus.FINISHED, 60, 0.02, "the job has ended")
    ended = stores[1].jobs.get(job.id)
    events = Counter(entry.event for entry in stores[0].timeline(job.id))
    assert events["job FINISHED"] == 1
    assert sum(n for event, n in events.items() if event.startswith("ending as")) == 1
    assert events[f"ending as {ended.outcome}"] == 1
    assert events["heard"] == 1, "of all that was told, one thing counted"
    assert events["task SUCCESS"] + events["task FAILED"] == 1
    assert told.stops == {"n1": 1, "n2": 1}
    expected = Outcome.SUCCEEDED if ended.tasks["a"].status is TaskStatus.SUCCESS else Outcome.FAILED
    assert ended.outcome is expected and (ended.progress == 100) is (expected is Outcome.SUCCEEDED)


def test_a_creation_that_a_frozen_gateway_takes_up_after_the_jobs_end_is_not_sent(
    gateways: tuple[list[Scheduler], list[Store], Told],
):
    (frozen, other), stores, _ = gateways
    job = claimed(a_job("a", JobStatus.PENDING), T0)
    assert job.nodes["n2"].create.state is CallState.SENT and stores[0].jobs.add(job, "flow")
    other.record(job.id, StopRequested("n1", T0))
    frozen._perform(job, CreateAt("n2"), T0)  # whoever is asked to create raises, and so refuses
    assert stores[0].jobs.get(job.id).nodes["n2"].create.state is not CallState.REFUSED


def claimed(job: Job, now: datetime) -> Job:
    return machine.step(job, now)[0]
