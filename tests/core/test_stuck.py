"""A job that cannot be gone on with because of an error inside the gateway: counted, told, and in nobody's way."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.domain.execution import machine
from gateway.domain.job import Job
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.states import JobStatus
from gateway.errors import DatabaseAway, NotFound
from gateway.runtime.loop import Loop
from gateway.runtime.metrics import EVENT, telling
from gateway.store.store import Store
from tests.builders import a_job, a_local_job
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ask, running


def test_a_job_whose_step_raises_is_counted_and_told_and_no_other_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": ["/bin/sleep", "60"]}}}}
    with running(tmp_path, engine=engine) as node:
        broken: set[str] = set()
        step = scheduling_machine.step

        def breaking(job: Job, *args: Any, **more: Any) -> Any:
            if job.id in broken:
                raise ZeroDivisionError("of ours")
            return step(job, *args, **more)

        def counted() -> float:
            lines = ask(node, "operator", "GET", "/metrics").text.splitlines()
            name = 'bfia_advance_failures_total{side="scheduler"} '
            return float(next((line.removeprefix(name) for line in lines if line.startswith(name)), 0))

        def status(job_id: str) -> JobStatus:
            return node.store.jobs.get(job_id).status

        monkeypatch.setattr(scheduling_machine, "step", breaking)
        first = str(submit(node).json()["data"]["job_id"])
        wait_for(lambda: status(first) is JobStatus.RUNNING, 30, 0.02)
        broken.add(first)
        second = str(submit(node).json()["data"]["job_id"])

        def again() -> bool:
            node.scheduler.loop.wake(first)
            return counted() >= 3

        wait_for(again, 30, 0.02, "the failures are counted")
        node.coordinator.stop(second)
        wait_for(lambda: status(second) is JobStatus.FINISHED, 30, 0.02, "the other job goes on to its end")
        (told,) = [e for e in node.store.timeline(first) if e.event == EVENT]
        assert told.side == "scheduler" and told.detail["reason"] == "INTERNAL"
        assert "ZeroDivisionError" in told.detail["message"] and "of ours" not in told.detail["message"]
        assert [e for e in node.store.timeline(second) if e.event == EVENT] == []
        broken.clear()
        node.coordinator.stop(first)
        wait_for(lambda: status(first) is JobStatus.FINISHED, 30, 0.02, "and so does the first, once it can")


def test_of_failures_in_a_row_the_first_that_is_ours_is_told():
    """An outage of the database is no error of the job, and interrupts no row."""
    told, counted = list[str](), list[str]()
    away, ours, fine = DatabaseAway("away"), ValueError(), None
    to_come: dict[str, list[Exception | None]] = {"a": [away, ours, away, ours, ours, fine, ours], "b": [ours]}

    class Notes:
        def note(self, job_id: str, side: str, notes: Any) -> None:
            told.append(job_id)

    def advance(job_id: str) -> None:
        if error := to_come[job_id].pop(0):
            raise error

    failed = telling(cast(Store, Notes()), "scheduler", lambda: datetime.now(UTC), counted.append)
    loop = Loop("test", advance, lambda now: (), every=300, workers=1, failed=failed)
    loop.start()
    try:
        for job_id in "aaaabaaa":
            left = len(to_come[job_id]) - 1
            loop.wake(job_id)
            wait_for(lambda job_id=job_id, left=left: len(to_come[job_id]) == left, every=0.005)
    finally:
        loop.stop()
    assert told == ["a", "b", "a"] and len(counted) == 5


def test_a_job_that_was_deleted_is_nothing_to_go_on_with_and_what_else_is_missing_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lacking(*args: Any) -> Any:
        raise NotFound("something else is not here")

    with running(tmp_path) as node:
        assert node.scheduler.advance("job-gone") is None
        assert node.executor.advance("job-gone") is None
        node.store.jobs.add(a_job("a"), "flow")
        node.store.local_jobs.add(a_local_job(), "flow")
        monkeypatch.setattr(scheduling_machine, "step", lacking)
        monkeypatch.setattr(machine, "step", lacking)
        with pytest.raises(NotFound, match="something else"):
            node.scheduler.advance(a_job("a").id)
        with pytest.raises(NotFound, match="something else"):
            node.executor.advance(a_local_job().id)
