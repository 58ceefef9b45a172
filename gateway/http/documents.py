"""The pages for users below ``/docs/``, as simple HTML: nothing is loaded from elsewhere."""

import html
import mimetypes
import re
from functools import cache, lru_cache
from pathlib import Path

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.language.documents import INDEX, files, text_of, title_of

PATH = "/docs"
_FRAME = Path(__file__).with_name("document_page.html")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; form-action 'none'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_MOST_PAGES = 100  # rendered pages kept in memory
# A link to a file outside the documentation, which the node does not serve: its text stays.
_OUTSIDE = re.compile(r'<a href="\.\./[^"]*">(.*?)</a>', re.DOTALL)
_HEADING = re.compile(r"<h([1-6])>(.*?)</h\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def mount(app: FastAPI) -> None:
    """Add the pages to the operators' application."""
    app.mount(PATH, serve)


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with a page or a picture. Raises `HTTPException`."""
    _, _, name = scope["path"].partition(f"{PATH}/")
    response = await run_in_threadpool(_response, name)
    await response(scope, receive, send)


def _response(name: str) -> Response:
    """Return the response for a file's path below `PATH`. Raises `HTTPException`."""
    if not name:
        return RedirectResponse(f"{PATH}/{INDEX}.md")
    if name not in files():
        raise HTTPException(404)
    if name.endswith(".md"):
        return HTMLResponse(_page(name), headers=_HEADERS)
    media_type, _ = mimetypes.guess_type(name)
    return Response(files()[name].read_bytes(), headers=_HEADERS, media_type=media_type)


@lru_cache(_MOST_PAGES)
def _page(name: str) -> str:
    """Return a page as HTML."""
    from markdown_it import MarkdownIt  # imported late: few processes show a page

    text = text_of(name)
    # Without HTML of the page itself: only its Markdown becomes elements.
    content = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    content = _HEADING.sub(_with_anchor, content)
    content = _OUTSIDE.sub(r"\1", content)
    language = "zh-CN" if name.endswith(".zh-CN.md") else "en"
    return (
        _frame()
        .replace("{language}", language)
        .replace("{title}", html.escape(title_of(text)))
        .replace("{content}", content)
    )


@cache
def _frame() -> str:
    """Return the page around the content."""
    return _FRAME.read_text(encoding="utf-8")


def _with_anchor(heading: re.Match[str]) -> str:
    """Return a heading with the id by which links name it: lower case, blanks as hyphens."""
    level, content = heading.groups()
    words = html.unescape(_TAG.sub("", content)).lower()
    anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
    return f'<h{level} id="{html.escape(anchor)}">{content}</h{level}>'
