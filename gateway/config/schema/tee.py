"""The section ``tee``: the attestation reports of runs, by provider."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from pydantic import AfterValidator, Field, model_validator

from gateway.attestation.verifiers import NOT_HERE, platforms
from gateway.config.values import Section, require
from gateway.domain.attestation import SGX, SOFTWARE, TDX, AttestationPolicy
from gateway.domain.problems import Problem
from gateway.errors import Invalid

# Bytes of a measurement by platform. TDX: MRTD, then RTMR0 to RTMR3.
_MEASUREMENT_SIZES: Mapping[str, int] = MappingProxyType({SGX: 32, TDX: 5 * 48})


def _hex(value: str) -> str:
    """Check hexadecimal digits; return them in lower case."""
    try:
        content = bytes.fromhex(value)
    except ValueError:
        content = b""
    require(content, "must be hexadecimal digits, two for each byte")
    return content.hex()


def _platform(value: str) -> str:
    """Check that a verifier for a platform is here."""
    why = NOT_HERE.get(value)
    require(why is None, f"is not verified here: {why}")
    verified = platforms()
    require(value in verified, f"must be one of {', '.join(verified)}")
    return value


Hex = Annotated[
    str,
    Field(max_length=1024),
    AfterValidator(_hex),
]
_MOST_VALUES = 100  # of one list: partners send policies, too


class TeePolicy(Section):
    """The requirements for the reports of runs: those of a provider, or under a contract."""

    platform: Annotated[str, AfterValidator(_platform)] = Field(
        description="SGX_DCAP, TDX, or Software, which proves no hardware."
    )
    measurements: list[Hex] = Field(
        min_length=1,
        max_length=_MOST_VALUES,
        description="Accepted hashes of the program in hexadecimal digits: MRENCLAVE of SGX; MRTD "
        "and RTMR0 to RTMR3 of TDX, one after the other.",
    )
    signers: list[Hex] = Field(
        default_factory=list,
        max_length=_MOST_VALUES,
        description="Accepted hashes of the program's signer: MRSIGNER of SGX; empty: any.",
    )
    max_age: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Seconds from the launch of a run to its report.",
    )
    tcb: list[Annotated[str, Field(max_length=100)]] = Field(
        default=["UpToDate"],
        min_length=1,
        max_length=_MOST_VALUES,
        description="Accepted states of microcode and firmware, in Intel's words.",
    )

    @model_validator(mode="after")
    def _fits_platform(self) -> "TeePolicy":
        """Require measurements of the platform's size, and no signers for TDX, which has none."""
        size = _MEASUREMENT_SIZES.get(self.platform)
        lengths = {len(measurement) for measurement in self.measurements}
        require(
            size is None or lengths == {2 * size},
            f"measurements of {self.platform} must have {2 * (size or 0)} hexadecimal digits",
        )
        require(
            self.platform != TDX or not self.signers,
            "signers must be empty for TDX, whose reports name no signer",
        )
        return self

    @classmethod
    def of(cls, policy: AttestationPolicy) -> "TeePolicy":
        """Return the settings of a policy."""
        return cls(
            platform=policy.platform,
            measurements=list(policy.measurements),
            signers=list(policy.signers),
            max_age=policy.max_age,
            tcb=list(policy.tcb),
        )

    def as_policy(self) -> AttestationPolicy:
        """Return the policy in the form of the domain."""
        return AttestationPolicy(
            platform=self.platform,
            measurements=tuple(self.measurements),
            signers=tuple(self.signers),
            max_age=self.max_age,
            tcb=tuple(self.tcb),
        )


class TeeSettings(Section):
    """Reports of trusted execution environments."""

    providers: dict[str, TeePolicy] = Field(
        default_factory=dict,
        description="Providers whose runs here get inputs only after their report was verified: "
        "{acme: {platform: SGX_DCAP, measurements: [...]}}.",
    )
    software_keys: list[Path] = Field(
        default_factory=list,
        description="PEM files of public keys whose signatures count as software reports.",
    )

    @model_validator(mode="after")
    def _has_software_keys(self) -> "TeeSettings":
        """Require a key where a provider may bring software reports."""
        for name, policy in self.providers.items():
            require(
                policy.platform != SOFTWARE or self.software_keys,
                f"software_keys must name a key: providers.{name} demands software reports",
            )
        return self


def policy_of(section: TeePolicy | None) -> AttestationPolicy | None:
    """Return a policy in the form of the domain; None for None."""
    if section is None:
        return None
    return section.as_policy()


def policies_of(settings: TeeSettings) -> dict[str, AttestationPolicy]:
    """Return the policies by the provider's name."""
    return {name: policy.as_policy() for name, policy in settings.providers.items()}


def software_keys_of(settings: TeeSettings) -> dict[str, PublicKeyTypes]:
    """Return the keys of software reports, by the SHA-256 of their DER form.

    Raises `Invalid` (PUBLIC_KEY_UNUSABLE) with every file without a usable public key.
    """
    keys = {}
    problems = []
    for number, file in enumerate(settings.software_keys):
        try:
            key = load_pem_public_key(file.read_bytes())
            der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except (OSError, ValueError) as error:
            path = f"tee.software_keys[{number}]"
            rule = f"must be a PEM file with a public key: {error}"
            problems.append(Problem(path, rule, str(file)))
            continue
        keys[sha256(der).hexdigest()] = key
    if problems:
        raise Invalid(problems, reason="PUBLIC_KEY_UNUSABLE")
    return keys
