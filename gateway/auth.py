"""Who may do what on the operators' listener: roles, tokens, and the table of what each role may request."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar, cast

from gateway.domain.spec import NodeId, Note
from gateway.domain.states import replace
from gateway.errors import GatewayError

PREFIX = "bfia_"
BY_PROVIDER = "oidc:"
"""begins the names of tokens that a login at the OpenID provider makes, and of no others"""
_DATA = (
    r"/api/v1/(jobs/[^/]+/((outputs|reports)/.+|archive|bundle)|models/[^/]+.*/export"
    r"|datasets/[^/]+/[^/]+/(preview|download))"
)


class Role(StrEnum):
    """What a token is for."""

    ADMIN = "admin"
    """everything"""
    VENDOR = "vendor"
    """registers components, and sees how they do"""
    PLATFORM = "platform"
    """submits jobs, uploads data, downloads results"""
    VIEWER = "viewer"
    """reads jobs, routes and health; never data, nor logs, which may contain some"""


class Unauthenticated(GatewayError):
    """No valid token."""

    reason = "NO_TOKEN"
    code = 401


class LoginRefused(GatewayError):
    """A login at the OpenID provider did not succeed; ``reason`` says whether by browser, provider or settings."""

    reason = "OIDC_REFUSED"
    code = 403


@dataclass(frozen=True)
class Token:
    """A token as it is kept: never its text."""

    id: str
    name: str
    role: Role
    digest: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


def token_place(token: Token) -> tuple[str, str]:
    """Return where a token stands in a list, the oldest first."""
    return token.created_at.isoformat(timespec="microseconds"), token.id


@dataclass(frozen=True)
class Identity:
    """Who makes a request."""

    name: str
    role: Role


_SEES = (Role.VENDOR, Role.PLATFORM, Role.VIEWER)
RULES = (
    ("GET", r"/(docs|openapi\.json|metrics|health|console)?", _SEES),
    ("GET POST DELETE", r"/api/v1/session", _SEES),
    ("GET", _DATA, (Role.PLATFORM,)),
    ("GET", r"/api/v1/jobs/[^/]+/runs/.+/log", (Role.VENDOR, Role.PLATFORM)),
    ("GET", r"/api/v1/(audit|settings|doctor|events/webhooks).*", (Role.ADMIN,)),
    ("GET", r"/api/v1/.*", _SEES),
    ("POST", r"/api/v1/(jobs|models)(/.*)?", (Role.PLATFORM,)),
    ("PUT DELETE", r"/api/v1/templates/[^/]+", (Role.PLATFORM,)),
    ("POST", r"/api/v1/providers(/[^/]+/(retire|unretire|approve))?", (Role.VENDOR,)),
    ("POST", r"/api/v1/routes/[^/]+/test", (Role.PLATFORM,)),
    ("GET POST", r"/v[12]/(platform/)?schedule/(job/status_all|job/query_job_list)", _SEES),
    ("GET POST", r"/v[12]/(platform/)?schedule/task/get_log.*", (Role.VENDOR, Role.PLATFORM)),
    ("POST", r"/(v1/platform|v2)/schedule/component/register", (Role.VENDOR,)),
    ("GET POST", r"/(v1/platform|v2)/schedule/.*", (Role.PLATFORM,)),
    ("GET", r"/v2/provider/query", _SEES),
    ("POST", r"/v2/provider/.*", (Role.VENDOR,)),
    ("GET POST", r"/v2/component/.*", (Role.PLATFORM,)),
)
"""Methods, a pattern of paths, who may: the first that fits decides.

An admin may do everything; what no row names, an admin alone may do.
"""


def may(
    role: Role,
    method: str,
    path: str,
) -> bool:
    """Tell whether a role may make a request."""
    if role is Role.ADMIN:
        return True
    method = "GET" if method == "HEAD" else method
    fits = (
        roles
        for methods, pattern, roles in RULES
        if method in methods.split() and re.fullmatch(pattern, path)
    )
    return role in next(fits, ())


def new_token(
    name: str,
    role: Role,
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[str, Token]:
    """Return a token's text, to be shown once, and what is kept of it. The text holds 256 random bits."""
    text = PREFIX + secrets.token_urlsafe(32)
    return text, Token(secrets.token_hex(6), name, role, digest(text), now, expires_at)


def digest(text: str) -> str:
    """Return what is kept of a token's text: it is random, so one round of SHA-256 hides it."""
    return hashlib.sha256(text.encode()).hexdigest()


def provider_name(name: str, subject: str) -> str:
    """Return the token name of a person who logged in at the OpenID provider."""
    return f"{BY_PROVIDER}{name}#{digest(subject)[:8]}"


def person_of(name: str) -> str:
    """Return what stays the same of a token's name: people may change their names at an OpenID provider."""
    return name.rpartition("#")[2] if name.startswith(BY_PROVIDER) else name


class Access:
    """Recognises who makes a request."""

    def __init__(
        self,
        find: Callable[[str], Token | None],
        clock: Callable[[], datetime],
        configured: str = "",
    ) -> None:
        """``find`` looks a token up by its digest; ``configured`` is the settings' own token, an admin's."""
        self._find = find
        self._clock = clock
        self._configured = digest(configured) if configured else ""

    def identify(self, text: str) -> Identity:
        """Return whose token it is. Raises `Unauthenticated` with the reason."""
        if not text:
            raise Unauthenticated(
                "send Authorization: Bearer <token>; an admin makes one by bfia-gateway token create"
            )
        found = digest(text)
        if self._configured and secrets.compare_digest(found, self._configured):
            return Identity("operator", Role.ADMIN)
        token = self._find(found)
        if token is None:
            raise Unauthenticated("unknown token", reason="TOKEN_UNKNOWN")
        if token.revoked_at is not None:
            raise Unauthenticated(f"the token of {token.name} is revoked", reason="TOKEN_REVOKED")
        if token.expires_at is not None and token.expires_at <= self._clock():
            text = f"the token of {token.name} expired at {token.expires_at:%Y-%m-%d %H:%M} UTC"
            raise Unauthenticated(text, reason="TOKEN_EXPIRED")
        return Identity(token.name, token.role)


def allowed(method: str, path: str) -> list[str]:
    """Return the roles that may make a request, for a refusal that says so."""
    return [str(role) for role in Role if may(role, method, path)]


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
    """id of the key, or of the FATE application, that signed the request, once the signature was checked"""
    permits: tuple[str, ...] = ()
    """digests of the permits that it brought"""

    def detail(self) -> dict[str, str]:
        """Return what the timeline and the audit say of it."""
        found = {
            "from": self.address,
            "certificate": self.certificate,
            "sha256": self.fingerprint,
            "key": self.key,
        }
        return {name: text for name, text in found.items() if text}


ORIGIN: ContextVar[RequestOrigin | None] = ContextVar("origin", default=None)


def origin() -> RequestOrigin:
    """Return where the request under way comes from; an empty one outside of peers' requests."""
    return ORIGIN.get() or RequestOrigin()


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
        return cast(
            X, replace(after, notes=(*before.notes, *(proven(note, asked) for note in added)))
        )

    return proved


# The tokens by which a container proves which run it is.
#
# A token is a random id, which the database keeps, and a code over it, which only the gateway that starts the
# container can compute: whoever reads the database, or a copy of it, cannot make a token.

_CODE = 32
"""characters"""


class RunTokens:
    """Issues and checks the tokens of the runs that one gateway starts."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, id_: str) -> str:
        """Return the token that belongs to an id."""
        return id_ + self._code(id_)

    def id_of(self, token: str) -> str | None:
        """Return the id that a token belongs to; None for one that was not issued here."""
        id_, code = token[:-_CODE], token[-_CODE:]
        genuine = hmac.compare_digest(code.encode("utf-8", "replace"), self._code(id_).encode())
        return id_ if genuine else None

    def _code(self, id_: str) -> str:
        return hmac.digest(self._key, id_.encode("utf-8", "replace"), "sha256").hex()[:_CODE]
