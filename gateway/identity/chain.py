"""The chain of the audit log: each line's hash covers the one before, and signed heads cover the chain so far."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.identity.keys import KeyPair
from gateway.identity.statements import Envelope, UnknownKey, canonical, opened, signed, unproven

KIND = "application/vnd.bfia-gateway.audit-head.v1+json"
HEAD = "audit head"
"""action of a line that signs the one before it"""

Line = Mapping[str, Any]
"""id, at (ISO 8601), who, action, status, code, detail; hash: None before the chain began"""


def hash_of(line: Line, previous: str) -> str:
    """Return the hash of a line that follows one with the hash ``previous``."""
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(canonical({**content, "previous": previous})).hexdigest()


def head(pair: KeyPair, node: str, at: datetime, number: int, hashed: str) -> Envelope:
    """Return the signed head of a chain that ends with a line of this number and hash."""
    return signed(pair, KIND, {"node": node, "at": at.isoformat(), "id": number, "hash": hashed})


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


def verified(lines: Iterable[Line], keys: Sequence[str]) -> Verification:
    """Check a log. ``keys``: the node's public keys, of which one has to have signed the newest head.

    That covers earlier heads, whose keys may be gone. Old lines may be gone, too, up to a head.
    """
    found = Verification()
    problem = found.problems.append
    last, previous, trusted = 0, "", False
    for line in lines:
        number = line["id"]
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
            problem(f"line {number} was changed" + (f", or line {last} and its hash" if before else ""))
        found.after_head += 1
        if stated:
            if (stated.get("id"), stated.get("hash")) != (number - 1, before):
                problem(f"the head in line {number} signs another log: lines and hashes before it were changed")
            found.head, found.head_at, found.key, found.after_head = number, str(stated.get("at")), signer, 0
            trusted = known
        last, previous = number, line["hash"] or ""
    if found.lines > found.before and found.head is None:
        problem("no line is a signed head: whoever can write the log can make all of it anew")
    elif found.head is not None and not trusted:
        problem(f"the newest head, line {found.head}, is signed with {found.key}, not a key of the node")
    return found


def _stated(line: Line, keys: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    """Return what a head says, which key it names, and whether that is one of the keys and has signed it."""
    if line["action"] != HEAD:
        return {}, "", False
    envelope = line["detail"].get("head")
    try:
        content, signer = unproven(envelope, KIND)
        opened(envelope, KIND, keys)
    except UnknownKey:
        return content, signer, False
    except ValueError:
        return {}, "", False
    return content, signer, True
