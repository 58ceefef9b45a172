"""A job holds what it needs at all of its nodes or at none, asked in one order for everybody."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from gateway.bootstrap.parts import admission_rules, call_timing
from gateway.domain import admission, reservations
from gateway.domain.admission import Rules
from gateway.domain.job import Acceptance, Job, Reservation
from gateway.domain.resources import Amounts, Claim, ClaimState, Ledger
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.messages import (
    Accepted,
    CreateAt,
    Event,
    Freed,
    Lost,
    Refused,
    ReleaseAt,
    Request,
    ReserveAt,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
)
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import IDLE, a_job, at
from tests.inprocess import settings

ROLES = {"guest": ("n3",), "host": ("n1", "n2")}
BUSY = Failure(reservations.BUSY, "needs cpu 4 on node n2, free cpu 1")


def a_ready_job(*needing: str, **changes: object) -> Job:
    job = a_job("a; b; c", JobStatus.READY, roles=ROLES, **changes)  # type: ignore[arg-type]
    said = Acceptance(holds=True)
    nodes = {
        n: replace(node, reservation=Reservation(said)) if n in needing else node for n, node in job.nodes.items()
    }
    return replace(job, nodes=nodes)


def step(job: Job, seconds: float) -> tuple[Job, list[Request]]:
    return machine.step(job, at(seconds))


def after(job: Job, *events: Event) -> Job:
    for event in events:
        job = machine.apply(job, event)
    return job


def asked_one_by_one(job: Job, *nodes: str, begin: float = 0.0) -> Job:
    """Have these nodes grant it, one after the other."""
    for i, node in enumerate(nodes):
        job, requests = step(job, begin + i)
        assert requests == [ReserveAt(node)]
        job = after(job, Accepted(ReserveAt(node), at(begin + i + 0.5)))
    return job


def test_nodes_are_asked_in_the_order_of_their_ids_and_the_job_starts_once_all_hold_it():
    job = asked_one_by_one(a_ready_job("n3", "n1", "n2"), "n1", "n2", "n3")
    assert step(job, 9)[1] == [StartAt(n) for n in ("n3", "n1", "n2")]


def test_a_node_that_said_nothing_of_resources_is_not_asked():
    assert step(a_ready_job(), 0)[1] == [StartAt(n) for n in ("n3", "n1", "n2")]
    assert step(asked_one_by_one(a_ready_job("n2"), "n2"), 9)[1] == [StartAt(n) for n in ("n3", "n1", "n2")]


def test_what_a_node_says_when_it_takes_the_job_is_kept():
    job = a_job("a", roles=ROLES)
    job, requests = step(job, 0)
    said = Acceptance(True, 2)
    job = after(job, *(Accepted(r, at(1), said if r == CreateAt("n2") else None) for r in requests))
    assert job.status is JobStatus.READY
    assert [n.reservation.acceptance.holds for n in job.nodes.values()] == [False, False, True]
    assert step(job, 1)[1] == [ReserveAt("n2")]


def test_where_one_is_busy_the_others_take_back_and_all_are_asked_again():
    job = asked_one_by_one(a_ready_job("n1", "n2", "n3"), "n1")
    job, requests = step(job, 2)
    assert requests == [ReserveAt("n2")]
    job = after(job, Refused(ReserveAt("n2"), BUSY, at(3)))
    assert job.status is JobStatus.READY
    assert reservations.waits_for(job) == (BUSY.message, at(3), at(3.5))
    job, requests = step(job, 3)
    assert requests == [ReleaseAt("n1")]
    job = after(job, Accepted(ReleaseAt("n1"), at(3.2)))
    assert job.nodes["n1"].reservation.apply == IDLE
    assert step(job, 3.4)[1] == []
    assert machine.next_due(job) == at(3.5)
    job = asked_one_by_one(job, "n1", "n2", "n3", begin=4)
    assert len(step(job, 9)[1]) == 3
    assert reservations.waits_for(job) is None


def test_a_node_that_has_something_free_is_asked_at_once():
    job, _ = step(a_ready_job("n1", "n2"), 0)
    job = after(job, Refused(ReserveAt("n1"), BUSY, at(1)))
    assert step(job, 1.1)[1] == []
    assert step(after(job, Freed("n2", at(1.1))), 1.1)[1] == []  # it is n1 that the job waits for
    assert step(after(job, Freed("n1", at(1.1))), 1.1)[1] == [ReserveAt("n1")]


def test_a_node_that_has_something_free_since_it_was_asked_is_asked_again_at_once():
    job, _ = step(a_ready_job("n1"), 0)
    job = after(job, Freed("n1", at(0.1)), Refused(ReserveAt("n1"), BUSY, at(0.2)))
    job, again = step(job, 0.2)
    assert again == [ReserveAt("n1")]
    job = after(job, Refused(ReserveAt("n1"), BUSY, at(0.3)))
    assert step(job, 0.3)[1] == []


def test_a_node_that_does_not_answer_keeps_nothing_held_elsewhere():
    job = asked_one_by_one(a_ready_job("n1", "n2"), "n1")
    job, _ = step(job, 2)
    job = after(job, Lost(ReserveAt("n2"), at(3), delivered=True))
    job, requests = step(job, 3)
    assert requests == [ReleaseAt("n1")]
    assert job.nodes["n2"].unreachable_since == at(3)


def test_a_job_that_has_waited_long_keeps_what_it_was_granted_and_asks_for_it_again():
    job = after(step(asked_one_by_one(a_ready_job("n1", "n2"), "n1"), 2)[0], Refused(ReserveAt("n2"), BUSY, at(3)))
    job = after(step(job, 3)[0], Accepted(ReleaseAt("n1"), at(3.1)))
    job = asked_one_by_one(job, "n1", begin=600)
    job = after(step(job, 602)[0], Refused(ReserveAt("n2"), BUSY, at(603)))
    job, requests = step(job, 603.9)
    assert requests == [] and reservations.waits_for(job) == (BUSY.message, at(3), at(604))
    job = asked_one_by_one(after(job, Freed("n2", at(603.95))), "n1", "n2", begin=604)
    assert len(step(job, 609)[1]) == 3, "it starts"


def test_a_job_of_two_nodes_starts_within_its_ageing_bound_although_each_has_small_ones_of_its_own():
    """They last longer than a node keeps a place for who does not ask: n2 did not, while n1 was waited for."""
    rules, timing, large = Rules(ageing=60.0), Timing(ageing=60.0), a_ready_job("n1", "n2")
    ledgers = {node: Ledger(Amounts.of(2), node=node) for node in ("n1", "n2")}
    ends: dict[str, float] = {}

    def asks(node: str, name: str, cores: int, now: float) -> bool:
        claim = Claim(name, Amounts.of(cores), ClaimState.WAITING, at(now), at(now))
        ledgers[node], held = admission.apply(ledgers[node], claim, at(now), rules)
        return held

    for now in range(0, 2000, 5):
        for node in ledgers:
            for name in [name for name, end in ends.items() if end <= now and name in ledgers[node].claims]:
                ledgers[node] = ledgers[node].without(name)
            if "large" in admission.admissible(ledgers[node], at(now), rules):
                large = after(large, Freed(node, at(now)))
            for number in range(2):
                name = f"{node} {now} {number}"
                if asks(node, name, 1, now):
                    ends[name] = now + 100 + 50 * number
                else:
                    ledgers[node] = ledgers[node].without(name)
        large, requests = machine.step(large, at(now), timing)
        while requests and not isinstance(requests[0], StartAt):
            for request in requests:
                event: Event = Accepted(request, at(now))
                if isinstance(request, ReleaseAt):
                    ledgers[request.node] = ledgers[request.node].give_back("large")
                elif not asks(request.node, "large", 2, now):
                    event = Refused(request, BUSY, at(now))
                large = machine.apply(large, event, timing)
            large, requests = machine.step(large, at(now), timing)
        if requests:
            break
    assert 60 < now < 60 + 2 * 150 + 2 * timing.hold_most


def test_a_node_that_did_not_answer_once_is_not_silent_while_the_job_waits_for_another():
    job = asked_one_by_one(a_ready_job("n1", "n2"), "n1")
    job = after(step(job, 2)[0], Lost(ReserveAt("n2"), at(3), delivered=True))
    job = after(step(job, 3)[0], Accepted(ReleaseAt("n1"), at(3.1)))
    assert job.nodes["n2"].unreachable_since == at(3), "it is asked again after n1"
    job = after(
        step(job, 5)[0], Refused(ReserveAt("n1"), BUSY, at(5))
    )  # somebody else was faster, and takes an hour
    assert job.nodes["n2"].unreachable_since is None
    assert step(job, 3600)[0].ending is None
    job = after(step(job, 3600)[0], Accepted(ReserveAt("n1"), at(3601)))
    job = after(step(job, 3602)[0], Lost(ReserveAt("n2"), at(3603), delivered=True))
    for second in range(3604, 4202, 30):  # n1 has room, n2 says nothing: that is a silence
        job, requests = step(job, second)
        job = after(job, *(Accepted(r, at(second)) for r in requests if r.node == "n1"))
        job = after(job, *(Lost(r, at(second), delivered=True) for r in requests if r.node == "n2"))
        assert job.ending is None and job.nodes["n2"].unreachable_since == at(3603)
    assert step(job, 4203)[0].ending is not None


def test_an_answer_to_an_earlier_question_counts_no_more():
    """It was held then, and may have been returned since."""
    job, _ = step(a_ready_job("n1"), 0)
    job, again = step(job, 20)
    assert again == [ReserveAt("n1")]
    assert after(job, Accepted(ReserveAt("n1"), at(10))).nodes["n1"].reservation.apply.state is CallState.SENT
    assert after(job, Refused(ReserveAt("n1"), BUSY, at(10))).nodes["n1"].reservation.apply.state is CallState.SENT
    assert after(job, Accepted(ReserveAt("n1"), at(21))).nodes["n1"].reservation.apply.state is CallState.OK


def test_a_return_that_may_still_arrive_is_waited_for_before_the_node_is_asked_again():
    job = asked_one_by_one(a_ready_job("n1", "n2"), "n1")
    job, _ = step(job, 2)
    job = after(job, Refused(ReserveAt("n2"), BUSY, at(3)))
    job, _ = step(job, 3)
    job = after(job, Lost(ReleaseAt("n1"), at(4), delivered=True))
    job, again = step(job, 5)
    assert again == [ReleaseAt("n1")]
    job = after(job, Accepted(ReleaseAt("n1"), at(5.1)))
    assert step(job, 16)[1] == []
    assert step(job, 5 + Timing().call_deadline)[1] == [ReserveAt("n1")]


def test_a_node_that_refuses_for_another_reason_ends_the_job():
    job, _ = step(a_ready_job("n1"), 0)
    job = after(job, Refused(ReserveAt("n1"), Failure("JOB_UNKNOWN", "never heard of it"), at(1)))
    assert job.ending is not None
    failure = job.ending.failure
    assert failure is not None
    assert (job.ending.outcome, failure.reason, failure.node) == (Outcome.FAILED, "FAILED_TO_RUN", "n1")
    assert "n1 error: JOB_UNKNOWN never heard of it" in failure.message


def test_a_waiting_job_that_is_stopped_asks_nobody_any_more():
    job = asked_one_by_one(a_ready_job("n1", "n2"), "n1")
    job, _ = step(job, 2)
    job = after(job, StopRequested("n1", at(3)))
    assert {type(r) for r in step(job, 3)[1]} == {StopAt}
    assert reservations.waits_for(job) is None


def test_no_more_tasks_at_once_than_the_job_wants_and_every_node_bears():
    def begun(job: Job) -> set[str]:
        return {r.task for r in step(job, 0)[1] if isinstance(r, StartTaskAt)}

    job = a_job("a; b; c", JobStatus.RUNNING, roles=ROLES)
    assert begun(job) == {"a", "b", "c"}
    bound = replace(job, spec=replace(job.spec, job_params={"common": {"task_parallelism": 2}}))
    assert begun(bound) == {"a", "b"}
    node = replace(job.nodes["n2"], reservation=Reservation(Acceptance(True, 1)))
    small = replace(job, nodes={**job.nodes, "n2": node})
    assert begun(small) == {"a"}
    done = a_job("a; b; c", JobStatus.RUNNING, roles=ROLES, a=TaskStatus.SUCCESS, b=TaskStatus.RUNNING)
    assert begun(replace(done, spec=bound.spec)) == {"c"}
    assert begun(replace(done, nodes=small.nodes)) == set()


def test_pauses_from_ten_seconds_to_ten_minutes_are_what_the_settings_make_of_it(tmp_path: Path):
    limits = {"schedule_pause_seconds": 10, "schedule_longest_pause_seconds": 600, "schedule_attempts": 9}
    set_so = settings(tmp_path, limits=limits)
    timing = call_timing(set_so)
    job, tried, now = a_ready_job("n2"), list[float](), 0.0
    while job.ending is None:
        job, requests = machine.step(job, at(now), timing)
        assert requests == [ReserveAt("n2")]
        tried.append(now)
        job = machine.apply(job, Refused(ReserveAt("n2"), BUSY, at(now)), timing)
        now = (machine.next_due(job, timing) - at(0)).total_seconds()  # type: ignore[operator]
    pauses = [b - a for a, b in pairwise(tried)]
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    history = [note for note in job.notes if note.event == "resources refused"]
    assert [note.at for note in history] == [at(moment) for moment in tried]
    assert job.ending.failure is not None and job.ending.failure.reason == "CANNOT_SCHEDULE"
    assert "asked 9 times" in job.ending.failure.message
    assert admission_rules(set_so).fresh == 1800  # the place is kept that long, for three of the longest


def test_without_such_a_number_it_waits_on():
    job = a_ready_job("n2")
    for moment in range(0, 6000, 30):
        job, requests = step(job, moment)
        if requests:
            job = after(job, Refused(ReserveAt("n2"), BUSY, at(moment)))
    assert job.ending is None and job.nodes["n2"].reservation.apply.tries > 100
    told = [note.detail.get("tries") for note in job.notes if note.event == "resources refused"]
    assert told == [None, 2, 3, 4, 8, 16, 32, 64, 128], "the same words are not written down for ever"
    other = replace(BUSY, message="held by another job now")
    job, _ = step(job, 6030)
    job = after(job, Refused(ReserveAt("n2"), other, at(6030)))
    assert job.notes[-1].detail["message"] == other.message, "but others are"
