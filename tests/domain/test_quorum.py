"""Jobs that can do without some parties, or in spite of some failures, and jobs that are suspended."""

from typing import Any

import pytest

from gateway.domain import quorum, validation
from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Acceptance, Job
from gateway.domain.scheduling.machine import apply, next_due, plan, step
from gateway.domain.scheduling.messages import (
    Accepted,
    CreateAt,
    Lost,
    PollTaskAt,
    Refused,
    ReserveAt,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    StopTaskAt,
    SuspendRequested,
    TaskReported,
)
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at
from tests.domain.scheduled import after, answered, claimed, due

NO = Failure("BECAUSE", "of something")
HOSTS = {"guest": ("n1",), "host": ("n2", "n3", "n4")}


def spec(dag: str = "a", roles: Any = HOSTS, **common: Any) -> JobSpec:
    return a_spec(dag, roles, job_params={"common": common})


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("common", "wrong"),
    [
        ({}, []),
        ({"min_parties": {"host": 2}, "required_parties": ["guest.0"], "tolerable_tasks": ["a"]}, []),
        ({"min_parties": None, "required_parties": None, "tolerable_tasks": None}, []),
        ({"min_parties": {"host": 4}}, ["min_parties.host"]),
        ({"min_parties": {"host": -1, "arbiter": 1}}, ["min_parties.host", "min_parties.arbiter"]),
        ({"min_parties": {"host": True}}, ["min_parties.host"]),
        ({"min_parties": {"host": 1.5}}, ["min_parties.host"]),
        ({"min_parties": 2}, ["min_parties"]),
        ({"required_parties": "guest.0"}, ["required_parties"]),
        ({"required_parties": ["guest.0", "host.3", 1]}, ["required_parties[1]", "required_parties[2]"]),
        ({"tolerable_tasks": ["a", "z"]}, ["tolerable_tasks[1]"]),
        ({"min_parties": [], "tolerable_tasks": {}}, ["min_parties", "tolerable_tasks"]),
    ],
)
def test_every_mistake_is_told_with_its_path(common: dict[str, Any], wrong: list[str]):
    found, _ = validation.check(spec(**common))
    assert [p.path for p in found] == [f"config.job_params.common.{w}" for w in wrong]


@pytest.mark.parametrize(
    ("common", "gone", "can"),
    [
        ({}, ["n4"], False),
        ({"min_parties": {"host": 2}}, ["n4"], True),
        ({"min_parties": {"host": 2}}, ["n3", "n4"], False),
        ({"min_parties": {"host": 0}}, ["n2", "n3", "n4"], True),
        ({"min_parties": {"host": 0, "guest": 0}}, ["n1"], False),  # the initiator's
        ({"min_parties": {"host": 2}, "required_parties": ["host.1"]}, ["n3"], False),
        ({"min_parties": {"host": 2}, "required_parties": ["host.1"]}, ["n4"], True),
        ({"required_parties": ["host.0"]}, ["n3", "n4"], True),
        ({"required_parties": ["host.0"]}, ["n2"], False),
        ({"required_parties": ["guest.0"]}, ["n4"], False),  # of hosts it says nothing
    ],
)
def test_who_can_be_spared(common: dict[str, Any], gone: list[str], can: bool):
    assert quorum.can_spare(spec(**common), gone) is can


# ---------------------------------------------------------------- optional parties


def created(job: Job, *nodes: str, seconds: float = 0.1) -> Job:
    return after(claimed(job), *(Accepted(CreateAt(n), at(seconds)) for n in nodes))


TWO_OF_THREE = {"min_parties": {"host": 2}}


def test_a_job_starts_without_an_optional_party_that_refuses_it():
    job = after(created(a_job(spec=spec(**TWO_OF_THREE)), "n1", "n2", "n3"), Refused(CreateAt("n4"), NO, at(1)))
    assert job.status is JobStatus.READY and job.ending is None
    assert quorum.left_out(job) == ("host.2",)
    assert list(job.tasks["a"].nodes) == ["n1", "n2", "n3"]
    assert due(job, 1) == [StartAt("n1"), StartAt("n2"), StartAt("n3")]
    states = {d.party: (d.state, d.excluded, d.reason) for d in quorum.details(job)}
    assert states["host.2"] == ("error", True, "BECAUSE") and states["host.1"] == ("ok", False, "")


def test_a_missing_reply_counts_as_not_ok_and_is_shown_as_unknown():
    job = created(a_job(spec=spec(**TWO_OF_THREE)), "n1", "n2", "n3")
    job = apply(job, Lost(CreateAt("n4"), at(3), delivered=True, message="no answer"))
    assert job.status is JobStatus.PENDING
    job, requests = step(job, at(11))
    assert job.status is JobStatus.READY
    shown = next(d for d in quorum.details(job) if d.party == "host.2")
    assert (shown.state, shown.excluded, shown.reason) == ("unknown", True, "PEER_UNREACHABLE")
    job, requests = step(job, at(40))
    assert StopAt("n4") in requests  # the creation may have arrived
    job = after(job, Accepted(StopAt("n4"), at(41)))
    assert StopAt("n4") not in plan(job, at(1000))


def test_a_node_that_is_silent_when_it_is_to_hold_is_not_called_ok():
    job = a_job(spec=spec(roles={"guest": ("n1",), "host": ("n2",)}))
    job = after(claimed(job), *(Accepted(CreateAt(n), at(0.1), Acceptance(holds=True)) for n in ("n1", "n2")))
    assert due(job, 0.2) == [ReserveAt("n1")]
    job = after(claimed(job, 0.2), Lost(ReserveAt("n1"), at(3), delivered=False, message="cannot connect"))
    job, _ = step(job, at(700))
    assert job.ending is not None and job.ending.failure is not None
    assert job.ending.failure.reason == "FAILED_TO_RUN"
    assert "n1 unknown: PEER_UNREACHABLE cannot connect" in job.ending.failure.message


def test_an_optional_party_that_accepts_after_all_is_stopped():
    job = created(a_job(spec=spec(**TWO_OF_THREE)), "n1", "n2", "n3")
    job, _ = step(apply(job, Lost(CreateAt("n4"), at(3), delivered=False)), at(11))
    job = apply(job, Accepted(CreateAt("n4"), at(12)))
    assert StopAt("n4") in plan(job, at(30)) and job.nodes["n4"].excluded is not None


def test_one_missing_too_many_ends_the_job_with_its_reason():
    job = created(a_job(spec=spec(**TWO_OF_THREE)), "n1", "n2")
    job = after(job, Refused(CreateAt("n4"), NO, at(1)), Refused(CreateAt("n3"), NO, at(1)))
    assert (job.ending.outcome, job.ending.failure.reason) == (Outcome.REJECTED, "BECAUSE")


def test_a_party_that_refuses_the_start_is_left_out_and_the_others_are_told_again():
    job = created(a_job(spec=spec(**TWO_OF_THREE)), "n1", "n2", "n3", "n4")
    job = claimed(job, 1)
    job = after(job, *(Accepted(StartAt(n), at(2)) for n in ("n1", "n2")), Refused(StartAt("n4"), NO, at(2)))
    assert job.status is JobStatus.READY and quorum.left_out(job) == ("host.2",)
    job, requests = step(job, at(2))
    assert {StartAt("n1"), StartAt("n2")} <= set(requests) and StartTaskAt("n1", "a") not in requests
    late = apply(job, Accepted(StartAt("n3"), at(2)))  # to the start before
    job = after(late, *(Accepted(StartAt(n), at(3)) for n in ("n1", "n2", "n3")))
    assert job.status is JobStatus.RUNNING
    assert job.nodes["n4"].stop.tries == 1


def test_a_party_that_ignores_the_start_is_left_out_or_ends_the_job():
    for common, outcome in ((TWO_OF_THREE, None), ({}, Outcome.FAILED)):
        job = created(a_job(spec=spec(**common)), "n1", "n2", "n3", "n4")
        job = claimed(job, 1)
        job = after(job, *(Accepted(StartAt(n), at(2)) for n in ("n1", "n2", "n3")))
        job = apply(job, Lost(StartAt("n4"), at(11), delivered=True, message="silence"))
        assert job.ending is None and job.status is JobStatus.READY
        job = claimed(job, 11 + Timing().start_deadline)
        assert (job.ending.outcome if job.ending else None) is outcome
        if job.ending:
            assert job.ending.failure.reason == "FAILED_TO_RUN" and "n4 unknown" in job.ending.failure.message
            assert not any(isinstance(c, StartTaskAt) for c in plan(job, at(100)))


def test_somebody_at_an_optional_party_refuses():
    job = created(a_job(spec=spec(**TWO_OF_THREE)), "n1", "n2", "n3")
    job = after(job, Accepted(CreateAt("n4"), at(1), Acceptance(waits=True, within=60.0)))
    assert job.status is JobStatus.PENDING
    job = apply(job, ApprovalReported("n4", at(5), NO))
    assert job.status is JobStatus.READY and quorum.left_out(job) == ("host.2",)


# ---------------------------------------------------------------- tolerable tasks


def failed(job: Job, task: str, seconds: float = 5.0) -> Job:
    why = Failure("EXIT_1", "exit code 1", "n2", "host", task, 1)
    job = claimed(job, seconds)
    job = after(job, *(Accepted(StartTaskAt(n, task), at(seconds)) for n in ("n1", "n2")))
    return apply(job, TaskReported(f"task_{task}", "n2", "host", TaskStatus.FAILED, at(seconds + 1), why))


def succeed(job: Job, task: str, seconds: float) -> Job:
    for node, role in (("n1", "guest"), ("n2", "host")):
        job = after(claimed(job, seconds), Accepted(StartTaskAt(node, task), at(seconds)))
        job = apply(job, TaskReported(f"task_{task}", node, role, TaskStatus.SUCCESS, at(seconds + 1)))
    return job


def running(dag: str, **common: Any) -> Job:
    roles = {"guest": ("n1",), "host": ("n2",)}
    return a_job(status=JobStatus.RUNNING, spec=spec(dag, roles, **common))


def test_a_tolerable_failure_takes_only_what_follows_it():
    job = failed(running("a -> b -> c; d", tolerable_tasks=["a"]), "a")
    assert job.ending is None and job.tasks["a"].status is TaskStatus.FAILED
    job, requests = step(job, at(7))
    assert StopTaskAt("n1", "a") in requests  # its other part
    assert not any(isinstance(c, StartTaskAt) and c.task in "bc" for c in plan(job, at(100)))
    job = succeed(job, "d", 8)
    assert (job.ending.outcome, job.ending.failure) == (Outcome.SUCCEEDED, None)
    assert quorum.failed_tasks(job) == ["a"]
    assert job.tasks["b"].status is TaskStatus.READY and job.tasks["b"].ending.failure.reason == "UPSTREAM_FAILED"
    job = answered(claimed(job, 10), 10)
    job = after(job, *(Accepted(StopAt(n), at(11)) for n in ("n1", "n2")))
    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)


def test_another_failure_still_fails_the_job():
    job = failed(running("a; d", tolerable_tasks=["a"]), "a")
    job = failed(job, "d", 9)
    assert (job.ending.outcome, job.ending.failure.task) == (Outcome.FAILED, "d")
    assert failed(running("a; d"), "a").ending.outcome is Outcome.FAILED


# ---------------------------------------------------------------- suspend and resume


def test_a_suspended_job_lets_its_tasks_end_and_starts_no_other():
    job = running("a -> b; c")
    job = after(claimed(job, 1), *(Accepted(StartTaskAt(n, t), at(1)) for n in ("n1", "n2") for t in "ac"))
    job = apply(job, SuspendRequested("n2", at(2)))
    assert (job.status, job.suspended.by) == (JobStatus.RUNNING, "n2")
    assert any(isinstance(c, PollTaskAt) for c in plan(job, at(10)))
    for node, role in (("n1", "guest"), ("n2", "host")):
        job = apply(job, TaskReported("task_a", node, role, TaskStatus.SUCCESS, at(3)))
    assert not any(isinstance(c, StartTaskAt) for c in plan(job, at(1000)))
    assert apply(job, SuspendRequested("n1", at(4))).suspended == job.suspended
    job = apply(job, SuspendRequested("n1", at(5), on=False))
    assert {StartTaskAt("n1", "b"), StartTaskAt("n2", "b")} <= set(plan(job, at(5)))


def test_a_task_of_which_one_part_has_started_is_not_torn_apart():
    job = claimed(running("a"), 1)
    job = after(job, Accepted(StartTaskAt("n1", "a"), at(1)), Lost(StartTaskAt("n2", "a"), at(1), delivered=False))
    job = apply(job, SuspendRequested("n1", at(2)))
    assert StartTaskAt("n2", "a") in plan(job, at(5))


def test_a_suspended_job_can_be_stopped_and_an_ended_one_not_suspended():
    job = apply(running("a"), SuspendRequested("n1", at(1)))
    job = apply(job, StopRequested("n1", at(2)))
    assert job.ending.outcome is Outcome.STOPPED and next_due(job) is not None
    assert apply(job, SuspendRequested("n1", at(3), on=False)) == job
