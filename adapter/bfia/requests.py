"""What the routers of this protocol share: who sends a request, its parameters, and the threads of its work."""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia.channel.bodies import announced
from adapter.bfia.channel.codec import CHANNEL
from adapter.bfia.envelope import ok
from adapter.bfia.peer import INTERCONN, JOB_AUDIT, NEVER_SIGNED, NODE, UNSIGNED
from adapter.bfia.profiles import Profile
from adapter.bfia.wire import Answer, Empty
from adapter.body import read_json, without_nulls
from gateway.auth import origin
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import MISSING, Invalid, NotAllowed, problems_of
from gateway.http.encoded_bodies import SENT_DIGEST
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import Answer as SignedAnswer
from gateway.identity.signatures import Signable, Verifier, digest, headers, nonce_of, sign
from gateway.jobs.contracts import presented
from gateway.ports import Limiters
from gateway.runtime.context import new_trace_id, traced
from route_table.certificates import key_pin, public_key
from route_table.model import Route

M = TypeVar("M", bound=BaseModel)
X = TypeVar("X")
W = TypeVar("W", bound=Callable[..., Any])
Done = Answer[Empty]
"""the bare success of most commands"""

NO_ROUTE = "node {} has no enabled route here: ask the admin of this node for one"
_CONTROL = "/v1/interconn/"
_SIGNED = ("/v1/interconn/", "/v2/")
_NOT_SIGNED = "x-auth-sign is not accepted; this node's own log and audit say why"
_HELLO = "/v1/interconn/schedule/node/hello"
"""judges an unknown or unnamed sender itself"""
OPEN = NEVER_SIGNED | {
    f"{NODE}/{name}" for name in ("health", "contract/query", "contract/terminate")
}
"""paths for nodes without a route; of a contract they need its id, which is a secret of both"""


OF_PARTIES = frozenset(
    f"{INTERCONN}/{name}"
    for name in (
        *("job/create", "job/start", "job/stop", "task/start", "task/stop", "task/poll"),
        *("job/resource/apply", "job/resource/return", "job/parameters/offer"),
        *(
            "task/callback",
            "job/audit_confirm",
            "job/stop_all",
            "job/status_all",
            "job/resource/free",
        ),
    )
)
"""paths for a node that only takes part in a job under way: as its scheduling node (a new job is refused), or as a
party"""

OF_IDS = frozenset(
    f"{INTERCONN}/{name}"
    for name in (
        *("job/start", "job/stop", "job/stop_all", "job/suspend", "job/resume", "job/delete"),
        *("job/resource/apply", "job/resource/return", "job/resource/free"),
        *("task/start", "task/stop", "task/poll", "task/callback"),
        *("job/audit_confirm", "output/metadata"),
    )
) | {f"{JOB_AUDIT}/confirm", f"{JOB_AUDIT}/terminate"}
"""paths whose bodies hold ids, states and short reasons, but no job and no parameters"""
IDS_BYTES = 128 * 1024
"""bytes of a body at these paths: a thousand ids of the longest fit"""


@dataclass(frozen=True)
class Incoming:
    """What the headers of a request say; empty where they say nothing."""

    source: NodeId
    target: NodeId
    trace_id: str
    permits: str = ""
    """``x-mprac-token-set``"""


_TRACE = re.compile(r"[\x21-\x7e]{1,128}")
"""trace ids that can be passed on in a header and an environment; another is taken for none"""
_INCOMING = "bfia.incoming"
"""where a request's scope has what its headers say, once they were read"""
_CLAIMS = (b"x-source-node-id", b"x-node-id", b"x-ptp-source-node-id", b"x-ptp-from-node-id")


def incoming(request: Request) -> Incoming:
    """Read a request's headers, in hyphen or underscore form, old or new name."""
    if (known := request.scope.get(_INCOMING)) is not None:
        return cast(Incoming, known)
    headers = dict(reversed(request.scope["headers"]))  # of a repeated one the first counts
    trace = _either(headers, b"x-trace-id")
    found = request.scope[_INCOMING] = Incoming(
        source=_either(headers, b"x-source-node-id") or _either(headers, b"x-node-id"),
        target=_either(headers, b"x-target-node-id"),
        trace_id=trace if _TRACE.fullmatch(trace) else "",
        permits=_either(headers, b"x-mprac-token-set"),
    )
    return found


def _either(headers: Mapping[bytes, bytes], name: bytes) -> str:
    value = headers.get(name) or headers.get(name.replace(b"-", b"_")) or b""
    return value.decode("latin-1").strip()


def claimed(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """Return every node that raw headers name as the sender, in whatever spelling, repeated ones too."""
    found = {
        value.decode("latin-1").strip()
        for name, value in headers
        if name.lower().replace(b"_", b"-") in _CLAIMS
    }
    return frozenset(found - {""})


async def _sender(request: Request) -> Incoming:  # async: the framework runs it on this thread
    return incoming(request)


Sender = Annotated[Incoming, Depends(_sender)]
"""What the request's headers say of its sender."""


Named = Annotated[
    str, Header(description="The node that sends it.", examples=["JG0100001100000011"])
]
"""The header that names the sender, for the interface description; `incoming` reads it in every spelling."""


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


@dataclass(frozen=True)
class Peers:
    """What the routers for peers know of them."""

    knows: Callable[[NodeId], bool]
    """whether a node has an enabled route of its own"""
    profile_of: Callable[[NodeId], Profile]
    limiters: Limiters
    takes_part: Callable[[NodeId], bool]
    """whether a node without one takes part in a job under way: it may do what its part needs (`OF_PARTIES`)"""
    check_part: Callable[[NodeId, str, str], None]
    """raises `NotAllowed` where such a node's proof is not one for the job, or the task, that it names"""
    ids_bytes: int = IDS_BYTES
    """bytes of a body at the paths `OF_IDS`"""

    @property
    def caller(self) -> Any:
        """The dependency that returns the `Caller` of a request. Raises `NotAllowed` for an unknown node."""
        return self._dependency(partial(known, self.knows))

    @property
    def party(self) -> Any:
        """The dependency that returns the `Caller`, who may only take part in a job. Raises `NotAllowed`."""
        return self._dependency(partial(known, self._knows_or_takes_part))

    def check_job(self, caller: "Caller", asked: Iterable[object]) -> None:
        """Raise `NotAllowed` where a node without a route names a job that its proof is not one for."""
        for body in asked:
            job_id, task_id = getattr(body, "job_id", ""), getattr(body, "task_id", "")
            if job_id or task_id:
                self.check_part(caller.node, job_id, task_id)

    def _knows_or_takes_part(self, node: NodeId) -> bool:
        return self.knows(node) or self.takes_part(node)

    @property
    def named(self) -> Any:
        """The dependency that returns the `Caller`, who need not be known. Raises `NotAllowed` without a name."""
        return self._dependency(named)

    def _dependency(self, judge: Callable[[Incoming], NodeId]) -> Any:
        async def caller(sender: Sender, x_source_node_id: Named = "") -> Caller:
            node = judge(sender)
            return Caller(node, self.profile_of(node), sender)

        return Depends(caller)


@dataclass(frozen=True)
class Paths:
    """Adds paths for peers to a router: each is a blocking function of what is asked, and of the `Caller`.

    It runs in a thread, under the trace id of its request; what it returns is the data of the response.
    """

    router: APIRouter
    peers: Peers
    base: str
    unknown: bool = False
    """whether nodes without a route may call"""

    def __call__(
        self,
        path: str,
        summary: str,
        limiter: CapacityLimiter | None = None,
        method: str = "POST",
    ) -> Callable[[W], W]:
        """``limiter``: the threads, by default those for the rest."""
        threads, envelope = limiter or self.peers.limiters.rest, cast(Any, Answer)
        for_parties = self.base + path in OF_PARTIES
        of_ids = self.base + path in OF_IDS
        who = self.peers.caller
        if self.unknown:
            who = self.peers.named
        elif for_parties:
            who = self.peers.party

        def add(work: W) -> W:
            async def endpoint(caller: Caller, **asked: Any) -> Answer[Any]:
                def run() -> Any:
                    if for_parties:
                        self.peers.check_job(caller, asked.values())
                    return work(caller=caller, **asked)

                found = await on(threads, caller.sender, run)
                return ok(found, caller.profile)

            of = signature(work)
            asked = [
                p.replace(kind=Parameter.KEYWORD_ONLY)
                for p in of.parameters.values()
                if p.name != "caller"
            ]
            asked.append(
                Parameter("caller", Parameter.KEYWORD_ONLY, default=who, annotation=Caller)
            )
            endpoint.__name__ = work.__name__
            answer = envelope[of.return_annotation or Empty]
            endpoint.__signature__ = Signature(asked, return_annotation=answer)  # type: ignore[attr-defined]
            self.router.add_api_route(
                self.base + path,
                endpoint,
                methods=[method],
                summary=summary,
                max_body_size=self.peers.ids_bytes if of_ids else None,
            )
            return work

        return add


def named(sender: Incoming) -> NodeId:
    """Return the sender's node id. Raises `NotAllowed` where it names none."""
    if not sender.source:
        raise NotAllowed("name the node that sends the request in the header x-source-node-id")
    return sender.source


def known(knows: Callable[[NodeId], bool], sender: Incoming) -> NodeId:
    """Return the sender's node id. Raises `NotAllowed` where it names none, or one without a route."""
    if not knows(named(sender)):
        raise NotAllowed(NO_ROUTE.format(sender.source))
    origin().node = sender.source
    origin().permits = presented(sender.permits) if sender.permits else ()
    return sender.source


_CHECKED = "bfia.signed_by"
"""where a request's scope has the key whose signature held"""
_ANSWERED = "answer_is_signed"
"""where the state of a request says that its signature was not refused"""
_QUICK = "ed25519"
"""signs faster than work is handed to a thread"""
_SHORT = 64 * 1024
"""bytes of a body that is read before its sender's signature is checked"""
_NOWHERE = (404, 405)
"""HTTP statuses of unknown paths and methods, whose signatures are not checked"""


def signed(
    verifier: Verifier,
    entry_of: Callable[[NodeId], Route | None],
    limiter: CapacityLimiter,
) -> Callable[[Request], Awaitable[None]]:
    """Return what refuses a request that is not signed as the route of its node says, before a long body is read.

    Channel messages come from a node's transport, which signs nothing. The sender is not told what is wrong.
    A request is checked once, by whatever asks first.
    """

    async def check(request: Request) -> None:
        sender, scope = incoming(request), request.scope
        if not _may_be_signed(scope) or _CHECKED in scope:
            return
        route, value = entry_of(sender.source), _signature(request)
        if route is None or route.signed == "off":
            return
        if route.signed == "accepted" and not (route.keys and value not in ("", UNSIGNED)):
            scope.setdefault("state", {})[_ANSWERED] = True
            return
        signable = _signable(request)
        try:
            if not is_short(request):  # else both in one thread, as each costs more than the checks
                await on(
                    limiter, sender, lambda: verifier.check_headers(signable, value, route.keys)
                )
                origin().node = sender.source  # of which few large bodies are read together
            body = await request.body()
            sent_digest = _sent_digest(scope)
            key = await on(
                limiter,
                sender,
                lambda: verifier.check(signable, body, value, route.keys, sent_digest),
            )
        except NotAllowed as error:
            raise _refused(error) from None
        origin().key = key
        scope[_CHECKED] = key
        scope.setdefault("state", {})[_ANSWERED] = True

    return check


def signing_answers(
    app: ASGIApp,
    key: Callable[[], KeyPair | None],
    entry_of: Callable[[NodeId], Route | None],
    limiter: CapacityLimiter,
) -> ASGIApp:
    """Sign, after another application, what it answers to signed requests.

    Not signed is the refusal of a signature: a request that was repeated on its way would seem refused, though its
    original was not. Unknown paths are answered without a check; that answer is true of every request.
    """

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        request = Request(scope)
        nonce = nonce_of(_signature(request)) if _may_be_signed(scope) else ""
        if not nonce:
            await app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        def signature(pair: KeyPair) -> Mapping[str, str]:
            answer = SignedAnswer(start["status"], digest(bytes(body)), _signable(request))
            return headers(answer, sign(pair, answer, nonce, int(time.time())))

        async def sign_and_send(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            judged = scope.get("state", {}).get(_ANSWERED) or (
                start["status"] in _NOWHERE and has_route(request)
            )
            if judged and (pair := key()) is not None:
                quick = pair.algorithm == _QUICK
                made = (
                    signature(pair)
                    if quick
                    else await to_thread.run_sync(signature, pair, limiter=limiter)
                )
                start["headers"] = [
                    *start["headers"],
                    *((n.encode(), v.encode("latin-1")) for n, v in made.items()),
                ]
            await send(start)
            await send({"type": "http.response.body", "body": bytes(body)})

        await app(scope, receive, sign_and_send)

    def has_route(request: Request) -> bool:
        route = entry_of(incoming(request).source)
        return route is not None and route.signed != "off"

    return served


class SenderSignature:
    """The signature of a request by a node that may not have a route: `gateway.jobs.applications.Signature`."""

    def __init__(
        self,
        verifier: Verifier,
        request: Request,
        body: bytes,
    ) -> None:
        self._verifier = verifier
        self._request = request
        self._body = body

    @property
    def present(self) -> bool:
        """Whether the request has a signature in our form."""
        return bool(nonce_of(_signature(self._request)))

    def check(self, keys: Sequence[str]) -> None:
        """Raise `NotAllowed` unless one of these public keys has signed the request; the answer is signed then."""
        scope, value = self._request.scope, _signature(self._request)
        key = scope.get(_CHECKED, "")  # by the sender's route, which has taken the nonce
        try:
            if not key:
                sent_digest = _sent_digest(scope)
                key = self._verifier.check(
                    _signable(self._request), self._body, value, keys, sent_digest
                )
            elif key not in (key_pin(public_key(one)) for one in keys):
                text = (
                    f"the request is signed by the key {key}, which is not the one of the contract"
                )
                raise NotAllowed(text, reason="SIGNATURE_KEY_UNKNOWN")
        except NotAllowed as error:
            raise _refused(error) from None
        origin().key = key
        scope[_CHECKED] = key
        scope.setdefault("state", {})[_ANSWERED] = True


def sender_signature(verifier: Verifier) -> Any:
    """Return the dependency that returns the `SenderSignature` of a request."""

    async def signature_of(request: Request) -> SenderSignature:
        return SenderSignature(verifier, request, await request.body())

    return Depends(signature_of)


def _refused(error: NotAllowed) -> NotAllowed:
    """Return the refusal that the sender sees, which does not say what is wrong with its signature."""
    refused = NotAllowed(_NOT_SIGNED, reason="SIGNATURE_REFUSED")
    refused.inside = error
    return refused


def is_short(request: Request, most: int = _SHORT) -> bool:
    """Say whether the body of a request is announced as short, and takes no more bytes than ``most``."""
    return "transfer-encoding" not in request.headers and (announced(request) or 0) <= min(
        most, _SHORT
    )


def _may_be_signed(scope: Scope) -> bool:
    path = scope["path"] if scope["type"] == "http" else ""
    return path.startswith(_SIGNED) and not path.startswith(CHANNEL) and path not in NEVER_SIGNED


def _sent_digest(scope: Scope) -> str:
    """Return the digest of a body as it was sent; empty where it was not decoded."""
    digest_so_far = scope.get(SENT_DIGEST)
    return digest_so_far() if digest_so_far is not None else ""


def _signature(request: Request) -> str:
    return ", ".join(request.headers.getlist("x-auth-sign"))


def _signable(request: Request) -> Signable:
    path, query = (request.scope[part].decode("latin-1") for part in ("raw_path", "query_string"))
    named = ("content-digest", "x-source-node-id", "x-target-node-id")
    return Signable(
        request.method, path, query, *(", ".join(request.headers.getlist(name)) for name in named)
    )


def known_first(
    scope: Scope,
    accepts: Callable[[NodeId], bool],
    here: NodeId,
) -> None:
    """Raise `NotAllowed` for a control request of an unknown sender; its body has not been read yet.

    What a sender may do that only takes part in a job is judged by the path, once its signature was checked.
    """
    path = scope["path"]
    if scope["method"] != "POST" or not path.startswith(_CONTROL) or path.startswith(CHANNEL):
        return
    if path == _HELLO or path in OPEN:
        return
    sender = incoming(Request(scope))
    if sender.target in ("", here):  # else it is relayed, or denied as such
        known(accepts, sender)


async def on(
    limiter: CapacityLimiter,
    sender: Incoming,
    work: Callable[[], X],
) -> X:
    """Run blocking work on the given threads, under the trace id of the request."""

    def run() -> X:
        with traced(sender.trace_id or new_trace_id()):
            return work()

    return await to_thread.run_sync(run, limiter=limiter)


_BODY = frozenset({"content-length", "transfer-encoding"})
"""without these headers a GET has no body"""


async def read(request: Request, model: type[M]) -> M:
    """Read parameters from the query or, as some peers send them, from a JSON body.

    Raises `Invalid` with every problem.
    """
    may_have_body = request.method != "GET" or not _BODY.isdisjoint(request.headers)
    raw = (await request.body()).strip() if may_have_body else b""
    body = (
        await to_thread.run_sync(read_json, raw) if len(raw) > _SHORT else read_json(raw or b"{}")
    )
    if not isinstance(body, dict):
        raise Invalid([Problem("body", "must be a JSON object, or absent", body)])
    found = {name: request.query_params.get(name, body.get(name)) for name in model.model_fields}
    try:
        return model.model_validate(without_nulls(found))
    except ValidationError as error:
        wrong = problems_of(error.errors(), model)
        rule = "is required, in the query or in a JSON body"
        raise Invalid(p._replace(rule=rule) if p.rule == MISSING else p for p in wrong) from None


def described(model: type[BaseModel]) -> dict[str, Any]:
    """Return the parameters that `read` reads for the interface description; any may stand in a body instead."""
    found = model.model_json_schema()
    kinds, required = found.get("$defs", {}), found.get("required", ())
    fields = {
        name: kinds.get(one.pop("$ref", "").rpartition("/")[2], {}) | one
        for name, one in found["properties"].items()
    }
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": schema.pop("description"),
                "schema": schema,
            }
            for name, schema in fields.items()
        ]
    }
