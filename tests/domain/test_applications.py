"""Applications for data and models: their states, whatever two nodes do in whatever order."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import applications
from gateway.domain.applications import (
    APPLIED,
    APPROVED,
    MOVES,
    REJECTED,
    TERMINATED,
    Application,
    Kind,
    Side,
    jobs_in_words,
    next_due,
)
from gateway.domain.approval import AuditStatus
from gateway.domain.states import IllegalMove

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ONE_DAY = timedelta(days=1)
STEPS = st.sampled_from(
    ["approve", "reject", "terminate", "expire", "apply again", "deliver", "postpone", "confirm"]
)


def an_application(
    side: Side = Side.THEIRS,
    status: AuditStatus = APPLIED,
    **changes: Any,
) -> Application:
    """Build a partner's application for a dataset of this node; ``Side.MINE``: the reverse."""
    application = applications.new_application(
        Kind.DATASET, "a1", "B", side, "ns#t", {"dataset_id": "ns#t"}, NOW
    )
    return replace(application, status=status, **changes)


def approve(application: Application, now: datetime) -> Application:
    return applications.record_decision(application, True, "ann", "", now, "token", "digest")


def take_step(
    application: Application,
    step: str,
    now: datetime,
) -> Application:
    """Return the application after a step; raises `IllegalMove`."""
    match step:
        case "approve":
            return approve(application, now)
        case "reject":
            return applications.record_decision(
                application, False, "ann", "", now, "token", "digest"
            )
        case "terminate":
            return applications.terminate(
                application,
                "ann",
                "",
                now,
                tell=True,
            )
        case "expire":
            return applications.ended_if_expired(application, now)
        case "apply again":
            return applications.apply_again(application, an_application(application.side))
        case "deliver":
            return applications.delivered(application, now)
        case "postpone":
            return applications.postpone(application, now)
        case _:
            return applications.confirmed(
                application,
                APPROVED,
                now,
                token="token",
            )


@given(
    st.sampled_from(Side),
    st.lists(STEPS, max_size=8),
)
def test_a_state_follows_only_where_the_table_has_it(side: Side, steps: list[str]):
    application = an_application(side, expires_at=NOW + 2 * ONE_DAY)
    for day, step in enumerate(steps):
        now = NOW + day * ONE_DAY
        status = application.status
        try:
            application = take_step(application, step, now)
        except IllegalMove:
            continue

        assert application.status is status or application.status in MOVES[status]
        if application.holds(now):
            assert application.status is APPROVED
        if application.notice:
            assert next_due(application) is not None
        elif side is Side.THEIRS:
            assert not application.token, "the owner keeps a permit only until its delivery"


@pytest.mark.parametrize(
    ("status", "final_status"),
    [
        (APPLIED, TERMINATED),
        (APPROVED, TERMINATED),
        (REJECTED, REJECTED),
        (TERMINATED, TERMINATED),
    ],
)
def test_an_end_terminates_all_but_a_rejected_application(
    status: AuditStatus, final_status: AuditStatus
):
    application = an_application(status=status)

    assert applications.terminate(application, "B", "", NOW, tell=False).status is final_status


NEW_REQUEST = an_application(request={"dataset_id": "other"})


def test_a_partner_may_apply_again_after_a_rejection():
    rejected = an_application(status=REJECTED)

    assert applications.apply_again(rejected, NEW_REQUEST).status is APPLIED


@pytest.mark.parametrize("status", [APPLIED, APPROVED, TERMINATED])
def test_a_partner_may_not_apply_again_in_any_other_state(status: AuditStatus):
    with pytest.raises(IllegalMove):
        applications.apply_again(an_application(status=status), NEW_REQUEST)


def test_a_repeated_decision_changes_nothing():
    application = an_application(Side.MINE)
    confirmed = applications.confirmed(
        application,
        APPROVED,
        NOW,
        token="t",
    )

    assert applications.confirmed(confirmed, APPROVED, NOW + ONE_DAY, token="t") == confirmed


def test_a_contrary_decision_is_refused():
    confirmed = applications.confirmed(
        an_application(Side.MINE),
        APPROVED,
        NOW,
        token="t",
    )

    with pytest.raises(IllegalMove):
        applications.confirmed(confirmed, REJECTED, NOW)


def test_a_partner_does_not_decide_on_its_own_application():
    with pytest.raises(IllegalMove):
        applications.confirmed(an_application(Side.THEIRS), APPROVED, NOW)


def test_the_pauses_between_deliveries_grow_up_to_an_hour():
    application = approve(an_application(), NOW)
    pauses = []
    for _ in range(20):
        application = applications.postpone(application, NOW)
        assert application.due_at is not None
        pauses.append(application.due_at - NOW)

    assert pauses[0] == timedelta(seconds=15)
    assert pauses == sorted(pauses)
    assert pauses[-1] == timedelta(hours=1)


def test_an_approval_expires_without_a_message():
    expires_at = NOW + ONE_DAY
    approved = an_application(status=APPROVED, expires_at=expires_at)
    assert next_due(approved) == expires_at
    assert applications.ended_if_expired(approved, NOW) == approved

    expired = applications.ended_if_expired(approved, expires_at)

    assert (expired.status, expired.reason, expired.notice) == (TERMINATED, "expired", "")
    assert [approved.has_expired(time) for time in (NOW, expires_at)] == [False, True]
    assert expired.has_expired(expires_at)
    assert not applications.terminate(approved, "ann", "", NOW, tell=False).has_expired(NOW)


@pytest.mark.parametrize(
    ("side", "status", "asked", "limit", "words"),
    [
        (Side.THEIRS, APPLIED, 10, None, "asked: 10"),
        (Side.THEIRS, APPROVED, 10, 5, "5 of 5 used (asked: 10)"),
        (Side.THEIRS, APPROVED, 5, 5, "5 of 5 used"),
        (Side.THEIRS, APPROVED, 0, None, "5 of any number used"),
        (Side.MINE, APPROVED, 10, 5, "5 of 5 used (asked: 10)"),
    ],
)
def test_numbers_of_jobs_are_shown_as_asked_approved_and_used(side, status, asked, limit, words):
    application = an_application(
        side,
        status,
        request={"times_limit": asked},
        most_jobs=limit,
        jobs=5,
    )
    assert jobs_in_words(application) == words
