"""What the scheduling node decides, rule by rule. The same rules at large: `test_world`."""

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.dag import Dag
from gateway.domain.job import Job
from gateway.domain.model import CallState, Failure
from gateway.domain.scheduling.answers import exclude, is_claimed
from gateway.domain.scheduling.commands import CreateAt, PollTaskAt, StartAt, StartTaskAt, StopAt
from gateway.domain.scheduling.events import (
    Answered,
    Delayed,
    Denied,
    Event,
    Heard,
    Lost,
    NotPlayed,
    StopAsked,
    TaskStopAsked,
    UnknownThere,
)
from gateway.domain.scheduling.schedule import apply, next_due, plan, step
from gateway.domain.scheduling.timing import Timing
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may
from tests.builders import a_job, a_spec, at
from tests.domain.strategies import REPEATABLE, plots

READY, RUNNING, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED
TIMING = Timing()
THREE = {"guest": ("n1",), "host": ("n2", "n3")}
NO = Failure("BECAUSE", "of something")


def after(job: Job, *events: Event) -> Job:
    for event in events:
        job = apply(job, event)
    return job


def claimed(job: Job, seconds: float = 0.0) -> Job:
    """Return the job after everything that is due was marked as sent."""
    return step(job, at(seconds))[0]


def due(job: Job, seconds: float = 0.0) -> list:
    return plan(job, at(seconds))


def answered(job: Job, seconds: float = 0.1) -> Job:
    """Claim everything that is due, and have every request answered well."""
    job, requests = step(job, at(seconds))
    return after(job, *(Answered(request, at(seconds)) for request in requests))


def heard(status: TaskStatus, node: str = "n2", task: str = "a", seconds: float = 1.0, **more) -> Heard:
    return Heard(f"task_{task}", node, more.pop("role", ""), status, at(seconds), **more)


def same(job: Job, other: Job) -> bool:
    """Whether nothing but the timeline differs."""
    return job == other


# ---------------------------------------------------------------- creating


def test_a_new_job_is_created_at_every_node_at_once():
    job, requests = step(a_job(roles=THREE), at(0))
    assert requests == [CreateAt("n1"), CreateAt("n2"), CreateAt("n3")]
    assert due(job) == []


def test_a_node_with_two_roles_is_asked_once():
    _, requests = step(a_job(roles={"guest": ("n1", "n2"), "host": ("n2",), "arbiter": ("n1",)}), at(0))
    assert requests == [CreateAt("n1"), CreateAt("n2")]


def test_a_job_is_ready_only_when_every_node_has_accepted():
    job = after(claimed(a_job()), Answered(CreateAt("n1"), at(1)))
    assert job.status is JobStatus.PENDING
    job = after(job, Answered(CreateAt("n2"), at(2)))
    assert job.status is JobStatus.READY
    assert {task.status for task in job.tasks.values()} == {READY}


def test_one_refusal_rejects_the_job_and_stops_those_that_accepted():
    job = after(claimed(a_job(roles=THREE)), Answered(CreateAt("n1"), at(1)), Denied(CreateAt("n2"), NO, at(1)))
    assert job.status is JobStatus.PENDING
    assert due(job, 1) == [StopAt("n1")], "n3 may have the create still before it"
    job = after(job, Answered(CreateAt("n3"), at(2)))
    assert due(job, 2) == [StopAt("n1"), StopAt("n3")]
    job = answered(job, 2)
    assert (job.status, job.outcome) == (JobStatus.REJECTED, Outcome.REJECTED)
    assert (job.ending.failure.reason, job.ending.failure.node) == ("BECAUSE", "n2")


def test_who_refuses_and_may_keep_the_job_all_the_same_is_stopped():
    lost = after(claimed(a_job()), Answered(CreateAt("n1"), at(1)), Lost(CreateAt("n2"), at(1), delivered=True))
    job = after(claimed(lost, 2), Denied(CreateAt("n2"), NO, at(3)))  # it took the job, then says that it may not
    assert due(job, 60) == [StopAt("n1"), StopAt("n2")]
    own = Failure("INTERNAL", "an error inside the gateway", "n2")
    job = after(claimed(a_job()), Answered(CreateAt("n1"), at(1)), Denied(CreateAt("n2"), own, at(1)))
    assert due(job, 60) == [StopAt("n1"), StopAt("n2")]


def test_of_two_refusals_the_first_is_the_reason_and_both_are_kept():
    job = claimed(a_job())
    job = after(job, Denied(CreateAt("n2"), NO, at(1)), Denied(CreateAt("n1"), Failure("TOO"), at(2)))
    assert (job.status, job.ending.failure.node) == (JobStatus.REJECTED, "n2")
    assert [n.create.reason for n in job.nodes.values()] == ["TOO", "BECAUSE"]


def test_a_lost_create_is_repeated_after_growing_pauses():
    job = claimed(a_job(roles={"guest": ("n1",)}))
    pauses, now = [], 0.0
    for _ in range(4):
        job = after(job, Lost(CreateAt("n1"), at(now), delivered=True))
        again = (next_due(job) - at(now)).total_seconds()
        pauses.append(again)
        now += again
        job, requests = step(job, at(now))
        assert requests == [CreateAt("n1")]
    assert pauses == [0.2, 0.4, 0.8, 1.6]


def test_a_create_without_any_record_of_its_end_is_repeated_after_its_deadline():
    job = claimed(a_job(roles={"guest": ("n1",)}))
    assert next_due(job) == at(TIMING.call_deadline)
    assert due(job, 11.9) == []
    assert due(job, 12) == [CreateAt("n1")]


def test_a_node_that_cannot_be_reached_refuses_the_job_after_a_while():
    job = after(claimed(a_job()), Answered(CreateAt("n1"), at(0)), Lost(CreateAt("n2"), at(0), delivered=False))
    job = claimed(job, 9.9)
    assert job.ending is None
    job = after(job, Lost(CreateAt("n2"), at(9.95), delivered=False, message="connection refused"))
    job, requests = step(job, at(10))
    assert requests == [StopAt("n1")]
    assert job.ending.outcome is Outcome.REJECTED
    failure = job.ending.failure
    assert (failure.reason, failure.node, failure.message) == ("PEER_UNREACHABLE", "n2", "connection refused")
    assert after(job, Answered(StopAt("n1"), at(10))).status is JobStatus.REJECTED


def test_of_two_unreachable_nodes_one_gives_the_reason_and_nothing_new_is_sent():
    job = claimed(a_job(roles=THREE))
    lost = [Lost(CreateAt(node), at(0), delivered=False) for node in ("n2", "n3")]
    job, requests = step(after(job, Answered(CreateAt("n1"), at(0)), *lost), at(30))
    assert requests == [StopAt("n1")]
    assert job.ending.failure.node == "n2"
    assert [n.create.reason for n in job.nodes.values()] == ["", "PEER_UNREACHABLE", "PEER_UNREACHABLE"]


def test_a_create_on_its_way_is_waited_out_before_its_node_is_stopped():
    job = after(claimed(a_job()), Answered(CreateAt("n1"), at(0)), Lost(CreateAt("n2"), at(1), delivered=False))
    job = claimed(job, 9)
    job, requests = step(job, at(10))
    assert job.ending is not None
    assert requests == [StopAt("n1")]
    assert StopAt("n2") not in due(job, 20.9)
    assert StopAt("n2") in due(job, 21)


@pytest.mark.parametrize(("delivered", "stops"), [(True, [StopAt("n2")]), (False, [])])
def test_a_node_is_stopped_only_where_the_create_may_have_arrived(delivered, stops):
    job = after(claimed(a_job()), Lost(CreateAt("n2"), at(1), delivered), Denied(CreateAt("n1"), NO, at(1)))
    assert due(job, 12) == stops


def test_a_first_create_that_may_have_arrived_is_not_forgotten_over_a_second_that_did_not():
    job = after(claimed(a_job()), Lost(CreateAt("n2"), at(1), delivered=True))
    job = after(claimed(job, 2), Lost(CreateAt("n2"), at(2), delivered=False), Denied(CreateAt("n1"), NO, at(2)))
    assert due(job, 14) == [StopAt("n2")]


def test_a_node_that_never_got_the_job_is_not_waited_for():
    job = after(claimed(a_job()), Lost(CreateAt("n2"), at(1), delivered=False), Denied(CreateAt("n1"), NO, at(1)))
    assert job.status is JobStatus.REJECTED
    assert next_due(job) is None


# ---------------------------------------------------------------- starting


def test_a_ready_job_is_started_once_at_every_node():
    job, requests = step(a_job(status=JobStatus.READY), at(0))
    assert requests == [StartAt("n1"), StartAt("n2")]
    job = after(job, Answered(StartAt("n1"), at(1)))
    assert (job.status, due(job, 1)) == (JobStatus.READY, [])
    assert after(job, Answered(StartAt("n2"), at(1))).status is JobStatus.RUNNING


def test_a_refused_start_stops_all_and_runs_nothing():
    job = claimed(a_job(status=JobStatus.READY, roles=THREE))
    job = after(
        job, Answered(StartAt("n1"), at(1)), Denied(StartAt("n2"), NO, at(1)), Answered(StartAt("n3"), at(1))
    )
    assert due(job, 1) == [StopAt("n1"), StopAt("n2"), StopAt("n3")]
    job = answered(job, 1)
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    failure = job.ending.failure
    words = "not every node started the job: n1 ok; n2 error: BECAUSE of something; n3 unknown"
    assert (failure.reason, failure.node, failure.message) == ("FAILED_TO_RUN", "n2", words)
    assert job.tasks["a"].status is READY


def test_what_each_party_said_to_the_start_is_kept():
    job = claimed(a_job(status=JobStatus.READY))
    job = after(job, Denied(StartAt("n2"), NO, at(1)), Denied(StartAt("n1"), Failure("TOO", "late"), at(2)))
    assert [(n.start.reason, n.start.message) for n in job.nodes.values()] == [
        ("TOO", "late"),
        ("BECAUSE", "of something"),
    ]
    assert job.ending.failure.node == "n2"


def test_a_lost_start_is_repeated():
    job = after(claimed(a_job(status=JobStatus.READY)), Lost(StartAt("n2"), at(1), delivered=True))
    assert due(job, 2) == [StartAt("n2")]


# ---------------------------------------------------------------- tasks


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
    job = after(claimed(a_job("a", JobStatus.RUNNING)), StopAsked("n1", at(1)))
    job = after(job, Delayed(request, at(0), at(2)))
    assert not is_claimed(job, request, at(2))
    assert StopAt("n2") in due(job, 2)


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
    job = after(a_job("a; b", JobStatus.RUNNING), TaskStopAsked("a", "n1", at(0)))
    _, requests = step(job, at(1), timing)
    assert {r.task for r in requests} == {"b"}


def test_a_role_that_a_node_does_not_play_is_not_waited_for():
    spec = a_spec("a", {"guest": ("n2",), "host": ("n2",)}, scheduler="n1")
    job = answered(a_job(status=JobStatus.RUNNING, spec=spec), 0)
    job = after(job, NotPlayed("task_a", "n2", "host", at(1)), heard(SUCCESS, role="guest", seconds=2))
    assert job.tasks["a"].status is SUCCESS
    only = after(job, NotPlayed("task_a", "n2", "guest", at(3)))
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
        job = after(job, Answered(requests[0], at(now)))
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
    job = after(job, *(Answered(StartTaskAt(n, "a"), at(9)) for n in ("n1", "n3")))
    job = after(job, Denied(StartTaskAt("n2", "a"), NO, at(9)))
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
    job = after(job, *(Answered(StartTaskAt(n, "a"), at(9.9)) for n in ("n1", "n2")))
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


def _asked_after_a_lost_start(second: float = 0.0) -> Job:
    job = claimed(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}), second)
    return claimed(job, second + 12)


POLL = PollTaskAt("n1", "a", ("guest",))


def test_only_a_node_that_does_not_know_the_task_is_started_again():
    job = _asked_after_a_lost_start()
    assert due(after(job, UnknownThere(POLL, at(13))), 13) == [StartTaskAt("n1", "a")]
    known = after(job, heard(READY, "n1"), Answered(POLL, at(13)))
    assert not any(isinstance(c, StartTaskAt) for c in due(known, 1000))


def test_news_of_a_task_that_was_to_be_started_again_spares_it_the_second_start():
    job = after(_asked_after_a_lost_start(), UnknownThere(POLL, at(13)), heard(RUNNING, "n1", seconds=13.1))
    assert not any(isinstance(c, StartTaskAt) for c in due(job, 1000))


def test_a_node_that_never_knows_what_it_is_told_to_start_fails_the_job():
    job = a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)})
    for i in range(5):
        assert job.ending is None
        job, [start] = step(job, at(100 * i))
        job = claimed(after(job, Answered(start, at(100 * i))), 100 * i + 50)
        job = after(job, UnknownThere(POLL, at(100 * i + 50)))
    assert job.ending.failure.reason == "TASK_UNKNOWN"


def test_starts_that_never_left_do_not_count_against_the_node():
    job = a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)})
    for i in range(10):
        job = after(claimed(job, 20 * i), Lost(StartTaskAt("n1", "a"), at(20 * i), delivered=False))
    job = claimed(claimed(job, 300), 320)
    job = after(job, UnknownThere(POLL, at(321)))
    assert job.ending is None
    assert due(job, 321) == [StartTaskAt("n1", "a")]


def test_a_node_without_a_role_in_the_task_is_taken_out_of_it():
    job = claimed(a_job("a -> b", JobStatus.RUNNING))
    job = exclude(job, StartTaskAt("n2", "a"), at(1))
    assert set(job.tasks["a"].nodes) == {"n1"}
    job = after(job, Answered(StartTaskAt("n1", "a"), at(1)), heard(SUCCESS, "n1"))
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
        job = after(claimed(job, 20 * i), Denied(POLL, NO, at(20 * i)))
    assert (job.ending.failure.reason, job.ending.failure.node) == ("POLL_REFUSED", "n1")


def test_a_question_that_is_answered_in_between_forgives_the_refusals():
    job = answered(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}), 0)
    for i in range(1, 40):
        job = claimed(job, 20 * i)
        job = after(job, Answered(POLL, at(20 * i)) if i % 9 == 0 else Denied(POLL, NO, at(20 * i)))
    assert job.ending is None


# ---------------------------------------------------------------- the end


def test_a_failure_at_one_party_ends_the_job_at_all_with_the_same_words():
    job = a_job("a -> b", JobStatus.RUNNING, roles=THREE, a=RUNNING)
    failure = Failure("EXIT_1", "exit code 1", role="host", exit_code=1)
    job, requests = step(after(job, heard(FAILED, "n3", failure=failure)), at(1))
    assert requests == [StopAt("n1"), StopAt("n2"), StopAt("n3")]
    assert job.ending.failure == replace(failure, node="n3", task="a")
    assert job.tasks["a"].failure == job.ending.failure
    job = after(job, *(Answered(r, at(2)) for r in requests))
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert (job.tasks["a"].status, job.tasks["b"].status) == (FAILED, READY)


def test_a_failure_of_another_task_stops_what_runs_beside_it():
    job = a_job("a; b", JobStatus.RUNNING, a=RUNNING, b=RUNNING)
    job = answered(after(job, heard(FAILED, "n1", "a")), 1)
    assert job.outcome is Outcome.FAILED
    assert (job.tasks["b"].status, job.tasks["b"].failure.reason) == (FAILED, "STOPPED")


def test_the_last_success_ends_the_job_and_closes_it_everywhere():
    job = a_job("a -> b", JobStatus.RUNNING, a=SUCCESS, b={"n1": SUCCESS, "n2": RUNNING})
    job, requests = step(after(job, heard(SUCCESS, "n2", "b")), at(1))
    assert requests == [StopAt("n1"), StopAt("n2")]
    job = after(job, Answered(StopAt("n1"), at(2)))
    assert (job.status, job.progress) == (JobStatus.RUNNING, 99)
    job = after(job, Answered(StopAt("n2"), at(2)))
    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (JobStatus.PENDING, JobStatus.REJECTED),
        (JobStatus.READY, JobStatus.FINISHED),
        (JobStatus.RUNNING, JobStatus.FINISHED),
    ],
)
def test_a_stop_ends_a_job_wherever_it_is(status, final):
    job = answered(after(claimed(a_job(status=status), 0), StopAsked("n1", at(1), "enough")), 13)
    assert (job.status, job.outcome) == (final, Outcome.STOPPED)
    assert (job.ending.by, job.ending.failure.reason, job.ending.failure.message) == ("n1", "STOPPED", "enough")


def test_a_stop_before_anything_was_sent_needs_nobody():
    job = after(a_job(), StopAsked("n1", at(1)))
    assert (job.status, job.outcome, next_due(job)) == (JobStatus.REJECTED, Outcome.STOPPED, None)


MULTISETS = [m for n in range(5) for m in combinations_with_replacement(TaskStatus, n)]


@pytest.mark.parametrize("statuses", MULTISETS, ids=lambda m: "+".join(m) or "no task")
def test_how_a_job_ends_follows_from_its_tasks(statuses):
    names = [f"t{i}" for i in range(len(statuses))]
    parts = {name: {"n1": status, "n2": status} for name, status in zip(names, statuses, strict=True)}
    job = a_job("; ".join(names) if names else Dag(()), JobStatus.RUNNING, **parts)
    tasks = {name: replace(job.tasks[name], status=READY) for name in names}
    job = claimed(replace(job, tasks=tasks))
    if FAILED in statuses:
        expected = Outcome.FAILED
    else:
        expected = Outcome.SUCCEEDED if statuses and set(statuses) == {SUCCESS} else None
    assert (job.ending.outcome if job.ending else None) is expected
    assert job.status is JobStatus.RUNNING


def test_how_a_job_ends_is_decided_once():
    job = after(a_job(status=JobStatus.RUNNING, a=RUNNING), heard(FAILED, "n1"))
    first = job.ending
    assert after(job, StopAsked("n1", at(2)), heard(FAILED, "n2", seconds=3)).ending == first
    stopped = after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopAsked("n1", at(2)))
    assert after(stopped, heard(FAILED, "n1", seconds=3)).ending == stopped.ending


def test_after_the_decision_to_end_only_stops_are_sent():
    job = a_job("a; b", JobStatus.RUNNING, roles=THREE, a={"n1": FAILED})
    job = after(job, StopAsked("n1", at(1)))
    for second in (1, 12, 24, 600, 10_000):
        assert {type(c) for c in due(job, second)} == {StopAt}


def test_a_stop_waits_for_a_start_that_may_still_arrive():
    job = after(claimed(a_job(status=JobStatus.RUNNING)), StopAsked("n1", at(1)))
    for lost in (job, after(job, *(Lost(StartTaskAt(n, "a"), at(2), True) for n in ("n1", "n2")))):
        assert due(lost, 11.9) == []
        assert due(lost, 12) == [StopAt("n1"), StopAt("n2")]


def test_a_stop_that_is_lost_is_repeated_until_it_is_acknowledged_even_after_the_end():
    job = claimed(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopAsked("n1", at(1))), 1)
    job = after(job, Answered(StopAt("n1"), at(2)), Lost(StopAt("n2"), at(2), delivered=False))
    assert job.status is JobStatus.FINISHED
    assert due(job, 3) == [StopAt("n2")]
    job = after(claimed(job, 3), Answered(StopAt("n2"), at(4)))
    assert (next_due(job), due(job, 10_000)) == (None, [])


def test_a_stop_is_not_repeated_for_ever():
    job = claimed(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopAsked("n1", at(1))), 1)
    repeats, now = 0, 2.0
    job = after(job, Answered(StopAt("n1"), at(2)), Lost(StopAt("n2"), at(2), delivered=False))
    timing = Timing(redeliver_for=100)
    while (when := next_due(job, timing)) is not None:
        now = max((when - at(0)).total_seconds(), now)
        job = apply(step(job, at(now), timing)[0], Lost(StopAt("n2"), at(now), delivered=False))
        repeats += 1
    assert 10 < repeats < 30
    assert 100 < now < 120


def test_a_node_that_refuses_the_stop_is_not_asked_again():
    job = claimed(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopAsked("n1", at(1))), 1)
    job = after(job, Answered(StopAt("n1"), at(2)), Denied(StopAt("n2"), NO, at(2)))
    assert (job.status, next_due(job)) == (JobStatus.FINISHED, None)


def test_a_hung_node_delays_neither_the_stops_of_the_others_nor_the_conclusion():
    job = a_job(status=JobStatus.RUNNING, roles=THREE, a=RUNNING)
    job = claimed(job, 1)
    job = after(
        job, Lost(PollTaskAt("n3", "a", ("host",)), at(11), delivered=True), heard(FAILED, "n2", seconds=12)
    )
    assert {StopAt("n1"), StopAt("n2")} <= set(due(job, 12))
    job = claimed(job, 12)
    job = after(job, Answered(StopAt("n1"), at(12)), Answered(StopAt("n2"), at(12)))
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert due(job, 30) == [StopAt("n3")]


def test_a_node_that_is_silent_for_too_long_fails_the_job():
    job = claimed(a_job(status=JobStatus.RUNNING, roles=THREE, a=RUNNING), 1)
    job = after(job, Lost(PollTaskAt("n2", "a", ("host",)), at(2), delivered=False))
    assert step(job, at(601.9))[0].ending is None
    job, requests = step(job, at(602))
    assert (job.ending.outcome, job.ending.failure.reason) == (Outcome.FAILED, "UNREACHABLE")
    assert job.ending.failure.node == "n2"
    assert requests == [StopAt("n1"), StopAt("n2"), StopAt("n3")]


@pytest.mark.parametrize(
    "sign", [Answered(PollTaskAt("n2", "a", ("host",)), at(500)), heard(SUCCESS, "n2", seconds=500, pushed=True)]
)
def test_any_sign_of_life_begins_the_silence_anew(sign):
    job = claimed(a_job(status=JobStatus.RUNNING, roles=THREE, a=RUNNING), 1)
    job = after(job, Lost(PollTaskAt("n2", "a", ("host",)), at(2), delivered=False))
    job = claimed(job, 400)
    assert step(after(job, sign), at(700))[0].ending is None


# ---------------------------------------------------------------- late, repeated, foreign


def test_a_report_that_is_late_repeated_or_out_of_order_changes_nothing_but_the_timeline():
    job = after(a_job("a -> b", JobStatus.RUNNING, a=RUNNING), heard(SUCCESS, "n2"))
    for status in TaskStatus:
        again = after(job, heard(status, "n2", seconds=2))
        assert same(again, job)
        if status is not SUCCESS:
            assert again.notes[-1].event == "late report ignored"


def test_no_report_changes_a_job_that_has_ended():
    job = answered(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopAsked("n1", at(1))), 1)
    for status in TaskStatus:
        late = after(job, heard(status, "n2", seconds=2, pushed=True))
        assert (late.status, late.outcome, late.tasks) == (job.status, job.outcome, job.tasks)


@pytest.mark.parametrize(
    "foreign",
    [
        Heard("task_x", "n2", "", FAILED, at(1)),
        Heard("task_a", "n9", "", FAILED, at(1)),
        Heard("task_a", "n2", "arbiter", FAILED, at(1)),
        Heard("task_b", "n2", "", SUCCESS, at(1)),
        Heard("task_b", "n2", "", FAILED, at(1)),
    ],
    ids=[
        "unknown task",
        "unknown node",
        "unknown role",
        "success of a task not begun",
        "failure of a task not begun",
    ],
)
def test_a_report_of_what_nobody_was_asked_to_do_is_ignored(foreign):
    job = a_job("a -> b", JobStatus.RUNNING, a=RUNNING)
    assert same(after(job, foreign), job)


@pytest.mark.parametrize("status", TaskStatus)
def test_a_report_before_the_job_was_accepted_everywhere_does_not_hinder_it(status):
    job = after(claimed(a_job()), heard(status, "n2", seconds=0))
    job = after(job, *(Answered(CreateAt(n), at(1)) for n in ("n1", "n2")))
    assert (job.status, job.tasks["a"].status) == (JobStatus.READY, READY)


@pytest.mark.parametrize("role", ["host", "host.0", ""])
def test_a_report_may_name_the_role_with_its_index_or_not_at_all(role):
    job = after(a_job(status=JobStatus.RUNNING, a=RUNNING), heard(SUCCESS, "n2", role=role))
    assert job.tasks["a"].nodes["n2"].roles == {"host": SUCCESS}


def test_a_call_that_was_accepted_is_not_taken_back_by_its_repeat():
    job = claimed(a_job(status=JobStatus.RUNNING))
    job = after(job, *(Answered(StartTaskAt(n, "a"), at(1)) for n in ("n1", "n2")))
    for late in (
        Lost(StartTaskAt("n2", "a"), at(2), delivered=False),
        Lost(StartTaskAt("n2", "a"), at(2), delivered=True),
        Denied(StartTaskAt("n2", "a"), NO, at(2)),
        Denied(StartAt("n2"), NO, at(2)),
        Denied(CreateAt("n2"), NO, at(2)),
        Lost(CreateAt("n2"), at(2), delivered=False),
    ):
        assert same(after(job, late), job)


def test_not_knowing_a_task_counts_only_as_an_answer_to_the_question():
    job = claimed(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}))
    assert same(after(job, UnknownThere(POLL, at(5))), job)


def test_the_loss_of_an_earlier_try_says_nothing_of_a_later_one():
    job = claimed(after(_asked_after_a_lost_start(), UnknownThere(POLL, at(13))), 13)
    late = Lost(StartTaskAt("n1", "a"), at(1), delivered=False)
    assert same(after(job, late), job)


def test_a_question_put_before_the_last_start_says_nothing_of_it():
    job = _asked_after_a_lost_start()
    job = claimed(after(job, Lost(StartTaskAt("n1", "a"), at(12.5), delivered=False)), 13)
    assert job.tasks["a"].nodes["n1"].start.tries == 2
    assert same(after(job, UnknownThere(POLL, at(12.6))), job)


def test_answers_to_what_was_never_asked_change_nothing():
    job = a_job(status=JobStatus.PENDING)
    for request in (CreateAt("n1"), StartAt("n1"), StartTaskAt("n1", "a"), POLL, StopAt("n1")):
        for event in (Answered(request, at(1)), Denied(request, NO, at(1)), Lost(request, at(1), delivered=False)):
            assert same(after(job, event), job)


def test_answers_of_a_node_that_was_taken_out_of_the_task_change_nothing():
    job = exclude(claimed(a_job(status=JobStatus.RUNNING)), StartTaskAt("n2", "a"), at(1))
    start, poll = StartTaskAt("n2", "a"), PollTaskAt("n2", "a", ("host",))
    for event in (
        Answered(start, at(2)),
        Denied(start, NO, at(2)),
        Lost(start, at(2), delivered=True),
        Answered(poll, at(2)),
        UnknownThere(poll, at(2)),
    ):
        assert same(after(job, event), job)
    assert same(exclude(job, start, at(2)), job)


def test_a_node_that_accepts_after_all_is_stopped():
    job = claimed(a_job())
    job = after(job, Lost(CreateAt("n2"), at(0), delivered=False), Denied(CreateAt("n1"), NO, at(1)))
    assert job.status is JobStatus.REJECTED
    late = after(job, Answered(CreateAt("n2"), at(2)))
    assert due(late, 2) == [StopAt("n2")]


STATUSES = st.sampled_from(TaskStatus)
ROLES = st.sampled_from(["", "guest", "guest.0", "host", "arbiter", "nobody"])


@st.composite
def _event(draw: st.DrawFn, job: Job, seconds: float) -> Event:
    node = draw(st.sampled_from(job.spec.nodes))
    task = draw(st.sampled_from(sorted(job.tasks)))
    poll = PollTaskAt(node, task, ("guest",))
    requests = (CreateAt(node), StartAt(node), StartTaskAt(node, task), poll, StopAt(node))
    request = draw(st.sampled_from(requests))
    return draw(
        st.sampled_from(
            [
                Answered(request, at(seconds)),
                Answered(request, at(seconds)),
                Denied(request, NO, at(seconds)),
                Lost(request, at(seconds), delivered=draw(st.booleans())),
                UnknownThere(poll, at(seconds)),
                Heard(f"task_{task}", node, draw(ROLES), draw(STATUSES), at(seconds), pushed=draw(st.booleans())),
                Heard("task_x", "n9", "", draw(STATUSES), at(seconds)),
                StopAsked("n1", at(seconds)),
            ]
        )
    )


@given(plots(calm=True), st.data())
@REPEATABLE
def test_no_news_whatever_breaks_a_job_or_moves_it_beside_the_tables(plot, data):
    job, now = plot.job(), 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 700.0)))
        old = job
        if data.draw(st.booleans()):
            job = claimed(job, now)
        else:
            job = after(job, data.draw(_event(job, now)))
        assert old.status is job.status or may(JOB, old.status, job.status)
        for name, task in job.tasks.items():
            assert old.tasks[name].status is task.status or may(TASK, old.tasks[name].status, task.status)
        assert job.progress >= old.progress
        assert old.ending in (None, job.ending)
        if ended(JOB, old.status):
            assert (job.status, job.outcome, job.ended_at) == (old.status, old.outcome, old.ended_at)


@given(plots(calm=True), st.integers(0, 30))
@REPEATABLE
def test_a_plan_is_only_a_look_and_its_requests_are_claimed_once(plot, seconds):
    job = plot.job()
    while True:
        assert due(job, seconds) == due(job, seconds)
        new, requests = step(job, at(seconds))
        assert not set(requests) & set(due(new, seconds))
        if not requests:
            break
        states = [n.create.state for n in new.nodes.values()]
        assert CallState.IDLE not in states
        job = after(new, *(Answered(r, at(seconds)) for r in requests if not isinstance(r, PollTaskAt)))
