"""The sections ``auth`` and ``secrets``: logins of people, and how secrets are kept."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.auth import Role
from gateway.config.values import (
    COMMAND_OF_SECRET,
    FILE_OF_SECRET,
    PrivateUrl,
    Section,
    Switch,
    Token,
    require,
    require_one_source,
)

MIN_TOKEN_LENGTH = 16  # characters of an admin's token: a shorter one could be guessed


class Oidc(Section):
    """An OpenID provider at which people log in to the console."""

    issuer: PrivateUrl = Field(
        description="Address of the provider, exactly as in its metadata.",
        examples=["https://login.bank.example/realms/bank"],
    )
    client_id: str = Field(
        min_length=1,
        description="This console's id there.",
        examples=["bfia-console"],
    )
    client_secret: str = Field(
        default="",
        description="Its secret there; only by the environment, else client_secret_file or "
        "client_secret_command; empty: none.",
    )
    client_secret_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    client_secret_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )
    console: PrivateUrl = Field(
        description="Address at which browsers reach the operators' listener; the provider sends "
        "them back to /api/v1/session/oidc/callback below it.",
        examples=["https://bfia.bank.example"],
    )
    roles: dict[str, Role] = Field(
        min_length=1,
        description="Group -> role, such as {bfia-admins: admin, analysts: platform}; the first "
        "match counts, and a person without a match cannot log in.",
        examples=[{"bfia-admins": "admin", "analysts": "platform"}],
    )
    role_claim: str = Field(
        default="groups",
        min_length=1,
        description="Claim of the ID token with the groups; may be a path: a.b.",
    )
    name_claim: str = Field(
        default="preferred_username",
        min_length=1,
        description="Claim with the name that the audit shows.",
    )
    scopes: list[str] = Field(
        default_factory=lambda: ["openid", "profile"],
        description="Requested scopes; openid must be among them.",
    )
    ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of the provider's certificate; null: the "
        "system's.",
    )

    @model_validator(mode="after")
    def _complete(self) -> "Oidc":
        """Refuse two secrets, and scopes with which no provider issues an ID token."""
        has_secret_file = self.client_secret_file is not None
        has_two_secrets = self.client_secret and has_secret_file
        require(
            not has_two_secrets,
            "client_secret and client_secret_file exclude each other",
        )
        require_one_source(self, "client_secret")
        require("openid" in self.scopes, "scopes must contain openid")
        return self


class Auth(Section):
    """Whether the operators' listener requires a token, and how people get one."""

    mode: Annotated[Literal["off", "on"], Switch] = Field(
        default="off",
        description="off only while the operator listener is on the loopback address.",
    )
    token: Token = Field(
        default="",
        description="An admin's bearer token for mode on; others are made by: bfia-gateway token "
        "create.",
    )
    token_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    token_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )
    oidc: Oidc | None = Field(
        default=None,
        description="An OpenID provider at which people log in to the console; null: tokens only.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Auth":
        """Refuse a login that ``mode`` turns off, and a token that is easy to guess."""
        if self.oidc is not None:
            require(self.mode == "on", "oidc needs mode: on")
        is_short = 0 < len(self.token) < MIN_TOKEN_LENGTH  # "" stands for no token
        require(not is_short, "a token must have at least 16 characters")
        require_one_source(self, "token")
        return self


class SecretSettings(Section):
    """Passwords, keys and tokens that settings need."""

    mode: Literal["warn", "refuse"] = Field(
        default="warn",
        description="refuse: no start with a secret in clear in this file, with a secret's file "
        "that others may read, or with a storage that would give runs the node's key without "
        "share_key; warn: `doctor` and the start name them. `init` writes refuse.",
    )
