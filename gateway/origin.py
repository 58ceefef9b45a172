"""Where a peer's request comes from, kept with what it changes and with its refusal."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.domain.spec import NodeId, Note

X = TypeVar("X")


@dataclass
class RequestOrigin:
    """What is known of the sender of the request under way; empty where it is not."""

    address: str = ""
    certificate: str = ""
    """the subject of the certificate that its TLS connection showed"""
    fingerprint: str = ""
    """SHA-256 of that certificate"""
    node: NodeId = ""
    """set once the node may speak here"""
    key: str = ""
    """id of the FATE application that signed the request, once the signature was checked"""

    def detail(self) -> dict[str, str]:
        """Return what the timeline and the audit say of it."""
        found = {
            "from": self.address,
            "certificate": self.certificate,
            "sha256": self.fingerprint,
            "key": self.key,
        }
        return {name: text for name, text in found.items() if text}


_ORIGIN: ContextVar[RequestOrigin | None] = ContextVar("origin", default=None)


def origin() -> RequestOrigin:
    """Return where the request under way comes from; an empty one outside of peers' requests."""
    return _ORIGIN.get() or RequestOrigin()


def proven(note: Note, asked: RequestOrigin | None = None) -> Note:
    """Return a line of a timeline with where the request under way comes from, if its node caused it."""
    asked = asked or origin()
    if not note.by or note.by != asked.node:
        return note
    return replace(note, detail={**note.detail, "origin": asked.detail()})


def with_proof(change: Callable[[X], X]) -> Callable[[X], X]:
    """Return a change of a job's record that proves its lines; another thread may make it."""
    asked = origin()
    if not asked.node:
        return change

    def proved(record: X) -> X:
        before: Any = record
        after: Any = change(record)
        if len(after.notes) <= len(before.notes):
            return cast(X, after)
        added = after.notes[len(before.notes) :]
        return cast(X, replace(after, notes=(*before.notes, *(proven(note, asked) for note in added))))

    return proved


class OriginNoted:
    """An ASGI application before another one: notes the origin of each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its origin noted."""
        found = None
        if scope["type"] == "http":
            found = RequestOrigin((scope.get("client") or ("",))[0], *_certificate(scope))
        before = _ORIGIN.set(found)
        try:
            await self._app(scope, receive, send)
        finally:
            _ORIGIN.reset(before)


def _certificate(scope: Scope) -> tuple[str, str]:
    """Return subject and fingerprint of the client's certificate; empty where it showed none."""
    chain = scope.get("extensions", {}).get("tls", {}).get("client_cert_chain") or ("",)
    return _read(chain[0]) if chain[0] else ("", "")


@lru_cache(maxsize=256)
def _read(pem: str) -> tuple[str, str]:
    certificate = x509.load_pem_x509_certificate(pem.encode("ascii"))
    return certificate.subject.rfc4514_string(), certificate.fingerprint(SHA256()).hex()
