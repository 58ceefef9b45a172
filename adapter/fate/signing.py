"""FATE's signatures of requests: between sites that require them, and of its tools at a site.

An application has an id and a token that is never sent. The signature is MD5 twice: over id, user (between sites
the initiator), nonce and time, then over that and the token. It proves who sends a request, not what, and is valid
for a minute. So every gateway of the node remembers it for that long and accepts it for its own request only,
which FATE repeats if no response came. Where that is not enough, use TLS.

``flow init --app-id … --app-token …`` makes FATE's tools sign. A signature of theirs for a request that changes
something is accepted once; of a read, for the same read only. FATE's nonces have four digits and its times whole
seconds, so of the requests of one second its tools sign one in 9,000 like another.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from uuid import uuid4

from gateway.auth import Identity, Unauthenticated
from gateway.config.schema import FateApp, FateClient, FateSite
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, NotAllowed
from gateway.identity.signatures import UsedSignatures
from gateway.ports import Clock

VALID_MS = 60_000
"""how far a signed request's time may be from this machine's"""
REMEMBERED = 2 * VALID_MS / 1000
"""seconds"""
_NAMES = ("appId", "Timestamp", "Nonce", "Signature")


class SignedHeaders:
    """The headers of a request that say who signed it, whatever their case."""

    def __init__(self, headers: Mapping[str, str], user: str) -> None:
        """``user``: the name of the header with whose value the signature begins after the id."""
        known = {name.lower(): value for name, value in headers.items()}
        values = [known.get(name.lower(), "") for name in _NAMES]
        self.app_id, self.timestamp, self.nonce, self.signature = values
        self._user = known.get(user.lower(), "")
        self.missing = [name for name, value in zip(_NAMES, values, strict=True) if not value]

    def check(
        self, app: FateApp, now_ms: int, used: UsedSignatures, request: str, error: type[GatewayError] = NotAllowed
    ) -> None:
        """Raise ``error`` unless the application has signed, in time, and this request only."""
        if not (self.timestamp.isascii() and self.timestamp.isdecimal()) or len(self.timestamp) > 15:
            raise error("Timestamp must be milliseconds since 1970", reason="SIGNATURE_WRONG")
        age = now_ms - int(self.timestamp)
        if abs(age) > VALID_MS:
            text = f"the request was signed {age} ms ago: more than {VALID_MS}; compare the clocks"
            raise error(text, reason="SIGNATURE_EXPIRED")
        wanted = signature(app, self._user, self.nonce, self.timestamp)
        if not hmac.compare_digest(wanted.encode(), self.signature.lower().encode()):
            text = f"the signature does not match the token of application {app.app_id}"
            raise error(text, reason="SIGNATURE_WRONG")
        if not used.accept(wanted, request):
            text = "this signature was used for another request already: sign each request, or try again"
            raise error(text, reason="SIGNATURE_USED")


class Signatures:
    """Signs outgoing requests and checks incoming ones."""

    def __init__(self, sites: Mapping[NodeId, FateSite], used: UsedSignatures | None = None) -> None:
        self._sites = sites
        self._used = used or UsedSignatures(REMEMBERED)

    def asks(self, node: NodeId) -> bool:
        """Whether a node has to sign."""
        return self._sites.get(node, FateSite()).expects is not None

    def sign(self, node: NodeId, initiator: NodeId) -> Mapping[str, str]:
        """Return the headers that sign a request to a node; none if it requires none."""
        app = self._sites.get(node, FateSite()).sends
        if app is None:
            return {}
        nonce = "".join(secrets.choice("0123456789") for _ in range(4))
        timestamp = str(time.time_ns() // 1_000_000)
        values = (app.app_id, timestamp, nonce, signature(app, initiator, nonce, timestamp))
        return {**dict(zip(_NAMES, values, strict=True)), "initiatorPartyId": initiator}

    def check(self, node: NodeId, headers: Mapping[str, str], path: str = "", body: bytes = b"") -> None:
        """Raise `NotAllowed` if a node that has to sign has not, or wrongly, or for another request."""
        app = self._sites.get(node, FateSite()).expects
        if app is None:
            return
        signed = SignedHeaders(headers, "initiatorPartyId")
        if signed.missing:
            text = f"requests of {node} have to be signed: {', '.join(signed.missing)} is missing"
            raise NotAllowed(text, reason="SIGNATURE_MISSING")
        if signed.app_id != app.app_id:
            raise NotAllowed(f"{node} has no application {signed.app_id[:40]!r} here", reason="APP_UNKNOWN")
        request = hashlib.sha256(path.encode() + b"\0" + body).hexdigest()
        signed.check(app, time.time_ns() // 1_000_000, self._used, request)


class ClientSignatures:
    """Identifies who signed a request."""

    def __init__(self, apps: Mapping[str, FateClient], clock: Clock, used: UsedSignatures | None = None) -> None:
        self._apps = apps
        self._clock = clock
        self._used = used or UsedSignatures(REMEMBERED)

    def identify(self, headers: Mapping[str, str], read: str) -> Identity | None:
        """Return who signed, None without a signature. Raises `Unauthenticated`; may wait for the database.

        ``read``: method and path of a request that changes nothing; empty for any other.
        """
        signed = SignedHeaders(headers, "username")
        if len(signed.missing) == 4:
            return None
        if signed.missing:
            text = f"a signed request lacks {', '.join(signed.missing)}"
            raise Unauthenticated(text, reason="SIGNATURE_MISSING")
        app = self._apps.get(signed.app_id)
        if app is None:
            text = f"unknown application {signed.app_id[:40]!r}: the setting fate.clients names those there are"
            raise Unauthenticated(text, reason="APP_UNKNOWN")
        request = hashlib.sha256(read.encode("utf-8", "replace")).hexdigest() if read else uuid4().hex
        now_ms = int(self._clock().timestamp() * 1000)
        signed.check(
            FateApp(app_id=signed.app_id, app_token=app.app_token), now_ms, self._used, request, Unauthenticated
        )
        return Identity(signed.app_id, app.role)


def signature(app: FateApp, user: str, nonce: str, timestamp: str) -> str:
    """Return the signature of one request."""
    return _md5(_md5(app.app_id + user + nonce + timestamp) + app.app_token)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
