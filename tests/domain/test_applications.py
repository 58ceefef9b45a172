"""What becomes of applications, whatever two nodes do in whatever order."""

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
    next_due,
)
from gateway.domain.approval import AuditStatus
from gateway.domain.states import IllegalMove

NOW = datetime(2026, 11, 1, tzinfo=UTC)
STEPS = st.sampled_from(
    ["approve", "reject", "terminate", "expire", "again", "delivered", "later", "confirm"]
)


def an_application(
    side: Side = Side.THEIRS,
    status: AuditStatus = APPLIED,
    **more: Any,
) -> Application:
    made = applications.new_application(
        Kind.DATASET, "a1", "B", side, "ns#t", {"dataset_id": "ns#t"}, NOW
    )
    return replace(made, status=status, **more)


def taken(
    known: Application,
    step: str,
    now: datetime,
) -> Application:
    match step:
        case "approve" | "reject":
            return applications.record_decision(
                known, step == "approve", "ann", "", now, "token", "digest"
            )
        case "terminate":
            return applications.terminated(known, "ann", "", now, tell=True)
        case "expire":
            return applications.expired(known, now)
        case "again":
            return applications.again(known, an_application(known.side))
        case "delivered":
            return applications.delivered(known)
        case "later":
            return applications.later(known, now)
    return applications.confirmed(known, APPROVED, now, token="token")


@given(st.sampled_from(Side), st.lists(STEPS, max_size=8))
def test_a_state_follows_only_where_the_table_has_it(side: Side, steps: list[str]):
    known = an_application(side, expires_at=NOW + timedelta(days=2))
    for day, step in enumerate(steps):
        now = NOW + timedelta(days=day)
        before = known
        try:
            known = taken(known, step, now)
        except IllegalMove:
            continue
        assert known.status is before.status or known.status in MOVES[before.status]
        assert known.holds(now) <= (known.status is APPROVED)
        assert not known.notice or next_due(known) is not None
        if side is Side.THEIRS and not known.notice:
            assert not known.token, "the owner keeps a permit only until the partner has it"


@pytest.mark.parametrize(
    ("status", "ends"),
    [(APPLIED, TERMINATED), (APPROVED, TERMINATED), (REJECTED, REJECTED), (TERMINATED, TERMINATED)],
)
def test_what_was_rejected_stays_rejected_and_may_be_applied_for_again(
    status: AuditStatus, ends: AuditStatus
):
    known = an_application(status=status)
    assert applications.terminated(known, "B", "", NOW, tell=False).status is ends
    other = an_application(request={"dataset_id": "other"})
    if status is REJECTED:
        assert applications.again(known, other).status is APPLIED
    else:
        with pytest.raises(IllegalMove):
            applications.again(known, other)


def test_an_answer_that_comes_twice_is_one():
    mine = an_application(Side.MINE)
    once = applications.confirmed(mine, APPROVED, NOW, token="t")
    assert applications.confirmed(once, APPROVED, NOW + timedelta(days=1), token="t") == once
    with pytest.raises(IllegalMove):
        applications.confirmed(once, REJECTED, NOW)
    with pytest.raises(IllegalMove):
        applications.confirmed(an_application(Side.THEIRS), APPROVED, NOW)


def test_pauses_grow_up_to_an_hour():
    known = applications.record_decision(an_application(), True, "ann", "", NOW, "token", "digest")
    pauses = []
    for _ in range(20):
        known = applications.later(known, NOW)
        pauses.append((known.due_at or NOW) - NOW)
    assert (
        pauses[0] == timedelta(seconds=15)
        and pauses == sorted(pauses)
        and pauses[-1] == timedelta(hours=1)
    )


def test_an_approval_expires_at_both_sides_without_a_message():
    known = an_application(status=APPROVED, expires_at=NOW + timedelta(days=1))
    assert next_due(known) == known.expires_at and applications.expired(known, NOW) == known
    over = applications.expired(known, NOW + timedelta(days=1))
    assert (over.status, over.reason, over.notice) == (TERMINATED, "expired", "")
