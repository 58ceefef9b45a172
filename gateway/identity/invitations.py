"""Invitations to partners: node, address and keys.

People compare them by six words, or by six groups of digits.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from route_table.model import link_url

# Words to compare are pronounceable: each of the 16 consonants represents 4 bits, each of the 4
# vowels 2 bits.
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"
_WORD_BYTES = 2  # bytes that a word represents


def parse_invitation(
    body: Mapping[str, Any],
    me: str,
) -> dict[str, Any]:
    """Return node, address and keys of another node's invitation, without any further fields.

    The result has ``sealing_key``, too, if the invitation offers one: older nodes offer none.
    ``me`` is this node's id. Raises `Invalid` for this node's own invitation, and for a body
    that is not an invitation.
    """
    invitation = {key: body.get(key) for key in ("node", "address", "keys")}
    if invitation["node"] == me:
        rule = "must be another node's; this is your own: send it to the partner"
        raise Invalid([Problem("invitation", rule)])
    if not _is_complete(**invitation):
        rule = "must be another node's, with node, address and keys"
        raise Invalid([Problem("invitation", rule)])
    offered = body.get("sealing_key")
    if offered is None:
        return invitation
    if not _is_single_word(offered):
        raise Invalid([Problem("invitation.sealing_key", "must be a public key in base64")])
    return {**invitation, "sealing_key": offered}


def _is_complete(node: Any, address: Any, keys: Any) -> bool:
    """Return whether the values of an invitation have the right form."""
    if not isinstance(keys, list) or not keys:
        return False
    return all(map(_is_single_word, (node, address, *keys)))


def _is_single_word(text: Any) -> bool:
    """Return whether a value is a text that is not empty and has no blanks.

    A text with blanks could change the meaning of the question in which it is shown to a person.
    """
    return isinstance(text, str) and text.split() == [text]


def sealing_between(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
) -> str | None:
    """Return the value of ``sealing`` for the partner's route: ``required``; None for no sealing.

    It is None unless both invitations offer a sealing key: the six words would not cover a single
    one, so that it could be an attacker's.
    """
    both_offer = bool(ours.get("sealing_key")) and bool(theirs.get("sealing_key"))
    return "required" if both_offer else None


def way_between(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
) -> dict[str, str]:
    """Return the values of the partner's route that say how the two nodes reach each other.

    The address of a node that dials its partners is the one that `link_url` returns. Raises
    `Invalid` if both nodes dial, as none of them could be dialled.
    """
    their_address = str(theirs["address"])
    if not is_link(their_address):
        way = {"url": their_address}
        if is_link(str(ours["address"])):
            way["dial"] = "out"
        return way
    if is_link(str(ours["address"])):
        rule = (
            "must have an address: neither of the two nodes has one; both need a route to an open "
            "node, and a route to each other through it (via)"
        )
        raise Invalid([Problem("invitation.address", rule)])
    return {"reached": "by-link"}


def is_link(address: str) -> bool:
    """Return whether the address in an invitation is that of a node that dials its partners."""
    return address.startswith(link_url(""))


def six_words(*invitations: Mapping[str, Any]) -> str:
    """Return six words that people at two nodes compare, for their invitations in any order.

    Sealing keys count if both invitations have one: an older node, which knows none, gets the same
    words as the other side.

    A word represents 16 bits, six words 96. An attacker between the nodes who looks for two pairs
    of invitations with the same words (a collision) needs 2^48 tries of a slow hash.
    """
    have_sealing_keys = all(invitation.get("sealing_key") for invitation in invitations)
    contents = []
    for invitation in invitations:
        keys = sorted(invitation["keys"])
        content = [invitation["node"], invitation["address"], keys]
        if have_sealing_keys:
            content.append(invitation["sealing_key"])
        contents.append(content)
    digest = hashlib.scrypt(
        json.dumps(sorted(contents)).encode(),
        salt=b"bfia-gateway partner",
        n=2**15,
        r=8,
        p=1,
        maxmem=2**26,
        dklen=6 * _WORD_BYTES,
    )
    words = []
    for start in range(0, len(digest), _WORD_BYTES):
        number = int.from_bytes(digest[start : start + _WORD_BYTES], "big")
        words.append(_word(number))
    return " ".join(words)


def _word(number: int) -> str:
    """Return 16 bits as three consonants (4 bits each) and two vowels (2 bits each)."""
    # Bits, from the highest: 4 first, 2 vowel, 4 middle, 2 vowel, 4 last.
    first, middle, last = (_CONSONANTS[number >> shift & 15] for shift in (12, 6, 0))
    return first + _VOWELS[number >> 10 & 3] + middle + _VOWELS[number >> 4 & 3] + last


def digits_of(words: str) -> str:
    """Return six words as six groups of five digits, for people whose language lacks their sounds.

    A group is the number that its word represents, so that the digits are as strong as the words.
    """
    return " ".join(f"{_number(word):05}" for word in words.split())


def _number(word: str) -> int:
    """Return the number that a word represents: the inverse of `_word`."""
    first, vowel, middle, second_vowel, last = list(word)
    number = _CONSONANTS.index(first)
    number = number << 2 | _VOWELS.index(vowel)
    number = number << 4 | _CONSONANTS.index(middle)
    number = number << 2 | _VOWELS.index(second_vowel)
    return number << 4 | _CONSONANTS.index(last)
