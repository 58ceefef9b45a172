"""Which permissions count as near their end."""

from datetime import timedelta

import pytest

from gateway.domain.applications import APPROVED
from gateway.domain.expiring import SOON, expiring_grants, expiring_permits
from tests.domain.test_applications import an_application
from tests.domain.test_sharing import NOW, a_grant

SOONER = NOW + SOON - timedelta(seconds=1)
LATER = NOW + SOON
PAST = NOW - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("changes", "is_listed"),
    [
        (
            {},
            False,
        ),
        (
            {"expires_at": SOONER},
            True,
        ),
        (
            {"expires_at": LATER},
            False,
        ),
        (
            {"expires_at": PAST},
            False,
        ),
        (
            {"expires_at": SOONER, "revoked_at": PAST},
            False,
        ),
    ],
)
def test_a_grant_in_force_is_listed_in_its_last_30_days(changes, is_listed):
    grant = a_grant(**changes)

    expiring = list(expiring_grants([grant], NOW))

    assert bool(expiring) is is_listed


@pytest.mark.parametrize(
    ("changes", "jobs_left"),
    [
        (
            {},
            [],
        ),
        (
            {"most_jobs": 20, "jobs": 17},
            [],
        ),
        (
            {"most_jobs": 20, "jobs": 18},
            [2],
        ),
        (
            {"most_jobs": 5, "jobs": 4},
            [],
        ),
        (
            {"most_jobs": 5, "jobs": 5},
            [0],
        ),
        (
            {"expires_at": SOONER},
            [None],
        ),
        (
            {"expires_at": PAST, "most_jobs": 5, "jobs": 5},
            [],
        ),
    ],
)
def test_a_permit_is_listed_with_its_last_tenth_of_jobs(changes, jobs_left):
    permit = an_application(status=APPROVED, **changes)

    expiring = list(expiring_permits([permit], NOW))

    assert [entry.jobs_left for entry in expiring] == jobs_left


def test_an_application_without_approval_is_not_listed():
    assert list(expiring_permits([an_application(expires_at=SOONER)], NOW)) == []
