"""Quotes that processors of Intel have signed, with the collateral of their time.

They were recorded by others, so they are bound to no run of this gateway.
"""

import base64
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from gateway.attestation.verifiers import Verifiers
from gateway.config.schema.tee import TeePolicy
from gateway.domain.attestation import (
    ReportRefused,
    RunFacts,
    check_claims,
    read_report,
    run_binding,
)
from tests.forks import ROOT
from tests.trust.software_tee import unified

pytestmark = pytest.mark.recorded_quotes

QUOTES = ROOT / ".venv-quotes"
SGX_MEASUREMENT = "33d8736db756ed4997e04ba358d27833188f1932ff7b1d156904d3f560452fbb"
SGX_SIGNER = "815f42f11cf64430c30bab7816ba596a1da0130c3b028b673133a66cf9a3e0e6"
TDX_FIRMWARE = "91eb2b44d141d4ece09f0c75c2c53d247a3c68edd7fafe8a3520c942a604a407"  # its first half
SGX_STATE = "ConfigurationAndSWHardeningNeeded"
VERIFIERS = Verifiers({})


class Recorded:
    """A recorded quote with its collateral."""

    def __init__(self, kind: str) -> None:
        self.quote = (QUOTES / f"{kind}_quote").read_bytes()
        self.collateral = json.loads((QUOTES / f"{kind}_quote_collateral.json").read_text())
        tcb_info = json.loads(self.collateral["tcb_info"])
        # Collateral is valid for 30 days.
        self.now = datetime.fromisoformat(tcb_info["issueDate"]) + timedelta(days=1)

    def fields(self) -> dict[str, Any]:
        """Return the collateral in the standard's form."""
        parts = self.collateral
        tcb_info = f'{{"tcbInfo":{parts["tcb_info"]},"signature":"{parts["tcb_info_signature"]}"}}'
        identity = (
            f'{{"enclaveIdentity":{parts["qe_identity"]},'
            f'"signature":"{parts["qe_identity_signature"]}"}}'
        )
        return {
            "int64_version": "3",
            "pem_pck_crl_issuer_chain": parts["pck_crl_issuer_chain"],
            "str_root_ca_crl": parts["root_ca_crl"],
            "str_pck_crl": parts["pck_crl"],
            "pem_tcb_info_issuer_chain": parts["tcb_info_issuer_chain"],
            "str_tcb_info": tcb_info,
            "pem_qe_identity_issuer_chain": parts["qe_identity_issuer_chain"],
            "str_qe_identity": identity,
        }

    def report(
        self,
        platform: str,
        quote: bytes | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Return the report; ``changes`` replace fields of the collateral."""
        body = {
            "b64_quote": base64.b64encode(quote or self.quote).decode(),
            "json_collateral": json.dumps(self.fields() | changes),
        }
        return unified(platform, body)


@pytest.fixture
def sgx():
    return Recorded("sgx")


@pytest.fixture
def tdx():
    return Recorded("tdx")


def verified(report, now):
    return VERIFIERS.verify(read_report(report), now)


def test_a_quote_of_sgx_is_verified(sgx):
    claims = verified(sgx.report("SGX_DCAP"), sgx.now)

    assert claims.measurement == SGX_MEASUREMENT
    assert claims.signer == SGX_SIGNER
    assert claims.user_data.startswith(b"Hello, world!")
    assert claims.tcb_status == SGX_STATE
    assert claims.is_hardware
    assert not claims.is_debug


def test_a_quote_of_tdx_is_verified(tdx):
    claims = verified(tdx.report("TDX"), tdx.now)

    assert claims.measurement.startswith(TDX_FIRMWARE)
    assert len(claims.measurement) == 2 * 5 * 48
    assert claims.tcb_status == "UpToDate"
    assert claims.is_hardware


def flipped(quote, position):
    changed = bytearray(quote)
    changed[position] ^= 1
    return bytes(changed)


# Bytes of the version 3 quote: in the program's report, in the quote's signature, in the report of
# the quoting enclave.
@pytest.mark.parametrize("position", [112, 368, 440, 520, 600])
def test_a_changed_quote_is_refused(sgx, position):
    report = sgx.report("SGX_DCAP", flipped(sgx.quote, position))

    with pytest.raises(ReportRefused) as refused:
        verified(report, sgx.now)

    assert refused.value.reason == "TEE_SIGNATURE_INVALID"


REFUSALS = {
    "an expired collateral": (
        lambda sgx: (sgx.report("SGX_DCAP"), sgx.now + timedelta(days=60)),
        "TEE_SIGNATURE_INVALID",
    ),
    "changed levels of firmware": (
        lambda sgx: (
            sgx.report(
                "SGX_DCAP",
                str_tcb_info=sgx.fields()["str_tcb_info"].replace("OutOfDate", "UpToDate"),
            ),
            sgx.now,
        ),
        "TEE_SIGNATURE_INVALID",
    ),
    "a quote of another platform": (
        lambda sgx: (sgx.report("TDX"), sgx.now),
        "TEE_REPORT_INVALID",
    ),
    "a quote without its collateral": (
        lambda sgx: (unified("SGX_DCAP", {"b64_quote": "AAAA"}), sgx.now),
        "TEE_COLLATERAL_MISSING",
    ),
    "a quote that is cut": (
        lambda sgx: (sgx.report("SGX_DCAP", sgx.quote[:400]), sgx.now),
        "TEE_SIGNATURE_INVALID",
    ),
    "a collateral in no form": (
        lambda sgx: (sgx.report("SGX_DCAP", str_pck_crl="no list"), sgx.now),
        "TEE_REPORT_INVALID",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_report_of_sgx_is_refused(sgx, refusal):
    make_report, reason = REFUSALS[refusal]
    report, now = make_report(sgx)

    with pytest.raises(ReportRefused) as refused:
        verified(report, now)

    assert refused.value.reason == reason


# What a policy changes -> the reason of the refusal.
POLICIES = {
    "TEE_TCB_STATUS": {"tcb": ["UpToDate"]},
    "TEE_MEASUREMENT_MISMATCH": {"measurements": ["00" * 32]},
    "TEE_SIGNER_MISMATCH": {"signers": ["00" * 32]},
    "TEE_OTHER_RUN": {},
}


@pytest.mark.parametrize("reason", POLICIES)
def test_a_recorded_quote_does_not_pass_for_a_run(sgx, reason):
    values = {
        "platform": "SGX_DCAP",
        "measurements": [SGX_MEASUREMENT],
        "signers": [SGX_SIGNER],
        "tcb": [SGX_STATE],
    }
    policy = TeePolicy(**values | POLICIES[reason]).as_policy()
    facts = RunFacts(run_binding("run", "token", "digest"), bytes(32), sgx.now)
    claims = verified(sgx.report("SGX_DCAP"), sgx.now)

    with pytest.raises(ReportRefused) as refused:
        check_claims(claims, policy, facts, sgx.now)

    assert refused.value.reason == reason
