"""The console's files. They hold nothing of the node and no logic: they ask ``/api/v1`` what a user may see."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PATH = "/console"
_FILES = Path(__file__).with_name("static")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)


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
