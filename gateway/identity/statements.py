"""Signed statements that are kept: a JSON object in an envelope after DSSE (Dead Simple Signing Envelope, v1).

The payload's type is signed with it, so that no statement passes for one of another kind, or for a request.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.identity.audit_head import Head
from gateway.identity.keys import KeyPair, verifies
from route_table.certificates import key_pin, public_key

Envelope = Mapping[str, Any]


class UnknownKey(ValueError):
    """A statement is signed with none of the keys that count."""


def canonical(value: Any) -> bytes:
    """Return JSON data as bytes that are the same wherever it comes from: keys in order, no blanks."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode("utf-8", "replace")


def signed(
    pair: KeyPair,
    kind: str,
    content: Mapping[str, Any],
) -> Envelope:
    """Return a statement in its envelope. ``kind`` is the payload's media type."""
    payload = canonical(content)
    return _envelope(kind, payload, pair.id, pair.sign(_covered(kind, payload)))


def opened(
    envelope: Any,
    kind: str,
    keys: Iterable[str],
) -> tuple[dict[str, Any], str]:
    """Return a statement and the public key that has signed it. Raises `UnknownKey` and `ValueError`."""
    content, key_id, payload, signature = _read(envelope, kind)
    key = next((key for key in keys if key_pin(public_key(key)) == key_id), None)
    if key is None:
        raise UnknownKey(f"it is signed with the key {key_id}")
    if not verifies(public_key(key), signature, _covered(kind, payload)):
        raise ValueError(f"the signature is not one of it by the key {key_id}")
    return content, key


def unproven(envelope: Any, kind: str) -> tuple[dict[str, Any], str]:
    """Return an envelope's content and the id of the key that it names, unverified. Raises `ValueError`."""
    return _read(envelope, kind)[:2]


def _read(envelope: Any, kind: str) -> tuple[dict[str, Any], str, bytes, bytes]:
    try:
        (signature,) = envelope["signatures"]
        payload, given = (
            b64decode(text, validate=True) for text in (envelope["payload"], signature["sig"])
        )
        key_id, content = signature["keyid"], json.loads(payload)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("it is not a signed statement") from error
    # one way to write it: base64 leaves bits open
    if not isinstance(content, dict) or envelope != _envelope(kind, payload, key_id, given):
        raise ValueError("it is not a signed statement of this kind")
    return content, key_id, payload, given


def _envelope(
    kind: str,
    payload: bytes,
    key_id: str,
    signature: bytes,
) -> Envelope:
    text, proof = (b64encode(one).decode() for one in (payload, signature))
    return {
        "payloadType": kind,
        "payload": text,
        "signatures": [{"keyid": key_id, "sig": proof}],
    }


def _covered(kind: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    return b" ".join(
        (b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(payload)).encode(), payload)
    )


# ------------------------------------------------- the audit log: each line's hash covers the one before

HEAD_KIND = "application/vnd.bfia-gateway.audit-head.v1+json"
HEAD = "audit head"
"""action of a line that signs the one before it"""

Line = Mapping[str, Any]
"""id, at (ISO 8601), who, action, status, code, detail; hash: None before the chain began"""


def hash_of(line: Line, previous: str) -> str:
    """Return the hash of a line that follows one with the hash ``previous``."""
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(canonical({**content, "previous": previous})).hexdigest()


def signed_head(
    pair: KeyPair,
    node: str,
    at: datetime,
    number: int,
    hashed: str,
) -> Envelope:
    """Return the signed head of a chain that ends with a line of this number and hash."""
    return signed(
        pair,
        HEAD_KIND,
        {
            "node": node,
            "at": at.isoformat(),
            "id": number,
            "hash": hashed,
        },
    )


@dataclass
class Verification:
    """What was found in a log."""

    lines: int = 0
    first: int = 0
    """number of the first line; if it is not 1, those before it were deleted"""
    before: int = 0
    """lines from before the chain began"""
    head: int | None = None
    """the last line that is a head"""
    head_at: str = ""
    key: str = ""
    """id of the key that has signed it"""
    after_head: int = 0
    """lines after it: their hashes are right, but anybody can compute those"""
    problems: list[str] = field(default_factory=list)


def verify_log(
    lines: Iterable[Line],
    keys: Sequence[str],
    kept: Head | None = None,
) -> Verification:
    """Check a log. ``keys``: the node's public keys, of which one has to have signed the newest head.

    ``kept``: the newest head that the node has kept outside of the log, which has to be in it.

    That covers earlier heads, whose keys may be gone. Old lines may be gone, too, up to a head.
    """
    found = Verification()
    problem = found.problems.append
    last, previous, trusted = 0, "", False
    hash_at_kept = None
    for line in lines:
        number = line["id"]
        if kept is not None and number == kept.line:
            hash_at_kept = line["hash"]
        found.first = found.first or number
        found.lines += 1
        if number <= last:
            problem(f"line {number} comes after line {last}: it was added or moved")
            continue
        stated, signer, known = _stated(line, keys)
        missing = number != last + 1
        if missing and not (last == 0 and stated):
            gap = f"lines {last + 1} to {number - 1} are"
            problem(f"{gap if number > last + 2 else f'line {last + 1} is'} missing")
        before = (str(stated.get("hash")) if stated else None) if missing else previous
        if line["hash"] is None:
            found.before += 1
            if found.before != found.lines:
                problem(f"line {number} has no hash: it was added, or an older version wrote it")
        elif before is not None and hash_of(line, before) != line["hash"]:
            problem(
                f"line {number} was changed" + (f", or line {last} and its hash" if before else "")
            )
        found.after_head += 1
        if stated:
            if (stated.get("id"), stated.get("hash")) != (number - 1, before):
                problem(
                    f"the head in line {number} signs another log: lines and hashes before it were changed"
                )
            found.head, found.head_at, found.key, found.after_head = (
                number,
                str(stated.get("at")),
                signer,
                0,
            )
            trusted = known
        last, previous = number, line["hash"] or ""
    if found.lines == 0 and kept is None:
        problem("there are no lines: nothing was ever changed at this node, or the log was emptied")
    if kept is not None and last < kept.line:
        problem(
            f"lines {last + 1} to {kept.line} are missing at the end: the node signed the last one at {kept.at}"
        )
    elif kept is not None and found.first <= kept.line and hash_at_kept != kept.hash:
        problem(f"line {kept.line} is not the one that the node signed at {kept.at}")
    if found.lines > found.before and found.head is None:
        problem(
            "no line is a signed head: anyone who can write the log could have rewritten all of it"
        )
    elif found.head is not None and not trusted:
        problem(
            f"the newest head, line {found.head}, is signed with {found.key}, not a key of the node"
        )
    return found


def _stated(line: Line, keys: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    """Return a head's content, the key that it names, and whether that is a trusted key and has signed it."""
    if line["action"] != HEAD:
        return {}, "", False
    envelope = line["detail"].get("head")
    try:
        content, signer = unproven(envelope, HEAD_KIND)
        opened(envelope, HEAD_KIND, keys)
    except UnknownKey:
        return content, signer, False
    except ValueError:
        return {}, "", False
    return content, signer, True
