"""Checks whether this node can verify the attestation reports that its settings demand."""

from gateway.attestation.verifiers import has_dcap
from gateway.config.schema import Settings
from gateway.config.schema.tee import software_keys_of
from gateway.domain.attestation import SGX, SOFTWARE, TDX
from gateway.errors import Invalid
from gateway.runtime import trials
from gateway.runtime.trials import Step

_INTEL = (SGX, TDX)


def reports_of(settings: Settings) -> Step:
    """Check the policies of attestation reports.

    Fails without the library for Intel's platforms, or for unusable keys; warns of software
    reports, which prove no hardware.
    """
    policies = settings.tee.providers
    if not policies:
        return trials.ok("no provider has to prove its TEE")
    by_platform = {name: policy.platform for name, policy in policies.items()}
    if set(by_platform.values()) & set(_INTEL) and not has_dcap():
        return trials.failed(
            "the library for quotes of SGX and TDX is not installed",
            "pip install 'bfia-gateway[tee]'",
        )
    try:
        software_keys_of(settings.tee)
    except Invalid as error:
        return trials.failed(error.message, "correct tee.software_keys")
    text = ", ".join(f"{name}: {platform}" for name, platform in sorted(by_platform.items()))
    in_software = sorted(name for name in by_platform if by_platform[name] == SOFTWARE)
    if in_software:
        return trials.warning(
            f"reports of {', '.join(in_software)} are signed by software and prove no hardware",
            "demand SGX_DCAP or TDX in tee.providers before data depends on it",
            text,
        )
    return trials.ok(f"{text}; tried with recorded reports only, on no machine with a TEE")
