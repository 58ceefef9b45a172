"""The machinery below every job: wakes of the loop, fairness of the lanes, writes in turns."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from structlog.testing import capture_logs

from gateway.errors import DatabaseAway
from gateway.runtime.chores import Chore, Chores
from gateway.runtime.lanes import NEW_JOB, Lanes
from gateway.runtime.loop import Loop
from gateway.runtime.turns import Turns
from gateway.runtime.workloads import Workloads
from tests.e2e.nodes import wait_for

# Seconds between two ticks of a loop. A tick would repair a lost wake, so none comes during a test.
NO_TICK = 300.0
LONG = 60.0  # seconds within which everything here happens, also on a machine under load


def nothing_overdue(now):
    return ()


def wait_all(events):
    for event in events:
        assert event.wait(LONG)


# ------------------------------------------------------------ chores


def test_a_chore_that_fails_has_its_next_turn_and_delays_no_other():
    turns = {"broken": 0, "sound": 0, "later": 0}

    def count(name):
        turns[name] += 1
        if name == "broken":
            raise ValueError("this chore fails")

    chores = Chores(
        [
            Chore("broken", partial(count, "broken"), every=0.01),
            Chore("sound", partial(count, "sound"), every=0.01),
            Chore("later", partial(count, "later"), every=NO_TICK, is_due_at_start=False),
        ]
    )
    chores.start()
    try:
        wait_for(lambda: turns["broken"] > 2 and turns["sound"] > 2)
    finally:
        chores.stop()
    assert turns["later"] == 0


# ------------------------------------------------------------ the loop


@contextmanager
def running_loop(advance, workers=2, failed=None):
    """Run a loop without ticks."""
    loop = Loop(
        "test",
        advance,
        nothing_overdue,
        every=NO_TICK,
        workers=workers,
        failed=failed,
    )
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_no_wake_is_lost_on_a_worker_that_waits_for_another_time():
    advanced = {f"key-{number}": threading.Event() for number in range(60)}

    def advance(key):
        advanced[key].set()

    with running_loop(advance) as loop:
        for key, event in advanced.items():
            loop.wake(key)
            assert event.wait(LONG), f"wake {key} was lost"
            time.sleep(0.002)  # so that the workers wait again


def test_a_busy_worker_leaves_the_next_due_key_to_another():
    release = threading.Event()
    started = {
        "slow": threading.Event(),
        "next": threading.Event(),
    }

    def advance(key):
        started[key].set()
        if key == "slow":
            release.wait(LONG)

    with running_loop(advance) as loop:
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        loop.wake("slow", soon)
        loop.wake("next", soon + timedelta(seconds=0.2))
        assert started["slow"].wait(LONG)
        assert started["next"].wait(LONG / 2), "it waited for the busy worker"
        release.set()


def test_a_loop_without_work_has_one_thread():
    with running_loop(lambda key: None, workers=3):
        names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if name.startswith("test-")] == ["test-0"]


def test_a_slow_advance_delays_no_regular_query():
    release = threading.Event()
    is_slow = threading.Event()
    has_next_begun = threading.Event()

    def find_overdue(now):
        return ["next"] if is_slow.is_set() else []

    def advance(key):
        if key == "slow":
            is_slow.set()
            release.wait(LONG)
        else:
            has_next_begun.set()

    loop = Loop("test", advance, find_overdue, every=0.01, workers=2)
    loop.start()
    loop.wake("slow")
    try:
        assert has_next_begun.wait(LONG / 2), "its key waited for the slow one"
    finally:
        release.set()
        loop.stop()


class Concurrency:
    """Counts the calls under way, and the most of them at the same time."""

    def __init__(self):
        self.most = 0
        self.calls = 0
        self._under_way = 0
        self._lock = threading.Lock()

    @contextmanager
    def call(self):
        with self._lock:
            self._under_way += 1
            self.calls += 1
            self.most = max(self.most, self._under_way)
        yield
        with self._lock:
            self._under_way -= 1


def test_no_key_has_two_workers_and_a_wake_during_work_is_kept():
    concurrency = Concurrency()
    advanced_twice = threading.Event()

    def advance(key):
        with concurrency.call():
            if concurrency.calls == 2:
                advanced_twice.set()
            else:
                loop.wake(key)
                time.sleep(0.1)  # for a second worker to begin, if there was one

    with running_loop(advance, workers=4) as loop:
        loop.wake("key")
        assert advanced_twice.wait(LONG)
    assert concurrency.most == 1


def test_a_failure_that_cannot_be_reported_ends_no_worker():
    started = {
        "bad": threading.Event(),
        "good": threading.Event(),
    }

    def advance(key):
        started[key].set()
        if key == "bad":
            raise ZeroDivisionError

    def fail_to_report(*failure):
        raise ZeroDivisionError

    with running_loop(advance, workers=1, failed=fail_to_report) as loop:
        for key in started:
            loop.wake(key)
            assert started[key].wait(LONG)


def test_an_outage_of_the_database_is_two_lines_without_a_trace():
    is_away = threading.Event()
    is_away.set()
    queries = []
    advanced = threading.Event()

    def find_overdue(now):
        queries.append(now)
        if is_away.is_set():
            raise DatabaseAway("no answer")
        return ["key"]

    def advance(key):
        if is_away.is_set():
            raise DatabaseAway("no answer")
        advanced.set()

    loop = Loop(
        "test",
        advance,
        find_overdue,
        every=0.01,
        workers=1,
    )
    with capture_logs() as lines:
        loop.wake("key")
        loop.start()
        wait_for(lambda: len(queries) > 4)
        is_away.clear()
        assert advanced.wait(LONG)
        loop.stop()

    assert [line["event"] for line in lines] == [
        "the database does not answer",
        "the database answers again",
    ]
    assert [line["log_level"] for line in lines] == ["warning", "info"]


def test_a_later_wake_wakes_no_waiting_worker():
    """Each wake costs two changes of threads."""
    soon = datetime.now(UTC) + timedelta(seconds=NO_TICK / 2)

    with running_loop(lambda key: None) as loop:
        wait_for(lambda: len(loop._condition._waiters) == 1)
        waiters = set(loop._condition._waiters)
        loop.wake("first", soon + timedelta(seconds=NO_TICK))
        loop.wake("second", soon + timedelta(seconds=NO_TICK * 2))
        assert set(loop._condition._waiters) == waiters

        loop.wake("first", soon)
        wait_for(lambda: loop._condition._waiters and waiters.isdisjoint(loop._condition._waiters))


# ------------------------------------------------------------ lanes


def threads_named(prefix):
    """Return the names of the threads that begin with a prefix."""
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if name.startswith(prefix))


def test_a_thread_of_a_lane_ends_without_work_and_work_starts_another():
    lanes = Lanes(threads=2, idle_time=0.01)
    for _ in range(2):
        is_done = threading.Event()
        lanes.submit("quiet", is_done.set)
        assert is_done.wait(LONG)
        wait_for(lambda: not threads_named("lane-quiet"))
    lanes.close()


@pytest.mark.parametrize(
    ("first_lane", "is_last_step", "same_thread"),
    [
        ("peer", True, True),
        ("own", False, True),  # calls to this node itself never wait
        ("peer", False, False),  # the work may go on with a call that takes long
    ],
    ids=["last step", "of this node", "in the middle"],
)
def test_a_thread_does_what_its_last_step_submits(first_lane, is_last_step, same_thread):
    lanes = Lanes(own_lane="own")
    threads = {}
    done = [threading.Event() for _ in range(3)]

    def note(number):
        threads[number] = threading.current_thread()
        done[number].set()

    def submit_others():
        for number in (1, 2):
            lanes.submit(f"lane {number}", partial(note, number))

    def work():
        note(0)
        if not is_last_step:
            submit_others()
            assert done[2].wait(LONG)  # another thread does the second one meanwhile
            assert done[1].is_set() or same_thread
            return
        with lanes.carrying_on():
            submit_others()
        assert done[2].wait(LONG)

    lanes.submit(first_lane, work)
    wait_all(done)
    lanes.close()

    assert (threads[1] is threads[0]) is same_thread
    assert threads[2] is not threads[0]


def test_a_thread_that_went_to_a_hung_lane_is_replaced():
    lanes = Lanes(threads=2)
    release = threading.Event()
    hung = [threading.Event() for _ in range(2)]
    is_done = threading.Event()

    def hang(has_begun):
        has_begun.set()
        release.wait(LONG)

    def work(number):
        with lanes.carrying_on():
            lanes.submit("hung", partial(hang, hung[number]), f"job {number}")

    for number in range(2):
        lanes.submit("well", partial(work, number), f"job {number}")
    wait_all(hung)
    lanes.submit("well", is_done.set)

    assert is_done.wait(LONG)
    release.set()
    lanes.close()


def test_work_carried_on_waits_for_a_thread_of_its_lane():
    lanes = Lanes(threads=2)
    release = threading.Event()
    concurrency = Concurrency()
    done = [threading.Event() for _ in range(4)]

    def hang(is_done):
        with concurrency.call():
            release.wait(LONG)
        is_done.set()

    def work(number):
        with lanes.carrying_on():
            lanes.submit("hung", partial(hang, done[number]), f"job {number}")

    for number in range(4):
        lanes.submit("well", partial(work, number), f"job {number}")
    wait_for(lambda: concurrency.most == 2)
    release.set()
    wait_all(done)
    lanes.close()

    assert concurrency.most == 2


@contextmanager
def queued_in_a_lane(order):
    """Keep a lane of one thread busy, then do all its work, which appends its names to ``order``.

    Yields the function that submits work: ``submit(name, job, priority)``.
    """
    lanes = Lanes(threads=1)
    has_begun = threading.Event()
    release = threading.Event()
    is_done = threading.Event()

    def block():
        has_begun.set()
        release.wait(LONG)

    def submit(name, job, priority=0):
        lanes.submit(
            "peer",
            partial(order.append, name),
            job,
            priority,
        )

    lanes.submit("peer", block, "first")
    assert has_begun.wait(LONG)
    yield submit
    lanes.submit(
        "peer",
        is_done.set,
        "last",
        priority=-1,
    )
    assert lanes.queued("peer", "first") == 0
    assert lanes.queued("peer", "last") == 1
    assert lanes.queued("peer", "none") == 0
    release.set()
    assert is_done.wait(LONG)
    lanes.close()


def test_a_job_with_much_work_delays_another_by_one_call():
    order = []
    large_job = [f"large {number}" for number in range(100)]

    with queued_in_a_lane(order) as submit:
        for name in large_job:
            submit(name, "large")
        for number in range(2):
            submit(f"small {number}", "small")

    assert order.index("small 0") <= 1
    assert order.index("small 1") <= 3
    assert [name for name in order if name.startswith("large")] == large_job


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (5, ["urgent 0", "urgent 1", "usual 0", "usual 1"]),
        # A new job gets at most every second turn.
        (NEW_JOB, ["urgent 0", "usual 0", "urgent 1", "usual 1"]),
    ],
    ids=["urgent", "new"],
)
def test_a_job_of_higher_priority_has_its_turn_first(priority, expected):
    order = []

    with queued_in_a_lane(order) as submit:
        for number in range(2):
            submit(f"usual {number}", "usual")
            submit(f"urgent {number}", f"urgent {number}", priority)

    assert order == expected


def test_new_jobs_and_jobs_under_way_do_not_starve_each_other():
    order = []

    with queued_in_a_lane(order) as submit:
        for number in range(50):
            submit("new", f"new {number}", NEW_JOB)
            submit("under way", f"under way {number}")

    assert order == ["new", "under way"] * 50


def test_a_lane_that_hangs_delays_no_other_and_work_that_raises_ends_none():
    lanes = Lanes(threads=2)
    release = threading.Event()
    is_done = threading.Event()

    def fail():
        raise RuntimeError

    for _ in range(4):
        lanes.submit(
            "hung",
            partial(release.wait, LONG),
            "job",
        )
    for _ in range(3):
        lanes.submit("well", fail)
    lanes.submit("well", is_done.set, "job")
    assert is_done.wait(LONG)
    release.set()
    lanes.close()


def test_closed_lanes_do_no_further_work():
    lanes = Lanes(threads=2)
    lanes.close()
    is_done = threading.Event()

    lanes.submit("peer", is_done.set)

    assert not is_done.wait(0.05)


@pytest.mark.parametrize(
    ("lane", "limit"), [("peer", 2), ("own", 1)], ids=["of a peer", "of this node"]
)
def test_no_job_holds_more_than_half_of_a_lane(lane, limit):
    lanes = Lanes(
        threads=4,
        own_lane="own",
    )
    release = threading.Event()
    concurrency = Concurrency()
    small_job_done = threading.Event()
    large_job_done = [threading.Event() for _ in range(6)]

    def hang(is_done):
        with concurrency.call():
            release.wait(LONG)
        is_done.set()

    for event in large_job_done:
        lanes.submit(lane, partial(hang, event), "large")
    lanes.submit(lane, small_job_done.set, "small")

    assert small_job_done.wait(LONG)
    release.set()
    wait_all(large_job_done)
    lanes.close()
    assert concurrency.most == limit


@pytest.mark.parametrize(
    ("heavy", "other", "seconds_later", "yields"),
    [
        pytest.param(
            1.0,
            0.1,
            0.0,
            True,
            id="lighter",
        ),
        pytest.param(
            1.0,
            0.1,
            0.9,
            True,
            id="soon",
        ),
        pytest.param(
            1.0,
            0.1,
            1.1,
            False,
            id="waits for others",
        ),
        pytest.param(
            1.0,
            0.6,
            0.0,
            False,
            id="both heavy",
        ),
        pytest.param(
            0.09,
            0.03,
            0.0,
            False,
            id="not heavy",
        ),
        pytest.param(
            1.0,
            0.01,
            0.0,
            False,
            id="only polls",
        ),
    ],
)
def test_a_heavy_job_yields_to_one_that_makes_progress(
    heavy,
    other,
    seconds_later,
    yields,
):
    time_now = [100.0]
    workloads = Workloads(lambda: time_now[0])
    workloads.add("other")  # is not new any more
    time_now[0] += 5.0
    for job, seconds in (("heavy", heavy), ("other", other)):
        workloads.add(job)
        workloads.note_use(job, seconds)

    time_now[0] += seconds_later

    assert workloads.must_yield("heavy") is yields
    assert not workloads.must_yield("other")
    assert not workloads.must_yield("a job without work")


def test_a_heavy_job_yields_to_a_new_one_from_its_first_work():
    time_now = [100.0]
    workloads = Workloads(lambda: time_now[0])
    workloads.add("heavy")
    workloads.note_use("heavy", 1.0)
    workloads.add("new")

    assert workloads.must_yield("heavy")

    time_now[0] += 20.0  # both are forgotten, so that each counts as new
    workloads.add("heavy")
    workloads.note_use("heavy", 1.0)
    workloads.add("new")

    assert workloads.must_yield("heavy")


def test_processor_time_counts_less_from_second_to_second():
    time_now = [100.0]
    workloads = Workloads(lambda: time_now[0])
    workloads.add("heavy")
    workloads.note_use("heavy", 1.0)

    time_now[0] += 3.0
    workloads.add("new")

    assert not workloads.must_yield("heavy")


@pytest.mark.parametrize(
    ("seconds", "threads", "other", "pause"),
    [
        pytest.param(
            0.01,
            1,
            "new",
            0.1,
            id="one thread",
        ),
        pytest.param(
            0.01,
            2,
            "new",
            0.2,
            id="two threads",
        ),
        pytest.param(
            1.0,
            3,
            "new",
            0.25,
            id="the longest",
        ),
        pytest.param(
            0.01,
            3,
            "heavy",
            0.0,
            id="nothing to yield to",
        ),
    ],
)
def test_a_thread_of_a_job_that_yields_pauses_by_its_processor_time(
    seconds,
    threads,
    other,
    pause,
):
    workloads = Workloads(lambda: 100.0)
    workloads.add(other)
    workloads.add("heavy")
    workloads.note_use("heavy", 1.0)
    for _ in range(threads):
        workloads.begin("heavy")

    assert workloads.pause_after("heavy", seconds) == pytest.approx(pause)

    workloads.end("heavy")

    assert workloads.pause_after("heavy", seconds) <= pause


def test_a_heavy_job_has_one_thread_of_a_lane_while_a_light_one_goes_on():
    time_now = [100.0]
    processor_time = [0.0]
    lanes = Lanes(
        threads=4,
        own_lane="own",
        clock=lambda: time_now[0],
        processor_time=lambda: processor_time[0],
    )
    concurrency = Concurrency()
    light_job_ends = threading.Event()
    works = [(threading.Event(), threading.Event()) for _ in range(20)]

    def take_a_second():
        processor_time[0] += 1.0

    def hang(has_begun, release):
        with concurrency.call():
            has_begun.set()
            release.wait(LONG)

    is_heavy = threading.Event()
    lanes.submit("own", take_a_second, "heavy")
    lanes.submit("own", is_heavy.set, "heavy")  # after the first: a job has one thread there
    assert is_heavy.wait(LONG)
    lanes.submit("another peer", partial(light_job_ends.wait, LONG), "light")
    for events in works:
        lanes.submit("peer", partial(hang, *events), "heavy")
    for number in range(5):
        is_done = threading.Event()
        lanes.submit("peer", is_done.set, f"other {number}")
        assert is_done.wait(LONG)
    first_begun, first_release = works[0]
    assert first_begun.wait(LONG)
    assert concurrency.most == 1

    time_now[0] += 2.0  # the light job waits for its peer
    first_release.set()
    wait_for(lambda: concurrency.most == 2)
    light_job_ends.set()
    for _, release in works:
        release.set()
    lanes.close()


def test_lanes_are_closed_while_a_thread_is_being_started(monkeypatch):
    lanes = Lanes()
    errors = []
    start = threading.Thread.start

    def close():
        try:
            lanes.close()
        except RuntimeError as error:
            errors.append(error)

    closer = threading.Thread(target=close)

    def start_late(thread):
        start(closer)
        closer.join(0.1)  # closes the lanes in this time, unless it waits for the start
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    lanes.submit("peer", threading.Event().set)
    closer.join(LONG)

    assert not closer.is_alive()
    assert errors == []


def test_during_a_submission_other_work_has_one_thread_of_a_lane():
    lanes = Lanes(threads=4)
    release = threading.Event()
    started = [threading.Event() for _ in range(2)]
    new_job_done = threading.Event()

    def hang(has_begun):
        has_begun.set()
        release.wait(LONG)

    with lanes.submission():
        for number, event in enumerate(started):
            lanes.submit("peer", partial(hang, event), f"under way {number}")
        lanes.submit("peer", new_job_done.set, "new", NEW_JOB)
        assert new_job_done.wait(LONG)
        assert sum(event.is_set() for event in started) <= 1

    wait_all(started)
    release.set()
    lanes.close()


# ------------------------------------------------------------ turns


class SlowRecord:
    """A record of words, whose turns decide its length; a write waits until it is released."""

    def __init__(self):
        self.words = ()
        self.writes = 0
        self.has_begun_to_write = threading.Event()
        self.release = threading.Event()
        self.decisions = []
        self.turns = Turns(
            self._store,
            self._decide,
            self._note_decision,
        )

    def _store(self, key, change):
        change(self.words)  # as before a lost race, which throws the result away
        self.has_begun_to_write.set()
        assert self.release.wait(LONG)
        self.words, decision = change(self.words)
        self.writes += 1
        return self.words, decision

    def _decide(self, words):
        return words, len(words)

    def _note_decision(self, words, decision):
        self.decisions.append(decision)

    def append(self, word):
        """Append a word in a turn; the word "bad" is refused. Returns the record as written."""
        return self.turns.change("job", appending(word))

    def pending_changes(self):
        return len(self.turns._queues["job"].entries)


def appending(word):
    """Return the change that appends a word; for the word "bad" one that fails."""

    def change(words):
        if word == "bad":
            raise ValueError("not so")
        return (*words, word)

    return change


def test_writes_during_a_write_are_batched_without_the_failing_ones():
    record = SlowRecord()
    later_words = [str(number) for number in range(9)]

    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(record.append, "first")
        assert record.has_begun_to_write.wait(LONG)
        later = [pool.submit(record.append, word) for word in later_words]
        bad = pool.submit(record.append, "bad")
        wait_for(lambda: record.pending_changes() == 10, every=0.001)
        record.release.set()

        assert first.result(LONG) == ("first",)
        for result in later:
            assert result.result(LONG) == record.words
        with pytest.raises(ValueError, match="not so"):
            bad.result(LONG)

    assert record.writes == 2
    assert record.decisions == [1, 10]
    assert sorted(record.words) == sorted(["first", *later_words])
    assert record.turns.pending() == []


def test_a_deferred_change_that_fails_harms_no_other():
    record = SlowRecord()
    record.release.set()

    assert record.turns.defer(
        "job",
        appending("bad"),
        1,
    )
    assert record.append("good") == ("good",)
