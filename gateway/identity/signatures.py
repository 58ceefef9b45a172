"""Signatures of requests between nodes, and of the answers: RFC 9421, in ``x-auth-sign``. See docs/signing.md.

Covered are method, path, query, body and both node ids, not scheme and host, which relays and proxies change: for
whom a request is, its target's id says. There is one form, so that no sender chooses what a signature covers.
"""

import hashlib
import re
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from uuid import uuid4

from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed
from gateway.identity.keys import KeyPair, verifies
from gateway.ports import Clock
from route_table.certificates import key_pin, public_key, signature_algorithm

VALID_SECONDS = 300
"""how far the time of a signature may be from this machine's"""
_FORM = re.compile(
    r'input=(\([a-z0-9@"; -]{1,400}\);created=([0-9]{1,12});'
    r'nonce="([A-Za-z0-9-]{16,64})";keyid="(sha256:[0-9a-f]{64})";alg="([a-z0-9_-]{1,40})"), '
    r"signature=:([A-Za-z0-9+/]+={0,2}):"
)

First = Callable[[str, str, float], str]
"""From a signature, a request's fingerprint and seconds to remember it, return the request that used it first."""


class UsedSignatures:
    """Remembers signatures while they are valid; safe to use from several threads."""

    def __init__(self, seconds: float, first: First = lambda _, request, __: request) -> None:
        """``first`` consults the node's other gateways; it may wait for a database."""
        self._seconds = seconds
        self._first = first
        self._lock = threading.Lock()
        self._used: dict[str, tuple[float, str]] = {}
        """signature -> end of its validity by `time.monotonic`, and the request that used it first"""

    def accept(self, signature: str, request: str) -> bool:
        """Record a signature; return False if another request used it before."""
        now = time.monotonic()
        with self._lock:
            for old in list(takewhile(lambda known: self._used[known][0] < now, self._used)):
                del self._used[old]
            known = self._used.get(signature)
        first = known[1] if known is not None else self._first(signature, request, self._seconds)
        with self._lock:
            return self._used.setdefault(signature, (now + self._seconds, first))[1] == request


@dataclass(frozen=True)
class Signable:
    """What a signature covers of a request. ``path`` and ``query`` are as sent, without the prefix of a proxy."""

    method: str
    path: str
    query: str
    digest: str
    source: NodeId
    target: NodeId

    @property
    def components(self) -> list[tuple[str, str]]:
        """What is covered, with its values."""
        return [
            ('"@method"', self.method),
            ('"@path"', self.path),
            ('"@query"', f"?{self.query}"),
            ('"content-digest"', self.digest),
            ('"x-source-node-id"', self.source),
            ('"x-target-node-id"', self.target),
        ]


@dataclass(frozen=True)
class Answer:
    """What a signature covers of an answer; its nonce is that of the request."""

    status: int
    digest: str
    request: Signable

    @property
    def components(self) -> list[tuple[str, str]]:
        """What is covered, with its values; all of the request but its body, for which its nonce stands."""
        asked = [
            (f"{name};req", v) for name, v in self.request.components if name != '"content-digest"'
        ]
        return [('"@status"', str(self.status)), ('"content-digest"', self.digest), *asked]


def signature_base(components: Sequence[tuple[str, str]], params: str) -> bytes:
    """Return the signature base of RFC 9421, 2.5: a line for each component, and one for the parameters."""
    lines = [f"{name}: {value}" for name, value in (*components, ('"@signature-params"', params))]
    return "\n".join(lines).encode("latin-1")


def digest(body: bytes) -> str:
    """Return the value of ``content-digest`` (RFC 9530)."""
    return f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"


def sign(
    pair: KeyPair,
    message: Signable | Answer,
    nonce: str,
    created: int,
) -> str:
    """Return the value of ``x-auth-sign``: what RFC 9421 has in Signature-Input and Signature."""
    params = f'{_names(message)};created={created};nonce="{nonce}";keyid="{pair.id}";alg="{pair.algorithm}"'
    signature = pair.sign(signature_base(message.components, params))
    return f"input={params}, signature=:{b64encode(signature).decode()}:"


def headers(message: Signable | Answer, value: str) -> dict[str, str]:
    """Return the headers of a signed message: ``x-auth-sign``, and the RFC's own for proxies that know them."""
    params, _, signature = value.removeprefix("input=").partition(", signature=")
    return {
        "content-digest": message.digest,
        "x-auth-sign": value,
        "signature-input": f"bfia={params}",
        "signature": f"bfia={signature}",
    }


def nonce_of(value: str) -> str:
    """Return the nonce in a value of ``x-auth-sign``; empty: it is not in our form."""
    found = _FORM.fullmatch(value)
    return found[3] if found else ""


def check_answer(
    answer: Answer,
    value: str,
    nonce: str,
    keys: Iterable[str],
) -> None:
    """Raise `NotAllowed` unless the request's target has signed an answer, by one of its keys, for the nonce."""
    _, given, _ = _checked(answer, value, keys, answer.request.target)
    if given != nonce:
        raise NotAllowed("it is the answer to another request", reason="SIGNATURE_WRONG")


class Verifier:
    """Checks what other nodes have signed for this one."""

    def __init__(
        self,
        node: NodeId,
        clock: Clock,
        first: First,
    ) -> None:
        """``first``: as in `UsedSignatures`."""
        self._node = node
        self._clock = clock
        self._used = UsedSignatures(
            3 * VALID_SECONDS, first
        )  # clocks of the node's gateways may differ

    def check(
        self,
        request: Signable,
        body: bytes,
        value: str,
        keys: Iterable[str],
        sent_digest: str = "",
    ) -> str:
        """Return the id of the key that has signed a request, in time and once, by the value of ``x-auth-sign``.

        ``keys``: the sender's, as its route has them; ``sent_digest``: of a body that was sent encoded. Raises
        `NotAllowed`; may wait for the database.
        """
        key_id, nonce = self.check_headers(request, value, keys)
        if request.digest != (sent_digest or digest(body)):
            raise NotAllowed("content-digest is not that of the body", reason="SIGNATURE_WRONG")
        # by nonce, not by signature: of one of ECDSA, anybody can make a second one that is valid too
        if not self._used.accept(
            hashlib.sha256(f"{key_id} {nonce}".encode()).hexdigest(), uuid4().hex
        ):
            raise NotAllowed(
                f"the nonce {nonce} was used before: a repeated request", reason="SIGNATURE_USED"
            )
        return key_id

    def check_headers(
        self,
        request: Signable,
        value: str,
        keys: Iterable[str],
    ) -> tuple[str, str]:
        """Return key id and nonce of a request whose headers are signed; its body need not be there yet."""
        key_id, nonce, created = _checked(request, value, keys, request.source)
        age = self._clock().timestamp() - created
        if abs(age) > VALID_SECONDS:
            text = f"the request was signed {age:.0f} s ago: more than {VALID_SECONDS}; compare the clocks"
            raise NotAllowed(text, reason="SIGNATURE_EXPIRED")
        if request.target != self._node:
            raise NotAllowed(
                f"the request is signed for {request.target[:100]!r}", reason="SIGNATURE_WRONG"
            )
        return key_id, nonce


def _checked(
    message: Signable | Answer,
    value: str,
    keys: Iterable[str],
    node: NodeId,
) -> tuple[str, str, int]:
    """Return key id, nonce and time of a signature that one of a node's keys has made. Raises `NotAllowed`."""
    found = _FORM.fullmatch(value)
    if found is None or not found[1].startswith(f"{_names(message)};"):
        raise NotAllowed(
            "x-auth-sign holds no signature in the form of RFC 9421", reason="SIGNATURE_MISSING"
        )
    params, created, nonce, key_id, algorithm, signature = found.groups()
    key = next((key for key in map(public_key, keys) if key_pin(key) == key_id), None)
    if key is None:
        raise NotAllowed(f"the route of {node} has no key {key_id}", reason="SIGNATURE_KEY_UNKNOWN")
    base = signature_base(message.components, params)
    if algorithm != signature_algorithm(key) or not verifies(key, _decoded(signature), base):
        raise NotAllowed(
            f"the signature is not one of this message by the key {key_id}",
            reason="SIGNATURE_WRONG",
        )
    return key_id, nonce, int(created)


def _names(message: Signable | Answer) -> str:
    return f"({' '.join(name for name, _ in message.components)})"


def _decoded(text: str) -> bytes:
    """Return bytes of base64; none for what is not written as an encoder writes it."""
    try:
        found = b64decode(text, validate=True)
    except ValueError:
        return b""
    return found if b64encode(found).decode() == text else b""
