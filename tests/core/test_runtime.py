"""What runs beside any job: wakes come at once, lanes are fair, turns write together, who is silent is noticed."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from gateway.domain.execution import contact, machine
from gateway.domain.execution.messages import Event, OwnerLost, Tell
from gateway.domain.run import Reporting
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.messages import PollTaskAt, StartTaskAt, StopAt
from gateway.domain.spec import Call, CallState, Ending
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import DatabaseAway
from gateway.runtime.lanes import FIRST, Lanes
from gateway.runtime.liveness import Heartbeat, Outages
from gateway.runtime.loop import Loop
from gateway.runtime.turns import Turns
from gateway.store.database import open_database
from gateway.store.repositories import Gateways
from gateway.store.store import Store
from tests.builders import OK, T0, a_job, a_local_job, a_run, at

EVERY = 300.0
"""seconds between two ticks, which would repair a lost wake: far away for as long as any test here waits"""
LONG = 60.0


# ------------------------------------------------------------ the loop


@contextmanager
def looping(advance: Callable[[str], Any], workers: int = 2) -> Iterator[Loop]:
    loop = Loop("test", advance, lambda now: (), every=EVERY, workers=workers)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_no_wake_is_swallowed_by_a_thread_that_waits_for_something_else():
    seen = {f"k{i}": threading.Event() for i in range(60)}
    with looping(lambda key: seen[key].set()) as loop:
        for key, event in seen.items():
            loop.wake(key)
            assert event.wait(LONG), f"wake {key} was lost"
            time.sleep(0.002)


def test_a_busy_worker_leaves_what_is_due_next_to_another():
    release, seen = threading.Event(), {"slow": threading.Event(), "next": threading.Event()}

    def advance(key: str) -> None:
        seen[key].set()
        if key == "slow":
            release.wait(LONG)

    with looping(advance) as loop:
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        loop.wake("slow", soon)
        loop.wake("next", soon + timedelta(seconds=0.2))
        assert seen["slow"].wait(LONG)
        assert seen["next"].wait(LONG / 2), "it waited for the one that is at work"
        release.set()


def test_no_key_has_two_workers_and_a_wake_during_work_is_kept():
    inside, most, times = 0, 0, 0
    lock, done = threading.Lock(), threading.Event()

    def advance(key: str) -> None:
        nonlocal inside, most, times
        with lock:
            inside, times = inside + 1, times + 1
            most = max(most, inside)
        if times == 2:
            done.set()
        else:
            loop.wake(key)
            time.sleep(0.1)
        with lock:
            inside -= 1

    with looping(advance, 4) as loop:
        loop.wake("one")
        assert done.wait(LONG) and most == 1


# ------------------------------------------------------------ lanes


@contextmanager
def held(order: list[str]) -> Iterator[Callable[..., None]]:
    """Keep a lane of one thread busy while works are queued there; let it do them all at the end."""
    lanes = Lanes(threads=1)
    begun = threading.Event()
    go = threading.Event()
    done = threading.Event()

    def block() -> None:
        begun.set()
        go.wait(30)

    def submit(name: str, job: str, priority: int = 0) -> None:
        lanes.submit("peer", partial(order.append, name), job, priority)

    lanes.submit("peer", block, "first")
    assert begun.wait(30)
    yield submit
    lanes.submit("peer", done.set, "last", priority=-1)
    assert [lanes.queued("peer", job) for job in ("first", "last", "none")] == [0, 1, 0]
    go.set()
    assert done.wait(30)
    lanes.close()


def test_a_job_with_much_to_do_delays_another_by_one_call():
    order: list[str] = []
    with held(order) as left:
        for i in range(100):
            left(f"large {i}", "large")
        for i in range(2):
            left(f"small {i}", "small")
    assert order.index("small 0") <= 1 and order.index("small 1") <= 3
    assert [name for name in order if name.startswith("large")] == [
        f"large {i}" for i in range(100)
    ]


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (5, "urgent 0, urgent 1, usual 0, usual 1"),
        (FIRST, "urgent 0, usual 0, urgent 1, usual 1"),  # has every second turn at most
    ],
)
def test_a_job_of_higher_priority_has_its_turn_first(priority: int, expected: str):
    order: list[str] = []
    with held(order) as left:
        for i in range(2):
            left(f"usual {i}", "usual")
            left(f"urgent {i}", f"urgent {i}", priority)
    assert ", ".join(order) == expected


def test_a_lane_that_hangs_delays_no_other_and_work_that_raises_ends_none():
    lanes, go, done, after = (
        Lanes(threads=2),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def broken() -> None:
        raise RuntimeError

    for _ in range(4):
        lanes.submit("hung", partial(go.wait, 30), "job")
    for _ in range(3):
        lanes.submit("well", broken)
    lanes.submit("well", done.set, "job")
    assert done.wait(30)
    go.set()
    lanes.close()
    lanes.submit("well", after.set)
    assert not after.wait(0.05), "nobody does it any more"


@pytest.mark.parametrize(("lane", "expected"), [("peer", 2), ("own", 1)])
def test_no_job_holds_more_than_half_of_a_lane(lane: str, expected: int):
    lanes, go, other = Lanes(threads=4, own_lane="own"), threading.Event(), threading.Event()
    lock, running, most = threading.Lock(), 0, 0
    over = [threading.Event() for _ in range(6)]

    def hang(event: threading.Event) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(30)
        with lock:
            running -= 1
        event.set()

    for event in over:
        lanes.submit(lane, partial(hang, event), "large")
    lanes.submit(lane, other.set, "small")
    assert other.wait(30)
    go.set()
    assert all(event.wait(30) for event in over)
    lanes.close()
    assert most == expected


def test_new_jobs_and_jobs_under_way_do_not_starve_each_other():
    order: list[str] = []
    with held(order) as submit:
        for i in range(50):
            submit("new", f"new {i}", FIRST)
            submit("under way", f"under way {i}")
    assert order[:100] == ["new", "under way"] * 50


def test_while_a_job_is_submitted_other_work_has_one_thread_of_a_lane():
    lanes, go = Lanes(threads=4), threading.Event()
    begun = [threading.Event() for _ in range(2)]
    new_job = threading.Event()

    def hang(event: threading.Event) -> None:
        event.set()
        go.wait(30)

    with lanes.submission():
        for job, event in enumerate(begun):
            lanes.submit("peer", partial(hang, event), f"under way {job}")
        lanes.submit("peer", new_job.set, "new", FIRST)
        assert new_job.wait(30)
        assert sum(event.is_set() for event in begun) <= 1
    assert all(event.wait(30) for event in begun)
    go.set()
    lanes.close()


# ------------------------------------------------------------ turns

Record = tuple[str, ...]


class Shelf:
    """Holds one record and counts the writes; a write waits until it may go on."""

    def __init__(self) -> None:
        self.record: Record = ()
        self.writes = 0
        self.writing, self.go = threading.Event(), threading.Event()
        self.decided: list[int] = []
        self.turns = Turns(
            self.store, lambda record: (record, len(record)), lambda _, n: self.decided.append(n)
        )

    def store(self, key: str, change: Callable[[Record], tuple[Record, int]]) -> tuple[Record, int]:
        change(self.record)  # as after a lost race: what it returns is thrown away
        self.writing.set()
        assert self.go.wait(30)
        self.record, decided = change(self.record)
        self.writes += 1
        return self.record, decided


def test_writes_during_a_write_are_batched_without_the_failing_ones():
    shelf = Shelf()

    def change(word: str) -> Record:
        def changed(record: Record) -> Record:
            if word == "bad":
                raise ValueError("not so")
            return (*record, word)

        return shelf.turns.change("job", changed)

    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(change, "first")
        assert shelf.writing.wait(30)
        rest = [pool.submit(change, str(i)) for i in range(9)]
        bad = pool.submit(change, "bad")
        while len(shelf.turns._queues["job"].entries) < 10:
            pass
        shelf.go.set()
        assert first.result(30) == ("first",)
        assert {result.result(30) for result in rest} == {shelf.record}
        with pytest.raises(ValueError, match="not so"):
            bad.result(30)
    assert shelf.writes == 2 and shelf.decided == [1, 10]
    assert sorted(shelf.record) == sorted(["first", *map(str, range(9))])
    assert not shelf.turns._queues


# ------------------------------------------------------------ nodes that do not answer

LOST = Call(
    CallState.LOST,
    sent_at=T0,
    due_at=at(3600),
    tries=9,
)


def test_a_stop_that_did_not_arrive_is_due_when_the_node_is_back():
    job = a_job(status=JobStatus.FINISHED)
    nodes = {n: replace(j, stop=LOST if n == "n2" else OK) for n, j in job.nodes.items()}
    job = replace(
        job,
        nodes=nodes,
        ending=Ending(Outcome.STOPPED, T0),
        outcome=Outcome.STOPPED,
        ended_at=T0,
    )
    assert scheduling_machine.plan(job, at(60)) == []
    assert scheduling_machine.plan(scheduling_machine.reached(job, "n2"), at(60)) == [StopAt("n2")]
    assert (
        scheduling_machine.reached(job, "n1") is job
        and scheduling_machine.reached(job, "n3") is job
    )


def test_a_question_that_was_lost_is_due_but_no_start_is_repeated():
    job = a_job(status=JobStatus.RUNNING, a={"n1": TaskStatus.RUNNING, "n2": TaskStatus.RUNNING})
    part = job.tasks["a"].nodes["n2"]

    def known(**calls):
        nodes = {**job.tasks["a"].nodes, "n2": replace(part, **calls)}
        changed = replace(job, tasks={"a": replace(job.tasks["a"], nodes=nodes)})
        due = scheduling_machine.plan(scheduling_machine.reached(changed, "n2"), at(60))
        return [c for c in due if c.node == "n2"]

    assert known(poll=LOST) == [PollTaskAt("n2", "a", ("host",))]
    assert not any(isinstance(c, StartTaskAt) for c in known(start=LOST, poll=LOST))
    assert known(poll=Call(CallState.IDLE, due_at=at(3600))) == [], (
        "what was never tried keeps its own time"
    )


def test_a_lost_report_is_due_when_the_scheduling_node_is_back():
    run = a_run("a", RunStatus.SUCCESS, reporting=Reporting(TaskStatus.RUNNING, LOST), collect=OK)
    local = a_local_job(run)
    local = replace(local, spec=replace(local.spec, scheduler="n9"))
    assert machine.plan(local, at(60)) == []
    assert contact.retry_reports(local, "n2") is local
    assert machine.plan(contact.retry_reports(local, "n9"), at(60)) == [
        Tell(run.run_id, TaskStatus.SUCCESS)
    ]


class Network:
    def __init__(self) -> None:
        self.up: set[str] = set()
        self.asked: list[str] = []
        self.now = 100.0
        self.outages = Outages(self.reaches, lambda node: None, lambda: self.now, 1.0)
        self.outages._is_started = True  # the test looks by itself

    def reaches(self, node: str) -> bool:
        self.asked.append(node)
        return node in self.up

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        before = self.outages.nodes()
        for node in before:
            self.outages.look(node)
        return [node for node in before if node not in self.outages.nodes()]


def test_silent_nodes_are_probed_every_second_and_notified_once():
    net = Network()
    assert net.after(5) == [] and net.asked == []
    for node in ("n2", "n2", "n3"):
        net.outages.silent(node)
    assert net.outages.nodes() == ["n2", "n3"]
    assert net.after(0.5) == [] and net.asked == []
    assert net.after(0.6) == [] and sorted(net.asked) == ["n2", "n3"]
    net.up.add("n2")
    assert net.after(1.1) == ["n2"]
    assert net.after(1.1) == [] and net.outages.nodes() == ["n3"]


def test_a_node_that_only_accepts_connections_is_tried_ever_more_rarely():
    net = Network()
    net.up.add("n2")
    pauses = []
    for _ in range(8):
        net.outages.silent("n2")
        start = net.now
        while not net.after(0.5):
            pass
        pauses.append(net.now - start)
    assert pauses[:5] == [1, 2, 4, 8, 16] and pauses[-1] == 30
    net.now += 60
    net.outages.silent("n2")
    assert net.after(1) == ["n2"], "much later it is a new outage"


def test_a_look_that_fails_is_not_the_last_one():
    answers, healed = iter([RuntimeError("can't start new thread"), True]), threading.Event()

    def reaches(node: str) -> bool:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    with closing(Outages(reaches, lambda node: healed.set(), every=0.01)) as outages:
        outages.silent("n2")
        assert healed.wait(20)


# ------------------------------------------------------------ gateways on one database


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with closing(Store(open_database(database_url))) as store:
        yield store


class Heart(Heartbeat):
    """One gateway's, with what it told."""

    def __init__(
        self,
        store: Store,
        owner: str,
        **more: float,
    ) -> None:
        self.told: list[tuple[str, Event]] = []
        super().__init__(
            Gateways(store),
            owner,
            lambda job, news: self.told.append((job, news)),
            lambda: T0,
            **more,
        )
        self._url = f"http://{owner}"

    def age(self) -> None:
        """Have it beaten for longer than others must be silent."""
        assert self._steady_since is not None
        self._steady_since -= 61


def silence(
    store: Store,
    owner: str,
    seconds: float,
) -> None:
    """Make a gateway one that was last heard of so long ago."""
    with store.write() as connection:
        connection.exec_driver_sql(
            f"update gateway set seen_at = seen_at - {seconds} where owner = '{owner}'"
        )


def test_a_job_stays_with_its_gateway_while_that_lives_or_has_runs_of_it(store: Store):
    mine, other = Heart(store, "me"), Heart(store, "other")
    other.beat()
    mine.beat()
    new, begun = a_local_job(), replace(a_local_job(), home="other")
    busy = replace(a_local_job(a_run(status=RunStatus.RUNNING, owner="other")), home="other")
    over = replace(a_local_job(a_run(status=RunStatus.SUCCESS, owner="other")), home="other")
    assert [mine.home_of(job) for job in (new, begun, busy)] == ["me", "other", "other"]
    assert (mine.has_files("me"), mine.has_files("")) == ("", "")
    before = Heart(store, "before/docker")
    before._url = mine._url  # a restored node has the address of the one before
    before.beat()
    mine.beat()
    assert mine.has_files("before/docker") == "another gateway"
    assert (mine.elsewhere("other"), mine.elsewhere("me"), mine.elsewhere("")) == (
        "http://other",
        None,
        None,
    )
    silence(store, "other", 20)
    mine.beat()
    assert [mine.home_of(job) for job in (begun, over, busy)] == ["me", "me", "other"]


def test_a_gateway_that_was_frozen_itself_gives_no_node_up(store: Store):
    store.local_jobs.add(a_local_job(a_run(status=RunStatus.RUNNING, owner="other")), "flow")
    mine, other = Heart(store, "me", lost_after=60), Heart(store, "other")
    other.beat()
    mine.beat()
    mine.age()
    for owner in ("me", "other"):  # the machine of both stood still
        silence(store, owner, 100)
    mine.beat()
    assert mine.told == []
    mine.age()
    mine.beat()  # and the other has not come back
    assert [job for job, _ in mine.told] == ["job-1"]


def test_a_lost_gateways_job_without_runs_is_taken_over_once(store: Store):
    over = replace(a_run(status=RunStatus.SUCCESS, owner="other"), collect=OK)
    store.local_jobs.add(
        replace(a_local_job(over, status=JobStatus.FINISHED), home="other"), "flow"
    )
    mine = Heart(store, "me", lost_after=60)
    Heart(store, "other").beat()
    silence(store, "other", 100)
    mine.beat()
    assert mine.told == [], "it has only just begun itself"
    mine.age()
    for _ in range(3):
        mine.beat()
    assert mine.told == [("job-1", OwnerLost("other", "me", T0))]


def test_an_outage_of_the_database_does_not_count_as_silence(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: object) -> float:
        raise DatabaseAway("away")

    mine = Heart(store, "me")
    mine.beat()
    assert mine._steady_since is not None
    monkeypatch.setattr(Gateways, "beat", away)
    mine.beat()
    assert mine._steady_since is None


def test_a_job_that_cannot_be_taken_over_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    store.local_jobs.add(a_local_job(a_run(status=RunStatus.RUNNING, owner="other")), "flow")
    mine = Heart(store, "me", lost_after=60)
    Heart(store, "other").beat()
    silence(store, "other", 100)
    told = Mock(side_effect=[RuntimeError("no"), None])
    monkeypatch.setattr(mine, "_record", told)
    mine.beat()
    mine.age()
    mine.beat()
    assert mine._taken_over == set()
    mine.beat()
    assert told.call_count == 2 and mine._taken_over == {"other"}


# ------------------------------------------------------------ what raises


def test_a_failure_that_cannot_be_reported_ends_no_worker():
    seen = {"bad": threading.Event(), "good": threading.Event()}

    def advance(key: str) -> None:
        seen[key].set()
        if key == "bad":
            raise ZeroDivisionError

    def failed(*_: object) -> None:
        raise ZeroDivisionError

    loop = Loop(
        "test",
        advance,
        lambda now: (),
        every=EVERY,
        workers=1,
        failed=failed,
    )
    loop.start()
    for key in seen:
        loop.wake(key)
        assert seen[key].wait(LONG)
    loop.stop()


def test_an_outage_of_the_database_is_two_lines_without_a_trace():
    away, seen = [True], {"asked": threading.Event(), "answered": threading.Event()}
    tried = iter(range(100))

    def overdue(_: object) -> list[str]:
        if away[0]:
            if next(tried) > 3:
                seen["asked"].set()
            raise DatabaseAway("no answer")
        return ["key"]

    def advance(_: str) -> None:
        if away[0]:
            raise DatabaseAway("no answer")
        seen["answered"].set()

    loop = Loop("test", advance, overdue, every=0.01, workers=1)
    with capture_logs() as lines:
        loop.wake("key")
        loop.start()
        assert seen["asked"].wait(LONG)
        away[0] = False
        assert seen["answered"].wait(LONG)
        loop.stop()
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "the database does not answer"),
        ("info", "the database answers again"),
    ]


def test_a_change_that_was_left_and_cannot_be_made_harms_no_other():
    shelf = Shelf()
    shelf.go.set()

    def bad(_: Record) -> Record:
        raise ValueError("not so")

    assert shelf.turns.defer("job", bad, 1)
    assert shelf.turns.change("job", lambda record: (*record, "good")) == ("good",)
