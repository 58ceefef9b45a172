"""Roles, tokens and permissions on the operators' listener.

The module also has the origin of a peer's request, and the tokens of runs.
"""

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

from gateway.domain.records import replace
from gateway.domain.spec import NodeId, Note
from gateway.errors import GatewayError

TOKEN_PREFIX = "bfia_"  # begins every token of a person or program
TOKEN_BYTES = 32  # random bytes in a token
# Begins the names of tokens from logins at the OpenID provider, and no other names.
OPENID_PREFIX = "oidc:"

# Hexadecimal digits that are kept of the digest of a person's subject at the OpenID provider.
_SUBJECT_DIGITS = 8
_RUN_CODE_LENGTH = 32  # characters of the code in a run's token


# ------------------------------------------------------------ roles


class Role(StrEnum):
    """The purpose of a token."""

    ADMIN = "admin"  # everything
    VENDOR = "vendor"  # registers components and sees how they perform
    PLATFORM = "platform"  # submits jobs, uploads data, downloads results
    VIEWER = "viewer"  # reads jobs, routes and health; no data, and no logs, which may contain some


_READERS = (Role.VENDOR, Role.PLATFORM, Role.VIEWER)
# Paths of requests that return data, or results computed from it.
_DATA = (
    r"/api/v1/(jobs/[^/]+/((outputs|reports)/.+|archive|bundle|copy)|models/[^/]+.*/export"
    r"|datasets/[^/]+/[^/]+/(preview|download))"
)

# Methods, a pattern of the whole path, the roles that may use them: the first matching row decides.
# An admin may do everything, including requests that match no row.
RULES = (
    ("GET", r"/(docs|openapi\.json|metrics|health|console)?", _READERS),
    ("GET POST DELETE", r"/api/v1/session", _READERS),
    ("GET", _DATA, (Role.PLATFORM,)),
    ("GET", r"/api/v1/jobs/[^/]+/runs/.+/log", (Role.VENDOR, Role.PLATFORM)),
    ("GET", r"/api/v1/(audit|settings|doctor|tokens|events/webhooks).*", (Role.ADMIN,)),
    ("GET", r"/api/v1/.*", _READERS),
    ("POST", r"/api/v1/(jobs|models)(/.*)?", (Role.PLATFORM,)),
    ("PUT DELETE", r"/api/v1/templates/[^/]+", (Role.PLATFORM,)),
    ("POST", r"/api/v1/providers(/[^/]+/(retire|unretire|approve))?", (Role.VENDOR,)),
    ("POST", r"/api/v1/routes/[^/]+/test", (Role.PLATFORM,)),
    ("GET POST", r"/v[12]/(platform/)?schedule/(job/status_all|job/query_job_list)", _READERS),
    ("GET POST", r"/v[12]/(platform/)?schedule/task/get_log.*", (Role.VENDOR, Role.PLATFORM)),
    ("POST", r"/(v1/platform|v2)/schedule/component/register", (Role.VENDOR,)),
    ("GET POST", r"/(v1/platform|v2)/schedule/.*", (Role.PLATFORM,)),
    ("GET", r"/v2/provider/query", _READERS),
    ("POST", r"/v2/provider/.*", (Role.VENDOR,)),
    ("GET POST", r"/v2/component/.*", (Role.PLATFORM,)),
)


def may(role: Role, method: str, path: str) -> bool:
    """Return whether a role may make a request by an HTTP method to a path.

    The first of the `RULES` that matches decides; without one only an admin may. HEAD is allowed
    where GET is.
    """
    if role is Role.ADMIN:
        return True
    if method == "HEAD":
        method = "GET"
    for methods, pattern, roles in RULES:
        if method in methods.split() and re.fullmatch(pattern, path):
            return role in roles
    return False


def roles_for(method: str, path: str) -> list[str]:
    """Return the roles that may make a request, for the message of a refusal."""
    return [str(role) for role in Role if may(role, method, path)]


# ------------------------------------------------------------ tokens


class Unauthenticated(GatewayError):
    """A request has no valid token."""

    reason = "NO_TOKEN"
    code = 401


class LoginRefused(GatewayError):
    """A login at the OpenID provider failed.

    The ``reason`` shows whether the browser, the provider or the settings are the cause.
    """

    reason = "OIDC_REFUSED"
    code = 403


@dataclass(frozen=True)
class Token:
    """A token as it is stored: never its text."""

    id: str
    name: str
    role: Role
    digest: str
    created_at: datetime
    expires_at: datetime | None = None  # None: it does not expire
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> str:
        """Return the state at a time: valid, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "valid"


@dataclass(frozen=True)
class Identity:
    """The sender of an operator's request."""

    name: str
    role: Role


def token_order(token: Token) -> tuple[str, str]:
    """Return the value by which a list of tokens is sorted, the oldest first."""
    return token.created_at.isoformat(timespec="microseconds"), token.id


def new_token(
    name: str,
    role: Role,
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[str, Token]:
    """Return a token's text and its stored form.

    The text holds 256 random bits and is displayed only once.
    """
    text = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    id_ = secrets.token_hex(6)  # 6 random bytes, 12 characters
    return text, Token(id_, name, role, digest(text), now, expires_at)


def digest(text: str) -> str:
    """Return the stored digest of a token's text.

    The text is long and random, so that one round of SHA-256 hides it; no salt is needed.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def openid_token_name(name: str, subject: str) -> str:
    """Return the name of the token of a person who logged in at the OpenID provider."""
    return f"{OPENID_PREFIX}{name}#{digest(subject)[:_SUBJECT_DIGITS]}"


def person_of(name: str) -> str:
    """Return the part of a token's name that identifies a person.

    For logins by OpenID it is the digest of the subject, as people may change their names.
    """
    if name.startswith(OPENID_PREFIX):
        return name.rpartition("#")[2]
    return name


class Access:
    """Identifies the senders of operators' requests."""

    def __init__(
        self,
        find: Callable[[str], Token | None],
        clock: Callable[[], datetime],
        configured: str = "",
    ) -> None:
        """Keep the sources of tokens.

        - ``find``: looks a token up by its digest; None for an unknown one
        - ``clock``: returns the current time, by which tokens expire
        - ``configured``: an admin's token in the settings; "" if there is none
        """
        self._find = find
        self._clock = clock
        # Without a configured token, the digest of "", which `identify` refuses before it compares.
        self._configured_digest = digest(configured)

    def identify(self, text: str) -> Identity:
        """Return the identity of a token's holder.

        Raises `Unauthenticated` with the reason: no token, or one that is unknown, revoked or
        expired.
        """
        if not text:
            raise Unauthenticated(
                "send Authorization: Bearer <token>; "
                "an admin makes one by bfia-gateway token create"
            )
        text_digest = digest(text)
        if secrets.compare_digest(text_digest, self._configured_digest):
            return Identity("operator", Role.ADMIN)
        token = self._find(text_digest)
        if token is None:
            raise Unauthenticated("unknown token", reason="TOKEN_UNKNOWN")
        self._check_valid(token)
        return Identity(token.name, token.role)

    def _check_valid(self, token: Token) -> None:
        """Raise `Unauthenticated` for a token that is revoked or has expired."""
        if token.revoked_at is not None:
            raise Unauthenticated(f"the token of {token.name} is revoked", reason="TOKEN_REVOKED")
        if token.expires_at is not None and token.expires_at <= self._clock():
            text = f"the token of {token.name} expired at {token.expires_at:%Y-%m-%d %H:%M} UTC"
            raise Unauthenticated(text, reason="TOKEN_EXPIRED")


# ------------------------------------------------------------ the origin of a request


RecordT = TypeVar("RecordT")


@dataclass
class RequestOrigin:
    """The sender of the current request; values that are not known are empty."""

    address: str = ""  # IP address
    certificate: str = ""  # subject of the client certificate of its TLS connection
    fingerprint: str = ""  # SHA-256 of that certificate
    node: NodeId = ""  # set once the node is admitted
    # id of the key or FATE application that signed the request, set once that is checked
    key: str = ""
    permits: tuple[str, ...] = ()  # digests of its permits

    def detail(self) -> dict[str, str]:
        """Return the known values for the timeline and the audit log."""
        values = {
            "from": self.address,
            "certificate": self.certificate,
            "sha256": self.fingerprint,
            "key": self.key,
        }
        return {name: value for name, value in values.items() if value}


ORIGIN: ContextVar[RequestOrigin | None] = ContextVar("origin", default=None)


def origin() -> RequestOrigin:
    """Return the origin of the current request; an empty one outside of peers' requests."""
    return ORIGIN.get() or RequestOrigin()


def with_origin(note: Note, request_origin: RequestOrigin | None = None) -> Note:
    """Return a line of a timeline with the origin of a request, by default the current one.

    The line is returned unchanged unless the node that sent the request caused what it reports.
    """
    request_origin = request_origin or origin()
    if not note.by or note.by != request_origin.node:
        return note
    return replace(note, detail={**note.detail, "origin": request_origin.detail()})


def adding_origin(change: Callable[[RecordT], RecordT]) -> Callable[[RecordT], RecordT]:
    """Return a function that makes a change, and adds the current origin to its new notes.

    The origin is read now, because the change may be made in a thread that does not have this
    context.
    """
    request_origin = origin()
    if not request_origin.node:
        return change

    def change_with_origin(record: RecordT) -> RecordT:
        before: Any = record
        after: Any = change(record)
        old_count = len(before.notes)
        if len(after.notes) <= old_count:
            return cast(RecordT, after)
        new_notes = [with_origin(note, request_origin) for note in after.notes[old_count:]]
        return cast(RecordT, replace(after, notes=(*before.notes, *new_notes)))

    return change_with_origin


# ------------------------------------------------------------ the tokens of runs


class RunTokens:
    """Issues and checks the tokens by which the containers of one gateway prove which run they are.

    A token is a random id, stored in the database, and a code over it that only the gateway can
    compute. Access to the database, or to a copy of it, is therefore not enough to make a token.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, id_: str) -> str:
        """Return the token of an id."""
        return id_ + self._code(id_)

    def id_of(self, token: str) -> str | None:
        """Return the id that a token begins with; None if this gateway did not issue the token."""
        id_ = token[:-_RUN_CODE_LENGTH]
        code = token[-_RUN_CODE_LENGTH:].encode("utf-8", "replace")
        if not hmac.compare_digest(code, self._code(id_).encode()):
            return None
        return id_

    def _code(self, id_: str) -> str:
        """Return the code over an id, which only this gateway can compute."""
        code = hmac.digest(self._key, id_.encode("utf-8", "replace"), "sha256")
        return code.hex()[:_RUN_CODE_LENGTH]
