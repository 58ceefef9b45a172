"""``/api/v1/tokens``: the tokens of people and programs at this node, for its admins."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Body, Depends, Path, Request
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import (
    AfterText,
    Input,
    Limit,
    Reply,
    api_router,
    author_of,
    record_change,
    service,
)
from gateway.admin.responses import tokens as responses
from gateway.auth import OPENID_PREFIX, Role, Token, new_token, token_order
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.http.pagination import page_of
from gateway.ports import Clock
from gateway.store.repositories import SqlTokens

_DEFAULT_DAYS = 90  # validity of a token, as `token create` has it
_EXAMPLE = {"name": "ann", "role": "platform", "days": 90}


class NewToken(Input):
    """A token to be created."""

    name: str = Field(min_length=1, max_length=255, description="Whose it is.")
    role: Role = Field(description="admin, vendor, platform or viewer")
    days: float = Field(
        default=_DEFAULT_DAYS,
        ge=0,
        le=36_500,
        description="Days until it expires; 0: never.",
    )


@dataclass(frozen=True)
class TokenServices:
    """The services that the paths of tokens use."""

    tokens: SqlTokens
    clock: Clock


_Services = Annotated[TokenServices, Depends(service(TokenServices))]
router = api_router()


@router.get(
    "/tokens",
    summary="The tokens of this node, oldest first; never their text",
    response_model=responses.TokensPage,
    name="listed",
)
def list_tokens(
    services: _Services,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    tokens = services.tokens.list()

    def show(token: Token) -> Mapping[str, Any]:
        return _token_fields(services, token)

    return Reply(page_of("tokens", tokens, token_order, after, limit, show))


@router.post(
    "/tokens",
    summary="Create a token; its text is in this response only",
    response_model=responses.CreatedToken,
)
def create(
    request: Request,
    services: _Services,
    body: Annotated[NewToken, Body(examples=[_EXAMPLE])],
) -> Response:
    _check_known(request)
    name = body.name.strip()
    _check_name(name)
    now = services.clock()
    expires_at = None
    if body.days:
        expires_at = now + timedelta(days=body.days)
    text, token = new_token(name, body.role, now, expires_at)
    services.tokens.add(token)
    fields = _token_fields(services, token)
    record_change(request, None, fields)
    return Reply({**fields, "token": text})


@router.delete(
    "/tokens/{token_id}",
    summary="Revoke a token; it is denied within two seconds",
    response_model=responses.Revoked,
)
def revoke(
    request: Request,
    services: _Services,
    token_id: Annotated[str, Path(description="as the list has it", examples=["0a1b2c3d4e5f"])],
) -> Response:
    tokens = {token.id: token for token in services.tokens.list()}
    token = tokens.get(token_id)
    if token is None:
        raise NotFound(f"no token has the id {token_id[:80]}", reason="TOKEN_UNKNOWN")
    count = services.tokens.revoke(token.id, services.clock())
    record_change(request, _token_fields(services, token), None)
    return Reply({"revoked": count})


def _check_known(request: Request) -> None:
    """Raise `NotAllowed` (AUTH_OFF) at a node that requires no tokens.

    Anybody there could create a token for later, when the node requires one.
    """
    if not author_of(request, ""):
        raise NotAllowed("this node requires no tokens (auth.mode: off)", reason="AUTH_OFF")


def _check_name(name: str) -> None:
    """Raise `Invalid` for an empty name, or one that is reserved for logins by OpenID."""
    if not name:
        raise Invalid([Problem("name", "must not be empty", name)])
    if name.startswith(OPENID_PREFIX):
        rule = f"must not begin with {OPENID_PREFIX}, as those of logins by OpenID do"
        raise Invalid([Problem("name", rule, name)])


def _token_fields(services: TokenServices, token: Token) -> dict[str, Any]:
    """Return a token as responses show it: without its digest."""
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "state": token.state(services.clock()),
    }
