"""A run that has to prove its TEE has a time limit for its attestation report."""

import pytest

from gateway.domain.attestation import Attestation, AttestationPolicy
from gateway.domain.execution.machine import next_due, step
from gateway.domain.states import RunStatus
from tests.builders import a_local_job, a_run, at
from tests.domain.run_events import TIMING, failure_reason, only_run

POLICY = AttestationPolicy(
    "Software",
    measurements=("ab",),
    max_age=60,
)
UNPROVEN = Attestation("Software", policy=POLICY)
VERIFIED = Attestation(
    "Software",
    policy=POLICY,
    verified_at=at(1),
)
OF_EARLIER_VERSION = Attestation("Software")
OVERDUE = 60 + 15  # seconds: max_age, and the grace for a report that is being verified

# Attestation, seconds after the launch -> reason of the failure; empty: the run goes on.
CASES = {
    "an overdue report": (UNPROVEN, OVERDUE, "TEE_REPORT_OVERDUE"),
    "a report that is not overdue yet": (UNPROVEN, OVERDUE - 1, ""),
    "a verified report": (VERIFIED, OVERDUE, ""),
    "a record of an earlier version": (OF_EARLIER_VERSION, OVERDUE, ""),
    "no report demanded": (None, OVERDUE, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_only_a_run_whose_report_is_overdue_is_ended(case):
    attestation, seconds, reason = CASES[case]
    run = a_run(
        status=RunStatus.RUNNING,
        attestation=attestation,
    )
    now = at(seconds)

    after, _ = step(a_local_job(run), now, TIMING)

    assert failure_reason(only_run(after)) == reason


def test_the_node_wakes_for_the_overdue_report():
    run = a_run(
        status=RunStatus.RUNNING,
        attestation=UNPROVEN,
        probe_at=at(1000),
    )

    due = next_due(a_local_job(run), TIMING)

    assert due <= at(OVERDUE)
