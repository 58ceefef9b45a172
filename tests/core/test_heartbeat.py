"""Which gateway a job belongs to, and when another may be given up."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.execution.messages import Event, OwnerLost
from gateway.domain.states import JobStatus, RunStatus
from gateway.runtime.liveness import Heartbeat
from gateway.store.database import opened
from gateway.store.repositories import Gateways
from gateway.store.store import Store
from tests.builders import OK, T0, a_local_job, a_run


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(opened(database_url))
    yield store
    store.close()


def silence(store: Store, owner: str, seconds: float) -> None:
    """Make a gateway one that was last heard of so long ago."""
    with store.write() as connection:
        connection.exec_driver_sql(f"update gateway set seen_at = seen_at - {seconds} where owner = '{owner}'")


def beating(store: Store, owner: str, **more: float) -> tuple[Heartbeat, list[tuple[str, Event]]]:
    told: list[tuple[str, Event]] = []
    heart = Heartbeat(Gateways(store), owner, lambda job, news: told.append((job, news)), lambda: T0, **more)
    heart._url = f"http://{owner}"
    return heart, told


def test_a_job_stays_with_its_gateway_while_that_lives_or_has_runs_of_it(store: Store):
    mine, _ = beating(store, "me")
    other, _ = beating(store, "other")
    other.beat()
    mine.beat()
    new, begun = a_local_job(), replace(a_local_job(), home="other")
    busy = replace(a_local_job(a_run(status=RunStatus.RUNNING, owner="other")), home="other")
    over = replace(a_local_job(a_run(status=RunStatus.SUCCESS, owner="other")), home="other")
    assert (mine.home_of(new), mine.home_of(begun), mine.home_of(busy)) == ("me", "other", "other")
    assert (mine.has_files("me"), mine.has_files("")) == ("", "")
    assert (mine.elsewhere("other"), mine.elsewhere("me"), mine.elsewhere("")) == ("http://other", None, None)
    silence(store, "other", 20)
    mine.beat()
    assert (mine.home_of(begun), mine.home_of(over), mine.home_of(busy)) == ("me", "me", "other")


def test_a_gateway_is_given_up_only_by_one_that_has_beaten_for_as_long(store: Store):
    run = a_run(status=RunStatus.RUNNING, owner="other")
    store.local_jobs.add(a_local_job(run), "flow")
    mine, told = beating(store, "me", lost_after=60)
    other, _ = beating(store, "other")
    other.beat()
    silence(store, "other", 100)
    mine.beat()
    assert told == []  # it has only just begun itself
    assert mine._steady_since is not None
    mine._steady_since -= 61
    mine.beat()
    assert told == [("job-1", OwnerLost("other", "me", T0))]


def test_a_gateway_that_was_frozen_itself_gives_nobody_up(store: Store):
    store.local_jobs.add(a_local_job(a_run(status=RunStatus.RUNNING, owner="other")), "flow")
    mine, told = beating(store, "me", lost_after=60)
    other, _ = beating(store, "other")
    other.beat()
    mine.beat()
    assert mine._steady_since is not None
    mine._steady_since -= 1000
    for owner in ("me", "other"):  # the whole machine stood still
        silence(store, owner, 100)
    mine.beat()
    assert told == []
    mine._steady_since -= 61
    mine.beat()  # and the other has not come back
    assert [job for job, _ in told] == ["job-1"]


def test_a_job_of_a_lost_gateway_without_runs_under_way_is_taken_over_too(store: Store):
    over = replace(a_run(status=RunStatus.SUCCESS, owner="other"), collect=OK)
    store.local_jobs.add(replace(a_local_job(over, status=JobStatus.FINISHED), home="other"), "flow")
    mine, told = beating(store, "me", lost_after=60)
    other, _ = beating(store, "other")
    for heart in (other, mine):
        heart.beat()
    assert mine._steady_since is not None
    mine._steady_since -= 61
    silence(store, "other", 100)
    for _ in range(3):
        mine.beat()
    assert told == [("job-1", OwnerLost("other", "me", T0))]  # once


def test_an_outage_of_the_database_counts_for_nobodys_silence(tmp_path: Path):
    store = Store(opened(f"sqlite:///{tmp_path / 'a.db'}"))
    mine, _ = beating(store, "me")
    mine.beat()
    assert mine._steady_since is not None
    with store.write() as connection:
        connection.exec_driver_sql("alter table gateway rename to away")
    mine.beat()
    assert mine._steady_since is None
    store.close()
