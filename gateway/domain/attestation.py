"""Attestation of runs in trusted execution environments (TEE).

A run proves with a report of its platform which program it is. The standard wraps the reports of
all platforms in one form, the unified attestation report. A verifier checks the platform's
signature and returns the `Claims` of the report; `check_claims` compares these with the policy of
the node and with the run that the report was made for. `gateway.domain.attestation_policies` has
the policies of providers and contracts.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.domain.timeouts import time_after

SGX = "SGX_DCAP"  # the standard's name of Intel SGX with DCAP
TDX = "TDX"  # Intel TDX, which the standard does not name
SOFTWARE = "Software"  # signed by a key of the node's settings; proves no hardware
UAS = "Uas"  # reports that a verification service has signed

USER_DATA_SIZE = 64  # bytes that a platform signs for the program
BINDING_SIZE = 32  # of these, the bytes for the run; the others are the hash of its public key

_REPORT_VERSION = "1.0"
_REPORT_TYPES = ("BackgroundCheck", "Passport", "Uas")
_LARGEST_REPORT = 256 * 1024  # characters; a quote with its collateral has about 25,000
_LONGEST_MESSAGE = 500  # characters of a refusal: texts of a report may be long
# Why a run that has to prove its TEE cannot work with its data (TEE_STORAGE).
STORAGE_RULE = (
    "the data of a run that has to prove its TEE must be in the node's folder, or in S3 with a role"
)
# Seconds beyond max_age, for a report that is being verified, after which its run is ended.
_REPORT_GRACE = 15
# Lets reports made at the moment of the launch pass on machines whose clocks differ a little.
_CLOCK_SKEW = timedelta(seconds=60)


class ReportRefused(Exception):
    """A report proves nothing to this node; ``reason`` is stable."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message[:_LONGEST_MESSAGE]


@dataclass(frozen=True)
class UnifiedReport:
    """A report in the standard's form, parsed but not verified."""

    platform: str
    kind: str  # Passport, BackgroundCheck or Uas
    body: Mapping[str, Any]  # the platform's own report


@dataclass(frozen=True)
class Claims:
    """The statements of a report whose signature is valid."""

    platform: str
    measurement: str  # hash of the program, in lower-case hexadecimal digits
    signer: str  # hash of the key that signed the program; empty if the platform has none
    user_data: bytes  # `USER_DATA_SIZE` bytes that the program chose
    tcb_status: str  # Intel's word for the state of microcode and firmware
    is_debug: bool  # a debugger may read the memory of the program
    is_hardware: bool  # a processor has signed the report
    quote: str = ""  # the signed part of the platform's report, in base64
    issued_at: datetime | None = None  # None: the platform signs no time


@dataclass(frozen=True)
class AttestationPolicy:
    """The requirements for the reports of runs."""

    platform: str
    measurements: tuple[str, ...]
    signers: tuple[str, ...] = ()  # empty: any
    max_age: int = 300  # seconds from the launch of the run to its report
    tcb: tuple[str, ...] = ("UpToDate",)


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that its report has to match."""

    binding: bytes  # `run_binding`
    key_hash: bytes  # SHA-256 of its public key
    launched_at: datetime


@dataclass(frozen=True)
class Attestation:
    """The report that a run has to bring, and its result."""

    platform: str  # the platform that the node demands
    policy: AttestationPolicy | None = None  # at the launch; None: stored by an earlier version
    demanded_by: tuple[str, ...] = ()  # the provider, and the contracts with partners
    verified_at: datetime | None = None  # None: no report was verified
    measurement: str = ""
    signer: str = ""
    tcb_status: str = ""
    is_hardware: bool = False  # False for a report that was signed by software
    public_key: str = ""  # PEM; inputs are encrypted for this key of the run
    report_digest: str = ""  # SHA-256 of the verified report


def read_report(value: Any) -> UnifiedReport:
    """Parse a unified attestation report, as JSON text or as an object.

    Raises `ReportRefused` (TEE_REPORT_INVALID).
    """
    report = read_object(value, "report")
    version = report.get("str_report_version")
    if version != _REPORT_VERSION:
        raise invalid(f"str_report_version must be {_REPORT_VERSION}")
    kind = report.get("str_report_type")
    if kind not in _REPORT_TYPES:
        raise invalid(f"str_report_type must be one of {', '.join(_REPORT_TYPES)}")
    if report.get("json_nested_reports"):
        raise invalid("json_nested_reports are not verified here")
    return UnifiedReport(
        platform=read_text(report, "str_tee_platform"),
        kind=kind,
        body=read_object(report.get("json_report"), "json_report"),
    )


def invalid(message: str) -> ReportRefused:
    """Return the refusal of a report that is not in the form of its platform."""
    return ReportRefused("TEE_REPORT_INVALID", message)


def read_object(value: Any, name: str) -> Mapping[str, Any]:
    """Return a JSON object that is given as text or parsed. Raises `ReportRefused`."""
    if isinstance(value, str):
        if len(value) > _LARGEST_REPORT:
            raise invalid(f"{name} has more than {_LARGEST_REPORT} characters")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise invalid(f"{name} must be JSON") from error
    if not isinstance(value, Mapping):
        raise invalid(f"{name} must be a JSON object")
    return value


def read_text(values: Mapping[str, Any], name: str) -> str:
    """Return a text that must be there. Raises `ReportRefused`."""
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{name} must be a text that is not empty")
    return value


def run_binding(
    run_id: str,
    run_token: str,
    image_digest: str,
) -> bytes:
    """Return the first half of the user data, a hash over the identity of one run.

    The ids are random and new for every attempt, so a report of one run fits no other.
    """
    content = json.dumps(["bfia-gateway tee run 1", run_id, run_token, image_digest])
    return hashlib.sha256(content.encode()).digest()


def check_claims(
    claims: Claims,
    policy: AttestationPolicy,
    run: RunFacts,
    now: datetime,
) -> None:
    """Compare a report with a policy and with its run. Raises `ReportRefused`."""
    _require(
        (
            *_checks_of_program(claims, policy),
            *_checks_of_run(claims, run),
            *_checks_of_time(claims, policy, run, now),
        )
    )


def report_deadline(
    attestation: Attestation | None,
    launched_at: datetime | None,
) -> datetime | None:
    """Return when a run without a verified report is ended; None for a run that needs none.

    No report would be accepted any more then.
    """
    if attestation is None or attestation.verified_at is not None or attestation.policy is None:
        return None
    seconds = attestation.policy.max_age + _REPORT_GRACE
    return time_after(launched_at, seconds)


def check_result(attestation: Attestation, policy: AttestationPolicy) -> None:
    """Compare a verified report with a policy that is in force now. Raises `ReportRefused`."""
    claims = Claims(
        platform=attestation.platform,
        measurement=attestation.measurement,
        signer=attestation.signer,
        user_data=b"",
        tcb_status=attestation.tcb_status,
        is_debug=False,  # a report of debug mode is never verified
        is_hardware=attestation.is_hardware,
    )
    _require(_checks_of_program(claims, policy))


@dataclass(frozen=True)
class _Check:
    """A requirement, and the refusal of a report that does not meet it."""

    is_met: bool
    reason: str
    message: str


def _require(checks: tuple[_Check, ...]) -> None:
    """Raise `ReportRefused` for the first requirement that is not met."""
    for check in checks:
        if not check.is_met:
            raise ReportRefused(check.reason, check.message)


def _checks_of_program(claims: Claims, policy: AttestationPolicy) -> tuple[_Check, ...]:
    """Compare platform, state and program with the policy."""
    states = ", ".join(sorted(policy.tcb))
    return (
        _Check(
            claims.platform == policy.platform,
            "TEE_PLATFORM_MISMATCH",
            f"this node demands a report of {policy.platform}, and this one is of "
            f"{claims.platform}",
        ),
        _Check(
            not claims.is_debug,
            "TEE_DEBUG_MODE",
            "the program runs in debug mode, in which its memory can be read",
        ),
        _Check(
            claims.tcb_status in policy.tcb,
            "TEE_TCB_STATUS",
            f"the platform's state is {claims.tcb_status}, and the policy allows {states}",
        ),
        _Check(
            claims.measurement in policy.measurements,
            "TEE_MEASUREMENT_MISMATCH",
            f"the policy does not list the program's measurement {claims.measurement}",
        ),
        _Check(
            not policy.signers or claims.signer in policy.signers,
            "TEE_SIGNER_MISMATCH",
            f"the policy does not list the program's signer {claims.signer}",
        ),
    )


def _checks_of_run(claims: Claims, run: RunFacts) -> tuple[_Check, ...]:
    """Compare the user data with the run and its key."""
    return (
        _Check(
            claims.user_data[:BINDING_SIZE] == run.binding,
            "TEE_OTHER_RUN",
            "the report was made for another run or another image: its user data does not begin "
            "with system.attestation.binding",
        ),
        _Check(
            claims.user_data[BINDING_SIZE:] == run.key_hash,
            "TEE_KEY_MISMATCH",
            "the report was made for another key: its user data does not end with the SHA-256 of "
            "pem_public_key in DER form",
        ),
    )


def _checks_of_time(
    claims: Claims,
    policy: AttestationPolicy,
    run: RunFacts,
    now: datetime,
) -> tuple[_Check, ...]:
    """Compare the time of the launch, and of the report if it has one.

    A platform that signs no time is bound to the run, so its report is not older than the launch.
    """
    issued_at = claims.issued_at or run.launched_at
    age = now - min(issued_at, run.launched_at)
    return (
        _Check(
            issued_at <= now + _CLOCK_SKEW,
            "TEE_REPORT_OLD",
            "the time of the report is in the future",
        ),
        _Check(
            age <= timedelta(seconds=policy.max_age),
            "TEE_REPORT_OLD",
            f"the report came more than {policy.max_age} s (max_age) after the launch or its own "
            "time",
        ),
    )
