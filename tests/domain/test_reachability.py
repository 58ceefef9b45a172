"""When a silent node counts as unreachable, and when the scheduling node gives it up."""

from dataclasses import replace
from datetime import datetime

import pytest

from gateway.domain.job import Job
from gateway.domain.scheduling.messages import CreateAt, PollTaskAt
from gateway.domain.scheduling.reachability import (
    expects_response,
    forget_idle_silence,
    gives_up_at,
    mark_reached,
)
from gateway.domain.spec import Call, CallState
from gateway.domain.timeouts import Timing
from tests.builders import at
from tests.domain.scheduled_jobs import BOTH_RUN, NEW_JOB, ready_job

TIMING = Timing(
    create_deadline=10,
    start_deadline=60,
    unreachable_limit=600,
)


def silent_since(
    job: Job,
    since: datetime,
    **calls: Call,
) -> Job:
    """Return the job whose node n2 is silent, with other records of its calls."""
    return job.with_node(replace(job.nodes["n2"], unreachable_since=since, **calls))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (NEW_JOB, at(10)),
        (ready_job(), at(605)),
        (BOTH_RUN, at(605)),
    ],
    ids=["created", "not yet started", "running"],
)
def test_a_silent_node_is_given_up_after_the_limit_of_the_state(job, expected):
    silent_job = silent_since(job, at(5))

    assert gives_up_at(silent_job, silent_job.nodes["n2"], TIMING) == expected


def test_a_node_that_is_silent_while_the_job_starts_is_given_up_sooner():
    job = silent_since(ready_job(), at(5), start=Call(CallState.LOST, tries=1))

    assert gives_up_at(job, job.nodes["n2"], TIMING) == at(65)


@pytest.mark.parametrize("limit", [3, 120], ids=["shorter", "longer"])
def test_the_limit_of_the_route_governs_all_tries_of_a_call(limit):
    new_job = silent_since(NEW_JOB, at(5))
    starting_job = silent_since(ready_job(), at(5), start=Call(CallState.LOST, tries=1))
    running_job = silent_since(BOTH_RUN, at(5))

    def given_up(job):
        return gives_up_at(job, replace(job.nodes["n2"], call_limit=limit), TIMING)

    assert given_up(new_job) == at(limit)
    assert given_up(starting_job) == at(5 + limit)
    assert given_up(running_job) == at(605)


def test_a_node_that_has_answered_the_creation_is_not_given_up():
    job = silent_since(NEW_JOB, at(5), create=Call(CallState.OK, tries=1))

    assert gives_up_at(job, job.nodes["n2"], TIMING) is None


def test_a_node_that_responds_is_not_given_up():
    job = mark_reached(silent_since(BOTH_RUN, at(5)), "n2")

    assert gives_up_at(job, job.nodes["n2"], TIMING) is None


def test_a_silence_is_forgotten_only_without_a_request_to_answer():
    job = silent_since(BOTH_RUN, at(5))
    node = job.nodes["n2"]
    poll = PollTaskAt("n2", "a", ("host",))

    assert expects_response(job, node, [poll])
    assert forget_idle_silence(job, node, [poll]) is job
    idle_job = forget_idle_silence(job, node, [CreateAt("n1")])
    assert idle_job.nodes["n2"].unreachable_since is None
