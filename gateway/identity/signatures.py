"""Signatures of requests between nodes, and of the responses, by RFC 9421 in ``x-auth-sign``.

Signatures cover method, path, query, body and both node ids. Scheme and host, which relays and
proxies change, are not covered: the target's id says which node a request is for. Only one form is
accepted, so that no sender chooses what a signature covers. See docs/signing.md.
"""

import hashlib
import re
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed
from gateway.identity.keys import KeyPair, is_valid_signature
from gateway.ports import Clock
from route_table.certificates import PublicKey, key_pin, public_key, signature_algorithm

VALID_SECONDS = 300  # largest difference between a signature's time and this machine's
# Seconds for which a used signature is remembered. It is valid for `VALID_SECONDS` before and after
# its time; the remaining third allows for different clocks of the node's gateways.
REMEMBERED_SECONDS = 3 * VALID_SECONDS

_CONTENT_DIGEST = '"content-digest"'
_MAX_TARGET = 100  # characters of a node id that a message repeats
# The groups: all parameters, time of creation, nonce, key id, algorithm, signature in base64.
_HEADER = re.compile(
    r'input=(\([a-z0-9@"; -]{1,400}\);created=([0-9]{1,12});'
    r'nonce="([A-Za-z0-9-]{16,64})";keyid="(sha256:[0-9a-f]{64})";alg="([a-z0-9_-]{1,40})"), '
    r"signature=:([A-Za-z0-9+/]+={0,2}):"
)

# A function that takes a signature, an id of the request that uses it, and the seconds to remember
# both. It returns the id of the request that used the signature first.
FirstUse = Callable[[str, str, float], str]


# ------------------------------------------------------------ reuse


def only_here(signature: str, request: str, seconds: float) -> str:
    """Return ``request``: the `FirstUse` of a node with one gateway, which needs no database."""
    return request


@dataclass(frozen=True)
class _Use:
    """The first use of a signature."""

    request: str  # id of the request
    until: float  # when the use may be forgotten, by `time.monotonic`


class UsedSignatures:
    """Remembers used signatures for some time; safe to use from several threads.

    Any unique text may represent a signature here, such as a digest of its nonce.
    """

    def __init__(self, seconds: float, first_use: FirstUse = only_here) -> None:
        """``seconds``: how long a signature is remembered.

        ``first_use`` consults the node's other gateways; it may wait for a database.
        """
        self._seconds = seconds
        self._first_use = first_use
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}  # by signature, the oldest first

    def accept(self, signature: str, request: str) -> bool:
        """Record the use of a signature; return False if another request used it before.

        Return True for the first use, and for a repetition with the same ``request``, which is any
        unique id of the request. With a random id, every repetition is therefore refused.
        """
        now = time.monotonic()
        with self._lock:
            self._forget_expired(now)
            use = self._uses.get(signature)
        if use is None:
            first = self._first_use(signature, request, self._seconds)
            use = _Use(first, now + self._seconds)
        with self._lock:  # another thread may have stored a use in the meantime: that one counts
            return self._uses.setdefault(signature, use).request == request

    def __len__(self) -> int:
        """Return the number of signatures that are remembered."""
        with self._lock:
            return len(self._uses)

    def _forget_expired(self, now: float) -> None:
        """Forget the signatures that have been remembered long enough."""
        expired = []
        for signature, use in self._uses.items():
            if use.until >= now:
                break  # all further uses are newer
            expired.append(signature)
        for signature in expired:
            del self._uses[signature]


# ------------------------------------------------------------ signed messages


@dataclass(frozen=True)
class Signable:
    """The parts of a request that a signature covers."""

    method: str
    path: str  # as sent, without the prefix of a proxy
    query: str  # as sent
    digest: str  # of the body
    source: NodeId
    target: NodeId

    @property
    def components(self) -> list[tuple[str, str]]:
        """The covered components of RFC 9421, each with its value."""
        return [
            ('"@method"', self.method),
            ('"@path"', self.path),
            ('"@query"', f"?{self.query}"),
            (_CONTENT_DIGEST, self.digest),
            ('"x-source-node-id"', self.source),
            ('"x-target-node-id"', self.target),
        ]


@dataclass(frozen=True)
class SignableResponse:
    """The parts of a response that a signature covers; its nonce is the request's."""

    status: int
    digest: str  # of the body
    request: Signable

    @property
    def components(self) -> list[tuple[str, str]]:
        """The covered components, each with its value.

        They include the request's components except the digest of its body: the nonce, a parameter
        of both signatures, already shows to which request the response belongs.
        """
        components = [
            ('"@status"', str(self.status)),
            (_CONTENT_DIGEST, self.digest),
        ]
        for name, value in self.request.components:
            if name != _CONTENT_DIGEST:
                components.append((f"{name};req", value))
        return components


def signature_base(components: Sequence[tuple[str, str]], params: str) -> bytes:
    """Return the signature base of RFC 9421, 2.5: a line for each component, and one for the
    parameters.
    """
    lines = [f"{name}: {value}" for name, value in components]
    lines.append(f'"@signature-params": {params}')
    return "\n".join(lines).encode("latin-1")


def digest(body: bytes) -> str:
    """Return the value of ``content-digest`` (RFC 9530)."""
    return f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"


def _component_names(message: Signable | SignableResponse) -> str:
    """Return the names of the covered components as an inner list of RFC 9421."""
    names = [name for name, _ in message.components]
    return f"({' '.join(names)})"


# ------------------------------------------------------------ signing


def sign(
    pair: KeyPair,
    message: Signable | SignableResponse,
    nonce: str,
    created: int,
) -> str:
    """Return the value of ``x-auth-sign``: RFC 9421's Signature-Input and Signature.

    ``created``: seconds since 1970.
    """
    params = (
        f"{_component_names(message)};created={created};"
        f'nonce="{nonce}";keyid="{pair.id}";alg="{pair.algorithm}"'
    )
    signature = pair.sign(signature_base(message.components, params))
    return f"input={params}, signature=:{b64encode(signature).decode()}:"


def headers(message: Signable | SignableResponse, value: str) -> dict[str, str]:
    """Return the headers of a signed message.

    These are ``x-auth-sign`` with its ``value``, and the same signature in the RFC's own headers,
    labelled "bfia", for proxies that check it.
    """
    params, _, signature = value.removeprefix("input=").partition(", signature=")
    return {
        "content-digest": message.digest,
        "x-auth-sign": value,
        "signature-input": f"bfia={params}",
        "signature": f"bfia={signature}",
    }


def nonce_of(value: str) -> str:
    """Return the nonce in a value of ``x-auth-sign``; empty if the value is not in our form."""
    match = _HEADER.fullmatch(value)
    if match is None:
        return ""
    return match[3]


# ------------------------------------------------------------ checking


@dataclass(frozen=True)
class VerifiedSignature:
    """A signature that one of a node's keys has made."""

    key_id: str
    nonce: str
    created: int  # seconds since 1970


def check_response(
    response: SignableResponse,
    value: str,
    nonce: str,
    keys: Iterable[str],
) -> None:
    """Raise `NotAllowed` unless the request's target has signed the response to this request.

    ``value`` is the response's ``x-auth-sign``, ``nonce`` is the request's, ``keys`` are the public
    keys of the target.
    """
    signature = _verify(response, value, keys, response.request.target)
    if signature.nonce != nonce:
        raise NotAllowed("it is the answer to another request", reason="SIGNATURE_WRONG")


class Verifier:
    """Checks the signatures of requests to this node."""

    def __init__(
        self,
        node: NodeId,
        clock: Clock,
        first_use: FirstUse,
    ) -> None:
        """``first_use``: as in `UsedSignatures`."""
        self._node = node
        self._clock = clock
        self._used = UsedSignatures(REMEMBERED_SECONDS, first_use)

    def check(
        self,
        request: Signable,
        body: bytes,
        value: str,
        keys: Iterable[str],
        sent_digest: str = "",
    ) -> str:
        """Return the id of the key that has signed a request; ``value`` is its ``x-auth-sign``.

        ``keys`` are the sender's public keys, from its route. ``body`` is not compressed;
        ``sent_digest`` is the digest of the compressed body, empty if ``body`` was sent as it is.
        Raises `NotAllowed` for a signature that is wrong, too old or used before. May wait for the
        database.
        """
        signature = self.check_headers(request, value, keys)
        if request.digest != (sent_digest or digest(body)):
            raise NotAllowed("content-digest is not that of the body", reason="SIGNATURE_WRONG")
        # The nonce is remembered, not the signature: from an ECDSA signature, anyone can derive
        # another valid one.
        use = f"{signature.key_id} {signature.nonce}"
        if not self._used.accept(hashlib.sha256(use.encode()).hexdigest(), uuid4().hex):
            text = f"the nonce {signature.nonce} was used before: a repeated request"
            raise NotAllowed(text, reason="SIGNATURE_USED")
        return signature.key_id

    def check_headers(
        self,
        request: Signable,
        value: str,
        keys: Iterable[str],
    ) -> VerifiedSignature:
        """Check everything except the body, which may not have arrived yet; return the signature.

        The use of the nonce is not recorded. Raises `NotAllowed`.
        """
        signature = _verify(request, value, keys, request.source)
        age = self._clock().timestamp() - signature.created
        if abs(age) > VALID_SECONDS:
            text = (
                f"the request was signed {age:.0f} s ago: more than {VALID_SECONDS}; compare the "
                "clocks"
            )
            raise NotAllowed(text, reason="SIGNATURE_EXPIRED")
        if request.target != self._node:
            text = f"the request is signed for {request.target[:_MAX_TARGET]!r}"
            raise NotAllowed(text, reason="SIGNATURE_WRONG")
        return signature


def _verify(
    message: Signable | SignableResponse,
    value: str,
    keys: Iterable[str],
    node: NodeId,
) -> VerifiedSignature:
    """Return the signature in a value of ``x-auth-sign``, if one of the ``keys`` has made it.

    ``node``, the owner of the keys, is named in an error. Raises `NotAllowed`.
    """
    match = _HEADER.fullmatch(value)
    if match is None or not match[1].startswith(f"{_component_names(message)};"):
        text = "x-auth-sign holds no signature in the form of RFC 9421"
        raise NotAllowed(text, reason="SIGNATURE_MISSING")
    params, created, nonce, key_id, algorithm, encoded = match.groups()
    key = _key_with_id(key_id, keys)
    if key is None:
        raise NotAllowed(f"the route of {node} has no key {key_id}", reason="SIGNATURE_KEY_UNKNOWN")
    signature = _decode(encoded)
    base = signature_base(message.components, params)
    is_valid = is_valid_signature(key, signature, base)
    if algorithm != signature_algorithm(key) or not is_valid:
        text = f"the signature is not one of this message by the key {key_id}"
        raise NotAllowed(text, reason="SIGNATURE_WRONG")
    return VerifiedSignature(key_id, nonce, int(created))


def _key_with_id(key_id: str, keys: Iterable[str]) -> PublicKey | None:
    """Return the key with an id; None if there is none."""
    for text in keys:
        key = public_key(text)
        if key_pin(key) == key_id:
            return key
    return None


def _decode(text: str) -> bytes:
    """Return the bytes of a base64 text; empty if the text is not as an encoder writes it.

    Base64 has several spellings of the same bytes; only one is accepted.
    """
    try:
        decoded = b64decode(text, validate=True)
    except ValueError:
        return b""
    if b64encode(decoded).decode() != text:
        return b""
    return decoded
