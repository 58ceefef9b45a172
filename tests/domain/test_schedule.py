"""What the scheduling node decides, rule by rule: how a job begins, what news counts. At large: `test_world`."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bootstrap.parts import call_timing, run_timing
from gateway.domain.job import Job
from gateway.domain.scheduling.machine import apply, next_due, step
from gateway.domain.scheduling.messages import (
    Accepted,
    CreateAt,
    Event,
    Lost,
    PollTaskAt,
    Refused,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    TaskReported,
    TaskUnknown,
)
from gateway.domain.scheduling.transitions import exclude
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at
from tests.domain.scheduled import (
    FAILED,
    NO,
    POLL,
    READY,
    RUNNING,
    SUCCESS,
    THREE,
    TIMING,
    after,
    answered,
    asked_after_a_lost_start,
    claimed,
    due,
    heard,
    same,
)
from tests.domain.strategies import REPEATABLE, plots
from tests.inprocess import settings

# ---------------------------------------------------------------- creating


def test_a_new_job_is_created_at_every_node_at_once():
    job, requests = step(a_job(roles=THREE), at(0))
    assert requests == [CreateAt("n1"), CreateAt("n2"), CreateAt("n3")]
    assert due(job) == []


def test_a_node_with_two_roles_is_asked_once():
    _, requests = step(a_job(roles={"guest": ("n1", "n2"), "host": ("n2",), "arbiter": ("n1",)}), at(0))
    assert requests == [CreateAt("n1"), CreateAt("n2")]


def test_a_job_is_ready_only_when_every_node_has_accepted():
    job = after(claimed(a_job()), Accepted(CreateAt("n1"), at(1)))
    assert job.status is JobStatus.PENDING
    job = after(job, Accepted(CreateAt("n2"), at(2)))
    assert job.status is JobStatus.READY
    assert {task.status for task in job.tasks.values()} == {READY}


def test_one_refusal_rejects_the_job_and_stops_those_that_accepted():
    job = after(claimed(a_job(roles=THREE)), Accepted(CreateAt("n1"), at(1)), Refused(CreateAt("n2"), NO, at(1)))
    assert job.status is JobStatus.PENDING
    assert due(job, 1) == [StopAt("n1")], "n3 may have the create still before it"
    job = after(job, Accepted(CreateAt("n3"), at(2)))
    assert due(job, 2) == [StopAt("n1"), StopAt("n3")]
    job = answered(job, 2)
    assert (job.status, job.outcome) == (JobStatus.REJECTED, Outcome.REJECTED)
    assert (job.ending.failure.reason, job.ending.failure.node) == ("BECAUSE", "n2")


def test_who_refuses_and_may_keep_the_job_all_the_same_is_stopped():
    lost = after(claimed(a_job()), Accepted(CreateAt("n1"), at(1)), Lost(CreateAt("n2"), at(1), delivered=True))
    job = after(claimed(lost, 2), Refused(CreateAt("n2"), NO, at(3)))  # it took the job, then says that it may not
    assert due(job, 60) == [StopAt("n1"), StopAt("n2")]
    for reason in ("INTERNAL", "NO_ENVELOPE"):  # which do not say whether it was done
        own = Failure(reason, "", "n2")
        job = after(claimed(a_job()), Accepted(CreateAt("n1"), at(1)), Refused(CreateAt("n2"), own, at(1)))
        assert due(job, 60) == [StopAt("n1"), StopAt("n2")]
        job = after(claimed(job, 60), Accepted(StopAt("n1"), at(60)), Refused(StopAt("n2"), own, at(60)))
        assert job.outcome is Outcome.REJECTED and due(job, 70) == [StopAt("n2")], "until it is understood"


def test_of_two_refusals_the_first_is_the_reason_and_both_are_kept():
    job = claimed(a_job())
    job = after(job, Refused(CreateAt("n2"), NO, at(1)), Refused(CreateAt("n1"), Failure("TOO"), at(2)))
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


def test_what_failed_together_is_not_tried_again_together_and_never_later_than_the_pause(tmp_path: Path):
    timing = Timing(jitter=0.25)
    ids = [f"job-{i}" for i in range(40)]
    for tries, pause in ((1, 0.4), (10, 10.0)):
        found = {i: timing.retry(tries, i, CreateAt("n1")).total_seconds() for i in ids}
        assert len(set(found.values())) == len(ids) and all(0.75 * pause <= s <= pause for s in found.values())
        assert found == {i: timing.retry(tries, i, CreateAt("n1")).total_seconds() for i in ids}, (
            "decided once more"
        )
    dues = set()
    for i in ids:
        job = claimed(a_job(spec=a_spec(roles={"guest": ("n1",)}, job_id=i)))
        dues.add(next_due(apply(job, Lost(CreateAt("n1"), at(1), delivered=True), timing), timing))
    assert len(dues) == len(ids)
    given = settings(tmp_path)
    assert call_timing(given).jitter == run_timing(given).jitter == timing.jitter


def test_a_create_without_any_record_of_its_end_is_repeated_after_its_deadline():
    job = claimed(a_job(roles={"guest": ("n1",)}))
    assert next_due(job) == at(TIMING.call_deadline)
    assert due(job, 11.9) == []
    assert due(job, 12) == [CreateAt("n1")]


def test_a_node_that_cannot_be_reached_refuses_the_job_after_a_while():
    job = after(claimed(a_job()), Accepted(CreateAt("n1"), at(0)), Lost(CreateAt("n2"), at(0), delivered=False))
    job = claimed(job, 9.9)
    assert job.ending is None
    job = after(job, Lost(CreateAt("n2"), at(9.95), delivered=False, message="connection refused"))
    job, requests = step(job, at(10))
    assert requests == [StopAt("n1")]
    assert job.ending.outcome is Outcome.REJECTED
    failure = job.ending.failure
    assert (failure.reason, failure.node, failure.message) == ("PEER_UNREACHABLE", "n2", "connection refused")
    assert after(job, Accepted(StopAt("n1"), at(10))).status is JobStatus.REJECTED


def test_of_two_unreachable_nodes_one_gives_the_reason_and_nothing_new_is_sent():
    job = claimed(a_job(roles=THREE))
    lost = [Lost(CreateAt(node), at(0), delivered=False) for node in ("n2", "n3")]
    job, requests = step(after(job, Accepted(CreateAt("n1"), at(0)), *lost), at(30))
    assert requests == [StopAt("n1")]
    assert job.ending.failure.node == "n2"
    assert [n.create.reason for n in job.nodes.values()] == ["", "PEER_UNREACHABLE", "PEER_UNREACHABLE"]


def test_a_create_on_its_way_is_waited_out_before_its_node_is_stopped():
    job = after(claimed(a_job()), Accepted(CreateAt("n1"), at(0)), Lost(CreateAt("n2"), at(1), delivered=False))
    job = claimed(job, 9)
    job, requests = step(job, at(10))
    assert job.ending is not None
    assert requests == [StopAt("n1")]
    assert StopAt("n2") not in due(job, 20.9)
    assert StopAt("n2") in due(job, 21)


@pytest.mark.parametrize(("delivered", "stops"), [(True, [StopAt("n2")]), (False, [])])
def test_a_node_is_stopped_only_where_the_create_may_have_arrived(delivered, stops):
    job = after(claimed(a_job()), Lost(CreateAt("n2"), at(1), delivered), Refused(CreateAt("n1"), NO, at(1)))
    assert due(job, 12) == stops


def test_a_first_create_that_may_have_arrived_is_not_forgotten_over_a_second_that_did_not():
    job = after(claimed(a_job()), Lost(CreateAt("n2"), at(1), delivered=True))
    job = after(claimed(job, 2), Lost(CreateAt("n2"), at(2), delivered=False), Refused(CreateAt("n1"), NO, at(2)))
    assert due(job, 14) == [StopAt("n2")]


def test_a_node_that_never_got_the_job_is_not_waited_for():
    job = after(claimed(a_job()), Lost(CreateAt("n2"), at(1), delivered=False), Refused(CreateAt("n1"), NO, at(1)))
    assert job.status is JobStatus.REJECTED
    assert next_due(job) is None


# ---------------------------------------------------------------- starting


def test_a_ready_job_is_started_once_at_every_node():
    job, requests = step(a_job(status=JobStatus.READY), at(0))
    assert requests == [StartAt("n1"), StartAt("n2")]
    job = after(job, Accepted(StartAt("n1"), at(1)))
    assert (job.status, due(job, 1)) == (JobStatus.READY, [])
    assert after(job, Accepted(StartAt("n2"), at(1))).status is JobStatus.RUNNING


def test_a_refused_start_stops_all_and_runs_nothing():
    job = claimed(a_job(status=JobStatus.READY, roles=THREE))
    job = after(
        job, Accepted(StartAt("n1"), at(1)), Refused(StartAt("n2"), NO, at(1)), Accepted(StartAt("n3"), at(1))
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
    job = after(job, Refused(StartAt("n2"), NO, at(1)), Refused(StartAt("n1"), Failure("TOO", "late"), at(2)))
    assert [(n.start.reason, n.start.message) for n in job.nodes.values()] == [
        ("TOO", "late"),
        ("BECAUSE", "of something"),
    ]
    assert job.ending.failure.node == "n2"


def test_a_lost_start_is_repeated():
    job = after(claimed(a_job(status=JobStatus.READY)), Lost(StartAt("n2"), at(1), delivered=True))
    assert due(job, 2) == [StartAt("n2")]


# ---------------------------------------------------------------- late, repeated, foreign


def test_a_report_that_is_late_repeated_or_out_of_order_changes_nothing_but_the_timeline():
    job = after(a_job("a -> b", JobStatus.RUNNING, a=RUNNING), heard(SUCCESS, "n2"))
    for status in TaskStatus:
        again = after(job, heard(status, "n2", seconds=2))
        assert same(again, job)
        if status is not SUCCESS:
            assert again.notes[-1].event == "late report ignored"


def test_no_report_changes_a_job_that_has_ended():
    job = answered(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopRequested("n1", at(1))), 1)
    for status in TaskStatus:
        late = after(job, heard(status, "n2", seconds=2, pushed=True))
        assert (late.status, late.outcome, late.tasks) == (job.status, job.outcome, job.tasks)


@pytest.mark.parametrize(
    "foreign",
    [
        TaskReported("task_x", "n2", "", FAILED, at(1)),
        TaskReported("task_a", "n9", "", FAILED, at(1)),
        TaskReported("task_a", "n2", "arbiter", FAILED, at(1)),
        TaskReported("task_b", "n2", "", SUCCESS, at(1)),
        TaskReported("task_b", "n2", "", FAILED, at(1)),
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
    job = after(job, *(Accepted(CreateAt(n), at(1)) for n in ("n1", "n2")))
    assert (job.status, job.tasks["a"].status) == (JobStatus.READY, READY)


@pytest.mark.parametrize("role", ["host", "host.0", ""])
def test_a_report_may_name_the_role_with_its_index_or_not_at_all(role):
    job = after(a_job(status=JobStatus.RUNNING, a=RUNNING), heard(SUCCESS, "n2", role=role))
    assert job.tasks["a"].nodes["n2"].roles == {"host": SUCCESS}


def test_a_call_that_was_accepted_is_not_taken_back_by_its_repeat():
    job = claimed(a_job(status=JobStatus.RUNNING))
    job = after(job, *(Accepted(StartTaskAt(n, "a"), at(1)) for n in ("n1", "n2")))
    for late in (
        Lost(StartTaskAt("n2", "a"), at(2), delivered=False),
        Lost(StartTaskAt("n2", "a"), at(2), delivered=True),
        Refused(StartTaskAt("n2", "a"), NO, at(2)),
        Refused(StartAt("n2"), NO, at(2)),
        Refused(CreateAt("n2"), NO, at(2)),
        Lost(CreateAt("n2"), at(2), delivered=False),
    ):
        assert same(after(job, late), job)


def test_not_knowing_a_task_counts_only_as_an_answer_to_the_question():
    job = claimed(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}))
    assert same(after(job, TaskUnknown(POLL, at(5))), job)


def test_the_loss_of_an_earlier_try_says_nothing_of_a_later_one():
    job = claimed(after(asked_after_a_lost_start(), TaskUnknown(POLL, at(13))), 13)
    late = Lost(StartTaskAt("n1", "a"), at(1), delivered=False)
    assert same(after(job, late), job)


def test_a_question_put_before_the_last_start_says_nothing_of_it():
    job = asked_after_a_lost_start()
    job = claimed(after(job, Lost(StartTaskAt("n1", "a"), at(12.5), delivered=False)), 13)
    assert job.tasks["a"].nodes["n1"].start.tries == 2
    assert same(after(job, TaskUnknown(POLL, at(12.6))), job)


def test_answers_to_what_was_never_asked_change_nothing():
    job = a_job(status=JobStatus.PENDING)
    for request in (CreateAt("n1"), StartAt("n1"), StartTaskAt("n1", "a"), POLL, StopAt("n1")):
        for event in (
            Accepted(request, at(1)),
            Refused(request, NO, at(1)),
            Lost(request, at(1), delivered=False),
        ):
            assert same(after(job, event), job)


def test_answers_of_a_node_that_was_taken_out_of_the_task_change_nothing():
    job = exclude(claimed(a_job(status=JobStatus.RUNNING)), StartTaskAt("n2", "a"), at(1))
    start, poll = StartTaskAt("n2", "a"), PollTaskAt("n2", "a", ("host",))
    for event in (
        Accepted(start, at(2)),
        Refused(start, NO, at(2)),
        Lost(start, at(2), delivered=True),
        Accepted(poll, at(2)),
        TaskUnknown(poll, at(2)),
    ):
        assert same(after(job, event), job)
    assert same(exclude(job, start, at(2)), job)


def test_a_node_that_accepts_after_all_is_stopped():
    job = claimed(a_job())
    job = after(job, Lost(CreateAt("n2"), at(0), delivered=False), Refused(CreateAt("n1"), NO, at(1)))
    assert job.status is JobStatus.REJECTED
    late = after(job, Accepted(CreateAt("n2"), at(2)))
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
                Accepted(request, at(seconds)),
                Accepted(request, at(seconds)),
                Refused(request, NO, at(seconds)),
                Lost(request, at(seconds), delivered=draw(st.booleans())),
                TaskUnknown(poll, at(seconds)),
                TaskReported(
                    f"task_{task}", node, draw(ROLES), draw(STATUSES), at(seconds), pushed=draw(st.booleans())
                ),
                TaskReported("task_x", "n9", "", draw(STATUSES), at(seconds)),
                StopRequested("n1", at(seconds)),
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
        job = after(new, *(Accepted(r, at(seconds)) for r in requests if not isinstance(r, PollTaskAt)))
