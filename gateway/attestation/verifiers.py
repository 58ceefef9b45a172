"""The verifiers of this installation by platform, built in or from installed plug-ins.

A plug-in is a package with an entry point in the group `PLUG_INS`: its name is the platform, its
object a `Verifier`. It may not replace a platform of the gateway.
"""

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Protocol

import structlog
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from gateway.attestation.dcap import DcapVerifier
from gateway.attestation.software import SoftwareVerifier
from gateway.domain.attestation import (
    SGX,
    SOFTWARE,
    TDX,
    UAS,
    AttestationPolicy,
    Claims,
    ReportRefused,
    UnifiedReport,
)
from gateway.domain.problems import Problem

log = structlog.get_logger(__name__)

PLUG_INS = "bfia_gateway.tee_verifiers"  # group of entry points
BUILT_IN = (SGX, TDX, SOFTWARE)  # platforms
DCAP_LIBRARY = "dcap_qvl"  # module of the package dcap-qvl
NOT_VERIFIABLE = "TEE_NOT_VERIFIABLE"  # reason of policies whose reports this node cannot verify

# Platforms of the standard without a verifier here -> the reason.
NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        "SGX_EPID": "Intel has ended the service that verifies EPID quotes",
        "HyperEnclave": "no published library verifies its quotes",
        "Kunpeng": "no published library and no recorded report to test with; the standard leaves "
        "its form open",
        "CSV": "no published library and no recorded report with Hygon's certificates to test with",
        UAS: "the report of another verification service: its key would have to be trusted",
    }
)


class Verifier(Protocol):
    """Verifies the reports of one platform."""

    def verify(
        self,
        report: UnifiedReport,
        now: datetime,
    ) -> Claims:
        """Return the claims of a report with a valid signature. Raises `ReportRefused`."""


class Verifiers:
    """The verifiers of a node."""

    def __init__(self, software_keys: Mapping[str, PublicKeyTypes]) -> None:
        """``software_keys``: keys that sign software reports, by the SHA-256 of their DER form."""
        self._software_keys = frozenset(software_keys)
        self._by_platform: dict[str, Verifier] = dict(_plug_ins())
        self._by_platform[SOFTWARE] = SoftwareVerifier(software_keys)
        for platform in (SGX, TDX):
            self._by_platform[platform] = DcapVerifier(platform)

    def verify(
        self,
        report: UnifiedReport,
        now: datetime,
    ) -> Claims:
        """Return the claims of a report with a valid signature. Raises `ReportRefused`."""
        verifier = self._by_platform.get(report.platform)
        if verifier is None:
            why = _why_not_here(report.platform)
            raise ReportRefused(
                "TEE_PLATFORM_UNSUPPORTED",
                f"reports of {report.platform[:100]!r} are not verified here: {why}",
            )
        try:
            return verifier.verify(report, now)
        except ReportRefused:
            raise
        except Exception as error:  # of a plug-in or library
            log.exception("the verifier of a platform failed", platform=report.platform)
            raise ReportRefused(
                "TEE_VERIFIER_FAILED",
                f"the verifier of {report.platform} failed: {type(error).__name__}",
            ) from error

    def problems(
        self,
        policy: AttestationPolicy,
        path: str = "tee",
    ) -> list[Problem]:
        """Return why this node can verify no report that a policy accepts; empty if it can.

        ``path`` is that of the policy.
        """
        why = self._obstacle(policy.platform)
        if why:
            rule = f"reports of this platform cannot be verified by this node: {why}"
            return [Problem(f"{path}.platform", rule, policy.platform, reason=NOT_VERIFIABLE)]
        if policy.platform == SOFTWARE and not self._knows_signer(policy):
            rule = (
                "reports of these signers cannot be verified by this node: tee.software_keys has "
                "none of their keys"
            )
            signers = ", ".join(policy.signers)
            return [Problem(f"{path}.signers", rule, signers, reason=NOT_VERIFIABLE)]
        return []

    def _obstacle(self, platform: str) -> str:
        """Return why no report of a platform can be verified; empty if reports can be."""
        if platform not in self._by_platform:
            return _why_not_here(platform)
        if platform in (SGX, TDX) and not has_dcap():
            return "the library for quotes of SGX and TDX is not installed"
        if platform == SOFTWARE and not self._software_keys:
            return "tee.software_keys names no key"
        return ""

    def _knows_signer(self, policy: AttestationPolicy) -> bool:
        """Return whether a software report of an accepted signer can be verified."""
        if not policy.signers:
            return True
        return not self._software_keys.isdisjoint(policy.signers)


def _why_not_here(platform: str) -> str:
    """Return why there is no verifier for a platform."""
    return NOT_HERE.get(platform, "no such platform is known")


def platforms() -> tuple[str, ...]:
    """Return the platforms that a policy may demand."""
    return (*BUILT_IN, *_plug_ins())


def has_dcap() -> bool:
    """Return whether the library for SGX and TDX is installed (extra ``tee``)."""
    return find_spec(DCAP_LIBRARY) is not None


def _plug_ins() -> dict[str, Any]:
    """Return the verifiers of installed plug-ins by platform."""
    verifiers = {}
    for entry in entry_points(group=PLUG_INS):
        if entry.name not in BUILT_IN:
            make_verifier = entry.load()
            verifiers[entry.name] = make_verifier()
    return verifiers
