"""Middleware: authentication and roles on operators' paths, and the audit of changes and refusals.

The audit contains every change with its result, and no request that only reads: a dry run of a job
changes nothing, and the console sends one at every edit. It also contains refusals: of a known
partner for any reason except a temporary one; of other senders only for a missing or invalid token,
role or route (401 and 403). The sender of a refused request is unproven, so a flood has to be
cheap: a repeated refusal is written once a minute with the number of its repetitions, and at most
`MAX_WRITTEN` different refusals are written per minute.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import Access, Identity, Role, Unauthenticated, may, origin, roles_for
from gateway.errors import GatewayError, NotAllowed, NotFound
from gateway.http.app import refusal
from gateway.ports import Clock
from gateway.runtime.context import acting

log = structlog.get_logger(__name__)

_SESSION = "/api/v1/session"
OIDC = f"{_SESSION}/oidc"
_HEALTH = ("/health", "/health/live", "/health/ready")
# Paths without a token. The pages contain nothing of this node and ask for a token first.
_OPEN = (*_HEALTH, "/docs", "/", "/console", f"{_SESSION}/ways", OIDC, f"{OIDC}/callback")
# Beginnings of the paths of the console's files and of the documentation.
_PAGES = ("/console/", "/docs/")
_PEER_PATHS = ("/v1/interconn/", "/v2/partner/", "/v2/scheduler/")
# Header of the console's changes; a page of another site cannot set it (CSRF protection).
BY_PAGE = "x-console"
_READS = ("GET", "HEAD", "OPTIONS")
# Paths whose requests have a body but only read.
_READS_WITH_BODY = ("/api/v1/jobs/plan",)
_CACHE_SECONDS = 2.0  # lifetime of a cached identity: a revoked token works that long
_STREAM_SECONDS = 1.0  # the same for streams, which check their token every half second
CACHE_SIZE = 1000  # cached identities; a full cache is emptied
# The sender on a listener without tokens: any user of this machine.
_LOCAL = Identity("operator", Role.ADMIN)
MAX_WRITTEN = 20  # different refusals written per minute
MAX_COUNTED = 1000  # different refusals with a count of their repetitions
_MINUTE = timedelta(minutes=1)
_DENIED = (401, 403)  # codes of the refusals of unknown senders that are audited
_BUSY = "RESOURCES_BUSY"  # reason of a refusal that may succeed later

# Writes an audit entry: time, user, action, HTTP status, code of the refusal, detail.
Record = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]
# Writes a refusal: user, action, code, detail.
WriteRefusal = Callable[[str, str, int, Mapping[str, Any]], None]


def cookie_name(node: str) -> str:
    """Return the name of a node's session cookie.

    Each node has another name, since two nodes at ports of one host share their cookies.
    """
    digest = hashlib.sha256(node.encode()).hexdigest()
    return f"bfia-{digest[:12]}"


@dataclass
class Guard:
    """ASGI middleware: authenticates requests, checks roles, and records changes.

    Without ``access``, no token is needed. ``cookie`` names the cookie with a browser's token.
    Tokens are checked, and ``record`` is called, in threads of ``limiter``.
    """

    app: ASGIApp
    access: Access | None
    record: Record
    clock: Clock
    limiter: CapacityLimiter
    cookie: str = ""
    _cache: dict[str, tuple[float, Identity]] = field(
        default_factory=dict,
        init=False,
    )

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass an allowed request on, and record a change."""
        path = scope["path"]
        if path in _OPEN or path.startswith(_PAGES):
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            identity = await self._identify(scope)
            state["asker"] = identity.name  # for the audit of a refusal
            _check_path_and_role(identity, scope["method"], path)
        except GatewayError as error:
            if not _is_login_check(scope, error):
                state["refused"] = error
            headers = None
            if isinstance(error, Unauthenticated):
                headers = {"www-authenticate": "Bearer"}
            await refusal(error, scope, headers)(scope, receive, send)
            return
        # For the handlers: the user of a token, "" on a listener without tokens.
        state["operator"] = identity.name if self.access else ""
        state["role"] = str(identity.role)
        # For handlers of streams.
        state["check_again"] = partial(self._check_again, scope)
        if scope["method"] in _READS:
            await self.app(scope, receive, send)
            return
        if path in _READS_WITH_BODY:
            with acting(state["operator"]):
                await self.app(scope, receive, send)
            return
        with acting(state["operator"]):
            await self._run_audited(identity.name, scope, receive, send)

    async def _identify(self, scope: Scope) -> Identity:
        """Return the sender of a request. Raises `Unauthenticated`."""
        if self.access is None:
            return _LOCAL
        return await self._identify_token(
            self.access,
            self._token(scope),
            _CACHE_SECONDS,
        )

    def _token(self, scope: Scope) -> str:
        """Return the bearer token, or for reads and the console's changes the cookie's token.

        "" if the request has neither.
        """
        headers = _decoded_headers(scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if token and scheme.lower() == "bearer":
            return token
        accepts_cookie = scope["method"] in _READS or BY_PAGE in headers
        if accepts_cookie:
            cookies = cookie_parser(headers.get("cookie", ""))
            return cookies.get(self.cookie, "")
        return ""

    async def _check_again(self, scope: Scope) -> None:
        """Raise `Unauthenticated` if the token of an open stream was revoked or has expired."""
        token = self._token(scope)
        if self.access is not None and token:
            await self._identify_token(self.access, token, _STREAM_SECONDS)

    async def _identify_token(
        self,
        access: Access,
        token: str,
        cache_seconds: float,
    ) -> Identity:
        """Return the owner of a token, from the cache if it is recent enough.

        Raises `Unauthenticated`.
        """
        if token in self._cache:
            cached_at, identity = self._cache[token]
            if time.monotonic() - cached_at < cache_seconds:
                return identity
        identity = await anyio.to_thread.run_sync(
            access.identify,
            token,
            limiter=self.limiter,
        )
        if len(self._cache) >= CACHE_SIZE:
            self._cache.clear()
        self._cache[token] = (time.monotonic(), identity)
        return identity

    async def _run_audited(
        self,
        user: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run the application and record its result before the end of the response is sent."""
        state = scope["state"]
        state["audited"] = True
        status = 500  # recorded if the application fails before it responds
        start = self.clock()
        is_written = False

        async def write() -> None:
            nonlocal is_written
            is_written = True
            refused: GatewayError | None = state.get("refused")
            code = None if refused is None else refused.code
            work = partial(
                self._write, user, _action(scope), start, status, code, _change_detail(state)
            )
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(
                    work,
                    limiter=self.limiter,
                )

        async def send_after_write(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False) and not is_written:
                await write()  # a client with the complete response finds the change in the audit
            await send(message)

        try:
            await self.app(scope, receive, send_after_write)
        finally:
            if not is_written:
                await write()

    def _write(
        self,
        user: str,
        action: str,
        at: datetime,
        status: int,
        code: int | None,
        detail: Mapping[str, Any],
    ) -> None:
        """Write an audit entry. A failure is only logged, as the change has been made already."""
        try:
            self.record(at, user, action, status, code, detail)
        except Exception:
            log.exception(
                "a change is not in the audit log",
                who=user,
                action=action,
                status=status,
            )


def _check_path_and_role(identity: Identity, method: str, path: str) -> None:
    """Raise `NotFound` for a path of the peer listener, `NotAllowed` without the role."""
    if path.startswith(_PEER_PATHS):
        text = f"no such path on this listener: {path}; other nodes use listen.peer"
        raise NotFound(text, reason="PATH_UNKNOWN")
    if not may(identity.role, method, path):
        roles = ", ".join(roles_for(method, path))
        request = f"{method} {path}"
        text = f"{identity.name} has the role {identity.role}; {request} is open to {roles}"
        raise NotAllowed(text)


def _change_detail(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the audit detail of a change.

    It has the ids in the request (``asked``) and in the response (``answered``), the handler's
    notes, and the refusal.
    """
    detail = {key: state[key] for key in ("asked", "answered") if state.get(key)}
    detail |= state.get("audit") or {}
    refused: GatewayError | None = state.get("refused")
    if refused is not None:
        detail["refused"] = f"{refused.reason}: {refused.message}"[:500]
    return detail


def _decoded_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers as texts; the last one of a repeated header counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _is_login_check(scope: Scope, error: GatewayError) -> bool:
    """Return whether an error only tells the console that its browser is not logged in."""
    return error.reason == "NO_TOKEN" and (scope["method"], scope["path"]) == ("GET", _SESSION)


class Refusals:
    """Counts refusals and writes some of them into the audit log. Thread-safe."""

    def __init__(self, add: Record, clock: Clock) -> None:
        self._add = add
        self._clock = clock
        self._lock = threading.Lock()
        # Refusal -> time of its last entry, repetitions since.
        self._counts: dict[tuple[str, ...], tuple[datetime, int]] = {}
        self._minute = clock()  # the beginning of the current minute
        self._written = 0  # refusals written in this minute
        # Refusals that no entry counts yet: those over the limit of the minute, and repetitions
        # that `_remember` forgot. Every entry takes this count and sets it back to 0.
        self._others = 0

    def due(self, *key: str) -> WriteRefusal | None:
        """Count a refusal, without using the database.

        ``key``: texts by which equal refusals are recognised. Return a function that writes the
        refusal; None if no entry is due.
        """
        key = tuple(part[:255] for part in key)
        now = self._clock()
        with self._lock:
            counts = self._count(key, now)
        if counts is None:
            return None
        return partial(
            self._write,
            now,
            origin().detail(),
            counts,
        )

    def _count(
        self,
        key: tuple[str, ...],
        now: datetime,
    ) -> dict[str, str] | None:
        """Count a refusal; return the counts for its entry, None if no entry is due.

        - ``repeated``: repetitions of this refusal since its last entry
        - ``others``: the count of `_others`, which begins again at 0

        A count of 0 is left out.
        """
        repeated = 0
        if key in self._counts:
            last_written, repeated = self._counts[key]
            if now - last_written < _MINUTE:
                self._counts[key] = (last_written, repeated + 1)
                return None
        if not self._may_write(now):
            self._others += 1
            return None
        self._remember(key, now)
        counts = {
            "repeated": str(repeated),
            "others": str(self._others),
        }
        self._others = 0
        return {name: count for name, count in counts.items() if count != "0"}

    def _may_write(self, now: datetime) -> bool:
        """Count an entry of the current minute; return False if the minute has `MAX_WRITTEN`."""
        if now - self._minute >= _MINUTE:
            self._minute = now
            self._written = 0
        if self._written >= MAX_WRITTEN:
            return False
        self._written += 1
        return True

    def _remember(
        self,
        key: tuple[str, ...],
        now: datetime,
    ) -> None:
        """Begin to count the repetitions of a refusal.

        If `MAX_COUNTED` refusals are counted already, forget them first.
        """
        self._counts.pop(key, None)  # its repetitions are in the entry that is due
        if len(self._counts) >= MAX_COUNTED:
            self._others += sum(count for _, count in self._counts.values())
            self._counts.clear()
        self._counts[key] = (now, 0)

    def _write(
        self,
        at: datetime,
        origin_detail: Mapping[str, Any],
        counts: Mapping[str, str],
        user: str,
        action: str,
        code: int,
        detail: Mapping[str, Any],
    ) -> None:
        """Write a refusal into the log and the audit."""
        entry = {
            **origin_detail,
            **detail,
            **counts,
        }
        # The audit entry has the message, too; the log has only the reason.
        logged = {key: value for key, value in entry.items() if key != "message"}
        log.warning("refused", who=user, action=action, **logged)
        try:
            # A refusal's code is its HTTP status, too.
            self._add(at, user, action, code, code, entry)
        except Exception as error:  # the request stays refused, even without the database
            log.warning(
                "a refusal is not in the audit",
                cause=str(error)[:500],
            )

    def not_relayed(
        self,
        source: str,
        target: str,
        reason: str,
        message: str,
    ) -> None:
        """Record a request between two other nodes that this node does not relay."""
        write = self.due("relay", source, target, reason)
        if write is None:
            return
        detail = {
            "reason": reason,
            "target": target[:255],
            "message": message[:1000],
        }
        write(_node_label(source), "relay", 403, detail)

    def denied(
        self,
        scope: Scope,
        claims: str,
        error: GatewayError,
    ) -> None:
        """Record a request from a sender without the right to speak for the nodes it claims.

        ``claims`` has the ids of these nodes, separated by commas.
        """
        address = address_of(scope)
        write = self.due("peer", claims, address, error.reason)
        if write is None:
            return
        detail = {
            "reason": error.reason,
            "from": address,
            "message": error.message[:1000],
        }
        write(_node_label(claims), _action(scope), 403, detail)


class Partners(NamedTuple):
    """Counters for the refusals of known nodes."""

    knows: Callable[[str], bool]
    # Returns the counter of one node. Each has a separate number of entries per minute, so that a
    # node's refusals do not use up the entries of another node.
    counter_of: Callable[[str], Refusals]
    # The counter of requests that claim a known node without a valid signature or certificate.
    unproven: Refusals


def noting_refusals(
    app: ASGIApp,
    refusals: Refusals,
    claimed: Callable[[Scope], str],
    limiter: CapacityLimiter,
    partners: Partners | None = None,
) -> ASGIApp:
    """Wrap an application, and record each request that it refuses.

    The application marks a refused request by ``refused`` in the request's state. ``claimed``
    returns the node that a request names as its sender.
    """
    recorder = _RefusalRecorder(refusals, claimed, limiter, partners)

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            await app(scope, receive, send)
        finally:
            state = scope.get("state") or {}
            # A change is in the audit already, with its result.
            if "refused" in state and "audited" not in state:
                await recorder.record(scope, state, state["refused"])

    return serve


class _RefusalRecorder(NamedTuple):
    """Writes the refusals of one listener into the audit."""

    refusals: Refusals
    claimed: Callable[[Scope], str]
    limiter: CapacityLimiter
    partners: Partners | None  # None: refusals of known nodes are not counted apart

    async def record(
        self,
        scope: Scope,
        state: Mapping[str, Any],
        refused: GatewayError,
    ) -> None:
        """Record the refusal of a request, if the module's docstring says that it is audited."""
        partner = self._partner(scope, refused)
        if not partner and refused.code not in _DENIED:
            return
        sender = state.get("asker", "") or self._node_sender(scope, partner)
        address = address_of(scope)
        ids = state.get("asked") or {}
        if partner:
            counter = self._partner_counter(partner)
            # A partner's refusals are also told apart by path and ids, so that each is audited. For
            # unknown senders that would let a flood fill the audit.
            write = counter.due(sender, address, refused.reason, scope["path"], *ids.values())
        else:
            write = self.refusals.due(sender, address, refused.reason)
        if write is None:
            return
        detail: dict[str, Any] = {
            "reason": refused.reason,
            "from": address,
            "message": refused.message[:500],
        }
        if ids:
            detail["asked"] = ids
        work = partial(
            write,
            sender,
            _action(scope),
            refused.code,
            detail,
        )
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(
                work,
                limiter=self.limiter,
            )

    def _partner(self, scope: Scope, refused: GatewayError) -> str:
        """Return the id of the refused partner.

        "" if the sender is an unknown node, or the refusal is temporary.
        """
        is_temporary = refused.code >= 500 or refused.reason == _BUSY
        if self.partners is None or is_temporary:
            return ""
        node = origin().node or self.claimed(scope)
        if node and self.partners.knows(node):
            return node
        return ""

    def _partner_counter(self, partner: str) -> Refusals:
        """Return a partner's own counter, or `Partners.unproven` for a request without a proof.

        A signature or a client certificate proves that the partner has sent the request.
        """
        assert self.partners is not None
        is_proven = origin().key or origin().fingerprint
        if is_proven:
            return self.partners.counter_of(partner)
        return self.partners.unproven

    def _node_sender(self, scope: Scope, partner: str) -> str:
        """Return the node to which the audit attributes a refusal.

        This is the partner, or else the node that the request claims to come from; "somebody" if it
        claims none.
        """
        node = partner or self.claimed(scope)
        if not node:
            return "somebody"
        return _node_label(node)


def address_of(scope: Scope) -> str:
    """Return a request's client address, "" if the server names none."""
    client = scope.get("client") or ("",)
    return str(client[0])


def _action(scope: Scope) -> str:
    """Return a request as the audit names it: method and path."""
    return f"{scope['method']} {scope['path']}"[:500]


def _node_label(name: str) -> str:
    """Return a node as the audit names it; ``name`` is its id, "" if the request names none."""
    return f"node {name or '(none named)'}"[:255]
