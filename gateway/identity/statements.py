"""Signed statements that are kept: a JSON object in an envelope after DSSE (Dead Simple Signing Envelope, v1).

The payload's type is signed with it, so that no statement passes for one of another kind, or for a request.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.identity.keys import KeyPair, verifies
from route_table.certificates import key_pin, public_key

Envelope = Mapping[str, Any]


class UnknownKey(ValueError):
    """A statement is signed with none of the keys that count."""


def canonical(value: Any) -> bytes:
    """Return JSON data as bytes that are the same wherever it comes from: keys in order, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def signed(pair: KeyPair, kind: str, content: Mapping[str, Any]) -> Envelope:
    """Return a statement in its envelope. ``kind`` is the payload's media type."""
    payload = canonical(content)
    return _envelope(kind, payload, pair.id, pair.sign(_covered(kind, payload)))


def opened(envelope: Any, kind: str, keys: Iterable[str]) -> tuple[dict[str, Any], str]:
    """Return a statement and the public key that has signed it. Raises `UnknownKey` and `ValueError`."""
    content, key_id, payload, signature = _read(envelope, kind)
    key = next((key for key in keys if key_pin(public_key(key)) == key_id), None)
    if key is None:
        raise UnknownKey(f"it is signed with the key {key_id}")
    if not verifies(public_key(key), signature, _covered(kind, payload)):
        raise ValueError(f"the signature is not one of it by the key {key_id}")
    return content, key


def unproven(envelope: Any, kind: str) -> tuple[dict[str, Any], str]:
    """Return what an envelope says, and the id of the key that it names. Raises `ValueError` if it is none."""
    return _read(envelope, kind)[:2]


def _read(envelope: Any, kind: str) -> tuple[dict[str, Any], str, bytes, bytes]:
    try:
        (signature,) = envelope["signatures"]
        payload, given = (b64decode(text, validate=True) for text in (envelope["payload"], signature["sig"]))
        key_id, content = signature["keyid"], json.loads(payload)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("it is not a signed statement") from error
    # one way to write it: base64 leaves bits open
    if not isinstance(content, dict) or envelope != _envelope(kind, payload, key_id, given):
        raise ValueError("it is not a signed statement of this kind")
    return content, key_id, payload, given


def _envelope(kind: str, payload: bytes, key_id: str, signature: bytes) -> Envelope:
    text, proof = (b64encode(one).decode() for one in (payload, signature))
    return {"payloadType": kind, "payload": text, "signatures": [{"keyid": key_id, "sig": proof}]}


def _covered(kind: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    return b" ".join((b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(payload)).encode(), payload))
