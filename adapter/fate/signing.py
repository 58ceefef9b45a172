"""FATE's signatures of requests between sites that require them.

A site signs as an application, which has an id, and a token that is never sent. The signature is an
MD5 hash of a hash: first id, initiator, nonce and time are hashed, then that hash and the token. It
proves the sender of a request but not its content, and is valid for a minute. So every gateway of
the node remembers a signature while it could be valid, and accepts it for one request only; FATE
may repeat that same request if it got no response. Sites that need stronger proof use TLS.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping

from gateway.config.schema.partners import FateApp, FateSite
from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed
from gateway.identity.signatures import UsedSignatures

VALID_MS = 60_000  # largest difference between the time that was signed and this machine's
# How long a used signature is remembered: it is valid from a minute before the signed time to a
# minute after.
REMEMBERED_SECONDS = 2 * VALID_MS / 1000
_LONGEST_TIMESTAMP = 15  # digits
_NONCE_DIGITS = 4  # as FATE's own nodes send them
_NS_PER_MS = 1_000_000
_HEADERS = ("appId", "Timestamp", "Nonce", "Signature")  # names of the headers of a signature


class SignedHeaders:
    """The signature headers of a request; ``missing`` has the names of those that it lacks."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """``headers``: all headers of the request; the case of their names does not matter."""
        by_name = {name.lower(): value for name, value in headers.items()}
        values = [by_name.get(name.lower(), "") for name in _HEADERS]
        self.app_id, self.timestamp, self.nonce, self.signature = values
        self._initiator = by_name.get("initiatorpartyid", "")
        self.missing = [name for name, value in zip(_HEADERS, values, strict=True) if not value]

    def check(
        self,
        app: FateApp,
        now_ms: int,
        used: UsedSignatures,
        request: str,
    ) -> None:
        """Raise `NotAllowed` unless the application has signed recently and for this request only.

        ``now_ms``: milliseconds since 1970. ``used``: the signatures of earlier requests.
        ``request``: a hash that identifies the request.
        """
        is_number = self.timestamp.isascii() and self.timestamp.isdecimal()
        if not is_number or len(self.timestamp) > _LONGEST_TIMESTAMP:
            raise NotAllowed("Timestamp must be milliseconds since 1970", reason="SIGNATURE_WRONG")
        age = now_ms - int(self.timestamp)
        if abs(age) > VALID_MS:
            text = f"the request was signed {age} ms ago: more than {VALID_MS}; compare the clocks"
            raise NotAllowed(text, reason="SIGNATURE_EXPIRED")
        expected = signature(app, self._initiator, self.nonce, self.timestamp)
        if not hmac.compare_digest(expected.encode(), self.signature.lower().encode()):
            text = f"the signature does not match the token of application {app.app_id}"
            raise NotAllowed(text, reason="SIGNATURE_WRONG")
        if not used.accept(expected, request):
            text = (
                "this signature was used for another request already: sign every request "
                "separately, or try again"
            )
            raise NotAllowed(text, reason="SIGNATURE_USED")


class Signatures:
    """Signs outgoing requests and checks incoming ones."""

    def __init__(
        self, sites: Mapping[NodeId, FateSite], used: UsedSignatures | None = None
    ) -> None:
        """``used``: the signatures of earlier requests; None: only this object remembers them."""
        self._sites = sites
        self._used = used or UsedSignatures(REMEMBERED_SECONDS)

    def must_sign(self, node: NodeId) -> bool:
        """True if a partner node has to sign its requests."""
        return self._sites.get(node, FateSite()).expects is not None

    def sign(
        self,
        node: NodeId,
        initiator: NodeId,
    ) -> Mapping[str, str]:
        """Return the headers that sign a request to a node; empty if it requires no signature."""
        app = self._sites.get(node, FateSite()).sends
        if app is None:
            return {}
        nonce = "".join(secrets.choice("0123456789") for _ in range(_NONCE_DIGITS))
        timestamp = str(time.time_ns() // _NS_PER_MS)
        values = (
            app.app_id,
            timestamp,
            nonce,
            signature(app, initiator, nonce, timestamp),
        )
        headers = dict(zip(_HEADERS, values, strict=True))
        headers["initiatorPartyId"] = initiator
        return headers

    def check(
        self,
        node: NodeId,
        headers: Mapping[str, str],
        path: str = "",
        body: bytes = b"",
    ) -> None:
        """Check the signature of a partner's request, if the partner has to sign.

        ``path``: with the query. Raises `NotAllowed` for a signature that is missing, wrong, or
        used for another request before.
        """
        app = self._sites.get(node, FateSite()).expects
        if app is None:
            return
        signed = SignedHeaders(headers)
        if signed.missing:
            text = f"requests of {node} have to be signed: {', '.join(signed.missing)} is missing"
            raise NotAllowed(text, reason="SIGNATURE_MISSING")
        if signed.app_id != app.app_id:
            raise NotAllowed(
                f"{node} has no application {signed.app_id[:40]!r} here", reason="APP_UNKNOWN"
            )
        request = hashlib.sha256(path.encode() + b"\0" + body).hexdigest()
        signed.check(
            app,
            time.time_ns() // _NS_PER_MS,
            self._used,
            request,
        )


def signature(
    app: FateApp,
    initiator: str,
    nonce: str,
    timestamp: str,
) -> str:
    """Return the signature of one request, as FATE defines it."""
    return _md5(_md5(app.app_id + initiator + nonce + timestamp) + app.app_token)


def _md5(text: str) -> str:
    """Return the MD5 hash of a text in hexadecimal digits."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
