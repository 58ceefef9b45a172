"""Content keys, and sealed channel messages: encrypted and bound to their headers.

A sending process makes a content key per session, target and hour. It wraps the key for the
target's sealing key, and signs the wrapped key with its node's signing key. The wrapped key travels
with each message, so nothing has to be agreed on beforehand, and relays need no part in it. Control
requests use the same keys, see `gateway.identity.request_seals`. The format on the wire is in
docs/sealing.md.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields

from cryptography.exceptions import InvalidTag

from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed
from gateway.identity.keys import KeyPair, is_valid_signature
from gateway.identity.sealing_keys import SealingPair
from gateway.identity.sealing_suites import SUITES, Aead, NotOpened, SealingSuite, suite_for
from route_table.certificates import PublicKey, key_pin, public_key, sealing_key

VERSION = 1  # of the format on the wire
HOUR = 3600  # seconds
# Hours by which a content key may differ from this machine's: clocks differ, and a message may be
# repeated past the end of its hour.
HOURS_ACCEPTED = 1
# Characters of a wrapped key. With the longest ids, one that is signed by Ed25519 has 1000, by RSA
# with 4096 bits 1700, and by RSA with 16384 bits, the longest key that OpenSSL verifies, 3700.
LONGEST_KEY = 4096

# Reasons of refusals
SEALING_REQUIRED = "SEALING_REQUIRED"
SEALING_KEY_MISSING = "SEALING_KEY_MISSING"
SEAL_KEY_UNKNOWN = "SEAL_KEY_UNKNOWN"
SEAL_EXPIRED = "SEAL_EXPIRED"
SEAL_WRONG = "SEAL_WRONG"
# Reasons of a receiver that does not open a seal
SEAL_REASONS = (SEAL_KEY_UNKNOWN, SEAL_EXPIRED, SEAL_WRONG)

# Begin the bytes that HPKE binds, that are signed, and that are authenticated with a content.
_INFO = b"bfia-gateway seal key v1\n"
_SIGNED = b"bfia-gateway signed seal key v1\n"
_MESSAGE = "bfia-gateway sealed message v1"
_SEQUENCE_BYTES = 8
_PART_BYTES = 4
_BASE64 = re.compile(r"[A-Za-z0-9_-]*")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,14})/(0|[1-9][0-9]{0,8})", re.ASCII)


# ------------------------------------------------------------ content keys


@dataclass(frozen=True)
class KeyClaims:
    """What a wrapped key says about its content key."""

    version: int
    suite: str  # name of one of `SUITES`
    source: str
    target: str
    session: str
    hour: int  # hours since 1970 in which the key was made
    id: str  # random, in hexadecimal
    recipient: str  # id of the sealing key for which the content key is wrapped
    signer: str  # id of the key that has signed the wrapped key

    def encode(self) -> str:
        """Return the claims as a wrapped key has them: JSON in Base64."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return _encode(text.encode())


@dataclass(frozen=True)
class ContentKey:
    """A key for the messages of a session from one node to another in one hour."""

    claims: KeyClaims
    header: str  # the wrapped key as it travels with each message
    aead: Aead
    secret: bytes = field(repr=False)  # the key itself, from which keys of responses are derived

    @property
    def quick_bytes(self) -> int:
        """The longest content that is sealed or opened without a thread."""
        return SUITES[self.claims.suite].quick_bytes


@dataclass(frozen=True)
class SealedHeaders:
    """The headers of a message that its seal covers, each as it is sent; "" for an absent one."""

    session: str
    source: str
    target: str
    topic: str
    message_id: str
    part: str  # offset and size of a part in bytes, ``0/4096``; "" for a whole message


@dataclass(frozen=True)
class Position:
    """The place of a content among all that one content key encrypts; none is used twice."""

    sequence: int  # of the message, counted by the sender
    part: int  # number of the part in its message, from 0

    def encode(self) -> str:
        """Return the value of the message's header."""
        return f"{self.sequence}/{self.part}"

    @property
    def nonce(self) -> bytes:
        """The nonce with which the content is encrypted."""
        sequence = self.sequence.to_bytes(_SEQUENCE_BYTES, "big")
        return sequence + self.part.to_bytes(_PART_BYTES, "big")


def read_position(text: str) -> Position:
    """Return the position in a message's header. Raises `Invalid`."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise Invalid([Problem("x-ptp-seal", "must be sequence/part", text[:80])])
    return Position(int(match[1]), int(match[2]))


def seal(
    key: ContentKey,
    position: Position,
    headers: SealedHeaders,
    pieces: list[bytes],
) -> list[bytes]:
    """Return a content encrypted, and bound to its headers; ``pieces`` are freed."""
    return key.aead.encrypt(position.nonce, pieces, _associated_data(key, position, headers))


def open_sealed(
    key: ContentKey,
    position: Position,
    headers: SealedHeaders,
    pieces: list[bytes],
) -> list[bytes]:
    """Return the plain content; ``pieces`` are freed.

    Raises `NotAllowed` if content or headers were changed.
    """
    data = _associated_data(key, position, headers)
    try:
        return key.aead.decrypt(position.nonce, pieces, data)
    except (InvalidTag, ValueError) as error:
        text = (
            f"a message of node {headers.source} is not as it was sealed: a header or the content "
            "was changed on the way"
        )
        raise NotAllowed(text, reason=SEAL_WRONG) from error


def _associated_data(
    key: ContentKey,
    position: Position,
    headers: SealedHeaders,
) -> bytes:
    """Return the bytes that are authenticated with a content: a line for each header."""
    lines = [
        _MESSAGE,
        f"x-ptp-session-id: {headers.session}",
        f"x-ptp-source-node-id: {headers.source}",
        f"x-ptp-target-node-id: {headers.target}",
        f"x-ptp-topic: {headers.topic}",
        f"x-ptp-message-id: {headers.message_id}",
        f"x-ptp-part: {headers.part}",
        f"x-ptp-seal: {position.encode()}",
        f"x-ptp-seal-key: {key.header}",
    ]
    return "\n".join(lines).encode("latin-1")


# ------------------------------------------------------------ wrapping


def wrap_key(
    content_key: bytes,
    claims: KeyClaims,
    recipient: str,
    signer: KeyPair,
) -> ContentKey:
    """Return a content key with its wrapped form.

    ``recipient`` is the target's sealing key in the form of routes.
    """
    suite = SUITES[claims.suite]
    encoded = claims.encode()
    wrapped = suite.wrap(content_key, sealing_key(recipient), _INFO + encoded.encode())
    signed = f"{encoded}.{_encode(wrapped)}"
    signature = signer.sign(_SIGNED + signed.encode())
    header = f"{signed}.{_encode(signature)}"
    return ContentKey(claims, header, suite.aead(content_key), content_key)


def suite_of(recipient: str) -> SealingSuite:
    """Return the suite for a sealing key in the form of routes."""
    return suite_for(sealing_key(recipient))


def read_claims(header: str) -> KeyClaims:
    """Return what a wrapped key says; its signature is not checked. Raises `NotAllowed`."""
    encoded, _, _ = header.partition(".")
    try:
        content = json.loads(_decode(encoded))
        claims = KeyClaims(**content)
    except (ValueError, TypeError, RecursionError) as error:
        raise _malformed() from error
    has_types = all(type(content[field.name]) is field.type for field in fields(KeyClaims))
    if not has_types or claims.version != VERSION:
        raise _malformed()
    return claims


def unwrap_key(
    header: str,
    claims: KeyClaims,
    pair: SealingPair | None,
    keys: Collection[str],
) -> ContentKey:
    """Return the content key of a header, after a check of its signature.

    ``pair`` is this node's sealing key, None if it has none; ``keys`` are the sender's public keys
    in the form of routes. Raises `NotAllowed`.
    """
    signed, _, signature = header.rpartition(".")
    encoded, _, wrapped = signed.partition(".")
    signer = _key_with_id(claims.signer, keys)
    if signer is None:
        text = (
            f"the route of {claims.source} has no key {claims.signer}, which has sealed its "
            f"message: bfia-gateway partner accept, or bfia-gateway route edit {claims.source} "
            "--keys KEYS"
        )
        raise NotAllowed(text, reason=SEAL_KEY_UNKNOWN)
    if not is_valid_signature(signer, _decode_or_refuse(signature), _SIGNED + signed.encode()):
        text = f"the wrapped key of node {claims.source} has no valid signature"
        raise NotAllowed(text, reason=SEAL_WRONG)
    if pair is None or pair.id != claims.recipient:
        text = (
            f"node {claims.source} has sealed to {claims.recipient}, which is not the sealing key "
            f"of {claims.target}: have it accept this node's invitation again (bfia-gateway "
            "partner invite)"
        )
        raise NotAllowed(text, reason=SEAL_KEY_UNKNOWN)
    suite = suite_for(pair.private)
    if suite.name != claims.suite:
        raise _malformed()
    try:
        content_key = suite.unwrap(
            _decode_or_refuse(wrapped),
            pair.private,
            _INFO + encoded.encode(),
        )
        return ContentKey(claims, header, suite.aead(content_key), content_key)
    except (NotOpened, ValueError) as error:
        raise _malformed() from error


def _key_with_id(key_id: str, keys: Collection[str]) -> PublicKey | None:
    """Return the key with an id; None if there is none."""
    for text in keys:
        key = public_key(text)
        if key_pin(key) == key_id:
            return key
    return None


def _encode(content: bytes) -> str:
    """Return bytes as URL-safe Base64 without padding."""
    return urlsafe_b64encode(content).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Return the bytes of URL-safe Base64 without padding. Raises ValueError."""
    if not _BASE64.fullmatch(text):
        raise ValueError(text)
    content = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _encode(content) != text:
        raise ValueError(text)
    return content


def _decode_or_refuse(text: str) -> bytes:
    """Return the bytes of a part of a wrapped key. Raises `NotAllowed`."""
    try:
        return _decode(text)
    except ValueError as error:
        raise _malformed() from error


def _malformed() -> NotAllowed:
    """Return the refusal of a malformed wrapped key."""
    return NotAllowed("the seal has no wrapped key for this node", reason=SEAL_WRONG)
