"""A node that can be reached again is told of at once, and what waits for it is due then."""

import threading
from dataclasses import replace

from gateway.domain.execution import machine
from gateway.domain.execution.messages import Tell
from gateway.domain.run import Reporting
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling import transitions
from gateway.domain.scheduling.messages import PollTaskAt, StartTaskAt, StopAt
from gateway.domain.spec import Call, CallState, Ending
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.runtime.liveness import Outages
from tests.builders import OK, T0, a_job, a_local_job, a_run, at

LOST = Call(CallState.LOST, sent_at=T0, due_at=at(3600), tries=9)


def test_a_stop_that_was_not_heard_is_due_when_the_node_is_back():
    job = a_job(status=JobStatus.FINISHED)
    nodes = {n: replace(j, stop=LOST if n == "n2" else OK) for n, j in job.nodes.items()}
    job = replace(job, nodes=nodes, ending=Ending(Outcome.STOPPED, T0), outcome=Outcome.STOPPED, ended_at=T0)
    assert scheduling_machine.plan(job, at(60)) == []
    assert scheduling_machine.plan(transitions.reached(job, "n2"), at(60)) == [StopAt("n2")]
    assert transitions.reached(job, "n1") is job and transitions.reached(job, "n3") is job


def test_a_question_that_was_lost_is_due_but_no_start_is_repeated():
    job = a_job(status=JobStatus.RUNNING, a={"n1": TaskStatus.RUNNING, "n2": TaskStatus.RUNNING})
    part = job.tasks["a"].nodes["n2"]

    def known(**calls):
        nodes = {**job.tasks["a"].nodes, "n2": replace(part, **calls)}
        changed = replace(job, tasks={"a": replace(job.tasks["a"], nodes=nodes)})
        return [c for c in scheduling_machine.plan(transitions.reached(changed, "n2"), at(60)) if c.node == "n2"]

    assert known(poll=LOST) == [PollTaskAt("n2", "a", ("host",))]
    assert not any(isinstance(c, StartTaskAt) for c in known(start=LOST, poll=LOST))
    waits = Call(CallState.IDLE, due_at=at(3600))
    pushing = known(poll=waits)
    assert pushing == [], "what was never tried keeps its own time"


def test_a_report_that_was_not_heard_is_due_when_the_scheduling_node_is_back():
    run = a_run("a", RunStatus.SUCCESS, reporting=Reporting(TaskStatus.RUNNING, LOST), collect=OK)
    local = a_local_job(run)
    local = replace(local, spec=replace(local.spec, scheduler="n9"))
    assert machine.plan(local, at(60)) == []
    assert transitions.retry_reports(local, "n2") is local
    assert machine.plan(transitions.retry_reports(local, "n9"), at(60)) == [Tell(run.run_id, TaskStatus.SUCCESS)]


class Network:
    def __init__(self) -> None:
        self.up: set[str] = set()
        self.asked: list[str] = []
        self.healed: list[str] = []
        self.now = 100.0
        self.outages = Outages(self.reaches, self.healed.append, lambda: self.now, 1.0)
        self.outages._begun = True  # the test looks by itself

    def reaches(self, node: str) -> bool:
        self.asked.append(node)
        return node in self.up

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.outages.look()


def test_silent_nodes_are_tried_every_second_and_told_once():
    net = Network()
    assert net.after(5) == [] and net.asked == []
    net.outages.silent("n2")
    net.outages.silent("n2")
    net.outages.silent("n3")
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
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    outages = Outages(reaches, lambda node: healed.set(), every=0.01)
    outages.silent("n2")
    assert healed.wait(20)
    outages.close()
