"""The console's files, and the login of a browser: by a token, or at an OpenID provider.

Either way it gets a cookie with a token that scripts cannot read; `gateway.http.guard` describes
the other conditions of a request with that cookie. A login at the provider makes a token, which
logging out revokes.
"""

import secrets
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.admin.deps import Empty, Reply, api_router, service
from gateway.admin.responses import node as responses
from gateway.auth import OPENID_PREFIX, LoginRefused, digest, new_token, openid_token_name
from gateway.config.schema import Settings
from gateway.config.schema.listeners import Node
from gateway.http.guard import OIDC, Record, cookie_name
from gateway.ports import Clock
from gateway.store.repositories import SqlTokens
from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.console.oidc import Person, Provider

PATH = "/console"
_FILES = Path(__file__).with_name("static")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_COOKIE_SECONDS = 12 * 3600  # a browser keeps the cookie; the token in it may end earlier
_LOGIN_SECONDS = 600  # within which a person has to log in at the provider
_MOST_LOGINS = 36  # requests that speak with the provider or wait for their turn
_LOGIN_THREADS = 4
# Headers of a redirection during a login; the address redirected to may hold a secret.
_REDIRECT_HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer"}


class Sessions:
    """The tokens in browsers' cookies."""

    def __init__(
        self,
        settings: Settings,
        tokens: SqlTokens,
        record: Record,
        clock: Clock,
    ) -> None:
        """Take the settings and tokens of the node; ``record`` writes to its audit log."""
        self.node = settings.node
        self.oidc = settings.auth.oidc
        self.cookie = cookie_name(settings.node.id)
        self.secure = self.oidc is not None and self.oidc.console.startswith("https:")
        self._tokens = tokens
        self._record = record
        self._clock = clock

    def keep(
        self,
        response: Response,
        token: str,
        secure: bool,
    ) -> None:
        """Put a token into the browser's cookie; ``secure``: the browser sends it by https only."""
        response.set_cookie(
            self.cookie,
            token,
            _COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def begin(self, person: "Person") -> str:
        """Return a new token for a person who logged in at the provider.

        It expires at the same time as the cookie.
        """
        now = self._clock()
        until = now + timedelta(seconds=_COOKIE_SECONDS)
        name = openid_token_name(person.name, person.subject)
        text, token = new_token(name, person.role, now, until)
        self._tokens.delete_expired(OPENID_PREFIX, now)  # tokens of earlier logins
        self._tokens.add(token)
        detail: dict[str, Any] = {
            "token": token.id,
            "subject": person.subject,
            "role": str(person.role),
            "expires_at": until.isoformat(),
        }
        self._record(now, token.name, "login", 200, None, detail)
        return text

    def end(self, text: str) -> bool:
        """Revoke a token that a login at the provider has made; return whether it was revoked.

        Any other token stays valid.
        """
        if not text:
            return False
        token = self._tokens.find(digest(text))
        if token is None or not token.name.startswith(OPENID_PREFIX):
            return False
        self._tokens.revoke(token.id, self._clock())
        return True


_Sessions = Annotated[Sessions, Depends(service(Sessions))]
router = api_router()


@router.get(
    "/session",
    summary="Who asks, in which role, at which node",
    response_model=responses.Session,
)
async def session(request: Request, sessions: _Sessions) -> Response:
    """``user`` is empty at a node that requires no tokens."""
    return _describe(request, sessions.node)


@router.post(
    "/session",
    summary="Log in to the console",
    response_model=responses.Session,
)
async def login(
    request: Request,
    sessions: _Sessions,
    body: Empty = None,
) -> Response:
    """Scripts cannot read the cookie; it goes to no other site, and ends after twelve hours."""
    response = _describe(request, sessions.node)
    _, _, token = request.headers.get("authorization", "").partition(" ")
    if token.strip():
        is_secure = sessions.secure or request.url.scheme == "https"
        sessions.keep(response, token.strip(), is_secure)
    return response


@router.delete(
    "/session",
    summary="Log out of the console",
    response_model=responses.SessionEnded,
)
def logout(request: Request, sessions: _Sessions) -> Response:
    """The token of a login at the OpenID provider is revoked.

    ``provider``: its address, where the browser is still logged in; empty after another login.
    """
    is_by_provider = sessions.end(request.cookies.get(sessions.cookie, ""))
    issuer = ""
    if sessions.oidc is not None and is_by_provider:
        issuer = sessions.oidc.issuer
    response = Reply({"ended": True, "provider": issuer})
    response.delete_cookie(sessions.cookie, httponly=True, samesite="strict")
    return response


@router.get(
    "/session/ways",
    summary="How one can log in",
    response_model=responses.LoginWays,
)
async def ways(sessions: _Sessions) -> Response:
    """``issuer``: the OpenID provider; empty without one."""
    issuer = ""
    if sessions.oidc is not None:
        issuer = sessions.oidc.issuer
    return Reply({"oidc": sessions.oidc is not None, "issuer": issuer})


def _describe(request: Request, node: Node) -> Reply:
    """Return this node, and the user of the request with the user's role."""
    return Reply(
        {
            "node": node.id,
            "institution": node.institution or node.id,
            "version": VERSION,
            "user": getattr(request.state, "operator", ""),
            "role": getattr(request.state, "role", ""),
        }
    )


class Logins:
    """The logins at the OpenID provider that are under way, in a few threads."""

    def __init__(self, sessions: Sessions, provider: "Provider") -> None:
        """Take the sessions that logins begin, and the provider."""
        self.sessions = sessions
        self.provider = provider
        self.cookie = f"{sessions.cookie}-login"
        self._limiter = CapacityLimiter(_LOGIN_THREADS)
        self._under_way = 0

    async def run(
        self,
        request: Request,
        step: Callable[[], Response],
    ) -> Response:
        """Return the response of a step of a login.

        A refusal sends the browser back to the console, which shows the reason.
        """
        self._under_way += 1
        try:
            if self._under_way > _MOST_LOGINS:
                raise LoginRefused(
                    "too many logins wait for the provider", reason="OIDC_UNREACHABLE"
                )
            return await anyio.to_thread.run_sync(step, limiter=self._limiter)
        except LoginRefused as error:
            request.state.refused = error
            response = RedirectResponse(f"/console/#refused={error.reason}", 303, _REDIRECT_HEADERS)
            self._forget(response)
            return response
        finally:
            self._under_way -= 1

    def begin(self) -> Response:
        """Send a browser to the provider, with the secret of this login in a cookie."""
        secret = secrets.token_urlsafe(32)
        response = RedirectResponse(self.provider.begin(secret), 303, _REDIRECT_HEADERS)
        response.set_cookie(
            self.cookie,
            secret,
            _LOGIN_SECONDS,
            path=OIDC,
            httponly=True,
            samesite="lax",  # "strict" would keep it back when the provider redirects the browser
            secure=self.sessions.secure,
        )
        return response

    def finish(self, request: Request) -> Response:
        """Send a browser that comes from the provider to the console, with a token in a cookie."""
        secret = request.cookies.get(self.cookie, "")
        person = self.provider.person(secret, request.query_params)
        response = RedirectResponse("/console/", 303, _REDIRECT_HEADERS)
        self._forget(response)
        self.sessions.keep(
            response,
            self.sessions.begin(person),
            self.sessions.secure,
        )
        return response

    def _forget(self, response: Response) -> None:
        """Delete the cookie with the secret of a login."""
        response.delete_cookie(
            self.cookie,
            path=OIDC,
            httponly=True,
            samesite="lax",
        )


_Logins = Annotated[Logins, Depends(service(Logins))]
# Browsers come to these paths by links, never by scripts.
oidc_router = api_router(include_in_schema=False)


@oidc_router.get(
    "/session/oidc",
    summary="Log in at the OpenID provider",
)
async def begin(request: Request, logins: _Logins) -> Response:
    """Send the browser to the provider."""
    return await logins.run(request, logins.begin)


@oidc_router.get(
    "/session/oidc/callback",
    summary="Where the OpenID provider sends a browser back",
)
async def back(request: Request, logins: _Logins) -> Response:
    """Begin the session of a person who logged in."""
    return await logins.run(request, partial(logins.finish, request))


class Files(StaticFiles):
    """The console's files, with headers that restrict the pages.

    The files contain no data: the pages read everything from ``/api/v1``.
    """

    def __init__(self) -> None:
        """Serve the folder of the console."""
        super().__init__(directory=_FILES, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file; a browser asks each time whether it has changed."""
        response = await super().get_response(path, scope)
        response.headers["content-security-policy"] = _POLICY
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["referrer-policy"] = "no-referrer"
        response.headers["cache-control"] = "no-cache"
        return response


def mount(app: FastAPI) -> None:
    """Add the pages to the operators' application, and redirections to them."""

    async def home() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/")

    app.mount(PATH, Files())
    app.add_api_route("/", home, include_in_schema=False)
    app.add_api_route(PATH, home, include_in_schema=False)
