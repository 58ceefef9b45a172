"""Sealed control requests and their responses: encrypted and bound to each other.

The content key of a request is wrapped as that of a channel message is. The key of its response is
derived from it with a random salt, so that no key is used twice even if a request is answered
twice; this is the construction of Oblivious HTTP (RFC 9458). See docs/sealing.md.
"""

import re
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag

from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed
from gateway.identity.sealing import SEAL_WRONG, ContentKey, Position
from gateway.identity.sealing_suites import SUITES, Aead

SESSION = "control"  # session in the claims of content keys for control requests
SEAL_KEY = "x-seal-key"  # header with the wrapped content key
SEAL = "x-seal"  # header with the number of the request among those of its content key
CONTENT_TYPE = "application/vnd.bfia-gateway.sealed"  # of a sealed body

# Begin the bytes that are authenticated with a request's body, and with a response's.
_REQUEST = "bfia-gateway sealed request v1"
_RESPONSE = "bfia-gateway sealed response v1"
_RESPONSE_KEY = b"bfia-gateway sealed response key v1"  # `info` of the derivation
_SALT_BYTES = 32  # at the beginning of a response's body
_ONLY_CONTENT = Position(sequence=0, part=0)  # each response has a content key of its own
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII)


def read_number(text: str) -> int:
    """Return the number of a request, from the value of its header `SEAL`. Raises `Invalid`."""
    if _NUMBER.fullmatch(text) is None:
        raise Invalid([Problem(SEAL, "must be a whole number", text[:80])])
    return int(text)


@dataclass(frozen=True)
class CoveredHeaders:
    """The parts of a request that its seal covers, each as it is sent; "" for an absent one."""

    method: str
    path: str  # without the prefix of a proxy
    query: str
    source: str
    target: str
    nonce: str
    timestamp: str  # milliseconds since 1970
    permits: str

    def lines(self) -> list[str]:
        """Return a line for each part."""
        return [
            f"@method: {self.method}",
            f"@path: {self.path}",
            f"@query: ?{self.query}",
            f"x-source-node-id: {self.source}",
            f"x-target-node-id: {self.target}",
            f"x-nonce: {self.nonce}",
            f"x-timestamp: {self.timestamp}",
            f"x-mprac-token-set: {self.permits}",
        ]


@dataclass(frozen=True)
class RequestSeal:
    """Seals or opens the body of one request, and the body of its response."""

    key: ContentKey
    number: int  # of the request, among those of the content key; used for one request only
    covered: CoveredHeaders

    def headers(self) -> dict[str, str]:
        """Return the headers by which the target opens the request."""
        return {
            SEAL_KEY: self.key.header,
            SEAL: str(self.number),
            "content-type": CONTENT_TYPE,
        }

    def seal(self, body: bytes) -> bytes:
        """Return the body of the request, encrypted and bound to the covered headers."""
        pieces = self.key.aead.encrypt(self._position.nonce, [body], self._request_data())
        return b"".join(pieces)

    def open(self, body: bytes) -> bytes:
        """Return the plain body of the request.

        Raises `NotAllowed` if the body or a covered header was changed.
        """
        try:
            pieces = self.key.aead.decrypt(self._position.nonce, [body], self._request_data())
        except InvalidTag as error:
            text = (
                f"the request of node {self.covered.source} is not as it was sealed: a header or "
                "the body was changed on the way"
            )
            raise NotAllowed(text, reason=SEAL_WRONG) from error
        return b"".join(pieces)

    def seal_response(self, status: int, body: bytes) -> bytes:
        """Return the body of the response, encrypted and bound to the request and the status."""
        salt = secrets.token_bytes(_SALT_BYTES)
        aead = self._response_aead(salt)
        pieces = aead.encrypt(_ONLY_CONTENT.nonce, [body], self._response_data(status))
        return b"".join([salt, *pieces])

    def open_response(self, status: int, body: bytes) -> bytes:
        """Return the plain body of the response.

        Raises `NotAllowed` if the response was changed, or belongs to another request.
        """
        salt = body[:_SALT_BYTES]
        aead = self._response_aead(salt)
        try:
            pieces = aead.decrypt(
                _ONLY_CONTENT.nonce,
                [body[_SALT_BYTES:]],
                self._response_data(status),
            )
        except InvalidTag as error:
            text = (
                "its seal does not fit: the answer was changed on the way, or belongs to another "
                "request"
            )
            raise NotAllowed(text, reason=SEAL_WRONG) from error
        return b"".join(pieces)

    @property
    def _position(self) -> Position:
        """The place of the request's body among the contents of its key."""
        return Position(self.number, part=0)

    def _request_data(self) -> bytes:
        """Return the bytes that are authenticated with the body of the request."""
        return _encode([_REQUEST, *self._request_lines()])

    def _response_data(self, status: int) -> bytes:
        """Return the bytes that are authenticated with the body of the response."""
        return _encode([_RESPONSE, f"@status: {status}", *self._request_lines()])

    def _request_lines(self) -> list[str]:
        """Return the lines about the request, which request and response share."""
        return [
            *self.covered.lines(),
            f"{SEAL}: {self.number}",
            f"{SEAL_KEY}: {self.key.header}",
        ]

    def _response_aead(self, salt: bytes) -> Aead:
        """Return the cipher for the response with a salt."""
        suite = SUITES[self.key.claims.suite]
        return suite.aead(suite.derive_key(self.key.secret, salt, _RESPONSE_KEY))


def _encode(lines: list[str]) -> bytes:
    """Return lines as they are authenticated."""
    return "\n".join(lines).encode("latin-1")
