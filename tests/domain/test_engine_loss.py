"""What becomes of a run whose engine stops to answer."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.domain.execution import machine
from gateway.domain.execution.messages import (
    Broken,
    Collect,
    Conclude,
    EngineSilent,
    Event,
    Exited,
    Inspected,
    Probe,
)
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Failure
from gateway.domain.states import RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import T0, a_local_job, a_run, at

TIMING = RunTiming(engine_timeout=60)


def running(**changes: object) -> LocalJob:
    return a_local_job(a_run("a", RunStatus.RUNNING, **changes))


def hear(local: LocalJob, *events: Event) -> Run:
    for event in events:
        local = machine.apply(local, event, TIMING)
    return local.runs[0]


ID = running().runs[0].run_id


def exited(code: int, after: float, oom: bool = False) -> Exited:
    return Exited(ID, Exit(code, oom_killed=oom, started_at=T0, finished_at=at(after)), at(after + 1))


@pytest.mark.parametrize("code", [137, 143, 255])
def test_a_container_that_went_with_its_engine_failed_by_the_engine(code: int) -> None:
    run = hear(running(), EngineSilent(ID, at(10)), exited(code, 12))
    assert run.status is RunStatus.FAILED
    assert run.failure is not None and run.failure.reason == "ENGINE_DOWN" and run.failure.exit_code == code


@pytest.mark.parametrize("code", [137, 143])
def test_a_daemon_that_is_told_to_end_ends_its_containers_before_it_is_seen_to_be_gone(code: int) -> None:
    run = hear(running(), EngineSilent(ID, at(20)), exited(code, 8))
    assert run.failure is not None and run.failure.reason == "ENGINE_DOWN"


@pytest.mark.parametrize("code", [137, 143, 255])
def test_without_an_absence_it_failed_by_itself(code: int) -> None:
    run = hear(running(), exited(code, 12))
    assert run.failure is not None and run.failure.reason == f"EXIT_{code}"


def test_its_own_failure_stays_its_own() -> None:
    assert hear(running(), EngineSilent(ID, at(10)), exited(1, 12)).failure.reason == "EXIT_1"  # type: ignore[union-attr]
    oom = hear(running(), EngineSilent(ID, at(10)), exited(137, 12, oom=True))
    assert oom.failure is not None and oom.failure.reason == "OOM_KILLED"
    before = hear(running(), EngineSilent(ID, at(60)), exited(143, 5))
    assert before.failure is not None and before.failure.reason == "EXIT_143"


def test_an_absence_that_is_over_is_forgotten() -> None:
    run = hear(running(), EngineSilent(ID, at(10)), Inspected(ID, at(12)), exited(143, 500))
    assert run.failure is not None and run.failure.reason == "EXIT_143"


def test_a_container_that_lived_through_the_absence_succeeds() -> None:
    reported = replace(running().runs[0], reported=TaskStatus.SUCCESS, reported_at=at(11))
    run = hear(a_local_job(reported), EngineSilent(ID, at(10)), exited(0, 12))
    assert run.status is RunStatus.SUCCESS


def test_patience_ends_and_its_beginning_counts() -> None:
    local = machine.apply(running(), EngineSilent(ID, at(10)), TIMING)
    local = machine.apply(local, EngineSilent(ID, at(40)), TIMING)
    assert Conclude(ID) not in machine.plan(local, at(69.9), TIMING)
    assert Conclude(ID) in machine.plan(local, at(70), TIMING)
    after, _ = machine.step(local, at(70), TIMING)
    failure = after.runs[0].failure
    assert failure is not None and failure.reason == "ENGINE_DOWN"
    due = machine.next_due(after, TIMING)
    assert due is not None  # its container is taken away once the engine answers


def test_an_engine_that_breaks_off_again_and_again_is_asked_in_between() -> None:
    """A proxy before a daemon may cut every stream of events that says nothing for a while."""
    local = running(probe_at=at(5))
    for second in range(5):
        local = machine.apply(local, EngineSilent(ID, at(second + 0.5)), TIMING)
        assert not any(isinstance(action, Probe) for action in machine.step(local, at(second + 0.9), TIMING)[1])
    local, actions = machine.step(local, at(5), TIMING)
    assert Probe(ID) in actions
    local = machine.apply(local, Inspected(ID, at(5)), TIMING)
    assert local.runs[0].away_at is None
    local = machine.apply(local, EngineSilent(ID, at(5.5)), TIMING)
    assert (local.runs[0].away_at, local.runs[0].probe_at) == (at(5.5), at(5 + TIMING.probe_every))


def test_a_reported_success_is_not_lost_and_asks_nothing_in_a_circle() -> None:
    local = running(reported=TaskStatus.SUCCESS, reported_at=at(65), away_at=at(1))
    after, _ = machine.step(local, at(70), TIMING)
    assert after.runs[0].status is RunStatus.RUNNING
    due = machine.next_due(after, TIMING)
    assert due is not None and due > at(70)
    after, _ = machine.step(after, at(65 + TIMING.linger), TIMING)
    assert after.runs[0].status is RunStatus.SUCCESS


def test_a_run_that_may_not_go_on_fails_and_is_taken_away() -> None:
    local = machine.apply(running(), Broken(ID, Failure("NO_SPACE", "too much"), at(10)), TIMING)
    run = local.runs[0]
    assert run.failure is not None and run.failure.reason == "NO_SPACE" and run.failure.role == "guest"
    _, actions = machine.step(local, at(10), TIMING)
    assert Collect(ID) in actions
    assert hear(local, Broken(ID, Failure("OTHER"), at(11))).failure == run.failure


def test_who_is_over_is_not_missed() -> None:
    over = a_local_job(a_run("a", RunStatus.SUCCESS))
    assert machine.apply(over, EngineSilent(ID, T0 + timedelta(days=1)), TIMING).runs[0].away_at is None
