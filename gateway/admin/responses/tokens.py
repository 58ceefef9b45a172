"""Tokens of people and programs."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from gateway.admin.responses.base import Page
from gateway.auth import Role


class AccessToken(BaseModel):
    """A token, without its text."""

    id: str
    name: str = Field(description="whose it is")
    role: Role
    created_at: datetime
    expires_at: datetime | None = Field(description="null: it does not expire")
    state: Literal["valid", "expired", "revoked"]


class TokensPage(Page):
    """The tokens of this node, oldest first."""

    tokens: list[AccessToken]


class CreatedToken(AccessToken):
    """A new token with its text, which is not stored."""

    token: str


class Revoked(BaseModel):
    """The result of a revocation."""

    revoked: int = Field(description="0 if it was revoked before")
