"""An answer that is not a JSON object, from what stands before a peer: a login page, a filter, a proxy."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import Refused, shorten

LOGIN = "LOGIN_IN_BETWEEN"
FILTER = "FILTER_IN_BETWEEN"
BODY_LIMIT = "BODY_LIMIT_IN_BETWEEN"
REASONS = (LOGIN, FILTER, BODY_LIMIT)

_LONGEST_WORDS = 160
_LONGEST_LOCATION = 200
_READ = 8192  # bytes of a page that are searched for its first words
_UNSEEN = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Page:
    """What a peer's address answered in the place of a JSON object."""

    status: int
    location: str
    is_html: bool
    server: str
    words: str  # the first that a person would see; empty for none
    request_bytes: int

    def refusal(self, node: str) -> Refused:
        """Return the error of a request to a node that this page answers."""
        reason = self.reason
        text = f"{node} answers HTTP {self.status}"
        if reason == BODY_LIMIT:
            text += f" to a request of {self.request_bytes} bytes: a body limit stands before it"
        elif reason == LOGIN and self.location:
            text += f" and redirects to {self.location}: a login page or a proxy stands before it"
        elif reason == LOGIN:
            text += ": a login stands before it"
        elif reason == FILTER:
            text += " with a web page: a filter or a portal stands before it"
        else:
            text += " without a JSON object"
        if self.seen:
            text += f"; it says: {self.seen}"
        return Refused(text, reason=reason)

    @property
    def reason(self) -> str:
        """Which kind of page it is."""
        if self.status == 413:
            return BODY_LIMIT
        redirects = 300 <= self.status < 400 and self.location != ""
        if redirects or self.status in (401, 407):
            return LOGIN
        if self.is_html and self.status in (200, 403):
            return FILTER
        return "NO_ENVELOPE"

    @property
    def seen(self) -> str:
        """The server's name and the first words; empty for neither."""
        quoted = f"“{self.words}”" if self.words else ""
        return ", ".join(filter(None, (self.server, quoted)))


def page_of(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    request_bytes: int,
) -> Page:
    """Return an answer as a page. ``headers`` has lower-case names."""
    return Page(
        status=status,
        location=shorten(headers.get("location", ""), _LONGEST_LOCATION),
        is_html="html" in headers.get("content-type", "").lower()
        and content.lstrip().startswith(b"<"),
        server=shorten(headers.get("server", ""), 60),
        words=first_words(content),
        request_bytes=request_bytes,
    )


def first_words(content: bytes) -> str:
    """Return the first words of a page that a person would see; empty for none."""
    text = content[:_READ].decode("utf-8", "replace")
    text = _TAG.sub(" ", _UNSEEN.sub(" ", text))
    text = _SPACE.sub(" ", html.unescape(text)).strip()
    return shorten(text, _LONGEST_WORDS)
