"""The console's files, and how a browser logs in: by a token that it shows once, or at an OpenID provider.

Either way it gets a cookie that scripts cannot read, with a token in it; see `gateway.http.guard` for what a
request with that cookie needs beside it. A login at the provider makes a token, which logging out revokes.
"""

import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.admin.deps import Empty, Paths, Reply, shape
from gateway.auth import OPENID_PREFIX, LoginRefused, digest, new_token, openid_token_name
from gateway.config.schema import Settings
from gateway.http.guard import OIDC, Record, cookie_name
from gateway.ports import Clock
from gateway.store.repositories import SqlTokens
from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.console.oidc import Person, Provider

PATH = "/console"
_FILES = Path(__file__).with_name("static")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_SECONDS = 12 * 3600
"""how long a browser keeps the cookie; the token in it may end earlier"""
_UNDER_WAY = 600
"""seconds for the login at the provider"""
_MOST = 36
"""requests that speak with the provider, or wait for their turn"""
_SESSION = shape(
    "Session",
    node=str,
    institution=str,
    version=str,
    user=str,
    role=str,
)
_ENDED = shape("SessionEnded", ended=bool, provider=str)
_WAYS = shape("LoginWays", oidc=bool, issuer=str)
_AWAY = {"cache-control": "no-store", "referrer-policy": "no-referrer"}


class Sessions:
    """The tokens in browsers' cookies."""

    def __init__(
        self,
        settings: Settings,
        tokens: SqlTokens,
        record: Record,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self._tokens = tokens
        self._record = record
        self._clock = clock
        self.cookie = cookie_name(settings.node.id)
        self.secure = settings.auth.oidc is not None and settings.auth.oidc.console.startswith(
            "https:"
        )

    def keep(
        self,
        answer: Response,
        token: str,
        secure: bool,
    ) -> None:
        """Put a token into the browser's cookie."""
        answer.set_cookie(
            self.cookie,
            token,
            _SECONDS,
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def begin(self, person: "Person") -> str:
        """Return a new token for somebody who logged in at the provider; none outlives its time."""
        now = self._clock()
        until = now + timedelta(seconds=_SECONDS)
        text, token = new_token(
            openid_token_name(person.name, person.subject), person.role, now, until
        )
        self._tokens.forget(OPENID_PREFIX, now)
        self._tokens.add(token)
        detail: dict[str, Any] = {
            "token": token.id,
            "subject": person.subject,
            "role": str(person.role),
        }
        self._record(
            now, token.name, "login", 200, None, detail | {"expires_at": until.isoformat()}
        )
        return text

    def end(self, text: str) -> bool:
        """Revoke a token that a login at the provider made; tell whether it was one."""
        token = self._tokens.find(digest(text)) if text else None
        if token is None or not token.name.startswith(OPENID_PREFIX):
            return False
        self._tokens.revoke(token.id, self._clock())
        return True


def router(sessions: Sessions) -> APIRouter:
    """Return the paths of a browser's session."""
    paths = Paths()
    node = sessions.settings.node
    oidc = sessions.settings.auth.oidc

    def session_of(request: Request) -> Reply:
        state = request.state
        asker = {"user": getattr(state, "operator", ""), "role": getattr(state, "role", "")}
        return Reply(
            {
                "node": node.id,
                "institution": node.institution or node.id,
                "version": VERSION,
                **asker,
            }
        )

    @paths("GET", "/session", "Who asks, in which role, at which node", _SESSION)
    async def session(request: Request) -> Response:
        """``user`` is empty where no token is needed."""
        return session_of(request)

    @paths("POST", "/session", "Keep this request's token in the browser's cookie", _SESSION)
    async def login(request: Request, body: Empty = None) -> Response:
        """Scripts cannot read the cookie; it goes to no other site, and ends after twelve hours."""
        answer = session_of(request)
        if token := request.headers.get("authorization", "").partition(" ")[2].strip():
            sessions.keep(answer, token, sessions.secure or request.url.scheme == "https")
        return answer

    @paths("DELETE", "/session", "Forget the token in the browser's cookie", _ENDED)
    def logout(request: Request) -> Response:
        """A login at an OpenID provider is revoked; ``provider``: where the browser is still logged in."""
        by_provider = sessions.end(request.cookies.get(sessions.cookie, ""))
        answer = Reply({"ended": True, "provider": oidc.issuer if oidc and by_provider else ""})
        answer.delete_cookie(sessions.cookie, httponly=True, samesite="strict")
        return answer

    @paths("GET", "/session/ways", "How one can log in", _WAYS)
    async def ways() -> Response:
        """``issuer``: the OpenID provider, where there is one."""
        return Reply({"oidc": oidc is not None, "issuer": oidc.issuer if oidc else ""})

    return paths.router


def oidc_router(sessions: Sessions, provider: "Provider") -> APIRouter:
    """Return the paths of the login at an OpenID provider; browsers come to them by links, never by scripts."""
    paths = Paths(include_in_schema=False)
    begun = f"{sessions.cookie}-login"
    few, under_way = CapacityLimiter(4), 0

    async def sent(request: Request, work: Callable[[], Response]) -> Response:
        """Send a browser that is refused back to the console, with nothing but the reason."""
        nonlocal under_way
        under_way += 1
        try:
            if under_way > _MOST:
                raise LoginRefused(
                    "too many logins wait for the provider", reason="OIDC_UNREACHABLE"
                )
            answer = await anyio.to_thread.run_sync(work, limiter=few)
        except LoginRefused as error:
            request.state.refused = error
            answer = RedirectResponse(f"/console/#refused={error.reason}", 303, _AWAY)
            answer.delete_cookie(begun, OIDC, httponly=True, samesite="lax")
        finally:
            under_way -= 1
        return answer

    @paths("GET", "/session/oidc", "Log in at the OpenID provider")
    async def begin(request: Request) -> Response:
        def work() -> Response:
            secret = secrets.token_urlsafe(32)
            answer = RedirectResponse(provider.begin(secret), 303, _AWAY)
            answer.set_cookie(
                begun,
                secret,
                _UNDER_WAY,
                path=OIDC,
                httponly=True,
                samesite="lax",
                secure=sessions.secure,
            )
            return answer

        return await sent(request, work)

    @paths("GET", "/session/oidc/callback", "Where the OpenID provider sends a browser back")
    async def back(request: Request) -> Response:
        def work() -> Response:
            person = provider.person(request.cookies.get(begun, ""), request.query_params)
            answer = RedirectResponse("/console/", 303, _AWAY)
            answer.delete_cookie(begun, OIDC, httponly=True, samesite="lax")
            sessions.keep(answer, sessions.begin(person), sessions.secure)
            return answer

        return await sent(request, work)

    return paths.router


class Files(StaticFiles):
    """The console's files, with what a browser must not do on these pages; they ask ``/api/v1`` for the rest."""

    def __init__(self) -> None:
        super().__init__(directory=_FILES, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file; a browser asks each time whether it has changed."""
        found = await super().get_response(path, scope)
        found.headers["content-security-policy"] = _POLICY
        found.headers["x-content-type-options"] = "nosniff"
        found.headers["referrer-policy"] = "no-referrer"
        found.headers["cache-control"] = "no-cache"
        return found


def mount(app: FastAPI) -> None:
    """Add the pages to the operators' application, and the way to them."""

    async def home() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/")

    app.mount(PATH, Files())
    app.add_api_route("/", home, include_in_schema=False)
    app.add_api_route(PATH, home, include_in_schema=False)
