"""Signed statements that are stored: JSON objects in envelopes of DSSE v1.

DSSE is the Dead Simple Signing Envelope. The signature covers the payload and its type, so that a
statement cannot pass for one of another kind, or for a request.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.identity.keys import is_valid_signature
from gateway.identity.signers import Signer
from route_table.certificates import key_pin, public_key

Envelope = Mapping[str, Any]


class UnknownKey(ValueError):
    """A statement is signed with a key that is not among the signer's known keys."""


def canonical(value: Any) -> bytes:
    """Return JSON data in a unique spelling: keys in order, no blanks.

    A character that UTF-8 cannot encode becomes a question mark.
    """
    text = json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return text.encode("utf-8", "replace")


def sign_statement(
    signer: Signer,
    kind: str,
    content: Mapping[str, Any],
) -> Envelope:
    """Return a statement in its envelope. ``kind`` is the payload's media type.

    Raises `SigningFailed`.
    """
    payload = canonical(content)
    signature = signer.sign(_signed_bytes(kind, payload))
    return _envelope(kind, payload, signer.id, signature)


def open_envelope(
    envelope: Any,
    kind: str,
    keys: Iterable[str],
) -> tuple[dict[str, Any], str]:
    """Return a statement's content and the public key, one of ``keys``, that has signed it.

    Raises `UnknownKey` if the statement names a key that is not among ``keys``, and `ValueError` if
    it has another form or a wrong signature.
    """
    statement = _read(envelope, kind)
    for key in keys:
        decoded_key = public_key(key)
        if key_pin(decoded_key) != statement.key_id:
            continue
        signed = _signed_bytes(kind, statement.payload)
        if not is_valid_signature(decoded_key, statement.signature, signed):
            raise ValueError(f"it is not signed with the key that it names, {statement.key_id}")
        return statement.content, key
    raise UnknownKey(f"it is signed with the key {statement.key_id}")


def read_unverified(
    envelope: Any,
    kind: str,
) -> tuple[dict[str, Any], str]:
    """Return a statement's content and the id of its key, without checking the signature.

    Raises `ValueError` if the statement has another form.
    """
    statement = _read(envelope, kind)
    return statement.content, statement.key_id


@dataclass(frozen=True)
class _Statement:
    """The decoded parts of an envelope."""

    content: dict[str, Any]  # the parsed payload
    payload: bytes  # the JSON text that is signed
    key_id: str
    signature: bytes


def _read(envelope: Any, kind: str) -> _Statement:
    """Read an envelope of this kind with exactly one signature, which is not checked.

    Raises `ValueError`.
    """
    try:
        (signature,) = envelope["signatures"]
        payload = b64decode(envelope["payload"], validate=True)
        statement = _Statement(
            content=json.loads(payload),
            payload=payload,
            key_id=signature["keyid"],
            signature=b64decode(signature["sig"], validate=True),
        )
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("it is not a signed statement") from error
    # Base64 has several spellings of the same bytes; only one is accepted.
    expected = _envelope(kind, payload, statement.key_id, statement.signature)
    if not isinstance(statement.content, dict) or envelope != expected:
        raise ValueError("it is not a signed statement of this kind")
    return statement


def _envelope(
    kind: str,
    payload: bytes,
    key_id: str,
    signature: bytes,
) -> Envelope:
    """Return an envelope of DSSE with one signature."""
    return {
        "payloadType": kind,
        "payload": b64encode(payload).decode(),
        "signatures": [{"keyid": key_id, "sig": b64encode(signature).decode()}],
    }


def _signed_bytes(kind: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    parts = [
        b"DSSEv1",
        str(len(kind)).encode(),
        kind.encode(),
        str(len(payload)).encode(),
        payload,
    ]
    return b" ".join(parts)
