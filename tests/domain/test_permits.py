"""Permits: the jobs that they open, by scope, number of jobs and presented permits."""

from dataclasses import replace

import pytest

from gateway.domain.applications import (
    APPROVED,
    Application,
    Kind,
    record_decision,
    requested_scope,
    shown_scope,
)
from gateway.domain.permit_scope import (
    UNLIMITED,
    Scope,
    Use,
    beyond,
    missing_scope,
    narrow,
    read_scope,
)
from gateway.domain.permits import Finding, Holding, JobPermits, covering_permit, decide
from tests.domain.test_applications import NOW, an_application

PARTNER = "B"
OTHER_PARTNER = "C"
USE = Use(PARTNER, "project-1", "bank/psi")


@pytest.mark.parametrize(
    ("auth_scope", "missing"),
    [
        ({}, ""),
        ({"PROJECT": []}, ""),
        ({"NODE": ["B"]}, ""),
        ({"PROJECT": ["project-1"]}, ""),
        ({"PROJECT": ["project-2", "project-1"]}, ""),
        ({"COMPONENT": ["bank/psi"]}, ""),
        ({"NODE": ["B"], "PROJECT": ["project-1"], "COMPONENT": ["bank/psi"]}, ""),
        ({"NODE": ["C"]}, "NODE B"),
        ({"PROJECT": ["project-2"]}, "PROJECT project-1"),
        ({"PROJECT": ["project"]}, "PROJECT project-1"),
        ({"COMPONENT": ["bank/lr"]}, "COMPONENT bank/psi"),
        ({"COMPONENT": ["psi"]}, "COMPONENT bank/psi"),
        ({"PROJECT": ["project-1"], "COMPONENT": ["bank/lr"]}, "COMPONENT bank/psi"),
        ({"PROJECT": ["project-2"], "COMPONENT": ["bank/psi"]}, "PROJECT project-1"),
        (
            {"PROJECT": ["project-2"], "COMPONENT": ["bank/lr"]},
            "PROJECT project-1, COMPONENT bank/psi",
        ),
    ],
)
def test_a_scope_covers_a_use_that_satisfies_each_of_its_keys(auth_scope, missing):
    assert str(missing_scope(read_scope(auth_scope), USE)) == missing


@pytest.mark.parametrize(
    ("requested", "limits", "excess", "approved"),
    [
        ({}, {}, "", ""),
        ({}, {"PROJECT": ["a"]}, "", "PROJECT a"),
        ({"PROJECT": ["a", "b"]}, {}, "", "PROJECT a b"),
        ({"PROJECT": ["a", "b"]}, {"PROJECT": ["b"]}, "", "PROJECT b"),
        ({"PROJECT": ["a"]}, {"COMPONENT": ["v/c"]}, "", "PROJECT a, COMPONENT v/c"),
        ({"PROJECT": ["a"]}, {"PROJECT": ["a", "b"]}, "PROJECT b", "PROJECT a b"),
        ({"NODE": ["N"], "PROJECT": ["a"]}, {"NODE": ["M"]}, "NODE M", "NODE M, PROJECT a"),
    ],
)
def test_an_approval_narrows_a_scope_and_never_widens_it(requested, limits, excess, approved):
    scopes = read_scope(requested), read_scope(limits)

    assert str(beyond(*scopes)) == excess
    assert str(narrow(*scopes)) == approved


def test_a_job_without_a_project_is_outside_every_project():
    scope = Scope(projects=("project-1",))

    assert str(missing_scope(scope, Use(PARTNER, ""))) == "PROJECT (none)"


def a_permit(number: int = 1, **changes: object) -> Application:
    """Build a permit in force, which the partner presents by the digest ``permit-<number>``."""
    return replace(
        an_application(status=APPROVED, digest=f"permit-{number}"),
        number=number,
        **changes,
    )


FOR_PROJECT_1 = Scope(projects=("project-1",))
FOR_PROJECT_2 = Scope(projects=("project-2",))
UNUSED = a_permit()
USED_UP = a_permit(most_jobs=2, jobs=2)
OUTSIDE = a_permit(scope=FOR_PROJECT_2)


@pytest.mark.parametrize(
    ("permits", "counted", "is_presented", "finding"),
    [
        ([], {}, False, Finding.MISSING),
        ([UNUSED], {}, True, Finding.ALLOWED),
        ([UNUSED], {}, False, Finding.MISSING),
        ([UNUSED], {1: True}, False, Finding.ALLOWED),
        ([UNUSED], {1: False}, False, Finding.MISSING),
        ([USED_UP], {}, True, Finding.USED_UP),
        ([USED_UP], {1: True}, False, Finding.ALLOWED),
        ([OUTSIDE], {}, True, Finding.OUT_OF_SCOPE),
        ([OUTSIDE], {1: True}, True, Finding.OUT_OF_SCOPE),
        ([a_permit(scope=FOR_PROJECT_1)], {}, True, Finding.ALLOWED),
        ([UNUSED, a_permit(2, scope=FOR_PROJECT_2)], {}, True, Finding.ALLOWED),
        ([UNUSED, a_permit(2, most_jobs=1, jobs=1)], {}, True, Finding.USED_UP),
        ([UNUSED, a_permit(2, most_jobs=1, jobs=1)], {1: True}, True, Finding.ALLOWED),
    ],
)
def test_a_required_permit_has_to_cover_the_job_and_be_presented(
    permits, counted, is_presented, finding
):
    tokens = [permit.digest for permit in permits if is_presented]
    holdings = [Holding(USE, permits)] if permits else []

    decision = decide(holdings, JobPermits(PARTNER, tokens, counted), is_required=True)

    assert decision.finding is finding


@pytest.mark.parametrize(
    ("permits", "finding"),
    [
        ([UNUSED], Finding.ALLOWED),
        ([USED_UP], Finding.USED_UP),
        ([OUTSIDE], Finding.OUT_OF_SCOPE),
    ],
)
def test_limits_of_a_permit_hold_where_none_is_required(permits, finding):
    job = JobPermits(PARTNER, (), {})

    assert decide([Holding(USE, permits)], job, is_required=False).finding is finding
    assert decide([], job, is_required=False).finding is Finding.ALLOWED


def test_a_permit_presented_by_another_node_does_not_count():
    job = JobPermits(OTHER_PARTNER, [UNUSED.digest], {})

    assert decide([Holding(USE, [UNUSED])], job, is_required=True).finding is Finding.MISSING


def test_the_permits_of_every_partner_of_a_job_have_to_cover_it():
    holdings = [
        Holding(USE, [UNUSED]),
        Holding(Use(OTHER_PARTNER, "project-1", "bank/psi"), [OUTSIDE]),
    ]

    decision = decide(holdings, JobPermits(PARTNER, [UNUSED.digest], {}), is_required=True)

    assert decision.finding is Finding.OUT_OF_SCOPE
    assert decision.holding == holdings[1]


def test_the_permit_that_counts_a_job_precedes_newer_ones():
    holding = Holding(USE, [UNUSED, a_permit(2), a_permit(3, scope=FOR_PROJECT_2)])

    assert covering_permit(holding, ()) == a_permit(2)
    assert covering_permit(holding, {1: True}) == UNUSED


def test_an_approval_binds_the_permit_to_the_requested_scope():
    auth_scope = {"PROJECT": ["project-1"]}
    application = an_application(request={"dataset_id": "ns#t", "auth_scope": auth_scope})

    approved = record_decision(application, True, "ann", "", NOW, "token", "digest")

    assert application.scope == UNLIMITED
    assert requested_scope(application) == shown_scope(application) == FOR_PROJECT_1
    assert approved.scope == shown_scope(approved) == FOR_PROJECT_1


def test_a_permit_of_an_earlier_version_stays_unlimited():
    request = {"auth_scope": {"PROJECT": ["project-1"]}}

    assert shown_scope(a_permit(request=request)) == UNLIMITED
    assert requested_scope(a_permit(kind=Kind.FLOW, request=request)) == UNLIMITED
