"""What the scheduling node decides of tasks: when each starts, who is asked how it is, and how often."""

from dataclasses import replace

import pytest

from gateway.domain.job import Job
from gateway.domain.scheduling.agenda import with_call
from gateway.domain.scheduling.machine import next_due, step
from gateway.domain.scheduling.messages import (
    Accepted,
    CreateAt,
    Delayed,
    Lost,
    PollTaskAt,
    Refused,
    ReleaseAt,
    ReserveAt,
    RoleNotPlayed,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    TaskStopRequested,
    TaskUnknown,
)
from gateway.domain.scheduling.transitions import exclude, is_claimed
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at, sent
from tests.domain.scheduled import (
    FAILED,
    NO,
    POLL,
    READY,
    RUNNING,
    SUCCESS,
    THREE,
    after,
    answered,
    asked_after_a_lost_start,
    claimed,
    due,
    heard,
    same,
)


def test_a_task_waits_for_its_upstream():
    job = a_job("a -> b", JobStatus.RUNNING, a=RUNNING)
    assert StartTaskAt("n1", "b") not in due(job, 1000)


def test_a_start_that_waited_for_its_turn_counts_from_when_it_is_sent():
    job = claimed(a_job("a", JobStatus.RUNNING), 0)
    request = StartTaskAt("n2", "a")
    job = after(job, Delayed(request, at(0), at(10)))
    assert is_claimed(job, request, at(10))
    assert not any(c.node == "n2" for c in due(job, 10 + Timing().call_deadline - 0.1))
    assert PollTaskAt("n2", "a", ("host",)) in due(job, 10 + Timing().call_deadline)


def test_a_start_that_waited_is_not_sent_once_another_claim_took_its_place():
    job = claimed(a_job("a", JobStatus.RUNNING), 0)
    again = after(job, Delayed(StartTaskAt("n2", "a"), at(-20), at(1.5)))
    assert same(again, job)
    assert not is_claimed(again, StartTaskAt("n2", "a"), at(1.5))


def test_a_start_that_waited_until_the_job_was_stopped_is_not_sent_and_keeps_no_stop_waiting():
    request = StartTaskAt("n2", "a")
    job = after(claimed(a_job("a", JobStatus.RUNNING)), StopRequested("n1", at(1)))
    job = after(job, Delayed(request, at(0), at(2)))
    assert not is_claimed(job, request, at(2))
    assert StopAt("n2") in due(job, 2)


@pytest.mark.parametrize("request_of", [CreateAt, StartAt, ReserveAt, ReleaseAt])
def test_what_waited_until_the_job_was_stopped_is_not_sent(request_of):
    request = request_of("n2")
    job = a_job("a", JobStatus.PENDING if request_of is CreateAt else JobStatus.READY)
    job = with_call(job, request, sent(0))
    assert is_claimed(job, request, at(0))
    job = after(job, StopRequested("n1", at(1)), Delayed(request, at(0), at(2)))
    assert not is_claimed(job, request, at(2)) and request not in due(job, 1000)


def test_only_so_many_tasks_of_a_job_are_under_way_and_the_next_follows_in_the_flows_order():
    timing = replace(Timing(), abreast=2)
    job = a_job("a; b; c; d", JobStatus.RUNNING)
    job, requests = step(job, at(0), timing)
    assert {r.task for r in requests} == {"a", "b"}
    job = after(job, heard(SUCCESS, "n1", "b", role="guest"), heard(SUCCESS, "n2", "b"))
    _, requests = step(job, at(1), timing)
    assert {r.task for r in requests if isinstance(r, StartTaskAt)} == {"c"}


def test_a_stopped_task_takes_no_room_from_those_that_may_run():
    timing = replace(Timing(), abreast=1)
    job = after(a_job("a; b", JobStatus.RUNNING), TaskStopRequested("a", "n1", at(0)))
    _, requests = step(job, at(1), timing)
    assert {r.task for r in requests} == {"b"}


def test_a_role_that_a_node_does_not_play_is_not_waited_for():
    spec = a_spec("a", {"guest": ("n2",), "host": ("n2",)}, scheduler="n1")
    job = answered(a_job(status=JobStatus.RUNNING, spec=spec), 0)
    job = after(job, RoleNotPlayed("task_a", "n2", "host", at(1)), heard(SUCCESS, role="guest", seconds=2))
    assert job.tasks["a"].status is SUCCESS
    only = after(job, RoleNotPlayed("task_a", "n2", "guest", at(3)))
    assert set(only.tasks["a"].nodes["n2"].roles) == {"guest"}


def test_a_task_waits_until_every_node_has_done_its_part_of_the_upstream():
    job = a_job("a -> b", JobStatus.RUNNING, a={"n1": SUCCESS, "n2": RUNNING})
    assert not any(isinstance(c, StartTaskAt) for c in due(job, 1000))
    job = after(job, heard(SUCCESS, "n2"))
    assert due(job, 1) == [StartTaskAt("n1", "b"), StartTaskAt("n2", "b")]


def test_independent_tasks_start_together():
    _, requests = step(a_job("a -> c; b -> c", JobStatus.RUNNING), at(0))
    assert requests == [StartTaskAt(n, t) for t in ("a", "b") for n in ("n1", "n2")]


def test_a_task_goes_only_to_the_nodes_that_have_a_role_in_it():
    job = a_job("a; b", JobStatus.RUNNING, roles=THREE, task_roles={"a": ["guest"], "b": ["host"]})
    assert due(job) == [StartTaskAt("n1", "a"), StartTaskAt("n2", "b"), StartTaskAt("n3", "b")]


def test_a_start_that_is_answered_is_followed_by_looks_at_growing_pauses():
    job = answered(a_job(status=JobStatus.RUNNING, spec=a_spec("a", {"guest": ("n2",)}, scheduler="n1")), 0)
    pauses, now = [], 0.0
    for _ in range(8):
        again = (next_due(job) - at(now)).total_seconds()
        pauses.append(round(again, 3))
        now += again
        job, requests = step(job, at(now))
        assert requests == [PollTaskAt("n2", "a", ("guest",))]
        job = after(job, Accepted(requests[0], at(now)))
    assert pauses == [0.05, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_the_scheduling_nodes_own_part_is_looked_at_seldom():
    job = answered(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}), 0)
    assert next_due(job) == at(2)


def _looked_at(roles, **more) -> Job:
    job = answered(a_job(status=JobStatus.RUNNING, roles=roles, **more), 0)
    for second in range(1, 12):
        job = answered(job, 3 * second)
    return job


def test_news_makes_the_looks_frequent_again():
    job = _looked_at(THREE)
    job = after(job, heard(RUNNING, "n2", seconds=40))
    assert PollTaskAt("n2", "a", ("host",)) in due(job, 40.1)
    assert PollTaskAt("n3", "a", ("host",)) not in due(after(answered(job, 40)), 40.1)


def test_a_node_that_pushes_is_looked_at_seldom():
    job = answered(a_job(status=JobStatus.RUNNING), 0)
    job = after(job, heard(RUNNING, "n2", seconds=1, pushed=True))
    assert PollTaskAt("n2", "a", ("host",)) not in due(job, 2.9)
    assert PollTaskAt("n2", "a", ("host",)) in due(job, 3)


def test_a_lost_look_is_repeated_soon_however_many_went_well_before():
    job = claimed(_looked_at({"guest": ("n9",)}), 60)
    job = after(job, Lost(PollTaskAt("n9", "a", ("guest",)), at(60), delivered=False))
    assert next_due(job) <= at(60.5)


def test_only_the_roles_that_are_still_open_are_looked_at():
    job = answered(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",), "host": ("n1",)}), 0)
    job = after(job, heard(SUCCESS, "n1", role="guest"))
    assert due(job, 5) == [PollTaskAt("n1", "a", ("host",))]


def test_a_refused_task_start_fails_the_job_and_names_the_party():
    job = claimed(a_job("a -> b", JobStatus.RUNNING, roles=THREE))
    job = after(job, *(Accepted(StartTaskAt(n, "a"), at(9)) for n in ("n1", "n3")))
    job = after(job, Refused(StartTaskAt("n2", "a"), NO, at(9)))
    assert job.tasks["a"].status is FAILED
    assert due(job, 9) == [StopAt("n1"), StopAt("n2"), StopAt("n3")]
    job = answered(job, 9)
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    failure = job.ending.failure
    assert (failure.reason, failure.node, failure.task) == ("BECAUSE", "n2", "a")
    assert job.tasks["b"].status is READY


def test_a_slow_answer_within_the_deadline_still_counts():
    job = claimed(a_job(status=JobStatus.RUNNING))
    assert due(job, 9.9) == []
    job = after(job, *(Accepted(StartTaskAt(n, "a"), at(9.9)) for n in ("n1", "n2")))
    assert job.ending is None
    assert all(isinstance(c, PollTaskAt) for c in due(job, 11))


def test_a_start_without_an_answer_is_followed_by_a_question_after_its_deadline_not_by_a_start():
    job = claimed(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}))
    for lost in (job, after(job, Lost(StartTaskAt("n1", "a"), at(1), delivered=True))):
        assert due(lost, 11.9) == []
        assert due(lost, 12) == [PollTaskAt("n1", "a", ("guest",))]


def test_a_start_that_never_left_is_repeated_at_once():
    job = claimed(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}))
    job = after(job, Lost(StartTaskAt("n1", "a"), at(1), delivered=False))
    assert due(job, 1.2) == [StartTaskAt("n1", "a")]


def test_only_a_node_that_does_not_know_the_task_is_started_again():
    job = asked_after_a_lost_start()
    assert due(after(job, TaskUnknown(POLL, at(13))), 13) == [StartTaskAt("n1", "a")]
    known = after(job, heard(READY, "n1"), Accepted(POLL, at(13)))
    assert not any(isinstance(c, StartTaskAt) for c in due(known, 1000))


def test_news_of_a_task_that_was_to_be_started_again_spares_it_the_second_start():
    job = after(asked_after_a_lost_start(), TaskUnknown(POLL, at(13)), heard(RUNNING, "n1", seconds=13.1))
    assert not any(isinstance(c, StartTaskAt) for c in due(job, 1000))


def test_a_node_that_never_knows_what_it_is_told_to_start_fails_the_job():
    job = a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)})
    for i in range(5):
        assert job.ending is None
        job, [start] = step(job, at(100 * i))
        job = claimed(after(job, Accepted(start, at(100 * i))), 100 * i + 50)
        job = after(job, TaskUnknown(POLL, at(100 * i + 50)))
    assert job.ending.failure.reason == "TASK_UNKNOWN"


def test_starts_that_never_left_do_not_count_against_the_node():
    job = a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)})
    for i in range(10):
        job = after(claimed(job, 20 * i), Lost(StartTaskAt("n1", "a"), at(20 * i), delivered=False))
    job = claimed(claimed(job, 300), 320)
    job = after(job, TaskUnknown(POLL, at(321)))
    assert job.ending is None
    assert due(job, 321) == [StartTaskAt("n1", "a")]


def test_a_node_without_a_role_in_the_task_is_taken_out_of_it():
    job = claimed(a_job("a -> b", JobStatus.RUNNING))
    job = exclude(job, StartTaskAt("n2", "a"), at(1))
    assert set(job.tasks["a"].nodes) == {"n1"}
    job = after(job, Accepted(StartTaskAt("n1", "a"), at(1)), heard(SUCCESS, "n1"))
    assert job.tasks["a"].status is SUCCESS
    assert due(job, 1) == [StartTaskAt("n1", "b"), StartTaskAt("n2", "b")]


def test_a_task_in_which_no_node_has_a_role_fails_the_job():
    job = claimed(a_job(status=JobStatus.RUNNING))
    job = exclude(exclude(job, StartTaskAt("n1", "a"), at(1)), StartTaskAt("n2", "a"), at(1))
    assert (job.tasks["a"].status, job.ending.failure.reason) == (FAILED, "NO_ROLE_HERE")
    assert due(job, 1) == [StopAt("n1"), StopAt("n2")]


def test_a_node_that_keeps_refusing_the_question_fails_the_task():
    job = answered(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}), 0)
    for i in range(1, 11):
        assert job.ending is None
        job = after(claimed(job, 20 * i), Refused(POLL, NO, at(20 * i)))
    assert (job.ending.failure.reason, job.ending.failure.node) == ("POLL_REFUSED", "n1")


def test_a_question_that_is_answered_in_between_forgives_the_refusals():
    job = answered(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}), 0)
    for i in range(1, 40):
        job = claimed(job, 20 * i)
        job = after(job, Accepted(POLL, at(20 * i)) if i % 9 == 0 else Refused(POLL, NO, at(20 * i)))
    assert job.ending is None
