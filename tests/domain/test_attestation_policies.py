"""Several policies of attestation reports hold together: the stricter requirement counts."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.attestation import (
    AttestationPolicy,
    Claims,
    ReportRefused,
    RunFacts,
    check_claims,
)
from gateway.domain.attestation_policies import Contradiction, Demand, combined

NOW = datetime(2026, 11, 30, tzinfo=UTC)
VALUE = st.sampled_from("abcd")
VALUES = st.lists(
    VALUE,
    min_size=1,
    max_size=3,
    unique=True,
).map(tuple)
PLATFORM = st.sampled_from(["SGX_DCAP", "TDX"])
POLICIES = st.builds(
    AttestationPolicy,
    platform=PLATFORM,
    measurements=VALUES,
    signers=st.one_of(st.just(()), VALUES),
    max_age=st.integers(1, 3),
    tcb=VALUES,
)
CLAIMS = st.builds(
    Claims,
    platform=PLATFORM,
    measurement=VALUE,
    signer=VALUE,
    user_data=st.just(bytes(64)),
    tcb_status=VALUE,
    is_debug=st.just(False),
    is_hardware=st.just(True),
)


def is_accepted(claims, policy, age):
    facts = RunFacts(
        binding=bytes(32),
        key_hash=bytes(32),
        launched_at=NOW - timedelta(seconds=age),
    )
    try:
        check_claims(claims, policy, facts, NOW)
    except ReportRefused:
        return False
    return True


@given(
    policies=st.lists(POLICIES, min_size=1, max_size=3),
    claims=CLAIMS,
    age=st.integers(0, 4),
)
def test_a_report_passes_exactly_if_it_meets_every_policy(policies, claims, age):
    demands = [Demand("a policy", policy) for policy in policies]

    result = combined(demands)

    meets_result = False
    if not isinstance(result, Contradiction):
        meets_result = is_accepted(claims, result, age)
    results = [is_accepted(claims, policy, age) for policy in policies]
    assert meets_result == all(results)


def test_every_contradiction_is_named():
    of_provider = AttestationPolicy(
        "SGX_DCAP",
        measurements=("aa",),
        signers=("01",),
        tcb=("x",),
    )
    of_contract = AttestationPolicy(
        "TDX",
        measurements=("bb",),
        signers=("02",),
        tcb=("y",),
    )

    result = combined(
        [
            Demand("provider acme", of_provider),
            Demand("contract 3", of_contract),
        ]
    )

    assert isinstance(result, Contradiction)
    paths = [problem.path for problem in result.problems]
    assert paths == ["tee.platform", "tee.measurements", "tee.signers", "tee.tcb"]
    assert "provider acme and contract 3" in result.problems[0].rule
