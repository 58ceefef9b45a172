"""A node's content keys for sealed messages: those it makes, and those it has received."""

import hashlib
import secrets
import threading
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Generic, TypeVar

from gateway.errors import NotAllowed
from gateway.identity.keys import KeyPair
from gateway.identity.sealing import (
    HOUR,
    HOURS_ACCEPTED,
    LONGEST_KEY,
    SEAL_EXPIRED,
    SEAL_WRONG,
    SEALING_KEY_MISSING,
    VERSION,
    ContentKey,
    KeyClaims,
    Position,
    SealedHeaders,
    read_claims,
    seal,
    suite_of,
    unwrap_key,
    wrap_key,
)
from gateway.identity.sealing_keys import SealingPair
from gateway.ports import Clock
from route_table.certificates import key_pin, public_key, sealing_key

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_KEYS = 4096  # content keys in each direction; the oldest are dropped
_ID_BYTES = 16  # of a content key's random id
_SECRET_BYTES = 32
_MESSAGE_ID_BYTES = 16


@dataclass(frozen=True)
class MessageSeal:
    """Seals one message, whole or in parts."""

    key: ContentKey
    sequence: int  # number of the message, counted for the key

    def seal(
        self,
        headers: SealedHeaders,
        pieces: list[bytes],
        part: int = 0,
    ) -> list[bytes]:
        """Return a content sealed; ``part`` is its number in the message; ``pieces`` are freed."""
        return seal(self.key, Position(self.sequence, part), headers, pieces)

    def headers(self, part: int = 0) -> dict[str, str]:
        """Return the headers by which the target opens the message, or a part of it."""
        return {
            "x-ptp-seal-key": self.key.header,
            "x-ptp-seal": Position(self.sequence, part).encode(),
        }


@dataclass(frozen=True)
class _SendingKey:
    """A content key of this process, and the numbers of the messages that it seals."""

    key: ContentKey
    sequences: "count[int]" = field(default_factory=count)


class _Recent(Generic[K, V]):
    """The values that were added most recently, `_MOST_KEYS` of them."""

    def __init__(self) -> None:
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is not here."""
        return self._values.get(key)

    def add(self, key: K, value: V) -> V:
        """Add a value, and return it."""
        self._values[key] = value
        if len(self._values) > _MOST_KEYS:
            del self._values[next(iter(self._values))]
        return value


class Seals:
    """Seals messages of this node, and opens those for it. Safe to use from several threads."""

    def __init__(
        self,
        node: str,
        pair: SealingPair | None,
        signing: Callable[[], KeyPair | None],
        clock: Clock,
    ) -> None:
        """``pair``: the node's sealing key, None if it has none; ``signing``: its signing key."""
        self._node = node
        self._pair = pair
        self._signing = signing
        self._clock = clock
        self._lock = threading.Lock()
        # By target, the target's sealing key, session, hour and id of the signing key
        self._sending: _Recent[tuple[str, str, str, int, str], _SendingKey] = _Recent()
        self._received: _Recent[str, ContentKey] = _Recent()  # by header
        self._secret = _secret_of(pair)

    @property
    def sealing_key(self) -> str | None:
        """The public key to which messages for this node are sealed; None if it has none."""
        if self._pair is None:
            return None
        return self._pair.public

    def begin(
        self,
        target: str,
        recipient: str,
        session: str,
    ) -> MessageSeal:
        """Return the seal of a new message.

        ``recipient``: the target's sealing key, from its route. Raises `NotAllowed` if this node
        has no key with which it signs.
        """
        signer = self._signing()
        if signer is None:
            text = "this node has no key pair: bfia-gateway identity rotate makes one"
            raise NotAllowed(text, reason=SEALING_KEY_MISSING)
        hour = self._hour()
        cache_key = (target, recipient, session, hour, signer.id)
        with self._lock:
            sending = self._sending.get(cache_key)
            if sending is None:
                content_key = self._make_key(target, recipient, session, hour, signer)
                sending = self._sending.add(cache_key, _SendingKey(content_key))
            return MessageSeal(sending.key, next(sending.sequences))

    def _make_key(
        self,
        target: str,
        recipient: str,
        session: str,
        hour: int,
        signer: KeyPair,
    ) -> ContentKey:
        """Return a new content key, wrapped and signed."""
        suite = suite_of(recipient)
        claims = KeyClaims(
            version=VERSION,
            suite=suite.name,
            source=self._node,
            target=target,
            session=session,
            hour=hour,
            id=secrets.token_hex(_ID_BYTES),
            recipient=_sealing_key_id(recipient),
            signer=signer.id,
        )
        return wrap_key(secrets.token_bytes(suite.key_bytes), claims, recipient, signer)

    def received_key(
        self,
        key_header: str,
        source: str,
        session: str,
        keys: Collection[str],
    ) -> ContentKey:
        """Return the content key of a message to this node, whose content may not have arrived yet.

        ``key_header`` is the wrapped key, ``source`` and ``session`` are the message's; ``keys``
        are the source's public keys in the form of routes. Raises `NotAllowed`.
        """
        if len(key_header) > LONGEST_KEY:
            raise NotAllowed(
                f"the wrapped key of the seal has more than {LONGEST_KEY} characters",
                reason=SEAL_WRONG,
            )
        claims = read_claims(key_header)
        self._check_claims(claims, source, session)
        with self._lock:
            key = self._received.get(key_header)
        # The signer's key may have been removed from the route since.
        if key is not None and claims.signer in map(_signing_key_id, keys):
            return key
        key = unwrap_key(key_header, claims, self._pair, keys)
        with self._lock:
            return self._received.add(key_header, key)

    def _check_claims(
        self,
        claims: KeyClaims,
        source: str,
        session: str,
    ) -> None:
        """Raise `NotAllowed` unless a key is for messages of a source and session, and for now."""
        ends = (claims.source, claims.target, claims.session)
        if ends != (source, self._node, session):
            text = (
                f"the key of the seal is for session {claims.session[:100]} from node "
                f"{claims.source[:100]} to {claims.target[:100]}, not for this message"
            )
            raise NotAllowed(text, reason=SEAL_WRONG)
        age = self._hour() - claims.hour
        if abs(age) > HOURS_ACCEPTED:
            text = (
                f"the message of node {claims.source} was sealed with a key of {age} h ago: a "
                "repeated message, or the clocks differ (bfia-gateway route test "
                f"{claims.source})"
            )
            raise NotAllowed(text, reason=SEAL_EXPIRED)

    def message_id(self, name: str) -> str:
        """Return the id under which a sealed message is sent.

        ``name``, the message's id at this node, may be a digest of the content, by which others
        could test a guess. All gateways of this node return the same id, also after a restart.
        """
        digest = hashlib.blake2b(
            name.encode("utf-8", "surrogatepass"),
            key=self._secret,
            digest_size=_MESSAGE_ID_BYTES,
        )
        return digest.hexdigest()

    def _hour(self) -> int:
        """Return the present hour, counted from 1970."""
        return int(self._clock().timestamp() // HOUR)


@lru_cache(1024)
def _signing_key_id(text: str) -> str:
    """Return the id of a public key in the form of routes."""
    return key_pin(public_key(text))


@lru_cache(1024)
def _sealing_key_id(text: str) -> str:
    """Return the id of a sealing key in the form of routes."""
    return key_pin(sealing_key(text))


def _secret_of(pair: SealingPair | None) -> bytes:
    """Return a secret that all gateways of the node share.

    Without a sealing key, it is a random one of this process.
    """
    if pair is None:
        return secrets.token_bytes(_SECRET_BYTES)
    return hashlib.blake2b(
        pair.pem,
        digest_size=_SECRET_BYTES,
        person=b"bfia message id",
    ).digest()
