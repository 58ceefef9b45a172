"""Responses without a JSON object, from a login page, a filter or a proxy in front of a peer."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import Refused, shorten

LOGIN = "LOGIN_IN_BETWEEN"
FILTER = "FILTER_IN_BETWEEN"
BODY_LIMIT = "BODY_LIMIT_IN_BETWEEN"
NO_ENVELOPE = "NO_ENVELOPE"  # a page of no known kind
KNOWN_REASONS = (LOGIN, FILTER, BODY_LIMIT)
# HTTP status -> reason
_REASON_BY_STATUS: Mapping[int, str] = {
    401: LOGIN,
    407: LOGIN,
    413: BODY_LIMIT,
}

# The most characters of each text of a page that a message quotes
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
        """Return the error for a request to ``node`` that got this page.

        The error's text quotes the page, and its reason is the kind of the page.
        """
        text = f"{node} answers HTTP {self.status}{self._cause()}"
        if self.quotation:
            text += f"; it says: {self.quotation}"
        return Refused(text, reason=self.reason)

    def _cause(self) -> str:
        """Return the end of the sentence "<node> answers HTTP <status>": where the page is from.

        For `NO_ENVELOPE` the sender is unknown, and the text says only how the page differs from an
        answer of a peer.
        """
        login = ": a login stands before it"
        if self.location:
            login = f" and redirects to {self.location}: a login page or a proxy stands before it"
        causes = {
            BODY_LIMIT: (
                f" to a request of {self.request_bytes} bytes: a body limit stands before it"
            ),
            FILTER: " with a web page: a filter or a portal stands before it",
            LOGIN: login,
            NO_ENVELOPE: " without a JSON object",
        }
        return causes[self.reason]

    @property
    def reason(self) -> str:
        """The kind of the page, by status, redirection and content type.

        One of `KNOWN_REASONS`, or `NO_ENVELOPE` for a page of no known kind.
        """
        # The last rule that applies decides.
        reason = _REASON_BY_STATUS.get(self.status, NO_ENVELOPE)
        is_redirection = 300 <= self.status < 400
        if is_redirection and self.location:
            reason = LOGIN
        if self.is_html and self.status in (200, 403):
            reason = FILTER
        return reason

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
    """Return a response as a page, with shortened texts.

    The names in ``headers`` are in lower case. ``request_bytes`` is the size of the request's body.
    """
    media_type = headers.get("content-type", "").lower()
    location = headers.get("location", "")
    server = headers.get("server", "")
    begins_with_tag = content.lstrip().startswith(b"<")
    return Page(
        status=status,
        location=shorten(location, _LONGEST_LOCATION),
        is_html="html" in media_type and begins_with_tag,
        server=shorten(server, _LONGEST_SERVER),
        words=first_words(content),
        request_bytes=request_bytes,
    )


def first_words(content: bytes) -> str:
    """Return the first visible words of a page; empty if there are none.

    Scripts, style sheets, comments and tags are not visible. Bytes that are not UTF-8 are replaced.
    """
    text = content[:_SEARCHED].decode("utf-8", "replace")
    text = _INVISIBLE.sub(" ", text)
    text = _TAG.sub(" ", text)
    text = _SPACE.sub(" ", html.unescape(text)).strip()
    return shorten(text, _LONGEST_WORDS)
