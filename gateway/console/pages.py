"""The console's files, and how a browser logs in.

The pages hold nothing of the node and no logic of its own: they ask ``/api/v1`` what their user may see. A browser
shows its token once and gets it back as a cookie that scripts cannot read; see `gateway.http.guard` for what a
request with that cookie needs beside it.
"""

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.admin.deps import Empty, Paths, Reply, shape
from gateway.http.guard import cookie_name
from gateway.version import VERSION

PATH = "/console"
_FILES = Path(__file__).with_name("static")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_SECONDS = 12 * 3600
"""how long a browser keeps the cookie; the token in it may end earlier"""
_SESSION = shape("Session", node=str, institution=str, version=str, user=str, role=str)
_ENDED = shape("SessionEnded", ended=bool)


class Files(StaticFiles):
    """The console's files, with what a browser must not do on these pages."""

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


def router(node: str, institution: str) -> APIRouter:
    """Return the paths of a browser's session."""
    paths = Paths()
    cookie = cookie_name(node)

    def session_of(request: Request) -> Reply:
        state = request.state
        asker = {"user": getattr(state, "operator", ""), "role": getattr(state, "role", "")}
        return Reply({"node": node, "institution": institution, "version": VERSION, **asker})

    @paths("GET", "/session", "Who asks, in which role, at which node", _SESSION)
    async def session(request: Request) -> Response:
        """``user`` is empty where no token is needed."""
        return session_of(request)

    @paths("POST", "/session", "Keep this request's token in the browser's cookie", _SESSION)
    async def login(request: Request, body: Empty = None) -> Response:
        """Scripts cannot read the cookie; it goes to no other site, and ends after twelve hours."""
        answer = session_of(request)
        if token := request.headers.get("authorization", "").partition(" ")[2].strip():
            secure = request.url.scheme == "https"
            answer.set_cookie(cookie, token, _SECONDS, httponly=True, samesite="strict", secure=secure)
        return answer

    @paths("DELETE", "/session", "Forget the token in the browser's cookie", _ENDED)
    async def logout() -> Response:
        answer = Reply({"ended": True})
        answer.delete_cookie(cookie, httponly=True, samesite="strict")
        return answer

    return paths.router
