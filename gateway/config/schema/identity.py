"""The section ``identity``: the key that signs jobs and the audit log."""

from pathlib import Path

from pydantic import Field, model_validator

from gateway.config.values import Section, require


class TokenSettings(Section):
    """A private key in a PKCS#11 token; its PIN is in a file, in the environment, or printed."""

    module: Path = Field(description="The vendor's PKCS#11 library, such as libsofthsm2.so.")
    token: str = Field(min_length=1, description="Label of the token.")
    key: str = Field(min_length=1, description="Label of the private key.")
    pin_file: Path | None = Field(
        default=None,
        description="File with the PIN and nothing else, of mode 0600.",
    )
    pin_variable: str = Field(
        default="",
        description="Name of the environment variable with the PIN.",
    )
    pin_command: list[str] = Field(
        default_factory=list,
        description="Program and arguments that print the PIN.",
    )

    @model_validator(mode="after")
    def _one_pin(self) -> "TokenSettings":
        """Require exactly one source of the PIN."""
        sources = [self.pin_file, self.pin_variable, self.pin_command]
        require(
            len(list(filter(None, sources))) == 1,
            "needs one of pin_file, pin_variable and pin_command",
        )
        return self


class StatementsKey(Section):
    """The key that signs jobs and the audit log, if it is not the node's key pair."""

    public_key: Path = Field(
        description="PEM file of the public key; each signature is verified with it."
    )
    pkcs11: TokenSettings | None = Field(
        default=None,
        description="The token with the private key.",
    )
    command: list[str] = Field(
        default_factory=list,
        description="Program and arguments that read the content from standard input and write "
        "the signature.",
        examples=[["openssl", "dgst", "-sha256", "-sign", "/media/key.pem"]],
    )

    @model_validator(mode="after")
    def _one_place(self) -> "StatementsKey":
        """Require exactly one place of the private key."""
        has_token = self.pkcs11 is not None
        require(
            has_token != bool(self.command),
            "needs one of pkcs11 and command",
        )
        return self


class IdentitySettings(Section):
    """Signing keys in addition to the node's key pair in state_dir."""

    statements_key: StatementsKey | None = Field(
        default=None,
        description="The key that signs jobs and the audit log, in a PKCS#11 token or behind a "
        "command; null: the key pair in state_dir, which always signs requests.",
    )
    further_keys: list[Path] = Field(
        default_factory=list,
        description="PEM files of public keys that signed earlier jobs and audit logs, or will "
        "sign later ones: invitations contain them, and audit verify accepts them.",
    )
