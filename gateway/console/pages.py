"""The console's files, and how a browser logs in.

The pages hold nothing of the node and no logic of its own: they ask ``/api/v1`` what their user may see. A browser
shows its token once and gets it back as a cookie that scripts cannot read; see `gateway.http.guard` for what a
request with that cookie needs beside it.
"""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

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


def router(node: str, institution: str) -> APIRouter:
    """Return the path to the pages, and those of a browser's session."""
    router = APIRouter(tags=["operators"])

    @router.get("/", include_in_schema=False)
    async def home() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/")

    @router.get("/api/v1/session", summary="Who asks, in which role, at which node")
    async def session(request: Request) -> dict[str, Any]:
        """``user`` is empty where no token is needed."""
        state = request.state
        return {
            "node": node,
            "institution": institution,
            "version": VERSION,
            "user": getattr(state, "operator", ""),
            "role": getattr(state, "role", ""),
        }

    @router.post("/api/v1/session", summary="Keep the token of this request in a cookie of the browser")
    async def login(request: Request, authorization: Annotated[str, Header()] = "") -> JSONResponse:
        """Scripts cannot read the cookie; it goes to no other site, and ends after twelve hours."""
        answer = JSONResponse(await session(request))
        token = authorization.partition(" ")[2].strip()
        if token:
            answer.set_cookie(
                cookie_name(node),
                token,
                max_age=_SECONDS,
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
        return answer

    @router.delete("/api/v1/session", summary="Forget the token in the browser's cookie")
    async def logout() -> JSONResponse:
        answer = JSONResponse({})
        answer.delete_cookie(cookie_name(node), httponly=True, samesite="strict")
        return answer

    return router
