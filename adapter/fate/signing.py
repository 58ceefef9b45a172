"""FATE's signature of requests between sites, where a site asks for it.

A site gives each partner an application: an id, and a token that is never sent. The signature is MD5 twice, over
id, initiator, nonce and time, then over that and the token: it proves who asks, not what. So one that was heard
by any gateway of the node is remembered while it holds, and is good for its own request only, which FATE repeats
where no answer came.
Who needs more uses TLS.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed

VALID_MS = 60_000
"""how far a signed request's time may be from this machine's"""

First = Callable[[str, str, float], str]
"""Told a signature, a request's fingerprint and for how many seconds to remember it: which request came first."""


class Heard:
    """Remembers signatures for as long as they hold; safe to use from several threads."""

    def __init__(self, first: First = lambda _, request, __: request) -> None:
        """``first`` asks what the other gateways of this node have heard; it may wait for a database."""
        self._first = first
        self._lock = threading.Lock()
        self._used: dict[str, tuple[float, str]] = {}
        """signature -> until when it holds, by `time.monotonic`, and the request that came with it first"""

    def fits(self, signature: str, request: str) -> bool:
        """Return whether a signature is new here, or came with the same request before; note it."""
        now, holds = time.monotonic(), 2 * VALID_MS / 1000
        with self._lock:
            for old in list(takewhile(lambda known: self._used[known][0] < now, self._used)):
                del self._used[old]
            known = self._used.get(signature)
        first = known[1] if known is not None else self._first(signature, request, holds)
        with self._lock:
            return self._used.setdefault(signature, (now + holds, first))[1] == request


@dataclass(frozen=True)
class App:
    """What one site gave another to sign with."""

    app_id: str
    app_token: str


@dataclass(frozen=True)
class Site:
    """A partner: ``sends`` is what it gave us, ``expects`` what we gave it; None: no signature."""

    sends: App | None = None
    expects: App | None = None


class Signatures:
    """Signs what goes out, and checks what comes in."""

    def __init__(self, sites: Mapping[NodeId, Site], heard: Heard | None = None) -> None:
        self._sites = sites
        self._heard = heard or Heard()

    def asks(self, node: NodeId) -> bool:
        """Say whether a node has to sign: only then `check` has to wait for anything."""
        return self._sites.get(node, Site()).expects is not None

    def sign(self, node: NodeId, initiator: NodeId) -> Mapping[str, str]:
        """Return the headers for a request to a node; none where it asks for none."""
        app = self._sites.get(node, Site()).sends
        if app is None:
            return {}
        nonce = "".join(secrets.choice("0123456789") for _ in range(4))
        timestamp = str(time.time_ns() // 1_000_000)
        return {
            "Signature": signature(app, initiator, nonce, timestamp),
            "appId": app.app_id,
            "Nonce": nonce,
            "Timestamp": timestamp,
            "initiatorPartyId": initiator,
        }

    def check(self, node: NodeId, headers: Mapping[str, str], path: str = "", body: bytes = b"") -> None:
        """Raise `NotAllowed` where a node that has to sign has not, or wrongly, or for another request."""
        app = self._sites.get(node, Site()).expects
        if app is None:
            return
        said = {name: headers.get(name, "") for name in ("appId", "Timestamp", "Nonce", "Signature")}
        missing = [name for name, value in said.items() if not value]
        if missing:
            text = f"requests of {node} have to be signed: {', '.join(missing)} is missing"
            raise NotAllowed(text, reason="SIGNATURE_MISSING")
        if said["appId"] != app.app_id:
            raise NotAllowed(f"{node} has no application {said['appId'][:40]!r} here", reason="APP_UNKNOWN")
        if not said["Timestamp"].isdecimal() or len(said["Timestamp"]) > 15:
            raise NotAllowed("Timestamp must be milliseconds since 1970", reason="SIGNATURE_WRONG")
        age = time.time_ns() // 1_000_000 - int(said["Timestamp"])
        if abs(age) > VALID_MS:
            raise NotAllowed(
                f"the request was signed {age} ms ago: more than {VALID_MS}", reason="SIGNATURE_EXPIRED"
            )
        wanted = signature(app, headers.get("initiatorPartyId", ""), said["Nonce"], said["Timestamp"])
        if not hmac.compare_digest(wanted.encode(), said["Signature"].encode()):
            raise NotAllowed(f"the signature of {node} does not fit its token", reason="SIGNATURE_WRONG")
        if not self._heard.fits(wanted, hashlib.sha256(path.encode() + b"\0" + body).hexdigest()):
            text = f"this signature of {node} came with another request already: sign each by itself"
            raise NotAllowed(text, reason="SIGNATURE_USED")


def signature(app: App, initiator: NodeId, nonce: str, timestamp: str) -> str:
    """Return the signature of one request."""
    key = _md5(app.app_id + initiator + nonce + timestamp)
    return _md5(key + app.app_token)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
