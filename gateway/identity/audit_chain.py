"""The chain of the audit log.

Each line has a hash that covers the hash of the line before, and so all earlier lines. Some lines
are heads: they contain a signed statement (`gateway.identity.statements`) with the number and the
hash of the line before the head.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.identity.audit_head import Head
from gateway.identity.signers import Signer
from gateway.identity.statements import (
    Envelope,
    UnknownKey,
    canonical,
    open_envelope,
    read_unverified,
    sign_statement,
)

# Media type of the signed statement in a head.
HEAD_KIND = "application/vnd.bfia-gateway.audit-head.v1+json"
HEAD = "audit head"  # the action of a line that is a head

# A line of the audit log: id, at (ISO 8601), who, action, status, code, detail, and hash, which is
# None for a line from before the chain began.
Line = Mapping[str, Any]


def hash_of(line: Line, previous: str) -> str:
    """Return the hash of a line that follows one with the hash ``previous``.

    ``previous`` is "" for the first line of the chain. The line's own field ``hash`` is ignored.
    """
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(canonical({**content, "previous": previous})).hexdigest()


def signed_head(
    signer: Signer,
    node: str,
    at: datetime,
    number: int,
    line_hash: str,
) -> Envelope:
    """Return the signed head of a chain that ends with a line of this number and hash.

    Raises `SigningFailed`.
    """
    content = {
        "node": node,
        "at": at.isoformat(),
        "id": number,
        "hash": line_hash,
    }
    return sign_statement(signer, HEAD_KIND, content)


def head_key(detail: Mapping[str, Any]) -> str:
    """Return the id of the key that a head, by its line's detail, is signed with; unverified.

    "" if the detail has another form.
    """
    try:
        _, key_id = read_unverified(detail.get("head"), HEAD_KIND)
    except ValueError:
        return ""
    return key_id


@dataclass
class Verification:
    """The result of checking a log, which is intact if ``problems`` is empty."""

    lines: int = 0
    first: int = 0  # number of the first line; above 1 if the lines before were deleted
    before: int = 0  # how many lines are older than the chain, and so have no hash
    head: int | None = None  # number of the last line that is a head
    head_at: str = ""  # time of that head's signature, ISO 8601
    key: str = ""  # id of the key that has signed that head
    after_head: int = 0  # how many lines follow that head; no signature protects them
    problems: list[str] = field(default_factory=list)  # a sentence for people each


def verify_log(
    lines: Iterable[Line],
    keys: Sequence[str],
    stored_head: Head | None = None,
) -> Verification:
    """Check that no lines of a log were changed, removed, added or moved.

    - ``keys``: the node's public keys; one of them must have signed the newest head. Earlier heads
      are covered by the newest one, so their keys may be unknown now
    - ``stored_head``: the head in the node's `HeadFile`, which the log must contain; None if there
      is no such file, or if it is unknown because the log was exported

    The oldest lines may be missing if the first remaining line is a head.
    """
    check = _LogCheck(keys, stored_head)
    for line in lines:
        check.add(line)
    return check.finish()


@dataclass(frozen=True)
class _LineHead:
    """The signed statement in a line that is a head.

    Its form is valid; the values in it are not checked yet.
    """

    number: Any  # the stated number of the line before the head
    hash: Any  # the stated hash of the line before the head
    at: str
    key_id: str
    is_trusted: bool  # True if one of the node's keys has signed the statement


class _LogCheck:
    """Checks a log line by line."""

    def __init__(self, keys: Sequence[str], stored_head: Head | None) -> None:
        self._keys = keys
        self._stored_head = stored_head
        self._result = Verification()
        self._last = 0  # number of the previous line
        self._last_hash = ""  # of the previous line
        self._is_trusted = False  # whether one of the node's keys has signed the newest head
        # Hash of the log's line with the number of the stored head; None if it was not read.
        self._hash_at_stored_head: str | None = None

    def add(self, line: Line) -> None:
        """Check the next line."""
        number = line["id"]
        self._result.first = self._result.first or number
        self._result.lines += 1
        self._compare_with_stored_head(line)
        if number <= self._last:
            self._report(f"line {number} comes after line {self._last}: it was added or moved")
            return  # the next line is compared with the last line that was in order
        head = _head_in(line, self._keys)
        self._check_gap(number, head)
        previous_hash = self._hash_before(number, head)
        self._check_hash(line, previous_hash)
        self._result.after_head += 1  # `_take_head` resets the count
        if head is not None:
            self._take_head(number, head, previous_hash)
        self._last = number
        self._last_hash = line["hash"] or ""

    def _compare_with_stored_head(self, line: Line) -> None:
        """Keep the hash of the line with the number of the stored head.

        `_check_end` compares the hash, since the log may also end before that line.
        """
        if self._stored_head is not None and line["id"] == self._stored_head.line:
            self._hash_at_stored_head = line["hash"]

    def finish(self) -> Verification:
        """Return the result, after checking the log as a whole."""
        self._check_end()
        self._check_newest_head()
        return self._result

    def _report(self, problem: str) -> None:
        """Add a problem to the result."""
        self._result.problems.append(problem)

    def _check_gap(self, number: int, head: _LineHead | None) -> None:
        """Report missing lines between the previous line and the line ``number``.

        Lines may be missing before the first line of the log if that first line is a head.
        """
        first_missing = self._last + 1
        begins_with_head = self._last == 0 and head is not None
        if number == first_missing or begins_with_head:
            return
        if number == first_missing + 1:
            self._report(f"line {first_missing} is missing")
        else:
            self._report(f"lines {first_missing} to {number - 1} are missing")

    def _hash_before(self, number: int, head: _LineHead | None) -> str | None:
        """Return the hash of the line before the line ``number``.

        If the line before is missing, the hash is taken from the statement of this head. None if
        the line before is missing and this line is not a head.
        """
        if number == self._last + 1:
            return self._last_hash
        if head is None:
            return None
        return str(head.hash)

    def _check_hash(self, line: Line, previous_hash: str | None) -> None:
        """Report a line whose hash does not follow from its content and the line before.

        If the hash of the line before is unknown (None), this line's hash cannot be checked.
        """
        number = line["id"]
        if line["hash"] is None:
            self._check_line_without_hash(number)
            return
        is_right = previous_hash is None or hash_of(line, previous_hash) == line["hash"]
        if is_right:
            return
        if previous_hash:  # "" for the first line of the chain, which follows no hash
            self._report(f"line {number} was changed, or line {self._last} and its hash")
        else:
            self._report(f"line {number} was changed")

    def _check_line_without_hash(self, number: int) -> None:
        """Count a line from before the chain began; report one that follows a line of the chain."""
        self._result.before += 1
        # Such lines are valid only at the start of the log, before any line with a hash.
        if self._result.before != self._result.lines:
            self._report(f"line {number} has no hash: it was added, or an older version wrote it")

    def _take_head(self, number: int, head: _LineHead, previous_hash: str | None) -> None:
        """Make the line ``number`` the newest head, and check that it signs the line before."""
        if head.number != number - 1 or head.hash != previous_hash:
            self._report(
                f"the head in line {number} signs another log: lines and hashes before it were "
                "changed"
            )
        self._result.head = number
        self._result.head_at = head.at
        self._result.key = head.key_id
        self._result.after_head = 0
        self._is_trusted = head.is_trusted

    def _check_end(self) -> None:
        """Report a log without the stored head or, if no head is stored, an empty log."""
        stored = self._stored_head
        if stored is None:
            self._check_not_empty()
            return
        if self._last < stored.line:
            self._report(
                f"lines {self._last + 1} to {stored.line} are missing at the end: "
                f"the node signed the last one at {stored.at}"
            )
        # A log that begins after the stored head does not have the head's line to compare.
        elif self._result.first <= stored.line and self._hash_at_stored_head != stored.hash:
            self._report(f"line {stored.line} is not the one that the node signed at {stored.at}")

    def _check_not_empty(self) -> None:
        """Report an empty log: without a stored head it may have been emptied."""
        if self._result.lines == 0:
            self._report(
                "there are no lines: nothing was ever changed at this node, or the log was emptied"
            )

    def _check_newest_head(self) -> None:
        """Report a chain without a head, or a newest head that an unknown key has signed."""
        result = self._result
        has_chain = result.lines > result.before
        if result.head is None and has_chain:
            self._report(
                "no line is a signed head: anyone who can write the log could have rewritten "
                "all of it"
            )
        if result.head is not None and not self._is_trusted:
            self._report(
                f"the newest head, line {result.head}, is signed with {result.key}, not a key of "
                "the node"
            )


def _head_in(line: Line, keys: Sequence[str]) -> _LineHead | None:
    """Return the statement of a line that is a head.

    None for any other line, and for a head whose form or signature is wrong. A head that an unknown
    key has signed is returned with ``is_trusted`` False.
    """
    if line["action"] != HEAD:
        return None
    envelope = line["detail"].get("head")
    is_trusted = True
    try:
        content, key_id = read_unverified(envelope, HEAD_KIND)
        open_envelope(envelope, HEAD_KIND, keys)
    except UnknownKey:  # a kind of `ValueError`; only `open_envelope` raises it
        is_trusted = False
    except ValueError:
        return None
    if not content:
        return None
    return _LineHead(
        number=content.get("id"),
        hash=content.get("hash"),
        at=str(content.get("at")),
        key_id=key_id,
        is_trusted=is_trusted,
    )
