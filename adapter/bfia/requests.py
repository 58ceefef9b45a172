"""The shared parts of this protocol's routers: senders, signatures, parameters and threads."""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia.channel.bodies import announced
from adapter.bfia.channel.codec import CHANNEL
from adapter.bfia.control_sealing import RequestOpener, is_sealed
from adapter.bfia.envelope import ok
from adapter.bfia.paths import JOB_AUDIT, NEVER_SIGNED, NODE, ROOT, SCHEDULE
from adapter.bfia.peer import UNSIGNED
from adapter.bfia.profiles import Profile
from adapter.bfia.wire import Answer, Empty
from adapter.body import read_json, without_nulls
from gateway.auth import origin
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import MISSING, Invalid, NotAllowed, problems_of
from gateway.http.encoded_bodies import SENT_DIGEST
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import (
    Signable,
    SignableResponse,
    Verifier,
    digest,
    headers,
    nonce_of,
    sign,
)
from gateway.jobs.trust import presented_digests
from gateway.ports import Limiters
from gateway.runtime.context import new_trace_id, traced
from route_table.certificates import key_pin, public_key
from route_table.model import Route
from route_table.proof import Proof

M = TypeVar("M", bound=BaseModel)
X = TypeVar("X")
W = TypeVar("W", bound=Callable[..., Any])
Done = Answer[Empty]  # the bare success of most commands

NO_ROUTE = "node {} has no enabled route here: ask the admin of {} for one"
_BETWEEN_NODES = f"{ROOT}/"  # beginning of the standard's paths between nodes
_SIGNED = (_BETWEEN_NODES, "/v2/")  # beginnings of the paths whose requests may be signed
_REFUSAL_TEXT = "x-auth-sign is not accepted; this node's own log and audit say why"
_HELLO = f"{SCHEDULE}/node/hello"  # its endpoint decides about unknown senders itself

# Paths for nodes without a route. The paths of a contract need its id, a secret of both sides.
OPEN = NEVER_SIGNED | {
    f"{NODE}/{name}" for name in ("health", "contract/query", "contract/terminate")
}

# Paths that a node without a route may call for a running job in which it takes part: the paths for
# requests of the job's scheduling node, and those for requests of its parties. ``job/create`` is
# among them only so that a creation can be repeated: a new job of such a node is refused.
_OF_SCHEDULING_NODE = (
    "job/create",
    "job/start",
    "job/stop",
    "task/start",
    "task/stop",
    "task/poll",
    "job/resource/apply",
    "job/resource/return",
    "job/parameters/offer",
)
_OF_PARTY = (
    "task/callback",
    "job/audit_confirm",
    "job/stop_all",
    "job/status_all",
    "job/resource/free",
)
OF_PARTIES = frozenset(f"{SCHEDULE}/{path}" for path in (*_OF_SCHEDULING_NODE, *_OF_PARTY))

# Paths whose bodies hold ids, states and short reasons, but no job and no parameters.
OF_IDS = frozenset(
    f"{SCHEDULE}/{name}"
    for name in (
        "job/start",
        "job/stop",
        "job/stop_all",
        "job/suspend",
        "job/resume",
        "job/delete",
        "job/resource/apply",
        "job/resource/return",
        "job/resource/free",
        "job/audit_confirm",
        "task/start",
        "task/stop",
        "task/clean",
        "task/poll",
        "task/callback",
        "output/metadata",
    )
) | {f"{JOB_AUDIT}/confirm", f"{JOB_AUDIT}/terminate"}
IDS_BYTES = 128 * 1024  # most bytes of a body at these paths; a thousand of the longest ids fit


@dataclass(frozen=True)
class Incoming:
    """The headers of a request; empty texts for absent ones."""

    source: NodeId  # the node that the request names as its sender
    target: NodeId  # the node that it is for
    trace_id: str
    permits: str = ""  # ``x-mprac-token-set``


# Trace ids that fit into a header and an environment variable; others count as absent.
_TRACE = re.compile(r"[\x21-\x7e]{1,128}")
_INCOMING = "bfia.incoming"  # key of the `Incoming` in a request's scope
# Headers that name the node that sends a request
_CLAIMS = (b"x-source-node-id", b"x-node-id", b"x-ptp-source-node-id", b"x-ptp-from-node-id")


def incoming(request: Request) -> Incoming:
    """Read a request's headers, in hyphen or underscore form, old or new name."""
    cached = request.scope.get(_INCOMING)
    if cached is not None:
        return cast(Incoming, cached)
    headers = dict(reversed(request.scope["headers"]))  # the first of a repeated header counts
    trace_id = _header(headers, b"x-trace-id")
    if not _TRACE.fullmatch(trace_id):
        trace_id = ""
    sender = Incoming(
        source=_header(headers, b"x-source-node-id") or _header(headers, b"x-node-id"),
        target=_header(headers, b"x-target-node-id"),
        trace_id=trace_id,
        permits=_header(headers, b"x-mprac-token-set"),
    )
    request.scope[_INCOMING] = sender
    return sender


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """Return a header with hyphens or underscores in its name; empty without it."""
    value = headers.get(name) or headers.get(name.replace(b"-", b"_")) or b""
    return value.decode("latin-1").strip()


def claimed_nodes(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """Return every node that raw headers name as the sender, in any spelling, repeated ones too."""
    nodes = set()
    for name, value in headers:
        if name.lower().replace(b"_", b"-") in _CLAIMS:
            nodes.add(value.decode("latin-1").strip())
    return frozenset(nodes - {""})


async def _sender(request: Request) -> Incoming:
    """Return the sender; async, as the framework would call a plain function in a thread."""
    return incoming(request)


# The sender of a request, by its headers.
Sender = Annotated[Incoming, Depends(_sender)]

# The sender's header in the interface description; `incoming` reads it in every spelling.
Named = Annotated[
    str, Header(description="The node that sends it.", examples=["JG0100001100000011"])
]


@dataclass(frozen=True)
class Caller:
    """The node that sends a request."""

    node: NodeId
    profile: Profile
    sender: Incoming

    @property
    def trace_id(self) -> str:
        """The request's trace id, or a new one."""
        return self.sender.trace_id or new_trace_id()


def _no_entry(_: NodeId) -> None:
    """Return None: the default of a search in the route table."""


@dataclass(frozen=True)
class Peers:
    """Admits the senders of requests to the routers for peers."""

    # Node -> has an enabled route of its own.
    knows: Callable[[NodeId], bool]
    profile_of: Callable[[NodeId], Profile]
    limiters: Limiters
    # Node without a route -> takes part in a running job, so that it may use `OF_PARTIES`.
    takes_part: Callable[[NodeId], bool]
    # Node, job id, task id ("" for an absent id): raises `NotAllowed` if the node has no route and
    # its proof is not for that job or task.
    check_part: Callable[[NodeId, str, str], None]
    # Node -> what proves its requests by its own entry; None without an entry.
    proof: Callable[[NodeId], Proof | None] = _no_entry
    # Node -> its entry if nothing proves its requests; else None.
    unproven_entry: Callable[[NodeId], Route | None] = _no_entry
    ids_bytes: int = IDS_BYTES  # most bytes of a body at the paths `OF_IDS`
    me: str = "this node"  # this node's id, for refusals

    @property
    def caller(self) -> Any:
        """The dependency that returns the `Caller` of a request.

        Raises `NotAllowed` for an unknown node.
        """
        return self._dependency(partial(known_node, self.knows, self.me))

    @property
    def party(self) -> Any:
        """The dependency that returns the `Caller`, which need only take part in a running job.

        Raises `NotAllowed` for any other node without a route.
        """
        return self._dependency(partial(known_node, self._knows_or_takes_part, self.me))

    def check_job(self, caller: "Caller", bodies: Iterable[object]) -> None:
        """Raise `NotAllowed` if the proof of a node without a route is for another job."""
        for body in bodies:
            job_id = getattr(body, "job_id", "")
            task_id = getattr(body, "task_id", "")
            if job_id or task_id:
                self.check_part(caller.node, job_id, task_id)

    def _knows_or_takes_part(self, node: NodeId) -> bool:
        """True for a node with a route, or one that takes part in a running job."""
        return self.knows(node) or self.takes_part(node)

    @property
    def named(self) -> Any:
        """The dependency that returns the `Caller`, which need not be known.

        Raises `NotAllowed` if the request does not name its node.
        """
        return self._dependency(named_node)

    def _dependency(self, admit: Callable[[Incoming], NodeId]) -> Any:
        """Return the dependency that returns the `Caller` of a request.

        ``admit`` returns the node of a sender, or raises `NotAllowed`.
        """

        async def caller(sender: Sender, x_source_node_id: Named = "") -> Caller:
            node = admit(sender)
            return Caller(node, self.profile_of(node), sender)

        return Depends(caller)


@dataclass(frozen=True)
class Paths:
    """Adds paths for peers to a router: blocking functions of the parsed request and the `Caller`.

    A function runs in a thread, under the trace id of its request, and returns the response's data.
    """

    router: APIRouter
    peers: Peers
    base: str
    allows_unknown: bool = False  # whether nodes without a route may call

    def __call__(
        self,
        path: str,
        summary: str,
        limiter: CapacityLimiter | None = None,
        method: str = "POST",
    ) -> Callable[[W], W]:
        """Return a decorator that adds a path.

        ``limiter``: the threads of its work, by default `Limiters.rest`.
        """
        full_path = self.base + path
        threads = limiter or self.peers.limiters.rest
        for_parties = full_path in OF_PARTIES
        max_body_size = None
        if full_path in OF_IDS:
            max_body_size = self.peers.ids_bytes

        def add(work: W) -> W:
            async def endpoint(caller: Caller, **arguments: Any) -> Answer[Any]:
                def run() -> Any:
                    if for_parties:
                        self.peers.check_job(caller, arguments.values())
                    return work(caller=caller, **arguments)

                data = await run_blocking(threads, caller.sender, run)
                return ok(data, caller.profile)

            endpoint.__name__ = work.__name__
            # The framework reads the parameters from the signature.
            function: Any = endpoint
            function.__signature__ = self._endpoint_signature(work, for_parties)
            self.router.add_api_route(
                full_path,
                endpoint,
                methods=[method],
                summary=summary,
                max_body_size=max_body_size,
            )
            return work

        return add

    def _endpoint_signature(
        self,
        work: Callable[..., Any],
        for_parties: bool,
    ) -> Signature:
        """Return the endpoint's signature as a Python function, which the framework reads.

        It has the parameters of ``work``, and its result in an envelope. ``for_parties``: nodes
        that only take part in a job may call, too.
        """
        dependency = self.peers.caller
        if self.allows_unknown:
            dependency = self.peers.named
        elif for_parties:
            dependency = self.peers.party
        declared = signature(work)
        parameters = []
        for parameter in declared.parameters.values():
            if parameter.name != "caller":
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        parameters.append(
            Parameter("caller", Parameter.KEYWORD_ONLY, default=dependency, annotation=Caller)
        )
        envelope = cast(Any, Answer)[declared.return_annotation or Empty]
        return Signature(parameters, return_annotation=envelope)


def named_node(sender: Incoming) -> NodeId:
    """Return the sender's node id. Raises `NotAllowed` without one."""
    if not sender.source:
        raise NotAllowed("name the node that sends the request in the header x-source-node-id")
    return sender.source


def known_node(
    knows: Callable[[NodeId], bool],
    me: str,
    sender: Incoming,
) -> NodeId:
    """Return the sender's node id, and note it with its permits as the request's origin.

    ``me``: this node's id. Raises `NotAllowed` without an id, or if ``knows`` is False for the
    node.
    """
    if not knows(named_node(sender)):
        raise NotAllowed(NO_ROUTE.format(sender.source, me))
    origin().node = sender.source
    origin().permits = ()
    if sender.permits:
        origin().permits = presented_digests(sender.permits)
    return sender.source


# Name in a request's scope: the id of the public key whose signature was found valid
_SIGNED_BY = "bfia.signed_by"
# Name in a request's state: set if the response is signed, as the request's signature was not
# refused
_SIGNS_RESPONSE = "answer_is_signed"
_QUICK_ALGORITHM = "ed25519"  # its signing takes less time than the change to a thread
_SHORT = 64 * 1024  # bytes; a body up to this size is read before the signature is checked
# Statuses of unknown paths and methods; the signatures of such requests are not checked.
_UNSERVED_STATUSES = (404, 405)


def signature_check(
    verifier: Verifier,
    entry_of: Callable[[NodeId], Route | None],
    limiter: CapacityLimiter,
    opener: RequestOpener,
) -> Callable[[Request], Awaitable[None]]:
    """Return the check of a request's signature against its node's route; it then opens the seal.

    The check comes before a long body is read. Channel messages are not checked: a node's transport
    sends them, and signs nothing. The sender does not learn the cause of a refusal. A request is
    checked once, however often the check is called.
    """

    async def check(request: Request) -> None:
        scope = request.scope
        if not _may_be_signed(scope) or _SIGNED_BY in scope:
            return
        route = entry_of(incoming(request).source)
        if route is None:
            return
        if route.signing_mode == "off" and not is_sealed(request):
            return
        if not _has_to_be_checked(request, route):
            scope.setdefault("state", {})[_SIGNS_RESPONSE] = True
            opener.refuse_unsealed(request, route)
            return
        try:
            key_id = await _check_signature(verifier, request, route, limiter)
        except NotAllowed as error:
            raise _signature_refusal(error) from None
        _note_key(scope, key_id)
        await opener.open(request, route, _signable(request), _signature_value(request))

    return check


def _has_to_be_checked(request: Request, route: Route) -> bool:
    """True if the route requires a signature, or accepts the one that the request has.

    A node without a key can prove nothing: the response to hello says so, while the node's other
    requests never come this far.
    """
    if is_sealed(request):  # only the nonce of the signature shows that it is not repeated
        return True
    if request.url.path == _HELLO and not route.keys:
        return False
    if route.signing_mode != "accepted":
        return True
    has_signature = _signature_value(request) not in ("", UNSIGNED)
    return has_signature and bool(route.keys)


async def _check_signature(
    verifier: Verifier, request: Request, route: Route, limiter: CapacityLimiter
) -> str:
    """Return the id of the public key that has signed a request.

    Raises `NotAllowed` for any fault of the signature.
    """
    sender = incoming(request)
    value = _signature_value(request)
    signable = _signable(request)
    # A long body is read only after its headers were checked. For a short one, the second change of
    # threads would cost more than both checks.
    if not is_short(request):
        check_headers = partial(verifier.check_headers, signable, value, route.keys)
        await run_blocking(limiter, sender, check_headers)
        # The limit of large bodies of one node, in `JsonRequest`, needs to know the node.
        origin().node = sender.source
    body = await request.body()
    sent_digest = _sent_digest(request.scope)
    check_all = partial(verifier.check, signable, body, value, route.keys, sent_digest)
    return await run_blocking(limiter, sender, check_all)


def _note_key(scope: Scope, key_id: str) -> None:
    """Note the key of a request's valid signature, for the audit log and for the response."""
    origin().key = key_id
    scope[_SIGNED_BY] = key_id
    scope.setdefault("state", {})[_SIGNS_RESPONSE] = True


def with_signed_responses(
    app: ASGIApp,
    key: Callable[[], KeyPair | None],
    entry_of: Callable[[NodeId], Route | None],
    limiter: CapacityLimiter,
) -> ASGIApp:
    """Sign the responses of another application to signed requests.

    The refusal of a signature is not signed. Otherwise an attacker between the nodes could send a
    node's request a second time, and pass the signed refusal of the copy to that node as the
    response to the first. Responses to unknown paths are signed without a check of the request, as
    they are true of every request.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        nonce = ""
        if _may_be_signed(scope):
            nonce = nonce_of(_signature_value(request))
        if not nonce:
            await app(scope, receive, send)
            return
        response = _SignedResponse(request, nonce, key, limiter, has_signing_route, send)
        await app(scope, receive, response.send)

    def has_signing_route(request: Request) -> bool:
        route = entry_of(incoming(request).source)
        return route is not None and route.signing_mode != "off"

    return serve


class _SignedResponse:
    """Collects a response, signs it, and sends it."""

    def __init__(
        self,
        request: Request,
        nonce: str,
        key: Callable[[], KeyPair | None],
        limiter: CapacityLimiter,
        has_signing_route: Callable[[Request], bool],
        send: Send,
    ) -> None:
        """``nonce``: from the request's signature.

        ``has_signing_route``: whether the request's node has a route on which signing is not off.
        """
        self._request = request
        self._nonce = nonce
        self._key = key
        self._limiter = limiter
        self._has_signing_route = has_signing_route
        self._send = send
        self._start: Message = {}
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        """Take a message of the application; the last one sends the whole response."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        pair = None
        if self._has_to_be_signed():
            pair = self._key()
        if pair is not None:
            await self._sign(pair)
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": bytes(self._body)})

    async def _sign(self, pair: KeyPair) -> None:
        """Add the headers of the signature to the response."""
        if pair.algorithm == _QUICK_ALGORITHM:
            signature = self._signature_headers(pair)
        else:
            signature = await to_thread.run_sync(
                self._signature_headers,
                pair,
                limiter=self._limiter,
            )
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in signature.items()]
        self._start["headers"] = [*self._start["headers"], *encoded]

    def _signature_headers(self, pair: KeyPair) -> Mapping[str, str]:
        """Return the headers that sign the response."""
        body_digest = digest(bytes(self._body))
        signable = SignableResponse(self._start["status"], body_digest, _signable(self._request))
        return headers(
            signable,
            sign(pair, signable, self._nonce, int(time.time())),
        )

    def _has_to_be_signed(self) -> bool:
        """True if the request's signature was not refused, or its path is unknown."""
        if self._request.scope.get("state", {}).get(_SIGNS_RESPONSE):
            return True
        is_unserved = self._start["status"] in _UNSERVED_STATUSES
        return is_unserved and self._has_signing_route(self._request)


class SenderSignature:
    """The signature of a request by a node that may not have a route.

    Implements `gateway.jobs.contract_proof.Signature`.
    """

    def __init__(self, verifier: Verifier, request: Request, body: bytes) -> None:
        self._verifier = verifier
        self._request = request
        self._body = body

    @property
    def present(self) -> bool:
        """Whether the request has a signature in our form."""
        return bool(nonce_of(_signature_value(self._request)))

    def check(self, keys: Sequence[str]) -> None:
        """Raise `NotAllowed` unless one of these public keys has signed the request.

        The response will be signed, too.
        """
        try:
            key_id = self._checked_key_id(keys)
        except NotAllowed as error:
            raise _signature_refusal(error) from None
        _note_key(self._request.scope, key_id)

    def _checked_key_id(self, keys: Sequence[str]) -> str:
        """Return the id of the key that has signed the request.

        Raises `NotAllowed` if the key is not one of ``keys``. No signature is accepted twice: if
        `signature_check` has accepted this one by the sender's route, only the key that was noted
        then is compared.
        """
        scope = self._request.scope
        key_id: str = scope.get(_SIGNED_BY, "")
        if not key_id:
            value = _signature_value(self._request)
            signable = _signable(self._request)
            return self._verifier.check(
                signable,
                self._body,
                value,
                keys,
                _sent_digest(scope),
            )
        if key_id not in [key_pin(public_key(key)) for key in keys]:
            text = (
                f"the request is signed by the key {key_id}, which is not the one of the contract"
            )
            raise NotAllowed(text, reason="SIGNATURE_KEY_UNKNOWN")
        return key_id


def sender_signature(verifier: Verifier) -> Any:
    """Return the dependency that returns the `SenderSignature` of a request."""

    async def signature_of(request: Request) -> SenderSignature:
        return SenderSignature(verifier, request, await request.body())

    return Depends(signature_of)


def _signature_refusal(error: NotAllowed) -> NotAllowed:
    """Return the refusal for the sender, without the fault of its signature."""
    refused = NotAllowed(_REFUSAL_TEXT, reason="SIGNATURE_REFUSED")
    refused.inside = error
    return refused


def is_short(request: Request) -> bool:
    """True if a request announces a short body."""
    if "transfer-encoding" in request.headers:
        return False
    return (announced(request) or 0) <= _SHORT


def _may_be_signed(scope: Scope) -> bool:
    """True for a request at a path whose requests may have a signature."""
    if scope["type"] != "http":
        return False
    path = scope["path"]
    is_excluded = path.startswith(CHANNEL) or path in NEVER_SIGNED
    return path.startswith(_SIGNED) and not is_excluded


def _sent_digest(scope: Scope) -> str:
    """Return the digest of a body as it was sent; empty if it was not decoded."""
    digest_so_far = scope.get(SENT_DIGEST)
    if digest_so_far is None:
        return ""
    return cast(str, digest_so_far())


def _signature_value(request: Request) -> str:
    """Return the header with the signature of a request; empty without one."""
    return ", ".join(request.headers.getlist("x-auth-sign"))


def _signable(request: Request) -> Signable:
    """Return the parts of a request that its signature covers."""

    def header(name: str) -> str:
        return ", ".join(request.headers.getlist(name))

    return Signable(
        request.method,
        request.scope["raw_path"].decode("latin-1"),
        request.scope["query_string"].decode("latin-1"),
        header("content-digest"),
        header("x-source-node-id"),
        header("x-target-node-id"),
    )


def check_sender_first(
    scope: Scope,
    accepts: Callable[[NodeId], bool],
    me: NodeId,
) -> None:
    """Raise `NotAllowed` for a control request of an unknown sender, before its body is read.

    The rights of a sender that only takes part in a job are checked by the path, after its
    signature. ``me``: this node; a request for another node is not checked here, but by the relay.
    """
    path = scope["path"]
    is_control = path.startswith(_BETWEEN_NODES) and not path.startswith(CHANNEL)
    if not is_control or scope["method"] != "POST":
        return
    is_open = path == _HELLO or path in OPEN
    if is_open:
        return
    sender = incoming(Request(scope))
    if sender.target in ("", me):
        known_node(accepts, me, sender)


async def run_blocking(
    limiter: CapacityLimiter,
    sender: Incoming,
    work: Callable[[], X],
) -> X:
    """Run blocking work in a thread of the limiter, under the trace id of the request."""

    def run() -> X:
        with traced(sender.trace_id or new_trace_id()):
            return work()

    return await to_thread.run_sync(run, limiter=limiter)


# Headers of a request with a body
_BODY_HEADERS = frozenset({"content-length", "transfer-encoding"})


async def read(request: Request, model: type[M]) -> M:
    """Read parameters from the query or, as some peers send them, from a JSON body.

    Raises `Invalid` with every problem.
    """
    body = await _optional_body(request)
    if not isinstance(body, dict):
        raise Invalid([Problem("body", "must be a JSON object, or absent", body)])
    values = {name: request.query_params.get(name, body.get(name)) for name in model.model_fields}
    try:
        return model.model_validate(without_nulls(values))
    except ValidationError as error:
        problems = problems_of(error.errors(), model)
        raise Invalid([_with_place(problem) for problem in problems]) from None


def _with_place(problem: Problem) -> Problem:
    """Return a problem that says where a missing parameter may be."""
    if problem.rule != MISSING:
        return problem
    return problem._replace(rule="is required, in the query or in a JSON body")


async def _optional_body(request: Request) -> Any:
    """Return the JSON value of a body; an empty object without one.

    Raises `Invalid` for a body that is not JSON.
    """
    if request.method == "GET" and _BODY_HEADERS.isdisjoint(request.headers):
        return {}
    raw = (await request.body()).strip()
    if len(raw) > _SHORT:
        return await to_thread.run_sync(read_json, raw)
    return read_json(raw or b"{}")


@cache  # a schema takes milliseconds
def query_parameters(model: type[BaseModel]) -> dict[str, Any]:
    """Return the parameters of `read` for the interface description, all as query parameters."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    parameters = []
    for name, field in schema["properties"].items():
        _, _, definition = field.pop("$ref", "").rpartition("/")
        field_schema = {**definitions.get(definition, {}), **field}
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": field_schema.pop("description"),
                "schema": field_schema,
            }
        )
    return {"parameters": parameters}
