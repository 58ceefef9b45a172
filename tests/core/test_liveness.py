"""Nodes that do not answer, and gateways that fall silent: noticed, tried again, taken over."""

import math
from contextlib import closing
from dataclasses import replace
from queue import Queue
from unittest.mock import Mock

import pytest

from gateway.domain.execution import contact, machine
from gateway.domain.execution.messages import OwnerLost, Tell
from gateway.domain.run import Reporting
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.messages import PollTaskAt, StartTaskAt, StopAt
from gateway.domain.spec import Call, CallState, Ending
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import DatabaseAway
from gateway.runtime.liveness import Heartbeat, Outages, ProbeTimes
from gateway.store.database import open_database
from gateway.store.repositories import Gateways
from gateway.store.store import Store
from tests.builders import OK, T0, a_job, a_local_job, a_run, at, raising, returning

# ------------------------------------------------------------ calls to a node that answers again

# A call that got no response, with its next try far away.
LOST = Call(
    CallState.LOST,
    sent_at=T0,
    due_at=at(3600),
    tries=9,
)


def test_a_stop_that_did_not_arrive_is_due_when_the_node_is_back():
    job = a_job(status=JobStatus.FINISHED)
    nodes = {
        "n1": replace(
            job.nodes["n1"],
            stop=OK,
        ),
        "n2": replace(
            job.nodes["n2"],
            stop=LOST,
        ),
    }
    job = replace(
        job,
        nodes=nodes,
        ending=Ending(Outcome.STOPPED, T0),
        outcome=Outcome.STOPPED,
        ended_at=T0,
    )
    assert scheduling_machine.plan(job, at(60)) == []

    reached = scheduling_machine.retry_now(job, "n2")
    assert scheduling_machine.plan(reached, at(60)) == [StopAt("n2")]
    assert scheduling_machine.retry_now(job, "n1") is job
    assert scheduling_machine.retry_now(job, "n3") is job


def calls_to_reached_node(**calls):
    """Return the calls due to n2, which answers again.

    ``calls``: the calls to n2 about a running task.
    """
    job = a_job(
        status=JobStatus.RUNNING,
        a={
            "n1": TaskStatus.RUNNING,
            "n2": TaskStatus.RUNNING,
        },
    )
    task = job.tasks["a"]
    nodes = {**task.nodes, "n2": replace(task.nodes["n2"], **calls)}
    job = replace(
        job,
        tasks={"a": replace(task, nodes=nodes)},
    )
    plan = scheduling_machine.plan(
        scheduling_machine.retry_now(job, "n2"),
        at(60),
    )
    return [call for call in plan if call.node == "n2"]


def test_a_lost_query_is_due_when_the_node_is_back():
    assert calls_to_reached_node(poll=LOST) == [PollTaskAt("n2", "a", ("host",))]


def test_a_lost_start_is_not_repeated_when_the_node_is_back():
    for call in calls_to_reached_node(start=LOST, poll=LOST):
        assert not isinstance(call, StartTaskAt)


def test_a_query_that_was_never_made_keeps_its_time_when_the_node_is_back():
    untried = Call(
        CallState.IDLE,
        due_at=at(3600),
    )

    assert calls_to_reached_node(poll=untried) == []


# A call whose response is awaited.
UNDER_WAY = Call(
    CallState.SENT,
    sent_at=at(59),
    tries=1,
)


def test_a_query_under_way_is_repeated_when_the_node_is_back():
    assert calls_to_reached_node(poll=UNDER_WAY) == [PollTaskAt("n2", "a", ("host",))]


def test_a_start_under_way_is_not_repeated_when_the_node_is_back():
    assert calls_to_reached_node(start=UNDER_WAY) == []


def test_the_stop_of_a_job_under_way_is_repeated_when_the_node_is_back():
    job = a_job(status=JobStatus.FINISHED)
    nodes = {
        "n1": replace(job.nodes["n1"], stop=OK),
        "n2": replace(job.nodes["n2"], stop=UNDER_WAY),
    }
    job = replace(
        job,
        nodes=nodes,
        ending=Ending(Outcome.STOPPED, T0),
        outcome=Outcome.STOPPED,
        ended_at=T0,
    )

    reached = scheduling_machine.retry_now(job, "n2")

    assert scheduling_machine.plan(reached, at(60)) == [StopAt("n2")]


def test_a_lost_report_is_due_when_the_scheduling_node_is_back():
    run = a_run(
        "a",
        RunStatus.SUCCESS,
        reporting=Reporting(TaskStatus.RUNNING, LOST),
        collect=OK,
    )
    local = a_local_job(run)
    local = replace(
        local,
        spec=replace(
            local.spec,
            scheduler="n9",
        ),
    )
    assert machine.plan(local, at(60)) == []
    assert contact.retry_reports(local, "n2") is local

    reached = contact.retry_reports(local, "n9")

    assert machine.plan(reached, at(60)) == [Tell(run.run_id, TaskStatus.SUCCESS)]


# ------------------------------------------------------------ probes of silent nodes


class Network:
    """Nodes that are up or down, and the probes of the silent ones."""

    def __init__(self):
        self.up = set()
        self.probes = []  # the nodes in the order of their probes
        self.now = 100.0  # seconds
        self.times = ProbeTimes()

    def note_silence(self, node):
        self.times.note_silence(node, self.now)

    def silent(self):
        """Return the nodes that will be probed."""
        return sorted(self.times.due(math.inf))

    def after(self, seconds):
        """Make the probes due after some seconds; return the nodes that were reached."""
        self.now += seconds
        reached = []
        for node in self.times.due(self.now):
            self.probes.append(node)
            is_reached = node in self.up
            self.times.note_probe(
                node,
                self.now,
                is_reached=is_reached,
            )
            if is_reached:
                reached.append(node)
        return reached


def test_silent_nodes_are_probed_every_second_until_they_answer():
    network = Network()
    assert network.after(5) == []
    assert network.probes == []

    for node in ("n2", "n2", "n3"):
        network.note_silence(node)
    assert network.silent() == ["n2", "n3"]
    assert network.after(0.5) == []
    assert network.probes == []
    assert network.after(0.6) == []
    assert sorted(network.probes) == ["n2", "n3"]

    network.up.add("n2")
    assert network.after(1.1) == ["n2"]
    assert network.after(1.1) == []
    assert network.silent() == ["n3"]


def test_a_node_that_responds_to_probes_alone_is_tried_ever_more_rarely():
    network = Network()
    network.up.add("n2")

    pauses = []
    for _ in range(8):
        network.note_silence("n2")
        start = network.now
        while not network.after(0.5):
            pass
        pauses.append(network.now - start)
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert pauses[-1] == 30

    network.now += 60
    network.note_silence("n2")
    assert network.after(1) == ["n2"], "much later it is a new outage"


def test_a_node_is_probed_until_it_answers_even_if_a_probe_raises():
    results = iter([False, RuntimeError("can't start new thread"), True])
    recovered = Queue()

    def reaches(node):
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    with closing(Outages(returning(True), reaches, recovered.put, every=0.01)) as outages:
        outages.note_silence("n2")
        assert recovered.get(timeout=20) == "n2"
        outages.probe("n2")  # is no longer silent: a further result is not needed
    assert recovered.empty()


def test_a_node_is_not_probed_before_its_time():
    no_probe = raising(AssertionError("probed"))
    with closing(Outages(no_probe, no_probe, no_probe, every=3600)) as outages:
        outages.note_silence("n2")
        outages.probe("n2")


def test_a_node_without_a_route_is_no_longer_probed():
    looked_up = []
    recovered = Queue()

    def has_route(node):
        looked_up.append(node)
        return node == "n3"

    with closing(Outages(has_route, returning(True), recovered.put, every=0.01)) as outages:
        outages.note_silence("n2")
        for _ in range(3):  # each takes at least one further look for due probes
            outages.note_silence("n3")
            assert recovered.get(timeout=20) == "n3"

        assert looked_up.count("n2") == 1


# ------------------------------------------------------------ gateways on one database

LOST_AFTER = 60  # seconds of silence
RUNNING_THERE = a_local_job(a_run(status=RunStatus.RUNNING, owner="other"))


@pytest.fixture
def store(database_url):
    with closing(Store(open_database(database_url))) as store:
        yield store


class Heart:
    """The heartbeat of a gateway, whose clock a test moves."""

    def __init__(
        self,
        store,
        owner,
        url="",
        record=None,
    ):
        """``record``: as for `Heartbeat`; by default the jobs and their events are noted."""
        self.events = []
        self.now = 0.0  # seconds
        self.heartbeat = Heartbeat(
            Gateways(store),
            owner,
            record or self.note,
            lambda: T0,
            lost_after=LOST_AFTER,
            monotonic=lambda: self.now,
        )
        # Beats in its own thread as well, which is stopped: from here on only the test beats.
        self.heartbeat.start(url or f"http://{owner}")
        self.heartbeat.stop()

    def note(self, job_id, event):
        self.events.append((job_id, event))

    def beat(self):
        self.heartbeat.beat()

    def beat_for_a_minute(self):
        """Beat at the end of a minute in which this gateway has been alive."""
        self.now += LOST_AFTER + 1
        self.beat()


def age_heartbeat(store, owner, seconds):
    """Put a gateway's last heartbeat ``seconds`` seconds earlier."""
    with store.write() as connection:
        connection.exec_driver_sql(
            f"update gateway set seen_at = seen_at - {seconds} where owner = '{owner}'"
        )


def test_a_job_stays_with_its_gateway_while_that_lives_or_has_runs_of_it(store):
    Heart(store, "other")
    mine = Heart(store, "me").heartbeat
    ended_run = a_run(
        status=RunStatus.SUCCESS,
        owner="other",
    )
    new = a_local_job()
    idle = replace(
        a_local_job(),
        home="other",
    )
    busy = replace(RUNNING_THERE, home="other")
    over = replace(
        a_local_job(ended_run),
        home="other",
    )
    assert mine.home_of(new) == "me"
    assert mine.home_of(idle) == "other"
    assert mine.home_of(busy) == "other"

    age_heartbeat(store, "other", 20)
    mine.beat()

    assert mine.home_of(idle) == "me"
    assert mine.home_of(over) == "me"
    assert mine.home_of(busy) == "other"


def test_a_gateway_knows_the_addresses_of_others(store):
    Heart(store, "other")
    mine = Heart(store, "me").heartbeat

    assert mine.address_of_other("other") == "http://other"
    assert mine.address_of_other("me") is None
    assert mine.address_of_other("") is None


def test_the_files_of_a_restored_gateway_are_at_another_one(store):
    # A restored node has the address of the earlier one.
    Heart(store, "before/docker", url="http://me")
    mine = Heart(store, "me").heartbeat

    assert mine.other_with_files("me") == ""
    assert mine.other_with_files("") == ""
    assert mine.other_with_files("before/docker") == "another gateway"


def test_a_gateway_that_was_frozen_itself_calls_no_other_lost(store):
    store.local_jobs.add(RUNNING_THERE, "flow")
    Heart(store, "other")
    mine = Heart(store, "me")

    for owner in ("me", "other"):  # the machine of both stood still
        age_heartbeat(store, owner, 100)
    mine.beat_for_a_minute()
    assert mine.events == []

    mine.beat_for_a_minute()  # the other one has not come back
    [(job_id, _)] = mine.events
    assert job_id == "job-1"


def test_a_lost_gateways_job_without_runs_is_taken_over_once(store):
    ended_run = replace(
        a_run(
            status=RunStatus.SUCCESS,
            owner="other",
        ),
        collect=OK,
    )
    local = replace(
        a_local_job(
            ended_run,
            status=JobStatus.FINISHED,
        ),
        home="other",
    )
    store.local_jobs.add(local, "flow")
    Heart(store, "other")
    age_heartbeat(store, "other", 100)

    mine = Heart(store, "me")
    mine.beat()
    assert mine.events == [], "it has only just started"

    for _ in range(3):
        mine.beat_for_a_minute()
    assert mine.events == [("job-1", OwnerLost("other", "me", T0))]


def test_an_outage_of_the_database_does_not_count_as_silence(store, monkeypatch):
    store.local_jobs.add(RUNNING_THERE, "flow")
    Heart(store, "other")
    age_heartbeat(store, "other", 100)
    mine = Heart(store, "me")

    with monkeypatch.context() as outage:
        outage.setattr(
            Gateways,
            "beat",
            raising(DatabaseAway("away")),
        )
        mine.beat_for_a_minute()
    mine.beat_for_a_minute()
    assert mine.events == [], "the other one could not write its heartbeat either"

    mine.beat_for_a_minute()
    assert mine.events != []


def test_a_job_that_cannot_be_taken_over_is_tried_again(store):
    local = replace(
        a_local_job(status=JobStatus.FINISHED),
        home="other",
    )
    store.local_jobs.add(local, "flow")
    Heart(store, "other")
    age_heartbeat(store, "other", 100)
    record = Mock(side_effect=[RuntimeError("no"), None])
    mine = Heart(
        store,
        "me",
        record=record,
    )

    mine.beat_for_a_minute()
    assert record.call_count == 1
    for _ in range(2):  # the second try succeeds, so the third beat has nothing left
        mine.beat_for_a_minute()
    assert record.call_count == 2
