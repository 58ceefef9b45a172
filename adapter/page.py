"""Responses without a JSON object, from a login page, a filter or a proxy in front of a peer."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import Refused, shorten

LOGIN = "LOGIN_IN_BETWEEN"
FILTER = "FILTER_IN_BETWEEN"
BODY_LIMIT = "BODY_LIMIT_IN_BETWEEN"
REASONS = (LOGIN, FILTER, BODY_LIMIT)

# Characters of each text of a page that a message quotes
_LONGEST_WORDS = 160
_LONGEST_LOCATION = 200
_LONGEST_SERVER = 60
_SEARCHED = 8192  # bytes at the beginning of a page that are searched for its first words
_INVISIBLE = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Page:
    """A response of a peer's address without a JSON object."""

    status: int
    location: str  # the header of a redirection; empty without one
    is_html: bool
    server: str  # the header with the server's name; empty without one
    words: str  # the first visible words; empty if there are none
    request_bytes: int  # size of the request's body

    def refusal(self, node: str) -> Refused:
        """Return the error for a request to ``node`` that got this page."""
        text = f"{node} answers HTTP {self.status}{self._cause()}"
        if self.quotation:
            text += f"; it says: {self.quotation}"
        return Refused(text, reason=self.reason)

    def _cause(self) -> str:
        """Return the end of a sentence that names the probable sender of the page."""
        reason = self.reason
        if reason == BODY_LIMIT:
            return f" to a request of {self.request_bytes} bytes: a body limit stands before it"
        if reason == FILTER:
            return " with a web page: a filter or a portal stands before it"
        if reason != LOGIN:
            return " without a JSON object"
        if self.location:
            return f" and redirects to {self.location}: a login page or a proxy stands before it"
        return ": a login stands before it"

    @property
    def reason(self) -> str:
        """The kind of the page, by status, redirection and content type."""
        if self.status == 413:
            return BODY_LIMIT
        is_redirection = 300 <= self.status < 400 and self.location != ""
        is_login_status = self.status in (401, 407)
        if is_redirection or is_login_status:
            return LOGIN
        if self.is_html and self.status in (200, 403):
            return FILTER
        return "NO_ENVELOPE"

    @property
    def quotation(self) -> str:
        """The server's name and the first words of the page; empty if it has neither."""
        parts = []
        if self.server:
            parts.append(self.server)
        if self.words:
            parts.append(f"“{self.words}”")
        return ", ".join(parts)


def page_of(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    request_bytes: int,
) -> Page:
    """Return a response as a page. The names in ``headers`` are in lower case."""
    media_type = headers.get("content-type", "").lower()
    return Page(
        status=status,
        location=shorten(headers.get("location", ""), _LONGEST_LOCATION),
        is_html="html" in media_type and content.lstrip().startswith(b"<"),
        server=shorten(headers.get("server", ""), _LONGEST_SERVER),
        words=first_words(content),
        request_bytes=request_bytes,
    )


def first_words(content: bytes) -> str:
    """Return the first visible words of a page; empty if there are none.

    Scripts, style sheets, comments and tags are not visible.
    """
    text = content[:_SEARCHED].decode("utf-8", "replace")
    text = _INVISIBLE.sub(" ", text)
    text = _TAG.sub(" ", text)
    text = _SPACE.sub(" ", html.unescape(text)).strip()
    return shorten(text, _LONGEST_WORDS)
