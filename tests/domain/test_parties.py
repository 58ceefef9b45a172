"""Parties that a job can spare, and the state of each party."""

from typing import Any

import pytest

from gateway.domain import quorum
from gateway.domain.job import Job
from gateway.domain.scheduling.messages import StartTaskAt
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import Timing
from tests.builders import a_job, at
from tests.domain.calls import C1, C2, C4, S3, S4
from tests.domain.new_jobs import (
    NEEDS_RESERVATION,
    REFUSED_BY_PERSON,
    RESERVE_1,
    START_UNDER_WAY,
    THREE_CREATED,
    job_with_optional_host,
    spec_with,
)
from tests.domain.script import accept, due_commands, lose_request, lose_response, play, refuse

TWO_HOSTS = {"min_parties": {"host": 2}}


@pytest.mark.parametrize(
    ("common", "excluded", "can_spare"),
    [
        ({}, ["n4"], False),
        (TWO_HOSTS, ["n4"], True),
        (TWO_HOSTS, ["n3", "n4"], False),
        ({"min_parties": {"host": 0}}, ["n2", "n3", "n4"], True),
        ({"min_parties": {"host": 0, "guest": 0}}, ["n1"], False),
        (TWO_HOSTS | {"required_parties": ["host.1"]}, ["n3"], False),
        (TWO_HOSTS | {"required_parties": ["host.1"]}, ["n4"], True),
        ({"required_parties": ["host.0"]}, ["n3", "n4"], True),
        ({"required_parties": ["host.0"]}, ["n2"], False),
        ({"required_parties": ["guest.0"]}, ["n4"], False),
    ],
    ids=[
        "every party is needed by default",
        "one host more than needed",
        "one host too few",
        "no host is needed",
        "the initiator is always needed",
        "a required host",
        "a host that is not required",
        "hosts beside the required one",
        "the only required host",
        "a required guest says nothing of hosts",
    ],
)
def test_a_job_spares_only_the_parties_that_it_does_not_need(
    common: dict[str, Any],
    excluded: list[str],
    can_spare: bool,
):
    assert quorum.can_spare(spec_with(**common), excluded) is can_spare


def test_a_job_spares_a_node_if_others_play_every_task():
    roles = {
        "guest": ("n1",),
        "host": ("n2",),
    }
    job = a_job(spec=spec_with("a; b", roles, min_parties={"host": 0}))

    assert quorum.exclude(job, "n2", REFUSED_BY_PERSON, at(1)) is not None


def test_a_job_does_not_run_without_the_only_node_of_a_task():
    roles = {
        "guest": ("n1",),
        "host": ("n2",),
    }
    spec = spec_with(
        "a; b",
        roles,
        min_parties={"host": 0},
    )
    job = a_job(
        spec=spec,
        task_roles={"b": ["host"]},
    )

    assert quorum.exclude(job, "n2", REFUSED_BY_PERSON, at(1)) is None


def party_state(
    job: Job,
    party: str = "host.2",
) -> tuple[str, bool, str]:
    """Return the shown state of a party, whether it is excluded, and the reason."""
    [detail] = [detail for detail in quorum.details(job) if detail.party == party]
    return detail.state, detail.excluded, detail.reason


def test_a_party_that_refuses_is_shown_as_excluded_with_the_reason():
    job = play(job_with_optional_host(), *THREE_CREATED, refuse(C4, 1))

    assert party_state(job, "host.2") == ("error", True, "BECAUSE")
    assert party_state(job, "host.1") == ("ok", False, "")
    assert quorum.excluded_parties(job) == ("host.2",)
    assert list(job.tasks["a"].nodes) == ["n1", "n2", "n3"]


def test_a_missing_reply_counts_as_not_ok_and_is_shown_as_unknown():
    job = play(job_with_optional_host(), *THREE_CREATED, lose_response(C4, 3))
    assert job.status is JobStatus.PENDING
    assert party_state(job) == ("unknown", False, "PEER_UNREACHABLE")

    job = play(job, 11)

    assert party_state(job) == ("unknown", True, "PEER_UNREACHABLE")


def test_a_node_that_does_not_answer_the_reservation_is_not_ok():
    job = play(
        a_job(),
        0,
        accept(C1, 0.1, NEEDS_RESERVATION),
        accept(C2, 0.1, NEEDS_RESERVATION),
        0.2,
        lose_request(RESERVE_1, 3, "cannot connect"),
        700,
    )

    assert job.ending is not None
    assert job.ending.failure is not None
    assert job.ending.failure.reason == "FAILED_TO_RUN"
    assert "n1 unknown: PEER_UNREACHABLE cannot connect" in job.ending.failure.message


def job_with_ignored_start(**common: Any) -> Job:
    """Return a job that n4 has not started, which is not too late yet."""
    new_job = a_job(spec=spec_with(**common))
    job = play(new_job, *START_UNDER_WAY, accept(S3, 2), lose_response(S4, 11))
    assert job.ending is None
    assert job.status is JobStatus.READY
    return job


START_DEADLINE = 11 + Timing().start_deadline


def test_an_optional_party_that_ignores_the_start_is_spared():
    job = play(job_with_ignored_start(**TWO_HOSTS), START_DEADLINE)

    assert job.ending is None


def test_a_party_that_ignores_the_start_ends_the_job():
    job = play(job_with_ignored_start(), START_DEADLINE)

    assert job.ending.outcome is Outcome.FAILED
    assert job.ending.failure.reason == "FAILED_TO_RUN"
    assert "n4 unknown" in job.ending.failure.message
    requests = due_commands(job, 100)
    assert not [request for request in requests if isinstance(request, StartTaskAt)]
